"""A density for tables of numbers: a mixture tilted by a network, or windows, or both weighed."""

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from gibbsian.errors import ArgumentError, check_number
from gibbsian.random import stream
from gibbsian.sklearn.common import FLOATS, constraints, like, repeated, seed_of
from gibbsian.tables.families import Options
from gibbsian.tables.fitting import fit_table
from gibbsian.tables.frames import as_frame, as_table
from gibbsian.tables.model import TableModel
from gibbsian.tables.schema import Schema


@dataclass(eq=False, repr=False)
class EnergyDensity(DensityMixin, BaseEstimator):
    """log p(x) = log p₀(x) - f(x) - log Z: a mixture p₀ of normals of transformed columns, tilted by a network f.

    p₀ alone, p₀ tilted, Parzen windows, and the weighed sum of mixture and windows are compared by the likelihood of held-out rows, and the best
    is fitted again to all; f = 0 is the mixture itself, and log Z = log E_{p₀} exp(-f) is estimated from its draws. Every
    column is first made nearly normal by a smooth monotone map, so that heavy tails and skew do no harm. `score_samples` is in the units
    of the data, and proper whatever the columns are:

    - values that all lie on a grid (whole numbers, counts, rounded reals) have the mass of their step, divided by the step;
    - single values that come again and again (the zeros of an income, a constant) carry mass of their own, and their log p is that of the
      mass;
    - equal columns, and combinations that hardly vary, are as narrow as some rows' worth of the whole table's spread lets them be.

    Rows with missing cells (NaN) have the density of what is there. `TableEnergy` is the same for names, truth values and dates.

    Args:
        n_components: of the mixture; None chooses.
        hidden_layer_sizes: of the network; () for mixture and windows alone.
        max_iter: updates of the network, at most.
        verbose, random_state: say what is done; seed, random state or None.

    Attributes:
        model_: the fitted `gibbsian.tables.TableModel`.
        schema_: what the columns were taken for; `print(schema_)`.
        family_, scores_: what was chosen, and the held-out log-likelihood a row of each.

    >>> X = np.random.RandomState(0).randn(300, 2)
    >>> density = EnergyDensity(n_components=1, hidden_layer_sizes=(), random_state=0).fit(X)
    >>> bool(abs(density.score(X) / 300 + 2.84) < 0.15)  # the entropy of two normals; score is the sum, as in KernelDensity
    True
    >>> density.predict_interval(np.zeros((1, 2)), 1).round(0)
    array([[-2.,  2.]])
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = constraints(
        counts="max_iter",
        n_components=[Interval(Integral, 1, None, closed="left"), None],
        hidden_layer_sizes=["array-like"],
        verbose=["verbose"],
    )

    n_components: int | None = None
    _: KW_ONLY
    hidden_layer_sizes: tuple[int, ...] = (64, 64)
    max_iter: int = 800
    verbose: int = 0
    random_state: Any = None

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the density; a row of weight 2 counts as two."""
        self._validate_params()
        x = validate_data(self, X, dtype=FLOATS, ensure_all_finite="allow-nan", ensure_min_samples=2)
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
            x = repeated(x, weight)
        frame, seed = as_frame(x), seed_of(self.random_state)
        learned = Schema.learn(frame, dict.fromkeys(frame.names, "numeric"))
        schema = Schema([replace(column, lower=None) for column in learned])  # unseen values may lie anywhere
        hidden = tuple(self.hidden_layer_sizes)
        options = Options(self.n_components, hidden or (1,), steps=self.max_iter, seed=seed)
        families = ["mixture"] + ["tilted"] * bool(hidden) + ["parzen"] * (self.n_components is None or bool(hidden))
        watch = print if self.verbose else None
        self.model_: TableModel = fit_table(frame, schema=schema, family=families, options=options, watch=watch)
        self.schema_, self.family_, self.scores_ = self.model_.schema, self.model_.family, self.model_.scores
        return self

    def _checked(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, dtype=FLOATS, ensure_all_finite="allow-nan", reset=False)

    def score_samples(self, X: Any, return_interval: bool = False) -> Any:
        """log p(x) of every row, in the units of the data; with `return_interval` also `(n, 2)`, the ends of three standard errors of
        what is estimated (both the value itself where it is exact)."""
        x = self._checked(X)
        value, lower, upper = (part.numpy() for part in self.model_.log_prob(x))
        return (value, np.stack([lower, upper], 1)) if return_interval else value

    def score(self, X: Any, y: Any = None) -> float:
        """Total log-likelihood, as scikit-learn's KernelDensity has it."""
        return float(self.score_samples(X).sum())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draws, in the units of the data and on the grids of its columns."""
        check_is_fitted(self)
        seed = self.model_.seed if random_state is None else seed_of(random_state)
        return as_table(self.model_.sample(n_samples, generator=stream(seed, "sample")))

    def explain(self, X: Any) -> Any:
        """-log p(xᵢ | x₋ᵢ) of every cell: how surprising it is given the rest of its row; a frame of pandas where X is one."""
        x = self._checked(X)
        return like(X, self.model_.surprise(x))

    def predict_interval(self, X: Any, column: int | str, level: float = 0.9) -> np.ndarray:
        """Ends `(n, 2)` of an interval that holds a column with probability `level` given the rest of each row, whatever X holds there."""
        x = self._checked(X)
        check_number("predict_interval", "level", level, 0, 1, open_low=True, open_high=True)
        return self.model_.interval(x, self.schema_.names[self._place(column)], level)

    def _place(self, column: int | str) -> int:
        names = list(vars(self).get("feature_names_in_", ()))
        place = names.index(column) if column in names else column
        if isinstance(place, Integral) and -self.n_features_in_ <= place < self.n_features_in_:
            return int(place)
        known = ", ".join(map(str, names)) or f"0 to {self.n_features_in_ - 1}"
        raise ArgumentError(f"column={column!r} is none of the columns: {known}")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
