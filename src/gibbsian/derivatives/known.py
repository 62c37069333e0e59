"""Losses whose gradient is known before `backward`: closed forms that come out of the pass that makes the value.

Gradients are data, a dictionary from parameters to tensors that belong to nobody else: whoever trains takes them as they
are, without the autograd engine, and whoever combines losses combines them. The value is attached to one autograd
Function all the same, so that `backward` works for loops of one's own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Gradients = dict[Tensor, Tensor]  # from a parameter to its gradient


def with_gradients(
    value: Tensor, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, Gradients | None]:
    """A value attached to its gradients, and those of the parameters that are trained as data.

    Where a parameter is itself a function of others (a parametrization) only autograd can go on from here: None.
    """
    if not torch.is_grad_enabled():
        return value, None
    attached = _Known.apply(value, list(gradients), *parameters)
    trained = [(p, g) for p, g in zip(parameters, gradients, strict=True) if p.requires_grad]
    if not all(p.is_leaf for p, _ in trained):
        return attached, None
    known: Gradients = {}
    for p, gradient in trained:
        known[p] = known[p] + gradient if p in known else gradient  # one that stands twice gets the sum
    return attached, known


def sum_of(
    parts: Sequence[tuple[Tensor, Gradients | None]], weights: Sequence[float]
) -> tuple[Tensor, Gradients | None]:
    """Σ wᵢ·valueᵢ with its gradients; None where those of a part are not known, so that autograd must go through it.

    The gradients of the parts are used up: they are scaled and added to in place.
    """
    if any(gradients is None for _, gradients in parts):
        return sum(w * value for w, (value, _) in zip(weights, parts, strict=True)), None  # type: ignore[return-value]
    total: Gradients = {}
    for w, (_, gradients) in zip(reversed(weights), reversed(parts), strict=True):  # the order of autograd
        for p, gradient in (gradients or {}).items():
            scaled = gradient if w == 1 else gradient.mul_(w)
            total[p] = total[p].add_(scaled) if p in total else scaled
    value = sum(w * value.detach() for w, (value, _) in zip(weights, parts, strict=True))
    return with_gradients(value, list(total), list(total.values()))  # type: ignore[arg-type]


def gradients_of(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Gradients by autograd, zero where the value does not depend on a parameter, owned by nobody else: what autograd
    returns may be shared or expanded."""
    found = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
    return [gradient.clone() for gradient in found]


def trainable(energy: nn.Module) -> list[nn.Parameter]:
    """The parameters that learning may change."""
    return [p for p in energy.parameters() if p.requires_grad]


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Inside, graphs do not reach the module's parameters: gradients flow through its input alone."""
    parameters = trainable(module)
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)


class _Known(torch.autograd.Function):
    """A value that is known already, with its gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(outer[0] * gradient for gradient in ctx.gradients)
