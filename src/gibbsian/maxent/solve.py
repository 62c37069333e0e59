"""Maximum entropy: the least committed law with given moments, through its convex dual."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gibbsian.domains import Bounded, Counts, Discrete, Domain, Real
from gibbsian.energies.exponential import ExponentialFamily
from gibbsian.errors import (
    ArgumentError,
    CapabilityError,
    DataError,
    EstimateWarning,
    ShapeError,
    as_numbers,
    check_count,
    check_number,
)
from gibbsian.kernels.base import Kernel
from gibbsian.maxent.chains import solve_by_chains
from gibbsian.maxent.dual import Problem, solve
from gibbsian.maxent.nodes import MOST_NUMBERS, enumerated, solve_by_quadrature

METHODS = ("exact", "quadrature", "monte carlo")


@dataclass(frozen=True)
class MaximumEntropy:
    """A law of maximum entropy and how well it keeps its constraints.

    Attributes:
        energy: the `ExponentialFamily` with the η that was found.
        eta: η `(m,)`.
        moments: E_p[f] `(m,)`.
        residual: E_p[f] - μ; with slack λ no entry is larger than λ.
        stderr: standard errors of `moments`: 0 but for Monte Carlo.
        dual: D(η) = log Z(η) - η·μ + λ‖η‖₁; without slack at the solution it is the entropy.
        entropy: of p, in nats, log Z(η) - η·E_p[f]; relative to the counting or Lebesgue measure.
        log_z: log Z(η).
        converged: whether the constraints are kept to the tolerance (Monte Carlo: to four standard errors).
        iterations: Newton steps, or rounds of chains.
        method: "exact", "quadrature" or "monte carlo".
    """

    energy: ExponentialFamily
    eta: Tensor
    moments: Tensor
    residual: Tensor
    stderr: Tensor
    dual: Tensor
    entropy: Tensor
    log_z: Tensor
    converged: bool
    iterations: int
    method: str

    def __repr__(self) -> str:
        return (
            f"MaximumEntropy(entropy {float(self.entropy):.6g}, largest residual {float(self.residual.abs().max()):.2g}, "
            f"{len(self.eta)} features over {self.energy.domain}, {self.method}, {self.iterations} iterations, "
            f"converged={self.converged})"
        )


def maximum_entropy(
    features: Callable[[Tensor], Tensor],
    moments: Tensor | Sequence[float],
    domain: Domain,
    *,
    slack: float = 0.0,
    start: Tensor | None = None,
    method: str | None = None,
    bounds: Sequence[tuple[float, float]] | None = None,
    kernel: Kernel | None = None,
    chains: int = 256,
    steps: int = 20,
    iterations: int | None = None,
    tolerance: float = 1e-8,
    generator: torch.Generator | None = None,
) -> MaximumEntropy:
    """The law p ∝ exp(η·f) of maximum entropy with E[f] = μ: from any feature map and target moments to η.

        min_η  log Z(η) - η·μ + λ‖η‖₁      ⇔      max H(p)  s.t.  ‖E_p[f] - μ‖_∞ ≤ λ

    Newton's method on the convex dual, with every state enumerated or integrated on a grid; elsewhere
    stochastic Newton steps with moments from chains. Slack λ > 0 is for moments with sampling error: it keeps
    η sparse and the problem solvable.

    Moments that no law has, and moments on the boundary of what is possible (where η would have to be
    infinite), raise `InfeasibleError`, which says which of the two and along which direction; a run that only
    needs more iterations gives an `EstimateWarning` and `converged=False`.

    Reference: Jaynes 1957; Dudík, Phillips & Schapire 2004 (slack); Wainwright & Jordan 2008 (the marginal polytope).

    Args:
        features: f, from `(batch, *event)` to `(batch, m)`, such as `energies.Monomials(n, 2)`.
        moments: μ `(m,)`.
        domain: where x lives.
        slack: λ, the largest residual allowed.
        start: η to start from; needed by Monte Carlo on R^d, where η = 0 is no law.
        method: "exact" (discrete, up to 2^20 states), "quadrature" (Real, Box, NonNegative, up to three numbers)
            or "monte carlo"; by default the first that fits.
        bounds: for quadrature, where the mass is: (low, high) for every axis. Left out, it is searched.
        kernel: for Monte Carlo; `kernels.SiteGibbs()` where it is left out and states are discrete.
        chains, steps: Monte Carlo chains, and their steps in each round.
        iterations: Newton steps (200), or rounds of chains (60).
        tolerance: largest residual, relative to the spread of the feature.
        generator: for Monte Carlo, on the CPU, where all of this runs.

    >>> import gibbsian as gb
    >>> found = maximum_entropy(gb.energies.Monomials(1, 2), [1.0, 5.0], gb.domains.Real(1))  # mean 1, variance 4
    >>> found.eta  # N(1, 4): mean/variance, -1/(2 variance)
    tensor([ 0.2500, -0.1250], dtype=torch.float64)
    """
    family = ExponentialFamily(features, domain).double()
    method = _method(domain, len(family.eta)) if method is None else method
    if method not in METHODS:
        raise ArgumentError(f"method={method!r}: expected one of {', '.join(map(repr, METHODS))}")
    most = 60 if method == "monte carlo" else 200
    if iterations is not None:
        most = check_count("maximum_entropy", "iterations", iterations)
    problem = Problem(*_checked(moments, start, len(family.eta), slack, tolerance), slack, tolerance, most)
    with torch.no_grad():
        if method == "monte carlo":
            found = solve_by_chains(family, problem, kernel, chains, steps, generator)
        elif method == "exact":
            found = solve(enumerated(family), problem)
        else:
            found = solve_by_quadrature(family, problem, bounds)
        family.eta.copy_(found.eta)
    if not found.converged:
        more = ", steps= or chains=" if method == "monte carlo" else ""
        warnings.warn(
            f"after {found.iterations} iterations the largest residual is "
            f"{float((found.moments - problem.mu).abs().max()):.2g}: no sign that the moments are impossible, but the "
            f"search has not come to its end; raise iterations={more}",
            EstimateWarning,
            stacklevel=2,
        )
    mu, eta = problem.mu, found.eta
    return MaximumEntropy(
        energy=family,
        residual=found.moments - mu,
        dual=found.log_z - eta @ mu + slack * eta.abs().sum(),
        entropy=found.log_z - eta @ found.moments,
        method=method,
        **found._asdict(),
    )


def _checked(
    moments: Tensor | Sequence[float], start: Tensor | None, features: int, slack: float, tolerance: float
) -> tuple[Tensor, Tensor]:
    """μ and the η to start from, one number for each feature."""
    check_number("maximum_entropy", "slack", slack)
    check_number("maximum_entropy", "tolerance", tolerance, open_low=True)
    mu = as_numbers("maximum_entropy", "moments", moments, torch.float64).flatten()
    if len(mu) != features:
        raise ShapeError(f"{len(mu)} moments were given for {features} features; give one for each")
    if not bool(torch.isfinite(mu).all()):
        raise DataError(f"moment {int((~torch.isfinite(mu)).nonzero()[0])} is not finite")
    eta = (
        torch.zeros_like(mu) if start is None else as_numbers("maximum_entropy", "start", start, torch.float64).clone()
    )
    if eta.shape != mu.shape:
        raise ShapeError(f"start has shape {tuple(eta.shape)}, expected {tuple(mu.shape)}")
    return mu, eta


def _method(domain: Domain, features: int) -> str:
    """The first method that fits."""
    if isinstance(domain, Discrete):
        return "exact" if domain.size <= 1 << 20 and domain.size * features <= MOST_NUMBERS else "monte carlo"
    if isinstance(domain, Counts):
        return "exact"
    if isinstance(domain, Real | Bounded):
        return "quadrature" if domain.numel <= 3 else "monte carlo"
    raise CapabilityError(f"maximum entropy knows no method for {domain}")
