"""Noise with a density for noise-contrastive estimation: given, or fitted to the data."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from gibbsian.capabilities import Normalized, Sampleable
from gibbsian.domains import Binary, Box, Categorical, Discrete, Domain, Real, Spin
from gibbsian.energies.gaussian import Gaussian, GaussianMixture
from gibbsian.energy import Energy
from gibbsian.errors import CapabilityError, DomainError, ShapeError, check_number, hold_counts
from gibbsian.nets.layers import sizes_of
from gibbsian.objectives.flows import Flow, spread
from gibbsian.random import isolated


@dataclass(frozen=True)
class FittedNoise(ABC):
    """A kind of noise that is fitted to data when training starts."""

    @abstractmethod
    def fit(self, domain: Domain, x: Tensor, generator: torch.Generator) -> nn.Module:
        """A module with `log_prob(x)` and `sample(n, generator=)`."""


def _need(noise: FittedNoise, domain: Domain, kinds: tuple[type[Domain], ...]) -> None:
    if not isinstance(domain, kinds):
        names = " or ".join(k.__name__ for k in kinds)
        counted = isinstance(domain, Binary | Spin | Categorical)
        real = "'gaussian', 'mixture' or 'flow'" if isinstance(domain, Real) else "an energy with log_z() and sample()"
        own = "'uniform', or a noise of your own" if isinstance(domain, Box | Discrete) else real
        advice = "'marginals' or 'uniform'" if counted else own
        raise DomainError(f"{type(noise).__name__} lives on {names}, the energy on {domain}; use {advice}")


class EnergyNoise(nn.Module):
    """A normalized energy that can be drawn from, as noise: log p(x) = -E(x) - log Z; events are reshaped."""

    def __init__(self, energy: Energy, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.energy, self.shape = energy, shape

    def log_prob(self, x: Tensor) -> Tensor:
        flat = x.reshape(len(x), *self.energy.domain.shape)
        return -self.energy(flat) - self.energy.log_z().to(x.dtype)  # type: ignore[operator]

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        return self.energy.sample(n, generator=generator).reshape(n, *self.shape)  # type: ignore[operator]


class DistributionNoise(nn.Module):
    """Anything with torch's `sample(shape)` and `log_prob`, drawn from the given generator; events are reshaped."""

    def __init__(self, distribution: Any, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.distribution, self.shape = distribution, shape

    def log_prob(self, x: Tensor) -> Tensor:
        return _per_row(self.distribution.log_prob(x))

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        with isolated(generator):
            return self.distribution.sample((n,)).reshape(n, *self.shape)


def _per_row(log_p: Tensor) -> Tensor:
    return log_p.flatten(1).sum(1) if log_p.dim() > 1 else log_p


def _own_shape(distribution: Distribution) -> tuple[int, ...]:
    """Of one draw."""
    return (*distribution.batch_shape, *distribution.event_shape)


class TorchNoise(DistributionNoise):
    """A distribution of torch, -∞ beyond its support and NaN at rows that are lost. Torch itself refuses the whole batch for one
    such row, or, where its checks are off (which importing zuko does for all), answers with any number."""

    def log_prob(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), *_own_shape(self.distribution))
        support = _support(self.distribution)
        if support is None:
            return super().log_prob(x)
        flat, there = x.reshape(len(x), -1), support.check(x).reshape(len(x), -1).all(1)
        inside = flat.index_select(0, there.byte().argmax()[None])  # the first such row stands for those beyond
        try:
            log_p = super().log_prob(torch.where(there[:, None], flat, inside).reshape(x.shape))
        except ValueError:
            if bool(there.any()):
                raise
            log_p = flat.new_zeros(len(x))
        return torch.where(there, log_p, torch.where(flat.isnan().any(1), math.nan, -math.inf).to(log_p))


def _support(distribution: Distribution) -> Any:
    """Where it lives, where it says so."""
    try:
        return distribution.support
    except NotImplementedError:
        return None


