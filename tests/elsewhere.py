"""A second device on any machine: tensors without values, which meet in an error whatever was left on the first."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from gibbsian import trees
from gibbsian.fast import graphs
from gibbsian.random import QuickSeed

DEVICE = torch.device("meta")


class Generator(torch.Generator):
    """One that says that it lives there."""

    device = DEVICE


def moved(tree: Any) -> Any:
    """Tensors and modules of nested tuples, there."""
    return trees.mapped(lambda part: part.to(DEVICE) if isinstance(part, Tensor | nn.Module) else part, tree)


def _autocast(kind: str, **options: Any) -> Any:
    return nullcontext() if kind == DEVICE.type else _real_autocast(kind, **options)


def _seeded(generator: torch.Generator) -> QuickSeed:
    """A seed for numbers that the host draws."""
    return _of(torch.Generator().manual_seed(0))


_real_autocast, _of = torch.autocast, QuickSeed.of


@contextmanager
def elsewhere() -> Iterator[Generator]:
    """As if a step were captured there: nothing can be read. There is no half precision there."""
    with (
        patch.object(graphs, "capturing", lambda value: True),
        patch.object(QuickSeed, "of", _seeded),
        patch.object(torch, "autocast", _autocast),
        patch.object(torch, "is_autocast_enabled", lambda *kind: False),
        patch.object(torch, "get_autocast_dtype", lambda kind: torch.bfloat16),
    ):
        yield Generator()
