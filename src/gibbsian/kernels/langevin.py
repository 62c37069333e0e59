"""Langevin dynamics: unadjusted, and the cold short-run form that trains image models."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Bounded
from gibbsian.errors import ArgumentError, check_choice, check_number, hold_counts
from gibbsian.kernels.base import Info, Kernel, MoveInputs, event_view, masked, positive, schedule_values
from gibbsian.kernels.integrators import bounce, reflect, stop
from gibbsian.random import normals


class Positions(NamedTuple):
    """Positions alone: an unadjusted kernel needs nothing else."""

    x: Tensor
    clamp: Tensor | None = None


class Bare(Kernel):
    """Kernels whose state is positions alone."""

    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> Positions:
        return Positions(x, clamp)


def normal_inputs(x: Tensor, steps: int, generator: torch.Generator) -> Tensor:
    """Standard normals (steps, chains, *event)."""
    z = normals(steps, x.numel(), generator, dtype=x.dtype, device=x.device)
    return z.reshape(steps, *x.shape)


@dataclass(frozen=True)
class Langevin(Bare):
    """Unadjusted Langevin dynamics (ULA): x ← x + (ε²/2)s(x) + εz.

    Cheap, needs only a score, and biased: on N(0, 1) its own law has variance 1/(1 - ε²/4). Use MALA where an
    energy is at hand and the law must be exact. In a box it is reflected at the walls.

    Reference: Parisi 1981; Roberts & Tweedie 1996.

    Args:
        step_size: ε; a number, a schedule (one value a step) or a `(1, chains)` tensor.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> trace = gb.sample(gb.energies.Banana(), Langevin(step_size=0.1), torch.zeros(8, 2), steps=10, generator=g)
    """

    step_size: float | Tensor
    tuned: ClassVar[str] = "step_size"
    needs_energy: ClassVar[bool] = False
    adjusted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("step_size", self.step_size, "Langevin")

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> MoveInputs:
        z = normal_inputs(x, steps, generator)
        return MoveInputs(z, z.new_empty(steps, 0), schedule_values(self.step_size, steps, start, x, "step_size"))

    def step(self, energy: Any, state: Positions, inputs: MoveInputs) -> tuple[Positions, Info]:
        x, clamp = state
        eps = event_view(inputs.step_size, x)
        drift = torch.addcmul(inputs.z, eps, energy.score(x), value=0.5)  # z + (ε/2)s
        x = torch.addcmul(x, eps, masked(drift, clamp))
        if isinstance(energy.domain, Bounded):
            x, _ = reflect(x, x, energy.domain)
        return Positions(x, clamp), Info()


class ShortRunInputs(NamedTuple):
    """Noise, step and noise sizes, and the largest slope, of short-run steps."""

    z: Tensor
    step_size: Tensor
    noise: Tensor
    clip: Tensor


@dataclass(frozen=True)
class ShortRunLangevin(Bare):
    """The "Langevin" of deep image models: x ← x + α·clip(s(x), ±c) + τz, with step and noise decoupled.

    This is a cold, clipped optimizer and not a sampler of exp(-E): for small α it follows exp(-E/T) at
    temperature T = τ²/2α (`.temperature`; 1e-6 in common settings), and on N(0, 1) its own law has variance
    τ²/(α(2 - α)) when nothing is clipped. What it draws is its own short-run law, which is what models
    trained with it learn to make look like data. Use `Langevin` or `MALA` to sample the energy.

    Reference: Nijkamp et al. 2019; Du & Mordatch 2019.

    Args:
        step_size, noise: α and τ.
        clip: c, the largest slope that is followed in any coordinate.
        last, cycle: the step falls geometrically from α to `last` over `cycle` steps, again and again. Steps of one size
            overshoot once an energy has grown steeper than they are short, and then chains no longer find its
            wells; long steps first and short ones after them do.
        walls: what happens at the walls of a box. "stop" puts a step that leaves it on the wall, as the published
            recipes do: the black margin of a digit lies on it, and a large step that turned round there could never
            settle where the data is. "bounce" turns round, once.

    >>> ShortRunLangevin(step_size=10.0, noise=0.005, clip=0.03).temperature
    1.25e-06
    >>> falling = ShortRunLangevin(step_size=1.0, noise=0.01, last=0.01, cycle=3)
    >>> falling.draw(None, torch.zeros(1, 2), 4, torch.Generator()).step_size
    tensor([1.0000, 0.1000, 0.0100, 1.0000])
    """

    step_size: float | Tensor
    noise: float | Tensor
    clip: float | None = None
    walls: str = "stop"
    last: float | None = None
    cycle: int = 20
    needs_energy: ClassVar[bool] = False
    adjusted: ClassVar[bool] = False
    mixes: ClassVar[bool] = False  # more steps than in training lead elsewhere

    def __post_init__(self) -> None:
        positive("step_size", self.step_size, "ShortRunLangevin")
        positive("noise", self.noise, "ShortRunLangevin", zero=True)
        if self.clip is not None:
            check_number(
                self, "clip", self.clip, open_low=True
            )  # of coordinates: one for every chain would be taken for theirs
        check_choice(self, "walls", self.walls, ("stop", "bounce"))
        if self.last is not None:
            check_number(self, "last", self.last, open_low=True)
            if isinstance(self.step_size, Tensor):
                raise ArgumentError(
                    "ShortRunLangevin(last=...) falls from a number, but step_size is a schedule already"
                )
        hold_counts(self, "cycle", least=2)

    @property
    def temperature(self) -> float:
        """τ²/2α: the temperature of the law it follows for small steps (of the last step of a schedule)."""
        last = lambda v: float(torch.as_tensor(v, dtype=torch.float64).flatten()[-1])  # noqa: E731
        step = last(self.step_size) if self.last is None else self.last
        return float(f"{last(self.noise) ** 2 / (2 * step):.12g}")

    def schedules(self) -> tuple[Any, ...]:
        return self.step_size, self.noise

    @property
    def period(self) -> int:
        return 1 if self.last is None else self.cycle

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> ShortRunInputs:
        if self.last is None:
            sizes = schedule_values(self.step_size, steps, start, x, "step_size")
        else:
            k = torch.arange(start, start + steps, dtype=x.dtype, device=x.device).remainder(self.cycle)
            sizes = self.step_size * (self.last / self.step_size) ** (k / (self.cycle - 1))
        noise = schedule_values(self.noise, steps, start, x, "noise")
        clip = torch.inf if self.clip is None else self.clip
        clips = schedule_values(clip, steps, start, x, "clip")
        return ShortRunInputs(normal_inputs(x, steps, generator), sizes, noise, clips)

    def step(self, energy: Any, state: Positions, inputs: ShortRunInputs) -> tuple[Positions, Info]:
        x, clamp = state
        score = energy.score(x)
        if self.clip is not None:
            score = score.clamp(-inputs.clip, inputs.clip)
        move = event_view(inputs.step_size, x) * score + event_view(inputs.noise, x) * inputs.z
        x = x + masked(move, clamp)
        if isinstance(energy.domain, Bounded):
            x = bounce(x, energy.domain) if self.walls == "bounce" else stop(x, energy.domain)
        return Positions(x, clamp), Info()
