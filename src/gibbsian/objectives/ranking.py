"""Ranking: tell the datum from candidates, with no partition function and no sampler; made for conditional energies."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from gibbsian.domains import Categorical, Discrete, Domain, Real
from gibbsian.errors import ArgumentError, DomainError, check_choice, check_count
from gibbsian.objectives.base import Batch, Loss, Objective, finish, observed, observed_with
from gibbsian.objectives.noise import NAMED, FittedNoise, FlowNoise, easy_noise


@dataclass(frozen=True)
class Proposal(ABC):
    """Candidates around each datum, drawn from a symmetric law q(y' | y) = q(y | y')."""

    @abstractmethod
    def draw(self, domain: Domain, y: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Candidates `(count, batch, *event)`."""

    @abstractmethod
    def log_prob(self, domain: Domain, candidates: Tensor, y: Tensor) -> Tensor:
        """log q(y' | y), `(count, batch)`."""

    @abstractmethod
    def check(self, domain: Domain) -> None:
        """Refuse a domain that it does not fit."""


@dataclass(frozen=True)
class Around(Proposal):
    """Real candidates around the datum: q(y' | y) = (1/L) Σ_l N(y'; y, σ_l² I).

    Args:
        sigmas: a few widths, from the noise of the outputs to their whole spread, such as (0.1, 1.0).
    """

    sigmas: tuple[float, ...] = (0.1, 0.3, 1.0)

    def __post_init__(self) -> None:
        sigmas = tuple(float(s) for s in self.sigmas)
        if not sigmas or not all(math.isfinite(s) and s > 0 for s in sigmas):
            raise ArgumentError(f"Around(sigmas={self.sigmas}): give positive widths, such as (0.1, 1.0)")
        object.__setattr__(self, "sigmas", sigmas)

    def check(self, domain: Domain) -> None:
        if not isinstance(domain, Real):
            raise DomainError(f"Around draws real candidates, y lives on {domain}; use Flips, or noise='uniform'")

    def draw(self, domain: Domain, y: Tensor, count: int, generator: torch.Generator) -> Tensor:
        widths = torch.stack([y.new_full((), s) for s in self.sigmas])  # filled on the device: a graph can hold it
        which = torch.randint(len(widths), (count, len(y)), generator=generator, device=y.device)
        z = torch.randn(count, *y.shape, generator=generator, dtype=y.dtype, device=y.device)
        return y + widths[which].reshape(count, len(y), *[1] * (y.dim() - 1)) * z

    def log_prob(self, domain: Domain, candidates: Tensor, y: Tensor) -> Tensor:
        square = (candidates - y).flatten(2).square().sum(2)
        d = y[0].numel()
        each = [-0.5 * square / s**2 - d * math.log(s) - 0.5 * d * math.log(2 * math.pi) for s in self.sigmas]
        return torch.logsumexp(torch.stack(each), 0) - math.log(len(each))


@dataclass(frozen=True)
class Flips(Proposal):
    """Discrete candidates: every unit changes with probability `rate`, to each other value alike."""

    rate: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ArgumentError(f"Flips(rate={self.rate}): a probability strictly between 0 and 1")

    def check(self, domain: Domain) -> None:
        if not isinstance(domain, Discrete):
            raise DomainError(f"Flips changes discrete units, y lives on {domain}; use Around")

    def draw(self, domain: Domain, y: Tensor, count: int, generator: torch.Generator) -> Tensor:
        if isinstance(domain, Categorical):
            label = y.argmax(-1).expand(count, *y.shape[:-1])
            change = torch.rand(label.shape, generator=generator, device=y.device) < self.rate
            other = torch.randint(1, domain.classes, label.shape, generator=generator, device=y.device)
            return domain.one_hot(torch.where(change, (label + other) % domain.classes, label), dtype=y.dtype)
        change = torch.rand(count, *y.shape, generator=generator, device=y.device) < self.rate
        return torch.where(change, 1 + domain.low - y, y)  # type: ignore[attr-defined]

    def log_prob(self, domain: Domain, candidates: Tensor, y: Tensor) -> Tensor:
        differs = candidates != y
        others = 1
        if isinstance(domain, Categorical):
            differs, others = differs.any(-1), domain.classes - 1
        differs = differs.flatten(2)
        changed = differs.sum(2).to(y.dtype)
        stay = math.log(1 - self.rate) * (differs.shape[2] - changed)
        return stay + changed * math.log(self.rate / others)


