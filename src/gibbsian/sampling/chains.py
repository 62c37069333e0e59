"""Running the chains of one process: x0 → kernel.init → [chunk of K steps] → keep or stream → Trace."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError
from gibbsian.kernels.base import Kernel
from gibbsian.placement import check_together
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator
from gibbsian.sampling import checks
from gibbsian.sampling.chunks import chunk_size
from gibbsian.sampling.compiled import CompiledSteps, EagerSteps
from gibbsian.sampling.record import Record
from gibbsian.sampling.trace import Trace


class Plan(NamedTuple):
    """How long chains run, what is kept of them, and how they are run."""

    steps: int
    burn_in: int
    thin: int
    keep: bool
    compile: bool
    progress: bool | None
    reason: str


def run_chains(
    energy: Any,
    kernel: Kernel,
    x0: Any,
    clamp: Tensor | None,
    generator: torch.Generator | None,
    plan: Plan,
    crowd: int | None = None,
) -> Trace:
    """Chains of this process; as a share of a `crowd` what is wrong with them is left for others to say."""
    steps, burn_in, thin, keep, compile, progress, reason = plan
    with torch.no_grad(), checks.explained(energy, x0.last if isinstance(x0, Trace) else x0):
        target = kernel.target(energy)
        kernel, state, x, clamp, done = _start(energy, target, kernel, x0, clamp)
        generator = require_generator(generator, x.device)
        size = chunk_size(kernel, x, compile)
        record = Record(steps, burn_in, thin, keep, x, crowd)
        with progress_bar(steps, type(kernel).__name__, progress) as tick:
            engine = EagerSteps(target, kernel)
            if compile:
                engine = CompiledSteps(target, kernel, state, size, lambda text: tick(0, note=text))
            for at in range(0, steps, size):
                count = min(size, steps - at)
                inputs = kernel.draw(target, x, count, generator, done + at)
                state = engine.run(state, inputs, count, record)
                if at == 0:
                    check_together(x, kernel.position(state), "x0", "the position after a step")
                tick(count)
        record.flush()
        state = engine.end(state)
        position = kernel.position(state)
        if crowd is None:
            checks.report_divergence(checks.Trouble.of(record.divergences, position), len(position), kernel)
        checks.report_rounding(kernel, state, len(position))
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
            stats=record.stats,
            compiled=engine.compiled,
            compile_note=engine.note,
            reason=reason,
        )


def _start(
    energy: Any, target: Any, kernel: Kernel, x0: "Tensor | Trace", clamp: Tensor | None
) -> tuple[Kernel, Any, Tensor, Tensor | None, int]:
    """The kernel that fits the clamp, its state and positions, the clamp, and the steps that lie behind."""
    if isinstance(x0, Trace):
        if clamp is not None:
            raise ArgumentError("a resumed run keeps the clamp of its trace; leave clamp out")
        checks.check_resumable(x0, kernel, energy, target)
        kernel = kernel if x0.clamp is None else kernel.clamped(x0.clamp)
        return kernel, x0.state, x0.last, x0.clamp, x0.steps
    checks.check_start(energy, x0)
    clamp = checks.clamp_mask(clamp, x0, energy.domain)
    kernel = kernel if clamp is None else kernel.clamped(clamp)
    state = kernel.init(target, x0.detach().clone(), clamp)
    checks.check_energies(kernel, state, x0)
    return kernel, state, x0, clamp, 0
