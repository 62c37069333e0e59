"""What feeds a training run: endless batches from a position that can be saved, in an order that follows the seed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, DataError, DomainError, PrecisionError, ShapeError, check_count
from gibbsian.random import stream
from gibbsian.trees import is_named

Check = Callable[[Any], None]
INPUTS = ("x", "data", "input", "inputs", "image", "images", "img", "pixel_values", "features", "values")
LABELS = ("y", "label", "labels", "target", "targets", "class", "fine_label")
AT_HAND = 16384  # rows that an objective is shown before the first step


@dataclass(frozen=True)
class Loading:
    """How rows that do not lie in memory are read. Nothing here changes what is trained, but `buffer` and `columns`.

    Args:
        workers: processes that read ahead; 0 for none. By default what pays: a thread for arrays and parquet, up to
            four processes for datasets, one for streams, each as soon as a batch takes longer than 3 ms to read.
        ahead: batches that are read ahead, by each worker.
        buffer: rows that are shuffled together. By default one permutation of all rows, up to 2²⁴; beyond that, and
            for parquet and streams, as many as 256 MiB hold, 65536 at most: they come in pieces from all over the data.
        columns: what of a dictionary goes to the objective: a name, or a pair of those of inputs and labels. By default
            what has a usual name ("x", "image", ... and "y", "label", ...), or is alone.
    """

    workers: int | None = None
    ahead: int = 2
    buffer: int | None = None
    columns: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_count("Loading", "ahead", self.ahead)
        for name, least in (("workers", 0), ("buffer", 1)):
            if getattr(self, name) is not None:
                check_count("Loading", name, getattr(self, name), least)
        if isinstance(self.columns, list):
            object.__setattr__(self, "columns", tuple(self.columns))
        names = (self.columns,) if isinstance(self.columns, str | None) else self.columns
        if not names or not all(isinstance(name, str | None) for name in names):
            raise ArgumentError(f"Loading(columns={self.columns!r}): expected the name of a column, or a pair of names")


@dataclass(frozen=True)
class Wants:
    """What every feed is told: how batches are to be, and which share of them this process gets."""

    seed: int
    device: torch.device
    check: Check
    transform: Any = None
    rank: int = 0
    world: int = 1
    loading: Loading = field(default_factory=Loading)
    dictionaries: bool = False  # are they what the objective wants?


@runtime_checkable
class Stateful(Protocol):
    """What can say where it is, and go there again."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def place(batch: Any, device: torch.device) -> Any:
    """A batch on a device; lists (as loaders make them) become tuples, tuples of one their only part."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple | list) and not is_named(type(batch)):
        parts = tuple(place(part, device) for part in batch)
        return parts[0] if len(parts) == 1 else parts
    if isinstance(batch, Mapping):
        return {key: place(part, device) for key, part in batch.items()}
    return batch


def pick(batch: Mapping[str, Any], columns: str | tuple[str, ...] | None) -> Any:
    """Inputs, or inputs and labels, of a dictionary.

    >>> pick({"id": 7, "image": 1, "label": 0}, None), pick({"a": 1, "b": 2}, "b")
    ((1, 0), 2)
    """
    names = _usual(batch) if columns is None else (columns,) if isinstance(columns, str) else columns
    missing = [name for name in names if name not in batch]
    if missing:
        raise DataError(f"batches have no column {missing[0]!r}; they have {', '.join(batch)}")
    return batch[names[0]] if len(names) == 1 else tuple(batch[name] for name in names)


def _usual(batch: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of inputs and labels, by their usual names; a column that is alone is the inputs."""
    x, y = (_first_of(usual, batch) for usual in (INPUTS, LABELS))
    rest = [name for name in batch if name != y]
    if x is None and len(rest) != 1:
        raise DataError(
            f"batches are dictionaries of {', '.join(batch)}; say which column is to be learned, as in "
            f"loading=training.Loading(columns={rest[0]!r})"
        )
    return (x or rest[0],) if y is None else (x or rest[0], y)


def _first_of(usual: tuple[str, ...], batch: Mapping[str, Any]) -> str | None:
    known = {str(name).lower(): name for name in batch}
    return next((known[name] for name in usual if name in known), None)


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


def mapped(function: Callable[..., Tensor], first: Any, *others: Any) -> Any:
    """A function of tensors on batches that are alike, part by part."""
    if isinstance(first, Mapping):
        return {key: mapped(function, first[key], *(other[key] for other in others)) for key in first}
    if isinstance(first, tuple | list):
        return tuple(mapped(function, *parts) for parts in zip(first, *others, strict=True))
    if not isinstance(first, Tensor):
        raise DataError(
            f"batches hold a {type(first).__name__}; give tensors, arrays or numbers, and leave out the rest"
        )
    return function(first, *others)


class Feed(ABC):
    """Endless batches, epoch after epoch, from a position that can be set."""

    rows: int | None = None
    per_epoch: int | None = None  # batches; None where only the loader knows

    def __init__(self, wants: Wants) -> None:
        self.wants = wants
        self.seed, self.device, self.check, self.transform = wants.seed, wants.device, wants.check, wants.transform
        self.rank, self.world = wants.rank, wants.world
        self.epoch = self.index = self.salt = 0
        self.verified = False  # True once every row was checked beforehand
        self.form: Any = None
        self.noise = stream(wants.seed, f"transform/{wants.rank}", wants.device)

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

    def state(self) -> Any:
        """What is needed, besides epoch and index, to come back to this position: plain values, or None."""
        return None

    def seek(self, epoch: int, index: int, salt: int = 0, state: Any = None) -> None:
        """Go to batch `index` of `epoch`, where `state` was; another `salt` gives another order."""
        self.epoch, self.index, self.salt = epoch, index, salt

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what reads ahead."""

    def redealt(self, index: int, processes: int) -> int:
        """Where this feed must go on to miss and to repeat nothing, where so many processes were at batch `index`."""
        return index

    def next(self) -> Any:
        """The next batch, on the device, transformed and checked."""
        batch = self.prepare(self.fetch())
        self.index += 1
        return batch

    def prepare(self, batch: Any) -> Any:
        """Place, transform and check a batch."""
        batch = self.finish(place(batch, self.device), self.noise)
        if not self.verified:
            self.refuse(batch, f"batch {self.index} of epoch {self.epoch}")
        return batch

    def finish(self, batch: Any, noise: torch.Generator) -> Any:
        """A batch on the device as the objective gets it."""
        if self.transform is not None:
            batch = self.transform(batch, noise)
        return (
            pick(batch, self.wants.loading.columns)
            if isinstance(batch, dict) and not self.wants.dictionaries
            else batch
        )

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
