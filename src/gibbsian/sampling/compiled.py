"""How `sample` makes its steps: eagerly, or compiled where that can be done, telling what it cost and saved.

One step is compiled, never a chunk of them: on the CPU it is replayed in a C loop, on CUDA many are captured as one
graph. Parameters are read where they live, step sizes and schedules are inputs, so changing their values never
triggers a recompilation. Only the step is compiled, never the module: checkpoints keep clean names.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gibbsian.errors import CompileWarning
from gibbsian.fast.compiled import compiled, reason, weak_cache, without_collector
from gibbsian.fast.graphs import Pool, fixed_copy, tensors_of
from gibbsian.kernels.base import FreeRunning, Kernel
from gibbsian.sampling.chunks import run_steps
from gibbsian.sampling.engines import Engine, Made, engine_for
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
            record.add_chunk(places, info.acceptance, info.diverged, info.stats())
            return state
        state, positions, infos = run_steps(self.energy, self.kernel, state, inputs)
        record.add_steps(positions, infos)
        return state

    def end(self, state: Any) -> Any:
        """The last state, in memory that nobody else writes to."""
        return state


@dataclass
class _Chunk:
    """The compiled form of some steps: made at its first use and then kept for the energy, or the reason why there is none."""

    failure: str = ""
    engine: Engine | None = None
    kernel: Kernel | None = None  # keeps the tensors alive whose addresses are captured


_chunk = weak_cache(lambda energy, *key: _Chunk())
_pool = weak_cache(lambda energy: Pool())
_compiled = weak_cache(lambda energy, function, numbers, *key: compiled(function, *numbers))


def _compiler(key: tuple[Any, ...]) -> Callable[..., Callable[..., Any]]:
    """What compiles a function for an energy, once for each key, with some numbers left open; it holds no energy."""
    return lambda energy, function, *numbers: _compiled(energy, function, numbers, *key)


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
    """The same steps compiled; eager ones, saying why, where that fails."""

    def __init__(
        self, energy: Any, kernel: Kernel, state: Any, size: int, say: Callable[[str], None] = lambda text: None
    ) -> None:
        super().__init__(energy, kernel)
        self.size, self.steps, self.say = size, 0, say
        self.seconds = self.running = 0.0  # spent compiling, and since
        self.eager = 0.0  # seconds of an eager step
        self.captured = any(t.is_cuda for t in tensors_of(state))
        self.key = _signature(kernel, state, self._length())
        if kernel.draws_in_steps:
            self.chunk = _Chunk(kernel.draws_in_steps)
            warnings.warn(f"sampling eagerly, because {self.note}", CompileWarning, stacklevel=3)
        else:
            self.chunk = _chunk(energy, *self.key, *self._addresses())
            if self.chunk.engine is not None:
                self.chunk.engine.renew()

    def _length(self) -> int:
        """Steps for which a form is compiled; those that are replayed one by one are compiled for any number."""
        return self.size if self.captured or isinstance(self.kernel, FreeRunning) else 0

    def _addresses(self) -> tuple[int, ...]:
        """What a captured graph holds besides: the tensors of kernel and energy, wherever they live."""
        if not self.captured:
            return ()
        inputs = {id(value) for value in self.kernel.schedules()}  # these go in with every chunk
        own = tensors_of([value for value in vars(self.kernel).values() if id(value) not in inputs])
        return tuple(t.data_ptr() for t in (*own, *self.energy.parameters(), *self.energy.buffers()))

    @property
    def note(self) -> str:  # type: ignore[override]
        return self.chunk.failure or (self.chunk.engine.obstacle if self.chunk.engine else "") or ""

    @property
    def compiled(self) -> bool:  # type: ignore[override]
        return self.steps > 0 and not self.chunk.failure

    def run(self, state: Any, inputs: Any, count: int, record: Record) -> Any:
        whole = count == self.size or not self.captured or isinstance(self.kernel, FreeRunning)
        if self.chunk.failure or not (whole or self.chunk.engine):
            return super().run(state, inputs, count, record)
        made = self.make(state, inputs)
        if made is None:
            return super().run(state, inputs, count, record)
        self.steps += count
        record.add_chunk(*made[1:])
        return made[0]

    def make(self, state: Any, inputs: Any) -> Made | None:
        """The steps of these inputs; None, saying why, where they cannot be compiled."""
        if self.chunk.failure:
            return None
        arguments = self.energy, self.kernel, state, inputs
        start = time.perf_counter()
        if self.chunk.engine is not None:
            made = self.chunk.engine(*arguments)
            self.running += time.perf_counter() - start
            return made
        self.eager = self._eager_seconds(state, inputs)
        self.say(f"compiling {type(self.kernel).__name__} (some seconds, the first time)")
        pool = _pool(self.energy) if self.captured else None
        engine = engine_for(self.energy, self.kernel, self.size, _compiler(self.key), pool)
        try:
            with without_collector():
                made = engine(*arguments)
        except RuntimeError as error:  # it runs eagerly: what fails is the compiler or the capture
            why = f"{engine.failure}; nor captured as it is: {reason(error)}" if engine.failure else reason(error)
            self.chunk.failure = f"{type(self.energy).__name__} cannot be compiled: {why}"
            warnings.warn(
                f"sampling eagerly, because {self.note}. Energies that branch on values, differentiate inside "
                "themselves or leave PyTorch cannot be compiled",
                CompileWarning,
                stacklevel=4,
            )
            return None
        finally:
            self.say("")
        self.seconds = time.perf_counter() - start
        self.chunk.engine, self.chunk.kernel = engine, self.kernel
        return made

    def _eager_seconds(self, state: Any, inputs: Any) -> float:
        """What one eager step takes, the better of two."""
        one = pytree.tree_map(lambda t: t[0], inputs)
        best = float("inf")
        for _ in range(2):
            start = time.perf_counter()
            self.kernel.step(self.energy, state, one)
            if self.captured:
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        return best

    def end(self, state: Any) -> Any:
        """The last state, copied out of the graph; warns when the compilation of this run cost more than it saved."""
        saved = max(0.0, self.eager * self.steps - self.running)
        if self.compiled and saved < self.seconds:
            pays = int(self.seconds / max(saved, 1e-9) * self.steps)
            worth = f"it pays from about {pays} steps" if saved > 0 else "eager is as fast here"
            warnings.warn(
                f"compiling took {self.seconds:.1f} s and {self.steps} steps saved {saved:.1f} s: {worth}; "
                "further runs with this energy and shape reuse what was compiled",
                CompileWarning,
                stacklevel=3,
            )
        return fixed_copy(state)
