"""What networks of energies are made of: smooth activations, normalized layers, initial weights from a generator.

Activations are smooth, because the score is a derivative of the energy and score matching differentiates twice;
nothing depends on the statistics of the batch, because an energy belongs to one x.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import ParametrizationList, register_parametrization

from gibbsian.errors import ArgumentError, check_count
from gibbsian.random import isolated, stream

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
    "elu": nn.ELU,
    "mish": nn.Mish,
    "tanh": nn.Tanh,
}


class LayerOptions(TypedDict, total=False):
    """What every network here can be told about its layers; `Layers` has the defaults."""

    activation: str
    spectral_norm: bool
    generator: torch.Generator | None


class Standardized(nn.Module):
    """ŵ = g·(w - mean)/(sd·√n) for each output with its n inputs: a layer that keeps the size of what it is given, g apart.

    What batch norm is mostly for, without the batch: outputs neither drift nor grow with the weights, so networks
    without norms train at large rates and weight decay keeps them learning.

    Reference: Qiao et al. 2019; Brock, De & Smith 2021.

    >>> conv = nn.Conv2d(4, 2, 3)
    >>> weight = Standardized(2)(conv.weight)
    >>> torch.allclose(weight.mean((1, 2, 3)), torch.zeros(2), atol=1e-6), weight.square().sum((1, 2, 3)).round(decimals=3).tolist()
    (True, [1.0, 1.0])
    """

    kept: Tensor | None = None  # inside `standardized_once`

    def __init__(self, outputs: int, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((outputs,), gain))

    def forward(self, weight: Tensor) -> Tensor:
        if self.kept is not None:  # without its graph where parameters are held fixed
            return self.kept if weight.requires_grad or self.gain.requires_grad else self.kept.detach()
        shape = (-1, *[1] * (weight.dim() - 1))
        variance, mean = torch.var_mean(weight.flatten(1), 1, correction=0)
        n = weight[0].numel()
        scale = self.gain * torch.rsqrt((n * variance).clamp(min=1e-8))
        return (weight - mean.view(shape)) * scale.view(shape)


def _standardized_in(module: nn.Module) -> list[tuple[Standardized, Tensor]]:
    """What standardizes weights there, with the weights as they are."""
    lists = [m for m in module.modules() if isinstance(m, ParametrizationList)]
    return [(m[0], m.original) for m in lists if isinstance(m[0], Standardized)]


@contextmanager
def standardized_once(module: nn.Module) -> Iterator[None]:
    """Inside, `Standardized` weights are computed once and not at every pass: parameters must not change there.

    An update of chains passes through a network many times with one set of weights; small kernels for every layer and pass
    are a third of its time on a GPU.

    >>> conv = Layers().standardized(nn.Conv2d(1, 2, 3))
    >>> with standardized_once(conv):
    ...     conv.weight is conv.weight
    True
    """
    found = _standardized_in(module)
    try:
        with torch.enable_grad():  # whoever asks first, all get the weights that gradients flow through
            for standard, weight in found:
                standard.kept = standard(weight)
        yield
    finally:
        for standard, _ in found:
            standard.kept = None


@contextmanager
def standardized_anew(module: nn.Module) -> Iterator[None]:
    """Inside, `Standardized` weights are computed at every pass again, as functions of the parameters."""
    kept = [(standard, standard.kept) for standard, _ in _standardized_in(module)]
    try:
        for standard, _ in kept:
            standard.kept = None
        yield
    finally:
        for standard, weight in kept:
            standard.kept = weight


class Layers:
    """Makes the layers of one network, all with the same options.

    Args:
        activation: "silu", "softplus", "gelu", "elu", "mish" or "tanh".
        spectral_norm: divide every weight by its largest singular value (a Lipschitz bound). Its power
            iteration moves at every pass in training mode; call `.eval()` for a fixed function.
        generator: for the initial weights; a fixed seed where it is left out.

    >>> make = Layers("tanh")
    >>> with make.drawn():
    ...     net = nn.Sequential(make.linear(2, 3), make.activation(), make.linear(3, 1))
    >>> net(torch.zeros(5, 2)).shape
    torch.Size([5, 1])
    """

    def __init__(
        self, activation: str = "silu", spectral_norm: bool = False, generator: torch.Generator | None = None
    ) -> None:
        if activation not in ACTIVATIONS:
            why = ": it has no second derivative" if activation in ("relu", "leaky_relu") else ""
            raise ArgumentError(
                f"activation {activation!r} is not among {', '.join(ACTIVATIONS)}{why}; use one of those"
            )
        generator = stream(0, "init") if generator is None else generator
        self.options = LayerOptions(activation=activation, spectral_norm=spectral_norm, generator=generator)

    def drawn(self) -> AbstractContextManager[None]:
        """Where layers are made: their initial weights come from the generator, and no global state moves."""
        return isolated(self.options["generator"])  # type: ignore[arg-type]

    def activation(self) -> nn.Module:
        return ACTIVATIONS[self.options["activation"]]()

    def linear(self, inputs: int, outputs: int) -> nn.Module:
        return self._normalized(nn.Linear(inputs, outputs))

    def conv(self, inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Module:
        """A convolution that keeps the size of an image, up to its stride."""
        return self._normalized(nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2))

    def standardized(self, layer: nn.Module, *, activated: bool = True) -> nn.Module:
        """The layer with `Standardized` weights that keep variances as they are, past an activation where `activated`."""
        gain = self._gain() if activated else 1.0
        weight: Any = layer.weight
        return register_parametrization(layer, "weight", Standardized(len(weight), gain))

    def _gain(self) -> float:
        """1/sd of φ(z), z ~ N(0, 1)."""
        z = torch.linspace(-8, 8, 2001, dtype=torch.float64)
        p, y = torch.softmax(-0.5 * z.square(), 0), self.activation()(z)
        return float(((p * y.square()).sum() - (p * y).sum() ** 2).rsqrt())

    def _normalized(self, layer: nn.Module) -> nn.Module:
        return spectral_norm(layer) if self.options["spectral_norm"] else layer


class LayerNorm(nn.Module):
    """(x - mean)/√(variance + ε), scaled and shifted, over the last axis.

    Written out, because the third derivative of torch's own, which score matching needs for its gradient,
    takes the variance for a constant and is silently wrong.

    >>> LayerNorm(4)(torch.arange(4.0)[None])
    tensor([[-1.3416, -0.4472,  0.4472,  1.3416]], grad_fn=<AddBackward0>)
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        return centered * (centered.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight + self.bias


def sizes_of(name: str, values: Sequence[int], least: int = 1) -> tuple[int, ...]:
    """Whole positive numbers as a tuple."""
    sizes = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else None
    if sizes is None or len(sizes) < least:
        raise ArgumentError(f"{name}={values!r}: give at least {least} whole numbers from 1 on")
    return tuple(check_count("a network", name, size) for size in sizes)
