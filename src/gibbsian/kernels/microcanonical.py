"""Microcanonical dynamics: motion at unit speed that the energy bends and never stops,

ẋ = u,   u̇ = -(I - uuᵀ)∇E/(d - 1),   |u| = 1,

under which exp(-E) is the law of x when u is uniform on the sphere. A step of an integrator changes E by ΔE and the kinetic
part by ΔK, and W = ΔE + ΔK, which would be 0 in continuous time, is its error: E[exp(-W)] = 1.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Bounded
from gibbsian.errors import ArgumentError, DomainError, check_choice, check_number, hold_counts
from gibbsian.kernels.adaptation import Adaptation, Plan, TunedKernel
from gibbsian.kernels.base import (
    ChainState,
    Info,
    MetropolisInfo,
    MoveInputs,
    accept,
    event_view,
    gaussian_inputs,
    masked,
    positive,
    schedule_values,
)
from gibbsian.kernels.hmc import DIVERGENCE, Massive
from gibbsian.kernels.integrators import Metric, reflect
from gibbsian.kernels.microcanonical_tuning import AcceptanceLearning, ErrorLearning
from gibbsian.random import normals

_INTEGRATORS = {  # kicks and, between them, drifts, in units of a step
    "leapfrog": ((0.5, 0.5), (1.0,)),
    "minimal norm": ((0.1931833275037836, 1 - 2 * 0.1931833275037836, 0.1931833275037836), (0.5, 0.5)),
}


def unit(u: Tensor) -> Tensor:
    """u on the sphere, per chain."""
    return u / event_view(u.flatten(1).norm(dim=1), u)


def degrees(x: Tensor, clamp: Tensor | None) -> Tensor | int:
    """d, how many entries move, per chain where some are held."""
    return x[0].numel() if clamp is None else (~clamp).expand_as(x).flatten(1).sum(1).to(x.dtype)


def kick(u: Tensor, force: Tensor, size: Tensor, d: Tensor | int) -> tuple[Tensor, Tensor]:
    """Exactly what a constant force does to u in a time ε, and ΔK: with e = force/|force| and δ = ε|force|/(d - 1)

    u' = (u + e(sinh δ + (e·u)(cosh δ - 1))) / (cosh δ + e·u sinh δ),   ΔK = (d - 1) log(cosh δ + e·u sinh δ),

    written with ζ = exp(-δ), so that no force is too large.
    """
    strength = force.flatten(1).norm(dim=1)
    e = force / event_view(strength.clamp_min(torch.finfo(force.dtype).tiny), force)
    delta = size * strength / (d - 1)
    along = (e * u).flatten(1).sum(1)
    zeta = torch.exp(-delta)
    pull = (1 - zeta) * (1 + zeta + along * (1 - zeta))
    new = unit(torch.addcmul(event_view(2 * zeta, u) * u, event_view(pull, e), e))
    return new, (d - 1) * (delta - math.log(2) + torch.log(1 + along + (1 - along) * zeta.square()))


class Moving(NamedTuple):
    """A point with its direction of motion, energy (that of the start, where only scores are asked for) and score; `gain` is
    ΣΔK so far."""

    x: Tensor
    u: Tensor
    energy: Tensor
    score: Tensor
    gain: Tensor


class Course(NamedTuple):
    """What stays the same on the way."""

    energy: Any
    metric: Metric
    clamp: Tensor | None
    integrator: str
    scores: bool  # alone, without energies


def integrate(course: Course, p: Moving, step_size: Tensor, steps: int) -> Moving:
    """Some steps of the integrator, kicks that follow each other made one."""
    kicks, drifts = _INTEGRATORS[course.integrator]
    d = degrees(p.x, course.clamp)
    x, u, e, s, gain = p
    for i in range(steps):
        for j, share in enumerate(drifts):
            joined = kicks[j] if j or not i else kicks[-1] + kicks[0]
            u, more = kick(u, course.metric.white_force(s), joined * step_size, d)
            gain = gain + more
            x = x + event_view(share * step_size, x) * masked(course.metric.white_velocity(u), course.clamp)
            if isinstance(course.energy.domain, Bounded):
                x, u = reflect(x, u, course.energy.domain)
            e, s = (e, course.energy.score(x)) if course.scores else course.energy.energy_and_score(x)
            s = masked(s, course.clamp)
    u, more = kick(u, course.metric.white_force(s), kicks[-1] * step_size, d)
    return Moving(x, u, e, s, gain + more)


class Microcanonical(Massive, TunedKernel):
    """What both kernels share: the integrator, and a warm-up that learns how far to go before directions are forgotten."""

    integrator: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "integrator", self.integrator, tuple(_INTEGRATORS))

    def check(self, energy: Any) -> None:
        super().check(energy)
        if energy.domain.numel < 2:
            raise DomainError(
                f"{type(self).__name__} moves at unit speed, which in one dimension leaves no freedom; use kernels.NUTS or HMC"
            )

    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> Any:
        self.check_degrees(x, clamp)
        return super().init(energy, x, clamp)

    def check_degrees(self, x: Tensor, clamp: Tensor | None) -> None:
        """Refuse clamps that leave no freedom."""
        if clamp is not None and bool((degrees(x, clamp) < 2).any()):  # type: ignore[union-attr]
            raise ArgumentError(
                f"{type(self).__name__} needs at least two entries that move, and the clamp leaves fewer; use kernels.NUTS"
            )

    def course(self, energy: Any, x: Tensor, clamp: Tensor | None, *, scores: bool = False) -> Course:
        """What stays the same on the way from x; with `scores` no energies are computed."""
        return Course(energy, self.metric.to(x), clamp, self.integrator, scores)


class DirectedState(NamedTuple):
    """Positions, directions of motion (0 at the start, before any is drawn) and scores."""

    x: Tensor
    u: Tensor
    score: Tensor
    clamp: Tensor | None = None


class DirectedInputs(NamedTuple):
    """Normals for the two refreshments, step sizes and lengths."""

    z: Tensor  # (2, chains, *event)
    step_size: Tensor
    length: Tensor


@dataclass(frozen=True)
class MCLMC(Microcanonical):
    """Microcanonical Langevin Monte Carlo: motion at unit speed whose direction is forgotten over a length L,

        u ∝ u + νz;  half a kick, a drift, half a kick;  u ∝ u + νz,   ν² = (exp(ε/L) - 1)/d.

    Unadjusted: one score a step, no energy and no refusals, and a bias that the energy error tells of: Var[W]/d per step
    grows as ε⁶; at the 5·10⁻⁴ that `gibbsian.warm_up` aims for, the narrowest of ten directions comes out 5 % too wide (at
    10⁻⁵, with half the step, 1 %). For smooth targets of many dimensions where gradients are costly; where the law must be exact use `MAMS`. Needs two
    dimensions at least. In a box it is reflected at the walls.

    Reference: Robnik, De Luca, Silverstein & Seljak 2023; Robnik & Seljak 2024; integrator: Omelyan et al. 2003.

    Args:
        step_size: ε, in coordinates in which the mass is one; a number, a schedule or a `(1, chains)` tensor.
        length: L; like the step size.
        mass: M, as in `HMC`.
        integrator: "leapfrog" (one score a step) or "minimal norm" (two, for steps more than twice as long).

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(10), torch.diag(torch.linspace(0.1, 10, 10)))
    >>> warmed = gb.warm_up(target, MCLMC(step_size=0.5), torch.zeros(16, 10), 400, generator=g)
    >>> trace = gb.sample(target, warmed.kernel, warmed.trace, steps=500, generator=g)
    >>> bool((trace.summary()["sd"] / target.covariance.diagonal().sqrt() - 1).abs().max() < 0.15)
    True
    """

    step_size: float | Tensor
    length: float | Tensor = 1.0
    mass: float | Tensor | None = None
    integrator: str = "leapfrog"
    metric: Metric = field(init=False, repr=False, compare=False)
    adjusted: ClassVar[bool] = False
    unroll: ClassVar[int] = 4  # its graphs are large
    needs_energy: ClassVar[bool] = False
    goal: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("length", self.length, "MCLMC")

    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> DirectedState:
        self.check_degrees(x, clamp)
        self.metric.check(x)
        return DirectedState(x, torch.zeros_like(x), masked(energy.score(x), clamp), clamp)

    def known(self, state: DirectedState) -> tuple[Tensor, ...]:
        return (state.score,)

    def relocate(self, energy: Any, state: DirectedState, x: Tensor) -> DirectedState:
        return self.init(energy, x, state.clamp)._replace(u=state.u)

    def schedules(self) -> tuple[Any, ...]:
        return self.step_size, self.length

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> DirectedInputs:
        z = normals(steps, 2 * x.numel(), generator, dtype=x.dtype, device=x.device).reshape(steps, 2, *x.shape)
        sizes = schedule_values(self.step_size, steps, start, x, "step_size")
        return DirectedInputs(z, sizes, schedule_values(self.length, steps, start, x, "length"))

    def step(self, energy: Any, state: DirectedState, inputs: DirectedInputs) -> tuple[DirectedState, Info]:
        course = self.course(energy, state.x, state.clamp, scores=True)
        return self.move(course, state, inputs, state.x.new_zeros(len(state.x)))[0], Info()

    def move(
        self, course: Course, state: DirectedState, inputs: DirectedInputs, energy: Tensor
    ) -> tuple[DirectedState, Moving]:
        """A step from states with these energies, and what its integrator met: the energy where it ended, and ΔK."""
        x, clamp, size = state.x, state.clamp, inputs.step_size
        noise = torch.sqrt(torch.expm1(size / inputs.length) / degrees(x, clamp))
        u = unit(state.u + event_view(noise, x) * masked(inputs.z[0], clamp))
        end = integrate(course, Moving(x, u, energy, state.score, torch.zeros_like(energy)), size, 1)
        u = unit(end.u + event_view(noise, x) * masked(inputs.z[1], clamp))
        return DirectedState(end.x, u, end.score, clamp), end

    def adaptation(self, plan: Plan) -> Adaptation:
        return ErrorLearning(self, plan)


@dataclass(frozen=True)
class MAMS(Microcanonical):
    """Metropolis-adjusted microcanonical sampler: a fresh direction u, n steps of the integrator of `MCLMC`, accepted with
    probability min(1, exp(-W)). Exact for any step size.

    As HMC, with which it shares its arguments, but for the dynamics: all directions are tried at the same speed, which in
    many dimensions allows longer steps, and a steep energy cannot throw it out. `gibbsian.warm_up` finds step size, mass and
    number of steps. Needs two dimensions at least. In a box it is reflected at the walls, exactly.

    Reference: Robnik, Cohn-Gordon & Seljak 2025.

    Args:
        step_size, mass, integrator: as in `MCLMC`.
        leapfrog_steps: n.
        jitter: as in `HMC`.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> kernel = MAMS(step_size=0.5, leapfrog_steps=4)
    >>> trace = gb.sample(gb.energies.Banana(), kernel, torch.zeros(8, 2), steps=100, generator=g)
    >>> bool(trace.acceptance > 0.5)
    True
    """

    step_size: float | Tensor
    leapfrog_steps: int = 10
    mass: float | Tensor | None = None
    jitter: float = 0.5
    integrator: str = "leapfrog"
    metric: Metric = field(init=False, repr=False, compare=False)
    goal: ClassVar[float | None] = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        hold_counts(self, "leapfrog_steps")
        check_number(self, "jitter", self.jitter, 0.0, 1.0, open_high=True)

    @property
    def unroll(self) -> int:  # type: ignore[override]
        """Steps compiled into one graph: as many as keep the graph small."""
        return max(1, 8 // self.leapfrog_steps)

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> MoveInputs:
        return gaussian_inputs(x, steps, generator, self.step_size, start, jitter=self.jitter)

    def step(self, energy: Any, state: ChainState, inputs: MoveInputs) -> tuple[ChainState, MetropolisInfo]:
        x, e, s, clamp = state
        p = Moving(x, unit(masked(inputs.z, clamp)), e, s, torch.zeros_like(e))
        end = integrate(self.course(energy, x, clamp), p, inputs.step_size, self.leapfrog_steps)
        new = ChainState(end.x, end.energy, end.score, clamp)
        return accept(state, new, e - end.energy - end.gain, inputs.threshold, DIVERGENCE)

    def adaptation(self, plan: Plan) -> Adaptation:
        return AcceptanceLearning(self, plan)
