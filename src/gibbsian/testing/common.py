"""What the checks share: a way to fail with a reason, and witnesses that nothing else was touched."""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def require(condition: object, message: str) -> None:
    """Fail the check with a reason."""
    if not condition:
        raise AssertionError(message)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit, NaN counted as equal to NaN."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())


def replay(generator: torch.Generator) -> torch.Generator:
    """A copy that will give the same numbers, so that a run can be repeated."""
    copy = torch.Generator(generator.device)
    copy.set_state(generator.get_state())
    return copy


def leaves(state: Any) -> Iterator[Any]:
    """Everything inside nested tuples, lists and dictionaries."""
    if not isinstance(state, tuple | list | dict):
        yield state
        return
    for part in state.values() if isinstance(state, dict) else state:
        yield from leaves(part)


def _global_states() -> list[Any]:
    cuda = [s.numpy().tobytes() for s in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else []
    legacy = pickle.dumps(np.random.get_state())  # noqa: NPY002 - the state that must not move
    return [torch.get_rng_state().numpy().tobytes(), cuda, random.getstate(), legacy]


def _unmoved(now: Tensor | None, before: Tensor | None) -> bool:
    return now is before if now is None or before is None else same(now, before)


@contextmanager
def untouched(what: str, module: nn.Module | None = None, **tensors: Tensor) -> Iterator[None]:
    """Fail if the code inside uses the global random states or writes into these tensors or the module."""
    before = _global_states()
    kept = {name: (t, t.detach().clone()) for name, t in tensors.items()}
    model = nn.Module() if module is None else module
    held = [(n, t, t.detach().clone()) for n, t in model.state_dict(keep_vars=True).items()]
    gradients = [(n, p, None if p.grad is None else p.grad.clone()) for n, p in model.named_parameters()]
    yield
    moved = f"{what} moved a global random state; draw from a generator: torch.randn(..., generator=generator)"
    require(_global_states() == before, moved)
    for name, (t, copy) in kept.items():
        require(same(t.detach(), copy), f"{what} wrote into {name}; work on a copy")
    for name, t, copy in held:
        require(same(t.detach(), copy), f"{what} changed {name} of the model; only an optimizer may")
    for name, p, gradient in gradients:
        left = f"{what} left a gradient in {name} of the model; use torch.autograd.grad for the score"
        require(_unmoved(p.grad, gradient), left)
