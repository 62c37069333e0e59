"""Compiling functions of tensors, with settings that suit unrolled steps, and with products and activations taken apart
on the CPU in another way than the compiler's own, which is slow."""

import copy
import functools
import gc
import hashlib
import logging
import os
import re
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gibbsian.errors import CompileWarning

T = TypeVar("T")
_THIN = 4  # columns: a BLAS call costs up to ten times the arithmetic of so few


def _mm(usual: Callable[..., Any] | None) -> Callable[..., Any]:
    def mm(a: Tensor, b: Tensor, *rest: Any) -> Any:
        if not rest:
            if a.shape[1] == 1:
                return a * b
            if b.shape[1] <= _THIN:
                return torch.stack([(a * b[:, j]).sum(1) for j in range(b.shape[1])], 1)
        return usual(a, b, *rest) if usual is not None else NotImplemented

    return mm


class _Table(dict[Any, Callable[..., Any]]):
    """A table that the compiler can name in the key of its cache on disk: by the text of this file, since functions have none."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _table_of, (settings_digest(),)


@functools.cache
def settings_digest() -> str:
    """A name for how functions are compiled here: that of the text of this file."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _table_of(digest: str) -> "_Table":
    if digest != settings_digest():
        raise ValueError("a table of another version of gibbsian")
    return _cpu_decompositions()


def _cpu_decompositions() -> _Table:
    """Inductor's table, with two changes: products with one inner or at most four outer columns (the last layer of an
    energy, and the gradient in a point of the plane) are written out so that they fuse with their neighbors, and SiLU
    shares its exponential with its derivative."""
    from torch._inductor.decomposition import select_decomp_table

    aten = torch.ops.aten
    table = dict(select_decomp_table())
    mm = _mm(table.get(aten.mm.default))

    def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        thin = a.shape[1] == 1 or b.shape[1] <= _THIN
        return bias + mm(a, b) if thin and beta == 1 and alpha == 1 else NotImplemented

    def silu(x: Tensor) -> Any:
        return x * torch.sigmoid(x)

    return _Table({**table, aten.mm.default: mm, aten.addmm.default: addmm, aten.silu.default: silu})


def _backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
    # Unrolled element-wise chains are otherwise fused without limit: minutes instead of seconds.
    # What the processor can do is believed: a trial costs three compilations cold and a process more in every process.
    patches = {"realize_opcount_threshold": 8, "cpp.vec_isa_ok": True}
    if all(t.device.type == "cpu" for t in inputs if isinstance(t, Tensor)):
        attends = any("softmax" in str(node.target) for node in graph.graph.nodes)
        with nullcontext() if attends else _without_attention():
            return _compile(graph, inputs, patches, _cpu_decompositions())
    spare = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    try:
        with without_flood():
            return _compile(graph, inputs, patches, None)
    except RuntimeError:  # Triton 3.6 fails on some sums that it would keep in registers, and makes the same in loops
        with without_flood():
            return _compile(spare, inputs, {**patches, "triton.persistent_reductions": False}, None)


def _compile(graph: torch.fx.GraphModule, inputs: list[Tensor], patches: dict[str, Any], table: Any) -> Any:
    from torch._inductor.compile_fx import compile_fx

    with warnings.catch_warnings(), _kept_apart(), _believing():
        warnings.simplefilter("ignore", UserWarning)  # advice on how to set the compiler and its precision
        return compile_fx(graph, inputs, config_patches=patches, decompositions=table)


@contextmanager
def _believing() -> Iterator[None]:
    """Of vector instructions that the processor has, the C++ compiler is asked whether it knows their flags. Inductor compiles, links and
    loads a small library for each, which takes more than a second. (`VecISA.check_build`, in torch 2.11 to 2.15.)"""
    from torch._inductor.cpu_vec_isa import VecISA

    plain = VecISA.check_build
    VecISA.check_build = lambda isa, code: _knows(isa.build_arch_flags())  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        VecISA.check_build = plain  # type: ignore[method-assign]


@contextmanager
def _without_attention() -> Iterator[None]:
    """Inductor prepares to find attention in all its forms, and products to be padded, which takes a third of a second; without a
    softmax there is none, and small products stay as they are. Who compiles other graphs later finds all as it was.
    (`joint_graph.lazy_init`, in torch 2.11 to 2.15; where there is no such thing nothing is spared.)"""
    from torch._inductor.fx_passes import joint_graph

    plain = {name: value for name, value in vars(joint_graph).items() if name == "lazy_init"}
    vars(joint_graph).update(dict.fromkeys(plain, lambda *_: None))
    try:
        yield
    finally:
        vars(joint_graph).update(plain)


