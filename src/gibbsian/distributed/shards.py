"""A fixed number of shards, each with a random stream of its own, dealt to the processes of a job.

Chain i belongs to the same shard and sees the same numbers whether one process runs all shards or sixty-four run one each.
Shards are run one after the other, each as a batch of its own, so that even rounding does not depend on who runs them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.distributed.world import World, join
from gibbsian.errors import ArgumentError, ProcessError, check_count
from gibbsian.random import require_generator, stream


class Part(NamedTuple):
    """A shard of this process: where its rows lie among all rows and among those of this process, and its stream."""

    rows: slice
    own: slice
    generator: torch.Generator

    @property
    def size(self) -> int:
        """How many rows it has."""
        return self.rows.stop - self.rows.start


class Share(NamedTuple):
    """The rows `(n, ...)` of this process out of `total`; see `Shards.draw`."""

    rows: Tensor
    total: int

    def check(self, rows: int) -> None:
        """Refuse another number of rows of all processes than there should be."""
        if rows != self.total:
            raise ArgumentError(
                f"the processes have {rows} rows of a share of {self.total}; give world=distributed.join()[0], and the rows of all"
            )


class Streams(ABC):
    """Where random numbers come from: one stream, or shards that are dealt to processes."""

    world: World
    common: torch.Generator  # for what every process does alike

    @abstractmethod
    def parts(self, n: int, least: int | None = None) -> list[Part]:
        """This process's shards of n rows; of at least `least` rows each, where that is possible."""

    def own(self, n: int, least: int | None = None) -> slice:
        """The rows of this process among n."""
        parts = self.parts(n, least)
        return slice(parts[0].rows.start, parts[-1].rows.stop)

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes in order, from those of this one; on every process."""
        return self.world.gather_rows(rows)

    def total(self, each: Sequence[Tensor]) -> Tensor:
        """The sum over all shards of one tensor a shard, added in their order whoever has them."""
        rows = self.gather(torch.stack(list(each)))
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        return total

    def pick(self, rows: Tensor, wanted: Tensor) -> Tensor:
        """Rows by their numbers among those of all processes, from those of this one; every process says what it wants."""
        if self.world.alone:
            return rows[wanted]
        wanted, out = wanted.to(rows.device), rows.new_empty(len(wanted), *rows.shape[1:])
        counts, start = self.gather(torch.tensor([len(rows)], device=rows.device)).tolist(), 0
        for source, count in enumerate(counts):  # one process at a time: nobody holds all of them
            part = rows.contiguous() if source == self.world.rank else rows.new_empty(count, *rows.shape[1:])
            self.world.copy_from(part, source)
            here = (wanted >= start) & (wanted < start + count)
            out[here] = part[wanted[here] - start]
            start += count
        return out

    def by_rows(self, x: Tensor, function: Callable[[Tensor], Tensor], block: int) -> Tensor:
        """function(x), rows `(n, ...)`, in blocks, each process doing its share."""
        if len(x) < 2 * self.world.size:  # too few to be shared
            return torch.cat([function(part) for part in x.split(block)])
        own = [part for shard in self.parts(len(x), 1) for part in x[shard.rows].split(block)]
        return self.gather(torch.cat([function(part) for part in own]))


class OneStream(Streams):
    """A plain generator: everything is done here."""

    def __init__(self, generator: torch.Generator) -> None:
        self.world, self.common = World(), generator

    def parts(self, n: int, least: int | None = None) -> list[Part]:
        return [Part(slice(0, n), slice(0, n), self.common)]


class Shards(Streams):
    """Random streams for chains and rows that are spread over the processes of a job; give it as `generator=`.

    `gibbsian.sample`, `warm_up`, `draw`, `log_likelihood`, `evaluate`, `partition.ais`, `reverse_ais` and `smc` then run on every
    process only its share of the chains and rows, and gather what is asked for. What they find is that of one process with
    the same shards, to the bit on the same kind of machine. All processes must make the same calls in the same order. Streams
    go on from call to call, as a generator does.

    n chains make as many shards as `count` allows, a power of two, with `least` chains or more in each: small shards cost the
    speed of large batches, few shards limit how many processes can help.

    Args:
        seed: of all streams.
        name: of these among other streams of the seed.
        count: shards at the most.
        least: chains in a shard at the least.
        device: where the chains live; "cuda" is the GPU of this process.

    >>> shards = Shards(0)
    >>> [part.rows.stop - part.rows.start for part in shards.parts(100)]
    [12, 13, 12, 13, 12, 13, 12, 13]
    >>> import gibbsian as gb
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    >>> trace = gb.sample(target, gb.kernels.MALA(step_size=0.9), torch.zeros(32, 2), steps=200, burn_in=100, generator=shards)
    >>> trace.gather().samples.shape
    torch.Size([100, 32, 2])
    """

    def __init__(
        self,
        seed: int,
        name: str = "",
        *,
        count: int = 64,
        least: int = 8,
        device: torch.device | str | None = None,
        world: World | None = None,
    ) -> None:
        self.seed, self.name = check_count("Shards", "seed", seed, 0), name
        self.count, self.least = check_count("Shards", "count", count), check_count("Shards", "least", least)
        joined, where = join(device)
        self.world = joined if world is None else world
        self.device = where or torch.device("cpu")
        self.common = self._stream("common")
        self.generators: dict[int, torch.Generator] = {}

    def _stream(self, name: str) -> torch.Generator:
        return stream(self.seed, f"{self.name}/shards/{name}", self.device)

    def generator(self, shard: int) -> torch.Generator:
        """The stream of a shard, where it is by now."""
        if shard not in self.generators:
            self.generators[shard] = self._stream(str(shard))
        return self.generators[shard]

    def parts(self, n: int, least: int | None = None) -> list[Part]:
        room = min(self.count, n // (self.least if least is None else least))
        shards, (rank, size) = 1 << max(0, room.bit_length() - 1), (self.world.rank, self.world.size)
        if shards < size:
            raise ProcessError(
                f"{n} rows or chains make {shards} shards, too few for {size} processes; take more of them, smaller shards "
                "(Shards(least=...)), more (count=...), or fewer processes"
            )
        edges = [n * k // shards for k in range(shards + 1)]
        mine = range(rank * shards // size, (rank + 1) * shards // size)
        start = edges[mine.start]
        return [
            Part(slice(a := edges[k], b := edges[k + 1]), slice(a - start, b - start), self.generator(k)) for k in mine
        ]

    def draw(self, n: int, make: Callable[[int, torch.Generator], Tensor]) -> Share:
        """This process's share of n rows, `make(size, generator)` for every shard: starting points that nobody holds whole.

        >>> Shards(0).draw(100, lambda n, g: torch.randn(n, 2, generator=g)).rows.shape
        torch.Size([100, 2])
        """
        return Share(torch.cat([make(part.size, part.generator) for part in self.parts(n)]), n)


def streams_of(generator: "torch.Generator | Streams | None", device: torch.device | None = None) -> Streams:
    """What was given for `generator=` as streams; refused where it cannot draw on the device."""
    if not isinstance(generator, Streams):
        return OneStream(require_generator(generator, device))
    if device is not None and generator.common.device.type != device.type:
        raise ArgumentError(
            f"the shards draw on {generator.common.device} but the tensors are on {device}; make them with "
            f"Shards(seed, device={device.type!r})"
        )
    return generator
