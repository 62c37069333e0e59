"""How the compiler is to take products and activations apart on the CPU, where its own choice is slow."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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


def cpu_decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's table, with two changes.

    Products with one inner or at most four outer columns (the last layer of an energy, and the gradient in a
    point of the plane) are written out so that they fuse with their neighbors. SiLU shares its exponential with its
    derivative.
    """
    from torch._inductor.decomposition import select_decomp_table

    aten = torch.ops.aten
    table = dict(select_decomp_table())
    mm = _mm(table.get(aten.mm.default))

    def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        thin = a.shape[1] == 1 or b.shape[1] <= _THIN
        return bias + mm(a, b) if thin and beta == 1 and alpha == 1 else NotImplemented

    def silu(x: Tensor) -> Any:
        return x * torch.sigmoid(x)

    return {**table, aten.mm.default: mm, aten.addmm.default: addmm, aten.silu.default: silu}
