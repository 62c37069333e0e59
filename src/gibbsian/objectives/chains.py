"""What the likelihood and contrastive objectives share: samples from a kernel, and how the chains do."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from gibbsian.capabilities import ContrastiveModel
from gibbsian.errors import ArgumentError, check_number, hold_counts
from gibbsian.fast.compiled import Forgiving, compiled, weak_cache
from gibbsian.kernels.base import Kernel
from gibbsian.kernels.gibbs import Gibbs
from gibbsian.kernels.tempering import ParallelTempering
from gibbsian.objectives.base import Batch, SteppedObjective, observed
from gibbsian.sampling.checks import check_start
from gibbsian.sampling.chunks import advance, one_step


def check_kernel(owner: object, kernel: Any) -> None:
    """Refuse what is not a kernel."""
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"{type(owner).__name__}(kernel={kernel!r}): expected one of gibbsian.kernels, such as "
            "kernels.Gibbs() or kernels.Langevin(step_size=0.1)"
        )


class SampledObjective(SteppedObjective):
    """Energies of data against those of samples that a kernel makes; subclasses have these among their options."""

    needs_energy: ClassVar[bool] = True
    kernel_optional: ClassVar[bool] = False

    kernel: Kernel | None
    steps: int
    penalty: float

    def __post_init__(self) -> None:
        if self.kernel is not None or not self.kernel_optional:
            check_kernel(self, self.kernel)
        hold_counts(self, "steps")
        check_number(self, "penalty", self.penalty)

    def kernels(self) -> tuple[Kernel, ...]:
        return () if self.kernel is None else (self.kernel,)

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        steps = more_steps(self.steps, steps_factor, self.kernel)
        return replace(self, steps=steps, penalty=max(self.penalty, penalty))  # type: ignore[call-arg]

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        if self.kernel is not None:
            self.kernel.check(energy)
            check_start(energy, observed(batch), "batch")


def more_steps(steps: int, factor: float, kernel: Kernel | None = None) -> int:
    """Sampler steps times a factor; as many as before where the kernel has a value for every one of them. Where they ended with a
    cycle of the kernel's steps they do so again: in the middle of one, chains would be left by steps many times as long."""
    if kernel is not None and kernel.scheduled:
        return steps
    whole = 1 if kernel is None or steps % kernel.period else kernel.period
    return math.ceil(steps * factor / whole) * whole


def plain_gibbs(kernel: Kernel, energy: Any) -> bool:
    """Can the model run its own sweeps and share their products with the gradient?"""
    return kernel == Gibbs() and isinstance(energy, ContrastiveModel)


