"""Contrastive divergence of conditional machines with hardly more than its products.

The sweeps hold every number that value and gradient need. With a = c(x) + up(φ(v)), p = σ(a):

    F(v | x) = E_v(v; b(x)) - Σⱼ softplus(aⱼ),   ∂F/∂a = -p,   ∂F/∂b = -v or -(v - b)/σ²

so both come out of one pass. For Bernoulli hidden and Bernoulli or Gaussian visible units; others go through autograd, in
`ConditionedMachine.contrast`.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gibbsian.capabilities import Contrast
from gibbsian.derivatives.known import with_gradients
from gibbsian.fast.logistic import softplus_gap
from gibbsian.units import Bernoulli, Gaussian, Natural, Unit, layer_noise

Terms = tuple[Tensor, ...]  # b(x), c(x), and where W depends on x what it is made of: (size,) or (rows, size)


class Phase(NamedTuple):
    """Data or samples: v, its statistic φ(v), what the weights made of that on the way up, logits and means of h."""

    v: Tensor
    statistic: Tensor
    upward: tuple[Tensor, ...]
    logits: Tensor
    mean: Tensor


class _Family(Protocol):
    """What a family says about itself; see `ConditionalMachine`."""

    def down(self, statistic: Tensor, terms: Terms) -> Tensor: ...

    def logits(self, statistic: Tensor, terms: Terms) -> tuple[Tensor, tuple[Tensor, ...]]: ...

    def contrast_gradients(
        self, condition: Tensor, terms: Terms, data: Phase, samples: Phase, to_visible: Tensor, to_hidden: Tensor
    ) -> list[tuple[Tensor, Tensor]]: ...


class _Member(Protocol):
    """What a machine under given inputs has; see `ConditionedMachine`."""

    @property
    def visible(self) -> Unit: ...

    @property
    def hidden(self) -> Unit: ...

    def terms(self, rows: int) -> Terms: ...

    def visible_natural(self, h: Tensor, terms: Terms | None = None) -> Natural: ...


def difference(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """(right[0]ᵀ right[1] - left[0]ᵀ left[1]) / n: the gradient of weights between two layers, into one place."""
    n = len(left[0])
    out = torch.addmm(left[0].new_empty(()), left[0].T, left[1], beta=0, alpha=-1 / n)
    return out.addmm_(right[0].T, right[1], alpha=1 / n)


def has_closed_contrast(member: _Member, condition: Tensor, rows: int) -> bool:
    """Are value and gradient known in closed form here, one input a row?"""
    known = isinstance(member.hidden, Bernoulli) and isinstance(member.visible, Bernoulli | Gaussian)
    return known and len(condition) == rows and not condition.requires_grad


def closed_contrast(
    family: _Family,
    member: _Member,
    condition: Tensor,
    batch: Tensor,
    chains: Tensor | None,
    steps: int,
    generator: torch.Generator,
) -> Contrast:
    """F(batch | x).mean() - F(samples | x).mean(), the samples and the gradients."""
    n, visible = len(batch), member.visible
    with torch.no_grad():
        terms = member.terms(n)

        def phase(v: Tensor) -> Phase:
            statistic = visible.statistic(v)
            logits, upward = family.logits(statistic, terms)
            return Phase(v, statistic, upward, logits, torch.sigmoid(logits))

        data = phase(batch)
        samples = data if chains is None else phase(chains)
        for _ in range(steps):
            u, w = (part[0] for part in layer_noise([member.hidden, visible], batch, 1, generator, quick=True))
            h = torch.lt(u, samples.mean, out=u)
            samples = phase(visible.sample(member.visible_natural(h, terms), w))

        to_hidden = (samples.mean - data.mean).div_(n)
        to_visible = (samples.v - batch).div_(n)
        if isinstance(visible, Gaussian):
            own = (visible.energy(batch, terms[0]) - visible.energy(samples.v, terms[0])).mean()
            to_visible.mul_(torch.exp(-2 * visible.log_sigma))
        else:
            own = (to_visible * terms[0]).sum()
        value = own - softplus_gap(data.logits, data.mean, samples.logits, samples.mean) / n
        pairs = family.contrast_gradients(condition, terms, data, samples, to_visible, to_hidden)
        if isinstance(visible, Gaussian) and visible.log_sigma.requires_grad:
            ends = (_sigma_slope(family, visible, one, terms) for one in (data, samples))
            pairs.append((visible.log_sigma, next(ends) - next(ends)))
    value, known = with_gradients(value, [p for p, _ in pairs], [g for _, g in pairs])
    return Contrast(value, samples.v, known)


def _sigma_slope(family: _Family, visible: Gaussian, phase: Phase, terms: Terms) -> Tensor:
    """∂F/∂log σ = -((v - b)/σ)² + φ(v)·down(p), the mean over rows."""
    z = (phase.v - terms[0]) * torch.exp(-visible.log_sigma)
    return torch.addcmul(z.square().neg_(), phase.statistic, family.down(phase.mean, terms)).mean(0)
