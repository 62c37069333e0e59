"""The likelihood of machines whose hidden units cannot be summed, by annealing them with the visible ones clamped.

log p(v) = log Σ_h exp(-E(v, h)) - log Z
"""

import torch
from torch import Tensor

from gibbsian.capabilities import ClampedModel
from gibbsian.partition.base import LogZ, require_energy
from gibbsian.partition.hidden import clamped_ais
from gibbsian.partition.likelihood import LogLikelihood, likelihood_of, log_z_for

__all__ = ["clamped_log_likelihood"]


def clamped_log_likelihood(
    machine: ClampedModel,
    v: Tensor,
    log_z: "LogZ | float | Tensor | None" = None,
    *,
    chains: int = 20,
    betas: "int | Tensor" = 200,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> LogLikelihood:
    """The mean log-likelihood of data under a machine whose hidden units cannot be summed.

        log p(v) = log Σ_h exp(-E(v, h)) - log Z,   the first term by `clamped_ais`

    The errors of the first term are independent between rows, so they are part of the spread over the data.

    Args:
        machine, v, chains, betas, generator, progress: as in `clamped_ais`.
        log_z: an estimate from `gibbsian.partition` (`ais` anneals visible and hidden units together), or a
            number.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> machine = gb.models.BoltzmannMachine(4, hidden=3)
    >>> v = torch.tensor([[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    >>> out = clamped_log_likelihood(machine, v, generator=g)
    >>> bool((out.value - gb.log_likelihood(machine, v).value).abs() < 0.01)
    True
    """
    free = clamped_ais(machine, v, chains, betas, generator=generator, progress=progress)
    known = log_z_for(require_energy(machine), v, log_z, generator)
    return likelihood_of(free.value - known.value.to(free.value), known, f"clamped AIS, {known.method}")
