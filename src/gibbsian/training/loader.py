"""Batches as a loader makes them, and the choice of the feed for a kind of data."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from gibbsian.errors import DataError
from gibbsian.random import isolated, stream
from gibbsian.training.feed import ArrayRows, Check, DatasetRows, Feed, TensorRows


@runtime_checkable
class _Sampling(Protocol):
    """A loader that says which rows it takes."""

    sampler: Any


@runtime_checkable
class _Drawing(Protocol):
    """A loader with random numbers of its own."""

    generator: torch.Generator | None


class Loader(Feed):
    """A `DataLoader`, or any iterable of batches that can be iterated again: its own order, its own batches.

    With several processes each keeps every world-th batch, unless the loader has a `DistributedSampler`.
    """

    def __init__(self, loader: Any, *common: Any) -> None:
        super().__init__(*common)
        self.loader = loader
        self.sharded = isinstance(loader, _Sampling) and isinstance(loader.sampler, DistributedSampler)
        self.stride = 1 if self.sharded else self.world
        try:
            self.per_epoch = len(loader) // self.stride
            self.rows = len(loader.dataset) if isinstance(loader, DataLoader) else None  # type: ignore[arg-type]
        except TypeError:
            self.per_epoch = None
        self.batches: Iterator[Any] | None = None
        self.held: Any = None  # a batch that was looked at and is still to be given out

    def open(self) -> None:
        """Begin the epoch."""
        self.private = stream(self.seed, f"data/{self.salt}/{self.epoch}")
        if isinstance(self.loader, _Drawing) and self.loader.generator is not None:
            # so that the epoch is the same when the run is resumed
            self.loader.generator.manual_seed(self.private.initial_seed())
        if self.sharded:
            self.loader.sampler.set_epoch(self.epoch)
        with isolated(self.private):
            self.batches = iter(self.loader)

    def read(self) -> Any:
        """The next batch of this process, or None at the end of the epoch."""
        if self.held is not None:
            batch, self.held = self.held, None
            return batch
        if self.batches is None:
            self.open()
        group = []
        with isolated(self.private):
            for _ in range(self.stride):
                batch = next(self.batches, None)  # type: ignore[arg-type]
                if batch is None:
                    return None
                group.append(batch)
        return group[self.rank if self.stride > 1 else 0]

    def seek(self, epoch: int, index: int, salt: int = 0) -> None:
        super().seek(epoch, 0, salt)
        self.held = None
        self.open()
        while self.index < index:
            if self.read() is None:
                raise DataError(
                    f"the loader ended after {self.index} batches, but the run stopped after {index} of them"
                )
            self.index += 1

    def fetch(self) -> Any:
        batch = self.read()
        if batch is None:
            if self.index == 0:
                raise DataError(f"the loader is empty in epoch {self.epoch}; it must give batches each time it is read")
            self.epoch, self.index = self.epoch + 1, 0
            self.open()
            return self.fetch()
        return batch

    def first(self) -> Any:
        self.held = self.fetch()
        return self.prepare(self.held)

    def sweep(self) -> Iterator[Any]:
        self.epoch, self.index = 0, 0
        self.open()
        while (batch := self.read()) is not None:
            yield self.prepare(batch)
            self.index += 1


# --- choosing the feed ----------------------------------------------------------------------------


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
