"""A fitted table: the schema, the law of its rows, and everything that can be asked of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from gibbsian.errors import ArgumentError, DataError, check_count, suggest
from gibbsian.tables.cells import Cells, cells_of, dates_of
from gibbsian.tables.codec import Codec
from gibbsian.tables.coders import FewValues, Names, Numbers
from gibbsian.tables.columns import check_form
from gibbsian.tables.frames import Frame, as_frame, check_columns, float_type
from gibbsian.tables.gaps import Gaps
from gibbsian.tables.laws import CellLaw, Law
from gibbsian.tables.rows import Rows
from gibbsian.tables.schema import Schema
from gibbsian.tables.tilted import Estimate, empty

_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class TableModel:
    """The law of a table's rows.

    Attributes:
        codec: the schema, and coders for its columns.
        law: fitted to all rows; for everything but outliers.
        judge: the same family fitted without the rows that calibrate it; for p-values.
        calibration: the scores of those rows under the judge, in order.
        per_gap: what a missing cell of each column adds to a score: the mean log p(xᵢ | x₋ᵢ) of cells that are there, so that a row does
            not look usual for want of cells.
        family, scores: what was chosen, and the held-out log-likelihood a row of all that were tried.
        seed: of draws.
        make: of the table that it was fitted to.
        gaps: how cells come to be missing; None where that was not asked.
    """

    codec: Codec
    law: Law
    judge: Law
    calibration: np.ndarray
    per_gap: np.ndarray
    family: str
    scores: dict[str, float]
    seed: int = 0
    make: str = "array"
    gaps: Gaps | None = None

    @cached_property
    def hidden(self) -> Law:
        """The law of what gaps hide: the law itself where they are ignorable, else leant by the odds of a gap."""
        return self.law if self.gaps is None or self.gaps.ignorable else self.law.leant(self.gaps.log_odds)[0]

    @property
    def schema(self) -> Schema:
        return self.codec.schema

    # --- rows ---------------------------------------------------------------------------------------

    def frame(self, table: Any) -> Frame:
        """A table with the columns of the schema, in its order; others are refused."""
        frame = as_frame(table, self.schema.names if not _named(table) else None)
        check_columns(frame.names, self.schema.names, "the table")
        columns = {column.name: column for column in frame.columns}
        return Frame(tuple(columns[name] for name in self.schema.names), frame.make, frame.index)

    def rows(self, table: Any) -> Rows:
        """A table as the law takes it; rows that are so already stay as they are."""
        rows = table if isinstance(table, Rows) else self.codec.encode(self.frame(table))
        if not rows.n:
            raise DataError("the table has no rows; give at least one")
        return rows

    def _blockwise(self, rows: Rows, function: Callable[[Rows], Any]) -> list[Any]:
        return [function(rows.take(slice(i, i + _BLOCK))) for i in range(0, rows.n, _BLOCK)]

    # --- likelihood ---------------------------------------------------------------------------------

    def log_prob(self, table: Any) -> Estimate:
        """log p of every row's observed part: counting measure for names, truth values and whole numbers, Lebesgue in original
        units for reals; with the ends of an interval where it is estimated."""
        parts = self._blockwise(self.rows(table), self.law.log_prob)
        return Estimate(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def surprise(self, table: Any) -> np.ndarray:
        """-log p(xᵢ | x₋ᵢ) of every cell, `(n, columns)`, NaN for those that are missing or ignored."""
        rows = self.rows(table)
        out = np.full((rows.n, len(self.schema)), np.nan)
        for i, coder in enumerate(self.codec.coders):
            if coder is not None:
                parts = self._blockwise(rows, lambda part, i=i: -self.law.log_given(part, i))  # type: ignore[misc]
                out[:, i] = torch.cat(parts).numpy()
        return out

    def p_values(self, table: Any) -> np.ndarray:
        """How unusual rows are: the share of calibrating rows that are no more likely, so that a new normal row has a p-value at or
        below α with probability at most α (split conformal; Vovk, Gammerman & Shafer 2005)."""
        return self.p_value_of(self.judged(table))

    def p_value_of(self, score: np.ndarray) -> np.ndarray:
        """The p-values of scores."""
        return (1 + np.searchsorted(self.calibration, score, side="right")) / (len(self.calibration) + 1)

    def judged(self, table: Any) -> np.ndarray:
        """The scores that p-values compare: log p under the judge, with what is usual in the place of gaps."""
        return judged(self.judge, self.codec, self.per_gap, self.rows(table))

    # --- draws and gaps -----------------------------------------------------------------------------

    def sample(self, n: int, given: Mapping[str, Any] | None = None, *, generator: torch.Generator) -> Frame:
        """n rows, with some cells given."""
        n = check_count("sample", "n", n)
        held = self._given(given or {})
        start = empty(self.codec, n)
        if given:
            start = self.codec.encode(held, strict=True).repeat(n)
        parts = self._blockwise(start, lambda part: self.law.complete(part, generator))
        drawn = self.codec.decode(Rows.cat(parts), _numpy(generator), self.make)
        fixed = {cells.name: cells for cells in held.columns if not cells.missing[0]}
        columns = [
            drawn.columns[i] if name not in fixed else self._repeated(i, fixed[name], n)
            for i, name in enumerate(self.schema.names)
        ]
        return Frame(tuple(columns), self.make)

    def _repeated(self, i: int, cells: Cells, n: int) -> Cells:
        coder = self.codec.coders[i]
        value = cells.values[0]
        if isinstance(coder, Names):
            code = coder.encode(cells, True).code
            value = coder.decode(np.zeros(1), code, np.random.default_rng(0))[0]
        values = np.empty(n, dtype=np.asarray(cells.values).dtype if not isinstance(coder, Names) else object)
        values[:] = value
        return self.codec.cells(i, values, np.zeros(n, bool))

    def _given(self, given: Mapping[str, Any]) -> Frame:
        """One row of what is given; unknown columns and values that cannot be are refused."""
        for name in given:
            if name not in self.schema.names:
                raise ArgumentError(f"given names a column {name!r}, which is not there; {suggest(name, self.schema.names)}there are {', '.join(self.schema.names)}")  # fmt: skip
            if self.schema[name].kind == "ignored":
                raise ArgumentError(f"given names the column {name!r}, which is not modelled; leave it out")
        return Frame(tuple(self._cell(name, given.get(name)) for name in self.schema.names))

    def _cell(self, name: str, value: Any) -> Cells:
        column = self.schema[name]
        if np.ndim(value):
            raise ArgumentError(f"given {name}={value!r}: one value was expected; draw once for each of several")
        if value is None:
            return Cells(name, "empty", np.full(1, None, dtype=object), np.ones(1, bool))
        if isinstance(value, str) and column.numbers:
            value = _number(name, value, column.kind)
        try:
            cells = cells_of(name, np.array([value], dtype=None if not isinstance(value, str) else object))
            check_form(column, cells)
        except DataError as error:
            raise ArgumentError(f"given {name}={value!r}: {error}") from error
        if cells.missing[0]:
            raise ArgumentError(f"given {name}={value!r}: {'a number' if column.numbers else 'a value'} was expected")
        return cells

    def impute(self, table: Any, *, rounded: bool = True) -> Frame:
        """Gaps filled in: numbers by their mean given the rest of the row, others by the most probable; without `rounded`, means of whole
        numbers stay what they are. Gaps that follow what they hide have the law `hidden`."""
        frame = self.frame(table)
        rows = self.codec.encode(frame)
        filled = self._filled(frame, rows, lambda i, some: self._best(self.hidden.cell(some, i), i, rounded))
        if rounded:
            return filled
        whole, kind = [column.kind == "integer" for column in self.schema], float_type(frame.make)
        columns = [c._replace(dtype=kind) if w else c for c, w in zip(filled.columns, whole, strict=True)]
        return Frame(tuple(columns), frame.make, frame.index)

    def draw(self, table: Any, *, generator: torch.Generator) -> Frame:
        """Gaps filled in by one draw."""
        frame = self.frame(table)
        rows = self.codec.encode(frame)
        gone = self.codec.missing(rows).any(1)
        whole = Rows.cat(self._blockwise(rows.take(gone), lambda part: self.hidden.complete(part, generator))) if bool(gone.any()) else rows.take(gone)  # fmt: skip
        place, rng = torch.full((rows.n,), -1), _numpy(generator)
        place[gone] = torch.arange(whole.n)
        drawn = self.codec.decode(whole, rng)
        at = [place[self.codec.missing(rows)[:, i]].numpy() for i in range(len(self.schema))]
        return self._filled(frame, rows, lambda i, some: drawn.columns[i].values[at[i]])

    def _filled(self, frame: Frame, rows: Rows, values: Callable[[int, Rows], np.ndarray]) -> Frame:
        columns = []
        for i, cells in enumerate(frame.columns):
            gone = self.codec.missing(rows)[:, i]
            if self.codec.coders[i] is None or not bool(gone.any()):
                columns.append(cells)
                continue
            found = self.codec.cells(i, values(i, rows.take(gone)), np.zeros(int(gone.sum()), bool))
            kind = np.float64 if found.form in {"number", "date"} else object
            whole = cells.values.astype(kind)
            whole[gone.numpy()] = found.values
            if found.form == "truth":
                whole = whole.astype(bool)
            dtype = cells.dtype if cells.form != "empty" else self.schema.columns[i].dtype
            columns.append(Cells(cells.name, found.form, whole, np.zeros(len(whole), bool), dtype, cells.categories))
        return Frame(tuple(columns), frame.make, frame.index)

    # --- single cells -------------------------------------------------------------------------------

    def predict(self, table: Any, column: str) -> np.ndarray:
        """The value of a column given the others: the mean of numbers, else the most probable."""
        i = self._index(column)
        parts = self._blockwise(self.rows(table), lambda part: self._best(self.law.cell(part, i), i))
        return self._natural(i, self.codec.cells(i, np.concatenate(parts), np.zeros(0, bool)).values)

    def _natural(self, i: int, values: np.ndarray) -> np.ndarray:
        """Dates as dates, whole numbers as such."""
        kind = self.schema.columns[i].kind
        if kind == "date":
            return dates_of(values)
        return values.astype(np.int64) if kind == "integer" else values

    def probabilities(self, table: Any, column: str) -> tuple[list[Any], np.ndarray]:
        """The values that a column of names, truth values or few numbers can have, and their probabilities given the others."""
        i = self._index(column)
        coder = self.codec.coders[i]
        if isinstance(coder, Numbers) or coder is None:
            raise ArgumentError(f"column {column!r} is {coder.column.kind if coder else 'ignored'}: it has intervals, and no list of probabilities")  # fmt: skip
        p = torch.cat(self._blockwise(self.rows(table), lambda part: self.law.cell(part, i).codes)).numpy()
        told = isinstance(coder, Names)
        values = list(coder.column.categories) if told else list(self._natural(i, np.array(coder.column.values)))
        p = p[:, : len(values)]
        return values, p / p.sum(1, keepdims=True)

    def interval(self, table: Any, column: str, level: float = 0.9) -> np.ndarray:
        """Lower and upper end of an interval that holds a number with probability `level` given the others, `(n, 2)`."""
        i = self._index(column)
        if not self.schema[column].numbers:
            raise ArgumentError(
                f"column {column!r} is {self.schema[column].kind}: it has probabilities, and no interval"
            )
        ends = np.array([0.5 - level / 2, 0.5 + level / 2])
        parts = self._blockwise(
            self.rows(table), lambda part: _quantiles(*self._points(self.law.cell(part, i), i), ends)
        )
        return self._natural(i, np.concatenate(parts))

    def _index(self, column: str) -> int:
        i = self.schema.index(column)
        if self.codec.coders[i] is None:
            raise ArgumentError(f"column {column!r} is ignored, so that nothing is known of it")
        return i

    def _best(self, law: CellLaw, i: int, rounded: bool = True) -> np.ndarray:
        coder = self.codec.coders[i]
        if isinstance(coder, Names):
            assert law.codes is not None
            return coder.decode(np.zeros(0), law.codes[:, : coder.drawable].argmax(1).numpy(), np.random.default_rng(0))
        values, weights = self._points(law, i)
        mean = (values * weights).sum(1)
        step, origin = self.schema.columns[i].step, self.schema.columns[i].low or 0.0
        if rounded and self.schema.columns[i].kind == "integer" and step is not None:
            mean = np.round(origin + step * np.round((mean - origin) / step), 9)
        return mean

    def _points(self, law: CellLaw, i: int) -> tuple[np.ndarray, np.ndarray]:
        """The law of a number as values and weights, `(n, points)` each."""
        coder, rng = self.codec.coders[i], np.random.default_rng(0)
        if isinstance(coder, FewValues):
            assert law.codes is not None
            weights = law.codes[:, :-1].numpy()
            values = np.broadcast_to(np.array(coder.column.values), weights.shape)
            return values, weights / weights.sum(1, keepdims=True)
        assert isinstance(coder, Numbers)
        assert law.z is not None
        assert law.weight is not None
        z, weights = law.z.numpy(), law.weight.numpy()
        values = coder.decode(z.ravel(), np.full(z.size, -1), rng).reshape(z.shape)
        if law.codes is None:
            return values, weights
        atoms = np.broadcast_to(np.array(coder.column.atoms), (len(z), len(coder.column.atoms)))
        codes = law.codes.numpy()
        return np.concatenate([atoms, values], 1), np.concatenate([codes[:, :-1], codes[:, -1:] * weights], 1)


def judged(judge: Law, codec: Codec, per_gap: np.ndarray, rows: Rows) -> np.ndarray:
    """log p of every row under a judge, with `per_gap` of its column for every missing cell."""
    parts = [judge.log_prob(rows.take(slice(i, i + _BLOCK))).value for i in range(0, rows.n, _BLOCK)]
    return torch.cat(parts).numpy() + codec.missing(rows).numpy() @ per_gap


def _number(name: str, text: str, kind: str) -> Any:
    """A number, or a date, out of a word."""
    try:
        return np.datetime64(text) if kind == "date" else float(text)
    except ValueError:
        raise ArgumentError(
            f"given {name}={text!r}: {'a date' if kind == 'date' else 'a number'} was expected"
        ) from None


def _quantiles(values: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Quantiles of weighted values, row by row."""
    order = np.argsort(values, 1)
    values, total = np.take_along_axis(values, order, 1), np.take_along_axis(weights, order, 1).cumsum(1)
    at = [(total < level * total[:, -1:] - 1e-12).sum(1).clip(max=values.shape[1] - 1) for level in levels]
    return np.stack([values[np.arange(len(values)), k] for k in at], 1)


def _named(table: Any) -> bool:
    return isinstance(table, Frame) or type(table).__module__.split(".")[0] in {"pandas", "polars", "pyarrow"}


def _numpy(generator: torch.Generator) -> np.random.Generator:
    return np.random.default_rng(int(torch.randint(1 << 62, (), generator=generator)))
