"""Partition functions by quadrature, in one to three dimensions.

    log Z = log ∫ exp(-E(x)) dx ≈ log Σ_k h^d exp(-E(x(t_k))) |∂x/∂t|,   x(t) = c + L sinh(t)

The trapezoidal rule on the whole line converges exponentially for smooth integrands, and under x = sinh(t)
both Gaussian and polynomial tails decay fast in t. Box and half-line are pulled back to the line first, where
walls and endpoint singularities turn into tails too.
"""

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gibbsian.domains import Bounded, Box, Discrete, Real
from gibbsian.energy import Energy, FunctionEnergy, Unconstrained
from gibbsian.errors import ArgumentError, DivergenceError, DomainError, EstimateWarning, check_count, check_number
from gibbsian.partition.base import LogZ, refuse_nan, require_one_law
from gibbsian.placement import placement
from gibbsian.quadrature import sinh, uniform_grid

_COARSE = {1: 401, 2: 81, 3: 33}  # nodes on an axis while the mass is looked for
_FIRST = {1: 129, 2: 65, 3: 33}  # nodes on an axis of the first refinement
_EDGE = -39.0  # log of the density at the ends of the range, relative to its maximum
_FARTHEST = 300.0  # sinh(300) ≈ 1e130 scales away from the center
_MODES = 64  # local maxima followed
_ROWS = 1 << 15


def quadrature(
    energy: Energy,
    bounds: Sequence[tuple[float, float]] | None = None,
    points: int | None = None,
    *,
    tolerance: float = 1e-8,
    limit: int = 1 << 23,
) -> LogZ:
    """log Z of a continuous energy in up to three dimensions, with an error from halving the spacing.

    The mass is found by itself: modes are climbed to from a wide grid, a robust center c and scale L of the
    whole are fitted, and the range grows until the density at its ends is negligible. The number of nodes is
    doubled until two refinements agree within `tolerance`, or `limit` evaluations are reached, with a
    warning. Smooth energies converge to rounding, kinks and jumps slowly, and a peak without slopes can be
    missed, as in any quadrature. In higher dimensions use `ais`.

    Reference: Trefethen & Weideman 2014 (the trapezoidal rule); Takahasi & Mori 1974 (transformations).

    Args:
        energy: over Real, Box or NonNegative with at most three numbers in an event.
        bounds: integrate only over this box, one (low, high) for each axis.
        points: nodes on each axis, instead of refining.
        tolerance: wanted error of log Z.
        limit: most energy evaluations of one refinement.

    Returns:
        `lower` and `upper` are the value ± the difference between the last two refinements.

    >>> import gibbsian as gb
    >>> quartic = gb.as_energy(lambda x: (x**4).sum(-1), gb.domains.Real(1))
    >>> quadrature(quartic).value  # log 2Γ(5/4)
    tensor(0.5949, dtype=torch.float64)
    """
    require_one_law(energy)
    density = _LogDensity(energy, bounds)
    if points is not None:
        points = check_count("quadrature", "points", points, 3)
    check_number("quadrature", "tolerance", tolerance)
    check_number("quadrature", "limit", limit, 1)
    with torch.no_grad():
        center, scale, modes, width = _find_mass(density)
        low, high = _find_range(density, center, scale, modes)
        if points is None:
            first = _first_nodes(density.dim, _enough(center, scale, modes, width, low, high), limit)
        else:
            first, limit = points + 1 - points % 2, 0  # odd, so that every other node is a grid too; nothing is refined
        fine, error, n = _refined(density, center, scale, low, high, first, tolerance, limit)
    refuse_nan(fine, "the integral")
    if float(error) > tolerance:
        warnings.warn(
            f"quadrature with {n} nodes on each of {density.dim} axes is only good to {float(error):.2g} nats (tolerance "
            f"{tolerance:g}); raise limit= or points=, or narrow it with bounds=",
            EstimateWarning,
            stacklevel=2,
        )
    diagnostics = {
        "points": n,
        "evaluations": n**density.dim,
        "converged": float(error) <= tolerance,
        "center": center,
        "scale": scale,
    }
    return LogZ(fine, error, fine - error, fine + error, "quadrature", diagnostics).of(energy)