@functools.cache
def _knows(flags: str) -> bool:
    from torch._inductor.cpp_builder import get_cpp_compiler

    command = [get_cpp_compiler(), *flags.split(), "-E", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _kept_apart() -> AbstractContextManager[Any]:
    """The table is part of what is kept on disk, but not of all keys by which that is found: this parts it from what other versions
    left, where torch knows how (from 2.7 on)."""
    config: Any = torch.compiler.config
    tag = getattr(torch.compiler.config, "cache_key_tag", "")
    return _patched(config, cache_key_tag=f"{tag} gibbsian {settings_digest()}")


def _patched(config: Any, **values: Any) -> AbstractContextManager[Any]:
    """Settings of the compiler for a while, those left out that this version of torch does not know."""
    known = {name: value for name, value in values.items() if getattr(config, name, None) is not None}
    patched: AbstractContextManager[Any] = config.patch(**known) if known else nullcontext()
    return patched


def compiled(function: Any, *numbers: str) -> Callable[..., Any]:
    """A copy of a function that is compiled at its first call, whole or not at all. Tensors inside its arguments are
    read where they live, so new values never compile anew; shapes and kinds do, and so do numbers, but for whole ones under
    these names, which are left open."""
    code = function.__code__.replace()  # its own: the compiler's cache and its limit belong to the code
    copy = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made = torch.compile(copy, fullgraph=True, dynamic=False, backend=_backend)
    return _left_open(made, numbers) if numbers else made


def _left_open(function: Callable[..., Any], numbers: tuple[str, ...]) -> Callable[..., Any]:
    """The compiled function, asked for with these arguments as symbols. (`dynamic_sources`, in torch 2.11 to 2.15; one that
    does not know it compiles anew for every number.)"""
    sources = ",".join(f"L['{name}']" for name in numbers)

    def called(*arguments: Any) -> Any:
        with _patched(torch.compiler.config, dynamic_sources=sources):
            return function(*arguments)

    return called


def reason(error: BaseException) -> str:
    """One line that says why something could not be compiled; what fails in a process of the compiler tells it last, and what
    fails behind torch's tracing after a line that says so.

    >>> reason(RuntimeError("backend='inductor' raised:\\nTypeError: no such loop"))
    'TypeError: no such loop'
    """
    told = re.sub(r"\Abackend=.* raised:\s*(?=\S)", "", str(error).strip())
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        lines = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)][-1:] or lines
    return lines[0] if lines else type(error).__name__


@contextmanager
def without_collector() -> Iterator[None]:
    """No garbage is looked for inside. A compiler makes a million objects that stay, and looking among them again and again takes a
    tenth of its time; graphs of earlier runs that are freed meanwhile break the capture of another."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def without_flood() -> Iterator[None]:
    """A compiler that fails prints what it had in hand, hundreds of lines; that is dropped, and all else is kept: only its error
    says why."""
    log = logging.getLogger("torch._inductor.runtime.triton_heuristics")
    quiet, log.disabled = log.disabled, True
    stream = os.dup(2)
    with tempfile.TemporaryFile() as said:
        sys.stderr.flush()
        os.dup2(said.fileno(), 2)
        try:
            yield
            sys.stderr.flush()
            said.seek(0)
            os.write(stream, said.read())
        finally:
            os.dup2(stream, 2)
            os.close(stream)
            log.disabled = quiet


class Forgiving:
    """A function of tensors on CUDA, compiled, or as it is where the compiler fails: it can be captured all the same."""

    def __init__(
        self, function: Callable[..., Any], compiler: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        self.function, self.compiled = function, compiler(function)
        self.failure = ""  # of the compiler
        self.told = False

    def __call__(self, *arguments: Any) -> Any:
        if not self.failure:
            try:
                return self.compiled(*arguments)
            except RuntimeError as error:
                self.failure = reason(error)
        return self.function(*arguments)

    def tell(self, what: str) -> None:
        """Say once why what was to be compiled is not."""
        if self.failure and not self.told:
            self.told = True
            warnings.warn(f"{what}, because {self.failure}", CompileWarning, stacklevel=4)


@functools.cache
def compiled_copy(function: Any, *key: Any) -> Any:
    """A compiled copy of a function of tensors, one for each key (what it compiles for). Compiling takes seconds, so
    only steps that are repeated very often ask for it."""
    return compiled(function)


def weak_cache(function: Callable[..., T]) -> Callable[..., T]:
    """`functools.cache` for a function of an object and of keys, whose results go when the object goes; so they must
    not hold it.

    >>> class Thing: ...
    >>> made = weak_cache(lambda thing, key: [key])
    >>> thing = Thing()
    >>> made(thing, 1) is made(thing, 1), made(thing, 1) is made(thing, 2)
    (True, False)
    """
    known: WeakKeyDictionary[Any, dict[tuple[Hashable, ...], T]] = WeakKeyDictionary()

    @functools.wraps(function)
    def cached(thing: Any, *key: Hashable) -> T:
        results = known.setdefault(thing, {})
        if key not in results:
            results[key] = function(thing, *key)
        return results[key]

    return cached
