"""A principle that does not train all of an energy."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gibbsian.derivatives.known import frozen
from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.objectives.base import Batch, Loss, Step, WrappedObjective


@dataclass(frozen=True)
class Sparing(WrappedObjective):
    """An objective whose gradient does not reach some modules of the energy; they are part of it all the same.

    Inside `Weighted` every module of an energy can have its own principles: a classifier learns from cross-entropy alone
    (`nets.Corrected`), while chains move in the sum of both networks and train the other one.

    Args:
        objective: what trains the rest.
        names: modules whose own name, the last part of the dotted one, is one of these are spared, and with them what others share
            with them.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> net = gb.nets.Corrected(gb.nets.MLP(2, outputs=3), gb.nets.MLP(2, outputs=3))
    >>> joint = gb.models.JointEnergy(net, gb.domains.Real(2))
    >>> batch = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])
    >>> Sparing(gb.objectives.CrossEntropy(), ["classifier"])(joint, batch, (), g).value.backward()
    >>> [all(p.grad is None for p in part.parameters()) for part in (net.base, net.classifier)]
    [False, True]
    """

    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        names = tuple(self.names) if isinstance(self.names, Sequence) and not isinstance(self.names, str) else ()
        if not names:
            raise ArgumentError(f"Sparing(names={self.names!r}): a list of names of modules, such as ['classifier']")
        object.__setattr__(self, "names", names)

    def spared(self, energy: nn.Module) -> list[nn.Module]:
        """The modules that are not trained."""
        named = _by_own_name(energy)
        there = [name for name, _ in named if not name.isdigit()]
        if missing := [name for name in self.names if name not in there]:
            raise CapabilityError(
                f"Sparing: {type(energy).__name__} has no module {' or '.join(map(repr, missing))}; it has "
                f"{', '.join(dict.fromkeys(there)) or 'none, and what is spared is a module'}"
            )
        return [module for name, module in named if name in self.names]

    def sparing(self, energy: nn.Module) -> AbstractContextManager[None]:
        """Inside, no gradient reaches them."""
        return frozen(nn.ModuleList(self.spared(energy)))

    def check(self, energy: Any, batch: Batch) -> None:
        with self.sparing(energy):
            self.objective.check(energy, batch)

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> Any:
        with self.sparing(energy):  # what a state holds of the parameters, it holds of those that are trained
            return self.objective.init(energy, batch, generator)

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        with self.sparing(energy):
            return self.objective.loss(energy, batch, state, generator, step)


def _by_own_name(energy: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules inside, with the last parts of their dotted names; one that stands in two places has both."""
    every = energy.named_modules(remove_duplicate=False)
    return [(path.rpartition(".")[2], module) for path, module in every if path]