class _LogDensity:
    """-E on all of R^d for a flat argument, walls transformed away, in float64."""

    def __init__(self, energy: Energy, bounds: Sequence[tuple[float, float]] | None) -> None:
        self.dtype, self.device = placement(energy)
        self.shape, self.dim = energy.domain.shape, energy.domain.numel
        if isinstance(energy.domain, Discrete):
            raise DomainError(
                f"quadrature integrates over real numbers, this energy lives on {energy.domain}; use partition.exact"
            )
        if self.dim > 3:
            raise DomainError(
                f"quadrature works in up to three dimensions, {energy.domain} has {self.dim}; use partition.ais"
            )
        if bounds is not None:
            energy = FunctionEnergy(energy, self._box(energy, bounds))
        if not isinstance(energy.domain, Real | Bounded):
            raise DomainError(f"quadrature knows Real, Box and NonNegative, this energy lives on {energy.domain}")
        self.energy = Unconstrained(energy) if isinstance(energy.domain, Bounded) else energy

    def _box(self, energy: Energy, bounds: Sequence[tuple[float, float]]) -> Box:
        ends = torch.as_tensor(bounds, dtype=torch.float64)
        if ends.shape != (self.dim, 2):
            raise ArgumentError(
                f"bounds have shape {tuple(ends.shape)}, expected ({self.dim}, 2): (low, high) for every axis"
            )
        low, high = ends.T.reshape(2, *self.shape)
        if not bool(energy.domain.contains(torch.stack([low, high])).all()):
            raise DomainError(f"bounds {ends.tolist()} reach outside {energy.domain}")
        return Box(self.shape, low, high)

    def probe(self, x: Tensor) -> Tensor:
        """The log density at points that are only tried out: -∞, so never gone to, where it overflows, to NaN or to +∞."""
        value = -self.energy(x.to(self.dtype).reshape(-1, *self.shape)).double()
        return torch.where(value < math.inf, value, -math.inf)

    def __call__(self, x: Tensor) -> Tensor:
        value = -self.energy(x.to(self.dtype).reshape(-1, *self.shape)).double()
        bad = ~(value < math.inf)
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            what = "NaN" if bool(value[first].isnan()) else "-∞"
            raise DivergenceError(
                f"the energy is {what} at {x[first].tolist()} (unbounded coordinates); restrict it with bounds="
            )
        return value


