"""Tables of any make as columns of cells, and back: pandas, polars, Arrow, arrays.

A column comes in as whatever its library holds and becomes `Cells`: numbers, dates, truth values or words, with a mark
on those that are missing (NaN, None, pd.NA, NaT, null). What is made of cells goes back into a table of the same
make with the same types.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gibbsian.errors import CapabilityError, DataError
from gibbsian.tables.cells import CellError, Cells, cells_of, dates_of


class Frame(NamedTuple):
    """A table as columns, and how to make one like it.

    Attributes:
        columns: in order.
        make: "pandas", "polars", "arrow" or "array".
        index: of a pandas frame.
    """

    columns: tuple[Cells, ...]
    make: str = "array"
    index: Any = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def __len__(self) -> int:  # rows, not fields
        return len(self.columns[0].values) if self.columns else 0

    def take(self, rows: Any) -> "Frame":
        """Some of the rows."""
        index = None if self.index is None else self.index[rows]
        return Frame(tuple(column.take(rows) for column in self.columns), self.make, index)


def as_frame(table: Any, names: Sequence[str] | None = None) -> Frame:
    """Any table as columns; `names` are those of an array's columns.

    >>> as_frame(np.array([[1.0, np.nan], [2.0, 3.0]])).columns[1].missing
    array([ True, False])
    """
    home = type(table).__module__.split(".")[0]
    if isinstance(table, Frame):
        return table
    if home in _MAKES:
        names, columns, index = _MAKES[home](table)
        make = "arrow" if home == "pyarrow" else home
    else:
        names, columns, index = _from_array(table, names)
        make = "array"
    refuse_twins([str(name) for name in names], "the table")
    if not len(names):
        raise DataError("the table has no columns; give at least one")
    cells = [cells_of(str(name), *column) for name, column in zip(names, columns, strict=True)]
    return Frame(tuple(cells), make, index)


def refuse_twins(names: list[str], where: str) -> None:
    """Refuse names that more than one column has."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where} has more than one column named {', '.join(map(repr, twice))}; give each its own name")


def check_columns(found: Sequence[str], expected: Sequence[str], where: str) -> None:
    """Refuse a table that lacks columns, or has others."""
    lacks = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    what = [f"lacks the column {', '.join(map(repr, lacks))}"] if lacks else []
    what += [f"has {', '.join(map(repr, extra))}, which training did not know"] if extra else []
    if what:
        raise DataError(
            f"{where} {' and '.join(what)}; the columns are {', '.join(expected)} (leave others out with --drop)"
        )


_ORDERED = "ordered category"
_Parts = tuple[list[str], list[tuple[Any, Any, str, Any]], Any]


def _from_array(table: Any, names: Sequence[str] | None) -> "_Parts":
    array = np.asarray(table)
    if array.ndim != 2:
        raise DataError(f"a table has rows and columns, got an array of shape {array.shape}; use x.reshape(-1, 1)")
    names = [f"x{i}" for i in range(array.shape[1])] if names is None else names
    return list(names), [(column, None, str(array.dtype), None) for column in array.T], None


def _from_pandas(table: Any) -> _Parts:
    import pandas as pd

    if isinstance(table, pd.Series):
        table = table.to_frame()
    columns = []
    for i in range(table.shape[1]):
        series = table.iloc[:, i]
        missing, kind, categories = series.isna().to_numpy(), series.dtype, None
        if isinstance(kind, pd.CategoricalDtype) and kind.categories.dtype.kind == "M":  # dates are numbers here
            kind = kind.categories.dtype
            series = series.astype(kind)
        if isinstance(kind, pd.CategoricalDtype):
            categories, values = tuple(kind.categories), series.astype(object).to_numpy()
        elif pd.api.types.is_bool_dtype(kind):
            values = series.to_numpy(dtype=bool, na_value=False) if missing.any() else series.to_numpy(dtype=bool)
        elif pd.api.types.is_numeric_dtype(kind):
            if pd.api.types.is_complex_dtype(kind):
                raise CellError(f"column {series.name!r}: complex data not supported")
            exact = pd.api.types.is_integer_dtype(kind)  # keys have more digits than floats
            values = series.fillna(0).to_numpy() if exact else series.to_numpy(dtype=np.float64, na_value=np.nan)
        elif pd.api.types.is_datetime64_any_dtype(kind):
            plain = series.dt.tz_convert(None) if isinstance(kind, pd.DatetimeTZDtype) else series
            values = plain.to_numpy(dtype="datetime64[us]")
        else:
            values = series.to_numpy(dtype=object)
        ordered = isinstance(kind, pd.CategoricalDtype) and kind.ordered
        columns.append((values, missing, _ORDERED if ordered else str(kind), categories))
    return list(table.columns), columns, table.index


def _from_polars(table: Any) -> _Parts:
    import polars as pl

    columns = []
    for series in table.get_columns():
        missing = series.is_null().to_numpy()
        if series.dtype.is_integer():
            values = series.fill_null(0).to_numpy()
        elif series.dtype.is_numeric():
            values = series.cast(pl.Float64).to_numpy()
        elif series.dtype == pl.Boolean:
            values = series.fill_null(False).to_numpy()
        elif series.dtype in (pl.Date, pl.Datetime):
            values = series.cast(pl.Datetime("us")).to_numpy().astype("datetime64[us]")
        else:
            values = np.array(series.cast(pl.String).to_list(), dtype=object)
        columns.append((values, missing, str(series.dtype), None))
    return table.columns, columns, None


