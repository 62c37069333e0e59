"""The maximum-entropy dual where nothing can be summed: Newton steps with moments from chains."""

import math
import warnings

import torch
from torch import Tensor

from gibbsian.domains import Discrete, Domain, Real
from gibbsian.energies.exponential import ExponentialFamily
from gibbsian.errors import ArgumentError, CapabilityError, EstimateWarning, InfeasibleError, check_count
from gibbsian.kernels.base import Kernel
from gibbsian.kernels.gibbs import SiteGibbs
from gibbsian.maxent.dual import Problem, Solution, mean_and_covariance, newton_direction
from gibbsian.partition.annealed import ais
from gibbsian.random import require_generator
from gibbsian.sampling.sample import sample


def solve_by_chains(
    family: ExponentialFamily,
    problem: Problem,
    kernel: Kernel | None,
    chains: int,
    steps: int,
    generator: torch.Generator | None,
) -> Solution:
    """Stochastic Newton steps: each round moves the chains, then η by -γ Cov⁻¹(E[f] - μ), with γ falling as 1/k in
    the second half, where η is averaged. With slack the residual is shrunk towards 0 (a proximal step)."""
    mu, eta, slack, _, rounds = problem
    generator = require_generator(generator, torch.device("cpu"))
    chains, steps = check_count("maximum_entropy", "chains", chains, 8), check_count("maximum_entropy", "steps", steps)
    if rounds < 2:
        raise ArgumentError(f"iterations={rounds}, chains={chains}: at least 2 rounds and 8 chains are needed")
    kernel = _suitable(kernel, family.domain, eta)
    x = family.domain.sample(chains, generator=generator, dtype=torch.float64)
    half, averaged = rounds // 2, torch.zeros_like(eta)
    most, least = torch.full_like(mu, -math.inf), torch.full_like(mu, math.inf)
    for k in range(rounds):
        family.eta.copy_(eta)
        trace = sample(family, kernel, x, steps=steps, thin=max(1, steps // 10), generator=generator, progress=False)
        x = trace.last
        f = family.features(trace.samples.flatten(0, 1)).double()  # type: ignore[union-attr]
        eta = _moved(eta, f, problem, 1.0 if k < half else 1.0 / (k - half + 2))
        averaged = averaged + eta if k >= half else averaged
        most, least = torch.maximum(most, f.amax(0)), torch.minimum(least, f.amin(0))
    _check_reached(f, most, least, mu, eta, slack)
    eta = averaged / (rounds - half)
    if slack > 0:
        eta = torch.where(family.eta == 0, 0.0, eta)
    family.eta.copy_(eta)
    return _judged(family, kernel, x, problem, steps, generator)


def _suitable(kernel: Kernel | None, domain: Domain, eta: Tensor) -> Kernel:
    """The kernel, or one that fits the domain, where a law stands at η."""
    if kernel is None and not isinstance(domain, Discrete):
        raise CapabilityError(
            f"Monte Carlo over {domain} needs a kernel; give one, such as kernel=kernels.HMC(0.1, 10)"
        )
    if isinstance(domain, Real) and not bool(eta.any()):
        raise ArgumentError("on R^d η = 0 is no law; give start=, an η for which exp(η·f) can be integrated")
    return SiteGibbs() if kernel is None else kernel


def _moved(eta: Tensor, f: Tensor, problem: Problem, rate: float) -> Tensor:
    """η after a Newton step with moments from the features of draws, no longer than one standard unit times the rate."""
    mean, covariance = mean_and_covariance(f, torch.full((len(f),), 1 / len(f), dtype=f.dtype))
    ridge = 1e-3 * covariance.diagonal().mean() + 1e-12
    covariance = covariance + ridge * torch.eye(len(eta), dtype=f.dtype)
    move = newton_direction(covariance, mean - problem.mu + problem.slack * eta.sign() * (eta != 0))
    size = float((move @ covariance @ move).clamp(min=0).sqrt())
    new = eta + rate * min(1.0, 1.0 / max(size, 1e-300)) * move
    return _held(eta, new, mean - problem.mu, problem.slack) if problem.slack > 0 else new


def _check_reached(f: Tensor, most: Tensor, least: Tensor, mu: Tensor, eta: Tensor, slack: float) -> None:
    """Raise where no draw has gone beyond the moments, along a feature in any round or along η in the last: inside the
    possible ones there are states on both sides of a mean."""
    beyond = (mu - slack >= most) & (most > least) | (mu + slack <= least) & (most > least)
    direction = eta / eta.norm().clamp(min=1e-300)
    price = mu @ direction - slack * direction.abs().sum()
    if bool(beyond.any()) or (bool(eta.any()) and float((f @ direction).max()) <= float(price)):
        first = int(beyond.int().argmax())
        where = f"feature {first} at {float(mu[first]):.6g}" if beyond.any() else "η"
        raise InfeasibleError(
            f"no state was found on the far side of the moments along {where}, while η has grown to "
            f"{float(eta.abs().max()):.3g}: no law has these moments, or only one with states of probability 0; correct "
            "them, or allow slack="
        )


def _held(old: Tensor, new: Tensor, residual: Tensor, slack: float) -> Tensor:
    """Entries that would change their sign stop at 0, and leave it only where the residual exceeds the slack."""
    crossed = (old * new < 0) | ((old == 0) & (residual.abs() <= slack))
    leaving = (old == 0) & (residual.abs() > slack)
    return torch.where(leaving, -residual.sign() * (new - old).abs(), torch.where(crossed, 0.0, new))


def _judged(
    family: ExponentialFamily, kernel: Kernel, x: Tensor, problem: Problem, steps: int, generator: torch.Generator
) -> Solution:
    """A long run at the η that was found: its moments with standard errors, and log Z by annealing."""
    thin = max(1, steps // 10)
    trace = sample(family, kernel, x, 11 * steps, burn_in=steps, thin=thin, generator=generator, progress=False)
    draws = trace.samples
    f = family.features(draws.flatten(0, 1)).double().unflatten(0, draws.shape[:2])  # type: ignore[union-attr]
    means = f.mean(0)  # one a chain: independent of each other
    moments, error = means.mean(0), means.std(0) / math.sqrt(len(means))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EstimateWarning)  # the entropy is an extra; its error is not the law's
        log_z = ais(family, trace.last, chains=100, betas=500, generator=generator, progress=False).value
    kept = (moments - problem.mu).abs() <= problem.slack + 4 * error + problem.tolerance
    return Solution(family.eta.detach().clone(), moments, error, log_z.double(), bool(kept.all()), problem.iterations)
