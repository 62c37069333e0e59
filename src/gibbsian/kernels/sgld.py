"""Stochastic-gradient dynamics: chains that see a few rows of the data at every step."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import SubsampledModel, require
from gibbsian.domains import Bounded
from gibbsian.errors import ArgumentError, check_number, hold_counts
from gibbsian.kernels.base import Info, Kernel, event_view, masked, positive, schedule_values
from gibbsian.kernels.integrators import reflect
from gibbsian.kernels.langevin import normal_inputs
from gibbsian.random import uniforms


class RowInputs(NamedTuple):
    """Normals, which rows every chain sees, step sizes, and two numbers that are the kernel's own."""

    z: Tensor
    rows: Tensor  # (chains, n)
    step_size: Tensor
    first: Tensor
    second: Tensor


class Subsampled(Kernel):
    """What these kernels share: n rows a step and chain, drawn with replacement, and a step size that may fall."""

    adjusted: ClassVar[bool] = False
    tuned: ClassVar[str] = "step_size"
    step_size: float | Tensor
    batch_size: int

    def __post_init__(self) -> None:
        positive("step_size", self.step_size, type(self).__name__)
        hold_counts(self, "batch_size")

    def check(self, energy: Any) -> None:
        super().check(energy)
        advice = "give the data to energies.DataPosterior, or use kernels.Langevin, which takes the whole score"
        require(energy, SubsampledModel, type(self).__name__, advice)

    @abstractmethod
    def numbers(self) -> tuple[float, float]:
        """What a step must know besides, as inputs, so that other values compile nothing anew."""

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> RowInputs:
        n, count = energy.data_rows(), len(x) * self.batch_size
        z, u = [], []
        for _ in range(steps):  # in turn, so that a run does not depend on how it is cut
            z.append(normal_inputs(x, 1, generator))
            u.append(uniforms(1, count, generator, dtype=torch.float64, device=x.device))
        rows = (torch.cat(u) * n).long().reshape(steps, len(x), self.batch_size)  # u < 1 - 2⁻⁵³
        sizes = schedule_values(self.step_size, steps, start, x, "step_size")
        return RowInputs(
            torch.cat(z), rows, sizes, *(schedule_values(number, steps, start, x, "") for number in self.numbers())
        )


class ScaledState(NamedTuple):
    """Positions and the running mean of squared gradients, of which a share `weight` has been seen."""

    x: Tensor
    square: Tensor
    weight: Tensor
    clamp: Tensor | None = None


@dataclass(frozen=True)
class SGLD(Subsampled):
    """Stochastic-gradient Langevin dynamics: θ ← θ + ½ε g(θ) + √ε z, g the score as n of N rows of data tell it.

    For posteriors of more data than a step can pay for. `step_size` is ε of the paper, a variance (√ε is that of `Langevin`),
    and it is biased: the noise of g, of variance V, widens the law. On N(θ, 1) rows with a flat prior its variance is

        (1 + εV/4) / (N(1 - εN/4)),   V = N²s²/n,   s² the variance of the rows,

    so take ε well below 1/N and 4/V, let it fall (a schedule), or reduce V: more rows, or a `center` in `energies.DataPosterior`.
    Rows are drawn with replacement, for every chain its own.

    With `preconditioned` (pSGLD) step and noise of every entry are scaled by G = 1/(λ + √v), v the running mean of the
    squares of g/N as RMSprop has it: θ ← θ + ½εG g + √(εG) z. The term with the derivatives of G is left out, as in the paper,
    which biases the law by what G changes within a step: little for a `decay` near one.

    Reference: Welling & Teh 2011; Li, Chen, Carlson & Carin 2016 (preconditioned).

    Args:
        step_size: ε; a number, a schedule (one value a step) or a `(1, chains)` tensor.
        batch_size: n.
        preconditioned: scale by running squares of the gradient.
        decay: how much of v is kept a step.
        floor: λ.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rows = torch.randn(200, 1, generator=g)
    >>> law = gb.energies.DataPosterior(gb.domains.Real(1), lambda t, d: -0.5 * (d - t[:, None]).square().sum(2), rows)
    >>> trace = gb.sample(law, SGLD(step_size=1e-3, batch_size=20), torch.zeros(50, 1), 200, burn_in=100, generator=g)
    >>> bool((trace.samples.mean() - rows.mean()).abs() < 0.02)
    True
    """

    step_size: float | Tensor
    batch_size: int = 32
    preconditioned: bool = False
    decay: float = 0.99
    floor: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "decay", self.decay, 0.0, 1.0, open_high=True)
        check_number(self, "floor", self.floor, open_low=True)

    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> ScaledState:
        return ScaledState(x, torch.zeros_like(x), x.new_zeros(()), clamp)

    def numbers(self) -> tuple[float, float]:
        return self.decay, self.floor

    def relocate(self, energy: Any, state: ScaledState, x: Tensor) -> ScaledState:
        return state._replace(x=x)

    def step(self, energy: Any, state: ScaledState, inputs: RowInputs) -> tuple[ScaledState, Info]:
        x, square, weight, clamp = state
        g = masked(energy.score_estimate(x, inputs.rows), clamp)
        eps = event_view(inputs.step_size, x)
        if self.preconditioned:
            decay, floor = inputs.first, inputs.second
            square = torch.lerp((g / energy.data_rows()).square(), square, decay)
            weight = decay * weight + (1 - decay)
            eps = eps / (floor + (square / weight).sqrt())
        x = x + 0.5 * eps * g + eps.sqrt() * masked(inputs.z, clamp)
        if isinstance(energy.domain, Bounded):
            x, _ = reflect(x, x, energy.domain)
        return ScaledState(x, square, weight, clamp), Info()


