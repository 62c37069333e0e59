"""The Jacobian ∇s(x) of a score along directions: what score matching needs of it, without ever forming it.

Plain networks propagate Taylor coefficients forward (`taylor.py`). For everything else directions share one forward
pass and one gradient; only the product (∇s)ᵀv is done for each, all of them in one batched backward pass.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gibbsian.derivatives.taylor import directional_derivatives, has_taylor_rules

DIRECTION_KINDS = ("rademacher", "gaussian", "sphere")
_BLOCK = 1 << 24  # numbers in one block of directions: 128 MiB in double precision


def score_with_graph(energy: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """x as a leaf, and s(x) that can be differentiated in x and in the parameters."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        return x, energy.score(x, create_graph=True)


def random_directions(kind: str, count: int, x: Tensor, generator: torch.Generator) -> Tensor:
    """`count` random directions per row, `(count, batch, *event)`, all with E[vvᵀ] = I.

    "rademacher": entries ±1; "gaussian": standard normal; "sphere": uniform on the sphere of radius √d.
    """
    shape = (count, *x.shape)
    if kind == "rademacher":
        signs = torch.randint(2, shape, generator=generator, dtype=x.dtype, device=x.device)
        return signs.mul_(2).sub_(1)
    v = torch.randn(shape, generator=generator, dtype=x.dtype, device=x.device)
    if kind == "sphere":
        flat = v.flatten(2)
        v = (flat * (flat.shape[2] ** 0.5 / flat.norm(dim=2, keepdim=True))).reshape(shape)
    return v


def batchable(model: nn.Module) -> bool:
    """Can gradients of several directions be taken in one batched pass? Torch's rule for that, applied to the
    gradient of a group norm, mixes up sizes: it raises, or is wrong where they happen to fit.
    """
    return not any(isinstance(module, nn.GroupNorm) for module in model.modules())


def jacobian_products(x: Tensor, s: Tensor, v: Tensor, *, batched: bool = True) -> Tensor:
    """(∇s)ᵀv for directions `(count, batch, *event)`; differentiable once more."""
    if not s.requires_grad:  # a score that depends on nothing
        return torch.zeros_like(v)
    with torch.enable_grad():
        if len(v) == 1 or not batched:
            each = [torch.autograd.grad(s, x, one, create_graph=True, allow_unused=True)[0] for one in v]
            return torch.zeros_like(v) if each[0] is None else torch.stack(each)
        (out,) = torch.autograd.grad(s, x, v, create_graph=True, is_grads_batched=True, allow_unused=True)
        return torch.zeros_like(v) if out is None else out


def quadratic_forms(x: Tensor, s: Tensor, v: Tensor, *, batched: bool = True) -> Tensor:
    """vᵀ(∇s)v for directions `(count, batch, *event)`, shape `(count, batch)`."""
    return (jacobian_products(x, s, v, batched=batched) * v).flatten(2).sum(2)


class ScoreMatchingTerms(NamedTuple):
    """Σ_v vᵀ(∇s)v over the directions, averaged over the batch; the mean of ‖s‖², and that of (vᵀs)²."""

    trace: Tensor
    norm: Tensor | None
    projected: Tensor | None


def score_matching_terms(
    energy: Any, data: Tensor, v: Tensor, *, norm: bool = True, projected: bool = False
) -> ScoreMatchingTerms:
    """What score matching needs along the directions v `(count, batch, *event)`."""
    n = len(data)
    if has_taylor_rules(energy):
        x = data.detach().requires_grad_(norm)
        value, slope, second = directional_derivatives(energy, x, v)
        square = None
        if norm:
            (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
            square = gradient.square().sum() / n
        return ScoreMatchingTerms(-second.sum() / n, square, slope.square().mean() if projected else None)
    x, s = score_with_graph(energy, data)
    trace = (jacobian_products(x, s, v, batched=batchable(energy)) * v).sum() / n
    along_v = (v * s).flatten(2).sum(2).square().mean() if projected else None
    return ScoreMatchingTerms(trace, s.square().sum() / n if norm else None, along_v)


def _axes(x: Tensor, first: int, last: int) -> Tensor:
    """The directions of the flattened entries first..last-1, `(last - first, 1, *event)`."""
    return torch.eye(x[0].numel(), dtype=x.dtype, device=x.device)[first:last].reshape(-1, 1, *x.shape[1:])


def trace_block(energy: Any, data: Tensor, first: int, last: int, *, norm: bool) -> ScoreMatchingTerms:
    """The part first..last-1 of the exact trace of ∇s, averaged over the batch, with the mean of ‖s‖²."""
    if has_taylor_rules(energy):
        return score_matching_terms(energy, data, _axes(data, first, last), norm=norm)
    x, s = score_with_graph(energy, data)
    trace = jacobian_diagonal(x, s, first, last, batched=batchable(energy)).sum() / len(data)
    return ScoreMatchingTerms(trace, s.square().sum() / len(data) if norm else None, None)


def jacobian_diagonal(x: Tensor, s: Tensor, first: int, last: int, *, batched: bool = True) -> Tensor:
    """∂ᵢsᵢ(x) for the flattened entries first..last-1, exactly; shape `(batch, last - first)`."""
    found = jacobian_products(x, s, _axes(x, first, last).expand(-1, *x.shape), batched=batched)
    return found.flatten(2)[:, :, first:last].diagonal(dim1=0, dim2=2)


def direction_blocks(x: Tensor, chunk: int | None) -> Sequence[tuple[int, int]]:
    """How the d directions of an exact trace are cut: `chunk` at a time, by default what fits in a block."""
    d = x[0].numel()
    size = chunk or max(1, _BLOCK // x.numel())
    return [(i, min(i + size, d)) for i in range(0, d, size)]
