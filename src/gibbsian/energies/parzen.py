"""Densities made of the data themselves: Parzen windows, over whole rows or column by column."""

import math

import torch
from torch import Tensor

from gibbsian.domains import Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, DataError, ShapeError, as_numbers, check_tensor
from gibbsian.random import check_draws, normals_like

_BLOCK = 1 << 18  # numbers of a block of distances: they stay in the cache
_ROWS = 1500  # rows that choose a bandwidth
_FEW = 400  # of a column alone


def _checked(points: Tensor, bandwidth: Tensor | float) -> tuple[Tensor, Tensor]:
    check_tensor(points, "points", "(n, d)")
    if points.dim() != 2 or not points.numel() or not points.is_floating_point():
        what = f"{points.dtype} {tuple(points.shape)}"
        raise ShapeError(f"points are {what}, expected rows of floats (n, d), at least one")
    if not bool(torch.isfinite(points).all()):
        raise DataError("some points are not finite; remove such rows")
    h = as_numbers("Parzen", "bandwidth", bandwidth, points.dtype).to(points.device)
    if h.dim() > 1 or (h.dim() and len(h) != points.shape[1]):
        raise ShapeError(f"bandwidth has shape {tuple(h.shape)}, expected a number or one a column")
    if not bool((torch.isfinite(h) & (h > 0)).all()):
        raise ArgumentError(f"bandwidth={bandwidth}: bandwidths must be positive and finite")
    return points.detach().clone(), h.expand(points.shape[1]).clone()


