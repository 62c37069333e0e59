"""Outliers in tables by energy."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import OutlierMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import validate_data
from torch import Tensor

from gibbsian.energies.parzen import MarginalParzen, Parzen
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError
from gibbsian.random import stream
from gibbsian.sklearn.common import FLOATS, EnergyEstimator, blockwise, constraints, tensor

_MARGINAL_ROWS = 500  # a column's law needs no more


@dataclass(eq=False, repr=False)
class EnergyOutlierDetector(OutlierMixin, EnergyEstimator):
    """Rows of high energy are outliers; by default in a product of the data's joint and marginal Parzen densities.

        E(x) = -log p̂(x) - w Σⱼ log p̂ⱼ(xⱼ)

    p̂ has Gaussian windows on the training rows and p̂ⱼ on column j, each as wide as makes the rows most likely under
    the others: no scale is left to tune. The joint part sees combinations that are unusual, the marginal one values
    that are, in which many columns speak for themselves instead of drowning in one distance. Columns are standardized
    inside. Training rows should be normal; a few outliers among them do little harm where they lie apart from each
    other.

    Any other energy can be put in its place: `energy` is called with standardized rows and a seed and returns one,
    trained as you like.

    Args:
        contamination: "auto": new normal rows are flagged at a rate of 5 %, by rows held out for the threshold; or
            the share of the training rows that is to be flagged.
        marginal_weight: w; 0 for the joint density alone.
        max_samples: rows that keep a window; a random subset of larger data.
        energy: `energy(x, seed) -> gibbsian.Energy`, instead of the default.
        random_state: seed, random state or None.

    Attributes:
        energy_: the energy, over standardized columns.
        offset_: the threshold: `decision_function` is `score_samples - offset_`, negative for outliers.

    >>> X = np.random.RandomState(0).randn(200, 2)
    >>> detector = EnergyOutlierDetector(random_state=0).fit(X)
    >>> detector.predict([[0.0, 0.0], [5.0, 5.0]])
    array([ 1, -1])
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = constraints(
        counts="max_samples",
        not_negative="marginal_weight",
        contamination=[StrOptions({"auto"}), Interval(Real, 0, 0.5, closed="right")],
        energy=[callable, None],
    )

    contamination: float | str = "auto"
    _: KW_ONLY
    marginal_weight: float = 0.5
    max_samples: int = 5000
    energy: Callable[[Tensor, int], Energy] | None = None
    random_state: Any = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn what rows usually look like."""
        self._validate_params()
        x = self._standardize(tensor(validate_data(self, X, dtype=FLOATS)))
        order = torch.randperm(len(x), generator=stream(self._seed, "rows"))
        self.energy_ = self._build(x[order])
        held_out, judge, share = x, self.energy_, 0.05
        if self.contamination != "auto":
            share = float(self.contamination)
        elif len(x) >= 10:  # rows that have a window of their own look more normal than new ones
            count = min(1000, max(5, len(x) // 5))
            held_out, judge = x[order[:count]], self._build(x[order[count:]])
        self.offset_ = float(np.percentile(-blockwise(judge, held_out).astype(np.float64), 100 * share))
        return self

    def _build(self, x: Tensor) -> Energy:
        if self.energy is not None:
            made = self.energy(x, self._seed)
            if not isinstance(made, Energy):
                raise ArgumentError(f"energy(x, seed) returned a {type(made).__name__}, expected a gibbsian.Energy")
            return made
        joint = Parzen.fit(x[: self.max_samples])
        if not self.marginal_weight:
            return joint
        return joint + self.marginal_weight * MarginalParzen.fit(x[: min(self.max_samples, _MARGINAL_ROWS)])

    def score_samples(self, X: Any) -> np.ndarray:
        """-E(x): higher for rows that look normal."""
        return -self._energies(X).astype(np.float64)

    def decision_function(self, X: Any) -> np.ndarray:
        """`score_samples - offset_`: negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """1 for normal rows, -1 for outliers."""
        return np.where(self.decision_function(X) < 0, -1, 1)
