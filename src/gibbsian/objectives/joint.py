"""The discriminative half of hybrid models, and discriminative training with units dropped at random."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import Classifier, CountedClasses, DroppableModel, require
from gibbsian.domains import Discrete, Domain
from gibbsian.errors import CapabilityError, DataError, check_number
from gibbsian.objectives.base import Batch, Loss, Objective, finish, labels, observed
from gibbsian.random import require_generator


def check_classes(energy: Any, y: Tensor) -> None:
    """Refuse labels outside those of a classifier; -1 marks a row without one."""
    classes = energy.classes if isinstance(energy, CountedClasses) else None
    lowest, highest = int(y.min()), int(y.max())
    if lowest < -1 or (classes is not None and highest >= classes):
        last = "K - 1" if classes is None else classes - 1
        raise DataError(f"labels run from {lowest} to {highest}, expected 0 to {last}, or -1 where a row has none")


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """-E log p(y|x), for energies over (x, y) that know their class probabilities.

    Batches are pairs (x, y). Added to a generative objective with `Weighted` it trains a joint energy model:
    log p(x, y) = log p(y|x) + log p(x), so equal weights are the joint likelihood.

    Rows of label -1 have none: the mean is over the others, and such rows teach p(x) alone. For few labels among
    many rows, `data.WithLabeled` puts some of them into every batch.

    Reference: Grathwohl et al. 2020; adversarial examples: Goodfellow, Shlens & Szegedy 2015.

    Args:
        smoothing: share of the target that is spread evenly over the classes.
        adversary: ε > 0 takes half of the loss at x + ε sign(∂loss/∂x), inside the domain: a strong regularizer, at
            twice the price.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> net = gb.energies.MLP(2, outputs=3)
    >>> joint = gb.models.JointEnergy(net, gb.domains.Real(2))
    >>> batch = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])
    >>> CrossEntropy()(joint, batch, (), g).value.backward()
    """

    smoothing: float = 0.0
    adversary: float = 0.0

    def __post_init__(self) -> None:
        check_number(self, "smoothing", self.smoothing, 0.0, 1.0)
        check_number(self, "adversary", self.adversary, 0.0)

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        require(energy, Classifier, "CrossEntropy", "use models.JointEnergy, for example")
        if self.adversary and isinstance(energy.domain, Discrete):
            raise CapabilityError(
                f"CrossEntropy(adversary={self.adversary}) moves inputs, but they are {energy.domain}"
            )
        check_classes(energy, labels(batch, "CrossEntropy"))

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        x, y = observed(batch), labels(batch, "CrossEntropy")
        known = (y >= 0).to(x.dtype)
        count = known.sum().clamp(min=1)

        def mean_loss(x: Tensor) -> tuple[Tensor, Tensor]:
            log_p = energy.class_log_prob(x)
            each = -log_p.gather(1, y.clamp(min=0)[:, None]).squeeze(1)
            if self.smoothing:
                each = (1 - self.smoothing) * each - self.smoothing * log_p.mean(1)
            return (known * each).sum() / count, log_p

        value, log_p = mean_loss(x)
        accuracy = (log_p.detach().argmax(1) == y).to(x.dtype).sum() / count
        metrics = {"cross_entropy": value, "accuracy": accuracy}
        if self.adversary:
            metrics["adversarial_cross_entropy"] = mean_loss(self._worse(energy.domain, mean_loss, x))[0]
            value = (value + metrics["adversarial_cross_entropy"]) / 2
        return finish(self, value, state, metrics)

    def _worse(self, domain: Domain, mean_loss: Callable[[Tensor], tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
        """The inputs nearby, by the largest entry of the difference, for which the linearized loss is highest."""
        with torch.enable_grad():
            start = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(mean_loss(start)[0], start)
        return domain.within_walls(x + self.adversary * slope.sign()).detach()


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
