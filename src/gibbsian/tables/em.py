"""Mixtures over tables by expectation-maximization: gaps are part of the expectation, nothing is filled in beforehand.

E: r_ik ∝ w_k p(observed part of row i | k), and the moments of its gaps given k;   M: weights, means, covariances and tables of
the completed rows, each with a prior worth a few rows. Means and tables are pulled towards the table as a whole, covariances
towards what the components have in common, Σ₀ = Σ_k scatter_k / Σ_k weight_k.

The likelihood has many peaks, and which one is found is luck of the start; the mean of the laws of several starts is a mixture too, under
which new rows are more likely than under one of them on average (`averaged`).

Reference: Dempster, Laird & Rubin 1977; Ghahramani & Jordan 1994 (mixtures from incomplete data); Friedman 1989 (pooled covariances).
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from gibbsian.tables.gaussians import Conditioned, blocks
from gibbsian.tables.mixture import Mixture
from gibbsian.tables.rows import Rows

_TABLE_PRIOR = 1.0  # rows by which the tables of codes are pulled towards the frequencies of the whole table
_MEAN_PRIOR = 0.01  # the same for means
_WIDE = 0.1  # share of the whole table's covariance in the prior of what the components have in common
_SCANNED, _STARTS = 3, 8  # starts that choose the number of components, and that are averaged
_ROUNDS = 20, 60  # of expectation-maximization in mixtures that are averaged, which may differ, and in one alone
_MANY = 4000  # rows above which clusters to begin with are found batch by batch


class Sums(NamedTuple):
    """Sufficient statistics: of responsibilities, of numbers about the means, of codes; and the log-likelihood."""

    weight: Tensor  # (K,)
    first: Tensor  # (K, m)
    second: Tensor  # (K, m, m) or (K, m)
    counts: Tensor  # (all states, K)
    log_prob: float


@dataclass(frozen=True, eq=False)
class Whole:
    """The table as a whole: what priors pull towards.

    Attributes:
        mean, covariance: of the numbers.
        floor: `(m,)`, the least variance of a component: that of a bin.
        frequencies: of all codes, none of them 0.
    """

    mean: Tensor
    covariance: Tensor
    floor: Tensor
    frequencies: Tensor
    states: tuple[int, ...]

    @classmethod
    def of(cls, rows: Rows, states: tuple[int, ...]) -> "Whole":
        z, seen = rows.z.nan_to_num(), ~rows.z.isnan()
        n = seen.sum(0).clamp(min=1)
        mean = z.sum(0) / n
        d = torch.where(seen, z - mean, torch.zeros_like(z))
        both = seen.double().T @ seen.double()
        m, total = z.shape[1], rows.n
        cov = (d.T @ d) / (both + 2.0)
        cov = cov + torch.diag(0.05 / math.sqrt(total) + 2.0 / (n + 2.0))
        values, vectors = torch.linalg.eigh(cov)
        cov = vectors @ torch.diag(values.clamp(min=1e-4)) @ vectors.T  # pairs with gaps elsewhere may disagree
        width = torch.where(seen & torch.isfinite(rows.below), rows.below + rows.above, torch.full_like(z, math.nan))
        floor = width.nanmedian(0).values.nan_to_num(0.0).square() / 12 if total and m else z.new_zeros(m)
        parts = []
        for j, size in enumerate(states):
            known = rows.code[:, j][rows.code[:, j] >= 0]
            count = torch.bincount(known, minlength=size).to(z)
            parts.append((count + 0.5) / (count.sum() + 0.5 * size))
        return cls(mean, cov, floor.clamp(min=1e-5), torch.cat(parts) if parts else z.new_zeros(0), states)

    def component(self, spread: float = 1.0) -> Mixture:
        """The mixture of one component, as wide as the table."""
        log_weight = self.mean.new_zeros(1)
        return Mixture(
            log_weight, self.mean[None], spread * self.covariance[None], self.frequencies.log()[None], self.states
        )

    def background(self) -> Mixture:
        """A component that is wider than the table, for rows unlike all others."""
        flat = torch.cat(
            [torch.full((size,), 1 / size, dtype=self.mean.dtype) for size in self.states] or [self.mean[:0]]
        )
        wide = torch.diag(self.covariance.diagonal() * 9 + 1)
        return Mixture(self.mean.new_zeros(1), self.mean[None], wide[None], (0.5 * self.frequencies + 0.5 * flat).log()[None], self.states)  # fmt: skip


def fit_mixture(
    rows: Rows, whole: Whole, components: int, *, seed: int = 0, steps: int = 60, start: Mixture | None = None,
    tolerance: float = 1e-3,
) -> Mixture:  # fmt: skip
    """A mixture of a number of components and a background, fitted to rows with gaps.

    Args:
        rows: `Rows`, gaps marked.
        whole: what `Whole.of` found.
        components: K.
        seed: of the clusters to begin with.
        steps: rounds, at most.
        start: a mixture to go on from, instead of clusters.
        tolerance: gain of log-likelihood a row below which it ends.
    """
    model = start if start is not None else _begin(rows, whole, components, seed)
    before = -math.inf
    for _ in range(steps):
        sums = expect(model, rows)
        model = maximize(model, sums, whole, rows.n)
        gain = sums.log_prob - before
        before = sums.log_prob
        if gain < tolerance * rows.n:
            break
    return model


def climb(model: Mixture, pieces: Iterable[Rows], whole: Whole) -> tuple[Mixture, int]:
    """One round over rows that come piece by piece, their statistics added up: as one round over all of them at once, and how many
    there were."""
    total, n = None, 0
    for rows in pieces:
        sums, n = expect(model, rows), n + rows.n
        total = sums if total is None else Sums(*(a + b for a, b in zip(total, sums, strict=True)))  # type: ignore[operator]
    return (model, 0) if total is None else (maximize(model, total, whole, n), n)


def expect(model: Mixture, rows: Rows, responsibility: Tensor | None = None) -> Sums:
    """The statistics of rows under a mixture, or with responsibilities that are given."""
    k = model.components
    weight, first, second = (
        model.log_weight.new_zeros(k),
        torch.zeros_like(model.mean),
        torch.zeros_like(model.covariance),
    )
    counts, log_prob = model.table.new_zeros(model.table.shape[1], k), 0.0
    codes = _code_joint(model, rows)
    for block in blocks(~rows.z.isnan(), k):
        seen = Conditioned.of(block, rows.z, model.mean, model.covariance)
        zero = torch.zeros_like(rows.z)
        joint = codes[block.rows] + seen.log_prob(zero, zero)
        total = torch.logsumexp(joint, 1)
        log_prob += float(total.sum())
        r = (joint - total[:, None]).exp() if responsibility is None else responsibility[block.rows]
        weight += r.sum(0)
        d = seen.fitted()
        first += torch.einsum("nk,nki->ki", r, d)
        rd = r[..., None] * d
        second += torch.bmm(rd.permute(1, 2, 0), d.permute(1, 0, 2))
        if not bool(block.seen.all()):
            rest = seen.rest()
            second += torch.einsum("k,kij->kij", r.sum(0), rest[0]) if len(rest) == 1 else torch.einsum("nk,nkij->kij", r, rest)  # fmt: skip
        _count(counts, rows.code[block.rows], r, model.states)
    return Sums(weight, first, second, counts, log_prob)


def _code_joint(model: Mixture, rows: Rows) -> Tensor:
    empty = Rows(rows.z[:, :0], rows.z[:, :0], rows.z[:, :0], rows.code, rows.unit)
    return Mixture(model.log_weight, model.mean[:, :0], model.mean[:, :0], model.table, model.states).log_joint(empty)


def _count(counts: Tensor, code: Tensor, r: Tensor, states: tuple[int, ...]) -> None:
    first = 0
    for j, size in enumerate(states):
        known = code[:, j] >= 0
        counts.index_add_(0, code[known, j] + first, r[known])
        first += size


def maximize(model: Mixture, sums: Sums, whole: Whole, n: int) -> Mixture:
    """The mixture that the statistics speak for; the last component, the background, keeps all but its weight."""
    k, m = model.mean.shape
    weight = sums.weight.clamp(min=1e-10)
    log_weight = ((weight + 1) / (n + k)).log()
    shift = (sums.first + _MEAN_PRIOR * (whole.mean - model.mean)) / (weight + _MEAN_PRIOR)[:, None]
    mean = model.mean + shift
    prior = m + 2.0
    scatter = sums.second - weight[:, None, None] * (
        2 * _outer(sums.first / weight[:, None], shift) - _outer(shift, shift)
    )
    scatter = 0.5 * (scatter + scatter.transpose(-1, -2))
    common = (scatter[:-1].sum(0) + prior * _WIDE * whole.covariance) / (weight[:-1].sum() + prior)
    covariance = (scatter + prior * common) / (weight + prior)[:, None, None] + torch.diag(whole.floor)
    tables, at = [], 0
    for size in whole.states:
        counts = sums.counts[at : at + size].T + _TABLE_PRIOR * whole.frequencies[at : at + size]
        tables.append((counts / counts.sum(1, keepdim=True)).log())
        at += size
    table = torch.cat(tables, 1) if tables else model.table
    mean, covariance, table = mean.clone(), covariance.clone(), table.clone()
    mean[-1], covariance[-1], table[-1] = model.mean[-1], model.covariance[-1], model.table[-1]
    return Mixture(log_weight, mean, covariance, table, whole.states)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    both = a[:, :, None] * b[:, None]
    return 0.5 * (both + both.transpose(-1, -2))


def _numbers(mixture: Mixture) -> tuple[Tensor, Tensor, Tensor]:
    return mixture.mean, mixture.covariance, mixture.table


def _begin(rows: Rows, whole: Whole, components: int, seed: int) -> Mixture:
    """Clusters of the rows, gaps at the mean, as the first responsibilities."""
    background = whole.background()
    parts = [whole.component()] * components + [background]
    mean, covariance, table = (torch.cat([part[i] for part in map(_numbers, parts)]) for i in range(3))
    equal = torch.full((components + 1,), -math.log(components + 1), dtype=whole.mean.dtype)
    model = Mixture(equal, mean, covariance, table, whole.states)
    labels = torch.from_numpy(clusters(features(rows, whole), components, seed)).long()
    r = torch.full((rows.n, components + 1), 0.1 / components, dtype=whole.mean.dtype)
    r[:, -1] = 0.01
    r[torch.arange(rows.n), labels] = 0.9
    r = r / r.sum(1, keepdim=True)
    return maximize(model, expect(model, rows, r), whole, rows.n)


def features(rows: Rows, whole: Whole) -> np.ndarray:
    """Rows as plain numbers, for clusters: z, and codes as one of K, each column of about the same spread."""
    spread = whole.covariance.diagonal().sqrt()
    z = torch.where(rows.z.isnan(), torch.zeros_like(rows.z), (rows.z - whole.mean) / spread)
    parts, at = [z], 0
    for j, size in enumerate(whole.states):
        p = whole.frequencies[at : at + size]
        hot = torch.nn.functional.one_hot(rows.code[:, j].clamp(min=0), size).to(z) - p
        hot[rows.code[:, j] < 0] = 0
        parts.append(hot / math.sqrt(float((p * (1 - p)).sum()) + 1e-3))
        at += size
    return torch.cat(parts, 1).numpy()


def clusters(x: np.ndarray, k: int, seed: int) -> np.ndarray:
    """A cluster for every row."""
    k = min(k, len(np.unique(x, axis=0)) if len(x) < 1000 else k)
    if k < 2:
        return np.zeros(len(x), dtype=np.int64)
    many = MiniBatchKMeans(k, n_init=1, batch_size=1024, max_iter=20, random_state=seed % 2**31)
    found = many if len(x) > _MANY else KMeans(k, n_init=1, max_iter=30, random_state=seed % 2**31)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # where rows repeat, there are fewer clusters
        return found.fit_predict(x)


def choose_mixture(
    train: Rows, held: Rows, whole: Whole, *, seed: int = 0, most: int = 128, starts: int = _STARTS
) -> list[Mixture]:
    """Mixtures of the number of components 1, 2, 4, ... under whose mean held-out rows are most likely, from several starts; the search
    ends after two numbers in a row that are no better."""
    best, best_score, worse, k = list[Mixture](), -math.inf, 0, 1
    while k <= min(most, max(train.n // 4, 1)) and worse < 2:
        begun = range(min(starts, _SCANNED) if k > 1 else 1)
        parts = [fit_mixture(train, whole, k, seed=seed + s, steps=rounds(starts)) for s in begun]
        score = float(averaged(parts).log_prob(held).clamp(min=-1e6).mean())
        if not best or score > best_score:
            best, best_score, worse = parts, score, 0
        else:
            worse += 1
        k *= 2
    more = range(len(best), starts) if best[0].components > 2 else ()
    return best + [fit_mixture(train, whole, best[0].components - 1, seed=seed + s, steps=rounds(starts)) for s in more]


def rounds(starts: int) -> int:
    """Of expectation-maximization, at most, for every one of so many mixtures."""
    return _ROUNDS[starts == 1]


def averaged(parts: Sequence[Mixture]) -> Mixture:
    """The mean of several mixtures with the same background, as one: all their components, and the background."""
    first, share = parts[0], math.log(len(parts))
    own = [torch.cat([values[:-1] for values in field]) for field in zip(*map(_numbers, parts), strict=True)]
    mean, covariance, table = (torch.cat([a, b[-1:]]) for a, b in zip(own, _numbers(first), strict=True))
    last = torch.logsumexp(torch.stack([part.log_weight[-1:] for part in parts]), 0)
    log_weight = torch.cat([*(part.log_weight[:-1] for part in parts), last]) - share
    return Mixture(log_weight, mean, covariance, table, first.states)
