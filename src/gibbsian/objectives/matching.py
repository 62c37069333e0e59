"""Energy matching: one potential that carries noise to data, and is the data's energy where it arrives."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from gibbsian.capabilities import Normalized, Sampleable
from gibbsian.domains import Domain, Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, as_written, check_choice, check_count, check_number, hold_counts
from gibbsian.fast.scores import CompiledScores, compiled_score
from gibbsian.kernels.base import Kernel, metropolis_test, where_chain
from gibbsian.kernels.flow import GradientFlow
from gibbsian.nets.layers import standardized_anew
from gibbsian.objectives.base import Batch, Loss, Step, SteppedObjective, finish, observed, observed_with
from gibbsian.objectives.chains import chain_metrics, energy_gap, more_steps, walk
from gibbsian.objectives.noise import NAMED, FittedNoise, given_noise
from gibbsian.objectives.pairing import PAIRINGS, paired
from gibbsian.placement import placement
from gibbsian.sampling.checks import Trouble, check_start, report_divergence
from gibbsian.sampling.sample import sample


def score_with_graph(energy: Any, x: Tensor, *, fused: bool) -> Tensor:
    """s(x) that can be differentiated in the parameters, by a compiled program in steps that are repeated very often."""
    if not fused:
        return energy.score(x, create_graph=True)
    with standardized_anew(energy):
        return compiled_score(energy, x)


Jump = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # chains, which of them may -> chains, share that did


def jumping(
    law: Any,
    kernel: GradientFlow,
    x: Tensor,
    steps: int,
    every: int,
    jump: Jump,
    generator: torch.Generator,
    *,
    watched: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """`walk`, with a jump before every `every`-th step of the chains whose time is 1 or later."""
    start, shares, broken = x, [], []
    begin = torch.as_tensor(kernel.begins(x), device=x.device).double()  # float32 would miss t = 1, when noise begins
    for done in range(0, steps, every):
        at = begin + done * kernel.step_size
        x, share = jump(x, (at >= 1 - 1e-6).flatten())
        x, moved = walk(law, replace(kernel, begin=at), x, min(every, steps - done), generator, watched=False)
        shares.append(share)
        broken.append(moved["divergent"])
    metrics = {"divergent": torch.stack(broken).amax(), "jumped": torch.stack(shares).mean()}
    return x, chain_metrics(start, x, watched) | metrics


def _gone_through(start: Tensor, clamp: Tensor | None, n: int) -> tuple[Tensor, Tensor | None]:
    """n rows to start at, again from the first one where there are fewer; and what is held of each, or of every draw."""
    again = torch.arange(n, device=start.device) % len(start)
    each = isinstance(clamp, Tensor) and clamp.dim() == start.dim() and len(clamp) == len(start)
    return start[again], clamp[again] if each else clamp  # type: ignore[index]


def _serves(noise: Any) -> bool:
    """Can it be the noise that a flow begins at?"""
    known = isinstance(noise, Normalized) or not isinstance(noise, Energy)
    return isinstance(noise, FittedNoise) or (isinstance(noise, Sampleable) and known)


class MatchingState(NamedTuple):
    """The noise that was fitted to the data, where it is such."""

    noise: nn.Module | None


@dataclass(frozen=True)
class EnergyMatching(SteppedObjective):
    """Noise is led to data along -∇V of one potential V(x) = ε_max·E(x), and near the data exp(-E) is their law.

        flow:      E ‖-∇V(x_t) - (x₁ - x₀)‖²/d,      x_t = (1-t)x₀ + t x₁ + σz,   t ~ U(0, 1)
        contrast:  λ [V(x⁺) - V(x⁻)],      x⁻ from x ← x - ∇V dt + √(2ε(t)dt) z, half of them from data, half from noise

    The first `flow_steps` updates match the flow alone, noise x₀ and data x₁ paired by optimal transport within the batch; it is
    cheap, and puts the potential in place everywhere. The others add contrastive divergence, whose chains start where the flow
    ends: what is left is to correct the energy near the data. ε(t) is 0 before τ, grows to ε_max at t = 1 and stays there.

    What is trained is E = V/ε_max itself, independent of time: `gibbsian.draw`, likelihoods, composition and all else work on it
    as on any energy. `run.draw` follows the flow from noise, in some hundred gradients. After the first phase alone the draws are
    good, but exp(-E) is not yet the law of the data.

    Reference: Balcerak et al. 2025.

    Args:
        temperature: ε_max. Small ones, such as 0.01 for images, make energies large: let the network's output be scaled to it,
            such as `energies.ConvEnergy(...) * 100`.
        tau: τ, when noise begins in a chain; 1 for images.
        sigma: σ, noise on the path; 0 for images.
        weight: λ; 0.001 for images.
        steps: of the chains of the second phase.
        step_size: dt. A chain gets √(2ε_max·dt·steps) far: what lies further apart than that keeps the weights that the flow gave it
            by chance, unless chains jump.
        flow_steps: updates of the first phase; a number below 1 is a share of the run.
        flow_weight: what the flow counts in the second phase. Where its ways lead through the data, as in the plane, it bends the
            energy there: 0 leaves that to the contrast alone.
        taper: in the second phase let it fall from t = τ on to nothing at t = 1, where the contrast knows better.
        floor: the least that the contrast counts, such as -0.02: beyond it chains are left alone. None for no such.
        data_share: share of the chains that start at data. Those from noise are not in equilibrium when they end, and tie the energy to
            what such short flows draw; 1 leaves them out, for likelihoods in few dimensions.
        data_time: t at which those begin; 1 is Langevin dynamics from the first step on, 0 the same way as from noise.
        jump_every: before every so many steps from t = 1 on, in the second phase and in `run.draw`, a chain may jump to a fresh draw y
            of the noise q, with probability min(1, exp(E(x) - E(y)) q(x)/q(y)), which leaves exp(-E) as it is (independence
            Metropolis). Langevin steps do not cross between modes, and the contrast of chains that stay tells nothing of their
            weights; jumps do, where noise and data overlap: in few dimensions, not for images. 0 for none, as published.
        pairing: "exact" finds the assignment of least transport on the CPU, so that on CUDA steps cannot be captured; "sinkhorn"
            draws from an entropic plan on the device, which can; "independent" pairs at random.
        noise: where the flow begins: None for the reference draws of the domain (standard normal), or as in `NoiseContrastive`,
            such as "gaussian" (with the moments of the data), an energy with `log_z()` and `sample()`, a torch distribution.
        time, method: how long `run.draw` follows the flow, τ_s, and how: "euler" or "heun".

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy, data = gb.energies.MLPEnergy(2, hidden=(16,)), torch.randn(64, 2, generator=g)
    >>> run = gb.fit(energy, EnergyMatching(steps=20), data, steps=10, batch_size=32)
    >>> run.objective.flow_steps, run.draw(5, generator=g).shape
    (9, torch.Size([5, 2]))
    """

    needs_energy: ClassVar[bool] = True
    domains: ClassVar[tuple[type[Domain], ...]] = (Real,)
    elsewhere: ClassVar[str] = "declare domains.Real (data in a box may keep their values), or use EnergyDiscrepancy"

    temperature: float = 0.15
    tau: float = 0.8
    sigma: float = 0.1
    weight: float = 2.0
    steps: int = 200
    step_size: float = 0.01
    flow_steps: float = 0.9
    flow_weight: float = 1.0
    taper: bool = False
    floor: float | None = None
    data_share: float = 0.5
    data_time: float = 1.0
    jump_every: int = 0
    pairing: str = "exact"
    noise: str | FittedNoise | Energy | Distribution | None = None
    time: float = 2.0
    method: str = "euler"

    def __post_init__(self) -> None:
        for name in ("sigma", "weight", "flow_weight", "data_time"):
            check_number(self, name, getattr(self, name))
        hold_counts(self, "steps")
        hold_counts(self, "jump_every", least=0)
        check_number(self, "data_share", self.data_share, 0.0, 1.0)
        check_number(self, "tau", self.tau, 0.0, 1.0)
        check_choice(self, "pairing", self.pairing, PAIRINGS)
        check_number(self, "flow_steps", self.flow_steps)
        if self.flow_steps >= 1:
            hold_counts(self, "flow_steps")
        if self.floor is not None:
            check_number(self, "floor", self.floor, -float("inf"), 0.0)
        self.flow()  # its options are the kernel's to check
        if isinstance(self.noise, str):
            check_choice(self, "noise", self.noise, tuple(NAMED))
        elif self.noise is not None and not _serves(self.noise):
            raise ArgumentError(
                f"EnergyMatching(noise={self.noise!r}): give None for standard normal noise, one of "
                f"{', '.join(map(repr, NAMED))}, an energy with log_z() and sample(), or a torch distribution"
            )

    # --- what others ask --------------------------------------------------------------------------

    def flow(self, **changes: Any) -> GradientFlow:
        """The kernel that follows the flow."""
        own = {"tau": self.tau, "time": self.time, "method": self.method}
        return GradientFlow(**{"step_size": self.step_size, "temperature": self.temperature, **own, **changes})

    def kernels(self) -> tuple[Kernel, ...]:
        return (self.flow(),)

    def planned(self, steps: int) -> Self:
        return self if self.flow_steps >= 1 else replace(self, flow_steps=int(as_written(self.flow_steps) * steps))

    def turns(self) -> tuple[int, ...]:
        return (int(self.flow_steps),) if self.flow_steps >= 1 else ()

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, steps=more_steps(self.steps, steps_factor))

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> MatchingState:
        self.check(energy, batch)
        source = NAMED[self.noise] if isinstance(self.noise, str) else self.noise
        if not isinstance(source, FittedNoise):
            return MatchingState(None)
        return MatchingState(source.fit(energy.domain, observed(batch), generator).requires_grad_(False))

    @property
    def draws(self) -> bool:
        return True

    def generate(
        self,
        energy: Any,
        n: int,
        state: MatchingState,
        generator: torch.Generator,
        *,
        start: Tensor | None = None,
        clamp: Tensor | None = None,
        compile: bool = False,
        jump_every: int | None = None,
        **options: Any,
    ) -> Tensor:
        """n draws at the end of the flow from noise; `options` are those of `kernels.GradientFlow`, and `start` and `clamp` as in
        `gibbsian.draw`. Chains jump as in training, or after `jump_every` steps, 0 for never; they do not where entries are clamped.
        With `compile` scores come from a compiled program, one for every n, which takes up to a minute the first time."""
        if unknown := options.keys() - {field.name for field in fields(GradientFlow)}:
            raise ArgumentError(
                f"EnergyMatching draws with start=, clamp=, compile=, jump_every= and the options of kernels.GradientFlow, got "
                f"{', '.join(sorted(unknown))}"
            )
        every = self.jump_every if jump_every is None else check_count("run.draw", "jump_every", jump_every, 0)
        if start is None:
            if clamp is not None:
                raise ArgumentError("clamp holds entries of start; give start= as well")
            like = torch.zeros((), dtype=placement(energy)[0], device=generator.device)
            x = self._noise(energy, n, like, state, generator)
        else:
            check_start(energy, start, "start")
            x, clamp = _gone_through(start, clamp, n)
        kernel = self.flow(**options)
        law = CompiledScores(energy) if compile else energy
        if every and clamp is None:
            check_start(energy, x, "start")
            jump = partial(self._jump, energy, state=state, generator=generator)
            x = jumping(law, kernel, x, kernel.total_steps(energy), every, jump, generator)[0]
            report_divergence(Trouble.of(torch.zeros(n), x), n, kernel)
            return x
        return sample(law, kernel, x, keep=False, clamp=clamp, generator=generator, progress=False).last

    # --- the loss -----------------------------------------------------------------------------------

    def _noise(self, energy: Any, n: int, like: Tensor, state: MatchingState, generator: torch.Generator) -> Tensor:
        if self.noise is None:
            return energy.domain.sample(n, generator=generator, dtype=like.dtype)
        noise = given_noise(self.noise, energy.domain, state.noise)
        with torch.no_grad():
            return noise.sample(n, generator=generator).to(like)  # type: ignore[operator]

    def _log_noise(self, energy: Any, x: Tensor, state: MatchingState) -> Tensor:
        """log q(x) of the noise, up to a constant."""
        if self.noise is None:
            return -0.5 * x.flatten(1).square().sum(1)
        return given_noise(self.noise, energy.domain, state.noise).log_prob(x)  # type: ignore[operator]

    @torch.no_grad()
    def _jump(
        self, energy: Any, x: Tensor, may: Tensor, state: MatchingState, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """x after one jump to noise of those chains that may and are let, and the share of them that did."""
        y = self._noise(energy, len(x), x, state, generator)
        with torch.autocast(x.device.type, enabled=False):  # half precision would round away what decides
            gain = energy(x) - energy(y) + self._log_noise(energy, x, state) - self._log_noise(energy, y, state)
        threshold = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device).log()
        let = may & metropolis_test(gain, threshold)
        return where_chain(let, y, x), let.sum() / may.expand_as(let).sum().clamp(min=1)

    def _flow_loss(
        self, energy: Any, x1: Tensor, state: MatchingState, generator: torch.Generator, step: Step, taper: bool = False
    ) -> Tensor:
        """How far -∇V is from the straight ways from noise to data, squared, per entry."""
        x0 = paired(self.pairing, self._noise(energy, len(x1), x1, state, generator), x1, generator)
        t = torch.rand(len(x1), *[1] * (x1.dim() - 1), generator=generator, dtype=x1.dtype, device=x1.device)
        xt = torch.lerp(x0, x1, t)
        if self.sigma:
            xt = xt + self.sigma * torch.randn(x1.shape, generator=generator, dtype=x1.dtype, device=x1.device)
        off = self.temperature * score_with_graph(energy, xt, fused=step.fused) - (x1 - x0)
        each = off.square()
        return (each * ((1 - t) / max(1 - self.tau, 1e-9)).clamp(max=1) if taper else each).mean()

    def _negatives(
        self, energy: Any, data: Tensor, state: MatchingState, generator: torch.Generator, step: Step
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Where chains from data and from noise end."""
        n = len(data)
        at_data = torch.arange(n, device=data.device) < round(self.data_share * n)
        start = where_chain(at_data, data.detach(), self._noise(energy, n, data, state, generator))
        kernel = self.flow(begin=(self.data_time * at_data.double())[None])  # noise begins at t = 1 exactly
        with standardized_anew(energy) if step.fused else nullcontext():
            law = CompiledScores(energy) if step.fused else energy
            if self.jump_every:
                jump = partial(self._jump, energy, state=state, generator=generator)
                return jumping(law, kernel, start, self.steps, self.jump_every, jump, generator, watched=step.watched)
            return walk(law, kernel, start, self.steps, generator, watched=step.watched)

    def loss(self, energy: Any, batch: Batch, state: MatchingState, generator: torch.Generator, step: Step) -> Loss:
        x = observed_with(batch, generator)
        share = 0 < self.flow_steps < 1  # of a run that nobody has planned
        contrasts = self.weight > 0 and not share and step.done >= self.flow_steps
        if not contrasts:
            flow = self._flow_loss(energy, x, state, generator, step)
            return finish(self, flow, state, {"flow": flow})
        samples, moved = self._negatives(energy, x, state, generator, step)
        gap, metrics = energy_gap(energy, x, samples, watched=False)  # fresh chains cannot be left behind
        contrast = self.weight * self.temperature * gap
        value = contrast
        if self.floor is not None:  # what is not finite must not become a number
            value = torch.where(contrast.isfinite(), contrast.clamp(min=self.floor), contrast)
        if self.flow_weight:
            metrics["flow"] = self._flow_loss(energy, x, state, generator, step, self.taper)
            value = value + self.flow_weight * metrics["flow"]
        return finish(self, value, state, metrics | moved)
