"""Descent to minima, every row on its own: L-BFGS with a line search, and steepest descent.

u ← u + t d,   d = -H∇E(u),   H from the last steps and the changes of the gradient along them (Nocedal 1980)
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.errors import DivergenceError

_PAIRS = 10, 100, 1 << 24  # steps that H is made of: at least, at most, and what so many numbers hold
_TRIES = 40  # points that a line search looks at
_ENOUGH = 1e-4  # share of the fall that the slope promises which a step must bring
_FLATTER = 0.9  # share of the slope that may be left after it


class Place(NamedTuple):
    """Points u `(rows, numel)`, their energies `(rows,)` and gradients in u."""

    u: Tensor
    energy: Tensor
    gradient: Tensor

    def or_else(self, other: "Place", take: Tensor) -> "Place":
        """The other's rows where `take`."""
        row = take[:, None]
        return Place(
            torch.where(row, other.u, self.u),
            torch.where(take, other.energy, self.energy),
            torch.where(row, other.gradient, self.gradient),
        )


class Pair(NamedTuple):
    """A step s, the change y of the gradient along it, and 1/(s·y), 0 for rows that it teaches nothing."""

    s: Tensor
    y: Tensor
    rho: Tensor


Look = Callable[[Tensor], Place]
Reach = Callable[
    [Tensor, Tensor], Tensor
]  # (u, d) -> how far d moves x, per row, in units of its largest entry or of 1


class Rest(NamedTuple):
    """What a row must show to be called at rest: no entry of its gradient above the tolerance (or above what rounding leaves
    of it), and a next step that would not move it."""

    tolerance: float
    reach: Reach

    def __call__(self, here: Place, d: Tensor, curvature: Tensor) -> Tensor:
        """Bool, per row."""
        rounding = 8 * torch.finfo(here.u.dtype).eps * curvature * here.u.abs().amax(1)
        flat = here.gradient.abs().amax(1) <= self.tolerance + rounding
        return flat & (self.reach(here.u, d) <= math.sqrt(self.tolerance))


def lbfgs(look: Look, u: Tensor, steps: int, rest: Rest) -> tuple[Place, Tensor]:
    """Every row to where its gradient vanishes, or as far as `steps` lead; and which of them are at rest."""
    here = look(u)
    curvature = bend(look, here)
    pairs: list[Pair] = []
    stuck = torch.zeros_like(here.energy, dtype=torch.bool)
    for _ in range(steps):
        d = _direction(here, pairs, curvature)
        going = ~(stuck | rest(here, d, curvature))
        if not bool(going.any()):
            break
        there, moved = _line_search(look, here, torch.where(going[:, None], d, 0.0))
        pairs, curvature, fresh = _learn(pairs, curvature, here, there, going & ~moved)
        stuck |= going & ~moved & fresh
        here = there
    return here, rest(here, _direction(here, pairs, curvature), curvature)


