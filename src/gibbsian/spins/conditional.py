"""Pairwise machines from the conditionals of single units: pseudo-likelihood and minimum probability flow in closed form.

    f(W, b) = Σₙ pₙ Σᵢ φ(yₙᵢ uₙᵢ) ,   u = xW + b,   y = ±c the sign of a unit, c = 2 for ±1 and 1 for {0, 1} units

with φ(t) = log(1 + e^{-t}) (pseudo-likelihood) or e^{-t/2} (probability flow), both convex. Its gradient is R = pyφ'(yu), ∇b = ΣR, ∇W = RᵀX + XᵀR;
its Hessian in the weights and the bias of one unit is XᵀDX, D = py²φ''(yu).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported on first use
import torch
from torch import Tensor

from gibbsian.progress import progress_bar


class Words(NamedTuple):
    """Distinct rows `(words, n)` in double precision with their shares of the data, and how many rows those were."""

    x: Tensor
    share: Tensor
    rows: int
    low: float

    @property
    def signs(self) -> Tensor:
        """y."""
        return 2 * self.x if self.low else 2 * self.x - 1


class Pairs:
    """Symmetric matrices without diagonal, with fields, as flat vectors: all pairs i < j row by row, then the fields."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.i, self.j = (t.numpy() for t in torch.triu_indices(n, n, 1))
        self.count = len(self.i)

    def matrix(self, flat: np.ndarray) -> np.ndarray:
        """W of a flat vector."""
        w = np.zeros((self.n, self.n))
        w[self.i, self.j] = flat[: self.count]
        return w + w.T

    def flat(self, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The flat vector of the upper half of a matrix, and of fields."""
        return np.concatenate([w[self.i, self.j], b])


def _link(t: Tensor, flow: bool) -> tuple[Tensor, Tensor]:
    """φ(t) and φ'(t)."""
    if flow:
        value = torch.exp(-t / 2)
        return value, -value / 2
    p = torch.sigmoid(-t)
    return torch.nn.functional.softplus(-t), -p


class Conditional:
    """f with its gradient, sums over pairs as matrix products."""

    def __init__(self, words: Words, flow: bool, l2: tuple[float, float]) -> None:
        self.words, self.flow, self.l2 = words, flow, l2
        self.pairs, self.y = Pairs(words.x.shape[1]), words.signs
        self.share = words.share[:, None]

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        pairs, x = self.pairs, self.words.x
        w, b = torch.from_numpy(pairs.matrix(flat)), torch.from_numpy(flat[pairs.count :])
        value, slope = _link(torch.addmm(b, x, w).mul_(self.y), self.flow)
        residual = slope.mul_(self.y).mul_(self.share)
        a = residual.T @ x
        gradient = pairs.flat((a + a.T).numpy(), residual.sum(0).numpy())
        total = float(self.words.share @ value.sum(1))
        if any(self.l2):
            penalty = np.concatenate([np.full(pairs.count, self.l2[1]), np.full(pairs.n, self.l2[0])])
            total, gradient = total + 0.5 * float(penalty @ flat**2), gradient + penalty * flat
        return total, gradient


class Minimum(NamedTuple):
    """Where a search ended."""

    flat: np.ndarray
    converged: bool
    iterations: int


def minimum(
    function: Conditional, start: np.ndarray, l1: float, steps: int, tolerance: float, progress: bool | None
) -> Minimum:
    """By L-BFGS; with l1·Σ|w_ij| over positive and negative parts of the weights, so that many come out as exactly 0."""
    m, bounds, first = function.pairs.count, None, start
    problem: Callable[[np.ndarray], tuple[float, np.ndarray]] = function
    if l1:
        problem = partial(_split, function, l1)
        bounds = [(0.0, None)] * (2 * m) + [(None, None)] * (len(start) - m)
        first = np.concatenate([start[:m].clip(0), (-start[:m]).clip(0), start[m:]])
    with progress_bar(steps, "conditionals", progress) as tick:
        out = scipy.optimize.minimize(
            problem, first, jac=True, method="L-BFGS-B", bounds=bounds, callback=lambda _: tick(1),
            options={"maxiter": steps, "maxfun": 2 * steps + 20, "maxcor": 20, "ftol": 1e-15, "gtol": tolerance},
        )  # fmt: skip
    flat = np.concatenate([out.x[:m] - out.x[m : 2 * m], out.x[2 * m :]]) if l1 else out.x
    return Minimum(flat, bool(out.status == 0), int(out.nit))


def _split(function: Conditional, l1: float, both: np.ndarray) -> tuple[float, np.ndarray]:
    """f + l1·Σ(w⁺ + w⁻) of positive and negative parts of the weights."""
    m = function.pairs.count
    value, gradient = function(np.concatenate([both[:m] - both[m : 2 * m], both[2 * m :]]))
    pull = gradient[:m]
    return value + l1 * float(both[: 2 * m].sum()), np.concatenate([pull + l1, l1 - pull, gradient[m:]])


def sandwich(function: Conditional, flat: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Standard errors of the minimum: the roots of the diagonal of H⁻¹GH⁻¹/N, H the Hessian and G the covariance of the gradients of
    single rows (Huber 1967; White 1982), over the active parameters; NaN for the others."""
    words, pairs = function.words, function.pairs
    n, x, y = pairs.n, words.x, function.y
    w, b = torch.from_numpy(pairs.matrix(flat)), torch.from_numpy(flat[pairs.count :])
    t = (x @ w + b) * y
    slope, p = _link(t, function.flow)[1], torch.sigmoid(t)
    curvature = words.share[:, None] * y.square() * (torch.exp(-t / 2) / 4 if function.flow else p * (1 - p))
    position = np.zeros((n, n), dtype=np.int64)  # of the weights of every unit, with the field in its own place
    position[pairs.i, pairs.j] = position[pairs.j, pairs.i] = np.arange(pairs.count)
    position[np.arange(n), np.arange(n)] = pairs.count + np.arange(n)
    places = torch.from_numpy(position)
    size = len(flat)
    hessian = torch.zeros(size * size, dtype=torch.float64)
    for i in range(n):
        features = x.clone()
        features[:, i] = 1.0
        block = features.T @ (features * curvature[:, i, None])
        where = places[i][:, None] * size + places[i]
        hessian.index_add_(0, where.flatten(), block.flatten())
    hessian = hessian.reshape(size, size)
    hessian.diagonal()[: pairs.count] += function.l2[1]
    hessian.diagonal()[pairs.count :] += function.l2[0]
    chosen = torch.from_numpy(active.nonzero()[0])
    factor = torch.linalg.cholesky(hessian[chosen][:, chosen])
    r = slope * y
    left, right = torch.from_numpy(pairs.i), torch.from_numpy(pairs.j)
    total = torch.zeros(len(chosen), dtype=torch.float64)
    for rows in torch.arange(len(x)).split(max(1, (1 << 24) // size)):
        a, s = x[rows], r[rows]
        scores = torch.cat([s[:, left] * a[:, right] + s[:, right] * a[:, left], s], 1)[:, chosen]
        total += torch.cholesky_solve(scores.T, factor).square() @ words.share[rows]
    errors = np.full(size, math.nan)
    errors[chosen.numpy()] = (total / words.rows).sqrt().numpy()
    return errors
