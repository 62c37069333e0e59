"""Warm-up: find a step size and a mass, hand back a new kernel, leave the old one alone.

log ε ← μ - (√k/γ)·H̄,   H̄ ← (1 - 1/(k+t₀))·H̄ + (δ - α)/(k+t₀)      (dual averaging towards acceptance δ)
M ← Cov(x)⁻¹, or its diagonal, from the draws of all chains in windows that double
"""

import math
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.errors import (
    AdaptationWarning,
    ArgumentError,
    CapabilityError,
    DivergenceError,
    check_count,
    check_number,
)
from gibbsian.kernels.base import Kernel
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator
from gibbsian.sampling.checks import check_energies, check_kernel, check_start, clamp_mask
from gibbsian.sampling.trace import Trace


class WarmUp(NamedTuple):
    """The adapted kernel, and the trace to go on from: `sample(energy, warmed.kernel, warmed.trace, ...)`."""

    kernel: Kernel
    trace: Trace


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


def warm_up(
    energy: Any,
    kernel: Kernel,
    x0: Tensor,
    steps: int = 1000,
    *,
    generator: torch.Generator,
    target_acceptance: float | None = None,
    mass: str | None = "auto",
    clamp: Tensor | None = None,
    progress: bool | None = None,
) -> WarmUp:
    """Adapt a kernel to an energy and bring the chains to where the mass is.

    The step size follows the acceptance averaged over all chains by dual averaging, from a rough first guess
    found by doubling and halving; the mass is the inverse (co)variance of the draws of all chains, over
    windows that double in length. Adaptation breaks the Markov property, so nothing drawn here is kept; go on
    from the trace with the new kernel, which is fixed. The kernel given is left untouched.

    Reference: Hoffman & Gelman 2014 (dual averaging); Carpenter et al. 2017 (windows).

    Args:
        energy: the target.
        kernel: one with a step size (or scale) and a Metropolis test; its step size is the first guess.
        x0: starting points `(chains, *event)`; a dozen chains or more give a good mass.
        steps: length of the warm-up; the mass is adapted from 20 steps on.
        generator: required.
        target_acceptance: δ; by default 0.234 for `RandomWalk` (0.44 in one dimension), 0.574 for `MALA`, 0.8 for
            `HMC` and `NUTS`, 0.9 for the adjusted `UnderdampedLangevin`, 0.5 for `DiscreteLangevin`.
        mass: "diagonal", "dense" or None to leave it alone; "auto" is diagonal for kernels that have a mass.
        clamp: as in `sample`; the trace carries it on.
        progress: show a progress bar; by default on a terminal.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.diag(torch.tensor([1.0, 400.0])))
    >>> warmed = gb.warm_up(target, gb.kernels.NUTS(step_size=0.1), torch.zeros(50, 2), 300, generator=g)
    >>> trace = gb.sample(target, warmed.kernel, warmed.trace, steps=100, generator=g)
    >>> bool(0.7 < trace.acceptance < 0.9), bool(300 < 1 / warmed.kernel.mass[1] < 500)
    (True, True)
    """
    check_kernel(kernel, energy)
    _check_tuned(kernel)
    steps = check_count("warm_up", "steps", steps)
    mass = _which_mass(kernel, mass)
    check_start(energy, x0)
    generator = require_generator(generator, x0.device)
    if mass == "dense":
        replace(kernel, mass=torch.eye(max(2, x0[0].numel()))).check(energy)  # type: ignore[call-arg]
    with torch.no_grad():
        clamp = clamp_mask(clamp, x0, energy.domain)
        target = _target(kernel, clamp, x0, target_acceptance)
        run = _Run(energy, kernel, x0, clamp, mass, target, generator)
        edges = windows(steps) if mass is not None else []
        with progress_bar(steps, f"warm-up of {type(kernel).__name__}", progress) as tick:
            for at in range(steps):
                acceptance, step_size = run.step(at)
                if edges and edges[0] <= at < edges[-1]:
                    run.learn_mass(last=at + 1 in edges)
                tick(1, acceptance=acceptance, step=step_size)
        later = run.recent[len(run.recent) // 2 :]  # of the steps since the last mass
        reached = sum(later) / max(1, len(later))
        if abs(reached - target) > 0.2:
            warnings.warn(
                f"the warm-up of {type(kernel).__name__} ended at acceptance {reached:.2f}, far from its target "
                f"{target:g}; give it more than {steps} steps, or check the energy",
                AdaptationWarning,
                stacklevel=2,
            )
        new = replace(run.kernel, **{kernel.tuned: math.exp(run.tuner.log_average)})
        trace = Trace(
            samples=None,
            last=run.position,
            acceptance=torch.tensor(reached, dtype=torch.float64, device=x0.device),
            divergences=run.divergences,
            steps=steps,
            kernel=new if clamp is None else new.clamped(clamp),
            state=run.state,
            clamp=clamp,
        )
    return WarmUp(new, trace)


def _check_tuned(kernel: Kernel) -> None:
    """Refuse a kernel without a step size to adapt, or without an acceptance to adapt it by."""
    name, size = type(kernel).__name__, kernel.tuned
    if not kernel.adjusted:
        raise CapabilityError(
            f"{name} is unadjusted: it refuses nothing, so there is no acceptance to steer its step size by, and its "
            "bias grows with the step; warm up MALA, HMC or NUTS, or choose the step by the bias you can bear"
        )
    if not size:
        raise CapabilityError(
            f"{name} has no step size to adapt; warm-up is for RandomWalk, MALA, HMC, NUTS, the adjusted "
            "UnderdampedLangevin and DiscreteLangevin (for ParallelTempering warm up its inner kernel)"
        )
    if torch.as_tensor(getattr(kernel, size)).dim():
        raise ArgumentError(
            f"{name}({size}=...) is a schedule or one value per chain; warm-up finds one number, so start it with one"
        )


def _which_mass(kernel: Kernel, mass: str | None) -> str | None:
    """The kind of mass that is adapted: "diagonal", "dense" or none."""
    if mass == "auto":
        return "diagonal" if kernel.has_mass else None
    if mass not in {None, "diagonal", "dense"}:
        raise ArgumentError(f"mass={mass!r}: expected 'diagonal', 'dense', 'auto' or None")
    if mass is not None and not kernel.has_mass:
        raise ArgumentError(f"{type(kernel).__name__} has no mass to adapt; leave mass out, or use MALA, HMC or NUTS")
    return mass


def _target(kernel: Kernel, clamp: Tensor | None, x: Tensor, asked: float | None) -> float:
    """The acceptance to be reached: what was asked for, else what suits the kernel."""
    moving = x[0].numel() if clamp is None else int((~clamp).expand_as(x)[0].sum())
    target = kernel.best_acceptance(moving) if asked is None else asked
    if target is None:
        raise ArgumentError(f"say which acceptance {type(kernel).__name__} should reach, such as target_acceptance=0.6")
    check_number("warm_up", "target_acceptance", target, 0.0, 1.0, open_low=True, open_high=True)
    return target


class _Run:
    """Chains of a kernel whose step size and mass change on the way."""

    def __init__(
        self,
        energy: Any,
        kernel: Kernel,
        x: Tensor,
        clamp: Tensor | None,
        mass: str | None,
        target: float,
        generator: torch.Generator,
    ) -> None:
        self.energy, self.kernel, self.clamp, self.generator = energy, kernel, clamp, generator
        self.dense, self.acceptance = mass == "dense", target
        self.held_event = None if clamp is None else clamp.expand_as(x).all(0).flatten()
        self.divergences = torch.zeros(len(x), dtype=torch.long, device=x.device)
        self.position = x.detach().clone()
        self._start()
        check_energies(self.unit, self.state, self.position)
        self._tune(float(torch.as_tensor(getattr(kernel, kernel.tuned))))

    def _start(self) -> None:
        """Fresh state: momenta that belonged to another mass are drawn anew."""
        self.unit = self._unit(self.kernel)
        self.target = self.unit.target(self.energy)
        self.state = self.unit.init(self.target, self.position, self.clamp)

    def _tune(self, guess: float) -> None:
        """Begin to adapt the step size, from the order of magnitude of a guess."""
        self.tuner = DualAveraging(self._first_guess(guess), self.acceptance)
        self.recent: list[float] = []
        self.draws = Covariance(self.position, self.dense)

    def _unit(self, kernel: Kernel) -> Kernel:
        """The kernel at step size 1, which is then multiplied in step by step: no new kernel every step."""
        unit = replace(kernel, **{kernel.tuned: 1.0})
        return unit if self.clamp is None else unit.clamped(self.clamp)

    def step(self, at: int) -> tuple[float, float]:
        """One step of all chains: their mean acceptance, and the next step size."""
        self.state, info = self._move(self.unit, self.state, math.exp(self.tuner.log_step), at)
        self.position = self.unit.position(self.state)
        self.divergences += info.diverged
        acceptance = float(info.acceptance.mean())
        self.tuner.update(acceptance)
        self.recent.append(acceptance)
        return acceptance, math.exp(self.tuner.log_step)

    def learn_mass(self, last: bool) -> None:
        """Take the draws of this step into account; at the last of a window take on the mass that they tell."""
        self.draws.update(self.position)
        if not last:
            return
        mass = self.draws.mass(self.held_event)
        if mass is not None:
            self.kernel = replace(self.kernel, mass=mass)  # type: ignore[call-arg]
        self._start()
        self._tune(math.exp(self.tuner.log_average))

    def _move(self, unit: Kernel, state: Any, step_size: float, at: int = 0) -> tuple[Any, Any]:
        inputs = unit.draw(self.target, self.position, 1, self.generator, at)
        one = type(inputs)(*(part[0] for part in inputs))
        return unit.step(self.target, state, one._replace(step_size=one.step_size * step_size))

    def _first_guess(self, guess: float) -> float:
        """Double or halve the step size until the acceptance of single moves crosses one half."""
        probe, state, step_size = self.unit, self.state, guess
        single = self.kernel.probe()
        if single is not self.kernel:
            probe = self._unit(single)
            state = probe.init(self.target, self.position, self.clamp)
        direction = 0
        for _ in range(60):
            acceptance = float(self._move(probe, state, step_size)[1].acceptance.mean())
            up = 1 if acceptance > 0.5 else -1
            if direction and up != direction:
                return step_size
            direction = up
            step_size *= 2.0**direction
        if direction > 0:  # nothing is ever refused: any step will do
            return guess
        raise DivergenceError(
            f"no move of {type(self.kernel).__name__} is accepted however small (the last {self.kernel.tuned} tried was "
            f"{step_size:.1g}); the energy is probably not finite or not smooth around x0"
        )
