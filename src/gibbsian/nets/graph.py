"""Networks of graphs: messages along edges, summed over nodes."""

from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from gibbsian.nets.layers import LayerOptions, Layers, sizes_of
from gibbsian.nets.mlp import MLP
from gibbsian.recorded import Recorded


class GraphNet(Recorded):
    """Message passing with sums, so that the order of nodes and edges does not matter.

        m_i = Σ_{j→i} MLP(h_i, h_j),   h_i ← h_i + MLP(h_i, m_i),   output_g = Σ_{i in g} MLP(h_i)

    Args:
        features: numbers per node.
        width: of the node states.
        rounds: of message passing.
        outputs, activation, spectral_norm, generator: as for `MLP`.

    >>> net = GraphNet(3, outputs=2)
    >>> edges, batch = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0, 1])
    >>> net(torch.zeros(3, 3), edges, batch, 2).shape
    torch.Size([2, 2])
    """

    def __init__(
        self, features: int, width: int = 64, rounds: int = 3, outputs: int = 1, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__()
        sizes_of("features, width, rounds, outputs", (features, width, rounds, outputs), 4)
        make = Layers(**options)
        dense = partial(MLP, hidden=(width,), **make.options)
        with make.drawn():
            self.embed = make.linear(features, width)
        self.messages = nn.ModuleList(dense(2 * width, outputs=width) for _ in range(rounds))
        self.updates = nn.ModuleList(dense(2 * width, outputs=width) for _ in range(rounds))
        self.head = dense(width, outputs=outputs)

    def forward(self, nodes: Tensor, edge_index: Tensor, batch: Tensor, graphs: int) -> Tensor:
        """Node features `(nodes, features)`, edges `(2, edges)` from row 0 to row 1, graph of every node."""
        source, target = edge_index
        h = self.embed(nodes)
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = message(torch.cat([h[target], h[source]], 1))
            received = torch.zeros_like(h).index_add(0, target, sent)
            h = h + update(torch.cat([h, received], 1))
        out = self.head(h)
        return out.new_zeros(graphs, out.shape[1]).index_add(0, batch, out)
