"""Compiled steps of a kernel: replayed in a C loop on the CPU, captured in a graph on CUDA.

Every engine is called with energy, kernel, state and the inputs of some steps, and returns the state after them with
positions, acceptance, divergences and further statistics of each. None of them holds the energy.
"""

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gibbsian.fast.compiled import Forgiving
from gibbsian.fast.graphs import CapturedChunk, Pool, capture, carry_over, fixed_copy, on_side_stream, tensors_of
from gibbsian.fast.recorded import Recorder, ReplayError
from gibbsian.fast.replay import replay
from gibbsian.fast.tape import Player, Tape, find_tape, save_tape
from gibbsian.fast.traced import NamelessError, Traced, traced
from gibbsian.kernels.base import FULL, Flying, FreeRunning, Kernel, Lockstep
from gibbsian.sampling.chunks import one_step, run_chunk, told
from gibbsian.trees import mapped

Made = tuple[Any, Tensor, Tensor, Tensor, dict[str, Tensor]]  # state; positions, acceptance, diverged, statistics
Compiler = Callable[..., Callable[..., Any]]  # of a function and names of numbers left open
LateCompiler = Callable[..., Callable[..., Any]]  # of an energy, a function, names of numbers left open; it holds none
_ENDLESS = 1 << 62
_PATIENCE = 3.0  # seconds of looking at steps before runs, after which the compiler, whose guards look faster, has paid
_SMALL = 1 << 12  # numbers in a state, beyond which what passes between the parts of a step costs up to a quarter of it
_COMPARED = 16  # steps at which a replay is compared with ordinary calls


def step_and_tell(energy: Any, kernel: Kernel, state: Any, inputs: Any) -> tuple[Any, Any]:
    """One step: the new state, and its position and info."""
    state, info = kernel.step(energy, state, inputs)
    return state, (kernel.position(state), info)


def micro_step(
    energy: Any, kernel: FreeRunning, reach: int, ground: Any, slots: Any, moving: Any, _: Any
) -> tuple[Any, tuple[()]]:
    """One micro-step of a free-running kernel."""
    return kernel.micro_step(energy, ground, moving, slots, reach), ()


def launch(kernel: Flying, state: Any, inputs: Any) -> Any:
    """The beginning of a step."""
    return kernel.launch(state, inputs)


def one_move(energy: Any, kernel: Flying, flight: Any, inputs: Any, share: int) -> Any:
    """A move before the last."""
    return kernel.move(energy, flight, inputs, share)


def land_and_tell(energy: Any, kernel: Flying, state: Any, flight: Any, inputs: Any) -> tuple[Any, Any]:
    """The end of a step: the new state, and its position and info."""
    state, info = kernel.land(energy, state, flight, inputs)
    return state, (kernel.position(state), info)


