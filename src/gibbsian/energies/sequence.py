"""Energies of sequences and sets of variable length: recurrent, and with attention.

Batches are padded to `(batch, length, features)`; `energy.given(lengths)` or `energy.given(mask)` ignores the
padding, and the energy by itself takes every sequence as full.
"""

from typing import Unpack

import torch
from torch import Tensor

from gibbsian.domains import Domain
from gibbsian.energies.neural import NeuralEnergy, domain_with_axes
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.nets.layers import LayerOptions
from gibbsian.nets.sequence import AttentionNet, RecurrentNet


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
        confine: c of ½c‖x‖² over the real entries.
        activation, spectral_norm, generator: as for `nets.Layers`.

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
        confine: c of ½c‖x‖² over the real entries.
        activation, spectral_norm, generator: as for `nets.Layers`.

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
