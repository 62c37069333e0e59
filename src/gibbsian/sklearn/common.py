"""What the estimators share: checked tables as standardized tensors, seeds, training, energies and draws of rows."""

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from gibbsian.models.rbm.machine import RBM
from gibbsian.objectives.base import Objective
from gibbsian.training.fit import fit

FLOATS = (np.float64, np.float32)  # precisions that are kept; other numbers become the first
_BLOCK = 4096  # rows evaluated at a time


def constraints(counts: str = "", positive: str = "", not_negative: str = "", **others: Any) -> dict[str, Any]:
    """What parameters may be, for scikit-learn to check: names by their kind of number, and others in its own words."""
    kinds = {
        counts: Interval(Integral, 1, None, closed="left"),
        positive: Interval(Real, 0, None, closed="neither"),
        not_negative: Interval(Real, 0, None, closed="left"),
    }
    numbers = {name: [kind] for names, kind in kinds.items() for name in names.split()}
    return numbers | {"random_state": ["random_state"]} | others


def seed_of(random_state: Any) -> int:
    """A seed for named streams: the number itself where one was given, else drawn from the random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def tensor(x: Any) -> Tensor:
    """An array, or a sparse matrix, as a dense tensor of its own, in its precision."""
    return torch.tensor(np.ascontiguousarray(x.toarray() if sparse.issparse(x) else x))


def table(x: Tensor) -> np.ndarray:
    """A tensor as an array."""
    return x.detach().cpu().numpy()


def repeated(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Rows as often as their weights say: exactly for whole numbers, else by even strides through the weights, in about as many rows
    as there were."""
    if (weight == np.round(weight)).all() and weight.sum() <= 10 * len(x):
        return np.repeat(x, weight.astype(np.int64), axis=0)
    rows = max(len(x), 1000)
    ends = np.round(weight.cumsum() * (rows / weight.sum())).astype(np.int64)
    return np.repeat(x, np.diff(ends, prepend=0), axis=0)


def like(X: Any, values: np.ndarray) -> Any:
    """Values as a frame of pandas with the columns and index of X, where it is one."""
    if type(X).__module__.split(".")[0] != "pandas":
        return values
    return type(X)(values, columns=X.columns, index=X.index)


def blockwise(function: Callable[[Tensor], Tensor], x: Tensor) -> np.ndarray:
    """A function of rows, some thousand rows at a time."""
    with torch.no_grad():
        return table(torch.cat([function(part) for part in x.split(_BLOCK)]))


def gibbs_chains(rbm: RBM, n: int, steps: int, generator: torch.Generator) -> Tensor:
    """The ends of `n` chains of block Gibbs sweeps from the reference law of the domain."""
    x = rbm.domain.sample(n, generator=generator, dtype=rbm.weight.dtype)
    for _ in range(steps):
        x = rbm.gibbs_sweep(x, tuple(part[0] for part in rbm.gibbs_noise(x, 1, generator)))
    return x


class Columns(NamedTuple):
    """Mean and spread of every column; columns that do not vary keep their scale."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor, scaled: bool = True, weight: Tensor | None = None) -> "Columns":
        """Those of the data, or none where columns are to be left as they are."""
        if not scaled:
            return cls(torch.zeros_like(x[0]), torch.ones_like(x[0]))
        if weight is not None:
            share = (weight / weight.sum()).to(x)
            mean = share @ x
            return cls(mean, (share @ (x - mean).square()).sqrt())._steady(x)
        return cls(x.mean(0), x.std(0, correction=0))._steady(x)

    def _steady(self, x: Tensor) -> "Columns":
        spread = self.scale
        tiny = spread <= 10 * torch.finfo(x.dtype).eps * (
            x.abs().amax(0) + 1e-30
        )  # a constant column's rounding is none
        return Columns(self.mean, torch.where(tiny, torch.ones_like(spread), spread))

    def apply(self, x: Tensor) -> Tensor:
        """Standardized."""
        return (x - self.mean.to(x)) / self.scale.to(x)

    def undo(self, x: Tensor) -> Tensor:
        """Back in the units of the data."""
        return x * self.scale.to(x) + self.mean.to(x)

    def log_scale(self) -> float:
        """log of the volume that one unit of standardized space takes in that of the data."""
        return float(self.scale.double().log().sum())


class EnergyEstimator(BaseEstimator):
    """An estimator that trains `energy_` over `columns_`, the standardized columns of a table.

    A subclass calls `_standardize` and `_train` in `fit`, and `_rows` or `_energies` where it is used.
    """

    energy_: Any
    columns_: Columns
    n_iter: int
    batch_size: int
    learning_rate: float
    verbose: int
    random_state: Any

    def _standardize(self, x: Tensor, scaled: bool = True, weight: Tensor | None = None) -> Tensor:
        """Learn the columns of the training rows, and fix the seed."""
        self.columns_ = Columns.of(x, scaled, weight)
        self._seed = seed_of(self.random_state)
        return self.columns_.apply(x)

    def _train(self, objective: Objective, data: Any, n: int, **options: Any) -> None:
        """`n_iter` passes over `n` rows by Adam, its rate falling to 0."""
        options |= {"epochs": self.n_iter, "batch_size": min(self.batch_size, n), "lr": self.learning_rate}
        options |= {"schedule": "cosine", "seed": self._seed, "progress": bool(self.verbose)}
        fit(self.energy_, objective, data, **options)
        self.energy_.eval()

    def _rows(self, X: Any) -> Tensor:
        """Checked and standardized, in the precision of training."""
        check_is_fitted(self)
        x = tensor(validate_data(self, X, dtype=FLOATS, reset=False))
        return self.columns_.apply(x).to(self.columns_.mean)

    def _energies(self, X: Any, function: Callable[[Tensor], Tensor] | None = None) -> np.ndarray:
        """E(x) of every row, or another function of rows."""
        x = self._rows(X)  # first, for it says so where nothing is fitted yet
        return blockwise(function or self.energy_, x)
