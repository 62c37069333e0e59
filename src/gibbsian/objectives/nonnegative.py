"""Score matching on [0, ∞)^d."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gibbsian.derivatives.score_jacobian import (
    batchable,
    direction_blocks,
    jacobian_diagonal,
    quadratic_forms,
    random_directions,
    score_with_graph,
)
from gibbsian.domains import NonNegative
from gibbsian.objectives.base import Batch, Loss, observed
from gibbsian.objectives.common import accumulated, finish, need_domain, need_third_derivative
from gibbsian.objectives.score import TracedObjective
from gibbsian.random import require_generator


@dataclass(frozen=True)
class NonNegativeScoreMatching(TracedObjective):
    """E Σᵢ[2xᵢsᵢ + xᵢ²∂ᵢsᵢ + ½sᵢ²xᵢ²], s = -∇E: score matching for non-negative data.

    The weight xᵢ² removes the boundary term that breaks plain score matching at 0, so it is consistent where
    the density does not vanish there. For an exponential law the estimated rate is 2·mean(x)/mean(x²).

    Reference: Hyvärinen 2007, section 3.

    Args:
        trace: "exact", or "hutchinson" for the unbiased estimate of Σxᵢ²∂ᵢsᵢ from random directions.
        probes: directions per row of the Hutchinson estimate (Rademacher, multiplied by x).
        chunk: directions of the exact sum that are differentiated at a time; see `ImplicitScoreMatching`.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.as_energy(lambda x: 3 * x.sum(-1), gb.domains.NonNegative(1))  # rate 3
    >>> NonNegativeScoreMatching()(energy, torch.ones(5, 1), (), g).value.item()  # -2·3 + ½·3²
    -1.5
    """

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        need_domain(self, energy, (NonNegative,), "on all of R^d use ImplicitScoreMatching")
        need_third_derivative(self, energy)

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        data = observed(batch)

        def first_order(x: Tensor, s: Tensor) -> Tensor:
            weighted = (x * s).flatten(1)
            return (2 * weighted + 0.5 * weighted.square()).sum(1).mean()

        if self.trace == "hutchinson":
            require_generator(generator, data.device)
            x, s = score_with_graph(energy, data)
            v = random_directions("rademacher", self.probes, x, generator) * data
            return finish(
                self, quadratic_forms(x, s, v, batched=batchable(energy)).mean() + first_order(data, s), state, {}
            )
        cuts = direction_blocks(data, self.chunk)

        def part(first: int, last: int) -> Tensor:
            x, s = score_with_graph(energy, data)
            square = data.flatten(1)[:, first:last].square()
            second = (square * jacobian_diagonal(x, s, first, last, batched=batchable(energy))).sum(1).mean()
            return second + first_order(data, s) if first == 0 else second

        value, gradients = accumulated([partial(part, *cut) for cut in cuts], energy)
        return finish(self, value, state, {}, gradients=gradients)
