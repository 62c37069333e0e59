"""A machine at another temperature, with its Gibbs sweeps."""

from typing import Any, Protocol

import torch
from torch import Tensor

from gibbsian.domains import Domain
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError

__all__ = ["TemperedMachine"]


class Machine(Protocol):
    """A model whose free energy and sweeps take an inverse temperature."""

    domain: Domain

    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor: ...

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any: ...

    def gibbs_sweep(self, x: Tensor, noise: Any, clamp: Tensor | None = None, beta: Tensor | None = None) -> Tensor: ...


class TemperedMachine(Energy):
    """The machine with joint energy βE, β a number or one per row: conditionals stay exact.

    Without hidden variables its energy is βE(x); with them it is the free energy at β, not β times the free energy.

    >>> from gibbsian.models import BoltzmannMachine
    >>> hot = BoltzmannMachine(3).tempered(0.5)
    >>> hot(torch.zeros(2, 3)).shape
    torch.Size([2])
    """

    beta: Tensor

    def __init__(self, machine: Machine, beta: Tensor) -> None:
        super().__init__(machine.domain)
        beta = torch.as_tensor(beta)
        if beta.dim() > 1:
            raise ArgumentError(f"beta has shape {tuple(beta.shape)}, expected a number or one per row")
        self.machine = machine
        self.register_buffer("beta", beta, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.machine.free_energy(x, self.beta.to(x))

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any:
        """The same as the machine's."""
        return self.machine.gibbs_noise(x, steps, generator)

    def gibbs_sweep(self, x: Tensor, noise: Any, clamp: Tensor | None = None) -> Tensor:
        """One sweep at β."""
        return self.machine.gibbs_sweep(x, noise, clamp, self.beta.to(x))
