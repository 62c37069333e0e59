"""Leave-one-out likelihood, for densities that are made of the data."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from gibbsian.capabilities import WindowModel, require
from gibbsian.errors import hold_counts
from gibbsian.objectives.base import Batch, Loss, Objective, finish, observed


@dataclass(frozen=True)
class LeaveOneOut(Objective):
    """-(1/n) Σᵢ log p₋ᵢ(xᵢ): every row as likely as can be under windows on all the others.

    With its own window a row is ever more likely the narrower windows are; without it the likelihood has a best width. The windows are put on
    the rows of the first batch, which `gibbsian.fit` makes as large as it can; every step leaves some of them out.

    References: Habbema, Hermans & van den Broek 1974; Duin 1976.

    Args:
        rows: left out in a step, at most.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> x, energy = torch.randn(200, 1, generator=g), gb.energies.WindowProduct(1, windows=200)
    >>> run = gb.fit(energy, LeaveOneOut(), x, steps=50, batch_size=200)
    >>> 0.1 < energy.log_width.exp().item() < 0.6
    True
    """

    needs_energy: ClassVar[bool] = True

    rows: int = 256

    def __post_init__(self) -> None:
        hold_counts(self, "rows")

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> Any:
        self.check(energy, batch)
        require(energy, WindowModel, "LeaveOneOut").stand_on(observed(batch), generator)
        return ()

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        model = require(energy, WindowModel, "LeaveOneOut")
        index = torch.randperm(model.standing(), generator=generator, device=generator.device)[: self.rows]
        value = model.left_out(index).mean()
        return finish(self, value, state, {"left_out": value})
