"""Densities made of the data themselves: Parzen windows, over whole rows or column by column."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Real
from gibbsian.energies.splines import ColumnSplines
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, DataError, ShapeError, as_numbers, check_tensor
from gibbsian.random import check_draws, normals_like

_BLOCK = 1 << 19  # numbers of a block of distances: they stay in the cache
_ROWS, _JUDGES = 1500, 500  # windows that choose a bandwidth, and rows that they are judged by
_FEW = 400  # both, of a column alone
_NODES = 4096  # of a table of a column's law, at most


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


def _weights(weight: Tensor | None, points: Tensor) -> Tensor:
    """How many rows each point stands for."""
    if weight is None:
        return points.new_ones(len(points))
    check_tensor(weight, "weight", "(n,)")
    if weight.shape != (len(points),):
        raise ShapeError(f"weight has shape {tuple(weight.shape)}, expected one number a point, ({len(points)},)")
    if not bool((torch.isfinite(weight) & (weight >= 0)).all()) or not float(weight.sum()):
        raise ArgumentError("weights of points must be finite, none negative and not all 0")
    return weight.detach().to(points).clone()


class _Windows(Energy):
    """What both share: the points, what they weigh, a bandwidth for every column, a normalizer that is known."""

    points: Tensor
    bandwidth: Tensor
    weight: Tensor

    def __init__(self, points: Tensor, bandwidth: Tensor | float, weight: Tensor | None = None) -> None:
        points, h = _checked(points, bandwidth)
        super().__init__(Real(points.shape[1]))
        self.register_buffer("points", points)
        self.register_buffer("bandwidth", h)
        self.register_buffer("weight", _weights(weight, points), persistent=False)

    def _constant(self, d: int) -> Tensor:
        """log n + log of the kernel's volume, of one column or of all."""
        volume = self.bandwidth.log().sum() + 0.5 * self.points.shape[1] * math.log(2 * math.pi)
        return volume + d * self.weight.sum().log()

    def _without(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """log-weights `(rows, n)` where each of some points lacks one row of its own, and the constants that change."""
        own = (self.weight[index] - 1).clamp(min=0)
        log_weight = self.weight.log().repeat(len(index), 1)
        log_weight[torch.arange(len(index)), index] = own.log()
        total = self.weight.sum()
        return log_weight, (total - self.weight[index] + own).log() - total.log()

    def _blocks(self, x: Tensor, each: int) -> tuple[Tensor, ...]:
        return x.split(max(1, _BLOCK // (len(self.points) * each)))

    def _picked(self, n: int, columns: int, generator: torch.Generator) -> Tensor:
        """Points by their weights, `(n, columns)`."""
        device = self.points.device
        if bool((self.weight == self.weight[0]).all()):
            return torch.randint(len(self.points), (n, columns), generator=generator, device=device)
        u = torch.rand(n, columns, generator=generator, device=device, dtype=self.weight.dtype)
        total = self.weight.cumsum(0)
        return torch.searchsorted(total, u * total[-1], right=True).clamp(max=len(self.points) - 1)

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
        weight: how many rows each point stands for, `(n,)`; one where left out.

    >>> g = torch.Generator().manual_seed(0)
    >>> energy = Parzen.fit(torch.randn(300, 2, generator=g))
    >>> energy(torch.tensor([[0.0, 0.0], [5.0, 5.0]])).round()
    tensor([ 2., 30.])
    """

    @classmethod
    def fit(cls, x: Tensor, grid: Tensor | None = None, *, weight: Tensor | None = None) -> "Parzen":
        """Windows on the rows of x, as wide as makes every row most likely under the others (of at most 1500).

        Args:
            x: `(n, d)`.
            grid: widths to choose from, by default 25 from 0.02·√d to 3·√d; a floor is needed, because equal rows make
                ever narrower windows ever more likely.
            weight: how many rows each row stands for.
        """
        points, _ = _checked(x, 1.0)
        w = _weights(weight, points)
        root = math.sqrt(points.shape[1])
        widths = torch.logspace(math.log10(0.02 * root), math.log10(3 * root), 25) if grid is None else grid
        stride = max(1, math.ceil(len(points) / _ROWS))
        rows, own = points[::stride], w[::stride]
        judges = torch.arange(0, len(rows), max(1, math.ceil(len(rows) / _JUDGES)), device=x.device)
        found = _Judges(_squared(rows[judges], rows)[None], judges, own, points.shape[1])
        return cls(points, found.searched(widths.to(points)), w)

    def _scaled(self, x: Tensor) -> Tensor:
        center = self.points.mean(0)  # distances do not change, cancellation does
        return (x - center) / self.bandwidth

    def _log_kernels(self, x: Tensor, points: Tensor, log_weight: Tensor) -> Tensor:
        """log of weight and kernel `(rows, n)` but for -½‖x‖², of scaled rows: a product and nothing else."""
        return torch.addmm(log_weight - 0.5 * points.square().sum(1), x, points.T)

    def forward(self, x: Tensor) -> Tensor:
        points, log_weight = self._scaled(self.points), self.weight.log()
        parts = [
            _log_sum(self._log_kernels(part, points, log_weight)) - 0.5 * part.square().sum(1)
            for part in self._blocks(self._scaled(x), 1)
        ]
        return self._constant(1) - torch.cat(parts)

    def left_out(self, index: Tensor) -> Tensor:
        """E of some of the points under all the others: a row that stands there is taken away from its own window."""
        points, parts = self._scaled(self.points), []
        for own in self._blocks(index, 1):
            log_weight, change = self._without(own)
            rows = points[own]
            log_p = _log_sum(self._log_kernels(rows, points, log_weight)) - 0.5 * rows.square().sum(1)
            parts.append(change - log_p)
        return self._constant(1) + torch.cat(parts)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            points, log_weight, both = self._scaled(self.points), self.weight.log(), []
            for part in self._blocks(self._scaled(x), 1):
                log_k = self._log_kernels(part, points, log_weight)
                log_p = torch.logsumexp(log_k, 1) - 0.5 * part.square().sum(1)
                both.append((log_p, torch.softmax(log_k, 1) @ points - part))
            energy, score = (torch.cat(list(one)) for one in zip(*both, strict=True))
            return self._constant(1) - energy, score / self.bandwidth

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: a point, then its window."""
        n = check_draws(n, generator, self.points.device)
        rows = self._picked(n, 1, generator)[:, 0]
        z = normals_like(self.points, n, self.points.shape[1], generator=generator)
        return self.points[rows] + self.bandwidth * z


class MarginalParzen(_Windows):
    """Independent columns, each with Parzen windows of its own: E(x) = -Σⱼ log (1/n) Σᵢ N(xⱼ; xᵢⱼ, hⱼ²), log Z = 0.

    Knows every column's law and nothing of how columns hang together; the companion of `Parzen` in a product,
    `joint + 0.5 * marginals`, and a background for likelihood ratios. For many rows make a table of it first: `tabulated()`.

    Args:
        points: `(n, d)`.
        bandwidth: h, a number or one a column; `MarginalParzen.fit` chooses it.
        weight: how many rows each point stands for, `(n,)`; one where left out.

    >>> g = torch.Generator().manual_seed(0)
    >>> energy = MarginalParzen.fit(torch.randn(300, 2, generator=g))
    >>> energy(torch.tensor([[0.0, 0.0], [5.0, 5.0]])).round()
    tensor([ 2., 30.])
    """

    @classmethod
    def fit(cls, x: Tensor, grid: Tensor | None = None, *, weight: Tensor | None = None) -> "MarginalParzen":
        """Windows on every column, as wide as makes each entry most likely under the others (of at most 400).

        Args:
            x: `(n, d)`.
            grid: widths to choose from in standard deviations of the column, by default 0.1 to 0.5.
            weight: how many rows each row stands for.
        """
        points, _ = _checked(x, 1.0)
        w = _weights(weight, points)
        mean = (w @ points) / w.sum()
        scale = ((w @ (points - mean).square()) / w.sum()).sqrt()
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        shares = torch.tensor([0.1, 0.15, 0.2, 0.3, 0.5]) if grid is None else grid
        stride = max(1, math.ceil(len(points) / _FEW))
        rows, own = points[::stride], w[::stride]
        judges = torch.arange(len(rows), device=x.device)
        size = max(1, 4 * _BLOCK // (len(rows) * len(judges)))
        widths = [
            _Judges((c[:, judges, None] - c[:, None]).square(), judges, own, 1).best(shares.to(points)[:, None] * s)
            for c, s in zip(rows.T.contiguous().split(size), scale.split(size), strict=True)
        ]
        return cls(points, torch.cat(widths), w)

    def _log_kernels(self, x: Tensor, log_weight: Tensor) -> Tensor:
        """log of weight and kernel of every entry, `(d, rows, n)`, but for the volume of the window."""
        u = (x / self.bandwidth).T[:, :, None] - (self.points / self.bandwidth).T.contiguous()[:, None]
        return torch.addcmul(log_weight, u, u, value=-0.5)

    def forward(self, x: Tensor) -> Tensor:
        d, log_weight = x.shape[1], self.weight.log()
        parts = [_log_sum(self._log_kernels(part, log_weight)).sum(0) for part in self._blocks(x, d)]
        return self._constant(d) - torch.cat(parts)

    def left_out(self, index: Tensor) -> Tensor:
        """E of some of the points under all the others: a row that stands there is taken away from its own windows."""
        parts, d = [], self.points.shape[1]
        for own in self._blocks(index, d):
            log_weight, change = self._without(own)
            parts.append(d * change - _log_sum(self._log_kernels(self.points[own], log_weight)).sum(0))
        return self._constant(d) + torch.cat(parts)

    def columns(self, x: Tensor) -> Tensor:
        """-log p̂ⱼ(xⱼ) of every entry, `(n, d)`."""
        return -self._with_slopes(x)[0]

    @torch.no_grad()
    def _with_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log p̂ⱼ(xⱼ) of every entry and its slope, `(n, d)` each."""
        log_weight, both = self.weight.log(), []
        for part in self._blocks(x, x.shape[1]):
            log_k = self._log_kernels(part, log_weight)
            top = log_k.amax(-1, keepdim=True)
            k = _kernels(log_k, top)
            total = k.sum(-1)
            mean = torch.bmm(k, self.points.T.contiguous()[..., None])[..., 0] / total
            both.append(((total.log() + top[..., 0]).T, mean.T - part))
        log_p, step = (torch.cat(list(one)) for one in zip(*both, strict=True))
        constant = self.bandwidth.log() + 0.5 * math.log(2 * math.pi) + self.weight.sum().log()
        return log_p - constant, step / self.bandwidth.square()

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_p, score = self._with_slopes(x)
        return -log_p.sum(1), score

    def tabulated(self) -> "MarginalParzen | ColumnSplines":
        """The same law from a table of two nodes a window's width, and parabolas beyond, at a price that does not grow with the points:
        to within 0.01 nats, but for the bottoms of deep gaps between points. Itself where windows
        are so narrow that the table would be too long."""
        low, high = (self.points.amin(0) - self.bandwidth), (self.points.amax(0) + self.bandwidth)
        nodes = int(((high - low) / self.bandwidth).max() * 2) + 2
        if nodes > _NODES:
            return self
        t = torch.linspace(0, 1, nodes, dtype=low.dtype, device=low.device)[:, None]
        log_p, slope = self._with_slopes(low + t * (high - low))
        return ColumnSplines(low, high, -log_p, -slope, self.bandwidth.square().reciprocal())

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: for every column a point and its window."""
        n = check_draws(n, generator, self.points.device)
        rows = self._picked(n, self.points.shape[1], generator)
        z = normals_like(self.points, *rows.shape, generator=generator)
        return self.points.gather(0, rows) + self.bandwidth * z


def _log_sum(log_k: Tensor, dim: int = -1) -> Tensor:
    """logsumexp over windows; in place, so that a block stays in the cache, where no gradient is asked for."""
    if log_k.requires_grad:
        return torch.logsumexp(log_k, dim)
    top = log_k.amax(dim, keepdim=True)
    return _kernels(log_k, top).sum(dim).log_().add_(top.squeeze(dim))


def _kernels(log_k: Tensor, top: Tensor) -> Tensor:
    """exp(log k - top), in place; what is too little to count is kept off the numbers that processors are slow at."""
    return log_k.sub_(top).clamp_(min=-80).exp_()


def _squared(a: Tensor, b: Tensor) -> Tensor:
    """‖aᵢ - bⱼ‖², never below 0."""
    return torch.addmm(b.square().sum(1), a, b.T, alpha=-2).add(a.square().sum(1, keepdim=True)).clamp(min=0)


class _Judges(NamedTuple):
    """Rows whose likelihood under the others chooses widths, in one or several sets of distances.

    Attributes:
        squared: `(sets, judges, n)`.
        which: of the n rows they are.
        weight: `(n,)`.
        d: entries of a row.
    """

    squared: Tensor
    which: Tensor
    weight: Tensor
    d: int

    def fit(self, h: Tensor) -> Tensor:
        """Mean log-likelihood of the judges with widths h `(sets,)`, each left out of its own window, but for a constant."""
        own = (self.weight[self.which] - 1).clamp(min=0).log()
        rows = torch.arange(len(self.which), device=h.device)
        log_k = self.squared * (-0.5 / h.square())[:, None, None]
        log_k += self.weight.log()
        log_k[:, rows, self.which] = own
        share = self.weight[self.which] / self.weight[self.which].sum()
        return _log_sum(log_k) @ share - self.d * h.log()

    def best(self, widths: Tensor) -> Tensor:
        """The best of a grid `(widths, sets)` for each set."""
        if len(self.weight) < 2:
            return widths[len(widths) // 2]
        return widths.gather(0, torch.stack([self.fit(h) for h in widths]).argmax(0, keepdim=True))[0]

    def searched(self, widths: Tensor) -> Tensor:
        """The best of a long grid for one set: every fourth, then about the best of those."""
        if len(self.weight) < 2:
            return widths[len(widths) // 2]
        tried = {i: float(self.fit(widths[i : i + 1])) for i in range(0, len(widths), 4)}
        for step in (2, 1):
            middle = max(tried, key=lambda i: tried[i])
            near = [i for i in (middle - step, middle + step) if 0 <= i < len(widths)]
            tried |= {i: float(self.fit(widths[i : i + 1])) for i in near}
        return widths[max(tried, key=lambda i: tried[i])]
