"""A name for what a function does to tensors, by which what was compiled for it is found again in another process.

The function is run twice as PyTorch runs it, the second time on what the first one gave, and every operation is taken down: which
one, on which tensors of which form, with which numbers. Compilers see no more than that. What is not the same both times, depends on values, or draws random numbers
has no name.
"""

import hashlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gibbsian.fast.compiled import settings_digest
from gibbsian.fast.graphs import fixed_copy, tensors_of
from gibbsian.fast.native import processor

_PLAIN = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
_KEPT = object()  # a tensor that stays
_CHANGING = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class NamelessError(RuntimeError):
    """A function is not the same at every call, or cannot be looked into."""


class Traced(NamedTuple):
    """The name of a function of tensors, the tensors that it reads besides its arguments, what its first call gave, and what was taken
    down of it: operations, and of every tensor that nobody knew whether it stays, or its values."""

    digest: str
    externals: list[Tensor]
    result: Any
    lines: list[str]
    unknown: list[Any]
    surroundings: str

    def again(self, step: Callable[..., Any], things: tuple[Any, ...], state: Any, first: Any) -> "Traced | None":
        """One look at a further call, which must be the same on the same tensors; None where it is not."""
        copies = fixed_copy(things), fixed_copy(state), fixed_copy(first)
        notes = _Notes(tensors_of(copies))
        with notes:
            result = step(*copies[0], *copies[1:])
        here = {t.data_ptr() for t in self.externals}
        unknown = [_KEPT if t.data_ptr() in here else t.tolist() for t in notes.unknown]
        same = (notes.lines, unknown, _surroundings()) == (self.lines, self.unknown, self.surroundings)
        return self._replace(result=result) if same else None


def storage_start(t: Tensor) -> int:
    """Where the memory of a tensor begins, of which it may be a part; a third of the time of asking for its storage."""
    return t.data_ptr() - int(t.storage_offset()) * t.element_size()


class _Notes(TorchDispatchMode):
    """Takes down what goes through the dispatcher. Tensors are held, so that no memory has two names."""

    def __init__(self, arguments: list[Tensor]) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        self.unknown: list[Tensor] = []
        self.held: list[Tensor] = []
        self.lines = [self._tell(t, "argument") for t in arguments]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not wrapped for the compiler, which would be loaded for that."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _CHANGING & set(function.tags) and not _by_places(function, args):
            raise NamelessError(f"it calls {function}")
        line = f"{function}{self._tell(args)}{self._tell(kwargs or {})}"
        result = function(*args, **(kwargs or {}))
        self.lines.append(f"{line} -> {self._tell(result, 'made')}")
        return result

    def _tell(self, value: Any, unknown: str = "unknown") -> str:
        if isinstance(value, Tensor):
            return self._tell_tensor(value, unknown)
        if isinstance(value, tuple | list):
            return f"({', '.join(self._tell(v, unknown) for v in value)})"
        if isinstance(value, dict):
            return f"({', '.join(f'{k}={self._tell(v, unknown)}' for k, v in value.items())})"
        if isinstance(value, _PLAIN):
            return repr(value)
        raise NamelessError(f"it has an argument of {type(value)}")

    def _tell_tensor(self, t: Tensor, unknown: str) -> str:
        if type(t) not in {Tensor, torch.nn.Parameter} or t.layout is not torch.strided or t.device.type != "cpu":
            raise NamelessError(f"it reads a {type(t).__name__} on {t.device}")
        self.held.append(t)
        at = storage_start(t) if t.numel() else 0
        if at not in self.names:
            if unknown == "unknown":
                self.unknown.append(t)
            self.names[at] = f"{unknown}{len(self.names)}"
        return f"{self.names[at]}:{t.dtype}{tuple(t.shape)}{t.stride()}+{t.storage_offset()}{t.is_conj()}{t.is_neg()}"


def _by_places(function: Any, args: Any) -> bool:
    """Whether rows are taken by their places, and not those for which something holds, whose number depends on values."""
    return function is torch.ops.aten.index.Tensor and not any(
        i.dtype in {torch.bool, torch.uint8} for i in args[1] if i is not None
    )


def traced(step: Callable[..., Any], things: tuple[Any, ...], state: Any, first: Any, second: Any) -> Traced:
    """The name of a step `(*things, state, inputs) -> (state, outputs)`; things that it writes into are left alone."""
    results, notes = [], []
    for inputs in (first, second):
        copies = fixed_copy(things), fixed_copy(state), fixed_copy(inputs)
        notes.append(_Notes(tensors_of(copies)))
        with notes[-1]:
            results.append(step(*copies[0], *copies[1:]))
        state = results[-1][0]
    a, b = notes
    if a.lines != b.lines:
        raise NamelessError("two calls of it do different things")
    externals, literals, unknown = [], [], []
    for p, q in zip(a.unknown, b.unknown, strict=True):
        if p.data_ptr() == q.data_ptr():
            externals.append(p)
            unknown.append(_KEPT)
        elif torch.equal(p, q):
            literals.append(p.tolist())
            unknown.append(literals[-1])
        else:
            raise NamelessError("it makes tensors outside of PyTorch")
    text = "\n".join(
        [*a.lines, repr([storage_start(p) in map(storage_start, externals) for p in a.unknown]), repr(literals)]
    )
    surroundings = _surroundings()
    digest = hashlib.sha256(f"{text}\n{surroundings}".encode()).hexdigest()[:40]
    return Traced(digest, externals, results[0], a.lines, unknown, surroundings)


def _surroundings() -> str:
    """What compiled code depends on besides."""
    named = sorted(
        (k, v) for k, v in os.environ.items() if k.startswith(("TORCHINDUCTOR_", "ATEN_")) and "CACHE" not in k
    )
    return repr([
        torch.__version__, torch.version.git_version, torch.get_num_threads(), torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(), named, processor(), settings_digest(),
    ])  # fmt: skip
