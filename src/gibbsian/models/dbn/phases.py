"""The wake and sleep phases of deep belief networks of any units.

    wake   x^l ~ q(x^l | x^{l-1}) upwards,    -Σ_l log p(x^{l-1} | x^l) for generation
    sleep  y^{l-1} ~ p(y^{l-1} | y^l) downwards,    -Σ_l log q(y^l | y^{l-1}) for recognition

The sleep phase starts where the chains of the top RBM end; its lowest layer is drawn as well, so that recognition learns
from fantasies of the kind that data are.

Reference: Hinton, Osindero & Teh 2006, appendix B.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gibbsian.derivatives.known import Gradients, frozen
from gibbsian.models.dbn.directed import Directed
from gibbsian.models.dbn.fused import fused_sleep, fused_wake
from gibbsian.units import Bernoulli


def _plain_coins(layers: Sequence[Directed]) -> bool:
    return all(type(unit) is Bernoulli for layer in layers for unit in (layer.lower, layer.upper))


def wake_phase(
    layers: Sequence[Directed], x: Tensor, generator: torch.Generator, *, fused: bool = False
) -> tuple[Tensor, Gradients | None, Tensor]:
    """-Σ_l log p(x^{l-1} | x^l) averaged over the batch, its gradients where they are known, and the states x^{L-1}."""
    if _plain_coins(layers):
        return fused_wake(layers, x, generator, compiled=fused)
    total = torch.zeros((), dtype=x.dtype, device=x.device)
    for layer in layers:
        h = layer.up(x, generator)
        total = total + layer.log_p(x, h).mean()
        x = h
    return -total, None, x


def sleep_phase(
    layers: Sequence[Directed], y: Tensor, x: Tensor, generator: torch.Generator, *, fused: bool = False
) -> tuple[Tensor, Gradients | None]:
    """-Σ_l log q(y^l | y^{l-1}) averaged over the batch, and its gradients where they are known.

    y are states of layer L-1; documents are made as long as those of the data x.
    """
    if _plain_coins(layers):
        return fused_sleep(layers, y, generator, compiled=fused)
    value = y.new_zeros(())
    for layer in reversed(layers):
        low = layer.down(y, generator, layer.lower.total_of(x) if layer is layers[0] else None)
        with frozen(layer.lower):  # a learned sigma belongs to generation
            value = value - layer.log_q(y, low).mean()
        y = low
    return value, None
