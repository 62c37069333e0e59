"""Newton's method on the maximum-entropy dual over finitely many weighted points, and what makes it impossible.

D(η) = log Σ_k w_k exp(η·f_k) - η·μ + λ‖η‖₁
"""

import math
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported on first use
import torch
from torch import Tensor

from gibbsian.errors import InfeasibleError

_LP_POINTS = 1 << 14  # points of the linear programmes
_INSIDE = 1e-7  # the least share of the uniform law in a law with the moments that counts as inside
_AT_THE_EDGE = (
    "these moments lie on the boundary of what is possible: only laws that give some states probability 0 have them, so "
    "η would have to be infinite; move them inside, for example by smoothing counts, or allow slack="
)


class Points(NamedTuple):
    """Features `(N, m)` of the points of a sum, and the logs `(N,)` of their weights."""

    f: Tensor
    log_w: Tensor


class Problem(NamedTuple):
    """Moments μ `(m,)` to be had within `slack`, η to start from, and when to stop: at a residual below `tolerance`, relative
    to the spread of its feature, or after so many iterations."""

    mu: Tensor
    start: Tensor
    slack: float
    tolerance: float
    iterations: int


class Solution(NamedTuple):
    """What a search found."""

    eta: Tensor
    moments: Tensor
    stderr: Tensor
    log_z: Tensor
    converged: bool
    iterations: int


def log_law(points: Points, eta: Tensor) -> tuple[Tensor, Tensor]:
    """log Z, and the probabilities of the points."""
    logits = points.log_w + points.f @ eta
    log_z = torch.logsumexp(logits, 0)
    return log_z, (logits - log_z).exp()