@dataclass(frozen=True)
class RankingContrastive(Objective):
    """Pick the datum out of M candidates: no Z, so with `Conditional` no Z(x), and no sampler.

        ranking:  -log [ e^{-E(y₀)}/q(y₀) / Σ_{m=0..M} e^{-E(y_m)}/q(y_m) ]
        pairs:    mean_m ζ(E(y₀) - E(y_m)),   ζ the softplus; q symmetric

    Ranking with noise that does not depend on the datum is consistent for every M; with candidates around the
    datum (`Around`, `Flips`) it is the likelihood with Z estimated by importance sampling: exact as M grows,
    and the usual choice for regression. Pairs are consistent for every M with candidates around the datum.
    The metric `accuracy` is how often the datum ranks first.

    Reference: Ma & Collins 2018 (ranking); Gustafsson, Danelljan, Bhat & Schön 2020 (candidates around the
    datum); Ceylan & Gutmann 2018 (pairs).

    Args:
        noise: `Around(...)`, `Flips(...)`, or noise fitted to the outputs, as for `NoiseContrastive`: "gaussian",
            "mixture", "uniform", "marginals", or one of these with options.
        candidates: M.
        kind: "ranking" or "pairs".

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> model = gb.energies.ConditionalEnergy(gb.energies.PairMLP(3, 1), gb.domains.Real(1))
    >>> objective = gb.objectives.Conditional(RankingContrastive(Around((0.1, 1.0)), candidates=16))
    >>> batch = torch.zeros(10, 3), torch.ones(10, 1)
    >>> objective(model, batch, objective.init(model, batch, g), g).value.backward()
    """

    needs_energy: ClassVar[bool] = True

    noise: str | Proposal | FittedNoise = "gaussian"
    candidates: int = 32
    kind: str = "ranking"

    def __post_init__(self) -> None:
        check_count(self, "candidates", self.candidates)
        check_choice(self, "kind", self.kind, ("ranking", "pairs"))
        if isinstance(self.noise, str):
            check_choice(self, "noise", self.noise, tuple(NAMED))
        elif not isinstance(self.noise, Proposal | FittedNoise) or (
            isinstance(self.noise, FlowNoise) and self.noise.train
        ):
            raise ArgumentError(
                f"RankingContrastive(noise={self.noise!r}): give Around(...), Flips(...), one of "
                f"{', '.join(map(repr, NAMED))}, or one of these with options (but no flow trained along)"
            )
        if self.kind == "pairs" and not isinstance(self.noise, Proposal):
            raise ArgumentError(
                "RankingContrastive(kind='pairs') needs symmetric candidates: Around(...) or Flips(...)"
            )

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        if isinstance(self.noise, Proposal):
            self.noise.check(energy.domain)

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> tuple[nn.Module, ...]:
        self.check(energy, batch)
        if isinstance(self.noise, Proposal):
            return ()
        kind = NAMED[self.noise] if isinstance(self.noise, str) else self.noise
        return (kind.fit(energy.domain, observed(batch), generator).requires_grad_(False),)

    def signs(self, numbers: dict[str, float]) -> dict[str, str]:
        return easy_noise(numbers)

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        y = observed_with(batch, generator)
        n, m, domain = len(y), self.candidates, energy.domain
        with torch.no_grad():
            if isinstance(self.noise, Proposal):
                every = torch.cat([y[None], self.noise.draw(domain, y, m, generator)])
                log_q = self.noise.log_prob(domain, every, y)
            else:
                (noise,) = state
                drawn = noise.sample(m * n, generator=generator).to(y).reshape(m, *y.shape)
                every = torch.cat([y[None], drawn])
                log_q = noise.log_prob(every.flatten(0, 1)).reshape(m + 1, n)
        energies = energy(every.flatten(0, 1)).reshape(m + 1, n)  # rows fastest, as inputs repeat
        if self.kind == "pairs":
            value = softplus(energies[0] - energies[1:]).mean()
            first = energies[0] <= energies[1:].amin(0)
        else:
            score = -energies - log_q
            value = (torch.logsumexp(score, 0) - score[0]).mean()
            first = score[0] >= score[1:].amax(0)
        metrics = {
            "accuracy": first.to(y.dtype).mean(),
            "energy_data": energies[0].mean(),
            "energy_noise": energies[1:].mean(),
        }
        return finish(self, value, state, metrics)
