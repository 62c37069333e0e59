"""Score matching: explicit (a target score is known), implicit, sliced, on [0, ∞)^d, denoising at one level or many.

J(θ) = ½ E‖s(x) - s*(x)‖²  =  E[tr ∇s(x) + ½‖s(x)‖²] + const,   s = -∇E
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from gibbsian.capabilities import NoiseLevels
from gibbsian.derivatives import score_jacobian as slopes
from gibbsian.domains import Bounded, Domain, NonNegative, Real
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, CapabilityError, ShapeError, check_choice, check_number, hold_counts
from gibbsian.objectives.base import Batch, Loss, Objective, accumulated, finish, need_domain, observed, observed_with


@dataclass(frozen=True)
class ScoreMatching(Objective):
    """An objective on the score of an energy and its derivatives."""

    domains: ClassVar[tuple[type[Domain], ...]] = (Real,)
    elsewhere: ClassVar[str] = (
        "for binary data use RatioMatching, PseudoLikelihood or MinimumProbabilityFlow, for non-negative data "
        "NonNegativeScoreMatching, for a box train gibbsian.unconstrained(energy)"
    )
    third_derivative: ClassVar[bool] = True


@dataclass(frozen=True)
class ExplicitScoreMatching(ScoreMatching):
    """½ E‖s(x) - s*(x)‖² against a score s* that is known.

    For distilling one model into another, and for tests. The expectation is over the batch, so the fit is
    best where the batch has mass.

    Reference: Hyvärinen 2005, equation 2.

    Args:
        target: an energy or score field, or a function from `(batch, *event)` to scores of that shape.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    >>> student = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> objective = ExplicitScoreMatching(target)
    >>> objective(student, torch.ones(3, 2), (), g).value.item()
    0.0
    """

    domains: ClassVar[tuple[type[Domain], ...]] = (Real, Bounded)
    third_derivative: ClassVar[bool] = False

    target: Energy | ScoreField | Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if not callable(self.target) and not isinstance(self.target, ScoreField):
            raise ArgumentError(
                f"ExplicitScoreMatching(target={self.target!r}): the target must be an energy, a score field "
                "or a function that returns scores"
            )

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        x, s = slopes.score_with_graph(energy, observed(batch))
        field = self.target
        with torch.no_grad():
            target = field.score(x) if isinstance(field, Energy | ScoreField) else field(x)
        if target.shape != s.shape:
            raise ShapeError(f"the target score has shape {tuple(target.shape)}, expected {tuple(s.shape)}")
        value = 0.5 * (s - target).square().flatten(1).sum(1).mean()
        return finish(self, value, state, {"score_norm": s.detach().square().flatten(1).sum(1).mean()})


@dataclass(frozen=True)
class TracedObjective(ScoreMatching):
    """How a trace of second derivatives is taken: the options of `ImplicitScoreMatching`."""

    trace: str = "exact"
    probes: int = 1
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_choice(self, "trace", self.trace, ("exact", "hutchinson"))
        hold_counts(self, "probes")
        if self.chunk is not None:
            hold_counts(self, "chunk")


@dataclass(frozen=True)
class ImplicitScoreMatching(TracedObjective):
    """E[tr ∇s(x) + ½‖s(x)‖²] = E[-ΔE + ½‖∇E‖²]: no target score, no partition function, no sampler.

    Consistent on R^d; for a Gaussian with full, diagonal or isotropic precision its minimizer is the
    maximum-likelihood estimate of the same sample. The exact trace costs d second derivatives, so it is for
    tens of dimensions; beyond them use `trace="hutchinson"`, `SlicedScoreMatching` or
    `DenoisingScoreMatching`. It is blind to the relative weight of modes that lie far apart.

    Reference: Hyvärinen 2005.

    Args:
        trace: "exact", or "hutchinson" for its unbiased estimate from random directions.
        probes: directions per row of the Hutchinson estimate (Rademacher).
        chunk: directions of the exact trace that are differentiated at a time, which bounds the memory; by
            default as many as fit in 2²⁴ numbers. In more than one piece the gradient reaches the parameters
            that the energy has registered.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> ImplicitScoreMatching()(energy, torch.ones(3, 2), (), g).value.item()  # -2 + ½·2
    -1.0
    """

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        if self.trace == "hutchinson":
            data = observed_with(batch, generator)
            v = slopes.random_directions("rademacher", self.probes, data, generator)
            found = slopes.score_matching_terms(energy, data, v)
            trace, norm = found.trace / self.probes, found.norm
            return finish(self, trace + 0.5 * norm, state, {"trace": trace, "score_norm": norm})  # type: ignore[operator,dict-item]
        data, norms = observed(batch), list[Tensor]()

        def part(first: int, last: int) -> Tensor:
            found = slopes.trace_block(energy, data, first, last, norm=first == 0)
            if found.norm is None:
                return found.trace
            norms.append(found.norm.detach())
            return found.trace + 0.5 * found.norm

        cuts = slopes.direction_blocks(data, self.chunk)
        value, gradients = accumulated([partial(part, *cut) for cut in cuts], energy)
        return finish(self, value, state, {"trace": value - norms[0] / 2, "score_norm": norms[0]}, gradients=gradients)


@dataclass(frozen=True)
class SlicedScoreMatching(ScoreMatching):
    """E[vᵀ(∇s)v + ½(vᵀs)²], or with less variance E[vᵀ(∇s)v] + ½E‖s‖², over random directions v.

    Its mean over v is implicit score matching for every kind of direction, because E[vvᵀ] = I for all of them
    (the sphere has radius √d). One second derivative a direction, whatever the dimension, and no noise added
    to the data, unlike `DenoisingScoreMatching`, which is cheaper still. Perceptrons and convolutional networks
    of known layers push all directions forward at once, about twice as fast as two backward passes.

    Reference: Song, Garg, Shi & Ermon 2019.

    Args:
        projections: directions per row. They share the forward pass and the gradient.
        kind: "rademacher" (least variance with the exact norm), "gaussian" or "sphere".
        variance_reduced: use ½‖s‖² in place of ½(vᵀs)².

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> SlicedScoreMatching(projections=3)(energy, torch.ones(3, 2), (), g).value.item()  # -2 + ½·2
    -1.0
    """

    projections: int = 1
    kind: str = "rademacher"
    variance_reduced: bool = True

    def __post_init__(self) -> None:
        hold_counts(self, "projections")
        check_choice(self, "kind", self.kind, slopes.DIRECTION_KINDS)

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        data = observed_with(batch, generator)
        v = slopes.random_directions(self.kind, self.projections, data, generator)
        reduced = self.variance_reduced
        found = slopes.score_matching_terms(energy, data, v, norm=reduced, projected=not reduced)
        trace, square = found.trace / self.projections, found.norm if reduced else found.projected
        return finish(self, trace + 0.5 * square, state, {"trace": trace, "score_norm": square})  # type: ignore[operator,dict-item]


@dataclass(frozen=True)
class NonNegativeScoreMatching(TracedObjective):
    """E Σᵢ[2xᵢsᵢ + xᵢ²∂ᵢsᵢ + ½sᵢ²xᵢ²], s = -∇E: score matching for non-negative data.

    The weight xᵢ² removes the boundary term that breaks plain score matching at 0, so it is consistent where
    the density does not vanish there. For an exponential law the estimated rate is 2·mean(x)/mean(x²).

    Reference: Hyvärinen 2007, section 3.

    Args:
        trace, probes, chunk: as in `ImplicitScoreMatching`, of Σxᵢ²∂ᵢsᵢ; random directions are multiplied by x.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.as_energy(lambda x: 3 * x.sum(-1), gb.domains.NonNegative(1))  # rate 3
    >>> NonNegativeScoreMatching()(energy, torch.ones(5, 1), (), g).value.item()  # -2·3 + ½·3²
    -1.5
    """

    domains: ClassVar[tuple[type[Domain], ...]] = (NonNegative,)
    elsewhere: ClassVar[str] = "on all of R^d use ImplicitScoreMatching"

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        data = observed(batch) if self.trace == "exact" else observed_with(batch, generator)

        def part(first: int, last: int) -> Tensor:
            x, s = slopes.score_with_graph(energy, data)
            if self.trace == "exact":
                diagonal = slopes.jacobian_diagonal(x, s, first, last, batched=slopes.batchable(energy))
                second = (data.flatten(1)[:, first:last].square() * diagonal).sum(1).mean()
            else:
                v = slopes.random_directions("rademacher", self.probes, x, generator) * data
                second = slopes.quadratic_forms(x, s, v, batched=slopes.batchable(energy)).mean()
            if first > 0:
                return second
            weighted = (data * s).flatten(1)
            return second + (2 * weighted + 0.5 * weighted.square()).sum(1).mean()

        cuts = slopes.direction_blocks(data, self.chunk) if self.trace == "exact" else [(0, 0)]
        value, gradients = accumulated([partial(part, *cut) for cut in cuts], energy)
        return finish(self, value, state, {}, gradients=gradients)


@dataclass(frozen=True)
class NoisyObjective(ScoreMatching):
    """Score matching on data with Gaussian noise added."""

    third_derivative: ClassVar[bool] = False
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