def mean_and_covariance(f: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """E[f] and Cov[f] under probabilities p."""
    mean = p @ f
    centered = f - mean
    return mean, (centered * p[:, None]).T @ centered


def newton_direction(hessian: Tensor, gradient: Tensor) -> Tensor:
    """-H⁺g, with each feature on its own scale; directions without curvature (redundant features) are left alone."""
    scale = hessian.diagonal().clamp(min=1e-300).rsqrt()
    value, vector = torch.linalg.eigh(scale[:, None] * hessian * scale)
    inverse = torch.where(value > 1e-13 * value[-1], 1 / value, 0.0)
    return -scale * (vector @ (inverse * (vector.T @ (scale * gradient))))


def solve(points: Points, problem: Problem) -> Solution:
    """The minimizer of the dual. Raises `InfeasibleError` where there is none."""
    check_feasible(points, problem.mu, problem.slack)
    found = minimize_dual(points, problem)
    _check_direction(points, problem.mu, found.eta, problem.slack, found.converged)
    return found


def minimize_dual(points: Points, problem: Problem) -> Solution:
    """The minimizer of the dual, where there is one."""
    mu, eta, slack, tolerance, iterations = problem
    signs = torch.zeros_like(eta)
    varies = points.f.amax(0) > points.f.amin(0)  # a constant says nothing: its η is left alone
    spread = torch.where(varies, points.f.std(0), 1.0).clamp(min=1e-300)
    if slack > 0:
        eta = _sparse(points, mu, eta, slack, spread)
        signs = torch.where(varies & ((eta * spread).abs() > 1e-7), eta.sign(), 0.0)
        eta = torch.where(signs != 0, eta, 0.0)
    target = mu - slack * signs
    active = signs != 0 if slack > 0 else varies
    found = _newton(points, target, eta, active, tolerance, iterations)
    if slack > 0:
        over = (found.moments - mu).abs() - slack
        fine = bool((over <= 1e-5 * slack + tolerance * (1 + mu.abs())).all())
        found = found._replace(converged=found.converged and fine)
    return found


def _newton(points: Points, target: Tensor, eta: Tensor, active: Tensor, tolerance: float, iterations: int) -> Solution:
    """Damped Newton steps over the active features until every moment is within `tolerance` standard deviations."""
    none = torch.zeros_like(target)
    free = active.to(eta.dtype)
    step = 0
    while True:
        log_z, p = log_law(points, eta)
        moments, hessian = mean_and_covariance(points.f, p)
        gradient = (moments - target) * free
        goal = tolerance * hessian.diagonal().clamp(min=0).sqrt() + 1e-13 * (1 + target.abs())
        if bool((gradient.abs() <= goal).all()) or step == iterations or not bool(active.any()):
            done = bool((gradient.abs() <= goal).all())
            return Solution(eta, moments, none, log_z, done, step)
        direction = torch.zeros_like(eta)
        direction[active] = newton_direction(hessian[active][:, active], gradient[active])
        slope = float(gradient @ direction)
        here, length = float(log_z - eta @ target), 1.0
        rounding = 1e-13 * (1 + abs(here))
        for _ in range(60):
            trial = eta + length * direction
            value = float(log_law(points, trial)[0] - trial @ target)
            if value <= here + 1e-4 * length * slope + rounding:
                break
            length /= 2
        else:  # nothing is gained any more: as far as rounding allows
            return Solution(eta, moments, none, log_z, bool((gradient.abs() <= 1e3 * goal).all()), step)
        eta, step = trial, step + 1


def _sparse(points: Points, mu: Tensor, eta: Tensor, slack: float, spread: Tensor) -> Tensor:
    """The minimizer with ‖η‖₁, nearly: η = a - b with a, b ≥ 0 is smooth (L-BFGS-B), on each feature's own scale."""
    m, scale = len(mu), spread.cpu()

    def dual(ab: np.ndarray) -> tuple[float, np.ndarray]:
        both = torch.as_tensor(ab)
        at = ((both[:m] - both[m:]) / scale).to(points.f)
        log_z, p = log_law(points, at)
        gradient = ((p @ points.f - mu).cpu() / scale).numpy()
        value = float(log_z - at @ mu) + slack * float((both[:m] + both[m:]) @ (1 / scale))
        price = slack / scale.numpy()
        return value, np.concatenate([gradient + price, -gradient + price])

    first = (eta.cpu() * scale).numpy()
    found = scipy.optimize.minimize(
        dual,
        np.concatenate([np.maximum(first, 0), np.maximum(-first, 0)]),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * (2 * m),
        options={"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-9},
    )
    both = torch.as_tensor(found.x)
    return ((both[:m] - both[m:]) / scale).to(eta)


# --- feasibility ----------------------------------------------------------------------------------


def check_feasible(points: Points, mu: Tensor, slack: float) -> None:
    """Raise unless some law on the points, positive everywhere, has the moments to within the slack. The largest share
    t of the uniform law, p = (1-t)·anything + t·uniform, is a linear programme: no solution means moments outside the
    polytope of the features, t = 0 on its boundary."""
    low, high = points.f.amin(0), points.f.amax(0)
    wide = (high - low).clamp(min=1e-300)
    outside = torch.maximum(low - mu, mu - high) - slack
    if bool((outside > 1e-9 * wide).any()):
        i = int((outside / wide).argmax())
        raise InfeasibleError(
            f"moment {i} is {float(mu[i]):.6g}, but feature {i} lies between {float(low[i]):.6g} and {float(high[i]):.6g}: "
            "no law has these moments; correct them, or allow slack="
        )
    if bool(((outside > -1e-12 * wide) & (high > low)).any()):
        raise InfeasibleError(_AT_THE_EDGE)
    if len(points.f) > _LP_POINTS:
        return  # judged by the direction in which η grows
    share, status = _uniform_share(points, mu, slack)
    if status == "infeasible":
        raise InfeasibleError(
            f"no law has these {len(mu)} moments{f' to within slack={slack:g}' if slack else ''}: they lie outside the "
            "convex hull of the features; correct them, or allow (more) slack="
        )
    if share <= _INSIDE:
        raise InfeasibleError(_AT_THE_EDGE)


def _uniform_share(points: Points, mu: Tensor, slack: float) -> tuple[float, str]:
    f, target = points.f.cpu().numpy(), mu.cpu().numpy()
    middle, scale = f.mean(0), np.maximum(np.abs(f - f.mean(0)).max(0), 1e-300)
    g, goal = (f - middle) / scale, (target - middle) / scale
    n, m = g.shape
    # p = q + t/n with q, t ≥ 0; the centered features have mean 0 under the uniform law, so t drops out of the moments
    cost = np.zeros(n + 1)
    cost[-1] = -1.0
    rows = np.hstack([g.T, np.zeros((m, 1))])
    total = np.ones((1, n + 1))
    if slack > 0:
        limits = np.concatenate([goal + slack / scale, -goal + slack / scale])
        how = {"A_ub": np.vstack([rows, -rows]), "b_ub": limits, "A_eq": total, "b_eq": [1.0]}
    else:
        how = {"A_eq": np.vstack([rows, total]), "b_eq": np.concatenate([goal, [1.0]])}
    answer = scipy.optimize.linprog(cost, bounds=(0, None), method="highs", **how)
    if answer.status == 2:
        return 0.0, "infeasible"
    return (float(answer.x[-1]) if answer.status == 0 else 1.0), "feasible"


def least_violation(points: Points, mu: Tensor, slack: float) -> tuple[float, Tensor]:
    """min_p Σᵢ (|E_p[fᵢ] - μᵢ| - λ)₊/(1 + |μᵢ|), and the p that attains it: how far from feasible the points are."""
    f, target = points.f.cpu().numpy(), mu.cpu().numpy()
    scale = 1 + np.abs(target)
    n, m = f.shape
    g, goal = f.T / scale[:, None], target / scale
    rows = np.block([[g, -np.eye(m)], [-g, -np.eye(m)]])
    right = np.concatenate([goal + slack / scale, -goal + slack / scale])
    cost = np.concatenate([np.zeros(n), np.ones(m)])
    total = np.concatenate([np.ones(n), np.zeros(m)])[None]
    answer = scipy.optimize.linprog(
        cost, A_ub=rows, b_ub=right, A_eq=total, b_eq=[1.0], bounds=(0, None), method="highs"
    )
    if answer.status != 0:
        return math.inf, torch.full((n,), 1 / n).to(points.f)
    return float(answer.fun), torch.as_tensor(answer.x[:n]).to(points.f)


def _check_direction(points: Points, mu: Tensor, eta: Tensor, slack: float, converged: bool) -> None:
    """The certificate for many points: along v = η the moments lie beyond every point, or at the last of them."""
    norm = float(eta.norm())
    if not math.isfinite(norm) or norm == 0:
        return
    along = points.f @ (eta / norm)
    wide = float(along.max() - along.min())
    gap = float(along.max() - mu @ (eta / norm) + slack * (eta / norm).abs().sum())
    if gap < -1e-9 * wide:
        raise InfeasibleError(
            "no law has these moments: along the direction of η they lie beyond every state; correct them, or allow slack="
        )
    if gap < 1e-7 * wide or (not converged and norm * wide > 1e6):
        raise InfeasibleError(
            "these moments lie on the boundary of what is possible, or as near to it as rounding can tell: η grows "
            "without end; move them inside, or allow slack="
        )
