"""Likelihood of held-out data, with an interval that knows about both the data and log Z.

log p(x) = -E(x) - log Z
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import BoundedModel
from gibbsian.domains import Counts
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, DomainError
from gibbsian.models.dbn.machine import DBN
from gibbsian.models.rbm.machine import RBM
from gibbsian.partition.base import LogZ, exactly, refuse_nan, require_energy
from gibbsian.partition.exact import exact

__all__ = ["LogLikelihood", "known_log_z", "likelihood_of", "log_likelihood"]

_BLOCK = 1 << 14  # rows evaluated at a time


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
    energy: Energy, x: Tensor, log_z: "LogZ | float | Tensor | None" = None, **options: Any
) -> LogLikelihood:
    """The mean log-likelihood of data, with an interval from the spread of the data and the uncertainty of log Z.

        log p(x) = -E(x) - log Z;   for counts  log p(n) = log(N!/Πn_k!) - F(n) - log Z_N

    A log Z that is too low flatters every likelihood by the same amount, and estimates of log Z err on that
    side: check `ais` against `reverse_ais`, or report `partition.raise_bound`, which needs no log Z. The
    error of log Z is common to all rows: it does not shrink with more data. Where the hidden variables of a model
    cannot be summed out (a deep Boltzmann machine, a deep belief network) the result is its variational lower bound,
    and its method says so.

    Args:
        energy: any model.
        x: held-out data `(batch, *event)`.
        log_z: an estimate from `gibbsian.partition`, or a number; left out for models that know theirs or are
            small enough for `partition.exact`. For counts of several lengths it must be left out: there is
            one per length.
        options: of the bound of such a model: a generator for `DBN.log_mass_bound`, iterations for a DBM's.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> normal = gb.energies.Gaussian(torch.zeros(1), torch.eye(1))
    >>> out = log_likelihood(normal, normal.sample(1000, generator=g))
    >>> bool((out.value + 1.4189).abs() < 3 * out.data_stderr)  # the entropy of N(0, 1)
    True
    """
    require_energy(energy)
    energy.domain.check(x, "x")
    bounded = isinstance(energy, BoundedModel) and not energy.sums_exactly()
    if options and not isinstance(energy, BoundedModel):
        raise ArgumentError(f"{type(energy).__name__} has an energy and no bound, so there is no {', '.join(options)}")
    with torch.no_grad():
        minus = torch.cat([_log_mass(energy, part, options).double() for part in x.split(_BLOCK)])
        if isinstance(energy.domain, Counts):
            minus = minus + energy.domain.log_orders(x.double())
            if log_z is None and not isinstance(energy, DBN):
                return likelihood_of(minus - _log_z_of_lengths(energy, x), None, "exact sum for every length")
            if not isinstance(energy, DBN) and not bool((x.sum(-1) == x[0].sum()).all()):
                raise ArgumentError(
                    "documents of several lengths have one log Z each; leave log_z out, or split the data by length"
                )
    known = known_log_z(energy, log_z)
    out = likelihood_of(minus - known.value.to(minus), known, known.method)
    if not bounded:
        return out
    return replace(out, upper=torch.full_like(out.upper, math.inf), method=f"variational bound, {known.method}")


def _log_mass(energy: Energy, x: Tensor, options: dict[str, Any]) -> Tensor:
    """log Σ_h exp(-E(x, h)), or a lower bound where the sum is out of reach."""
    if isinstance(energy, BoundedModel) and not energy.sums_exactly():
        return energy.log_mass_bound(x, **options)
    return -energy(x)


def known_log_z(energy: Energy, log_z: "LogZ | float | Tensor | None") -> LogZ:
    """A given log Z as a LogZ, or the exact one where it is within reach."""
    if isinstance(log_z, LogZ):
        return log_z
    if log_z is not None:
        value = torch.as_tensor(log_z, dtype=torch.float64)
        if value.numel() != 1 or not bool(torch.isfinite(value).all()):
            raise ArgumentError(f"log_z must be a LogZ or one finite number, got {log_z}")
        return exactly(value.reshape(()), "given")
    try:
        return exact(energy)
    except DomainError as reason:
        raise CapabilityError(
            f"a likelihood needs log Z, and an exact one is out of reach ({reason}); pass "
            "log_z=gibbsian.partition.ais(energy, data, generator=g)"
        ) from reason


def _log_z_of_lengths(energy: Energy, x: Tensor) -> Tensor:
    """log Z_N for the length N of each row."""
    if not isinstance(energy, RBM):
        raise CapabilityError(f"{type(energy).__name__} over counts has one log Z per document length; pass log_z=")
    lengths, which = x.sum(-1).unique(return_inverse=True)
    return torch.stack([exact(energy, total=int(n)).value for n in lengths])[which].to(x.device)


def likelihood_of(per_sample: Tensor, log_z: LogZ | None, method: str) -> LogLikelihood:
    """The mean of values per row, with the errors of the data and of log Z."""
    refuse_nan(per_sample, "the log-likelihood")
    n = len(per_sample)
    value = per_sample.mean()
    spread = per_sample.std() / math.sqrt(n) if n > 1 else torch.full_like(value, math.nan)
    zero = torch.zeros_like(value)
    z_error = zero if log_z is None else log_z.stderr.to(value)
    below = zero if log_z is None else (log_z.upper - log_z.value).to(value)
    above = zero if log_z is None else (log_z.value - log_z.lower).to(value)
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
