"""Second derivatives of plain networks along directions, by propagating Taylor coefficients forward.

For x(t) = x + tv every layer maps (value, first, second derivative in t) to the same three, a jet:

    linear map A:   (Ax + b, Ax', Ax'')
    activation φ:   (φ(x), φ'(x)x', φ''(x)x'² + φ'(x)x'')

The second derivatives are needed only as a sum over directions, and every layer is linear in them, so that one
sum is propagated for all directions together: a direction costs one forward pass of first derivatives and its
gradient, two to three times less than a Hessian-vector product by two backward passes.

Layers of torch.nn have their rules here; a module of one's own joins by having the two methods of
`capabilities.TaylorModule`.

Reference: Griewank & Walther 2008, chapter 13; Li et al. 2024 for the collapsed sum.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from gibbsian.capabilities import Jet, TaylorModule


class Rule(NamedTuple):
    """How a layer maps jets, and for which settings of the layer that is known."""

    propagate: Callable[[Any, Jet], Jet]
    applies: Callable[[Any], bool] = lambda layer: True


def _linear(jet: Jet, apply: Callable[[Tensor, bool], Tensor]) -> Jet:
    """A linear map; `apply(x, bias)` takes batches."""
    count, rows = jet.first.shape[:2]
    first = apply(jet.first.flatten(0, 1), False).unflatten(0, (count, rows))
    return Jet(apply(jet.value, True), first, None if jet.second is None else apply(jet.second, False))


def _dense(layer: Any, jet: Jet) -> Jet:
    weight, bias = layer.weight, layer.bias
    return _linear(jet, lambda x, shift: F.linear(x, weight, bias if shift else None))


def _convolution(layer: Any, jet: Jet) -> Jet:
    weight, bias = layer.weight, layer.bias
    how = layer.stride, layer.padding, layer.dilation, layer.groups
    return _linear(jet, lambda x, shift: F.conv2d(x, weight, bias if shift else None, *how))


def _elementwise(function: Callable[[Tensor], Tensor], jet: Jet) -> Jet:
    x = jet.value
    x = x if x.requires_grad else x.detach().requires_grad_(True)
    y = function(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    second = bend * jet.first.square().sum(0)
    if jet.second is not None:
        second = torch.addcmul(second, slope, jet.second)
    return Jet(y, slope * jet.first, second)


def _in_turn(layers: Any, jet: Jet) -> Jet:
    for layer in layers:
        jet = propagate(layer, jet)
    return jet


_SMOOTH = (
    nn.SiLU, nn.Softplus, nn.GELU, nn.ELU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.SELU, nn.CELU,
)  # fmt: skip
_RULES: dict[type, Rule] = {
    nn.Identity: Rule(lambda layer, jet: jet),
    nn.Linear: Rule(_dense),
    nn.Conv2d: Rule(_convolution, lambda layer: layer.padding_mode == "zeros"),
    nn.Flatten: Rule(
        lambda layer, jet: jet.flatten(layer.start_dim), lambda layer: layer.end_dim == -1 and layer.start_dim in (0, 1)
    ),
    nn.Sequential: Rule(_in_turn, lambda layers: all(has_taylor_rules(layer) for layer in layers)),
} | {activation: Rule(_elementwise) for activation in _SMOOTH}


def _rule_of(module: nn.Module) -> Rule | None:
    """The rule of a layer of torch.nn, seen through a parametrization such as spectral norm."""
    return _RULES.get(parametrize.type_before_parametrizations(module))


def has_taylor_rules(module: Any) -> bool:
    """Does every layer of the model have a rule, with nothing hooked in between?

    >>> has_taylor_rules(nn.Sequential(nn.Linear(2, 1), nn.Tanh())), has_taylor_rules(nn.Dropout())
    (True, False)
    """
    if not isinstance(module, nn.Module) or module._forward_hooks or module._forward_pre_hooks:
        return False
    rule = _rule_of(module)
    if rule is not None:
        return rule.applies(module)
    if not isinstance(module, TaylorModule) or not _fits_forward(module):
        return False
    return all(has_taylor_rules(part) for part in module.taylor_parts())


def _fits_forward(module: nn.Module) -> bool:
    """Is `taylor` that of the class whose `forward` is called? A subclass with another forward needs its own."""
    nearest = next(vars(cls) for cls in type(module).__mro__ if "forward" in vars(cls) or "taylor" in vars(cls))
    return "taylor" in nearest


def propagate(module: Any, jet: Jet) -> Jet:
    """The jet behind a layer or model that has rules."""
    rule = _rule_of(module)
    return module.taylor(jet, propagate) if rule is None else rule.propagate(module, jet)


def directional_derivatives(energy: Any, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E(x), vᵀ∇E(x) `(count, batch)` and Σ_v vᵀ∇²E(x)v `(batch,)` of an energy that has rules.

    v is `(count, batch or 1, *event)`. All three can be differentiated in the parameters; x may be a leaf.
    """
    with torch.enable_grad():
        jet = propagate(energy, Jet(x, v, None))
        second = x.new_zeros(len(x)) if jet.second is None else jet.second.expand(len(x))
        return jet.value, jet.first.expand(len(v), len(x)), second
