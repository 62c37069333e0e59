"""States of lowest energy: modes of densities, and what a model makes of an observation or an input."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Binary, Bounded, Box, Categorical, Discrete, Domain, Real, Spin
from gibbsian.energy import Energy
from gibbsian.errors import (
    ArgumentError,
    CapabilityError,
    ConvergenceWarning,
    DivergenceError,
    DomainError,
    check_count,
    check_number,
)
from gibbsian.kernels.base import masked, where_chain
from gibbsian.placement import check_placement
from gibbsian.sampling.checks import check_start, clamp_mask
from gibbsian.uses.descent import Place, Rest, bend, downhill, lbfgs, steepest

CONTINUOUS, DISCRETE = ("lbfgs", "gradient"), ("icm", "beam", "enumerate")


class Minimum(NamedTuple):
    """The states found `(batch, *event)`, their energies `(batch,)`, and for each row whether the search had come to rest."""

    x: Tensor
    energy: Tensor
    converged: Tensor


def minimize(
    energy: Energy,
    x0: Tensor,
    *,
    method: str | None = None,
    clamp: Tensor | None = None,
    steps: int = 500,
    width: int = 16,
    tolerance: float = 1e-6,
) -> Minimum:
    """x̂ = argmin E(x), or a state of low energy, for every row of `x0`, which says where to start and what is held fixed.

    - "lbfgs" (continuous): quasi-Newton with a line search; the default. Walls are kept by a transformation, so a
      minimum on a wall is approached from inside.
    - "gradient" (continuous): steepest descent, each row with its own step, projected on the walls.
    - "icm" (discrete): each unit in turn to its best value given the others, until nothing changes; the
      default. A local minimum.
    - "beam" (discrete): units are decided in order, those to come held at their value in `x0`, and the
      `width` best beginnings are kept. For one-hot units an `x0` of zeros means undecided. Exact where the width
      covers all beginnings.
    - "enumerate" (discrete): every state; exact, for up to 2^20 of them.

    Every row is searched for on its own: what it finds, and when it is at rest, does not depend on the others.

    Reference: Nocedal 1980 (L-BFGS); Besag 1986 (iterated conditional modes).

    Args:
        energy: any energy; `model.given(x)` of a conditional one, rows belonging to its inputs.
        x0: starting points `(batch, *event)`.
        clamp: bool tensor, True for entries that keep their value; of the event shape, or per row.
        steps: at most so many; of "icm", each over all units.
        width: of the beam.
        tolerance: a continuous row is at rest where no entry of its gradient exceeds this (or what rounding leaves of it),
            and its next step would move no entry by more than √tolerance of its largest one, or of 1.

    >>> import gibbsian as gb
    >>> well = gb.energies.Gaussian(torch.tensor([1.0, -2.0]), torch.eye(2))
    >>> gb.minimize(well, torch.zeros(1, 2)).x.round(decimals=3)
    tensor([[ 1., -2.]])
    >>> spins = gb.models.Ising((3, 3), coupling=1.0)
    >>> float(gb.minimize(spins, torch.ones(1, 3, 3), method="beam").energy)
    -18.0
    """
    method = _method(energy, method)
    steps, width = check_count("minimize", "steps", steps), check_count("minimize", "width", width)
    check_number("minimize", "tolerance", tolerance, open_low=True)
    if method == "beam":
        energy.domain.check_shape(x0, "x0")  # undecided units lie outside the domain
        check_placement(x0, energy, "x0")
        if not bool(torch.isfinite(x0).all()):
            raise DomainError("some entries of x0 are not finite; give undecided units any number, such as 0")
    else:
        check_start(energy, x0)
    held = clamp_mask(clamp, x0, energy.domain)
    held = torch.zeros_like(x0, dtype=torch.bool) if held is None else held.expand_as(x0)
    searches: dict[str, Callable[[], Minimum]] = {
        "lbfgs": lambda: _lbfgs(energy, x0, held, steps, tolerance),
        "gradient": lambda: _descent(energy, x0, held, steps, tolerance),
        "icm": lambda: _icm(energy, x0, held, steps),
        "beam": lambda: _beam(energy, x0, held, width),
        "enumerate": lambda: _enumerate(energy, x0, held),
    }
    with torch.no_grad():
        return searches[method]()


def report_unrest(converged: Tensor, steps: int, stacklevel: int = 3) -> None:
    """Warn, for the caller of the caller, where some searches had not come to rest."""
    if not bool(converged.all()):
        warnings.warn(
            f"{int((~converged).sum())} of {len(converged)} searches had not come to rest after {steps} steps (the first is "
            f"row {int((~converged).nonzero()[0])}); give them more: steps=",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )


def _method(energy: Any, given: str | None) -> str:
    """The way that was asked for where it suits the domain, else the default there."""
    if not isinstance(energy, Energy):
        raise CapabilityError(f"{type(energy).__name__} is not an energy; wrap it with gibbsian.as_energy")
    if not isinstance(energy.domain, Discrete | Real | Bounded):  # counts, and mixed events
        raise DomainError(
            f"minimize goes through real numbers, or through finitely many discrete states, and this energy lives on "
            f"{energy.domain}; draw at a low temperature instead, or minimize over its real part alone"
        )
    allowed = DISCRETE if isinstance(energy.domain, Discrete) else CONTINUOUS
    method = allowed[0] if given is None else given
    if method not in allowed:
        raise ArgumentError(
            f"minimize(method={method!r}): on {energy.domain} use one of {', '.join(map(repr, allowed))}"
        )
    return method


# --- continuous -------------------------------------------------------------------------------------


def _lbfgs(energy: Any, x0: Tensor, clamp: Tensor, steps: int, tolerance: float) -> Minimum:
    constrain, slope, u0 = _coordinates(energy.domain, x0)

    def point(u: Tensor) -> Tensor:  # what is held stays as it is, on a wall too
        return torch.where(clamp, x0, constrain(u.reshape(x0.shape)))

    def look(u: Tensor) -> Place:
        e, s = energy.energy_and_score(point(u))
        return Place(u, e, masked(-s * slope(u.reshape(x0.shape)), clamp).flatten(1))

    def reach(u: Tensor, d: Tensor) -> Tensor:
        return _reach(point(u), d.reshape(x0.shape) * slope(u.reshape(x0.shape)))

    found, at_rest = lbfgs(look, u0.flatten(1), steps, Rest(tolerance, reach))
    return _finite(Minimum(point(found.u), found.energy, at_rest))


def _reach(x: Tensor, move: Tensor) -> Tensor:
    """How far a move goes, per row, in units of the largest entry of x or of 1."""
    return move.flatten(1).abs().amax(1) / x.flatten(1).abs().amax(1).clamp(min=1)


def _finite(found: Minimum) -> Minimum:
    if not bool(torch.isfinite(found.energy).all()):
        raise DivergenceError("the energy falls without end or is not finite: it has no minimum to go to; confine it")
    return found


def _coordinates(domain: Domain, x0: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]:
    """x(u), dx/du entry by entry, and where to start; u = x on R^d."""
    if not isinstance(domain, Bounded):
        return (lambda u: u), (lambda u: torch.ones_like(u)), x0
    low, high = domain.bounds(x0)
    if isinstance(domain, Box):
        wide = high - low
        start = torch.logit(((x0 - low) / wide).clamp(1e-3, 1 - 1e-3))
        return lambda u: low + wide * u.sigmoid(), lambda u: wide * u.sigmoid() * (-u).sigmoid(), start
    start = x0.clamp(min=1e-3)
    return torch.nn.functional.softplus, torch.sigmoid, start + torch.log(-torch.expm1(-start))


def _descent(energy: Any, x0: Tensor, clamp: Tensor, steps: int, tolerance: float) -> Minimum:
    domain: Domain = energy.domain

    def look(u: Tensor) -> Place:
        x = domain.within_walls(u.reshape(x0.shape))
        e, s = energy.energy_and_score(x)
        return Place(x.flatten(1), e, masked(-s, clamp).flatten(1))

    def at_rest(here: Place) -> Tensor:
        if isinstance(domain, Bounded):  # at a wall only a pull to the inside counts
            x, pull = here.u.reshape(x0.shape), here.gradient.reshape(x0.shape)
            low, high = domain.bounds(x)
            pull = torch.where(((x <= low) & (pull > 0)) | ((x >= high) & (pull < 0)), 0.0, pull)
            here = here._replace(gradient=pull.flatten(1))
        curvature = bend(look, here)
        return Rest(tolerance, _reach)(here, downhill(here, curvature), curvature)

    found, still = steepest(look, x0.flatten(1), steps, at_rest)
    return _finite(Minimum(found.u.reshape(x0.shape), found.energy, still))


# --- discrete ---------------------------------------------------------------------------------------


def _sites(domain: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """x as `(rows, units, values)` with values 1 or K, and what a unit can be `(choices, values)`."""
    if isinstance(domain, Categorical):
        return x.reshape(len(x), -1, domain.classes), torch.eye(domain.classes, dtype=x.dtype, device=x.device)
    if not isinstance(domain, Binary | Spin):
        raise DomainError(
            f"'icm' and 'beam' go through discrete units of one kind, this energy lives on {domain}; use "
            "method='enumerate', or draw at a low temperature"
        )
    return x.reshape(len(x), -1, 1), torch.tensor([[domain.low], [1.0]], dtype=x.dtype, device=x.device)


def _candidates(units: Tensor, choices: Tensor, site: int, shape: torch.Size) -> Tensor:
    """Every choice for one unit of every row, `(choices·rows, *event)`, rows fastest as inputs of a family repeat."""
    every = units.expand(len(choices), *units.shape).clone()
    every[:, :, site] = choices[:, None]
    return every.reshape(-1, *shape[1:])


def _icm(energy: Any, x0: Tensor, clamp: Tensor, steps: int) -> Minimum:
    units, choices = _sites(energy.domain, x0)
    units, movable = units.clone(), ~_sites(energy.domain, clamp)[0][..., 0]
    changed = torch.ones(len(x0), dtype=torch.bool, device=x0.device)
    for _ in range(steps):
        before = units.clone()
        for k in range(units.shape[1]):
            energies = energy(_candidates(units, choices, k, x0.shape)).reshape(len(choices), -1)
            current = (units[:, k] == choices[:, None]).all(2)  # (choices, rows)
            now = torch.where(current, energies, torch.inf).amin(0)
            best, which = energies.min(0)
            units[:, k] = torch.where((movable[:, k] & (best < now))[:, None], choices[which], units[:, k])
        changed = (units != before).flatten(1).any(1)
        if not bool(changed.any()):
            break
    x = units.reshape(x0.shape)
    return Minimum(x, energy(x), ~changed)


def _beam(energy: Any, x0: Tensor, clamp: Tensor, width: int) -> Minimum:
    n, (units, choices) = len(x0), _sites(energy.domain, x0)
    movable = ~_sites(energy.domain, clamp)[0][..., 0]
    beam = units[None]  # (beginnings, rows, units, values)
    energies = energy(x0)[None]
    copies = torch.zeros_like(energies, dtype=torch.bool)  # a clamped unit has one choice
    for k in range(units.shape[1]):
        wide = beam.expand(len(choices), *beam.shape).clone()
        wide[..., k, :] = torch.where(movable[:, k, None], choices[:, None, None], wide[..., k, :])
        wide = wide.flatten(0, 1)
        energies = energy(wide.reshape(-1, *x0.shape[1:])).reshape(-1, n)
        again = torch.arange(len(wide), device=x0.device) >= len(beam)
        copies = copies.repeat(len(choices), 1) | (again[:, None] & ~movable[:, k])
        energies = torch.where(copies, torch.inf, energies)
        energies, order = energies.topk(min(width, len(wide)), 0, largest=False)
        beam = wide.gather(0, order[:, :, None, None].expand(-1, -1, *wide.shape[2:]))
        copies = copies.gather(0, order)
    x = beam[0].reshape(x0.shape)
    return Minimum(x, energies[0], torch.ones(n, dtype=torch.bool, device=x0.device))


def _enumerate(energy: Any, x0: Tensor, clamp: Tensor) -> Minimum:
    domain: Discrete = energy.domain
    if domain.size > 1 << 20:
        raise DomainError(f"{domain} has too many states to try all of them; use method='icm' or 'beam'")
    best, found = torch.full((len(x0),), torch.inf, dtype=x0.dtype, device=x0.device), x0
    rows = max(1, (1 << 16) // len(x0))
    for states in domain.chunks(rows, dtype=x0.dtype, device=x0.device):
        every = states[:, None].expand(-1, *x0.shape)
        allowed = ((every == x0) | ~clamp).flatten(2).all(2)
        e = energy(every.reshape(-1, *x0.shape[1:])).reshape(len(states), -1)
        e, which = torch.where(allowed, e, torch.inf).min(0)
        better = e < best
        found = where_chain(better, states[which], found)
        best = torch.where(better, e, best)
    return Minimum(found, best, torch.ones_like(best, dtype=torch.bool))
