"""Hamiltonian Monte Carlo, and MALA as its one-step case."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from gibbsian.domains import Bounded
from gibbsian.energy import Energy
from gibbsian.errors import DomainError, check_number, hold_counts
from gibbsian.kernels.base import (
    FULL,
    ChainState,
    Flying,
    Kernel,
    MetropolisInfo,
    MoveInputs,
    accept,
    event_view,
    gaussian_inputs,
    masked,
    positive,
    start_state,
)
from gibbsian.kernels.integrators import Metric, Point, drift, leapfrog

DIVERGENCE = 1000.0  # energy error of a trajectory beyond which it is called divergent


class Massive(Kernel):
    """What kernels with momenta share: a metric, checked against walls and positions, and restricted to entries that move."""

    tuned: ClassVar[str] = "step_size"
    goal: ClassVar[float | None] = 0.8
    has_mass: ClassVar[bool] = True
    step_size: float | Tensor
    mass: float | Tensor | None
    metric: Metric

    def check(self, energy: Any) -> None:
        super().check(energy)
        if self.metric.dense and isinstance(energy.domain, Bounded):  # reflection turns single coordinates round
            raise DomainError(
                f"a dense mass cannot be reflected at the walls of {energy.domain}; use a diagonal mass, or sample "
                "gibbsian.unconstrained(energy)"
            )

    def clamped(self, clamp: Tensor) -> Self:
        kernel = replace(self)
        object.__setattr__(kernel, "metric", self.metric.restrict(clamp))
        return kernel

    def __post_init__(self) -> None:
        positive("step_size", self.step_size, type(self).__name__)
        object.__setattr__(self, "metric", Metric.of(self.mass))

    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> Any:
        self.metric.check(x)
        return start_state(energy, x, clamp)

    def probe(self) -> Kernel:
        return MALA(self.step_size, mass=self.mass)


class Flight(NamedTuple):
    """Where a trajectory is, with the score there."""

    x: Tensor
    v: Tensor
    score: Tensor
    clamp: Tensor | None


@dataclass(frozen=True)
class HMC(Massive, Flying):
    """Hamiltonian Monte Carlo: momenta v ~ N(0, M), L leapfrog steps of size ε on H(x, v) = E(x) + ½ vᵀM⁻¹v, which are
    accepted with probability min(1, exp(H - H')).

    The kernel of choice for smooth energies in more than a few dimensions. Needs a step size near the
    stability limit (let `gibbsian.warm_up` find it, with the mass) and a length of about a quarter of a
    period; NUTS chooses the length itself. In a box trajectories are reflected at the walls, exactly.

    Trajectories of one length that is a whole period of the target return to where they began, whatever the
    acceptance: on a Gaussian of frequency ω the correlation of successive draws is cos(ωεL). So lengths vary: with
    jitter j its mean is cos(ωεL)·sin(jωεL)/(jωεL), which for j = ½ vanishes at every whole period.

    Reference: Duane et al. 1987; Neal 2011. Best acceptance about 0.65-0.8.

    Args:
        step_size: ε; a number, a schedule (one value a step) or a `(1, chains)` tensor.
        leapfrog_steps: L.
        mass: M; a number, a diagonal of the event shape, or a dense matrix over flattened events.
        jitter: the step size of every transition of a chain is multiplied by a number uniform in [1 - jitter, 1 + jitter],
            so that no trajectory length resonates with a period of the target; 0 for steps of one size.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> kernel = HMC(step_size=0.2, leapfrog_steps=10, jitter=0.3)
    >>> trace = gb.sample(gb.energies.Banana(), kernel, torch.zeros(8, 2), steps=100, generator=g)
    >>> bool(trace.acceptance > 0.5)
    True
    """

    step_size: float | Tensor
    leapfrog_steps: int = 10
    mass: float | Tensor | None = None
    jitter: float = 0.5
    metric: Metric = field(init=False, repr=False, compare=False)
    one_proposal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        hold_counts(self, "leapfrog_steps")
        check_number(self, "jitter", self.jitter, 0.0, 1.0, open_high=True)

    @property
    def largest(self) -> float:
        return 1 + self.jitter

    @property
    def unroll(self) -> int:  # type: ignore[override]
        """Steps compiled into one graph: as many as keep the graph small."""
        return max(1, 50 // self.leapfrog_steps)

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> MoveInputs:
        return gaussian_inputs(x, steps, generator, self.step_size, start, jitter=self.jitter)

    def step(self, energy: Energy, state: ChainState, inputs: MoveInputs) -> tuple[ChainState, MetropolisInfo]:
        x, e, s, clamp = state
        metric = self.metric.to(x)
        v = self._momenta(state, inputs)
        end = leapfrog(energy, Point(x, v, e, s), event_view(inputs.step_size, x), metric, clamp, self.leapfrog_steps)
        return self._judged(state, end, v, inputs)

    def _momenta(self, state: ChainState, inputs: MoveInputs) -> Tensor:
        return masked(self.metric.to(state.x).momentum(inputs.z), state.clamp)

    def _judged(
        self, state: ChainState, end: Point, v: Tensor, inputs: MoveInputs
    ) -> tuple[ChainState, MetropolisInfo]:
        """Every chain at the end of its trajectory, or where that began with momentum v, by the Metropolis test."""
        log_ratio = state.energy - end.energy + self.metric.to(v).kinetic_drop(v, end.v)
        new = ChainState(end.x, end.energy, end.score, state.clamp)
        return accept(state, new, log_ratio, inputs.threshold, DIVERGENCE)

    # --- the same in parts, for compilers: energies are asked for at the end alone, kicks between moves are whole ----

    @property
    def moves(self) -> int:
        return self.leapfrog_steps - 1

    def ready(self, state: ChainState) -> bool:
        return self.metric.root is None and state.clamp is None  # what was drawn is the momenta

    def launch(self, state: ChainState, inputs: MoveInputs) -> Flight:
        return Flight(state.x, self._momenta(state, inputs), state.score, state.clamp)

    def move(self, energy: Energy, flight: Flight, inputs: MoveInputs, share: int) -> Flight:
        x, v, s, clamp = flight
        size = event_view(inputs.step_size, x)
        v = torch.addcmul(v, size * (share / FULL), s)
        x, v = drift(energy, x, v, size, self.metric.to(x))
        return Flight(x, v, masked(energy.energy_and_score(x)[1], clamp), clamp)

    def land(
        self, energy: Energy, state: ChainState, flight: Flight, inputs: MoveInputs
    ) -> tuple[ChainState, MetropolisInfo]:
        x, v, s, clamp = flight
        size = event_view(inputs.step_size, x)
        p = Point(x, torch.addcmul(v, size, s, value=0.5), state.energy, s)
        end = leapfrog(energy, p, size, self.metric.to(x), clamp)
        return self._judged(state, end, self._momenta(state, inputs), inputs)


@dataclass(frozen=True)
class MALA(HMC):
    """Metropolis-adjusted Langevin (Langevin Monte Carlo): x' ~ N(x + ½ε²M⁻¹s(x), ε²M⁻¹), Hastings-corrected.

    One leapfrog step with fresh momentum has the same proposal and the same acceptance, and that is how it
    is done: one gradient a step. Prefer HMC when steps are cheap relative to how far they must go.

    Reference: Roberts & Tweedie 1996; best acceptance 0.574 (Roberts & Rosenthal 1998).

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> trace = gb.sample(gb.energies.Banana(), MALA(step_size=0.5), torch.zeros(8, 2), steps=10, generator=g)
    """

    leapfrog_steps: int = field(default=1, init=False)
    jitter: float = 0.0  # a single step cannot come back to where it began
    unroll: ClassVar[int] = 10
    goal: ClassVar[float | None] = 0.574
