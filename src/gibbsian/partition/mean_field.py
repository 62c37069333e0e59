"""The mean-field bound: the best lower bound that independent units give."""

import torch
from torch import Tensor

from gibbsian.capabilities import Pairwise
from gibbsian.energy import Energy
from gibbsian.errors import check_count, check_number
from gibbsian.partition.base import LogZ, bounded, pairwise
from gibbsian.random import stream


def mean_field(
    energy: Energy,
    *,
    restarts: int = 16,
    steps: int = 500,
    tolerance: float = 1e-10,
    generator: torch.Generator | None = None,
) -> LogZ:
    """A lower bound on log Z of a machine with two-valued units by naive mean field.

        log Z ≥ ½ mᵀWm + b·m + Σᵢ H(mᵢ),   ascended by mᵢ ← σ(Σⱼ wᵢⱼmⱼ + bᵢ), units that are not neighbors at
        once

    (tanh for ±1 units: the same bound). It holds at any m, so it needs no convergence; several starts are
    ascended and the best is kept. Tight for weak or frustration-free couplings with one dominant mode; it
    loses up to log 2 for each symmetric pair of modes it cannot cover. `tree_reweighted` bounds from above.

    Reference: Peterson & Anderson 1987; Saul, Jaakkola & Jordan 1996.

    Args:
        energy: a BoltzmannMachine, an Ising model, or an RBM with Bernoulli or Spin units (both layers are
            units).
        restarts: starting points: all ½, σ(b), and random ones.
        steps: most sweeps over the units.
        tolerance: stop when no mean moves by more than this.
        generator: for the random starts; a fixed seed where it is left out.

    Returns:
        `value` = `lower`; `upper` is +∞. Diagnostics: `means` (of the units as {0, 1}), `converged`,
        `steps`.

    >>> import gibbsian as gb
    >>> mean_field(gb.models.BoltzmannMachine(4)).upper
    tensor(inf, dtype=torch.float64)
    """
    restarts, steps = check_count("mean_field", "restarts", restarts), check_count("mean_field", "steps", steps)
    check_number("mean_field", "tolerance", tolerance)
    graph = pairwise(energy)
    generator = stream(0, "mean_field", graph.bias.device) if generator is None else generator
    m = torch.rand(restarts, graph.units, generator=generator, dtype=torch.float64, device=graph.bias.device)
    m[0] = 0.5
    if restarts > 1:
        m[1] = torch.sigmoid(graph.bias)
    blocks = _blocks(graph)
    done = 0
    converged = False
    while done < steps and not converged:
        moved = torch.zeros((), dtype=torch.float64, device=m.device)
        for units, source, target, weight in blocks:
            field = graph.bias[units].repeat(restarts, 1).index_add_(1, target, m[:, source] * weight)
            new = torch.sigmoid(field)
            moved = torch.maximum(moved, (new - m[:, units]).abs().max())
            m[:, units] = new
        done += 1
        converged = float(moved) <= tolerance
    bound = graph.log_density(m) + (torch.special.entr(m) + torch.special.entr(1 - m)).sum(1)
    best = int(bound.argmax())
    value = bound[best]
    diagnostics = {"means": m[best], "converged": converged, "steps": done, "restarts": bound}
    return bounded(value, "mean field", diagnostics, lower=value).of(energy)


def _blocks(graph: Pairwise) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Units in groups without inner edges, so that updating one at once is coordinate ascent; each with the edges that
    lead into it: (units, sources, targets as positions in the group, weights)."""
    source, target, weight, _ = graph.directed()
    color = _greedy_colors(graph)
    groups = []
    position = torch.zeros(graph.units, dtype=torch.long, device=source.device)
    for c in range(int(color.max()) + 1):
        units = (color == c).nonzero().flatten()
        position[units] = torch.arange(len(units), device=source.device)
        into = (color[target] == c).nonzero().flatten()
        groups.append((units, source[into], position[target[into]], weight[into]))
    return groups


def _greedy_colors(graph: Pairwise) -> Tensor:
    neighbors: list[list[int]] = [[] for _ in range(graph.units)]
    for i, j in graph.edges.T.tolist():
        neighbors[i].append(j)
        neighbors[j].append(i)
    colors = [-1] * graph.units
    for unit in range(graph.units):
        taken = {colors[other] for other in neighbors[unit]}
        colors[unit] = next(c for c in range(graph.units) if c not in taken)
    return torch.tensor(colors, device=graph.bias.device)
