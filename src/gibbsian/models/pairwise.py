"""Machines with pairwise couplings in one form, on which the variational estimators work.

    log p*(x) = constant + b·x + Σ_edges w_ij x_i x_j,   x in {0, 1}^n
    log p*(x) = constant + Σ bᵢ(xᵢ) + Σ_edges w_ij(x_i, x_j),   b, w = 0 at the value 0 (the lattice-gas gauge)

A unit with values (low, 1) is x = low + (1 - low)·bit, so ±1 units, {0, 1} units and machines that mix them all have
this form, with the same log Z. Hidden units are units like the others.
"""

import torch
from torch import Tensor

from gibbsian.capabilities import Bonds, Pairwise, PairwiseTables
from gibbsian.errors import DivergenceError


def from_edges(i: Tensor, j: Tensor, weight: Tensor, bias: Tensor, low: Tensor) -> Pairwise:
    """The form of E = -Σ w xᵢxⱼ - b·x over these edges."""
    weight, bias, low = weight.double(), bias.double(), low.double()
    _refuse_infinite(weight, bias)
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


def from_tables(i: Tensor, j: Tensor, coupling: Tensor, field: Tensor) -> PairwiseTables:
    """The form of E = -Σ hᵢ(xᵢ) - Σ Jᵢⱼ(xᵢ, xⱼ) over these edges, i < j: J `(edges, q, q)`, h `(n, q)`."""
    coupling, field = coupling.double(), field.double()
    _refuse_infinite(coupling, field)
    corner, first, second = coupling[:, :1, :1], coupling[:, :, :1], coupling[:, :1]
    rest = coupling - first - second + corner  # 0 at the value 0 of either unit
    field = field.index_add(0, i, first[:, :, 0]).index_add(0, j, second[:, 0])
    used = (rest != 0).flatten(1).any(1)
    constant = field[:, 0].sum() - coupling[:, 0, 0].sum()  # the corner is in both fields
    edges = torch.stack([i, j])[:, used]
    return PairwiseTables((field - field[:, :1])[:, 1:], edges, rest[used, 1:, 1:], constant)


def two_valued_bonds(edges: Tensor, weight: Tensor, bias: Tensor, low: float) -> Bonds:
    """The form of E = -Σ w xᵢxⱼ - b·x over edges `(2, m)` of units with values (low, 1), as pairs that are equal or not:

    w xᵢxⱼ = (w/2)(1 - low)²·1[xᵢ = xⱼ] + terms of single units
    """
    span = 1 - low
    # (value 1) - (value low) of what is left for single units
    slope = span * bias
    if low == 0:
        slope = slope.index_add(0, edges[0], weight / 2).index_add(0, edges[1], weight / 2)
    field = torch.stack([torch.zeros_like(slope), slope], 1) if bool((slope != 0).any()) else None
    return Bonds(edges, weight * (span * span / 2), field)


def _refuse_infinite(weight: Tensor, bias: Tensor) -> None:
    if not bool(torch.isfinite(weight).all() and torch.isfinite(bias).all()):
        raise DivergenceError(
            "weights or biases of the machine are not finite; retrain it or load an earlier checkpoint"
        )
