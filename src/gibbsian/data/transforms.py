"""From gray values to what units take, as an explicit step."""

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, DataError
from gibbsian.random import require_generator


def binarize(x: Tensor, how: str, *, generator: torch.Generator | None = None, threshold: float = 0.5) -> Tensor:
    """Gray values in [0, 1] as {0, 1}.

    Args:
        x: any shape, values in [0, 1].
        how: "sample", each value is the probability of a 1 (the usual benchmark: draw anew for every epoch, or once
            for a fixed set), or "threshold", 1 where the value is above `threshold`.
        generator: for "sample"; required there.

    >>> binarize(torch.tensor([0.1, 0.9]), how="threshold")
    tensor([0., 1.])
    >>> g = torch.Generator().manual_seed(0)
    >>> binarize(torch.full((10000,), 0.3), how="sample", generator=g).mean().round(decimals=1)
    tensor(0.3000)
    """
    if how not in {"sample", "threshold"}:
        raise ArgumentError(f"binarize(how={how!r}): expected 'sample' or 'threshold'")
    if not x.is_floating_point():
        raise DataError(f"binarize takes floating numbers in [0, 1], got {x.dtype}; for bytes pass x / 255")
    outside = ~((x >= 0) & (x <= 1))
    if bool(outside.any()):
        position = tuple(outside.nonzero()[0].tolist())
        raise DataError(
            f"x{list(position)} = {float(x[position]):g} lies outside [0, 1] ({int(outside.sum())} of {x.numel()} "
            "values do); rescale first, for bytes pass x / 255"
        )
    if how == "threshold":
        return (x > threshold).to(x.dtype)
    require_generator(generator, x.device)
    u = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    return (u < x).to(x.dtype)


def dequantize(x: Tensor, levels: int = 256, *, generator: torch.Generator) -> Tensor:
    """Whole numbers 0 … levels - 1 as real ones in [0, 1): (x + u)/levels with u uniform.

    A density p of the result bounds the likelihood of the whole numbers from below:
    log P(x) ≥ E_u log p((x + u)/levels) - d log levels (Theis et al. 2016).

    >>> g = torch.Generator().manual_seed(0)
    >>> y = dequantize(torch.tensor([0, 255], dtype=torch.uint8), generator=g)
    >>> (y * 256).floor()
    tensor([  0., 255.])
    """
    require_generator(generator, x.device)
    if levels < 2:
        raise ArgumentError(f"dequantize: levels={levels} must be two or more; bytes have 256")
    values = x.float()
    if bool(((values < 0) | (values > levels - 1) | (values != values.floor())).any()):
        raise DataError(
            f"dequantize takes whole numbers from 0 to {levels - 1}; this data has others, rescale it later"
        )
    u = torch.rand(values.shape, generator=generator, device=x.device)
    return ((values + u) / levels).clamp(max=1 - 2.0**-24)  # rounding must not reach 1
