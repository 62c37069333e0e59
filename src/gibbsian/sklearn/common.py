"""What the estimators share: seeds, tensors from tables, standardized columns."""

from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

__all__ = ["Columns", "seed_of", "table", "tensor"]


def seed_of(random_state: Any) -> int:
    """A seed for named streams: the number itself where one was given, else drawn from the random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def tensor(x: Any) -> Tensor:
    """A dense array as a tensor of its own, in its precision."""
    return torch.tensor(np.ascontiguousarray(x))


def table(x: Tensor) -> np.ndarray:
    """A tensor as an array."""
    return x.detach().cpu().numpy()


class Columns(NamedTuple):
    """Mean and spread of every column; columns that do not vary keep their scale."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor, scaled: bool = True) -> "Columns":
        """Those of the data, or none where columns are to be left as they are."""
        if not scaled:
            return cls(torch.zeros_like(x[0]), torch.ones_like(x[0]))
        spread = x.std(0, correction=0)
        tiny = spread <= 1e-6 * (x.abs().amax(0) + 1e-30)  # rounding of a constant column is no spread
        return cls(x.mean(0), torch.where(tiny, torch.ones_like(spread), spread))

    def apply(self, x: Tensor) -> Tensor:
        """Standardized."""
        return (x - self.mean.to(x)) / self.scale.to(x)

    def undo(self, x: Tensor) -> Tensor:
        """Back in the units of the data."""
        return x * self.scale.to(x) + self.mean.to(x)

    def log_scale(self) -> float:
        """log of the volume that one unit of standardized space takes in that of the data."""
        return float(self.scale.double().log().sum())
