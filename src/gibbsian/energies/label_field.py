"""Labels that depend on each other: a Boltzmann machine over labels whose biases come from the input."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gibbsian.domains import Binary
from gibbsian.energies.conditional import ConditionalEnergy
from gibbsian.errors import ArgumentError, ShapeError

__all__ = ["LabelField"]


class LabelField(ConditionalEnergy):
    """Multi-label outputs y in {0, 1}^L given x: E(x, y) = -b(x)·y - ½ yᵀWy, W symmetric without diagonal.

    With W = 0 it is L independent logistic regressions; W captures which labels occur together or exclude each
    other beyond what x says. Up to some 16 labels train by `Conditional(ExactLikelihood())`, more by
    `PseudoLikelihood` or `ContrastiveDivergence(SiteGibbs())` inside `Conditional`.

    Reference: Ghamrawi & McCallum 2005.

    Args:
        net: x → b `(n, labels)`.
        labels: L.

    Attributes:
        weight: a full matrix, used through its symmetric part without diagonal: `coupling()`.

    >>> field = LabelField(torch.nn.Identity(), 3)
    >>> field.given(torch.ones(2, 3))(torch.ones(2, 3)).detach()
    tensor([-3., -3.])
    """

    def __init__(self, net: Callable[[Tensor], Tensor], labels: int) -> None:
        if labels < 1:
            raise ArgumentError(f"LabelField(labels={labels}): at least one label")
        super().__init__(None, Binary(labels), encoder=net)
        self.labels = labels
        self.weight = nn.Parameter(torch.zeros(labels, labels))

    def coupling(self) -> Tensor:
        """W."""
        upper = (self.weight + self.weight.T).triu(1) / 2
        return upper + upper.T

    def encode(self, x: Tensor) -> Tensor:
        b = super().encode(x)
        if b.shape[1:] != (self.labels,):
            raise ShapeError(f"the network gave {tuple(b.shape)} for {len(x)} inputs, expected (n, {self.labels})")
        return b

    def encoded_energy(self, h: Tensor, y: Tensor) -> Tensor:
        return -((h + 0.5 * (y @ self.coupling())) * y).sum(1)

    def marginals(self, x: Tensor) -> Tensor:
        """p(y_i = 1 | x), `(n, labels)`: the gradient of log Z(x) in b."""
        with torch.enable_grad():
            h = self.encode(x).detach().requires_grad_(True)
            (p,) = torch.autograd.grad(self._log_partition(h, len(x)).sum(), h)
        return p

    def extra_repr(self) -> str:
        return f"labels={self.labels}"
