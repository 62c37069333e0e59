"""Training of classification RBMs: generative, discriminative, hybrid, semi-supervised."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from gibbsian.capabilities import LabeledModel, require
from gibbsian.errors import ArgumentError, check_count, check_number
from gibbsian.objectives.base import Batch, Loss, Objective, finish, labels, observed
from gibbsian.objectives.chains import more_steps
from gibbsian.objectives.joint import check_classes
from gibbsian.random import require_generator


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
        check_count(self, "steps", self.steps)

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
