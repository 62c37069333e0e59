"""Sets of Hugging Face's `datasets`: by name from their hub or its cache, or saved in a folder; their rows stay on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gibbsian.data.on_disk import RowsOnDisk
from gibbsian.data.sets import DataSet, Rows
from gibbsian.errors import CapabilityError, DataError
from gibbsian.training.feeds.base import INPUTS, LABELS

PREFIX = "hf:"
_PIECE = 512  # rows that are read at once
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


def read_hugging_face(name: str | Path, *, label: str | None = None, offline: bool = False) -> DataSet:
    """A set by its name on the hub (`hf:ylecun/mnist`, `hf:owner/name/configuration`), or from the folder it was saved to.

    Inputs are the column of a usual name ("image", "x", ...), or all columns of numbers together; they stay on disk.
    """
    library, text = _library(), str(name)
    if text.startswith(PREFIX):
        owner, *rest = text.removeprefix(PREFIX).split("/")
        mode = library.DownloadConfig(local_files_only=True) if offline else None
        try:
            found = library.load_dataset("/".join([owner, *rest[:1]]), *rest[1:], download_config=mode)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{text} could not be had ({' '.join(str(error).split())[:200]}); see to the name, or to the network"
            ) from error
    else:
        found = library.load_from_disk(text)
    parts = dict(found.items()) if isinstance(found, library.DatasetDict) else {"train": found}
    rows = {_SPLITS[key]: _rows(part, label, text) for key, part in parts.items() if key in _SPLITS}
    if "train" not in rows:
        raise DataError(f"{text} has the parts {', '.join(parts)}, and none of them is called train")
    told = parts["train"].features.get(_label(parts["train"], label) or "")
    classes = tuple(told.names) if isinstance(told, library.ClassLabel) else ()
    return DataSet(Path(text).name, rows["train"], rows.get("validation"), rows.get("test"), classes)


def _label(part: Any, label: str | None) -> str | None:
    return label or next((name for name in part.column_names if name.lower() in LABELS), None)


def _rows(part: Any, label: str | None, where: str) -> Rows:
    own = _label(part, label)
    if own is not None and own not in part.column_names:
        raise DataError(f"{where} has no column {own!r} for the labels; it has {', '.join(part.column_names)}")
    names = [name for name in part.column_names if name != own]
    known = [name for name in INPUTS if name in names]
    y = None if own is None else torch.as_tensor(np.asarray(part.with_format("numpy")[own])).long()
    return Rows(Table(part, known[:1] or names), y)


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
