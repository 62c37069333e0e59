"""Running kernels, `sample`: x0 → kernel.init → [chunk of K steps] → keep or stream → Trace."""

from typing import Any

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
from gibbsian.sampling.recommend import recommend
from gibbsian.sampling.record import Record
from gibbsian.sampling.trace import Trace
from gibbsian.sampling.warm_up import warm_up


def sample(
    energy: Any,
    kernel: Kernel | str,
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
        kernel: one of `gibbsian.kernels`, or yours; or "auto" for the one that `gibbsian.recommend` names, warmed up: then `steps`
            are those after the warm-up, and `trace.reason` says why it was chosen.
        x0: starting points `(chains, *event)`, or a `Trace` to go on from (same kernel, bit for bit on the CPU).
        steps: how many steps, burn-in counted in.
        burn_in: how many of the first steps are not kept.
        thin: keep every thin-th step after the burn-in.
        keep: False keeps only the last state and streamed statistics: memory flat in steps.
        clamp: bool tensor, True for entries that keep their value in x0; of the event shape, or per chain.
        generator: the source of all randomness; required.
        compile: compile a step (seconds, the first time) and replay it in a C loop; on CUDA many become one captured
            graph. Falls back to eager with a `CompileWarning` that says why.
        progress: show a progress bar; by default on a terminal.

    Chains that meet non-finite energies are counted in `trace.divergences` and do not disturb the others; a
    `DivergenceWarning` names them. If every chain ends non-finite, `DivergenceError` is raised. Energies too large for
    their precision (10⁸ in single precision is known to ±4) get a `PrecisionWarning`: acceptance tests would judge rounding.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    >>> trace = gb.sample(target, gb.kernels.MALA(step_size=0.9), torch.zeros(50, 2), steps=200, burn_in=100, generator=g)
    >>> trace.samples.shape
    torch.Size([100, 50, 2])
    >>> more = gb.sample(target, gb.kernels.MALA(step_size=0.9), trace, steps=10, generator=g)
    """
    reason = ""
    if isinstance(kernel, str):
        kernel, x0, clamp, reason = _chosen(energy, kernel, x0, clamp, generator, progress)
    checks.check_kernel(kernel, energy)
    total = kernel.total_steps(energy) if steps is None else steps
    steps, burn_in, thin = checks.check_counts(total, burn_in, thin)
    with torch.no_grad(), checks.explained(energy, x0.last if isinstance(x0, Trace) else x0):
        target = kernel.target(energy)
        kernel, state, x, clamp, done = _start(energy, target, kernel, x0, clamp)
        generator = require_generator(generator, x.device)
        size = chunk_size(kernel, x, compile)
        record = Record(steps, burn_in, thin, keep, x)
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
        checks.report_divergence(record.divergences, position, kernel)
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


def _chosen(
    energy: Any,
    kernel: str,
    x0: "Tensor | Trace",
    clamp: Tensor | None,
    generator: torch.Generator | None,
    progress: bool | None,
) -> tuple[Kernel, "Tensor | Trace", Tensor | None, str]:
    """The recommended kernel, warmed up, where its chains are and what they hold, and why it was chosen."""
    if kernel != "auto":
        raise ArgumentError(
            f"kernel={kernel!r}: give a kernel, such as kernels.NUTS(0.1), or 'auto' for the recommended one"
        )
    if isinstance(x0, Trace):
        return x0.kernel, x0, clamp, x0.reason
    checks.check_start(energy, x0)
    chosen = recommend(energy, len(x0))
    if not chosen.warm_up:
        return chosen.kernel, x0, clamp, chosen.reason
    generator = require_generator(generator, x0.device)
    warmed = warm_up(energy, chosen.kernel, x0, chosen.warm_up, clamp=clamp, generator=generator, progress=progress)
    return warmed.kernel, warmed.trace, None, chosen.reason


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
