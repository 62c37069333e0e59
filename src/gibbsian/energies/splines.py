"""Independent columns whose laws stand in tables."""

import torch
from torch import Tensor

from gibbsian.domains import Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError


class ColumnSplines(Energy):
    """A smooth function of every column from a table, E(x) = Σⱼ sⱼ(xⱼ): cubic between nodes, a parabola beyond them.

        beyond an end e:   s(x) = s(e) + s'(e)(x - e) + ½κ(x - e)²

    Values and slopes agree at all nodes (cubic Hermite), so that the score is continuous. A call costs one look into the
    table an entry, however the table was made; `MarginalParzen.tabulated` makes one of Parzen windows.

    Args:
        low, high: first and last node of every column, `(d,)`; nodes are equally spaced between them.
        value, slope: s and s' at the nodes, `(nodes, d)`.
        curvature: κ, `(d,)`, positive.

    >>> t = torch.linspace(-3, 3, 13)[:, None]
    >>> energy = ColumnSplines(torch.tensor([-3.0]), torch.tensor([3.0]), 0.5 * t**2, t, torch.ones(1))
    >>> energy(torch.tensor([[1.0], [1.5], [10.0]]))
    tensor([ 0.5000,  1.1250, 50.0000])
    """

    low: Tensor
    high: Tensor
    value: Tensor
    slope: Tensor
    curvature: Tensor
    _pieces: Tensor

    def __init__(self, low: Tensor, high: Tensor, value: Tensor, slope: Tensor, curvature: Tensor) -> None:
        nodes, d = value.shape if value.dim() == 2 else (0, 0)
        if nodes < 2 or slope.shape != value.shape or any(part.shape != (d,) for part in (low, high, curvature)):
            raise ShapeError(f"value {tuple(value.shape)}, slope {tuple(slope.shape)}: expected (nodes, d) for both with at least 2 nodes, and (d,) for low, high and curvature")  # fmt: skip
        if not bool((high > low).all()) or not bool((curvature > 0).all()):
            raise ArgumentError("every column needs a first node below the last, and a positive curvature beyond them")
        super().__init__(Real(d))
        for name, part in (("low", low), ("high", high), ("value", value), ("slope", slope), ("curvature", curvature)):
            self.register_buffer(name, part.detach().clone())
        step = (high - low) / (nodes - 1)
        first, last, rise = value[:-1], value[1:], (slope[:-1] * step, slope[1:] * step)
        cubic = (first, rise[0], 3 * (last - first) - 2 * rise[0] - rise[1], 2 * (first - last) + rise[0] + rise[1])
        self.register_buffer("_pieces", torch.stack(cubic, -1).transpose(0, 1).reshape(-1, 4), persistent=False)

    def columns(self, x: Tensor) -> Tensor:
        """sⱼ(xⱼ) of every entry, `(n, d)`."""
        count = len(self.value) - 1
        inside = x.clamp(self.low, self.high)
        t = (inside - self.low) * (count / (self.high - self.low))
        piece = t.detach().nan_to_num(0.0).floor().clamp(0, count - 1)  # NaN has no piece, and stays NaN by t
        t = t - piece
        at = piece.long() + count * torch.arange(x.shape[1], device=x.device)
        a, b, c, d = self._pieces[at].unbind(-1)
        over = x - inside
        edge = torch.where(over > 0, self.slope[-1], self.slope[0])
        return a + t * (b + t * (c + t * d)) + over * (edge + 0.5 * self.curvature * over)

    def forward(self, x: Tensor) -> Tensor:
        return self.columns(x).sum(1)
