"""log Z(x) for continuous outputs of one or two numbers: a quadrature for every input, all at once.

∫ exp(-E(x, y)) dy ≈ Σ_k w_k exp(-E(x, y_k)),   y = c(x) + s(x)·sinh(t) on R, Gauss-Legendre in a box
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gibbsian.domains import Box, Domain, NonNegative, Real
from gibbsian.errors import DomainError

__all__ = ["log_integral"]

_NODES = {1: 241, 2: 61}
_LEGENDRE = {1: 128, 2: 40}
_SEARCH, _FINAL = 9.0, 4.5  # ends of the range in t: 4000 and 45 scales away from the center
_ROWS = 1 << 16


def log_integral(domain: Domain, energies: Callable[[Tensor], Tensor], n: int, like: Tensor) -> Tensor:
    """log ∫ exp(-E(x, y)) dy for n inputs, `(n,)`, differentiable.

    On R the grid of every input is centered and scaled by itself, from a wide one inwards; a mass that is far
    narrower than its distance from the origin (by a factor of some hundred) is better put into a box.

    Args:
        domain: of y, at most two numbers.
        energies: E of outputs `(k·n, *event)` that go through the inputs k times.
        n: number of inputs.
        like: for precision and device.

    >>> normal = lambda y: 0.5 * (y[:, 0] - 3).square()
    >>> log_integral(Real(1), normal, 2, torch.zeros(1, dtype=torch.float64))  # ½ log 2π
    tensor([0.9189, 0.9189], dtype=torch.float64)
    """
    d = domain.numel
    if d > 2 or not isinstance(domain, Real | Box | NonNegative):
        raise DomainError(
            f"log Z(x) is summed over discrete y or integrated over one or two real numbers, not over {domain}; use "
            "partition.ais(model.given(x[:1])), or train with objectives.RankingContrastive"
        )
    dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
    zero = torch.zeros((), dtype=dtype, device=like.device)
    if isinstance(domain, Box):
        low, high = (b.expand(domain.shape).flatten() for b in domain.bounds(zero))
        t, w = (torch.as_tensor(v).to(zero) for v in np.polynomial.legendre.leggauss(_LEGENDRE[d]))
        line = [(0.5 * (low[i] + high[i]) + 0.5 * (high[i] - low[i]) * t)[:, None].expand(-1, n) for i in range(d)]
        log_w = [(w.log() + (0.5 * (high[i] - low[i])).log())[:, None].expand(-1, n) for i in range(d)]
        return torch.logsumexp(_log_terms(domain, energies, line, log_w, n)[1], 0)
    center, scale = zero.new_zeros(d, n), zero.new_ones(d, n)
    half = isinstance(domain, NonNegative)
    for reach in (_SEARCH, _SEARCH, 6.0, _FINAL):
        with torch.no_grad():
            y, log_terms = _log_terms(domain, energies, *_lines(center, scale, reach, half), n)
            center, scale = _followed(y, torch.softmax(log_terms, 0), half)
    _, log_terms = _log_terms(domain, energies, *_lines(center, scale, _FINAL, half), n)
    return torch.logsumexp(log_terms, 0)


def _lines(center: Tensor, scale: Tensor, reach: float, half: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Nodes and log weights along every axis, `(nodes, n)` each."""
    d, nodes = len(center), _NODES[len(center)]
    t = torch.linspace(-reach, reach, nodes, dtype=center.dtype, device=center.device)
    step = math.log(2 * reach / (nodes - 1))
    if half:  # y = s·exp(t - exp(-t)): both ends decay doubly exponentially
        x, log_slope = torch.exp(t - torch.exp(-t)), t - torch.exp(-t) + torch.log1p(torch.exp(-t))
    else:
        x, log_slope = torch.sinh(t), torch.logaddexp(t, -t) - math.log(2)
    line = [center[i] + scale[i] * x[:, None] for i in range(d)]
    return line, [log_slope[:, None] + scale[i].log() + step for i in range(d)]


def _log_terms(
    domain: Domain, energies: Callable[[Tensor], Tensor], line: list[Tensor], log_w: list[Tensor], n: int
) -> tuple[Tensor, Tensor]:
    """All nodes `(N, n, d)` and the logs of their terms `(N, n)`."""
    if len(line) == 1:
        y, weight = line[0][..., None], log_w[0]
    else:
        a, b = line
        y = torch.stack(torch.broadcast_tensors(a[:, None], b[None, :]), -1).flatten(0, 1)
        weight = (log_w[0][:, None] + log_w[1][None, :]).flatten(0, 1)
    each = max(1, _ROWS // n)
    parts = [energies(part.reshape(-1, *domain.shape)).reshape(-1, n) for part in y.split(each)]
    return y, weight - torch.cat(parts)


def _followed(y: Tensor, p: Tensor, half: bool) -> tuple[Tensor, Tensor]:
    """Center and scale `(d, n)` of the laws p `(N, n)` on the nodes: median and half the distance of two quantiles."""
    center, scale = [], []
    for i in range(y.shape[-1]):
        value, order = y[..., i].sort(0)
        level = p.gather(0, order).cumsum(0)
        cut = [
            value.gather(0, (level < q).sum(0, keepdim=True).clamp(max=len(value) - 1))[0] for q in (0.16, 0.5, 0.84)
        ]
        spread = torch.maximum(0.5 * (cut[2] - cut[0]), 1e-4 * (1e-3 + cut[1].abs()))
        center.append(torch.zeros_like(spread) if half else cut[1])
        scale.append(cut[1].clamp(min=1e-30) if half else spread)
    return torch.stack(center), torch.stack(scale)
