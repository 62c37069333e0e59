"""The hidden layer of a machine of two layers as a law of its own, the visible one summed out.

E_h(h) = -log Σ_v exp(-E(v, h)),   Σ_h exp(-E_h(h)) = Z
"""

from typing import Any

import torch
from torch import Tensor

from gibbsian.domains import Domain
from gibbsian.energy import Energy


class HiddenMarginal(Energy):
    """The hidden layer of a machine that has `hidden_energy`; `total` is the length of documents for counts."""

    def __init__(self, machine: Any, total: int | None = None, domain: Domain | None = None) -> None:
        super().__init__(machine.hidden.domain if domain is None else domain)
        self.machine = machine
        self.total = None if total is None else torch.tensor(float(total))

    def forward(self, x: Tensor) -> Tensor:
        return self.machine.hidden_energy(x) if self.total is None else self.machine.hidden_energy(x, total=self.total)
