"""Choosing the feed for what `gibbsian.fit` is given as data."""

from collections.abc import Iterable, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from gibbsian.errors import DataError, check_tensor
from gibbsian.training.feeds.base import Check, Feed
from gibbsian.training.feeds.loader import Loader
from gibbsian.training.feeds.rows import ArrayRows, DatasetRows, TensorRows

_NO_BATCHES = (str, bytes, tuple, dict)  # iterables that are no batches


def _fits(tensors: tuple[Tensor, ...], device: torch.device) -> bool:
    """Does the whole data fit easily into the device's memory?"""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return sum(t.nbytes for t in tensors) < free / 4


def make_feed(
    data: Any,
    batch_size: int,
    *,
    seed: int,
    device: torch.device,
    check: Check,
    transform: Any = None,
    rank: int = 0,
    world: int = 1,
) -> Feed:
    """The feed for a tensor or array, a tuple of them, a Dataset, a DataLoader or an iterable of batches.

    Data in memory is checked once and as a whole (and moved to the device where it fits easily); everything
    else batch by batch. Arrays on disk (`numpy.memmap`) are read row by row and never as a whole.

    >>> data, cpu = torch.arange(6.0)[:, None], torch.device("cpu")
    >>> feed = make_feed(data, 4, seed=0, device=cpu, check=lambda batch: None)
    >>> [len(feed.next()) for _ in range(4)]
    [4, 2, 4, 2]
    """
    common = (seed, device, check, transform, rank, world)
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=batch_size)
    if isinstance(data, DataLoader):
        return Loader(data, *common)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Dataset) and isinstance(data, Sized):
        return DatasetRows(data, len(data), batch_size, torch.device("cpu"), *common)
    parts = data if isinstance(data, tuple) else (data,)
    if parts and all(isinstance(part, Tensor | np.ndarray) for part in parts):
        return _indexed(parts, batch_size, common)
    if isinstance(data, Iterable) and not isinstance(data, _NO_BATCHES):
        return Loader(data, *common)
    raise DataError(
        f"data is a {type(data).__name__}; give a tensor, a numpy array or memmap, a tuple of them, "
        "a Dataset or a DataLoader"
    )


def _indexed(parts: tuple[Any, ...], batch_size: int, common: tuple[Any, ...]) -> Feed:
    device, transform = common[1], common[3]
    for part in parts:
        if isinstance(part, Tensor):
            check_tensor(part, "data", "(rows, ...)")
    lengths = [len(part) if part.ndim else 0 for part in parts]
    if len(set(lengths)) != 1:
        raise DataError(f"the parts of the data have {' and '.join(map(str, lengths))} rows; they must have as many")
    parts = tuple(map(_in_memory, parts))
    if all(isinstance(part, Tensor) for part in parts):
        home = parts[0].device
        if home != device and _fits(parts, device):
            home = device
        feed = TensorRows(tuple(part.to(home) for part in parts), lengths[0], batch_size, home, *common)
        if transform is None:
            feed.verify()
        return feed
    return ArrayRows(parts, lengths[0], batch_size, torch.device("cpu"), *common)


def _in_memory(part: Any) -> Any:
    """An array in memory as a tensor that shares it; read-only ones and those on disk are read by row."""
    if type(part) is not np.ndarray or not part.flags.writeable:
        return part
    try:
        return torch.from_numpy(part)
    except TypeError as error:
        raise DataError(f"the array cannot become a tensor: {error}; convert it with .astype(numpy.float32)") from error
