"""Contrastive divergence of Bernoulli RBMs with hardly more than its products: five for CD-1, six for PCD-1.

The sweeps hold every number that value and gradient need,

    F(v) = -b·v - Σⱼ softplus(aⱼ),   aⱼ = cⱼ + (vW)ⱼ
    ∇_W [F(data) - F(samples)] = -⟨v p(h|v)ᵀ⟩_data + ⟨v p(h|v)ᵀ⟩_samples,

so both come out of one pass, while the layers are still in the cache, and the backward pass only hands them out. The
visible layer may begin with a softmax label, `units.Joined(Softmax(1, classes), Bernoulli(n))`.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gibbsian.capabilities import Contrast
from gibbsian.derivatives.known import with_gradients
from gibbsian.fast.compiled import compiled_copy
from gibbsian.random import quick_uniforms

if TYPE_CHECKING:
    from gibbsian.models.rbm.machine import RBM

__all__ = ["Way", "bernoulli_contrast"]

# product, bias and logistic function in one pass of oneDNN: what torch.compile emits for them on a CPU
_FUSED = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


class Way(NamedTuple):
    """One way through the weights: σ(bias + x W)."""

    bias: Tensor
    weight: Tensor  # (inputs, outputs), in half precision where products are to be
    fused: bool = False

    @classmethod
    def of(cls, bias: Tensor, weight: Tensor) -> "Way":
        """The fastest way for these tensors."""
        single = weight.dtype == bias.dtype == torch.float32 and weight.device.type == "cpu"
        return cls(bias, weight, _FUSED is not None and single)

    def logits(self, x: Tensor) -> Tensor:
        """bias + x W."""
        if self.weight.dtype == self.bias.dtype:
            return torch.addmm(self.bias, x, self.weight)
        return torch.mm(x.to(self.weight.dtype), self.weight).to(self.bias.dtype).add_(self.bias)

    def mean(self, x: Tensor) -> Tensor:
        """σ(bias + x W)."""
        if self.fused:
            return _FUSED(x, self.weight.T, self.bias, "sigmoid", [], "")  # type: ignore[misc]
        return self.logits(x).sigmoid_()

    def mean_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The mean, and the logits where they are at hand."""
        if self.fused:
            return self.mean(x), None
        a = self.logits(x)
        return torch.sigmoid(a), a


def _one_of(logits: Tensor, u: Tensor) -> Tensor:
    """Rows with one 1, drawn from their softmax by inversion of uniforms u `(rows, 1)`."""
    below = torch.softmax(logits, 1).cumsum(1)[:, :-1]  # nothing above the last: rounding cannot pick past it
    index = (u >= below).sum(1, keepdim=True)
    return (index == torch.arange(logits.shape[1], device=u.device)).to(logits.dtype)


def bernoulli_contrast(
    rbm: "RBM",
    batch: Tensor,
    chains: Tensor | None,
    steps: int,
    generator: torch.Generator,
    labels: int = 0,
    fused: bool = False,
) -> Contrast:
    """F(batch).mean() - F(samples).mean(), differentiable in the parameters, and the samples.

    The first `labels` visible units are the classes of one softmax unit.
    """
    with torch.no_grad():
        master, b, c = rbm.weight.detach(), rbm.visible_bias.detach(), rbm.hidden_bias.detach()
        half = rbm.products == "bf16"
        weight = master.bfloat16() if half else master
        m = len(batch if chains is None else chains)
        if fused:
            whole = compiled_copy(_whole_contrast, len(batch), m, steps, *master.shape, half, labels)
            count = m * (len(b) + len(c))
            coins = [quick_uniforms(count, generator, dtype=b.dtype, device=b.device) for _ in range(steps)]
            value, v, gradient = whole(weight, b, c, batch, chains, coins, labels)
        else:
            value, v, gradient = _contrast(
                Way.of(c, weight), Way.of(b, weight.T), batch, chains, steps, generator, labels
            )
    value, known = with_gradients(value, [rbm.weight, rbm.visible_bias, rbm.hidden_bias], gradient)
    return Contrast(value, v, known)


