"""How cells come to be missing: whether the odds of a gap follow what the cell would hold, and the law of what is hidden.

    P(gap in column j | x) / P(no gap | x) = a_j ω_j(x_j),      ω_j(c) = e^{θ_jc}

for columns of names, truth values and few numbers; gaps of other numbers are taken as ignorable. With p the law of cells that are seen, what is hidden has the law

    p(hidden | seen, gaps) ∝ p(hidden, seen) Π_{j hidden} ω_j(x_j)

As the factors of seen cells would be constants, all sets of gaps share one law, p leant by ω in every column, and a leant mixture is a
mixture: table t_kj ∝ t_kj ω_j, weight w_k ∝ w_k Π_j Σ_c t_kj(c) ω_j(c).

What was hidden is not known, yet who hides is: in rows that the rest makes likely to hold a value with great ω_j, gaps are more frequent,

    P(gap in j | x₋ⱼ) / P(no gap | x₋ⱼ) = a_j E_p[ω_j(x_j) | x₋ⱼ]

θ is found by that likelihood, E_p by laws that did not learn from the row (cross-fitting: a law that has seen a row knows the cells that it has better than those it
lacks, and would take that for a mechanism). It holds what columns have in common, θ_jc = β s_j(c) with s_j the surprise of a name or the standardized value of a number, and
what each has of its own, pulled towards 0. Two rivals must be worse on held-out rows: gaps that follow nothing, and
gaps that follow other cells (a ridge logistic regression on them), under which what is hidden has the law p itself.

Reference: Saerens, Latinne & Decaestecker 2002 (classes with other frequencies); Little & Rubin 2019, ch. 15 (gaps that are not ignorable).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from gibbsian.random import stream
from gibbsian.tables.codec import Codec
from gibbsian.tables.coders import FewValues, Numbers
from gibbsian.tables.em import Whole, features
from gibbsian.tables.laws import Law
from gibbsian.tables.rows import Rows

_ROWS = 3000  # at most, that say how gaps come about
_LEAST = 10  # gaps, and cells, that a column must have
_FOLDS = 4
# towards what columns have in common: precisions of the normal prior of what each has of its own
_PULLS = (1.0, 5.0, 30.0)
_RIDGES = (0.01, 0.1, 1.0)  # of the rival that follows other cells
_WORTH = 5.0  # nats, of all held-out rows together, by which a mechanism must be better than a simpler one
_STEPS = 40


class Gaps(NamedTuple):
    """How gaps come about.

    Attributes:
        log_odds: θ, `(all states,)` slot after slot, 0 where gaps do not follow what is hidden.
        scores: log-likelihood of which held-out cells are gaps, in nats more than where they follow nothing; empty where too few are.
    """

    log_odds: Tensor
    scores: dict[str, float]

    @property
    def ignorable(self) -> bool:
        """Whether what is hidden has the law of what is seen."""
        return not bool(self.log_odds.any())


def no_lean(codec: Codec) -> Gaps:
    """Gaps that do not follow what is hidden."""
    return Gaps(torch.zeros(sum(codec.states), dtype=torch.float64), {})


@dataclass(frozen=True, eq=False)
class _Asked:
    """A column with codes: their law given the rest of every row, what θ has in common with other columns, and where gaps are."""

    slot: int
    log_p: Tensor  # (n, drawable)
    common: Tensor  # (drawable,)
    kind: int  # 0: names, 1: numbers
    gap: Tensor  # (n,)

    @classmethod
    def of(cls, laws: Sequence[Law], folds: Sequence[Tensor], codec: Codec, rows: Rows, column: int) -> "_Asked | None":
        slot, coder = codec.code_slot[column], codec.coders[column]
        if slot < 0 or coder is None:
            return None
        gap = rows.code[:, slot] < 0
        if min(int(gap.sum()), int((~gap).sum())) < _LEAST:
            return None
        p = torch.empty(rows.n, coder.drawable, dtype=torch.float64)
        for law, fold in zip(laws, folds, strict=True):
            found = law.cell(rows.take(fold), column).codes
            assert found is not None
            p[fold] = found[:, : coder.drawable].clamp(min=1e-12)
        p = p / p.sum(1, keepdim=True)
        mean = p[~gap].mean(0)
        if isinstance(coder, FewValues):
            values = list(coder.column.values)
            raw = torch.tensor([*values, values[-1]], dtype=p.dtype)
        else:
            raw = torch.zeros_like(mean) if isinstance(coder, Numbers) else -mean.log()
        raw = raw - mean @ raw
        if isinstance(coder, FewValues):
            raw = raw / (mean @ raw.square()).sqrt().clamp(min=1e-6)
        return cls(slot, p.log(), raw, int(isinstance(coder, FewValues)), gap.double())


def fit_gaps(learn: Callable[[Rows], Law], codec: Codec, rows: Rows, *, seed: int = 0) -> Gaps:
    """Find out how the gaps of a table come about.

    Args:
        learn: a law of some rows, gaps taken as ignorable.
        codec: of the table.
        rows: the table.
        seed: of the folds.
    """
    order = torch.randperm(rows.n, generator=stream(seed, "gaps"))[:_ROWS]
    rows, plain = rows.take(order), no_lean(codec)
    lacks = (rows.code < 0).sum(0)
    if rows.n < 2 * _LEAST or not bool((torch.minimum(lacks, rows.n - lacks) >= _LEAST).any()):
        return plain
    folds = [torch.arange(rows.n) % _FOLDS == f for f in range(_FOLDS)]
    laws = [learn(rows.take(~fold)) for fold in folds]
    found = (_Asked.of(laws, folds, codec, rows, i) for i in range(len(codec.schema)))
    columns = [column for column in found if column is not None]
    pull, scores = _compared(columns, codec, rows, folds)
    if scores["own"] < max(_WORTH, scores.get("others", 0.0)):
        return Gaps(plain.log_odds, scores)
    return Gaps(_Lean(columns, torch.ones(rows.n, dtype=torch.bool), pull).log_odds(codec), scores)


def _compared(columns: list[_Asked], codec: Codec, rows: Rows, folds: list[Tensor]) -> tuple[float, dict[str, float]]:
    """The best pull, and the log-likelihood of which held-out cells are gaps, beyond that of gaps that follow nothing."""
    nothing = sum(_frequency(column.gap, ~fold, fold) for column in columns for fold in folds)
    own = {pull: sum(_Lean(columns, ~fold, pull).score(fold) for fold in folds) - nothing for pull in _PULLS}
    pull = max(own, key=lambda value: own[value])
    scores = {"own": own[pull]}
    if own[pull] >= _WORTH:
        scores["others"] = max(_others(columns, codec, rows, folds, ridge) for ridge in _RIDGES) - nothing
    return pull, scores


class _Lean:
    """θ, from which of some rows have gaps."""

    def __init__(self, columns: list[_Asked], some: Tensor, pull: float) -> None:
        self.columns = columns
        sizes = [2, len(columns), *(len(column.common) for column in columns)]
        self.parts = list(torch.zeros(sum(sizes), dtype=torch.float64).split(sizes))
        for part in self.parts:
            part.requires_grad_()
        optimizer = torch.optim.LBFGS(self.parts, max_iter=_STEPS, line_search_fn="strong_wolfe")
        beta, _, *deviations = self.parts

        def loss() -> Tensor:
            optimizer.zero_grad()
            prior = 0.5 * beta.square().sum() + 0.5 * pull * sum(part.square().sum() for part in deviations)
            value = prior - self._log_prob(some)
            value.backward()
            return value

        optimizer.step(loss)

    def theta(self, j: int) -> Tensor:
        """θ of a column."""
        return self.parts[0][self.columns[j].kind] * self.columns[j].common + self.parts[2 + j]

    def _log_prob(self, some: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for j, column in enumerate(self.columns):
            logit = self.parts[1][j] + torch.logsumexp(column.log_p[some] + self.theta(j), 1)
            total = total - binary_cross_entropy_with_logits(logit, column.gap[some], reduction="sum")
        return total

    @torch.no_grad()
    def score(self, some: Tensor) -> float:
        """log-likelihood of which cells of some rows are gaps."""
        return float(self._log_prob(some))

    @torch.no_grad()
    def log_odds(self, codec: Codec) -> Tensor:
        out = torch.zeros(sum(codec.states), dtype=torch.float64)
        for j, column in enumerate(self.columns):
            first, theta = sum(codec.states[: column.slot]), self.theta(j)
            out[first : first + len(theta)] = theta - theta.mean()
        return out


def _frequency(gap: Tensor, some: Tensor, judges: Tensor) -> float:
    """log-likelihood of gaps that are as frequent as in some rows."""
    share = ((gap[some].sum() + 0.5) / (some.sum() + 1)).expand(int(judges.sum()))
    return float(-torch.nn.functional.binary_cross_entropy(share, gap[judges], reduction="sum"))


def _others(columns: list[_Asked], codec: Codec, rows: Rows, folds: list[Tensor], ridge: float) -> float:
    """log-likelihood of gaps that follow other cells."""
    x = torch.from_numpy(features(rows, Whole.of(rows, tuple(codec.states))))
    total = 0.0
    for column in columns:
        rest = torch.ones(x.shape[1], dtype=torch.bool)
        first = codec.m + sum(codec.states[: column.slot])
        rest[first : first + codec.states[column.slot]] = False
        i = codec.code_slot.index(column.slot)
        if codec.z_slot[i] >= 0:
            rest[codec.z_slot[i]] = False
        for fold in folds:
            gap = column.gap[~fold]
            if 0 < gap.sum() < len(gap):
                model = LogisticRegression(C=ridge, max_iter=200).fit(x[~fold][:, rest], gap)
                logit = torch.from_numpy(model.decision_function(x[fold][:, rest]))
                total -= float(binary_cross_entropy_with_logits(logit, column.gap[fold], reduction="sum"))
            else:
                total += _frequency(column.gap, ~fold, fold)
    return total
