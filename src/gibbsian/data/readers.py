"""Reading files: npz, npy (memory-mapped), csv, parquet, idx, mat, and folders of parquet files or images.

No reader unpickles anything. Labels are found under the usual names, or under the one that is said.
"""

import csv
import gzip
import math
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gibbsian.data.hugging_face import is_saved, read_hugging_face
from gibbsian.data.parquet import Parquet, files_of, weight_of
from gibbsian.data.sets import DataSet, Rows
from gibbsian.errors import CapabilityError, DataError, PrecisionWarning

_INPUTS = ("x", "data", "images", "features", "arr_0")
_LABELS = ("y", "labels", "label", "target", "targets", "class")
_COARSE = 1e-3  # of a column's spread, that rounding to single precision may take without a word
_PARTS = {"train": "train", "test": "test"} | dict.fromkeys(("valid", "validation", "val", "dev"), "validation")
_IDX = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm", ".tif", ".tiff"}


def read(path: str | Path, *, label: str | None = None, name: str | None = None) -> DataSet:
    """A data set from a file, or from a folder.

    Args:
        path: `.npz` (arrays x, y; or x_train, y_train, x_test, ...), `.npy` (stays on disk, memory-mapped), `.csv`,
            `.tsv`, `.data` or `.txt` (columns of numbers, a header where there is one), `.parquet` (needs pyarrow; above 1 GiB
            it stays on disk), idx as MNIST has it (`.gz` or not), `.mat`, a folder of parquet files (they stay on disk;
            subfolders train, validation and test are parts), one that Hugging Face's `save_to_disk` wrote, or a
            folder of images of one size, where subfolders are classes.
        label: the array, variable or column with the labels; by default y, labels, target or class.
        name: what to call the set; by default the name of the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", x=np.zeros((5, 3)), y=np.arange(5))
    ...     read(f"{folder}/a.npz")
    DataSet(a: train 5 × (3,), labeled)
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(f"there is no file or folder {path}; give one that exists, or a name of `gibbsian list data`")
    stem, kind = name or path.name.split(".")[0], _kind(path)
    if kind not in _READERS:
        known = ", ".join(sorted(_READERS.keys() - {"folder", ".idx"}))
        kinds = f"{known}, an idx file, a folder of parquet files or of images"
        raise DataError(f"{path.name} is of no kind that is known here; give {kinds}")
    try:
        return _READERS[kind](path, stem, label)
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8 ({error}); save it as such") from error
    except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
        why = " ".join(str(error).split())
        raise DataError(f"{path} cannot be read as {kind[1:]} ({why}); write it anew, as rows of numbers") from error


def _kind(path: Path) -> str:
    """Which reader a path wants: "folder", ".idx" or a suffix, that before `.gz` where it ends so."""
    if path.is_dir():
        return "folder"
    if "ubyte" in path.name:
        return ".idx"
    return path.suffixes[-2] if path.suffix == ".gz" and len(path.suffixes) > 1 else path.suffix


def read_idx(path: str | Path) -> np.ndarray:
    """The array of an idx file: four bytes of kind and dimensions, one big-endian size each, the numbers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a-ubyte").write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9]))
    ...     read_idx(Path(folder, "a-ubyte"))
    array([[7, 8, 9]], dtype=uint8)
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        kind, dimensions = raw[2], raw[3]
        sizes = np.frombuffer(raw, dtype=">u4", count=dimensions, offset=4).tolist()
        array = np.frombuffer(raw, dtype=_IDX[kind], count=math.prod(sizes), offset=4 + 4 * dimensions)
    except (OSError, EOFError, ValueError, KeyError, IndexError) as error:
        raise DataError(f"{path} is not a whole idx file ({error}); fetch it again") from error
    return array.reshape(sizes).astype(array.dtype.newbyteorder("="))


def _tensor(array: Any, where: str) -> Tensor:
    """An array as a tensor: bytes and whole numbers as they are, other numbers in single precision."""
    array = np.asarray(array)
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: expected numbers, found {array.dtype}; leave such columns out, or turn them into numbers"
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            place, many = np.argwhere(~np.isfinite(array))[0].tolist(), int((~np.isfinite(array)).sum())
            raise DataError(
                f"{where}: entry {place} is {array[tuple(place)]} ({many} such entries); leave out such rows, or fill them in"
            )
        array = _single(array, where)
    return torch.from_numpy(np.ascontiguousarray(array))


