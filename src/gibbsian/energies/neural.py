"""Neural energies: a network with one output, on a domain, optionally confined; of vectors, images and sequences.

K outputs instead of one are the logits of a hybrid model, `models.JointEnergy`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Jet
from gibbsian.domains import Domain, Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError, check_number
from gibbsian.nets.conv import ConvNet, ResidualNet
from gibbsian.nets.layers import LayerOptions
from gibbsian.nets.mlp import MLP
from gibbsian.nets.sequence import AttentionNet, RecurrentNet

Where = Domain | int | tuple[int, ...]  # a number or shape stands for R^d


class NeuralEnergy(Energy):
    """E(x) = net(x) + ½c‖x‖²: any network with one output as an energy, optionally confined.

    On R^d a network alone need not have a finite partition function; the quadratic term makes it finite
    whenever the network grows more slowly than c‖x‖²/2 (all smooth activations here grow at most linearly).

    Args:
        net: maps `(batch, *event)` to `(batch, 1)` or `(batch,)`.
        domain: where x lives.
        confine: c, zero or more.

    >>> import gibbsian as gb
    >>> energy = NeuralEnergy(gb.nets.MLP(2), gb.domains.Real(2), confine=0.1)
    >>> energy(torch.zeros(3, 2)).shape
    torch.Size([3])
    """

    def __init__(self, net: nn.Module, domain: Domain, *, confine: float = 0.0) -> None:
        super().__init__(domain)
        check_number(self, "confine", confine)
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

    The default for vectors.

    Args:
        domain: a domain, or a number or shape for R^d.
        hidden: as for `nets.MLP`.
        confine: c of the quadratic confinement.
        activation, spectral_norm, generator: as for `nets.Layers`.

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
        confine, activation, spectral_norm, generator: as for `MLPEnergy`; a box needs no confinement.

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
        widths, blocks, stride, pool, standardize, after: as for `nets.ResidualNet`.
        confine, activation, spectral_norm, generator: as for `ConvEnergy`.

    >>> ResidualEnergy((3, 8, 8), widths=(8, 16), blocks=1)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2])
    """

    def __init__(
        self,
        domain: Domain | tuple[int, int, int],
        widths: Sequence[int] = (64, 128, 128),
        blocks: int | Sequence[int] = 2,
        *,
        stride: int = 1,
        pool: bool = True,
        standardize: bool = False,
        after: bool = False,
        confine: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        domain = domain_with_axes(domain, 3, "ResidualEnergy")
        how = {"stride": stride, "pool": pool, "standardize": standardize, "after": after, **options}
        net = ResidualNet(domain.shape, widths, blocks, **how)  # type: ignore[arg-type]
        super().__init__(net, domain, confine=confine)


# --- sequences and sets of variable length --------------------------------------------------------
# Batches are padded to `(batch, length, features)`; `energy.given(lengths)` or `energy.given(mask)` ignores the padding, and
# the energy by itself takes every sequence as full.


def mask_of(index: Tensor, length: int) -> Tensor:
    """A mask `(batch, length)`, True for real entries, from lengths `(batch,)` or from a mask."""
    if not isinstance(index, Tensor):
        raise ArgumentError(f"give lengths or a mask as a tensor, got a {type(index).__name__}")
    if index.dtype == torch.bool:
        if index.dim() != 2 or index.shape[1] != length:
            raise ShapeError(f"the mask has shape {tuple(index.shape)}, expected (batch, {length})")
        mask = index
    else:
        if index.dim() != 1 or index.is_floating_point():
            raise ShapeError(f"lengths are {index.dtype} of shape {tuple(index.shape)}, expected whole (batch,)")
        if int(index.max()) > length:
            raise ArgumentError(f"a sequence of length {int(index.max())} does not fit into {length} places")
        mask = torch.arange(length, device=index.device) < index[:, None]
    if not bool(mask.any(1).all()):
        raise ArgumentError("a sequence without any entry has no energy; every row needs at least one")
    return mask


class SequenceEnergy(NeuralEnergy):
    """A network over padded sequences as a family: `given(lengths)` or `given(mask)` ignores the padding."""

    def given(self, index: Tensor) -> "MaskedEnergy":
        """The energy of sequences with these lengths `(batch,)`, or of entries where the mask is True."""
        return MaskedEnergy(self, mask_of(index, self.domain.shape[0]))


class MaskedEnergy(Energy):
    """A sequence energy that sees only the entries where `mask` is True; the others have no effect."""

    mask: Tensor

    def __init__(self, base: SequenceEnergy, mask: Tensor) -> None:
        super().__init__(base.domain)
        self.base = base
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) != len(self.mask):
            raise ShapeError(f"{len(x)} sequences met a mask of {len(self.mask)}; give one row of it to each")
        x = torch.where(self.mask[:, :, None], x, 0.0)  # whatever the padding holds, NaN too, is not seen
        energy = self.base.net(x, self.mask).squeeze(1)
        return energy + self.base.confinement(x) if self.base.confine else energy


class RecurrentEnergy(SequenceEnergy):
    """Gated recurrent units as an energy of sequences.

    Args:
        domain: a domain of shape (length, features), or that shape for R^d.
        width, layers: as for `nets.RecurrentNet`.
        confine, activation, spectral_norm, generator: as for `MLPEnergy`; only the real entries are confined.

    >>> energy = RecurrentEnergy((7, 3))
    >>> x = torch.zeros(2, 7, 3)
    >>> energy(x).shape, energy.given(torch.tensor([7, 4]))(x).shape
    (torch.Size([2]), torch.Size([2]))
    """

    def __init__(
        self,
        domain: Domain | tuple[int, int],
        width: int = 64,
        layers: int = 1,
        *,
        confine: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        domain = domain_with_axes(domain, 2, "RecurrentEnergy")
        super().__init__(RecurrentNet(domain.shape[1], width, layers, **options), domain, confine=confine)


class AttentionEnergy(SequenceEnergy):
    """A transformer encoder as an energy of sequences, or of sets (`positions=False`).

    Args:
        domain: a domain of shape (length, features), or that shape for R^d.
        width, heads, depth: as for `nets.AttentionNet`.
        positions: False makes the energy blind to the order of the entries.
        confine, activation, spectral_norm, generator: as for `RecurrentEnergy`.

    >>> energy = AttentionEnergy((7, 3), positions=False)
    >>> x = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
    >>> torch.allclose(energy(x), energy(x.flip(1)), atol=1e-5)
    True
    """

    def __init__(
        self,
        domain: Domain | tuple[int, int],
        width: int = 64,
        heads: int = 4,
        depth: int = 2,
        *,
        positions: bool = True,
        confine: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        domain = domain_with_axes(domain, 2, "AttentionEnergy")
        length, features = domain.shape
        net = AttentionNet(features, length if positions else None, width, heads, depth, **options)
        super().__init__(net, domain, confine=confine)
