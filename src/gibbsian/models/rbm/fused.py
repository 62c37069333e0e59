"""Contrastive divergence of Bernoulli RBMs as one function for a compiler: the twin of `contrast.bernoulli_contrast`.

Data and chains share their products, everything else is fused around those.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gibbsian.fast.logistic import Logistic
from gibbsian.models.rbm.contrast import one_of


def fused_contrast(
    weight: Tensor, b: Tensor, c: Tensor, batch: Tensor, chains: Tensor | None, noise: Sequence[Tensor], labels: int = 0
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """F(batch).mean() - F(samples).mean(), the samples, and the gradients in W, b and c."""
    n = len(batch)
    up, down = Logistic(c, weight), Logistic(b, weight.T)
    a = up.logits(batch if chains is None else torch.cat([batch, chains]))
    a_data, a = a[:n], a if chains is None else a[n:]
    m = len(a)
    for u in noise:
        h = (u[: a.numel()].view_as(a) < torch.sigmoid(a)).to(a.dtype)
        u_v, field = u[a.numel() :].view(m, -1), down.logits(h)
        v = (u_v < torch.sigmoid(field)).to(a.dtype)
        if labels:
            v = torch.cat([one_of(field[:, :labels], u_v[:, :1]), v[:, labels:]], 1)
        both = torch.cat([batch, v])  # the samples are written once, where the gradient's product reads them
        v = both[n:]
        a = up.logits(v)
    # what is summed over the same rows or columns is one kernel: launches are what costs here; and logits go into
    # element-wise operations alone, so that the compiler leaves their bias to those and takes the faster product
    sign = torch.cat([a.new_full((n, 1), -1 / n), a.new_full((m, 1), 1 / m)])
    pair = torch.cat([torch.sigmoid(a_data), torch.sigmoid(a)]) * sign
    cumulants = torch.cat([F.softplus(a_data), F.softplus(a)]).sum(1) * sign[:, 0]
    g_weight = torch.mm(both.T.to(weight.dtype), pair.to(weight.dtype)).to(b.dtype)
    g_b, g_c = torch.cat([both * sign, pair], 1).sum(0).split([len(b), len(c)])
    return torch.cat([cumulants, g_b * b]).sum(), v, [g_weight, g_b, g_c]
