"""Adversarial training: the energy against a sampler that follows it."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import nn

from gibbsian.derivatives.known import frozen
from gibbsian.domains import Domain, Real
from gibbsian.errors import ArgumentError, check_number
from gibbsian.objectives.base import Batch, Loss, Step, SteppedObjective, finish, observed_with
from gibbsian.objectives.chains import energy_gap
from gibbsian.objectives.samplers import FlowSampler, ImplicitSampler, SamplerKind

NAMED: dict[str, SamplerKind] = {"flow": FlowSampler(), "implicit": ImplicitSampler()}


class AdversarialState(NamedTuple):
    """The sampler q; `sampler.sample(n, generator=)` draws from it."""

    sampler: nn.Module


@dataclass(frozen=True)
class Adversarial(SteppedObjective):
    """θ minimizes E_data[E] - E_q[E] while φ minimizes E_q[E] - H(q): q stands in for the model's samples.

    For a fixed energy the second is KL(q‖p) but for log Z, so q follows p, and for q = p the first has the
    gradient of the likelihood. No Markov chain, and a fast sampler at the end; but a game, which can circle:
    give the energy a learning rate several times below the sampler's (`fit(optimizer=...)` with two parameter
    groups), or use a penalty.

    Reference: Kim & Bengio 2016; Dai et al. 2019; Grathwohl et al. 2021.

    Args:
        sampler: "flow" (exact entropy), "implicit" (any network, estimated entropy gradient), or one of these
            with options: `FlowSampler(...)`, `ImplicitSampler(...)`.
        penalty: times the mean squared energies of data and samples.
        gradient_penalty: times ½E_data‖∇E‖², which smooths the energy (and biases it).

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> data = torch.randn(50, 2, generator=g)
    >>> objective = Adversarial("flow")
    >>> loss = objective(energy, data, objective.init(energy, data, g), g)
    >>> loss.value.backward(); loss.other.backward()
    """

    needs_energy: ClassVar[bool] = True
    domains: ClassVar[tuple[type[Domain], ...]] = (Real,)
    elsewhere: ClassVar[str] = "samplers here live on R^d; train gibbsian.unconstrained(energy)"

    sampler: str | SamplerKind = "flow"
    penalty: float = 0.0
    gradient_penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.sampler not in NAMED if isinstance(self.sampler, str) else not isinstance(self.sampler, SamplerKind):
            raise ArgumentError(
                f"Adversarial(sampler={self.sampler!r}): use 'flow', 'implicit', FlowSampler(...) or "
                "ImplicitSampler(...)"
            )
        check_number(self, "penalty", self.penalty)
        check_number(self, "gradient_penalty", self.gradient_penalty)

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, penalty=max(self.penalty, penalty))

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> AdversarialState:
        self.check(energy, batch)
        x = observed_with(batch, generator)
        kind = NAMED[self.sampler] if isinstance(self.sampler, str) else self.sampler
        return AdversarialState(kind.build(energy.domain, x, generator))

    def loss(self, energy: Any, batch: Batch, state: AdversarialState, generator: torch.Generator, step: Step) -> Loss:
        x = observed_with(batch, generator)
        samples, negative_entropy, sampler_metrics = state.sampler.draw(len(x), generator)  # type: ignore[operator]
        value, metrics = energy_gap(energy, x, samples.detach(), self.penalty, watched=step.watched)
        if self.gradient_penalty:
            score = energy.score(x, create_graph=True)
            value = value + 0.5 * self.gradient_penalty * score.square().flatten(1).sum(1).mean()
        with frozen(energy):
            other = energy(samples).mean() + negative_entropy
        return finish(self, value, state, metrics | sampler_metrics, other)
