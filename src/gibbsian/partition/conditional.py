"""One log Z for every input of a conditional machine, and the likelihood of outputs given their inputs.

log p(v | x) = -F(v | x) - log Z(x)
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gibbsian.domains import Discrete
from gibbsian.energies.conditional import GivenEnergy
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, ShapeError
from gibbsian.models.conditional import ConditionedMachine
from gibbsian.partition.annealed import ladder_of, run_path
from gibbsian.partition.base import refuse_nan
from gibbsian.partition.likelihood import LogLikelihood, likelihood_of
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator

__all__ = ["LogZEach", "ais_each", "conditional_log_likelihood", "exact_each"]

LIMIT = 1 << 20  # states of the smaller layer, for every input


class LogZEach(NamedTuple):
    """log Z(x) of every input, with the standard error of each by the delta method (0 for exact sums)."""

    value: Tensor
    stderr: Tensor
    method: str


def _machine(energy: object) -> ConditionedMachine:
    if not isinstance(energy, ConditionedMachine):
        raise CapabilityError(
            f"one log Z for every input is asked of machines given their inputs, such as TemporalRBM(...).given(past); "
            f"{type(energy).__name__} has one log Z: use partition.exact or partition.ais"
        )
    return energy


def exact_each(machine: ConditionedMachine | GivenEnergy, *, rows: int = 1 << 14, limit: int = LIMIT) -> LogZEach:
    """log Z(x) for every input, summed over all states of the smaller layer; differentiable in the parameters.

    Args:
        machine: a conditional machine under its inputs; or a conditional energy, which sums over y as it knows how.
        rows: states times inputs evaluated at a time; blocks are computed again in the backward pass.
        limit: refuse sums over more states than this.

    >>> import gibbsian as gb
    >>> model = gb.models.TemporalRBM(visible=4, hidden=3, order=1)
    >>> exact_each(model.given(torch.zeros(5, 1, 4))).value.shape
    torch.Size([5])
    """
    if isinstance(machine, GivenEnergy):
        value = machine.log_z().reshape(-1).double()
        return LogZEach(value, torch.zeros_like(value.detach()), "exact sum")
    machine, n = _machine(machine), len(machine.condition)
    layers = [unit.domain for unit in (machine.visible, machine.hidden)]
    domain = min((d for d in layers if isinstance(d, Discrete)), key=lambda d: d.log_size)
    if domain.log_size > math.log(limit) + 1e-9:
        raise DomainError(
            f"an exact log Z(x) sums over {domain} for every input, 2^{domain.log_size / math.log(2):.0f} states, and the "
            f"limit is 2^{math.log2(limit):.0f} (limit=); use partition.ais_each"
        )
    over_hidden = domain is layers[1]
    some, like = max(1, rows // n), machine.condition

    def block(start: int) -> Tensor:
        index = torch.arange(start, min(start + some, domain.size), device=like.device)
        states = domain.decode(index, like.dtype)
        each = states.repeat_interleave(n, 0)  # inputs run fastest, as `repeated` has them
        energies = machine.hidden_energy(each) if over_hidden else machine(each)
        return torch.logsumexp(-energies.reshape(len(states), n).double(), 0)

    starts = range(0, domain.size, some)
    parts = [block(0)] if len(starts) == 1 else [_block(block, start) for start in starts]
    value = torch.logsumexp(torch.stack(parts), 0)
    refuse_nan(value.detach(), "the exact log Z(x)")
    return LogZEach(value, torch.zeros_like(value.detach()), "exact sum")


def _block(block: object, start: int) -> Tensor:
    return checkpoint(block, start, use_reentrant=False, preserve_rng_state=False)


def ais_each(
    machine: ConditionedMachine,
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
        betas: number of temperatures, or a tensor that rises from 0 to 1.
        generator: the source of all randomness; required.
        progress: show a progress bar; by default on a terminal.
    """
    machine = _machine(machine)
    generator = require_generator(generator, machine.condition.device)
    if chains < 2:
        raise ArgumentError(f"chains={chains}: at least two runs for every input are needed for an error bar")
    n, ladder = len(machine.condition), ladder_of(betas)
    path = machine.repeated(chains).path()
    start = path.sample(n * chains, generator=generator)
    with progress_bar(len(ladder) - 1, "AIS for every input", progress) as tick:
        _, log_w = run_path(path, start, ladder, generator, tick)
    log_w = log_w.reshape(chains, n)
    mean = torch.logsumexp(log_w, 0) - math.log(chains)
    error = torch.exp(log_w - mean).std(0) / math.sqrt(chains)
    value = path.log_z0().double().expand(n * chains)[:n] + mean.double()
    refuse_nan(value, "the AIS estimate of log Z(x)")
    return LogZEach(value, error.double(), "AIS")


def conditional_log_likelihood(
    machine: ConditionedMachine | GivenEnergy, v: Tensor, log_z: "LogZEach | Tensor | None" = None
) -> LogLikelihood:
    """The mean of log p(v | x) over rows, row i of v under input i.

    Errors of log Z(x) are independent between inputs, so they are part of the spread over the rows.

    Args:
        machine: a conditional machine or energy under its inputs, one for each row of v.
        v: what was observed, `(rows, *event)`.
        log_z: from `ais_each` or `exact_each`, or one number a row; exact sums where it is left out.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> model = gb.models.TemporalRBM(visible=4, hidden=3, order=1)
    >>> past, v = torch.zeros(5, 1, 4), torch.ones(5, 4)
    >>> round(float(conditional_log_likelihood(model.given(past), v).value), 1)  # nearly uniform: -4 log 2
    -2.8
    """
    machine = machine if isinstance(machine, GivenEnergy) else _machine(machine)
    machine.domain.check(v, "v")
    if len(v) != len(machine.condition):
        raise ShapeError(f"{len(machine.condition)} inputs met {len(v)} rows; give one input for each row")
    with torch.no_grad():
        if log_z is None:
            log_z = exact_each(machine)
        method = log_z.method if isinstance(log_z, LogZEach) else "given"
        value = log_z.value if isinstance(log_z, LogZEach) else log_z
        if value.shape != (len(v),):
            raise ShapeError(f"log_z has shape {tuple(value.shape)}, expected ({len(v)},): one number a row")
        return likelihood_of(-machine(v).double() - value.to(v.device), None, f"{method} for every input")
