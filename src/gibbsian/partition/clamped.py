"""AIS with the visible units clamped: the free energy of machines whose hidden units cannot be summed.

log Σ_h exp(-E(v, h)),   annealed over h from uniform hidden units, one run for each v and chain
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Binary, Spin
from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.models.boltzmann import BoltzmannMachine
from gibbsian.partition.annealed import ladder_of, run_path
from gibbsian.partition.base import LogZ
from gibbsian.partition.likelihood import LogLikelihood, known_log_z, likelihood_of
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator

__all__ = ["Clamped", "clamped_ais", "clamped_log_likelihood"]


class Clamped(NamedTuple):
    """log Σ_h exp(-E(v, h)) of every row, with the standard error of each by the delta method."""

    value: Tensor
    stderr: Tensor


class _ClampedPath:
    """From uniform hidden units to p(h | v): the machine at inverse temperature β with its visible units held."""

    def __init__(self, machine: BoltzmannMachine) -> None:
        self.machine, self.whole = machine, machine.complete()
        self.clamp = torch.arange(len(machine.bias), device=machine.bias.device) < machine.n

    def noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any:
        return self.whole.gibbs_noise(x, steps, generator)

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            increment = (beta - next_beta) * self.whole(x)
            return self.whole.gibbs_sweep(x, noise, self.clamp, next_beta.to(x)), increment


def clamped_ais(
    machine: BoltzmannMachine,
    v: Tensor,
    chains: int = 20,
    betas: "int | Tensor" = 200,
    *,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> Clamped:
    """log Σ_h exp(-E(v, h)) of a Boltzmann machine with many hidden units, by AIS over h with v clamped.

        w = Π exp(-(β_k - β_{k-1}) E(v, h_{k-1})),   log Σ_h exp(-E(v, h)) ≈ M log 2 + log mean w

    Low on average, so a likelihood made with it errs on the safe side (as far as log Z does not flatter it).
    Up to 16 hidden units the machine's own free energy is exact and cheaper.

    Args:
        machine: with hidden units.
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
    if not isinstance(machine, BoltzmannMachine) or not machine.hidden:
        raise CapabilityError(
            f"clamped_ais anneals the hidden units of a BoltzmannMachine, {type(machine).__name__} has none that "
            "need it; use -energy(v), which is exact"
        )
    generator = require_generator(generator, machine.bias.device)
    machine.domain.check(v, "v")
    if chains < 2:
        raise ArgumentError(f"chains={chains}: at least two runs for every row are needed for an error bar")
    path, ladder = _ClampedPath(machine), ladder_of(betas)
    rows = v.repeat_interleave(chains, 0)
    domain = Spin(machine.hidden) if machine.spin else Binary(machine.hidden)
    hidden = domain.sample(len(rows), generator=generator, dtype=v.dtype)
    with progress_bar(len(ladder) - 1, "clamped AIS", progress) as tick:
        _, log_w = run_path(path, torch.cat([rows, hidden], 1), ladder, generator, tick)
    log_w = log_w.reshape(len(v), chains)
    mean = torch.logsumexp(log_w, 1) - math.log(chains)
    error = torch.exp(log_w - mean[:, None]).std(1) / math.sqrt(chains)
    return Clamped(machine.hidden * math.log(2) + mean, error)


def clamped_log_likelihood(
    machine: BoltzmannMachine,
    v: Tensor,
    log_z: "LogZ | float | Tensor | None" = None,
    *,
    chains: int = 20,
    betas: "int | Tensor" = 200,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> LogLikelihood:
    """The mean log-likelihood of data under a Boltzmann machine whose hidden units cannot be summed.

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
    known = known_log_z(machine, log_z)
    return likelihood_of(free.value - known.value.to(free.value), known, f"clamped AIS, {known.method}")
