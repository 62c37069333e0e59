"""What is kept of a run."""

from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.kernels.base import Info
from gibbsian.sampling.chunks import stacked
from gibbsian.sampling.streaming import StreamingMoments


class _Cut(NamedTuple):
    """Where burn-in and thinning cut some steps: how many are burnt, which are kept, and their places in the record."""

    burnt: int
    kept: slice
    places: slice


class Record:
    """Draws or their statistics, acceptance and divergences, after burn-in and thinning; steps are gathered and worked
    off many at a time."""

    def __init__(self, steps: int, burn_in: int, thin: int, keep: bool, x: Tensor, crowd: int | None = None) -> None:
        self.burn_in, self.thin, self.at = burn_in, thin, 0
        draws = -(-(steps - burn_in) // thin)
        self.moments = None if keep else StreamingMoments(draws, crowd)
        self.samples = x.new_empty(draws, *x.shape) if keep else None
        self.acceptance = x.new_empty(draws, len(x)) if keep else None
        self.diverged = x.new_empty(draws, len(x), dtype=torch.bool) if keep else None
        self.accepted = torch.zeros((), dtype=torch.float64, device=x.device)
        self.divergences = torch.zeros(len(x), dtype=torch.long, device=x.device)
        self.positions: list[Tensor] = []
        self.infos: list[Info] = []
        self.chunks: list[tuple[Tensor, Tensor, Tensor]] = []
        self.draws, self.keep = draws, keep
        self.stats: dict[str, Tensor] = {}  # what else the kernel tells of every draw
        self.told = self.waiting = 0
        self.enough = max(1, min(64, (1 << 20) // x.numel()))

    def add_steps(self, positions: list[Tensor], infos: list[Info]) -> None:
        """Take in eager steps."""
        self.positions += positions
        self.infos += infos
        if len(self.positions) >= self.enough:
            self.flush()

    def add_chunk(
        self, positions: Tensor, acceptance: Tensor, diverged: Tensor, stats: dict[str, Tensor] | None = None
    ) -> None:
        """Take in many steps, with what else the kernel tells of them; captured ones are copied before the next overwrite
        them."""
        if self.keep and stats:
            self._take_stats(stats, len(positions))
        self.chunks.append((positions, acceptance, diverged))
        self.waiting += len(positions)
        if positions.is_cuda or self.waiting >= 8 * self.enough:
            self.flush()

    def _take_stats(self, stats: dict[str, Tensor], n: int) -> None:
        at, self.at = self.at, self.told  # chunks that are not yet worked off lie between the two
        cut = self._cut(n)
        self.told, self.at = self.at, at
        for name, values in stats.items():
            if name not in self.stats:
                self.stats[name] = values.new_empty(self.draws, *values.shape[1:])
            self.stats[name][cut.places] = values[cut.kept]

    def flush(self) -> None:
        """Work off the steps that have been gathered."""
        if self.chunks:  # compiled chunks come first; eager steps are the remainder of a run
            parts = [torch.cat(part) if len(part) > 1 else part[0] for part in zip(*self.chunks, strict=True)]
            self.chunks, self.waiting = [], 0
            self._take_chunk(*parts)
        if self.positions:
            positions, infos = self.positions, self.infos
            self.positions, self.infos = [], []
            self._take_steps(positions, infos)

    def _cut(self, n: int) -> _Cut:
        burnt = max(0, self.burn_in - self.at)
        first = burnt + -(self.at + burnt - self.burn_in) % self.thin
        start = (self.at + first - self.burn_in) // self.thin
        self.at += n
        return _Cut(burnt, slice(first, None, self.thin), slice(start, start + len(range(first, n, self.thin))))

    def _take_chunk(self, positions: Tensor, acceptance: Tensor, diverged: Tensor) -> None:
        cut = self._cut(len(positions))
        if self.samples is not None:
            self.samples[cut.places] = positions[cut.kept]
        elif self.moments is not None:
            self.moments.update(positions[cut.kept])
        self._count(acceptance, diverged, cut)

    def _take_steps(self, positions: list[Tensor], infos: list[Info]) -> None:
        cut = self._cut(len(positions))
        kept = positions[cut.kept]
        where = positions[0][None]
        if kept and self.samples is not None:
            where = torch.stack(kept, out=self.samples[cut.places])
        elif kept and self.moments is not None:
            self.moments.update(torch.stack(kept))
        bare = isinstance(infos[0], Info) and infos[0].diverged is None  # positions tell who diverged: all are needed
        if bare and len(where) < len(positions):
            where = torch.stack(positions)
        self._count(*stacked(infos, where), cut)

    def _count(self, acceptance: Tensor, diverged: Tensor, cut: _Cut) -> None:
        self.divergences += diverged.sum(0)
        if cut.burnt < len(acceptance):
            self.accepted += acceptance[cut.burnt :].mean(1, dtype=torch.float64).sum()
        if self.acceptance is not None and self.diverged is not None:
            self.acceptance[cut.places] = acceptance[cut.kept]
            self.diverged[cut.places] = diverged[cut.kept]
