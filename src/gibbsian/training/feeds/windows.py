"""Rows that come in windows: pieces from all over the data, read one after the other and shuffled together in memory.

The order of the pieces is drawn from the stream `data/<salt>/<epoch>`, that inside a window from `data/<salt>/<epoch>/<number>`:
again two whole numbers say where a run stands, whatever the number of processes. Batches go through window after window
without a gap, and every process keeps its share of a window: that of pieces it can choose so that it reads few of them.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from gibbsian.errors import DataError
from gibbsian.random import stream
from gibbsian.training.feeds.base import AT_HAND, Feed, Wants, mapped
from gibbsian.training.feeds.fingerprint import fingerprint
from gibbsian.training.feeds.rows import check_share

_BYTES = 1 << 28  # of a window
_ROWS = 65536  # of a window, at most
_PIECE = 1 << 18  # bytes of an array that are read at once


def usual_buffer(row_bytes: float, size: int) -> int:
    """Rows of a window, where nobody says: as many as 256 MiB hold, 65536 at most, a batch at least."""
    return max(size, min(_ROWS, int(_BYTES / max(1.0, row_bytes))))


class Window(NamedTuple):
    """This process's rows of a window, in the order in which they come."""

    begin: int  # its first row among those of the epoch
    end: int
    rows: Any  # a batch of all
    at: Tensor  # where each stands among the rows of the epoch


class Windowed(Feed):
    """Batches cut out of windows; subclasses say where windows come from."""

    size: int

    def __init__(self, size: int, wants: Wants) -> None:
        super().__init__(wants)
        self.size = size
        self.held: deque[tuple[int, Window]] = deque()  # with their numbers

    @abstractmethod
    def window(self, number: int) -> Window | None:
        """A window of this epoch, or None after the last; they are asked for one after the other."""

    @abstractmethod
    def number_at(self, row: int) -> int:
        """The window to begin with, to come to a row of this epoch."""

    def shuffled(self, name: str, begin: int, rows: Any, count: int) -> Window:
        """This process's share of a window, shuffled by the stream of that name."""
        order = torch.randperm(count, generator=stream(self.seed, name))
        at = torch.arange(begin, begin + count)
        if self.world > 1:
            own = at % self.size % self.world == self.rank
            order, at = order[own], at[own]
        return Window(begin, begin + count, mapped(lambda t: t.index_select(0, order), rows), at)

    def rows_between(self, start: int, stop: int) -> Any:
        """This process's rows of the epoch from `start` to `stop`, or None where there are none."""
        while self.held and self.held[0][1].end <= start:
            self.held.popleft()
        self._read_up_to(start, stop)
        parts = [part for _, window in self.held if (part := _between(window, start, stop)) is not None]
        if len(parts) < 2:
            return parts[0] if parts else None
        return mapped(lambda *t: torch.cat(t), *parts)

    def _read_up_to(self, start: int, stop: int) -> None:
        number = self.held[-1][0] + 1 if self.held else self.number_at(start)
        while not self.held or self.held[-1][1].end < stop:
            found = self.window(number)
            if found is None:
                return
            if found.end > start:
                self.held.append((number, found))
            number += 1

    def seek(self, epoch: int, index: int, salt: int = 0, state: Any = None) -> None:
        if (epoch, salt) != (self.epoch, self.salt) or (self.held and index * self.size < self.held[0][1].begin):
            self.held.clear()
        super().seek(epoch, index, salt, state)

    def first(self) -> Any:
        window = self.rows_between(0, AT_HAND)
        if window is None:
            raise DataError("the data holds no rows; give at least one example")
        return self.prepare(window)


def _between(window: Window, start: int, stop: int) -> Any:
    low, high = torch.searchsorted(window.at, torch.tensor([start, stop])).tolist()
    return mapped(lambda t: t[low:high], window.rows) if high > low else None


# --- data in pieces: parquet, very long arrays ----------------------------------------------------


