"""What an objective is: a loss whose gradient in the energy's parameters is the learning rule.

    state = objective.init(energy, batch, generator)
    loss  = objective(energy, batch, state, generator);  loss.value.backward();  state = loss.state

An objective is a frozen dataclass of options. What it carries from step to step (persistent chains, a
learned log Z, a flow, a generator network) is its state: a named tuple whose leaves are tensors, numbers,
strings, None, nested (named) tuples or `nn.Module`s, so that it is saved and resumed with the run. Modules in
the state are trained together with the energy, those of their parameters that require a gradient.

A batch is a tensor `(batch, *event)`, or a pair of it and labels `(batch,)`; objectives that do not use
labels ignore them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from gibbsian.derivatives.known import Gradients, trainable, with_gradients
from gibbsian.domains import Domain
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import (
    ArgumentError,
    CapabilityError,
    DataError,
    DivergenceError,
    DomainError,
    ShapeError,
    check_tensor,
)
from gibbsian.fast import graphs
from gibbsian.kernels.base import Kernel
from gibbsian.random import require_generator

Batch = Tensor | Sequence[Tensor]


class Loss(NamedTuple):
    """What an objective returns: `value` to differentiate, the next state, and detached numbers to log.

    `value` is minimized over the parameters of the energy and of the modules in the state. A two-player
    objective also returns `other`, a second loss minimized over the parameters of the state's modules alone;
    `value` is then minimized over the energy's parameters alone. The two may share a graph.

    `gradients` maps parameters to their gradients where those are known without `value.backward()`, which works all
    the same: of every parameter that `value` depends on and that requires one, owned by nobody else. Where there is
    `other`, or where a part must be differentiated, it is None.
    """

    value: Tensor
    state: Any
    metrics: dict[str, Tensor]
    other: Tensor | None = None
    gradients: dict[Tensor, Tensor] | None = None


class Step(NamedTuple):
    """What an objective may want to know about the training step that it is called in.

    `watched`: somebody will look at the metrics; those that cost time are left out otherwise. `fused`: the step will
    be repeated so often that compiling its element-wise parts pays. `done`: how many updates came before it; a step that is
    repeated stands for all up to the next of the objective's `turns`, so it may only be compared with those. `chains`:
    compiling the steps of chains pays too.
    """

    watched: bool = True
    fused: bool = False
    done: int = 0
    chains: bool = False


def within(objective: "Objective") -> "Iterator[Objective]":
    """An objective, its parts, and theirs."""
    yield objective
    for part in objective.parts():
        yield from within(part)


def state_modules(state: Any) -> Iterator[nn.Module]:
    """The modules inside an objective's state."""
    if isinstance(state, nn.Module):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from state_modules(part)


