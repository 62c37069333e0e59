"""Energies of sequences and sets of variable length: recurrent, and with attention.

Batches are padded to `(batch, length, features)`; `energy.given(lengths)` or `energy.given(mask)` ignores the
padding, and the energy by itself takes every sequence as full.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.domains import Domain
from gibbsian.energies.neural import (
    MLP,
    LayerNorm,
    NeuralEnergy,
    activation_of,
    domain_of,
    layer,
    need_axes,
    seeded,
    sizes_of,
)
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.random import isolated
from gibbsian.recorded import Recorded

__all__ = ["AttentionEnergy", "AttentionNet", "RecurrentEnergy", "RecurrentNet"]


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


class RecurrentNet(Recorded):
    """Gated recurrent units, read at the last real entry: `(batch, length, features)` → `(batch, outputs)`.

    Written out in elementary operations, because fused recurrent kernels cannot be differentiated twice.

    Args:
        features: numbers in one entry of a sequence.
        width: of the hidden state.
        layers: stacked recurrent layers.
        outputs, activation, spectral_norm, generator: as for `MLP`; the activation is that of the dense head.

    >>> RecurrentNet(3, outputs=5)(torch.zeros(2, 7, 3)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        features: int,
        width: int = 64,
        layers: int = 1,
        outputs: int = 1,
        *,
        activation: str = "silu",
        spectral_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes_of("features, width, layers, outputs", (features, width, layers, outputs), 4)
        generator = seeded(generator)
        with isolated(generator):
            inputs = [features] + [width] * (layers - 1)
            self.inputs = nn.ModuleList(layer(nn.Linear(a, 3 * width), spectral_norm) for a in inputs)
            self.recurrences = nn.ModuleList(layer(nn.Linear(width, 3 * width), spectral_norm) for _ in range(layers))
            self.head = nn.Sequential(
                layer(nn.Linear(width, width), spectral_norm),
                activation_of(activation),
                layer(nn.Linear(width, outputs), spectral_norm),
            )
        self.width = width

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for enter, recur in zip(self.inputs, self.recurrences, strict=True):
            h = x.new_zeros(len(x), self.width)
            states = []
            for t, a in enumerate(enter(x).unbind(1)):
                b = recur(h)
                (a_reset, a_keep, a_new), (b_reset, b_keep, b_new) = a.chunk(3, 1), b.chunk(3, 1)
                keep = torch.sigmoid(a_keep + b_keep)
                new = torch.tanh(a_new + torch.sigmoid(a_reset + b_reset) * b_new)
                step = new + keep * (h - new)
                h = step if mask is None else torch.where(mask[:, t, None], step, h)
                states.append(h)
            x = torch.stack(states, 1)
        return self.head(h)


class AttentionBlock(nn.Module):
    """Self-attention and a dense layer, each behind a layer norm and around a shortcut.

    Softmax attention in elementary operations: fused attention kernels cannot be differentiated twice.
    """

    def __init__(self, width: int, heads: int, activation: str, spectral_norm: bool) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = LayerNorm(width), LayerNorm(width)
        self.mix = layer(nn.Linear(width, 3 * width), spectral_norm)
        self.out = layer(nn.Linear(width, width), spectral_norm)
        self.dense = nn.Sequential(
            layer(nn.Linear(width, 2 * width), spectral_norm),
            activation_of(activation),
            layer(nn.Linear(2 * width, width), spectral_norm),
        )

    def forward(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.mix(self.before(x)).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT / math.sqrt(width // self.heads)
        if hidden is not None:
            logits = logits.masked_fill(hidden[:, None, None, :], -math.inf)
        mixed = (torch.softmax(logits, -1) @ v).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(mixed)
        return x + self.dense(self.between(x))


class AttentionNet(Recorded):
    """A transformer encoder, averaged over its entries: `(batch, length, features)` → `(batch, outputs)`.

    Args:
        features: numbers in one entry.
        length: the longest sequence, for learned positions; None for sets, whose order does not matter.
        width, heads, depth: of the encoder; width is a multiple of heads.
        outputs, activation, spectral_norm, generator: as for `MLP`.

    >>> AttentionNet(3, length=7, outputs=5)(torch.zeros(2, 7, 3)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        features: int,
        length: int | None = None,
        width: int = 64,
        heads: int = 4,
        depth: int = 2,
        outputs: int = 1,
        *,
        activation: str = "silu",
        spectral_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes_of("features, width, heads, depth, outputs", (features, width, heads, depth, outputs), 5)
        if width % heads:
            raise ArgumentError(f"width={width} must be a multiple of heads={heads}")
        generator = seeded(generator)
        with isolated(generator):
            self.embed = layer(nn.Linear(features, width), spectral_norm)
            self.positions = None if length is None else nn.Parameter(0.02 * torch.randn(length, width))
            self.blocks = nn.ModuleList(AttentionBlock(width, heads, activation, spectral_norm) for _ in range(depth))
        self.norm = LayerNorm(width)
        self.head = MLP(
            width, (width,), outputs, activation=activation, spectral_norm=spectral_norm, generator=generator
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.embed(x)
        if self.positions is not None:
            h = h + self.positions[: x.shape[1]]
        for block in self.blocks:
            h = block(h, None if mask is None else ~mask)
        h = self.norm(h)
        if mask is None:
            return self.head(h.mean(1))
        weight = mask.to(h)[:, :, None]
        return self.head((h * weight).sum(1) / weight.sum(1))


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
        width, layers, activation, spectral_norm, generator: as for `RecurrentNet`.
        confine: c of ½c‖x‖² over the real entries.

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
        activation: str = "silu",
        spectral_norm: bool = False,
        confine: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        domain = domain_of(domain)
        _, features = need_axes(domain, 2, "RecurrentEnergy")
        options: dict[str, Any] = {
            "activation": activation,
            "spectral_norm": spectral_norm,
            "generator": generator,
        }
        super().__init__(RecurrentNet(features, width, layers, **options), domain, confine=confine)


class AttentionEnergy(SequenceEnergy):
    """A transformer encoder as an energy of sequences, or of sets (`positions=False`).

    Args:
        domain: a domain of shape (length, features), or that shape for R^d.
        width, heads, depth, activation, spectral_norm, generator: as for `AttentionNet`.
        positions: False makes the energy blind to the order of the entries.
        confine: c of ½c‖x‖² over the real entries.

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
        activation: str = "silu",
        spectral_norm: bool = False,
        confine: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        domain = domain_of(domain)
        length, features = need_axes(domain, 2, "AttentionEnergy")
        options: dict[str, Any] = {
            "activation": activation,
            "spectral_norm": spectral_norm,
            "generator": generator,
        }
        net = AttentionNet(features, length if positions else None, width, heads, depth, **options)
        super().__init__(net, domain, confine=confine)
