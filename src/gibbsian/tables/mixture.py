"""Mixtures over tables: one law of whole rows whose every marginal and conditional is known.

p(x) = Σ_k w_k N(z; μ_k, Σ_k) Π_j t_kj(code_j)

Given the component, numbers are jointly normal after their transforms and codes are independent. A cell that is missing drops
out: what is left is the exact law of the observed part, and p(xᵢ | x₋ᵢ) is a ratio of two such laws. Where Σ_k is
diagonal, whole numbers have exactly the mass of their bins. Latent classes, Parzen windows (one component a row) and
restricted Boltzmann machines with few hidden units (one component a hidden state) are all of this form.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.tables.gaussians import Block, Conditioned, blocks, log_cells
from gibbsian.tables.rows import Rows
from gibbsian.units.base import pick

_NUMBERS = 1 << 22


class Normals(NamedTuple):
    """A number given the rest of its row: a mixture of normals of z, and how the codes of its column are shared out."""

    weight: Tensor  # (n, K)
    mean: Tensor  # (n, K)
    spread: Tensor  # (n, K)


@dataclass(frozen=True, eq=False)
class Mixture:
    """The mixture.

    Attributes:
        log_weight: `(K,)`.
        mean: `(K, m)`.
        covariance: `(K, m, m)`, or fewer that are shared, the first by the first components and so on; or `(K, m)` where numbers are
            independent given the component.
        table: `(K, all states)`, log-probabilities of the codes, slot after slot.
        states: how many each slot has.
    """

    log_weight: Tensor
    mean: Tensor
    covariance: Tensor
    table: Tensor
    states: tuple[int, ...]

    @property
    def components(self) -> int:
        return len(self.log_weight)

    @property
    def full(self) -> bool:
        """Whether numbers may depend on each other within a component."""
        return self.covariance.dim() == 3

    def slot(self, j: int) -> Tensor:
        """log t_kj, `(K, states)`."""
        first = sum(self.states[:j])
        return self.table[:, first : first + self.states[j]]

    # --- likelihood ---------------------------------------------------------------------------------

    def log_joint(self, rows: Rows, *, points: bool = False) -> Tensor:
        """log w_k p(observed part of a row | k), `(n, K)`, without units; with `points`, bins are taken as their middles."""
        out = self.log_weight + self._codes(rows.code)
        if not rows.z.shape[1]:
            return out
        below, above = (torch.zeros_like(rows.z),) * 2 if points else (rows.below, rows.above)
        if not self.full:
            return out + self._independent(rows.z, below, above)
        numbers = torch.empty_like(out)
        for block in self._blocks(rows):
            seen = Conditioned.of(block, rows.z, self.mean, self.covariance)
            numbers[block.rows] = seen.log_prob(below, above)
        return out + numbers

    def _blocks(self, rows: Rows) -> Iterator[Block]:
        return blocks(~rows.z.isnan(), max(len(self.covariance), self.components // rows.z.shape[1]))

    def _codes(self, code: Tensor) -> Tensor:
        total = self.log_weight.new_zeros(len(code), self.components)
        for j in range(len(self.states)):
            known = torch.cat([self.slot(j).T, self.table.new_zeros(1, self.components)])  # the last row for gaps
            total = total + known[code[:, j]]
        return total

    def _independent(self, z: Tensor, below: Tensor, above: Tensor) -> Tensor:
        spread = self.covariance.sqrt()
        size = max(1, _NUMBERS // max(self.mean.numel(), 1))
        parts = []
        for i in range(0, len(z), size):
            own = slice(i, i + size)
            gone = z[own].isnan()
            r = (torch.where(gone, torch.zeros_like(z[own]), z[own])[:, None] - self.mean) / spread
            cells = log_cells(r, spread, below[own][:, None], above[own][:, None])
            parts.append(cells.masked_fill(gone[:, None], 0.0).sum(-1))
        return torch.cat(parts) if parts else z.new_zeros(0, self.components)

    def log_prob(self, rows: Rows) -> Tensor:
        """log p of the observed part of every row, in the units of the table, `(n,)`."""
        return torch.logsumexp(self.log_joint(rows), 1) + rows.unit.sum(1)

    # --- conditionals -------------------------------------------------------------------------------

    def codes_given(self, rows: Rows, j: int) -> Tensor:
        """p(code of slot j | the rest of the row), `(n, states)`; the rows' own codes there must be marked missing."""
        return self.responsibility(rows) @ torch.softmax(self.slot(j), 1)

    def numbers_given(self, rows: Rows, j: int) -> Normals:
        """The law of z_j given the rest of the row, whose z_j must be marked missing."""
        weight = self.responsibility(rows)
        mean, spread = torch.empty_like(weight), torch.empty_like(weight)
        if not self.full:
            mean[:], spread[:] = self.mean[:, j], self.covariance[:, j].sqrt()
            return Normals(weight, mean, spread)
        for block in self._blocks(rows):
            seen = Conditioned.of(block, rows.z, self.mean, self.covariance)
            mean[block.rows] = self.mean[:, j] + seen.fitted()[..., j]
            own = seen.rest()[..., j, j].clamp(min=1e-12).sqrt().repeat_interleave(seen.each, 1)
            spread[block.rows] = own.expand(len(block.rows), -1)
        return Normals(weight, mean, spread)

    def leant(self, log_odds: Tensor) -> tuple["Mixture", Tensor]:
        """The law p(x) Π_j ω_j(code_j) / Z, a mixture too, and log Z; `log_odds` has log ω, slot after slot."""
        weight, tables = self.log_weight, []
        for part in (self.table + log_odds).split(list(self.states), 1):
            total = torch.logsumexp(part, 1, keepdim=True)
            weight = weight + total[:, 0]
            tables.append(part - total)
        log_z = torch.logsumexp(weight, 0)
        return replace(self, log_weight=weight - log_z, table=torch.cat(tables, 1) if tables else self.table), log_z

    # --- draws --------------------------------------------------------------------------------------

    def responsibility(self, rows: Rows) -> Tensor:
        """p(k | the observed part of a row), `(n, K)`."""
        return torch.softmax(self.log_joint(rows), 1)

    def complete(
        self, rows: Rows, generator: torch.Generator, *, drawable: Sequence[int] | None = None, weight: Tensor | None = None
    ) -> Rows:  # fmt: skip
        """One draw of what is missing in every row, given what is there; z anywhere, to be brought into bins by the codec.

        Args:
            rows: with gaps.
            generator: for the draw.
            drawable: how many of the first codes of each slot may be drawn; all where it is left out.
            weight: the responsibilities, where they are known.
        """
        n = rows.n
        weight = self.responsibility(rows) if weight is None else weight
        if drawable is not None:
            weight = weight * self._drawable(rows.code, drawable)
        u = torch.rand(n, 1 + len(self.states), generator=generator, dtype=weight.dtype)
        k = pick(weight, u[:, 0])
        code = rows.code.clone()
        for j in range(len(self.states)):
            probabilities = self.slot(j).exp()[k]
            if drawable is not None:
                probabilities[:, drawable[j] :] = 0
            gone = code[:, j] < 0
            code[gone, j] = pick(probabilities, u[:, 1 + j])[gone]
        noise = torch.randn(n, self.mean.shape[1], generator=generator, dtype=weight.dtype)
        return rows._replace(z=self._numbers(rows.z, k, noise), code=code)

    def _drawable(self, code: Tensor, drawable: Sequence[int]) -> Tensor:
        """p(all missing codes are among those that may be drawn | k), `(n, K)`."""
        total = self.log_weight.new_zeros(len(code), self.components)
        for j, many in enumerate(drawable):
            if many < self.states[j]:
                may = torch.logsumexp(self.slot(j)[:, :many], 1)
                total = total + torch.where(code[:, j, None] < 0, may, torch.zeros_like(may))
        return total.exp()

    def _numbers(self, z: Tensor, k: Tensor, noise: Tensor) -> Tensor:
        """Draws of the gaps of z: a free draw, moved by what the observed cells say (conditioning by kriging)."""
        gone = z.isnan()
        if not self.full:
            return torch.where(gone, self.mean[k] + self.covariance[k].sqrt() * noise, z)
        root, k_shared = torch.linalg.cholesky(self.covariance), k // (self.components // len(self.covariance))
        out = torch.empty_like(z)
        size = max(1, _NUMBERS // max(z.shape[1] ** 2, 1))
        for i in range(0, len(z), size):
            own = slice(i, i + size)
            seen, cov = ~gone[own], self.covariance[k_shared[own]]
            free = self.mean[k[own]] + (root[k_shared[own]] @ noise[own, :, None])[..., 0]
            masked = torch.where(seen[:, :, None] & seen[:, None], cov, torch.eye(z.shape[1], dtype=z.dtype))
            miss = torch.where(seen, z[own] - free, torch.zeros_like(free))
            weights = torch.cholesky_solve(miss[..., None], torch.linalg.cholesky(masked))[..., 0]
            weights = torch.where(seen, weights, torch.zeros_like(weights))
            moved = free + (cov @ weights[..., None])[..., 0]
            out[own] = torch.where(seen, z[own], moved)
        return out


def quantiles(law: Normals, levels: Tensor) -> Tensor:
    """Quantiles of mixtures of normals, `(n, levels)`, by halving."""
    low = (law.mean - 10 * law.spread).amin(1, keepdim=True).expand(-1, len(levels)).clone()
    high = (law.mean + 10 * law.spread).amax(1, keepdim=True).expand(-1, len(levels)).clone()
    for _ in range(50):
        middle = 0.5 * (low + high)
        r = (middle[:, :, None] - law.mean[:, None]) / law.spread[:, None]
        below = (torch.special.ndtr(r) * law.weight[:, None]).sum(-1) < levels
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)
