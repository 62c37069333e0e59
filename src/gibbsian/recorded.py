"""Modules that remember how they were constructed, so that a run folder can rebuild them without pickle."""

from typing import Any, Self

import torch
from torch import Tensor, nn

__all__ = ["Recorded"]


def _kept(value: Any) -> Any:
    """What is remembered of an argument: tensors without their graph, and no generators (weights are saved)."""
    if isinstance(value, Tensor):
        return value.detach()
    return None if isinstance(value, torch.Generator) else value


class Recorded(nn.Module):
    """A module that keeps its constructor's arguments; subclasses need to do nothing.

    >>> class Layer(Recorded):
    ...     def __init__(self, width, scale=1.0):
    ...         super().__init__()
    >>> Layer(3, scale=2.0).constructor_arguments
    ((3,), {'scale': 2.0})
    """

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        kept = tuple(map(_kept, args)), {name: _kept(value) for name, value in kwargs.items()}
        object.__setattr__(self, "_arguments", kept)  # nn.Module is not initialized yet
        return self

    @property
    def constructor_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named arguments, without generators."""
        return self._arguments
