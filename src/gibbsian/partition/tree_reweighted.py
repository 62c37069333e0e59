"""The tree-reweighted bound: an upper bound on log Z from a convex combination of spanning trees.

The maximum over beliefs (see `tree_reweighted`) is only reached at a fixed point of the messages. What is reported is
its dual, which is never below it: with trees rooted uniformly, ρᵢ|ⱼ the share in which j is the parent
of i, and any fields c (here those of the messages),

    log Z ≤ Σ_(i|j) ρᵢ|ⱼ ζ(c_{i→j}) + Σⱼ (1/n) ζ(n [bⱼ + Σᵢ (ρᵢ|ⱼ (c_{j→i} + ν_{i→j}) - ρᵢⱼ c_{j→i})])

(ζ(z) = log(1 + Σ e^z) over the values but 0, ν the message that c sends). It bounds log Z at any c and equals the maximum at a fixed point.
"""

import math
import warnings
from typing import Any

import numpy as np
import scipy  # its parts are imported on first use
import torch
from torch import Tensor

from gibbsian.capabilities import PairwiseTables
from gibbsian.energy import Energy
from gibbsian.errors import EstimateWarning, check_count, check_number
from gibbsian.graphs import components
from gibbsian.partition.base import LogZ, bounded, tables
from gibbsian.partition.mean_field import whole
from gibbsian.partition.messages import Beliefs, message, propagate, zeta

DENSE = 3000  # units up to which all spanning trees are counted, by the inverse of a matrix
FEWEST = 12  # trees that stand for all beyond


def tree_reweighted(
    energy: Energy,
    *,
    trees: int = 50,
    gap: float = 1e-3,
    damping: float = 0.5,
    steps: int = 300,
    tolerance: float = 1e-10,
) -> LogZ:
    """An upper bound on log Z of a machine with pairwise couplings by tree-reweighted belief propagation.

        log Z ≤ Σ E_b[θᵢ] + Σ E_b[θᵢⱼ] + Σ Hᵢ - Σ ρᵢⱼ Iᵢⱼ   at the fixed point, ρ in the spanning-tree polytope

    ρᵢⱼ is the share of spanning trees that use an edge. It starts at the shares among all spanning trees (2/n on a complete graph;
    exact on trees). Beyond 3000 units it starts at a few trees that use every edge between them, so that memory and time grow with
    the edges. Conditional gradient improves it: the gradient in ρ is -I, so each step goes towards the spanning tree with the most
    mutual information. The value comes from the dual, so it bounds log Z whether or not the messages have converged; it is tight
    for ρ when they have.

    Reference: Wainwright, Jaakkola & Willsky 2005; Globerson & Jaakkola 2007 for the dual.

    Args:
        energy: a BoltzmannMachine, an Ising model, a Potts machine, or an RBM with Bernoulli or Spin units.
        trees: most steps on the edge weights; 0 keeps the first ones.
        gap: stop when no choice of ρ can lower the bound by more than this (to first order).
        damping, steps, tolerance: of the messages, as in `bethe`, for every choice of ρ.

    Returns:
        `value` = `upper`; `lower` is -∞. Diagnostics: `converged` and `residual` of the messages, `slack` (by
        how much the value may exceed the optimum for this ρ), `gap` left in ρ, `start` (the bound before ρ
        was improved), `edge_weights` ρ, `steps`, `means` of the units as {0, 1} (Potts: probabilities of all values).

    >>> import gibbsian as gb
    >>> machine = gb.models.BoltzmannMachine(5)
    >>> bool(tree_reweighted(machine).value >= gb.partition.exact(machine).value - 1e-9)
    True
    """
    trees = check_count("tree_reweighted", "trees", trees, 0)
    check_number("tree_reweighted", "gap", gap)
    graph = tables(energy)
    how = {"damping": damping, "steps": steps, "tolerance": tolerance}
    label = components(graph.edges, graph.units)
    roots = 1.0 / torch.bincount(label)[label].double()  # for every unit the share of trees that are rooted there
    shares = all_trees(graph) if graph.units <= DENSE else covering_trees(graph)
    out, value = _solve(graph, shares, roots, None, how)
    start, used, left = value, out.steps, math.inf
    for _ in range(trees):
        tree = best_tree(graph, out.information)
        left = float(out.information @ _undirected(tree - shares))
        if left <= gap:
            break
        for size in (0.4, 0.2, 0.1, 0.04, 0.015):
            trial = torch.lerp(shares, tree, size)
            new, bound = _solve(graph, trial, roots, out.messages, how)
            used += new.steps
            if float(bound) < float(value):
                break
        else:
            break
        shares, out, value = trial, new, bound
    slack = float((value - out.value).abs())
    if slack > 0.01 * max(1.0, abs(float(value))):
        warnings.warn(
            f"tree-reweighted messages still change by {out.residual:.2g} after {steps} updates: the value is "
            f"an upper bound, but up to {slack:.2g} nats looser than it could be; raise steps=",
            EstimateWarning,
            stacklevel=2,
        )
    diagnostics = {
        "converged": out.converged,
        "residual": out.residual,
        "slack": slack,
        "gap": left,
        "start": start,
        "edge_weights": _undirected(shares),
        "steps": used,
        "means": whole(out.means),
    }
    return bounded(value, "tree-reweighted", diagnostics, upper=value).of(energy)


