"""Machines of two-valued units with pairwise weights in one form, on which the variational estimators work.

    log p*(x) = constant + b·x + Σ_edges w_ij x_i x_j,   x in {0, 1}^n

A unit with values (low, 1) is x = low + (1 - low)·bit, so ±1 units, {0, 1} units and machines that mix them all have
this form, with the same log Z. Hidden units are units like the others.
"""

import torch
from torch import Tensor

from gibbsian.capabilities import Pairwise
from gibbsian.errors import DivergenceError


def from_edges(i: Tensor, j: Tensor, weight: Tensor, bias: Tensor, low: Tensor) -> Pairwise:
    """The form of E = -Σ w xᵢxⱼ - b·x over these edges."""
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
