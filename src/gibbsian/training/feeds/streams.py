"""Streams: iterable datasets of torch and Hugging Face, which give rows one after the other.

Rows are read in chunks, by this process or by workers in turn, and shuffled in windows. What is kept of a position is the
state of the source where the window began, as its own `state_dict` says it; a source without one is read again from the
beginning of the epoch, up to there. Datasets that know `torch.utils.data.get_worker_info` share their rows among workers.
"""

import copy
import itertools
import logging
import time
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from gibbsian.errors import DataError
from gibbsian.fast.graphs import tensors_of
from gibbsian.random import isolated, stream
from gibbsian.training.feeds.ahead import SLOW, as_it_is, lost_workers
from gibbsian.training.feeds.base import Stateful, Wants, mapped, rows_of
from gibbsian.training.feeds.rows import check_share
from gibbsian.training.feeds.windows import Window, Windowed, usual_buffer

_CHUNK = 256  # rows that are read at once, at least


@runtime_checkable
class _KnowsEpochs(Protocol):
    def set_epoch(self, epoch: int) -> None: ...


@runtime_checkable
class _GivesBatches(Protocol):
    """A stream of tables, as Hugging Face's `datasets.IterableDataset`."""

    num_shards: int

    def with_format(self, kind: str) -> Any: ...

    def shard(self, num_shards: int, index: int) -> Any: ...

    def iter(self, batch_size: int) -> Iterator[dict[str, Any]]: ...


class Chunk(NamedTuple):
    """Rows that were read at once, None at the end, and how to go on after them."""

    rows: Any
    after: dict[str, Any]


class _Listening(logging.Handler):
    """Hears that a state was loaded that leaves out rows which waited in a buffer, as those of Hugging Face's `shuffle` do."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = False

    def emit(self, record: logging.LogRecord) -> None:
        self.heard = self.heard or "shuffle buffer" in record.getMessage()

    def __enter__(self) -> "_Listening":
        self.logger = logging.getLogger("datasets.iterable_dataset")
        self.before = self.logger.propagate, self.logger.handlers
        self.logger.propagate, self.logger.handlers = False, [self]
        return self

    def __exit__(self, *error: object) -> None:
        self.logger.propagate, self.logger.handlers = self.before


class Chunks(IterableDataset[Chunk]):
    """A source in chunks of rows, each with how to go on after it; without end, for the sake of workers that take turns.

    Its `states` say where every worker begins: how many `chunks` it has given, the state of its `source` where that has
    one, and whether it is `over`.
    """

    salt: int
    epoch: int
    states: list[dict[str, Any]]

    def __init__(self, source: Any, size: int, seed: int) -> None:
        self.source, self.size, self.seed = source, size, seed
        own = isinstance(source, Stateful) and not isinstance(source, _GivesBatches)
        self.fresh = copy.deepcopy(source.state_dict()) if own else None

    def at(self, salt: int, epoch: int, states: list[dict[str, Any]]) -> "Chunks":
        """The same to be read from there on."""
        there = copy.copy(self)
        there.salt, there.epoch, there.states = salt, epoch, states
        return there

    def __iter__(self) -> Iterator[Chunk]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        begin = self._begin(worker, workers)
        done, over = begin["chunks"], begin["over"]
        with self._alone(worker, "begin"):
            source = self._share(worker, workers, begin["source"])
            raw = iter(()) if source is None or over else self._raw(source)
        for number in itertools.count(0 if begin["source"] is None else done):
            with self._alone(worker, str(number)):
                rows = next(raw, None)
            if number >= done:
                over = over or _is_last(rows, self.size)
                yield Chunk(rows, {"chunks": number + 1, "source": None if over else _state(source), "over": over})

    def _begin(self, worker: int, workers: int) -> dict[str, Any]:
        """Where a worker begins; without the state of its source where that leaves something out."""
        begin = self.states[worker]
        if begin["source"] is None or not isinstance(self.source, _GivesBatches):
            return begin
        with _Listening() as listening, self._alone(worker, "begin"):
            next(self._raw(self._share(worker, workers, begin["source"])), None)
        return begin | {"source": None} if listening.heard else begin  # and is read again from the start of the epoch

    def _share(self, worker: int, workers: int, state: dict[str, Any] | None) -> Any:
        """The source as this worker reads it from a state on, or None where there is nothing left for it."""
        source = self.source
        if isinstance(source, _GivesBatches):
            sharing = min(workers, source.num_shards)
            if worker >= sharing:
                return None
            source = (source.shard(sharing, worker) if sharing > 1 else source).with_format("torch")
        elif self.fresh is not None:  # whatever it was left in
            source.load_state_dict(self.fresh)
        if isinstance(source, _KnowsEpochs):
            source.set_epoch(self.epoch)
        if state is not None:
            source.load_state_dict(state)
        return source

    def _alone(self, worker: int, what: str) -> Any:
        """With random numbers of its own."""
        return isolated(stream(self.seed, f"data/{self.salt}/{self.epoch}/{worker}/{what}"))

    def _raw(self, source: Any) -> Iterator[Any]:
        if isinstance(source, _GivesBatches):
            yield from tensors_in(source, self.size)
        else:
            examples = iter(source)
            while some := list(itertools.islice(examples, self.size)):
                yield default_collate(some)


def tensors_in(source: Any, size: int) -> Iterator[dict[str, Tensor]]:
    """Batches of a stream of tables in torch's format, without the columns that are none of numbers."""
    batches = source.iter(batch_size=size)
    while True:
        with (
            warnings.catch_warnings()
        ):  # rows that were skipped or filtered are tensors already, and are made so once more
            warnings.filterwarnings("ignore", message="To copy construct from a tensor")
            batch = next(batches, None)
        if batch is None:
            return
        yield {name: part for name, part in batch.items() if isinstance(part, Tensor)}


