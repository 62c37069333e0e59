"""Schedules are tensors: noise ladders, inverse temperatures, step sizes per step.

>>> geometric(20.0, 1.0, 3)
tensor([20.0000,  4.4721,  1.0000])
>>> linear(0.0, 1.0, 3)
tensor([0.0000, 0.5000, 1.0000])
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, DataError, check_count, check_number, check_tensor

__all__ = [
    "NoiseLadder", "cosine", "geometric", "largest_distance", "linear", "noise_ladder", "polynomial", "salakhutdinov",
    "sigmoid",
]  # fmt: skip


def _check(schedule: str, n: int, *, low: float = -math.inf, **numbers: float) -> int:
    """The number of values, a whole one, once the numbers that tell the form are finite and above `low`."""
    for name, value in numbers.items():
        check_number(schedule, name, value, low, open_low=True)
    return check_count(schedule, "n", n)


def linear(start: float, end: float, n: int) -> Tensor:
    """n evenly spaced values from start to end."""
    return torch.linspace(start, end, _check("linear", n, start=start, end=end))


def geometric(start: float, end: float, n: int) -> Tensor:
    """n values from start to end with a constant ratio (a noise ladder)."""
    n = _check("geometric", n, low=0.0, start=start, end=end)
    return torch.linspace(math.log(start), math.log(end), n, dtype=torch.float64).exp().to(torch.get_default_dtype())


def cosine(start: float, end: float, n: int) -> Tensor:
    """Half a cosine wave from start to end: flat at both ends."""
    t = torch.linspace(0, 1, _check("cosine", n, start=start, end=end))
    return end + (start - end) * 0.5 * (1 + torch.cos(math.pi * t))


def polynomial(start: float, end: float, n: int, power: float = 2.0) -> Tensor:
    """start + (end - start) t^power for t evenly spaced in [0, 1]."""
    check_number("polynomial", "power", power, open_low=True)
    t = torch.linspace(0, 1, _check("polynomial", n, start=start, end=end))
    return start + (end - start) * t**power


def sigmoid(n: int, delta: float = 4.0) -> Tensor:
    """n inverse temperatures from 0 to 1, dense at both ends (Grosse, Ghahramani & Adams 2015).

    βₖ ∝ σ(δ(2k/n - 1)), shifted and scaled to [0, 1].
    """
    n = _check("sigmoid", n, low=0.0, delta=delta)
    s = torch.sigmoid(torch.linspace(-delta, delta, n))
    return (s - s[0]) / (s[-1] - s[0]) if n > 1 else torch.ones(1)


def salakhutdinov(n: int) -> Tensor:
    """n inverse temperatures from 0 to 1, in the proportions of Salakhutdinov & Murray (2008).

    500 of 14500 evenly in [0, 0.5], 4000 in [0.5, 0.9], 10000 in [0.9, 1].
    """
    n = check_count("salakhutdinov", "n", n)
    t = torch.linspace(0, 1, n, dtype=torch.float64)
    a, b = 500 / 14500, 4500 / 14500
    betas = torch.where(
        t < a, 0.5 * t / a, torch.where(t < b, 0.5 + 0.4 * (t - a) / (b - a), 0.9 + 0.1 * (t - b) / (1 - b))
    )
    return betas.to(torch.get_default_dtype())


def recovery_ladder(levels: int = 6, spread: float = 1.0) -> Tensor:
    """Noise levels σ₁ > ... > σ_L for `objectives.RecoveryLikelihood`, in the proportions of Gao et al. (2021).

    Evenly among the first half of 1000 steps of diffusion whose β grow from 1e-4 to 0.02, in units in which blurred data are
    x + σz: σ² = 1/Π(1 - β) - 1. The paper has six, from 3.4 down to 0.01.

    Args:
        levels: L, at most 501.
        spread: standard deviation of the data.

    >>> recovery_ladder()
    tensor([3.4430, 2.0411, 1.2402, 0.7236, 0.3423, 0.0100])
    """
    check_number("recovery_ladder", "spread", spread, open_low=True)
    levels = check_count("recovery_ladder", "levels", levels, 1, 501)  # more would stand on the same steps
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)
    at = torch.linspace(500, 0, levels, dtype=torch.float64).round().long()
    return (spread * (1 / kept[at] - 1).sqrt()).to(torch.get_default_dtype())


class NoiseLadder(NamedTuple):
    """Noise levels σ₁ > ... > σ_L, and steps and step size of `AnnealedLangevin` that go with them."""

    sigmas: Tensor
    steps_per_level: int
    step_size: float


def noise_ladder(
    data: Tensor,
    *,
    last: float | None = None,
    first: float | None = None,
    steps_per_level: int = 5,
    overlap: float = 0.5,
    rows: int = 4096,
) -> NoiseLadder:
    """The noise ladder, and the Langevin steps on it, that suit some data.

        σ₁ = largest distance between two data: from there every mode reaches every other
        γ = σᵢ/σᵢ₊₁ with Φ(√(2d)(γ - 1) + 3γ) - Φ(√(2d)(γ - 1) - 3γ) = overlap: a draw of one level lies where
            the score of the next was trained
        ε: after T steps at a level the variance of the noise is as near to σᵢ² as it can be,
            (1 - η)^2T (γ² - 2/(2 - η)) + 2/(2 - η) → min,  ε = 2ησ_L²

    ε is the `step_size` of `AnnealedLangevin` here, whose α is twice that of the paper.

    Reference: Song & Ermon 2020, techniques 1, 2 and 4.

    Args:
        data: `(rows, *event)`.
        last: σ_L, how much blur may stay; a hundredth of the range of the data where it is left out.
        first: σ₁ where it is known.
        steps_per_level: T; computed time is T times the number of levels.
        overlap: share of a level's mass within three standard deviations of the next one's.
        rows: of the data, evenly spread, between which distances are taken.

    >>> g = torch.Generator().manual_seed(0)
    >>> ladder = noise_ladder(torch.rand(100, 784, generator=g))
    >>> len(ladder.sigmas), round(float(ladder.sigmas[-1]), 3)
    (92, 0.01)
    """
    from scipy.optimize import brentq, minimize_scalar
    from scipy.stats import norm

    check_tensor(data, "data", "(rows, *event)")
    flat = data.flatten(1) if data.dim() > 1 else data[None]
    if len(flat) < 2 or not bool(torch.isfinite(flat).all()):
        raise DataError(f"a noise ladder needs at least two finite data, got shape {tuple(data.shape)}")
    d = flat.shape[1]
    for name, value in (("first", first), ("last", last)):
        if value is not None:
            check_number("noise_ladder", name, value, open_low=True)
    rows = check_count("noise_ladder", "rows", rows)
    high = largest_distance(flat[:: max(1, len(flat) // rows)]) if first is None else first
    low = 0.01 * float(flat.max() - flat.min()) if last is None else last
    if not 0 < low < high:
        raise ArgumentError(f"a noise ladder descends from {high:g} to {low:g}; give first > last > 0")
    check_number("noise_ladder", "overlap", overlap, 0.0, 1.0, open_low=True, open_high=True)
    steps = check_count("noise_ladder", "steps_per_level", steps_per_level)
    width = math.sqrt(2 * d)

    def excess(ratio: float) -> float:
        far = width * (ratio - 1)
        return float(norm.cdf(far + 3 * ratio) - norm.cdf(far - 3 * ratio)) - overlap

    # in few dimensions three standard deviations of the next level reach over the whole of this one
    ratio = brentq(excess, 1.0, 100.0) if excess(1.0) > 0 > excess(100.0) else 2.0
    ratio = min(ratio, 2.0)
    levels = max(2, math.ceil(math.log(high / low) / math.log(ratio)) + 1)
    sigmas = geometric(high, low, levels)
    gamma = (high / low) ** (1 / (levels - 1))

    def left(log_eta: float) -> float:
        eta = math.exp(log_eta)
        return (1 - eta) ** (2 * steps) * (gamma**2 - 2 / (2 - eta)) + 2 / (2 - eta)

    grid = torch.linspace(math.log(1e-6), math.log(0.999), 400, dtype=torch.float64).tolist()
    best = min(range(1, len(grid) - 1), key=lambda i: left(grid[i]))
    eta = math.exp(minimize_scalar(left, bounds=(grid[best - 1], grid[best + 1]), method="bounded").x)
    return NoiseLadder(sigmas, steps, 2 * eta * low**2)


def largest_distance(rows: Tensor, block: int = 1024) -> float:
    """The largest Euclidean distance between two rows."""
    return max(float(torch.cdist(part, rows).max()) for part in rows.split(block))
