"""Draws of any model by what suits it: exactly, in its own way, or as the ends of chains."""

import warnings
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import DrawableModel, Family, JointModel, NoiseLevels, Sampleable, require
from gibbsian.distributed.shards import Part, Shards, Share, Streams, streams_of
from gibbsian.domains import Discrete
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import (
    AdaptationWarning,
    ArgumentError,
    CapabilityError,
    DivergenceWarning,
    DomainError,
    ShapeError,
    check_count,
)
from gibbsian.kernels.annealed import AnnealedLangevin
from gibbsian.kernels.base import Kernel
from gibbsian.kernels.gibbs import Gibbs, SiteGibbs
from gibbsian.kernels.hmc import HMC
from gibbsian.kernels.langevin import Langevin
from gibbsian.objectives.base import Objective
from gibbsian.placement import check_placement, placement
from gibbsian.sampling.sample import sample
from gibbsian.sampling.trace import Trace
from gibbsian.sampling.warm_up import warm_up

MOST_KEPT = 2000  # draws of a chain that diagnostics look at; longer runs are thinned


class Drawn(NamedTuple):
    """Draws, the chains they come from (None where there are none to look at), how they were made, and the kernel that moved chains."""

    x: Tensor
    trace: Trace | None
    how: str
    kernel: Kernel | None = None


def draw(
    model: Any,
    n: int,
    *,
    generator: "torch.Generator | Shards",
    steps: int = 500,
    kernel: Kernel | None = None,
    start: Tensor | None = None,
    clamp: Tensor | None = None,
    label: int | Tensor | None = None,
    progress: bool | None = False,
) -> Tensor:
    """n draws `(n, *event)` of any model, by what suits it.

    Exact draws where the model has them; its own way where it has one (a deep belief network draws from the top
    down); else the ends of n chains: block Gibbs, annealed Langevin dynamics down the noise levels of a score network,
    site by site where x is discrete, HMC with a warm-up where it is not. `draw_with_trace` says which it was, and gives the chains:
    draws are as good as those have mixed.

    Args:
        model: an `Energy` or a `ScoreField`.
        n: how many, one chain each.
        generator: the source of randomness; required. `distributed.Shards(seed)` spreads the draws over the processes of a job,
            all of which get all of them.
        steps: of every chain, after a warm-up where there is one.
        kernel: draw by chains of this one.
        start: where chains begin `(rows, *event)`, gone through again where there are fewer rows than n; by default
            anywhere in the domain.
        clamp: bool, True for entries of `start` that stay: the rest is drawn given them; of the event shape, or of that of `start`.
        label: a class, or one a draw, for models that know classes.
        progress: show a bar.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> draw(gb.models.RBM(6, 3), 20, generator=g).shape
    torch.Size([20, 6])
    >>> draw_with_trace(gb.models.RBM(6, 3), 20, steps=100, generator=g).how
    'Gibbs, 100 steps'
    """
    how: dict[str, Any] = {"steps": steps, "kernel": kernel, "start": start, "clamp": clamp, "label": label}
    return draw_with_trace(model, n, **how, generator=generator, progress=progress).x


def draw_with_trace(
    model: Any,
    n: int,
    *,
    generator: "torch.Generator | Shards",
    steps: int = 500,
    kernel: Kernel | None = None,
    start: Tensor | None = None,
    clamp: Tensor | None = None,
    label: int | Tensor | None = None,
    objective: Objective | None = None,
    keep: bool = False,
    progress: bool | None = False,
) -> Drawn:
    """`draw`, with the chains that the draws come from and a word on how they were made.

    Args:
        model, n, generator, steps, kernel, start, clamp, label, progress: as in `draw`.
        objective: the one that the model was trained by; where chains are needed its kernel serves.
        keep: keep the second half of every chain, for diagnostics.
    """
    _check(model, start, clamp)
    n, steps = check_count("draw", "n", n), check_count("draw", "steps", steps)
    if isinstance(label, Tensor) and label.dim() and len(label) != n:
        raise ShapeError(f"{len(label)} labels were given for {n} draws; give one, or one a draw")
    streams = streams_of(generator, placement(model)[1])
    if start is not None:  # n rows, gone through again where there are fewer
        rows = torch.arange(n, device=start.device) % len(start)
        if isinstance(clamp, Tensor) and clamp.shape == start.shape:  # its rows belong to those
            clamp = clamp[rows.to(clamp.device)]
        start = start[rows]
    given, chains = _Given(start, clamp, label), _Chains(kernel, objective, steps, keep, progress)
    x = _own_way(model, n, steps, given, streams) if kernel is None and isinstance(model, DrawableModel) else None
    if x is not None:
        return Drawn(x, None, f"its own way, {steps} steps")
    if label is not None:
        joint = require(model, JointModel, "a draw of a class", "leave the class out")
        if isinstance(label, Tensor) and label.dim():
            return _one_class_each(joint, label, n, given, chains, streams)
        model = joint.given(label)
    if kernel is None and clamp is None and isinstance(model, Sampleable):
        with torch.no_grad(), suppress(CapabilityError):  # only some members of its class can
            return Drawn(_exact(model, n, streams), None, "exact draws")
    return chains.draw(model, n, given, generator)


class _Given(NamedTuple):
    """What is given for the draws: a row for each of them, or one thing for all."""

    start: Tensor | None
    clamp: Tensor | None
    label: int | Tensor | None

    def of(self, part: Part) -> "_Given":
        """What is given for the draws of a shard."""
        event = 0 if self.start is None else self.start.dim()
        return _Given(_rows(self.start, part, event), _rows(self.clamp, part, event), _rows(self.label, part, 1))


