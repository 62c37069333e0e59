"""Both phases of learning in a Bernoulli deep Boltzmann machine as one function for a compiler.

Data and chains go through the weights side by side: while a mean-field iteration updates the means of the data, a Gibbs
sweep draws the chains from the same product. On a GPU, where a product of few rows costs as much as one of many, that
saves a third of them; everything element-wise is fused around the rest.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["Learned", "fused_phases"]


class Learned(NamedTuple):
    """What an update needs: the contrast of energies, gradients, means of the data, chains, and the residual of h¹."""

    gap: Tensor
    weights: list[Tensor]
    biases: list[Tensor]
    means: list[Tensor]
    layers: list[Tensor]
    residual: Tensor


def fused_phases(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    v: Tensor,
    layers: Sequence[Tensor],
    coins: Sequence[Tensor],
    iterations: int,
) -> Learned:
    """The same as `positive_phase`, `negative_phase` and `phase_contrast`, for more iterations than sweeps.

    `coins` holds the uniforms of every sweep in one row, the layers one after the other.
    """
    n, m, depth = len(v), len(layers[0]), len(biases)
    odd, even = range(1, depth, 2), range(0, depth, 2)
    sizes = [m * len(b) for b in biases]

    def logits(i: int, x: Sequence[Tensor]) -> Tensor:
        field = biases[i]
        if i > 0:
            field = torch.addmm(field, x[i - 1], weights[i - 1])
        return field if i + 1 == depth else torch.addmm(field, x[i + 1], weights[i].T)

    # the data's first pass: upwards with doubled inputs of inner layers, then the odd layers
    below = torch.addmm(biases[1], v, weights[0])
    natural: list[Tensor] = [v, 2 * below - biases[1] if depth > 2 else below]
    mean = [v, torch.sigmoid(natural[1])]
    for i in range(2, depth):
        natural.append(torch.addmm(biases[i], mean[i - 1], weights[i - 1], alpha=2.0 if i + 1 < depth else 1.0))
        mean.append(torch.sigmoid(natural[i]))
    before = mean[1]

    def update(parity: range) -> None:
        for i in parity:
            if i > 0:
                natural[i] = logits(i, mean)
                mean[i] = torch.sigmoid(natural[i])

    update(odd)
    # side by side: chains draw even and odd layers while the data's means move
    chain, field = list(layers), [v] * depth
    for u in coins:
        numbers = [part.view(m, -1) for part in u.split(sizes)]
        for parity in (even, odd):
            before = mean[1] if parity is odd else before
            both = [torch.cat([a, b]) for a, b in zip(mean, chain, strict=True)]
            for i in parity:
                if i == 0:
                    field[i] = logits(i, chain)
                else:
                    a = logits(i, both)
                    natural[i], field[i] = a[:n], a[n:]
                    mean[i] = torch.sigmoid(natural[i])
                chain[i] = (numbers[i] < torch.sigmoid(field[i])).to(v.dtype)
    update(even)
    for _ in range(iterations - len(coins) - 1):
        before = mean[1]
        update(odd)
        update(even)

    gap = -(v @ biases[0]).mean()
    for i in range(1, depth):
        gap = gap - softplus(natural[i]).sum() / n + softplus(field[i]).sum() / m * (i % 2)
        if i % 2:
            own = below if i == 1 else biases[i]
            gap = gap - ((own - natural[i]) * mean[i]).sum() / n
    seen = [torch.sigmoid(field[i]) if i % 2 else chain[i] for i in range(depth)]
    for i in even:
        gap = gap + (seen[i] @ biases[i]).mean()
    pairs = [
        torch.cat([a * (-1 / n), b * (1 / m)] if i % 2 else [a, b])
        for i, (a, b) in enumerate(zip(mean, seen, strict=True))
    ]
    g_weights = [pairs[i].T @ pairs[i + 1] for i in range(depth - 1)]
    g_biases = [b.mean(0) - a.mean(0) for a, b in zip(mean, seen, strict=True)]
    return Learned(gap, g_weights, g_biases, mean, chain, (mean[1] - before).abs().max())
