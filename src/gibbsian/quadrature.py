"""Rules of quadrature: nodes and log weights on the line, the half-line and an interval, and their products.

    log ∫ f(x) dx ≈ log Σ_k exp(log w_k) f(x_k)

On the line and the half-line the trapezoidal rule in t, with x = x(t) such that the integrand decays fast at both ends;
it converges exponentially for smooth integrands. On an interval Gauss-Legendre.

Reference: Trefethen & Weideman 2014 (the trapezoidal rule); Takahasi & Mori 1974 (transformations).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from gibbsian.domains import Box, Domain, NonNegative, Real
from gibbsian.errors import DomainError

__all__ = [
    "double_exponential", "exponential", "legendre", "log_integrals", "product_grid", "quantiles", "sinh", "uniform_grid",
]  # fmt: skip

# --- one axis -------------------------------------------------------------------------------------


def sinh(t: Tensor) -> tuple[Tensor, Tensor]:
    """The line: x = sinh(t) and log dx/dt = log cosh(t); Gaussian and polynomial tails both decay fast in t.

    >>> x, log_slope = sinh(torch.linspace(-9, 9, 201))
    >>> (0.09 * torch.exp(log_slope - x**2)).sum() ** 2  # π
    tensor(3.1416)
    """
    return torch.sinh(t), t.abs() + torch.log1p(torch.exp(-2 * t.abs())) - math.log(2)


def exponential(t: Tensor) -> tuple[Tensor, Tensor]:
    """The half-line: x = exp(t) and log dx/dt; for a range of t that goes far below 0."""
    return t.exp(), t


def double_exponential(t: Tensor) -> tuple[Tensor, Tensor]:
    """The half-line: x = exp(t - exp(-t)) and log dx/dt; both ends decay doubly exponentially."""
    return torch.exp(t - torch.exp(-t)), t - torch.exp(-t) + torch.log1p(torch.exp(-t))


@cache
def _legendre(n: int) -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return torch.as_tensor(nodes), torch.as_tensor(weights)


def legendre(low: Tensor, high: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """An interval: n Gauss-Legendre nodes and their log weights, in the precision of its ends.

    >>> x, log_w = legendre(torch.tensor(0.0), torch.tensor(2.0), 3)
    >>> (log_w.exp() * x**4).sum()  # 2⁵/5
    tensor(6.4000)
    """
    t, w = (v.to(low) for v in _legendre(n))
    return 0.5 * (low + high) + 0.5 * (high - low) * t, w.log() + (0.5 * (high - low)).log()


# --- several axes ---------------------------------------------------------------------------------


def product_grid(lines: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """All nodes `(N, *rest, d)` and their log weights `(N, *rest)` from nodes and log weights `(nodes, *rest)` along
    every axis; the last axis changes fastest.

    >>> line = (torch.tensor([1.0, 2.0]), torch.zeros(2))
    >>> product_grid([line, line])[0].tolist()
    [[1.0, 1.0], [1.0, 2.0], [2.0, 1.0], [2.0, 2.0]]
    """
    d = len(lines)

    def along(i: int, t: Tensor) -> Tensor:
        return t.reshape(*[1] * i, len(t), *[1] * (d - 1 - i), *t.shape[1:])

    x = torch.stack(torch.broadcast_tensors(*(along(i, x) for i, (x, _) in enumerate(lines))), -1)
    log_w = sum((along(i, w) for i, (_, w) in enumerate(lines[1:], 1)), along(0, lines[0][1]))
    return x.flatten(0, d - 1), log_w.expand(x.shape[:-1]).flatten(0, d - 1)


def uniform_grid(low: Tensor, high: Tensor, n: int, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A grid with n nodes on every axis from `low` to `high` `(d,)`, at most `rows` nodes at a time: whole numbers
    `(rows, d)` and positions `(rows, d)`."""
    d = len(low)
    powers = n ** torch.arange(d - 1, -1, -1, device=low.device)
    for start in range(0, n**d, rows):
        index = torch.arange(start, min(start + rows, n**d), device=low.device)[:, None] // powers % n
        yield index, low + (high - low) * index / (n - 1)


