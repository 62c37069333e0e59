"""The estimate of a log partition function, with what is known about its error."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gibbsian.energy import Energy
from gibbsian.errors import CapabilityError, DivergenceError

__all__ = ["LogZ", "exactly"]


@dataclass(frozen=True)
class LogZ:
    """log Z with its uncertainty.

    Attributes:
        value: the estimate, a detached tensor.
        stderr: its standard error; 0 for exact sums, NaN where none is known.
        lower, upper: bounds where the method gives them (±∞ on the open side), three standard errors for
            stochastic estimates, the value itself for exact ones.
        method: which estimator.
        diagnostics: what a person wants to see (effective sample size, convergence, weights, ...).
    """

    value: Tensor
    stderr: Tensor
    lower: Tensor
    upper: Tensor
    method: str
    diagnostics: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        interval = f"[{float(self.lower):.4f}, {float(self.upper):.4f}]"
        return f"LogZ({float(self.value):.4f} {interval}, stderr {float(self.stderr):.2g}, {self.method})"


def exactly(value: Tensor, method: str, **diagnostics: Any) -> LogZ:
    """A log Z without error: every bound is the value itself."""
    value = value.detach()
    return LogZ(value, torch.zeros_like(value), value, value, method, diagnostics)


def require_energy(energy: Any) -> Energy:
    """Refuse what is not an energy."""
    if not isinstance(energy, Energy):
        raise CapabilityError(
            f"{type(energy).__name__} is not an energy, so it has no partition function; wrap functions with "
            "gibbsian.as_energy(function, domain)"
        )
    return energy


def refuse_nan(value: Tensor, what: str) -> None:
    """Raise where a sum or mean of exponentials came out as NaN or +∞: an energy was NaN or -∞."""
    if not bool((value < math.inf).all()):  # False for NaN
        raise DivergenceError(
            f"{what} is {float(value.flatten()[0]):g}: some energies are NaN or -∞, so this is not a finite "
            "measure; check the parameters of the energy"
        )