def _contrast(
    up: Way, down: Way, batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator, labels: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Value, samples and gradients, with each product while its factors are still in the cache."""
    b, c, half = down.bias, up.bias, up.weight.dtype != up.bias.dtype
    n, m = len(batch), len(batch if chains is None else chains)
    data_mean, data_logits = up.mean_and_logits(batch)
    if not half:
        g_weight = torch.addmm(batch.new_empty(()), batch.T, data_mean, beta=0, alpha=-1 / n)
    g_b, g_c = batch.mean(0), data_mean.mean(0)
    v, p = (batch, data_mean) if chains is None else (chains, up.mean(chains))
    logits = None
    for _ in range(steps):
        u = quick_uniforms(m * (len(b) + len(c)), generator, dtype=p.dtype, device=p.device)
        h, w = u[: p.numel()].view_as(p), u[p.numel() :].view(m, -1)
        h = torch.lt(h, p, out=h)
        q = down.mean(h)
        v = torch.lt(w, q, out=q)
        if labels:
            v[:, :labels] = _one_of(Way(b[:labels], down.weight[:, :labels]).logits(h), w[:, :1])
        v_mean = v.mean(0)  # here v is still in the cache
        p, logits = up.mean_and_logits(v)
    g_b, g_c = v_mean.sub_(g_b), p.mean(0).sub_(g_c)
    if half:  # one product, so that the difference is rounded and not its terms
        pair = torch.cat([data_mean.mul(-1 / n).bfloat16(), p.mul(1 / m).bfloat16()])
        g_weight = torch.mm(torch.cat([batch.bfloat16(), v.bfloat16()]).T, pair).to(b.dtype)
    else:
        g_weight.addmm_(v.T, p, alpha=1 / m)
    if data_logits is not None and logits is not None:
        gap = F.softplus(logits).sum() / m - F.softplus(data_logits).sum() / n
        value = torch.dot(g_b, b).add_(gap)
    else:
        value = _value(up, down, batch, data_mean, v, p, g_b)
    return value, v, [g_weight, g_b, g_c]


def _whole_contrast(
    weight: Tensor, b: Tensor, c: Tensor, batch: Tensor, chains: Tensor | None, coins: list[Tensor], labels: int = 0
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The same for a compiler: data and chains share their products, everything else is fused around those."""
    n = len(batch)
    up, down = Way(c, weight), Way(b, weight.T)
    a = up.logits(batch if chains is None else torch.cat([batch, chains]))
    data_a, a = a[:n], a if chains is None else a[n:]
    m = len(a)
    for u in coins:
        h = (u[: a.numel()].view_as(a) < torch.sigmoid(a)).to(a.dtype)
        w, field = u[a.numel() :].view(m, -1), down.logits(h)
        v = (w < torch.sigmoid(field)).to(a.dtype)
        if labels:
            v = torch.cat([_one_of(field[:, :labels], w[:, :1]), v[:, labels:]], 1)
        both = torch.cat([batch, v])  # the samples are written once, where the gradient's product reads them
        v = both[n:]
        a = up.logits(v)
    pair = torch.cat([torch.sigmoid(data_a) * (-1 / n), torch.sigmoid(a) * (1 / m)])
    g_weight = torch.mm(both.T.to(weight.dtype), pair.to(weight.dtype)).to(b.dtype)
    g_b = v.mean(0) - batch.mean(0)
    cumulants = [F.softplus(x).sum(1).mean() for x in (a, data_a)]  # by rows: a sum of everything keeps one core busy
    return (g_b * b).sum() + cumulants[0] - cumulants[1], v, [g_weight, g_b, pair.sum(0)]


def _value(up: Way, down: Way, batch: Tensor, data_mean: Tensor, v: Tensor, p: Tensor, gap: Tensor) -> Tensor:
    """⟨F⟩ of the data less that of the samples without logits: softplus(a) = a - log σ(a), and Σ a is linear in v,
    so it comes from the difference `gap` of the means of v. Few operations: between products each starts cold."""
    n, m = len(batch), len(v)
    linear = torch.dot(gap, up.weight.sum(1).add_(down.bias))
    if n == m and n % 2 == 0:  # one logarithm for four numbers
        ratio = data_mean.div(p)
        value = linear.add_(ratio[: n // 2].mul_(ratio[n // 2 :]).log_().sum(), alpha=1 / n)
    else:
        value = linear + data_mean.log().sum() / n - p.log().sum() / m
    if math.isfinite(float(value)):
        return value
    cumulants = F.softplus(up.logits(v)).sum() / m - F.softplus(up.logits(batch)).sum() / n  # σ(a) has underflowed
    return torch.dot(gap, down.bias) + cumulants
