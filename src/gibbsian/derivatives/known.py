"""Losses whose gradient is known before `backward`: closed forms that come out of the pass that makes the value.

Gradients are data, a dictionary from parameters to tensors that belong to nobody else: whoever trains takes them as they
are, without the autograd engine, and whoever combines losses combines them. The value is attached to one autograd
Function all the same, so that `backward` works for loops of one's own.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gibbsian.errors import CapabilityError

__all__ = ["Gradients", "differentiate", "hand_out", "sum_of", "take_gradients", "with_gradients"]

Gradients = dict[Tensor, Tensor]  # from a parameter to its gradient


def with_gradients(
    value: Tensor, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, Gradients | None]:
    """A value attached to its gradients, and those of the parameters that are trained as data.

    Where a parameter is itself a function of others (a parametrization) only autograd can go on from here: None.
    """
    attached = _HandOut.apply(value, list(gradients), *parameters)
    trained = [(p, g) for p, g in zip(parameters, gradients, strict=True) if p.requires_grad]
    if not all(p.is_leaf for p, _ in trained):
        return attached, None
    known: Gradients = {}
    for p, gradient in trained:
        known[p] = known[p] + gradient if p in known else gradient  # one that stands twice gets the sum
    return attached, known


def hand_out(value: Tensor, parameters: Sequence[Tensor], gradients: list[Tensor]) -> Tensor:
    """A loss with this value and these gradients, which become the parameters' own without a copy: only once."""
    return _HandOut.apply(value, gradients, *parameters)


def sum_of(*values: Tensor) -> Tensor:
    """The sum of losses; one that can be handed out at once where all of them can."""
    nodes: list[Any] = [value.grad_fn for value in values]
    if not all(_handed_out(node) for node in nodes):
        return torch.stack(values).sum()
    parameters = [p for node in nodes for p in node.parameters]
    gradients = [gradient for node in nodes for gradient in node.gradients]
    return hand_out(torch.stack([value.detach() for value in values]).sum(), parameters, gradients)


def take_gradients(value: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Put the gradients of a loss that was handed out where `backward` would; False where only autograd can.

    The engine costs a twentieth of an update of a small machine.
    """
    node: Any = value.grad_fn
    if not _handed_out(node):
        return False
    own = [(p, gradient) for p, gradient in zip(node.parameters, node.gradients, strict=True) if p.requires_grad]
    wanted = {id(p) for p in parameters}
    plain = all(id(p) in wanted and p.is_leaf and p.grad is None for p, _ in own)
    if not plain or len({id(p) for p, _ in own}) < len(own):  # one that stands twice gets the sum
        return False
    for p, gradient in own:
        p.grad = gradient
    node.gradients = ()
    return True


def differentiate(value: Tensor, parameters: Sequence[Tensor]) -> None:
    """Gradients of a loss in these parameters and nothing else, without the engine where it was handed out."""
    if not take_gradients(value, parameters):
        value.backward(inputs=list(parameters))


def _handed_out(node: Any) -> bool:
    """Does this node of the graph hold gradients that nobody took yet?"""
    ours = isinstance(node, _HandOut._backward_cls)
    return ours and bool(node.gradients)


class _HandOut(torch.autograd.Function):
    """A value that is known already, with its gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients, ctx.parameters = gradients, parameters
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.gradients:
            raise CapabilityError("the gradients of this loss were taken already; make another")
        return None, None, *(outer[0] * gradient for gradient in ctx.gradients)
