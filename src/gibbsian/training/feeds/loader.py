"""Batches as a loader makes them."""

import copy
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, DistributedSampler

from gibbsian.errors import DataError
from gibbsian.random import isolated, stream
from gibbsian.training.feeds.base import Feed, Stateful, Wants


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

    def __init__(self, loader: Any, wants: Wants) -> None:
        super().__init__(wants)
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
        self.before: Any = None  # how to come to it

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

    def seek(self, epoch: int, index: int, salt: int = 0, state: Any = None) -> None:
        super().seek(epoch, 0, salt)
        self.held = None
        if state is not None and isinstance(self.loader, Stateful):
            self.loader.load_state_dict(state)
            self.open()
            for self.index in range(1, index + 1):
                with isolated(self.private):  # one number a batch
                    pass
            return
        self.open()
        while self.index < index:
            if self.read() is None:
                raise DataError(
                    f"the loader ended after {self.index} batches, but the run stopped after {index} of them"
                )
            self.index += 1

    def redealt(self, index: int, processes: int) -> int:
        if self.sharded:
            raise DataError(
                f"a DistributedSampler deals rows to a fixed number of processes: resume on {processes}, or give the dataset itself"
            )
        index, rest = divmod(index * processes, self.stride)
        if rest:
            raise DataError(
                f"{processes} processes had read {index * self.stride + rest} batches of this epoch from the loader, which "
                f"{self.stride} cannot go on from alike; resume on {processes}, or give the dataset itself instead of a loader"
            )
        return index

    def fetch(self) -> Any:
        batch = self.read()
        if batch is None:
            if self.index == 0:
                raise DataError(f"the loader is empty in epoch {self.epoch}; it must give batches each time it is read")
            self.epoch, self.index = self.epoch + 1, 0
            self.open()
            return self.fetch()
        return batch

    def state(self) -> Any:
        return self.before if self.held is not None else self.mark()

    def mark(self) -> Any:
        """Where the loader is, if it can say so, as torchdata's `StatefulDataLoader` does."""
        return copy.deepcopy(self.loader.state_dict()) if isinstance(self.loader, Stateful) else None

    def first(self) -> Any:
        self.before = self.mark()
        self.held = self.fetch()
        return self.prepare(self.held)

    def sweep(self) -> Iterator[Any]:
        self.epoch, self.index = 0, 0
        self.open()
        while (batch := self.read()) is not None:
            yield self.prepare(batch)
            self.index += 1
