"""Exact-start invariance: draw exactly, step, and nothing may move."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import Sampleable
from gibbsian.domains import Discrete, Domain
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, DivergenceWarning
from gibbsian.kernels.base import Kernel
from gibbsian.random import require_generator
from gibbsian.sampling.sample import sample

_QUANTILES = (0.002, 0.01, 0.05, 0.15, 0.35, 0.5, 0.65, 0.85, 0.95, 0.99, 0.998)
_COORDINATES = 64  # longer events are looked at along this many random directions
_PRODUCTS = 100
_FEATURES = 64
_STATES = 128  # discrete laws with at most this many states are compared state by state


@dataclass(frozen=True)
class InvarianceReport:
    """What `check_invariance` saw.

    Attributes:
        z: the largest |z| over all test functions.
        threshold: the bound that |z| passes with probability at most `alpha` when the law is invariant.
        worst: which function that was.
        functions: how many were tested.
        moved: the fraction of chains that are not where they started.
        acceptance: mean acceptance probability, NaN for unadjusted kernels.
        divergent: chains with divergent steps.
    """

    z: float
    threshold: float
    worst: str
    functions: int
    moved: float
    acceptance: float
    divergent: int


def _pooled(before: Tensor, after: Tensor, rows: int) -> Tensor:
    """A thinned pool that does not know which point of a pair came first."""
    thin = max(1, len(before) // max(rows, 1))
    return torch.cat([before[::thin], after[::thin]])


def _standardized(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Both, centered and scaled by the median and spread of their pool: heavy tails do not matter."""
    pool = _pooled(before, after, 1 << 13)
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=pool.dtype, device=pool.device)
    low, middle, high = torch.quantile(pool, levels, dim=0)
    spread = (high - low) / 2.56
    spread = torch.where(spread > 0, spread, pool.std(0))
    spread = torch.where(spread > 0, spread, 1.0)
    return (before - middle) / spread, (after - middle) / spread


_Block = tuple[Tensor, list[str]]  # differences f(after) - f(before), `(chains, functions)`, and names of the functions


def _functions(
    a: Tensor, b: Tensor, energies: tuple[Tensor, Tensor] | None, domain: Domain, generator: torch.Generator
) -> Iterator[_Block]:
    """Blocks of test functions: polynomials see moments; the energy and its tail bins moves that should have been refused;
    bins and random Fourier features shape, and are bounded, so heavy tails do not hide anything from them."""
    if isinstance(domain, Discrete) and domain.size <= _STATES:
        yield _states(a, b, domain)
    label = [f"x[{i}]" for i in range(a.shape[1])]
    if a.shape[1] > _COORDINATES:
        directions = torch.randn(a.shape[1], _COORDINATES, generator=generator, dtype=a.dtype, device=a.device)
        directions = directions / math.sqrt(len(directions))
        a, b, label = a @ directions, b @ directions, [f"direction {i}" for i in range(_COORDINATES)]
    a, b = _standardized(a, b)
    yield b - a, label
    yield b.square() - a.square(), [f"{n}²" for n in label]
    yield _products(a, b, label, generator)
    yield _fourier_features(a, b, generator)
    binned = [(label[i], a[:, i], b[:, i]) for i in range(min(a.shape[1], 16))]
    if energies is not None:
        yield (energies[1] - energies[0])[:, None], ["energy"]
        binned.append(("energy", *energies))
    yield from (_bins(*one) for one in binned)


def _states(a: Tensor, b: Tensor, domain: Discrete) -> _Block:
    states = domain.states(dtype=a.dtype, device=a.device).flatten(1)
    before, after = ((x[:, None] == states).all(2).to(a.dtype) for x in (a, b))
    return after - before, [f"state {i}" for i in range(len(states))]


def _products(a: Tensor, b: Tensor, label: list[str], generator: torch.Generator) -> _Block:
    pairs = torch.tril_indices(a.shape[1], a.shape[1], -1, device=a.device).T
    pairs = pairs[torch.randperm(len(pairs), generator=generator, device=a.device)[:_PRODUCTS]]
    i, j = pairs.T
    return b[:, i] * b[:, j] - a[:, i] * a[:, j], [f"{label[p]}·{label[q]}" for p, q in pairs.tolist()]


def _fourier_features(a: Tensor, b: Tensor, generator: torch.Generator) -> _Block:
    d, options = a.shape[1], {"dtype": a.dtype, "device": a.device}
    scales = torch.logspace(-1, 1, _FEATURES, base=3.0, **options)  # type: ignore[call-overload]
    waves = torch.randn(d, _FEATURES, generator=generator, **options) * scales / math.sqrt(d)  # type: ignore[call-overload]
    phase = 2 * math.pi * torch.rand(_FEATURES, generator=generator, **options)  # type: ignore[call-overload]
    names = [f"Fourier feature of frequency {float(s):.2g}" for s in scales]
    return torch.cos(b @ waves + phase) - torch.cos(a @ waves + phase), names