def _pulled(density: Callable[[Tensor], Tensor], center: Tensor, scale: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """u = sinh(t) and the log of the integrand in t, log|∂x/∂t| included."""
    u, log_cosh = sinh(t)
    return u, density(center + u @ scale.T) + log_cosh.sum(1) + scale.diagonal().log().sum()


def _find_modes(density: _LogDensity, n: int, reach: float) -> tuple[Tensor, Tensor, Tensor]:
    """Local maxima of the density, climbed to from those of a wide grid by a compass search (a step along every axis,
    to the best, doubled on success and halved on failure): positions, log heights, and per axis the distance at which
    the log density has fallen by one."""
    d, device = density.dim, density.device
    ends = torch.full((d,), reach, dtype=torch.float64, device=device)
    x = torch.cat([torch.sinh(t) for _, t in uniform_grid(-ends, ends, n, _ROWS)])
    f = torch.cat([density.probe(part) for part in x.split(_ROWS)])
    if not bool((f > -math.inf).any()):
        raise DivergenceError("the energy is +∞ at every node of the search grid; say where the mass is with bounds=")
    grid = f.reshape(1, 1, *[n] * d)
    pool = (torch.nn.functional.max_pool1d, torch.nn.functional.max_pool2d, torch.nn.functional.max_pool3d)[d - 1]
    peaks = ((grid == pool(grid, 3, stride=1, padding=1)) & (grid > -math.inf)).flatten().nonzero().flatten()
    peaks = peaks[f[peaks].argsort(descending=True)[:_MODES]]
    x, f = x[peaks], f[peaks]
    step = 2 * reach / (n - 1) * torch.sqrt(1 + x.square()).amax(1)
    axes = torch.eye(d, dtype=torch.float64, device=device)
    directions = torch.cat([axes, -axes])
    for _ in range(300):
        trial = x[:, None] + step[:, None, None] * directions
        best, which = density.probe(trial.reshape(-1, d)).reshape(-1, 2 * d).max(1)
        climbed = best > f
        x = torch.where(climbed[:, None], trial[torch.arange(len(x), device=device), which], x)
        f = torch.where(climbed, best, f)
        step = torch.where(climbed, 2 * step, step / 2)
        if not bool((x.abs() < 1e15).all()):
            raise DivergenceError("the energy falls without end far from the origin: exp(-E) is not normalizable")
        if bool((step < 1e-9 * (1e-6 + x.abs().amax(1))).all()):
            break
    width = torch.full_like(x, 1e-9) * (1e-6 + x.abs().amax(1, keepdim=True))
    for _ in range(100):
        fall = f[:, None] - density.probe((x[:, None] + width[:, None] * axes).reshape(-1, d)).reshape(-1, d)
        width = torch.where(fall < 1, 1.5 * width, width)
    return x, f, width


def _find_mass(density: _LogDensity) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A center and a triangular scale for the whole mass, those of a multivariate t with 3 degrees of freedom fitted to
    the modes and then to the density on a coarse grid (whose own spacing is the least spread it can see) until they
    settle; and the modes that matter with their widths."""
    d, device = density.dim, density.device
    n, reach = _COARSE[d], 6.0
    modes, height, width = _find_modes(density, n, reach)
    mass = height + width.log().sum(1)
    matter = mass > mass.max() - 20
    modes, mass, width = modes[matter], mass[matter], width[matter]
    ends = torch.full((d,), reach, dtype=torch.float64, device=device)
    t = torch.cat([t for _, t in uniform_grid(-ends, ends, n, _ROWS)])
    center = torch.softmax(mass, 0) @ modes
    scale = torch.diag((torch.softmax(mass, 0) @ (width.square() + (modes - center).square())).sqrt())
    for _ in range(100):
        parts = [_pulled(density.probe, center, scale, part) for part in t.split(_ROWS)]
        at_modes = torch.linalg.solve_triangular(scale, (modes - center).T, upper=False).T
        u = torch.cat([*(u for u, _ in parts), at_modes])
        p = torch.softmax(torch.cat([*(w for _, w in parts), mass - math.log(2 * reach / (n - 1)) * d]), 0)
        pull = p * (3 + d) / (3 + u.square().sum(1))
        mean = (pull @ u) / pull.sum()
        spacing = 2 * reach / (n - 1) * torch.sqrt(1 + mean.square())
        root = torch.linalg.cholesky((pull[:, None] * (u - mean)).T @ (u - mean) + torch.diag(spacing.square() / 12))
        center, scale = center + scale @ mean, scale @ root
        if bool((mean.abs() < 0.1).all()) and bool((root.diagonal().log().abs() < 0.1).all()):
            break
        if not bool((scale.diagonal() < 1e15).all()):
            raise DivergenceError("the mass spreads without end: exp(-E) is not normalizable; restrict it with bounds=")
    return center, scale, modes, width


def _enough(center: Tensor, scale: Tensor, modes: Tensor, width: Tensor, low: Tensor, high: Tensor) -> int:
    """Nodes on an axis that put one in every width of every mode."""
    u = torch.linalg.solve_triangular(scale, (modes - center).T, upper=False).T
    stretch = scale.abs().sum(1) * torch.sqrt(1 + u.square()).amax(1, keepdim=True)  # |dx/dt| at most
    return int((stretch / width).max() * (high - low).max()) + 1


def _find_range(density: _LogDensity, center: Tensor, scale: Tensor, modes: Tensor) -> tuple[Tensor, Tensor]:
    """The range of t on every axis that holds all modes and outside which the density is negligible."""
    d, n = density.dim, _COARSE[density.dim]
    at_modes = torch.asinh(torch.linalg.solve_triangular(scale, (modes - center).T, upper=False).T)
    low = (at_modes.amin(0) - 0.5).clamp(max=-2.5)
    high = (at_modes.amax(0) + 0.5).clamp(min=2.5)
    while True:
        parts = [_pulled(density.probe, center, scale, t)[1] for _, t in uniform_grid(low, high, n, _ROWS)]
        grid = torch.cat(parts).reshape((n,) * d)
        open_ends = False
        for axis in range(d):
            profile = torch.logsumexp(grid.movedim(axis, 0).reshape(n, -1), 1) if d > 1 else grid
            bar = profile.max() + _EDGE
            for ends, edge, sign in ((low, profile[0], -1), (high, profile[-1], 1)):
                if float(edge) > float(bar):
                    ends[axis] += sign * max(0.5, 0.1 * abs(float(ends[axis])))
                    open_ends = True
        if not open_ends:
            return low, high
        if float(torch.maximum(-low, high).max()) > _FARTHEST:
            raise DivergenceError(
                "the density does not decay far from its center: exp(-E) is not normalizable, or decays too slowly "
                "for quadrature; restrict it with bounds="
            )


def _first_nodes(d: int, enough: int, limit: int) -> int:
    """Nodes on an axis to begin with: doubled until there are enough, as far as the limit of all of them goes."""
    n = _FIRST[d]
    while n < enough and (2 * n - 1) ** d <= limit:
        n = 2 * n - 1
    return n


def _refined(
    density: _LogDensity, center: Tensor, scale: Tensor, low: Tensor, high: Tensor, n: int, tolerance: float, limit: int
) -> tuple[Tensor, Tensor, int]:
    """The log of the integral with n nodes on each axis, doubled until it is good enough; its error; and n."""
    while True:
        fine, coarse = _trapezoid(density, center, scale, low, high, n)
        error = (fine - coarse).abs()
        if float(error) <= tolerance or (2 * n - 1) ** density.dim > limit:
            return fine, error, n
        n = 2 * n - 1


def _trapezoid(
    density: _LogDensity, center: Tensor, scale: Tensor, low: Tensor, high: Tensor, n: int
) -> tuple[Tensor, Tensor]:
    """The log of the integral with n nodes on each axis, and with every other one of them."""
    fine = coarse = torch.full((), -math.inf, dtype=torch.float64, device=low.device)
    for index, t in uniform_grid(low, high, n, _ROWS):
        log_w = _pulled(density, center, scale, t)[1]
        fine = torch.logaddexp(fine, torch.logsumexp(log_w, 0))
        coarse = torch.logaddexp(coarse, torch.logsumexp(log_w[(index % 2 == 0).all(1)], 0))
    log_cell = ((high - low) / (n - 1)).log().sum()
    return fine + log_cell, coarse + log_cell + len(low) * math.log(2)
