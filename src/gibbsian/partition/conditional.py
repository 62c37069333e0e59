"""One log Z for every input of a conditional machine, and the likelihood of outputs given their inputs.

log p(v | x) = -F(v | x) - log Z(x)
"""

import math

import torch
from torch import Tensor

from gibbsian.capabilities import Annealable, ConditionedModel, require
from gibbsian.errors import ArgumentError, CapabilityError, ShapeError
from gibbsian.partition.annealed import ladder_of, run_path
from gibbsian.partition.base import refuse_nan, require_energy
from gibbsian.partition.exact import LogZEach, exact_each, require_inputs
from gibbsian.partition.likelihood import LogLikelihood, likelihood_of
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator


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
        betas: number of temperatures, or a tensor that rises from 0 to 1.
        generator: the source of all randomness; required.
        progress: show a progress bar; by default on a terminal.
    """
    machine = require_inputs(machine)
    generator = require_generator(generator, machine.inputs().device)
    if chains < 2:
        raise ArgumentError(f"chains={chains}: at least two runs for every input are needed for an error bar")
    n, ladder = len(machine.inputs()), ladder_of(betas)
    path = require(machine.repeated(chains), Annealable, "ais_each", "use partition.exact_each").path()
    if path is None:
        raise CapabilityError(f"{type(machine).__name__} has no path for its units; use partition.exact_each")
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
    machine: ConditionedModel, v: Tensor, log_z: "LogZEach | Tensor | None" = None
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
    energy, inputs = require_energy(machine), len(require_inputs(machine).inputs())
    energy.domain.check(v, "v")
    if len(v) != inputs:
        raise ShapeError(f"{inputs} inputs met {len(v)} rows; give one input for each row")
    with torch.no_grad():
        if log_z is None:
            log_z = exact_each(machine)
        method = log_z.method if isinstance(log_z, LogZEach) else "given"
        value = log_z.value if isinstance(log_z, LogZEach) else log_z
        if value.shape != (len(v),):
            raise ShapeError(f"log_z has shape {tuple(value.shape)}, expected ({len(v)},): one number a row")
        return likelihood_of(-energy(v).double() - value.to(v.device), None, f"{method} for every input")
