"""Points over which the maximum-entropy dual is summed: all states, or the nodes of a quadrature that follows the law.

Real axes: x = c + s·sinh(t), half-lines: x = s·exp(t), both with the trapezoidal rule; boxes: Gauss-Legendre.
"""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from gibbsian.domains import Box, Counts, Discrete, NonNegative, Real
from gibbsian.energies.exponential import ExponentialFamily
from gibbsian.errors import ArgumentError, DomainError, EstimateWarning, InfeasibleError
from gibbsian.maxent.dual import Points, Problem, Solution, least_violation, log_law, minimize_dual
from gibbsian.quadrature import exponential, legendre, product_grid, quantiles, sinh

MOST_NUMBERS = 1 << 26  # features of all points together: half a gigabyte
_STEP = {1: 0.04, 2: 0.12, 3: 0.3}  # spacing in t
_COARSE = {1: 0.1, 2: 0.35, 3: 0.8}  # while the scale is looked for
_REACH = (6.0, 9.0, 13.0, 18.0, 25.0)  # ends of the range in t, widened while there is mass at them
_LEGENDRE = {1: 400, 2: 100, 3: 36}
_SCALES = (1.0, 10.0, 0.1, 100.0, 0.01, 1e3, 1e-3, 1e4, 1e-4)


def enumerated(family: ExponentialFamily) -> Points:
    """All states of a discrete domain; of counts, with the number of their orders."""
    domain = family.domain
    if not isinstance(domain, Discrete | Counts):
        raise DomainError(f"{domain} has no states to enumerate; use method='quadrature' or 'monte carlo'")
    x = domain.states(dtype=torch.float64)
    log_w = domain.log_orders(x) if isinstance(domain, Counts) else torch.zeros(len(x), dtype=torch.float64)
    f = torch.cat([family.features(part).double() for part in x.split(1 << 14)])
    if f.numel() > MOST_NUMBERS:
        raise DomainError(f"{domain} with {f.shape[1]} features is too large for a sum; use method='monte carlo'")
    return Points(f, log_w)


class Nodes:
    """A grid on R^d, a half-line or a box that can be moved, scaled and widened."""

    def __init__(self, family: ExponentialFamily, bounds: Sequence[tuple[float, float]] | None) -> None:
        self.family, domain = family, family.domain
        self.d = domain.numel
        if self.d > 3 or not isinstance(domain, Real | Box | NonNegative):
            raise DomainError(f"quadrature needs Real, Box or NonNegative with at most three numbers, not {domain}")
        self.box: Tensor | None = None
        if isinstance(domain, Box):
            low, high = domain.bounds(torch.zeros(1, dtype=torch.float64))
            self.box = torch.stack([low.expand(domain.shape).flatten(), high.expand(domain.shape).flatten()], 1)
        if bounds is not None:
            self.box = torch.as_tensor(bounds, dtype=torch.float64)
            if self.box.shape != (self.d, 2) or not bool((self.box[:, 0] < self.box[:, 1]).all()):
                raise ArgumentError(f"bounds={bounds}: give (low, high) with low < high for each of {self.d} axes")
        self.half = isinstance(domain, NonNegative)
        self.center = torch.zeros(self.d, dtype=torch.float64)
        self.scale = torch.ones(self.d, dtype=torch.float64)

    def axis(self, i: int, reach: float, step: float, more: int) -> tuple[Tensor, Tensor]:
        """Positions and log weights along axis i."""
        if self.box is not None:
            low, high = self.box[i]
            return legendre(low, high, more * _LEGENDRE[self.d])
        if self.half:
            t = torch.linspace(-36, reach, round((36 + reach) * more / step), dtype=torch.float64)
            x, log_slope = exponential(t)
        else:
            t = torch.linspace(-reach, reach, 2 * round(reach * more / step) + 1, dtype=torch.float64)
            x, log_slope = sinh(t)
        log_w = log_slope + self.scale[i].log() + math.log(float(t[1] - t[0]))
        return self.center[i] + self.scale[i] * x, log_w

    def points(self, reach: float, step: float, more: int = 1) -> tuple[Tensor, Points, Tensor]:
        """Positions `(N, d)`, points, and which of them lie at an end that could be moved further."""
        axes = [self.axis(i, reach, step, more) for i in range(self.d)]
        x, log_w = product_grid(axes)
        edge = torch.zeros(len(x), dtype=torch.bool)
        if self.box is None:
            for i, (line, _) in enumerate(axes):
                edge |= x[:, i] >= line[-2]
                if not self.half:
                    edge |= x[:, i] <= line[1]
        shape = self.family.domain.shape
        f = torch.cat([self.family.features(part.reshape(-1, *shape)).double() for part in x.split(1 << 15)])
        return x, Points(f, log_w), edge

    def follow(self, x: Tensor, p: Tensor) -> None:
        """Center and scale to where a law on the nodes has its mass: median and quartiles."""
        for i in range(self.d):
            low, middle, high = (float(q) for q in quantiles(x[:, i], p))
            if self.half:
                self.scale[i] = max(middle, 1e-300)
            else:
                self.center[i] = middle
                self.scale[i] = max(0.5 * (high - low), 1e-12 * (1 + abs(middle)))


