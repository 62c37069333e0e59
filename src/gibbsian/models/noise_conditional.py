"""Scores at many noise levels: one network, asked for the level it should clean up."""

from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.domains import Domain, Real
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, DomainError, GibbsianError, ShapeError, as_numbers, check_number
from gibbsian.placement import STUMBLES, explain_rows
from gibbsian.recorded import Recorded


class _Levels(Recorded):
    """A network asked for any level of a noise ladder: what families of scores and of energies have in common."""

    sigmas: Tensor

    def __init__(self, net: nn.Module, domain: Domain, sigmas: Tensor) -> None:
        super().__init__(domain)
        if not isinstance(domain, Real):
            raise DomainError(
                f"noise takes x out of {domain}, so noise-conditional models live on all of R^d; declare "
                f"domains.Real({domain.shape if isinstance(domain, Domain) else '...'})"
            )
        ladder = as_numbers(self, "sigmas", sigmas)
        good = ladder.dim() == 1 and len(ladder) > 0 and bool((ladder > 0).all() & torch.isfinite(ladder).all())
        if not good or not bool((ladder.diff() < 0).all()):
            raise ArgumentError(
                f"sigmas={sigmas}: a noise ladder is a row of positive numbers that descend; "
                "try schedules.noise_ladder(data).sigmas, or schedules.geometric(1.0, 0.01, 10)"
            )
        if not callable(net):
            raise ArgumentError(
                f"net is a {type(net).__name__}, expected a module that maps (x, sigma) to a score or energy"
            )
        self.net = net
        self.register_buffer("sigmas", ladder.clone())

    def noise_levels(self) -> Tensor:
        """The ladder of σ, falling."""
        return self.sigmas

    def told(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """What the network makes of x and σ, one number or one a row."""
        level = level_of(sigma, x)
        try:
            return self.net(x, level)
        except (TypeError, RuntimeError) as error:
            explain_rows(self, x, error)
            misfit = any(said in str(error) for said in _MISFITS)
            if isinstance(error, GibbsianError | torch.OutOfMemoryError) or not misfit:
                raise
            raise ShapeError(
                f"the network does not take x of shape {tuple(x.shape)} and sigma of shape {tuple(level.shape)}: {error}; give one "
                "that does, such as models.ScoreMLP(d) for scores and models.LevelEnergy(nets.MLP(d + 1)) for energies, where the "
                "level is one more input (one more channel of images) and there is one output"
            ) from error


# what torch says of rows that a network is not made for
_MISFITS = ("shape", "size", "channels", "positional argument")


def _check_level(sigma: Any) -> None:
    """Refuse a level that is no number from 0 on; tensors are not looked at, which would wait for the device."""
    if not isinstance(sigma, Tensor):
        check_number("given", "sigma", sigma)


def level_of(sigma: Tensor | float, x: Tensor) -> Tensor:
    """σ `(batch,)` from one number, or one a row."""
    if not isinstance(sigma, Tensor):  # filled on the device, so that a CUDA graph can hold it
        return torch.full((len(x),), float(sigma), dtype=x.dtype, device=x.device)
    level = sigma.to(x)
    if level.dim() > 1 or (level.dim() and len(level) not in {1, len(x)}):
        raise ShapeError(f"{tuple(level.shape)} noise levels met {len(x)} rows; give one, or one a row")
    return level.expand(len(x))


class NoiseConditionalScore(_Levels, ScoreField):
    """A family of score fields s(x, σ) ≈ ∇ log (p ∗ N(0, σ²I))(x), one for every noise level.

    Train it with `MultiScaleDenoising` and draw with `AnnealedLangevin`, which walks down the ladder; a single
    level, `given(σ)`, is a score field for `Langevin` and `UnderdampedLangevin`, and so is the family itself at its
    last level. Blurred laws live on all of R^d whatever the data's box, so the domain is `Real`.

    Reference: Song & Ermon 2019.

    Args:
        net: maps x `(batch, *event)` and σ `(batch,)` to scores of the shape of x, such as `models.ScoreMLP` or
            `models.ScoreUNet`.
        domain: `Real` of the event shape.
        sigmas: the ladder, descending, for example `schedules.noise_ladder(data).sigmas` or
            `schedules.geometric(1.0, 0.01, 10)`. The largest should be about the largest distance between data,
            the smallest about their fine structure.

    >>> import gibbsian as gb
    >>> class Exact(torch.nn.Module):  # the score of a blurred standard normal
    ...     def forward(self, x, sigma):
    ...         return -x / (1 + sigma[:, None] ** 2)
    >>> family = NoiseConditionalScore(Exact(), gb.domains.Real(2), gb.schedules.geometric(10.0, 0.1, 5))
    >>> family.given(1.0).score(torch.ones(1, 2))
    tensor([[-0.5000, -0.5000]])
    """

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """s(x, σ) for one σ, or one a row `(batch,)`; differentiable."""
        score = self.told(x, sigma)
        if score.shape != x.shape:
            raise ShapeError(
                f"the score network gave {tuple(score.shape)} for x of shape {tuple(x.shape)}; they must agree"
            )
        return score

    def score(self, x: Tensor, *, create_graph: bool = False) -> Tensor:
        """s(x, σ_L): that of the last level, the nearest to the data's own."""
        return self.given(self.sigmas[-1]).score(x, create_graph=create_graph)

    def given(self, index: Any) -> "ScoreAtLevel":
        """The score field at the noise level σ, a number or one a row."""
        return ScoreAtLevel(self, index)


class ScoreAtLevel(ScoreField):
    """s(·, σ) with σ fixed, a number or one a row."""

    def __init__(self, family: NoiseConditionalScore, sigma: Tensor | float) -> None:
        super().__init__(family.domain)
        _check_level(sigma)
        self.family, self.sigma = family, sigma

    def score(self, x: Tensor, *, create_graph: bool = False) -> Tensor:
        try:
            with torch.set_grad_enabled(create_graph):
                return self.family(x, self.sigma)
        except STUMBLES as error:
            explain_rows(self, x, error)
            raise


class NoiseConditionalEnergy(_Levels, Energy):
    """A family of energies E(x, σ) of the laws p ∗ N(0, σ²I), whose score is the gradient -∇ₓE(x, σ).

    Trained and sampled like `NoiseConditionalScore`; twice the cost, but the field is a gradient by construction,
    and levels can be compared, composed and Metropolis-corrected. By itself it is the energy of the last level.

    Reference: Song & Ermon 2019; Salimans & Ho 2021 (energy or score).

    Args:
        net: maps x `(batch, *event)` and σ `(batch,)` to energies `(batch,)`, such as `models.LevelEnergy`.
        domain, sigmas: as in `NoiseConditionalScore`.

    >>> import gibbsian as gb
    >>> class Exact(torch.nn.Module):  # the energy of a blurred standard normal
    ...     def forward(self, x, sigma):
    ...         return 0.5 * x.square().sum(1) / (1 + sigma**2)
    >>> family = NoiseConditionalEnergy(Exact(), gb.domains.Real(2), gb.schedules.geometric(10.0, 0.1, 5))
    >>> family.given(1.0).score(torch.ones(1, 2))
    tensor([[-0.5000, -0.5000]])
    """

    def at(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """E(x, σ), `(batch,)`, for one σ or one a row."""
        return self.told(x, sigma)

    def forward(self, x: Tensor) -> Tensor:
        return self.at(x, self.sigmas[-1])

    def given(self, index: Any) -> "EnergyAtLevel":
        """The energy at the noise level σ, a number or one a row."""
        return EnergyAtLevel(self, index)


class EnergyAtLevel(Energy):
    """E(·, σ) with σ fixed, a number or one a row."""

    def __init__(self, family: NoiseConditionalEnergy, sigma: Tensor | float) -> None:
        super().__init__(family.domain)
        _check_level(sigma)
        self.family, self.sigma = family, sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.family.at(x, self.sigma)
