"""Products with the matrix of a sparse graph, in time and memory of its edges.

    (xW)ᵢ = Σ_{edges e = (i, j)} w_e xⱼ,   W given by one number an edge

Both directions of every edge stand in compressed rows, so a product runs at the speed of the sparse library, and the
gradient in w is the same matrix sampled at its edges.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class SparseMatrix(nn.Module):
    """The structure of a symmetric matrix with zero diagonal: row pointers, columns, and the edge behind every entry.

    Rows stand in blocks (the colors of a graph), one after the other, so that a block is multiplied alone.

    Args:
        pairs: edges `(m, 2)`, every pair once.
        block: for every node the block that its row belongs to, `(nodes,)`.
    """

    order: Tensor  # nodes in the order of the rows
    place: Tensor  # where the row of every node is
    start: Tensor
    column: Tensor
    edge: Tensor
    upper_start: Tensor
    upper_column: Tensor
    upper_edge: Tensor

    def __init__(self, pairs: Tensor, block: Tensor) -> None:
        super().__init__()
        self.nodes = nodes = len(block)
        order = block.argsort(stable=True)
        place = torch.empty_like(order).index_copy_(0, order, torch.arange(nodes))
        lo, hi, number = pairs.amin(1), pairs.amax(1), torch.arange(len(pairs))
        both = _compressed(place[torch.cat([lo, hi])], torch.cat([hi, lo]), number.repeat(2), nodes)
        upper = _compressed(lo, hi, number, nodes)
        names = ("start", "column", "edge")
        kept = {"order": order, "place": place} | dict(zip(names, both, strict=True))
        kept |= {f"upper_{name}": value for name, value in zip(names, upper, strict=True)}
        for name, value in kept.items():
            self.register_buffer(name, value, persistent=False)
        ends = torch.bincount(block).cumsum(0).tolist()
        entries = both[0].tolist()
        self.blocks = [(a, b, entries[a], entries[b]) for a, b in zip([0, *ends], ends, strict=False)]
        _announce()

    def matrix(self, weight: Tensor) -> Tensor:
        """W with these weights of the edges, its rows in the order of the blocks."""
        return _rows(self.start, self.column, weight.index_select(0, self.edge), (self.nodes, self.nodes))

    def block_matrices(self, weight: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The nodes and the rows of every block."""
        value = weight.index_select(0, self.edge)
        for first, last, a, b in self.blocks:
            start = self.start[first : last + 1] - a
            yield self.order[first:last], _rows(start, self.column[a:b], value[a:b], (last - first, self.nodes))

    def row(self, node: int) -> tuple[Tensor, Tensor]:
        """The neighbors of a node, and the edges to them."""
        a, b = self.start[self.place[node]], self.start[self.place[node] + 1]
        return self.column[a:b], self.edge[a:b]

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """xW of rows `(batch, nodes)`; differentiable in both, any number of times."""
        return _Product.apply(self, x, weight)

    def pairs(self, x: Tensor, y: Tensor) -> Tensor:
        """Σ_batch (xᵢyⱼ + xⱼyᵢ) of every edge: the gradient of Σ y·(xW) in w."""
        return _Pairs.apply(self, x, y)

    def sampled(self, x: Tensor, y: Tensor) -> Tensor:
        """The same without a graph of derivatives."""
        if x.device.type == "cpu" and not torch.backends.mkl.is_available():
            return self.gathered(x, y)
        pattern = _rows(
            self.upper_start, self.upper_column, x.new_zeros(len(self.upper_edge)), (self.nodes, self.nodes)
        )
        both = torch.cat([x, y])  # (xᵢ, yᵢ)·(yⱼ, xⱼ): one pass for both directions
        found = torch.sparse.sampled_addmm(pattern, both.T, torch.cat([y, x]), beta=0.0).values()
        return torch.empty_like(found).index_copy_(0, self.upper_edge.long(), found)

    def gathered(self, x: Tensor, y: Tensor, most: int = 1 << 24) -> Tensor:
        """The same by gathering, some edges at a time."""
        row = torch.repeat_interleave(torch.arange(self.nodes, device=x.device), self.upper_start.diff())
        i, j = row, self.upper_column
        x, y, out = x.T.contiguous(), y.T.contiguous(), x.new_empty(len(i))
        step = max(1, most // max(1, x.shape[1]))
        for at in range(0, len(i), step):
            a, b = i[at : at + step], j[at : at + step]
            value = x.index_select(0, a) * y.index_select(0, b) + x.index_select(0, b) * y.index_select(0, a)
            out[self.upper_edge[at : at + step].long()] = value.sum(1)
        return out


def _compressed(row: Tensor, column: Tensor, edge: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row pointers, columns and edges of entries, sorted."""
    kind = torch.int32 if max(nodes, len(row)) < 2**31 else torch.int64
    order = (row * nodes + column).argsort()
    start = torch.zeros(nodes + 1, dtype=torch.long)
    start[1:] = torch.bincount(row, minlength=nodes).cumsum(0)
    return start.to(kind), column[order].to(kind), edge[order].to(kind)


def _rows(start: Tensor, column: Tensor, value: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(start, column, value, size, check_invariants=False)


def _announce() -> None:
    """Torch says once a process that compressed rows are new; nobody needs to hear it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([], dtype=torch.long), torch.tensor([]), (1, 1))


def compressed_rows(row: Tensor, column: Tensor, value: Tensor, size: tuple[int, int]) -> Tensor:
    """A sparse matrix as compressed rows, from its entries in any order.

    >>> compressed_rows(torch.tensor([1, 0]), torch.tensor([0, 2]), torch.tensor([2.0, 3.0]), (2, 3)) @ torch.ones(3, 1)
    tensor([[3.],
            [2.]])
    """
    _announce()
    order = (row * size[1] + column).argsort()
    start = torch.zeros(size[0] + 1, dtype=torch.long, device=row.device)
    start[1:] = torch.bincount(row, minlength=size[0]).cumsum(0)
    return _rows(start, column[order], value[order], size)


class _Product(torch.autograd.Function):
    """xW, bilinear: its derivatives are products and pairs again."""

    @staticmethod
    def forward(ctx: Any, structure: SparseMatrix, x: Tensor, weight: Tensor) -> Tensor:
        ctx.structure = structure
        ctx.save_for_backward(x, weight)
        return (structure.matrix(weight) @ x.T).index_select(0, structure.place).T.contiguous()

    @staticmethod
    def backward(ctx: Any, *gradient: Any) -> Any:
        x, weight = ctx.saved_tensors
        (y,) = gradient
        _, of_x, of_weight = ctx.needs_input_grad
        return (
            None,
            ctx.structure.product(y, weight) if of_x else None,
            ctx.structure.pairs(x, y) if of_weight else None,
        )


class _Pairs(torch.autograd.Function):
    """Σ_batch (xᵢyⱼ + xⱼyᵢ), bilinear too."""

    @staticmethod
    def forward(ctx: Any, structure: SparseMatrix, x: Tensor, y: Tensor) -> Tensor:
        ctx.structure = structure
        ctx.save_for_backward(x, y)
        return structure.sampled(x, y)

    @staticmethod
    def backward(ctx: Any, *gradient: Any) -> Any:
        x, y = ctx.saved_tensors
        (weight,) = gradient
        _, of_x, of_y = ctx.needs_input_grad
        return (
            None,
            ctx.structure.product(y, weight) if of_x else None,
            ctx.structure.product(x, weight) if of_y else None,
        )
