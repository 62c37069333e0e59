"""Contrastive divergence of Bernoulli RBMs with hardly more than its products: five for CD-1, six for PCD-1.

    positive phase   p = σ(c + vW) of the data
    k sweeps         h ~ σ(c + vW),   v ~ σ(b + Wh)
    negative phase   q = σ(c + vW) of the samples

    F(v) = -b·v - Σⱼ softplus(aⱼ),   a = c + vW
    ∇_W [F(data) - F(samples)] = -⟨v pᵀ⟩_data + ⟨v qᵀ⟩_samples

The sweeps hold every number that value and gradient need, so both come out of one pass, while the layers are still in
the cache. The visible layer may begin with a softmax label, `units.Joined(Softmax(1, classes), Bernoulli(n))`.

Reference: Hinton 2012, section 3.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from gibbsian.fast.coins import Coins
from gibbsian.fast.logistic import Logistic

_FEW = 64  # rows


def one_of(logits: Tensor, u: Tensor) -> Tensor:
    """Rows with one 1, drawn from their softmax by inversion of uniforms u `(rows, 1)`."""
    below = torch.softmax(logits, 1).cumsum(1)[:, :-1]  # nothing above the last: rounding cannot pick past it
    index = (u >= below).sum(1, keepdim=True)
    return (index == torch.arange(logits.shape[1], device=u.device)).to(logits.dtype)


def bernoulli_contrast(
    up: Logistic, down: Logistic, batch: Tensor, chains: Tensor | None, noise: Iterable[Coins], labels: int = 0
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """F(batch).mean() - F(samples).mean(), the samples, and the gradients in W, b and c.

    `up` and `down` are p(h | v) and p(v | h). The sweeps start at `chains`, or at the data; `noise` has for each of them
    coins, those of the hidden layer first. So many `labels` come first among the visible units that are the classes of
    one softmax unit.
    """
    n, m = len(batch), len(batch if chains is None else chains)
    # in half precision one product, so that the difference is rounded and not its terms; of few rows too, since passes over
    # the gradient are then what costs
    joint = up.weight.dtype != up.bias.dtype or n + m <= _FEW
    p_data, a_data = up.mean_and_logits(batch)
    if not joint:  # here both factors are still in the cache
        g_weight = torch.addmm(batch.new_empty(()), batch.T, p_data, beta=0, alpha=-1 / n)
    g_b, g_c = batch.mean(0), p_data.mean(0)

    v, p, a = (batch, p_data, a_data) if chains is None else (chains, up.mean(chains), None)
    for coin in noise:
        h = coin.flip(p)
        q = down.mean(h)
        if labels:
            u = coin.uniforms(q)
            v = torch.lt(u, q, out=q)
            v[:, :labels] = one_of(Logistic(down.bias[:labels], down.weight[:, :labels]).logits(h), u[:, :1])
        else:
            v = coin.flip(q, over=True)
        v_mean = v.mean(0)
        p, a = up.mean_and_logits(v)

    g_b, g_c = v_mean.sub_(g_b), p.mean(0).sub_(g_c)
    if joint:
        pair = torch.cat([p_data.mul(-1 / n), p.mul(1 / m)]).to(up.weight.dtype)
        g_weight = torch.mm(torch.cat([batch, v]).to(up.weight.dtype).T, pair).to(g_b.dtype)
    else:
        g_weight.addmm_(v.T, p, alpha=1 / m)
    if a_data is not None and a is not None:
        cumulants = F.softplus(a).sum() / m - F.softplus(a_data).sum() / n
        value = torch.dot(g_b, down.bias).add_(cumulants)
    else:
        value = _value(up, down, batch, p_data, v, p, g_b)
    return value, v, [g_weight, g_b, g_c]


def _value(up: Logistic, down: Logistic, batch: Tensor, p_data: Tensor, v: Tensor, p: Tensor, gap: Tensor) -> Tensor:
    """⟨F⟩ of the data less that of the samples without logits: softplus(a) = a - log σ(a), and Σ a is linear in v,
    so it comes from the difference `gap` of the means of v. Few operations: between products each starts cold."""
    n, m = len(batch), len(v)
    linear = torch.dot(gap, up.weight.sum(1).add_(down.bias))
    if n == m and n % 2 == 0:  # one logarithm for four numbers
        ratio = p_data.div(p)
        value = linear.add_(ratio[: n // 2].mul_(ratio[n // 2 :]).log_().sum(), alpha=1 / n)
    else:
        value = linear + p_data.log().sum() / n - p.log().sum() / m
    if math.isfinite(float(value)):
        return value
    cumulants = F.softplus(up.logits(v)).sum() / m - F.softplus(up.logits(batch)).sum() / n  # σ(a) has underflowed
    return torch.dot(gap, down.bias) + cumulants