def _bins(name: str, before: Tensor, after: Tensor) -> _Block:
    levels = torch.tensor(_QUANTILES, dtype=before.dtype, device=before.device)
    edges = torch.quantile(_pooled(before, after, 1 << 20), levels)
    low, high = ((t[:, None] <= edges).to(before.dtype) for t in (before, after))
    return high - low, [f"{name} in its lowest {q:.1%}" for q in _QUANTILES]


def paired_test(differences: Tensor) -> Tensor:
    """z = Σd / √Σd² of every column of `(chains, functions)`; 0 where nothing differs."""
    spread, total = differences.square().sum(0).sqrt(), differences.sum(0)
    return torch.where(spread > 0, total / spread, total)


def check_invariance(
    energy: Energy,
    kernel: Kernel,
    *,
    draws: Tensor | None = None,
    steps: int = 5,
    chains: int = 40000,
    alpha: float = 1e-6,
    clamp: Tensor | None = None,
    generator: torch.Generator,
) -> InvarianceReport:
    """Does the kernel leave the law of the energy alone? Exact draws, a few steps, many paired tests.

        x₀ ~ p,   x_k ~ Pᵏ(·|x₀),   H₀: E[f(x_k) - f(x₀)] = 0 for every f

    The functions are coordinates, squares, products, the energy, its quantile bins and those of the coordinates, and
    random Fourier features; small discrete laws are compared state by state. The power grows with the size of the
    moves: use *large* steps (acceptance well below one), a skewed or multi-modal target and tens of thousands of
    chains; 40000 see a shift of 6/√40000 = 3 % of the spread of d = f(x_k) - f(x₀).

    Each f is tested by z = Σd/√Σd². For a reversible kernel in its law d is symmetric about 0, and then
    P(|z| ≥ t) ≤ 2exp(-t²/2) at any number of chains and for any tails (Hoeffding, given the |d|), so with m functions
    t = √(2 log(2m/α)) has a false-alarm rate of at most α; for other kernels by the central limit theorem. An
    unadjusted kernel has a law of its own: pass draws from that law and it must be left alone too.

    Args:
        energy: the target; draws come from its `sample` unless given.
        kernel: the kernel, at the step size to be tested.
        draws: exact draws `(chains, *event)`.
        steps: k; more steps add up a small bias, fewer keep the pairs correlated.
        alpha: false-alarm rate of the whole check.
        clamp: hold these entries at their drawn values: the joint law must stay, so this tests the
            conditional law for as many conditions as there are chains.
        generator: required.

    Returns:
        An `InvarianceReport`.

    Raises:
        AssertionError: the law moved, or no chain ever did.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    >>> report = check_invariance(target, gb.kernels.MALA(step_size=1.5), chains=5000, generator=g)
    >>> report.z < report.threshold
    True
    """
    if not 0 < alpha < 1:
        raise ArgumentError(f"alpha={alpha}: the false-alarm rate must lie between 0 and 1, such as 1e-6")
    if draws is None:
        if not isinstance(energy, Sampleable):
            raise CapabilityError(
                f"{type(energy).__name__} cannot be drawn from exactly; pass exact draws with draws=, "
                "for example from enumeration or an inverse distribution function"
            )
        draws = energy.sample(chains, generator=generator)
    require_generator(generator, draws.device)
    start = draws.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)  # counted in the report
        options: dict[str, Any] = {"burn_in": steps - 1, "keep": False, "progress": False}
        trace = sample(energy, kernel, start, steps, clamp=clamp, generator=generator, **options)
    end = trace.last
    name = type(kernel).__name__
    if not bool(torch.isfinite(end).all()):
        lost = int((~torch.isfinite(end)).flatten(1).any(1).sum())
        raise AssertionError(f"{name}: {lost} of {len(end)} chains became non-finite from an exact start")
    blocks, names = [], []
    with torch.no_grad():
        energies = (energy(start).double(), energy(end).double()) if isinstance(energy, Energy) else None
        flat = start.flatten(1).double(), end.flatten(1).double()
        for differences, block in _functions(*flat, energies, energy.domain, generator):
            blocks.append(paired_test(differences))
            names += block
    z, threshold = torch.cat(blocks), math.sqrt(2 * math.log(2 * len(names) / alpha))
    worst = int(z.abs().argmax())
    report = InvarianceReport(
        z=float(z[worst].abs()),
        threshold=threshold,
        worst=names[worst],
        functions=len(names),
        moved=float((start != end).flatten(1).any(1).double().mean()),
        acceptance=float(trace.acceptance),
        divergent=int((trace.divergences > 0).sum()),
    )
    run = f"{steps} steps of {len(start)} chains, acceptance {report.acceptance:.3g}"
    what = f"{name} on {type(energy).__name__} ({run})"
    if report.moved == 0:
        raise AssertionError(f"{what}: no chain moved at all, so nothing was tested; use a smaller step size")
    if report.z > threshold:
        raise AssertionError(
            f"{what} does not leave the law invariant: the mean of '{report.worst}' moved by "
            f"{float(z[worst]):+.1f} standard errors, {threshold:.1f} are allowed at a false-alarm rate of "
            f"{alpha:g} over {report.functions} functions"
        )
    return report
