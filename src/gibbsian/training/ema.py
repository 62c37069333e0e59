"""Exponential moving averages of weights.

θ̄ ← θ̄ + (1 - d)(θ - θ̄),   d = min(decay, (1 + t)/(10 + t))
"""

import copy

import torch
from torch import Tensor, nn

from gibbsian.errors import ArgumentError


class Ema:
    """A copy of an energy whose parameters follow the trained ones slowly.

    Parameters are averaged, buffers copied: averages of spectral-norm vectors are not unit vectors, and such
    models explode. The decay grows to its full value over the first steps, so that the start is forgotten.

    Reference: Polyak & Juditsky 1992.

    >>> energy = torch.nn.Linear(1, 1, bias=False)
    >>> average = Ema(energy, decay=0.9)
    >>> _ = energy.weight.data.add_(1.0)
    >>> average.update(energy, step=1000)
    >>> bool(torch.allclose(energy.weight - average.energy.weight, torch.tensor(0.9)))
    True
    """

    def __init__(self, energy: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ArgumentError(
                f"ema={decay}: the decay lies between 0 and 1, such as 0.999; leave it out for no average"
            )
        self.decay = decay
        self.energy = copy.deepcopy(energy).requires_grad_(False)

    def update(self, energy: nn.Module, step: int) -> None:
        """Follow the energy after its `step`-th update."""
        self.follow(energy, self.weight(step))

    def weight(self, step: int) -> float:
        """1 - d after the `step`-th update."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def follow(self, energy: nn.Module, weight: float | Tensor) -> None:
        """Go that share of the way to the energy."""
        for mine, theirs in zip(self.energy.parameters(), energy.parameters(), strict=True):
            mine.lerp_(theirs, weight)
        for copied, buffer in zip(self.energy.buffers(), energy.buffers(), strict=True):
            copied.copy_(buffer)
