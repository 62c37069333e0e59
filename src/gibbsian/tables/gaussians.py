"""Normal laws of rows with gaps: K of them at a time, rows with the same gaps together.

For the cells o that a row has, with Σₒₒ = LLᵀ:   r = L⁻¹(zₒ - μₒ),   log N(zₒ; μₒ, Σₒₒ) = Σᵢ log φ(rᵢ) - log Lᵢᵢ

rᵢ and Lᵢᵢ are the residual and spread of cell i given those before it, so a cell that is a bin [z - a, z + b] instead of a
point has the mass Φ(rᵢ + b/Lᵢᵢ) - Φ(rᵢ - a/Lᵢᵢ), given the middles of the bins before it.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_FEW = 16  # sets of gaps that are gone through one by one
_NUMBERS = 1 << 22  # in one block
_NARROW = 1e-3  # bins, in units of the spread, whose mass is the density times the width


def log_mass(r: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """log(Φ(r + above) - Φ(r - below)), in either tail.

    >>> log_mass(torch.tensor(0.0), torch.tensor(math.inf), torch.tensor(0.0)).exp()
    tensor(0.5000)
    """
    a, b = r - below, r + above
    flip = a > 0
    a, b = torch.where(flip, -b, a), torch.where(flip, -a, b)
    upper, lower = torch.special.log_ndtr(b), torch.special.log_ndtr(a)
    wide = upper + torch.log1p(-torch.exp((lower - upper).clamp(max=-1e-14)))
    width = below + above
    middle = r + 0.5 * (above - below)
    narrow = -0.5 * middle.square() - _HALF_LOG_2PI + width.log()
    return torch.where(width < _NARROW, narrow, wide)


def log_cells(r: Tensor, spread: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """log of the density of cells that are points, of the mass of those that are bins."""
    point = -0.5 * r.square() - _HALF_LOG_2PI - spread.log()
    bins = (below + above) > 0
    if not bool(bins.any()):
        return point
    safe = torch.where(bins, below, torch.ones_like(below)), torch.where(bins, above, torch.ones_like(above))
    return torch.where(bins, log_mass(r, safe[0] / spread, safe[1] / spread), point)


class Block(NamedTuple):
    """Rows that are treated together, and which cells they have: `(1, m)` where all have the same, else `(rows, m)`."""

    rows: Tensor
    seen: Tensor


def blocks(seen: Tensor, components: int) -> Iterator[Block]:
    """Cut rows into blocks: of one set of gaps each where there are few such sets, else of a size that fits."""
    n, m = seen.shape
    keys, inverse = (
        torch.unique(seen.double() @ _powers(m), return_inverse=True) if m <= 50 else (torch.arange(n), None)
    )
    size = max(1, _NUMBERS // max(components * m * m, 1))
    if inverse is None or len(keys) > _FEW:
        for part in torch.arange(n).split(size):
            yield Block(part, seen[part])
        return
    for i in range(len(keys)):
        rows = (inverse == i).nonzero().flatten()
        for part in rows.split(max(1, _NUMBERS // max(components * m, 1))):
            yield Block(part, seen[part[:1]])


def _powers(m: int) -> Tensor:
    return 2.0 ** torch.arange(m, dtype=torch.float64)


class Conditioned(NamedTuple):
    """Normal laws seen through the gaps of a block: the factor L of Σₒₒ, with ones for cells that are not there. G covariances for K
    means: the first K/G have the first, and so on."""

    block: Block
    factor: Tensor  # (g, G, m, m), g = 1 or the number of rows
    covariance: Tensor  # (G, m, m)
    difference: Tensor  # (rows, K, m), z - μ, 0 for gaps

    @classmethod
    def of(cls, block: Block, z: Tensor, mean: Tensor, covariance: Tensor) -> "Conditioned":
        seen = block.seen[:, None]
        both = seen[..., None] & seen[..., None, :]
        masked = torch.where(both, covariance, torch.eye(z.shape[1], dtype=z.dtype))
        there = block.seen.expand(len(block.rows), -1)
        difference = torch.where(there[:, None], z[block.rows, None] - mean, torch.zeros((), dtype=z.dtype))
        return cls(block, torch.linalg.cholesky(masked), covariance, difference)

    def solved(self, values: Tensor, transposed: bool = False) -> Tensor:
        """L⁻¹v or L⁻ᵀv for `(rows, K, m)`."""
        factor = self.factor.transpose(-1, -2) if transposed else self.factor
        n, _, m = values.shape
        shared = values.view(n, factor.shape[1], self.each, m)
        if len(factor) == 1:
            columns = shared.permute(1, 3, 2, 0)
            found = torch.linalg.solve_triangular(factor[0], columns.flatten(2), upper=transposed)
            return found.view(columns.shape).permute(3, 0, 2, 1).reshape(values.shape)
        found = torch.linalg.solve_triangular(factor, shared.transpose(-1, -2), upper=transposed)
        return found.transpose(-1, -2).reshape(values.shape)

    @property
    def each(self) -> int:
        """How many means share a covariance."""
        return self.difference.shape[1] // len(self.covariance)

    def log_prob(self, below: Tensor, above: Tensor) -> Tensor:
        """log of density and masses of the rows, `(rows, K)`."""
        spread = self.factor.diagonal(dim1=-2, dim2=-1).repeat_interleave(self.each, 1)
        sides = (part[self.block.rows][:, None] for part in (below, above))
        cells = log_cells(self.solved(self.difference), spread, *sides)
        return torch.where(self.block.seen[:, None], cells, torch.zeros((), dtype=cells.dtype)).sum(-1)

    def fitted(self) -> Tensor:
        """E[z | zₒ] - μ of all cells, `(rows, K, m)`: the difference itself where a cell is there."""
        weights = self.solved(self.solved(self.difference), transposed=True)
        weights = torch.where(self.block.seen[:, None], weights, torch.zeros((), dtype=weights.dtype))
        shared = weights.view(len(weights), len(self.covariance), self.each, weights.shape[-1])
        return torch.einsum("gij,ngrj->ngri", self.covariance, shared).reshape(weights.shape)

    def rest(self) -> Tensor:
        """Var[z | zₒ], `(g, G, m, m)`, 0 where a cell is there."""
        seen = self.block.seen[:, None]
        across = torch.where(seen[..., None], self.covariance, torch.zeros((), dtype=self.factor.dtype))
        half = torch.linalg.solve_triangular(self.factor, across, upper=False)
        left = self.covariance - half.transpose(-1, -2) @ half
        gone = ~seen
        return torch.where(gone[..., None] & gone[..., None, :], left, torch.zeros((), dtype=left.dtype))
