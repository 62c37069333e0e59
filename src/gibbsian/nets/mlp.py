"""Multi-layer perceptrons, of one event and of two."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Jet
from gibbsian.nets.layers import LayerOptions, Layers, sizes_of
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
        self.net = MLP(inputs + outputs, hidden, **options)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.net(torch.cat([x.flatten(1), y.flatten(1)], 1))
