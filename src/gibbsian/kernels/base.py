"""What a kernel is: one Markov transition, vectorized over chains, with its randomness as an argument.

A kernel is a frozen dataclass of hyper-parameters. The runner asks it once for `init`, draws the random
numbers and schedule values of many steps with `inputs`, and feeds them to `step` one by one, so eager and
compiled chains see the same numbers and a changed step size never triggers a recompilation.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from gibbsian.domains import Bounded, Discrete, Domain, Real
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, CapabilityError, DomainError
from gibbsian.random import normals

__all__ = ["ChainState", "Info", "Kernel", "MoveInputs", "WalkState", "event_view", "gaussian_inputs", "positive"]


class ChainState(NamedTuple):
    """Where the chains are, with the energy and score already computed there.

    `clamp` is a bool mask, True for entries that are held, or None when all may move.
    """

    x: Tensor
    energy: Tensor
    score: Tensor
    clamp: Tensor | None = None


class WalkState(NamedTuple):
    """Positions and their energies."""

    x: Tensor
    energy: Tensor
    clamp: Tensor | None = None


class Info(NamedTuple):
    """What a person wants to see of one step, per chain. Unadjusted kernels leave both None: nothing is accepted,
    and a chain has diverged where its position is not finite."""

    acceptance: Tensor | None = None  # probability of acceptance
    diverged: Tensor | None = None  # bool: a non-finite energy or state was met


def judge(log_ratio: Tensor, worst: float) -> tuple[Tensor, Tensor]:
    """Acceptance probability and divergence from the log of a Metropolis ratio.

    NaN, +∞ (an energy of -∞) and anything below -`worst` are divergences; -∞ alone may be a wall of the density.
    """
    fine = (log_ratio < torch.inf) & (log_ratio > -worst if worst < math.inf else ~torch.isnan(log_ratio))
    return torch.where(fine, log_ratio.clamp(max=0).exp(), 0.0), ~fine


class MetropolisInfo(NamedTuple):
    """The log of the Metropolis ratio, from which acceptance and divergence follow when somebody asks."""

    log_ratio: Tensor
    worst: float = math.inf

    @property
    def acceptance(self) -> Tensor:
        """Probability of acceptance, 0 where diverged."""
        return judge(self.log_ratio, self.worst)[0]

    @property
    def diverged(self) -> Tensor:
        """Bool: the ratio is not a number, or as good as."""
        return judge(self.log_ratio, self.worst)[1]


def metropolis_test(log_ratio: Tensor, threshold: Tensor) -> Tensor:
    """Which chains accept: log u < log ratio. NaN never does, nor does an energy of -∞."""
    return (threshold < log_ratio) & (log_ratio < torch.inf)


class MoveInputs(NamedTuple):
    """Inputs of one step of a Gaussian-driven kernel; with a leading axis, of many."""

    z: Tensor  # (chains, *event) standard normal
    threshold: Tensor  # (chains,) log of a uniform number
    step_size: Tensor  # () or (chains,)


def positive(name: str, value: Any, kernel: str, *, zero: bool = False) -> None:
    """Refuse a hyper-parameter (number, tensor or schedule) that is not positive and finite."""
    t = torch.as_tensor(value)
    good = bool(((t >= 0) if zero else (t > 0)).all()) and bool(torch.isfinite(t).all()) if t.numel() else False
    if not good:
        bound = "zero or more" if zero else "positive"
        raise ArgumentError(f"{kernel}({name}={value}): {name} must be {bound} and finite; try a value such as 0.1")


def event_view(value: Tensor, x: Tensor) -> Tensor:
    """A per-chain tensor `(chains,)` (or a scalar) shaped to broadcast against `(chains, *event)`."""
    return value.reshape(-1, *[1] * (x.dim() - 1)) if value.dim() else value


def schedule_values(value: Any, steps: int, start: int, like: Tensor, name: str) -> Tensor:
    """The value of a hyper-parameter at `steps` steps from `start`: shape (steps,) or (steps, chains).

    A number holds for all steps; a 1-D tensor is a schedule, one value a step; a 2-D tensor `(1, chains)` is
    one value per chain, held for all steps.
    """
    if isinstance(value, int | float):  # filled on the device: a copy from the host could not be captured
        return torch.full((steps,), value, dtype=like.dtype, device=like.device)
    t = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if t.dim() == 0:
        return t.repeat(steps)  # contiguous, as a schedule is: no recompilation when one replaces the other
    if t.dim() == 2 and len(t) == 1 and len(like) % t.shape[1] == 0:  # tempering has one for several rows
        return t.repeat(steps, 1)
    if t.dim() == 1 and start + steps <= len(t):
        return t[start : start + steps]
    raise ArgumentError(
        f"the schedule of {name} has shape {tuple(t.shape)} but steps {start} to {start + steps} were asked for; "
        "give one number, or one value for every step, or a (1, chains) tensor for one value per chain"
    )


def gaussian_inputs(
    x: Tensor,
    steps: int,
    generator: torch.Generator,
    step_size: Any,
    start: int,
    *,
    name: str = "step_size",
    jitter: float = 0.0,
) -> MoveInputs:
    """Normals for the move, log-uniforms for the acceptance and jittered step sizes, from one block of normals.

    If a, b are standard normal then ½(a² + b²) is exponential with rate 1, so -½(a² + b²) is the log of a
    uniform number: one kind of random number serves all.
    """
    chains, event = len(x), x[0].numel()
    block = normals(steps, chains * (event + 2) + 2, generator, dtype=x.dtype, device=x.device)
    z = block[:, : chains * event].reshape(steps, *x.shape)
    a, b = block[:, chains * event :].split(chains + 1, dim=1)
    log_u = torch.addcmul(a * a, b, b).mul_(-0.5)
    sizes = schedule_values(step_size, steps, start, x, name)
    if jitter:
        factor = 1 + jitter * (2 * log_u[:, -1].exp() - 1)
        sizes = sizes * (factor if sizes.dim() == 1 else factor[:, None])
    return MoveInputs(z, log_u[:, :-1], sizes)


@dataclass(frozen=True)
class Kernel(ABC):
    """One Markov transition. See CONTRIBUTING.md for how to add one."""

    domains: ClassVar[tuple[type[Domain], ...]] = (Real, Bounded)
    needs_energy: ClassVar[bool] = True  # False: a ScoreField is enough
    adjusted: ClassVar[bool] = True  # leaves exp(-E) exactly invariant
    unroll: ClassVar[int] = 10  # steps compiled into one graph
    fixed_chunk: ClassVar[int | None] = None  # steps drawn at a time; 1 where a step draws as it goes

    @abstractmethod
    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> Any:
        """The state at positions x; entries where `clamp` is True will not move."""

    def relocate(self, energy: Any, state: Any, x: Tensor) -> Any:
        """The state at other positions x with the same clamped entries. Kernels that carry more than positions
        and what follows from them (momenta) override it and keep that."""
        return self.init(energy, x, state.clamp)

    @abstractmethod
    def inputs(self, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> Any:
        """Random numbers and schedule values of `steps` steps: a named tuple of tensors with that leading axis."""

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> Any:
        """What the runners call for `inputs`: kernels whose random numbers depend on the model (the hidden layer
        of a machine, the number of categorical sites) override it; kernels that wrap another call this one."""
        return self.inputs(x, steps, generator, start)

    @abstractmethod
    def step(self, energy: Any, state: Any, inputs: Any) -> tuple[Any, Any]:
        """One transition of every chain."""

    def position(self, state: Any) -> Tensor:
        """The positions `(chains, *event)` in a state."""
        return state.x

    def schedules(self) -> tuple[Any, ...]:
        """The hyper-parameters that may be given as one value a step."""
        return ()

    @property
    def scheduled(self) -> bool:
        """Is there one value for every step, so that there cannot be more of them?"""
        return any(isinstance(value, Tensor) and value.dim() == 1 for value in self.schedules())

    def energies(self, state: Any) -> Tensor | None:
        """The energies that a state carries, one for every chain; None where it carries none."""
        return state.energy if isinstance(state, ChainState | WalkState) else None

    def total_steps(self, energy: Any) -> int | None:
        """How many steps a run takes when nobody says; None where that must be said."""
        return None

    def target(self, energy: Any) -> Any:
        """The energy that is handed to `init` and `step` (tempered or annealed kernels change it)."""
        return energy

    def clamped(self, clamp: Tensor) -> Self:
        """The kernel for chains of which the `clamp` entries do not move."""
        return self

    def why_not_compiled(self) -> str | None:
        """Why this kernel runs eagerly even when compilation is asked for; None where it compiles."""
        return None

    def check(self, energy: Any) -> None:
        """Refuse an energy that this kernel cannot sample, and say which kernels can."""
        name = type(self).__name__
        if isinstance(energy, ScoreField):
            if self.needs_energy:
                raise CapabilityError(
                    f"{name} needs an energy for its acceptance test, but {type(energy).__name__} has only a score; "
                    "use kernels.Langevin or kernels.AnnealedLangevin"
                )
        elif not isinstance(energy, Energy):
            raise CapabilityError(
                f"{type(energy).__name__} is not an energy; wrap it with gibbsian.as_energy(function, domain)"
            )
        if not isinstance(energy.domain, self.domains):
            raise DomainError(f"{name} cannot move states of {energy.domain}; {_advice(energy.domain)}")


def _advice(domain: Domain) -> str:
    if isinstance(domain, Discrete):
        return "for discrete states use kernels.Gibbs, SiteGibbs, GibbsWithGradients or DiscreteLangevin"
    return "for continuous states use kernels.RandomWalk, MALA, HMC, NUTS or Langevin"


def masked(t: Tensor, clamp: Tensor | None) -> Tensor:
    """t where entries may move, 0 elsewhere, whatever t is there (a score may be infinite at a held entry)."""
    return t if clamp is None else torch.where(clamp, 0.0, t)


def start_state(energy: Energy, x: Tensor, clamp: Tensor | None) -> ChainState:
    """Energy and (masked) score at x."""
    e, s = energy.energy_and_score(x)
    return ChainState(x, e, masked(s, clamp), clamp)


def where_chain(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Row-wise choice between two tensors of the same shape `(chains, ...)`."""
    return torch.where(event_view(condition, a), a, b)
