"""Chains that are spread over processes: each runs its share, and diagnostics are those of all of them.

For R-hat and effective sample sizes, which need the ranks of all draws, processes exchange what they hold: every one gets all
chains of its share of the entries of an event. So nobody ever holds more than a share, and the numbers are those of
the gathered chains.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gibbsian.distributed.shards import Shards, Share
from gibbsian.errors import ArgumentError
from gibbsian.progress import progress_bar
from gibbsian.sampling.checks import Trouble, report_divergence
from gibbsian.sampling.diagnostics import SUMMARY, summarize
from gibbsian.sampling.trace import Trace

Start = Tensor | Share | Trace
Run = Callable[[Any, Tensor | None, torch.Generator, int], Trace]  # start, clamp, generator, chains in all


@dataclass(frozen=True)
class SpreadTrace(Trace):
    """The chains of this process, of `chains` in all: what `gibbsian.sample(..., generator=Shards(...))` returns.

    `samples`, `last` and `divergences` are those of this process's chains, `acceptance` is the mean over all, `summary()` is of
    all chains of all processes, and `gather()` brings all of them here. Both must be called by all processes.
    """

    chains: int = 0
    parts: tuple[Trace, ...] = ()  # of this process's shards, to go on from
    streams: Shards = field(default_factory=lambda: Shards(0))

    def summary(self) -> dict[str, Tensor]:
        """As that of a trace, of the chains of all processes; to be called by all of them."""
        event = self.last.shape[1:]
        if self.samples is not None:
            draws = self._entries(self.samples)
            found = summarize(draws) if draws.shape[2] else {name: draws.new_empty(0) for name in SUMMARY}
        else:
            found = self._streamed()
        gather = lambda values: self.streams.gather(values.to(self.last.device)).cpu()  # noqa: E731
        return {name: gather(found[name]).reshape(event) for name in SUMMARY}

    def _streamed(self) -> dict[str, Tensor]:
        moments = [part.moments for part in self.parts if part.moments is not None]
        if len(moments) < len(self.parts) or moments[0].spaced is None:
            return super().summary()  # refuses
        own = moments[0].beside(moments[1:])
        spaced = self._entries(own.spaced)  # type: ignore[arg-type]
        sums, squares = self._entries(own.sums), own.squares
        if len(sums):
            squares = self._entries(squares[None])[0]
        if not spaced.shape[2]:
            return {name: spaced.new_empty(0) for name in SUMMARY}
        return replace(own, spaced=spaced, sums=sums, squares=squares).summary()

    def _entries(self, own: Tensor) -> Tensor:
        """All chains `(draws, chains, entries)` of this process's share of the entries, from all entries of its chains."""
        blocks = own.flatten(2).tensor_split(self.streams.world.size, 2)
        return torch.cat(self.streams.world.exchange([block.contiguous() for block in blocks]), 1)

    def gather(self) -> Trace:
        """All chains as one trace, on every process; to be called by all of them. It cannot be gone on from: this one can."""
        rows = self.streams.gather
        chains: Any = lambda t: None if t is None else rows(t.transpose(0, 1).contiguous()).transpose(0, 1)  # noqa: E731
        return Trace(
            samples=chains(self.samples),
            last=rows(self.last),
            acceptance=self.acceptance,
            divergences=rows(self.divergences),
            steps=self.steps,
            kernel=self.kernel,
            state=None,
            draw_acceptance=chains(self.draw_acceptance),
            draw_diverged=chains(self.draw_diverged),
            stats={name: chains(values) for name, values in sorted(self.stats.items())},
            compiled=self.compiled,
            compile_note=self.compile_note,
            reason=self.reason,
        )


def own_rows(x0: Start, streams: Shards) -> tuple[int, list[tuple[Any, torch.Generator]]]:
    """How many chains there are in all, and the starts of this process's shards with their streams."""
    if isinstance(x0, SpreadTrace):
        parts = streams.parts(x0.chains)
        if [part.size for part in parts] != [len(trace.last) for trace in x0.parts]:
            raise ArgumentError(
                "the trace was run with other shards, or on another number of processes; go on from its positions: "
                "sample(energy, kernel, trace.gather().last, ...)"
            )
        return x0.chains, [(trace, part.generator) for trace, part in zip(x0.parts, parts, strict=True)]
    if isinstance(x0, Trace):
        raise ArgumentError(
            "a trace of one process is gone on from with its generator; give trace.last to spread its chains"
        )
    if isinstance(x0, Share):
        return x0.total, [(x0.rows[part.own], part.generator) for part in streams.parts(x0.total)]
    return len(x0), [(x0[part.rows], part.generator) for part in streams.parts(len(x0))]


def spread(
    run: Run, x0: Start, clamp: Tensor | None, streams: Shards, what: str, progress: bool | None = None
) -> SpreadTrace:
    """Run every shard of this process, and put the traces together."""
    chains, starts = own_rows(x0, streams)
    rows: list[Any] = [slice(None)] * len(starts)
    first = starts[0][0]
    if clamp is not None and isinstance(first, Tensor) and clamp.dim() == first.dim():
        rows = [part.rows for part in streams.parts(chains)]  # one mask a chain
    pieces = []
    with progress_bar(len(starts), f"{what}, shards", progress if streams.world.first else False) as tick:
        for held, (start, generator) in zip(rows, starts, strict=True):
            pieces.append(run(start, clamp if clamp is None else clamp[held], generator, chains))
            tick(1)
    trace = _joined(pieces, chains, streams)
    lost = ~torch.isfinite(trace.last).flatten(1).all(1)
    found = streams.world.sum(torch.stack([lost.sum(), (trace.divergences > 0).sum(), trace.divergences.sum()]))
    trouble = Trouble(*found.tolist())
    if streams.world.first or trouble.lost == chains:
        report_divergence(trouble, chains, trace.kernel)
    return trace


def _joined(pieces: list[Trace], chains: int, streams: Shards) -> SpreadTrace:
    one = pieces[0]
    accepted = streams.total([piece.acceptance * len(piece.last) for piece in pieces]) / chains
    bare: dict[str, Any] = {"samples": None, "draw_acceptance": None, "draw_diverged": None, "stats": {}}
    return SpreadTrace(
        samples=_abreast([piece.samples for piece in pieces]),
        last=torch.cat([piece.last for piece in pieces]),
        acceptance=accepted,
        divergences=torch.cat([piece.divergences for piece in pieces]),
        steps=one.steps,
        kernel=one.kernel,
        state=None,
        draw_acceptance=_abreast([piece.draw_acceptance for piece in pieces]),
        draw_diverged=_abreast([piece.draw_diverged for piece in pieces]),
        stats={name: _abreast([piece.stats[name] for piece in pieces]) for name in one.stats},
        compiled=one.compiled,
        compile_note=one.compile_note,
        reason=one.reason,
        chains=chains,
        parts=tuple(replace(piece, **bare) for piece in pieces),
        streams=streams,
    )


def _abreast(draws: list[Any]) -> Any:
    """Draws `(draws, chains, ...)` of several shards next to each other; None where none were kept."""
    return None if draws[0] is None else torch.cat(draws, 1)
