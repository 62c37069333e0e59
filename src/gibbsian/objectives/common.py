"""What the objectives share: option checks, gradients collected part by part, frozen modules."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.derivatives.known import Gradients, trainable, with_gradients
from gibbsian.domains import Domain, Real
from gibbsian.energy import ScoreField
from gibbsian.errors import ArgumentError, CapabilityError, DomainError
from gibbsian.objectives.base import Loss, Objective, check_finite

WHOLE_SPACE = (Real,)
ADVICE = (
    "for binary data use RatioMatching, PseudoLikelihood or MinimumProbabilityFlow, for non-negative data "
    "NonNegativeScoreMatching, for a box train gibbsian.unconstrained(energy)"
)


def finish(
    objective: Objective,
    value: Tensor,
    state: Any,
    metrics: dict[str, Tensor],
    other: Tensor | None = None,
    gradients: Gradients | None = None,
) -> Loss:
    """The loss, once it is known to be finite."""
    both = value if other is None else value + other.detach()
    check_finite(both, f"the loss of {type(objective).__name__}")
    return Loss(value, state, {name: metric.detach() for name, metric in metrics.items()}, other, gradients)


# --- options --------------------------------------------------------------------------------------


def need_energy(objective: Objective, energy: Any) -> None:
    """Refuse a score network where energies are compared."""
    if isinstance(energy, ScoreField):
        raise CapabilityError(
            f"{type(objective).__name__} compares energies, but {type(energy).__name__} has only a score; "
            "train it with one of the score-matching objectives"
        )


def need_domain(objective: Objective, energy: Any, kinds: tuple[type[Domain], ...], advice: str) -> None:
    """Refuse a domain on which the principle does not hold."""
    if not isinstance(energy.domain, kinds):
        names = " or ".join(k.__name__ for k in kinds)
        what = "score network" if isinstance(energy, ScoreField) else "energy"
        raise DomainError(
            f"{type(objective).__name__} holds on {names}, but this {what} lives on {energy.domain}; {advice}"
        )


def need_third_derivative(objective: Objective, energy: Any) -> None:
    """Refuse normalization layers whose third derivative torch gets wrong without a word.

    Their fused second derivative takes the statistics for constants (pytorch issues 175754 and 186256).
    """
    if isinstance(energy, ScoreField):
        return
    for name, module in energy.named_modules():
        if isinstance(module, nn.LayerNorm | nn.modules.instancenorm._InstanceNorm | nn.modules.batchnorm._BatchNorm):
            raise CapabilityError(
                f"{type(objective).__name__} differentiates the energy three times, which torch does wrongly "
                f"through {type(module).__name__} ({name}); use gibbsian.energies.LayerNorm, or torch's "
                "RMSNorm or GroupNorm, or train with DenoisingScoreMatching"
            )


# --- gradients ------------------------------------------------------------------------------------


def accumulated(parts: Sequence[Callable[[], Tensor]], energy: nn.Module) -> tuple[Tensor, Gradients | None]:
    """Σ of parts whose graphs are freed one by one, so that memory is that of the largest part.

    Each part is differentiated at once; the sum carries the collected gradient of the energy's parameters.
    A single part is returned as it is.
    """
    if not parts:
        raise ArgumentError("nothing to add up: give at least one part")
    if len(parts) == 1:
        return parts[0](), None
    parameters, total, gradients = trainable(energy), [], Gradients()
    for part in parts:
        value = part()
        if parameters and value.requires_grad:
            for p, g in zip(parameters, torch.autograd.grad(value, parameters, allow_unused=True), strict=True):
                if g is not None:
                    gradients[p] = gradients[p].add_(g) if p in gradients else g.clone()
        total.append(value.detach())
    return with_gradients(sum(total[1:], total[0]), list(gradients), list(gradients.values()))