def _layer_weights(energy: nn.Module) -> list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter]]:
    """What autocast casts: single-precision parameters of dense and convolutional layers, and where each is kept by which name."""
    layers = [m._parameters for m in energy.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
    every = [(own, name, p) for own in layers for name, p in own.items() if p is not None]
    return [one for one in every if one[2].dtype == torch.float32]


@contextmanager
def cast_once(energy: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside autocast, weights of dense and convolutional layers are in its precision already.

    Autocast would cast them at every step of a chain (in a captured graph it cannot keep the casts), and half of
    the kernels of a small network would be casts. The values are the same.
    """
    held = _layer_weights(energy) if torch.is_autocast_enabled(device.type) else []
    dtype = torch.get_autocast_dtype(device.type)
    cast = [torch.empty_like(p, dtype=dtype, requires_grad=False) for _, _, p in held]
    if held:
        torch._foreach_copy_(cast, [p.detach() for _, _, p in held])  # on a GPU one kernel for all
    for (own, name, _), half in zip(held, cast, strict=True):
        own[name] = nn.Parameter(half, requires_grad=False)  # a parameter whose data changes would lose its graphs
    try:
        yield
    finally:
        for own, name, p in held:
            own[name] = p


@contextmanager
def without_clearing() -> Iterator[None]:
    """Inside, convolutions on CUDA are those that need no memory cleared before them, which are the deterministic ones: between the
    short kernels of a captured chain, clearing and the wait for it make convolutions of few channels a seventh to a third longer."""
    before, torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic, True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


fused_step = weak_cache(lambda energy, *key: Forgiving(one_step, compiled))


def walk(
    energy: Any,
    kernel: Kernel,
    x: Tensor,
    steps: int,
    generator: torch.Generator,
    *,
    watched: bool = True,
    fused: bool = False,
    owner: Any = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Positions after `steps` steps from x, and metrics of the chains; by compiled steps where they are to be `fused`, which the
    `owner` of the energy keeps where that is one of a family and made anew for every step.

    The kernel's state is made anew, because cached energies and scores belong to older parameters.
    """
    half = torch.is_autocast_enabled(x.device.type)
    program = (
        fused_step(energy if owner is None else owner, type(energy), type(kernel), half, x.shape) if fused else None
    )
    with torch.no_grad(), cast_once(energy, x.device), nullcontext() if program is None else without_clearing():
        target = kernel.target(energy)
        state = kernel.init(target, x.detach())
        state, acceptance, diverged = advance(target, kernel, state, steps, generator, step=program or one_step)
        y = kernel.position(state)
    if program is not None:
        program.tell("steps of chains are not compiled")
    metrics = chain_metrics(x, y, watched)
    metrics["divergent"] = diverged.to(y.dtype).mean()
    if kernel.adjusted:
        metrics["acceptance"] = acceptance.mean()
    return y, metrics


Tempered = tuple[Tensor, Tensor, Tensor]  # chains, their hotter replicas `(chains, replicas - 1, *event)`, turn to swap


def walk_tempered(
    energy: Any, kernel: ParallelTempering, chains: Tempered, steps: int, generator: torch.Generator, *, watched: bool
) -> tuple[Tempered, dict[str, Tensor]]:
    """The same for chains with hotter replicas."""
    cold, hot, turn = chains
    with torch.no_grad(), cast_once(energy, cold.device):
        target = kernel.target(energy)
        rows = torch.cat([cold[:, None], hot], 1).transpose(0, 1).flatten(0, 1)
        state = kernel.init_replicas(target, rows, turn)
        state, acceptance, diverged = advance(target, kernel, state, steps, generator)
        replicas = kernel.replicas(state).transpose(0, 1)
    metrics = chain_metrics(cold, replicas[:, 0], watched)
    metrics["divergent"] = diverged.to(cold.dtype).mean()
    metrics["swap_acceptance"] = state.swaps.sum() / state.tries.sum()
    if kernel.adjusted:
        metrics["acceptance"] = acceptance.mean()
    return (replicas[:, 0], replicas[:, 1:], state.turn), metrics


def chain_metrics(start: Tensor, end: Tensor, watched: bool) -> dict[str, Tensor]:
    """How far the chains went: 0 means frozen. Root mean square over entries and chains."""
    if not watched:
        return {}
    return {"movement": (end - start).detach().square().mean().sqrt()}


def energy_gap(
    energy: Any, data: Tensor, samples: Tensor, penalty: float = 0.0, *, watched: bool = True
) -> tuple[Tensor, dict[str, Tensor]]:
    """E(data).mean() - E(samples).mean() plus `penalty` times the mean squares of both; and its metrics."""
    return gap_between(energy(data), energy(samples), penalty, watched=watched)


def gap_between(
    at_data: Tensor, at_samples: Tensor, penalty: float = 0.0, *, watched: bool = True
) -> tuple[Tensor, dict[str, Tensor]]:
    """The same of energies that are known."""
    low, high = at_data.mean(), at_samples.mean()
    value = low - high
    metrics = {"energy_data": low, "energy_samples": high, "gap": value}
    if watched and min(len(at_data), len(at_samples)) > 1:
        metrics["separation"] = _separation(at_data.detach(), at_samples.detach())
    if penalty:
        value = value + penalty * (at_data.square().mean() + at_samples.square().mean())
    return value, metrics


def _separation(at_data: Tensor, at_samples: Tensor) -> Tensor:
    """How many standard deviations the mean energies are apart; 0 for energies that are flat, up to their rounding."""
    ends = torch.stack([at_data.double().mean(), at_samples.double().mean()])
    spread = 0.5 * (at_data.double().var() + at_samples.double().var())
    gap, rounding = (ends[0] - ends[1]).abs(), torch.finfo(at_data.dtype).eps * ends.abs().max()
    return torch.where(gap <= rounding, torch.zeros_like(gap), gap / (spread.sqrt() + rounding)).to(at_data.dtype)


def far_above(at_data: Tensor, at_samples: Tensor, spreads: float = 5.0) -> Tensor:
    """Which samples have energies above the data's by so many of their robust spreads, 1.48 times the median deviation. Where more
    than half of the rows have one energy, as equal rows do, that is nothing, and their standard deviation stands in.

    >>> far_above(torch.tensor([0.0, 1.0, 2.0, 1e9]), torch.tensor([-99.0, 5.0, 20.0])).tolist()
    [False, False, True]
    """
    at_data, at_samples = at_data.detach(), at_samples.detach()
    middle = at_data.median()
    spread = 1.4826 * (at_data - middle).abs().median()
    spread = torch.where(spread > 0, spread, at_data.std(correction=0))
    return at_samples > middle + spreads * spread
