"""Where chains begin: draws of the domain, rows of the batch, or a Gaussian with the batch's moments."""

from typing import Any

import torch
from torch import Tensor

from gibbsian.errors import CapabilityError
from gibbsian.random import require_generator

__all__ = ["like_classes", "start_points"]

STARTS = ("reference", "data", "gaussian")


def check_starts(start: str, energy: Any) -> None:
    """Refuse Gaussian draws where x is discrete."""
    if start == "gaussian" and energy.domain.discrete:
        raise CapabilityError(
            f"start='gaussian' draws real numbers, but {energy.domain} is discrete; use start='reference' or 'data'"
        )


def start_points(
    start: str,
    n: int,
    energy: Any,
    x: Tensor,
    generator: torch.Generator,
    y: Tensor | None = None,
    wanted: Tensor | None = None,
) -> Tensor:
    """n points to begin at, by one of `STARTS`; where the rows of x have classes y, of classes `wanted` `(n,)`."""
    if start == "reference":
        return energy.domain.sample(n, generator=generator, dtype=x.dtype)
    rows = _rows(n, x, generator, y, wanted)
    return x[rows].detach() if start == "data" else energy.domain.within_walls(_gaussian(rows, x, generator, y))


def like_classes(
    x: Tensor, y: Tensor | None, n: int, *, generator: torch.Generator, wanted: Tensor | None = None
) -> Tensor:
    """n draws of Gaussians with the moments of x: a class mean, and the covariance within classes.

        x' = μ_k + B^(-1/2) Σᵢ zᵢ (xᵢ - μ_{yᵢ}),      zᵢ ~ N(0, 1)

    Blurred images of the right kind: where the chains of an energy of images may well begin. From uniform noise they
    fall into textures that no image is near to, and do not come back. No covariance is formed, so a batch of B rows
    is enough in any dimension.

    Reference: Yang & Ji 2021 (JEM++, informative initialisation).

    Args:
        x: `(B, *event)`.
        y: classes `(B,)`; None takes all rows for one class.
        n: how many draws; their classes come as often as in y.
        generator: the source of randomness.
        wanted: classes `(n,)` of the draws; one that y does not have is replaced by any.

    >>> x, y = torch.tensor([[0.0], [2.0], [9.0], [11.0]]), torch.tensor([0, 0, 1, 1])
    >>> draws = like_classes(x, y, 1000, wanted=torch.ones(1000), generator=torch.Generator().manual_seed(0))
    >>> f"{draws.mean():.1f} {draws.var():.1f}"
    '10.0 1.0'
    """
    require_generator(generator, x.device)
    return _gaussian(_rows(n, x, generator, y, wanted), x, generator, y)


def _rows(n: int, x: Tensor, generator: torch.Generator, y: Tensor | None, wanted: Tensor | None) -> Tensor:
    """n rows of x, of classes `wanted` where there are such rows."""
    if y is None or wanted is None:
        return torch.randint(len(x), (n,), generator=generator, device=x.device)
    chance = torch.rand(n, len(x), generator=generator, device=x.device)
    return (chance + (wanted[:, None] == y).to(chance)).argmax(1)


def _gaussian(rows: Tensor, x: Tensor, generator: torch.Generator, y: Tensor | None) -> Tensor:
    """For every one of `rows` a draw about the mean of its class."""
    flat = x.detach().flatten(1)
    with torch.autocast(x.device.type, enabled=False):
        same = torch.ones(1, len(x), device=x.device) if y is None else y[:, None] == y
        same = same.to(flat.dtype)
        means = (same @ flat / same.sum(1, keepdim=True)).expand_as(flat)
        z = torch.randn(len(rows), len(x), generator=generator, device=x.device, dtype=flat.dtype)
        return (means[rows] + z @ (flat - means) / len(x) ** 0.5).view(-1, *x.shape[1:])
