"""Compiling functions of tensors, with settings that suit unrolled steps."""

import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gibbsian.fast.decompositions import cpu_decompositions


def _backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
    from torch._inductor.compile_fx import compile_fx

    # Unrolled element-wise chains are otherwise fused without limit: minutes instead of seconds.
    patches = {"realize_opcount_threshold": 8}
    on_cpu = all(t.device.type == "cpu" for t in inputs if isinstance(t, Tensor))
    table = cpu_decompositions() if on_cpu else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # advice on how to set the compiler and its precision
        return compile_fx(graph, inputs, config_patches=patches, decompositions=table)


def compiled(function: Any) -> Callable[..., Any]:
    """A copy of a function that is compiled at its first call, whole or not at all.

    It has its own code object: the compiler's cache and its limit belong to the code. Tensors inside its arguments
    are read where they live, so new values never compile anew; numbers, shapes and kinds do.
    """
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
    return compiled(function)
