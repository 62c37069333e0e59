"""How `sample` makes its steps: eagerly, or compiled where that can be done, telling what it cost and saved.

On the CPU a chunk of unrolled steps is one compiled graph. On CUDA one step is compiled and a chunk of them is
captured as one CUDA graph, because unrolled compilation grows without bound there and launches are what costs.
Parameters are read where they live, step sizes and schedules are inputs, so changing their values never
triggers a recompilation. Only the chunk is compiled, never the module: checkpoints keep clean names.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gibbsian.errors import CompileWarning
from gibbsian.fast.compiled import compiled, weak_cache
from gibbsian.fast.graphs import CapturedChunk, Pool, fixed_copy, tensors_of
from gibbsian.kernels.base import FreeRunning, Kernel
from gibbsian.sampling.chunks import one_step, run_chunk, run_steps
from gibbsian.sampling.record import Record


class EagerSteps:
    """Steps of a kernel on an energy, as PyTorch runs them."""

    compiled = False  # whether steps ran compiled
    note = ""  # why not, where that was asked for

    def __init__(self, energy: Any, kernel: Kernel) -> None:
        self.energy, self.kernel = energy, kernel

    def run(self, state: Any, inputs: Any, count: int, record: Record) -> Any:
        """`count` steps, taken down in the record: the state after them."""
        if isinstance(self.kernel, FreeRunning):
            state, places, info = self.kernel.run(self.energy, state, inputs)
            record.add_run(places, info)
            return state
        state, positions, infos = run_steps(self.energy, self.kernel, state, inputs)
        record.add_steps(positions, infos)
        return state

    def end(self, state: Any) -> Any:
        """The last state, in memory that nobody else writes to."""
        return state


@dataclass
class _Chunk:
    """The compiled form of a chunk: made at its first use and then kept for the energy, or the reason why there is none."""

    failure: str = ""
    fast: Callable[..., Any] | None = None
    kernel: Kernel | None = None  # keeps the tensors alive whose addresses are captured


_chunk = weak_cache(lambda energy, *key: _Chunk())
_pool = weak_cache(lambda energy: Pool())
_compiled_step = weak_cache(lambda energy, *key: compiled(one_step))


def _signature(kernel: Kernel, state: Any, size: int) -> tuple[Any, ...]:
    """What a compiled graph depends on: kinds, shapes and whole-number options, but no values that are inputs."""

    def token(value: Any) -> Any:
        if isinstance(value, Tensor | float):
            return "value"
        if isinstance(value, tuple):
            return tuple(tuple(v.shape) if isinstance(v, Tensor) else token(v) for v in value)
        return id(value) if callable(value) else str(value)

    shapes = tuple((tuple(t.shape), t.dtype, t.device) for t in tensors_of(state))
    return type(kernel), size, shapes, tuple((name, token(value)) for name, value in vars(kernel).items())


class CompiledSteps(EagerSteps):
    """The same steps, those of whole chunks compiled; eager ones, saying why, where that fails."""

    def __init__(self, energy: Any, kernel: Kernel, state: Any, size: int) -> None:
        super().__init__(energy, kernel)
        self.size, self.chunks = size, 0
        self.seconds = 0.0  # spent compiling in this run
        self.saves = 0.0  # seconds saved by each chunk
        self.captured = any(t.is_cuda for t in tensors_of(state))
        self.key = _signature(kernel, state, size)
        if kernel.draws_in_steps:
            self.chunk = _Chunk(kernel.draws_in_steps)
            warnings.warn(f"sampling eagerly, because {self.note}", CompileWarning, stacklevel=3)
        else:
            self.chunk = _chunk(energy, *self.key, *self._addresses())

    def _addresses(self) -> tuple[int, ...]:
        """What a captured graph holds besides: the tensors of kernel and energy, wherever they live."""
        if not self.captured:
            return ()
        inputs = {id(value) for value in self.kernel.schedules()}  # these go in with every chunk
        own = tensors_of([value for value in vars(self.kernel).values() if id(value) not in inputs])
        return tuple(t.data_ptr() for t in (*own, *self.energy.parameters(), *self.energy.buffers()))

    @property
    def note(self) -> str:  # type: ignore[override]
        return self.chunk.failure

    @property
    def compiled(self) -> bool:  # type: ignore[override]
        return self.chunks > 0 and not self.note

    def run(self, state: Any, inputs: Any, count: int, record: Record) -> Any:
        if self.note or count < self.size:
            return super().run(state, inputs, count, record)
        self.chunks += 1
        arguments = self.energy, self.kernel, state, inputs
        state, *made = self._first(*arguments) if self.chunk.fast is None else self.chunk.fast(*arguments)
        record.add_chunk(*made)
        return state

    def _first(self, *arguments: Any) -> Any:
        """Compile, and measure what that costs and saves."""
        plain = _seconds(run_chunk, arguments)
        start = time.perf_counter()
        step = _compiled_step(self.energy, *self.key) if self.captured else None
        fast = compiled(run_chunk) if step is None else CapturedChunk(run_chunk, step, _pool(self.energy))
        try:
            fast(*arguments)
        except RuntimeError as error:  # it runs eagerly: what fails is the compiler or the capture
            self.chunk.failure = f"{type(self.energy).__name__} cannot be compiled: {_first_line(error)}"
            warnings.warn(
                f"sampling eagerly, because {self.note}. Energies that branch on values, differentiate inside "
                "themselves or leave PyTorch cannot be compiled",
                CompileWarning,
                stacklevel=4,
            )
            return run_chunk(*arguments)
        self.seconds = time.perf_counter() - start
        self.saves = plain - _seconds(fast, arguments)
        self.chunk.fast, self.chunk.kernel = fast, self.kernel
        return fast(*arguments)

    def end(self, state: Any) -> Any:
        """The last state, copied out of the graph; warns when the compilation of this run cost more than it saved."""
        saved = max(self.saves, 0.0) * self.chunks
        if self.compiled and saved < self.seconds:
            pays = int(self.seconds / self.saves) * self.size if self.saves > 0 else 0
            worth = f"it pays from about {pays} steps" if pays else "eager is as fast here"
            warnings.warn(
                f"compiling took {self.seconds:.1f} s and {self.chunks * self.size} steps saved {saved:.1f} s: {worth}; "
                "further runs with this energy and shape reuse the graph",
                CompileWarning,
                stacklevel=3,
            )
        return fixed_copy(state)


def _seconds(run: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """The time of a chunk, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        _, positions, *_ = run(*arguments)
        if positions.is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