def _rows(value: Any, part: Part, axes: int) -> Any:
    """The rows of a shard of what is given for every draw; the rest as it is."""
    return value[part.rows] if isinstance(value, Tensor) and value.dim() == axes else value


class _Chains(NamedTuple):
    """How draws are made by chains, whatever the law is that they are of."""

    kernel: Kernel | None
    objective: Objective | None
    steps: int
    keep: bool
    progress: bool | None

    def draw(self, law: Any, n: int, given: _Given, generator: "torch.Generator | Shards") -> Drawn:
        """The ends of n chains: warmed up where nobody has tuned their kernel, from anywhere where nobody says where."""
        kernel, tune = self.kernel, False
        if kernel is None:
            kernel = suitable_kernel(law, self.objective)
            tune = isinstance(kernel, HMC) and not _kernels(self.objective)
        start: Any = given.start
        if start is None:
            wide = float(law.noise_levels()[0]) if isinstance(kernel, AnnealedLangevin) else 1.0  # as the widest noise
            start = _anywhere(law, n, wide, generator)
        total = kernel.total_steps(law) or self.steps
        how: dict[str, Any] = {"clamp": given.clamp, "generator": generator, "progress": self.progress}
        with warnings.catch_warnings():
            for shown in (DivergenceWarning, AdaptationWarning):  # in the diagnostics
                warnings.simplefilter("ignore", shown)
            if tune:
                kernel, start = warm_up(law, kernel, start, max(50, self.steps // 2), **how)
                how["clamp"] = None  # the trace keeps it
            burn_in = total // 2 if self.keep else total - 1
            thin = max(1, (total - burn_in) // MOST_KEPT)
            trace = sample(law, kernel, start, total, burn_in=burn_in, thin=thin, keep=self.keep, **how)
        return Drawn(trace.gather().last, trace, f"{type(kernel).__name__}, {total} steps", kernel)


def _one_class_each(
    joint: JointModel, label: Tensor, n: int, given: _Given, chains: _Chains, streams: Streams
) -> Drawn:
    """Draws of a class each, shard by shard; without the chains, which are of different laws."""
    ends = chains._replace(keep=False)
    found = [
        ends.draw(joint.given(label[part.rows]), part.size, given.of(part), part.generator) for part in streams.parts(n)
    ]
    return Drawn(streams.gather(torch.cat([made.x for made in found])), None, found[0].how, found[0].kernel)


def _exact(model: Sampleable, n: int, streams: Streams) -> Tensor:
    drawn = [model.sample(part.size, generator=part.generator) for part in streams.parts(n)]
    return streams.gather(torch.cat(drawn))


def _own_way(model: DrawableModel, n: int, steps: int, given: _Given, streams: Streams) -> Tensor | None:
    """Draws in the way that the model has for it, shard by shard; None where it has none for what is asked."""
    found = []
    for part in streams.parts(n):
        with torch.no_grad():
            x = model.draw(part.size, steps=steps, generator=part.generator, **given.of(part)._asdict())
        if x is None:
            return None
        found.append(x)
    return streams.gather(torch.cat(found))


def _check(model: Any, start: Tensor | None, clamp: Tensor | None) -> None:
    if not isinstance(model, Energy | ScoreField):
        advice = "choose a member of the family: draw(model.given(...), n)" if isinstance(model, Family) else ""
        raise CapabilityError(
            f"{type(model).__name__} is neither an energy nor a score field; "
            + (advice or "wrap it with gibbsian.as_energy(function, domain)")
        )
    if start is not None:
        model.domain.check_shape(start, "start")
        check_placement(start, model, "start")
    if clamp is not None and start is None:
        raise ArgumentError("clamp holds entries of start; give start= as well")


def _anywhere(model: Any, n: int, wide: float, generator: "torch.Generator | Shards") -> "Tensor | Share":
    """Where chains begin when nobody says where."""

    def some(count: int, stream: torch.Generator) -> Tensor:
        x: Tensor = model.domain.sample(count, generator=stream, dtype=placement(model)[0])
        return x if wide == 1.0 else x * wide

    return generator.draw(n, some) if isinstance(generator, Shards) else some(n, generator)


def _kernels(objective: Objective | None) -> tuple[Kernel, ...]:
    return () if objective is None else objective.kernels()


def suitable_kernel(model: Any, objective: Objective | None = None) -> Kernel:
    """A kernel that suits a model: that of the objective it was trained by where it has one, else the most exact one.

    >>> import gibbsian as gb
    >>> suitable_kernel(gb.models.RBM(4, 3)), suitable_kernel(gb.energies.MLPEnergy(2))
    (Gibbs(), HMC(step_size=0.1, leapfrog_steps=10, mass=None, jitter=0.5))
    """
    candidates: list[Kernel] = [*_kernels(objective)[:1], Gibbs()]
    if isinstance(model, NoiseLevels):
        candidates = [AnnealedLangevin(steps_per_level=20, step_size=float(model.noise_levels()[-1]) ** 2 * 0.2)]
    if isinstance(model, ScoreField):
        candidates.append(Langevin(step_size=0.05))
    candidates.append(SiteGibbs() if isinstance(model.domain, Discrete) else HMC(0.1, 10))
    for kernel in candidates:
        try:
            kernel.check(model)
        except (CapabilityError, DomainError):
            continue
        return kernel
    raise CapabilityError(f"no kernel here suits {type(model).__name__} over {model.domain}; say which: kernel=")
