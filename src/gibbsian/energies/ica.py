"""Independent component analysis as an energy."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from gibbsian.capabilities import Filters
from gibbsian.domains import Real
from gibbsian.energies.analytic import rejection_sample
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, DataError, ShapeError, check_count
from gibbsian.placement import check_rows, explained
from gibbsian.random import check_draws

_CORNER = 0.1  # the rounding of the Laplace density at 0


class Source(NamedTuple):
    """A normalized density of one component: -log g(s), draws, and its standard deviation."""

    energy: Callable[[Tensor], Tensor]
    draw: Callable[[int, Tensor, torch.Generator], Tensor]
    deviation: float


def _log_cosh(s: Tensor) -> Tensor:
    return s.abs() + softplus(-2 * s.abs()) - math.log(2)


def _logistic_draws(n: int, like: Tensor, generator: torch.Generator) -> Tensor:
    u = torch.rand(n, generator=generator, dtype=like.dtype, device=like.device)
    return torch.logit(u.clamp(torch.finfo(u.dtype).tiny, 1 - torch.finfo(u.dtype).eps))


def _rounded(s: Tensor) -> Tensor:
    """√(c² + s²) + log ∫exp(-√(c² + s²)): the integral is 2c K₁(c)."""
    corner = torch.special.modified_bessel_k1(torch.tensor(_CORNER, dtype=torch.float64))
    return (s.square() + _CORNER**2).sqrt() + float(torch.log(2 * _CORNER * corner))


def _rounded_draws(n: int, like: Tensor, generator: torch.Generator) -> Tensor:
    def laplace(m: int) -> Tensor:
        u = torch.rand(2, m, generator=generator, dtype=like.dtype, device=like.device)
        return torch.where(u[0] < 0.5, 1.0, -1.0) * -torch.log1p(-u[1])

    return rejection_sample(n, laplace, lambda s: s.abs() - (s.square() + _CORNER**2).sqrt(), generator)


def _two_humps_draws(n: int, like: Tensor, generator: torch.Generator) -> Tensor:
    z = torch.randn(n, generator=generator, dtype=like.dtype, device=like.device)
    return z + torch.where(torch.rand(n, generator=generator, dtype=like.dtype, device=like.device) < 0.5, 1.0, -1.0)


SOURCES = {
    "logistic": Source(lambda s: 2 * _log_cosh(0.5 * s) + math.log(4), _logistic_draws, math.pi / math.sqrt(3)),
    "laplace": Source(_rounded, _rounded_draws, 1.4228952),  # of the rounded density, by quadrature
    "two humps": Source(
        lambda s: 0.5 * s.square() + 0.5 - _log_cosh(s) + 0.5 * math.log(2 * math.pi), _two_humps_draws, math.sqrt(2)
    ),
}


class ICA(Energy):
    """Independent components s = W(x - m): E(x) = -Σᵢ log gᵢ(sᵢ) - log|det W|, normalized for every W.

    The source densities gᵢ need only be on the right side of the Gaussian; then maximum likelihood, score
    matching, noise-contrastive estimation and contrastive divergence all find the directions of independent
    sources, of which one at most may be Gaussian:

    - "logistic": g = 1/(4 cosh²(s/2)); super-Gaussian, the usual choice.
    - "laplace": g ∝ exp(-√(c² + s²)), c = 0.1: sparse sources, rounded at 0 so that score matching may
      differentiate twice.
    - "two humps": g = ½N(s; -1, 1) + ½N(s; 1, 1); sub-Gaussian.

    W starts at the identity; `whiten(x)` starts it at Σ^(-½) of the data, which all objectives prefer.
    `match_sources(x)` chooses between super- and sub-Gaussian for each component as it looks now.

    Reference: Bell & Sejnowski 1995; Cardoso 1997 (maximum likelihood); Lee, Girolami & Sejnowski 1999 (two humps
    and the test between the two); Hyvärinen 2005 (by score matching).

    Args:
        dim: number of components and of mixtures.
        sources: one name for all components, or one each.

    Attributes:
        weight: W `(dim, dim)`, rows are the filters; mean: m.

    >>> model = ICA(2)
    >>> model(torch.zeros(1, 2)).detach(), model.log_z()  # 2 log 4
    (tensor([2.7726]), tensor(0.))
    """

    mean: Tensor
    kind: Tensor

    def __init__(self, dim: int, sources: str | Sequence[str] = "logistic") -> None:
        check_count(self, "dim", dim)
        super().__init__(Real(dim))
        names = [sources] * dim if isinstance(sources, str) else list(sources)
        if len(names) != dim or not set(names) <= set(SOURCES):
            raise ArgumentError(
                f"ICA({dim}, sources={sources!r}): give one of {', '.join(map(repr, SOURCES))}, or one of them for "
                "each component"
            )
        self.weight = nn.Parameter(torch.eye(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("kind", torch.tensor([list(SOURCES).index(name) for name in names]))
        self.present = sorted(set(self.kind.tolist()))

    @property
    def sources(self) -> list[str]:
        """The name of each component's density."""
        return [list(SOURCES)[k] for k in self.kind.tolist()]

    @explained
    def components(self, x: Tensor) -> Tensor:
        """s = W(x - m), `(batch, dim)`."""
        return (x - self.mean) @ self.weight.T

    @property
    def mixing(self) -> Tensor:
        """A = W⁻¹, whose columns mix the sources: x = As + m."""
        return torch.linalg.inv(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        s = self.components(x)
        densities = [list(SOURCES.values())[k] for k in self.present]
        each = densities[0].energy(s)
        for k, density in zip(self.present[1:], densities[1:], strict=True):
            each = torch.where(self.kind == k, density.energy(s), each)
        return each.sum(1) - torch.linalg.slogdet(self.weight).logabsdet

    def log_z(self) -> Tensor:
        """0: log|det W| is part of the energy."""
        return self.weight.new_zeros(())

    def filters(self) -> Filters:
        """What one unit of every source adds to x."""
        return Filters(self.mixing, "Basis", "Each picture is what one source adds to the data.")

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, dim)`: independent sources, mixed."""
        n = check_draws(n, generator, self.weight.device)
        with torch.no_grad():
            s = torch.stack([SOURCES[name].draw(n, self.weight, generator) for name in self.sources], 1)
            return self.mean + torch.linalg.solve(self.weight, s.T).T

    def whiten(self, x: Tensor) -> None:
        """Start at the data: m its mean, W its symmetric whitening, scaled to the sources' deviations."""
        check_rows(self, x)
        if len(x) <= x.shape[1]:
            raise ShapeError(f"{len(x)} rows do not determine {x.shape[1]} variances and their correlations; give more")
        with torch.no_grad():
            value, vector = torch.linalg.eigh(torch.cov(x.T))
            if not bool(value[0] > 1e-9 * value[-1]):
                raise DataError(
                    "the data lie in a subspace: their covariance is singular; project them on their principal "
                    "components first"
                )
            deviations = torch.tensor([SOURCES[name].deviation for name in self.sources]).to(x)
            self.mean.copy_(x.mean(0))
            self.weight.copy_(deviations[:, None] * (vector * value.rsqrt()) @ vector.T)

    def match_sources(self, x: Tensor) -> list[str]:
        """Make each component "two humps" or super-Gaussian ("logistic", or "laplace" where it was that), by the
        sign of E[sech²s]E[s²] - E[s tanh s] at unit variance; returns the names."""
        with torch.no_grad():
            s = self.components(x)
            s = s / s.std(0)
            above = torch.cosh(s).square().reciprocal().mean(0) * s.square().mean(0) > (s * s.tanh()).mean(0)
            names = list(SOURCES)
            peaked = torch.where(self.kind == names.index("two humps"), names.index("logistic"), self.kind)
            self.kind.copy_(torch.where(above, peaked, names.index("two humps")))
        self.present = sorted(set(self.kind.tolist()))
        return self.sources

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.present = sorted(set(self.kind.tolist()))

    def extra_repr(self) -> str:
        return f"{len(self.weight)}"
