"""Annealing paths of machines, from independent units fitted to data, moved along by the machines' own Gibbs sweeps."""

import copy
from typing import Any

import torch
from torch import Tensor

from gibbsian.domains import Binary, Spin
from gibbsian.models.boltzmann import BoltzmannMachine
from gibbsian.models.classification import ClassificationRBM
from gibbsian.models.ising import Ising
from gibbsian.models.subspace import SubspaceRBM
from gibbsian.partition.bases import Factorized

__all__ = ["MachinePath", "TemperedPath"]


class MachinePath:
    """From independent units to a Boltzmann machine or an Ising lattice:

        E_β(x) = -½β xᵀWx - ((1-β) b^A + βb)·x

    is itself such a machine. Hidden units are annealed with the visible ones, from a uniform base.
    """

    def __init__(self, machine: BoltzmannMachine | Ising, base: Factorized) -> None:
        self.observed = machine
        self.machine: Any = machine
        with torch.no_grad():
            if isinstance(machine, Ising):
                self.weight = machine.axis_couplings().clone()
                self.bias = machine.field.expand(machine.shape).clone()
                self.scratch: Any = copy.deepcopy(machine)
                for name, value in (("coupling", self.weight), ("field", self.bias)):
                    delattr(self.scratch, name)  # a parameter or a buffer, perhaps one number for all sites
                    self.scratch.register_buffer(name, value.clone())
                self.base = base
            else:
                if machine.hidden:
                    self.machine = machine.complete()
                self.weight, self.bias = self.machine.coupling().clone(), self.machine.bias.clone()
                self.scratch = copy.deepcopy(self.machine)
                bias = torch.zeros_like(self.bias)
                bias[: machine.n] = base.bias
                self.base = Factorized(self.machine.domain, bias)

    def log_z0(self) -> Tensor:
        """log Z of the independent units."""
        return self.base.log_z()

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Exact draws of the independent units."""
        return self.base.sample(n, generator=generator)

    def complete(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Visible states with hidden units drawn from p(h | v)."""
        machine = self.observed
        if isinstance(machine, Ising) or not machine.hidden:
            return v.clone()
        hidden = Spin(machine.hidden) if machine.spin else Binary(machine.hidden)
        states = hidden.states(dtype=v.dtype, device=v.device)
        with torch.no_grad():
            log_p = torch.stack([-machine.joint(v, h.expand(len(v), -1)) for h in states], 1)
        index = torch.multinomial(torch.softmax(log_p, 1), 1, generator=generator).squeeze(1)
        return torch.cat([v, states[index]], 1)

    def noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any:
        """The random numbers of sweeps."""
        return self.scratch.gibbs_noise(x, steps, generator)

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Weight, then sweep."""
        with torch.no_grad():
            increment = (next_beta - beta) * (self.base(x) - self.machine(x))
            weight, bias = next_beta * self.weight, torch.lerp(self.base.bias, self.bias, float(next_beta))
            if isinstance(self.scratch, Ising):
                self.scratch.coupling.copy_(weight)
                self.scratch.field.copy_(bias)
            else:
                self.scratch.weight.copy_(weight)
                self.scratch.bias.copy_(bias)
            return self.scratch.gibbs_sweep(x, noise, None), increment


class TemperedPath:
    """From independent visible units to a machine with layers of hidden ones that knows itself at any temperature:

        log p*_β(x) = (1-β) b^A·x + log Σ_h exp(-βE(x, h))

    which is the machine at β with visible bias b + b^A (1-β)/β. At β = 0 all hidden states weigh the same.
    """

    def __init__(self, machine: ClassificationRBM | SubspaceRBM, base: Factorized) -> None:
        self.machine, self.base = machine, base
        self.scratch = copy.deepcopy(machine)
        self.bias = machine.visible_bias.detach().clone()

    def log_z0(self) -> Tensor:
        """log Z of the independent units, plus the log of the number of hidden states."""
        zero = torch.zeros_like(self.bias[:1])
        with torch.no_grad():
            x = self.machine.domain.sample(1, generator=torch.Generator(zero.device).manual_seed(0), dtype=zero.dtype)
            return self.base.log_z() - self.machine.free_energy(x, zero)[0]

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Exact draws of the independent units."""
        return self.base.sample(n, generator=generator)

    def noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any:
        """The random numbers of sweeps."""
        return self.scratch.gibbs_noise(x, steps, generator)

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Weight, then sweep; at β = 0 the sweep is left out, as nothing is weighted after it."""
        with torch.no_grad():
            before = self.machine.free_energy(x, beta.to(x)) + (1 - float(beta)) * self.base(x)
            after = self.machine.free_energy(x, next_beta.to(x)) + (1 - float(next_beta)) * self.base(x)
            b = float(next_beta)
            if b > 0:
                self.scratch.visible_bias.copy_(self.bias + self.base.bias.flatten() * ((1 - b) / b))
                x = self.scratch.gibbs_sweep(x, noise, None, next_beta.to(x))
            return x, before - after