def observed(batch: Batch) -> Tensor:
    """The events of a batch, without its labels."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Sequence) and len(batch) > 0 and isinstance(batch[0], Tensor):
        return batch[0]
    raise DataError(f"a batch is a tensor (batch, *event) or a pair of it and labels, got a {type(batch).__name__}")


def observed_with(batch: Batch, generator: torch.Generator) -> Tensor:
    """The events of a batch, once it is known that the generator can draw where they live."""
    x = observed(batch)
    require_generator(generator, x.device)
    return x


def labels(batch: Batch, objective: str) -> Tensor:
    """The labels `(batch,)` of a batch, as whole numbers."""
    if isinstance(batch, Tensor) or len(batch) != 2:
        raise DataError(
            f"{objective} needs labels: give pairs (x, y), for example torch.utils.data.TensorDataset(x, y)"
        )
    x, y = batch
    check_tensor(y, "labels", "(batch,)", whole=True)
    if y.shape != x.shape[:1]:
        raise ShapeError(f"labels have shape {tuple(y.shape)}, expected ({len(x)},): one whole number a row")
    if y.is_floating_point() or y.dtype == torch.bool:
        raise DataError(f"labels have dtype {y.dtype}, expected whole numbers; call y.long() first")
    return y.long()


def classes_of(batch: Batch) -> Tensor | None:
    """The labels of a batch that has one whole number a row, None of any other."""
    if isinstance(batch, Tensor) or len(batch) != 2:
        return None
    x, y = batch
    whole = not (y.is_floating_point() or y.dtype == torch.bool)
    return y if whole and y.shape == x.shape[:1] else None


@dataclass(frozen=True)
class Objective(ABC):
    """A learning principle. See CONTRIBUTING.md for how to add one."""

    needs_energy: ClassVar[bool] = False  # it compares energies, so that a score alone is not enough
    domains: ClassVar[tuple[type[Domain], ...]] = (Domain,)  # on which the principle holds
    elsewhere: ClassVar[str] = ""  # what to do on others
    third_derivative: ClassVar[bool] = False  # whether training takes that of the energy
    one_law: ClassVar[str] = (
        ""  # what it does that holds for one law only, and not for laws that differ from row to row
    )
    takes_dictionaries: ClassVar[bool] = False  # whether batches of named columns reach it as they are

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> Any:
        """The state before the first step; checks energy and batch once. Stateless objectives return ().

        Noise models are fitted to this batch and chains may start from it: give it as many rows as are at
        hand.
        """
        self.check(energy, batch)
        return ()

    @abstractmethod
    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """The loss on a batch."""

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        """The loss on a batch in a training step of this kind; what `gibbsian.fit` calls."""
        return self(energy, batch, state, generator)

    def check(self, energy: Any, batch: Batch) -> None:
        """Refuse an energy or a batch that this objective cannot use."""
        if not isinstance(energy, Energy | ScoreField):
            raise CapabilityError(
                f"{type(energy).__name__} is not an energy; wrap it with gibbsian.as_energy(function, domain)"
            )
        energy.domain.check(observed(batch), "batch")
        if self.needs_energy and isinstance(energy, ScoreField):
            raise CapabilityError(
                f"{type(self).__name__} compares energies, but {type(energy).__name__} has only a score; "
                "train it with one of the score-matching objectives"
            )
        need_domain(self, energy)
        if self.third_derivative:
            need_third_order(self, energy)

    def log_z(self, state: Any) -> Tensor | None:
        """The log Z that this objective learns along with the energy; None where it learns none."""
        return None

    # --- what others ask about it: objectives that hold others override `parts`, and `gentler` with it ------------

    def parts(self) -> "tuple[Objective, ...]":
        """The objectives inside this one."""
        return ()

    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that it draws its samples with, those of its parts included."""
        return tuple(kernel for part in self.parts() for kernel in part.kernels())

    def descends(self) -> bool:
        """Whether its loss falls as it learns; one that contrasts the data with the model's own draws wanders about zero."""
        return not self.kernels() and all(part.descends() for part in self.parts())

    def planned(self, steps: int) -> Self:
        """The same for a run of so many steps: shares of the run become numbers of steps."""
        return self

    def turns(self) -> tuple[int, ...]:
        """After how many updates its loss becomes another one; those of its parts included."""
        return tuple(turn for part in self.parts() for turn in part.turns())

    @property
    def draws(self) -> bool:
        """Has it a way of its own to draw, `generate`?"""
        return False

    def generate(self, energy: Any, n: int, state: Any, generator: torch.Generator, **options: Any) -> Tensor:
        """n draws `(n, *event)` of a trained energy in the way that this principle has for it; what `run.draw` calls."""
        raise CapabilityError(
            f"{type(self).__name__} has no way of its own to draw; use gibbsian.draw(run.energy, {n}, generator=...), or "
            "of run.ema where there is one"
        )

    def chains_of(self, state: Any) -> Tensor | None:
        """The persistent chains `(slots, *event)` in its state; None where it keeps none."""
        return None

    def redealt(self, states: Sequence[Any], rank: int, ranks: int) -> Any:
        """The state of process `rank` of `ranks`, from those of all processes that a run was saved by: what all of them share
        is the first's. Objectives with chains deal them anew, so that every chain goes on in one place."""
        if self.chains_of(states[0]) is not None:
            raise CapabilityError(
                f"{type(self).__name__} keeps chains and does not say how they are dealt to another number of processes: resume on "
                f"{len(states)}, or write its method redealt(states, rank, ranks)"
            )
        return states[0]

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        """What training goes on with after it diverged: sampler steps times a factor, and an energy penalty of at least
        that weight, where it has such; parts become gentler too."""
        return self

    def signs(self, numbers: dict[str, float]) -> dict[str, str]:
        """Signs of trouble in the logged numbers of a step: a name for each, and what to tell the user."""
        return {name: text for part in self.parts() for name, text in part.signs(numbers).items()}


