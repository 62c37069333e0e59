"""Tables from files, through pandas: header, types, missing tokens, decimal commas, dates; rows in pieces.

What cannot be understood is refused in one sentence that names the row (the first below the header is 1) and the column.
"""

import csv
import gzip
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gibbsian.errors import ArgumentError, DataError, suggest
from gibbsian.tables.coders import TableWarning
from gibbsian.tables.frames import check_columns, check_extra, refuse_twins

SUFFIXES = (".csv", ".tsv", ".parquet", ".feather")
MISSING = ("?",)  # besides those that pandas knows: empty, NA, N/A, NaN, null, None, ...
_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
_DATE = re.compile(r"\s*\d{4}-\d\d?-\d\d?([ T]\d\d?:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d:?\d\d)?\s*")
_ZONE = re.compile(r"[T ].*(Z|[+-]\d\d:?\d\d)\s*$")
_MOSTLY = 0.8  # share of numbers in a column above which words in it are taken for mistakes
_PARTLY = 0.5  # share of numbers above which words among them are spoken of
_LOOK = 1 << 16  # bytes that tell how a file is written


@dataclass(frozen=True)
class Source:
    """A table in a file, and how it is to be read.

    Attributes:
        path: `.csv`, `.tsv` (also `.gz`), `.parquet` or `.feather`.
        columns: those that are kept; all where it is empty.
        drop: those that are left out.
        types: what some columns are, see `Schema`.
        missing: tokens that stand for nothing, besides the usual ones and "?".
        decimal: "." or ","; None finds out.
        encoding: of the text.
        header: whether the first line names the columns; None finds out.
    """

    path: str
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    decimal: str | None = None
    encoding: str = "utf-8"
    header: bool | None = None

    def __post_init__(self) -> None:
        if self.decimal not in (None, ".", ","):
            raise ArgumentError(f"decimal={self.decimal!r}: the decimal sign of a table is . or ,")
        try:
            "".encode(self.encoding)
        except LookupError as error:
            raise ArgumentError(
                f"encoding={self.encoding!r} is none that is known; say one such as utf-8 or latin-1"
            ) from error


def is_table(path: str | Path) -> bool:
    """Whether a file looks like a table."""
    name = Path(path).name.removesuffix(".gz")
    return name.endswith(SUFFIXES)


def read_table(path: str | Path | Source, *, most: int | None = None, seed: int = 0, **how: Any) -> Any:
    """A pandas frame from a file; with `most`, a random sample of so many rows, read piece by piece. `attrs["rows"]` says how many the file
    has, and the index where in it they stand.

    Args:
        path: of the file, or a `Source`.
        most: rows that are kept, at most.
        seed: of that choice.
        how: fields of `Source`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("age;height\\n30;1,82\\n?;1,7\\n")
    ...     table = read_table(f"{folder}/a.csv")
    >>> table["height"].tolist(), table["age"].isna().tolist()
    ([1.82, 1.7], [False, True])
    """
    import pandas as pd

    source = path if isinstance(path, Source) else Source(str(path), **how)
    rng, whole, keys, rows = np.random.default_rng(seed), None, np.zeros(0), 0
    for piece in pieces(source):
        piece.index = pd.RangeIndex(rows, rows + len(piece))
        rows += len(piece)
        whole = piece if whole is None else pd.concat([whole, piece])
        keys = np.concatenate([keys, rng.random(len(piece))])
        if most is not None and len(whole) > most:  # the rows of the smallest keys: every one has the same chance
            keep = np.sort(np.argpartition(keys, most)[:most])
            whole, keys = whole.iloc[keep], keys[keep]
    if whole is None or not len(whole):
        raise DataError(f"{source.path} has no rows; give a table with at least one")
    _check_types(whole, source)
    table = understood(whole, source)
    table.attrs["rows"] = rows
    _tell_row_numbers(table, source)
    return table


def _check_types(table: Any, source: Source) -> None:
    """Refuse types of columns that are not there."""
    for name in source.types:
        if name not in table.columns and name not in source.drop:
            raise ArgumentError(f"types names a column {name!r}, which is not there; {suggest(name, table.columns)}there are {', '.join(map(str, table.columns))}")  # fmt: skip


def _tell_row_numbers(table: Any, source: Source) -> None:
    """A warning where the first column has no name and counts the rows, as pandas and R write the index: new rows count anew."""
    name = table.columns[0]
    column = table[name]
    if str(name) in ("", "Unnamed: 0") and column.dtype.kind in "iu" and len(column) > 1:
        from_first = column.to_numpy() - table.index.to_numpy()
        if (from_first == from_first[0]).all():
            warnings.warn(
                f"the first column of {source.path} has no name and counts the rows; it is taken as any other, so leave it out of the "
                "file (to_csv(index=False))",
                TableWarning,
                stacklevel=3,
            )


