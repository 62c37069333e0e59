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
        y = labels(batch, "ClassificationLikelihood")
        check_classes(energy, y)

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
                gap = self._pair_gap(energy, inputs, label, generator)
                metrics["gap"] = gap
                value = value + self.generative * gap
        if self.unsupervised and not bool(labeled.all()):
            gap = self._gap(energy, x[~labeled], generator)
            metrics["unsupervised_gap"] = gap
            value = value + self.unsupervised * gap
        return finish(self, value, state, metrics)

    def _pair_gap(self, energy: Any, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        u, v = x, y
        for _ in range(self.steps):
            u, v = energy.pair_sweep(u, v, _one(energy.gibbs_noise(u, 1, generator)))
        return energy.pair_energy(x, y).mean() - energy.pair_energy(u, v).mean()

    def _gap(self, energy: Any, x: Tensor, generator: torch.Generator) -> Tensor:
        u = x
        for _ in range(self.steps):
            u = energy.gibbs_sweep(u, _one(energy.gibbs_noise(u, 1, generator)))
        return energy(x).mean() - energy(u).mean()


def _one(noise: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(part[0] for part in noise)
