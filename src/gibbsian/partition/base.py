"""The estimate of a log partition function, with what is known about its error."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["LogZ"]


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
