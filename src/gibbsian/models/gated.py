"""The gated RBM: hidden units that see how one image becomes another."""

import torch
from torch import Tensor, nn

from gibbsian.errors import ShapeError, check_count, check_number
from gibbsian.models.annealing import small_weights
from gibbsian.models.conditional import ConditionalMachine, Phase, Terms, difference
from gibbsian.units import Unit


class GatedRBM(ConditionalMachine):
    """Factored third-order machine over y given x: hidden units encode the transformation between the two.

        E(x, y, h) = -Σ_f (xU)_f (yV)_f (hP)_f - b·y - c·h
        p(h_k = 1 | x, y) = σ(c_k + Σ_f P_kf (xU)_f (yV)_f)
        p(y_j = 1 | x, h) = σ(b_j + Σ_f V_jf (xU)_f (hP)_f)
        F(y | x) = -b·y - Σ_k softplus(c_k + Σ_f P_kf (xU)_f (yV)_f)

    For Gaussian y: E_y = Σ (y-b)²/2σ², and y/σ in the products. `given(x)` is the machine over y for one input
    or one a row: a machine with weights V diag(xU) Pᵀ, so everything an RBM can do can be done with it. Trained
    on pairs of transformed images, the columns of U and V become filters in quadrature, and the hidden units
    answer to the transformation and not to the image. For plain regression of y on x a conditional energy or a
    network is better.

    Reference: Memisevic & Hinton 2010.

    Args:
        inputs: numbers in x.
        visible: a number of Bernoulli units, or one of `gibbsian.units` (not counts): y.
        hidden: a number of Bernoulli units, or units of a finite kind: h.
        factors: number of factors f.
        scale: standard deviation of the initial U, V and P. The gradient at zero weights is zero to second order,
            so it should not be too small.
        generator: for the initial weights; a fixed seed where it is left out.

    Attributes:
        input_weight: U `(inputs, factors)`; weight: V `(visible.size, factors)`; hidden_weight: P
            `(hidden.size, factors)`; visible_bias b, hidden_bias c.

    >>> model = GatedRBM(inputs=6, visible=6, hidden=3, factors=4)
    >>> x, y = torch.ones(2, 6), torch.zeros(2, 6)
    >>> model.given(x)(y).shape, model.given(x).hidden_mean(y).shape
    (torch.Size([2]), torch.Size([2, 3]))
    >>> model.transfer(x, y, to=x).shape
    torch.Size([2, 6])
    """

    def __init__(
        self,
        inputs: int,
        visible: int | Unit,
        hidden: int | Unit,
        factors: int,
        *,
        scale: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        for name, size in (("inputs", inputs), ("factors", factors)):
            check_count(self, name, size)
        check_number(self, "scale", scale, open_low=True)  # zero weights have a zero gradient
        super().__init__(visible, hidden)
        self.inputs, self.factors = inputs, factors
        sizes = [inputs, self.visible.size, self.hidden.size]
        whole = small_weights(sum(sizes), factors, generator=generator, scale=scale)
        u, v, p = whole.split(sizes)
        self.input_weight, self.weight, self.hidden_weight = (nn.Parameter(part.clone()) for part in (u, v, p))
        self.visible_bias = nn.Parameter(whole.new_zeros(self.visible.size))
        self.hidden_bias = nn.Parameter(whole.new_zeros(self.hidden.size))

    def check_condition(self, condition: Tensor) -> Tensor:
        self._check_floating(condition, self.inputs, "x")
        if condition.dim() not in (1, 2):
            raise ShapeError(
                f"x has shape {tuple(condition.shape)}, expected ({self.inputs},) or (rows, {self.inputs})"
            )
        return condition if condition.dim() == 2 else condition[None]

    def terms(self, condition: Tensor) -> Terms:
        return self.visible_bias, self.hidden_bias, condition @ self.input_weight

    def up(self, statistic: Tensor, terms: Terms) -> Tensor:
        return (statistic @ self.weight * terms[2]) @ self.hidden_weight.T

    def down(self, statistic: Tensor, terms: Terms) -> Tensor:
        return (statistic @ self.hidden_weight * terms[2]) @ self.weight.T

    def logits(self, statistic: Tensor, terms: Terms) -> tuple[Tensor, tuple[Tensor, ...]]:
        factors = statistic @ self.weight
        both = factors * terms[2]
        return torch.addmm(self.hidden_bias, both, self.hidden_weight.T), (factors, both)

    def contrast_gradients(
        self, condition: Tensor, terms: Terms, data: Phase, samples: Phase, to_visible: Tensor, to_hidden: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        left, right = data.mean @ self.hidden_weight, samples.mean @ self.hidden_weight  # hP
        # ∂/∂(xU) of both ends at once: x is the same
        to_factors = (samples.upward[0] * right).sub_(data.upward[0] * left)
        to_input = torch.addmm(terms[2].new_empty(()), condition.T, to_factors, beta=0, alpha=1 / len(condition))
        return [
            (self.input_weight, to_input),
            (self.weight, difference((data.statistic, left.mul_(terms[2])), (samples.statistic, right.mul_(terms[2])))),
            (self.hidden_weight, difference((data.mean, data.upward[1]), (samples.mean, samples.upward[1]))),
            (self.visible_bias, to_visible.sum(0)),
            (self.hidden_bias, to_hidden.sum(0)),
        ]

    def transfer(self, x: Tensor, y: Tensor, to: Tensor) -> Tensor:
        """The transformation from x to y applied to other images: E[y' | x' = to, E[h | x, y]].

        One pair for all images, or one for each: x and y have one row, or as many as `to`.
        """
        h = self.given(x).hidden_mean(y)
        return self.given(to).visible_mean(h.expand(len(to), *h.shape[1:]))

    def normalize_filters(self, run: object = None) -> None:
        """Give every column of U the mean norm of all, and of V too, which keeps factors from dying or taking over.

        Call it after updates, for example as a hook: `gibbsian.fit(..., hooks=[model.normalize_filters])`.
        """
        with torch.no_grad():
            for filters in (self.input_weight, self.weight):
                norms = torch.linalg.vector_norm(filters, dim=0)
                filters.mul_(norms.mean() / norms.clamp_min(torch.finfo(norms.dtype).tiny))

    def extra_repr(self) -> str:
        return f"inputs={self.inputs}, factors={self.factors}"
