"""Underdamped (kinetic) Langevin dynamics: momenta that forget slowly.

dx = M⁻¹v dt,   dv = s(x) dt - γv dt + √(2γM) dW
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Bounded
from gibbsian.errors import CapabilityError
from gibbsian.kernels.base import (
    Info,
    Kernel,
    MetropolisInfo,
    accept,
    event_view,
    gaussian_inputs,
    masked,
    positive,
    schedule_values,
)
from gibbsian.kernels.hmc import DIVERGENCE, Massive
from gibbsian.kernels.integrators import Metric, Point, leapfrog, reflect
from gibbsian.kernels.langevin import normal_inputs


class KineticState(NamedTuple):
    """Positions and momenta, with the score there and, for the adjusted form, the energy; `thermal` is 0 at the start,
    when the momenta are still to be drawn, and 1 from the first step on."""

    x: Tensor
    v: Tensor
    energy: Tensor | None
    score: Tensor
    thermal: Tensor
    clamp: Tensor | None = None


class KineticInputs(NamedTuple):
    """Noise, acceptance thresholds (none for the unadjusted form), step sizes and frictions."""

    z: Tensor
    threshold: Tensor
    step_size: Tensor
    friction: Tensor


@dataclass(frozen=True)
class UnderdampedLangevin(Massive):
    """Underdamped Langevin dynamics by the BAOAB splitting: kick, drift, friction with noise, drift, kick,

        v += ½εs(x);  x += ½εM⁻¹v;  v ← cv + √(1-c²) M^½ z;  x += ½εM⁻¹v;  v += ½εs(x),   c = exp(-γε).

    Needs one score a step and no energy. Momenta persist for a time of about 1/γ, so it goes further than
    `Langevin` on ill-conditioned energies, and its bias is of higher order: the positions of a Gaussian come
    out exactly. Use γ near the frequency of the slowest direction.

    With `adjusted=True` it is generalized (guided) Hamiltonian Monte Carlo, which leaves exp(-E) exactly
    invariant: v ← cv + √(1-c²) M^½ z, one leapfrog step, a Metropolis test, and v ← -v where it is refused.
    Refusals turn the chain round, so keep the acceptance above 0.9. In a box both forms are reflected.

    Reference: Leimkuhler & Matthews 2013 (BAOAB); Horowitz 1991 (adjusted).

    Args:
        step_size, mass: ε and M, as in `HMC`.
        friction: γ, in units of 1/time; like the step size.
        adjusted: correct by Metropolis tests; needs an energy.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> kernel = UnderdampedLangevin(step_size=0.3, friction=1.0, adjusted=True)
    >>> trace = gb.sample(gb.energies.Banana(), kernel, torch.zeros(8, 2), steps=100, generator=g)
    >>> bool(trace.acceptance > 0.8)
    True
    """

    step_size: float | Tensor
    friction: float | Tensor = 1.0
    mass: float | Tensor | None = None
    adjusted: bool = field(default=False, kw_only=True)  # type: ignore[misc]  # here every instance decides
    metric: Metric = field(init=False, repr=False, compare=False)
    goal: ClassVar[float | None] = 0.9  # it turns round at every refusal, so it wants few of them

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("friction", self.friction, "UnderdampedLangevin")

    @property
    def needs_energy(self) -> bool:  # type: ignore[override]
        """Only the adjusted form does."""
        return self.adjusted

    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> KineticState:
        self.metric.check(x)
        e, s = energy.energy_and_score(x) if self.adjusted else (None, energy.score(x))
        return KineticState(x, torch.zeros_like(x), e, masked(s, clamp), x.new_zeros(()), clamp)

    def energies(self, state: KineticState) -> Tensor | None:
        return state.energy

    def known(self, state: KineticState) -> tuple[Tensor, ...]:
        return (state.score,) if state.energy is None else (state.energy, state.score)

    def resumes(self, other: Kernel) -> bool:
        return super().resumes(other) and self.adjusted == other.adjusted

    def relocate(self, energy: Any, state: KineticState, x: Tensor) -> KineticState:
        return self.init(energy, x, state.clamp)._replace(v=state.v, thermal=state.thermal)

    def schedules(self) -> tuple[Any, ...]:
        return self.step_size, self.friction

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> KineticInputs:
        friction = schedule_values(self.friction, steps, start, x, "friction")
        if self.adjusted:
            return KineticInputs(*gaussian_inputs(x, steps, generator, self.step_size, start), friction)
        z = normal_inputs(x, steps, generator)
        sizes = schedule_values(self.step_size, steps, start, x, "step_size")
        return KineticInputs(z, z.new_empty(steps, 0), sizes, friction)

    def step(self, energy: Any, state: KineticState, inputs: KineticInputs) -> tuple[KineticState, Any]:
        eps = event_view(inputs.step_size, state.x)
        friction = event_view(inputs.friction, state.x)
        c = torch.exp(-friction * eps) * state.thermal  # the first step draws the momenta afresh
        noise = masked(self.metric.to(state.x).momentum(inputs.z), state.clamp)
        noise = noise * torch.sqrt(1 - c * c)
        if self.adjusted:
            return self._guided(energy, state, eps, c, noise, inputs.threshold)
        return self._baoab(energy, state, eps, c, noise), Info()

    def _baoab(self, energy: Any, state: KineticState, eps: Tensor, c: Tensor, noise: Tensor) -> KineticState:
        x, v, _, s, thermal, clamp = state
        metric = self.metric.to(x)
        walls = isinstance(energy.domain, Bounded)
        v = torch.addcmul(v, eps, s, value=0.5)
        x = torch.addcmul(x, eps, metric.velocity(v), value=0.5)
        if walls:
            x, v = reflect(x, v, energy.domain)
        v = torch.addcmul(noise, c, v)
        x = torch.addcmul(x, eps, metric.velocity(v), value=0.5)
        if walls:
            x, v = reflect(x, v, energy.domain)
        s = masked(energy.score(x), clamp)
        v = torch.addcmul(v, eps, s, value=0.5)
        return KineticState(x, v, None, s, torch.ones_like(thermal), clamp)

    def _guided(
        self, energy: Any, state: KineticState, eps: Tensor, c: Tensor, noise: Tensor, threshold: Tensor
    ) -> tuple[KineticState, MetropolisInfo]:
        x, v, e, s, thermal, clamp = state
        if e is None:
            raise CapabilityError(
                "this state was made without energies, by the unadjusted form; start from its positions: "
                "sample(energy, kernel, trace.last, ...)"
            )
        metric = self.metric.to(x)
        v = torch.addcmul(noise, c, v)
        end = leapfrog(energy, Point(x, v, e, s), eps, metric, clamp)
        log_ratio = e - end.energy + metric.kinetic_drop(v, end.v)
        old = state._replace(v=-v, thermal=torch.ones_like(thermal))  # turned round, or the law would not stay
        new = old._replace(x=end.x, v=end.v, energy=end.energy, score=end.score)
        return accept(old, new, log_ratio, threshold, DIVERGENCE)
