"""Energies of graphs: of one, or of a batch of different ones."""

from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from gibbsian.domains import Domain
from gibbsian.energies.neural import NeuralEnergy, domain_with_axes
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, ShapeError
from gibbsian.nets.layers import LayerOptions
from gibbsian.nets.mlp import GraphNet


class Graphs(NamedTuple):
    """Several graphs at once: `edge_index` `(2, edges)` over all their nodes, `batch` `(nodes,)` the graph of
    each node (0, 1, ...).

    >>> graphs = Graphs(torch.tensor([[0, 1, 2], [1, 0, 3]]), torch.tensor([0, 0, 1, 1, 1]))
    >>> padded = graphs.pad(torch.arange(5.0)[:, None], size=3)
    >>> padded[:, :, 0]
    tensor([[0., 1., 0.],
            [2., 3., 4.]])
    >>> graphs.unpad(padded)[:, 0]
    tensor([0., 1., 2., 3., 4.])
    """

    edge_index: Tensor
    batch: Tensor

    @property
    def places(self) -> Tensor:
        """The place of every node within its graph, `(nodes,)`, in order of appearance."""
        order = torch.argsort(self.batch, stable=True)
        counts = torch.bincount(self.batch)
        first = counts.cumsum(0) - counts
        place = torch.empty_like(self.batch)
        place[order] = torch.arange(len(order), device=order.device) - first[self.batch[order]]
        return place

    @property
    def rows(self) -> int:
        """Number of graphs."""
        return int(self.batch.max()) + 1

    def pad(self, nodes: Tensor, size: int) -> Tensor:
        """Node features `(nodes, features)` as `(graphs, size, features)`, zeros where there is no node."""
        out = nodes.new_zeros(self.rows, size, nodes.shape[1])
        out[self.batch, self.places] = nodes
        return out

    def unpad(self, x: Tensor) -> Tensor:
        """Padded `(graphs, size, features)` as `(nodes, features)`."""
        return x[self.batch, self.places]


class GraphEnergy(NeuralEnergy):
    """Message passing as an energy of node features, for one graph or for a batch of different ones.

    With `edge_index` every row of a batch `(batch, nodes, features)` lives on that graph. Different graphs
    are given as `energy.given(Graphs(edge_index, batch))`, the usual edge index and batch vector of all
    their nodes; node features are then padded to `(graphs, nodes, features)` with `Graphs.pad`, so that
    energies, kernels and objectives see one row a graph. Padding has no effect.

    Args:
        domain: a domain of shape (nodes, features), or that shape for R^d; nodes is the largest graph's.
        edge_index: `(2, edges)`, the graph of every row; left out where graphs are given later.
        width, rounds: as for `nets.GraphNet`.
        confine, activation, spectral_norm, generator: as for `MLPEnergy`; only the real nodes are confined.

    >>> ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> energy = GraphEnergy((3, 2), edge_index=ring)
    >>> energy(torch.zeros(5, 3, 2)).shape
    torch.Size([5])
    """

    edge_index: Tensor | None

    def __init__(
        self,
        domain: Domain | tuple[int, int],
        edge_index: Tensor | None = None,
        width: int = 64,
        rounds: int = 3,
        *,
        confine: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        domain = domain_with_axes(domain, 2, "GraphEnergy")
        nodes, features = domain.shape
        if edge_index is not None:
            check_edges(edge_index, nodes)
        super().__init__(GraphNet(features, width, rounds, **options), domain, confine=confine)
        self.register_buffer("edge_index", edge_index)

    def forward(self, x: Tensor) -> Tensor:
        if self.edge_index is None:
            raise CapabilityError(
                "this GraphEnergy has no graph; construct it with edge_index=, or use given(Graphs(edge_index, batch))"
            )
        n, nodes, features = x.shape
        first = nodes * torch.arange(n, device=x.device)
        edges = (self.edge_index[:, None, :] + first[:, None]).flatten(1)
        batch = torch.arange(n, device=x.device).repeat_interleave(nodes)
        energy = self.net(x.reshape(n * nodes, features), edges, batch, n).squeeze(1)
        return energy + self.confinement(x) if self.confine else energy

    def given(self, index: Graphs) -> "OnGraphs":
        """The energy of padded node features on these graphs."""
        return OnGraphs(self, index)


class OnGraphs(Energy):
    """A graph energy on given graphs: x is `(graphs, nodes, features)`, padded as by `Graphs.pad`."""

    places: Tensor

    def __init__(self, base: GraphEnergy, graphs: Graphs) -> None:
        super().__init__(base.domain)
        if graphs.batch.dim() != 1 or graphs.batch.is_floating_point() or len(graphs.batch) == 0:
            raise ShapeError(f"batch has shape {tuple(graphs.batch.shape)}, expected whole numbers (nodes,)")
        check_edges(graphs.edge_index, len(graphs.batch))
        sizes = torch.bincount(graphs.batch)
        if int(sizes.max()) > base.domain.shape[0] or int(sizes.min()) < 1:
            raise ShapeError(
                f"graphs have {int(sizes.min())} to {int(sizes.max())} nodes, expected 1 to {base.domain.shape[0]}"
            )
        source, target = graphs.edge_index
        if not bool((graphs.batch[source] == graphs.batch[target]).all()):
            raise ArgumentError("an edge joins two graphs of the batch; edge_index counts nodes over all graphs")
        self.base, self.graphs, self.count = base, graphs, len(sizes)
        self.register_buffer("places", graphs.places, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) != self.count:
            raise ShapeError(f"{len(x)} rows met {self.count} graphs; pad with Graphs.pad, one row a graph")
        edges, batch = self.graphs
        nodes = x[batch, self.places]
        energy = self.base.net(nodes, edges, batch, self.count).squeeze(1)
        if not self.base.confine:
            return energy
        square = nodes.square().sum(1)
        return energy + 0.5 * self.base.confine * energy.new_zeros(self.count).index_add(0, batch, square)


def check_edges(edge_index: Tensor, nodes: int) -> None:
    """Refuse an edge index that is not `(2, edges)` of whole numbers below `nodes`."""
    if edge_index.dim() != 2 or len(edge_index) != 2 or edge_index.is_floating_point():
        raise ShapeError(
            f"edge_index is {edge_index.dtype} of shape {tuple(edge_index.shape)}, expected whole numbers (2, edges)"
        )
    if edge_index.numel() and (int(edge_index.min()) < 0 or int(edge_index.max()) >= nodes):
        raise ArgumentError(
            f"edge_index runs from {int(edge_index.min())} to {int(edge_index.max())}, but nodes are 0 to {nodes - 1}"
        )
