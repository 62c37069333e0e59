"""Exact draws by rejection, all candidates at once."""

from collections.abc import Callable

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError


def rejection_sample(
    n: int, propose: Callable[[int], Tensor], log_accept: Callable[[Tensor], Tensor], generator: torch.Generator
) -> Tensor:
    """n draws from the density ∝ q(x)·exp(log_accept(x)), log_accept ≤ 0, from candidates `propose(m)` ~ q.

    >>> g = torch.Generator().manual_seed(0)
    >>> normal = lambda m: torch.randn(m, generator=g)
    >>> half_normal = rejection_sample(5, normal, lambda x: torch.where(x > 0, 0.0, -torch.inf), g)
    >>> bool((half_normal > 0).all())
    True
    """
    if n < 1:
        raise ArgumentError(f"{n} draws were asked for; ask for at least one")
    kept: list[Tensor] = []
    missing = n
    while missing > 0:
        x = propose(2 * missing + 16)
        u = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device)
        accepted = x[u.log() < log_accept(x)][:missing]
        kept.append(accepted)
        missing -= len(accepted)
    return torch.cat(kept)
