"""How chains of ChEES-HMC learn the length of their trajectories: the criterion, its slope, and the warm-up."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError
from gibbsian.kernels.adaptation import Adaptation, Covariance, DualAveraging, Plan, Warmed, first_guess, windows
from gibbsian.kernels.base import ChainState, accept, event_view, gaussian_inputs, judge, masked
from gibbsian.kernels.hmc import DIVERGENCE, MALA
from gibbsian.kernels.integrators import Metric

_SPREAD_OUT = 2.25  # argmax of ∫₀¹ sin²(uT) du: the best T where the mass has made all variances one


def halton(n: int) -> float:
    """The n-th of ½, ¼, ¾, ⅛, ⅝, ...: the binary digits of n mirrored at the point, n from 1 on.

    >>> [halton(n) for n in range(1, 6)]
    [0.5, 0.25, 0.75, 0.125, 0.625]
    """
    u, digit = 0.0, 0.5
    while n:
        u += digit * (n & 1)
        n, digit = n >> 1, digit / 2
    return u


def criterion_slope(old: Tensor, new: Tensor, momentum: Tensor, weight: Tensor, metric: Metric) -> Tensor:
    """dC/dt of C = ¼E[(‖x' - x̄'‖² - ‖x - x̄‖²)²], the change in how far from the center chains are:

        E[(‖x' - x̄'‖² - ‖x - x̄‖²)(x' - x̄')·v'],

    averages over chains weighted by their acceptance, norms those of the mass, under which v' is the velocity.
    """
    total = weight.sum()
    share = torch.where(weight > 0, weight / total, 0.0)
    center = (event_view(share, new) * torch.where(event_view(weight > 0, new), new, 0.0)).sum(0)
    away, before = new - center, old - old.mean(0)
    change = metric.squared(away) - metric.squared(before)
    slope = change * (away * momentum).flatten(1).sum(1)
    return (share * torch.where(weight > 0, slope, 0.0)).sum()  # those that diverged have weight 0 and no number


class _Ascent:
    """Adam (β₁ = 0, β₂ = 0.95) on log T, no step longer than 0.35, and the average of log T with weights n^{-½}."""

    rate, memory, most = 0.025, 0.95, 0.35

    def __init__(self, trajectory: float) -> None:
        self.log_t = self.log_average = math.log(trajectory)
        self.square, self.count = 0.0, 0

    def update(self, slope: float, bound: float) -> None:
        """Up along dC/dlog T, not beyond log T = `bound`."""
        if not math.isfinite(slope):  # all chains diverged: nothing was learned
            return
        self.count += 1
        self.square += (1 - self.memory) * (slope * slope - self.square)
        size = math.sqrt(self.square / (1 - self.memory**self.count))
        change = self.rate * slope / size if size else 0.0
        self.log_t = min(self.log_t + min(max(change, -self.most), self.most), bound)
        self.log_average += (self.log_t - self.log_average) * self.count**-0.5


class TrajectoryLearning(Adaptation):
    """The warm-up of ChEES: ε by the harmonic mean of the acceptance, T by the criterion, M by windows."""

    def __init__(self, kernel: Any, plan: Plan) -> None:
        chains = len(plan.x)
        if chains < 2:
            raise ArgumentError(
                "ChEES learns its trajectory from how chains move relative to their center, and one chain was given; "
                "start at least a dozen, or use NUTS"
            )
        self.plan, self.kernel, self.goal = plan, kernel, plan.target or 0.651
        self.edges = windows(plan.steps) if plan.mass is not None else []
        self.held = None if plan.clamp is None else plan.clamp.expand_as(plan.x).all(0).flatten()
        self.divergences = torch.zeros(chains, dtype=torch.long, device=plan.x.device)
        self.energy = kernel.target(plan.energy)
        self.state = self._clamped(kernel).init(self.energy, plan.x.detach().clone(), plan.clamp)
        self._tune(float(kernel.step_size))
        self.ascent = _Ascent(math.exp(self.tuner.log_step))  # of one step: a long one may end at a later crest

    def _clamped(self, kernel: Any) -> Any:
        return kernel if self.plan.clamp is None else kernel.clamped(self.plan.clamp)

    def _tune(self, guess: float) -> None:
        probe = self._clamped(MALA(1.0, mass=self.kernel.mass))

        def acceptance(step_size: float) -> float:
            inputs = gaussian_inputs(self.state.x, 1, self.plan.generator, step_size, 0)
            one = type(inputs)(*(part[0] for part in inputs))
            return float(probe.step(self.energy, self.state, one)[1].acceptance.mean())

        self.tuner = DualAveraging(first_guess(acceptance, guess, self.kernel), self.goal)
        self.recent: list[float] = []
        self.draws = Covariance(self.state.x, self.plan.mass == "dense")

    def step(self, at: int) -> dict[str, float]:
        step_size, trajectory = math.exp(self.tuner.log_step), math.exp(self.ascent.log_t)
        kernel = self._clamped(replace(self.kernel, step_size=step_size, trajectory=trajectory))
        inputs = kernel.draw(self.energy, self.state.x, 1, self.plan.generator, at)
        one = type(inputs)(*(part[0] for part in inputs))
        old, clamp = self.state, self.plan.clamp
        flight = kernel.fly(self.energy, old, one)
        end = flight.end
        new = ChainState(end.x, end.energy, end.score, clamp)
        self.state, _ = accept(old, new, flight.log_ratio, one.threshold, DIVERGENCE)
        acceptance, diverged = judge(flight.log_ratio, DIVERGENCE)
        self.divergences += diverged
        before, after = masked(old.x, clamp), masked(end.x, clamp)
        slope = criterion_slope(before, after, end.v, acceptance, kernel.metric.to(old.x))
        self.ascent.update(float(slope) * halton(at + 1) * trajectory, math.log(kernel.max_leapfrogs * step_size))
        harmonic = float(1 / (1 / acceptance).mean())
        self.tuner.update(harmonic)
        self.recent.append(harmonic)
        if self.edges and self.edges[0] <= at < self.edges[-1]:
            self._learn_mass(last=at + 1 in self.edges)
        return {"acceptance": harmonic, "step": step_size, "trajectory": trajectory}

    def _learn_mass(self, last: bool) -> None:
        self.draws.update(self.state.x)
        if not last:
            return
        mass = self.draws.mass(self.held)
        if mass is not None:  # variances are one under it, so that the best length is no longer far from that of one
            self.kernel = replace(self.kernel, mass=mass)
            self.ascent = _Ascent(_SPREAD_OUT)
        self._tune(math.exp(self.tuner.log_average))

    def finish(self) -> Warmed:
        later = self.recent[len(self.recent) // 2 :]
        new = replace(
            self.kernel, step_size=math.exp(self.tuner.log_average), trajectory=math.exp(self.ascent.log_average)
        )
        return Warmed(new, self.state, sum(later) / max(1, len(later)), self.divergences)
