"""Networks of padded sequences and sets: recurrent, and with attention."""

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from gibbsian.errors import ArgumentError
from gibbsian.nets.layers import LayerNorm, LayerOptions, Layers, sizes_of
from gibbsian.nets.mlp import MLP
from gibbsian.recorded import Recorded


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
        self, features: int, width: int = 64, layers: int = 1, outputs: int = 1, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__()
        sizes_of("features, width, layers, outputs", (features, width, layers, outputs), 4)
        make = Layers(**options)
        with make.drawn():
            inputs = [features] + [width] * (layers - 1)
            self.inputs = nn.ModuleList(make.linear(a, 3 * width) for a in inputs)
            self.recurrences = nn.ModuleList(make.linear(width, 3 * width) for _ in range(layers))
            self.head = nn.Sequential(make.linear(width, width), make.activation(), make.linear(width, outputs))
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

    def __init__(self, width: int, heads: int, make: Layers) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = LayerNorm(width), LayerNorm(width)
        self.mix, self.out = make.linear(width, 3 * width), make.linear(width, width)
        self.dense = nn.Sequential(make.linear(width, 2 * width), make.activation(), make.linear(2 * width, width))

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
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        sizes_of("features, width, heads, depth, outputs", (features, width, heads, depth, outputs), 5)
        if width % heads:
            raise ArgumentError(f"width={width} must be a multiple of heads={heads}")
        make = Layers(**options)
        with make.drawn():
            self.embed = make.linear(features, width)
            self.positions = None if length is None else nn.Parameter(0.02 * torch.randn(length, width))
            self.blocks = nn.ModuleList(AttentionBlock(width, heads, make) for _ in range(depth))
        self.norm = LayerNorm(width)
        self.head = MLP(width, (width,), outputs, **make.options)

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
