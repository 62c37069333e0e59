"""Windows on rows of data, times a power of windows on every column: an energy that is learned by leaving rows out."""

import math

import torch
from torch import Tensor, nn

from gibbsian.domains import Real
from gibbsian.energies.parzen import MarginalParzen, Parzen
from gibbsian.energy import Energy
from gibbsian.errors import DataError, check_count, check_number

_BLOCK = 1 << 21  # numbers of a block of kernels
_ROOT = 0.5 * math.log(2 * math.pi)
_NARROWEST = 0.1  # standard deviations of a column: values that come again would make its windows ever narrower


class WindowProduct(Energy):
    """E(x) = -log p̂(x) - w Σⱼ log p̂ⱼ(xⱼ): windows on rows of data, and on every column alone, with widths that are learned.

    The energy of `sklearn.EnergyOutlierDetector`: the joint part sees unusual combinations, the marginal one unusual values.
    `objectives.LeaveOneOut` puts the windows on the data and learns their widths: one of the rows, one of each column. Give it
    standardized columns.

    Args:
        columns: entries of a row.
        windows: on rows, at most; a random subset of larger data.
        column_windows: on the values of a column, at most.
        marginal_weight: w; 0 for the joint density alone.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = WindowProduct(2, windows=300)
    >>> run = gb.fit(energy, gb.objectives.LeaveOneOut(), torch.randn(300, 2, generator=g), steps=20, batch_size=300)
    >>> a, b = energy(torch.tensor([[0.0, 0.0], [5.0, 5.0]])).tolist()
    >>> b > a + 20
    True
    """

    points: Tensor
    weight: Tensor

    def __init__(
        self, columns: int, windows: int = 5000, column_windows: int = 500, marginal_weight: float = 0.5
    ) -> None:
        columns = check_count("WindowProduct", "columns", columns)
        windows = check_count("WindowProduct", "windows", windows, 2)
        check_number("WindowProduct", "marginal_weight", marginal_weight)
        super().__init__(Real(columns))
        self.column_windows = min(windows, check_count("WindowProduct", "column_windows", column_windows, 2))
        self.marginal_weight = float(marginal_weight)
        self.register_buffer("points", torch.zeros(windows, columns))
        self.register_buffer("weight", torch.zeros(windows))  # 1 where a window stands
        self.log_width = nn.Parameter(torch.zeros(()))
        self.log_widths = nn.Parameter(torch.zeros(columns))

    @torch.no_grad()
    def stand_on(self, rows: Tensor, generator: torch.Generator) -> None:
        """Put the windows on rows of data, with the widths that are best among a few."""
        if len(rows) < 2:
            raise DataError("windows need at least 2 rows to stand on")
        some = rows[torch.randperm(len(rows), generator=generator, device=rows.device)[: len(self.points)]]
        self.points.zero_()
        self.points[: len(some)] = some
        self.weight.zero_()
        self.weight[: len(some)] = 1
        self.log_width.copy_(Parzen.fit(some).bandwidth[0].log())
        self.log_widths.copy_(MarginalParzen.fit(some[: self.column_windows]).bandwidth.log())

    def standing(self) -> int:
        """How many rows have a window."""
        return int(self.weight.sum())

    def forward(self, x: Tensor) -> Tensor:
        return self._energy(x, None)

    def left_out(self, index: Tensor) -> Tensor:
        """E of some of the points, each under the windows of all others."""
        return self._energy(self.points[index], index)

    def _energy(self, x: Tensor, index: Tensor | None) -> Tensor:
        size = self._rows_at_once()
        places = [None] * -(-len(x) // size) if index is None else index.split(size)
        parts = [
            self._joint(self._row_shares(some, own))
            + self.marginal_weight * self._columns(self._column_shares(some, own))
            for some, own in zip(x.split(size), places, strict=True)
        ]
        return torch.cat(parts) if parts else x.new_zeros(0)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A window pulls towards its point: ∇ log p̂ = (Σ r x' - x) / h² with the shares r of windows at x."""
        with torch.no_grad():
            energy, score = x.new_empty(len(x)), torch.empty_like(x)
            h, log_h, size = self.log_width.exp(), self._log_widths(), self._rows_at_once()
            for i in range(0, len(x), size):
                some, rows = x[i : i + size], slice(i, i + size)
                joint, alone = self._row_shares(some), self._column_shares(some)
                energy[rows] = self._joint(joint) + self.marginal_weight * self._columns(alone)
                middle = torch.einsum("drn,nd->rd", alone.softmax(2), self.points[: self.column_windows])
                pulled = (joint.softmax(1) @ self.points - some) / h.square()
                score[rows] = pulled + self.marginal_weight * (middle - some) / (2 * log_h).exp()
            return energy, score

    def _rows_at_once(self) -> int:
        """So many that blocks of kernels fit into caches."""
        if not self.standing():
            raise DataError("the windows stand on no rows yet; train with objectives.LeaveOneOut, or call stand_on")
        windows, columns = self.points.shape
        return max(1, _BLOCK // (windows + self.column_windows * columns))

    def _row_shares(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """log wᵢ - ½‖x - xᵢ‖²/h², `(rows, windows)`."""
        h, middle = self.log_width.exp(), self.points.mean(0)  # distances do not change by it, cancellation does
        rows, points = (x - middle) / h, (self.points - middle) / h
        log_k = torch.addmm(-0.5 * points.square().sum(1), rows, points.T) - 0.5 * rows.square().sum(1, keepdim=True)
        return log_k + self._weights(x, index, len(self.points)).log()

    def _column_shares(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """log wᵢ - ½(xⱼ - xᵢⱼ)²/hⱼ², `(columns, rows, windows)`."""
        h = self._log_widths().exp()
        u = (x / h).T[:, :, None] - (self.points[: self.column_windows] / h).T[:, None]
        return -0.5 * u.square() + self._weights(x, index, self.column_windows).log()

    def _log_widths(self) -> Tensor:
        return self.log_widths.clamp(min=math.log(_NARROWEST))

    def _joint(self, shares: Tensor) -> Tensor:
        return self.points.shape[1] * (self.log_width + _ROOT) - shares.logsumexp(-1)

    def _columns(self, shares: Tensor) -> Tensor:
        return (self._log_widths() + _ROOT).sum() - shares.logsumexp(-1).sum(0)

    def _weights(self, x: Tensor, index: Tensor | None, n: int) -> Tensor:
        """Of the first n windows for every row, `(rows, n)` or `(1, n)`, in all 1: a point that is left out has none of its own."""
        weight = self.weight[:n].to(x)[None]
        if index is not None:
            weight = weight * (index[:, None] != torch.arange(n, device=index.device))
        return weight / weight.sum(1, keepdim=True)