def shrunk_covariance(x: Tensor) -> Tensor:
    """The covariance S of n rows of p numbers, pulled towards a multiple of the identity just enough to be safe (OAS).

        (1 - ρ) S + ρ μ I,    μ = tr S/p,    ρ = min(1, (a + μ²)/((n + 1)(a - μ²/p))),    a = tr S²/p²

    On the device of the rows: images have covariances of millions of entries, which take minutes elsewhere.

    Reference: Chen, Wiesel, Eldar & Hero 2010, as scikit-learn has it.
    """
    rows = x.detach().double()
    n, p = rows.shape
    rows = rows - rows.mean(0)
    s = rows.T @ rows / n
    mu, a = s.trace() / p, s.square().mean()
    rest = (n + 1) * (a - mu.square() / p)
    share = torch.where(rest > 0, (a + mu.square()) / rest, 1.0).clamp(max=1.0)
    eye = torch.eye(p, dtype=s.dtype, device=s.device)
    return ((1 - share) * s + share * mu * eye).to(x)


@dataclass(frozen=True)
class GaussianNoise(FittedNoise):
    """One Gaussian with the mean and the (slightly shrunk) covariance of the data.

    >>> g = torch.Generator().manual_seed(0)
    >>> noise = GaussianNoise().fit(Real(2), torch.randn(100, 2, generator=g), g)
    >>> noise.log_prob(noise.sample(3, generator=g)).shape
    torch.Size([3])
    """

    def fit(self, domain: Domain, x: Tensor, generator: torch.Generator) -> nn.Module:
        _need(self, domain, (Real,))
        flat = x.flatten(1)
        return EnergyNoise(Gaussian(flat.mean(0), shrunk_covariance(flat)), domain.shape)