@dataclass(frozen=True)
class SteppedObjective(Objective):
    """An objective that uses or passes on what it is told about the step: it implements `loss`, not `__call__`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):  # fit would never call it
            raise CapabilityError(
                f"{cls.__name__} is a kind of {cls.__base__.__name__}, which is told what step it is in: override "  # type: ignore[union-attr]
                "loss(energy, batch, state, generator, step) and not __call__"
            )

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """The loss on a batch."""
        return self.loss(energy, batch, state, generator, Step())

    @abstractmethod
    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        """The loss on a batch in a training step of this kind."""


@dataclass(frozen=True)
class WrappedObjective(SteppedObjective):
    """An objective around another one, which does what others ask about it: its kernels, chains, softer settings, log Z."""

    objective: Objective

    def __post_init__(self) -> None:
        if not isinstance(self.objective, Objective):
            raise ArgumentError(
                f"{type(self).__name__}(objective={self.objective!r}): expected one of gibbsian.objectives, such as "
                "ContrastiveDivergence(kernels.Gibbs())"
            )

    def inner(self, state: Any) -> Any:
        """The state of the objective inside."""
        return state

    def parts(self) -> tuple[Objective, ...]:
        return (self.objective,)

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, objective=self.objective.gentler(steps_factor, penalty))

    def descends(self) -> bool:
        return self.objective.descends()

    def planned(self, steps: int) -> Self:
        return replace(self, objective=self.objective.planned(steps))

    @property
    def draws(self) -> bool:
        return self.objective.draws

    def generate(self, energy: Any, n: int, state: Any, generator: torch.Generator, **options: Any) -> Tensor:
        return self.objective.generate(energy, n, self.inner(state), generator, **options)

    def chains_of(self, state: Any) -> Tensor | None:
        return self.objective.chains_of(self.inner(state))

    def redealt(self, states: Sequence[Any], rank: int, ranks: int) -> Any:
        return self.objective.redealt(states, rank, ranks)

    def log_z(self, state: Any) -> Tensor | None:
        return self.objective.log_z(self.inner(state))


def dealt(parts: Sequence[Tensor], rank: int, ranks: int, groups: int = 1) -> Tensor:
    """The share of process `rank` of all rows of some tensors, one after the other; within each of `groups` of rows.

    >>> [dealt([torch.tensor([0, 1, 2]), torch.tensor([3, 4])], rank, 3).tolist() for rank in range(3)]
    [[0], [1, 2], [3, 4]]
    """
    whole = torch.cat([part.unflatten(0, (groups, -1)) for part in parts], 1)
    each = whole.shape[1]
    if each < ranks:
        raise ArgumentError(f"{each * groups} chains cannot be dealt to {ranks} processes; resume on fewer")
    return whole[:, each * rank // ranks : each * (rank + 1) // ranks].flatten(0, 1)


def check_finite(value: Tensor, what: str) -> None:
    """Raise on a non-finite loss term: it is never turned into a number. This waits once for the device; whoever captures checks
    after the replay."""
    if graphs.capturing(value):
        return
    finite = math.isfinite(float(value.detach())) if value.numel() == 1 else bool(torch.isfinite(value).all())
    if not finite:
        raise DivergenceError(
            f"{what} is not finite ({float(value.detach().flatten()[0]):g}); lower the learning rate or the "
            "step size, or let gibbsian.fit's guard roll back"
        )


def need_domain(objective: Objective, energy: Any) -> None:
    """Refuse a domain on which the principle does not hold."""
    if not isinstance(energy.domain, objective.domains):
        names = " or ".join(k.__name__ for k in objective.domains)
        what = "score network" if isinstance(energy, ScoreField) else "energy"
        raise DomainError(
            f"{type(objective).__name__} holds on {names}, but this {what} lives on {energy.domain}; "
            f"{objective.elsewhere}"
        )


def need_third_order(objective: Objective, energy: Any) -> None:
    """Refuse normalization layers whose third derivative torch gets wrong without a word.

    Their fused second derivative takes the statistics for constants (pytorch issues 175754 and 186256).
    """
    if isinstance(energy, ScoreField):
        return
    for name, module in energy.named_modules():
        if isinstance(module, nn.LayerNorm | nn.modules.instancenorm._InstanceNorm | nn.modules.batchnorm._BatchNorm):
            raise CapabilityError(
                f"{type(objective).__name__} differentiates the energy three times, which torch does wrongly "
                f"through {type(module).__name__} ({name}); use gibbsian.energies.LayerNorm, or torch's "
                "RMSNorm or GroupNorm, or train with DenoisingScoreMatching"
            )


def finish(
    objective: Objective,
    value: Tensor,
    state: Any,
    metrics: dict[str, Tensor],
    other: Tensor | None = None,
    gradients: Gradients | None = None,
) -> Loss:
    """The loss, once it is known to be finite."""
    both = value if other is None else value + other.detach()
    check_finite(both, f"the loss of {type(objective).__name__}")
    return Loss(value, state, {name: metric.detach() for name, metric in metrics.items()}, other, gradients)


def accumulated(parts: Sequence[Callable[[], Tensor]], energy: nn.Module) -> tuple[Tensor, Gradients | None]:
    """Σ of parts whose graphs are freed one by one, so that memory is that of the largest part.

    Each part is differentiated at once; the sum carries the collected gradient of the energy's parameters.
    A single part is returned as it is.
    """
    if not parts:
        raise ArgumentError("nothing to add up: give at least one part")
    if len(parts) == 1:
        return parts[0](), None
    parameters, total, gradients = trainable(energy), [], Gradients()
    for part in parts:
        value = part()
        if parameters and value.requires_grad:
            for p, g in zip(parameters, torch.autograd.grad(value, parameters, allow_unused=True), strict=True):
                if g is not None:
                    gradients[p] = gradients[p].add_(g) if p in gradients else g.clone()
        total.append(value.detach())
    return with_gradients(sum(total[1:], total[0]), list(gradients), list(gradients.values()))
