"""How well a sample fits an energy whose partition function is unknown: the kernel Stein discrepancy."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gibbsian.distributed.world import World
from gibbsian.domains import Real
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, DataError, DomainError, ShapeError, check_number
from gibbsian.metrics.two_sample import (
    Sample,
    as_rows,
    median_distance,
    precision,
    squared_distances,
    sum_over_tiles,
    whole,
)
from gibbsian.placement import check_rows


def _imq(q: Tensor, c: float, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """φ(q) = (1 + q/c²)^β and its two derivatives."""
    base = 1 + q / c**2
    k = base.pow(beta)
    first = beta / c**2 * k / base
    return k, first, (beta - 1) / c**2 * first / base


def _rbf(q: Tensor, c: float, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """φ(q) = exp(-q/2c²) and its two derivatives."""
    k = torch.exp(q * (-0.5 / c**2))
    return k, -0.5 / c**2 * k, 0.25 / c**4 * k


_KERNELS = {"imq": _imq, "rbf": _rbf}


_BLOCK = 1024  # rows whose scores are computed at once


def _scores(x: Tensor, model: Any, world: World) -> Tensor:
    if isinstance(model, Energy | ScoreField):
        if not isinstance(model.domain, Real):
            raise DomainError(
                f"kernel_stein_discrepancy needs a density on all of R^d, this one lives on {model.domain}; "
                "map a bounded law with gibbsian.unconstrained, compare discrete ones with mmd"
            )
        check_rows(model, x)
        score = world.collect(x.split(_BLOCK), lambda part: model.score(part).detach())
    elif isinstance(model, Tensor):
        score = model
    elif callable(model):
        score = model(x)
    else:
        raise ArgumentError(f"expected an energy, a score function or scores at x, not a {type(model).__name__}")
    if score.shape != x.shape:
        raise ShapeError(f"the scores have shape {tuple(score.shape)}, expected that of x, {tuple(x.shape)}")
    if not bool(torch.isfinite(score).all()):
        bad = int((~torch.isfinite(score)).flatten(1).any(1).sum())
        raise DataError(f"the scores of {bad} of {len(x)} rows are not finite; check the energy at these rows")
    return score.detach().flatten(1).double()


def kernel_stein_discrepancy(
    x: Sample,
    energy: Energy | ScoreField | Tensor | Callable[[Tensor], Tensor],
    *,
    kernel: str = "imq",
    bandwidth: float | None = None,
    beta: float = -0.5,
    unbiased: bool = True,
    world: World | None = None,
) -> Tensor:
    """Squared kernel Stein discrepancy of a sample from p ∝ exp(-E), with no need of Z or of draws from p.

        KSD² = E u(x, x'),   u = s·s' φ - 2(s - s')·(x - x') φ' - 2d φ' - 4q φ'',   q = ‖x - x'‖²

    with s the score and k(x, x') = φ(q): (1 + q/c²)^β for "imq", exp(-q/2c²) for "rbf". It is zero when x
    follows p and positive otherwise; the inverse multiquadric also sees samples that do not converge in the
    tails. Blind to the weights of well separated modes, since the score is. The unbiased U-statistic averages
    to KSD² and may be negative; the V-statistic is never negative.

    Reference: Liu, Lee & Jordan 2016; Chwialkowski, Strathmann & Gretton 2016; Gorham & Mackey 2017.

    Args:
        x: sample `(n, *event)`.
        energy: an energy or score field over Real, a function that returns scores, or the scores at x.
        kernel: "imq" or "rbf".
        bandwidth: c; the median distance of x when left out.
        beta: exponent of the inverse multiquadric, between -1 and 0.
        unbiased: U-statistic, else V-statistic.
        world: processes that share the work, `distributed.join()[0]`: all make the same call.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    >>> x = target.sample(500, generator=g)
    >>> bool(kernel_stein_discrepancy(x, target) < 0.05 < kernel_stein_discrepancy(x + 1, target))
    True
    """
    if kernel not in _KERNELS:
        raise ArgumentError(f"kernel={kernel!r}: expected one of {sorted(_KERNELS)}")
    check_number("kernel_stein_discrepancy", "beta", beta, -1.0, 0.0, open_low=True, open_high=True)
    world = world or World()
    x = whole(x, world)
    points = as_rows(x, "x")
    if bandwidth is not None:
        check_number("kernel_stein_discrepancy", "bandwidth", bandwidth, open_low=True)
    c = median_distance(x) if bandwidth is None else float(bandwidth)
    s = _scores(x, energy, world)
    points = points - points.mean(0)
    n, d = points.shape
    own = (s * points).sum(1)

    def sums(rows: slice, columns: slice) -> Tensor:
        (x1, s1), (x2, s2) = (points[rows], s[rows]), (points[columns], s[columns])
        q = squared_distances(x1, x2)
        k, first, second = _KERNELS[kernel](q, c, beta)
        across = own[rows, None] + own[columns] - s1 @ x2.T - x1 @ s2.T  # (s - s')·(x - x')
        u = (s1 @ s2.T) * k - 2 * first * (across + d) - 4 * q * second
        if rows == columns and unbiased:
            u.diagonal().zero_()
        return u.sum() * (1 if rows == columns else 2)  # a tile above the diagonal has a mirror image

    total = sum_over_tiles(n, sums, world)
    return (total / (n * (n - 1) if unbiased else n * n)).to(precision(x))
