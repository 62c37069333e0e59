"""Outliers in tables by energy."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import OutlierMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, validate_data
from torch import Tensor

from gibbsian.energies.parzen import MarginalParzen, Parzen
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError
from gibbsian.random import stream
from gibbsian.sklearn import surprise
from gibbsian.sklearn.common import FLOATS, EnergyEstimator, blockwise, constraints, like, table, tensor

_MARGINAL_ROWS = 500  # a column's law needs no more
_SINGLE = 1000  # rows from which windows are summed in single precision, which standardized columns allow


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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn what rows usually look like; a row of weight 2 counts as two."""
        self._validate_params()
        x = tensor(validate_data(self, X, dtype=FLOATS))
        weight = self._weights(sample_weight, x)
        if weight is not None:
            x, weight = x[weight > 0], weight[weight > 0]
        x = self._standardize(x, weight=weight)
        if self.energy is None and len(x) > _SINGLE:
            x = x.float()
        order = torch.randperm(len(x), generator=stream(self._seed, "rows"))
        x, weight = x[order], torch.ones_like(x[:, 0]) if weight is None else weight[order]
        self._range = torch.stack([x.amin(0), x.amax(0)])
        with torch.no_grad():
            scores, share = self._learned(x, weight)
        self.offset_ = _quantile(scores, table(weight[-len(scores) :]), share)
        return self

    def _rows(self, X: Any) -> Tensor:
        return super()._rows(X).to(self._range)

    def _weights(self, sample_weight: Any, x: Tensor) -> Tensor | None:
        """Checked; None for one a row."""
        if sample_weight is None:
            return None
        if self.energy is not None:
            raise ArgumentError("sample_weight is for the default energy; give weights to your own energy yourself")
        return torch.from_numpy(_check_sample_weight(sample_weight, table(x), dtype=FLOATS, ensure_non_negative=True))

    def _learned(self, x: Tensor, weight: Tensor) -> tuple[np.ndarray, float]:
        """Make the energy; the scores of the last rows that set the threshold, and the share of them below it."""
        self.energy_ = self._built(x, weight)
        if self.contamination != "auto":
            return -blockwise(self.energy_, x).astype(np.float64), float(self.contamination)
        few = float(weight.sum()) < 10  # too few to say how new ones look
        if self.energy is not None and not few:
            count = min(1000, max(5, len(x) // 5))
            return -blockwise(self._built(x[:-count], weight[:-count]), x[-count:]).astype(np.float64), 0.05
        if few or self.energy is not None:
            return -blockwise(self.energy_, x).astype(np.float64), 0.05
        return self._left_out(x), 0.05

    def _left_out(self, x: Tensor) -> np.ndarray:
        """Scores of the last rows as if they were new: those with a window are left out of it."""
        first = max(0, len(x) - max(500, min(1000, len(x) - _MARGINAL_ROWS)))
        joint, marginals = self._windows
        score = torch.zeros(len(x) - first, dtype=torch.float64)
        for part, factor in ((joint, 1.0), (marginals, self.marginal_weight)):
            if part is None:
                continue
            known = max(0, min(len(x), len(part.points)) - first)  # of the judges, the first so many have a window
            if known:
                score[:known] -= factor * part.left_out(torch.arange(first, first + known)).double()
            if known < len(score):
                fast = part if part is joint else self._table
                score[known:] -= factor * torch.from_numpy(blockwise(fast, x[first + known :])).double()
        return score.numpy()

    def _built(self, x: Tensor, weight: Tensor) -> Energy:
        if self.energy is not None:
            made = self.energy(x, self._seed)
            if not isinstance(made, Energy):
                raise ArgumentError(f"energy(x, seed) returned a {type(made).__name__}, expected a gibbsian.Energy")
            return made
        rows = slice(0, self.max_samples)
        joint, marginals = Parzen.fit(x[rows], weight=weight[rows]), None
        if self.marginal_weight:
            rows = slice(0, min(self.max_samples, _MARGINAL_ROWS))
            marginals = MarginalParzen.fit(x[rows], weight=weight[rows])
        self._windows = joint, marginals
        if marginals is None:
            return joint
        self._table = marginals.tabulated()
        return joint + self.marginal_weight * self._table

    def score_samples(self, X: Any) -> np.ndarray:
        """-E(x): higher for rows that look normal."""
        return -self._energies(X).astype(np.float64)

    def decision_function(self, X: Any) -> np.ndarray:
        """`score_samples - offset_`: negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """1 for normal rows, -1 for outliers."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def explain(self, X: Any) -> Any:
        """-log p(xᵢ | x₋ᵢ) of every cell under p ∝ exp(-E), columns standardized: how surprising it is given the rest of its row.

        In closed form for the default energy, by quadrature for others; a frame of pandas where X is one.
        """
        x = self._rows(X)
        if self.energy is None:
            joint, marginals = self._windows
            found = surprise.windows(joint, None if marginals is None else self._table, self.marginal_weight, x)
        else:
            low, high = self._range
            found = surprise.quadrature(self.energy_, x, low - 0.5 * (high - low), high + 0.5 * (high - low))
        return like(X, table(found))


def _quantile(values: np.ndarray, weight: np.ndarray, share: float) -> float:
    """The value with a share of the weight below it, halfway to the next where the share is met exactly."""
    order = np.argsort(values, kind="stable")
    total = weight[order].astype(np.float64).cumsum()
    goal = share * total[-1]
    i = int(np.searchsorted(total, goal * (1 - 1e-12)))
    met = abs(total[i] - goal) <= 1e-9 * total[-1] and i + 1 < len(values)
    return float(values[order[i]] if not met else 0.5 * (values[order[i]] + values[order[i + 1]]))