class _Windows(Energy):
    """What both share: the points, a bandwidth for every column, a normalizer that is known."""

    points: Tensor
    bandwidth: Tensor

    def __init__(self, points: Tensor, bandwidth: Tensor | float) -> None:
        points, h = _checked(points, bandwidth)
        super().__init__(Real(points.shape[1]))
        self.register_buffer("points", points)
        self.register_buffer("bandwidth", h)

    def _constant(self, d: int) -> Tensor:
        """log n + log of the kernel's volume, of one column or of all."""
        volume = self.bandwidth.log().sum() + 0.5 * self.points.shape[1] * math.log(2 * math.pi)
        return volume + d * math.log(len(self.points))

    def _blocks(self, x: Tensor, each: int) -> tuple[Tensor, ...]:
        return x.split(max(1, _BLOCK // (len(self.points) * each)))

    def log_z(self) -> Tensor:
        """0: windows are normalized."""
        return self.points.new_zeros(())

    def extra_repr(self) -> str:
        return f"{len(self.points)} points in {self.points.shape[1]} dimensions"


class Parzen(_Windows):
    """The data with Gaussian windows of width h: E(x) = -log (1/n) Σᵢ N(x; xᵢ, h²), log Z = 0.

    The density that needs no training, and a strong one for detecting outliers in tables; it needs all points at
    every call, and exponentially many in high dimensions. Standardize columns first, or give one width a column.

    Reference: Parzen 1962.

    Args:
        points: xᵢ, `(n, d)`.
        bandwidth: h, a number or one a column; `Parzen.fit` chooses it.

    >>> g = torch.Generator().manual_seed(0)
    >>> energy = Parzen.fit(torch.randn(300, 2, generator=g))
    >>> energy(torch.tensor([[0.0, 0.0], [5.0, 5.0]])).round()
    tensor([ 2., 30.])
    """

    @classmethod
    def fit(cls, x: Tensor, grid: Tensor | None = None) -> "Parzen":
        """Windows on the rows of x, as wide as makes every row most likely under the others.

        Args:
            x: `(n, d)`.
            grid: widths to choose from, by default 25 from 0.02·√d to 3·√d; a floor is needed, because equal rows make
                ever narrower windows ever more likely.
        """
        points, _ = _checked(x, 1.0)
        root = math.sqrt(points.shape[1])
        widths = torch.logspace(math.log10(0.02 * root), math.log10(3 * root), 25) if grid is None else grid
        rows = points[:: max(1, math.ceil(len(points) / _ROWS))]
        q = _squared(rows, rows)
        return cls(points, _best(q, widths.to(points), points.shape[1]))

    def _scaled(self, x: Tensor) -> Tensor:
        center = self.points.mean(0)  # distances do not change, cancellation does
        return (x - center) / self.bandwidth

    def forward(self, x: Tensor) -> Tensor:
        points = self._scaled(self.points)
        parts = [torch.logsumexp(-0.5 * _squared(part, points), 1) for part in self._blocks(self._scaled(x), 1)]
        return self._constant(1) - torch.cat(parts)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            points, both = self._scaled(self.points), []
            for part in self._blocks(self._scaled(x), 1):
                log_k = -0.5 * _squared(part, points)
                both.append((torch.logsumexp(log_k, 1), torch.softmax(log_k, 1) @ points - part))
            energy, score = (torch.cat(list(one)) for one in zip(*both, strict=True))
            return self._constant(1) - energy, score / self.bandwidth

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: a point, then its window."""
        n = check_draws(n, generator, self.points.device)
        rows = torch.randint(len(self.points), (n,), generator=generator, device=self.points.device)
        z = normals_like(self.points, n, self.points.shape[1], generator=generator)
        return self.points[rows] + self.bandwidth * z


class MarginalParzen(_Windows):
    """Independent columns, each with Parzen windows of its own: E(x) = -Σⱼ log (1/n) Σᵢ N(xⱼ; xᵢⱼ, hⱼ²), log Z = 0.

    Knows every column's law and nothing of how columns hang together; the companion of `Parzen` in a product,
    `joint + 0.5 * marginals`, and a background for likelihood ratios.

    Args:
        points: `(n, d)`.
        bandwidth: h, a number or one a column; `MarginalParzen.fit` chooses it.

    >>> g = torch.Generator().manual_seed(0)
    >>> energy = MarginalParzen.fit(torch.randn(300, 2, generator=g))
    >>> energy(torch.tensor([[0.0, 0.0], [5.0, 5.0]])).round()
    tensor([ 2., 30.])
    """

    @classmethod
    def fit(cls, x: Tensor, grid: Tensor | None = None) -> "MarginalParzen":
        """Windows on every column, as wide as makes each entry most likely under the others.

        Args:
            x: `(n, d)`.
            grid: widths to choose from in standard deviations of the column, by default 0.1 to 0.5.
        """
        points, _ = _checked(x, 1.0)
        scale = points.std(0, correction=0)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        shares = torch.tensor([0.1, 0.15, 0.2, 0.3, 0.5]) if grid is None else grid
        rows = points[:: max(1, math.ceil(len(points) / _FEW))]
        grids = shares.to(points) * scale[:, None]
        widths = [_best((c[:, None] - c).square(), grid, 1) for c, grid in zip(rows.T, grids, strict=True)]
        return cls(points, torch.stack(widths))

    def _log_kernels(self, x: Tensor) -> Tensor:
        return -0.5 * ((x[:, None] - self.points) / self.bandwidth).square()

    def forward(self, x: Tensor) -> Tensor:
        d = x.shape[1]
        parts = [torch.logsumexp(self._log_kernels(part), 1).sum(1) for part in self._blocks(x, d)]
        return self._constant(d) - torch.cat(parts)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            both = []
            for part in self._blocks(x, x.shape[1]):
                log_k = self._log_kernels(part)
                mean = (torch.softmax(log_k, 1) * self.points).sum(1)
                both.append((torch.logsumexp(log_k, 1).sum(1), mean - part))
            energy, score = (torch.cat(list(one)) for one in zip(*both, strict=True))
            return self._constant(x.shape[1]) - energy, score / self.bandwidth.square()

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: for every column a point and its window."""
        n = check_draws(n, generator, self.points.device)
        shape = n, self.points.shape[1]
        rows = torch.randint(len(self.points), shape, generator=generator, device=self.points.device)
        z = normals_like(self.points, *shape, generator=generator)
        return self.points.gather(0, rows) + self.bandwidth * z


def _squared(a: Tensor, b: Tensor) -> Tensor:
    """‖aᵢ - bⱼ‖², never below 0."""
    return torch.addmm(b.square().sum(1), a, b.T, alpha=-2).add(a.square().sum(1, keepdim=True)).clamp(min=0)


def _best(q: Tensor, widths: Tensor, d: int) -> Tensor:
    """The width under which rows at squared distances q `(n, n)` are most likely, each under the others."""
    if len(q) < 2:
        return widths[len(widths) // 2]
    alone = q.masked_fill(torch.eye(len(q), dtype=torch.bool, device=q.device), math.inf)
    fits = [torch.logsumexp(-0.5 * alone / h**2, 1).mean() - d * h.log() for h in widths]
    return widths[int(torch.stack(fits).argmax())]
