"""The two phases of learning in deep Boltzmann machines, with hardly more than their matrix products.

    ∇_W [-bound] = -⟨φ(μ^{l-1}) φ(μˡ)ᵀ⟩_data + ⟨φ(h^{l-1}) φ(hˡ)ᵀ⟩_chains

μ are mean-field posteriors, chains are moved by block Gibbs sweeps. In the chains the odd layers enter by their means
given the even ones, which are at hand and vary less.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import LayerContrast
from gibbsian.fast.logistic import Logistic
from gibbsian.models.dbm.infer import odd_term, start, statistic, update
from gibbsian.models.dbm.layers import LayeredMachine
from gibbsian.units import Bernoulli, Natural, layer_noise


class Phase(NamedTuple):
    """Statistics φ of every layer, the visible one first, and what -log of their mass is on average.

    In the positive phase the latter is -E(v, μ) + H(μ) with its sign changed, in the negative one the energy of the
    even layers with the odd ones summed out: ∇ of either, statistics held fixed, is ⟨∇E⟩.
    """

    statistics: list[Tensor]
    energy: Tensor


def phases(
    dbm: LayeredMachine, v: Tensor, chains: Sequence[Tensor], iterations: int, steps: int, generator: torch.Generator
) -> LayerContrast:
    """Both phases and what they learn; by differentiation of the energies where some unit's parameters do not enter
    linearly, as those of Gaussian ones."""
    with torch.no_grad():
        positive, residual = positive_phase(dbm, v, iterations)
        negative, layers = negative_phase(dbm, chains, steps, generator)
        value = positive.energy - negative.energy
    weights, biases = None, None
    if dbm.linear_biases():
        weights, biases = layer_gradients(positive.statistics, negative.statistics)
    else:
        hidden = zip(positive.statistics[1:], dbm.layers[1:], strict=True)
        even = [None if i % 2 else layer for i, layer in enumerate(layers)]
        energy = -dbm.mass([v, *(m.view(len(v), *u.domain.shape) for m, u in hidden)])
        energies = energy.mean() + dbm.mass(even).mean()
        value = value + (energies - energies.detach())  # the entropy of the posterior is held fixed, but counted
    return LayerContrast(value, weights, biases, positive.statistics, layers, residual)


def _ends(dbm: LayeredMachine) -> dict[int, Logistic]:
    """The layers with one neighbor by number, where product, bias and logistic function can be done at once."""
    top = len(dbm.layers) - 1
    ways = {0: Logistic.of(dbm.biases[0], dbm.weights[0].T), top: Logistic.of(dbm.biases[top], dbm.weights[-1])}
    return {i: way for i, way in ways.items() if isinstance(dbm.layers[i], Bernoulli) and i % 2 == 0}


def positive_phase(dbm: LayeredMachine, v: Tensor, iterations: int) -> tuple[Phase, Tensor]:
    """Means of all layers given the data after a fixed number of mean-field iterations; and by how much the last one
    changed h¹ at most."""
    below, naturals, seen = start(dbm, v)
    before = seen[1]
    ends = _ends(dbm)
    for k in range(iterations):
        before = seen[1]
        update(dbm, 1, seen, below, naturals)
        if len(dbm.layers) == 3 and 2 in ends and k + 1 < iterations:  # natural parameters are wanted at the end alone
            seen[2] = ends[2].mean(seen[1])
        else:
            update(dbm, 0, seen, below, naturals)
    bound = -dbm.layers[0].energy(v, dbm.biases[0]).mean()
    for i in range(1, len(dbm.layers)):
        if i % 2:
            own = below if i == 1 else dbm.biases[i]
            bound = bound + odd_term(dbm.layers[i], own, naturals[i - 1], seen[i]).mean()
        else:  # updated last, so these are the best given the odd ones: own term, couplings and entropy in one
            bound = bound + dbm.layers[i].log_partition(Natural(naturals[i - 1])).mean()
    return Phase(seen, -bound), (seen[1] - before).abs_().max()


def negative_phase(
    dbm: LayeredMachine, layers: Sequence[Tensor], steps: int, generator: torch.Generator
) -> tuple[Phase, list[Tensor]]:
    """`steps` sweeps of the chains, the even layers given the odd ones first; their statistics, and where they are."""
    values = list(layers)
    units = list(dbm.layers)
    seen: list[Tensor] = [unit.statistic(x) for unit, x in zip(units, values, strict=True)]
    naturals: dict[int, Natural] = {}
    ends = _ends(dbm)
    for _ in range(steps):
        numbers = [part[0] for part in layer_noise(units, values[0], 1, generator, quick=True)]
        for i in (*range(0, len(units), 2), *range(1, len(units), 2)):
            if i in ends:
                p = ends[i].mean(seen[1 if i == 0 else i - 1])
                values[i] = seen[i] = torch.lt(numbers[i], p, out=p)
                continue
            natural = dbm.natural(i, seen)
            values[i] = units[i].sample(natural, numbers[i])
            seen[i] = units[i].statistic(values[i])
            naturals[i] = natural
    energy = values[0].new_zeros(())
    for i, unit in enumerate(units):
        if i % 2:
            energy = energy - unit.log_partition(naturals[i]).mean() + unit.constant(dbm.biases[i])
            seen[i] = statistic(unit, naturals[i].linear)
        else:
            energy = energy + unit.energy(values[i], dbm.biases[i]).mean()
    return Phase(seen, energy), values


def layer_gradients(positive: Sequence[Tensor], negative: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of positive minus negative energies in weights and biases from the statistics of every layer, where
    biases are linear. Both phases go through one product for each weight, so that every matrix is written once."""
    n, m = len(positive[0]), len(negative[0])
    both = [
        torch.cat([a * (-1 / n), b * (1 / m)] if i % 2 else [a, b])
        for i, (a, b) in enumerate(zip(positive, negative, strict=True))
    ]
    weights = [both[i].T @ both[i + 1] for i in range(len(both) - 1)]
    return weights, [b.mean(0) - a.mean(0) for a, b in zip(positive, negative, strict=True)]
