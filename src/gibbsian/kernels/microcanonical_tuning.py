"""The warm-up of microcanonical kernels: the step size by the energy error or the acceptance, the mass, and then the length
over which directions are forgotten, by how long the chains remember theirs."""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gibbsian.energy import Energy
from gibbsian.errors import CapabilityError
from gibbsian.kernels.adaptation import Adaptation, Covariance, DualAveraging, Plan, Warmed, first_guess, windows
from gibbsian.kernels.autocorrelation import effective
from gibbsian.kernels.base import Kernel, where_state

_SHARE = 0.4  # of the length over which draws are correlated
_ROWS, _ENTRIES = 64, 256  # chains and entries that are looked at for it
_ERROR = 5e-4  # Var[W]/d per step
_MOST = 1000  # steps of a trajectory


class LengthLearning(Adaptation):
    """A warm-up in three parts: step size and mass with L = √d, which is the radius that draws have where variances are one;
    draws, whose autocorrelation gives L; and a last look at the step size."""

    def __init__(self, kernel: Any, plan: Plan) -> None:
        self.plan, self.kernel = plan, kernel
        self.energy = kernel.target(plan.energy)
        self.edges = windows(int(0.6 * plan.steps)) if plan.mass is not None else []
        self.listening = range(int(0.65 * plan.steps), int(0.9 * plan.steps)) if plan.steps >= 100 else range(0)
        free = torch.ones_like(plan.x[:1]) if plan.clamp is None else (~plan.clamp).to(plan.x).expand_as(plan.x)
        self.moving = free.flatten(1).sum(1)
        self.length = math.sqrt(float(self.moving.max()))
        self.held = None if plan.clamp is None else plan.clamp.expand_as(plan.x).all(0).flatten()
        self.divergences = torch.zeros(len(plan.x), dtype=torch.long, device=plan.x.device)
        self.state = self.clamped(kernel).init(self.energy, plan.x.detach().clone(), plan.clamp)
        self.draws = Covariance(plan.x, plan.mass == "dense")
        self.heard: list[Tensor] = []
        self.path = 0.0  # how far chains went meanwhile

    def clamped(self, kernel: Kernel) -> Any:
        """The kernel for the entries that move."""
        return kernel if self.plan.clamp is None else kernel.clamped(self.plan.clamp)

    def one_input(self, kernel: Kernel, at: int) -> Any:
        """The inputs of step number `at`."""
        inputs = kernel.draw(self.energy, self.state.x, 1, self.plan.generator, at)
        return type(inputs)(*(part[0] for part in inputs))

    @abstractmethod
    def move(self, at: int) -> tuple[float, dict[str, float]]:
        """One step of all chains: how far they went, and what a person wants to see."""

    @abstractmethod
    def renew(self) -> None:
        """Begin to adapt the step size anew, after the mass or the length has changed."""

    def step(self, at: int) -> dict[str, float]:
        distance, shown = self.move(at)
        if self.edges and self.edges[0] <= at < self.edges[-1]:
            self.draws.update(self.state.x)
            if at + 1 in self.edges:
                self._take_mass()
        if at in self.listening:
            self._listen(distance, last=at + 1 == self.listening.stop)
        return {**shown, "length": self.length}

    def _take_mass(self) -> None:
        mass = self.draws.mass(self.held)
        if mass is not None:
            self.kernel = replace(self.kernel, mass=mass)
        self.draws = Covariance(self.state.x, self.plan.mass == "dense")
        self.renew()

    def _listen(self, distance: float, last: bool) -> None:
        rows = self.state.x[:_ROWS].flatten(1)
        self.heard.append(rows[:, :: -(-rows.shape[1] // _ENTRIES)].double())
        self.path += distance
        if not last:
            return
        draws = torch.stack(self.heard).permute(2, 1, 0)
        live = draws.flatten(1).std(1) > 0  # held entries tell nothing
        worth = effective(draws[live]) / len(draws[0])
        if bool(live.any()) and bool(torch.isfinite(worth).all()):
            root = math.sqrt(float(self.moving.max()))
            # modes far apart are forgotten over lengths that no trajectory makes up for
            self.length = min(max(_SHARE * float((self.path / worth).mean()), root / 10), 5 * root)
            self.renew()


class ErrorLearning(LengthLearning):
    """For kernels that refuse nothing: Var[W]/d = 5·10⁻⁴ per step, where it grows as ε⁶.

    ε = (5·10⁻⁴/c)^{1/6} with c a fading average of E[W²]/dε⁶ over steps, those with an error far from the goal
    counting less.
    """

    fade = 1 - 2 / 50

    def __init__(self, kernel: Any, plan: Plan) -> None:
        super().__init__(kernel, plan)
        if not isinstance(plan.energy, Energy):
            raise CapabilityError(
                f"the warm-up of {type(kernel).__name__} measures energy errors, and {type(plan.energy).__name__} has only a "
                "score; choose step_size and length by hand"
            )
        self.potential = self.energy(self.state.x)
        self.log_step = math.log(float(torch.as_tensor(kernel.step_size)))
        self.renew()

    def renew(self) -> None:
        self.total, self.weight = 0.0, 0.0

    def move(self, at: int) -> tuple[float, dict[str, float]]:
        size = math.exp(self.log_step)
        kernel = self.clamped(replace(self.kernel, step_size=size, length=self.length))
        course = kernel.course(self.energy, self.state.x, self.plan.clamp)
        new, end = kernel.move(course, self.state, self.one_input(kernel, at), self.potential)
        work = end.energy - self.potential + end.gain
        fine = work.abs() < 1000  # False for NaN
        self.divergences += ~fine
        self.state = where_state(fine, new, self.state)
        self.potential = torch.where(fine, end.energy, self.potential)
        error = float((torch.where(fine, work, 0.0).square() / self.moving).mean())
        self._learn(error if bool(fine.all()) else max(error, 64 * _ERROR), size)
        return size, {"error": error, "step": size}

    def _learn(self, error: float, size: float) -> None:
        excess = max(error / _ERROR, 1e-8)
        weight = math.exp(-0.5 * (math.log(excess) / 9) ** 2)
        self.total = self.fade * self.total + weight * excess / size**6
        self.weight = self.fade * self.weight + weight
        wanted = -math.log(self.total / self.weight) / 6
        self.log_step = min(max(wanted, self.log_step - math.log(2)), self.log_step + math.log(2))

    def finish(self) -> Warmed:
        new = replace(self.kernel, step_size=math.exp(self.log_step), length=self.length)
        return Warmed(new, self.state, math.nan, self.divergences)


class AcceptanceLearning(LengthLearning):
    """For kernels with a Metropolis test: as many steps as make up the length, their size by dual averaging."""

    def __init__(self, kernel: Any, plan: Plan) -> None:
        super().__init__(kernel, plan)
        self._begin(float(torch.as_tensor(kernel.step_size)))

    def renew(self) -> None:
        self._begin(math.exp(self.tuner.log_average))

    def _begin(self, guess: float) -> None:
        probe = self.clamped(replace(self.kernel, leapfrog_steps=1, jitter=0.0))

        def acceptance(size: float) -> float:
            one = self.one_input(replace(probe, step_size=size), 0)
            return float(probe.step(self.energy, self.state, one)[1].acceptance.mean())

        self.tuner = DualAveraging(first_guess(acceptance, guess, self.kernel), self.plan.target or 0.9)
        self.recent: list[float] = []

    def _of(self, size: float) -> Any:
        steps = min(max(1, round(self.length / size)), _MOST)
        return replace(self.kernel, step_size=size, leapfrog_steps=steps)

    def move(self, at: int) -> tuple[float, dict[str, float]]:
        kernel = self.clamped(self._of(math.exp(self.tuner.log_step)))
        one = self.one_input(kernel, at)
        self.state, info = kernel.step(self.energy, self.state, one)
        self.divergences += info.diverged
        acceptance = float(info.acceptance.mean())
        self.tuner.update(acceptance)
        self.recent.append(acceptance)
        shown = {"acceptance": acceptance, "step": kernel.step_size, "steps": float(kernel.leapfrog_steps)}
        return float(one.step_size.mean()) * kernel.leapfrog_steps, shown

    def finish(self) -> Warmed:
        later = self.recent[len(self.recent) // 2 :]
        new = self._of(math.exp(self.tuner.log_average))
        return Warmed(new, self.state, sum(later) / max(1, len(later)), self.divergences)
