"""Laws to test samplers on: log Z and exact draws are known, and each is hard in its own way."""

import math
from collections.abc import Callable
from typing import ClassVar

import scipy  # its parts are imported on first use
import torch
from torch import Tensor

from gibbsian.domains import Real
from gibbsian.energy import Energy
from gibbsian.errors import check_count, check_number
from gibbsian.random import check_draws, normals_like


def rejection_sample(
    n: int, propose: Callable[[int], Tensor], log_accept: Callable[[Tensor], Tensor], generator: torch.Generator
) -> Tensor:
    """n draws from the density ∝ q(x)·exp(log_accept(x)), log_accept ≤ 0, from candidates `propose(m)` ~ q.

    >>> g = torch.Generator().manual_seed(0)
    >>> normal = lambda m: torch.randn(m, generator=g)
    >>> half_normal = rejection_sample(5, normal, lambda x: torch.where(x > 0, 0.0, -torch.inf), g)
    >>> bool((half_normal > 0).all())
    True
    """
    missing = check_count("sample", "n", n)
    kept: list[Tensor] = []
    while missing > 0:
        x = propose(2 * missing + 16)
        u = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device)
        accepted = x[u.log() < log_accept(x)][:missing]
        kept.append(accepted)
        missing -= len(accepted)
    return torch.cat(kept)


class _Analytic(Energy):
    """A law over R^d whose form is told by numbers, kept as buffers: positive ones, but for those in `signed`."""

    signed: ClassVar[tuple[str, ...]] = ()

    def __init__(self, dim: int, **form: float) -> None:
        super().__init__(Real(dim))
        for name, value in form.items():
            check_number(self, name, value, -math.inf if name in self.signed else 0.0, open_low=True)
            self.register_buffer(name, torch.tensor(float(value)))


