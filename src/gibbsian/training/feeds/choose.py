"""Choosing the feed for what `gibbsian.fit` is given as data."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from gibbsian.errors import DataError, check_tensor
from gibbsian.training.feeds.base import Feed, Wants
from gibbsian.training.feeds.loader import Loader
from gibbsian.training.feeds.rows import ArrayRows, DatasetRows, Table, TensorRows
from gibbsian.training.feeds.streams import Stream
from gibbsian.training.feeds.windows import Pieced, Pieces

_NO_BATCHES = (str, bytes, tuple, dict)  # iterables that are no batches
_ONE_ORDER = 1 << 24  # rows of arrays on disk that are put into one order, which then takes 128 MiB


def _fits(tensors: Sequence[Tensor], device: torch.device) -> bool:
    """Does the whole data fit easily into the device's memory?"""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return sum(t.nbytes for t in tensors) < free / 4


def make_feed(data: Any, batch_size: int, **wants: Any) -> Feed:
    """The feed for tensors, arrays, parquet, several of them in a tuple or dictionary, datasets and streams of torch and
    Hugging Face, a DataLoader or an iterable of batches.

    Data in memory is checked once and as a whole (and moved to the device where it fits easily); everything
    else batch by batch. Arrays on disk (`numpy.memmap`, tensors of mapped files) are never read as a whole.

    Args:
        data: what to train on.
        batch_size: rows of a batch, over all processes together.
        wants: the fields of `Wants`.

    >>> data, cpu = torch.arange(6.0)[:, None], torch.device("cpu")
    >>> feed = make_feed(data, 4, seed=0, device=cpu, check=lambda batch: None)
    >>> [len(feed.next()) for _ in range(4)]
    [4, 2, 4, 2]
    """
    return _feed(data, batch_size, Wants(**wants))


def _feed(data: Any, batch_size: int, wants: Wants) -> Feed:
    if isinstance(data, IterableDataset):
        return Stream(data, batch_size, wants)
    if isinstance(data, DataLoader):
        return Loader(data, wants)
    if _is_indexed(data):
        return _of_tensors(data, batch_size, wants) or DatasetRows(
            data, len(data), batch_size, torch.device("cpu"), wants
        )
    parts, names = _parts(data)
    if parts and all(isinstance(part, Tensor | np.ndarray | Pieced) for part in parts):
        return _indexed(parts, names, batch_size, wants)
    if isinstance(data, Iterable) and not isinstance(data, _NO_BATCHES):
        return Loader(data, wants)
    raise DataError(
        f"data is a {type(data).__name__}; give a tensor, a numpy array or memmap, gibbsian.data.Parquet, a tuple or dictionary "
        "of them, a Dataset, an IterableDataset or a DataLoader"
    )


def _is_indexed(data: Any) -> bool:
    return isinstance(data, Table) or (isinstance(data, Dataset) and isinstance(data, Sized))


def _of_tensors(data: Any, batch_size: int, wants: Wants) -> Feed | None:
    return _indexed(data.tensors, None, batch_size, wants) if isinstance(data, TensorDataset) else None


def _parts(data: Any) -> tuple[tuple[Any, ...], list[str] | None]:
    """What the data is made of, and the names of that."""
    if not isinstance(data, Mapping):
        return data if isinstance(data, tuple) else (data,), None
    names, parts = [str(name) for name in data], tuple(data.values())
    if parts and isinstance(parts[0], Table | IterableDataset):
        raise DataError(
            f"data is a dictionary of the parts {', '.join(names)}; give one of them, such as data[{names[0]!r}]"
        )
    return parts, names


def _indexed(parts: tuple[Any, ...], names: list[str] | None, batch_size: int, wants: Wants) -> Feed:
    rows = _length(parts)
    parts = tuple(map(_in_memory, parts))
    pieced = any(isinstance(part, Pieced) for part in parts)
    windows = wants.loading.buffer is not None and not _on_device(parts)
    if not windows and all(isinstance(part, Tensor) for part in parts):
        return _near(parts, names, rows, batch_size, wants)
    if pieced or windows or rows > _ONE_ORDER:
        return Pieces(parts, names, rows, batch_size, wants)
    return ArrayRows(parts, names, rows, batch_size, torch.device("cpu"), wants)


def _on_device(parts: tuple[Any, ...]) -> bool:
    return any(isinstance(part, Tensor) and part.is_cuda for part in parts)


def _length(parts: tuple[Any, ...]) -> int:
    for part in parts:
        if isinstance(part, Tensor):
            check_tensor(part, "data", "(rows, ...)")
    lengths = [len(part) if isinstance(part, Pieced) or part.ndim else 0 for part in parts]
    if len(set(lengths)) != 1:
        raise DataError(f"the parts of the data have {' and '.join(map(str, lengths))} rows; they must have as many")
    return lengths[0]


def _near(parts: tuple[Any, ...], names: list[str] | None, rows: int, batch_size: int, wants: Wants) -> Feed:
    """Tensors in memory, on the device where they fit easily."""
    home = parts[0].device
    if home != wants.device and _fits(parts, wants.device):
        home = wants.device
    feed = TensorRows([part.to(home) for part in parts], names, rows, batch_size, home, wants)
    if wants.transform is None:
        feed.verify()
    return feed


def _in_memory(part: Any) -> Any:
    """An array in memory as a tensor that shares it; read-only ones and those on disk are read by row."""
    if isinstance(part, Tensor):
        on_disk = part.device.type == "cpu" and part.untyped_storage().filename is not None
        return part.numpy() if on_disk else part
    if type(part) is not np.ndarray or not part.flags.writeable:
        return part
    try:
        return torch.from_numpy(part)
    except TypeError as error:
        raise DataError(f"the array cannot become a tensor: {error}; convert it with .astype(numpy.float32)") from error