def in_parts(compiled: Compiler, ready: bool = False) -> Callable[..., tuple[Any, Any]]:
    """`step_and_tell` of a kernel whose moves are alike: one of them is compiled and not all, which takes half of the time; so
    is the beginning, unless it is ready."""
    begin = launch if ready else compiled(launch)
    go_on, end = compiled(one_move, "share"), compiled(land_and_tell)

    def step(energy: Any, kernel: Flying, state: Any, inputs: Any) -> tuple[Any, Any]:
        flight = begin(kernel, state, inputs)
        for i in range(kernel.moves):
            flight = go_on(energy, kernel, flight, inputs, FULL if i else FULL // 2)
        return end(energy, kernel, state, flight, inputs)

    return step


def _same(a: Any, b: Any) -> bool:
    """Equal but for the rounding of another order of sums, NaN to NaN."""
    pairs = zip(tensors_of(a), tensors_of(b), strict=True)
    return all(torch.allclose(p, q, rtol=torch.finfo(p.dtype).eps ** 0.5, atol=torch.finfo(p.dtype).eps ** 0.5, equal_nan=True)
               if p.is_floating_point() else torch.equal(p, q) for p, q in pairs)  # fmt: skip


class Engine(ABC):
    """Makes steps; `obstacle` says why it is slower than it might be, and is None while nobody knows."""

    obstacle: str | None = ""
    failure = ""  # of the compiler, where steps are captured as PyTorch runs them

    def renew(self) -> None:  # noqa: B027
        """Look anew, before a run, at what is not said by shapes: values that energy and kernel hold as Python's numbers."""

    @abstractmethod
    def __call__(self, energy: Any, kernel: Any, state: Any, inputs: Any) -> Made:
        """The steps of these inputs."""


class Replayed(Engine):
    """What engines on the CPU share: whether steps can be replayed is found out with the first of them. Where a tape of what they
    do lies on disk it is played, and nothing is compiled."""

    def __init__(self, function: Callable[..., Any], compiled: LateCompiler) -> None:
        self.function, self.compiler = function, compiled
        self.compiled: Callable[..., Any] | None = None
        self.recorder = Recorder()
        self.players: dict[Any, Player | Recorder] = {}  # by the numbers that a step is made for
        self.former: dict[Any, Player | Recorder] = {}  # of earlier runs
        self.trusted: set[str] = set()  # tapes that have been compared with PyTorch
        self.looked = 0.0  # seconds
        self.obstacle = None

    def step(self, things: tuple[Any, ...]) -> Callable[..., Any]:
        """The step, compiled when it is asked for; the energy is the first of the things."""
        if self.compiled is None:
            self.compiled = self.compiler(things[0], self.function)
        return self.compiled

    def renew(self) -> None:
        for key in [key for key, player in self.players.items() if isinstance(player, Player)]:
            self.former[key] = self.players.pop(key)

    def __call__(self, energy: Any, kernel: Any, state: Any, inputs: Any) -> Made:
        if self.obstacle is None:
            self.obstacle = self._try(energy, kernel, state, inputs)
        return self.make(energy, kernel, state, inputs)

    def _try(self, energy: Any, kernel: Any, state: Any, inputs: Any) -> str:
        """Compile, and compare some steps made in both ways."""
        try:
            replayed = self.trial(energy, kernel, state, inputs, True)
            if all(isinstance(player, Player) for player in self.players.values()):
                return ""  # compared already
            plain = self.trial(energy, kernel, state, inputs, False)
        except ReplayError as error:
            return f"steps are compiled but not replayed, because {error}"
        return "" if _same(plain, replayed) else "steps are compiled but not replayed, because that gave other numbers"

    @abstractmethod
    def trial(self, energy: Any, kernel: Any, state: Any, inputs: Any, replayed: bool) -> Any:
        """What some steps give, replayed or called one by one."""

    @abstractmethod
    def make(self, energy: Any, kernel: Any, state: Any, inputs: Any) -> Made:
        """All the steps."""

    def call(
        self, things: tuple[Any, ...], state: Any, inputs: Any, steps: int, limit: int | None, replayed: bool
    ) -> tuple[Any, Any]:
        """So many steps, or until the last tensor of the state leaves 0 ... limit: the state and all outputs."""
        if not replayed:  # copied as for a replay: of tensors that are one and the same another form would be compiled
            return _one_by_one(self.step(things), things, fixed_copy(state), inputs, steps, limit)
        key = _numbers(things)
        if key not in self.players:
            self.players[key] = self._player(things, state, inputs, steps, limit)
        player = self.players[key]
        step = self.step(things) if isinstance(player, Recorder) else self.function
        return replay(player, step, things, state, inputs, steps, limit=limit)[:2]

    def _player(
        self, things: tuple[Any, ...], state: Any, inputs: Any, steps: int, limit: int | None
    ) -> Player | Recorder:
        """Who knows what a step does: a tape from disk that agrees with PyTorch, or a recorder, whose tape is kept."""
        if self.looked > _PATIENCE:
            return self.recorder
        few = min(_COMPARED, steps)
        first, second = mapped(lambda block: block[0], inputs), mapped(lambda block: block[min(1, steps - 1)], inputs)

        def agrees(tape: Tape) -> bool:
            """Some steps played are what PyTorch makes of them."""
            own, others = fixed_copy(things), fixed_copy(things)
            plain = _one_by_one(self.function, own, fixed_copy(state), inputs, few, limit)
            try:
                played = replay(Player(tape, seen), self.function, others, state, inputs, few, limit=limit)[:2]
            except (RuntimeError, ValueError):  # shapes do not fit
                return False
            return _same((plain, own), (played, others))

        try:
            seen, tape = self._look(things, state, first, second)
        except NamelessError:
            return self.recorder
        if tape is not None:
            return Player(tape, seen)
        tape = find_tape(seen.digest)
        if tape is not None and (seen.digest in self.trusted or agrees(tape)):
            self.trusted.add(seen.digest)
            return Player(tape, seen)
        if tape is None:
            step = self.step(things)
            step(*fixed_copy(things), fixed_copy(state), first)  # compiled before it is watched
            save_tape(self.recorder, step, fixed_copy(things), fixed_copy(state), fixed_copy(first), seen, agrees)
        return self.recorder

    def _look(self, things: tuple[Any, ...], state: Any, first: Any, second: Any) -> tuple[Traced, Tape | None]:
        """What a step does, and the tape of an earlier run if it is the same: then one look is enough."""
        begun = time.perf_counter()
        former = self.former.pop(_numbers(things), None)
        again = former.seen.again(self.function, things, state, first) if isinstance(former, Player) else None
        if isinstance(former, Player) and again is not None:
            found: tuple[Traced, Tape | None] = again, former.tape
        else:
            found = traced(self.function, things, state, first, second), None
        self.looked += time.perf_counter() - begun
        return found


def _numbers(things: tuple[Any, ...]) -> tuple[int, ...]:
    """What else a step depends on than tensors, energy and kernel."""
    return tuple(thing for thing in things if isinstance(thing, int))


def _one_by_one(
    step: Callable[..., Any], things: tuple[Any, ...], state: Any, inputs: Any, steps: int, limit: int | None
) -> tuple[Any, Any]:
    """Steps as ordinary calls."""
    outputs = []
    for t in range(steps):
        state, given = step(*things, state, pytree.tree_map(lambda block, t=t: block[t], inputs))
        outputs.append(given)
        if limit is not None and not 0 <= int(tensors_of(state)[-1]) <= limit:
            break
    if limit is not None:
        return state, ()
    return state, pytree.tree_map(
        lambda *parts: torch.stack(parts) if isinstance(parts[0], Tensor) else parts[0], *outputs
    )


class ReplayedSteps(Replayed):
    """Steps on the CPU."""

    def __init__(self, compiled: LateCompiler) -> None:
        super().__init__(step_and_tell, compiled)
        self.small = self.ready = False

    def trial(self, energy: Any, kernel: Kernel, state: Any, inputs: Any, replayed: bool) -> Any:
        few = pytree.tree_map(lambda t: t[:_COMPARED], inputs)
        return self._made(energy, kernel, state, few, replayed)

    def make(self, energy: Any, kernel: Kernel, state: Any, inputs: Any) -> Made:
        state, (places, info) = self._made(energy, kernel, state, inputs, not self.obstacle)
        return state, places, *told(info, places), {}

    def step(self, things: tuple[Any, ...]) -> Callable[..., Any]:
        energy, kernel = things
        if self.small and isinstance(kernel, Flying) and kernel.moves > 1 and self.compiled is None:
            self.compiled = in_parts(functools.partial(self.compiler, energy), self.ready)
            self.recorder.graphs = kernel.moves + (1 if self.ready else 2)
        return super().step(things)

    def __call__(self, energy: Any, kernel: Kernel, state: Any, inputs: Any) -> Made:
        self.small = kernel.position(state).numel() <= _SMALL
        self.ready = isinstance(kernel, Flying) and kernel.ready(state)
        return super().__call__(energy, kernel, state, inputs)

    def _made(self, energy: Any, kernel: Kernel, state: Any, inputs: Any, replayed: bool) -> Any:
        return self.call((energy, kernel), state, inputs, len(tensors_of(inputs)[0]), None, replayed)


class ReplayedMachine(Replayed):
    """Iterations of a free-running kernel on the CPU."""

    def __init__(self, compiled: LateCompiler, room: int) -> None:
        super().__init__(micro_step, compiled)
        self.room = room

    def step(self, things: tuple[Any, ...]) -> Callable[..., Any]:
        energy, kernel, *_ = things
        if len(kernel.reaches) > 1 and self.compiled is None:  # one form for all of them, which takes half of the time
            self.compiled = self.compiler(energy, self.function, "reach")
        return super().step(things)

    def trial(self, energy: Any, kernel: FreeRunning, state: Any, inputs: Any, replayed: bool) -> Any:
        ground, moving, slots = kernel.begin(energy, state, inputs, self.room)
        reach = kernel.reaches[0]
        moving, _ = self.call((energy, kernel, reach, ground, slots), moving, (), _COMPARED, reach, replayed)
        return moving

    def make(self, energy: Any, kernel: FreeRunning, state: Any, inputs: Any) -> Made:
        ground, moving, slots = kernel.begin(energy, state, inputs, self.room)
        for reach in kernel.reaches:
            things = energy, kernel, reach, ground, slots
            moving, _ = self.call(things, moving, (), _ENDLESS, reach, not self.obstacle)
            if int(moving[-1]) < 0:
                break
        state, places, info = kernel.finish(state, ground, moving, slots)
        return state, places, info.acceptance, info.diverged, info.stats()


class Captured(Engine):
    """What engines on CUDA share: steps that cannot be compiled are captured as PyTorch runs them."""

    forms: tuple[Forgiving, ...] = ()

    @property
    def failure(self) -> str:  # type: ignore[override]
        return " and ".join(dict.fromkeys(form.failure for form in self.forms if form.failure))

    @property
    def obstacle(self) -> str:  # type: ignore[override]
        why = self.failure
        return f"steps are captured but not all of them compiled, because of {why}" if why else ""


class CapturedSteps(Captured):
    """Steps on CUDA: one is compiled, a chunk of them is captured; what is left at the end of a run is compiled alone."""

    def __init__(self, compiled: Compiler, size: int, pool: Pool) -> None:
        self.size, self.step = size, Forgiving(one_step, compiled)
        self.forms = (self.step,)
        self.chunk = CapturedChunk(run_chunk, self.step, pool)

    def __call__(self, energy: Any, kernel: Any, state: Any, inputs: Any) -> Made:
        if len(tensors_of(inputs)[0]) == self.size:
            state, places, acceptance, diverged = self.chunk(energy, kernel, state, inputs)
        else:  # copied, so that they lie as the captured ones do and nothing is compiled anew
            state, places, acceptance, diverged = run_chunk(energy, kernel, state, fixed_copy(inputs), self.step)
        return state, places, acceptance, diverged, {}


class CapturedMachine(Captured):
    """Iterations of a free-running kernel on CUDA: some compiled micro-steps are captured as one graph, which is replayed
    until all chains are done. What it returns lives in the graph's memory until the next call."""

    def __init__(self, compiled: Compiler, room: int, pool: Pool, together: int = 16) -> None:
        self.room, self.pool, self.together = room, pool, together
        self.step = Forgiving(micro_step, compiled)
        self.forms = (self.step,)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.machine: Any = None

    def __call__(self, energy: Any, kernel: FreeRunning, state: Any, inputs: Any) -> Made:
        machine = kernel.begin(energy, state, inputs, self.room)
        if self.graph is None:
            self.machine = tuple(map(fixed_copy, machine))
            self.graph = self._capture(energy, kernel)
        ground, moving, slots = self.machine
        carry_over((ground, moving), machine[:2])
        while int(moving[-1]) >= 0:
            self.graph.replay()
        state, places, info = kernel.finish(state, ground, fixed_copy(moving), slots)
        return state, places, info.acceptance, info.diverged, info.stats()

    def _capture(self, energy: Any, kernel: FreeRunning) -> torch.cuda.CUDAGraph:
        ground, moving, slots = self.machine
        things = energy, kernel, kernel.reaches[-1], ground, slots
        on_side_stream(lambda: self.step(*things, moving, ()), times=2)

        def some() -> None:
            now = moving
            for _ in range(self.together):
                now, _ = self.step(*things, now, ())
            carry_over(moving, now)

        return capture(some, pool=self.pool)[0]


def take_off(energy: Any, kernel: Lockstep, ground: Any, moving: Any) -> Any:
    """The beginning of an iteration and its first move."""
    return kernel.move(energy, ground, kernel.launch(ground, moving), 1)


def go_on(energy: Any, kernel: Lockstep, ground: Any, moving: Any, count: int) -> Any:
    """Some moves."""
    return kernel.move(energy, ground, moving, count)


def land(kernel: Lockstep, ground: Any, slots: Any, moving: Any) -> Any:
    """The end of an iteration. (Fused with the beginning of the next one, it is more than Triton 3.6 can compile.)"""
    return kernel.land(ground, moving, slots)


class Leg(NamedTuple):
    """A part of an iteration, all of it for most: whether it begins it, its moves, whether it ends it."""

    first: bool
    moves: int
    last: bool


class CapturedFlights(Captured):
    """Iterations of chains in lockstep on CUDA: one graph for each number of moves, replayed in the order that the inputs ask
    for; long iterations have several legs. What it returns lives in their memory until the next call."""

    block, longest = 4, 64  # moves that are compiled together, and those of the longest graph

    def __init__(self, compiled: Compiler, room: int, pool: Pool) -> None:
        self.room, self.pool = room, pool
        self.forms = tuple(Forgiving(function, compiled) for function in (take_off, go_on, land))
        self.graphs: dict[Leg, torch.cuda.CUDAGraph] = {}
        self.machine: Any = None

    def __call__(self, energy: Any, kernel: Lockstep, state: Any, inputs: Any) -> Made:
        machine = kernel.begin(energy, state, inputs, self.room)
        if self.machine is None:
            self.machine = tuple(map(fixed_copy, machine))
        ground, moving, slots = self.machine
        legs = [leg for count in kernel.moves_of(inputs) for leg in self.legs(count)]
        for leg in sorted(set(legs) - set(self.graphs)):
            self.graphs[leg] = self._capture(energy, kernel, leg)
        carry_over((ground, moving), machine[:2])
        for leg in legs:
            self.graphs[leg].replay()
        state, places, info = kernel.finish(state, ground, fixed_copy(moving), slots)
        return state, places, info.acceptance, info.diverged, info.stats()

    def legs(self, count: int) -> list[Leg]:
        """Those of an iteration of so many moves."""
        whole, rest = divmod(count - 1, self.longest)
        moves = [self.longest] * whole + [rest + 1]
        return [Leg(i == 0, n, i == whole) for i, n in enumerate(moves)]

    def _capture(self, energy: Any, kernel: Lockstep, leg: Leg) -> torch.cuda.CUDAGraph:
        ground, moving, slots = self.machine

        begin, move, end = self.forms

        def fly() -> Any:
            now = begin(energy, kernel, ground, moving) if leg.first else moving
            blocks, rest = divmod(leg.moves - leg.first, self.block)
            for count in [self.block] * blocks + [1] * rest:
                now = move(energy, kernel, ground, now, count)
            return end(kernel, ground, slots, now) if leg.last else now

        def carried() -> None:
            carry_over(*((part[1:] if leg.last else part) for part in (moving, fly())))

        on_side_stream(fly, times=2)
        return capture(carried, pool=self.pool)[0]


def engine_for(energy: Any, kernel: Kernel, size: int, compiled: LateCompiler, pool: Pool | None) -> Engine:
    """The engine for a kernel, on CUDA where there is a pool of memory for its graphs."""
    if pool is None:
        return ReplayedMachine(compiled, size) if isinstance(kernel, FreeRunning) else ReplayedSteps(compiled)
    at_once = functools.partial(compiled, energy)
    if isinstance(kernel, Lockstep):
        return CapturedFlights(at_once, size, pool)
    if isinstance(kernel, FreeRunning):
        return CapturedMachine(at_once, size, pool)
    return CapturedSteps(at_once, size, pool)
