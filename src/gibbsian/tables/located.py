"""Mixtures whose numbers are shifted by names: the general location model, with latent classes.

    p(x) = Σ_k w_k Π_j t_kj(c_j) N(z - Σ_{j∈S} B_j[c_j]; μ_k, Σ_k)

Names of some columns S shift the numbers alike in all classes, as a better colour makes a stone of any size dearer; a mixture
without shifts needs classes for every tuple of names to say so. With a class k and names c_S as its component it is a `Mixture`, so that all
marginals and conditionals are exact.

Learned by expectation and conditional maximization: rows come once for every tuple of names in S that they may have, numbers moved back by
its shift, weighed by its probability; then B given the rest (least squares in the metrics Σ_k⁻¹, pulled towards 0), then w, μ, Σ, t as in `em`. S is
found by the information criterion of normal laws (AIC), one column after the other.

Reference: Olkin & Tate 1961; Little & Schluchter 1985; Meng & Rubin 1993 (conditional maximization).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gibbsian.tables.codec import Codec
from gibbsian.tables.em import Whole, expect, fit_mixture, maximize
from gibbsian.tables.gaussians import Conditioned, blocks
from gibbsian.tables.mixture import Mixture
from gibbsian.tables.rows import Rows

_TUPLES = 80  # of names in S, at most: every one is a component of every class
_SHIFT_PRIOR = 1.0  # rows by which shifts are pulled towards 0
_ROUNDS, _BEGIN = 15, 5  # of learning with shifts, and before them
_MOST, _STARTS = 16, 2  # classes at most, and starts that are averaged
_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Located:
    """The law.

    Attributes:
        classes: the mixture of the numbers moved back, and of all codes; its last component, the background, is shifted too.
        slots: S.
        shift: B, `(states of S, m)`, slot after slot.
    """

    classes: Mixture
    slots: tuple[int, ...]
    shift: Tensor

    @property
    def tuples(self) -> Tensor:
        """All tuples of names in S, `(R, |S|)`."""
        sizes = [torch.arange(self.classes.states[j]) for j in self.slots]
        return torch.cartesian_prod(*sizes).view(-1, len(sizes)) if sizes else torch.zeros(1, 0, dtype=torch.long)

    def moved(self, tuples: Tensor) -> Tensor:
        """Σ_j B_j[c_j] of tuples, `(n, m)`."""
        return hot(tuples, [self.classes.states[j] for j in self.slots]) @ self.shift

    def mixture(self) -> Mixture:
        """With one component for every class and tuple; tuples of one class share their covariance."""
        tuples, own = self.tuples, self.classes
        k, r = own.components, len(tuples)
        weight = own.log_weight[:, None].expand(k, r)
        tables = [own.mean.new_zeros(k, r, 0)]  # where no column is of names
        for j, size in enumerate(own.states):
            if j in self.slots:
                names = tuples[:, self.slots.index(j)]
                weight = weight + own.slot(j)[:, names]
                tables.append(one_hot(names, size).to(weight).log().expand(k, r, size))
            else:
                tables.append(own.slot(j)[:, None].expand(k, r, size))
        mean = own.mean[:, None] + self.moved(tuples)
        return Mixture(weight.reshape(-1), mean.flatten(0, 1), own.covariance, torch.cat(tables, 2).flatten(0, 1), own.states)  # fmt: skip


def hot(codes: Tensor, sizes: Sequence[int]) -> Tensor:
    """Codes as one of K side by side, all 0 where one is missing."""
    parts = [one_hot(codes[:, i] + 1, size + 1)[:, 1:] for i, size in enumerate(sizes)]
    return torch.cat([codes.new_zeros(len(codes), 0), *parts], 1).double()


def shifting(rows: Rows, whole: Whole, codec: Codec) -> tuple[int, ...]:
    """S: slots of names that shift the numbers most, as long as the criterion gains and tuples are few."""
    m, found, names = rows.z.shape[1], list[int](), 1
    if not m or rows.n < 2:
        return ()
    left = [
        j for j, z in zip(codec.code_slot, codec.z_slot, strict=True) if j >= 0 > z
    ]  # not atoms: they have no number beside them
    y = _filled(rows.z, whole.component())
    before = _spread(y, rows, whole, [])
    while left:
        left = [j for j in left if names * whole.states[j] <= _TUPLES]
        gains = {j: before - _spread(y, rows, whole, [*found, j]) - m * (whole.states[j] - 2) for j in left}
        best = max(gains, key=gains.__getitem__, default=-1)
        if gains.get(best, 0.0) <= 0:
            break
        found.append(best)
        left.remove(best)
        names *= whole.states[best]
        before = _spread(y, rows, whole, found)
    return tuple(sorted(found))


def _filled(z: Tensor, one: Mixture) -> Tensor:
    """Numbers about their mean, gaps filled in by one normal law."""
    y = torch.empty_like(z)
    for block in blocks(~z.isnan(), 1):
        y[block.rows] = Conditioned.of(block, z, one.mean, one.covariance).fitted()[:, 0]
    return y


def _spread(y: Tensor, rows: Rows, whole: Whole, slots: list[int]) -> float:
    """½ n log|covariance| of what shifts by some slots leave of numbers y."""
    x = torch.cat([y.new_ones(rows.n, 1), hot(rows.code[:, slots], [whole.states[j] for j in slots])], 1)
    ridge = _SHIFT_PRIOR * torch.eye(x.shape[1], dtype=x.dtype)
    rest = y - x @ torch.linalg.solve(x.T @ x + ridge, x.T @ y)
    return 0.5 * rows.n * float(torch.logdet(rest.T @ rest / rows.n + torch.diag(whole.floor)))


class Expanded:
    """Rows, once for every tuple of names in S that they may have."""

    def __init__(self, rows: Rows, law: Located) -> None:
        tuples = law.tuples
        own = rows.code[:, list(law.slots)]
        may = ((own[:, None] < 0) | (own[:, None] == tuples)).all(2)
        self.row, which = may.nonzero(as_tuple=True)
        self.n, self.tuples = rows.n, tuples[which]
        self.rows = rows.take(self.row)
        self.rows.code[:, list(law.slots)] = self.tuples
        self.hot = hot(self.tuples, [law.classes.states[j] for j in law.slots])

    def moved(self, law: Located) -> Rows:
        return self.rows._replace(z=self.rows.z - self.hot @ law.shift)

    def shares(self, law: Located) -> tuple[Tensor, float]:
        """p(class, tuple | observed part), `(expanded rows, K)`, and the log-likelihood."""
        joint = law.classes.log_joint(self.moved(law), points=True)
        top = joint.new_full((self.n,), -math.inf).scatter_reduce(0, self.row, joint.amax(1), "amax")
        r = (joint - top[self.row, None]).exp()
        total = r.new_zeros(self.n).index_add(0, self.row, r.sum(1))
        return r / total[self.row, None], float((top + total.log()).sum())


def climb(law: Located, data: Expanded, whole: Whole) -> tuple[Located, float]:
    """One round; and the log-likelihood before it."""
    r, log_prob = data.shares(law)
    law = replace(law, shift=shifted(law, data, r, whole))
    sums = expect(law.classes, data.moved(law), r)
    return replace(law, classes=maximize(law.classes, sums, whole, data.n)), log_prob


def shifted(law: Located, data: Expanded, r: Tensor, whole: Whole) -> Tensor:
    """B given all else: Σ_k XᵀR_kX ΔB Σ_k⁻¹ + λ (B + ΔB) Σ₀⁻¹ = Σ_k XᵀR_k d_k Σ_k⁻¹."""
    classes, x = law.classes, data.hot
    rows, first = data.moved(law), x.new_zeros(classes.components, x.shape[1], classes.mean.shape[1])
    for block in blocks(~rows.z.isnan(), classes.components):
        d = Conditioned.of(block, rows.z, classes.mean, classes.covariance).fitted()
        first += torch.einsum("ns,nk,nki->ksi", x[block.rows], r[block.rows], d)
    metric, prior = torch.linalg.inv(classes.covariance), torch.linalg.inv(whole.covariance)
    gram = torch.einsum("ns,nk,nt->kst", x, r, x)
    left = torch.einsum("kst,kij->sitj", gram, metric)
    left = left + _SHIFT_PRIOR * torch.einsum("st,ij->sitj", torch.eye(x.shape[1], dtype=x.dtype), prior)
    right = (first @ metric).sum(0) - _SHIFT_PRIOR * law.shift @ prior
    size = right.numel()
    return law.shift + torch.linalg.solve(left.reshape(size, size), right.reshape(size)).view_as(right)


def fit_located(
    rows: Rows, whole: Whole, slots: tuple[int, ...], classes: int, *, seed: int = 0, start: Located | None = None
) -> Located:
    """A law of a number of classes and a background, fitted to rows with gaps.

    Args:
        rows, whole, seed: as in `em.fit_mixture`.
        slots: S.
        classes: K.
        start: a law to go on from.
    """
    law = start
    if law is None:
        begun = fit_mixture(rows, whole, classes, seed=seed, steps=_BEGIN)
        law = Located(begun, slots, rows.z.new_zeros(sum(whole.states[j] for j in slots), rows.z.shape[1]))
    data, before = Expanded(rows, law), -math.inf
    for _ in range(_ROUNDS):
        law, log_prob = climb(law, data, whole)
        if log_prob - before < _TOLERANCE * rows.n:
            break
        before = log_prob
    return law


def choose_located(train: Rows, held: Rows, whole: Whole, slots: tuple[int, ...], *, seed: int = 0) -> list[Located]:
    """Laws of the number of classes 1, 2, 4, ... under which held-out rows are most likely, from several starts."""
    best, best_score, k = fit_located(train, whole, slots, 1, seed=seed), -math.inf, 1
    law = best
    while True:
        score = float(law.mixture().log_prob(held).clamp(min=-1e6).mean())
        if score <= best_score:
            break
        best, best_score, k = law, score, 2 * k
        if k > min(_MOST, max(train.n // 8, 1)):
            break
        law = fit_located(train, whole, slots, k, seed=seed)
    classes = best.classes.components - 1
    more = range(1, _STARTS) if classes > 1 else ()
    return [best, *(fit_located(train, whole, slots, classes, seed=seed + s) for s in more)]


def mean_of(laws: Sequence[Located]) -> Mixture:
    """The mean of several laws, as one mixture."""
    parts, share = [law.mixture() for law in laws], math.log(len(laws))
    fields = zip(*((part.log_weight, part.mean, part.covariance, part.table) for part in parts), strict=True)
    weight, mean, covariance, table = (torch.cat(field) for field in fields)
    return Mixture(weight - share, mean, covariance, table, parts[0].states)
