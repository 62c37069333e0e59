"""Discriminative training with units dropped at random."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import DroppableModel, require
from gibbsian.errors import check_number
from gibbsian.objectives.base import Batch, Loss
from gibbsian.objectives.joint import CrossEntropy
from gibbsian.random import require_generator


@dataclass(frozen=True)
class DropoutCrossEntropy(CrossEntropy):
    """-E log p(y|x) with a share of the inputs and of the hidden units blanked out, others of them for every row.

    Those that stay are divided by the share that stays, so that without dropping the network is their average in the
    linear case. Regularizes the fine-tuning of wide networks; for `models.DBMClassifier`.

    Reference: Srivastava et al. 2014.

    Args:
        smoothing, adversary: as in `CrossEntropy`.
        inputs: share of inputs (data, and posteriors from above) that is dropped.
        hidden: share of hidden units.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> classifier = gb.models.DBMClassifier(gb.models.DBM(6, 4, 3), classes=2)
    >>> batch = torch.rand(5, 6, generator=g), torch.tensor([0, 1, 1, 0, 1])
    >>> DropoutCrossEntropy()(classifier, batch, (), g).value.backward()
    """

    inputs: float = 0.2
    hidden: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("inputs", "hidden"):
            check_number(self, name, getattr(self, name), 0.0, 0.99)

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        require(energy, DroppableModel, "DropoutCrossEntropy", "use models.DBMClassifier, or CrossEntropy")

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        def drop(x: Tensor, inputs: bool) -> Tensor:
            share = self.inputs if inputs else self.hidden
            if not share:
                return x
            require_generator(generator, x.device)
            u = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
            return x * (u >= share).to(x.dtype).div_(1 - share)

        return super().__call__(energy.dropping(drop), batch, state, generator)