def _single(array: np.ndarray, where: str) -> np.ndarray:
    """Numbers in single precision; refused where they are beyond it, with a warning where it is too coarse to tell rows apart."""
    if not len(array):
        return array.astype(np.float32)
    top, limits = np.abs(array).max(0), np.finfo(np.float32)
    if (top > limits.max).any():
        raise DataError(
            f"{where}: numbers reach {top.max():g}, beyond {limits.max:g} of single precision; divide them by a unit first"
        )
    if array.ndim == 2 and array.dtype != np.float32:
        spread = array.std(0)
        coarse = np.flatnonzero((spread > 1e-12 * top) & (limits.eps * top > _COARSE * spread))
        if len(coarse):
            at = coarse[0]
            warnings.warn(
                f"{where}: column {at} of {array.shape[1]} varies by {spread[at]:g} about {array[:, at].mean():g}, where single precision "
                f"is in steps of {np.spacing(np.float32(top[at])):g} ({len(coarse)} such columns); subtract a number from it first",
                PrecisionWarning,
                stacklevel=2,
            )
    return array.astype(np.float32)


def _codes(arrays: list[np.ndarray]) -> tuple[list[Tensor], tuple[str, ...]]:
    """Labels of all parts as whole numbers from 0 on, and their names where they are words."""
    arrays = [np.asarray(array).reshape(-1) for array in arrays]
    if all(a.dtype.kind in "biu" or (a.dtype.kind == "f" and bool((a == np.round(a)).all())) for a in arrays):
        return [torch.from_numpy(a.astype(np.int64)) for a in arrays], ()
    words = [a.astype(str) for a in arrays]
    names = np.unique(np.concatenate(words))  # one numbering for all parts, though some lack a class
    return [torch.from_numpy(np.searchsorted(names, w).astype(np.int64)) for w in words], tuple(map(str, names))


def _find(keys: dict[str, str], names: tuple[str, ...], part: str = "") -> str | None:
    """What has one of the names, joined with that of a part where one is given; `keys` are in small letters."""
    forms = (f for name in names for f in ((f"{name}_{part}", f"{part}_{name}") if part else (name,)))
    return next((keys[form.lower()] for form in forms if form.lower() in keys), None)


def _pairs(arrays: dict[str, Any], labels: tuple[str, ...], where: str) -> dict[str, tuple[str, str | None]]:
    """The names of the inputs and the labels of every part; of `train` alone where nothing names a part."""
    if len(arrays) == 1:
        return {"train": (next(iter(arrays)), None)}
    keys = {key.lower(): key for key in arrays}
    pairs: dict[str, tuple[str, str | None]] = {}
    for spelling, part in _PARTS.items():
        x = _find(keys, _INPUTS, spelling) or keys.get(spelling)
        if x is not None and part not in pairs:
            pairs[part] = x, _find(keys, labels, spelling)
    if "train" in pairs:
        return pairs
    x = _find(keys, _INPUTS)
    if x is None:
        raise DataError(f"{where} holds {list(arrays)}; name the inputs x (or x_train, x_test), the labels y")
    y = _find(keys, labels)
    return {"train": (x, y if y != x else None)}


def _from_arrays(arrays: dict[str, Any], stem: str, label: str | None, where: str) -> DataSet:
    """A set from named arrays: x and y, or one pair for each part."""
    pairs = _pairs(arrays, (label,) if label else _LABELS, where)
    labeled = {part: y for part, (_, y) in pairs.items() if y is not None}
    if label and not labeled:
        raise DataError(f"{where} has no {label!r} for the labels; it holds {', '.join(arrays)}")
    codes, classes = _codes([arrays[y] for y in labeled.values()])
    numbered = dict(zip(labeled, codes, strict=True))
    parts = {part: Rows(_tensor(arrays[x], f"{where}, {x}"), numbered.get(part)) for part, (x, _) in pairs.items()}
    return DataSet(stem, parts["train"], parts.get("validation"), parts.get("test"), classes)


def _npz(path: Path, stem: str, label: str | None) -> DataSet:
    with np.load(path, allow_pickle=False) as file:
        return _from_arrays({key: file[key] for key in file.files}, stem, label, path.name)


def _npy(path: Path, stem: str, label: str | None) -> DataSet:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype.kind not in "biuf" or array.ndim < 1:
        raise DataError(f"{path.name} holds {array.dtype} of shape {array.shape}; expected rows of numbers")
    return DataSet(stem, Rows(array))


def _mat(path: Path, stem: str, label: str | None) -> DataSet:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found = loadmat(path)
    except (MatReadError, NotImplementedError) as error:  # damaged, or of MATLAB 7.3, which is HDF5
        raise DataError(f"{path} cannot be read as mat ({error}); save it with -v7") from error
    arrays = {k: v for k, v in found.items() if not k.startswith("__") and v.dtype.kind in "biuf"}
    return _from_arrays(arrays, stem, label, path.name)


