"""What feeds a training run: endless batches from a position that can be saved, in an order that follows the seed.

The order of an epoch is a permutation drawn from the stream `data/<salt>/<epoch>`, so the position in the
data is two whole numbers and a run goes on inside an epoch exactly. Code of datasets may use torch's global
randomness: it is given a state of its own, and the caller's is left as it was.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset, default_collate

from gibbsian.errors import ArgumentError, DataError, DomainError, PrecisionError, ShapeError, check_tensor
from gibbsian.random import isolated, stream
from gibbsian.trees import is_named

Check = Callable[[Any], None]
_AT_HAND = 16384  # rows that an objective is shown before the first step


def place(batch: Any, device: torch.device) -> Any:
    """A batch on a device; lists (as loaders make them) become tuples, tuples of one their only part."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple | list) and not is_named(type(batch)):
        parts = tuple(place(part, device) for part in batch)
        return parts[0] if len(parts) == 1 else parts
    if isinstance(batch, dict):
        return {key: place(part, device) for key, part in batch.items()}
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

    def fingerprint(self) -> list[float] | None:
        """Numbers by which other data are told apart, or None where data give no rows twice alike for certain."""
        return None

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
        batch = place(batch, self.device)
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
        except (DomainError, ShapeError, DataError, PrecisionError) as error:
            raise DataError(f"{where}: {error}") from error


# --- data that can be indexed by row: tensors, arrays on disk, map-style datasets -----------------


class Rows(Feed):
    """Data that can be indexed by row numbers; subclasses say how."""

    rows: int
    per_epoch: int

    def __init__(self, source: Any, rows: int, batch_size: int, home: torch.device, *common: Any) -> None:
        super().__init__(*common)
        self.source = source
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
        self.peeked: tuple[tuple[int, int, int, int], Tensor] | None = None  # where, and the rows after it

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
        self._turn()
        rows = self.permuted()[self.index * self.size : (self.index + 1) * self.size]
        return self.take(rows[self.rank :: self.world] if self.world > 1 else rows)

    def peek(self, batches: int) -> Tensor:
        """Row numbers of the next batches, one after the other; the position stays."""
        if self.peeked is None or self.peeked[0] != (self.epoch, self.index, self.salt, batches):
            here, found, left = (self.epoch, self.index, self.salt), [], batches
            while left:
                self._turn()
                run = min(left, self.per_epoch - self.index)
                found.append(self.permuted()[self.index * self.size : (self.index + run) * self.size])
                self.index, left = self.index + run, left - run
            self.seek(*here)
            self.peeked = (*here, batches), torch.cat(found) if len(found) > 1 else found[0]
        return self.peeked[1]

    def skip(self, batches: int) -> None:
        """Go past the next batches."""
        for _ in range(batches):
            self._turn()
            self.index += 1

    def _turn(self) -> None:
        if self.index >= self.per_epoch:
            self.epoch, self.index = self.epoch + 1, 0

    def first(self) -> Any:
        return self.prepare(self.take(self.permuted()[self.rank :: self.world][:_AT_HAND]))

    def sweep(self) -> Iterator[Any]:
        for start in range(0, self.rows, self.size):
            yield self.prepare(self.take(torch.arange(start, min(start + self.size, self.rows), device=self.home)))

    def verify(self, chunk: int = 8192) -> None:
        """Check every row once, transformed and in chunks, so that no batch needs to be looked at again."""
        noise = stream(self.seed, f"verify/{self.rank}", self.device)
        for start in range(0, self.rows, chunk):
            rows = torch.arange(start, min(start + chunk, self.rows), device=self.home)
            where = f"the data from row {start} on" if start else "the data"
            batch = place(self.take(rows), self.device)
            self.refuse(batch if self.transform is None else self.transform(batch, noise), where)
        self.verified = True


_BLOCKS = 64  # numbers of a fingerprint


def _fingerprint(take: Callable[[Tensor], Any], rows: int, home: torch.device, most: int) -> list[float]:
    """y_i = ⟨x_i, r⟩ for a fixed random r: its root mean square, and its means over blocks of rows.

    Not more than about `most` entries are read, of rows that lie evenly; a change of rounding changes next to nothing.
    """
    width = sum(part[0].numel() for part in take(torch.zeros(1, dtype=torch.long, device=home)))
    count = min(rows, max(_BLOCKS, most // max(1, width)))
    chosen = torch.linspace(0, rows - 1, count, dtype=torch.float64).round().long().to(home)
    found = []
    for some in chosen.split(max(1, (1 << 22) // max(1, width))):
        flat = torch.cat([part.reshape(len(some), -1).double().to("cpu") for part in take(some)], 1)
        direction = torch.randn(flat.shape[1], generator=stream(0, "fingerprint"), dtype=torch.float64)
        found.append(flat.nan_to_num(0.0, 0.0, 0.0) @ direction)
    y = torch.cat(found)
    means = [float(block.mean()) for block in y.tensor_split(_BLOCKS) if len(block)]
    return [float(y.square().mean().sqrt()), *means]


def same_fingerprint(one: list[float], other: list[float]) -> bool:
    """Are these of the same data, up to rounding?"""
    a, b = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    return a.shape == b.shape and bool(((a - b).abs() <= 1e-4 * torch.maximum(a[0], b[0])).all())


class TensorRows(Rows):
    """Tensors in memory."""

    def fingerprint(self) -> list[float]:
        return _fingerprint(self.take, self.rows, self.home, 1 << 26)

    def take(self, rows: Tensor) -> Any:
        return tuple(tensor.index_select(0, rows) for tensor in self.source)


class ArrayRows(Rows):
    """Arrays on disk, read row by row."""

    def fingerprint(self) -> list[float]:
        return _fingerprint(self.take, self.rows, self.home, 1 << 16)

    def take(self, rows: Tensor) -> Any:
        rows, _ = rows.sort()  # in file order: the rows of a batch are a set
        index = rows.numpy()
        return tuple(a[rows] if isinstance(a, Tensor) else torch.from_numpy(np.array(a[index])) for a in self.source)


@runtime_checkable
class _TakesRows(Protocol):
    """A dataset that gives several rows at a time."""

    def __getitems__(self, rows: list[int]) -> Any: ...


class DatasetRows(Rows):
    """A map-style dataset."""

    def take(self, rows: Tensor) -> Any:
        index = rows.tolist()
        with isolated(stream(self.seed, f"dataset/{self.salt}/{self.epoch}/{self.index}/{self.rank}")):
            several = isinstance(self.source, _TakesRows)
            return default_collate(self.source.__getitems__(index) if several else [self.source[i] for i in index])


# --- batches as a loader makes them ---------------------------------------------------------------


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
