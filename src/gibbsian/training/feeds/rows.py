"""Data that can be indexed by row: tensors, arrays on disk, map-style datasets.

The order of an epoch is a permutation drawn from the stream `data/<salt>/<epoch>`, so the position in the
data is two whole numbers and a run goes on inside an epoch exactly. Code of datasets may use torch's global
randomness: it is given a state of its own, and the caller's is left as it was.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from gibbsian.errors import ArgumentError, DataError
from gibbsian.random import isolated, stream
from gibbsian.training.feeds.base import Feed, place
from gibbsian.training.feeds.fingerprint import fingerprint

_AT_HAND = 16384  # rows that an objective is shown before the first step


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


class TensorRows(Rows):
    """Tensors in memory."""

    def fingerprint(self) -> list[float]:
        return fingerprint(self.take, self.rows, self.home, 1 << 26)

    def take(self, rows: Tensor) -> Any:
        return tuple(tensor.index_select(0, rows) for tensor in self.source)


class ArrayRows(Rows):
    """Arrays on disk, read row by row."""

    def fingerprint(self) -> list[float]:
        return fingerprint(self.take, self.rows, self.home, 1 << 16)

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
