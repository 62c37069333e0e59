"""Simple laws with a known log Z and exact draws, fitted to data: where annealing starts."""

import math

import torch
from torch import Tensor

from gibbsian.domains import Binary, Box, Categorical, Discrete, Domain, JoinedStates, NonNegative, Real, Spin
from gibbsian.energies.gaussian import Gaussian
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, DomainError
from gibbsian.random import check_draws, normals_like


class IndependentGaussian(Energy):
    """Independent normals on any event shape: E(x) = Σ (x - μ)²/2σ²."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__(Real(tuple(mean.shape)))
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * ((x - self.mean) / self.std).square().flatten(1).sum(1)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = (x - self.mean) / self.std
        return 0.5 * z.square().flatten(1).sum(1), -z / self.std

    def log_z(self) -> Tensor:
        """Σ log √(2π)σ."""
        return self.std.log().sum() + 0.5 * self.std.numel() * math.log(2 * math.pi)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """μ + σz."""
        n = check_draws(n, generator, self.mean.device)
        return self.mean + self.std * normals_like(self.mean, n, *self.mean.shape, generator=generator)

    def masses(self) -> Tensor:
        """1/σ²."""
        return self.std.flatten() ** -2


class Uniform(Energy):
    """The uniform law of a box: E(x) = 0."""

    anchor: Tensor

    def __init__(self, domain: Box, like: Tensor) -> None:
        super().__init__(domain)
        self.register_buffer("anchor", like.new_zeros(()))  # carries precision and device

    def forward(self, x: Tensor) -> Tensor:
        return 0 * x.flatten(1).sum(1)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(len(x)), torch.zeros_like(x)

    def log_z(self) -> Tensor:
        """log of the volume."""
        return torch.full_like(self.anchor, self.domain.log_volume)  # type: ignore[attr-defined]

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Uniform draws."""
        return self.domain.sample(n, generator=generator, dtype=self.anchor.dtype)

    def masses(self) -> Tensor:
        """12/(high - low)²."""
        low, high = self.domain.bounds(self.anchor)  # type: ignore[attr-defined]
        return (12 / (high - low).square()).expand(self.domain.shape).flatten()


class Exponential(Energy):
    """Independent exponentials on [0, ∞)^d: E(x) = Σ x/μ."""

    mean: Tensor

    def __init__(self, mean: Tensor) -> None:
        super().__init__(NonNegative(tuple(mean.shape)))
        self.register_buffer("mean", mean)

    def forward(self, x: Tensor) -> Tensor:
        return (x / self.mean).flatten(1).sum(1)

    def log_z(self) -> Tensor:
        """Σ log μ."""
        return self.mean.log().sum()

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """μ times unit exponentials."""
        n = check_draws(n, generator, self.mean.device)
        return self.mean * self.mean.new_empty(n, *self.mean.shape).exponential_(generator=generator)

    def masses(self) -> Tensor:
        """1/μ²."""
        return self.mean.flatten() ** -2


class Factorized(Energy):
    """Independent discrete units: E(x) = -b·x over {0, 1}, ±1 or one-hot events, or several of these side by side."""

    bias: Tensor

    def __init__(self, domain: Domain, bias: Tensor) -> None:
        super().__init__(domain)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        return -(x * self.bias).flatten(1).sum(1)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self(x), self.bias.expand_as(x)

    def log_z(self) -> Tensor:
        """The sum of the units' cumulants."""
        return _log_sum(self.domain, self.bias)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Exact draws, unit by unit."""
        n = check_draws(n, generator, self.bias.device)
        return _draw(self.domain, self.bias, n, generator)


def _parts(domain: JoinedStates, values: Tensor) -> list[tuple[Discrete, Tensor]]:
    """The domains that stand side by side, each with its part of the values."""
    return list(zip(domain.parts, domain.split(values), strict=True))


def _log_sum(domain: Domain, bias: Tensor) -> Tensor:
    """log Σ exp(b·x) over all states."""
    if isinstance(domain, JoinedStates):
        return torch.stack([_log_sum(part, own) for part, own in _parts(domain, bias)]).sum()
    if isinstance(domain, Categorical):
        return torch.logsumexp(bias, -1).sum()
    low = -1.0 if isinstance(domain, Spin) else 0.0
    return torch.logaddexp(bias, low * bias).sum()


def _draw(domain: Domain, bias: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n draws with probabilities ∝ exp(b·x)."""
    if isinstance(domain, JoinedStates):
        return torch.cat([_draw(part, own, n, generator).flatten(1) for part, own in _parts(domain, bias)], 1)
    if isinstance(domain, Categorical):
        p = torch.softmax(bias, -1).reshape(-1, domain.classes)
        labels = torch.multinomial(p, n, replacement=True, generator=generator).T
        return domain.one_hot(labels.reshape(n, *domain.shape[:-1]), dtype=bias.dtype)
    low = -1.0 if isinstance(domain, Spin) else 0.0
    u = torch.rand(n, *bias.shape, generator=generator, dtype=bias.dtype, device=bias.device)
    return low + (1 - low) * (u < torch.sigmoid((1 - low) * bias)).to(bias.dtype)


