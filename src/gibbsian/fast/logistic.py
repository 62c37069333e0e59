"""σ(bias + x W) as fast as the hardware does it: the step of every machine of coins."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

# product, bias and logistic function in one pass of oneDNN: what torch.compile emits for them on a CPU
_FUSED = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None

_LARGE = 2_000_000  # multiplications


class Logistic(NamedTuple):
    """Probabilities of a layer of coins given another layer x.

    >>> layer = Logistic.of(torch.zeros(2), torch.eye(2))
    >>> layer.mean(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    bias: Tensor
    weight: Tensor  # (inputs, outputs), in half precision where products are to be
    fused: bool = False

    @classmethod
    def of(cls, bias: Tensor, weight: Tensor) -> "Logistic":
        """The fastest form for these tensors."""
        single = weight.dtype == bias.dtype == torch.float32 and weight.device.type == "cpu"
        return cls(bias, weight, _FUSED is not None and single)

    def logits(self, x: Tensor) -> Tensor:
        """bias + x W."""
        if self.weight.dtype == self.bias.dtype:
            return torch.addmm(self.bias, x, self.weight)
        return torch.mm(x.to(self.weight.dtype), self.weight).to(self.bias.dtype).add_(self.bias)

    def _pays(self, x: Tensor) -> bool:
        """Whether one pass is faster for these rows: calling it takes longer, 20 µs."""
        return self.fused and x.numel() * self.weight.shape[1] >= _LARGE

    def mean(self, x: Tensor) -> Tensor:
        """σ(bias + x W)."""
        if self._pays(x):
            return _FUSED(x, self.weight.T, self.bias, "sigmoid", [], "")  # type: ignore[misc]
        return self.logits(x).sigmoid_()

    def mean_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The mean, and the logits where they are at hand."""
        if self._pays(x):
            return self.mean(x), None
        a = self.logits(x)
        return torch.sigmoid(a), a


def softplus_gap(a: Tensor, p: Tensor, b: Tensor, q: Tensor) -> Tensor:
    """Σ softplus(a) - Σ softplus(b), p = σ(a) and q = σ(b) being known: softplus(a) = a - log σ(a), and a quarter of
    the logarithms, because those of a product are the sum of its parts'."""
    if a.is_cuda or len(a) % 2 or a.dtype != torch.float32:  # no waiting for the device
        return F.softplus(a).sum() - F.softplus(b).sum()
    half = len(a) // 2
    ratio = q.div(p)
    gap = a.sum().sub_(b.sum()).add_(ratio[:half].mul_(ratio[half:]).log_().sum())
    return gap if math.isfinite(float(gap)) else F.softplus(a).sum() - F.softplus(b).sum()  # σ has underflowed
