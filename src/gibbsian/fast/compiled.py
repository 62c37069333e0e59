"""Compiled sampling: chunks of steps with the noise as an input.

On the CPU a chunk of unrolled steps is one compiled graph. On CUDA one step is compiled and a chunk of them is
captured as one CUDA graph, because unrolled compilation grows without bound there and launches are what costs.
Parameters are read where they live, step sizes and schedules are inputs, so changing their values never
triggers a recompilation. Only the chunk is compiled, never the module: checkpoints keep clean names.
"""

import functools
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gibbsian.errors import CompileWarning

__all__ = ["Chunk", "compiled_chunk", "compiled_copy", "fusing", "stepping", "watched"]

Runner = Callable[[Any, Any, Any, Any], tuple[Any, Tensor, Tensor, Tensor]]

_cache: "weakref.WeakKeyDictionary[nn.Module, dict[Any, Any]]" = weakref.WeakKeyDictionary()


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's table for the CPU, with two changes.

    Products with one inner or at most four outer columns (the last layer of an energy, and the gradient in a
    point of the plane) are written out so that they fuse with their neighbors: a BLAS call costs up to
    ten times their arithmetic. SiLU shares its exponential with its derivative.
    """
    from torch._inductor.decomposition import select_decomp_table

    aten = torch.ops.aten
    table = dict(select_decomp_table())
    usual = table.get(aten.mm.default)

    def mm(a: Tensor, b: Tensor, *rest: Any) -> Any:
        if not rest:
            if a.shape[1] == 1:
                return a * b
            if b.shape[1] <= 4:
                return torch.stack([(a * b[:, j]).sum(1) for j in range(b.shape[1])], 1)
        return usual(a, b, *rest) if usual is not None else NotImplemented

    def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        thin = a.shape[1] == 1 or b.shape[1] <= 4
        if thin and beta == 1 and alpha == 1:
            return bias + mm(a, b)
        return NotImplemented

    def silu(x: Tensor) -> Any:
        return x * torch.sigmoid(x)

    table[aten.mm.default] = mm
    table[aten.addmm.default] = addmm
    table[aten.silu.default] = silu
    return table


def _backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
    from torch._inductor.compile_fx import compile_fx

    # Unrolled element-wise chains are otherwise fused without limit: minutes instead of seconds.
    patches = {"realize_opcount_threshold": 8}
    on_cpu = all(t.device.type == "cpu" for t in inputs if isinstance(t, Tensor))
    table = _decompositions() if on_cpu else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # advice on how to set the compiler and its precision
        return compile_fx(graph, inputs, config_patches=patches, decompositions=table)


def _fresh(function: Any) -> Any:
    """A copy of a function with its own code object: the compiler's cache and its limit belong to the code."""
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    return torch.compile(copy, fullgraph=True, dynamic=False, backend=_backend)


@functools.cache
def compiled_copy(function: Any, *key: Any) -> Any:
    """A compiled copy of a function of tensors, one for each key (what it compiles for). Compiling takes seconds, so
    only steps that are repeated very often ask for it."""
    return _fresh(function)


_fusing, _watched = False, True


@contextmanager
def stepping(*, fusing: bool, watched: bool) -> Iterator[None]:
    """Inside is one training step. With `fusing`, algorithms that offer it run their element-wise parts as compiled
    kernels (see `compiled_copy`); without `watched` they leave out what is only looked at (see `watched`)."""
    global _fusing, _watched
    before = _fusing, _watched
    _fusing, _watched = fusing, watched
    try:
        yield
    finally:
        _fusing, _watched = before


def watched() -> bool:
    """Will anybody look at the metrics of this step?"""
    return _watched


def fusing() -> bool:
    """May this step be compiled?"""
    return _fusing


def _compile_errors() -> tuple[type[BaseException], ...]:
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError

    return (TorchDynamoException, InductorError)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


class Chunk:
    """A chunk of steps that is compiled at its first call, and runs eagerly, saying why, if that fails."""

    def __init__(self, eager: Runner) -> None:
        self.eager = eager
        self.reason = ""  # why it is eager
        self.fast: Runner | None = None
        self.seconds = 0.0  # spent compiling
        self.saves = 0.0  # seconds saved by each later call

    def _build(self) -> Runner:
        return _fresh(self.eager)

    def __call__(self, energy: Any, kernel: Any, state: Any, inputs: Any) -> tuple[Any, Tensor, Tensor, Tensor]:
        if self.reason:
            return self.eager(energy, kernel, state, inputs)
        if self.fast is None:
            return self._first(energy, kernel, state, inputs)
        return self.fast(energy, kernel, state, inputs)

    def _first(self, energy: Any, kernel: Any, state: Any, inputs: Any) -> tuple[Any, Tensor, Tensor, Tensor]:
        plain = self._timed(self.eager, energy, kernel, state, inputs)
        start = time.perf_counter()
        try:
            self.fast = self._build()
            self.fast(energy, kernel, state, inputs)
        except _compile_errors() as error:
            self.fast = None
            self.reason = f"{type(energy).__name__} cannot be compiled: {_first_line(error)}"
            warnings.warn(
                f"sampling eagerly, because {self.reason}. Energies that branch on values, differentiate inside "
                "themselves or leave PyTorch cannot be compiled",
                CompileWarning,
                stacklevel=4,
            )
            return self.eager(energy, kernel, state, inputs)
        self.seconds = time.perf_counter() - start
        self.saves = plain - self._timed(self.fast, energy, kernel, state, inputs)
        return self.fast(energy, kernel, state, inputs)

    @staticmethod
    def _timed(run: Runner, *arguments: Any) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            _, positions, _, _ = run(*arguments)
            if positions.is_cuda:
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        return best

    def tell(self, calls: int, size: int) -> None:
        """Warn once when the compilation of this run cost more than it saved."""
        if self.reason or not self.seconds or self.saves * calls >= self.seconds:
            self.seconds = 0.0
            return
        worth = (
            f"it pays from about {int(self.seconds / self.saves) * size} steps"
            if self.saves > 0
            else "eager is as fast here"
        )
        warnings.warn(
            f"compiling took {self.seconds:.1f} s and {calls * size} steps saved {max(self.saves, 0.0) * calls:.1f} s: {worth}; "
            "further runs with this energy and shape reuse the graph",
            CompileWarning,
            stacklevel=3,
        )
        self.seconds = 0.0


