"""Binary data drawn anew from grey values at every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gibbsian.domains import Box
from gibbsian.errors import ArgumentError
from gibbsian.objectives.base import Batch, Loss, Objective, observed
from gibbsian.random import quick_uniforms, require_generator

__all__ = ["Binarised"]


@dataclass(frozen=True)
class Binarised(Objective):
    """An objective for {0, 1} data on grey values in [0, 1]: every step draws x ~ Bernoulli(grey) anew.

    The same as `fit(transform=...)` with `data.binarise`, inside the step: data are checked once, and with
    `fit(compile=True)` many steps go into one CUDA graph. No two epochs see the same pixels, which keeps a machine
    from learning one binarisation by heart. For digits; where grey values are amounts and not probabilities use
    Gaussian units.

    Reference: Salakhutdinov & Murray 2008, who trained this way.

    Args:
        objective: what is trained on the draws.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> objective = Binarised(gb.objectives.ContrastiveDivergence(gb.kernels.Gibbs()))
    >>> grey = torch.rand(10, 6, generator=g)
    >>> objective(gb.models.RBM(6, 3), grey, (), g).value.backward()
    """

    objective: Objective

    def __post_init__(self) -> None:
        if not isinstance(self.objective, Objective):
            raise ArgumentError(f"Binarised(objective={self.objective!r}): expected one of gibbsian.objectives")

    def drawn(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch with its grey values drawn."""
        x = observed(batch)
        require_generator(generator, x.device)
        u = quick_uniforms(x.numel(), generator, dtype=x.dtype, device=x.device).view_as(x)
        return _with(batch, (u < x).to(x.dtype))

    def check(self, energy: Any, batch: Batch) -> None:
        x = observed(batch)
        Box(tuple(x.shape[1:])).check(x, "batch")
        self.objective.check(energy, _with(batch, (x > 0.5).to(x.dtype)))

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> Any:
        self.check(energy, batch)
        return self.objective.init(energy, self.drawn(batch, generator), generator)

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        return self.objective(energy, self.drawn(batch, generator), state, generator)

    def log_z(self, state: Any) -> Tensor | None:
        return self.objective.log_z(state)


def _with(batch: Batch, x: Tensor) -> Batch:
    return (x, *batch[1:]) if isinstance(batch, Sequence) else x
