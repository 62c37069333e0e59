"""Machines with two-valued units in one form, on which the variational estimators work.

    log p*(x) = constant + b·x + Σ_edges w_ij x_i x_j,   x in {0, 1}^n

A unit with values (low, high) is x = low + (high - low)·bit, so ±1 units, {0, 1} units and machines that mix
them all have this form, with the same log Z. Hidden units are units like the others.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.energy import Energy
from gibbsian.errors import CapabilityError, DivergenceError
from gibbsian.models.boltzmann import BoltzmannMachine
from gibbsian.models.ising import Ising
from gibbsian.models.rbm.machine import RBM
from gibbsian.units import Bernoulli, Spin, Unit

__all__ = ["Pairwise", "pairwise"]


class Pairwise(NamedTuple):
    """A graph of {0, 1} units, in float64: `bias` (n,), `edges` (2, m) with the smaller unit first, `weight` (m,)."""

    bias: Tensor
    edges: Tensor
    weight: Tensor
    constant: Tensor

    @property
    def units(self) -> int:
        """n."""
        return len(self.bias)

    def log_density(self, x: Tensor) -> Tensor:
        """log p*(x) of {0, 1} states `(batch, n)`."""
        return self.constant + x @ self.bias + (x[:, self.edges[0]] * x[:, self.edges[1]]) @ self.weight

    def directed(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Every edge in both directions: source, target, weight, and the position of the opposite direction."""
        (i, j), m = self.edges, len(self.weight)
        opposite = torch.arange(2 * m, device=i.device).roll(m)
        return torch.cat([i, j]), torch.cat([j, i]), self.weight.repeat(2), opposite


def pairwise(energy: Energy) -> Pairwise:
    """The pairwise form of a Boltzmann machine, an Ising model or an RBM with two-valued units.

    >>> import gibbsian as gb
    >>> pairwise(gb.models.RBM(3, 2)).weight.shape
    torch.Size([6])
    """
    with torch.no_grad():
        if isinstance(energy, BoltzmannMachine):
            low = torch.full_like(energy.bias, -1.0 if energy.spin else 0.0)
            return _from_dense(energy.coupling(), energy.bias, low)
        if isinstance(energy, Ising):
            return _from_lattice(energy)
        if isinstance(energy, RBM):
            low = torch.cat([_low(layer, energy) for layer in (energy.visible, energy.hidden)])
            nv, nh = energy.weight.shape
            dense = energy.weight.new_zeros(nv + nh, nv + nh)
            dense[:nv, nv:] = energy.weight
            dense[nv:, :nv] = energy.weight.T
            return _from_dense(dense, torch.cat([energy.visible_bias, energy.hidden_bias]), low)
    raise CapabilityError(
        f"{type(energy).__name__} is not a machine of two-valued units with pairwise weights; this estimator takes "
        "a BoltzmannMachine, an Ising model, or an RBM with Bernoulli or Spin units. Use partition.ais or "
        "partition.exact"
    )


def _low(layer: Unit, rbm: RBM) -> Tensor:
    if not isinstance(layer, Bernoulli | Spin):
        raise CapabilityError(
            f"this estimator needs two-valued units, this RBM has {type(layer).__name__} ones; use partition.ais, "
            "or partition.exact where one layer is small"
        )
    return rbm.weight.new_full((layer.n,), -1.0 if isinstance(layer, Spin) else 0.0)


def _from_lattice(lattice: Ising) -> Pairwise:
    index = torch.arange(lattice.domain.numel, device=lattice.coupling.device).reshape(lattice.shape)
    couplings = lattice.axis_couplings()
    here = torch.cat([index.flatten()] * len(couplings))
    ahead = torch.cat([index.roll(-1, axis).flatten() for axis in range(len(couplings))])
    bias = lattice.field.expand(lattice.shape).flatten()
    return _from_edges(here, ahead, couplings.flatten(), bias, torch.full_like(bias, -1.0))


def _from_dense(weight: Tensor, bias: Tensor, low: Tensor) -> Pairwise:
    i, j = weight.triu(1).nonzero().T
    return _from_edges(i, j, weight[i, j], bias, low)


def _from_edges(i: Tensor, j: Tensor, weight: Tensor, bias: Tensor, low: Tensor) -> Pairwise:
    """Units x = low + (1 - low)·bit with energy -Σ w xᵢxⱼ - b·x, rewritten for the bits."""
    weight, bias, low = weight.double(), bias.double(), low.double()
    if not bool(torch.isfinite(weight).all() and torch.isfinite(bias).all()):
        raise DivergenceError(
            "weights or biases of the machine are not finite; retrain it or load an earlier checkpoint"
        )
    used = weight != 0
    i, j, weight = torch.minimum(i, j)[used], torch.maximum(i, j)[used], weight[used]
    span = 1 - low
    field = bias.index_add(0, i, weight * low[j]).index_add(0, j, weight * low[i])
    return Pairwise(
        bias=span * field,
        edges=torch.stack([i, j]),
        weight=span[i] * span[j] * weight,
        constant=bias @ low + (weight * low[i] * low[j]).sum(),
    )
