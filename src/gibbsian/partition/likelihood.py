"""Likelihood of held-out data, with an interval that knows about both the data and log Z."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import BoundedModel, ClampedModel, ConditionedModel, DocumentModel, require
from gibbsian.distributed.shards import Streams
from gibbsian.domains import Bounded, Counts, Discrete, Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, ShapeError, as_numbers
from gibbsian.partition.annealed import ais
from gibbsian.partition.base import LogZ, exactly, refuse_nan, require_energy
from gibbsian.partition.bounds import from_both_sides
from gibbsian.partition.conditional import clamped_ais
from gibbsian.partition.exact import LogZEach, exact, exact_each, require_inputs
from gibbsian.partition.quadrature import quadrature

_BLOCK = 1 << 14  # rows evaluated at a time
_REACH = 1 << 25  # states of an exact sum that nobody asked for by name: seconds to a minute
_DIMENSIONS = 3  # of quadrature


@dataclass(frozen=True)
class LogLikelihood:
    """The mean log-likelihood of data with its uncertainty.

    Attributes:
        value: mean of log p(x) over the data.
        stderr: both standard errors together.
        data_stderr: from the finite number of data.
        log_z_stderr: from log Z; NaN where log Z is only bounded.
        lower, upper: three standard errors of the data and the interval of log Z, added in quadrature; where `value`
            is itself a lower bound `upper` is +∞.
        per_sample: log p(x) of every row.
        log_z: the log Z that was used, or None.
        method: how it was found.
    """

    value: Tensor
    stderr: Tensor
    data_stderr: Tensor
    log_z_stderr: Tensor
    lower: Tensor
    upper: Tensor
    per_sample: Tensor
    log_z: LogZ | None
    method: str

    def __repr__(self) -> str:
        return (
            f"LogLikelihood({float(self.value):.4f} [{float(self.lower):.4f}, {float(self.upper):.4f}], stderr data "
            f"{float(self.data_stderr):.2g}, log Z {float(self.log_z_stderr):.2g}, {len(self.per_sample)} rows, "
            f"{self.method})"
        )


def log_likelihood(
    energy: Energy,
    x: Tensor,
    log_z: "LogZ | float | Tensor | None" = None,
    *,
    generator: "torch.Generator | Streams | None" = None,
    **options: Any,
) -> LogLikelihood:
    """The mean log-likelihood of data, with an interval from the spread of the data and the uncertainty of log Z.

        log p(x) = -E(x) - log Z;   for counts  log p(n) = log(N!/Πn_k!) - F(n) - log Z_N

    Without a log Z it is found by what suits the model, and `method` says by what: the model's own where it knows it, an
    exact sum of up to 2^25 states, quadrature in up to three dimensions, else annealed importance sampling from a
    base fitted to x, from below and from above, which needs a generator. A model under several inputs has one for each, summed exactly.

    A log Z that is too low flatters every likelihood by the same amount, and estimates of log Z err on that
    side: check `ais` against `reverse_ais`, or report `partition.raise_bound`, which needs no log Z. The
    error of log Z is common to all rows: it does not shrink with more data. Where the hidden variables of a model
    cannot be summed out the result is its variational lower bound (a deep Boltzmann machine, a deep belief network) or
    annealed over them (a Boltzmann machine with many hidden units), and its method says so.

    Args:
        energy: any model.
        x: held-out data `(batch, *event)`.
        log_z: an estimate from `gibbsian.partition`, or a number. For counts of several lengths it must be left out:
            there is one per length.
        generator: the source of randomness, where something is drawn. With `distributed.Shards(seed)` every process of a job
            judges its share of the rows, and runs its share of the chains; all get the result. Exact sums are done by all.
        options: of the bound of such a model: samples for `DBN.log_mass_bound`, iterations for a DBM's.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> normal = gb.energies.Gaussian(torch.zeros(1), torch.eye(1))
    >>> out = log_likelihood(normal, normal.sample(1000, generator=g))
    >>> bool((out.value + 1.4189).abs() < 3 * out.data_stderr)  # the entropy of N(0, 1)
    True
    >>> log_likelihood(gb.models.RBM(6, 4), torch.ones(10, 6)).method
    'exact sum'
    """
    require_energy(energy)
    energy.domain.check(x, "x")
    if options and not isinstance(energy, BoundedModel):
        raise ArgumentError(f"{type(energy).__name__} has an energy and no bound, so there is no {', '.join(options)}")
    with torch.no_grad():
        mass = _log_mass(energy, x, generator, options)
        if isinstance(energy.domain, Counts):
            mass = mass._replace(value=mass.value + energy.domain.log_orders(x.double()))
        each = _log_z_each(energy, x, log_z)
        if each is not None:
            return likelihood_of(mass.value - each[0], None, each[1])
    known = log_z_for(energy, x, log_z, generator)
    method = f"{mass.method}, {known.method}" if mass.method else known.method
    out = likelihood_of(mass.value - known.value.to(mass.value), known, method)
    _refuse_above_one(energy, out, known)
    return replace(out, upper=torch.full_like(out.upper, math.inf)) if mass.bound else out


def _refuse_above_one(energy: Energy, found: LogLikelihood, log_z: LogZ) -> None:
    """Raise where probabilities are above 1 on average by more than log Z is unsure of."""
    excess = float(found.value) - max(float(log_z.upper - log_z.value), 0.0)
    if isinstance(energy.domain, Discrete) and excess > 1e-4:
        raise ArgumentError(
            f"the mean log-probability is {float(found.value):.4g}, above 0 on a discrete domain: log Z = "
            f"{float(log_z.value):.4g} ({log_z.method}) is too low for this model; was it found for another one, or "
            "before the parameters changed?"
        )


class _Mass(NamedTuple):
    """log Σ_h exp(-E(x, h)) of every row, how it was found where that is not the energy itself, and whether it is a
    lower bound."""

    value: Tensor
    method: str = ""
    bound: bool = False


def _log_mass(
    energy: Energy, x: Tensor, generator: "torch.Generator | Streams | None", options: dict[str, Any]
) -> _Mass:
    if isinstance(generator, Streams):
        return _spread_mass(energy, x, generator, options)
    parts = [x] if isinstance(energy, ConditionedModel) else x.split(_BLOCK)  # inputs belong to rows
    if isinstance(energy, BoundedModel) and not energy.sums_exactly():
        bounds = [energy.log_mass_bound(part, generator=generator, **options).double() for part in parts]
        return _Mass(torch.cat(bounds), "variational bound", True)
    if isinstance(energy, ClampedModel) and not energy.sums_exactly():
        return _Mass(clamped_ais(energy, x, generator=generator).value, "clamped AIS")
    return _Mass(torch.cat([-energy(part).double() for part in parts]))


def _spread_mass(energy: Energy, x: Tensor, streams: Streams, options: dict[str, Any]) -> _Mass:
    """The same with rows spread over processes; inputs belong to rows, and few of them are not worth it."""
    if isinstance(energy, ConditionedModel) or len(x) < 2 * streams.world.size:
        return _log_mass(energy, x, streams.common, options)
    masses = [_log_mass(energy, x[part.rows], part.generator, options) for part in streams.parts(len(x), 1)]
    return masses[0]._replace(value=streams.gather(torch.cat([mass.value for mass in masses])))


def log_z_for(
    energy: Energy, x: Tensor, log_z: "LogZ | float | Tensor | None", generator: "torch.Generator | Streams | None"
) -> LogZ:
    """A given log Z as a LogZ, or one found by what suits the model: see `log_likelihood`."""
    if isinstance(log_z, LogZ):
        log_z.check(energy)
        return log_z
    if log_z is not None:
        value = as_numbers("log_likelihood", "log_z", log_z, torch.float64)
        if value.numel() != 1 or not bool(torch.isfinite(value).all()):
            raise ArgumentError(f"log_z must be a LogZ or one finite number, got {log_z}")
        return exactly(value.reshape(()), "given")
    try:
        return exact(energy, limit=_REACH)
    except (DomainError, CapabilityError) as error:  # not all members of a class that knows log Z do
        reason = error
    if isinstance(energy.domain, Real | Bounded) and energy.domain.numel <= _DIMENSIONS:
        return quadrature(energy)
    if generator is None:
        raise CapabilityError(
            f"a likelihood needs log Z, and an exact one is out of reach ({reason}); pass generator= for annealed "
            "importance sampling, or log_z=gibbsian.partition.ais(energy, data, generator=g) with options of your own"
        ) from reason
    return from_both_sides(ais(energy, x, generator=generator))


def _log_z_each(energy: Energy, x: Tensor, log_z: "LogZ | float | Tensor | None") -> tuple[Tensor, str] | None:
    """log Z of every row, where rows have different ones and none is given: under inputs, for documents of any length."""
    if log_z is None and isinstance(energy, ConditionedModel) and len(energy.inputs()) > 1:
        return exact_each(energy).value, "exact sum for every input"
    if not isinstance(energy.domain, Counts):
        return None
    if isinstance(energy, DocumentModel) and energy.of_length(int(x[0].sum())) is energy:
        return None  # documents of other lengths have the same
    if log_z is None:
        require(energy, DocumentModel, "a likelihood of counts, one log Z for every length,", "pass log_z=")
        lengths, which = x.sum(-1).unique(return_inverse=True)
        each = torch.stack([exact(energy, total=int(n)).value for n in lengths])
        return each[which].to(x.device), "exact sum for every length"
    if not bool((x.sum(-1) == x[0].sum()).all()):
        raise ArgumentError(
            "documents of several lengths have one log Z each; leave log_z out, or split the data by length"
        )
    return None


def likelihood_of(per_sample: Tensor, log_z: LogZ | None, method: str) -> LogLikelihood:
    """The mean of values per row, with the errors of the data and of log Z."""
    refuse_nan(per_sample, "the log-likelihood")
    n = len(per_sample)
    value = per_sample.mean()
    spread = per_sample.std() / math.sqrt(n) if n > 1 else torch.full_like(value, math.nan)
    known = exactly(torch.zeros_like(value), "") if log_z is None else log_z
    z_error, below, above = (t.to(value) for t in (known.stderr, known.upper - known.value, known.value - known.lower))
    return LogLikelihood(
        value=value,
        stderr=torch.hypot(spread, z_error),
        data_stderr=spread,
        log_z_stderr=z_error,
        lower=value - torch.hypot(3 * spread, below),
        upper=value + torch.hypot(3 * spread, above),
        per_sample=per_sample,
        log_z=log_z,
        method=method,
    )


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
