"""Neural energies: a network with one output, on a domain, optionally confined; of vectors and of images.

K outputs instead of one are the logits of a hybrid model, `models.JointEnergy`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from torch import Tensor, nn

from gibbsian.capabilities import Jet
from gibbsian.domains import Domain, Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.nets.conv import ConvNet, ResidualNet
from gibbsian.nets.layers import LayerOptions
from gibbsian.nets.mlp import MLP

Where = Domain | int | tuple[int, ...]  # a number or shape stands for R^d


class NeuralEnergy(Energy):
    """E(x) = net(x) + ½c‖x‖²: any network with one output as an energy, optionally confined.

    On R^d a network alone need not have a finite partition function; the quadratic term makes it finite
    whenever the network grows more slowly than c‖x‖²/2 (all smooth activations here grow at most linearly).

    Args:
        net: maps `(batch, *event)` to `(batch, 1)` or `(batch,)`.
        domain: where x lives.
        confine: c, zero or more.

    >>> import torch, gibbsian as gb
    >>> energy = NeuralEnergy(gb.nets.MLP(2), gb.domains.Real(2), confine=0.1)
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

    def taylor_parts(self) -> tuple[nn.Module, ...]:
        return (self.net,)

    def taylor(self, jet: Jet, propagate: Callable[[Any, Jet], Jet]) -> Jet:
        out = propagate(self.net, jet)
        out = out.squeeze(1) if out.value.dim() == 2 else out
        if not self.confine:
            return out
        c, x, v = self.confine, jet.value.flatten(1), jet.first.flatten(2)
        second = c * v.square().sum(2).sum(0)
        return Jet(
            out.value + 0.5 * c * x.square().sum(1),
            out.first + c * (v * x).sum(2),
            second if out.second is None else out.second + second,
        )


def domain_with_axes(domain: Where, axes: int, what: str) -> Domain:
    """A domain, or R^d from a shape, refused where its events do not have that many axes."""
    domain = domain if isinstance(domain, Domain) else Real(domain)
    if len(domain.shape) != axes:
        raise ShapeError(f"{what} needs events with {axes} axes, but {domain} has shape {tuple(domain.shape)}")
    return domain


class MLPEnergy(NeuralEnergy):
    """A multi-layer perceptron as an energy: E(x) = MLP(x) + ½c‖x‖².

    The default for vectors; for images `ConvEnergy` or `ResidualEnergy`, for sequences `RecurrentEnergy` or
    `AttentionEnergy`.

    Args:
        domain: a domain, or a number or shape for R^d.
        hidden: as for `nets.MLP`.
        confine: c of the quadratic confinement.
        activation, spectral_norm, generator: as for `nets.Layers`.

    >>> import torch
    >>> energy = MLPEnergy(2, hidden=(64, 64), confine=0.1)
    >>> energy.score(torch.zeros(3, 2)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        domain: Where,
        hidden: Sequence[int] = (128, 128),
        *,
        confine: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        domain = domain if isinstance(domain, Domain) else Real(domain)
        super().__init__(MLP(domain.numel, hidden, **options), domain, confine=confine)


class ConvEnergy(NeuralEnergy):
    """Four convolutions of stride two and a dense head as an energy of images.

    Small and quick; the size that course notes train on digits. For color images `ResidualEnergy`.

    Args:
        domain: a domain of shape (channels, height, width), or that shape for R^d.
        channels, head: as for `nets.ConvNet`.
        confine: c of ½c‖x‖²; a box needs none.
        activation, spectral_norm, generator: as for `nets.Layers`.

    >>> import torch
    >>> ConvEnergy((1, 8, 8), channels=(8, 8))(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2])
    """

    def __init__(
        self,
        domain: Domain | tuple[int, int, int],
        channels: Sequence[int] = (16, 32, 64, 64),
        head: int = 64,
        *,
        confine: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        domain = domain_with_axes(domain, 3, "ConvEnergy")
        super().__init__(ConvNet(domain.shape, channels, head, **options), domain, confine=confine)  # type: ignore[arg-type]


class ResidualEnergy(NeuralEnergy):
    """A residual network as an energy of images: no batch normalization, smooth activations.

    Args:
        domain: a domain of shape (channels, height, width), or that shape for R^d.
        widths, blocks: as for `nets.ResidualNet`.
        confine: c of ½c‖x‖²; a box needs none.
        activation, spectral_norm, generator: as for `nets.Layers`.

    >>> import torch
    >>> ResidualEnergy((3, 8, 8), widths=(8, 16), blocks=1)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2])
    """

    def __init__(
        self,
        domain: Domain | tuple[int, int, int],
        widths: Sequence[int] = (64, 128, 128),
        blocks: int = 2,
        *,
        confine: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        domain = domain_with_axes(domain, 3, "ResidualEnergy")
        super().__init__(ResidualNet(domain.shape, widths, blocks, **options), domain, confine=confine)  # type: ignore[arg-type]