@runtime_checkable
class Pieced(Protocol):
    """Rows on disk that are read a piece at a time, such as the row groups of parquet files."""

    def __len__(self) -> int: ...

    def edges(self) -> np.ndarray:
        """Where pieces begin, and where the last one ends."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """The rows from `start` to `stop`, which lie in one piece."""

    def signature(self) -> str:
        """A text that other data would not have."""

    @property
    def row_bytes(self) -> float:
        """Bytes of a row in memory."""


class Pieces(Windowed):
    """Parts in pieces, read by a thread a window ahead."""

    rows: int
    per_epoch: int

    def __init__(
        self, parts: Sequence[Any], names: Sequence[str] | None, rows: int, batch_size: int, wants: Wants
    ) -> None:
        super().__init__(check_share(rows, batch_size, wants.world), wants)
        self.parts, self.names, self.rows = tuple(parts), names, rows
        full, rest = divmod(rows, self.size)
        self.per_epoch = full + (rest >= self.world)
        weight = sum(map(_row_bytes, self.parts))
        self.buffer = wants.loading.buffer or usual_buffer(weight, self.size)
        pieced = [part.edges() for part in self.parts if isinstance(part, Pieced)]
        length = max(1, min(int(_PIECE / weight), self.buffer // 16))
        self.edges = pieced[0] if pieced else np.append(np.arange(0, rows, length), rows)
        self.plan_of: tuple[int, int] | None = None
        self.pool = ThreadPoolExecutor(1, "gibbsian-reading") if wants.loading.workers != 0 else None
        self.coming: tuple[tuple[int, int, int], Future[Window]] | None = None

    def plan(self) -> None:
        """Which pieces make up which window of this epoch."""
        if self.plan_of == (self.epoch, self.salt):
            return
        generator = stream(self.seed, f"data/{self.salt}/{self.epoch}")
        self.order = torch.randperm(len(self.edges) - 1, generator=generator).numpy()
        ends = np.cumsum(np.diff(self.edges)[self.order])
        cuts = [0]
        while cuts[-1] < len(self.order):
            before = ends[cuts[-1] - 1] if cuts[-1] else 0
            cuts.append(min(len(self.order), int(np.searchsorted(ends, before + self.buffer)) + 1))
        self.cuts, self.begins = np.array(cuts), np.append(0, ends[np.array(cuts[1:]) - 1])
        self.plan_of = (self.epoch, self.salt)

    def number_at(self, row: int) -> int:
        self.plan()
        return int(np.searchsorted(self.begins, row, side="right")) - 1

    def window(self, number: int) -> Window | None:
        self.plan()
        if number >= len(self.cuts) - 1:
            return None
        key = (self.salt, self.epoch, number)
        found = self.coming[1].result() if self.coming and self.coming[0] == key else self.load(*self.asked(number))
        self.coming = None
        if self.pool is not None and number + 1 < len(self.cuts) - 1:
            self.coming = (self.salt, self.epoch, number + 1), self.pool.submit(self.load, *self.asked(number + 1))
        return found

    def asked(self, number: int) -> tuple[str, int, np.ndarray]:
        """What is to be loaded for a window."""
        pieces = self.order[self.cuts[number] : self.cuts[number + 1]]
        return f"data/{self.salt}/{self.epoch}/{number}", int(self.begins[number]), pieces

    def load(self, name: str, begin: int, pieces: np.ndarray, alike: bool = False) -> Window:
        """Read this process's share of a window, or, `alike`, one at random that has rows of all its pieces."""
        ends = np.cumsum(np.diff(self.edges)[pieces])
        at = np.arange(begin, begin + int(ends[-1]))
        row = _evenly(at // self.size, stream(self.seed, name))
        if alike:
            turn = torch.randperm(len(at), generator=stream(self.seed, f"{name}/first")).numpy() % self.world
        else:  # as many of a batch as in turns, and those of neighboring pieces
            turn = at % self.size % self.world
            turn = turn[np.lexsort((turn, at // self.size))]
        at, row = at[turn == self.rank], row[turn == self.rank]
        piece = np.searchsorted(ends, row, side="right")
        row = row - np.append(0, ends)[piece]
        rows = self.named(tuple(self._picked(part, pieces[piece], row) for part in self.parts))
        rows = mapped(Tensor.pin_memory, rows) if self.device.type == "cuda" else rows
        return Window(begin, begin + int(ends[-1]), rows, torch.from_numpy(at))

    def _picked(self, part: Any, piece: np.ndarray, row: np.ndarray) -> Tensor:
        """Rows by their pieces and their numbers there; only pieces are read that hold some, in the order of the file."""
        if not len(piece):
            return _slice(part, 0, int(self.edges[1]))[:0]
        order = np.argsort(piece, kind="stable")
        numbers, starts = np.unique(piece[order], return_index=True)
        picked = torch.empty(0)
        for k, places in zip(numbers, np.split(order, starts[1:]), strict=True):
            whole = _slice(part, int(self.edges[k]), int(self.edges[k + 1]))
            picked = picked if len(picked) else whole.new_empty(len(row), *whole.shape[1:])
            picked[torch.from_numpy(places)] = whole[torch.from_numpy(row[places])]
        return picked

    def named(self, parts: tuple[Tensor, ...]) -> Any:
        """The parts as they were given."""
        return parts if self.names is None else dict(zip(self.names, parts, strict=True))

    def fetch(self) -> Any:
        if self.index >= self.per_epoch:
            self.seek(self.epoch + 1, 0, self.salt)
        return self.rows_between(self.index * self.size, min((self.index + 1) * self.size, self.rows))

    def first(self) -> Any:
        if self.world == 1:
            return super().first()
        self.plan()
        found = [self.load(*self.asked(0), alike=True)]
        while found[-1].end < min(AT_HAND, self.rows):
            found.append(self.load(*self.asked(len(found)), alike=True))
        rows = found[0].rows if len(found) == 1 else mapped(lambda *t: torch.cat(t), *(window.rows for window in found))
        return self.prepare(mapped(lambda t: t[: -(-AT_HAND // self.world)], rows))

    def sweep(self) -> Iterator[Any]:
        left: list[tuple[Tensor, ...]] = []
        for start, stop in zip(self.edges[:-1].tolist(), self.edges[1:].tolist(), strict=True):
            left.append(tuple(_slice(part, start, stop) for part in self.parts))
            if stop == self.rows or sum(len(part[0]) for part in left) >= self.size:
                whole = tuple(torch.cat(parts) for parts in zip(*left, strict=True))
                full = len(whole[0]) if stop == self.rows else len(whole[0]) // self.size * self.size
                yield from map(
                    self.prepare, map(self.named, zip(*(p[:full].split(self.size) for p in whole), strict=True))
                )
                left = [tuple(part[full:] for part in whole)]

    def fingerprint(self) -> list[float]:
        if any(isinstance(part, Pieced) for part in self.parts):
            texts = [part.signature() for part in self.parts if isinstance(part, Pieced)]
            digest = sha256("".join(texts).encode()).digest()
            return [1.0, *(byte / 256 for byte in digest)]
        return fingerprint(self.some, self.rows, torch.device("cpu"), 1 << 16)

    def some(self, rows: Tensor) -> tuple[Tensor, ...]:
        """A few rows."""
        return tuple(
            p[rows] if isinstance(p, Tensor) else torch.from_numpy(np.array(p[rows.numpy()])) for p in self.parts
        )

    def close(self) -> None:
        self.coming = None
        self.held.clear()
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = None


def _evenly(batch: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """Which row stands at each place of a window, where `batch` says whose places they are: every batch takes rows from all over
    the window, the i-th of m at random from the i-th of m stretches (but for what others have taken)."""
    _, first, inverse, counts = np.unique(batch, return_index=True, return_inverse=True, return_counts=True)
    nth = np.arange(len(batch)) - first[inverse]
    wanted = (nth + torch.rand(len(batch), generator=generator, dtype=torch.float64).numpy()) / counts[inverse]
    row = np.empty(len(batch), np.int64)
    row[np.argsort(wanted, kind="stable")] = np.arange(len(batch))
    return row


def _row_bytes(part: Any) -> float:
    return part.row_bytes if isinstance(part, Pieced) else max(1.0, part.nbytes / len(part))


def _slice(part: Any, start: int, stop: int) -> Tensor:
    if isinstance(part, Pieced):
        return torch.from_numpy(part.read(start, stop))
    return part[start:stop] if isinstance(part, Tensor) else torch.from_numpy(np.array(part[start:stop]))
