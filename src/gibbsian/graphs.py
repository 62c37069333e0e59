"""Graphs as lists of edges: what pairwise machines, their samplers and message passing share."""

import sys
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are imported on first use
import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, ShapeError, check_count

__all__ = ["Edges", "adjacency", "coloring", "components", "hooked", "joined", "read_edges"]


class Edges(NamedTuple):
    """Pairs of nodes `(m, 2)`, the number of nodes, and the weights `(m,)` that came with them, if any."""

    pairs: Tensor
    nodes: int
    weights: Tensor | None


def read_edges(edges: Any, nodes: int | None = None) -> Edges:
    """Edges from a list of pairs, a symmetric or triangular scipy matrix, or a networkx graph.

    Nodes are numbers from 0 on; those of a networkx graph are numbered in its order. Entries of a matrix, and `weight` of
    networkx edges where all have it, are weights. Duplicates, reversed copies, self-loops and nodes out of range are
    refused.

    >>> read_edges([[0, 1], [2, 1]], nodes=4).pairs
    tensor([[0, 1],
            [2, 1]])
    >>> read_edges([[0, 1], [1, 0]])
    Traceback (most recent call last):
        ...
    gibbsian.errors.ArgumentError: edge 1 = (1, 0) is edge 0 = (0, 1) again, reversed; give every pair once
    """
    if nodes is not None:
        nodes = check_count("on_graph", "sites", nodes)
    weights = None
    networkx = sys.modules.get("networkx")  # whoever has a graph of it has imported it
    if scipy.sparse.issparse(edges):
        pairs, found, weights = _from_matrix(edges)
    elif networkx is not None and isinstance(edges, networkx.Graph):
        pairs, found, weights = _from_networkx(edges)
    else:
        pairs = _from_pairs(edges)
        found = nodes if nodes is not None else (int(pairs.max()) + 1 if len(pairs) else 1)
    if nodes is not None and found != nodes:
        raise ArgumentError(f"sites={nodes}, but the graph has {found}; leave sites= out")
    _check_edges(pairs, found)
    return Edges(pairs, found, weights)


def _from_pairs(edges: Any) -> Tensor:
    try:
        pairs = torch.as_tensor(edges).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"edges is a {type(edges).__name__}, expected pairs of sites (m, 2), a scipy sparse matrix or a networkx graph"
        ) from error
    if pairs.numel() == 0:
        return torch.zeros(0, 2, dtype=torch.long)
    if pairs.dim() != 2 or pairs.shape[1] != 2:
        hint = "; pass edges.T" if pairs.dim() == 2 and len(pairs) == 2 else ""
        raise ShapeError(f"edges have shape {tuple(pairs.shape)}, expected (m, 2): a pair of sites a row{hint}")
    if pairs.dtype.is_floating_point or pairs.dtype.is_complex or pairs.dtype == torch.bool:
        raise ArgumentError(f"edges are of type {pairs.dtype}, expected whole numbers")
    return pairs.long()


def _from_matrix(matrix: Any) -> tuple[Tensor, int, Tensor]:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(f"the matrix of a graph has shape {matrix.shape}, expected as many rows as columns")
    matrix = matrix.tocsr()
    upper, lower = scipy.sparse.triu(matrix, 1).tocoo(), scipy.sparse.tril(matrix, -1)
    if lower.nnz and upper.nnz and abs(matrix - matrix.T).nnz:
        raise ArgumentError("the matrix of a graph is neither symmetric nor triangular; pass (A + A.T) / 2")
    loops = matrix.diagonal().nonzero()[0]
    if len(loops):
        raise ArgumentError(f"the matrix of a graph is not 0 at ({loops[0]}, {loops[0]}): no site acts on itself")
    half = upper if upper.nnz else lower.tocoo()
    pairs = torch.as_tensor(np.stack([half.row, half.col], 1), dtype=torch.long)
    return pairs, matrix.shape[0], torch.as_tensor(half.data, dtype=torch.get_default_dtype())


