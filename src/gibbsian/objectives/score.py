"""Score matching with exact second derivatives: explicit (a target score is known) and implicit.

J(θ) = ½ E‖s(x) - s*(x)‖²  =  E[tr ∇s(x) + ½‖s(x)‖²] + const,   s = -∇E
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gibbsian.derivatives.score_jacobian import (
    direction_blocks,
    random_directions,
    score_matching_terms,
    score_with_graph,
    trace_block,
)
from gibbsian.domains import Bounded, Real
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, ShapeError, check_choice, check_count
from gibbsian.objectives.base import Batch, Loss, Objective, observed
from gibbsian.objectives.common import ADVICE, WHOLE_SPACE, accumulated, finish, need_domain, need_third_derivative
from gibbsian.random import require_generator


@dataclass(frozen=True)
class ExplicitScoreMatching(Objective):
    """½ E‖s(x) - s*(x)‖² against a score s* that is known.

    For distilling one model into another, and for tests. The expectation is over the batch, so the fit is
    best where the batch has mass.

    Reference: Hyvärinen 2005, equation 2.

    Args:
        target: an energy or score field, or a function from `(batch, *event)` to scores of that shape.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    >>> student = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> objective = ExplicitScoreMatching(target)
    >>> objective(student, torch.ones(3, 2), (), g).value.item()
    0.0
    """

    target: Energy | ScoreField | Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if not callable(self.target) and not isinstance(self.target, ScoreField):
            raise ArgumentError(
                f"ExplicitScoreMatching(target={self.target!r}): the target must be an energy, a score field "
                "or a function that returns scores"
            )

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        need_domain(self, energy, (Real, Bounded), ADVICE)

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        x, s = score_with_graph(energy, observed(batch))
        field = self.target
        with torch.no_grad():
            target = field.score(x) if isinstance(field, Energy | ScoreField) else field(x)
        if target.shape != s.shape:
            raise ShapeError(f"the target score has shape {tuple(target.shape)}, expected {tuple(s.shape)}")
        value = 0.5 * (s - target).square().flatten(1).sum(1).mean()
        return finish(self, value, state, {"score_norm": s.detach().square().flatten(1).sum(1).mean()})


@dataclass(frozen=True)
class TracedObjective(Objective):
    """How a trace of second derivatives is taken: the options of `ImplicitScoreMatching`."""

    trace: str = "exact"
    probes: int = 1
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_choice(self, "trace", self.trace, ("exact", "hutchinson"))
        check_count(self, "probes", self.probes)
        if self.chunk is not None:
            check_count(self, "chunk", self.chunk)


@dataclass(frozen=True)
class ImplicitScoreMatching(TracedObjective):
    """E[tr ∇s(x) + ½‖s(x)‖²] = E[-ΔE + ½‖∇E‖²]: no target score, no partition function, no sampler.

    Consistent on R^d; for a Gaussian with full, diagonal or isotropic precision its minimizer is the
    maximum-likelihood estimate of the same sample. The exact trace costs d second derivatives, so it is for
    tens of dimensions; beyond them use `trace="hutchinson"`, `SlicedScoreMatching` or
    `DenoisingScoreMatching`. It is blind to the relative weight of modes that lie far apart.

    Reference: Hyvärinen 2005.

    Args:
        trace: "exact", or "hutchinson" for its unbiased estimate from random directions.
        probes: directions per row of the Hutchinson estimate (Rademacher).
        chunk: directions of the exact trace that are differentiated at a time, which bounds the memory; by
            default as many as fit in 2²⁴ numbers. In more than one piece the gradient reaches the parameters
            that the energy has registered.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> ImplicitScoreMatching()(energy, torch.ones(3, 2), (), g).value.item()  # -2 + ½·2
    -1.0
    """

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        need_domain(self, energy, WHOLE_SPACE, ADVICE)
        need_third_derivative(self, energy)

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        data = observed(batch)
        if self.trace == "hutchinson":
            require_generator(generator, data.device)
            found = score_matching_terms(energy, data, random_directions("rademacher", self.probes, data, generator))
            trace, norm = found.trace / self.probes, found.norm
            return finish(self, trace + 0.5 * norm, state, {"trace": trace, "score_norm": norm})  # type: ignore[operator,dict-item]
        norms: list[Tensor] = []

        def part(first: int, last: int) -> Tensor:
            found = trace_block(energy, data, first, last, norm=first == 0)
            if found.norm is None:
                return found.trace
            norms.append(found.norm.detach())
            return found.trace + 0.5 * found.norm

        value, gradients = accumulated([partial(part, *cut) for cut in direction_blocks(data, self.chunk)], energy)
        return finish(self, value, state, {"trace": value - norms[0] / 2, "score_norm": norms[0]}, gradients=gradients)
