"""Machines at other temperatures, and their paths from independent units, moved along by their own Gibbs sweeps."""

import copy
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import GibbsModel, Path
from gibbsian.energies.bases import Factorized, independent_units
from gibbsian.energy import Energy, rows_for
from gibbsian.errors import ArgumentError
from gibbsian.random import stream


def small_weights(*shape: int, generator: torch.Generator | None, scale: float = 0.01) -> Tensor:
    """Where weights start: N(0, scale²), from a fixed seed where there is no generator."""
    generator = stream(0, "init") if generator is None else generator
    return scale * torch.randn(shape, generator=generator, device=generator.device)


class Machine(Energy):
    """An energy with Gibbs sweeps of its own that knows itself at any temperature of its joint energy βE(x, h)."""

    @abstractmethod
    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """-log Σ_h exp(-βE(x, h)), `(batch,)`; β a number or one per row, 1 where it is left out."""

    @abstractmethod
    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The random numbers of `steps` sweeps, tensors with that leading axis."""

    @abstractmethod
    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """Every block resampled once in turn where not `clamp`; at joint energy βE where β is given."""

    def forward(self, x: Tensor) -> Tensor:
        return self.free_energy(x)

    def annealed(self, beta: Tensor | float) -> Energy:
        """The machine with joint energy βE(x, h), β a number or one per row: its block conditionals stay exact."""
        return AnnealedMachine(self, beta)

    def swept(self, x: Tensor, steps: int, generator: torch.Generator, clamp: Tensor | None = None) -> Tensor:
        """x after `steps` sweeps, whose random numbers are drawn one sweep at a time."""
        for _ in range(steps):
            x = self.gibbs_sweep(x, tuple(part[0] for part in self.gibbs_noise(x, 1, generator)), clamp)
        return x


class AnnealedMachine(Energy):
    """The machine with joint energy βE(x, h), β a number or one per row (further rows go through them again): its
    conditionals stay exact.

    Without hidden variables its energy is βE(x); with them it is the free energy at β, not β times the free energy.

    >>> from gibbsian.models import BoltzmannMachine
    >>> hot = BoltzmannMachine(3).annealed(0.5)
    >>> hot(torch.zeros(2, 3)).shape
    torch.Size([2])
    """

    beta: Tensor

    def __init__(self, machine: Any, beta: Tensor | float) -> None:
        super().__init__(machine.domain)
        beta = torch.as_tensor(beta)
        if beta.dim() > 1:
            raise ArgumentError(f"beta has shape {tuple(beta.shape)}, expected a number or one per row")
        self.machine = machine
        self.register_buffer("beta", beta, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        beta = self.beta.to(x)
        return self.machine.free_energy(x, rows_for(beta, len(x), "temperatures") if beta.dim() else beta)

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any:
        return self.machine.gibbs_noise(x, steps, generator)

    def gibbs_sweep(self, x: Tensor, noise: Any, clamp: Tensor | None = None) -> Tensor:
        return self.machine.gibbs_sweep(x, noise, clamp, self.beta.to(x))


class UnitsPath(Path):
    """A path from independent discrete units, along which a copy of the machine moves the states by its own sweeps."""

    def __init__(self, machine: Any, base: Factorized, moved: GibbsModel) -> None:
        self.machine, self.base, self.moved = machine, base, moved

    def log_z0(self) -> Tensor:
        return self.base.log_z()

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        return self.base.sample(n, generator=generator)

    def noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any:
        return self.moved.gibbs_noise(x, steps, generator)


class PairwisePath(UnitsPath):
    """From independent units to a machine with pairwise weights:

        E_β(x) = -½β xᵀWx - ((1-β) b^A + βb)·x

    is itself such a machine.

    `weight` and `bias` are the tensors of the copy `moved` of the machine that hold W and b.
    """

    def __init__(self, machine: Energy, base: Factorized, moved: GibbsModel, weight: Tensor, bias: Tensor) -> None:
        super().__init__(machine, base, moved)
        self.targets = weight, bias
        self.weight, self.bias = weight.detach().clone(), bias.detach().clone()

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            increment = (next_beta - beta) * (self.base(x) - self.machine(x))
            self.targets[0].copy_(next_beta * self.weight)
            self.targets[1].copy_(torch.lerp(self.base.bias, self.bias, next_beta.to(self.bias)))
            return self.moved.gibbs_sweep(x, noise, None), increment


class VisiblePath(UnitsPath):
    """From independent visible units to a machine with hidden ones that knows itself at any temperature:

        log p*_β(x) = (1-β) b^A·x + log Σ_h exp(-βE(x, h))

    which is the machine at β with visible bias b + b^A (1-β)/β. At β = 0 all hidden states weigh the same.
    """

    moved: Any

    def __init__(self, machine: Any, base_bias: Tensor | None, data: Tensor | None) -> None:
        base = independent_units(machine.domain, base_bias, data, machine.weight.detach())
        super().__init__(machine, base, copy.deepcopy(machine))
        self.bias: Tensor = machine.visible_bias.detach().clone()

    def log_z0(self) -> Tensor:
        """log Z of the independent units, plus the log of the number of hidden states."""
        zero = torch.zeros_like(self.bias[:1])
        with torch.no_grad():
            x = self.machine.domain.sample(1, generator=torch.Generator(zero.device).manual_seed(0), dtype=zero.dtype)
            return self.base.log_z() - self.machine.free_energy(x, zero)[0]

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Weight, then sweep; at β = 0 the sweep is left out, as nothing is weighted after it."""
        with torch.no_grad():
            before, after = (
                self.machine.free_energy(x, b.to(x)) + (1 - float(b)) * self.base(x) for b in (beta, next_beta)
            )
            b = float(next_beta)
            if b > 0:
                self.moved.visible_bias.copy_(self.bias + self.base.bias.flatten() * ((1 - b) / b))
                x = self.moved.gibbs_sweep(x, noise, None, next_beta.to(x))
            return x, before - after
