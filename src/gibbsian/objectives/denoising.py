"""Denoising score matching, at one noise level and over a ladder of them."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from gibbsian.capabilities import NoiseLevels
from gibbsian.domains import Domain, Real
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, CapabilityError, check_number
from gibbsian.objectives.base import Batch, Loss, Objective, finish, need_domain, observed, observed_with


@dataclass(frozen=True)
class NoisyObjective(Objective):
    """An objective that adds Gaussian noise to the data."""

    domains: ClassVar[tuple[type[Domain], ...]] = (Real,)
    elsewhere: ClassVar[str] = "added noise leaves any smaller set: declare the energy over domains.Real"


def noise_share(sigma: Tensor | float, x: Tensor) -> Tensor:
    """σ as a share of σ plus the spread of the data: near 0 the target is all noise, near 1 all is blur."""
    spread = torch.linalg.vector_norm(x - x.mean(0)) / x.numel() ** 0.5  # x.var(0) is twenty times slower
    return sigma / (sigma + spread)


@dataclass(frozen=True)
class DenoisingScoreMatching(NoisyObjective):
    """½ E‖s(x̃) + (x̃ - x)/σ²‖², x̃ = x + σε: the model learns the data blurred by N(0, σ²I).

    One gradient of the energy a step: the cheapest score matching. The law it learns is p ∗ N(0, σ²I), so a
    Gaussian comes out with precision (Σ + σ²I)⁻¹; a small σ means little blur and a noisy gradient, of
    variance d/σ². The metric `noise_share` compares σ with the spread of the data: 0.05 to 0.4 are usual.

    Reference: Vincent 2011.

    Args:
        sigma: σ, the standard deviation of the noise.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> loss = DenoisingScoreMatching(sigma=0.3)(energy, torch.randn(5, 2, generator=g), (), g)
    >>> loss.value.backward()
    """

    sigma: float

    def __post_init__(self) -> None:
        check_number(self, "sigma", self.sigma, open_low=True)

    def signs(self, numbers: dict[str, float]) -> dict[str, str]:
        share = numbers.get("noise_share", 1.0)
        if share >= 0.01:
            return {}
        text = f"sigma is {share:.2g} of the spread of the data, so the denoising target is nearly all noise; "
        return {"noise_share": text + "0.05 to 0.5 is usual, or use MultiScaleDenoising"}

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        x = observed_with(batch, generator)
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        s = energy.score(torch.add(x, noise, alpha=self.sigma), create_graph=True)
        target = noise.div_(-self.sigma)  # in place: large temporaries cost more than their arithmetic
        value = mse_loss(s, target, reduction="sum") * (0.5 / len(x))
        return finish(self, value, state, {"noise_share": noise_share(self.sigma, x)})


@dataclass(frozen=True)
class MultiScaleDenoising(NoisyObjective):
    """(1/L) Σᵢ λ(σᵢ)·DSM(σᵢ) with λ = σ²: denoising score matching over a ladder of noise levels.

    For a family with `given(σ)` (a noise-conditional score network or energy) every level has its own target
    p ∗ N(0, σᵢ²I). A plain energy or score field is asked for one answer at all levels, a compromise that is
    smooth far from the data. Each row of a batch meets one level, the levels as evenly as the batch allows.

    Reference: Song & Ermon 2019 (λ = σ²); Li, Chen & Sommer 2019 for one energy over all levels.

    Args:
        sigmas: noise levels, for example `schedules.geometric(1.0, 0.01, 10)`; left out, the family's own.
        power: λ = σ^power; 2 makes every level weigh alike.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> objective = MultiScaleDenoising(gb.schedules.geometric(1.0, 0.1, 5))
    >>> objective(energy, torch.randn(10, 2, generator=g), (), g).value.backward()
    """

    sigmas: Tensor | tuple[float, ...] | None = None
    power: float = 2.0

    def __post_init__(self) -> None:
        if self.sigmas is not None:
            ladder = torch.as_tensor(self.sigmas, dtype=torch.float64)
            fine = ladder.dim() == 1 and len(ladder) > 0 and bool(((ladder > 0) & torch.isfinite(ladder)).all())
            if not fine:
                raise ArgumentError(
                    f"MultiScaleDenoising(sigmas={self.sigmas}): give positive finite noise levels in one "
                    "row, for example schedules.geometric(1.0, 0.01, 10)"
                )
            object.__setattr__(self, "sigmas", tuple(ladder.tolist()))
        check_number(self, "power", self.power)

    def check(self, energy: Any, batch: Batch) -> None:
        if not isinstance(energy, Energy | ScoreField | NoiseLevels):
            raise CapabilityError(
                f"{type(energy).__name__} is neither an energy, a score field nor a family with given(sigma) "
                "and noise_levels(); use models.NoiseConditionalScore, or gibbsian.as_energy"
            )
        if self.sigmas is None and not isinstance(energy, NoiseLevels):
            raise ArgumentError(
                f"{type(energy).__name__} has no noise ladder; give one: MultiScaleDenoising(sigmas=...)"
            )
        energy.domain.check(observed(batch), "batch")  # type: ignore[union-attr]
        need_domain(self, energy)

    def ladder(self, energy: Any, x: Tensor) -> Tensor:
        """The noise levels, where x lives."""
        sigmas = energy.noise_levels() if self.sigmas is None else self.sigmas
        return torch.as_tensor(sigmas, dtype=x.dtype, device=x.device)

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        x = observed_with(batch, generator)
        ladder = self.ladder(energy, x)
        n, levels = len(x), len(ladder)
        shift = torch.randint(levels, (1,), generator=generator, device=x.device)
        level = (torch.randperm(n, generator=generator, device=x.device) + shift) % levels
        sigma = ladder[level]
        wide = sigma.reshape(-1, *[1] * (x.dim() - 1))
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        member = energy.given(sigma) if isinstance(energy, NoiseLevels) else energy
        s = member.score(x + wide * noise, create_graph=True)
        each = 0.5 * (s + noise / wide).square().flatten(1).sum(1) * sigma**self.power
        return finish(self, each.mean(), state, {"noise_share": noise_share(ladder.min(), x)})
