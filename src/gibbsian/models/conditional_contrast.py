"""Contrastive divergence of conditional machines with hardly more than its products.

The sweeps hold every number that value and gradient need. With a = c(x) + up(φ(v)), p = σ(a):

    F(v | x) = E_v(v; b(x)) - Σⱼ softplus(aⱼ),   ∂F/∂a = -p,   ∂F/∂b = -v or -(v - b)/σ²

so both come out of one pass, and the backward pass only hands them out.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gibbsian.capabilities import Contrast
from gibbsian.derivatives.known import with_gradients
from gibbsian.random import quick_uniforms
from gibbsian.units import Bernoulli, Gaussian, Unit

if TYPE_CHECKING:
    from gibbsian.models.conditional import ConditionedMachine, Terms

__all__ = ["End", "coins", "cumulant_gap", "difference", "has_quick_contrast", "quick_contrast"]


class End(NamedTuple):
    """Data or samples: v, its statistic φ(v), what the weights made of that on the way up, logits and means of h."""

    v: Tensor
    statistic: Tensor
    seen: tuple[Tensor, ...]
    logits: Tensor
    mean: Tensor


def coins(layers: Sequence[Unit], rows: int, like: Tensor, generator: torch.Generator) -> list[Tensor]:
    """The random numbers of layers for training, uniforms of all of them in one call."""
    sizes = [rows * unit.noise_size() for unit in layers]
    count = sum(size for unit, size in zip(layers, sizes, strict=True) if unit.noise == "uniform")
    block, drawn = quick_uniforms(count, generator, dtype=like.dtype, device=like.device), []
    for unit, size in zip(layers, sizes, strict=True):
        if unit.noise == "normal":
            part = torch.randn(size, generator=generator, dtype=like.dtype, device=like.device)
        else:
            part, block = block[:size], block[size:]
        drawn.append(part.view(rows, -1))
    return drawn


def difference(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """(right[0]ᵀ right[1] - left[0]ᵀ left[1]) / n: the gradient of weights between two layers, into one place."""
    n = len(left[0])
    out = torch.addmm(left[0].new_empty(()), left[0].T, left[1], beta=0, alpha=-1 / n)
    return out.addmm_(right[0].T, right[1], alpha=1 / n)


def cumulant_gap(a: Tensor, p: Tensor, b: Tensor, q: Tensor) -> Tensor:
    """Σ softplus(a) - Σ softplus(b), p = σ(a) and q = σ(b) being known: softplus(a) = a - log σ(a), and a quarter of
    the logarithms, because those of a product are the sum of its parts'."""
    if a.is_cuda or len(a) % 2 or a.dtype != torch.float32:  # no waiting for the device
        return F.softplus(a).sum() - F.softplus(b).sum()
    half = len(a) // 2
    ratio = q.div(p)
    gap = a.sum().sub_(b.sum()).add_(ratio[:half].mul_(ratio[half:]).log_().sum())
    return gap if math.isfinite(float(gap)) else F.softplus(a).sum() - F.softplus(b).sum()  # σ has underflowed


def has_quick_contrast(member: "ConditionedMachine", rows: int) -> bool:
    """Are value and gradient known in closed form here, one input a row?"""
    known = isinstance(member.hidden, Bernoulli) and isinstance(member.visible, Bernoulli | Gaussian)
    return known and len(member.condition) == rows and not member.condition.requires_grad


def quick_contrast(
    member: "ConditionedMachine", batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator
) -> Contrast:
    """F(batch | x).mean() - F(samples | x).mean(), differentiable in the parameters, and the samples."""
    machine, n = member.machine, len(batch)
    with torch.no_grad():
        terms = member.terms(n)

        def end(v: Tensor) -> End:
            statistic = member.visible.statistic(v)
            logits, seen = machine.logits(statistic, terms)
            return End(v, statistic, seen, logits, torch.sigmoid(logits))

        data = end(batch)
        here = data if chains is None else end(chains)
        for _ in range(steps):
            u, w = coins([member.hidden, member.visible], n, batch, generator)
            h = torch.lt(u, here.mean, out=u)
            here = end(member.visible.sample(member.visible_natural(h, terms), w))
        to_hidden = (here.mean - data.mean).div_(n)
        to_visible = (here.v - batch).div_(n)
        if isinstance(member.visible, Gaussian):
            gap = (member.visible.energy(batch, terms[0]) - member.visible.energy(here.v, terms[0])).mean()
            to_visible.mul_(torch.exp(-2 * member.visible.log_sigma))
        else:
            gap = (to_visible * terms[0]).sum()
        value = gap - cumulant_gap(data.logits, data.mean, here.logits, here.mean) / n
        gradients = machine.contrast_gradients(member.condition, terms, data, here, to_visible, to_hidden)
        pairs = [(getattr(machine, name), gradient) for name, gradient in gradients.items()]
        sigma = getattr(member.visible, "log_sigma", None)
        if sigma is not None and sigma.requires_grad:
            pairs.append((sigma, _sigma_end(member, data, terms) - _sigma_end(member, here, terms)))
        pairs = [pair for pair in pairs if pair[0].requires_grad]
    value, known = with_gradients(value, [p for p, _ in pairs], [g for _, g in pairs])
    return Contrast(value, here.v, known)


def _sigma_end(member: "ConditionedMachine", end: End, terms: "Terms") -> Tensor:
    """∂F/∂log σ = -((v - b)/σ)² + φ(v)·down(p), the mean over rows."""
    z = (end.v - terms[0]) * torch.exp(-member.visible.log_sigma)  # type: ignore[operator]
    return torch.addcmul(z.square().neg_(), end.statistic, member.machine.down(end.mean, terms)).mean(0)