def _from_networkx(graph: Any) -> tuple[Tensor, int, Tensor | None]:
    if graph.is_directed():
        raise ArgumentError("the graph is directed, but couplings have no direction; pass graph.to_undirected()")
    place = {node: i for i, node in enumerate(graph.nodes)}
    listed = list(graph.edges(data="weight"))
    pairs = torch.tensor([[place[u], place[v]] for u, v, _ in listed], dtype=torch.long).reshape(-1, 2)
    weighted = bool(listed) and all(w is not None for _, _, w in listed)
    return pairs, max(len(place), 1), torch.tensor([float(w) for *_, w in listed]) if weighted else None


def _check_edges(pairs: Tensor, nodes: int) -> None:
    outside = ((pairs < 0) | (pairs >= nodes)).any(1)
    if bool(outside.any()):
        e = int(outside.nonzero()[0])
        raise ArgumentError(f"edge {e} = {tuple(pairs[e].tolist())} is out of range: sites run from 0 to {nodes - 1}")
    loops = pairs[:, 0] == pairs[:, 1]
    if bool(loops.any()):
        e = int(loops.nonzero()[0])
        raise ArgumentError(f"edge {e} joins site {int(pairs[e, 0])} with itself; leave it out")
    key = pairs.amin(1) * nodes + pairs.amax(1)
    value, order = key.sort(stable=True)
    again = (value[1:] == value[:-1]).nonzero().flatten()
    if len(again):
        first, e = int(order[again[0]]), int(order[again[0] + 1])
        same = "" if torch.equal(pairs[first], pairs[e]) else ", reversed"
        raise ArgumentError(
            f"edge {e} = {tuple(pairs[e].tolist())} is edge {first} = {tuple(pairs[first].tolist())} again{same}; give every "
            "pair once"
        )


def adjacency(edges: Tensor, n: int) -> Any:
    """The symmetric matrix of 1 at both places of every edge `(2, m)`."""
    i, j = edges.cpu().numpy()
    upper = scipy.sparse.coo_array((np.ones(len(i)), (i, j)), shape=(n, n))
    return (upper + upper.T).tocsr()


def components(edges: Tensor, n: int) -> Tensor:
    """Which connected component every node belongs to, `(n,)`."""
    _, label = scipy.sparse.csgraph.connected_components(adjacency(edges, n), directed=False)
    return torch.as_tensor(label, dtype=torch.long, device=edges.device)


def joined(a: Tensor, b: Tensor, n: int) -> Tensor:
    """A number below n for every node, the same for nodes that edges (a, b) join: by scipy on the CPU, elsewhere in place."""
    if a.device.type != "cpu":
        return hooked(a, b, n)
    ends = a.numpy().astype(np.int32), b.numpy().astype(np.int32)
    matrix = scipy.sparse.coo_array((np.ones(len(a), dtype=np.int8), ends), shape=(n, n)).tocsr()
    _, label = scipy.sparse.csgraph.connected_components(matrix, directed=False)
    return torch.from_numpy(label).long()


def hooked(a: Tensor, b: Tensor, n: int) -> Tensor:
    """The same by hooking roots of trees to smaller ones and shortening the ways to them, all edges at once: in a number
    of rounds that grows with log n (Shiloach & Vishkin 1982).

    >>> hooked(torch.tensor([4, 1]), torch.tensor([1, 2]), 5)
    tensor([0, 1, 1, 3, 1])
    """
    root = torch.arange(n, device=a.device)
    while len(a):
        a, b = root[a], root[b]
        low, high = torch.minimum(a, b), torch.maximum(a, b)
        apart = low != high
        a, b = low[apart], high[apart]
        root.scatter_reduce_(0, b, a, "amin")
        shorter = root[root]
        while not torch.equal(shorter, root):
            root, shorter = shorter, shorter[shorter]
    return root


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
