"""Schedules are tensors: noise ladders, inverse temperatures, step sizes per step.

>>> geometric(20.0, 1.0, 3)
tensor([20.0000,  4.4721,  1.0000])
>>> linear(0.0, 1.0, 3)
tensor([0.0000, 0.5000, 1.0000])
"""

import math

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError

__all__ = ["cosine", "geometric", "linear", "polynomial", "salakhutdinov", "sigmoid"]


def _count(n: int) -> int:
    if n < 1 or int(n) != n:
        raise ArgumentError(f"a schedule needs a whole number of values, one or more, got n={n}")
    return int(n)


def linear(start: float, end: float, n: int) -> Tensor:
    """n evenly spaced values from start to end."""
    return torch.linspace(start, end, _count(n))


def geometric(start: float, end: float, n: int) -> Tensor:
    """n values from start to end with a constant ratio (a noise ladder)."""
    if start <= 0 or end <= 0:
        raise ArgumentError(f"a geometric schedule needs positive ends, got {start} and {end}")
    return torch.exp(torch.linspace(math.log(start), math.log(end), _count(n), dtype=torch.float64)).to(
        torch.get_default_dtype()
    )


def cosine(start: float, end: float, n: int) -> Tensor:
    """Half a cosine wave from start to end: flat at both ends."""
    t = torch.linspace(0, 1, _count(n))
    return end + (start - end) * 0.5 * (1 + torch.cos(math.pi * t))


def polynomial(start: float, end: float, n: int, power: float = 2.0) -> Tensor:
    """start + (end - start) t^power for t evenly spaced in [0, 1]."""
    if power <= 0:
        raise ArgumentError(f"power must be positive, got {power}")
    return start + (end - start) * torch.linspace(0, 1, _count(n)) ** power


def sigmoid(n: int, delta: float = 4.0) -> Tensor:
    """n inverse temperatures from 0 to 1, dense at both ends (Grosse, Ghahramani & Adams 2015).

    βₖ ∝ σ(δ(2k/n - 1)), shifted and scaled to [0, 1].
    """
    if delta <= 0:
        raise ArgumentError(f"delta must be positive, got {delta}")
    s = torch.sigmoid(torch.linspace(-delta, delta, _count(n)))
    return (s - s[0]) / (s[-1] - s[0]) if n > 1 else torch.ones(1)


def salakhutdinov(n: int) -> Tensor:
    """n inverse temperatures from 0 to 1, in the proportions of Salakhutdinov & Murray (2008).

    500 of 14500 evenly in [0, 0.5], 4000 in [0.5, 0.9], 10000 in [0.9, 1].
    """
    n = _count(n)
    t = torch.linspace(0, 1, n, dtype=torch.float64)
    a, b = 500 / 14500, 4500 / 14500
    betas = torch.where(
        t < a, 0.5 * t / a, torch.where(t < b, 0.5 + 0.4 * (t - a) / (b - a), 0.9 + 0.1 * (t - b) / (1 - b))
    )
    return betas.to(torch.get_default_dtype())
