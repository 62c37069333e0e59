"""Conformance of an objective: seeds, a finite differentiable loss, and a state that can be saved."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.errors import ArgumentError
from gibbsian.objectives.base import Batch, Loss, Objective, observed, state_modules
from gibbsian.random import require_generator
from gibbsian.testing.common import leaves, replay, require, same, untouched


def check_objective(objective: Objective, energy: Any, batch: Batch, *, generator: torch.Generator) -> list[str]:
    """What `gibbsian.fit` relies on in an objective, apart from its gradient being the right one.

    The loss is one finite number that can be differentiated, in the energy's parameters (or those of the modules in the
    state), with finite gradients; the same generator state gives the same loss, gradient and state to the bit; the
    state is made of tensors, numbers, strings, None, tuples and modules and carries no graph; two steps can follow each
    other; metrics are detached numbers; batch, parameters and global random states stay untouched.

    Args:
        objective: the objective.
        energy: an energy (or score field) that it can train; it is copied, not trained.
        batch: data `(batch, *event)`, or a pair of it and labels.
        generator: required.

    Returns and raises as `check_energy`.

    >>> import gibbsian as gb
    >>> class Contrast(Objective):  # data against noisy data
    ...     def __call__(self, energy, batch, state, generator):
    ...         noisy = batch + torch.randn(batch.shape, generator=generator)
    ...         value = energy(batch).mean() - energy(noisy).mean()
    ...         return Loss(value, state, {"loss": value.detach()})
    >>> g = torch.Generator().manual_seed(0)
    >>> model = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> check_objective(Contrast(), model, torch.randn(8, 2, generator=g), generator=g)
    ['loss', 'gradient', 'state', 'seed']
    """
    if not isinstance(objective, Objective):
        raise ArgumentError(f"objective is a {type(objective).__name__}, expected one of gibbsian.objectives")
    require_generator(generator, observed(batch).device)
    name = type(objective).__name__
    runs = [_two_steps(objective, copy.deepcopy(energy), batch, g) for g in (replay(generator), generator)]
    for a, b in zip(*runs, strict=True):
        require(same(a, b), f"{name} gives another loss, gradient or state from the same generator state")
    return ["loss", "gradient", "state", "seed"]


def _two_steps(objective: Objective, energy: Any, batch: Batch, generator: torch.Generator) -> list[Tensor]:
    """Losses, gradients and states of two steps in a row, every one of them checked."""
    name, found = type(objective).__name__, []
    given = {"batch": batch} if isinstance(batch, Tensor) else {f"batch[{i}]": t for i, t in enumerate(batch)}
    with untouched(f"{name}.init", energy, **given):
        state = objective.init(energy, batch, generator)
    _check_state(name, state)
    for _ in range(2):
        with untouched(name, energy, **given):
            loss = objective(energy, batch, state, generator)
        _check_loss(name, loss)
        gradients = _gradients(name, loss, energy, loss.state)
        found += [loss.value.detach(), *gradients, *(t.detach() for t in _tensors(loss.state))]
        state = loss.state
    return found


def _check_loss(name: str, loss: Any) -> None:
    require(isinstance(loss, Loss), f"{name} returned a {type(loss).__name__}, expected a Loss(value, state, metrics)")
    values = {"value": loss.value} | ({} if loss.other is None else {"other": loss.other})
    for what, value in values.items():
        require(isinstance(value, Tensor) and value.dim() == 0, f"{name}: loss.{what} must be a tensor of shape ()")
        require(bool(torch.isfinite(value)), f"{name}: loss.{what} is {float(value.detach())}")
        require(value.requires_grad, f"{name}: loss.{what} cannot be differentiated")
    for key, value in loss.metrics.items():
        scalar = not isinstance(value, Tensor) or (value.numel() == 1 and not value.requires_grad)
        require(scalar, f"{name}: the metric {key!r} must be one detached number")
    _check_state(name, loss.state)


def _check_state(name: str, state: Any) -> None:
    for leaf in leaves(state):
        known = leaf is None or isinstance(leaf, Tensor | nn.Module | int | float | bool | str)
        kind = type(leaf).__name__
        require(known, f"{name}: the state holds a {kind}, which cannot be saved; use tensors or modules")
        detached = not isinstance(leaf, Tensor) or not leaf.requires_grad
        require(detached, f"{name}: a tensor of the state carries a graph; detach it")


def _tensors(state: Any) -> list[Tensor]:
    found = []
    for leaf in leaves(state):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif isinstance(leaf, nn.Module):
            found += [t.clone() for t in leaf.state_dict().values()]
    return found


def _gradients(name: str, loss: Loss, energy: nn.Module, state: Any) -> list[Tensor]:
    """Gradients of the loss, and of the second player's, all finite and not all absent."""
    own, others = _trained([energy]), _trained(state_modules(state))
    if loss.other is not None:
        found = [*_differentiated(name, loss.value, own).values(), *_differentiated(name, loss.other, others).values()]
    else:
        by_parameter = _differentiated(name, loss.value, own + others)
        for p, gradient in (loss.gradients or {}).items():
            agrees = p in by_parameter and torch.allclose(gradient, by_parameter[p], rtol=1e-4, atol=1e-6)
            require(agrees, f"{name}: a gradient of loss.gradients is not that of loss.value.backward()")
        found = list(by_parameter.values())
    require(all(bool(torch.isfinite(g).all()) for g in found), f"{name}: a gradient is not finite")
    return found


def _trained(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [p for module in modules for p in module.parameters() if p.requires_grad]


def _differentiated(name: str, value: Tensor, parameters: list[nn.Parameter]) -> dict[Tensor, Tensor]:
    require(parameters, f"{name}: there is no parameter to train, neither in the energy nor in the state")
    gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    some: dict[Tensor, Tensor] = {p: g for p, g in zip(parameters, gradients, strict=True) if g is not None}
    require(some, f"{name}: the loss does not depend on any parameter")
    return some