def pieces(source: Source, rows: int = 50_000) -> Iterator[Any]:
    """The table of a file piece by piece, cells as they stand there."""
    check_extra("pandas")
    path = Path(source.path).expanduser()
    if not path.is_file():
        raise DataError(f"there is no file {path}; give a table: {', '.join(SUFFIXES)}")
    if path.name.endswith((".parquet", ".feather")):
        check_extra("pyarrow")
        yield from (_chosen(piece, source) for piece in _arrow(path, rows))
        return
    import pandas as pd

    try:
        yield from (_chosen(piece, source) for piece in _lines(path, source, rows))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in {source.encoding} ({error.reason} at byte {error.start}); say the encoding, such as latin-1 (--encoding latin-1)") from error  # fmt: skip
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty; give a table with a header and rows") from error
    except pd.errors.ParserWarning as error:
        raise DataError(
            f"{path} cannot be read as a table: some rows have more cells than its first line; name every column"
        ) from error
    except (pd.errors.ParserError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a table: {' '.join(str(error).split())}") from error
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error}); write it anew") from error


def _lines(path: Path, source: Source, rows: int) -> Iterator[Any]:
    """A text piece by piece; cells that have no column are an error, and not left out."""
    import pandas as pd

    how, ends = _written(path, source), True
    with pd.read_csv(path, chunksize=rows, **how) as reader:
        while True:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                piece = next(reader, None)
            if piece is None:
                break
            ends &= bool(piece.iloc[:, -1].notna().all())
            yield piece
    if not ends:
        _tell_short_rows(path, how)


def _arrow(path: Path, rows: int) -> Iterator[Any]:
    import pandas as pd

    if path.suffix == ".feather":
        yield pd.read_feather(path)
        return
    import pyarrow as pa
    from pyarrow import parquet

    try:
        for batch in parquet.ParquetFile(path).iter_batches(rows):
            yield pa.Table.from_batches([batch]).to_pandas()
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} cannot be read as parquet ({' '.join(str(error).split())})") from error


def _written(path: Path, source: Source) -> dict[str, Any]:
    """How a text file is written: delimiter, header, decimal sign."""
    lines = _first_lines(path, source.encoding)
    if re.fullmatch('"?sep=."?', lines[0].strip()):  # which spreadsheets write for themselves
        raise DataError(f"{path} begins with {lines[0].strip()!r}, which is neither names nor a row; remove this line")
    separator = "\t" if ".tsv" in path.name else max(",;\t|", key=lambda mark: (lines[0].count(mark), mark == ","))
    head, *rows = csv.reader(lines, delimiter=separator)
    named = source.header if source.header is not None else not all(map(_is_number, head))
    names = [name.strip() for name in head] if named else [f"x{i}" for i in range(len(head))]
    refuse_twins(names, str(path))
    _refuse_longer(head, rows, path)
    comma = separator != "," and any(_COMMA.fullmatch(cell) for row in rows for cell in row)
    sign = "," if comma else "."
    told = [name for name in names if source.types.get(name) == "category"]  # of which 00123 is not 123
    return {
        "sep": separator, "header": 0 if named else None, "names": names, "decimal": source.decimal or sign,
        "index_col": False, "encoding": source.encoding, "na_values": [*MISSING, *source.missing], "skipinitialspace": True, "low_memory": False,
        "dtype": dict.fromkeys(told, object),
    }  # fmt: skip


def _refuse_longer(head: list[str], rows: list[list[str]], path: Path) -> None:
    """Refuse a first row with more cells than the header, of which pandas would take the first as names of rows."""
    if rows and any(cell.strip() for cell in rows[0][len(head) :]):
        raise DataError(f"{path} has {len(head)} cells in its first line and {len(rows[0])} in its first row; name every column, also one of row names")  # fmt: skip


def _tell_short_rows(path: Path, how: dict[str, Any]) -> None:
    """A warning where rows of a text end before the last column: pandas takes what they lack as missing."""
    try:
        with _opened(path, "rt", encoding=how["encoding"], newline="") as file:
            rows = csv.reader(file, delimiter=how["sep"])
            lengths = np.array([len(row) for row in rows if row][how["header"] == 0 :])
    except csv.Error:  # cells longer than csv takes, which pandas has read
        return
    short = np.flatnonzero(lengths < len(how["names"]))
    if len(short):
        warnings.warn(
            f"{len(short)} of {len(lengths)} rows of {path} end early, the first is row {short[0] + 1} with {lengths[short[0]]} of "
            f"{len(how['names'])} cells; what they lack is taken as missing",
            TableWarning,
            stacklevel=3,
        )


def _opened(path: Path, mode: str, **how: Any) -> Any:
    return gzip.open(path, mode, **how) if path.suffix == ".gz" else open(path, mode, **how)


