"""Parquet files as rows that stay on disk: a file, or a folder of files, read a row group at a time."""

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gibbsian.data.on_disk import RowsOnDisk
from gibbsian.errors import CapabilityError, DataError


def _library() -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise CapabilityError("parquet files need the package pyarrow: pip install 'gibbsian[parquet]'") from error
    return parquet


def files_of(path: str | Path) -> list[Path]:
    """The parquet files that a path names: itself, or all in that folder, by name."""
    path = Path(path).expanduser()
    found = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not found or not found[0].exists():
        raise DataError(f"{path} holds no parquet files" if path.is_dir() else f"there is no file {path}")
    return found


def weight_of(path: str | Path) -> int:
    """Bytes of all columns in memory, as the files say."""
    metas = [_library().read_metadata(file) for file in files_of(path)]
    return sum(meta.row_group(i).total_byte_size for meta in metas for i in range(meta.num_row_groups))


class _Group(NamedTuple):
    """A row group: its file, its number there."""

    file: Path
    number: int


class Parquet(RowsOnDisk):
    """Rows of numbers in parquet files, on disk: to be trained on, sliced and looked at like an array.

    Columns of numbers become the entries of rows `(columns,)`; one column of lists (or of fixed-shape tensors) of one length
    becomes rows of that shape. Row groups are read as a whole and shuffled in windows of several: write them
    with some thousands of rows (`row_group_size=` of pyarrow), and not with a million, as is usual.

    Args:
        path: a file, or a folder whose files ending in .parquet are taken in the order of their names.
        columns: which; by default all of numbers.
        without: columns to leave out, such as that of the labels.

    >>> import tempfile
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pa.table({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]})
    ...     pq.write_table(table, Path(folder, "rows.parquet"), row_group_size=2)
    ...     rows = Parquet(folder)
    ...     rows.shape, rows.edges(), rows[1:].read(1, 2)
    ((3, 2), array([0, 2, 3]), array([[3., 6.]], dtype=float32))
    """

    def __init__(self, path: str | Path, columns: Sequence[str] | None = None, *, without: Sequence[str] = ()) -> None:
        library = _library()
        files = files_of(path)
        metas = [library.read_metadata(file) for file in files]
        schema = library.read_schema(files[0])
        for file in files[1:]:
            if library.read_schema(file).names != schema.names:
                raise DataError(f"{file.name} has other columns than {files[0].name}; bring all files to one form")
        self.name = Path(path).stem
        self.groups = [_Group(file, i) for file, m in zip(files, metas, strict=True) for i in range(m.num_row_groups)]
        sizes = [m.row_group(i).num_rows for m in metas for i in range(m.num_row_groups)]
        self.starts = np.append(0, np.cumsum(sizes)).astype(np.int64)
        self.columns = _chosen(schema, columns, without, files[0].name)
        self.text = sha256("".join(f"{file.name} {_told(m)}\n" for file, m in zip(files, metas, strict=True)).encode())
        self.begin, self.end = 0, int(self.starts[-1])
        if not self.end:
            raise DataError(f"{path} holds no rows")
        example = self._decoded(int(np.searchsorted(self.starts, 0, side="right")) - 1, 1)
        self.event, self.dtype = example.shape[1:], example.dtype

    # --- reading ----------------------------------------------------------------------------------

    def _decoded(self, group: int, rows: int | None = None) -> np.ndarray:
        """The rows of a group, or its first ones, as the data room takes numbers: floats in single precision."""
        with _library().ParquetFile(self.groups[group].file) as file:
            number = [self.groups[group].number]
            if rows is None:
                table = file.read_row_group(number[0], columns=list(self.columns), use_threads=False)
            else:
                import pyarrow

                batches = file.iter_batches(rows, number, list(self.columns), use_threads=False)
                table = pyarrow.Table.from_batches([next(batches)])
        return _numbers(table.select(list(self.columns)), self.groups[group].file.name)

    def read(self, start: int, stop: int) -> np.ndarray:
        """The rows from `start` to `stop`."""
        return np.concatenate(list(self._spans(start + self.begin, stop + self.begin)))

    def _spans(self, start: int, stop: int) -> Iterator[np.ndarray]:
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        for group in range(first, len(self.groups)):
            low, high = int(self.starts[group]), int(self.starts[group + 1])
            if low >= stop:
                return
            yield self._decoded(group)[max(0, start - low) : stop - low if stop < high else None]

    def edges(self) -> np.ndarray:
        """Where row groups begin, and where the last ends."""
        inner = self.starts[(self.starts > self.begin) & (self.starts < self.end)]
        return np.concatenate([[0], inner - self.begin, [self.end - self.begin]])

    def signature(self) -> str:
        """A text that other data would not have: names, sizes and statistics that the files keep of their columns."""
        return f"{self.text.hexdigest()} {self.columns} {self.begin} {self.end}"

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of these numbers, a row group at a time."""
        out = np.empty((len(numbers), *self.event), self.dtype)
        group_of = np.searchsorted(self.starts, numbers + self.begin, side="right") - 1
        for group in np.unique(group_of):
            mine = group_of == group
            out[mine] = self._decoded(int(group))[numbers[mine] + self.begin - self.starts[group]]
        return out

    def __repr__(self) -> str:
        return f"Parquet({self.name}: {len(self)} × {self.event} in {len(self.edges()) - 1} row groups)"


def _chosen(schema: Any, columns: Sequence[str] | None, without: Sequence[str], where: str) -> tuple[str, ...]:
    """The columns of numbers, or the one of arrays."""
    names = _left(schema.names, columns, without, where)
    arrays, numbers = (_those(names, schema, is_kind) for is_kind in (_is_array, _is_number))
    whole = columns is None
    if len(arrays) == 1 and (whole or len(names) == 1):
        return arrays
    if arrays or not numbers or not (whole or len(numbers) == len(names)):
        raise DataError(f"{where} holds {', '.join(names)}; say columns= of numbers, or one column of lists")
    return numbers


def _those(names: list[str], schema: Any, is_kind: Callable[[Any], bool]) -> tuple[str, ...]:
    return tuple(name for name in names if is_kind(schema.field(name).type))


def _left(every: list[str], columns: Sequence[str] | None, without: Sequence[str], where: str) -> list[str]:
    missing = [name for name in columns or () if name not in every]
    if missing:
        raise DataError(f"{where} has no column {missing[0]!r}; it has {', '.join(every)}")
    return [name for name in (columns or every) if name not in without]


def _is_number(kind: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind))


def _is_array(kind: Any) -> bool:
    import pyarrow.types as kinds

    lists = kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)
    return bool(lists or isinstance(kind, _tensor_type()))


def _tensor_type() -> type:
    import pyarrow

    return pyarrow.FixedShapeTensorType


def _told(meta: Any) -> str:
    """What a file says of its row groups."""
    groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
    few = [
        (g.num_rows, g.total_byte_size, *(_extremes(g.column(k)) for k in range(min(4, g.num_columns)))) for g in groups
    ]
    return repr(few)


def _extremes(column: Any) -> Any:
    told = column.statistics
    return (told.min, told.max, told.null_count) if told is not None and told.has_min_max else None


def _numbers(table: Any, where: str) -> np.ndarray:
    """Columns of numbers as the entries of rows, or one column of arrays as rows."""
    if table.num_columns == 1:
        column = table.column(0).combine_chunks()
        if isinstance(column.type, _tensor_type()):
            array = column.to_numpy_ndarray()
        elif column.type.num_fields:
            array = _stacked(column, where)
        else:
            array = column.to_numpy(zero_copy_only=False)[:, None]
    else:
        array = np.stack([column.to_numpy() for column in table.columns], 1)
    if array.dtype.kind == "O":
        raise DataError(f"{where}: a cell of {', '.join(table.column_names)} is empty; fill it in, or take the row out")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise DataError(f"{where}: a cell of {', '.join(table.column_names)} is empty or not finite; fill it in")
        array = array.astype(np.float32, copy=False)
    return array if array.flags.writeable else array.copy()


def _stacked(column: Any, where: str) -> np.ndarray:
    """Lists of one length as rows."""
    values = column.flatten()
    length, rest = divmod(len(values), max(1, len(column)))
    lengths = {length} if _is_fixed(column) else set(np.diff(column.offsets.to_numpy()).tolist())
    if rest or column.null_count or lengths != {length}:
        raise DataError(f"{where}: lists have {', '.join(map(str, sorted(lengths)))} entries; bring them to one length")
    inner = values.to_numpy(zero_copy_only=False) if not values.type.num_fields else _stacked(values, where)
    return inner.reshape(len(column), length, *inner.shape[1:])


def _is_fixed(column: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_fixed_size_list(column.type))
