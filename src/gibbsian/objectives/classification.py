"""Learning to classify: the discriminative half of hybrid models, units dropped at random, classification RBMs."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from gibbsian.capabilities import Classifier, CountedClasses, DroppableModel, LabeledModel, require
from gibbsian.domains import partly_discrete
from gibbsian.errors import ArgumentError, CapabilityError, DataError, check_number, hold_counts
from gibbsian.objectives.base import Batch, Loss, Objective, finish, labels, observed
from gibbsian.objectives.chains import more_steps
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
        if self.adversary and partly_discrete(energy.domain):
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
            with torch.enable_grad():
                start = x.detach().requires_grad_()
                (slope,) = torch.autograd.grad(mean_loss(start)[0], start)
            # the inputs nearby, by the largest entry of the difference, for which the linearized loss is highest
            worse = energy.domain.within_walls(x + self.adversary * slope.sign()).detach()
            metrics["adversarial_cross_entropy"] = mean_loss(worse)[0]
            value = (value + metrics["adversarial_cross_entropy"]) / 2
        return finish(self, value, state, metrics)


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


@dataclass(frozen=True)
class ClassificationLikelihood(Objective):
    """-[discriminative·log p(y|x) + generative·log p(x, y)] on labeled rows, -unsupervised·log p(x) on the others.

    The classifier is exact; log p(x, y) and log p(x) are followed by contrastive divergence from the data:
    gradients E_data[∇F] - E_samples[∇F], F(x, y) or F(x). Batches are pairs (x, y); y = -1 marks a row
    without a label. Generative training needs most data per parameter saved, discriminative training
    classifies best with much of it, a little of the generative term regularizes that (hybrid), and the
    unsupervised term uses inputs without labels.

    Reference: Larochelle & Bengio 2008 (hybrid: generative = 0.01, discriminative = 1).

    Args:
        generative, discriminative, unsupervised: weights of the three terms.
        steps: Gibbs sweeps of the chains.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> model = gb.models.ClassificationRBM(4, classes=2, hidden=3)
    >>> batch = torch.ones(5, 4), torch.tensor([0, 1, -1, 0, -1])
    >>> hybrid = ClassificationLikelihood(generative=0.01, discriminative=1.0, unsupervised=0.1)
    >>> hybrid(model, batch, (), g).value.backward()
    """

    generative: float = 1.0
    discriminative: float = 0.0
    unsupervised: float = 0.0
    steps: int = 1

    def __post_init__(self) -> None:
        for name in ("generative", "discriminative", "unsupervised"):
            check_number(self, name, getattr(self, name))
        if not self.generative + self.discriminative + self.unsupervised > 0:
            raise ArgumentError("ClassificationLikelihood: at least one of its three weights must be positive")
        hold_counts(self, "steps")

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, steps=more_steps(self.steps, steps_factor))

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        require(
            energy,
            LabeledModel,
            "ClassificationLikelihood",
            "use models.ClassificationRBM, or for other classifiers objectives.CrossEntropy and a generative objective "
            "in Weighted",
        )
        check_classes(energy, labels(batch, "ClassificationLikelihood"))

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        x, y = observed(batch), labels(batch, "ClassificationLikelihood")
        require_generator(generator, x.device)
        labeled = y >= 0
        value, metrics = x.new_zeros(()), {}
        if bool(labeled.any()):
            inputs, label = x[labeled], y[labeled]
            log_p = energy.class_log_prob(inputs)
            cross_entropy = torch.nn.functional.nll_loss(log_p, label)
            metrics["cross_entropy"] = cross_entropy
            metrics["accuracy"] = (log_p.detach().argmax(1) == label).to(x.dtype).mean()
            if self.discriminative:
                value = value + self.discriminative * cross_entropy
            if self.generative:
                gap = self._gap(energy, generator, inputs, label)
                metrics["gap"] = gap
                value = value + self.generative * gap
        if self.unsupervised and not bool(labeled.all()):
            gap = self._gap(energy, generator, x[~labeled])
            metrics["unsupervised_gap"] = gap
            value = value + self.unsupervised * gap
        return finish(self, value, state, metrics)

    def _gap(self, energy: Any, generator: torch.Generator, *data: Tensor) -> Tensor:
        """F(data) - F(samples) of pairs (x, y), or of x alone."""
        value, sweep = (energy.pair_energy, energy.pair_sweep) if len(data) == 2 else (energy, energy.gibbs_sweep)
        samples = data
        for _ in range(self.steps):
            noise = tuple(part[0] for part in energy.gibbs_noise(samples[0], 1, generator))
            moved = sweep(*samples, noise)
            samples = moved if len(data) == 2 else (moved,)
        return value(*data).mean() - value(*samples).mean()