class _Bent(_Analytic):
    """x₀ ~ N(0, s²), and others that are Gaussian given x₀: log Z = (d/2) log 2π + log s."""

    scale: Tensor

    def __init__(self, dim: int, **form: float) -> None:
        dim = check_count(self, "dim", dim, 2)  # one entry bends the others
        super().__init__(dim, **form)

    def log_z(self) -> Tensor:
        """(d/2) log 2π + log s."""
        return 0.5 * self.domain.numel * math.log(2 * math.pi) + self.scale.log()

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: the first entry, then the others given it."""
        n = check_draws(n, generator, self.scale.device)
        z = normals_like(self.scale, n, self.domain.numel, generator=generator)
        z[:, 0] *= self.scale
        return z


class Banana(_Bent):
    """A Gaussian bent along a parabola: curved ridges, exact draws.

        E(x) = x₀²/2s² + ½(x₁ - b(x₀² - s²))² + ½Σ_{i>1} xᵢ²,   log Z = (d/2) log 2π + log s

    The bend x₁ → x₁ + b(x₀² - s²) preserves volume, so everything about it is known: the mean is 0, the
    variances are s², 1 + 2b²s⁴ and 1. A test for kernels whose step must fit a ridge that turns.

    Reference: Haario, Saksman & Tamminen 1999.

    Args:
        dim: d, at least 2.
        curvature: b.
        scale: s, the standard deviation along the ridge.

    >>> Banana()(torch.zeros(1, 2))
    tensor([2.])
    """

    curvature: Tensor
    signed = ("curvature",)

    def __init__(self, dim: int = 2, *, curvature: float = 0.5, scale: float = 2.0) -> None:
        super().__init__(dim, curvature=curvature, scale=scale)

    def _bend(self, first: Tensor) -> Tensor:
        return self.curvature * (first.square() - self.scale.square())

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E(x), and how far x₁ is from the ridge."""
        across = x[:, 1] - self._bend(x[:, 0])
        return 0.5 * ((x[:, 0] / self.scale).square() + across.square() + x[:, 2:].square().sum(1)), across

    def forward(self, x: Tensor) -> Tensor:
        return self._parts(x)[0]

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            energy, across = self._parts(x)
            along = x[:, 0] * (2 * self.curvature * across - 1 / self.scale.square())
            return energy, torch.cat([torch.stack([along, -across], 1), -x[:, 2:]], 1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: a bent Gaussian."""
        z = super().sample(n, generator=generator)
        z[:, 1] += self._bend(z[:, 0])
        return z


class Funnel(_Bent):
    """Neal's funnel, a scale that is itself random: v = x₀ ~ N(0, s²), and xᵢ | v ~ N(0, eᵛ) for the others.

        E(x) = v²/2s² + ½e⁻ᵛ Σ_{i>0} xᵢ² + ((d-1)/2)v,   log Z = (d/2) log 2π + log s

    No single step size fits both its neck and its mouth: a test for adaptation and divergence reports.

    Reference: Neal 2003.

    Args:
        dim: d, at least 2.
        scale: s.

    >>> Funnel()(torch.zeros(1, 2))
    tensor([0.])
    """

    def __init__(self, dim: int = 2, *, scale: float = 3.0) -> None:
        super().__init__(dim, scale=scale)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v, rest = x[:, 0], x[:, 1:]
        shrink = torch.exp(-v)
        pull = 0.5 * shrink * rest.square().sum(1)
        return 0.5 * (v / self.scale).square() + pull + 0.5 * rest.shape[1] * v, pull, shrink

    def forward(self, x: Tensor) -> Tensor:
        return self._parts(x)[0]

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            energy, pull, shrink = self._parts(x)
            first = pull - x[:, 0] / self.scale.square() - 0.5 * (x.shape[1] - 1)
            return energy, torch.cat([first[:, None], -shrink[:, None] * x[:, 1:]], 1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: first the scale, then the rest."""
        z = super().sample(n, generator=generator)
        z[:, 1:] *= torch.exp(z[:, :1] / 2)
        return z


class DoubleWell(_Analytic):
    """Two wells at x₀ = ±a with a barrier of height h between them, Gaussian in the other coordinates.

        E(x) = h((x₀/a)² - 1)² + ½Σ_{i>0} xᵢ²
        log Z = log[(πa/2)(I_{-1/4}(h/2) + I_{1/4}(h/2))] - h/2 + ((d-1)/2) log 2π

    A test for mixing between modes: a local kernel crosses at a rate of about e⁻ʰ.

    Args:
        dim: d.
        barrier: h.
        distance: a, from the barrier to each well.

    >>> DoubleWell()(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    tensor([2., 0.])
    """

    barrier: Tensor
    distance: Tensor

    def __init__(self, dim: int = 2, *, barrier: float = 2.0, distance: float = 1.0) -> None:
        super().__init__(dim, barrier=barrier, distance=distance)

    def forward(self, x: Tensor) -> Tensor:
        height = (x[:, 0] / self.distance).square() - 1
        return self.barrier * height.square() + 0.5 * x[:, 1:].square().sum(1)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            u, rest = x[:, 0] / self.distance, x[:, 1:]
            height = u.square() - 1
            energy = self.barrier * height.square() + 0.5 * rest.square().sum(1)
            slope = -4 * self.barrier / self.distance * u * height
            return energy, torch.cat([slope[:, None], -rest], 1)

    def log_z(self) -> Tensor:
        """∫exp(-h(u² - 1)²)du = (π/2)e^{-h/2}(I_{-1/4}(h/2) + I_{1/4}(h/2)), I modified Bessel functions."""
        h, a = float(self.barrier), float(self.distance)
        well = math.log(0.5 * math.pi * a * (scipy.special.ive(-0.25, h / 2) + scipy.special.ive(0.25, h / 2)))
        return self.barrier.new_tensor(well + 0.5 * (self.domain.numel - 1) * math.log(2 * math.pi))

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`, by rejection with about half accepted.

        For u > 0, exp(-h(u-1)²(u+1)²) ≤ exp(-h(u-1)²), a Gaussian; the sign is a fair coin.
        """
        h = self.barrier

        def propose(m: int) -> Tensor:
            return 1 + normals_like(h, m, generator=generator) / (2 * h).sqrt()

        def log_accept(u: Tensor) -> Tensor:
            return torch.where(u > 0, -h * (u - 1).square() * u * (u + 2), -torch.inf)

        u = rejection_sample(n, propose, log_accept, generator)
        sign = 2 * torch.randint(2, (n,), generator=generator, device=h.device).to(h) - 1
        rest = normals_like(h, n, self.domain.numel - 1, generator=generator)
        return torch.cat([(self.distance * sign * u)[:, None], rest], 1)


class Ring(_Analytic):
    """Mass around a circle (in d dimensions, a sphere) of radius R.

        E(x) = (‖x‖ - R)²/2w²,   Z = S_d ∫₀^∞ r^{d-1} exp(-(r - R)²/2w²) dr

    with S_d the surface of the unit sphere. A test for kernels that must go round: the mean is inside the
    hole, where there is no mass.

    Args:
        dim: d.
        radius: R.
        width: w.

    >>> Ring()(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
    tensor([ 0.0000, 22.2222])
    """

    radius: Tensor
    width: Tensor

    def __init__(self, dim: int = 2, *, radius: float = 2.0, width: float = 0.3) -> None:
        super().__init__(dim, radius=radius, width=width)

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * ((torch.linalg.vector_norm(x, dim=1) - self.radius) / self.width).square()

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            r = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            away = (r - self.radius) / self.width
            unit = x / torch.where(r > 0, r, 1.0)  # at the center no direction is better than another
            return 0.5 * away[:, 0].square(), -away / self.width * unit

    def log_z(self) -> Tensor:
        """By the recursion I_{k+1} = R·I_k + k·w²·I_{k-1} of I_k = ∫₀^∞ rᵏ exp(-(r - R)²/2w²) dr."""
        d, t = self.domain.numel, float(self.radius) / float(self.width)
        lower = math.sqrt(2 * math.pi) * 0.5 * math.erfc(-t / math.sqrt(2))  # I_0 in units of the width
        upper = t * lower + math.exp(-t * t / 2)
        log_scale = 0.0
        for k in range(1, d):
            lower, upper = upper, t * upper + k * lower
            log_scale += math.log(upper)
            lower, upper = lower / upper, 1.0
        surface = math.log(2) + 0.5 * d * math.log(math.pi) - math.lgamma(d / 2)
        return self.radius.new_tensor(surface + math.log(lower) + log_scale + d * math.log(float(self.width)))

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: a uniform direction, and a radius by rejection.

        -log of the radial density is 1/w²-strongly convex, so a Gaussian of width w at its mode covers it.
        """
        R, w, d = self.radius, self.width, self.domain.numel
        mode = 0.5 * (R + (R.square() + 4 * (d - 1) * w.square()).sqrt())

        def log_density(r: Tensor) -> Tensor:
            return (d - 1) * r.log() - 0.5 * ((r - R) / w).square()

        def log_accept(r: Tensor) -> Tensor:
            gap = log_density(r.clamp(min=torch.finfo(r.dtype).tiny)) - log_density(mode)
            return torch.where(r > 0, gap + 0.5 * ((r - mode) / w).square(), -torch.inf)

        def propose(m: int) -> Tensor:
            return mode + w * normals_like(R, m, generator=generator)

        r = rejection_sample(n, propose, log_accept, generator)
        z = normals_like(R, n, d, generator=generator)
        return r[:, None] * z / torch.linalg.vector_norm(z, dim=1, keepdim=True)
