"""How surprising a cell is given the rest of its row: -log p(xᵢ | x₋ᵢ) = E(x) + log ∫ exp(-E(x₋ᵢ, t)) dt, without a log Z."""

import math

import numpy as np
import torch
from torch import Tensor

from gibbsian.energies.parzen import MarginalParzen, Parzen
from gibbsian.energies.splines import ColumnSplines
from gibbsian.energy import Energy

_NODES = 201  # of the integral over a cell
_ROUNDS = 5  # in which the ends of it are found
_HERMITE = 15
_BLOCK = 1 << 20  # numbers at a time


def windows(joint: Parzen, marginals: ColumnSplines | MarginalParzen | None, weight: float, x: Tensor) -> Tensor:
    """Of Parzen windows times a power of marginal laws, p ∝ p̂(x) Πⱼ p̂ⱼ(xⱼ)^w, in closed form.

    The windows factorize, so that the integral over a cell is Σₙ wₙ K(x₋ᵢ - xₙ₋ᵢ) cₙᵢ with cₙᵢ = E[p̂ᵢ(t)^w] over the window of
    point n in column i, which is the same for all rows.
    """
    points, h = joint.points, joint.bandwidth
    log_c = torch.zeros_like(points)
    own = torch.zeros_like(x)
    if marginals is not None and weight:
        t, share = (torch.from_numpy(part).to(points) for part in np.polynomial.hermite_e.hermegauss(_HERMITE))
        within = torch.stack([-weight * marginals.columns(points + h * node) for node in t])
        log_c = torch.logsumexp(within + (share / share.sum()).log()[:, None, None], 0)
        own = -weight * marginals.columns(x)
    scaled, log_weight = points / h, joint.weight.log()
    volume = h.log() + 0.5 * math.log(2 * math.pi)
    parts = []
    for rows, mine in zip(
        x.split(max(1, _BLOCK // len(points))), own.split(max(1, _BLOCK // len(points))), strict=True
    ):
        u = rows / h
        log_k = log_weight - 0.5 * torch.cdist(u, scaled, compute_mode="donot_use_mm_for_euclid_dist").square()
        whole = torch.logsumexp(log_k, 1)
        cells = [
            torch.logsumexp(log_k + 0.5 * (u[:, i, None] - scaled[:, i]).square() + log_c[:, i], 1)
            for i in range(x.shape[1])
        ]
        parts.append(torch.stack(cells, 1) - whole[:, None] - mine + volume)
    return torch.cat(parts)


def quadrature(energy: Energy, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Of any energy, by the trapezoid rule in each cell; from `low` to `high` first, then closer to, or further out, where the mass is."""
    out = torch.empty_like(x)
    with torch.no_grad():
        whole = energy(x)
        for i in range(x.shape[1]):
            ends = torch.stack([torch.minimum(low[i], x[:, i]), torch.maximum(high[i], x[:, i])], 1)
            for _ in range(_ROUNDS):
                f = -_along(energy, x, i, ends)
                ends = _closer(f, ends)
            f = -_along(energy, x, i, ends)
            f[:, [0, -1]] += math.log(0.5)
            out[:, i] = whole + torch.logsumexp(f, 1) + ((ends[:, 1] - ends[:, 0]) / (_NODES - 1)).log()
    return out


def _nodes(ends: Tensor) -> Tensor:
    t = torch.linspace(0, 1, _NODES, dtype=ends.dtype)
    return ends[:, :1] + t * (ends[:, 1:] - ends[:, :1])


def _along(energy: Energy, x: Tensor, i: int, ends: Tensor) -> Tensor:
    """E with cell i at the nodes between two ends, `(n, nodes)`."""
    rows = x[:, None].repeat(1, _NODES, 1)
    rows[..., i] = _nodes(ends)
    parts = [energy(part) for part in rows.flatten(0, 1).split(max(1, _BLOCK // x.shape[1]))]
    return torch.cat(parts).view(len(x), _NODES)


def _closer(f: Tensor, ends: Tensor) -> Tensor:
    """New ends: about all nodes within 40 nats of the highest; further out where that is at an end."""
    kept = (f > f.amax(1, keepdim=True) - 40).long()
    first, last = kept.argmax(1), _NODES - 1 - kept.flip(1).argmax(1)
    nodes, width = _nodes(ends), ends[:, 1] - ends[:, 0]
    below = nodes.gather(1, (first - 1).clamp(min=0)[:, None])[:, 0] - torch.where(first == 0, width, 0 * width)
    above = nodes.gather(1, (last + 1).clamp(max=_NODES - 1)[:, None])[:, 0]
    return torch.stack([below, above + torch.where(last == _NODES - 1, width, 0 * width)], 1)
