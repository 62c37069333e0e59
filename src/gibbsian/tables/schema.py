"""What the columns of a table are: learned from the data, printed, edited.

    kind        values                      measure of the likelihood
    numeric     reals                       Lebesgue, in the units of the column
    integer     whole numbers               counting: the mass of a bin
    date        times                       Lebesgue, in days
    boolean     true and false              counting
    category    names                       counting
    ignored     anything                    none: the column is carried along, not modelled

A column of numbers may have a `step`, the grid that all its values lie on (0.1, 1, 50); then the mass of a bin of one
step, divided by the step, is the density (of reals) or the probability (of whole numbers), the same wherever in the bin a value
lies, so that rounded data cannot make a density infinite. It may have `atoms`, single values that carry mass of their own
(the zeros of an income), and a `lower` end below which nothing lies. All of them can be edited.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gibbsian.errors import ArgumentError, DataError, check_choice, suggest
from gibbsian.tables.frames import Cells, Frame

KINDS = ("numeric", "integer", "boolean", "category", "date", "ignored")
NUMBERS = ("numeric", "integer", "date")
_MOST_CATEGORIES = 255  # that are told apart; rarer ones are pooled
_COARSE = 32  # different values, at most, of a column of numbers whose values are told apart like categories
_SPAN = 64  # steps, at most, from its lowest to its highest
_MOST_ATOMS = 8
_CELLS = 1e7  # more steps than these between lowest and highest, and a column is taken as continuous


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name, kind: as above.
        dtype: what it is stored as, for the way back.
        lower: nothing lies below, or None.
        step: the grid that values lie on, or None for none.
        low, high: the least and the greatest value seen.
        atoms: values that carry mass of their own.
        values: those that are told apart one by one, for few whole numbers or a coarse grid.
        categories: the names, most frequent ones where there are too many.
        pooled: the other names, which are taken as one.
        declared: names in the order that the table declares, or None.
        missing: share of empty cells.
    """

    name: str
    kind: str
    dtype: str = "object"
    lower: float | None = None
    step: float | None = None
    low: float | None = None
    high: float | None = None
    atoms: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    categories: tuple[Any, ...] = ()
    pooled: tuple[Any, ...] = ()
    declared: tuple[Any, ...] | None = None
    missing: float = 0.0

    def __post_init__(self) -> None:
        check_choice(self, "kind", self.kind, KINDS)
        for name in ("atoms", "values", "categories", "pooled"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.step is not None and not 0 < self.step < math.inf:
            raise ArgumentError(
                f"column {self.name!r}: step={self.step} must be positive, or None for reals without a grid"
            )
        if self.kind == "integer" and self.step is None:
            raise ArgumentError(f"column {self.name!r} is of whole numbers and needs a step, such as 1")

    @property
    def numbers(self) -> bool:
        """Whether it holds numbers."""
        return self.kind in NUMBERS

    def describe(self) -> str:
        """In words."""
        if self.kind == "ignored":
            return "carried along"
        if not self.numbers:
            shown = ", ".join(str(c) for c in self.categories[:5])
            more = len(self.categories) - 5
            rest = f", and {more} more" if more > 0 else ""
            return shown + rest + (f"; {len(self.pooled)} rare ones pooled" if self.pooled else "")
        parts = [f"{_shown(self.low, self.kind)} to {_shown(self.high, self.kind)}"]
        parts += [f"in steps of {self.step:g}"] if self.step is not None else []
        parts += [f"never below {self.lower:g}"] if self.lower is not None else []
        parts += [f"often exactly {', '.join(f'{a:g}' for a in self.atoms)}"] if self.atoms else []
        return ", ".join(parts)


def _shown(value: float | None, kind: str) -> str:
    if value is None:
        return "?"
    if kind != "date":
        return f"{value:g}"
    return str(np.datetime64(round(value * 86_400), "s")).replace("T00:00:00", "")


class Schema:
    """The columns of a table.

    Args:
        columns: in order.

    >>> from gibbsian.tables.frames import as_frame
    >>> schema = Schema.learn(as_frame(np.array([[1.5, 0], [2.25, 1], [2.5, 1]])))
    >>> print(schema)
    column  kind     missing  values
    x0      numeric      0 %  1.5 to 2.5, in steps of 0.25, never below 0
    x1      integer      0 %  0 to 1, in steps of 1, never below 0
    >>> schema.edit("x0", lower=None)["x0"].lower is None
    True
    """

    def __init__(self, columns: tuple[Column, ...] | list[Column]) -> None:
        self.columns = tuple(columns)
        if not any(column.kind != "ignored" for column in self.columns):
            raise DataError("no column is left to learn from: all are empty, or ignored; give one that is not")

    @classmethod
    def learn(cls, frame: Frame, types: Mapping[str, str] | None = None) -> "Schema":
        """The schema of a table; `types` says what some columns are."""
        types = dict(types or {})
        for name, kind in types.items():
            if name not in frame.names:
                raise ArgumentError(f"types names a column {name!r}, which is not there; {suggest(name, frame.names)}there are {', '.join(frame.names)}")  # fmt: skip
            check_choice("types", name, kind, KINDS)
        if not len(frame):
            raise DataError("the table has no rows; give at least one")
        return cls([learn_column(cells, types.get(cells.name)) for cells in frame.columns])

    def __getitem__(self, name: str) -> Column:
        return self.columns[self.index(name)]

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.columns == other.columns

    def __hash__(self) -> int:
        return hash(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def index(self, name: str) -> int:
        """Where a column stands."""
        if name not in self.names:
            raise ArgumentError(
                f"there is no column {name!r}; {suggest(name, self.names)}there are {', '.join(self.names)}"
            )
        return self.names.index(name)

    def edit(self, column: str, **changes: Any) -> "Schema":
        """Another one, with some fields of a column changed."""
        i = self.index(column)
        unknown = [key for key in changes if key not in Column.__dataclass_fields__]
        if unknown:
            known = Column.__dataclass_fields__
            raise ArgumentError(
                f"a column has no {unknown[0]!r}; {suggest(unknown[0], known)}it has {', '.join(known)}"
            )
        new = replace(self.columns[i], **changes)
        return Schema((*self.columns[:i], new, *self.columns[i + 1 :]))

    def to_json(self) -> str:
        """As text, for a file that can be edited."""
        plain = [{k: v for k, v in asdict(c).items() if v not in (None, (), "object")} for c in self.columns]
        return json.dumps(plain, indent=1, ensure_ascii=False, default=str)

    @classmethod
    def from_json(cls, text: str) -> "Schema":
        """What `to_json` wrote."""
        try:
            plain = json.loads(text)
            return cls([Column(**column) for column in plain])
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"this is no schema ({error}); write one with schema.to_json()") from error

    def __str__(self) -> str:
        rows = [(c.name, c.kind, f"{100 * c.missing:.0f} %", c.describe()) for c in self.columns]
        head = ("column", "kind", "missing", "values")
        wide = [max(len(row[i]) for row in [head, *rows]) for i in range(3)]
        lines = [f"{a:<{wide[0]}}  {b:<{wide[1]}}  {c:>{wide[2]}}  {d}" for a, b, c, d in [head, *rows]]
        return "\n".join(line.rstrip() for line in lines)

    def __repr__(self) -> str:
        return f"Schema({', '.join(f'{c.name}: {c.kind}' for c in self.columns)})"


# --- learning -------------------------------------------------------------------------------------


def learn_column(cells: Cells, kind: str | None = None) -> Column:
    """What a column is, as its values say, or as it is said to be."""
    seen = cells.values[~cells.missing]
    kind = kind or _guess(cells, seen)
    common: dict[str, Any] = {
        "name": cells.name,
        "dtype": cells.dtype,
        "missing": round(float(cells.missing.mean()), 6),
    }
    if kind == "ignored" or not len(seen):
        return Column(kind="ignored", **common)
    if kind in NUMBERS:
        if cells.form not in {"number", "date", "truth"}:
            row = int(np.argmax(~cells.missing))
            raise DataError(f"row {row + 1}, column {cells.name!r} holds {cells.values[row]!r}, which is no number; correct it, or take the column as categories")  # fmt: skip
        return _numeric(seen.astype(np.float64), kind, common)
    if kind == "boolean":
        return Column(kind=kind, categories=_two(cells, seen), **common)
    return _named(cells, seen, common)


def _named(cells: Cells, seen: np.ndarray, common: dict[str, Any]) -> Column:
    """A column of names: the most frequent first, those that are declared and never seen last."""
    names, counts = np.unique(seen.astype(str), return_counts=True)
    first = {str(value): value for value in seen[::-1]}
    order = [first[str(names[i])] for i in np.argsort(-counts, kind="stable")]
    plain = [value.item() if isinstance(value, np.generic) else value for value in order]
    unused = [c for c in cells.categories or () if str(c) not in first]
    kept, pooled = (*plain[:_MOST_CATEGORIES], *unused), tuple(plain[_MOST_CATEGORIES:])
    return Column(kind="category", categories=kept, pooled=pooled, declared=cells.categories, **common)


def _guess(cells: Cells, seen: np.ndarray) -> str:
    if cells.form in {"truth", "date"}:
        return {"truth": "boolean", "date": "date"}[cells.form]
    if cells.form == "number":
        return "integer" if bool((seen == np.round(seen)).all()) and float(np.abs(seen).max()) < 2**53 else "numeric"
    if cells.form == "text" and cells.categories is None:
        several = len(set(seen.tolist()))
        if several > 50 and several > 0.5 * len(seen):  # names, keys, free text
            return "ignored"
    return "ignored" if cells.form == "empty" else "category"


def _two(cells: Cells, seen: np.ndarray) -> tuple[Any, ...]:
    """The two values of a column of truth values, the lower first."""
    found = sorted(set(seen.tolist()), key=lambda v: (str(type(v)), v))
    if cells.form == "truth":
        return (False, True)
    if len(found) > 2:
        raise DataError(f"column {cells.name!r} is said to be boolean but holds {len(found)} different values")
    return tuple(found)


def _numeric(x: np.ndarray, kind: str, common: dict[str, Any]) -> Column:
    step = _step(x, kind)
    low, high = float(x.min()), float(x.max())
    lower = 0.0 if kind != "date" and low >= 0 else None
    values, counts = np.unique(x, return_counts=True)
    told: tuple[float, ...] = ()
    if step is not None and len(values) <= _COARSE and (high - low) / step <= _SPAN:
        told = tuple((low + step * np.arange(round((high - low) / step) + 1)).round(10).tolist())
        return Column(kind=kind, lower=lower, step=step, low=low, high=high, values=told, **common)
    atoms = _atoms(values, counts, step, lower)
    return Column(kind=kind, lower=lower, step=step, low=low, high=high, atoms=atoms, **common)


def _atoms(values: np.ndarray, counts: np.ndarray, step: float | None, lower: float | None) -> tuple[float, ...]:
    """Values that carry mass of their own: a share of the rows, and many times what lies on a step nearby."""
    rows = int(counts.sum())
    if step is None:  # any value that comes again, and the end of the range, where a density has no value
        heavy = (counts >= 0.01 * rows) & (counts >= 3)
        heavy |= (values == lower) if lower is not None else False
        return tuple(values[heavy][:_MOST_ATOMS].tolist())
    left, found = counts.copy(), list[float]()
    for i in np.argsort(-counts, kind="stable")[:_MOST_ATOMS]:
        left[i] = 0
        near = np.argsort(np.abs(values - values[i]), kind="stable")
        within = near[: int(np.searchsorted(left[near].cumsum(), 0.2 * left.sum())) + 1]
        cells = max(float(np.ptp(values[within])) / step, 1.0)
        if counts[i] < 0.1 * rows or counts[i] < 5 * (left[within].sum() / cells + 1):
            break
        found.append(float(values[i]))
    return tuple(sorted(found))


def _step(x: np.ndarray, kind: str) -> float | None:
    """The widest grid that all values lie on, counted from the least; None where there is none worth the name."""
    if kind == "date":
        x = x * 86_400
    values = np.unique(x)
    if len(values) < 2:
        only = values[0] == np.round(values[0])
        return 1.0 if only or kind == "integer" else None
    offsets = values - values[0]
    for digits in range(7):
        scaled = offsets * 10.0**digits
        whole = np.round(scaled)
        if np.abs(scaled - whole).max() <= 1e-6 * max(1.0, 10.0**digits * 1e-9 * float(np.abs(values).max())) * 10:
            step = float(np.gcd.reduce(whole[1:].astype(np.int64))) / 10.0**digits
            if offsets[-1] / step > _CELLS:
                return None if kind != "integer" else step
            return step / 86_400 if kind == "date" else step
    return 1.0 if kind == "integer" else None
