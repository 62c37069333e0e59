"""What an objective is: a loss whose gradient in the energy's parameters is the learning rule.

    state = objective.init(energy, batch, generator)
    loss  = objective(energy, batch, state, generator);  loss.value.backward();  state = loss.state

An objective is a frozen dataclass of options. What it carries from step to step (persistent chains, a
learned log Z, a flow, a generator network) is its state: a named tuple whose leaves are tensors, numbers,
strings, None, nested named tuples or `nn.Module`s, so that it is saved and resumed with the run. Modules in the
state are trained together with the energy.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import CapabilityError, DivergenceError

__all__ = ["Loss", "Objective", "state_modules"]


class Loss(NamedTuple):
    """What an objective returns: `value` to differentiate, the next state, and detached numbers to log.

    `value` is minimised over the parameters of the energy and of the modules in the state. A two-player objective
    also returns `other`, a second loss minimised over the parameters of the state's modules alone; `value` is
    then minimised over the energy's parameters alone.
    """

    value: Tensor
    state: Any
    metrics: dict[str, Tensor]
    other: Tensor | None = None


def state_modules(state: Any) -> Iterator[nn.Module]:
    """The modules inside an objective's state."""
    if isinstance(state, nn.Module):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from state_modules(part)


@dataclass(frozen=True)
class Objective(ABC):
    """A learning principle. See CONTRIBUTING.md for how to add one."""

    def init(self, energy: Any, batch: Tensor, generator: torch.Generator) -> Any:
        """The state before the first step; checks energy and batch once. Stateless objectives return ()."""
        self.check(energy, batch)
        return ()

    @abstractmethod
    def __call__(self, energy: Any, batch: Tensor, state: Any, generator: torch.Generator) -> Loss:
        """The loss on a batch."""

    def check(self, energy: Any, batch: Tensor) -> None:
        """Refuse an energy or a batch that this objective cannot use."""
        if not isinstance(energy, Energy | ScoreField):
            raise CapabilityError(
                f"{type(energy).__name__} is not an energy; wrap it with gibbsian.as_energy(function, domain)"
            )
        energy.domain.check(batch, "batch")


def check_finite(value: Tensor, what: str) -> None:
    """Raise on a non-finite loss term: it is never turned into a number."""
    if not bool(torch.isfinite(value).all()):
        raise DivergenceError(
            f"{what} is not finite ({float(value.detach().flatten()[0]):g}); lower the learning rate or the step size, "
            "or let gibbsian.fit's guard roll back"
        )
