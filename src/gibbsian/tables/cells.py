"""The cells of one column: numbers, dates, truth values or words, with a mark on those that are missing."""

import datetime
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from gibbsian.errors import DataError

DAY = np.timedelta64(1, "D")
FORMS = {"number": "numbers", "text": "words", "truth": "truth values", "date": "dates", "empty": "nothing"}  # in words
_DATES = (datetime.date, datetime.datetime, np.datetime64)


class CellError(DataError, TypeError):
    """A cell holds something that is neither a number, a word, a date nor a truth value."""


class Cells(NamedTuple):
    """One column.

    Attributes:
        name: of the column.
        form: "number", "date", "truth", "text" or "empty".
        values: float64 (numbers; days since 1970 for dates), whole numbers that it cannot tell apart as they are, bool, or
            objects; anything where `missing`.
        missing: `(n,)` bool.
        dtype: as its library calls it, for the way back.
        categories: names that the column declares, where it does.
    """

    name: str
    form: str
    values: np.ndarray
    missing: np.ndarray
    dtype: str = "object"
    categories: tuple[Any, ...] | None = None

    def take(self, rows: Any) -> "Cells":
        """Some of the rows."""
        return self._replace(values=self.values[rows], missing=self.missing[rows])


def cells_of(
    name: str, values: Any, missing: np.ndarray | None = None, dtype: str = "object", categories: Any = None
) -> Cells:
    """A column from an array of any type; mixed types are refused with the row."""
    values = np.asarray(values)
    if values.dtype.kind in "OUS":
        form, values, missing = _objects(name, values.astype(object), missing)
    elif values.dtype.kind == "b":
        form = "truth"
    elif values.dtype.kind == "M":
        form, missing = "date", np.isnat(values) if missing is None else missing | np.isnat(values)
        values = _days(values, missing)
    elif values.dtype.kind in "iuf":
        form, values = "number", _exact(values)
        missing = np.isnan(values) if missing is None else missing | np.isnan(values)
    else:
        raise CellError(f"column {name!r} is of type {values.dtype}; give numbers, words, dates or truth values")
    missing = np.zeros(len(values), bool) if missing is None else missing
    if form == "number":
        _refuse_infinite(name, values, missing)
    return Cells(name, "empty" if missing.all() else form, values, missing, dtype, categories)


def _exact(values: np.ndarray) -> np.ndarray:
    """Numbers as floats, but whole ones that floats cannot tell apart as they are."""
    whole = values.dtype.kind in "iu" and len(values) > 0
    return values if whole and max(-int(values.min()), int(values.max())) >= 2**53 else values.astype(np.float64)


def _refuse_infinite(name: str, values: np.ndarray, missing: np.ndarray) -> None:
    bad = np.isinf(values) & ~missing
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"row {row + 1}, column {name!r} is infinite ({int(bad.sum())} such cells in the column; infinity, inf); leave "
            "the cell empty, or put a number there"
        )


def _days(values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    return np.where(missing, np.nan, values.astype("datetime64[us]").astype(np.int64) / 86_400_000_000)


def dates_of(days: np.ndarray) -> np.ndarray:
    """Days since 1970 as dates, to the microsecond."""
    return np.round(days.astype(np.float64) * 86_400_000_000).astype(np.int64).astype("datetime64[us]")


def _form(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "truth"
    if isinstance(value, Number) and not isinstance(value, complex | np.complexfloating):
        return "number"
    if isinstance(value, str | bytes):
        return "text"
    return "date" if isinstance(value, _DATES) else "other"


def is_missing(value: Any) -> bool:
    """None, NaN, NaT or pd.NA.

    >>> [is_missing(value) for value in (None, float("nan"), np.datetime64("NaT"), "", 0)]
    [True, True, True, False, False]
    """
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, float | np.floating | np.datetime64) and bool(value != value)


def key_of(value: Any) -> str:
    """How names are compared: 3, 3.0 and "3" are one.

    >>> key_of(3.0), key_of("3"), key_of(True), key_of(2.5)
    ('3', '3', 'True', '2.5')
    """
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _objects(name: str, values: np.ndarray, missing: np.ndarray | None) -> tuple[str, np.ndarray, np.ndarray]:
    """A column of objects: of what form they are, and as what they are kept."""
    gone = np.array([is_missing(value) for value in values], dtype=bool)
    missing = gone if missing is None else missing | gone
    forms = np.array(["" if m else _form(v) for v, m in zip(values, missing, strict=True)])
    form = _only_form(name, values, missing, forms)
    if form == "number":
        return form, np.array([np.nan if m else float(v) for v, m in zip(values, missing, strict=True)]), missing
    if form == "date":
        nothing = np.datetime64("NaT")
        dates = [nothing if m else np.datetime64(_naive(v)) for v, m in zip(values, missing, strict=True)]
        return form, _days(np.array(dates), missing), missing
    return form, values, missing


def _only_form(name: str, values: np.ndarray, missing: np.ndarray, forms: np.ndarray) -> str:
    """The form that all values of a column share; mixed ones are refused with the row."""
    kinds, counts = np.unique(forms[~missing], return_counts=True)
    if "other" in kinds:
        row = int(np.argmax(forms == "other"))
        raise CellError(
            f"row {row + 1}, column {name!r} holds a {type(values[row]).__name__}; the argument must be a string or a real "
            "number, a date, a truth value, or missing"
        )
    if len(kinds) > 1:
        usual = kinds[counts.argmax()]
        row = int(np.argmax(~missing & (forms != usual)))
        raise MixedError(name, row, values[row], forms[row], str(usual))
    return str(kinds[0]) if len(kinds) else "empty"


def _naive(value: Any) -> Any:
    """A time without its zone, in UTC."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value


class MixedError(DataError):
    """A column holds values of more than one form."""

    def __init__(self, name: str, row: int, value: Any, form: str, usual: str) -> None:
        self.name = name
        super().__init__(
            f"row {row + 1}, column {name!r} holds {value!r} where most cells hold {FORMS[usual]}; correct or empty the cell, "
            f"or take all as categories: types={{{name!r}: 'category'}}, on the command line --types {name}=category"
        )


# --- the makes ------------------------------------------------------------------------------------
