"""Batches from tensors, arrays, datasets and loaders, in an order that depends on the seed alone.

The order of an epoch is a permutation drawn from the stream `data/<salt>/<epoch>`, so the position in the
data is two whole numbers and a run goes on inside an epoch exactly. Code of datasets may use torch's global
randomness: it is given a state of its own, and the caller's is left as it was.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    default_collate,
)

from gibbsian.errors import ArgumentError, DataError, DomainError, ShapeError
from gibbsian.random import isolated, stream

__all__ = ["Feed", "make_feed"]

Check = Callable[[Any], None]
_AT_HAND = 16384  # rows that an objective is shown before the first step


def _place(batch: Any, device: torch.device) -> Any:
    """A batch on a device; lists (as loaders make them) become tuples, tuples of one their only part."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
        parts = tuple(_place(part, device) for part in batch)
        return parts[0] if len(parts) == 1 else parts
    if isinstance(batch, dict):
        return {key: _place(part, device) for key, part in batch.items()}
    return batch


def _structure(batch: Any) -> Any:
    """What must not change from batch to batch (event shapes are the domain's to check)."""
    if isinstance(batch, Tensor):
        return batch.dtype
    if isinstance(batch, tuple):
        return tuple(_structure(part) for part in batch)
    return {key: _structure(part) for key, part in batch.items()} if isinstance(batch, dict) else type(batch)


def rows_of(batch: Any) -> int:
    """How many examples a batch holds."""
    first = (
        batch if isinstance(batch, Tensor) else next(iter(batch.values() if isinstance(batch, dict) else batch), None)
    )
    return len(first) if isinstance(first, Tensor) and first.dim() else 1


class Feed(ABC):
    """Endless batches, epoch after epoch, from a position that can be set."""

    rows: int | None = None
    per_epoch: int | None = None  # batches; None where only the loader knows

    def __init__(self, seed: int, device: torch.device, check: Check, transform: Any, rank: int, world: int) -> None:
        self.seed, self.device, self.check, self.transform = seed, device, check, transform
        self.rank, self.world = rank, world
        self.epoch = self.index = self.salt = 0
        self.verified = False  # True once every row was checked beforehand
        self.form: Any = None
        self.noise = stream(seed, f"transform/{rank}", device)

    @abstractmethod
    def fetch(self) -> Any:
        """The raw batch at the position, which may begin a new epoch."""

    @abstractmethod
    def first(self) -> Any:
        """As many rows as are at hand, for the objective to start from; the position stays where it is."""

    @abstractmethod
    def sweep(self) -> Iterator[Any]:
        """Every batch once, in order (for validation)."""

    def seek(self, epoch: int, index: int, salt: int = 0) -> None:
        """Go to batch `index` of `epoch`; another `salt` gives another order."""
        self.epoch, self.index, self.salt = epoch, index, salt

    def next(self) -> Any:
        """The next batch, on the device, transformed and checked."""
        batch = self.prepare(self.fetch())
        self.index += 1
        return batch

    def prepare(self, batch: Any) -> Any:
        """Place, transform and check a batch."""
        batch = _place(batch, self.device)
        if self.transform is not None:
            batch = self.transform(batch, self.noise)
        if not self.verified:
            self.refuse(batch, f"batch {self.index} of epoch {self.epoch}")
        return batch

    def refuse(self, batch: Any, where: str) -> None:
        """Raise `DataError` that says where, unless the batch is like the first and fits the objective."""
        form = _structure(batch)
        if self.form is None:
            self.form = form
        elif form != self.form:
            raise DataError(f"{where} holds {form}, but the first batch held {self.form}; make all batches alike")
        try:
            self.check(batch)
        except (DomainError, ShapeError, DataError) as error:
            raise DataError(f"{where}: {error}") from error