class CudaChunk(Chunk):
    """A chunk captured as one CUDA graph of compiled steps.

    What it returns lives in the graph's memory until the next call: the caller copies what it keeps.
    """

    def __init__(self, eager: Runner, step: Any, kernel: Any) -> None:
        super().__init__(eager)
        self.step = step
        self.kernel = kernel  # keeps the tensors alive whose addresses are captured

    def _build(self) -> Runner:
        return _Captured(self.eager, self.step)


class _Captured:
    def __init__(self, eager: Runner, step: Any) -> None:
        self.eager = eager
        self.step = step
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.state: list[Tensor] = []
        self.spec: Any = None
        self.out: tuple[Tensor, ...] = ()

    def __call__(self, energy: Any, kernel: Any, state: Any, inputs: Any) -> tuple[Any, Tensor, Tensor, Tensor]:
        leaves, spec = pytree.tree_flatten(state)
        tensors = [t for t in leaves if isinstance(t, Tensor)]
        if self.graph is None:
            self._capture(energy, kernel, leaves, spec, inputs)
        elif not all(a is b for a, b in zip(tensors, self.state, strict=True)):
            torch._foreach_copy_(self.state, tensors)
        torch._foreach_copy_(self.inputs, [t for t in inputs if isinstance(t, Tensor)])
        self.graph.replay()  # type: ignore[union-attr]
        static = iter(self.state)
        state = pytree.tree_unflatten([next(static) if isinstance(t, Tensor) else t for t in leaves], spec)
        return state, *self.out

    def _capture(self, energy: Any, kernel: Any, leaves: list[Any], spec: Any, inputs: Any) -> None:
        leaves = [t.clone() if isinstance(t, Tensor) else t for t in leaves]
        self.state = [t for t in leaves if isinstance(t, Tensor)]
        held = type(inputs)(*(t.contiguous().clone() for t in inputs))
        self.inputs = list(held)
        start = pytree.tree_unflatten(leaves, spec)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # compiles, and warms the allocator up
                self.step(energy, kernel, start, type(inputs)(*(t[0] for t in held)))
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            state, *out = self.eager(energy, _Stepper(kernel, self.step), start, held)
            self.out = tuple(out)
            end = [t for t in pytree.tree_leaves(state) if isinstance(t, Tensor)]
            moved = [(a, b) for a, b in zip(self.state, end, strict=True) if a is not b]
            torch._foreach_copy_([a for a, _ in moved], [b for _, b in moved])
        self.graph = graph


class _Stepper:
    """A kernel whose step is compiled."""

    def __init__(self, kernel: Any, step: Any) -> None:
        self.position = kernel.position
        self.step = lambda energy, state, inputs: step(energy, kernel, state, inputs)


def _one_step(energy: Any, kernel: Any, state: Any, inputs: Any) -> Any:
    return kernel.step(energy, state, inputs)


def _signature(kernel: Any, state: Any, size: int) -> Any:
    """What a compiled graph depends on: kinds, shapes and whole-number options, but no values that are inputs."""

    def token(value: Any) -> Any:
        if isinstance(value, Tensor | float):
            return "value"
        if isinstance(value, tuple):
            return tuple(tuple(v.shape) if isinstance(v, Tensor) else token(v) for v in value)
        return id(value) if callable(value) else str(value)

    tensors = tuple((tuple(t.shape), t.dtype, t.device) for t in pytree.tree_leaves(state) if isinstance(t, Tensor))
    return type(kernel), size, tensors, tuple((name, token(value)) for name, value in vars(kernel).items())


def compiled_chunk(eager: Runner, energy: Any, kernel: Any, state: Any, size: int) -> Chunk:
    """The compiled form of `eager` for this energy, kernel and shape; made once and then reused."""
    why = kernel.why_not_compiled()
    if why is not None:
        chunk = Chunk(eager)
        chunk.reason = why
        warnings.warn(f"sampling eagerly, because {why}", CompileWarning, stacklevel=3)
        return chunk
    store = _cache.setdefault(energy, {})
    key = _signature(kernel, state, size)
    cuda = any(isinstance(t, Tensor) and t.is_cuda for t in pytree.tree_leaves(state))
    if not cuda:
        if key not in store:
            store[key] = Chunk(eager)
        return store[key]
    # a captured graph holds addresses: tensors among the options are told apart, and share the compiled step
    held = tuple(id(t) for t in pytree.tree_leaves(list(vars(kernel).values())) if isinstance(t, Tensor))
    if (key, held) not in store:
        step = store.setdefault(("step", key), _fresh(_one_step))
        store[key, held] = CudaChunk(eager, step, kernel)
    return store[key, held]
