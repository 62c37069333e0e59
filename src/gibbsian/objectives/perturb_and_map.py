"""Learning by perturbation and maximization."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gibbsian.capabilities import PairwiseModel
from gibbsian.domains import Binary, Categorical, Discrete, Spin
from gibbsian.errors import CapabilityError, check_choice, hold_counts
from gibbsian.objectives.base import Batch, Loss, Objective, finish, observed
from gibbsian.objectives.neighbors import unit_count
from gibbsian.partition.perturb import attractive_flips, gumbels, max_flow
from gibbsian.random import require_generator

LARGEST = 1 << 20  # states that are enumerated


@dataclass(frozen=True)
class PerturbAndMAP(Objective):
    """E_data[E] + E_γ max_x[-E(x) + Σᵢ γᵢ(xᵢ)], γ one zero-mean Gumbel number for every unit and value.

    The second term bounds log Z from above, so the loss bounds the negative log-likelihood; its gradient
    E_data[∇E] - E_γ[∇E(x̂)] compares the data with perturbed maxima x̂ instead of samples. Exact for
    independent units. For models that are easy to maximize and hard to sample: strongly attractive machines.

    Reference: Papandreou & Yuille 2011; Hazan & Jaakkola 2012.

    Args:
        samples: perturbations per step.
        solver: "enumerate" (at most 2²⁰ states) or "max_flow" (machines without hidden units whose weights are
            attractive up to flips of units); "auto" takes the first that fits. There is no inexact one: without
            the maximum there is no bound.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> machine = gb.models.BoltzmannMachine(5)
    >>> PerturbAndMAP()(machine, torch.ones(10, 5), (), g).value.backward()
    """

    needs_energy: ClassVar[bool] = True
    one_law: ClassVar[str] = "looks for the most likely states of one law"

    samples: int = 32
    solver: str = "auto"

    def __post_init__(self) -> None:
        hold_counts(self, "samples")
        check_choice(self, "solver", self.solver, ("auto", "enumerate", "max_flow"))

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        if not isinstance(energy.domain, Binary | Spin | Categorical):
            raise CapabilityError(
                f"perturb-and-MAP is for discrete units, this energy lives on {energy.domain}; use another objective"
            )
        self.method(energy)

    def method(self, energy: Any) -> str:
        """The solver to use; an error where none is exact."""
        domain: Discrete = energy.domain
        small = domain.log_size <= math.log(LARGEST) + 1e-9
        if small and self.solver != "max_flow":
            return "enumerate"
        pairs = isinstance(energy, PairwiseModel) and isinstance(domain, Binary | Spin)
        if self.solver != "enumerate" and pairs and energy.pairwise().units == domain.numel:  # no hidden units
            return "max_flow"
        raise CapabilityError(
            f"the maximum of a perturbed {type(energy).__name__} over {domain} is out of reach: enumeration takes "
            "at most 2^20 states and max_flow a machine with pairwise() and no hidden units, such as models.Ising; train "
            "with PersistentContrastiveDivergence or PseudoLikelihood"
        )

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        x, domain = observed(batch), energy.domain
        require_generator(generator, x.device)
        values = domain.classes if isinstance(domain, Categorical) else 2
        noise = gumbels((self.samples, unit_count(domain), values), generator).to(x.dtype)
        with torch.no_grad():
            best = _enumerated(energy, noise, x) if self.method(energy) == "enumerate" else _by_flow(energy, noise, x)
        low, high = energy(x).mean(), energy(best).mean()
        bound = _perturbation(domain, best, noise).mean() - high
        metrics = {"energy_data": low, "energy_samples": high, "gap": low - high, "log_z_bound": bound}
        return finish(self, low + bound, state, metrics)


def _perturbation(domain: Discrete, x: Tensor, noise: Tensor) -> Tensor:
    """Σᵢ γᵢ(xᵢ), row k of x under row k of the noise `(samples, units, values)`."""
    if isinstance(domain, Categorical):
        return (x.flatten(1) * noise.flatten(1)).sum(1)
    return torch.where(x.flatten(1) == 1, noise[..., 1], noise[..., 0]).sum(1)


def _enumerated(energy: Any, noise: Tensor, like: Tensor) -> Tensor:
    """The maximum under every perturbation, in one pass over the states."""
    domain: Discrete = energy.domain
    samples = len(noise)
    best = like.new_full((samples,), -math.inf)
    states = like.new_zeros(samples, *domain.shape)
    for x in domain.chunks(1 << 14, dtype=like.dtype, device=like.device):
        if isinstance(domain, Categorical):
            shift = x.flatten(1) @ noise.flatten(1).T
        else:
            shift = (x.flatten(1) == 1).to(x) @ (noise[..., 1] - noise[..., 0]).T + noise[..., 0].sum(1)
        value, index = (shift - energy(x)[:, None]).max(0)
        better = value > best
        best = torch.where(better, value, best)
        states[better] = x[index[better]]
    return states


def _by_flow(energy: Any, noise: Tensor, like: Tensor) -> Tensor:
    """The maximum under every perturbation by one minimum cut each."""
    graph = energy.pairwise()
    flips = attractive_flips(graph)
    if flips is None:
        raise CapabilityError(
            "the weights are not attractive (some cycle has an odd number of negative ones), so a minimum cut is "
            "not the maximum; use solver='enumerate' for small machines, or another objective"
        )
    bits = max_flow(graph, flips, (noise[..., 1] - noise[..., 0]).double()).states.to(like)
    low = energy.domain.low
    return (low + (1 - low) * bits).reshape(len(noise), *energy.domain.shape)