class Rows(Feed):
    """Data that can be indexed by row numbers; subclasses say how."""

    rows: int
    per_epoch: int

    def __init__(self, rows: int, batch_size: int, home: torch.device, *common: Any) -> None:
        super().__init__(*common)
        if rows < 1:
            raise DataError("the data holds no rows; give at least one example")
        if batch_size < 1:
            raise ArgumentError(f"batch_size={batch_size}: a batch needs at least one row")
        self.rows, self.size, self.home = rows, min(batch_size, rows), home
        if self.size < self.world:
            raise ArgumentError(
                f"a batch of {self.size} rows cannot be shared among {self.world} processes; give each at least one row"
            )
        full, rest = divmod(rows, self.size)
        self.per_epoch = full + (rest >= self.world)  # a rest that cannot be shared is left out of the epoch
        self.order_of: tuple[int, int] | None = None

    @abstractmethod
    def take(self, rows: Tensor) -> Any:
        """The examples of these row numbers."""

    def permuted(self) -> Tensor:
        """The order of this epoch."""
        if self.order_of != (self.epoch, self.salt):
            generator = stream(self.seed, f"data/{self.salt}/{self.epoch}")  # on the CPU: one order for all devices
            self.order = torch.randperm(self.rows, generator=generator).to(self.home)
            self.order_of = (self.epoch, self.salt)
        return self.order

    def fetch(self) -> Any:
        if self.index >= self.per_epoch:
            self.epoch, self.index = self.epoch + 1, 0
        rows = self.permuted()[self.index * self.size : (self.index + 1) * self.size]
        return self.take(rows[self.rank :: self.world] if self.world > 1 else rows)

    def first(self) -> Any:
        return self.prepare(self.take(self.permuted()[self.rank :: self.world][:_AT_HAND]))

    def sweep(self) -> Iterator[Any]:
        for start in range(0, self.rows, self.size):
            yield self.prepare(self.take(torch.arange(start, min(start + self.size, self.rows), device=self.home)))

    def verify(self, chunk: int = 8192) -> None:
        """Check every row once, in chunks, so that no batch needs to be looked at again."""
        for start in range(0, self.rows, chunk):
            rows = torch.arange(start, min(start + chunk, self.rows), device=self.home)
            where = f"the data from row {start} on" if start else "the data"
            self.refuse(_place(self.take(rows), self.device), where)
        self.verified = True


class TensorRows(Rows):
    """Tensors in memory."""

    def __init__(self, tensors: tuple[Tensor, ...], *rest: Any) -> None:
        super().__init__(len(tensors[0]), *rest)
        self.tensors = tensors

    def take(self, rows: Tensor) -> Any:
        return tuple(tensor.index_select(0, rows) for tensor in self.tensors)


class ArrayRows(Rows):
    """Arrays on disk, read row by row."""

    def __init__(self, arrays: tuple[Any, ...], *rest: Any) -> None:
        super().__init__(len(arrays[0]), *rest)
        self.arrays = arrays

    def take(self, rows: Tensor) -> Any:
        rows, _ = rows.sort()  # in file order: the rows of a batch are a set
        index = rows.numpy()
        return tuple(a[rows] if isinstance(a, Tensor) else torch.from_numpy(np.array(a[index])) for a in self.arrays)


class DatasetRows(Rows):
    """A map-style dataset."""

    def __init__(self, dataset: Any, *rest: Any) -> None:
        super().__init__(len(dataset), *rest)
        self.dataset = dataset

    def take(self, rows: Tensor) -> Any:
        index = rows.tolist()
        with isolated(stream(self.seed, f"dataset/{self.salt}/{self.epoch}/{self.index}/{self.rank}")):
            many = getattr(self.dataset, "__getitems__", None)
            return default_collate(many(index) if many else [self.dataset[i] for i in index])


class Loader(Feed):
    """A `DataLoader`, or any iterable of batches that can be iterated again: its own order, its own batches.

    With several processes each keeps every world-th batch, unless the loader has a `DistributedSampler`.
    """

    def __init__(self, loader: Any, *common: Any) -> None:
        super().__init__(*common)
        self.loader = loader
        sampler = getattr(loader, "sampler", None)
        self.sharded = isinstance(sampler, DistributedSampler)
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
        own = getattr(self.loader, "generator", None)
        if own is not None:  # so that the epoch is the same when the run is resumed
            own.manual_seed(self.private.initial_seed())
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
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=batch_size)
    if isinstance(data, DataLoader):
        return Loader(data, *common)
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        return DatasetRows(data, batch_size, torch.device("cpu"), *common)
    parts = data if isinstance(data, tuple) else (data,)
    if parts and all(isinstance(part, Tensor | np.ndarray) for part in parts):
        return _indexed(parts, batch_size, common)
    if hasattr(data, "__iter__") and not isinstance(data, str | bytes | tuple | dict):
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
    try:  # arrays in memory share it with the tensor; read-only ones and those on disk are read by row
        parts = tuple(
            torch.from_numpy(part) if type(part) is np.ndarray and part.flags.writeable else part for part in parts
        )
    except TypeError as error:
        raise DataError(f"the array cannot become a tensor: {error}; convert it with .astype(numpy.float32)") from error
    if all(isinstance(part, Tensor) for part in parts):
        home = parts[0].device
        if home != device and _fits(parts, device):
            home = device
        feed = TensorRows(tuple(part.to(home) for part in parts), batch_size, home, *common)
        if transform is None:
            feed.verify()
        return feed
    return ArrayRows(parts, batch_size, torch.device("cpu"), *common)
