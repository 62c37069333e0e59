"""Neural energies: what they share, and the plain multi-layer perceptron.

A network maps a batch to `(batch, outputs)`: one output is an energy, K outputs are the logits of a hybrid
model (`models.JointEnergy`). Activations are smooth, because the score is a derivative of the energy and
score matching differentiates twice; nothing depends on the statistics of the batch, because an energy belongs
to one x.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm as spectrally_normalized

from gibbsian.domains import Domain, Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.random import isolated, stream
from gibbsian.recorded import Recorded

__all__ = ["MLP", "LayerNorm", "MLPEnergy", "NeuralEnergy"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
    "elu": nn.ELU,
    "mish": nn.Mish,
    "tanh": nn.Tanh,
}


def activation_of(name: str) -> nn.Module:
    """A smooth activation by name."""
    if name not in ACTIVATIONS:
        why = ": it has no second derivative" if name in ("relu", "leaky_relu") else ""
        raise ArgumentError(f"activation {name!r} is not among {', '.join(ACTIVATIONS)}{why}; use one of those")
    return ACTIVATIONS[name]()


def sizes_of(name: str, values: Sequence[int], least: int = 1) -> tuple[int, ...]:
    """Whole positive numbers as a tuple."""
    sizes = tuple(values)
    if len(sizes) < least or not all(isinstance(v, int) and v >= 1 for v in sizes):
        raise ArgumentError(f"{name}={values!r}: give at least {least} whole numbers from 1 on")
    return sizes


def layer(module: nn.Module, spectral_norm: bool) -> nn.Module:
    """The layer, its weight divided by its largest singular value where that is asked for."""
    return spectrally_normalized(module) if spectral_norm else module


def seeded(generator: torch.Generator | None) -> torch.Generator:
    """The generator for initial weights: a fixed seed where none is given."""
    return stream(0, "init") if generator is None else generator


class NeuralEnergy(Energy):
    """E(x) = net(x) + ½c‖x‖²: any network with one output as an energy, optionally confined.

    On R^d a network alone need not have a finite partition function; the quadratic term makes it finite
    whenever the network grows more slowly than c‖x‖²/2 (all smooth activations here grow at most linearly).

    Args:
        net: maps `(batch, *event)` to `(batch, 1)` or `(batch,)`.
        domain: where x lives.
        confine: c, zero or more.

    >>> import gibbsian as gb
    >>> energy = NeuralEnergy(MLP(2), gb.domains.Real(2), confine=0.1)
    >>> energy(torch.zeros(3, 2)).shape
    torch.Size([3])
    """

    def __init__(self, net: nn.Module, domain: Domain, *, confine: float = 0.0) -> None:
        super().__init__(domain)
        if not (math.isfinite(confine) and confine >= 0):
            raise ArgumentError(f"confine={confine}: the quadratic confinement must be zero or more, such as 0.01")
        self.net, self.confine = net, float(confine)

    def confinement(self, x: Tensor) -> Tensor:
        """½c‖x‖², `(batch,)`."""
        return 0.5 * self.confine * x.flatten(1).square().sum(1)

    def forward(self, x: Tensor) -> Tensor:
        energy = self.net(x)
        energy = energy.squeeze(1) if energy.dim() == 2 else energy
        return energy + self.confinement(x) if self.confine else energy


class MLP(Recorded):
    """A multi-layer perceptron over flattened events: `(batch, *event)` → `(batch, outputs)`.

    Args:
        inputs: numbers in one event.
        hidden: widths.
        outputs: 1 for an energy, K for logits.
        activation: "silu", "softplus", "gelu", "elu", "mish" or "tanh".
        spectral_norm: divide every weight by its largest singular value (a Lipschitz bound). Its power
            iteration moves at every pass in training mode; call `.eval()` for a fixed function.
        generator: for the initial weights; a fixed seed where it is left out.

    >>> MLP(4, outputs=3)(torch.zeros(5, 2, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int] = (128, 128),
        outputs: int = 1,
        *,
        activation: str = "silu",
        spectral_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes = sizes_of("inputs, hidden", (inputs, *hidden), 1)
        sizes_of("outputs", (outputs,))
        layers: list[nn.Module] = []
        with isolated(seeded(generator)):
            for a, b in pairwise(sizes):
                layers += [layer(nn.Linear(a, b), spectral_norm), activation_of(activation)]
            layers.append(layer(nn.Linear(sizes[-1], outputs), spectral_norm))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))


class LayerNorm(nn.Module):
    """(x - mean)/√(variance + ε), scaled and shifted, over the last axis.

    Written out, because the third derivative of torch's own, which score matching needs for its gradient,
    takes the variance for a constant and is silently wrong (pytorch issue 175754).

    >>> LayerNorm(4)(torch.arange(4.0)[None])
    tensor([[-1.3416, -0.4472,  0.4472,  1.3416]], grad_fn=<AddBackward0>)
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        return centered * (centered.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight + self.bias


def domain_of(domain: Domain | int | tuple[int, ...]) -> Domain:
    """A domain, or R^d from a number or shape."""
    return domain if isinstance(domain, Domain) else Real(domain)


def need_axes(domain: Domain, axes: int, what: str) -> tuple[int, ...]:
    """The event shape, refused where it does not have that many axes."""
    if len(domain.shape) != axes:
        raise ShapeError(f"{what} needs events with {axes} axes, but {domain} has shape {tuple(domain.shape)}")
    return domain.shape


class MLPEnergy(NeuralEnergy):
    """A multi-layer perceptron as an energy: E(x) = MLP(x) + ½c‖x‖².

    The default for vectors; for images `ConvEnergy` or `ResidualEnergy`, for sequences `RecurrentEnergy` or
    `AttentionEnergy`.

    Args:
        domain: a domain, or a number or shape for R^d.
        hidden, activation, spectral_norm, generator: as for `MLP`.
        confine: c of the quadratic confinement.

    >>> energy = MLPEnergy(2, hidden=(64, 64), confine=0.1)
    >>> energy.score(torch.zeros(3, 2)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        domain: Domain | int | tuple[int, ...],
        hidden: Sequence[int] = (128, 128),
        *,
        activation: str = "silu",
        spectral_norm: bool = False,
        confine: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        domain = domain_of(domain)
        net = MLP(domain.numel, hidden, activation=activation, spectral_norm=spectral_norm, generator=generator)
        super().__init__(net, domain, confine=confine)
