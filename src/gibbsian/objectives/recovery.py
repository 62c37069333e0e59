"""Recovery likelihood: energies along a noise ladder, each learned by undoing one step of noise."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from gibbsian.capabilities import NoiseLevels
from gibbsian.domains import Domain, Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, check_choice, check_number, hold_counts
from gibbsian.kernels.base import Kernel
from gibbsian.kernels.hmc import MALA
from gibbsian.kernels.langevin import Langevin
from gibbsian.objectives.base import Batch, Loss, Step, SteppedObjective, finish, need_domain, observed, observed_with
from gibbsian.objectives.chains import more_steps, walk
from gibbsian.placement import placement
from gibbsian.sampling.checks import Trouble, report_divergence


class Recovering(Energy):
    """E(x | x̃) = E(x) + ‖x - x̃‖²/2σ², one x̃ and one 1/σ² a row; those of precision 0 have seen nothing."""

    noisy: Tensor
    precision: Tensor

    def __init__(self, member: Energy, noisy: Tensor, precision: Tensor) -> None:
        super().__init__(member.domain)
        self.member = member
        self.register_buffer("noisy", noisy, persistent=False)
        self.register_buffer("precision", precision, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.member(x) + 0.5 * self.precision * (x - self.noisy).flatten(1).square().sum(1)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        e, s = self.member.energy_and_score(x)
        gap = x - self.noisy
        pull = self.precision.reshape(-1, *[1] * (x.dim() - 1)) * gap
        return e + 0.5 * (pull * gap).flatten(1).sum(1), s - pull


class Rungs(NamedTuple):
    """σ of every level, falling, and σ of the noise between it and the one above; of the top one its own."""

    sigma: Tensor
    gap: Tensor


@dataclass(frozen=True)
class RecoveryLikelihood(SteppedObjective):
    """Every level of a noise ladder learns what was there before the last step of noise: x̃ = x + √(σ²₊ - σ²) z,

        p(x | x̃) ∝ exp(-E(x, σ) - ‖x - x̃‖²/2(σ²₊ - σ²)),      ∇L = E[∇E(x⁺, σ) - ∇E(x⁻, σ)],   x⁻ ~ p(· | x̃)

    σ₊ is the next larger level. Given x̃ the law is nearly one mode, so K Langevin steps from x̃ reach it, where chains of the whole law
    would not: stable training, and the energy of every level is that of the blurred data themselves, not only their score, up to the
    weights of hills that its step of noise does not join. Those are learned above, and come down with the chains: draw by `run.draw`;
    the last level alone can be a poor density.
    Nothing is known above the largest level: there chains start at noise of its size, and the whole law is learned.
    Every row of a batch meets one level, all as evenly as the batch allows.

    `run.draw` goes down the ladder with the same chains. Any other use is that of a family of energies: `family.given(sigma)`,
    `kernels.AnnealedLangevin`, likelihoods of its last level.

    Here blurred data are x + σz, and not scaled down on the way as in the paper; the two are one up to units, so that no level has to be
    divided by another. `schedules.recovery_ladder()` is the paper's ladder of six.

    Reference: Gao, Song, Poole, Wu & Kingma 2021.

    Args:
        steps: K.
        step_size: ε of a Langevin step over the deviation √(σ²₊ - σ²) of the noise that is undone; a number, or one for every
            level of the family from the largest on. At the top over its σ.
        adjusted: correct the steps by Metropolis (`MALA`), which asks for energies too.
        weighting: levels weigh alike ("uniform") or as 1/√(σ²₊ - σ²) ("noise").

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> net = gb.nets.LevelEnergy(gb.nets.MLP(3, (16,)))
    >>> family = gb.models.NoiseConditionalEnergy(net, gb.domains.Real(2), gb.schedules.recovery_ladder())
    >>> run = gb.fit(family, RecoveryLikelihood(steps=5), torch.randn(64, 2, generator=g), steps=10)
    >>> run.draw(7, generator=g).shape
    torch.Size([7, 2])
    """

    needs_energy: ClassVar[bool] = True
    domains: ClassVar[tuple[type[Domain], ...]] = (Real,)
    elsewhere: ClassVar[str] = "noise takes x out of it; declare domains.Real, or use EnergyDiscrepancy"

    steps: int = 30
    step_size: float | tuple[float, ...] = 0.2
    adjusted: bool = False
    weighting: str = "uniform"

    def __post_init__(self) -> None:
        hold_counts(self, "steps")
        several = isinstance(self.step_size, tuple | list)
        sizes = tuple(self.step_size) if several else (self.step_size,)  # type: ignore[arg-type]
        for size in sizes:
            check_number(self, "step_size", size, open_low=True)
        object.__setattr__(self, "step_size", sizes if several else self.step_size)
        check_choice(self, "weighting", self.weighting, ("uniform", "noise"))

    def descends(self) -> bool:
        """It does not: its loss is the contrast of data with the ends of chains."""
        return False

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, steps=more_steps(self.steps, steps_factor))

    def check(self, energy: Any, batch: Batch) -> None:
        if not isinstance(energy, NoiseLevels) or not isinstance(energy, Energy):
            raise CapabilityError(
                f"RecoveryLikelihood trains a family of energies with given(sigma) and noise_levels(), and "
                f"{type(energy).__name__} is none; use models.NoiseConditionalEnergy"
            )
        energy.domain.check(observed(batch), "batch")
        need_domain(self, energy)
        levels = len(energy.noise_levels())
        if isinstance(self.step_size, tuple) and len(self.step_size) != levels:
            raise ArgumentError(
                f"RecoveryLikelihood(step_size={self.step_size}): the family has {levels} levels; give one number, or one for each"
            )

    def _rungs(self, energy: Any, like: Tensor) -> Rungs:
        sigma = energy.noise_levels().to(like)
        between = (sigma[:-1].square() - sigma[1:].square()).sqrt()
        return Rungs(sigma, torch.cat([sigma[:1], between]))

    def _sizes(self, rungs: Rungs) -> Tensor:
        """ε of every level."""
        if not isinstance(self.step_size, tuple):
            return self.step_size * rungs.gap
        return torch.stack([gap * size for gap, size in zip(rungs.gap, self.step_size, strict=True)])

    def _kernel(self, sizes: float | Tensor) -> Kernel:
        return MALA(sizes) if self.adjusted else Langevin(sizes)

    def _recovered(
        self, energy: Any, noisy: Tensor, level: Tensor, rungs: Rungs, generator: torch.Generator, *, watched: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """x⁻ after K steps from x̃, `level` `(batch,)` of each row."""
        precision = torch.where(level == 0, 0.0, rungs.gap[level] ** -2)
        sizes = self._sizes(rungs)[level][None]
        return walk(
            Recovering(energy.given(rungs.sigma[level]), noisy, precision),
            self._kernel(sizes),
            noisy,
            self.steps,
            generator,
            watched=watched,
        )

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        data = observed_with(batch, generator)
        n, rungs = len(data), self._rungs(energy, data)
        levels, wide = len(rungs.sigma), (-1, *[1] * (data.dim() - 1))
        shift = torch.randint(levels, (1,), generator=generator, device=data.device)
        level = (torch.randperm(n, generator=generator, device=data.device) + shift) % levels
        z = torch.randn(2, *data.shape, generator=generator, dtype=data.dtype, device=data.device)
        x = torch.addcmul(data, rungs.sigma[level].reshape(wide), z[0])
        noise = rungs.gap[level].reshape(wide) * z[1]
        noisy = torch.where((level == 0).reshape(wide), noise, x + noise)
        samples, moved = self._recovered(energy, noisy, level, rungs, generator, watched=step.watched)
        member = energy.given(rungs.sigma[level])
        low, high = member(x), member(samples)
        weight = rungs.gap.mean() / rungs.gap[level] if self.weighting == "noise" else 1.0
        value = (weight * (low - high)).mean()
        metrics = {"energy_data": low.mean(), "energy_samples": high.mean(), "gap": (low - high).mean()}
        return finish(self, value, state, metrics | moved)

    @property
    def draws(self) -> bool:
        return True

    def generate(
        self,
        energy: Any,
        n: int,
        state: Any,
        generator: torch.Generator,
        *,
        steps: int | None = None,
        levels: bool = False,
        **options: Any,
    ) -> Tensor:
        """n draws of the last level, by `steps` steps (K) at every one from the top down; with `levels` those of all levels
        `(levels, n, *event)`."""
        if options:
            raise ArgumentError(f"RecoveryLikelihood draws with steps= and levels=, got {', '.join(options)}")
        own = self if steps is None else replace(self, steps=steps)
        like = torch.zeros((), dtype=placement(energy)[0], device=generator.device)
        rungs = self._rungs(energy, like)
        x = rungs.sigma[0] * energy.domain.sample(n, generator=generator, dtype=like.dtype)
        found = []
        for i in range(len(rungs.sigma)):
            level = torch.full((n,), i, device=generator.device)
            x, _ = own._recovered(energy, x, level, rungs, generator, watched=False)
            found.append(x)
        report_divergence(Trouble.of(torch.zeros(n), x), n, self._kernel(1.0))
        return torch.stack(found) if levels else x
