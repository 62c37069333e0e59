"""Second derivatives of plain networks along directions, by pushing Taylor coefficients forward.

For x(t) = x + tv every layer maps (value, first, second derivative in t) to the same three:

    linear map A:   (Ax + b, Ax', Ax'')
    activation φ:   (φ(x), φ'(x)x', φ''(x)x'² + φ'(x)x'')

The second derivatives are needed only as a sum over directions, and every layer is linear in them, so that one
sum is pushed for all directions together: a direction costs one forward pass of first derivatives and its
gradient, two to three times less than a Hessian-vector product by two backward passes.

Reference: Griewank & Walther 2008, chapter 13; Li et al. 2024 for the collapsed sum.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from gibbsian.energies.neural import ACTIVATIONS, MLP, MLPEnergy, NeuralEnergy
from gibbsian.energies.neural_conv import ConvEnergy, ConvNet
from gibbsian.energy import FunctionEnergy


class Jet(NamedTuple):
    """A value `(batch, ...)`, its first derivatives `(count, batch or 1, ...)`, and its second derivatives
    summed over the directions `(batch, ...)`; None where they are zero.
    """

    value: Tensor
    first: Tensor
    second: Tensor | None


def _kind(module: nn.Module) -> type:
    """The class of a module, seen through a parametrization such as spectral norm."""
    return parametrize.type_before_parametrizations(module)


_SMOOTH = (*(type(make()) for make in ACTIVATIONS.values()), nn.Sigmoid, nn.LogSigmoid, nn.SELU, nn.CELU)


def understood(module: Any) -> bool:
    """Is every layer of the model one that is known here, with nothing hooked in between?"""
    if not isinstance(module, nn.Module) or module._forward_hooks or module._forward_pre_hooks:
        return False
    kind, module = _kind(module), cast(Any, module)
    if kind in (nn.Linear, nn.Conv2d, nn.Identity, *_SMOOTH):
        return kind is not nn.Conv2d or module.padding_mode == "zeros"
    if kind is nn.Flatten:
        return module.end_dim == -1 and module.start_dim in (0, 1)
    if kind is nn.Sequential:
        return all(understood(layer) for layer in module)
    if kind in (MLP, ConvNet):
        return understood(module.layers)
    if kind in (NeuralEnergy, MLPEnergy, ConvEnergy):
        return understood(module.net)
    return kind is FunctionEnergy and understood(module.function)


def _linear(jet: Jet, apply: Callable[[Tensor, bool], Tensor]) -> Jet:
    """A linear map; `apply(x, bias)` takes batches."""
    count, rows = jet.first.shape[:2]
    first = apply(jet.first.flatten(0, 1), False).unflatten(0, (count, rows))
    return Jet(apply(jet.value, True), first, None if jet.second is None else apply(jet.second, False))


def _elementwise(jet: Jet, function: Callable[[Tensor], Tensor]) -> Jet:
    x = jet.value
    x = x if x.requires_grad else x.detach().requires_grad_(True)
    y = function(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    second = bend * jet.first.square().sum(0)
    if jet.second is not None:
        second = torch.addcmul(second, slope, jet.second)
    return Jet(y, slope * jet.first, second)


def _reshaped(jet: Jet, start: int) -> Jet:
    flat: Callable[[Tensor], Tensor] = lambda t: t.flatten(start)  # noqa: E731
    return Jet(flat(jet.value), jet.first.flatten(start + 1), None if jet.second is None else flat(jet.second))


def push(module: Any, jet: Jet) -> Jet:
    """The jet behind a layer or model that is `understood`."""
    kind = _kind(module)
    if kind is nn.Linear:
        weight, bias = module.weight, module.bias
        return _linear(jet, lambda x, shift: F.linear(x, weight, bias if shift else None))
    if kind is nn.Conv2d:
        weight, bias = module.weight, module.bias
        how = module.stride, module.padding, module.dilation, module.groups
        return _linear(jet, lambda x, shift: F.conv2d(x, weight, bias if shift else None, *how))
    if kind in _SMOOTH:
        return _elementwise(jet, module)
    if kind is nn.Flatten:
        return _reshaped(jet, module.start_dim)
    if kind is nn.Sequential:
        for layer in module:
            jet = push(layer, jet)
        return jet
    if kind is MLP:
        return push(module.layers, _reshaped(jet, 1))
    if kind is ConvNet:
        return push(module.layers, jet)
    if kind is FunctionEnergy:
        return push(module.function, jet)
    if kind in (NeuralEnergy, MLPEnergy, ConvEnergy):
        out = push(module.net, jet)
        if out.value.dim() == 2:
            out = Jet(out.value.squeeze(1), out.first.squeeze(2), None if out.second is None else out.second.squeeze(1))
        if not module.confine:
            return out
        c, x, v = module.confine, jet.value.flatten(1), jet.first.flatten(2)
        bend = c * v.square().sum(2).sum(0)
        return Jet(
            out.value + 0.5 * c * x.square().sum(1),
            out.first + c * (v * x).sum(2),
            bend if out.second is None else out.second + bend,
        )
    return jet  # nn.Identity


def along(energy: Any, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E(x), vᵀ∇E(x) `(count, batch)` and Σ_v vᵀ∇²E(x)v `(batch,)` of an energy that is `understood`.

    v is `(count, batch or 1, *event)`. All three can be differentiated in the parameters; x may be a leaf.
    """
    with torch.enable_grad():
        jet = push(energy, Jet(x, v, None))
        second = x.new_zeros(len(x)) if jet.second is None else jet.second.expand(len(x))
        return jet.value, jet.first.expand(len(v), len(x)), second