@dataclass(frozen=True)
class MixtureNoise(FittedNoise):
    """A mixture of Gaussians fitted by expectation-maximization.

        p(x) = Σ_k w_k N(x; μ_k, Σ_k) n/(n + m) + N(x; μ, diag r²) m/(n + m),   r_j = max_i |x_ij - μ_j|

    The components become as narrow as the data let them, and rows a little aside as unlikely as e^(-10⁵) where a column
    hardly varies. The background, one more component as broad as the data reach, is worth m of the n rows: nothing
    between the extremes of the data is less likely than m/(n + m) Π_j 0.24/r_j.

    Args:
        components: how many, besides the background.
        iterations: rounds of expectation-maximization.
        floor: least variance in any direction, as a share of the data's mean variance.
        background: m, how many rows the background is worth; 0 for none.

    >>> g = torch.Generator().manual_seed(0)
    >>> noise = MixtureNoise(2).fit(Real(1), torch.tensor([[-1.0], [-1.1], [1.0], [1.1]]), g)
    >>> noise.sample(3, generator=g).shape
    torch.Size([3, 1])
    """

    components: int = 8
    iterations: int = 50
    floor: float = 1e-3
    background: float = 0.0

    def __post_init__(self) -> None:
        hold_counts(self, "components", "iterations")
        check_number(self, "floor", self.floor, open_low=True)
        check_number(self, "background", self.background)

    def fit(self, domain: Domain, x: Tensor, generator: torch.Generator) -> nn.Module:
        _need(self, domain, (Real,))
        flat = x.flatten(1)
        n, d = flat.shape
        k = min(self.components, n)
        eye = torch.eye(d, dtype=x.dtype, device=x.device)
        total = shrunk_covariance(flat)
        least = self.floor * total.trace() / d * eye
        means = flat[_spread_rows(flat, k, generator)]
        share = torch.softmax(-0.5 * torch.cdist(flat, means).square() / (total.trace() / d), 1)
        broad = self._broad(flat, total)
        for _ in range(self.iterations):
            mass = share[:, :k].sum(0) + 1e-6  # an emptied component keeps a place
            means = share[:, :k].T @ flat / mass[:, None]
            centered = flat[:, None] - means
            spread_of = torch.einsum("nk,nkd,nke->kde", share[:, :k], centered, centered) / mass[:, None, None] + least
            parts = [means, 0.5 * (spread_of + spread_of.mT), mass / mass.sum()]
            if self.background:
                whole = n / (n + self.background)
                parts = [torch.cat(both) for both in zip([*parts[:2], whole * parts[2]], broad, strict=True)]
            mixture = GaussianMixture(*parts)
            share = mixture.responsibilities(flat)
        return EnergyNoise(mixture, domain.shape)

    def _broad(self, flat: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The background: mean, covariance and weight of one component. Where a column is constant nobody knows how far
        another row may lie, and it gets the mean spread of all."""
        mean, typical = flat.mean(0, keepdim=True), (total.trace() / len(total)).sqrt()
        reach = (flat - mean).abs().amax(0)
        reach = torch.where(reach > 1e-6 * typical, reach, typical)
        weight = flat.new_tensor([self.background / (len(flat) + self.background)])
        return mean, torch.diag(reach.square())[None], weight


def _spread_rows(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """k rows that lie far apart: each with probability ∝ its squared distance to those before (k-means++)."""
    chosen = torch.randint(len(x), (1,), generator=generator, device=x.device)
    for _ in range(k - 1):
        gap = torch.cdist(x, x[chosen]).amin(1).square() + 1e-12
        chosen = torch.cat([chosen, torch.multinomial(gap, 1, generator=generator)])
    return chosen


@dataclass(frozen=True)
class FlowNoise(FittedNoise):
    """A neural spline flow (zuko), fitted by maximum likelihood; the closest noise, so the most efficient.

    Fit it to many rows: a flow that has learned a single batch by heart is no noise for the next one.

    Args:
        steps, lr, batch: Adam steps before training starts, their rate, and rows of each.
        transforms, hidden, bins: size of the flow.
        train: go on fitting it to every batch while the energy is trained.

    >>> g = torch.Generator().manual_seed(0)
    >>> noise = FlowNoise(steps=2).fit(Real(2), torch.randn(50, 2, generator=g), g)
    >>> noise.log_prob(noise.sample(3, generator=g)).shape
    torch.Size([3])
    """

    steps: int = 300
    lr: float = 3e-3
    batch: int = 256
    transforms: int = 3
    hidden: tuple[int, ...] = (64, 64)
    bins: int = 8
    train: bool = False

    def __post_init__(self) -> None:
        hold_counts(self, "steps", least=0)
        hold_counts(self, "batch", "transforms")
        hold_counts(self, "bins", least=2)
        check_number(self, "lr", self.lr, open_low=True)
        object.__setattr__(self, "hidden", sizes_of("hidden", self.hidden))

    def fit(self, domain: Domain, x: Tensor, generator: torch.Generator) -> nn.Module:
        _need(self, domain, (Real,))
        size: dict[str, Any] = {"transforms": self.transforms, "hidden": self.hidden, "bins": self.bins}
        flow = Flow(domain.shape, "density", *spread(x), **size, generator=generator)
        optimizer = torch.optim.Adam(flow.parameters(), lr=self.lr)
        with torch.enable_grad():
            for _ in range(self.steps):
                rows = torch.randint(len(x), (min(self.batch, len(x)),), generator=generator, device=x.device)
                optimizer.zero_grad()
                (-flow.log_prob(x[rows]).mean()).backward()
                optimizer.step()
        flow.zero_grad()
        return flow.requires_grad_(self.train)


class UniformLaw(nn.Module):
    """The uniform law of a box or a discrete domain."""

    def __init__(self, domain: Box | Discrete, like: Tensor) -> None:
        super().__init__()
        self.domain = domain
        self.log_size = domain.log_volume if isinstance(domain, Box) else domain.log_size
        self.register_buffer("anchor", like.new_zeros(()), persistent=False)

    def log_prob(self, x: Tensor) -> Tensor:
        return x.new_full((len(x),), -self.log_size)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        return self.domain.sample(n, generator=generator, dtype=self.anchor.dtype)  # type: ignore[arg-type]


@dataclass(frozen=True)
class UniformNoise(FittedNoise):
    """Uniform over a box or over all states of a discrete domain: no fit, and easily told from data."""

    def fit(self, domain: Domain, x: Tensor, generator: torch.Generator) -> nn.Module:
        _need(self, domain, (Box, Discrete))
        return UniformLaw(domain, x)  # type: ignore[arg-type]


class MarginalLaw(nn.Module):
    """Independent units with given probabilities: (units,) of being on, or (units, classes)."""

    def __init__(self, domain: Domain, p: Tensor) -> None:
        super().__init__()
        self.domain = domain
        self.register_buffer("p", p)

    def log_prob(self, x: Tensor) -> Tensor:
        p: Tensor = self.p  # type: ignore[assignment]
        if isinstance(self.domain, Categorical):
            return (x * p.log()).flatten(1).sum(1)
        on = x == 1
        return torch.where(on, p.log(), torch.log1p(-p)).flatten(1).sum(1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        p: Tensor = self.p  # type: ignore[assignment]
        if isinstance(self.domain, Categorical):
            k = self.domain.classes
            labels = torch.multinomial(p.reshape(-1, k), n, replacement=True, generator=generator).T
            return self.domain.one_hot(labels, dtype=p.dtype).reshape(n, *self.domain.shape)
        low = self.domain.low  # type: ignore[attr-defined]
        u = torch.rand(n, *self.domain.shape, generator=generator, dtype=p.dtype, device=p.device)
        return torch.where(u < p, 1.0, low)


@dataclass(frozen=True)
class MarginalNoise(FittedNoise):
    """Independent discrete units with the base rates of the data, smoothed by one count of each value."""

    def fit(self, domain: Domain, x: Tensor, generator: torch.Generator) -> nn.Module:
        _need(self, domain, (Binary, Spin, Categorical))
        if isinstance(domain, Categorical):
            return MarginalLaw(domain, (x.sum(0) + 1) / (len(x) + domain.classes))
        return MarginalLaw(domain, ((x == 1).to(x).sum(0) + 1) / (len(x) + 2))


NAMED: dict[str, FittedNoise] = {
    "gaussian": GaussianNoise(),
    "mixture": MixtureNoise(),
    "flow": FlowNoise(),
    "uniform": UniformNoise(),
    "marginals": MarginalNoise(),
}


def given_noise(noise: Any, domain: Domain, fitted: nn.Module | None = None) -> nn.Module:
    """The noise that was fitted, or else the one that needs no fit, checked against the energy's domain."""
    if fitted is not None:
        return fitted
    if isinstance(noise, Energy):
        if not (isinstance(noise, Normalized) and isinstance(noise, Sampleable)):
            raise CapabilityError(
                f"as noise {type(noise).__name__} must know its log_z() and be drawn from exactly; use a "
                "Gaussian, a mixture, or one of the fitted noises, such as noise='mixture'"
            )
        flat = isinstance(domain, Real) and noise.domain == Real(math.prod(domain.shape))  # images as rows of numbers
        if noise.domain != domain and not flat:
            raise DomainError(f"the noise lives on {noise.domain}, the energy on {domain}; they must agree")
        return EnergyNoise(noise, domain.shape)
    if not isinstance(noise, Distribution):
        return DistributionNoise(noise, domain.shape)
    if math.prod(own := _own_shape(noise)) != domain.numel:
        raise ShapeError(
            f"the noise {type(noise).__name__} draws events of shape {own}, but the energy lives on {domain}; give one of shape "
            f"{tuple(domain.shape)}, with parameters expanded to it"
        )
    return TorchNoise(noise, domain.shape)
