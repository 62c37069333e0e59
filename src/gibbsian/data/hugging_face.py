"""Sets of Hugging Face's `datasets`: by name from their hub or its cache, or saved in a folder; their rows stay on disk."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gibbsian.data.on_disk import RowsOnDisk
from gibbsian.data.sets import DataSet, Rows
from gibbsian.data.streamed import Columns as StreamedColumns
from gibbsian.data.streamed import Streamed
from gibbsian.errors import ArgumentError, CapabilityError, DataError
from gibbsian.training.feeds.base import INPUTS, LABELS

PREFIX = "hf:"
_PIECE = 512  # rows that are read at once
_HELD_OUT = 10_000  # rows of parts that are held out, where they are a stream
_SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "test": "test"}


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise CapabilityError(
            "sets of Hugging Face need the package datasets: pip install 'gibbsian[datasets]'"
        ) from error
    return datasets


def is_saved(path: Path) -> bool:
    """Is this a folder that `save_to_disk` wrote?"""
    return (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()


def read_hugging_face(
    name: str | Path, *, label: str | None = None, offline: bool = False, streaming: bool = False
) -> DataSet:
    """A set by its name on the hub (`hf:ylecun/mnist`, `hf:owner/name/configuration`), or from the folder it was saved to.

    Inputs are the column of a usual name ("image", "x", ...), or all columns of numbers together; they stay on disk.
    With `streaming` nothing is fetched before it is needed, and any folder that `datasets.load_dataset` knows will do: training
    rows come one after the other, of other parts the first 10,000 are read.
    """
    library, text = _library(), str(name)
    found = _found(library, text, offline, streaming)
    several = isinstance(found, library.DatasetDict | library.IterableDatasetDict)
    parts = {_SPLITS[key]: part for key, part in found.items() if key in _SPLITS} if several else {"train": found}
    if "train" not in parts:
        raise DataError(f"{text} has the parts {', '.join(found)}, and none of them is called train")
    rows = {key: (_stream if streaming else _rows)(part, label, text) for key, part in parts.items()}
    if streaming:
        rows |= {key: part[:_HELD_OUT] for key, part in rows.items() if key != "train"}
    classes = _classes(library, parts["train"], label)
    return DataSet(Path(text).name, rows["train"], rows.get("validation"), rows.get("test"), classes)


def _classes(library: Any, part: Any, label: str | None) -> tuple[str, ...]:
    told = (part.features or {}).get(_label(_names(part), label) or "")
    return tuple(told.names) if isinstance(told, library.ClassLabel) else ()


def _found(library: Any, text: str, offline: bool, streaming: bool) -> Any:
    """What the library finds under a name or in a folder."""
    place = Path(text).expanduser()
    if not text.startswith(PREFIX) and is_saved(place):
        return library.load_from_disk(str(place))
    if not text.startswith(PREFIX) and not place.is_dir():
        raise ArgumentError(f"streaming: {text} is no set of Hugging Face (hf:owner/name) and no folder; leave it out")
    owner, *rest = text.removeprefix(PREFIX).split("/") if text.startswith(PREFIX) else (str(place),)
    try:
        with _without_network(library) if offline else nullcontext():
            return library.load_dataset("/".join([owner, *rest[:1]]), *rest[1:], streaming=streaming)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise DataError(f"{text} could not be had ({why}); see to the name, or to the network") from error


@contextmanager
def _without_network(library: Any) -> Iterator[None]:
    """As with the environment variable HF_HUB_OFFLINE, which is looked at when the library is imported."""
    from huggingface_hub import constants

    before = library.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    library.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        library.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _names(part: Any) -> list[str]:
    """The columns of a table, or of a stream, which may know them from its first row only."""
    return list(part.column_names or next(iter(part)))


def _label(names: Sequence[str], label: str | None) -> str | None:
    return label or next((name for name in names if name.lower() in LABELS), None)


def _columns(part: Any, label: str | None, where: str) -> tuple[list[str], str | None]:
    """The columns of inputs, all or the one of a usual name, and that of the labels."""
    every = _names(part)
    own = _label(every, label)
    if own is not None and own not in every:
        raise DataError(f"{where} has no column {own!r} for the labels; it has {', '.join(every)}")
    names = [name for name in every if name != own]
    known = [name for name in INPUTS if name in names]
    return known[:1] or names, own


def _stream(part: Any, label: str | None, where: str) -> Rows:
    names, own = _columns(part, label, where)
    saved = isinstance(part, _library().Dataset)
    rows = len(part) if saved else _told(part)
    source = part.to_iterable_dataset() if saved else part
    example: dict[str, Any] = next(iter(source.with_format("torch")), {})
    numbers = [name for name in names if isinstance(example.get(name), torch.Tensor)]
    return Streamed(StreamedColumns(source, numbers or names, own, rows))


def _told(part: Any) -> int | None:
    """How many rows a stream says it has."""
    splits = part.info.splits or {}
    return splits[part.split].num_examples if part.split in splits else None


def _rows(part: Any, label: str | None, where: str) -> Rows:
    columns, own = _columns(part, label, where)
    y = None if own is None else torch.as_tensor(np.asarray(part.with_format("numpy")[own])).long()
    return Rows(Table(part, columns), y)


class Table(RowsOnDisk):
    """Columns of a `datasets.Dataset` as rows that stay on disk, sliced and looked at like an array."""

    def __init__(self, part: Any, columns: Sequence[str]) -> None:
        self.part, self.columns = part.select_columns(list(columns)).with_format("numpy"), tuple(columns)
        self.begin, self.end = 0, len(part)
        example = self._some(slice(0, 1))
        self.event, self.dtype = example.shape[1:], example.dtype

    def _some(self, index: Any) -> np.ndarray:
        found = self.part[index]
        columns = [np.asarray(found[name]) for name in self.columns]
        if any(column.dtype.kind not in "biuf" for column in columns):
            odd = next(name for name, c in zip(self.columns, columns, strict=True) if c.dtype.kind not in "biuf")
            raise DataError(f"column {odd!r} holds no numbers of one shape; say which columns do")
        x = columns[0] if len(columns) == 1 else np.stack(columns, 1)
        x = x[:, None] if x.ndim == 1 else x
        return x.astype(np.float32) if x.dtype.kind == "f" else np.array(x)

    def read(self, start: int, stop: int) -> np.ndarray:
        """The rows from `start` to `stop`."""
        return self._some(slice(self.begin + start, self.begin + stop))

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of these numbers."""
        return self._some(numbers + self.begin)

    def edges(self) -> np.ndarray:
        """Where pieces begin, and where the last ends."""
        return np.append(np.arange(0, len(self), _PIECE), len(self))

    def signature(self) -> str:
        """A text that other data would not have."""
        few = self._some(np.linspace(self.begin, self.end - 1, 16).astype(np.int64)).astype(np.float64)
        return f"{self.columns} {self.begin} {self.end} {few.sum():.6e} {few.std():.6e}"
