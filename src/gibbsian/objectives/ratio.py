"""Ratio matching: score matching's counterpart for binary data."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gibbsian.domains import Categorical
from gibbsian.errors import DomainError
from gibbsian.objectives.base import Batch
from gibbsian.objectives.neighbors import NeighborObjective


@dataclass(frozen=True)
class RatioMatching(NeighborObjective):
    """E Σᵢ σ(E(x) - E(x̄ᵢ))², x̄ᵢ with bit i flipped: match the ratios p(x)/p(x̄ᵢ) through g(u) = 1/(1 + u).

    Consistent for two-valued units, with bounded terms, so one strange datum cannot dominate, unlike
    `MinimumProbabilityFlow`. One energy evaluation a unit.

    Reference: Hyvärinen 2007.

    Args:
        sites: units drawn at random for each row, the sum scaled up; by default all of them.
        chunk: units changed at a time; see `PseudoLikelihood`.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.as_energy(lambda x: 0 * x.sum(-1), gb.domains.Binary(3))
    >>> RatioMatching()(energy, torch.ones(5, 3), (), g).value  # 3 · ¼
    tensor(0.7500)
    """

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        if isinstance(energy.domain, Categorical):
            raise DomainError(
                f"RatioMatching is for two-valued units, but this energy lives on {energy.domain}; use "
                "PseudoLikelihood or MinimumProbabilityFlow"
            )

    def term(self, gaps: Tensor) -> Tensor:
        return torch.sigmoid(gaps).square().sum(1)
