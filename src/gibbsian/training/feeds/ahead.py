"""Reading ahead: batches are made before they are asked for, by a thread or by processes, in the order that was planned."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from gibbsian.errors import DataError
from gibbsian.training.feeds.base import mapped

SLOW = 3e-3  # seconds; a batch that takes longer to read is read ahead


class Spot(NamedTuple):
    """A batch of a run: of which order, epoch and number."""

    salt: int
    epoch: int
    number: int


class Reader(Protocol):
    """Gives the batch of a spot."""

    def __call__(self, here: Spot) -> Any: ...

    def close(self) -> None:
        """Stop reading."""


Read = Callable[[Spot, Tensor], Any]
Plan = Callable[[Spot], Iterator[tuple[Spot, Tensor]]]  # row numbers of this spot and of all after it


class ThreadReader:
    """A thread that reads the next batches: for what lets go of the interpreter meanwhile, such as arrays on disk."""

    def __init__(self, read: Read, plan: Plan, ahead: int, *, pin: bool) -> None:
        self.read, self.plan, self.ahead, self.pin = read, plan, ahead, pin
        self.pool = ThreadPoolExecutor(1, "gibbsian-reading")
        self.coming: Iterator[tuple[Spot, Tensor]] = iter(())
        self.waiting: deque[tuple[Spot, Future[Any]]] = deque()

    def __call__(self, here: Spot) -> Any:
        if not self.waiting or self.waiting[0][0] != here:
            self.forget()
            self.coming = self.plan(here)
        while len(self.waiting) <= self.ahead:
            spot, rows = next(self.coming)
            self.waiting.append((spot, self.pool.submit(self.make, spot, rows)))
        return self.waiting.popleft()[1].result()

    def make(self, spot: Spot, rows: Tensor) -> Any:
        """What the thread does."""
        batch = self.read(spot, rows)
        return mapped(Tensor.pin_memory, batch) if self.pin else batch

    def forget(self) -> None:
        """Drop what was read for nothing."""
        for _, future in self.waiting:
            future.cancel()
        self.waiting.clear()

    def close(self) -> None:
        self.forget()
        self.pool.shutdown()


class _Batches(Dataset[Any]):
    """A dataset whose items are batches."""

    def __init__(self, read: Read) -> None:
        self.read = read

    def __getitem__(self, asked: tuple[Spot, Tensor]) -> Any:
        return self.read(*asked)


class _Planned(Sampler[tuple[Spot, Tensor]]):
    """What is to be read, in order, and which of it is still to come back."""

    def __init__(self, rows: Iterator[tuple[Spot, Tensor]]) -> None:
        self.rows = rows
        self.asked: deque[Spot] = deque()

    def __iter__(self) -> Iterator[tuple[Spot, Tensor]]:
        for spot, rows in self.rows:
            self.asked.append(spot)
            yield spot, rows


def as_it_is(batch: Any) -> Any:
    """Leave a batch alone."""
    return batch


class ProcessReader:
    """Processes that read the next batches, through torch's `DataLoader`: for datasets whose rows are made by Python."""

    def __init__(self, read: Read, plan: Plan, ahead: int, *, workers: int, pin: bool) -> None:
        self.read, self.plan = read, plan
        self.options: dict[str, Any] = {"num_workers": workers, "prefetch_factor": ahead, "pin_memory": pin}
        self.batches: Iterator[Any] | None = None
        self.planned = _Planned(iter(()))

    def __call__(self, here: Spot) -> Any:
        if self.batches is None or not self.planned.asked or self.planned.asked[0] != here:
            self.planned = _Planned(self.plan(here))
            loader = DataLoader(
                _Batches(self.read), batch_size=None, sampler=self.planned, collate_fn=as_it_is, **self.options
            )
            self.batches = iter(loader)
        with lost_workers():
            batch = next(self.batches)
        self.planned.asked.popleft()
        return batch

    def close(self) -> None:
        self.batches = None  # its processes end with it


@contextmanager
def lost_workers() -> Iterator[None]:
    """Inside, a process of a `DataLoader` that ends is told in one sentence."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error) or "exited" not in str(error):
            raise
        raise DataError(
            f"a process that reads ahead was lost ({' '.join(str(error).split())[:200]}); read in this one with "
            "loading=training.Loading(workers=0)"
        ) from error


def usual_workers(world: int) -> int:
    """How many processes read by default: what is left of the cores, four at most."""
    return max(1, min(4, torch.multiprocessing.cpu_count() // world - 1))
