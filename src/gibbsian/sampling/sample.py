"""Running kernels, `sample`: the kernel that is asked for or recommended, in one process or spread over several."""

from typing import Any

import torch
from torch import Tensor

from gibbsian.distributed.shards import Shards, Share
from gibbsian.errors import ArgumentError
from gibbsian.kernels.base import Kernel
from gibbsian.random import require_generator
from gibbsian.sampling import checks
from gibbsian.sampling.chains import Plan, run_chains
from gibbsian.sampling.recommend import recommend
from gibbsian.sampling.spread import spread
from gibbsian.sampling.trace import Trace
from gibbsian.sampling.warm_up import warm_up


def sample(
    energy: Any,
    kernel: Kernel | str,
    x0: "Tensor | Share | Trace",
    steps: int | None = None,
    *,
    burn_in: int = 0,
    thin: int = 1,
    keep: bool = True,
    clamp: Tensor | None = None,
    generator: "torch.Generator | Shards | None" = None,
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
        generator: the source of all randomness; required. `distributed.Shards(seed)` spreads the chains over the processes of
            a job: the trace is then a `SpreadTrace`, which holds this process's share.
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
    plan = Plan(*checks.check_counts(total, burn_in, thin), keep, compile, progress, reason)
    if not isinstance(generator, Shards):
        return run_chains(energy, kernel, x0, clamp, generator, plan)
    quiet = plan._replace(progress=False)

    def shard(start: Any, held: Tensor | None, stream: torch.Generator, chains: int) -> Trace:
        return run_chains(energy, kernel, start, held, stream, quiet, chains)

    return spread(shard, x0, clamp, generator, type(kernel).__name__, progress)


def _chosen(
    energy: Any,
    kernel: str,
    x0: "Tensor | Share | Trace",
    clamp: Tensor | None,
    generator: "torch.Generator | Shards | None",
    progress: bool | None,
) -> tuple[Kernel, "Tensor | Share | Trace", Tensor | None, str]:
    """The recommended kernel, warmed up, where its chains are and what they hold, and why it was chosen."""
    if kernel != "auto":
        raise ArgumentError(
            f"kernel={kernel!r}: give a kernel, such as kernels.NUTS(0.1), or 'auto' for the recommended one"
        )
    if isinstance(x0, Trace):
        return x0.kernel, x0, clamp, x0.reason
    rows = x0.rows if isinstance(x0, Share) else x0
    checks.check_start(energy, rows)
    chosen = recommend(energy, x0.total if isinstance(x0, Share) else len(rows))
    if not chosen.warm_up:
        return chosen.kernel, x0, clamp, chosen.reason
    if not isinstance(generator, Shards):
        generator = require_generator(generator, rows.device)
    warmed = warm_up(energy, chosen.kernel, x0, chosen.warm_up, clamp=clamp, generator=generator, progress=progress)
    return warmed.kernel, warmed.trace, None, chosen.reason
