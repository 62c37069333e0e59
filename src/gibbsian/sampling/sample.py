"""Running kernels: `sample`, and the `Trace` it returns.

    x0 → kernel.init → [chunk of K steps] → keep or stream → Trace

The random numbers of a chunk are drawn from the caller's generator before it and enter as tensors, so eager
and compiled chains agree on the same seed, and on the CPU a run does not depend on how it is cut in chunks.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gibbsian.domains import Categorical, Domain
from gibbsian.errors import (
    ArgumentError,
    DivergenceError,
    DivergenceWarning,
    DomainError,
    GibbsianError,
    ShapeError,
)
from gibbsian.fast.compiled import compiled_chunk
from gibbsian.kernels.base import Info, Kernel, MetropolisInfo, judge
from gibbsian.placement import check_placement, check_together
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator
from gibbsian.sampling.diagnostics import StreamingMoments
from gibbsian.sampling.trace import Trace
from gibbsian.trees import is_named

__all__ = ["Trace", "advance", "run_chunk", "run_steps", "sample"]


def _per_step(inputs: Any) -> Iterator[Any]:
    """Cut inputs with a leading step axis into the inputs of single steps."""
    parts = [t.unbind(0) if isinstance(t, Tensor) else t for t in inputs]
    make = type(inputs)._make if is_named(type(inputs)) else tuple
    yield from map(make, zip(*parts, strict=True))


Steps = tuple[list[Tensor], list[Info]]


def chunk_size(kernel: Kernel, x: Tensor) -> int:
    """Steps whose random numbers are drawn at a time: what is compiled into one graph, on CUDA what is captured in
    one (eager runs draw alike, so that both see the same numbers)."""
    if kernel.fixed_chunk or not x.is_cuda:
        return kernel.fixed_chunk or kernel.unroll
    return max(1, min(100, (1 << 25) // x.numel()))


def run_steps(energy: Any, kernel: Kernel, state: Any, inputs: Any) -> tuple[Any, list[Tensor], list[Info]]:
    """Several steps, eagerly: the state after them, and the positions and infos of each."""
    positions, infos = [], []
    for one in _per_step(inputs):
        state, info = kernel.step(energy, state, one)
        positions.append(kernel.position(state))
        infos.append(info)
    return state, positions, infos


def _stack(infos: list[Info], positions: Tensor) -> tuple[Tensor, Tensor]:
    """Acceptance and divergence `(steps, chains)` of some steps at the given positions."""
    if isinstance(infos[0], MetropolisInfo):
        return judge(torch.stack([i.log_ratio for i in infos]), infos[0].worst)
    if infos[0].acceptance is None or infos[0].diverged is None:
        diverged = ~torch.isfinite(positions).flatten(2).all(2)
        return torch.full_like(diverged, torch.nan, dtype=positions.dtype), diverged
    return torch.stack([i.acceptance for i in infos]), torch.stack([i.diverged for i in infos])  # type: ignore[misc]


def run_chunk(energy: Any, kernel: Kernel, state: Any, inputs: Any) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Several steps: the state after them, and positions, acceptance and divergence of each. The compiled unit."""
    state, positions, infos = run_steps(energy, kernel, state, inputs)
    stacked = torch.stack(positions)
    return state, stacked, *_stack(infos, stacked)


def advance(
    energy: Any, kernel: Kernel, state: Any, steps: int, generator: torch.Generator, start: int = 0
) -> tuple[Any, Tensor, Tensor]:
    """Run `steps` steps and keep nothing but the state: (state, acceptance, diverged), the last two per chain.

    The lean inner loop of the objectives; `energy` is `kernel.target(energy)`, checks are the caller's.
    """
    infos: list[Info] = []
    with torch.no_grad():
        done = 0
        while done < steps:
            k = min(chunk_size(kernel, kernel.position(state)), steps - done)
            inputs = kernel.draw(energy, kernel.position(state), k, generator, start + done)
            state, _, some = run_steps(energy, kernel, state, inputs)
            infos += some
            done += k
        acceptance, diverged = _stack(infos, kernel.position(state)[None])
    return state, acceptance.mean(0), diverged.any(0)


def check_start(energy: Any, x: Tensor, name: str = "x0") -> None:
    """Refuse starting points of the wrong shape, precision, device or domain."""
    domain: Domain = energy.domain
    domain.check(x, name)
    check_placement(x, energy, name)


