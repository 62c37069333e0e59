"""What a column of a table is: its kind, grid, ends and names, as its values say."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gibbsian.errors import ArgumentError, DataError, check_choice
from gibbsian.tables.cells import FORMS, Cells, key_of

KINDS = ("numeric", "integer", "boolean", "category", "date", "ignored")
NUMBERS = ("numeric", "integer", "date")
_MOST_CATEGORIES = 255  # that are told apart; rarer ones are pooled
_COARSE = 32  # different values, at most, of a column of numbers whose values are told apart like categories
_SPAN = 64  # steps, at most, from its lowest to its highest
_MOST_ATOMS = 8
_BLUR = 0.02  # of a step, that values on a grid may be off
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
    _refuse_form(cells, kind)
    if kind in NUMBERS:
        return _numeric(seen.astype(np.float64), kind, common)
    if kind == "boolean":
        return Column(kind=kind, categories=_two(cells, seen), **common)
    return _named(cells, seen, common)


def check_form(column: Column, cells: Cells) -> None:
    """Refuse new cells that are not of the kind that a column has: days are no numbers, and numbers no days."""
    if cells.form == "empty" or not (column.numbers or cells.form == "date"):
        return
    if cells.form not in ({"date"} if column.kind == "date" else {"number", "truth"}):
        row = int(np.argmax(~cells.missing))
        value = cells.values[row]
        held = _shown(value, cells.form) if cells.form in {"date", "number"} else repr(value)
        wanted = "date" if column.kind == "date" else "number" if column.numbers else "name"
        raise DataError(f"row {row + 1}, column {cells.name!r} holds {held}, a {wanted} was expected")


def _refuse_form(cells: Cells, kind: str) -> None:
    """Refuse a kind that the values of a column cannot be of."""
    row = int(np.argmax(~cells.missing))
    if kind in NUMBERS and cells.form == "text":
        raise DataError(f"row {row + 1}, column {cells.name!r} holds {cells.values[row]!r}, which is no number; correct it, or take the column as categories")  # fmt: skip
    if (kind == "date") != (cells.form == "date"):
        raise DataError(f"column {cells.name!r} holds {FORMS[cells.form]} and is said to be of kind {kind!r}; turn it into {'dates' if kind == 'date' else 'words or numbers'} first, or leave its kind out")  # fmt: skip
    if kind == "numeric" and cells.form == "truth":
        raise DataError(
            f"column {cells.name!r} holds truth values and is said to be numeric; make it numbers first, or take it as boolean or integer"
        )
    if kind == "integer" and cells.form == "number":
        part = ~cells.missing & (cells.values != np.round(cells.values))
        if part.any():
            row = int(np.argmax(part))
            raise DataError(f"row {row + 1}, column {cells.name!r} holds {cells.values[row]:g}, which is no whole number; round the column, or take it as numeric")  # fmt: skip


def _named(cells: Cells, seen: np.ndarray, common: dict[str, Any]) -> Column:
    """A column of names: the most frequent first, those that are declared and never seen last."""
    names, counts = np.unique(np.array([key_of(value) for value in seen], dtype=object), return_counts=True)
    first = {key_of(value): value for value in (*seen[::-1], *(cells.categories or ()))}  # as they are declared
    order = [first[names[i]] for i in np.argsort(-counts, kind="stable")]
    plain = [value.item() if isinstance(value, np.generic) else value for value in order]
    unused = [c for c in cells.categories or () if key_of(c) not in set(names)]
    kept, pooled = (*plain[:_MOST_CATEGORIES], *unused), tuple(plain[_MOST_CATEGORIES:])
    return Column(kind="category", categories=kept, pooled=pooled, declared=cells.categories, **common)


def _guess(cells: Cells, seen: np.ndarray) -> str:
    if cells.form in {"truth", "date"}:
        return {"truth": "boolean", "date": "date"}[cells.form]
    if cells.form == "number" and cells.categories is None:
        return _number(cells, seen)
    if cells.form == "text" and cells.categories is None:
        several = len(set(seen.tolist()))
        if several > 50 and several > 0.5 * len(seen):  # names, keys, free text
            return "ignored"
    return "ignored" if cells.form == "empty" else "category"


def _number(cells: Cells, seen: np.ndarray) -> str:
    if float(np.abs(seen).max()) >= 2**53:  # whole numbers that a float cannot tell apart are keys
        return "ignored" if "int" in cells.dtype.lower() else "numeric"
    return "integer" if bool((seen == np.round(seen)).all()) else "numeric"


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
        grid = low + step * np.arange(round((high - low) / step) + 1)
        told = tuple((grid if kind == "date" else grid.round(10)).tolist())
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
    offsets, top = values - values[0], float(np.abs(values).max())
    for digits in range(7):
        scaled = offsets * 10.0**digits
        whole = np.round(scaled)
        blur = 1e-5 * max(1.0, 10.0**digits * 1e-9 * top)  # of decimals that are kept in binary
        if whole[-1] >= 2**53 or (kind != "integer" and 10.0**digits * np.spacing(top) > _BLUR):
            break  # any number is on a grid as fine as this
        if whole[-1] > 0 and np.abs(scaled - whole).max() <= min(blur, _BLUR):
            step = float(np.gcd.reduce(whole[1:].astype(np.int64))) / 10.0**digits
            if offsets[-1] / step > _CELLS:
                return None if kind != "integer" else step
            return step / 86_400 if kind == "date" else step
    return 1.0 if kind == "integer" else None
