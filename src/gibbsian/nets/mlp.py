"""Multi-layer perceptrons: of one event, of two, and along the edges of graphs."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Jet
from gibbsian.errors import ShapeError, check_tensor
from gibbsian.nets.layers import LayerOptions, Layers, sizes_of
from gibbsian.placement import STUMBLES, check_placement
from gibbsian.recorded import Recorded


class MLP(Recorded):
    """A multi-layer perceptron over flattened events: `(batch, *event)` → `(batch, outputs)`.

    Args:
        inputs: numbers in one event.
        hidden: widths.
        outputs: 1 for an energy, K for logits.
        activation, spectral_norm, generator: as for `Layers`.

    >>> MLP(4, outputs=3)(torch.zeros(5, 2, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int] = (128, 128), outputs: int = 1, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__()
        sizes = sizes_of("inputs, hidden", (inputs, *hidden), 1)
        sizes_of("outputs", (outputs,))
        make = Layers(**options)
        layers: list[nn.Module] = []
        with make.drawn():
            for a, b in pairwise(sizes):
                layers += [make.linear(a, b), make.activation()]
            layers.append(make.linear(sizes[-1], outputs))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))

    def taylor_parts(self) -> tuple[nn.Module, ...]:
        return (self.layers,)

    def taylor(self, jet: Jet, propagate: Callable[[Any, Jet], Jet]) -> Jet:
        return propagate(self.layers, jet.flatten(1))


class PairMLP(Recorded):
    """A multi-layer perceptron of an input and an output together: (x, y) → `(batch, 1)`.

    >>> PairMLP(3, 2)(torch.zeros(5, 3), torch.zeros(5, 2)).shape
    torch.Size([5, 1])
    """

    def __init__(
        self, inputs: int, outputs: int, hidden: tuple[int, ...] = (64, 64), **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__()
        inputs, outputs = sizes_of("inputs, outputs", (inputs, outputs), 2)
        self.sizes = (inputs, outputs)
        self.net = MLP(inputs + outputs, hidden, **options)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        try:
            return self.net(torch.cat([x.flatten(1), y.flatten(1)], 1))
        except STUMBLES:
            for name, part, size in (("x", x, self.sizes[0]), ("y", y, self.sizes[1])):
                check_tensor(part, name)
                if part.dim() < 2 or part[0].numel() != size:
                    raise ShapeError(f"{name} has shape {tuple(part.shape)}, expected (batch, {size})") from None
                check_placement(part, self, name)
            raise


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
