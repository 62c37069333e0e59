"""Perturb-and-MAP: bounds on log Z from maxima under Gumbel noise, and exact maxima by minimum cuts."""

import math
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported on first use
import torch
from torch import Tensor

from gibbsian.capabilities import Pairwise, PairwiseModel
from gibbsian.domains import Binary, Categorical, Discrete, Spin
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, check_choice, check_count
from gibbsian.kernels.gibbs import site_count
from gibbsian.partition.base import LogZ, pairwise, refuse_nan, require_energy
from gibbsian.placement import placement
from gibbsian.random import require_generator

_CAPACITY = 1 << 29  # scipy's flows are 32-bit integers; residual capacities may double
_SMALL = 20 * math.log(2)  # log of the most states that are enumerated


def perturb_and_map(
    energy: Energy,
    samples: int = 200,
    *,
    order: str = "low",
    solver: str | None = None,
    generator: torch.Generator | None = None,
    rows: int = 1 << 14,
) -> LogZ:
    """Bounds on log Z from exact maxima of the energy under Gumbel noise.

        E max_x [-E(x) + (1/n) Σᵢ γᵢ(xᵢ)] ≤ log Z ≤ E max_x [-E(x) + Σᵢ γᵢ(xᵢ)]

    with one zero-mean Gumbel number for every unit and value ("low" order). With one for every whole state
    ("full" order) the maximum has the law Gumbel(log Z): unbiased, with variance π²/6, but as costly as an
    exact sum. The bounds are loose (several nats) and useful where maximizing is easy and sampling is hard:
    strongly attractive machines.

    Reference: Papandreou & Yuille 2011; Hazan & Jaakkola 2012.

    Args:
        energy: over discrete units.
        samples: perturbations.
        order: "low", or "full" for at most 2^20 states.
        solver: "enumerate" (at most 2^20 states), or "max_flow" for Boltzmann machines, Ising models and RBMs
            of two-valued units whose weights are attractive (non-negative, up to flips of units); chosen by
            itself where left out. Anything else is refused: an inexact maximum gives no bound.
        generator: the source of all randomness; required.
        rows: states evaluated at a time.

    Returns:
        For the low order `value` is the upper bound's estimate; `lower` and `upper` are the two bounds
        widened by three standard errors. Diagnostics: `maxima` and `scaled_maxima` of every perturbation,
        `solver`, `units`.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> machine = gb.models.BoltzmannMachine(5)
    >>> out, exact = perturb_and_map(machine, generator=g), gb.partition.exact(machine).value
    >>> bool(out.lower <= exact) and bool(exact <= out.upper)
    True
    """
    generator = require_generator(generator, placement(require_energy(energy))[1])
    samples, rows = check_count("perturb_and_map", "samples", samples, 2), check_count("perturb_and_map", "rows", rows)
    check_choice("perturb_and_map", "order", order, ("low", "full"))
    solver = _solver(energy, solver, order)
    if order == "full":
        maxima = _full(energy, samples, generator, rows)
        value = maxima.mean()
        stderr = torch.full_like(value, math.pi / math.sqrt(6 * samples))  # of a Gumbel law
        method, diagnostics = "perturb-and-MAP, full order", {"maxima": maxima, "solver": solver}
        return LogZ(value, stderr, value - 3 * stderr, value + 3 * stderr, method, diagnostics).of(energy)
    if solver == "enumerate":
        maxima, scaled, units = _enumerated(energy, samples, generator, rows)
    else:
        maxima, scaled, units = _by_flow(energy, samples, generator)
    value, error = maxima.mean(), maxima.std() / math.sqrt(samples)
    lower = scaled.mean() - 3 * scaled.std() / math.sqrt(samples)
    diagnostics = {"maxima": maxima, "scaled_maxima": scaled, "solver": solver, "units": units}
    return LogZ(value, error, lower, value + 3 * error, "perturb-and-MAP", diagnostics).of(energy)


