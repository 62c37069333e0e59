"""Windows on the rows of a table: a mixture with one component a row.

w(x, xᵢ) = Π_numbers N(z; zᵢ, h²s²) Π_codes [(1-λ)·1(c = cᵢ) + λ·p(c)]

A cell that row i lacks has the law there that the windows of the other rows give it, from the cells that row i has: its
probabilities if it is a code, its mean and variance if it is a number. (With the law of the whole column in its place a row's own window, the nearest to it, would say
nothing of what the row lacks.) h and λ are those under which every row is most likely given the others.

Reference: Parzen 1962; Aitchison & Aitken 1976 (codes).
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from gibbsian.random import stream
from gibbsian.tables.em import Whole
from gibbsian.tables.mixture import Mixture
from gibbsian.tables.rows import Rows

_WIDTHS = (0.05, 0.1, 0.15, 0.22, 0.33, 0.5, 0.75)
_BLURS = (0.02, 0.1, 0.3)
_JUDGES = 400  # rows that choose
_MOST = 2000  # windows
_ROUNDS = 2  # in which windows tell each other what they lack


def windows(rows: Rows, whole: Whole, width: float, blur: float) -> Mixture:
    """The mixture with windows of a width, in units of the columns' spread, and codes blurred by a share."""
    seen, variance = ~rows.z.isnan(), whole.covariance.diagonal()
    mean = torch.where(seen, rows.z, whole.mean)
    spread = torch.where(seen, variance * width**2 + whole.floor, variance + whole.floor)
    tables, at = [], 0
    for j, size in enumerate(whole.states):
        p = whole.frequencies[at : at + size].expand(rows.n, -1)
        hot = torch.nn.functional.one_hot(rows.code[:, j].clamp(min=0), size).to(p)
        tables.append(torch.where((rows.code[:, j] >= 0)[:, None], (1 - blur) * hot + blur * p, p).log())
        at += size
    table = torch.cat(tables, 1) if tables else mean.new_zeros(rows.n, 0)
    return Mixture(mean.new_full((rows.n,), -math.log(rows.n)), mean, spread, table, whole.states)


def fit_parzen(rows: Rows, whole: Whole, *, seed: int = 0, chosen: tuple[float, float] | None = None) -> tuple[Mixture, tuple[float, float]]:  # fmt: skip
    """Windows on (at most 2000 of) the rows, and their width and blur, chosen by leaving one out."""
    order = torch.randperm(rows.n, generator=stream(seed, "windows"))
    if chosen is None:
        few = rows.take(order[:_JUDGES])
        scores = {(h, b): float(_left_out(windows(few, whole, h, b), few)) for h in _WIDTHS for b in _BLURS}
        chosen = max(scores, key=lambda pair: scores[pair])
        # more windows may be narrower: the usual rate, for as many columns as there are
        d = max(rows.z.shape[1] + len(whole.states), 1)
        chosen = (chosen[0] * (few.n / min(rows.n, _MOST)) ** (1 / (d + 4)), chosen[1])
    some = rows.take(order[:_MOST])
    return told(windows(some, whole, *chosen), some), chosen


def told(mixture: Mixture, rows: Rows, rounds: int = _ROUNDS) -> Mixture:
    """Windows on rows with gaps, the law of every gap that which the other windows give it."""
    gone, lacks = rows.z.isnan(), rows.code < 0
    if rows.n < 3 or not (bool(gone.any()) or bool(lacks.any())):
        return mixture
    for _ in range(rounds):
        share = torch.softmax(_of_others(mixture, rows), 1)
        mean = share @ mixture.mean
        variance = share @ (mixture.covariance + mixture.mean.square()) - mean.square()
        tables = list((share @ mixture.table.exp()).log().split(list(mixture.states), 1))
        for j in range(len(tables)):
            tables[j] = torch.where(lacks[:, j, None], tables[j], mixture.slot(j))
        mixture = replace(
            mixture, mean=torch.where(gone, mean, mixture.mean), covariance=torch.where(gone, variance, mixture.covariance),
            table=torch.cat(tables, 1) if tables else mixture.table,
        )  # fmt: skip
    return mixture


def _of_others(mixture: Mixture, rows: Rows) -> Tensor:
    """log w of every row with the windows of the others, `(n, n)`."""
    return mixture.log_joint(rows).masked_fill(torch.eye(rows.n, dtype=torch.bool), -math.inf)


def _left_out(mixture: Mixture, rows: Rows) -> Tensor:
    """Mean log-likelihood of every row under the windows of the others."""
    joint = _of_others(mixture, rows)
    return torch.logsumexp(joint, 1).mean() if rows.n > 1 else joint.new_zeros(())
