"""What a run refuses before it starts, and says when it has ended badly."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gibbsian.domains import Categorical, Domain
from gibbsian.errors import (
    ArgumentError,
    DivergenceError,
    DivergenceWarning,
    DomainError,
    GibbsianError,
    PrecisionWarning,
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
    domain.check_clamp(clamp)
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


def check_resumable(trace: Trace, kernel: Kernel, energy: Any, target: Any) -> None:
    """A state belongs to its kind of kernel and to its domain, and what it holds must still be true of kernel and model."""
    anew = "start anew from its positions: sample(energy, kernel, trace.last, ...)"
    if trace.state is None:
        raise ArgumentError(f"a trace that was gathered from processes holds no states; {anew}")
    if not kernel.resumes(trace.kernel):
        raise ArgumentError(f"the trace is one of {trace.kernel} and cannot be resumed with {kernel}; {anew}")
    energy.domain.check_shape(trace.last, "the trace's position")
    check_placement(trace.last, energy, "the trace's position")
    lost = ~torch.isfinite(trace.last)  # chains that are no longer numbers stay so
    if not bool((energy.domain.contains(trace.last) | lost).all()):
        raise DomainError(f"the trace has positions outside {energy.domain}, where this energy lives; choose others")
    if kernel.outdated(target, trace.state, trace.clamp):
        raise ArgumentError(
            f"the energy (or the proposal of {type(kernel).__name__}) is not the one that the trace was run with: it is another, or "
            f"its parameters have changed, so what the state carries is out of date; {anew}"
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


_COARSE = 0.05  # nats: energies rounded to more are too coarse for differences of energies to be trusted


def report_rounding(kernel: Kernel, state: Any, chains: int) -> None:
    """Warn where energies are so large in their precision that their differences, which decide on moves, are mostly rounding.

    exp(-E) with every E rounded to a grid of width δ is the law that is sampled; δ is 8 at 10⁸ in single precision.
    """
    energy = kernel.energies(state)
    if energy is None:
        return
    typical = float(energy.flatten()[:chains].abs().nanmedian())
    rounded = torch.finfo(energy.dtype).eps * 2.0 ** math.floor(math.log2(typical)) if 0 < typical < math.inf else 0.0
    if rounded > _COARSE:
        warnings.warn(
            f"energies of about {typical:.0e} are rounded to {rounded:.1g} in {energy.dtype}, and {type(kernel).__name__} decides "
            "by their differences: its draws are biased. Subtract a constant from the energy, or sample in double precision "
            "(energy.double(), x0.double())",
            PrecisionWarning,
            stacklevel=4,
        )


class Trouble(NamedTuple):
    """How many chains became non-finite, how many had divergent steps, how many those were, and the first lost chain."""

    lost: int
    diverged: int
    steps: int
    first: int | None = None

    @classmethod
    def of(cls, diverged: Tensor, position: Tensor) -> "Trouble":
        """What is wrong with chains at these positions, with as many divergent steps each."""
        lost = ~torch.isfinite(position).flatten(1).all(1)
        first = int(lost.nonzero()[0]) if bool(lost.any()) else None
        return cls(int(lost.sum()), int((diverged > 0).sum()), int(diverged.sum()), first)


def report_divergence(found: Trouble, chains: int, kernel: Kernel) -> None:
    """Raise where every chain has become non-finite, warn where some have or had divergent steps."""
    name = type(kernel).__name__
    if found.lost == chains:
        raise DivergenceError(
            f"all {chains} chains of {name} became non-finite; use a smaller step size, or check the energy"
        )
    trouble = ""
    if found.lost:
        which = "" if found.first is None else f" (the first is chain {found.first})"
        trouble = (
            f"{found.lost} of {chains} chains of {name} became non-finite{which}; "
            "the others are unaffected; use a smaller step size, or drop them with trace.divergences"
        )
    elif found.diverged:
        trouble = (
            f"{found.diverged} of {chains} chains of {name} had divergent steps ({found.steps} in all), "
            "which were refused; a smaller step size explores such regions, see trace.divergences"
        )
    if trouble:
        warnings.warn(trouble, DivergenceWarning, stacklevel=4)