def gumbels(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Zero-mean Gumbel numbers in float64: -log of unit exponentials, less Euler's constant."""
    e = torch.empty(shape, dtype=torch.float64, device=generator.device).exponential_(generator=generator)
    return -e.log() - 0.5772156649015329


def _solver(energy: Energy, solver: str | None, order: str) -> str:
    small = isinstance(energy.domain, Discrete) and energy.domain.log_size <= _SMALL + 1e-9
    if solver not in {None, "enumerate", "max_flow"}:
        raise ArgumentError(f"solver={solver!r}: expected 'enumerate' or 'max_flow'")
    if small and solver != "max_flow":
        return "enumerate"
    if solver == "enumerate" or order == "full":
        raise CapabilityError(f"{energy.domain} has more than the 2^20 states that are enumerated; use partition.ais")
    if isinstance(energy, PairwiseModel) and attractive_flips(pairwise(energy)) is not None:
        return "max_flow"
    raise CapabilityError(
        f"exact maxima of {type(energy).__name__} over {energy.domain} are out of reach: it is neither small (at "
        "most 2^20 states) nor an attractive machine of two-valued units (no cycle with an odd number of negative "
        "weights), and an inexact maximum gives no bound; use partition.tree_reweighted, mean_field or ais"
    )


def _enumerated(energy: Energy, samples: int, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor, int]:
    """The maxima of every perturbation, with full and with 1/n noise, in one pass over the states."""
    domain = energy.domain
    if not isinstance(domain, Binary | Spin | Categorical):
        raise CapabilityError(f"perturb-and-MAP knows {{0, 1}}, ±1 and categorical units, not {domain}")
    dtype, device = placement(energy)
    classes, units = (domain.classes if isinstance(domain, Categorical) else 2), site_count(domain)
    noise = gumbels((samples, units, classes), generator)
    best = torch.full((2, samples), -math.inf, dtype=torch.float64, device=device)
    with torch.no_grad():
        for x in domain.chunks(rows, dtype=dtype, device=device):
            minus = -energy(x).double()[:, None]
            if isinstance(domain, Categorical):
                shift = x.flatten(1).double() @ noise.flatten(1).T
            else:
                shift = (x.flatten(1) == 1).double() @ (noise[..., 1] - noise[..., 0]).T + noise[..., 0].sum(1)
            both = torch.stack([(minus + shift).amax(0), (minus + shift / units).amax(0)])
            best = torch.maximum(best, both)
    refuse_nan(best, "a maximum")
    return best[0], best[1], units


def _by_flow(energy: Energy, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor, int]:
    """The same by one minimum cut for each perturbation, over all units, hidden ones too."""
    graph = pairwise(energy)
    flips = attractive_flips(graph)
    if flips is None:
        raise CapabilityError("the weights are not attractive, so a minimum cut is not the maximum")
    noise = gumbels((samples, graph.units, 2), generator)
    fields, fixed = noise[..., 1] - noise[..., 0], noise[..., 0].sum(1)
    full = max_flow(graph, flips, fields).value + fixed
    scaled = max_flow(graph, flips, fields / graph.units).value + fixed / graph.units
    return full, scaled, graph.units


def _full(energy: Energy, samples: int, generator: torch.Generator, rows: int) -> Tensor:
    """max over states of -E(x) + γ(x), a Gumbel number for every state."""
    dtype, device = placement(energy)
    best = torch.full((samples,), -math.inf, dtype=torch.float64, device=device)
    with torch.no_grad():
        for x in energy.domain.chunks(rows, dtype=dtype, device=device):  # type: ignore[attr-defined]
            shifted = gumbels((samples, len(x)), generator) - energy(x).double()
            best = torch.maximum(best, shifted.amax(1))
    refuse_nan(best, "a maximum")
    return best


# --- exact maxima under linear fields: max_x -E(x) + Σᵢ fᵢ·1[xᵢ = high] ----------------------------


class Maxima(NamedTuple):
    """Maxima of several problems: `value` (problems,), `states` (problems, units) in {0, 1}."""

    value: Tensor
    states: Tensor


def attractive_flips(graph: Pairwise) -> Tensor | None:
    """Which units to flip (x → 1 - x) so that no weight is negative, as a bool tensor; None where nothing does: where
    some cycle has an odd number of negative weights. Trees can always be flipped."""
    neighbors: list[list[tuple[int, bool]]] = [[] for _ in range(graph.units)]
    for (i, j), w in zip(graph.edges.T.tolist(), graph.weight.tolist(), strict=True):
        neighbors[i].append((j, w < 0))
        neighbors[j].append((i, w < 0))
    flip: list[bool | None] = [None] * graph.units
    for root in range(graph.units):
        if flip[root] is not None:
            continue
        flip[root] = False
        stack = [root]
        while stack:
            unit = stack.pop()
            for other, negative in neighbors[unit]:
                wanted = bool(flip[unit]) != negative
                if flip[other] is None:
                    flip[other] = wanted
                    stack.append(other)
                elif flip[other] != wanted:
                    return None
    return torch.tensor(flip, dtype=torch.bool, device=graph.bias.device)


def max_flow(graph: Pairwise, flips: Tensor, fields: Tensor) -> Maxima:
    """Exact maxima of log p*(x) + f·x for every row f of `fields` `(problems, units)`, by one minimum cut each.

    With flipped units y = x or 1 - x and all weights w ≥ 0 the objective is Σ aᵢyᵢ - Σ (w/2)|yᵢ - yⱼ| +
    constant, whose maximum is a minimum cut (Greig, Porteous & Seheult 1989).
    """
    sign = 1.0 - 2.0 * flips.double()
    i, j = graph.edges
    weight = sign[i] * sign[j] * graph.weight  # of the flipped units, all non-negative
    half = weight / 2
    from_flipped = torch.zeros_like(graph.bias)
    from_flipped.index_add_(0, i, graph.weight * flips[j].double())
    from_flipped.index_add_(0, j, graph.weight * flips[i].double())
    pull = torch.zeros_like(graph.bias).index_add_(0, i, half).index_add_(0, j, half)
    unary = sign * (graph.bias + from_flipped + fields) + pull
    y = torch.stack([_minimum_cut(graph.edges, half, row) for row in unary])
    states = torch.where(flips, 1 - y, y)
    return Maxima(graph.log_density(states) + (fields * states).sum(1), states)


def _minimum_cut(edges: Tensor, half: Tensor, unary: Tensor) -> Tensor:
    """The y in {0, 1}^n that maximizes Σ aᵢyᵢ - Σ half |yᵢ - yⱼ|: flows of real numbers by integer flows. Capacities
    are rounded down to multiples of 1/scale, which leaves at most arcs/scale to be sent through the residual graph;
    that is solved on a finer scale, and so on to rounding."""
    n = len(unary)
    source, sink = n, n + 1
    i, j = edges.cpu().numpy()
    a, c = unary.cpu().numpy(), half.cpu().numpy()
    on, off = np.flatnonzero(a > 0), np.flatnonzero(a < 0)
    zero = np.zeros
    rows = np.concatenate([i, j, np.full(len(on), source), on, off, np.full(len(off), sink)])
    cols = np.concatenate([j, i, on, np.full(len(on), source), np.full(len(off), sink), off])
    left = np.concatenate([c, c, a[on], zero(len(on)), -a[off], zero(len(off))])  # residual capacity of every arc
    most = min(a[on].sum(), -a[off].sum())
    floor = 1e-13 * max(1.0, float(left.sum()))
    while most > floor:
        scale = _CAPACITY / most
        whole = np.minimum(left, most) * scale
        graph = scipy.sparse.csr_array((whole.astype(np.int32), (rows, cols)), shape=(n + 2, n + 2))
        sent = scipy.sparse.csgraph.maximum_flow(graph, source, sink).flow
        left = np.maximum(left - np.asarray(sent[rows, cols], dtype=np.float64).ravel() / scale, 0.0)
        most = len(left) / scale
    open_arcs = left > floor
    residual = scipy.sparse.csr_array(
        (open_arcs[open_arcs].astype(np.int8), (rows[open_arcs], cols[open_arcs])), shape=(n + 2, n + 2)
    )
    reached = scipy.sparse.csgraph.breadth_first_order(residual, source, return_predecessors=False)
    y = np.zeros(n + 2)
    y[reached] = 1.0
    return torch.as_tensor(y[:n], device=unary.device)
