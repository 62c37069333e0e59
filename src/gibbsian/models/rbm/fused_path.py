"""The annealing path of Bernoulli-Bernoulli RBMs without a wasted operation: two products a temperature, in place.

log p*_β(v) = ((1-β)b^A + βb)·v + Σⱼ ζ(β(cⱼ + (vW)ⱼ));   h ~ σ(β(c + vW)),   v ~ σ((1-β)b^A + β(b + Wh))
"""

import torch
from torch import Tensor

from gibbsian.models.rbm.layers import TwoLayers
from gibbsian.models.rbm.path import RBMPath
from gibbsian.units import Natural


class BernoulliPath(RBMPath):
    """The same law, weights and random numbers as `RBMPath`, with buffers that are kept between calls.

    Reference: Salakhutdinov & Murray 2008.
    """

    def __init__(self, rbm: TwoLayers, base: Natural, weight: Tensor, hidden_bias: Tensor) -> None:
        super().__init__(rbm, base)
        self.weight, self.c, self.b = weight.detach(), hidden_bias.detach(), rbm.visible_bias.detach()
        self.b_base = self.base[0].linear
        self._transposed: tuple[int, Tensor] | None = None
        self._buffers: tuple[Tensor, ...] = ()

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Weight, then h ~ p_next(h | v), v ~ p_next(v | h)."""
        before, after = float(beta), float(next_beta)
        with torch.no_grad():
            field, scaled, old, new, visible = self._prepared(len(x))
            torch.addmm(self.c, x, self.weight, out=field)
            torch.ops.aten.softplus.out(torch.mul(field, before, out=scaled), out=old)
            torch.ops.aten.softplus.out(torch.mul(field, after, out=scaled), out=new)
            increment = new.sub_(old).sum(1)  # units first: sums of all units would cancel in single precision
            increment += (after - before) * (x @ (self.b - self.b_base))
            h = torch.lt(noise[0], scaled.sigmoid_(), out=new)
            bias = torch.lerp(self.b_base, self.b, after)
            torch.addmm(bias, h, self.transposed, alpha=after, out=visible)
            return torch.lt(noise[1], visible.sigmoid_(), out=torch.empty_like(visible)), increment

    @property
    def transposed(self) -> Tensor:
        """Wᵀ as a matrix of its own, made anew where W has changed."""
        version = self.weight._version
        if self._transposed is None or self._transposed[0] != version:
            self._transposed = version, self.weight.T.contiguous()
        return self._transposed[1]

    def _prepared(self, n: int) -> tuple[Tensor, ...]:
        if not self._buffers or len(self._buffers[0]) != n:
            nv, nh = self.weight.shape
            self._buffers = tuple(self.weight.new_empty(n, size) for size in (nh, nh, nh, nh, nv))
        return self._buffers