def _cells(path: Path, *, blank: bool = False) -> list[list[str]]:
    """The rows of a text file that are not empty, whatever parts its columns; with `blank` those of empty cells too."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
        head = file.read(1 << 16)
        file.seek(0)
        try:
            dialect: Any = csv.Sniffer().sniff(head, delimiters=",;\t ")
        except csv.Error:
            dialect = csv.excel
        rows = list(csv.reader(file, dialect))
    return [row for row in rows if any(cell.strip() for cell in row) or (blank and len(row) > 1)]


class _Text(NamedTuple):
    """A text file as a table: its rows of cells, the names of the columns, and how many rows the names take."""

    rows: list[list[str]]
    names: tuple[str, ...]
    header: int


def _text(path: Path, *, blank: bool = False) -> _Text:
    rows = _cells(path, blank=blank)
    if not rows:
        raise DataError(f"{path.name} holds no rows")
    first = [cell.strip() for cell in rows[0]]
    header = any(first) and not any(map(_is_number, first))
    for i, row in enumerate(rows, start=1):
        if len(row) != len(first):
            raise DataError(f"{path.name}, row {i}: {len(row)} cells where {len(first)} are expected")
    names = first if header else [f"column {i}" for i in range(len(first))]
    return _Text(rows[header:], tuple(names), int(header))


def _csv(path: Path, stem: str, label: str | None) -> DataSet:
    table = _text(path)
    if not table.rows:
        raise DataError(f"{path.name} holds a header and no rows")
    return _table(list(zip(*table.rows, strict=True)), table.names, stem, label, path.name, table.header)


def read_partial(path: str | Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Rows of numbers with gaps, NaN where a number is not known, and the names in the header of a text file.

    Args:
        path: `.npy` with NaN in the gaps, or text as `read` takes it (`.csv`, `.tsv`, ...) with NaN or empty cells.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "cues.csv").write_text("a,b\\n1,\\n,2\\n")
    ...     read_partial(Path(folder, "cues.csv"))
    (array([[ 1., nan],
           [nan,  2.]]), ('a', 'b'))
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(f"there is no file {path} to complete")
    if path.suffix != ".npy":
        table = _text_of(path)
        cells = [
            [_number(c, f"{path.name}, row {i}") for c in row] for i, row in enumerate(table.rows, 1 + table.header)
        ]
        values, names = np.array(cells, dtype=np.float64), table.names if table.header else ()
    else:
        try:
            values, names = np.load(path, allow_pickle=False).astype(np.float64), ()
        except (ValueError, OSError, EOFError) as error:
            raise DataError(f"{path} cannot be read as npy ({' '.join(str(error).split())[:120]})") from error
    if not values.size or np.isinf(values).any():
        raise DataError(
            f"{path.name} holds {'infinite numbers' if values.size else 'no rows'}; leave gaps as NaN or empty"
        )
    return values, names


def _text_of(path: Path) -> _Text:
    if _READERS.get(_kind(path)) is not _csv:
        raise DataError(f"{path.name}: partial rows come as .npy, or as text such as .csv")
    try:
        return _text(path, blank=True)
    except (UnicodeDecodeError, OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as text ({error})") from error


def _number(cell: str, where: str) -> float:
    """A cell that may be a gap."""
    if not cell.strip():
        return math.nan
    if not _is_number(cell):
        raise DataError(f"{where}: {cell.strip()!r} is no number; leave a cell empty, or NaN, where it is to be drawn")
    return float(cell)


_IN_MEMORY = 1 << 30  # bytes of parquet files that are read as a whole; what is larger stays on disk


def _parquet(path: Path, stem: str, label: str | None) -> DataSet:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise CapabilityError("parquet files need the package pyarrow: pip install 'gibbsian[parquet]'") from error
    if weight_of(path) > _IN_MEMORY:
        return DataSet(stem, _on_disk(path, label))
    table = parquet.read_table(path)
    columns = [column.to_numpy(zero_copy_only=False) for column in table.columns]
    return _table(columns, tuple(table.column_names), stem, label, path.name)


def _on_disk(path: Path, label: str | None) -> Rows:
    """Rows of parquet files that stay there; their labels are read."""
    import pyarrow.parquet as parquet

    names = parquet.read_schema(files_of(path)[0]).names
    if label is not None and label not in names:
        raise DataError(f"{path.name} has no column {label!r} for the labels; it has {', '.join(names)}")
    own = label or next((n for n in names if n.lower() in _LABELS), None)
    x = Parquet(path, without=() if own is None else (own,))
    if own is None:
        return Rows(x)
    cells = [parquet.read_table(file, columns=[own]).column(0).to_numpy() for file in files_of(path)]
    (y,), _ = _codes([np.concatenate(cells)])
    return Rows(x, y)


def _folder(path: Path, stem: str, label: str | None) -> DataSet:
    """A folder: one that Hugging Face's `save_to_disk` wrote, of parquet files (with parts in folders of their names), or of images."""
    if is_saved(path):
        return read_hugging_face(path, label=label).replace(name=stem)
    if not any(path.rglob("*.parquet")):
        return _images(path, stem, label)
    parts = {name: path / spelling for spelling, name in _PARTS.items() if any((path / spelling).rglob("*.parquet"))}
    rows = {name: _on_disk(folder, label) for name, folder in parts.items()} or {"train": _on_disk(path, label)}
    return DataSet(stem, rows["train"], rows.get("validation"), rows.get("test"))


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (ValueError, TypeError):
        return False
    return True