def clamp_mask(clamp: Tensor | None, x: Tensor, domain: Domain) -> Tensor | None:
    """The clamp, known to be one for chains at x, with the shape of an event or of x."""
    if clamp is None:
        return None
    if not isinstance(clamp, Tensor) or clamp.dtype != torch.bool:
        what = clamp.dtype if isinstance(clamp, Tensor) else type(clamp).__name__
        raise ArgumentError(f"clamp is {what}, expected a bool tensor, True where entries of x0 are held fixed")
    event, whole = tuple(domain.shape), tuple(x.shape)
    if isinstance(domain, Categorical) and clamp.shape in {event[:-1], whole[:-1]}:
        clamp = clamp.unsqueeze(-1).expand(*clamp.shape, domain.classes)
    if tuple(clamp.shape) not in {event, whole}:
        raise ShapeError(
            f"clamp has shape {tuple(clamp.shape)}, expected {event} (all chains alike) or {whole} (per chain)"
        )
    if bool(clamp.all()):
        raise ArgumentError("clamp holds every entry, so nothing is left to sample; set some entries to False")
    return clamp.to(x.device, copy=True)


def _check_counts(steps: int | None, burn_in: int, thin: int) -> None:
    if steps is None:
        raise ArgumentError("say how many steps to run: sample(..., steps=1000)")
    if steps < 1 or int(steps) != steps:
        raise ArgumentError(f"steps={steps}: the number of steps must be a whole number from 1 on")
    if int(burn_in) != burn_in:
        raise ArgumentError(f"burn_in={burn_in}: the number of steps that are not kept must be a whole number")
    if not 0 <= burn_in < steps:
        raise ArgumentError(f"burn_in={burn_in} of steps={steps}: steps counts the burn-in, so burn_in must be smaller")
    if thin < 1 or int(thin) != thin:
        raise ArgumentError(f"thin={thin}: keep every thin-th draw, a whole number from 1 on")


def sample(
    energy: Any,
    kernel: Kernel,
    x0: "Tensor | Trace",
    steps: int | None = None,
    *,
    burn_in: int = 0,
    thin: int = 1,
    keep: bool = True,
    clamp: Tensor | None = None,
    generator: torch.Generator | None = None,
    compile: bool = False,
    progress: bool | None = None,
) -> Trace:
    """Run chains of a kernel on an energy, all at once on the batch axis.

    Args:
        energy: an `Energy` (or, for unadjusted kernels, a `ScoreField`).
        kernel: one of `gibbsian.kernels`, or yours.
        x0: starting points `(chains, *event)`, or a `Trace` to go on from (same kernel, bit for bit on the CPU).
        steps: how many steps, burn-in counted in.
        burn_in: how many of the first steps are not kept.
        thin: keep every thin-th step after the burn-in.
        keep: False keeps only the last state and streamed statistics: memory flat in steps.
        clamp: bool tensor, True for entries that keep their value in x0; of the event shape, or per chain.
        generator: the source of all randomness; required.
        compile: compile chunks of steps (seconds to a minute the first time); on CUDA a chunk also becomes one
            captured graph. Falls back to eager with a `CompileWarning` that says why.
        progress: show a progress bar; by default on a terminal.

    Chains that meet non-finite energies are counted in `trace.divergences` and do not disturb the others; a
    `DivergenceWarning` names them. If every chain ends non-finite, `DivergenceError` is raised.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    >>> trace = gb.sample(target, gb.kernels.MALA(step_size=0.9), torch.zeros(50, 2), steps=200, burn_in=100, generator=g)
    >>> trace.samples.shape
    torch.Size([100, 50, 2])
    >>> more = gb.sample(target, gb.kernels.MALA(step_size=0.9), trace, steps=10, generator=g)
    """
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"kernel is a {type(kernel).__name__}, expected one of gibbsian.kernels, such as kernels.MALA(step_size=0.1)"
        )
    kernel.check(energy)
    steps = kernel.total_steps(energy) if steps is None else steps
    _check_counts(steps, burn_in, thin)
    if steps is None:  # for the type checker: _check_counts has raised
        raise ArgumentError("say how many steps to run")
    with torch.no_grad(), _explained(energy, x0):
        target = kernel.target(energy)
        if isinstance(x0, Trace):
            if clamp is not None:
                raise ArgumentError("a resumed run keeps the clamp of its trace; leave clamp out")
            _check_resumable(x0, kernel, target)
            state, done, clamp, x = x0.state, x0.steps, x0.clamp, x0.last
            kernel = kernel if clamp is None else kernel.clamped(clamp)
        else:
            x = x0
            check_start(energy, x)
            done, clamp = 0, clamp_mask(clamp, x, energy.domain)
            kernel = kernel if clamp is None else kernel.clamped(clamp)
            state = kernel.init(target, x.detach().clone(), clamp)
            _check_energies(state, x)
        generator = require_generator(generator, x.device)

        size = chunk_size(kernel, x)
        fast = compiled_chunk(run_chunk, target, kernel, state, size) if compile else None
        record = _Record(steps, burn_in, thin, keep, x)
        at = 0
        with progress_bar(steps, type(kernel).__name__, progress) as tick:
            while at < steps:
                k = min(size, steps - at)
                inputs = kernel.draw(target, x, k, generator, done + at)
                if fast is not None and k == size:
                    state, *seen = fast(target, kernel, state, inputs)
                    record.add_chunk(*seen)
                else:
                    state, positions, infos = run_steps(target, kernel, state, inputs)
                    record.add_steps(positions, infos)
                if at == 0:
                    check_together(x, kernel.position(state), "x0", "the position after a step")
                at += k
                tick(k)
        record.flush()
        if fast is not None:
            fast.tell(steps // size, size)
            state = pytree.tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, state)
        position = kernel.position(state)
        _report(record.divergences, position, kernel)
        return Trace(
            samples=record.samples,
            last=position,
            acceptance=record.accepted / (steps - burn_in),
            divergences=record.divergences,
            steps=done + steps,
            kernel=kernel,
            state=state,
            clamp=clamp,
            moments=record.moments,
            draw_acceptance=record.acceptance,
            draw_diverged=record.diverged,
            compiled=fast is not None and not fast.reason and steps >= size,
            compile_note=fast.reason if fast is not None else "",
        )


