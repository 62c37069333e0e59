"""Data that can be indexed by row: tensors, arrays on disk, map-style datasets, tables of Hugging Face.

The order of an epoch is a permutation drawn from the stream `data/<salt>/<epoch>`, so the position in the
data is two whole numbers and a run goes on inside an epoch exactly. Code of datasets may use torch's global
randomness: it is given a state of its own, and the caller's is left as it was.
"""

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from gibbsian.errors import ArgumentError, DataError
from gibbsian.random import isolated, stream
from gibbsian.training.feeds.ahead import SLOW, ProcessReader, Reader, Spot, ThreadReader, usual_workers
from gibbsian.training.feeds.base import AT_HAND, Feed, Wants, place
from gibbsian.training.feeds.fingerprint import fingerprint

_LOOKS = 3  # batches whose reading is timed, to see whether reading ahead pays


def check_share(rows: int, batch_size: int, world: int) -> int:
    """Rows of a batch, if there are any and every process gets one."""
    if rows < 1:
        raise DataError("the data holds no rows; give at least one example")
    if batch_size < 1:
        raise ArgumentError(f"batch_size={batch_size}: a batch needs at least one row")
    size = min(batch_size, rows)
    if size < world:
        raise ArgumentError(
            f"a batch of {size} rows cannot be shared among {world} processes; give each at least one row"
        )
    return size