def _learn(
    pairs: list[Pair], curvature: Tensor, here: Place, there: Place, lost: Tensor
) -> tuple[list[Pair], Tensor, Tensor]:
    """The pairs with one more, the curvature along it, and the rows that knew no pair. Rows that are lost, for which there was
    no way down, forget theirs: straight down there may be one."""
    fresh = torch.ones_like(lost)
    for pair in pairs:
        fresh = fresh & (pair.rho == 0)
    s, y = there.u - here.u, there.gradient - here.gradient
    length, change, along = s.norm(dim=1), y.norm(dim=1), (s * y).sum(1)
    secant = torch.where(length > 0, change / length, curvature)
    sound = torch.isfinite(along) & torch.isfinite(change) & (along > 1e-10 * length * change)
    curvature = torch.where(sound, change * (change / along), torch.where(torch.isfinite(secant), secant, 0.0))
    fewest, most, numbers = _PAIRS
    most = max(fewest, min(most, numbers // s.numel()))
    kept = [pair._replace(rho=torch.where(lost, 0.0, pair.rho)) for pair in pairs[1 - most :]]
    kept.append(Pair(s, y, torch.where(sound, 1 / along, 0.0)))
    return kept, curvature, fresh


def _direction(here: Place, pairs: list[Pair], curvature: Tensor) -> Tensor:
    """-H∇E by the two loops of L-BFGS."""
    q, shares = here.gradient, []
    for s, y, rho in reversed(pairs):
        share = rho * (s * q).sum(1)
        q = torch.addcmul(q, share[:, None], y, value=-1.0)
        shares.append(share)
    q = downhill(here._replace(gradient=q), curvature)
    for (s, y, rho), share in zip(pairs, reversed(shares), strict=True):
        q = torch.addcmul(q, (-share - rho * (y * q).sum(1))[:, None], s)
    return q


def bend(look: Look, here: Place) -> Tensor:
    """The curvature of every row a little way down its slope; 0 where it shows none."""
    size, wide = _largest(here.gradient), _largest(here.u).clamp(min=1)
    there = look(here.u - (1e-3 * wide / torch.where(size > 0, size, 1.0))[:, None] * here.gradient)
    change, move = _largest(there.gradient - here.gradient), _largest(there.u - here.u)
    seen = torch.isfinite(change) & (change > 1e3 * torch.finfo(size.dtype).eps * size) & (move > 0)
    return torch.where(seen, change / torch.where(seen, move, 1.0), 0.0)


def downhill(here: Place, curvature: Tensor) -> Tensor:
    """-∇E over the curvature; where that is unknown, a step of a tenth of the row's largest entry, or of 1."""
    wide, size = _largest(here.u).clamp(min=1), _largest(here.gradient)
    unknown = 0.1 * wide / torch.where(size > 0, size, 1.0)
    return -here.gradient * torch.where(curvature > 0, 1 / curvature, unknown)[:, None]


def _largest(t: Tensor) -> Tensor:
    return t.abs().amax(1)


def _line_search(look: Look, here: Place, d: Tensor) -> tuple[Place, Tensor]:
    """A point for every row along d that lies lower and is less steep (the weak Wolfe conditions), and which rows found one.

    Where energies differ by no more than their rounding the slopes decide (Hager & Zhang 2005): so the gradient can be
    followed to the end though a large constant hides what a step gains.
    """
    slope = (here.gradient * d).sum(1)
    rounding = 8 * torch.finfo(d.dtype).eps * here.energy.abs()
    found, going = here, slope < 0
    moved = torch.zeros_like(going)
    t, low, high = torch.ones_like(slope), torch.zeros_like(slope), torch.full_like(slope, torch.inf)
    low_slope, high_slope = slope, torch.full_like(slope, torch.nan)
    for _ in range(_TRIES):
        if not bool(going.any()):
            break
        there = look(here.u + torch.where(going, t, 0.0)[:, None] * d)
        if bool((there.energy == -torch.inf).any()):
            raise DivergenceError("the energy falls without end: it has no minimum to go to; confine it")
        now = (there.gradient * d).sum(1)
        gain = here.energy - there.energy
        fine = (gain >= -_ENOUGH * t * slope) | ((gain >= -rounding) & (now <= (2 * _ENOUGH - 1) * slope))
        fine &= torch.isfinite(there.energy) & torch.isfinite(now)
        take, far = going & fine, now >= _FLATTER * slope
        found, moved = found.or_else(there, take), moved | take
        low, low_slope = torch.where(take, t, low), torch.where(take, now, low_slope)
        high, high_slope = torch.where(fine, high, t), torch.where(fine, high_slope, now)
        going = going & ~(take & far)
        t = torch.where(torch.isinf(high), 4 * t, _between(low, low_slope, high, high_slope))
    return found, moved


def _between(low: Tensor, low_slope: Tensor, high: Tensor, high_slope: Tensor) -> Tensor:
    """Where the slope would vanish if it were linear, not too near to either end; the middle where that is unknown."""
    share = low_slope / (low_slope - high_slope)
    share = torch.where(torch.isfinite(share) & (high_slope > 0), share, 0.5).clamp(0.1, 0.9)
    return low + share * (high - low)


def steepest(look: Look, u: Tensor, steps: int, at_rest: Callable[[Place], Tensor]) -> tuple[Place, Tensor]:
    """Straight down: each row accepts what lowers its energy, and lengthens or shortens its own step; `look` keeps the walls.
    Whether all rows are at rest is looked at now and then."""
    here = look(u)
    first = _largest(downhill(here, bend(look, here)))
    step = first / torch.where(first > 0, _largest(here.gradient), 1.0)
    for k in range(steps):
        if k % 25 == 0 and bool(at_rest(here).all()):
            break
        there = look(here.u - step[:, None] * here.gradient)
        move = there.u - here.u
        rounding = 8 * torch.finfo(u.dtype).eps * here.energy.abs()
        before, after = (here.gradient * move).sum(1), (there.gradient * move).sum(1)
        flat = (there.energy <= here.energy + rounding) & (after.abs() < before.abs())
        better = (there.energy < here.energy) | flat
        here, step = here.or_else(there, better), torch.where(better, 1.5 * step, 0.5 * step)
    return here, at_rest(here)
