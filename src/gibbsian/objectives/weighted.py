"""Sums of objectives."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from gibbsian.derivatives.known import sum_of
from gibbsian.errors import ArgumentError, check_number
from gibbsian.fast.graphs import Branch
from gibbsian.objectives.base import Batch, Loss, Objective, Step, SteppedObjective, finish, state_modules


@dataclass(frozen=True)
class Weighted(SteppedObjective):
    """Σ wᵢ·Lᵢ: several principles, or a principle and its regularizers, on one energy.

    Each part keeps its own state and draws its own random numbers; metrics are prefixed with the part's
    position and name where two would collide.

    Args:
        objectives: the parts.
        weights: as many numbers; all 1 when left out. A part of weight 0 is evaluated and only watched.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rbm, data = gb.models.RBM(6, 3), torch.ones(10, 6)
    >>> cd, decay = gb.objectives.ContrastiveDivergence(gb.kernels.Gibbs()), gb.objectives.WeightDecay(1e-4)
    >>> objective = Weighted([cd, decay])
    >>> objective(rbm, data, objective.init(rbm, data, g), g).value.backward()
    """

    objectives: Sequence[Objective]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        parts = _listed(self.objectives)
        if not parts or not all(isinstance(part, Objective) for part in parts):
            raise ArgumentError(f"Weighted needs a list of objectives, got {self.objectives!r}")
        weights = (1.0,) * len(parts) if self.weights is None else _listed(self.weights)
        if len(weights) != len(parts):
            raise ArgumentError(f"Weighted got {len(parts)} objectives and weights={self.weights!r}; give as many")
        for i, weight in enumerate(weights):
            check_number(self, f"weights[{i}]", weight)
        object.__setattr__(self, "objectives", parts)
        object.__setattr__(self, "weights", tuple(float(w) for w in weights))

    def parts(self) -> tuple[Objective, ...]:
        return tuple(self.objectives)

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, objectives=tuple(part.gentler(steps_factor, penalty) for part in self.objectives))

    def planned(self, steps: int) -> Self:
        return replace(self, objectives=tuple(part.planned(steps) for part in self.objectives))

    def generate(self, energy: Any, n: int, state: Any, generator: torch.Generator, **options: Any) -> Tensor:
        first = next((i for i, part in enumerate(self.objectives) if part.draws), 0)
        return self.objectives[first].generate(energy, n, state[first], generator, **options)

    @property
    def draws(self) -> bool:
        return any(part.draws for part in self.objectives)

    def redealt(self, states: Sequence[Any], rank: int, ranks: int) -> tuple[Any, ...]:
        each = zip(self.objectives, zip(*states, strict=True), strict=True)
        return tuple(part.redealt(own, rank, ranks) for part, own in each)

    def chains_of(self, state: Any) -> Tensor | None:
        found = (part.chains_of(own) for part, own in zip(self.objectives, state, strict=True))
        return next((chains for chains in found if chains is not None), None)

    def signs(self, numbers: dict[str, float]) -> dict[str, str]:
        found: dict[str, str] = {}
        for own, part in zip(self._prefixes(), self.objectives, strict=True):
            theirs = {name.removeprefix(own): value for name, value in numbers.items() if name.startswith(own)}
            found |= part.signs(numbers | theirs)
        return found

    def _prefixes(self) -> list[str]:
        """What stands before the names of a part's metrics where two would collide."""
        return [f"{i}.{type(part).__name__}." for i, part in enumerate(self.objectives)]

    def check(self, energy: Any, batch: Batch) -> None:
        for part in self.objectives:
            part.check(energy, batch)

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> tuple[Any, ...]:
        return tuple(part.init(energy, batch, generator) for part in self.objectives)

    def log_z(self, state: Any) -> Tensor | None:
        known = [part.log_z(own) for part, own in zip(self.objectives, state, strict=True)]
        return next((z for z in known if z is not None), None)

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        losses = self._losses(energy, batch, state, generator, step)
        weights: Sequence[float] = self.weights  # type: ignore[assignment]
        other = _second_player(losses, weights)
        known = [(loss.value, loss.gradients if other is None else None) for loss in losses]
        value, gradients = sum_of(known, weights)
        state = tuple(loss.state for loss in losses)
        return finish(self, value, state, self._metrics(losses), other, gradients)

    def _losses(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> list[Loss]:
        """Those of the parts, which do not depend on each other: in captured steps the first ones run beside the last, whose chains
        leave room on a GPU. Where passes change the network (power iterations) they take turns."""
        branch = Branch(wanted=step.chains and next(energy.buffers(), None) is None)
        *first, (last, own) = zip(self.objectives, state, strict=True)
        with branch:
            losses = [part.loss(energy, batch, its, generator, step) for part, its in first]
        losses.append(last.loss(energy, batch, own, generator, step))
        branch.join()
        return losses

    def _metrics(self, losses: list[Loss]) -> dict[str, Tensor]:
        """Those of the parts, and the value of each."""
        metrics: dict[str, Tensor] = {}
        names = [name for loss in losses for name in loss.metrics]
        for own, loss in zip(self._prefixes(), losses, strict=True):
            for name, metric in loss.metrics.items():
                metrics[name if names.count(name) == 1 else own + name] = metric
            metrics[own.rstrip(".")] = loss.value
        return metrics


def _listed(several: Any) -> tuple[Any, ...]:
    return tuple(several) if isinstance(several, Iterable) else ()


def _second_player(losses: list[Loss], weights: Sequence[float]) -> Tensor | None:
    """What the modules in the states minimize where a part has two players, else nothing.

    With a second player `value` trains the energy alone, so the modules of one-player parts move over.
    """
    if all(loss.other is None for loss in losses):
        return None
    theirs = []
    for w, loss in zip(weights, losses, strict=True):
        own = loss.value if loss.other is None and any(True for _ in state_modules(loss.state)) else loss.other
        if own is not None:
            theirs.append(w * own)
    return sum(theirs[1:], theirs[0])
