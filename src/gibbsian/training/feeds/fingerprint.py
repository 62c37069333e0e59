"""Numbers by which other data are told apart."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gibbsian.random import stream

_BLOCKS = 64  # numbers of a fingerprint


def fingerprint(take: Callable[[Tensor], Any], rows: int, home: torch.device, most: int) -> list[float]:
    """y_i = ⟨x_i, r⟩ for a fixed random r: its root mean square, and its means over blocks of rows.

    Not more than about `most` entries are read, of rows that lie evenly; a change of rounding changes next to nothing.
    """
    width = sum(part[0].numel() for part in take(torch.zeros(1, dtype=torch.long, device=home)))
    count = min(rows, max(_BLOCKS, most // max(1, width)))
    chosen = torch.linspace(0, rows - 1, count, dtype=torch.float64).round().long().to(home)
    found = []
    for some in chosen.split(max(1, (1 << 22) // max(1, width))):
        flat = torch.cat([part.reshape(len(some), -1).double().to("cpu") for part in take(some)], 1)
        direction = torch.randn(flat.shape[1], generator=stream(0, "fingerprint"), dtype=torch.float64)
        found.append(flat.nan_to_num(0.0, 0.0, 0.0) @ direction)
    y = torch.cat(found)
    means = [float(block.mean()) for block in y.tensor_split(_BLOCKS) if len(block)]
    return [float(y.square().mean().sqrt()), *means]


def same_fingerprint(one: list[float], other: list[float]) -> bool:
    """Are these of the same data, up to rounding?"""
    a, b = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    return a.shape == b.shape and bool(((a - b).abs() <= 1e-4 * torch.maximum(a[0], b[0])).all())
