"""What a kernel is: one Markov transition, vectorized over chains, with its randomness as an argument.

    state = kernel.init(energy, x);   inputs = kernel.draw(energy, x, steps, generator);   step, step, step, ...

The runner asks once for `init`, has the random numbers and schedule values of many steps drawn, and feeds them to
`step` one by one, so eager and compiled chains see the same numbers and a changed step size never triggers a
recompilation.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from gibbsian.domains import Bounded, Counts, Discrete, Domain, Joined, Real
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, CapabilityError, DomainError
from gibbsian.fast import graphs
from gibbsian.random import normals


class ChainState(NamedTuple):
    """Where the chains are, with the energy and score there; `clamp` is True for entries that are held, or None."""

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
    """Acceptance probability and divergence from the log of a Metropolis ratio: NaN, +∞ (an energy of -∞) and anything
    below -`worst` are divergences; -∞ alone may be a wall of the density."""
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
    if isinstance(value, Tensor) and graphs.capturing(value):  # the same kernel was made eagerly before
        return
    try:
        t = torch.as_tensor(value)
        good = (
            t.numel() > 0
            and t.dtype != torch.bool
            and bool(((t >= 0) if zero else (t > 0)).all() & torch.isfinite(t).all())
        )
    except (TypeError, ValueError, RuntimeError):  # words, None, complex numbers, tensors without values
        good = False
    if not good:
        bound = "zero or more" if zero else "positive"
        raise ArgumentError(f"{kernel}({name}={value!r}): {name} must be {bound} and finite; try a value such as 0.1")


def event_view(value: Tensor, x: Tensor) -> Tensor:
    """A per-chain tensor `(chains,)` (or a scalar) shaped to broadcast against `(chains, *event)`."""
    return value.reshape(-1, *[1] * (x.dim() - 1)) if value.dim() else value


def schedule_values(value: Any, steps: int, start: int, like: Tensor, name: str) -> Tensor:
    """The value of a hyper-parameter at `steps` steps from `start`, `(steps,)` or `(steps, chains)`: from a number, a
    schedule (1-D, one value a step), or a `(1, chains)` tensor, held for all steps."""
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
    """Normals for the move, log-uniforms for the acceptance and jittered step sizes, from one block of normals: if a, b
    are standard normal then -½(a² + b²) is the log of a uniform number. Jitter is one such number for a step, turned by
    c/chains for chain c: uniform for every chain, and the mean over chains of what depends on it has little noise."""
    chains, event = len(x), x[0].numel()
    block = normals(steps, chains * (event + 2) + 2, generator, dtype=x.dtype, device=x.device)
    z = block[:, : chains * event].reshape(steps, *x.shape)
    a, b = block[:, chains * event :].split(chains + 1, dim=1)
    log_u = torch.addcmul(a * a, b, b).mul_(-0.5)
    sizes = schedule_values(step_size, steps, start, x, name)
    if jitter:
        count = chains if sizes.dim() == 1 else sizes.shape[1]
        turns = torch.arange(count, dtype=x.dtype, device=x.device) / count
        u = torch.frac(log_u[:, -1:].exp() + turns)
        sizes = (sizes[:, None] if sizes.dim() == 1 else sizes) * (1 + jitter * (2 * u - 1))
    return MoveInputs(z, log_u[:, :-1], sizes)


@dataclass(frozen=True)
class Kernel(ABC):
    """One Markov transition of all chains at once, as a frozen dataclass of hyper-parameters.

    A new kernel writes `init`, `draw` and `step`, and says in class variables what it is. Parameters, positions and
    what follows from them are tensors in the state, a named tuple; hyper-parameters reach `step` through the inputs,
    never as numbers of `self`, so that changing them compiles nothing anew. All else has a default: `position`,
    `energies`, `known` and `relocate` where the state is not a `ChainState` or `WalkState`; `target`, `total_steps`, `check`
    for kernels that change the energy or refuse some; the last four methods for `gibbsian.warm_up`.

    >>> @dataclass(frozen=True)
    ... class Brown(Kernel):  # Brownian motion: it forgets the energy
    ...     adjusted: ClassVar[bool] = False
    ...     def init(self, energy, x, clamp=None):
    ...         return WalkState(x, energy(x), clamp)
    ...     def draw(self, energy, x, steps, generator, start=0):
    ...         return (normals(steps, x.numel(), generator, dtype=x.dtype, device=x.device).reshape(steps, *x.shape),)
    ...     def step(self, energy, state, inputs):
    ...         return self.init(energy, state.x + masked(inputs[0], state.clamp), state.clamp), Info()
    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> gb.sample(gb.energies.Banana(), Brown(), torch.zeros(8, 2), steps=10, generator=g).samples.shape
    torch.Size([10, 8, 2])
    """

    domains: ClassVar[tuple[type[Domain], ...]] = (Real, Bounded)
    needs_energy: ClassVar[bool] = True  # False: a ScoreField is enough
    adjusted: ClassVar[bool] = True  # leaves exp(-E) exactly invariant
    mixes: ClassVar[bool] = True  # chains settle in a law; False: they go a way, and what counts is where they end
    one_proposal: ClassVar[bool] = False  # a step asks for energy and score at one point last, and goes there or stays
    unroll: ClassVar[int] = 10  # steps compiled into one graph
    draws_in_steps: ClassVar[str] = ""  # why `step` must draw from a generator in its inputs: run eagerly, one by one
    tuned: ClassVar[str] = ""  # the field with the step size: a warm-up adapts it, or it is a schedule
    goal: ClassVar[float | None] = None  # the mean acceptance that a warm-up should reach; None where nobody knows
    has_mass: ClassVar[bool] = False  # whether a warm-up finds a mass too

    @abstractmethod
    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> Any:
        """The state at positions x; entries where `clamp` is True will not move."""

    @abstractmethod
    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> Any:
        """What `steps` steps from number `start` on need besides the state: random numbers and schedule values.

        A tuple (named, if you like) of tensors, each with the leading axis `steps`, from `gibbsian.random.normals` and
        `uniforms`, which on the CPU do not depend on how a run is cut; `step` gets one slice after the other. How many
        numbers there are may depend on the model (the hidden layer of a machine, the number of categorical sites). A
        kernel that cannot know before hands its steps generators instead, and says why in `draws_in_steps`.
        """

    @abstractmethod
    def step(self, energy: Any, state: Any, inputs: Any) -> tuple[Any, Any]:
        """One transition of every chain: the new state, and an `Info` or `MetropolisInfo`."""

    def position(self, state: Any) -> Tensor:
        """The positions `(chains, *event)` in a state."""
        return state.x

    def energies(self, state: Any) -> Tensor | None:
        """The energies that a state carries, one for every chain; None where it carries none."""
        return state.energy if isinstance(state, ChainState | WalkState) else None

    def relocate(self, energy: Any, state: Any, x: Tensor) -> Any:
        """The state at other positions x with the same clamped entries. Kernels that carry more than positions
        and what follows from them (momenta) override it and keep that."""
        return self.init(energy, x, state.clamp)

    def known(self, state: Any) -> tuple[Tensor, ...]:
        """What a state carries that follows from its positions, each with a leading axis of chains: energies, scores."""
        if isinstance(state, ChainState):
            return state.energy, state.score
        energy = self.energies(state)
        return () if energy is None else (energy,)

    def resumes(self, other: "Kernel") -> bool:
        """Whether a state of the other kernel, of whatever step size, can be gone on from."""
        return type(self) is type(other)

    def outdated(self, energy: Any, state: Any, clamp: Tensor | None = None) -> bool:
        """Whether a state carries what is not true of this kernel and this energy at its positions."""
        carried = self.known(state)
        if not carried:
            return False
        fresh = self.known(self.init(energy, self.position(state), clamp))
        return not all(_agree(a, b) for a, b in zip(carried, fresh, strict=True))

    def exchanged(self, state: Any, rows: Tensor, factor: Tensor) -> Any | None:
        """The state with each chain in the place of another, where the energy is `factor` (one a chain) times that of
        its old place; None where that must be computed anew."""
        if not isinstance(state, ChainState | WalkState):
            return None
        x, energy = state.x.index_select(0, rows), factor * state.energy.index_select(0, rows)
        if isinstance(state, WalkState):
            return state._replace(x=x, energy=energy)
        score = state.score.index_select(0, rows)
        return state._replace(x=x, energy=energy, score=event_view(factor, score) * score)

    def schedules(self) -> tuple[Any, ...]:
        """The hyper-parameters that may be given as one value a step."""
        return (getattr(self, self.tuned),) if self.tuned else ()

    @property
    def scheduled(self) -> bool:
        """Is there one value for every step, so that there cannot be more of them?"""
        return any(isinstance(value, Tensor) and value.dim() == 1 for value in self.schedules())

    @property
    def period(self) -> int:
        """After how many steps its schedule begins again; 1 where it has none, or one that does not."""
        return 1

    def total_steps(self, energy: Any) -> int | None:
        """How many steps a run takes when nobody says; None where that must be said."""
        return None

    def target(self, energy: Any) -> Any:
        """The energy that is handed to `init`, `draw` and `step` (tempered or annealed kernels change it)."""
        return energy

    def clamped(self, clamp: Tensor) -> Self:
        """The kernel for chains of which the `clamp` entries do not move."""
        return self

    def best_acceptance(self, moving: int) -> float | None:
        """The goal of a warm-up with so many moving entries."""
        return self.goal

    @property
    def largest(self) -> float:
        """What the step size is multiplied with at the most."""
        return 1.0

    def probe(self) -> "Kernel":
        """The kernel whose single moves tell the order of the step size: trajectories are judged by their first step."""
        return self

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


FULL = 4  # of a kick; whole, so that compilers leave its share open, and half of it is not one, for which they never do


@dataclass(frozen=True)
class Flying(Kernel):
    """A kernel whose step is a trajectory, the same `step` in parts: most of its moves are alike, and compilers need see one of them
    only."""

    @property
    @abstractmethod
    def moves(self) -> int:
        """How many moves there are in a step before the last one; fewer than two are not worth parts."""

    @abstractmethod
    def ready(self, state: Any) -> bool:
        """Whether `launch` has nothing to compute: a trajectory begins with tensors that are there."""

    @abstractmethod
    def launch(self, state: Any, inputs: Any) -> Any:
        """The beginning of the trajectory, before its first move."""

    @abstractmethod
    def move(self, energy: Any, flight: Any, inputs: Any, share: int) -> Any:
        """One move on, with a share of `FULL` of the kick before it: half of it in the first move."""

    @abstractmethod
    def land(self, energy: Any, state: Any, flight: Any, inputs: Any) -> tuple[Any, Any]:
        """The last move: the state after the step that began at `state`, and its info."""


def roomy(t: Tensor, steps: int) -> Tensor:
    """The same with room for so many steps; the rest is never read."""
    if len(t) == steps:
        return t.contiguous()  # one form, whatever is cut from what
    room = t.new_zeros(steps, *t.shape[1:])
    room[: len(t)] = t
    return room


@dataclass(frozen=True)
class FreeRunning(Kernel):
    """A kernel whose chains go through their iterations each at its own pace.

    Some iterations are a machine: `begin` builds it from the state and the inputs of all of them, `micro_step` moves every
    chain on by one unit of work, wherever in whatever iteration it is, until the machine says that all are done, `finish`
    takes out what they gave. A machine has three parts, named tuples of tensors: what stays the same, what a micro-step
    makes anew (its last field tells how far it is) and what it writes into. Cut is by iteration, never by work done: else
    short trajectories would be preferred.
    """

    @property
    @abstractmethod
    def reaches(self) -> tuple[int, ...]:
        """Values of `reach` that are worth looking at how far the machine is, in ascending order; the last one is enough for all."""

    @abstractmethod
    def begin(self, energy: Any, state: Any, inputs: Any, room: int = 0) -> tuple[Any, Any, Any]:
        """The machine for iterations whose inputs have a leading axis: what stays, what moves, what is written into; with
        room for more of them, so that machines for any number have tensors of one shape."""

    @abstractmethod
    def micro_step(self, energy: Any, ground: Any, moving: Any, slots: Any, reach: int) -> Any:
        """Every chain moved on: the new moving part, whose last field `()` is negative when all iterations are done, and
        else the `reach` that the next micro-step needs at least."""

    @abstractmethod
    def finish(self, state: Any, ground: Any, moving: Any, slots: Any) -> tuple[Any, Tensor, Any]:
        """The state after the iterations, and positions and info of each, with a leading axis."""

    def run(self, energy: Any, state: Any, inputs: Any) -> tuple[Any, Tensor, Any]:
        """Some iterations of all chains, as PyTorch runs them: the state after them, positions and info of each."""
        ground, moving, slots = self.begin(energy, state, inputs)
        look = 8 if moving[-1].is_cuda else 1  # a look waits for the device
        reach = 0
        while reach >= 0:
            for i in range(look):
                moving = self.micro_step(energy, ground, moving, slots, min(reach + i, self.reaches[-1]))
            reach = int(moving[-1])
        return self.finish(state, ground, moving, slots)

    def step(self, energy: Any, state: Any, inputs: Any) -> tuple[Any, Any]:
        state, _, info = self.run(energy, state, type(inputs)(*(part[None] for part in inputs)))
        return state, type(info)(*(part[0] for part in info))


@dataclass(frozen=True)
class Lockstep(FreeRunning):
    """A machine all of whose chains take as many moves as the others for an iteration, known before it begins.

    Whoever counts them need not ask the device how far it is, and no micro-step must be ready for all that may come: an
    iteration is `launch`, as many moves as `moves_of` says, `land`. The first field of what moves is the trajectory itself, which
    `launch` makes anew: nobody carries it from one iteration to the next.
    """

    @abstractmethod
    def moves_of(self, inputs: Any) -> list[int]:
        """How many moves each of the iterations takes, one at least."""

    @abstractmethod
    def launch(self, ground: Any, moving: Any) -> Any:
        """The chains at the start of the next iteration; after the last one, of any."""

    @abstractmethod
    def move(self, energy: Any, ground: Any, moving: Any, count: int) -> Any:
        """So many moves on."""

    @abstractmethod
    def land(self, ground: Any, moving: Any, slots: Any) -> Any:
        """The chains after the iteration, whose results are written down."""


def _advice(domain: Domain) -> str:
    if isinstance(domain, Joined | Counts):
        return "for mixed states and counts use kernels.Gibbs on a machine, or kernels.Metropolis with a proposal of your own"
    if isinstance(domain, Discrete):
        return "for discrete states use kernels.Gibbs, SiteGibbs, GibbsWithGradients or DiscreteLangevin"
    return "for continuous states use kernels.RandomWalk, MALA, HMC, NUTS or Langevin"


def _agree(a: Tensor, b: Tensor) -> bool:
    """Equal but for the rounding of a batch computed in another way, NaN to NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = (t.reshape(len(t), -1) for t in (a, b))
    size = 1 + b.abs().nan_to_num(0.0, 0.0, 0.0).amax(1, keepdim=True)
    near = (a - b).abs() <= torch.finfo(a.dtype).eps ** 0.4 * size
    return bool((near | (a == b) | (a.isnan() & b.isnan())).all())


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


def where_state(condition: Tensor, a: Any, b: Any) -> Any:
    """Row-wise choice between two states of which everything belongs to rows but what they share."""
    rows = event_view(condition, a.x)
    return type(a)(
        *[p if p is q else torch.where(condition if p.dim() == 1 else rows, p, q) for p, q in zip(a, b, strict=True)]
    )


def accept(
    old: Any, new: Any, log_ratio: Tensor, threshold: Tensor, worst: float = math.inf
) -> tuple[Any, MetropolisInfo]:
    """Every chain in its new state or in the old one, by the Metropolis test."""
    return where_state(metropolis_test(log_ratio, threshold), new, old), MetropolisInfo(log_ratio, worst)
