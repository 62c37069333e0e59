"""Sliced score matching: random directions instead of the whole trace."""

from dataclasses import dataclass
from typing import Any

import torch

from gibbsian.derivatives.score_jacobian import DIRECTION_KINDS, random_directions, score_matching_terms
from gibbsian.errors import check_choice, check_count
from gibbsian.objectives.base import Batch, Loss, Objective, observed
from gibbsian.objectives.common import ADVICE, WHOLE_SPACE, finish, need_domain, need_third_derivative
from gibbsian.random import require_generator


@dataclass(frozen=True)
class SlicedScoreMatching(Objective):
    """E[vᵀ(∇s)v + ½(vᵀs)²], or with less variance E[vᵀ(∇s)v] + ½E‖s‖², over random directions v.

    Its mean over v is implicit score matching for every kind of direction, because E[vvᵀ] = I for all of them
    (the sphere has radius √d). One second derivative a direction, whatever the dimension, and no noise added
    to the data, unlike `DenoisingScoreMatching`, which is cheaper still. Perceptrons and convolutional networks
    of known layers push all directions forward at once, about twice as fast as two backward passes.

    Reference: Song, Garg, Shi & Ermon 2019.

    Args:
        projections: directions per row. They share the forward pass and the gradient.
        kind: "rademacher" (least variance with the exact norm), "gaussian" or "sphere".
        variance_reduced: use ½‖s‖² in place of ½(vᵀs)².

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> SlicedScoreMatching(projections=3)(energy, torch.ones(3, 2), (), g).value.item()  # -2 + ½·2
    -1.0
    """

    projections: int = 1
    kind: str = "rademacher"
    variance_reduced: bool = True

    def __post_init__(self) -> None:
        check_count(self, "projections", self.projections)
        check_choice(self, "kind", self.kind, DIRECTION_KINDS)

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        need_domain(self, energy, WHOLE_SPACE, ADVICE)
        need_third_derivative(self, energy)

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        data = observed(batch)
        require_generator(generator, data.device)
        v = random_directions(self.kind, self.projections, data, generator)
        reduced = self.variance_reduced
        found = score_matching_terms(energy, data, v, norm=reduced, projected=not reduced)
        trace, square = found.trace / self.projections, found.norm if reduced else found.projected
        return finish(self, trace + 0.5 * square, state, {"trace": trace, "score_norm": square})  # type: ignore[operator,dict-item]
