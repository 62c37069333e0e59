"""Pseudo-likelihood: every unit predicted from all the others."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gibbsian.objectives.neighbors import NeighborObjective


@dataclass(frozen=True)
class PseudoLikelihood(NeighborObjective):
    """-E Σᵢ log p(xᵢ | x₋ᵢ); for two-valued units -Σᵢ log σ(E(x̄ᵢ) - E(x)), x̄ᵢ with unit i flipped.

    Consistent without a partition function or a sampler, for one energy evaluation a unit. Categorical units
    sum over all their values. Less efficient than likelihood where units depend strongly on each other.

    Reference: Besag 1975; Hyvärinen 2006 for Boltzmann machines.

    Args:
        sites: units drawn at random for each row, the sum scaled up; by default all of them.
        chunk: units changed at a time, which bounds the memory; by default as many as fit in 2²⁴ numbers. In
            more than one piece the gradient reaches the parameters that the energy has registered.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.as_energy(lambda x: 0 * x.sum(-1), gb.domains.Binary(3))
    >>> PseudoLikelihood()(energy, torch.ones(5, 3), (), g).value  # 3 log 2
    tensor(2.0794)
    """

    def term(self, gaps: Tensor) -> Tensor:
        return torch.logsumexp(torch.cat([torch.zeros_like(gaps[:, :1]), gaps], 1), 1)
