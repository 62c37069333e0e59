"""Units with real values: Gaussian, and Gaussian truncated to the half line."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from gibbsian import domains
from gibbsian.domains import Domain
from gibbsian.errors import ArgumentError, ShapeError, as_numbers
from gibbsian.units.base import Natural, Unit

_LOG_2PI = math.log(2 * math.pi)


class Gaussian(Unit):
    """Real units with energy (v - b)²/2σ² and statistic φ(v) = v/σ: given input I, v ~ N(b + σI, σ²).

    Args:
        n: number of units.
        sigma: standard deviation to start from, a number or one per unit; kept as a logarithm, so it stays positive.
        learned: whether σ is trained.

    >>> unit = Gaussian(2, sigma=0.5)
    >>> unit.mean(unit.natural(torch.ones(2), torch.tensor([[0.0, 2.0]]))).detach()
    tensor([[1., 2.]])
    """

    noise: ClassVar[str] = "normal"
    real: ClassVar[bool] = True
    log_sigma: Tensor

    def __init__(self, n: int, sigma: float | Tensor = 1.0, *, learned: bool = True) -> None:
        super().__init__(n)
        value = as_numbers(self, "sigma", sigma, torch.get_default_dtype())
        if value.dim() and value.shape != (n,):
            raise ShapeError(f"sigma has shape {tuple(value.shape)}, expected a number or one per unit: ({n},)")
        if not bool((torch.isfinite(value) & (value > 0)).all()):
            raise ArgumentError(f"Gaussian(sigma={sigma}): a standard deviation must be positive and finite")
        log_sigma = value.log().expand(n).clone()
        if learned:
            self.log_sigma = nn.Parameter(log_sigma)
        else:
            self.register_buffer("log_sigma", log_sigma)

    @property
    def sigma(self) -> Tensor:
        """σ of every unit."""
        return self.log_sigma.exp()

    @property
    def domain(self) -> Domain:
        return domains.Real(self.n)

    def statistic(self, v: Tensor) -> Tensor:
        return v * torch.exp(-self.log_sigma)

    def energy(self, v: Tensor, bias: Tensor) -> Tensor:
        return 0.5 * ((v - bias) * torch.exp(-self.log_sigma)).square().sum(1)

    def natural(self, bias: Tensor, input: Tensor | None = None) -> Natural:
        inverse = torch.exp(-self.log_sigma)
        linear = bias * inverse.square()
        return Natural(linear if input is None else linear + input * inverse, inverse.square())

    def constant(self, bias: Tensor) -> Tensor:
        return 0.5 * (bias * torch.exp(-self.log_sigma)).square().sum(-1)

    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        return 0.5 * (linear.square() / precision + _LOG_2PI - precision.log()).sum(-1)

    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        return linear / precision

    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        return (linear / precision + noise * precision.rsqrt()).detach()

    def fit_bias(self, data: Tensor) -> Tensor:
        return data.mean(0)

    def fit(self, data: Tensor) -> Natural:
        spread = data.var(0, correction=0)
        if len(data) < 2 or not bool((spread > 0).all()):
            raise ArgumentError("a Gaussian base needs data that varies in every entry; drop constant columns first")
        return Natural(data.mean(0) / spread, 1 / spread)

    def extra_repr(self) -> str:
        return f"{self.n}, learned={isinstance(self.log_sigma, nn.Parameter)}"


class Rectified(Unit):
    """Non-negative units with energy ½v² - b·v on v ≥ 0: a Gaussian truncated to the half line.

    Its conditionals are exact, N(η/λ, 1/λ) truncated at 0, and its cumulant is η²/2λ + log Φ(η/√λ) + ½ log(2π/λ).
    This is not the noisy rectifier max(0, x + noise) of Nair & Hinton (2010), which has no joint density and so
    no likelihood.

    >>> unit = Rectified(1)
    >>> unit.mean(unit.natural(torch.zeros(1)))  # half-normal: √(2/π)
    tensor([0.7979])
    """

    real: ClassVar[bool] = True

    @property
    def domain(self) -> Domain:
        return domains.NonNegative(self.n)

    def energy(self, v: Tensor, bias: Tensor) -> Tensor:
        return (v * (0.5 * v - bias)).sum(1)

    def natural(self, bias: Tensor, input: Tensor | None = None) -> Natural:
        return Natural(bias if input is None else bias + input, torch.ones_like(bias))

    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        z = linear * precision.rsqrt()
        gaussian = 0.5 * (z.square() + _LOG_2PI - precision.log())
        return (gaussian + torch.special.log_ndtr(z)).sum(-1)

    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        scale = precision.rsqrt()
        return scale * _truncated_mean(linear * scale)

    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        scale = precision.rsqrt()
        z = (linear * scale).detach().expand_as(noise)
        return (scale * _truncated_normal(z, noise)).detach()

    def fit_bias(self, data: Tensor) -> Tensor:
        """Matches the mean at λ = 1 by bisection: the mean grows with the bias."""
        goal = data.mean(0)
        if not bool((goal > 0).all()):
            raise ArgumentError(
                "a rectified base needs data with a positive mean in every entry; drop columns of zeros"
            )
        low, high = -1 / goal - 10, goal + 10
        for _ in range(80):
            middle = (low + high) / 2
            too_low = _truncated_mean(middle) < goal
            low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
        return (low + high) / 2


def _both(natural: Natural) -> tuple[Tensor, Tensor]:
    if natural.precision is None:
        raise ArgumentError("real-valued units need a precision in their natural parameters; use unit.natural(...)")
    return natural.linear, natural.precision


def _truncated_mean(z: Tensor) -> Tensor:
    """E[x] for x ~ N(z, 1) given x ≥ 0: z + φ(z)/Φ(z), by its asymptotic series where that cancels."""
    far = z < -30
    a = torch.where(far, -z, torch.full_like(z, 30.0))
    series = (1 - (2 - (10 - (74 - 706 / a**2) / a**2) / a**2) / a**2) / a
    near = torch.where(far, torch.zeros_like(z), z)
    direct = near + math.sqrt(2 / math.pi) / torch.special.erfcx(-near / math.sqrt(2))
    return torch.where(far, series, direct)


def _truncated_normal(z: Tensor, u: Tensor) -> Tensor:
    """x ~ N(z, 1) given x ≥ 0, by inversion of a uniform u in [0, 1).

    With Q the upper tail the condition is Q(x - z) = (1 - u) Q(-z). Far in the tail, where Q underflows and x is small
    beside a = -z, it is solved for x itself:

        ax + ½x² - log[erfcx((a + x)/√2)/erfcx(a/√2)] = -log(1 - u)

    by Newton's method; the left is convex, so that it decreases to the root from the first step on.
    """
    keep = 1 - u  # in (0, 1]: never 0
    near = torch.clamp(z, min=-4.0)
    direct = -torch.special.ndtri(keep * torch.special.ndtr(near)) + near
    a, level = torch.clamp(-z, min=4.0), -torch.log1p(-u)
    at_wall = torch.special.erfcx(a / math.sqrt(2))
    x = torch.zeros_like(a)
    for _ in range(6):
        tail = torch.special.erfcx((a + x) / math.sqrt(2))
        gap = x * (a + 0.5 * x) - (tail / at_wall).log() - level
        x = x - gap * tail * math.sqrt(math.pi / 2)  # over the hazard, √(2/π)/erfcx
    return torch.where(z < -4, x, direct).clamp_(min=0)
