"""Where chains begin: draws of the domain, rows of the batch, a simple law with its moments, or smooth images."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gibbsian.domains import Domain, partly_discrete
from gibbsian.energies.bases import Factorized, base_bias
from gibbsian.errors import ArgumentError, CapabilityError, check_choice
from gibbsian.kernels.base import where_chain
from gibbsian.random import require_generator

STARTS = ("reference", "data", "gaussian", "rates", "smooth")
Start = str | Mapping[str, float]


def check_start_option(objective: Any, start: Start) -> None:
    """Refuse what is not one of `STARTS`, or shares of them that do not add up to one."""
    if isinstance(start, str):
        check_choice(objective, "start", start, STARTS)
        return
    known = isinstance(start, Mapping) and bool(start) and all(kind in STARTS for kind in start)
    if (
        not known
        or not all(isinstance(share, int | float) for share in start.values())
        or min(start.values()) < 0
        or not abs(sum(start.values()) - 1) <= 1e-6  # nor is a share that is not a number
    ):
        raise ArgumentError(
            f"{type(objective).__name__}(start={start!r}): expected one of {', '.join(STARTS)}, or their shares, such as "
            '{"gaussian": 0.7, "reference": 0.3}'
        )


def _instead(domain: Domain) -> str:
    """Where chains may start that cannot where they were told to."""
    if domain.discrete:
        return "'rates', 'reference' or 'data'"
    return "'reference' or 'data'" if partly_discrete(domain) else "'gaussian'"


def check_starts(start: Start, energy: Any) -> None:
    """Refuse real numbers where x is discrete, rates where it is not, and smooth images where it is no image."""
    other = _instead(energy.domain)
    if "rates" in start and not energy.domain.discrete:
        raise CapabilityError(f"start='rates' draws discrete units, but x is of {energy.domain}; use start={other}")
    for kind in ("gaussian", "smooth"):
        if kind in start and partly_discrete(energy.domain):
            raise CapabilityError(
                f"start={kind!r} draws real numbers, but {energy.domain} is discrete; use start={other}"
            )
    if "smooth" in start and len(energy.domain.shape) != 3:
        raise CapabilityError(
            f"start='smooth' draws images (channels, height, width), but {energy.domain} has shape "
            f"{tuple(energy.domain.shape)}; use start='gaussian' or 'reference'"
        )


def start_points(
    start: Start,
    n: int,
    energy: Any,
    x: Tensor,
    generator: torch.Generator,
    *,
    y: Tensor | None = None,
    wanted: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """n points to begin at. Where the rows of x have classes y, of classes `wanted` `(n,)`; or at given `rows` of x."""
    how = {"y": y, "wanted": wanted, "rows": rows}
    if not isinstance(start, str):
        start = {kind: share for kind, share in start.items() if share}
        if len(start) == 1:
            return start_points(next(iter(start)), n, energy, x, generator, **how)
        which = torch.rand(n, generator=generator, device=x.device)
        points, above = x.new_empty(n, *x.shape[1:]), 1.0
        for kind, share in start.items():
            drawn = start_points(kind, n, energy, x, generator, **how)
            points, above = where_chain(which < above, drawn, points), above - share
        return points
    if start == "reference":
        return energy.domain.sample(n, generator=generator, dtype=x.dtype)
    if start == "smooth":
        return _smooth(energy.domain.sample(n, generator=generator, dtype=x.dtype), generator)
    if start == "rates":
        return Factorized(energy.domain, base_bias(energy.domain, x)).sample(n, generator=generator)
    rows = _rows(n, x, generator, y, wanted) if rows is None else rows
    return x[rows].detach() if start == "data" else energy.domain.within_walls(_gaussian(rows, x, generator, y))


def like_classes(
    x: Tensor, y: Tensor | None, n: int, *, generator: torch.Generator, wanted: Tensor | None = None
) -> Tensor:
    """n draws of Gaussians with the moments of x: a class mean, and the covariance within classes.

        x' = μ_k + B^(-1/2) Σᵢ zᵢ (xᵢ - μ_{yᵢ}),      zᵢ ~ N(0, 1)

    Blurred images of the right kind: where the chains of an energy of images may well begin. From uniform noise they
    fall into textures that no image is near to, and do not come back. No covariance is formed, so a batch of B rows
    is enough in any dimension.

    Reference: Yang & Ji 2021 (JEM++, informative initialization).

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


def _smooth(noise: Tensor, generator: torch.Generator) -> Tensor:
    """Every second, fourth, ... pixel of an image, drawn by lot, enlarged to its size: noise of all scales."""
    size = noise.shape[2:]
    scales = range(1, max(2, (max(size) - 1).bit_length() + 1))
    which = torch.randint(len(scales), (len(noise),), generator=generator, device=noise.device)
    images = noise
    for i, k in enumerate(scales):
        coarse = noise[:, :, :: 2**k, :: 2**k]
        images = where_chain(which == i, F.interpolate(coarse, size, mode="bilinear"), images)
    return images
