"""ChEES-HMC: Hamiltonian Monte Carlo for many chains, which learn the length of their trajectories from each other."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, check_number, hold_counts
from gibbsian.kernels.adaptation import Adaptation, Plan, TunedKernel
from gibbsian.kernels.base import (
    ChainState,
    Lockstep,
    accept,
    event_view,
    gaussian_inputs,
    judge,
    masked,
    metropolis_test,
    roomy,
)
from gibbsian.kernels.chees_learning import TrajectoryLearning, halton
from gibbsian.kernels.hmc import DIVERGENCE, Massive
from gibbsian.kernels.integrators import Metric, Point, leapfrog


class ChEESInputs(NamedTuple):
    """Normals for the momenta, thresholds, step sizes, and how many leapfrog steps each trajectory takes."""

    z: Tensor
    threshold: Tensor
    step_size: Tensor
    leapfrogs: Tensor  # (steps,)


class ChEESInfo(NamedTuple):
    """What a person wants to see of a transition, per chain (and iteration)."""

    acceptance: Tensor
    diverged: Tensor
    leapfrogs: Tensor
    step_size: Tensor

    @staticmethod
    def of(log_ratio: Tensor, inputs: ChEESInputs) -> "ChEESInfo":
        """From the log of the Metropolis ratio `(..., chains)`."""
        counts, sizes = (t[..., None].expand_as(log_ratio) for t in (inputs.leapfrogs, inputs.step_size))
        return ChEESInfo(*judge(log_ratio, DIVERGENCE), counts, sizes)

    def stats(self) -> dict[str, Tensor]:
        """Under the names that ArviZ and others know them by."""
        return {"n_steps": self.leapfrogs, "step_size": self.step_size}


class Ground(NamedTuple):
    """What stays the same during some iterations."""

    inputs: ChEESInputs
    wanted: Tensor  # (): iterations, which may be less than there is room for
    metric: Metric
    clamp: Tensor | None

    def now(self, iteration: Tensor) -> ChEESInputs:
        """The inputs of an iteration, after the last one of that."""
        at = torch.minimum(iteration, self.wanted - 1).reshape(1)
        return ChEESInputs(*(part.index_select(0, at).squeeze(0) for part in self.inputs))


class Trajectory(NamedTuple):
    """Where the trajectories are."""

    point: Point
    start: Tensor  # H where they began


class Underway(NamedTuple):
    """The trajectories, and the state that they began at; numbers `()` are those of all chains."""

    flight: Trajectory
    here: ChainState
    left: Tensor  # (): leapfrog steps to go, 0 before the next trajectory
    iteration: Tensor  # ()
    reach: Tensor  # (): negative when all iterations are done


class Slots(NamedTuple):
    """What iterations gave, with a row more for what nobody asked for."""

    draws: Tensor  # (iterations + 1, chains, *event)
    log_ratios: Tensor  # (iterations + 1, chains)


class Flight(NamedTuple):
    """Where trajectories end, and the log of their Metropolis ratio."""

    end: Point
    log_ratio: Tensor


@dataclass(frozen=True)
class ChEES(Massive, Lockstep, TunedKernel):
    """ChEES-HMC: Hamiltonian trajectories of length uT, u going through ½, ¼, ¾, ⅛, ..., all chains the same, T chosen so that
    squared distances from the center change as much as they can,

        max over T of ¼ E[(‖x' - x̄'‖² - ‖x - x̄‖²)²]    (the change in the estimator of the expected square).

    `gibbsian.warm_up` learns T from the chains, beside step size and mass, from short trajectories on by ascent along the
    gradient of the criterion; then it stays, and the kernel is exact. All chains make the same number of leapfrog steps, ⌈uT/ε⌉, so that nobody waits:
    the kernel of choice for hundreds or thousands of chains, on a GPU above all. With a handful of chains take NUTS. In a
    box trajectories are reflected at the walls, exactly.

    Reference: Hoffman, Radul & Sountsov 2021; the sequence of lengths: Owen 2017, Wu et al. 2018.

    Args:
        step_size, mass: ε and M, as in `HMC`; one step size for all.
        trajectory: T; the mean length is half of it.
        max_leapfrogs: most leapfrog steps of a trajectory.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
    >>> warmed = gb.warm_up(target, ChEES(step_size=0.1), torch.zeros(64, 2), 300, generator=g)
    >>> trace = gb.sample(target, warmed.kernel, warmed.trace, steps=100, generator=g)
    >>> bool(trace.acceptance > 0.5), bool(0.5 < warmed.kernel.trajectory < 10)
    (True, True)
    """

    step_size: float | Tensor
    trajectory: float = 1.0
    mass: float | Tensor | None = None
    max_leapfrogs: int = 1000
    metric: Metric = field(init=False, repr=False, compare=False)
    goal: ClassVar[float | None] = 0.651
    reaches: ClassVar[tuple[int, ...]] = (0,)  # all micro-steps are alike

    def __post_init__(self) -> None:
        super().__post_init__()
        if torch.as_tensor(self.step_size).dim():
            raise ArgumentError(
                "ChEES(step_size=...) is a schedule or one value per chain; it takes one number for all"
            )
        check_number(self, "trajectory", self.trajectory, open_low=True)
        hold_counts(self, "max_leapfrogs")

    def leapfrogs(self, n: int) -> int:
        """⌈uT/ε⌉ of trajectory number n, from 1 on."""
        return min(self.max_leapfrogs, max(1, math.ceil(halton(n) * self.trajectory / float(self.step_size))))

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> ChEESInputs:
        counts = torch.tensor([self.leapfrogs(start + i + 1) for i in range(steps)], device=x.device)
        return ChEESInputs(*gaussian_inputs(x, steps, generator, self.step_size, start), counts)

    def run(self, energy: Energy, state: ChainState, inputs: ChEESInputs) -> tuple[ChainState, Tensor, ChEESInfo]:
        draws, log_ratios = [], []
        for z, threshold, size, count in zip(*inputs[:3], inputs.leapfrogs.cpu(), strict=True):
            state, log_ratio = self._iterate(energy, state, ChEESInputs(z, threshold, size, count))
            draws.append(state.x)
            log_ratios.append(log_ratio)
        return state, torch.stack(draws), ChEESInfo.of(torch.stack(log_ratios), inputs)

    def step(self, energy: Energy, state: ChainState, inputs: ChEESInputs) -> tuple[ChainState, ChEESInfo]:
        state, log_ratio = self._iterate(energy, state, inputs)
        return state, ChEESInfo.of(log_ratio, inputs)

    def _iterate(self, energy: Energy, state: ChainState, inputs: ChEESInputs) -> tuple[ChainState, Tensor]:
        end, log_ratio = self.fly(energy, state, inputs)
        new = ChainState(end.x, end.energy, end.score, state.clamp)
        return accept(state, new, log_ratio, inputs.threshold, DIVERGENCE)[0], log_ratio

    def fly(self, energy: Energy, state: ChainState, inputs: ChEESInputs) -> Flight:
        """The trajectories of all chains."""
        x, e, s, clamp = state
        metric = self.metric.to(x)
        v = masked(metric.momentum(inputs.z), clamp)
        end = leapfrog(energy, Point(x, v, e, s), inputs.step_size, metric, clamp, int(inputs.leapfrogs))
        return Flight(end, e - end.energy + metric.kinetic_drop(v, end.v))

    # --- the same as a machine, for compilers: a micro-step is one leapfrog step of all chains -----------------------

    def begin(
        self, energy: Energy, state: ChainState, inputs: ChEESInputs, room: int = 0
    ) -> tuple[Ground, Underway, Slots]:
        steps, chains = max(room, len(inputs.z)), len(state.x)
        wanted = torch.full((), len(inputs.z), dtype=torch.long, device=state.x.device)
        given = ChEESInputs(*(roomy(part, steps) for part in inputs))
        ground = Ground(given, wanted, self.metric.to(state.x), state.clamp)
        point = Point(state.x, torch.zeros_like(state.x), state.energy, state.score)
        zero = torch.zeros_like(wanted)
        underway = Underway(Trajectory(point, torch.zeros_like(state.energy)), state, zero, zero, zero)
        slots = Slots(state.x.new_empty(steps + 1, *state.x.shape), state.energy.new_empty(steps + 1, chains))
        return ground, underway, slots

    def micro_step(self, energy: Energy, ground: Ground, moving: Underway, slots: Slots, reach: int) -> Underway:
        active = moving.iteration < ground.wanted
        fresh = moving.left == 0
        new, old = self.launch(ground, moving).flight, moving.flight
        point = Point(*(torch.where(fresh, a, b) for a, b in zip(new.point, old.point, strict=True)))
        flight = Trajectory(point, torch.where(fresh, new.start, old.start))
        left = torch.where(fresh, ground.now(moving.iteration).leapfrogs, moving.left) - 1
        flown = self.move(energy, ground, Underway(flight, moving.here, left, moving.iteration, moving.reach), 1)
        over = (left == 0) & active
        here, log_ratio = self._judged(ground, flown, over)
        place = torch.where(active, flown.iteration, len(ground.inputs.z))  # written until its trajectory is over
        slots.draws[place.reshape(1)] = here.x[None]
        slots.log_ratios[place.reshape(1)] = log_ratio[None]
        iteration = flown.iteration + over.long()
        reached = torch.where(iteration < ground.wanted, 0, -1)
        return Underway(flown.flight, here, left, iteration, reached)

    # --- and for a device that is told beforehand what to do, which need not count how many steps are left -----------
    # (whole tuples: torch 2.11 cannot compile `_replace`)

    def moves_of(self, inputs: ChEESInputs) -> list[int]:
        return inputs.leapfrogs.tolist()

    def launch(self, ground: Ground, moving: Underway) -> Underway:
        one, here = ground.now(moving.iteration), moving.here
        v = masked(ground.metric.momentum(one.z), ground.clamp)
        start = here.energy + ground.metric.kinetic(v)
        flight = Trajectory(Point(here.x, v, here.energy, here.score), start)
        return Underway(flight, here, moving.left, moving.iteration, moving.reach)

    def move(self, energy: Energy, ground: Ground, moving: Underway, count: int) -> Underway:
        (point, start), here, left, iteration, reach = moving
        size = ground.now(iteration).step_size
        point = leapfrog(energy, point, size, ground.metric, ground.clamp, count)
        return Underway(Trajectory(point, start), here, left, iteration, reach)

    def land(self, ground: Ground, moving: Underway, slots: Slots) -> Underway:
        here, log_ratio = self._judged(ground, moving)
        place = moving.iteration.reshape(1)
        slots.draws[place] = here.x[None]
        slots.log_ratios[place] = log_ratio[None]
        return Underway(moving.flight, here, moving.left, moving.iteration + 1, moving.reach)

    def _judged(self, ground: Ground, moving: Underway, over: Tensor | None = None) -> tuple[ChainState, Tensor]:
        """Every chain at the end of its trajectory or where that began, by the Metropolis test, if it is over."""
        (p, start), here = moving.flight, moving.here
        log_ratio = start - p.energy - ground.metric.kinetic(p.v)
        take = metropolis_test(log_ratio, ground.now(moving.iteration).threshold)
        take = take if over is None else take & over
        rows = event_view(take, p.x)
        x, score = torch.where(rows, p.x, here.x), torch.where(rows, p.score, here.score)
        return ChainState(x, torch.where(take, p.energy, here.energy), score, here.clamp), log_ratio

    def finish(
        self, state: ChainState, ground: Ground, moving: Underway, slots: Slots
    ) -> tuple[ChainState, Tensor, ChEESInfo]:
        count = int(ground.wanted)
        inputs = ChEESInputs(*(part[:count] for part in ground.inputs))
        return moving.here, slots.draws[:count], ChEESInfo.of(slots.log_ratios[:count], inputs)

    def adaptation(self, plan: Plan) -> Adaptation:
        return TrajectoryLearning(self, plan)
