"""The annealing path of Bernoulli-Bernoulli RBMs without a wasted operation: two products a temperature, in place.

log p*_β(v) = ((1-β)b^A + βb)·v + Σⱼ ζ(β(cⱼ + (vW)ⱼ));   h ~ σ(β(c + vW)),   v ~ σ((1-β)b^A + β(b + Wh))
"""

from typing import Any

import torch
from torch import Tensor

from gibbsian.models.rbm.path import RBMPath

__all__ = ["BernoulliPath"]


class BernoulliPath:
    """The same law, weights and random numbers as `RBMPath`, with buffers that are kept between calls.

    Reference: Salakhutdinov & Murray 2008.
    """

    def __init__(self, path: RBMPath) -> None:
        self.path = path
        rbm: Any = path.rbm  # an RBM: see path_of
        self.weight = rbm.weight.detach()
        self.transposed = self.weight.T.contiguous()
        self.b, self.c = rbm.visible_bias.detach(), rbm.hidden_bias.detach()
        self.b_base = path.base[0].linear
        self._buffers: tuple[Tensor, ...] = ()

    def log_z0(self) -> Tensor:
        """Σ ζ(b^A) + M log 2."""
        return self.path.log_z0()

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Exact draws of the base."""
        return self.path.sample(n, generator=generator)

    def noise(self, v: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Uniforms for the hidden and the visible layer."""
        return self.path.noise(v, steps, generator)

    def anneal(self, v: Tensor, beta: Tensor, next_beta: Tensor, noise: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Weight, then h ~ p_next(h | v), v ~ p_next(v | h)."""
        before, after = float(beta), float(next_beta)
        with torch.no_grad():
            field, scaled, old, new, visible = self._prepared(len(v))
            torch.addmm(self.c, v, self.weight, out=field)
            torch.ops.aten.softplus.out(torch.mul(field, before, out=scaled), out=old)
            torch.ops.aten.softplus.out(torch.mul(field, after, out=scaled), out=new)
            increment = new.sub_(old).sum(1)  # units first: sums of all units would cancel in single precision
            increment += (after - before) * (v @ (self.b - self.b_base))
            h = torch.lt(noise[0], scaled.sigmoid_(), out=new)
            torch.addmm(torch.lerp(self.b_base, self.b, after), h, self.transposed, alpha=after, out=visible)
            return torch.lt(noise[1], visible.sigmoid_(), out=torch.empty_like(visible)), increment

    def _prepared(self, n: int) -> tuple[Tensor, ...]:
        if not self._buffers or len(self._buffers[0]) != n:
            nv, nh = self.weight.shape
            self._buffers = tuple(self.weight.new_empty(n, size) for size in (nh, nh, nh, nh, nv))
        return self._buffers