def solve_by_quadrature(
    family: ExponentialFamily, problem: Problem, bounds: Sequence[tuple[float, float]] | None
) -> Solution:
    """The law of maximum entropy on a line, a plane or in space, on a grid that is fitted to it."""
    nodes = Nodes(family, bounds)
    step = _STEP[nodes.d]
    _find_scale(nodes, problem.mu, problem.slack)
    reach = _REACH[0]
    x, points, edge = nodes.points(reach, step)
    found = minimize_dual(points, problem._replace(tolerance=1e-6))
    if nodes.box is None:
        for _ in range(4):  # to where the mass is
            nodes.follow(x, log_law(points, found.eta)[1])
            x, points, edge = nodes.points(reach, step)
            found = minimize_dual(points, problem._replace(start=found.eta, tolerance=1e-6))
        for reach in _REACH:
            x, points, edge = nodes.points(reach, step)
            found = minimize_dual(points, problem._replace(start=found.eta))
            p = log_law(points, found.eta)[1]
            if float(p[edge].sum()) < 1e-13:
                break
        else:
            _refuse_unattained(points, edge, found.eta)
    return _refined(nodes, reach, step, problem, found)


def _refined(nodes: Nodes, reach: float, step: float, problem: Problem, found: Solution) -> Solution:
    """The same on twice as many nodes: both must agree."""
    _, points, _ = nodes.points(reach, step, 2)
    p = log_law(points, found.eta)[1]
    spread = (p @ (points.f - p @ points.f).square()).sqrt()
    finer = minimize_dual(points, problem._replace(start=found.eta))
    off = float(((finer.eta - found.eta) * spread).abs().max())
    if off > 1e-4:
        warnings.warn(
            f"halving the spacing of the quadrature moves η by {off:.2g} standard units; say where the mass is with "
            "bounds=[(low, high), ...]",
            EstimateWarning,
            stacklevel=4,
        )
    missed = (finer.moments - problem.mu).abs()
    good = bool((missed <= problem.slack + 1e-6 * spread).all())  # as far as rounding lets a wide grid come
    return finer._replace(converged=finer.converged or good)


def _find_scale(nodes: Nodes, mu: Tensor, slack: float) -> None:
    """A grid on which some law has the moments: the usual scales first, then ever finer where they come closest."""
    step, best = _COARSE[nodes.d], (math.inf, torch.zeros(1), torch.zeros(1))
    scales = _SCALES if nodes.box is None else (1.0,)
    for k in range(len(scales) + (12 if nodes.box is None and not nodes.half else 0)):
        if k < len(scales):
            nodes.scale.fill_(scales[k])
        else:
            _, x, p = best
            nodes.center = p @ x
            spread = (p @ (x - nodes.center).square()).sqrt()
            nearest = (x - nodes.center).abs().amax(1).sort().values[1]
            nodes.scale = torch.maximum(spread, nearest / 4).clamp(min=1e-12)
        x, points, _ = nodes.points(5.0, step)
        violation, p = least_violation(points, mu, slack)
        if violation < 1e-9:
            return
        best = min(best, (violation, x, p), key=lambda found: found[0])
    raise InfeasibleError(
        f"no density on {nodes.family.domain} was found with these moments: the nearest misses them by {best[0]:.2g}; "
        "correct them, allow slack=, or say where a narrow mass is with bounds=[(low, high), ...]"
    )


def _refuse_unattained(points: Points, edge: Tensor, eta: Tensor) -> None:
    """There is mass at the ends however far they are: the supremum of the entropy is not attained."""
    logits = points.f @ eta
    if float(logits[edge].max()) > float(logits[~edge].quantile(0.01) if len(logits) < 1 << 23 else logits.median()):
        raise InfeasibleError(
            "no density of maximum entropy has these moments: exp(η·f) grows without end for every η that comes near "
            "them, so the supremum is not attained (as for a skewness without a fourth moment); add a feature that "
            "confines x, or use domains.Box"
        )