def _is_last(rows: Any, size: int) -> bool:
    return rows is None or rows_of(rows) < size


def _state(source: Any) -> dict[str, Any] | None:
    return copy.deepcopy(source.state_dict()) if isinstance(source, Stateful) else None


class Stream(Windowed):
    """An iterable dataset. Every process reads all of it and keeps its share of each batch."""

    def __init__(self, source: Any, batch_size: int, wants: Wants) -> None:
        super().__init__(check_share(1 << 62, batch_size, wants.world), wants)
        self.buffer, self.workers = wants.loading.buffer, wants.loading.workers or 0
        self.chunks = Chunks(source, max(self.size, _CHUNK), self.seed)
        self.restart(0, 0, 0)

    def restart(self, epoch: int, index: int, salt: int) -> None:
        """Forget what was read; the beginning of an epoch comes next."""
        self.epoch, self.index, self.salt = epoch, index, salt
        self.held.clear()
        self.reading: Iterator[Chunk] | None = None
        self.over = False
        self.number = self.upto = 0  # the next window, and its first row
        self.states = [{"chunks": 0, "source": None, "over": False} for _ in range(max(1, self.workers))]
        self.began: dict[int, dict[str, Any]] = {}  # how to come to the beginning of windows

    # --- reading ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Go on reading where every worker was."""
        if len(self.states) != max(1, self.workers):
            raise DataError(
                f"the run was saved with {len(self.states)} processes that read, and goes on with {self.workers}; give "
                f"loading=training.Loading(workers={len(self.states)})"
            )
        chunks = self.chunks.at(self.salt, self.epoch, self.states)
        if self.workers:
            pin = self.device.type == "cuda"
            options: dict[str, Any] = {"num_workers": self.workers, "prefetch_factor": self.wants.loading.ahead}
            self.reading = iter(DataLoader(chunks, batch_size=None, collate_fn=as_it_is, pin_memory=pin, **options))
        else:
            self.reading = iter(chunks)

    def round(self) -> list[Any]:
        """One chunk of every worker that still has some."""
        if self.reading is None:
            self.open()
        with lost_workers():
            found = [next(self.reading) for _ in self.states]  # type: ignore[arg-type]
        self.states = [chunk.after for chunk in found]
        return [chunk.rows for chunk in found if chunk.rows is not None]

    def window(self, number: int) -> Window | None:
        if self.over:
            return None
        self.began[number] = self.next_window()
        clock = time.perf_counter()
        chunks = self.enough()
        if not chunks:
            return None
        count = sum(map(rows_of, chunks))
        rows = chunks[0] if len(chunks) == 1 else mapped(lambda *t: torch.cat(t), *chunks)
        window = self.shuffled(f"data/{self.salt}/{self.epoch}/{number}", self.upto, rows, count)
        self.number, self.upto = number + 1, self.upto + count
        if (time.perf_counter() - clock) / count * self.size > SLOW:
            self.hire()
        return window

    def enough(self) -> list[Any]:
        """Chunks for a window, or what is left of the epoch."""
        chunks: list[Any] = []
        while not chunks or sum(map(rows_of, chunks)) < self.most(chunks[0]):
            found = self.round()
            if not found:
                self.over, self.reading = True, None
                break
            chunks += found
        return chunks

    def most(self, chunk: Any) -> int:
        """Rows of a window."""
        if self.buffer is None:
            self.buffer = usual_buffer(sum(t.nbytes for t in tensors_of(chunk)) / rows_of(chunk), self.size)
        return self.buffer

    def hire(self) -> None:
        """Let a process read from now on, where nobody has said how many."""
        if self.wants.loading.workers is None and not self.workers and not self.over:
            self.workers = 1
            self.open()

    def number_at(self, row: int) -> int:
        return self.number

    # --- the position -----------------------------------------------------------------------------

    def next_window(self) -> dict[str, Any]:
        """How to come to the beginning of the next window."""
        return {"window": self.number, "begin": self.upto, "sources": self.states}

    def state(self) -> dict[str, Any]:
        row = self.index * self.size
        inside = [number for number, window in self.held if window.begin <= row < window.end]
        return self.began[inside[0]] if inside else self.next_window()

    def seek(self, epoch: int, index: int, salt: int = 0, state: Any = None) -> None:
        row = index * self.size
        if (epoch, salt) == (self.epoch, self.salt) and self.held and self.held[0][1].begin <= row < self.upto:
            self.index = index
            return
        self.restart(epoch, index, salt)
        if state is not None and state["begin"] <= row:
            self.number, self.upto, self.states = state["window"], state["begin"], state["sources"]

    def fetch(self) -> Any:
        batch = self.rows_between(self.index * self.size, (self.index + 1) * self.size)
        if batch is None or self.upto - self.index * self.size < self.world:  # a rest that cannot be shared is left out
            if self.index == 0:
                raise DataError(f"the stream is empty in epoch {self.epoch}; it must give rows each time it is read")
            self.restart(self.epoch + 1, 0, self.salt)
            return self.fetch()
        return batch

    def sweep(self) -> Iterator[Any]:
        self.restart(0, 0, self.salt)
        while found := self.round():
            for rows in found:
                for i in range(0, rows_of(rows), self.size):
                    yield self.prepare(mapped(partial(_cut, start=i, stop=i + self.size), rows))
        self.reading = None

    def close(self) -> None:
        self.reading = None


def _cut(rows: Tensor, start: int, stop: int) -> Tensor:
    return rows[start:stop]