def _from_arrow(table: Any) -> _Parts:
    import pyarrow as pa

    columns = []
    for column in table.columns:
        kind, missing = column.type, column.is_null().to_numpy()
        if pa.types.is_integer(kind):
            values = column.fill_null(0).to_numpy()
        elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            values = column.cast(pa.float64()).to_numpy()
        elif pa.types.is_boolean(kind):
            values = column.fill_null(False).to_numpy()
        elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            values = column.cast(pa.timestamp("us")).to_numpy().astype("datetime64[us]")
        else:
            values = np.array(column.cast(pa.string()).to_pylist(), dtype=object)
        columns.append((values, missing, str(kind), None))
    return table.column_names, columns, None


_MAKES: dict[str, Callable[[Any], _Parts]] = {
    "pandas": _from_pandas, "polars": _from_polars, "pyarrow": _from_arrow,
}  # fmt: skip


def as_table(frame: Frame) -> Any:
    """A table of the frame's make out of its cells, in the types that they came in where those can hold them."""
    if frame.make == "pandas":
        return _to_pandas(frame)
    if frame.make == "polars":
        return _to_polars(frame)
    if frame.make == "arrow":
        return _to_arrow(frame)
    return _to_array(frame)


def _plain(cells: Cells) -> np.ndarray:
    """Values with what stands for missing in their type."""
    if cells.form == "date":
        dates = dates_of(np.where(cells.missing, 0.0, cells.values.astype(np.float64)))
        dates[cells.missing] = np.datetime64("NaT")
        return dates
    if cells.form == "number":
        if cells.values.dtype.kind not in "iu":
            return np.where(cells.missing, np.nan, cells.values.astype(np.float64))
        if not cells.missing.any():
            return cells.values
    values = cells.values.astype(object)
    values[cells.missing] = None
    return values


def _to_pandas(frame: Frame) -> Any:
    import pandas as pd

    made = {}
    for cells in frame.columns:
        series = pd.Series(_plain(cells), index=frame.index)
        kind = _pandas_type(cells)
        if cells.categories is not None:
            kind = pd.CategoricalDtype(cells.categories, ordered=cells.dtype == _ORDERED)
        if cells.form == "date" and str(kind).startswith("datetime64[") and "," in str(kind):
            series = series.dt.tz_localize("UTC")
        made[cells.name] = series.astype(kind)
    return pd.DataFrame(made, index=frame.index)


def float_type(make: str) -> str:
    """What a library calls its type of reals.

    >>> float_type("pandas"), float_type("arrow")
    ('float64', 'double')
    """
    return {"polars": "Float64", "arrow": "double"}.get(make, "float64")


def _pandas_type(cells: Cells) -> Any:
    """The type of a column, or one that can hold its gaps."""
    if not cells.missing.any():
        return cells.dtype
    if cells.dtype == "bool":
        return "boolean"
    return "float64" if cells.dtype.startswith(("int", "uint")) else cells.dtype


def _to_polars(frame: Frame) -> Any:
    import polars as pl

    made = []
    for cells in frame.columns:
        kind = _polars_type(pl, cells.dtype)
        values = [None if m else v for v, m in zip(_plain(cells).tolist(), cells.missing, strict=True)]
        if cells.form == "number" and kind is not None and kind.is_integer():
            values = [None if v is None else int(v) for v in values]
        series = pl.Series(cells.name, values)
        made.append(series if kind is None else series.cast(kind))
    return pl.DataFrame(made)


def _polars_type(pl: Any, name: str) -> Any:
    """The type of polars of that name, where it has no options."""
    found = vars(pl).get(name.partition("(")[0])
    return found() if isinstance(found, type) and issubclass(found, pl.DataType) and "(" not in name else None


def _to_arrow(frame: Frame) -> Any:
    import pyarrow as pa

    made = []
    for cells in frame.columns:
        values = pa.array(_plain(cells), mask=cells.missing)
        try:
            kind = pa.type_for_alias(cells.dtype)
        except ValueError:
            kind = values.type
        made.append(values.cast(kind, safe=False))
    return pa.table(dict(zip(frame.names, made, strict=True)))


def _to_array(frame: Frame) -> np.ndarray:
    forms = {cells.form for cells in frame.columns}
    kinds = {cells.dtype for cells in frame.columns}
    if forms <= {"number", "truth", "empty"}:
        kind = kinds.pop() if len(kinds) == 1 else "float64"
        if kind == "object" or any(c.missing.any() for c in frame.columns):
            kind = "float64"
        return np.stack([np.where(c.missing, np.nan, c.values.astype(object)).astype(kind) for c in frame.columns], 1)
    return np.stack([_plain(cells).astype(object) for cells in frame.columns], 1)


def check_extra(package: str) -> None:
    """Refuse with the way to install it where a package of the extra `tables` is missing."""
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise CapabilityError(f"this needs the package {package}: pip install 'gibbsian[tables]'")