class Rows(Feed):
    """Data that can be indexed by row numbers; subclasses say how."""

    rows: int
    per_epoch: int

    def __init__(self, source: Any, rows: int, batch_size: int, home: torch.device, wants: Wants) -> None:
        super().__init__(wants)
        self.source, self.rows, self.home = source, rows, home
        self.size = check_share(rows, batch_size, self.world)
        full, rest = divmod(rows, self.size)
        self.per_epoch = full + (rest >= self.world)  # a rest that cannot be shared is left out of the epoch
        self.order_of: tuple[int, int] | None = None
        self.peeked: tuple[tuple[int, int, int, int], Tensor] | None = None  # where, and the rows after it
        self.reader: Reader | None = None
        self.timed: list[float] = []

    @abstractmethod
    def take(self, rows: Tensor) -> Any:
        """The examples of these row numbers."""

    def read(self, spot: Spot, rows: Tensor) -> Any:
        """The examples of these row numbers for the batch of a spot."""
        return self.take(rows)

    def ahead(self) -> Reader | None:
        """What reads ahead where reading takes its time; None where that cannot pay."""
        return None

    def permuted(self, epoch: int | None = None) -> Tensor:
        """The order of this epoch, or of another."""
        epoch = self.epoch if epoch is None else epoch
        if self.order_of != (epoch, self.salt):
            generator = stream(self.seed, f"data/{self.salt}/{epoch}")  # on the CPU: one order for all devices
            order = torch.randperm(self.rows, generator=generator)
            if self.home.type == "cuda":  # from there nobody waits for the device, which would idle meanwhile
                order = order.pin_memory()
            self.order = order.to(self.home, non_blocking=True)
            self.order_of = (epoch, self.salt)
        return self.order

    def share(self, epoch: int, index: int) -> Tensor:
        """The row numbers of a batch that are this process's."""
        rows = self.permuted(epoch)[index * self.size : (index + 1) * self.size]
        return rows[self.rank :: self.world] if self.world > 1 else rows

    def plan(self, here: Spot) -> Iterator[tuple[Spot, Tensor]]:
        """This process's row numbers from a spot on."""
        salt, epoch, index = here
        while True:
            if index >= self.per_epoch:
                epoch, index = epoch + 1, 0
            yield Spot(salt, epoch, index), self.share(epoch, index)
            index += 1

    def fetch(self) -> Any:
        self._turn()
        here = Spot(self.salt, self.epoch, self.index)
        if self.reader is not None:
            return self.reader(here)
        if len(self.timed) >= _LOOKS:
            return self.read(here, self.share(self.epoch, self.index))
        return self._timed(here)

    def _timed(self, here: Spot) -> Any:
        """The same, with an eye on whether it would pay to read ahead."""
        asked = self.wants.loading.workers
        if asked:
            self.timed, self.reader = [0.0] * _LOOKS, self.ahead()
            return self.fetch()
        began = time.perf_counter()
        batch = self.read(here, self.share(self.epoch, self.index))
        self.timed.append(time.perf_counter() - began)
        if asked is None and len(self.timed) == _LOOKS and sorted(self.timed)[_LOOKS // 2] > SLOW:
            self.reader = self.ahead()
        return batch

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
        return self.prepare(self.take(self.permuted()[self.rank :: self.world][:AT_HAND]))

    def sweep(self) -> Iterator[Any]:
        for start in range(0, self.rows, self.size):
            yield self.prepare(self.take(torch.arange(start, min(start + self.size, self.rows), device=self.home)))

    def verify(self, chunk: int = 8192) -> None:
        """Check every row once, transformed and in chunks, so that no batch needs to be looked at again."""
        noise = stream(self.seed, f"verify/{self.rank}", self.device)
        for start in range(0, self.rows, chunk):
            rows = torch.arange(start, min(start + chunk, self.rows), device=self.home)
            where = f"the data from row {start} on" if start else "the data"
            self.refuse(self.finish(place(self.take(rows), self.device), noise), where)
        self.verified = True

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader, self.timed = None, []


class Named(Rows):
    """Parts that have as many rows each, given as a tuple, or as a dictionary, which batches then are as well."""

    def __init__(self, parts: Sequence[Any], names: Sequence[str] | None, *rest: Any) -> None:
        super().__init__(tuple(parts), *rest)
        self.names = names

    def some(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The rows of every part."""
        return tuple(tensor.index_select(0, rows) for tensor in self.source)

    def take(self, rows: Tensor) -> Any:
        found = self.some(rows)
        return found if self.names is None else dict(zip(self.names, found, strict=True))


class TensorRows(Named):
    """Tensors in memory."""

    def fetch(self) -> Any:
        self._turn()
        return self.take(self.share(self.epoch, self.index))

    def fingerprint(self) -> list[float]:
        return fingerprint(self.some, self.rows, self.home, 1 << 26)


class ArrayRows(Named):
    """Arrays on disk, read row by row."""

    def fingerprint(self) -> list[float]:
        return fingerprint(self.some, self.rows, self.home, 1 << 16)

    def some(self, rows: Tensor) -> tuple[Tensor, ...]:
        rows, _ = rows.sort()  # in file order: the rows of a batch are a set
        index = rows.numpy()
        return tuple(a[rows] if isinstance(a, Tensor) else torch.from_numpy(np.array(a[index])) for a in self.source)

    def ahead(self) -> Reader:
        return ThreadReader(self.read, self.plan, self.wants.loading.ahead, pin=self.device.type == "cuda")


# --- datasets -------------------------------------------------------------------------------------


@runtime_checkable
class _TakesRows(Protocol):
    """A dataset that gives several rows at a time."""

    def __getitems__(self, rows: list[int]) -> Any: ...


@runtime_checkable
class Table(Protocol):
    """Columns by name, as Hugging Face's `datasets.Dataset` has them."""

    column_names: Any

    def with_format(self, kind: str) -> Any: ...

    def __getitem__(self, rows: Any) -> Any: ...

    def __len__(self) -> int: ...


class Examples:
    """Batches of a map-style dataset or a table; every one with random numbers of its own, whichever process makes it."""

    def __init__(self, source: Any, seed: int, rank: int) -> None:
        self.columns, self.seed, self.rank = isinstance(source, Table), seed, rank
        self.source = source.with_format("torch") if self.columns else source

    def __call__(self, spot: Spot, rows: Tensor) -> Any:
        index = rows.tolist()
        with isolated(stream(self.seed, f"dataset/{spot.salt}/{spot.epoch}/{spot.number}/{self.rank}")):
            if self.columns:
                return {name: part for name, part in self.source[index].items() if isinstance(part, Tensor)}
            several = isinstance(self.source, _TakesRows)
            return default_collate(self.source.__getitems__(index) if several else [self.source[i] for i in index])


class DatasetRows(Rows):
    """A map-style dataset, or a table."""

    def __init__(self, source: Any, *rest: Any) -> None:
        super().__init__(source, *rest)
        self.examples = Examples(source, self.seed, self.rank)

    def take(self, rows: Tensor) -> Any:
        return self.examples(Spot(self.salt, self.epoch, self.index), rows)

    def read(self, spot: Spot, rows: Tensor) -> Any:
        return self.examples(spot, rows)

    def ahead(self) -> Reader:
        loading = self.wants.loading
        workers = loading.workers or usual_workers(self.world)
        return ProcessReader(self.examples, self.plan, loading.ahead, workers=workers, pin=self.device.type == "cuda")
