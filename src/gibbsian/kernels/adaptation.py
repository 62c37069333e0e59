"""What warm-ups are made of: dual averaging of a step size, the running covariance of draws, windows; and what a kernel
that is tuned in its own way brings along."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.errors import DivergenceError
from gibbsian.kernels.base import Kernel


class Plan(NamedTuple):
    """What a warm-up was asked for."""

    energy: Any
    x: Tensor  # (chains, *event)
    clamp: Tensor | None
    steps: int
    mass: str | None  # "diagonal", "dense" or None to leave it alone
    target: float | None  # mean acceptance, where one was asked for
    generator: torch.Generator


class Warmed(NamedTuple):
    """What a warm-up has come to."""

    kernel: Kernel
    state: Any  # of the chains, to go on from
    acceptance: float  # over its last part; NaN for unadjusted kernels
    divergences: Tensor  # (chains,)


class Adaptation(ABC):
    """A warm-up under way: chains of a kernel whose hyper-parameters change with what they meet."""

    made: int = 1  # steps that a call of `step` has made

    watcher: Callable[[str], None] | None = None  # told what takes long, where somebody watches

    def say(self, text: str) -> None:
        """Tell what takes long just now."""
        if self.watcher is not None:
            self.watcher(text)

    @abstractmethod
    def step(self, at: int) -> dict[str, float]:
        """A step of all chains, number `at`, or `made` of them: what a person wants to see of it."""

    @abstractmethod
    def finish(self) -> Warmed:
        """The kernel as it will stay, and the chains."""


class TunedKernel(Kernel):
    """A kernel that has more to adapt than a step size by its acceptance and a mass: `gibbsian.warm_up` lets it."""

    @abstractmethod
    def adaptation(self, plan: Plan) -> Adaptation:
        """The warm-up of this kernel."""


def first_guess(acceptance: Callable[[float], float], guess: float, kernel: Kernel) -> float:
    """The step size doubled or halved until the mean acceptance of single moves with it crosses one half."""
    direction, step_size = 0, guess
    for _ in range(60):
        up = 1 if acceptance(step_size) > 0.5 else -1
        if direction and up != direction:
            return step_size
        direction = up
        step_size *= 2.0**direction
    if direction > 0:  # nothing is ever refused: any step will do
        return guess
    raise DivergenceError(
        f"no move of {type(kernel).__name__} is accepted however small (the last {kernel.tuned} tried was "
        f"{step_size:.1g}); the energy is probably not finite or not smooth around x0"
    )


class DualAveraging:
    """Dual averaging of log ε, so that the mean acceptance tends to `target` (Hoffman & Gelman 2014). It comes averaged
    over chains, with little noise: so the gain 1/γ is a quarter of the usual one, with which log ε would swing to and
    fro and its average be too small, and μ is the first guess itself."""

    gamma, t0, kappa = 0.2, 10.0, 0.75

    def __init__(self, step_size: float, target: float) -> None:
        self.mu, self.target = math.log(step_size), target
        self.k, self.h = 0, 0.0
        self.log_step, self.log_average = math.log(step_size), 0.0

    def update(self, acceptance: float) -> None:
        """Take in the mean acceptance of one step."""
        self.k += 1
        eta = 1 / (self.k + self.t0)
        self.h += eta * (self.target - acceptance - self.h)
        log_step = self.mu - math.sqrt(self.k) / self.gamma * self.h
        self.log_step = min(max(log_step, self.mu - 60), self.mu + 60)  # a flat energy accepts any step
        weight = self.k**-self.kappa
        self.log_average += weight * (self.log_step - self.log_average)


class Covariance:
    """Running mean and (co)variance of the draws of all chains, in double precision (Welford, Chan et al.)."""

    def __init__(self, x: Tensor, dense: bool) -> None:
        n = x[0].numel()
        self.dense, self.count = dense, 0
        self.mean = torch.zeros(n, dtype=torch.float64, device=x.device)
        self.spread = torch.zeros((n, n) if dense else (n,), dtype=torch.float64, device=x.device)

    def update(self, x: Tensor) -> None:
        """Take in the positions of all chains."""
        x = x.flatten(1).double()
        center = x.mean(0)
        rest, shift = x - center, center - self.mean
        old, self.count = self.count, self.count + len(x)
        outer = (rest.T @ rest, torch.outer(shift, shift)) if self.dense else (rest.square().sum(0), shift.square())
        self.spread += outer[0] + outer[1] * (old * len(x) / self.count)
        self.mean += shift * (len(x) / self.count)

    def mass(self, clamp: Tensor | None) -> Tensor | None:
        """The inverse (co)variance, off-diagonal entries shrunk by n/(n+5); 1 for clamped entries; None where some
        entry has not moved at all."""
        estimate = self.spread / max(self.count - 1, 1)
        if self.dense:
            diagonal = torch.diag(estimate.diagonal())
            estimate = diagonal + (estimate - diagonal) * (self.count / (self.count + 5))
        if clamp is not None:
            held = clamp[:, None] | clamp if self.dense else clamp
            estimate = torch.where(held, torch.diag(clamp.double()) if self.dense else 1.0, estimate)
        variances = estimate.diagonal() if self.dense else estimate
        if not bool(((variances > 0) & torch.isfinite(variances)).all()):
            return None
        if not self.dense:
            return 1 / estimate
        root, info = torch.linalg.cholesky_ex(estimate)
        return torch.cholesky_inverse(root) if int(info) == 0 else None


def windows(steps: int) -> list[int]:
    """Where windows begin and end in which the mass is estimated: lengths of 25, 50, 100, ... between 75 steps
    for the chains to arrive and 50 (or a tenth) for the last step size; in proportion for short runs.

    >>> windows(1000), windows(100), windows(10)
    ([75, 100, 150, 250, 450, 900], [15, 90], [])
    """
    if steps < 20:
        return []
    first, last, size = 75, max(50, steps // 10), 25
    if steps < 150:
        first, last = int(0.15 * steps), int(0.1 * steps)
        size = steps - first - last
    edges = [first]
    while edges[-1] < steps - last:
        end = edges[-1] + size
        edges.append(end if end + 2 * size <= steps - last else steps - last)  # the last window takes the rest
        size *= 2
    return edges
