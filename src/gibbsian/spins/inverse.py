"""Inverse Ising: couplings and fields of a pairwise machine from samples, with their standard errors."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gibbsian.domains import Binary, Spin
from gibbsian.energies.exponential import Monomials
from gibbsian.errors import (
    ArgumentError,
    CapabilityError,
    DataError,
    InfeasibleError,
    ShapeError,
    TrainingWarning,
    as_numbers,
    check_choice,
    check_count,
    check_number,
)
from gibbsian.maxent.solve import maximum_entropy
from gibbsian.models import BoltzmannMachine
from gibbsian.random import require_generator, stream
from gibbsian.spins.boltzmann import Learning, fisher_errors, learn
from gibbsian.spins.conditional import Conditional, Pairs, Words, minimum, sandwich

_METHODS = ("pseudo-likelihood", "flow", "mean-field", "boltzmann", "exact")
_MOST = 12_000  # parameters whose covariance is inverted: n = 154


@dataclass(frozen=True)
class InverseIsing:
    """A pairwise machine that was learned from samples.

    Attributes:
        machine: the `BoltzmannMachine`, over ±1 or {0, 1} units as the samples are.
        coupling: w `(n, n)`, symmetric, without diagonal.
        field: b `(n,)`.
        coupling_error, field_error: standard errors, or None where they were not asked for; NaN for couplings that an l1
            penalty made 0. They are those of the estimator if the samples are independent draws of the model or not ("sandwich"),
            for "boltzmann" and "exact" those of maximum likelihood, if they are.
        method: as asked for.
        converged: whether the search came to its end.
        iterations: how many it took.
    """

    machine: BoltzmannMachine
    coupling: Tensor
    field: Tensor
    coupling_error: Tensor | None
    field_error: Tensor | None
    method: str
    converged: bool
    iterations: int

    def edges(self, threshold: float = 0.0) -> Tensor:
        """Pairs `(m, 2)` with |w| above the threshold, the strongest first."""
        i, j = torch.triu_indices(len(self.field), len(self.field), 1)
        size = self.coupling[i, j].abs()
        keep = (size > threshold).nonzero().flatten()
        keep = keep[size[keep].argsort(descending=True)]
        return torch.stack([i[keep], j[keep]], 1)

    def __repr__(self) -> str:
        kind = "±1" if self.machine.spin else "{0, 1}"
        return (
            f"InverseIsing({len(self.field)} {kind} units by {self.method}, {len(self.edges())} couplings, "
            f"{self.iterations} iterations, converged={self.converged})"
        )


def fit_ising(
    x: Tensor,
    method: str = "pseudo-likelihood",
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    pseudocount: float = 0.0,
    errors: bool = True,
    steps: int | None = None,
    tolerance: float = 1e-6,
    chains: int = 2000,
    sweeps: int = 5,
    lr: float = 0.1,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> InverseIsing:
    """A pairwise machine E = -½xᵀWx - b·x from samples: the inverse Ising problem.

    - "pseudo-likelihood": the product of all conditionals, a convex problem in closed form; consistent, nearly as good as
      maximum likelihood, and the choice where nothing speaks for another. With `l1` it finds sparse graphs (Ravikumar,
      Wainwright & Lafferty 2010): a few times √(log n / N), times the sum of |w_ij| over pairs.
    - "flow": minimum probability flow, as cheap; less efficient where probabilities differ much.
    - "mean-field": J = -C⁻¹, h = artanh m - Jm for ±1 units: at once, and biased where couplings are not weak.
    - "boltzmann": maximum likelihood by persistent chains, begun at the pseudo-likelihood's estimate.
    - "exact": maximum likelihood by a sum over all states, for at most 16 units: pairwise maximum entropy.

    Reference: Nguyen, Zecchina & Berg 2017 for all of them; Sohl-Dickstein, Battaglino & DeWeese 2011 (flow).

    Args:
        x: samples `(N, n)`, of ±1 or of {0, 1}; no unit may be constant.
        method: as above.
        l1: λ₁ of pseudo-likelihood and flow, on couplings alone; the objective is a mean over samples.
        l2: λ₂ of ½λ₂Σw² over couplings and fields, of pseudo-likelihood and flow; it keeps estimates finite where data are few.
        pseudocount: of "boltzmann" and "exact": so many samples of independent units with the same means are added to the moments; 1
            keeps couplings finite where two units are never active together.
        errors: find standard errors; they need a matrix of n⁴/4 numbers.
        steps: most iterations: 500 of L-BFGS, 200 updates of Boltzmann learning.
        tolerance: largest entry of the gradient at the end.
        chains, sweeps, lr: of Boltzmann learning: chains, sweeps between updates, and the rate in units of 1/variance.
        generator: for Boltzmann learning; a fixed seed where it is left out.
        progress: show a progress bar; by default on a terminal.

    >>> import gibbsian as gb
    >>> truth = gb.models.Ising.on_graph([[0, 1], [1, 2], [2, 3]], coupling=0.5)
    >>> g = torch.Generator().manual_seed(0)
    >>> x = gb.sample(truth, gb.kernels.Gibbs(), torch.ones(4000, 4), steps=50, burn_in=49, keep=False, generator=g).last
    >>> found = fit_ising(x, l1=0.2)
    >>> sorted(found.edges().tolist())
    [[0, 1], [1, 2], [2, 3]]
    """
    check_choice("fit_ising", "method", method, _METHODS)
    check_number("fit_ising", "tolerance", tolerance)
    _check_penalties(method, l1, l2, pseudocount)
    words = _words(x)
    if errors and method != "mean-field":
        _check_size(words.x.shape[1])
    if method == "mean-field":
        return _mean_field(words, errors)
    if method == "exact":
        return _exact(words, pseudocount, errors)
    most = check_count("fit_ising", "steps", (200 if method == "boltzmann" else 500) if steps is None else steps)
    if method == "boltzmann":
        g = stream(0, "boltzmann") if generator is None else require_generator(generator)
        many = check_count("fit_ising", "chains", chains), check_count("fit_ising", "sweeps", sweeps)
        return _boltzmann(words, Learning(most, *many, lr, g, progress), pseudocount, errors)
    return _conditional(words, method, l1, l2, errors, most, tolerance, progress)


def _check_penalties(method: str, l1: float, l2: float, pseudocount: float) -> None:
    for name, value in (("l1", l1), ("l2", l2), ("pseudocount", pseudocount)):
        check_number("fit_ising", name, value)
    by_conditionals = method in ("pseudo-likelihood", "flow")
    if (l1 or l2) and not by_conditionals:
        raise ArgumentError(f"fit_ising(method={method!r}): l1 and l2 are for 'pseudo-likelihood' and 'flow'")
    if pseudocount and (by_conditionals or method == "mean-field"):
        raise ArgumentError(f"fit_ising(method={method!r}): pseudocount is for 'boltzmann' and 'exact'; use l2=")


def _check_size(n: int) -> None:
    size = n * (n + 1) // 2
    if size > _MOST:
        raise ArgumentError(
            f"standard errors of {size} parameters need a matrix of as many rows and columns, at most {_MOST} are done; pass "
            "errors=False"
        )


def _words(x: Tensor) -> Words:
    """Distinct rows and their shares, checked."""
    x = as_numbers("fit_ising", "x", x, torch.float64)
    if x.dim() != 2 or not x.numel():
        raise ShapeError(f"x has shape {tuple(x.shape)}, expected (samples, units)")
    low = -1.0 if bool((x < 0).any()) else 0.0
    if not bool(((x == low) | (x == 1)).all()):
        raise DataError(f"samples have the value {float(x[(x != low) & (x != 1)][0]):g}; expected ±1 or {{0, 1}} alone")
    still = (x == x[0]).all(0)
    if bool(still.any()):
        raise DataError(
            f"unit {int(still.nonzero()[0])} has the same value in every sample: its field would be infinite; leave it out"
        )
    found, count = (
        np.unique(x.cpu().numpy(), axis=0, return_counts=True) if x.shape[1] <= 62 else (x.cpu().numpy(), None)
    )
    share = (
        torch.full((len(found),), 1 / len(x), dtype=torch.float64)
        if count is None
        else torch.from_numpy(count / len(x))
    )
    return Words(torch.from_numpy(found), share, len(x), low)


def _result(
    words: Words,
    w: Tensor,
    b: Tensor,
    errors: tuple[Tensor, Tensor] | None,
    method: str,
    converged: bool,
    iterations: int,
) -> InverseIsing:
    machine = BoltzmannMachine(len(b), spin=bool(words.low))
    machine.set_parameters(weight=w.float() if torch.get_default_dtype() == torch.float32 else w, bias=b)
    if not converged:
        warnings.warn(
            f"fit_ising by {method} has not come to its end after {iterations} iterations; raise steps=",
            TrainingWarning,
            stacklevel=4,
        )
    of_w, of_b = (None, None) if errors is None else errors
    return InverseIsing(machine, w, b, of_w, of_b, method, converged, iterations)


def _unflat(pairs: Pairs, flat: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(pairs.matrix(flat)), torch.from_numpy(flat[pairs.count :].copy())


def _conditional(
    words: Words, method: str, l1: float, l2: float, errors: bool, steps: int, tolerance: float, progress: bool | None
) -> InverseIsing:
    function = Conditional(words, method == "flow", (l2, l2))
    pairs = function.pairs
    mean = words.share @ words.x
    start = np.zeros(pairs.count + pairs.n)
    start[pairs.count :] = (torch.atanh(mean) if words.low else torch.logit(mean)).clamp(-10, 10).numpy()
    found = minimum(function, start, l1, steps, tolerance, progress)
    deviations = None
    if errors:
        active = np.concatenate(
            [found.flat[: pairs.count] != 0 if l1 else np.ones(pairs.count, bool), np.ones(pairs.n, bool)]
        )
        deviations = _unflat(pairs, sandwich(function, found.flat, active))
    return _result(words, *_unflat(pairs, found.flat), deviations, method, found.converged, found.iterations)


def _moments(words: Words, pseudocount: float) -> tuple[Tensor, Tensor]:
    """⟨xᵢ⟩ and ⟨xᵢxⱼ⟩, with some samples of independent units."""
    x, share = words.x, words.share
    means, seconds = share @ x, x.T @ (x * share[:, None])
    return means, torch.lerp(seconds, means[:, None] * means, pseudocount / (words.rows + pseudocount))


def _mean_field(words: Words, errors: bool) -> InverseIsing:
    """J = -C⁻¹ of ±1 units, with errors from what every row changes (the delta method)."""
    s, share = words.signs if not words.low else words.x, words.share
    mean = share @ s
    d = s - mean
    inverse = torch.linalg.inv(d.T @ (d * share[:, None]))
    n = len(mean)
    off = 1 - torch.eye(n, dtype=torch.float64)
    j = -inverse * off
    j = (j + j.T) / 2
    h = torch.atanh(mean) - j @ mean
    deviations = None
    if errors:
        z = d @ inverse
        second = (z * share[:, None].sqrt()).square()
        variance = second.T @ z.square() - inverse.square()  # of zᵢzⱼ
        change = (
            d / (1 - mean.square()) - d @ j - (z * (z @ mean)[:, None] - z.square() * mean) + (inverse * off) @ mean
        )
        if not words.low:  # b = 2h - 2Σⱼ Jᵢⱼ for {0, 1} units, w = 4J
            change = 2 * change - 2 * (z * z.sum(1, keepdim=True) - z.square() - (inverse * off).sum(1))
        scale = 1.0 if words.low else 4.0
        deviations = (
            scale * (variance.clamp(min=0) / words.rows).sqrt() * off,
            ((share @ change.square()) / words.rows).sqrt(),
        )
    if not words.low:
        j, h = 4 * j, 2 * h - 2 * j.sum(1)
    return _result(words, j, h, deviations, "mean-field", True, 1)


def _exact(words: Words, pseudocount: float, errors: bool) -> InverseIsing:
    n = words.x.shape[1]
    if n > 16:
        raise CapabilityError(
            f"fit_ising(method='exact') sums over all states, of at most 16 units and not {n}; use 'boltzmann'"
        )
    features, pairs = Monomials(n, 2, squares=False), Pairs(n)
    means, seconds = _moments(words, pseudocount)
    moments = torch.cat([means, seconds[pairs.i, pairs.j]])
    try:
        found = maximum_entropy(features, moments, Spin(n) if words.low else Binary(n), method="exact")
    except InfeasibleError as error:
        raise InfeasibleError(
            "some units are never active together, or never apart, in these samples, so that a coupling would be infinite; pass "
            "pseudocount=1"
        ) from error
    flat = torch.cat([found.eta[n:], found.eta[:n]]).numpy()
    deviations = None
    if errors:
        f = features(found.energy.domain.states(dtype=torch.float64))  # type: ignore[attr-defined]
        p = torch.softmax(f @ found.eta, 0)
        centered = f - p @ f
        variance = torch.linalg.inv(centered.T @ (centered * p[:, None])).diagonal() / words.rows
        deviations = _unflat(pairs, torch.cat([variance[n:], variance[:n]]).sqrt().numpy())
    return _result(words, *_unflat(pairs, flat), deviations, "exact", found.converged, found.iterations)


def _boltzmann(words: Words, how: Learning, pseudocount: float, errors: bool) -> InverseIsing:
    start = _conditional(words, "pseudo-likelihood", 0.0, 1e-3, False, 500, 1e-5, False)
    machine = start.machine.requires_grad_(False)
    rows = torch.multinomial(words.share, how.chains, True, generator=how.generator)
    w, b, state = learn(machine, start, _moments(words, pseudocount), words.x[rows].to(machine.weight.dtype), how)
    deviations = None
    if errors:
        pairs = Pairs(len(b))
        deviations = _unflat(pairs, fisher_errors(machine, pairs, state, words.rows, how))
    return _result(words, w, b, deviations, "boltzmann", True, how.steps)
