"""Gradient-informed kernels for discrete states: Gibbs-with-gradients and discrete Langevin.

Both replace the change of -E under a move by its first-order estimate d from the score s = -∇E:

    dᵢ = -(2xᵢ - 1)sᵢ for {0, 1},   -2xᵢsᵢ for ±1,   dᵢⱼ = sᵢⱼ - xᵢ·sᵢ for one-hot units
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gibbsian.domains import Binary, Categorical, Domain, Spin
from gibbsian.energy import Energy
from gibbsian.kernels.base import (
    ChainState,
    Info,
    Kernel,
    accept,
    event_view,
    positive,
    schedule_values,
    start_state,
    where_state,
)
from gibbsian.kernels.gibbs import flipped, movable, site_count, site_view
from gibbsian.random import uniforms
from gibbsian.units import pick


def gains(domain: Domain, x: Tensor, score: Tensor) -> Tensor:
    """d: the first-order change of -E for every move, `(chains, sites)` or `(chains, sites, classes)`."""
    x, score = site_view(x, domain), site_view(score, domain)
    if isinstance(domain, Categorical):
        return score - (x * score).sum(-1, keepdim=True)
    return -2 * x * score if isinstance(domain, Spin) else (1 - 2 * x) * score


class Informed(Kernel):
    """What both share: their domains, and a state that holds the score."""

    domains: ClassVar[tuple[type[Domain], ...]] = (Binary, Spin, Categorical)
    one_proposal: ClassVar[bool] = True

    def init(self, energy: Energy, x: Tensor, clamp: Tensor | None = None) -> ChainState:
        return start_state(energy, x, clamp)


class PickInputs(NamedTuple):
    """A uniform that picks the move and the log of one for the acceptance."""

    u: Tensor
    threshold: Tensor


@dataclass(frozen=True)
class GibbsWithGradients(Informed):
    """Gibbs-with-gradients: one coordinate is picked from softmax(d/2), changed, and accepted or not.

    Exact for any differentiable energy over {0, 1}, ±1 or categorical units; each step costs one gradient
    and changes one unit, where it is most worth it. For weakly coupled units `DiscreteLangevin` moves many
    at once; for models with exact block conditionals `Gibbs` is better than both.

    Reference: Grathwohl et al. 2021.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> machine = gb.models.BoltzmannMachine(5)
    >>> trace = gb.sample(machine, GibbsWithGradients(), torch.zeros(8, 5), steps=20, generator=g)
    >>> bool(trace.acceptance > 0.9)
    True
    """

    def log_moves(self, domain: Domain, state: ChainState) -> tuple[Tensor, Tensor | None]:
        """log q of every move, `(chains, moves)`, and which chains have any; the present class is no move."""
        d = gains(domain, state.x, state.score) / 2
        allowed = movable(domain, state.x, state.clamp)
        if isinstance(domain, Categorical):
            other = site_view(state.x, domain) != 1
            allowed = other if allowed is None else allowed[..., None] & other
        d = d.flatten(1)
        if allowed is None:
            return torch.log_softmax(d, 1), None
        some = allowed.flatten(1).any(1)
        d = d.masked_fill(~allowed.flatten(1) & some[:, None], -torch.inf)
        return torch.log_softmax(d, 1), some

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> PickInputs:
        u = uniforms(steps, 2 * len(x), generator, dtype=x.dtype, device=x.device).unflatten(1, (2, -1))
        return PickInputs(u[:, 0], u[:, 1].log())

    def step(self, energy: Energy, state: ChainState, inputs: PickInputs) -> tuple[ChainState, Any]:
        domain, x = energy.domain, state.x
        log_q, some = self.log_moves(domain, state)
        move = pick(log_q.exp(), inputs.u)[:, None]
        units = site_view(x, domain)
        if isinstance(domain, Categorical):
            site = (move // domain.classes)[..., None].expand(-1, -1, domain.classes)
            old = units.gather(1, site)
            new = F.one_hot(move % domain.classes, domain.classes).to(x.dtype)
            proposal = units.scatter(1, site, new)
            back = move - move % domain.classes + old.argmax(-1)
        else:
            proposal = units.scatter(1, move, flipped(domain, units.gather(1, move)))
            back = move
        new_state = start_state(energy, proposal.reshape(x.shape), state.clamp)
        log_back, _ = self.log_moves(domain, new_state)
        correction = (log_back.gather(1, back) - log_q.gather(1, move)).squeeze(1)
        threshold = inputs.threshold if some is None else torch.where(some, inputs.threshold, torch.inf)
        return accept(state, new_state, state.energy - new_state.energy + correction, threshold)


class FlipInputs(NamedTuple):
    """One uniform a site, the log of one for the acceptance, and the step size."""

    u: Tensor
    threshold: Tensor
    step_size: Tensor


@dataclass(frozen=True)
class DiscreteLangevin(Informed):
    """Discrete Langevin: all units at once propose to change, independently, then one Metropolis test.

        q(x'|x) ∝ Πᵢ exp(½ dᵢ - ‖Δᵢ‖²/2α):  flips with probability σ(dᵢ/2 - 1/2α) for {0, 1}, σ(dᵢ/2 - 2/α) for ±1,
        classes from softmaxⱼ(dᵢⱼ/2 - 1[j ≠ present]/α)

    Exact for any differentiable energy when adjusted; the step size is tuned for an acceptance around one half.
    Without the correction (`adjusted=False`) it is biased, the more the larger the step.

    Reference: Zhang, Liu & Liu 2022.

    Args:
        step_size: α, a number, a schedule (one value a step) or a `(1, chains)` tensor.
        adjusted: whether proposals are accepted or refused by Metropolis-Hastings.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> machine = gb.models.BoltzmannMachine(5)
    >>> kernel = DiscreteLangevin(step_size=0.5)
    >>> trace = gb.sample(machine, kernel, torch.zeros(8, 5), steps=20, generator=g)
    """

    step_size: float | Tensor
    adjusted: bool = field(default=True, kw_only=True)  # type: ignore[misc]
    tuned: ClassVar[str] = "step_size"
    goal: ClassVar[float | None] = 0.5

    def __post_init__(self) -> None:
        positive("step_size", self.step_size, "DiscreteLangevin")

    def logits(self, domain: Domain, state: ChainState, step_size: Tensor) -> Tensor:
        """Log-odds of flipping `(chains, sites)`, or log q of every class `(chains, sites, classes)`."""
        d = gains(domain, state.x, state.score) / 2
        step = event_view(step_size, d)
        if isinstance(domain, Categorical):
            return torch.log_softmax(d - (1 - site_view(state.x, domain)) / step, -1)
        return d - (2.0 if isinstance(domain, Spin) else 0.5) / step

    def log_density(self, domain: Domain, logits: Tensor, origin: Tensor, to: Tensor, clamp: Tensor | None) -> Tensor:
        """log q(to | origin), `(chains,)`: clamped sites stay with probability one."""
        if isinstance(domain, Categorical):
            per_site = (logits * site_view(to, domain)).sum(-1)
        else:
            flipped = site_view(origin, domain) != site_view(to, domain)
            per_site = torch.where(flipped, F.logsigmoid(logits), F.logsigmoid(-logits))
        allowed = movable(domain, origin, clamp)
        return (per_site if allowed is None else torch.where(allowed, per_site, 0.0)).sum(1)

    def propose(self, domain: Domain, logits: Tensor, x: Tensor, u: Tensor, clamp: Tensor | None) -> Tensor:
        """The proposed state from one uniform a site."""
        units = site_view(x, domain)
        if isinstance(domain, Categorical):
            new = F.one_hot(pick(logits.exp(), u), domain.classes).to(x.dtype)
        else:
            new = torch.where(u < torch.sigmoid(logits), flipped(domain, units), units)
        new = new.reshape(x.shape)
        return new if clamp is None else torch.where(clamp, x, new)

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> FlipInputs:
        sites = site_count(energy.domain)
        u = uniforms(steps, len(x) * (sites + 1), generator, dtype=x.dtype, device=x.device)
        flips = u[:, : len(x) * sites].reshape(steps, len(x), sites)
        sizes = schedule_values(self.step_size, steps, start, x, "step_size")
        return FlipInputs(flips, u[:, len(x) * sites :].log(), sizes)

    def step(self, energy: Energy, state: ChainState, inputs: FlipInputs) -> tuple[ChainState, Any]:
        domain, x, clamp = energy.domain, state.x, state.clamp
        logits = self.logits(domain, state, inputs.step_size)
        proposal = self.propose(domain, logits, x, inputs.u, clamp)
        new = start_state(energy, proposal, clamp)
        if not self.adjusted:
            lost = ~torch.isfinite(new.energy)
            return where_state(lost, state, new), Info(torch.full_like(new.energy, torch.nan), lost)
        back = self.log_density(domain, self.logits(domain, new, inputs.step_size), proposal, x, clamp)
        correction = back - self.log_density(domain, logits, x, proposal, clamp)
        return accept(state, new, state.energy - new.energy + correction, inputs.threshold)