def _numbers(column: Any, name: str, where: str) -> np.ndarray:
    """A column as numbers, NaN where a cell is empty."""
    cells = np.asarray(column)
    if cells.dtype.kind == "O":  # of parquet: None where there is none
        cells = np.array([math.nan if cell is None else cell for cell in cells])
    if cells.dtype.kind in "US":
        cells = np.where(np.char.strip(cells) == "", "nan", cells)
    try:
        return cells.astype(np.float64)
    except (ValueError, TypeError) as error:
        odd = next(cell for cell in cells.tolist() if not _is_number(cell))
        raise DataError(
            f"{where}: column {name!r} holds {odd!r}, which is no number; take the column out of the file, or name it as "
            "the label if it tells the classes (data.label in a recipe, label= in Python)"
        ) from error


def _refuse_gaps(bad: np.ndarray, names: tuple[str, ...], where: str, first: int) -> None:
    """Refuse cells that are empty or not finite; `first` is the number of the first row."""
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        many = f"{int(bad.sum())} such cells in {int(bad.any(1).sum())} of {len(bad)} rows"
        raise DataError(
            f"{where}: row {row + first} has no finite number under {names[column]!r} ({many}); energies need every entry, "
            "so take those rows out of the file, or fill the cells in"
        )


def _table(
    columns: list[Any], names: tuple[str, ...], stem: str, label: str | None, where: str, header: int = 0
) -> DataSet:
    """A set from columns; the one that is `label`, or has one of the usual names of labels, is set apart."""
    if label is not None and label not in names:
        raise DataError(f"{where} has no column {label!r} for the labels; it has {', '.join(names)}")
    own = label or next((n for n in names if n.lower() in _LABELS), None)
    y, classes = None, ()  # type: Tensor | None, tuple[str, ...]
    if own is not None:
        at = names.index(own)
        cells = np.asarray(columns[at])
        empty = np.array([str(cell).strip().lower() in {"", "nan", "none"} for cell in cells])
        _refuse_gaps(empty[:, None], (own,), where, 1 + header)
        (y,), classes = _codes([cells.astype(float) if all(map(_is_number, map(str, cells))) else cells])
        names, columns = names[:at] + names[at + 1 :], columns[:at] + columns[at + 1 :]
    if not names:
        raise DataError(f"{where} has no column but the labels {own!r}; give columns of numbers to learn from")
    x = np.stack([_numbers(column, name, where) for name, column in zip(names, columns, strict=True)], 1)
    _refuse_gaps(~np.isfinite(x), names, where, 1 + header)
    return DataSet(stem, Rows(_tensor(x, where), y), classes=classes, columns=names)


def _pixels(file: Path) -> np.ndarray:
    """Bytes `(channels, height, width)`, one channel for gray images and three for others."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            gray = image.mode in {"1", "L", "I;16"}
            pixels = np.asarray(image.convert("L" if gray else "RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"{file} cannot be read as an image ({error}); remove it, or put a whole one there") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _images(folder: Path, stem: str, label: str | None) -> DataSet:
    """Images of one size as bytes `(rows, channels, height, width)`; the folder each lies in is its class."""
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in _IMAGES)
    if not files:
        raise DataError(f"{folder} holds no images ({', '.join(sorted(_IMAGES))}); give a folder of images, or a file")
    arrays: list[np.ndarray] = []
    for file in files:
        arrays.append(_pixels(file))
        if arrays[-1].shape != arrays[0].shape:
            sizes = f"{file.name} is {arrays[-1].shape}, {files[0].name} {arrays[0].shape} (channels, height, width)"
            raise DataError(f"{sizes}; bring all images to one size")
    x = torch.from_numpy(np.stack(arrays))
    if all(f.parent == folder for f in files):
        return DataSet(stem, Rows(x))
    (y,), classes = _codes([np.array([f.parent.name for f in files])])
    return DataSet(stem, Rows(x, y), classes=classes)


def _idx(path: Path, stem: str, label: str | None) -> DataSet:
    return DataSet(stem, Rows(torch.from_numpy(read_idx(path))))


_TABLES = dict.fromkeys((".csv", ".tsv", ".txt", ".data"), _csv) | {".parquet": _parquet}
_READERS = {".npz": _npz, ".npy": _npy, ".mat": _mat, ".idx": _idx, "folder": _folder} | _TABLES
