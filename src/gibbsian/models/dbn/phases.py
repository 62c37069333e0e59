"""The wake and sleep phases of deep belief networks.

    wake   x^l ~ q(x^l | x^{l-1}) upwards,    -Σ_l log p(x^{l-1} | x^l) for generation
    sleep  y^{l-1} ~ p(y^{l-1} | y^l) downwards,    -Σ_l log q(y^l | y^{l-1}) for recognition

The sleep phase starts where the chains of the top RBM end; its lowest layer is drawn as well, so that recognition learns
from fantasies of the kind that data are. Networks of coins have a fast form, whose gradients are known:

    ΔG^l = (x^{l-1} - σ(g^{l-1} + G^l x^l)) x^{lᵀ},   ΔR^l = y^{l-1} (y^l - σ(r^l + y^{l-1}R^l))ᵀ

with hardly more than six products a layer: up, prediction and gradient in each phase.

Reference: Hinton, Osindero & Teh 2006, appendix B.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gibbsian.derivatives.known import Gradients, frozen, with_gradients
from gibbsian.fast.compiled import compiled_copy
from gibbsian.fast.logistic import Logistic
from gibbsian.models.dbn.directed import Directed
from gibbsian.units import Bernoulli, Unit, layer_noise
from gibbsian.units.binary import below


def _plain_coins(layers: Sequence[Directed]) -> bool:
    return all(type(unit) is Bernoulli for layer in layers for unit in (layer.lower, layer.upper))


def wake_phase(
    layers: Sequence[Directed], x: Tensor, generator: torch.Generator, *, fused: bool = False
) -> tuple[Tensor, Gradients | None, Tensor]:
    """-Σ_l log p(x^{l-1} | x^l) averaged over the batch, its gradients where they are known, and the states x^{L-1}."""
    if _plain_coins(layers):
        return _fast_wake(layers, x, generator, fused)
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
        return _fast_sleep(layers, y, generator, fused)
    value = y.new_zeros(())
    for layer in reversed(layers):
        low = layer.down(y, generator, layer.lower.total_of(x) if layer is layers[0] else None)
        with frozen(layer.lower):  # a learned sigma belongs to generation
            value = value - layer.log_q(y, low).mean()
        y = low
    return value, None


# --- the fast form for coins ----------------------------------------------------------------------


def _fast_wake(
    layers: Sequence[Directed], x: Tensor, generator: torch.Generator, compiled: bool
) -> tuple[Tensor, Gradients | None, Tensor]:
    """`wake_phase`; as compiled kernels where those pay."""
    noise = [_uniforms(x, layer.upper, generator) for layer in layers]
    with torch.no_grad():
        value, top, gradients = _runner(_wake, x, layers, compiled)(_laws(layers), x, noise)
    return *with_gradients(value, [p for layer in layers for p in (layer.weight, layer.bias)], gradients), top


def _fast_sleep(
    layers: Sequence[Directed], y: Tensor, generator: torch.Generator, compiled: bool
) -> tuple[Tensor, Gradients | None]:
    """`sleep_phase`; as compiled kernels where those pay."""
    noise = [_uniforms(y, layer.lower, generator) for layer in layers]
    with torch.no_grad():
        value, gradients = _runner(_sleep, y, layers, compiled)(_laws(layers), y, noise)
    parameters = [p for layer in layers for p in (layer.recognition_weight, layer.recognition_bias)]
    return with_gradients(value, parameters, gradients)


Laws = list[tuple[Logistic, Logistic]]  # recognition and generation, of every layer from below


def _laws(layers: Sequence[Directed]) -> Laws:
    return [
        (
            Logistic.of(layer.recognition_bias.detach(), layer.recognition_weight.detach()),
            Logistic.of(layer.bias.detach(), layer.weight.detach().T),
        )
        for layer in layers
    ]


def _uniforms(x: Tensor, unit: Unit, generator: torch.Generator) -> Tensor:
    return layer_noise([unit], x, 1, generator, quick=True)[0][0]


def _runner(phase: Any, x: Tensor, layers: Sequence[Directed], compiled: bool) -> Any:
    """The phase, compiled where a training step is captured on CUDA."""
    if not (compiled and x.is_cuda):
        return phase
    return compiled_copy(phase, len(x), *(layer.weight.shape for layer in layers))


def _wake(laws: Laws, x: Tensor, noise: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    values, gradients = [], []
    for (up, down), u in zip(laws, noise, strict=True):
        h = below(u, up.mean(x), out=u)
        value, error = _surprise(down, h, x)
        values.append(value)
        gradients += [_product(error, h), error.mean(0)]
        x = h
    return torch.stack(values).sum(), x, gradients


def _sleep(laws: Laws, y: Tensor, noise: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    values: list[Tensor] = []
    gradients: list[Tensor] = []
    for (up, down), u in zip(laws[::-1], noise[::-1], strict=True):
        x = below(u, down.mean(y), out=u)
        value, error = _surprise(up, x, y)
        values.append(value)
        gradients = [_product(x, error), error.mean(0), *gradients]
        y = x
    return torch.stack(values).sum(), gradients


def _product(a: Tensor, b: Tensor) -> Tensor:
    """⟨a bᵀ⟩ over the batch."""
    if torch.compiler.is_compiling():
        return torch.mm(a.T, b) * (1 / len(a))
    return torch.addmm(a.new_empty(()), a.T, b, beta=0, alpha=1 / len(a))


def _surprise(law: Logistic, given: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """-log p(x | given) averaged over the batch, and its slope in the logits, σ - x."""
    n = len(x)
    mean, logits = law.mean_and_logits(given)
    error = mean.sub_(x)
    if logits is None:  # p(x) = 1 - |σ - x| for a coin: one logarithm for two numbers
        right, half = torch.abs(error).neg_().add_(1), n // 2
        value = right[:half].mul_(right[half : 2 * half]).log_().sum() + right[2 * half :].log_().sum()
        value = value.div_(-n)
        if math.isfinite(float(value)):
            return value, error
        logits = law.logits(given)  # σ has rounded to 0 or 1
    return (F.softplus(logits) - logits * x).sum(1).mean(), error  # by rows: one core of a GPU is slow at a long sum
