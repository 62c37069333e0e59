"""A costly objective on few rows of every batch, beside others that see all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gibbsian.errors import hold_counts
from gibbsian.objectives.base import Batch, Loss, Step, WrappedObjective


@dataclass(frozen=True)
class FirstRows(WrappedObjective):
    """An objective on the first rows of every batch: unbiased, because batches are dealt at random, and cheaper.

    Inside `Weighted` a joint energy learns its classes from the whole batch, which is one pass, and its density from some of it: every
    row that meets a chain of its class costs as many passes as the chain has steps.

    Args:
        objective: what is trained on those rows.
        rows: how many; all where a batch has fewer.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rbm, data = gb.models.RBM(6, 3), torch.ones(10, 6)
    >>> FirstRows(gb.objectives.ContrastiveDivergence(gb.kernels.Gibbs()), rows=4)(rbm, data, (), g).value.backward()
    """

    rows: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        hold_counts(self, "rows")

    def of(self, batch: Batch) -> Batch:
        """The first rows of a batch, with their labels where it has some."""
        return tuple(part[: self.rows] for part in batch) if isinstance(batch, Sequence) else batch[: self.rows]

    def check(self, energy: Any, batch: Batch) -> None:
        self.objective.check(energy, batch)

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> Any:
        return self.objective.init(energy, batch, generator)  # of all rows at hand: noise models are fitted to them

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        return self.objective.loss(energy, self.of(batch), state, generator, step)
