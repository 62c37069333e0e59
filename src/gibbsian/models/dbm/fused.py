"""Both phases of learning in a Bernoulli deep Boltzmann machine as one function for a compiler: the twin of `phases`.

Data and chains go through the weights side by side: while a mean-field iteration updates the means of the data, a Gibbs
sweep draws the chains from the same product. On a GPU, where a product of few rows costs as much as one of many, that
saves a third of them; everything element-wise is fused around the rest.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gibbsian.capabilities import LayerContrast
from gibbsian.models.dbm.phases import layer_gradients

Each = list[Tensor]  # one for each layer, from below


def fused_phases(
    weights: Each, biases: Each, v: Tensor, chains: Each, noise: Sequence[Tensor], iterations: int
) -> LayerContrast:
    """The same as `phases.phases`, for more mean-field iterations than sweeps.

    `noise` holds the uniforms of every sweep in one row, the layers one after the other.
    """
    depth, m = len(biases), len(chains[0])
    odd, even = range(1, depth, 2), range(0, depth, 2)
    below, natural, mean = _first_pass(weights, biases, v)
    before = mean[1]
    _update(weights, biases, odd, natural, mean)
    chain, field = list(chains), [v] * depth
    for u in noise:
        numbers = [part.view(m, -1) for part in u.split([m * len(b) for b in biases])]
        _side_by_side(weights, biases, even, natural, mean, chain, field, numbers)
        before = mean[1]
        _side_by_side(weights, biases, odd, natural, mean, chain, field, numbers)
    _update(weights, biases, even, natural, mean)
    for _ in range(iterations - len(noise) - 1):
        before = mean[1]
        _update(weights, biases, odd, natural, mean)
        _update(weights, biases, even, natural, mean)
    drawn = [torch.sigmoid(field[i]) if i % 2 else chain[i] for i in range(depth)]
    value = _gap(biases, below, natural, mean, field, drawn)
    residual = (mean[1] - before).abs().max()
    return LayerContrast(value, *layer_gradients(mean, drawn), mean, chain, residual)


def _logits(weights: Each, biases: Each, i: int, x: Each) -> Tensor:
    """Of layer i given the values or means x of its neighbors."""
    field = biases[i]
    if i > 0:
        field = torch.addmm(field, x[i - 1], weights[i - 1])
    return field if i + 1 == len(biases) else torch.addmm(field, x[i + 1], weights[i].T)


def _first_pass(weights: Each, biases: Each, v: Tensor) -> tuple[Tensor, Each, Each]:
    """Upwards with doubled inputs of inner layers: c¹ + vW¹, logits and means."""
    depth = len(biases)
    below = torch.addmm(biases[1], v, weights[0])
    natural = [v, 2 * below - biases[1] if depth > 2 else below]
    mean = [v, torch.sigmoid(natural[1])]
    for i in range(2, depth):
        natural.append(torch.addmm(biases[i], mean[i - 1], weights[i - 1], alpha=2.0 if i + 1 < depth else 1.0))
        mean.append(torch.sigmoid(natural[i]))
    return below, natural, mean


def _update(weights: Each, biases: Each, layers: range, natural: Each, mean: Each) -> None:
    """Half a mean-field iteration, in place."""
    for i in layers:
        if i > 0:
            natural[i] = _logits(weights, biases, i, mean)
            mean[i] = torch.sigmoid(natural[i])


def _side_by_side(
    weights: Each, biases: Each, layers: range, natural: Each, mean: Each, chain: Each, field: Each, numbers: Each
) -> None:
    """Half an iteration for the data and half a sweep for the chains, in place: logits `natural` and `field`."""
    n = len(mean[0])
    both = [torch.cat([a, b]) for a, b in zip(mean, chain, strict=True)]
    for i in layers:
        if i == 0:
            field[i] = _logits(weights, biases, i, chain)
        else:
            a = _logits(weights, biases, i, both)
            natural[i], field[i] = a[:n], a[n:]
            mean[i] = torch.sigmoid(natural[i])
        chain[i] = (numbers[i] < torch.sigmoid(field[i])).to(mean[0].dtype)


def _gap(biases: Each, below: Tensor, natural: Each, mean: Each, field: Each, drawn: Each) -> Tensor:
    """-bound of the data less that of the chains, whose odd layers are summed out."""
    depth, n, m = len(biases), len(mean[0]), len(drawn[0])
    gap = -(mean[0] @ biases[0]).mean()
    for i in range(1, depth):
        gap = gap - softplus(natural[i]).sum() / n + softplus(field[i]).sum() / m * (i % 2)
        if i % 2:
            own = below if i == 1 else biases[i]
            gap = gap - ((own - natural[i]) * mean[i]).sum() / n
    for i in range(0, depth, 2):
        gap = gap + (drawn[i] @ biases[i]).mean()
    return gap