def base_bias(domain: Domain, data: Tensor) -> Tensor:
    """The bias with which independent discrete units have the (smoothed) means of the data."""
    if isinstance(domain, JoinedStates):
        return torch.cat([base_bias(part, own).flatten() for part, own in _parts(domain, data)])
    if isinstance(domain, Categorical):
        return ((data.sum(0) + 1) / (len(data) + domain.classes)).log()
    if isinstance(domain, Spin):
        return 0.5 * torch.logit(((data + 1) / 2).sum(0).add(1) / (len(data) + 2))
    return torch.logit((data.sum(0) + 1) / (len(data) + 2))


def fitted_base(domain: Domain, data: Tensor | None, like: Tensor) -> Energy:
    """The simplest law on a domain, fitted to data where it is given.

    Real: Gaussian, with the full covariance for vectors with at least ten rows of data per entry, else of
    independent entries; standard without data. Box: uniform. Non-negative: exponential. Discrete: independent
    units.
    """
    if data is not None:
        data = data.detach().to(like)
    if isinstance(domain, Box):
        return Uniform(domain, like)
    if isinstance(domain, Real):
        return _gaussian(domain, data, like)
    if isinstance(domain, NonNegative):
        if data is None:
            return Exponential(like.new_ones(domain.shape))
        mean = data.mean(0)
        if not bool((mean > 0).all()):
            raise ArgumentError(
                "an exponential base needs data with a positive mean in every entry; drop columns of zeros"
            )
        return Exponential(mean)
    if isinstance(domain, Binary | Spin | Categorical | JoinedStates):
        return Factorized(domain, like.new_zeros(domain.shape) if data is None else base_bias(domain, data))
    raise DomainError(f"no base law is known for {domain}; give one with base=, an energy with log_z() and sample()")


def independent_units(domain: Domain, bias: Tensor | None, data: Tensor | None, like: Tensor) -> Factorized:
    """Independent discrete units with this bias, or with the means of data; uniform without either."""
    if bias is not None and data is not None:
        raise ArgumentError("give base_bias or data, not both: data fits the base bias itself")
    if data is not None:
        domain.check(data, "data")
    if bias is None:
        return fitted_base(domain, data, like)  # type: ignore[return-value]
    if not isinstance(domain, Discrete) or tuple(bias.shape) != domain.shape:
        raise ArgumentError(
            "base as a tensor is the bias of independent discrete units; for real values give an energy"
        )
    return Factorized(domain, bias.to(like))


def _gaussian(domain: Real, data: Tensor | None, like: Tensor) -> Energy:
    if data is None:
        return IndependentGaussian(like.new_zeros(domain.shape), like.new_ones(domain.shape))
    mean, std = data.mean(0), data.std(0, correction=0)
    if len(data) < 2 or not bool((std > 0).all()):
        raise ArgumentError(
            "a Gaussian base needs data that varies in every entry; drop constant columns or give base="
        )
    if len(domain.shape) == 1 and len(data) >= 10 * domain.numel:
        covariance = torch.cov(data.T, correction=0).reshape(domain.numel, domain.numel)
        if int(torch.linalg.cholesky_ex(covariance).info) == 0:
            return Gaussian(mean, (covariance + covariance.T) / 2)
    return IndependentGaussian(mean, std)
