"""Few labels among many rows: batches of which a part is labeled."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gibbsian.errors import DataError, ShapeError, hold_counts
from gibbsian.random import require_generator


@dataclass(frozen=True, eq=False)
class WithLabeled:
    """A transform of batches for `fit`: unlabeled rows, and `rows` labeled ones drawn anew every time.

        u → (cat[u, x_I], cat[-1, y_I]),   I uniform

    The objectives then see pairs in which label -1 means none: `CrossEntropy` learns from the labeled rows, and
    the generative part from all of them. Use it where labels are few, so that every batch has some; where half of
    the rows are labeled, give `fit` the pair (x, y) with -1 in y.

    Args:
        x: labeled inputs `(n, *event)`.
        y: their labels `(n,)`, whole numbers.
        rows: labeled rows in each batch.

    >>> x, y = torch.ones(6, 2), torch.arange(6) % 3
    >>> transform = WithLabeled(x, y, rows=4)
    >>> g = torch.Generator().manual_seed(0)
    >>> both, labels = transform(torch.zeros(3, 2), g)
    >>> both.shape, labels[:3]
    (torch.Size([7, 2]), tensor([-1, -1, -1]))
    """

    x: Tensor
    y: Tensor
    rows: int

    def __post_init__(self) -> None:
        if self.y.shape != self.x.shape[:1]:
            raise ShapeError(f"labels have shape {tuple(self.y.shape)}, expected ({len(self.x)},): one a row")
        if self.y.is_floating_point() or self.y.dtype == torch.bool:
            raise DataError(f"labels have dtype {self.y.dtype}, expected whole numbers; call y.long() first")
        hold_counts(self, "rows")

    def __call__(self, batch: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if not isinstance(batch, Tensor):
            raise DataError("WithLabeled takes batches of unlabeled rows, so give fit a tensor, not pairs")
        require_generator(generator, batch.device)
        index = torch.randint(len(self.x), (self.rows,), generator=generator, device=batch.device)
        x, y = (t.to(batch.device)[index] for t in (self.x, self.y))
        none = torch.full((len(batch),), -1, dtype=y.dtype, device=y.device)
        return torch.cat([batch, x]), torch.cat([none, y])
