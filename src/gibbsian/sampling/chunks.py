"""Making steps: one after the other, in chunks whose random numbers are drawn before them.

They come from the caller's generator and enter as tensors, so eager and compiled chains agree on the same seed, and on
the CPU a run does not depend on how it is cut in chunks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gibbsian.kernels.base import FreeRunning, Info, Kernel, MetropolisInfo, judge
from gibbsian.trees import is_named, mapped

Steps = tuple[Any, list[Tensor], list[Info]]  # the state after some steps, and positions and info of each


def chunk_size(kernel: Kernel, x: Tensor, compile: bool = False) -> int:
    """Steps whose random numbers are drawn at a time: what is replayed in one loop, on CUDA what is captured in one graph
    (there eager runs draw alike, so that both see the same numbers; on the CPU numbers do not depend on the cut)."""
    if kernel.draws_in_steps:
        return 1
    if isinstance(kernel, FreeRunning):  # the more iterations, the less the slowest chain is waited for
        return max(1, min(1000, (1 << 23) // x.numel()))
    if x.is_cuda:
        return max(1, min(100, (1 << 25) // x.numel()))
    if compile:
        return max(1, min(2000, (1 << 19) // x.numel()))  # they stay near the processor
    return max(1, min(kernel.unroll, (1 << 22) // x.numel()))  # numbers of large states stay near the processor


def _per_step(inputs: Any) -> Any:
    """Cut inputs with a leading step axis into the inputs of single steps."""
    if isinstance(inputs, Tensor):
        return inputs.unbind(0)
    if not isinstance(inputs, tuple):
        return inputs
    kind, parts = type(inputs), [_per_step(part) for part in inputs]
    # neither a generator nor `_make`: the compilers of Python 3.13 and of torch 2.6 trip over them
    return [kind(*one) if is_named(kind) else one for one in zip(*parts, strict=True)]


def _aligned(inputs: Any) -> Any:
    """Inputs whose single numbers lie where compiled kernels take them: anything not at a multiple of 16 bytes they copy first.

    >>> steps = _aligned((torch.arange(3.0), torch.zeros(3, 2)))
    >>> steps[0].tolist(), steps[0].stride()
    ([0.0, 1.0, 2.0], (4,))
    """

    def apart(t: Any) -> Any:
        return t[:, None].repeat(1, 16 // t.element_size())[:, 0] if isinstance(t, Tensor) and t.dim() == 1 else t

    return mapped(apart, inputs)


def one_step(energy: Any, kernel: Kernel, state: Any, inputs: Any) -> tuple[Any, Any]:
    """One step, as a function of all that it depends on."""
    return kernel.step(energy, state, inputs)


def run_steps(energy: Any, kernel: Kernel, state: Any, inputs: Any, step: Callable[..., Any] = one_step) -> Steps:
    """Several steps: the state after them, and the positions and infos of each."""
    if isinstance(kernel, FreeRunning):
        state, places, info = kernel.run(energy, state, inputs)
        return state, list(places.unbind(0)), _per_step(info)
    positions, infos = [], []
    for one in _per_step(inputs):
        state, info = step(energy, kernel, state, one)
        positions.append(kernel.position(state))
        infos.append(info)
    return state, positions, infos


def told(info: Any, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Acceptance and divergence `(steps, chains)` from the info of some steps, with their axis first, and the positions."""
    if isinstance(info, MetropolisInfo):
        return judge(info.log_ratio, info.worst)
    if info.acceptance is None or info.diverged is None:
        diverged = ~torch.isfinite(positions).flatten(2).all(2)
        return torch.full_like(diverged, torch.nan, dtype=positions.dtype), diverged
    return info.acceptance, info.diverged


def stacked(infos: list[Info], positions: Tensor) -> tuple[Tensor, Tensor]:
    """Acceptance and divergence `(steps, chains)` of some steps at the given positions."""
    if isinstance(infos[0], MetropolisInfo):
        return told(MetropolisInfo(torch.stack([i.log_ratio for i in infos]), infos[0].worst), positions)
    if infos[0].acceptance is None or infos[0].diverged is None:
        return told(infos[0], positions)
    return torch.stack([i.acceptance for i in infos]), torch.stack([i.diverged for i in infos])  # type: ignore[misc]


def run_chunk(
    energy: Any, kernel: Kernel, state: Any, inputs: Any, step: Callable[..., Any] = one_step
) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Several steps: the state after them, and positions, acceptance and divergence of each. The compiled unit."""
    state, positions, infos = run_steps(energy, kernel, state, inputs, step)
    places = torch.stack(positions)
    return state, places, *stacked(infos, places)


def advance(
    energy: Any,
    kernel: Kernel,
    state: Any,
    steps: int,
    generator: torch.Generator,
    start: int = 0,
    step: Callable[..., Any] = one_step,
) -> tuple[Any, Tensor, Tensor]:
    """Run `steps` steps and keep nothing but the state: (state, acceptance, diverged), the last two per chain. The lean
    inner loop of the objectives; `energy` is `kernel.target(energy)`, checks are the caller's."""
    infos: list[Info] = []
    with torch.no_grad():
        done = 0
        while done < steps:
            k = min(chunk_size(kernel, kernel.position(state)), steps - done)
            inputs = kernel.draw(energy, kernel.position(state), k, generator, start + done)
            inputs = inputs if step is one_step else _aligned(inputs)
            state, _, some = run_steps(energy, kernel, state, inputs, step)
            infos += some
            done += k
        acceptance, diverged = stacked(infos, kernel.position(state)[None])
    return state, acceptance.mean(0), diverged.any(0)
