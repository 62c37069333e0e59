"""AIS with the visible units clamped: the free energy of machines whose hidden units cannot be summed.

log Σ_h exp(-E(v, h)),   annealed over h from uniform hidden units, one run for each v and chain
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import ClampedModel, require
from gibbsian.errors import ArgumentError
from gibbsian.partition.annealed import ladder_of, run_path
from gibbsian.partition.base import require_energy
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator


class Clamped(NamedTuple):
    """log Σ_h exp(-E(v, h)) of every row, with the standard error of each by the delta method."""

    value: Tensor
    stderr: Tensor


def clamped_ais(
    machine: ClampedModel,
    v: Tensor,
    chains: int = 20,
    betas: "int | Tensor" = 200,
    *,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> Clamped:
    """log Σ_h exp(-E(v, h)) of a machine with many hidden units, by AIS over h with v clamped.

        w = Π exp(-(β_k - β_{k-1}) E(v, h_{k-1})),   log Σ_h exp(-E(v, h)) ≈ M log 2 + log mean w

    Low on average, so a likelihood made with it errs on the safe side (as far as log Z does not flatter it).
    Where the machine can sum its hidden units its own free energy is exact and cheaper.

    Args:
        machine: with hidden units that can be annealed (`hidden_path`), such as a BoltzmannMachine.
        v: visible states `(batch, n)`.
        chains: runs for every row.
        betas: number of temperatures, or a tensor that rises from 0 to 1.
        generator: the source of all randomness; required.
        progress: show a progress bar; by default on a terminal.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> machine = gb.models.BoltzmannMachine(4, hidden=3)
    >>> v = torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    >>> out = clamped_ais(machine, v, generator=g)
    >>> bool((out.value + machine(v)).abs() < 0.01)
    True
    """
    path_of = require(machine, ClampedModel, "clamped_ais", "use -energy(v), which is exact").hidden_path
    generator = require_generator(generator, v.device)
    require_energy(machine).domain.check(v, "v")
    if chains < 2:
        raise ArgumentError(f"chains={chains}: at least two runs for every row are needed for an error bar")
    path, ladder = path_of(v.repeat_interleave(chains, 0)), ladder_of(betas)
    x = path.sample(len(v) * chains, generator=generator)
    with progress_bar(len(ladder) - 1, "clamped AIS", progress) as tick:
        _, log_w = run_path(path, x, ladder, generator, tick)
    log_w = log_w.reshape(len(v), chains)
    mean = torch.logsumexp(log_w, 1) - math.log(chains)
    error = torch.exp(log_w - mean[:, None]).std(1) / math.sqrt(chains)
    return Clamped(path.log_z0() + mean, error)
