"""Entropy of a sample, differentiable in its points."""

import math

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError

EULER_GAMMA = 0.5772156649015329


def nearest_neighbour_entropy(x: Tensor) -> Tensor:
    """H ≈ d·mean log ρᵢ + log V_d + log(n-1) + γ, ρᵢ the distance from xᵢ to its nearest neighbour.

    V_d is the volume of the unit ball. Gradients flow to both ends of every pair. Its bias is of order
    n^(-1/d): an estimate in few dimensions, a guide in many.

    Reference: Kozachenko & Leonenko 1987.

    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.randn(4000, 1, generator=g)
    >>> abs(float(nearest_neighbour_entropy(x)) - 0.5 * math.log(2 * math.pi * math.e)) < 0.06
    True
    """
    n, flat = len(x), x.flatten(1)
    if n < 2:
        raise ArgumentError(f"the entropy of {n} point cannot be estimated; give at least two rows")
    d = flat.shape[1]
    with torch.no_grad():
        nearest = torch.cdist(flat, flat).fill_diagonal_(math.inf).argmin(1)
    rho = (flat - flat[nearest]).norm(dim=1)
    log_ball = 0.5 * d * math.log(math.pi) - math.lgamma(0.5 * d + 1)
    return d * rho.log().mean() + log_ball + math.log(n - 1) + EULER_GAMMA
