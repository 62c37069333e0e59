"""The machines of which a deep Boltzmann machine is pre-trained: RBMs whose inputs are doubled.

bottom:  h|v = σ(c + 2vW),  v|h = σ(b + Wh);   top:  h|v = σ(c + vW),  v|h = σ(b + 2Wh);   between:  both doubled
"""

from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import Contrast
from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.models.rbm.machine import RBM
from gibbsian.random import require_generator
from gibbsian.units import Natural, Unit


class DoubledRBM(RBM):
    """An RBM that counts the input of its hidden layer `up` times and that of its visible layer `down` times.

    In the deep machine a hidden layer has input from below and from above; while it is trained from one side alone
    that side stands in for both. The conditionals are those of a machine with tied copies of a layer, each copy in the
    same state, and not of one energy: it is for `ContrastiveDivergence` and persistent chains in pre-training, which
    need no more, and has no likelihood. The gradient is the contrast of ⟨φ(v) E[φ(h)|v]ᵀ⟩, ⟨φ(v)⟩ and ⟨E[φ(h)|v]⟩
    between data and samples, that of one copy.

    Reference: Salakhutdinov & Hinton 2009, section 3.1.

    >>> machine = DoubledRBM(4, 3, up=2, down=1)
    >>> v = torch.ones(1, 4)
    >>> torch.allclose(machine.hidden_mean(v), torch.sigmoid(2 * v @ machine.weight + machine.hidden_bias))
    True
    """

    def __init__(
        self,
        visible: int | Unit,
        hidden: int | Unit,
        *,
        up: int = 2,
        down: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        if up not in {1, 2} or down not in {1, 2}:
            raise ArgumentError(f"DoubledRBM(up={up!r}, down={down!r}): inputs are counted once or twice")
        super().__init__(visible, hidden, generator=generator)
        self.up, self.down = up, down

    def hidden_natural(self, v: Tensor) -> Natural:
        """Natural parameters of h given v."""
        return self.hidden.natural(self.hidden_bias, self.up * (self.visible.statistic(v) @ self.weight))

    def visible_natural(self, h: Tensor) -> Natural:
        """Natural parameters of v given h."""
        return self.visible.natural(self.visible_bias, self.down * (self.hidden.statistic(h) @ self.weight.T))

    def contrast(
        self, batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator, *, fused: bool = False
    ) -> Contrast:
        """⟨E(v, E[h|v])⟩ of the batch less that of the samples, E[h|v] held fixed, and the samples."""
        require_generator(generator, batch.device)
        x = self.swept(batch if chains is None else chains, steps, generator)
        return Contrast(self._held(batch) - self._held(x), x)

    def _held(self, v: Tensor) -> Tensor:
        field = self.visible.statistic(v) @ self.weight
        with torch.no_grad():
            mean = self.hidden.mean(self.hidden.natural(self.hidden_bias, self.up * field))
            h = self.hidden.statistic(mean)
        own = self.visible.energy(v, self.visible_bias) + self.hidden.energy(mean, self.hidden_bias)
        return own.mean() - (field * h).sum() / len(v)

    def annealed(self, *options: Any, **named: Any) -> Any:
        raise CapabilityError(
            "a machine with doubled inputs is a stage of pre-training and has no law of its own; anneal or temper the "
            "models.DBM that it becomes a part of"
        )

    tempered = path = annealed
