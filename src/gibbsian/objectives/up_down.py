"""Up-down training of deep belief networks: the contrastive form of the wake-sleep algorithm."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from gibbsian.capabilities import WakeSleepModel
from gibbsian.errors import CapabilityError, DataError, check_count
from gibbsian.objectives.base import Batch, Loss, Step, SteppedObjective, finish, labels, observed_with
from gibbsian.objectives.chains import more_steps


@dataclass(frozen=True)
class UpDown(SteppedObjective):
    """Contrastive wake-sleep: fine-tunes all layers of a `models.DBN` at once, recognition apart from generation.

        up    x^l ~ q(x^l | x^{l-1}),   -log p(x^{l-1} | x^l) for the generative weights
        top   contrastive divergence of k sweeps from x^{L-1} (and the label) in the RBM
        down  y^{l-1} ~ p(y^{l-1} | y^l) from the last state of those chains,   -log q(y^l | y^{l-1}) for recognition

    For Bernoulli layers the gradients are (x^{l-1} - σ(g + G x^l)) x^{lᵀ} and y^{l-1} (y^l - σ(r + y^{l-1} R))ᵀ with
    the signs of a descent. Sleep starts near the data and not at a free fantasy, so recognition is trained where it
    is used, and the modes of the data are not averaged over.

    Start from a network trained with `gibbsian.pretrain`; small rates, k rising from about 3 to 10. A network with
    labels takes pairs (x, y). As a classifier the result is judged by `class_log_prob`.

    Reference: Hinton, Osindero & Teh 2006, appendix B.

    Args:
        steps: k, Gibbs sweeps in the top RBM.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> dbn, batch = gb.models.DBN(6, 4, 5, labels=2), (torch.ones(8, 6), torch.arange(8) % 2)
    >>> UpDown(steps=3)(dbn, batch, (), g).value.backward()
    >>> dbn.layers[0].recognition_weight.grad.shape
    torch.Size([6, 4])
    """

    steps: int = 3

    def __post_init__(self) -> None:
        check_count(self, "steps", self.steps)

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, steps=more_steps(self.steps, steps_factor))

    def check(self, energy: Any, batch: Batch) -> None:
        if not isinstance(energy, WakeSleepModel):
            raise CapabilityError(
                f"UpDown trains models.DBN, or others with wake_sleep(x, y, steps, generator), got {type(energy).__name__}; "
                "for an RBM use ContrastiveDivergence"
            )
        super().check(energy, batch)
        if energy.classes is not None:
            energy.check_labels(labels(batch, "UpDown on a network with labels"))
        elif not isinstance(batch, Tensor) and len(batch) > 2:
            raise DataError(f"UpDown takes x or pairs (x, y), got {len(batch)} parts")

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        x = observed_with(batch, generator)
        y = None if energy.classes is None else labels(batch, "UpDown on a network with labels")
        value, wake, gap, sleep, gradients = energy.wake_sleep(x, y, self.steps, generator, fused=step.fused)
        return finish(self, value, state, {"wake": wake, "gap": gap, "sleep": sleep}, gradients=gradients)
