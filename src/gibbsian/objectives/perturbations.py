"""What is done to a datum to get something to compare it with: diffusion, flips, steps to neighbors, masks.

A perturbation turns x into y by q(y | x), and gives negatives x' ~ q(y | x')/Σ q(y | ·): what could have been there instead.
For a symmetric q that is q applied to y once more.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gibbsian.domains import Binary, Bounded, Box, Categorical, Discrete, Domain, Joined, Real, Spin
from gibbsian.errors import ArgumentError, DomainError, check_choice, check_number, hold_counts
from gibbsian.kernels.integrators import reflect

KINDS = ("uniform", "cyclic", "ordinal")


@dataclass(frozen=True)
class Perturbation(ABC):
    """Something that is done to data, and can be undone in many ways."""

    @abstractmethod
    def negatives(self, domain: Domain, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Alternatives to x `(count, batch, *event)`: x is perturbed *once*, and undone `count` times."""

    @abstractmethod
    def check(self, domain: Domain) -> None:
        """Refuse a domain that it does not fit."""


@dataclass(frozen=True)
class Symmetric(Perturbation):
    """A law q(y' | y) = q(y | y')."""

    @abstractmethod
    def draw(self, domain: Domain, y: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Draws from q(· | y), `(count, batch, *event)`."""

    def negatives(self, domain: Domain, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        (y,) = self.draw(domain, x, 1, generator)
        return self.draw(domain, y, count, generator)


@dataclass(frozen=True)
class Proposal(Symmetric):
    """A symmetric law whose density is known: candidates around each datum."""

    @abstractmethod
    def log_prob(self, domain: Domain, candidates: Tensor, y: Tensor) -> Tensor:
        """log q(y' | y), `(count, batch)`."""


def _fitting(domain: Domain) -> str:
    """What draws candidates on a domain."""
    if isinstance(domain, Real):
        return "Around"
    if isinstance(domain, Binary | Spin | Categorical):
        return "Flips"
    several = "EnergyDiscrepancy(t), which takes rows of all kinds"
    return f"noise='uniform', or {several}" if isinstance(domain, Box | Discrete) else several


@dataclass(frozen=True)
class Around(Proposal):
    """Real candidates around the datum: q(y' | y) = (1/L) Σ_l N(y'; y, σ_l² I).

    Args:
        sigmas: a few widths, from the noise of the outputs to their whole spread, such as (0.1, 1.0).
    """

    sigmas: tuple[float, ...] = (0.1, 0.3, 1.0)

    def __post_init__(self) -> None:
        sigmas = tuple(self.sigmas) if isinstance(self.sigmas, Iterable) and not isinstance(self.sigmas, str) else ()
        if not sigmas:
            raise ArgumentError(f"Around(sigmas={self.sigmas!r}): give positive widths, such as (0.1, 1.0)")
        for i, sigma in enumerate(sigmas):
            check_number(self, f"sigmas[{i}]", sigma, open_low=True)
        object.__setattr__(self, "sigmas", tuple(map(float, sigmas)))

    def check(self, domain: Domain) -> None:
        if not isinstance(domain, Real):
            raise DomainError(f"Around draws real candidates, y lives on {domain}; use {_fitting(domain)}")

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
        check_number(self, "rate", self.rate, 0.0, 1.0, open_low=True, open_high=True)

    def check(self, domain: Domain) -> None:
        if not isinstance(domain, Binary | Spin | Categorical):
            raise DomainError(f"Flips changes discrete units of one kind, y lives on {domain}; use {_fitting(domain)}")

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


def _need_units(perturbation: Perturbation, domain: Domain) -> None:
    if not isinstance(domain, Binary | Spin | Categorical):
        other = "objectives.Heat(t)" if isinstance(domain, Real | Bounded | Joined) else "another objective"
        raise DomainError(
            f"{type(perturbation).__name__} changes discrete units of one kind, x lives on {domain}; use {other}"
        )


def _flipped(domain: Domain, y: Tensor, change: Tensor) -> Tensor:
    return torch.where(change, 1 + domain.low - y, y)  # type: ignore[attr-defined]


def heat_matrix(kind: str, classes: int, t: float, like: Tensor) -> Tensor:
    """exp(tΔ) `(classes, classes)`, a symmetric law of jumps between K states, from the eigenvectors of Δ.

    "uniform": the state is forgotten at rate 1, Δ = 11ᵀ/K - I; "cyclic" and "ordinal": steps of ±1 at rate 1 each, round a
    circle, or along a line with walls.

    >>> heat_matrix("ordinal", 2, 0.5, torch.zeros(()))  # ½(1 ± e^{-1})
    tensor([[0.6839, 0.3161],
            [0.3161, 0.6839]])
    """
    k = torch.arange(classes, device=like.device, dtype=torch.float64)
    if kind == "uniform":
        stay = math.exp(-t)
        p = stay * torch.eye(classes, device=like.device, dtype=torch.float64) + (1 - stay) / classes
    elif kind == "cyclic":
        waves = torch.cos(2 * math.pi / classes * torch.outer(k, k))
        by_distance = waves @ torch.exp(-2 * t * (1 - waves[1])) / classes
        p = by_distance[(k[:, None] - k).abs().long()]
    else:
        vectors = torch.cos(math.pi / classes * torch.outer(k, k + 0.5)) * math.sqrt(2 / classes)
        vectors[0] /= math.sqrt(2)
        p = vectors.T @ (torch.exp(-2 * t * (1 - torch.cos(math.pi / classes * k)))[:, None] * vectors)
    return p.clamp(min=0).to(like.dtype)


@dataclass(frozen=True)
class Heat(Symmetric):
    """Diffusion for a time t, whatever x is: the heat kernel of its domain.

    On R^d Gaussian noise of variance t, reflected at walls where there are any. Bits and spins flip with probability
    ε = ½(1 - e^{-t}); units of K states jump by `heat_matrix`. Rows of several kinds (`domains.Joined`) diffuse part by part.

    Reference: Schröder et al. 2023, 2024.

    Args:
        t: the time; one for every part of a joined domain if wanted, such as (0.0025, 1.0).
        kind: how the states of a categorical unit lie to each other: "uniform" (all alike), "cyclic" (hours of a day) or
            "ordinal" (steps of a scale). The last two need t of the order of K².

    >>> import gibbsian as gb
    >>> Heat(0.5).draw(gb.domains.Real(2), torch.zeros(3, 2), 4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 2])
    """

    t: float | Sequence[float] = 1.0
    kind: str = "uniform"

    def __post_init__(self) -> None:
        several = isinstance(self.t, Sequence) and not isinstance(self.t, str)
        times = tuple(self.t) if several else (self.t,)  # type: ignore[arg-type]
        for t in times:
            check_number(self, "t", t, open_low=True)
        object.__setattr__(self, "t", tuple(map(float, times)) if several else float(self.t))  # type: ignore[arg-type]
        check_choice(self, "kind", self.kind, KINDS)

    def _times(self, domain: Domain) -> list[float]:
        """One for every part."""
        parts = len(domain.parts) if isinstance(domain, Joined) else 1
        times = list(self.t) if isinstance(self.t, Sequence) else [self.t] * parts
        if len(times) != parts:
            raise ArgumentError(f"Heat(t={self.t}): {domain} has {parts} part{'s' * (parts > 1)}; give one t for each")
        return times

    def check(self, domain: Domain) -> None:
        self._times(domain)
        for part in domain.parts if isinstance(domain, Joined) else (domain,):
            if not isinstance(part, Real | Bounded | Binary | Spin | Categorical):
                raise DomainError(
                    f"there is no heat kernel here for {part}; use a sampler, such as ContrastiveDivergence"
                )

    def draw(self, domain: Domain, y: Tensor, count: int, generator: torch.Generator) -> Tensor:
        times = self._times(domain)
        if not isinstance(domain, Joined):
            return self._diffused(domain, y, count, times[0], generator)
        pieces = zip(domain.parts, domain.split(y), times, strict=True)
        return torch.cat([self._diffused(p, piece, count, t, generator).flatten(2) for p, piece, t in pieces], 2)

    def _diffused(self, domain: Domain, y: Tensor, count: int, t: float, generator: torch.Generator) -> Tensor:
        wide = torch.promote_types(y.dtype, torch.float32)  # half precision would round chances to multiples of 1/256
        how: dict[str, Any] = {"generator": generator, "dtype": wide, "device": y.device}
        if isinstance(domain, Binary | Spin):
            return _flipped(domain, y, torch.rand(count, *y.shape, **how) < -0.5 * math.expm1(-t))
        if isinstance(domain, Categorical):
            upto = heat_matrix(self.kind, domain.classes, t, y.new_empty((), dtype=wide)).cumsum(-1)[..., :-1]
            u = torch.rand(count, *y.shape[:-1], 1, **how)
            return domain.one_hot((u > upto[y.argmax(-1)]).sum(-1), dtype=y.dtype)
        moved = y + math.sqrt(t) * torch.randn(count, *y.shape, **how | {"dtype": y.dtype})
        return reflect(moved, moved, domain)[0] if isinstance(domain, Bounded) else moved


@dataclass(frozen=True)
class Neighbors(Symmetric):
    """One unit, drawn by lot, takes another value; with probability `lazy` nothing happens.

    Few energies differ much, so gradients are quiet, in any number of units. Without the lazy step there and back is an even number of
    flips: the states fall into two classes that are never compared, and their ratio of mass is not learned.

    Reference: Schröder et al. 2023 (grid neighborhoods).

    Args:
        lazy: probability of staying.
        kind: "uniform" for any other value; "cyclic" or "ordinal" for the next or the last one (at an end of a line half of the steps stay).

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> Neighbors(lazy=0.0).draw(gb.domains.Binary(9), torch.zeros(1, 9), 4, g).sum(-1).flatten()
    tensor([1., 1., 1., 1.])
    """

    lazy: float = 0.5
    kind: str = "uniform"

    def __post_init__(self) -> None:
        check_number(self, "lazy", self.lazy, 0.0, 1.0, open_high=True)
        check_choice(self, "kind", self.kind, KINDS)

    def check(self, domain: Domain) -> None:
        _need_units(self, domain)

    def draw(self, domain: Domain, y: Tensor, count: int, generator: torch.Generator) -> Tensor:
        how: dict[str, Any] = {"generator": generator, "device": y.device}
        units = domain.units if isinstance(domain, Categorical) else domain.numel
        unit = torch.randint(units, (count, len(y), 1), **how)
        moves = torch.rand(count, len(y), 1, **how) >= self.lazy
        chosen = (torch.arange(units, device=y.device) == unit) & moves
        if not isinstance(domain, Categorical):
            return _flipped(domain, y, chosen.reshape(count, *y.shape))
        label, k = y.argmax(-1).flatten(1), domain.classes
        if self.kind == "uniform":
            to = (label + torch.randint(1, k, (count, len(y), 1), **how)) % k
        else:
            step = 2 * torch.randint(2, (count, len(y), 1), **how) - 1
            to = (label + step) % k if self.kind == "cyclic" else (label + step).clamp(0, k - 1)
        return domain.one_hot(torch.where(chosen, to, label), dtype=y.dtype).reshape(count, *y.shape)


@dataclass(frozen=True)
class Masked(Perturbation):
    """Some units, drawn by lot, are hidden and filled in again at random.

    One site makes energy discrepancy the pseudo-likelihood, all sites the likelihood.

    Reference: Schröder et al. 2024.

    Args:
        sites: units that are hidden at a time.

    >>> import gibbsian as gb
    >>> filled = Masked().negatives(gb.domains.Spin(9), torch.ones(1, 9), 100, torch.Generator().manual_seed(0))
    >>> (filled < 0).any(0).sum()  # always the same site
    tensor(1)
    """

    sites: int = 1

    def __post_init__(self) -> None:
        hold_counts(self, "sites")

    def check(self, domain: Domain) -> None:
        _need_units(self, domain)
        units = domain.units if isinstance(domain, Categorical) else domain.numel
        if self.sites > units:
            raise ArgumentError(f"Masked(sites={self.sites}): {domain} has {units} units")

    def negatives(self, domain: Domain, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        groups = x.flatten(1, -2) if isinstance(domain, Categorical) else x.flatten(1).unsqueeze(-1)
        chance = torch.rand(groups.shape[:2], generator=generator, device=x.device)
        hidden = chance.argsort(1).argsort(1).unsqueeze(-1) < self.sites
        fresh = domain.sample(count * len(x), generator=generator, dtype=x.dtype).reshape(count, *groups.shape)
        return torch.where(hidden, fresh, groups).reshape(count, *x.shape)
