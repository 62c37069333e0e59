"""What feeds a training run: endless batches from a position that can be saved, in an order that follows the seed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gibbsian.errors import DataError, DomainError, PrecisionError, ShapeError
from gibbsian.random import stream
from gibbsian.trees import is_named

Check = Callable[[Any], None]


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