class _Record:
    """What is kept of a run. Eager steps are gathered and worked off many at a time: bookkeeping stays cheap."""

    def __init__(self, steps: int, burn_in: int, thin: int, keep: bool, x: Tensor) -> None:
        self.burn_in, self.thin, self.at = burn_in, thin, 0
        draws = -(-(steps - burn_in) // thin)
        self.moments = None if keep else StreamingMoments(draws)
        self.samples = x.new_empty(draws, *x.shape) if keep else None
        self.acceptance = x.new_empty(draws, len(x)) if keep else None
        self.diverged = x.new_empty(draws, len(x), dtype=torch.bool) if keep else None
        self.accepted = torch.zeros((), dtype=torch.float64, device=x.device)
        self.divergences = torch.zeros(len(x), dtype=torch.long, device=x.device)
        self.waiting: Steps = ([], [])
        self.chunks: list[tuple[Tensor, Tensor, Tensor]] = []
        self.ahead = 0
        self.enough = max(1, min(64, (1 << 20) // x.numel()))

    def add_steps(self, positions: list[Tensor], infos: list[Info]) -> None:
        """Take in eager steps."""
        self.waiting[0].extend(positions)
        self.waiting[1].extend(infos)
        if len(self.waiting[0]) >= self.enough:
            self.flush()

    def flush(self) -> None:
        """Work off the steps that have been gathered."""
        if self.chunks:  # compiled chunks come first; eager steps are the remainder of a run
            positions, acceptance, diverged = (
                torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*self.chunks, strict=True)
            )
            self.chunks, self.ahead = [], 0
            self._take(positions, (acceptance, diverged))
        steps, infos = self.waiting
        self.waiting = ([], [])
        if steps:
            self._take(steps, infos)

    def add_chunk(self, positions: Tensor, acceptance: Tensor, diverged: Tensor) -> None:
        """Take in a compiled chunk; a captured one is copied before the next overwrites it."""
        self.chunks.append((positions, acceptance, diverged))
        self.ahead += len(positions)
        if positions.is_cuda or self.ahead >= 8 * self.enough:
            self.flush()

    def _take(self, positions: "Tensor | list[Tensor]", info: "list[Info] | tuple[Tensor, Tensor]") -> None:
        n = len(positions)
        burnt = max(0, self.burn_in - self.at)
        first = burnt + -(self.at + burnt - self.burn_in) % self.thin
        kept = positions[first :: self.thin]
        start = (self.at + first - self.burn_in) // self.thin
        stacked = positions if isinstance(positions, Tensor) else None
        if len(kept) and self.samples is not None:
            place = self.samples[start : start + len(kept)]
            if isinstance(kept, Tensor):
                place.copy_(kept)
            else:
                torch.stack(kept, out=place)
                stacked = place if len(kept) == n else None
        elif len(kept) and self.moments is not None:
            self.moments.update(kept if isinstance(kept, Tensor) else torch.stack(kept))
        if isinstance(info, list):
            if stacked is None:
                bare = isinstance(info[0], Info) and info[0].diverged is None
                stacked = torch.stack(list(positions)) if bare else positions[0][None]
            info = _stack(info, stacked)
        acceptance, diverged = info
        self.divergences += diverged.sum(0)
        if burnt < n:
            self.accepted += acceptance[burnt:].mean(1, dtype=torch.float64).sum()
        if len(kept) and self.acceptance is not None and self.diverged is not None:
            self.acceptance[start : start + len(kept)] = acceptance[first :: self.thin]
            self.diverged[start : start + len(kept)] = diverged[first :: self.thin]
        self.at += n


def _check_resumable(trace: Trace, kernel: Kernel, target: Any) -> None:
    """A state belongs to its kind of kernel, and holds energies that must still be those of the model."""
    if type(kernel) is not type(trace.kernel):
        raise ArgumentError(
            f"the trace is one of {type(trace.kernel).__name__} and cannot be resumed with {type(kernel).__name__}; "
            "start anew from its positions: sample(energy, kernel, trace.last, ...)"
        )
    cached = getattr(trace.state, "energy", None)
    if cached is None or cached.shape != trace.last.shape[:1]:
        return
    now = target(trace.last)
    if not torch.allclose(now, cached, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ArgumentError(
            "the energy is not the one that the trace was run on (its parameters have changed, or it is another), so "
            "the energies in its state are out of date; start anew: sample(energy, kernel, trace.last, ...)"
        )


@contextmanager
def _explained(energy: Any, x0: Any) -> Iterator[None]:
    """Say so when torch stumbles over a model in another precision or on another device than the chains."""
    try:
        yield
    except RuntimeError as error:
        x = x0.last if isinstance(x0, Trace) else x0
        if isinstance(error, GibbsianError) or not isinstance(x, Tensor) or not isinstance(energy, nn.Module):
            raise
        check_placement(x, energy, "x0", buffers=True)
        raise


def _check_energies(state: Any, x: Tensor) -> None:
    energy = getattr(state, "energy", None)
    for what, t in (("energy", energy), ("score", getattr(state, "score", None))):
        if t is not None:
            check_together(x, t, "x0", f"the {what} there")
    if energy is None:
        return
    bad = ~torch.isfinite(energy.flatten())
    if bool(bad.any()):
        index = int(bad.nonzero()[0])
        raise DomainError(
            f"the energy at x0[{index}] is {float(energy.flatten()[index])} ({int(bad.sum())} of {bad.numel()} chains); "
            "start every chain where the energy is finite"
        )


def _report(diverged: Tensor, position: Tensor, kernel: Kernel) -> None:
    lost = ~torch.isfinite(position).flatten(1).all(1)
    name = type(kernel).__name__
    if bool(lost.all()):
        raise DivergenceError(
            f"all {len(lost)} chains of {name} became non-finite; use a smaller step size, or check the energy"
        )
    if bool(lost.any()):
        warnings.warn(
            f"{int(lost.sum())} of {len(lost)} chains of {name} became non-finite (the first is chain {int(lost.nonzero()[0])}); "
            "the others are unaffected; use a smaller step size, or drop them with trace.divergences",
            DivergenceWarning,
            stacklevel=3,
        )
    elif bool((diverged > 0).any()):
        warnings.warn(
            f"{int((diverged > 0).sum())} of {len(diverged)} chains of {name} had divergent steps ({int(diverged.sum())} in all), "
            "which were refused; a smaller step size explores such regions, see trace.divergences",
            DivergenceWarning,
            stacklevel=3,
        )
