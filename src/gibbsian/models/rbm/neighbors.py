"""States that differ from a row in one two-valued unit, compared with it without forming them.

    F(v) - F(v̄ᵢ) = dᵢbᵢ + Σⱼ [ζ(aⱼ + dᵢWᵢⱼ) - ζ(aⱼ)],    a = c + vW,    dᵢ = v̄ᵢ - vᵢ

ζ is the log-partition function of a hidden unit. That is rows × units × hidden units of them, where the energies of all neighbors
take as many products of as many numbers again.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.units import Natural, Unit

NEAR, FAR = 1 << 17, 1 << 24  # numbers at a time: what a core keeps at hand, and enough to fill a GPU


class Couplings(NamedTuple):
    """What the comparison needs of a machine whose hidden biases enter linearly."""

    weight: Tensor
    visible_bias: Tensor
    hidden_bias: Tensor
    hidden: Unit
    low: float  # the other value of a visible unit, beside 1


class _Piece(NamedTuple):
    """Some of the units `(count, rows)`: their places, d, and the inputs of the hidden units once they are flipped."""

    at: slice
    d: Tensor
    flipped: Natural  # (count · rows, hidden)


def _pieces(own: Couplings, v: Tensor, a: Tensor, units: Tensor | None) -> Iterator[_Piece]:
    total = v.shape[1] if units is None else len(units)
    size = max(1, (NEAR if v.device.type == "cpu" else FAR) // a.numel())
    for first in range(0, total, size):
        at = slice(first, min(first + size, total))
        if units is None:
            values, weight = v[:, at].T, own.weight[at, None]
        else:
            values, weight = v.gather(1, units[at].T).T, own.weight[units[at]]
        d = (1 + own.low) - 2 * values
        yield _Piece(at, d, Natural(torch.addcmul(a, d[..., None], weight).flatten(0, 1)))


def gaps(own: Couplings, v: Tensor, units: Tensor | None) -> Tensor:
    """F(v) - F(v̄ᵢ), `(rows, units)`, for all units, or for those that `units` `(count, rows)` names for every row."""
    a = torch.addmm(own.hidden_bias, v, own.weight)
    before = own.hidden.log_partition(Natural(a))
    found = v.new_empty(v.shape[1] if units is None else len(units), len(v))
    for piece in _pieces(own, v, a, units):
        found[piece.at] = own.hidden.log_partition(piece.flipped).reshape(piece.d.shape) - before
        bias = own.visible_bias[piece.at, None] if units is None else own.visible_bias[units[piece.at]]
        found[piece.at].addcmul_(piece.d, bias)
    return found.T


def gradients(own: Couplings, v: Tensor, slopes: Tensor, units: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Those of Σ slopes · gaps in W, b and c; slopes are `(rows, units)`."""
    a = torch.addmm(own.hidden_bias, v, own.weight)
    s = slopes.T
    at_hidden = -slopes.sum(1, keepdim=True) * own.hidden.mean(Natural(a)).flatten(1)  # in a, (rows, hidden)
    in_weight, in_bias = torch.zeros_like(own.weight), torch.zeros_like(own.visible_bias)
    for piece in _pieces(own, v, a, units):
        count, rows = piece.d.shape
        p = own.hidden.mean(piece.flipped).reshape(count, rows, -1)
        moved = s[piece.at] * piece.d
        if units is None:
            in_weight[piece.at] = torch.bmm(moved[:, None], p)[:, 0]
            in_bias[piece.at] = moved.sum(1)
        else:
            in_weight.index_add_(0, units[piece.at].flatten(), (moved[..., None] * p).flatten(0, 1))
            in_bias.index_add_(0, units[piece.at].flatten(), moved.flatten())
        at_hidden += p.mul_(s[piece.at, :, None]).sum(0)
    return in_weight.addmm_(v.T, at_hidden), in_bias, at_hidden.sum(0)
