"""One estimator for a whole table: any columns, missing cells, scores, explanations, imputation, synthetic rows."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from gibbsian.errors import check_number
from gibbsian.random import stream
from gibbsian.sklearn.common import constraints, seed_of
from gibbsian.tables.cells import Cells, MixedError
from gibbsian.tables.families import FAMILIES, GAPS, Options
from gibbsian.tables.fitting import fit_table
from gibbsian.tables.frames import Frame, as_frame, as_table, float_type
from gibbsian.tables.model import TableModel
from gibbsian.tables.schema import Schema


@dataclass(eq=False, repr=False)
class TableEnergy(DensityMixin, BaseEstimator):
    """An energy over all columns of a table, E(x) = -log p(x), chosen among several families by held-out likelihood.

    Takes frames of pandas or polars, Arrow tables and arrays with any mix of numbers, whole numbers, truth values, names,
    dates and missing cells, and gives back what came in. Missing cells are marginalized, in training and in use;
    nothing is filled in beforehand. log p is a density in the units of the table for reals (Lebesgue) and a
    probability for whole numbers, names and truth values (counting), the mass of a bin where values lie on a grid.

    Args:
        family: "auto" to choose among all, one name, or several: "mixture", "tilted", "neural", "located", "rbm",
            "parzen"; see `gibbsian.tables.families`.
        types: what some columns are: "numeric", "integer", "boolean", "category", "date", "ignored".
        schema: what all columns are, a `gibbsian.tables.Schema` (learned from other rows, or edited).
        n_components: of the mixture; None chooses.
        hidden_layer_sizes: of networks.
        n_hidden: units of the Boltzmann machine, at most 12.
        max_iter: updates of a network, at most.
        gaps: "auto" to find out from the training table whether cells are missing because of what they hold, which `impute` then
            reckons with (`gibbsian.tables.gaps`); "ignorable" to take it that they are not.
        alpha: share of new normal rows that `predict_outliers` flags.
        verbose, random_state: say what is done; seed, random state or None.

    Attributes:
        model_: the fitted `gibbsian.tables.TableModel`.
        schema_: its schema; `print(schema_)`.
        gaps_: what was found of that, a `gibbsian.tables.gaps.Gaps` or None.
        family_, scores_: the family that was chosen, and the held-out log-likelihood a row of each.

    >>> rng = np.random.default_rng(0)
    >>> age = rng.integers(18, 80, 200)
    >>> X = np.stack([age, 1000 + 30 * age + rng.normal(0, 90, 200)], 1)
    >>> X[::9, 1] = np.nan
    >>> model = TableEnergy("mixture", random_state=0).fit(X)
    >>> bool(abs(model.predict(np.array([[50, np.nan]]), "x1")[0] - 2500) < 90)
    True
    >>> model.sample(3, given={"x0": 30})[:, 0]
    array([30., 30., 30.])
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = constraints(
        counts="max_iter",
        family=[StrOptions({"auto", *FAMILIES}), "array-like"],
        types=[Mapping, None],
        schema=[Schema, None],
        n_components=[Interval(Integral, 1, None, closed="left"), None],
        hidden_layer_sizes=["array-like"],
        n_hidden=[Interval(Integral, 1, 12, closed="both")],
        gaps=[StrOptions(set(GAPS))],
        verbose=["verbose"],
    )

    family: str | Sequence[str] = "auto"
    _: KW_ONLY
    types: Mapping[str, str] | None = None
    schema: Schema | None = None
    n_components: int | None = None
    hidden_layer_sizes: tuple[int, ...] = (64, 64)
    n_hidden: int = 6
    max_iter: int = 800
    gaps: str = "auto"
    alpha: float = 0.05
    verbose: int = 0
    random_state: Any = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the schema and the energy."""
        self._validate_params()
        check_number(self, "alpha", self.alpha, 0, 1, open_low=True, open_high=True)
        frame = self._frame(X, reset=True)
        self._labels = X.columns if frame.make == "pandas" else None  # names of columns may be numbers there
        seed = seed_of(self.random_state)
        options = Options(
            self.n_components, tuple(self.hidden_layer_sizes), self.n_hidden, self.max_iter, seed, self.gaps
        )
        family = self.family if isinstance(self.family, str) else tuple(self.family)
        watch = print if self.verbose else None
        self.model_: TableModel = fit_table(
            frame, types=self.types, schema=self.schema, family=family, options=options, watch=watch
        )
        self.schema_, self.family_, self.scores_ = self.model_.schema, self.model_.family, self.model_.scores
        self.gaps_ = self.model_.gaps
        return self

    def _frame(self, X: Any, reset: bool = False) -> Frame:
        """Any table as columns; names and their number as scikit-learn checks them."""
        home = type(X).__module__.split(".")[0]
        if home == "pyarrow":
            frame = as_frame(X)
            if reset:
                self.feature_names_in_, self.n_features_in_ = np.array(frame.names, dtype=object), len(frame.names)
            return frame
        if home in {"pandas", "polars"} and len(X.shape) == 2:
            frame = _categories(X, self.types if reset else {c.name: c.kind for c in self.schema_})
            validate_data(self, X, reset=reset, skip_check_array=True)
            return frame
        X = validate_data(
            self, X, reset=reset, dtype=None, ensure_all_finite=False, ensure_min_samples=2 if reset else 1
        )
        return as_frame(X)

    def _made(self, frame: Frame) -> Any:
        """A table with the columns called as those of the training table are."""
        table, labels = as_table(frame), vars(self).get("_labels")
        if frame.make == "pandas" and labels is not None:
            table.columns = labels
        return table

    def _table(self, X: Any) -> Frame:
        check_is_fitted(self)
        return self._frame(X)

    def score_samples(self, X: Any, return_interval: bool = False) -> Any:
        """log p of the observed part of every row; with `return_interval` also `(n, 2)`, the ends of three standard errors of what is
        estimated (both the value itself where it is exact)."""
        frame = self._table(X)
        value, lower, upper = (part.numpy() for part in self.model_.log_prob(frame))
        return (value, np.stack([lower, upper], 1)) if return_interval else value

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the rows, for searches."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, given: Mapping[str, Any] | None = None, random_state: Any = None) -> Any:
        """Rows drawn from the law, in the types and units of the training table; `given` holds some cells."""
        check_is_fitted(self)
        held = {str(name): value for name, value in (given or {}).items()}
        return self._made(self.model_.sample(n_samples, held, generator=self._generator("sample", random_state)))

    def impute(self, X: Any, draws: int | None = None, random_state: Any = None, *, round_integers: bool = True) -> Any:
        """Missing cells filled in: numbers by their mean given the rest of the row, others by the most probable value; with `draws` a
        list of that many tables with gaps drawn, for multiple imputation. Where the gaps of the training table were found to follow
        what they hide (`gaps_`), those of X are taken to do so too.

        Whole numbers stay whole; `round_integers=False` fills in their mean itself, the guess of the least squared error, and
        such columns come back as floats.
        """
        frame = self._table(X)
        if draws is None:
            return self._made(self.model_.impute(frame, rounded=round_integers))
        generator = self._generator("impute", random_state)
        return [self._made(self.model_.draw(frame, generator=generator)) for _ in range(draws)]

    def explain(self, X: Any) -> Any:
        """-log p(xᵢ | x₋ᵢ) of every cell, a table like X: how surprising it is given the rest of its row; NaN where missing.

        Reals have densities, others probabilities: compare cells of one column, or subtract its mean.
        """
        frame = self._table(X)
        surprise = self.model_.surprise(frame)
        gone = np.zeros(len(surprise), bool)
        kind = float_type(frame.make)
        columns = [Cells(name, "number", surprise[:, i], gone, kind) for i, name in enumerate(frame.names)]
        return self._made(Frame(tuple(columns), frame.make, frame.index))

    def predict(
        self, X: Any, column: Any = None, return_probabilities: bool = False, return_interval: float | None = None
    ) -> Any:
        """A column given the others, whatever X holds there; by default the last.

        With `return_probabilities` also the values it can have and their probabilities `(n, values)`; with
        `return_interval=0.9` also the ends `(n, 2)` of an interval that holds 90 % of its law.
        """
        frame = self._table(X)
        name = self.schema_.names[-1] if column is None else str(column)
        value = self.model_.predict(frame, name)
        if return_probabilities:
            return value, *self.model_.probabilities(frame, name)
        if return_interval is not None:
            check_number("predict", "return_interval", return_interval, 0, 1, open_low=True, open_high=True)
            return value, self.model_.interval(frame, name, return_interval)
        return value

    def p_values(self, X: Any) -> np.ndarray:
        """Conformal p-values: a new row that is like the training rows has one at or below α with probability at most α."""
        frame = self._table(X)
        return self.model_.p_values(frame)

    def predict_outliers(self, X: Any, alpha: float | None = None) -> np.ndarray:
        """-1 for rows whose p-value is at most `alpha`, else 1."""
        alpha = self.alpha if alpha is None else alpha
        check_number("predict_outliers", "alpha", alpha, 0, 1, open_low=True, open_high=True)
        return np.where(self.p_values(X) <= alpha, -1, 1)

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """Fit, then tell outliers (-1) among the same rows."""
        return self.fit(X).predict_outliers(X)

    def _generator(self, name: str, random_state: Any) -> Any:
        return stream(self.model_.seed if random_state is None else seed_of(random_state), name)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags


def _categories(X: Any, types: Mapping[str, str] | None) -> Frame:
    """A frame, in which columns that are said to be categories may hold mixed types."""
    try:
        return as_frame(X)
    except MixedError as error:
        if (types or {}).get(error.name) != "category":
            raise
        X = X.copy()
        X[error.name] = X[error.name].map(lambda v: v if v is None or v != v else str(v))
        return _categories(X, types)
