"""Modules that remember how they were constructed, so that a run folder can rebuild them without pickle."""

import inspect
from typing import Any, Self

import torch
from torch import Tensor, nn

__all__ = ["Recorded"]


def _kept(value: Any) -> Any:
    """What is remembered of an argument: tensors without their graph, and no generators (weights are saved)."""
    if isinstance(value, Tensor):
        return value.detach()
    return None if isinstance(value, torch.Generator) else value


class _Signature:
    """What `help`, notebooks and the reference show of a class: the arguments of `__init__`, where `__new__` takes any."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")  # calling an instance is another matter
        found = inspect.signature(owner.__init__)  # type: ignore[misc]
        return found.replace(parameters=list(found.parameters.values())[1:], return_annotation=found.empty)


class Recorded(nn.Module):
    """A module that keeps its constructor's arguments; subclasses need to do nothing.

    >>> class Layer(Recorded):
    ...     def __init__(self, width, scale=1.0):
    ...         super().__init__()
    >>> Layer(3, scale=2.0).constructor_arguments
    ((3,), {'scale': 2.0})
    >>> inspect.signature(Layer)
    <Signature (width, scale=1.0)>
    """

    __signature__ = _Signature()
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