def _first_lines(path: Path, encoding: str) -> list[str]:
    """The first lines of a text that hold something."""
    with _opened(path, "rb") as file:
        head = file.read(_LOOK)
    text = head.decode(encoding, errors="strict" if len(head) < _LOOK else "ignore").lstrip("\ufeff")
    lines = [line for line in text.splitlines()[:50] if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty; give a table with a header and rows")
    return lines


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


def _chosen(table: Any, source: Source) -> Any:
    """The columns that are asked for."""
    for name in (*source.columns, *source.drop):
        if name not in table.columns:
            raise ArgumentError(f"{source.path} has no column {name!r}; {suggest(name, table.columns)}it has {', '.join(map(str, table.columns))}")  # fmt: skip
    keep = list(source.columns) or [name for name in table.columns if name not in source.drop]
    return table[[name for name in keep if name not in source.drop]]


def understood(table: Any, source: Source, kinds: Mapping[str, str] | None = None, first: int | None = None) -> Any:
    """Columns of text as what they are: numbers, dates or names; `kinds` says what they were in training, `first` the rows
    that came before, where the index does not say which row of the file each is."""
    said = {**(kinds or {}), **source.types}
    made = {}
    for name in table.columns:
        column = table[name]
        if column.dtype.kind in "OSU" or str(column.dtype) in {"str", "string"}:
            column = _text(str(name), column, said.get(str(name)), first)
        elif said.get(str(name)) == "date" and column.dtype.kind in "if":
            column = _dates(str(name), column.astype("Int64").astype(str), first)
        made[name] = column
    return type(table)(made, index=table.index)


def _text(name: str, column: Any, kind: str | None, first: int | None) -> Any:
    import pandas as pd

    seen = column.dropna()
    if kind in {"numeric", "integer"}:
        return _numbers(name, column, first)
    if kind == "date" or (kind is None and _all_dates(seen)):
        return _dates(name, column, first)
    names = column.astype(object).where(column.isna(), column.astype(str).str.strip())
    if kind is not None or not len(seen):
        return names
    numbers = pd.to_numeric(names.dropna(), errors="coerce").notna()
    share = float(numbers.mean())
    if share >= _MOSTLY:
        return _numbers(name, column, first)
    if share > _PARTLY:
        at = int(np.argmin(numbers.to_numpy()))
        warnings.warn(
            f"column {name!r} holds numbers in {100 * share:.0f} % of its cells, words such as {names.dropna().iloc[at]!r} in row "
            f"{_row(numbers, at, first)}; all are taken as categories (say --types {name}=category, or =numeric and name what is missing)",
            TableWarning,
            stacklevel=2,
        )
    return names


def _all_dates(seen: Any) -> bool:
    return len(seen) > 0 and all(isinstance(value, str) and _DATE.fullmatch(value) for value in seen)


def _row(column: Any, at: int, first: int | None) -> int:
    """Which row of the file it is, counted from 1."""
    return 1 + (int(column.index[at]) if first is None else first + at)


def _numbers(name: str, column: Any, first: int | None) -> Any:
    import pandas as pd

    numbers = pd.to_numeric(
        column.astype(object).map(lambda v: v.strip() if isinstance(v, str) else v), errors="coerce"
    )
    bad = numbers.isna() & column.notna()
    if bad.any():
        at = int(np.argmax(bad.to_numpy()))
        raise DataError(
            f"row {_row(column, at, first)}, column {name!r} holds {column.iloc[at]!r} where numbers are expected ({int(bad.sum())} such cells); "
            f"correct it, name it as missing (--missing {column.iloc[at]!r}), or take all as categories (--types {name}=category)"
        )
    return numbers


def _dates(name: str, column: Any, first: int | None) -> Any:
    import pandas as pd

    zones = column.dropna().astype(str).str.extract(_ZONE)[0]
    if zones.isna().any() and zones.notna().any():
        at = int(np.flatnonzero(column.notna())[np.argmax(zones.isna())])
        raise DataError(f"row {_row(column, at, first)}, column {name!r} holds {column.iloc[at]!r} without a time zone where other cells have one; write it in all or in none")  # fmt: skip
    several = zones.nunique() > 1  # summer and winter time: told in UTC
    dates = pd.to_datetime(column, errors="coerce", format="ISO8601", utc=several)
    bad = dates.isna() & column.notna()
    if bad.any():
        at = int(np.argmax(bad.to_numpy()))
        raise DataError(f"row {_row(column, at, first)}, column {name!r} holds {column.iloc[at]!r}, which is no date such as 2024-01-31; correct it, or leave it empty")  # fmt: skip
    return dates


def in_pieces(source: Source, kinds: Mapping[str, str], names: Sequence[str]) -> Iterator[Any]:
    """New rows of a table that is known, piece by piece: columns by name, in any order; the others are refused."""
    first = 0
    for piece in pieces(
        replace(source, types={**{name: kinds[name] for name in names if name in kinds}, **source.types})
    ):
        check_columns([str(name) for name in piece.columns], names, source.path)
        yield understood(piece[list(names)], source, kinds, first)
        first += len(piece)
