"""Laws of tables that share their say: p(x) = Σ_f π_f p_f(x), the weights those under which held-out rows are most likely.

Where rows are few no family is right, and a choice among them is luck; a sum is never much worse than its best part, mostly better, and
as exact as they are: observed parts, conditionals and completions weigh the parts by p(f | observed) ∝ π_f p_f(observed).

Reference: Smyth & Wolpert 1999 (stacked density estimation).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gibbsian.tables.codec import Codec
from gibbsian.tables.laws import CellLaw, Law
from gibbsian.tables.rows import Rows
from gibbsian.tables.tilted import Estimate
from gibbsian.units.base import pick

_ROUNDS = 200  # in which weights are found
_LEAST = 0.03  # of a weight, below which a part is left out


@dataclass(frozen=True, eq=False)
class StackedLaw:
    """Several laws, weighed.

    Attributes:
        laws: the parts.
        log_weight: log π, `(parts,)`.
        codec: of the table.
    """

    laws: tuple[Law, ...]
    log_weight: Tensor
    codec: Codec

    def _share(self, rows: Rows) -> Tensor:
        """p(f | the observed part of a row), `(n, parts)`."""
        joint = torch.stack([law.log_prob(rows).value for law in self.laws], 1) + self.log_weight
        joint = torch.where(torch.isneginf(joint).all(1, keepdim=True), self.log_weight, joint)  # what cannot be
        return torch.softmax(joint, 1)

    def log_prob(self, rows: Rows) -> Estimate:
        parts = zip(*(law.log_prob(rows) for law in self.laws), strict=True)
        return Estimate(*(torch.logsumexp(torch.stack(part, 1) + self.log_weight, 1) for part in parts))

    def log_given(self, rows: Rows, column: int) -> Tensor:
        own = torch.stack([law.log_given(rows, column) for law in self.laws], 1)
        return torch.logsumexp(own + self._share(self.codec.without(rows, column)).log(), 1)

    def cell(self, rows: Rows, column: int) -> CellLaw:
        share = self._share(self.codec.without(rows, column))
        cells = [law.cell(rows, column) for law in self.laws]
        known = [cell.codes for cell in cells if cell.codes is not None]
        codes = torch.einsum("nf,fns->ns", share, torch.stack(known)) if known else None
        nodes = [(cell.z, cell.weight) for cell in cells if cell.z is not None and cell.weight is not None]
        if not nodes:
            return CellLaw(codes, None, None)
        free = (
            share * torch.stack([part[:, -1] for part in known], 1) if known else share
        )  # of numbers that are no atom
        weight = torch.cat([free[:, f, None] * own for f, (_, own) in enumerate(nodes)], 1)
        total = weight.sum(1, keepdim=True)
        even = torch.full_like(weight, 1 / weight.shape[1])
        return CellLaw(codes, torch.cat([z for z, _ in nodes], 1), torch.where(total > 0, weight / total, even))

    def complete(self, rows: Rows, generator: torch.Generator) -> Rows:
        share = self._share(rows)
        chosen = pick(share, torch.rand(rows.n, generator=generator, dtype=share.dtype))
        z, code = rows.z.clone(), rows.code.clone()
        for f, law in enumerate(self.laws):
            own = chosen == f
            if bool(own.any()):
                made = law.complete(rows.take(own), generator)
                z[own], code[own] = made.z, made.code
        return rows._replace(z=z, code=code)

    def leant(self, log_odds: Tensor) -> tuple[Law, Tensor]:
        laws, log_z = zip(*(law.leant(log_odds) for law in self.laws), strict=True)
        joint = self.log_weight + torch.stack(log_z)
        total = torch.logsumexp(joint, 0)
        return StackedLaw(laws, joint - total, self.codec), total


def weigh(log_probs: Tensor) -> Tensor:
    """π under which held-out rows with log p_f `(n, parts)` are most likely, by expectation-maximization with a prior worth one row;
    what weighs next to nothing is left out."""
    n, parts = log_probs.shape
    pi = torch.full((parts,), 1 / parts, dtype=log_probs.dtype)
    for _ in range(_ROUNDS):
        r = torch.softmax(log_probs.clamp(min=-1e6) + pi.log(), 1)
        pi = (r.sum(0) + 1 / parts) / (n + 1)
    pi = torch.where(pi < _LEAST, torch.zeros_like(pi), pi)
    return pi / pi.sum()


def gain(log_probs: Tensor) -> float:
    """Mean log-likelihood of held-out rows under weights that each half of them chose for the other."""
    halves = log_probs[::2], log_probs[1::2]
    if min(map(len, halves)) == 0:
        return float(torch.logsumexp(log_probs + weigh(log_probs).log(), 1).mean())
    both = [torch.logsumexp(judged + weigh(chose).log(), 1) for chose, judged in (halves, halves[::-1])]
    return float(torch.cat(both).clamp(min=-1e6).mean())
