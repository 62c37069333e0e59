"""Up-down training of deep belief networks: the contrastive form of the wake-sleep algorithm."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from gibbsian.derivatives.known import sum_of
from gibbsian.errors import CapabilityError, DataError
from gibbsian.models.dbn.machine import DBN
from gibbsian.models.dbn.phases import sleep_phase, wake_phase
from gibbsian.objectives.base import Batch, Loss, Step, SteppedObjective, labels, observed
from gibbsian.objectives.chains import more_steps
from gibbsian.objectives.common import finish, frozen, whole
from gibbsian.random import require_generator
from gibbsian.units import Bernoulli

__all__ = ["UpDown"]


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
        whole(self, "steps", self.steps)

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, steps=more_steps(self.steps, steps_factor))

    def check(self, energy: Any, batch: Batch) -> None:
        if not isinstance(energy, DBN):
            raise CapabilityError(
                f"UpDown trains models.DBN, got {type(energy).__name__}; for an RBM use ContrastiveDivergence"
            )
        super().check(energy, batch)
        if energy.classes is not None:
            energy.check_labels(labels(batch, "UpDown on a network with labels"))
        elif not isinstance(batch, Tensor) and len(batch) > 2:
            raise DataError(f"UpDown takes x or pairs (x, y), got {len(batch)} parts")

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        x = observed(batch)
        require_generator(generator, x.device)
        layers = energy.layers
        plain = all(type(unit) is Bernoulli for layer in layers for unit in (layer.lower, layer.upper))
        if plain:
            wake, wake_slopes, h = wake_phase(layers, x, generator, fused=step.fused)
        else:
            states = energy.up(x, generator=generator)
            pairs = zip(layers, states[:-1], states[1:], strict=True)
            wake, wake_slopes, h = -sum(layer.log_p(low, high).mean() for layer, low, high in pairs), None, states[-1]
        seen = h if energy.classes is None else torch.cat([energy.one_hot(batch[1], h), h.flatten(1)], 1)
        gap, chain, gap_slopes = energy.top.contrast(seen, None, self.steps, generator, fused=step.fused)
        y = energy.features_of(chain)
        if plain:
            sleep, sleep_slopes = sleep_phase(layers, y, generator, fused=step.fused)
        else:
            sleep, sleep_slopes = _sleep(energy, y, x, generator), None
        parts = [(wake, wake_slopes), (gap, gap_slopes), (sleep, sleep_slopes)]
        value, gradients = sum_of(parts, (1.0, 1.0, 1.0))
        return finish(self, value, state, {"wake": wake, "gap": gap, "sleep": sleep}, gradients=gradients)


def _sleep(dbn: DBN, y: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
    """The sleep phase of layers of any kind; documents are as long as those of the batch."""
    value = y.new_zeros(())
    for layer in reversed(dbn.layers):
        low = layer.down(y, generator, layer.lower.total_of(x) if layer is dbn.layers[0] else None)
        with frozen(layer.lower):  # a learned sigma belongs to generation
            value = value - layer.log_q(y, low).mean()
        y = low
    return value