def quantiles(x: Tensor, p: Tensor, levels: Sequence[float] = (0.16, 0.5, 0.84)) -> list[Tensor]:
    """The quantiles of laws that have probabilities p at positions x, both `(N, *rest)`: `(*rest)` for every level."""
    value, order = x.sort(0)
    below = p.gather(0, order).cumsum(0)
    return [value.gather(0, (below < q).sum(0, keepdim=True).clamp(max=len(value) - 1))[0] for q in levels]


# --- many integrals at once -----------------------------------------------------------------------

_NODES = {1: 241, 2: 61}
_LEGENDRE = {1: 128, 2: 40}
_SEARCH, _FINAL = 9.0, 4.5  # ends of the range in t: 4000 and 45 scales away from the center
_ROWS = 1 << 16


def log_integrals(domain: Domain, energies: Callable[[Tensor], Tensor], n: int, like: Tensor) -> Tensor:
    """log ∫ exp(-E(x, y)) dy for n inputs x and y of one or two numbers, `(n,)`, differentiable.

    On R the grid of every input is centered and scaled by itself, from a wide one inwards; a mass that is far
    narrower than its distance from the origin (by a factor of some hundred) is better put into a box.

    Args:
        domain: of y, at most two numbers.
        energies: E of outputs `(k·n, *event)` that go through the inputs k times.
        n: number of inputs.
        like: for precision and device.

    >>> normal = lambda y: 0.5 * (y[:, 0] - 3).square()
    >>> log_integrals(Real(1), normal, 2, torch.zeros(1, dtype=torch.float64))  # ½ log 2π
    tensor([0.9189, 0.9189], dtype=torch.float64)
    """
    d = domain.numel
    if d > 2 or not isinstance(domain, Real | Box | NonNegative):
        raise DomainError(
            f"log Z(x) is summed over discrete y or integrated over one or two real numbers, not over {domain}; use "
            "partition.ais(model.given(x[:1])), or train with objectives.RankingContrastive"
        )
    dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
    zero = torch.zeros((), dtype=dtype, device=like.device)

    def terms(lines: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """All nodes `(N, n, d)` and the logs of their terms `(N, n)`."""
        y, log_w = product_grid(lines)
        parts = y.split(max(1, _ROWS // n))
        return y, log_w - torch.cat([energies(part.reshape(-1, *domain.shape)).reshape(-1, n) for part in parts])

    if isinstance(domain, Box):
        ends = zip(*(b.expand(domain.shape).flatten() for b in domain.bounds(zero)), strict=True)
        lines = [legendre(low, high, _LEGENDRE[d]) for low, high in ends]
        return torch.logsumexp(terms([(x[:, None].expand(-1, n), w[:, None].expand(-1, n)) for x, w in lines])[1], 0)
    half = isinstance(domain, NonNegative)
    center, scale = zero.new_zeros(d, n), zero.new_ones(d, n)
    for reach in (_SEARCH, _SEARCH, 6.0, _FINAL):
        with torch.no_grad():
            y, log_terms = terms(_moved_lines(center, scale, reach, half))
            center, scale = _center_and_scale(y, torch.softmax(log_terms, 0), half)
    return torch.logsumexp(terms(_moved_lines(center, scale, _FINAL, half))[1], 0)


def _moved_lines(center: Tensor, scale: Tensor, reach: float, half: bool) -> list[tuple[Tensor, Tensor]]:
    """Nodes and log weights along every axis, `(nodes, n)` each, for centers and scales `(d, n)`."""
    nodes = _NODES[len(center)]
    t = torch.linspace(-reach, reach, nodes, dtype=center.dtype, device=center.device)
    step = math.log(2 * reach / (nodes - 1))
    x, log_slope = double_exponential(t) if half else sinh(t)
    return [(c + s * x[:, None], log_slope[:, None] + s.log() + step) for c, s in zip(center, scale, strict=True)]


def _center_and_scale(y: Tensor, p: Tensor, half: bool) -> tuple[Tensor, Tensor]:
    """Center and scale `(d, n)` of the laws p `(N, n)` on the nodes: median and half the distance of two quantiles."""
    center, scale = [], []
    for line in y.unbind(-1):
        low, middle, high = quantiles(line, p)
        spread = torch.maximum(0.5 * (high - low), 1e-4 * (1e-3 + middle.abs()))
        center.append(torch.zeros_like(spread) if half else middle)
        scale.append(middle.clamp(min=1e-30) if half else spread)
    return torch.stack(center), torch.stack(scale)
