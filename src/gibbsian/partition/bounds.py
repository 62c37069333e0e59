"""log Z from both sides: what a climb and a descent along one path say together."""

import math
import warnings
from dataclasses import replace

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, EstimateWarning
from gibbsian.partition.base import LogZ


def bounds(forward: LogZ, reverse: LogZ) -> LogZ:
    """log Z from both sides: `lower` of a forward and `upper` of a reverse estimate.

    The value is Bennett's acceptance ratio of the two sets of weights where both went along the same path and
    temperatures, the best combination of them (for kernels that are reversible, as all here are but
    systematic sweeps over sites); else the middle. Its standard error is half the distance between the two
    estimates where that is larger than their own. A reverse estimate far below the forward one says that the
    samples were not from the model: a warning is given.

    Reference: Bennett 1976; Grosse, Ghahramani & Adams 2015.
    """
    if forward.method not in {"AIS", "SMC"} or reverse.method != "reverse AIS":
        raise ArgumentError(
            f"bounds takes an estimate of ais or smc and one of reverse_ais, got {forward.method!r} and "
            f"{reverse.method!r}"
        )
    gap, error = difference(reverse, forward)
    if gap < -4 * error:
        warnings.warn(
            f"the reverse estimate lies {-gap:.2g} nats below the forward one, {-gap / error:.0f} standard errors: "
            "the samples that it started from do not come from the model",
            EstimateWarning,
            stacklevel=2,
        )
    value, up, down = (forward.value + reverse.value) / 2, forward.diagnostics, reverse.diagnostics
    if forward.method == "AIS" and up["path"] is down["path"] and torch.equal(up["betas"], down["betas"]):
        value = _acceptance_ratio(up["log_weights"], -down["log_weights"])
    stderr = torch.clamp((reverse.value - forward.value).abs() / 2, min=error / 2)
    diagnostics = {"gap": gap, "forward": forward, "reverse": reverse}
    upper = torch.maximum(reverse.upper, forward.lower)
    return LogZ(value, stderr, forward.lower, upper, "AIS bounds", diagnostics, forward.parameters)


def _acceptance_ratio(forward: Tensor, reverse: Tensor) -> Tensor:
    """The root z of Σ σ(f - z - m) = Σ σ(z - r + m), m the log ratio of the numbers of weights: by bisection."""
    low, high = torch.minimum(forward.min(), reverse.min()), torch.maximum(forward.max(), reverse.max())
    ratio = math.log(len(forward) / len(reverse))
    low, high = low - abs(ratio) - 1, high + abs(ratio) + 1
    for _ in range(200):
        z = (low + high) / 2
        too_low = torch.sigmoid(forward - z - ratio).sum() > torch.sigmoid(z - reverse + ratio).sum()
        low, high = torch.where(too_low, z, low), torch.where(too_low, high, z)
    return (low + high) / 2


def difference(a: LogZ, b: LogZ) -> tuple[float, float]:
    """a - b and the standard error of that."""
    return float(a.value - b.value), math.hypot(float(a.stderr), float(b.stderr))


def contradicts(reverse: LogZ, forward: LogZ) -> bool:
    """Whether a descent ends so far below the climb that it did not begin at the model, and says nothing of log Z."""
    gap, error = difference(reverse, forward)
    return gap <= -3 * error


def from_both_sides(estimate: LogZ) -> LogZ:
    """The best of an estimate of `ais` that came with a descent: both combined; any other as it is."""
    reverse = estimate.diagnostics.get("reverse")
    if reverse is None or contradicts(reverse, estimate):
        return estimate
    both = bounds(estimate, reverse)
    return replace(both, lower=estimate.lower, upper=estimate.upper)
