"""Annealed importance sampling for every row: over hidden units with visible ones clamped, and under every input."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import Annealable, ClampedModel, ConditionedModel, Path, require
from gibbsian.errors import CapabilityError, check_count
from gibbsian.partition.base import refuse_nan, require_energy
from gibbsian.partition.exact import LogZEach, require_inputs
from gibbsian.partition.runner import ladder_of, run_path
from gibbsian.placement import check_rows
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
        betas, generator, progress: as in `ais`.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> machine = gb.models.BoltzmannMachine(4, hidden=3)
    >>> v = torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    >>> out = clamped_ais(machine, v, generator=g)
    >>> bool((out.value + machine(v)).abs() < 0.01)
    True
    """
    path_of = require(machine, ClampedModel, "clamped_ais", "use -energy(v), which is exact").hidden_path
    check_rows(require_energy(machine), v, "v")
    generator = require_generator(generator, v.device)
    chains = check_count("clamped_ais", "chains", chains, 2)  # two runs of a row, for an error bar
    path = path_of(v.repeat_interleave(chains, 0))
    mean, error = _log_means(path, (len(v), chains), 1, betas, "clamped AIS", generator, progress)
    return Clamped(path.log_z0() + mean, error)


def ais_each(
    machine: ConditionedModel,
    chains: int = 20,
    betas: "int | Tensor" = 200,
    *,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> LogZEach:
    """log Z(x) for every input by annealed importance sampling, all inputs and chains side by side.

    Every input starts from its own independent units, those of the mean-field solution. Low on average, so
    likelihoods made with it are flattered: raise `chains` and `betas` until they stay.

    Args:
        machine: a conditional machine under its inputs.
        chains: runs for every input.
        betas, generator, progress: as in `clamped_ais`.
    """
    machine = require_inputs(machine)
    generator = require_generator(generator, machine.inputs().device)
    chains = check_count("ais_each", "chains", chains, 2)
    n = len(machine.inputs())
    path = require(machine.repeated(chains), Annealable, "ais_each", "use partition.exact_each").path()
    if path is None:
        raise CapabilityError(f"{type(machine).__name__} has no path for its units; use partition.exact_each")
    mean, error = _log_means(path, (chains, n), 0, betas, "AIS for every input", generator, progress)
    value = path.log_z0().double().expand(n * chains)[:n] + mean.double()
    refuse_nan(value, "the AIS estimate of log Z(x)")
    return LogZEach(value, error.double(), "AIS")


def _log_means(
    path: Path,
    shape: tuple[int, int],
    dim: int,
    betas: "int | Tensor",
    title: str,
    generator: torch.Generator,
    progress: bool | None,
) -> tuple[Tensor, Tensor]:
    """The log of the mean weight along one axis of runs that are laid out in a shape, and its standard error."""
    ladder = ladder_of(betas)
    start = path.sample(shape[0] * shape[1], generator=generator)
    with progress_bar(len(ladder) - 1, title, progress) as tick:
        _, log_w = run_path(path, start, ladder, generator, tick)
    log_w = log_w.reshape(shape)
    mean = torch.logsumexp(log_w, dim, keepdim=True) - math.log(shape[dim])
    error = torch.exp(log_w - mean).std(dim) / math.sqrt(shape[dim])
    return mean.squeeze(dim), error
