"""Graphs as lists of edges: what pairwise machines, their samplers and message passing share."""

from typing import Any

import numpy as np
import scipy  # its parts are imported on first use
import torch
from torch import Tensor

__all__ = ["adjacency", "coloring", "components"]


def adjacency(edges: Tensor, n: int) -> Any:
    """The symmetric matrix of 1 at both places of every edge `(2, m)`."""
    i, j = edges.cpu().numpy()
    upper = scipy.sparse.coo_array((np.ones(len(i)), (i, j)), shape=(n, n))
    return (upper + upper.T).tocsr()


def components(edges: Tensor, n: int) -> Tensor:
    """Which connected component every node belongs to, `(n,)`."""
    _, label = scipy.sparse.csgraph.connected_components(adjacency(edges, n), directed=False)
    return torch.as_tensor(label, dtype=torch.long, device=edges.device)


def coloring(edges: Tensor, n: int) -> Tensor:
    """A color for every node, from 0 on, that no neighbor has: two where two do, else greedily, at most one more than the
    largest degree.

    >>> coloring(torch.tensor([[0, 1, 2], [1, 2, 3]]), 4)  # a path
    tensor([0, 1, 0, 1])
    >>> coloring(torch.tensor([[0, 1, 0], [1, 2, 2]]), 3)  # a triangle
    tensor([0, 1, 2])
    """
    graph = adjacency(edges, n)
    two = _two_colors(graph)
    if bool((two[edges[0].cpu()] != two[edges[1].cpu()]).all()):
        return two.to(edges.device)
    starts, others = graph.indptr.tolist(), graph.indices.tolist()
    colors = [-1] * n
    for node in range(n):
        taken = {colors[other] for other in others[starts[node] : starts[node + 1]]}
        color = 0
        while color in taken:
            color += 1
        colors[node] = color
    return torch.tensor(colors, device=edges.device)


def _two_colors(graph: Any) -> Tensor:
    """The parity of the distance from one node of every component: a coloring if two colors do."""
    n = graph.shape[0]
    _, label = scipy.sparse.csgraph.connected_components(graph, directed=False)
    firsts = np.unique(label, return_index=True)[1]
    root = scipy.sparse.coo_array(
        (np.ones(len(firsts)), (np.full(len(firsts), n), firsts)), shape=(n + 1, n + 1)
    ).tocsr()
    graph.resize(n + 1, n + 1)
    order, before = scipy.sparse.csgraph.breadth_first_order(
        graph + root, n, directed=False
    )  # from one more node, joined to each of them
    graph.resize(n, n)
    color, parent = [1] * (n + 1), before.tolist()
    for node in order[1:].tolist():
        color[node] = 1 - color[parent[node]]
    return torch.tensor(color[:n])
