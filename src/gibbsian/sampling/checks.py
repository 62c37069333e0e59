"""What a run refuses before it starts, and says when it has ended badly."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.domains import Categorical, Domain
from gibbsian.errors import (
    ArgumentError,
    DivergenceError,
    DivergenceWarning,
    DomainError,
    GibbsianError,
    ShapeError,
    check_count,
)
from gibbsian.kernels.base import ChainState, Kernel
from gibbsian.placement import check_placement, check_rows, check_together
from gibbsian.sampling.trace import Trace


def check_kernel(kernel: Any, energy: Any) -> None:
    """Refuse what is no kernel, or none for this energy."""
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"kernel is a {type(kernel).__name__}, expected one of gibbsian.kernels, such as kernels.MALA(step_size=0.1)"
        )
    kernel.check(energy)


def check_start(energy: Any, x: Tensor, name: str = "x0") -> None:
    """Refuse starting points of the wrong shape, precision, device or domain."""
    check_rows(energy, x, name)


def clamp_mask(clamp: Tensor | None, x: Tensor, domain: Domain) -> Tensor | None:
    """The clamp, known to be one for chains at x, with the shape of an event or of x."""
    if clamp is None:
        return None
    if not isinstance(clamp, Tensor) or clamp.dtype != torch.bool:
        what = clamp.dtype if isinstance(clamp, Tensor) else type(clamp).__name__
        raise ArgumentError(f"clamp is {what}, expected a bool tensor, True where entries of x0 are held fixed")
    event, whole = tuple(domain.shape), tuple(x.shape)
    if isinstance(domain, Categorical) and clamp.shape in {event[:-1], whole[:-1]}:
        clamp = clamp.unsqueeze(-1).expand(*clamp.shape, domain.classes)
    if tuple(clamp.shape) not in {event, whole}:
        raise ShapeError(
            f"clamp has shape {tuple(clamp.shape)}, expected {event} (all chains alike) or {whole} (per chain)"
        )
    if bool(clamp.all()):
        raise ArgumentError("clamp holds every entry, so nothing is left to sample; set some entries to False")
    return clamp.to(x.device, copy=True)


def check_counts(steps: int | None, burn_in: int, thin: int) -> tuple[int, int, int]:
    """Steps, burn-in and thinning as whole numbers, once they are known to fit."""
    if steps is None:
        raise ArgumentError("say how many steps to run: sample(..., steps=1000)")
    steps, burn_in = check_count("sample", "steps", steps), check_count("sample", "burn_in", burn_in, 0)
    if burn_in >= steps:
        raise ArgumentError(f"burn_in={burn_in} of steps={steps}: steps counts the burn-in, so burn_in must be smaller")
    return steps, burn_in, check_count("sample", "thin", thin)


def check_energies(kernel: Kernel, state: Any, x: Tensor) -> None:
    """Refuse starts whose energies are not finite, or energies and scores of another precision than the start."""
    energy = kernel.energies(state)
    if isinstance(state, ChainState):
        check_together(x, state.score, "x0", "the score there")
    if energy is None:
        return
    check_together(x, energy, "x0", "the energy there")
    bad = ~torch.isfinite(energy.flatten())
    if bool(bad.any()):
        index = int(bad.nonzero()[0])
        raise DomainError(
            f"the energy at x0[{index}] is {float(energy.flatten()[index])} ({int(bad.sum())} of {bad.numel()} chains); "
            "start every chain where the energy is finite"
        )


def check_resumable(trace: Trace, kernel: Kernel, target: Any) -> None:
    """A state belongs to its kind of kernel, and holds energies that must still be those of the model."""
    if type(kernel) is not type(trace.kernel):
        raise ArgumentError(
            f"the trace is one of {type(trace.kernel).__name__} and cannot be resumed with {type(kernel).__name__}; "
            "start anew from its positions: sample(energy, kernel, trace.last, ...)"
        )
    cached = kernel.energies(trace.state)
    if cached is None or cached.shape != trace.last.shape[:1]:
        return
    now = target(trace.last)
    if not torch.allclose(now, cached, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ArgumentError(
            "the energy is not the one that the trace was run on (its parameters have changed, or it is another), so "
            "the energies in its state are out of date; start anew: sample(energy, kernel, trace.last, ...)"
        )


@contextmanager
def explained(energy: Any, x: Any) -> Iterator[None]:
    """Say so when torch stumbles over a model in another precision or on another device than the chains."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, GibbsianError) or not isinstance(x, Tensor) or not isinstance(energy, nn.Module):
            raise
        check_placement(x, energy, "x0", buffers=True)
        raise


def report_divergence(diverged: Tensor, position: Tensor, kernel: Kernel) -> None:
    """Raise where every chain has become non-finite, warn where some have or had divergent steps."""
    lost = ~torch.isfinite(position).flatten(1).all(1)
    name = type(kernel).__name__
    if bool(lost.all()):
        raise DivergenceError(
            f"all {len(lost)} chains of {name} became non-finite; use a smaller step size, or check the energy"
        )
    trouble = ""
    if bool(lost.any()):
        trouble = (
            f"{int(lost.sum())} of {len(lost)} chains of {name} became non-finite (the first is chain {int(lost.nonzero()[0])}); "
            "the others are unaffected; use a smaller step size, or drop them with trace.divergences"
        )
    elif bool((diverged > 0).any()):
        trouble = (
            f"{int((diverged > 0).sum())} of {len(diverged)} chains of {name} had divergent steps ({int(diverged.sum())} in all), "
            "which were refused; a smaller step size explores such regions, see trace.divergences"
        )
    if trouble:
        warnings.warn(trouble, DivergenceWarning, stacklevel=3)