def _undirected(shares: Tensor) -> Tensor:
    """ρᵢⱼ = ρᵢ|ⱼ + ρⱼ|ᵢ of every edge."""
    return shares[: len(shares) // 2] + shares[len(shares) // 2 :]


def _solve(
    graph: PairwiseTables, shares: Tensor, roots: Tensor, messages: Tensor | None, how: dict[str, float]
) -> tuple[Beliefs, Tensor]:
    """Beliefs for these shares of trees, and the dual bound at their fields."""
    out = propagate(graph, _undirected(shares), messages=messages, **how)  # type: ignore[arg-type]
    return out, dual_bound(graph, shares, roots, out.cavities)


def dual_bound(graph: PairwiseTables, shares: Tensor, roots: Tensor, cavities: Tensor) -> Tensor:
    """The dual at any fields c of the directed edges: an upper bound on log Z."""
    _, target, weight, opposite = graph.directed()
    rho = (shares + shares[opposite])[:, None]
    said = message(weight / rho[:, None], cavities)
    pull = shares[:, None] * (cavities[opposite] + said) - rho * cavities[opposite]
    field = graph.bias.index_add(0, target, pull)
    return graph.constant + shares @ zeta(cavities, 1) + roots @ zeta(field / roots[:, None], 1)


def all_trees(graph: PairwiseTables) -> Tensor:
    """For every directed edge i → j the share of all rooted spanning trees (forests) in which j is the parent of i:
    ρᵢ|ⱼ = Gᵢᵢ - Gᵢⱼ with G the pseudo-inverse of the graph's Laplacian, the current through the edge when a unit of it
    flows from a random unit to i."""
    source, target, _, _ = graph.directed()
    laplacian = torch.zeros(graph.units, graph.units, dtype=torch.float64, device=source.device)
    laplacian[source, target] = -1.0
    laplacian.diagonal().copy_(-laplacian.sum(1))
    label = components(graph.edges, graph.units)
    same = (label[:, None] == label).double()
    null = same / same.sum(1)  # projection on the null space: constants on every component
    inverse = torch.linalg.inv(laplacian + null) - null
    return inverse[source, source] - inverse[source, target]


def covering_trees(graph: PairwiseTables) -> Tensor:
    """The same for the mean of a few spanning trees (forests) that use every edge between them, in memory and time of the
    edges: each takes the edges that were taken least, so that all are taken nearly as often as each other."""
    used = torch.zeros(graph.edges.shape[1], dtype=torch.float64, device=graph.edges.device)
    trees: list[Tensor] = []
    while len(trees) < FEWEST or bool((used == 0).any()):
        trees.append(best_tree(graph, -used))
        used += _undirected(trees[-1]) > 0
    return torch.stack(trees).mean(0)


def best_tree(graph: PairwiseTables, information: Tensor) -> Tensor:
    """The shares of the spanning tree (forest) whose edges hold the most information, rooted uniformly."""
    n, (i, j) = graph.units, graph.edges.cpu().numpy()
    gain = information.cpu().numpy()
    forest = scipy.sparse.csgraph.minimum_spanning_tree(_sparse(n, i, j, gain.max(initial=0.0) + 1 - gain)).tocoo()
    label = components(graph.edges, n).cpu().numpy()
    _, first, size = np.unique(label, return_index=True, return_counts=True)
    # one more node, above a unit of every component, makes a tree of the forest
    ends = np.concatenate([forest.row, np.full(len(first), n)]), np.concatenate([forest.col, first])
    order, parent = scipy.sparse.csgraph.breadth_first_order(
        _sparse(n + 1, *ends, np.ones(len(ends[0]))), n, directed=False
    )
    below = np.ones(n + 1)  # units in the subtree under each
    for unit, over in zip(order[:0:-1].tolist(), parent[order[:0:-1]].tolist(), strict=True):
        below[over] += below[unit]
    child = np.where(parent[i] == j, i, np.where(parent[j] == i, j, n))
    whole_size = size[label[np.minimum(child, n - 1)]]
    up = (whole_size - below[child]) / whole_size  # the root lies beyond the parent
    both = np.where(child == i, [up, 1 - up], [1 - up, up]) * (child < n)
    return torch.from_numpy(both.reshape(-1)).to(information.device)


def _sparse(n: int, i: Any, j: Any, values: Any) -> Any:
    return scipy.sparse.coo_array((values, (i, j)), shape=(n, n))
