"""Annealed Langevin dynamics: down a ladder of noise levels."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import NoiseLevels
from gibbsian.domains import Domain, Real
from gibbsian.errors import CapabilityError, DomainError, hold_counts
from gibbsian.kernels.base import Info, event_view, masked, positive, schedule_values
from gibbsian.kernels.langevin import Bare, Positions, normal_inputs


class AnnealedInputs(NamedTuple):
    """Standard normals, the noise level, and what score and normals are multiplied with."""

    z: Tensor
    sigma: Tensor
    drift: Tensor  # αᵢ/2, or σ_L² in the denoising step
    scale: Tensor  # √αᵢ, or 0


@dataclass(frozen=True)
class AnnealedLangevin(Bare):
    """Annealed Langevin dynamics over the noise ladder of a family: `steps_per_level` steps at every σᵢ,

        x ← x + (αᵢ/2) s(x, σᵢ) + √αᵢ z,   αᵢ = ε σᵢ²/σ_L².

    At high noise the modes are joined and found with their right weights; the steps shrink with the noise. It
    ends near p ∗ N(0, σ_L²), not p. Plain Langevin started from noise finds modes by their basins, not their
    weights. Unadjusted: needs scores only, and its bias grows with ε.

    Clamped entries (inpainting) are shown to the score with noise of the present level added, as the score knows
    them, and keep their value otherwise.

    A run takes `levels * steps_per_level` steps (one more to denoise), so `sample` need not be told how many; a
    longer one stays at the last level.

    Reference: Song & Ermon 2019.

    Args:
        steps_per_level: T.
        step_size: ε, a variance: the αᵢ of the last level; a number or a `(1, chains)` tensor.
        denoise: end with x + σ_L² s(x, σ_L), the mean of the clean x given the noisy one.

    >>> import gibbsian as gb
    >>> class Exact(torch.nn.Module):  # the score of a blurred standard normal
    ...     def forward(self, x, sigma):
    ...         return -x / (1 + sigma[:, None] ** 2)
    >>> ladder = gb.schedules.geometric(10.0, 0.1, 5)
    >>> family = gb.models.NoiseConditionalScore(Exact(), gb.domains.Real(2), ladder)
    >>> g = torch.Generator().manual_seed(0)
    >>> kernel = AnnealedLangevin(steps_per_level=20, step_size=0.005)
    >>> gb.sample(family, kernel, torch.zeros(8, 2), generator=g).steps
    100
    """

    steps_per_level: int
    step_size: float | Tensor
    denoise: bool = False
    domains: ClassVar[tuple[type[Domain], ...]] = (Real,)
    tuned: ClassVar[str] = "step_size"
    needs_energy: ClassVar[bool] = False
    adjusted: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        hold_counts(self, "steps_per_level")
        positive("step_size", self.step_size, "AnnealedLangevin")

    def check(self, energy: Any) -> None:
        if not isinstance(energy, NoiseLevels):
            raise CapabilityError(
                f"AnnealedLangevin walks down a ladder of noise levels, which {type(energy).__name__} has not; use "
                "models.NoiseConditionalScore (or any family with noise_levels() and given(sigma)), or kernels.Langevin"
            )
        if not isinstance(energy.domain, Real):  # type: ignore[attr-defined]
            raise DomainError(
                f"noise takes x out of {energy.domain}, so annealed Langevin runs on domains.Real"  # type: ignore[attr-defined]
            )

    def total_steps(self, energy: Any) -> int:
        return len(energy.noise_levels()) * self.steps_per_level + self.denoise

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> AnnealedInputs:
        ladder = energy.noise_levels().to(x)
        step = torch.arange(start, start + steps, device=x.device)
        sigma = ladder[(step // self.steps_per_level).clamp(max=len(ladder) - 1)]
        sizes = schedule_values(self.step_size, steps, start, x, "step_size")
        per_step = (-1, *[1] * (sizes.dim() - 1))
        alpha = sizes * (sigma / ladder[-1]).square().reshape(per_step)
        last = (self.denoise & (step == len(ladder) * self.steps_per_level)).reshape(per_step)
        drift, scale = torch.where(last, ladder[-1] ** 2, alpha / 2), torch.where(last, 0.0, alpha.sqrt())
        return AnnealedInputs(normal_inputs(x, steps, generator), sigma, drift, scale)

    def step(self, energy: Any, state: Positions, inputs: AnnealedInputs) -> tuple[Positions, Info]:
        x, clamp = state
        noisy = x if clamp is None else torch.addcmul(x, inputs.sigma * clamp, inputs.z)
        drift, scale = event_view(inputs.drift, x), event_view(inputs.scale, x)
        move = drift * energy.given(inputs.sigma).score(noisy) + scale * inputs.z
        return Positions(x + masked(move, clamp), clamp), Info()
