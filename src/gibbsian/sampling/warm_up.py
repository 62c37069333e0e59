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

from gibbsian.distributed.shards import Shards, Share
from gibbsian.errors import AdaptationWarning, ArgumentError, CapabilityError, check_count, check_number
from gibbsian.kernels.adaptation import (
    Adaptation,
    Covariance,
    DualAveraging,
    Plan,
    TunedKernel,
    Warmed,
    first_guess,
    windows,
)
from gibbsian.kernels.base import FreeRunning, Kernel
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator
from gibbsian.sampling.chains import Plan as RunPlan
from gibbsian.sampling.chains import run_chains
from gibbsian.sampling.checks import check_energies, check_kernel, check_start, clamp_mask
from gibbsian.sampling.chunks import chunk_size, run_chunk
from gibbsian.sampling.compiled import CompiledSteps
from gibbsian.sampling.spread import spread
from gibbsian.sampling.trace import Trace


class WarmUp(NamedTuple):
    """The adapted kernel, and the trace to go on from: `sample(energy, warmed.kernel, warmed.trace, ...)`."""

    kernel: Kernel
    trace: Trace


def warm_up(
    energy: Any,
    kernel: Kernel,
    x0: "Tensor | Share",
    steps: int = 1000,
    *,
    generator: "torch.Generator | Shards",
    target_acceptance: float | None = None,
    mass: str | None = "auto",
    clamp: Tensor | None = None,
    compile: bool = False,
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
        kernel: one with a step size (or scale) and a Metropolis test, or `MCLMC`, whose step size follows its energy error; its
            step size is the first guess.
        x0: starting points `(chains, *event)`; a dozen chains or more give a good mass.
        steps: length of the warm-up; the mass is adapted from 20 steps on.
        generator: required. With `distributed.Shards(seed)` the kernel is adapted by the first 64 chains, on every process alike;
            all chains, spread over the processes, then run with it for as many steps.
        target_acceptance: δ; by default 0.234 for `RandomWalk` (0.44 in one dimension), 0.574 for `MALA`, 0.8 for
            `HMC` and `NUTS`, 0.651 (harmonic mean over chains) for `ChEES`, 0.9 for `MAMS` and the adjusted `UnderdampedLangevin`, 0.5
            for `DiscreteLangevin`.
        mass: "diagonal", "dense" or None to leave it alone; "auto" is diagonal for kernels that have a mass.
        clamp: as in `sample`; the trace carries it on.
        compile: as in `sample`, for which what is compiled here serves too. Steps are then made in blocks that grow with what is
            known of the step size, within which it stays; those of NUTS always are.
        progress: show a progress bar; by default on a terminal.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.diag(torch.tensor([1.0, 400.0])))
    >>> warmed = gb.warm_up(target, gb.kernels.NUTS(step_size=0.1), torch.zeros(50, 2), 300, generator=g)
    >>> trace = gb.sample(target, warmed.kernel, warmed.trace, steps=100, generator=g)
    >>> bool(0.7 < trace.acceptance < 0.9), bool(300 < 1 / warmed.kernel.mass[1] < 500)
    (True, True)
    """
    if isinstance(generator, Shards):
        how: dict[str, Any] = {
            "target_acceptance": target_acceptance,
            "mass": mass,
            "compile": compile,
            "progress": progress,
        }
        return _spread(energy, kernel, x0, steps, clamp, generator, how)
    if not isinstance(x0, Tensor):
        raise ArgumentError("a share of the chains is warmed up with the shards that drew it: generator=shards")
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
        plan = Plan(energy, x0, clamp, steps, mass, target, generator)
        run: Adaptation
        if isinstance(kernel, TunedKernel):
            check_energies(kernel, kernel.init(kernel.target(energy), x0, clamp), x0)
            run = kernel.adaptation(plan)
        else:
            run = _Run(kernel, plan, compile)
        with progress_bar(steps, f"warm-up of {type(kernel).__name__}", progress) as tick:
            at, run.watcher = 0, lambda text: tick(0, note=text)
            while at < steps:
                shown = run.step(at)
                at += run.made
                tick(run.made, **shown)
        new, state, reached, divergences = run.finish()
        if target is not None and abs(reached - target) > 0.2:
            warnings.warn(
                f"the warm-up of {type(kernel).__name__} ended at acceptance {reached:.2f}, far from its target "
                f"{target:g}; give it more than {steps} steps, or check the energy",
                AdaptationWarning,
                stacklevel=2,
            )
        trace = Trace(
            samples=None,
            last=new.position(state),
            acceptance=torch.tensor(reached, dtype=torch.float64, device=x0.device),
            divergences=divergences,
            steps=steps,
            kernel=new if clamp is None else new.clamped(clamp),
            state=state,
            clamp=clamp,
        )
    return WarmUp(new, trace)


_PILOTS = 64  # chains that a kernel is adapted by where chains are spread


def _spread(
    energy: Any,
    kernel: Kernel,
    x0: "Tensor | Share",
    steps: int,
    clamp: Tensor | None,
    streams: Shards,
    how: dict[str, Any],
) -> WarmUp:
    """Adapt by a few chains on every process alike, and bring all of them to where the mass is with what was found."""
    total = x0.total if isinstance(x0, Share) else len(x0)
    few = torch.arange(min(_PILOTS, total))
    pilots = streams.pick(x0.rows, few) if isinstance(x0, Share) else x0[few]
    per_chain = clamp is not None and clamp.dim() == pilots.dim()
    held = clamp[few] if clamp is not None and per_chain else clamp
    shown = how["progress"] if streams.world.first else False
    how["progress"] = shown
    found = warm_up(energy, kernel, pilots, steps, clamp=held, generator=streams.common, **how).kernel

    def shard(start: Any, clamp: Tensor | None, stream: torch.Generator, chains: int) -> Trace:
        plan = RunPlan(steps, steps - 1, 1, False, how["compile"], False, "")
        return run_chains(energy, found, start, clamp, stream, plan, chains)

    return WarmUp(found, spread(shard, x0, clamp, streams, f"warm-up of {type(kernel).__name__}", shown))


def _check_tuned(kernel: Kernel) -> None:
    """Refuse a kernel without a step size to adapt, or without an acceptance to adapt it by."""
    name, size = type(kernel).__name__, kernel.tuned
    if not kernel.adjusted and not isinstance(kernel, TunedKernel):
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


def _target(kernel: Kernel, clamp: Tensor | None, x: Tensor, asked: float | None) -> float | None:
    """The acceptance to be reached: what was asked for, else what suits the kernel; None where nothing is refused."""
    if not kernel.adjusted:
        if asked is not None:
            raise ArgumentError(f"{type(kernel).__name__} is unadjusted and accepts all: leave target_acceptance out")
        return None
    moving = x[0].numel() if clamp is None else int((~clamp).expand_as(x)[0].sum())
    target = kernel.best_acceptance(moving) if asked is None else asked
    if target is None:
        raise ArgumentError(f"say which acceptance {type(kernel).__name__} should reach, such as target_acceptance=0.6")
    check_number("warm_up", "target_acceptance", target, 0.0, 1.0, open_low=True, open_high=True)
    return target


def _with_full_mass(kernel: Any, x: Tensor, dense: bool) -> Kernel:
    """The kernel with its mass written out, so that a new one has the same form and nothing is compiled anew."""
    mass = torch.as_tensor(1.0 if kernel.mass is None else kernel.mass, dtype=torch.float64, device=x.device)
    if mass.dim() == 0:
        mass = mass.expand(x[0].numel()).clone()
    whole = torch.diag(mass.flatten()) if dense and not kernel.metric.dense else mass
    changed: Kernel = replace(kernel, mass=whole)
    return changed


_TRAJECTORIES = 100  # that tell whether steps of a size diverge
_DIVERGENT = 0.05  # share of them that may: those of funnels do now and then, of whatever size
_BEYOND = 1.03  # so much beyond the stability most of them do


def _apart(inputs: Any) -> list[Any]:
    """The inputs of single steps, each with the axis of steps."""
    return [type(inputs)(*(part[i : i + 1] for part in inputs)) for i in range(len(inputs[0]))]


class _Run(Adaptation):
    """Chains of a kernel whose step size and mass change on the way."""

    def __init__(self, kernel: Kernel, plan: Plan, compile: bool) -> None:
        x, clamp = plan.x, plan.clamp
        self.compile, self.steps = compile, plan.steps
        self.dense, self.acceptance = plan.mass == "dense", plan.target or 0.0
        if compile and plan.mass is not None:
            kernel = _with_full_mass(kernel, x, self.dense)
        self.energy, self.kernel, self.clamp, self.generator = plan.energy, kernel, clamp, plan.generator
        self.edges = windows(plan.steps) if plan.mass is not None else []
        self.held_event = None if clamp is None else clamp.expand_as(x).all(0).flatten()
        self.divergences = torch.zeros(len(x), dtype=torch.long, device=x.device)
        self.position, self.scaled = x.detach().clone(), False  # whether a mass has been learned
        self._start()
        check_energies(self.unit, self.state, self.position)
        self._tune(float(torch.as_tensor(getattr(kernel, kernel.tuned))))

    def _start(self) -> None:
        """Fresh state: momenta that belonged to another mass are drawn anew."""
        self.unit = self._unit(self.kernel)
        self.target = self.unit.target(self.energy)
        self.state = self.unit.init(self.target, self.position, self.clamp)
        self.engine = None
        if self.compile:
            size = chunk_size(self.unit, self.position, True)
            self.engine = CompiledSteps(self.target, self.unit, self.state, size, self.say)

    def _tune(self, guess: float, rough: bool = True) -> None:
        """Begin to adapt the step size from a guess, where it is rough from the order of magnitude of it."""
        self.tuner = DualAveraging(self._first_guess(guess) if rough else guess, self.acceptance)
        self.recent: list[float] = []
        self.draws = Covariance(self.position, self.dense)

    def _unit(self, kernel: Kernel) -> Kernel:
        """The kernel at step size 1, which is then multiplied in step by step: no new kernel every step."""
        unit = replace(kernel, **{kernel.tuned: 1.0})
        return unit if self.clamp is None else unit.clamped(self.clamp)

    def step(self, at: int) -> dict[str, float]:
        self.made = self._block(at)
        places, acceptance, diverged = self._run(at, self.made)
        self.divergences += diverged.sum(0)
        self.recent.append(float(acceptance.mean()))
        self.tuner.update(self.recent[-1])
        shown = {"acceptance": self.recent[-1], "step": math.exp(self.tuner.log_step)}
        if self.edges and self.edges[0] <= at < self.edges[-1]:
            self.draws.update(places.flatten(0, 1))
            if at + self.made in self.edges:
                self.learn_mass()
        return shown

    def _block(self, at: int) -> int:
        """Steps that are made with one step size, and count as one for dual averaging: chains that run freely, or compiled, would
        lose their time by waiting for each other after every step."""
        if not self.compile and not isinstance(self.unit, FreeRunning):
            return 1
        ends = [edge for edge in (*self.edges, self.steps) if edge > at]
        return max(1, min(self.tuner.k, 25, ends[0] - at))

    def _run(self, at: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Some steps of all chains: positions, acceptance and divergences."""
        inputs = self.unit.draw(self.target, self.position, count, self.generator, at)
        inputs = inputs._replace(step_size=inputs.step_size * math.exp(self.tuner.log_step))
        made = None if self.engine is None else self.engine.make(self.state, inputs)
        if made is None:
            self.state, places, acceptance, diverged = run_chunk(self.target, self.unit, self.state, inputs)
        else:
            self.state, places, acceptance, diverged, _ = made
        self.position = self.unit.position(self.state)
        return places, acceptance, diverged

    def finish(self) -> Warmed:
        later = self.recent[len(self.recent) // 2 :]  # of the steps since the last mass
        reached = sum(later) / max(1, len(later))
        size = self._without_divergence(math.exp(self.tuner.log_average))
        return Warmed(replace(self.kernel, **{self.kernel.tuned: size}), self.state, reached, self.divergences)

    def _without_divergence(self, size: float) -> float:
        """The step size, smaller where the largest of jittered ones lies beyond the stability of the integrator: the mean
        acceptance does not tell, since where there are few dimensions all smaller ones are accepted nearly always."""
        least, tries = size / self.unit.largest, math.ceil(_TRAJECTORIES / len(self.position))
        while size > least:
            inputs = self.unit.draw(self.target, self.position, tries, self.generator, self.steps)
            top = torch.full_like(inputs.step_size, _BEYOND * size * self.unit.largest)
            ends = [
                run_chunk(self.target, self.unit, self.state, one) for one in _apart(inputs._replace(step_size=top))
            ]
            if float(torch.cat([diverged for *_, diverged in ends]).double().mean()) <= _DIVERGENT:
                break
            size = max(least, size / _BEYOND)
        return size

    def learn_mass(self) -> None:
        """Take on the mass that the draws of a window tell."""
        mass, rough = self.draws.mass(self.held_event), not self.scaled
        if mass is not None:
            self.kernel, self.scaled = replace(self.kernel, mass=mass), True  # type: ignore[call-arg]
        self._start()
        self._tune(
            math.exp(self.tuner.log_average), rough
        )  # a mass that is only refined leaves the step size what it is

    def _move(self, unit: Kernel, state: Any, step_size: float, at: int = 0) -> tuple[Any, Any]:
        inputs = unit.draw(self.target, self.position, 1, self.generator, at)
        one = type(inputs)(*(part[0] for part in inputs))
        return unit.step(self.target, state, one._replace(step_size=one.step_size * step_size))

    def _first_guess(self, guess: float) -> float:
        """Double or halve the step size until the acceptance of single moves crosses one half."""
        probe, state = self.unit, self.state
        single = self.kernel.probe()
        if single is not self.kernel:
            probe = self._unit(single)
            state = probe.init(self.target, self.position, self.clamp)
        return first_guess(lambda size: float(self._move(probe, state, size)[1].acceptance.mean()), guess, self.kernel)
