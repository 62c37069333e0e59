"""What a compiled function does when it is called: which C++ kernels and which products of matrices, on which memory.

All that is relied on of the compiler's inner parts stands in this file, and a test holds it for every release of torch:
- `torch._inductor.output_code.CompiledFxGraph` is called with the inputs of a compiled graph and calls its `current_callable`,
- which is a function (or method) of a generated module, whose globals named `cpp_fused...` are the compiled kernels,
- each the Python binding, in an extension module of its own, of a C function `kernel` of pointers and 64-bit whole numbers,
- and all else that computes goes through the dispatcher, as products `mm`, `addmm` and `bmm` into given memory do.
"""

import ctypes
import os
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
_PRODUCTS = {aten.mm.out: (0, 1), aten.bmm.out: (0, 1), aten.addmm.out: (1, 2)}


class ReplayError(RuntimeError):
    """A compiled function does what cannot be replayed, or cannot be looked into."""


class Launch(NamedTuple):
    """One kernel on some memory."""

    address: int  # of the C function
    arguments: tuple[Tensor | int, ...]


class Product(NamedTuple):
    """out = α a b, to which rows (added) are added first; all of them matrices, or stacks of them."""

    a: Tensor
    b: Tensor
    out: Tensor
    added: Tensor | None = None
    alpha: float = 1.0


Deed = Launch | Product


class _Dispatched(TorchDispatchMode):
    """Takes down what goes through the dispatcher."""

    def __init__(self, deeds: list[Deed]) -> None:
        super().__init__()
        self.deeds, self.others = deeds, set[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _PRODUCTS.get(function)
        if given is None or kwargs.get("beta", 1) != 1:
            self.others.add(str(function))
        else:
            added = args[0] if function is aten.addmm.out else None
            self.deeds.append(
                Product(args[given[0]], args[given[1]], kwargs["out"], added, float(kwargs.get("alpha", 1)))
            )
        return function(*args, **kwargs)


def _address(path: str) -> int:
    """Where the C function of a library lies."""
    library = ctypes.CDLL(path)
    return int(ctypes.cast(library.kernel, ctypes.c_void_p).value or 0)


class Recorder:
    """Calls a compiled function, or one that calls several and does nothing else, and takes down what it does."""

    def __init__(self) -> None:
        self.graphs = 1  # how many
        self.addresses: dict[int, int] = {}
        self.files: dict[int, str] = {}  # by address
        self.held: list[Any] = []

    def made(self, step: Callable[..., Any], things: tuple[Any, ...], state: Any, first: Any) -> tuple[Any, list[Deed]]:
        """What one step gives, and its deeds."""
        return self.call(lambda: step(*things, state, first))

    def call(self, function: Callable[[], Any]) -> tuple[Any, list[Deed]]:
        """What the function returns, and its deeds in order; it has been compiled before. Not for two threads at once."""
        from torch._inductor.output_code import CompiledFxGraph

        deeds: list[Deed] = []
        graphs = 0
        plain, thread = CompiledFxGraph.__call__, threading.get_ident()

        def watched(graph: Any, inputs: Any) -> Any:
            nonlocal graphs
            if threading.get_ident() != thread:
                return plain(graph, inputs)
            graphs += 1
            return self._watch(graph, inputs, deeds)

        CompiledFxGraph.__call__ = watched  # type: ignore[method-assign, assignment]
        try:
            result = function()
        finally:
            CompiledFxGraph.__call__ = plain  # type: ignore[method-assign]
        if graphs != self.graphs:
            raise ReplayError(f"a compiled step called {graphs} graphs, expected {self.graphs}")
        return result, deeds

    def _watch(self, graph: Any, inputs: Any, deeds: list[Deed]) -> Any:
        call = graph.current_callable
        scope = (call.__func__ if isinstance(call, types.MethodType) else call).__globals__
        kernels = {name: value for name, value in scope.items() if name.startswith("cpp_fused")}
        mode = _Dispatched(deeds)
        try:
            scope.update({name: self._noting(kernel, deeds) for name, kernel in kernels.items()})
            with mode:
                result = call(inputs)
        finally:
            scope.update(kernels)
        if mode.others:
            raise ReplayError(f"it calls {', '.join(sorted(mode.others))}")
        return result

    def _noting(self, kernel: Any, deeds: list[Deed]) -> Callable[..., None]:
        if id(kernel) not in self.addresses:
            path = kernel.__self__.__file__
            self.addresses[id(kernel)] = _address(path)
            self.files[self.addresses[id(kernel)]] = path
            self.held.append(kernel)
        address = self.addresses[id(kernel)]

        def note(*arguments: Any) -> None:
            kernel(*arguments)
            if not all(isinstance(a, Tensor | int) for a in arguments):
                raise ReplayError("a kernel has arguments that are neither tensors nor whole numbers")
            deeds.append(Launch(address, arguments))

        return note


def gemm_address(dtype: torch.dtype) -> int:
    """Where the BLAS routine of torch for products of matrices lies, or scipy's where torch hides its own."""
    name = {torch.float32: "sgemm", torch.float64: "dgemm"}[dtype]
    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
        return int(ctypes.cast(getattr(library, name + "_"), ctypes.c_void_p).value or 0)
    except (OSError, AttributeError):
        from scipy.linalg import cython_blas

        capsule = cython_blas.__pyx_capi__[name]
        signature = ctypes.pythonapi.PyCapsule_GetName
        signature.restype, signature.argtypes = ctypes.c_char_p, [ctypes.py_object]
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        return int(pointer(capsule, signature(capsule)))
