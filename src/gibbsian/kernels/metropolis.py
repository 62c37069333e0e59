"""Metropolis-Hastings: random walk, independence, and any proposal of the user's.

accept x' with probability min(1, exp(-E(x') + E(x)) · q(x|x') / q(x'|x))
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import ConditionallySampleable, Sampleable, require
from gibbsian.domains import Bounded, Domain
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, ShapeError
from gibbsian.kernels.base import (
    Kernel,
    MetropolisInfo,
    MoveInputs,
    WalkState,
    accept,
    event_view,
    gaussian_inputs,
    masked,
    positive,
    where_chain,
)
from gibbsian.kernels.integrators import reflect


@dataclass(frozen=True)
class RandomWalk(Kernel):
    """Random-walk Metropolis: x' = x + scale·z, z ~ N(0, I); at the walls of a box the walk is reflected.

    The simplest kernel that is exact for any energy, differentiable or not. It needs of the order of d
    steps per independent draw in d dimensions: with gradients use MALA, HMC or NUTS.

    Reference: Metropolis et al. 1953; best acceptance 0.234 in high dimension (Roberts, Gelman & Gilks 1997).

    Args:
        scale: standard deviation of the proposal; a number, a schedule (one value a step) or a `(1, chains)` tensor.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> trace = gb.sample(gb.energies.Banana(), RandomWalk(scale=1.0), torch.zeros(8, 2), steps=100, generator=g)
    >>> trace.samples.shape
    torch.Size([100, 8, 2])
    """

    scale: float | Tensor
    unroll: ClassVar[int] = 50
    tuned: ClassVar[str] = "scale"

    def __post_init__(self) -> None:
        positive("scale", self.scale, "RandomWalk")

    def init(self, energy: Energy, x: Tensor, clamp: Tensor | None = None) -> WalkState:
        with torch.no_grad():
            return WalkState(x, energy(x), clamp)

    def best_acceptance(self, moving: int) -> float:
        return 0.44 if moving == 1 else 0.234

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> MoveInputs:
        return gaussian_inputs(x, steps, generator, self.scale, start, name="scale")

    def step(self, energy: Energy, state: WalkState, inputs: MoveInputs) -> tuple[WalkState, MetropolisInfo]:
        x, e, clamp = state
        proposal = torch.addcmul(x, event_view(inputs.step_size, x), masked(inputs.z, clamp))
        if isinstance(energy.domain, Bounded):
            proposal, _ = reflect(proposal, proposal, energy.domain)
        e_new = energy(proposal)
        return accept(state, WalkState(proposal, e_new, clamp), e - e_new, inputs.threshold)


class IndependenceState(NamedTuple):
    """Positions with their energies under the target and under the proposal."""

    x: Tensor
    energy: Tensor
    proposal_energy: Tensor
    clamp: Tensor | None = None


class DrawInputs(NamedTuple):
    """Whole proposed states, or the generator that will draw them, and the acceptance thresholds."""

    draw: Any
    threshold: Tensor


def _thresholds(x: Tensor, steps: int, generator: torch.Generator) -> Tensor:
    return torch.rand(steps, len(x), generator=generator, dtype=x.dtype, device=x.device).log()


@dataclass(frozen=True)
class Independence(Kernel):
    """Independence Metropolis-Hastings: x' ~ q whatever x is, accepted with the Hastings ratio

        min(1, exp(-E(x') + E(x) + E_q(x') - E_q(x))),   q ∝ exp(-E_q).

    Good when q covers the target with heavier tails; where q misses mass the chain sticks. The constant of q
    cancels. With clamped entries q must be a Gaussian (its conditional is exact).

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> wide = gb.energies.Gaussian(torch.zeros(2), 9 * torch.eye(2))
    >>> trace = gb.sample(gb.energies.Ring(), Independence(wide), torch.ones(8, 2), steps=10, generator=g)
    """

    proposal: Energy
    domains: ClassVar[tuple[type[Domain], ...]] = (Domain,)
    draws_in_steps: ClassVar[str] = "Independence draws whole states from its proposal while it runs"

    def __post_init__(self) -> None:
        if not isinstance(self.proposal, Energy) or not isinstance(self.proposal, Sampleable):
            raise CapabilityError(
                f"Independence needs a proposal that is an energy and can be drawn from exactly, such as energies.Gaussian; "
                f"{type(self.proposal).__name__} is not"
            )

    def check(self, energy: Any) -> None:
        super().check(energy)
        if self.proposal.domain.shape != energy.domain.shape:
            raise ShapeError(
                f"the proposal lives on {self.proposal.domain}, the target on {energy.domain}; shapes must agree"
            )

    def init(self, energy: Energy, x: Tensor, clamp: Tensor | None = None) -> IndependenceState:
        if clamp is not None:
            advice = "use energies.Gaussian as proposal, or RandomWalk, MALA or HMC"
            require(self.proposal, ConditionallySampleable, "the proposal of Independence with a clamp", advice)
        with torch.no_grad():
            return IndependenceState(x, energy(x), self.proposal(x), clamp)

    def energies(self, state: IndependenceState) -> Tensor:
        return state.energy

    def known(self, state: IndependenceState) -> tuple[Tensor, ...]:
        return state.energy, state.proposal_energy

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> DrawInputs:
        return DrawInputs([generator] * steps, _thresholds(x, steps, generator))

    def step(
        self, energy: Energy, state: IndependenceState, inputs: DrawInputs
    ) -> tuple[IndependenceState, MetropolisInfo]:
        x, e, q, clamp = state
        if clamp is None:
            new = self.proposal.sample(len(x), generator=inputs.draw).to(x)  # type: ignore[operator]
        else:
            new = self.proposal.sample_conditional(x, clamp, generator=inputs.draw)  # type: ignore[operator]
        e_new, q_new = energy(new), self.proposal(new)
        e_new = torch.where(energy.domain.contains(new).flatten(1).all(1), e_new, torch.inf)
        return accept(state, IndependenceState(new, e_new, q_new, clamp), e - e_new + q_new - q, inputs.threshold)


@dataclass(frozen=True)
class Metropolis(Kernel):
    """Metropolis-Hastings with your own proposal.

    Args:
        propose: `(x, generator) -> x'`, all chains at once.
        log_density: `(to, origin) -> (chains,)`, log q(to | origin) up to a constant; leave it out only for a
            proposal that is symmetric, and say so with `symmetric=True`.

    With clamped entries the proposal must leave them alone; that is checked.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> def grow(x, generator):  # a log-normal walk on positive numbers
    ...     return x * torch.exp(0.5 * torch.randn(x.shape, generator=generator))
    >>> def log_q(to, origin):
    ...     return (-to.log() - 2 * (to.log() - origin.log()) ** 2).sum(-1)
    >>> target = gb.as_energy(lambda x: x.sum(-1), gb.domains.NonNegative(1))
    >>> trace = gb.sample(target, Metropolis(grow, log_q), torch.ones(8, 1), steps=10, generator=g)
    """

    propose: Callable[[Tensor, torch.Generator], Tensor]
    log_density: Callable[[Tensor, Tensor], Tensor] | None = None
    symmetric: bool = False
    domains: ClassVar[tuple[type[Domain], ...]] = (Domain,)
    draws_in_steps: ClassVar[str] = "Metropolis calls your proposal with a generator while it runs"

    def __post_init__(self) -> None:
        if not callable(self.propose):
            raise ArgumentError(
                f"Metropolis(propose={self.propose!r}): propose must be a function (x, generator) -> x'"
            )
        if self.log_density is None and not self.symmetric:
            raise ArgumentError(
                "Metropolis needs log_density(to, origin) for the Hastings correction; "
                "only if q(to|origin) = q(origin|to) leave it out and say symmetric=True"
            )

    def init(self, energy: Energy, x: Tensor, clamp: Tensor | None = None) -> WalkState:
        with torch.no_grad():
            return WalkState(x, energy(x), clamp)

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> DrawInputs:
        return DrawInputs([generator] * steps, _thresholds(x, steps, generator))

    def step(self, energy: Energy, state: WalkState, inputs: DrawInputs) -> tuple[WalkState, MetropolisInfo]:
        x, e, clamp = state
        new = self.propose(x, inputs.draw)
        if new.shape != x.shape:
            raise ShapeError(
                f"propose returned shape {tuple(new.shape)} for chains of shape {tuple(x.shape)}; they must agree"
            )
        if clamp is not None and not bool(((new == x) | ~clamp).all()):
            raise ArgumentError("propose moved a clamped entry; return x unchanged there")
        inside = energy.domain.contains(new).flatten(1).all(1)
        e_new = torch.where(inside, energy(where_chain(inside, new, x)), torch.inf)
        log_ratio = e - e_new
        if self.log_density is not None:
            correction = self.log_density(x, new) - self.log_density(new, x)
            if correction.shape != e.shape:
                raise ShapeError(
                    f"log_density returned shape {tuple(correction.shape)}, expected ({len(x)},): one number a chain"
                )
            log_ratio = torch.where(inside, log_ratio + correction, -torch.inf)
        return accept(state, WalkState(new, e_new, clamp), log_ratio, inputs.threshold)
