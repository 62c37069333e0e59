"""Exact maxima of machines under linear fields: by enumeration, and by minimum cuts for attractive machines.

max_x  -E(x) + Σᵢ fᵢ·1[xᵢ = high]
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from torch import Tensor

from gibbsian.capabilities import Pairwise

_CAPACITY = 1 << 29  # scipy's flows are 32-bit integers; residual capacities may double


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
        graph = csr_array((whole.astype(np.int32), (rows, cols)), shape=(n + 2, n + 2))
        sent = maximum_flow(graph, source, sink).flow
        left = np.maximum(left - np.asarray(sent[rows, cols], dtype=np.float64).ravel() / scale, 0.0)
        most = len(left) / scale
    open_arcs = left > floor
    residual = csr_array(
        (open_arcs[open_arcs].astype(np.int8), (rows[open_arcs], cols[open_arcs])), shape=(n + 2, n + 2)
    )
    reached = breadth_first_order(residual, source, return_predecessors=False)
    y = np.zeros(n + 2)
    y[reached] = 1.0
    return torch.as_tensor(y[:n], device=unary.device)