class MomentumState(NamedTuple):
    """Positions and velocities."""

    x: Tensor
    v: Tensor
    clamp: Tensor | None = None


@dataclass(frozen=True)
class SGHMC(Subsampled):
    """Stochastic-gradient Hamiltonian Monte Carlo: v ← (1 - α)v + ηg(θ) + √(2(α - β̂)η) z, θ ← θ + v.

    `SGLD` with momenta, which forget slowly (α small) and so go further on ill-conditioned posteriors. The noise of g adds η²V
    to what the friction takes away; β̂ = ηV/2 makes up for it. On a Gaussian of curvature k, without β̂, the variance is

        (1/k) (1 + ηV/2α) / (1 - ηk/(2(2 - α))).

    Reference: Chen, Fox & Guestrin 2014, in the form of its practical section.

    Args:
        step_size: η, the square of a time step; a number, a schedule or a `(1, chains)` tensor.
        friction: α, between 0 and 1.
        noise: β̂, at most α.
        batch_size: n.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rows = torch.randn(200, 1, generator=g)
    >>> law = gb.energies.DataPosterior(gb.domains.Real(1), lambda t, d: -0.5 * (d - t[:, None]).square().sum(2), rows)
    >>> trace = gb.sample(law, SGHMC(step_size=1e-3, batch_size=20), torch.zeros(50, 1), 200, burn_in=100, generator=g)
    >>> bool((trace.samples.mean() - rows.mean()).abs() < 0.02)
    True
    """

    step_size: float | Tensor
    friction: float = 0.1
    noise: float = 0.0
    batch_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "friction", self.friction, 0.0, 1.0, open_low=True)
        check_number(self, "noise", self.noise)
        if self.noise > self.friction:
            raise ArgumentError(
                f"SGHMC(noise={self.noise}, friction={self.friction}): the noise of the gradients may not exceed the friction; "
                "use a smaller step_size, more rows, or more friction"
            )

    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> MomentumState:
        return MomentumState(x, torch.zeros_like(x), clamp)

    def numbers(self) -> tuple[float, float]:
        return self.friction, self.noise

    def relocate(self, energy: Any, state: MomentumState, x: Tensor) -> MomentumState:
        return state._replace(x=x)

    def step(self, energy: Any, state: MomentumState, inputs: RowInputs) -> tuple[MomentumState, Info]:
        x, v, clamp = state
        g = masked(energy.score_estimate(x, inputs.rows), clamp)
        eta = event_view(inputs.step_size, x)
        friction, noise = inputs.first, inputs.second
        spread = torch.sqrt(2 * (friction - noise) * eta)
        v = (1 - friction) * v + eta * g + spread * masked(inputs.z, clamp)
        x = x + v
        if isinstance(energy.domain, Bounded):
            x, v = reflect(x, v, energy.domain)
        return MomentumState(x, v, clamp), Info()
