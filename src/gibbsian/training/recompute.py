"""Activation checkpointing: networks that keep little for the backward pass and compute the rest again there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.checkpoint import checkpoint

from gibbsian.errors import CapabilityError

_LISTS = (nn.Sequential, nn.ModuleList)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """What is computed again as one piece: the innermost modules of several layers that stand in a list of such; where a
    network has none, its sequences of layers.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.SiLU()), nn.Sequential(nn.Linear(2, 1)))
    >>> len(blocks_of(net)), len(blocks_of(nn.Sequential(nn.Linear(2, 2), nn.SiLU())))
    (2, 1)
    """
    lists = [module for module in model.modules() if isinstance(module, _LISTS)]
    large = {child for module in lists for child in module.children() if _has_layers(child)}
    around = {child for child in large if large & set(list(child.modules())[1:])}
    return _in_order(model, large - around) or _in_order(model, set(lists))


def _in_order(model: nn.Module, chosen: set[nn.Module]) -> list[nn.Module]:
    return [module for module in model.modules() if module in chosen and not isinstance(module, nn.ModuleList)]


def _has_layers(module: nn.Module) -> bool:
    several = not isinstance(module, nn.ModuleList) and next(module.children(), None) is not None
    return several and next(module.parameters(), None) is not None


@contextmanager
def recomputed(model: nn.Module) -> Iterator[None]:
    """Inside, the blocks of the networks of a model keep nothing but their inputs, and are computed again in backward passes.

    Reference: Chen et al. 2016.
    """
    blocks = blocks_of(model)
    if not blocks:
        raise CapabilityError(
            f"Engine(recompute=True): {type(model).__name__} holds no network of several layers; leave it out"
        )
    for block in blocks:
        if any(is_parametrized(module) for module in block.modules()):
            raise CapabilityError(
                "Engine(recompute=True): weights under spectral_norm move at every pass, so that a second one would give other "
                "gradients; make the network without it"
            )
    for block in blocks:
        block.forward = _again(block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.__dict__["forward"]


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False) if torch.is_grad_enabled() else forward(*inputs)

    return run
