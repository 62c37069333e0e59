"""Annealed importance sampling, along a ladder that is given, or one that grows until both directions agree."""

import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gibbsian.capabilities import Path
from gibbsian.distributed.shards import Streams, streams_of
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, EstimateWarning, check_count, check_number
from gibbsian.kernels import Kernel
from gibbsian.partition.base import LogZ, require_energy
from gibbsian.partition.bounds import contradicts, difference
from gibbsian.partition.paths import single
from gibbsian.partition.runner import ladder_of, of_run, prepared, run_path
from gibbsian.partition.smc import systematic
from gibbsian.placement import placement
from gibbsian.progress import progress_bar


def ais(
    energy: Energy,
    data: Tensor | None = None,
    base: "Energy | Tensor | None" = None,
    chains: int = 100,
    betas: "int | Tensor | None" = None,
    kernel: Kernel | None = None,
    *,
    generator: "torch.Generator | Streams | None" = None,
    chunk: int | None = None,
    resume: LogZ | None = None,
    tolerance: float = 0.1,
    max_betas: int = 4000,
    progress: bool | None = None,
) -> LogZ:
    """log Z by annealed importance sampling from a base whose log Z is known.

        w = Π_k p*_{β_k}(x_{k-1}) / p*_{β_{k-1}}(x_{k-1}),   x_k ~ T_{β_k}(· | x_{k-1}),   log Z ≈ log Z₀ + log mean w

    Each step weights first and then moves at the new temperature. w is unbiased, so log Z is low on average, and an estimate
    that is high by t nats has probability e^-t at most. It can be far too low, which flatters every likelihood, and its error bar
    and effective sample size look healthy then: no chain has found the mass that is missing.

    So without `betas` the estimate is made from both sides (Grosse, Ghahramani & Adams 2015): a ladder of 250 temperatures is
    climbed and descended again. Descents start from chains at the energy itself, which began at the data (or at the ends of the
    climb), and are high on average as the climb is low. The ladder is doubled, with temperatures crowded where weights spread,
    until the two agree and the climb no longer gains, or `max_betas` is reached; the interval reaches from below the climb to
    above the descent.

    The path depends on the model: RBMs anneal their joint energy from base rates with block Gibbs
    (Salakhutdinov & Murray 2008), Boltzmann machines from base rates with Gibbs sweeps, any other energy is
    mixed geometrically with the base, E_β = (1-β)E_base + βE, and moved by `kernel`: HMC with step sizes from
    a pilot run, or a sweep over the sites.

    Reference: Neal 2001; Grosse, Ghahramani & Adams 2015.

    Args:
        energy: any energy with a normalizer.
        data: training data, to which the base is fitted and where descents begin; without data or base a warning is
            given.
        base: instead of data: a normalized energy with exact draws, or for discrete units their bias.
        chains: independent runs, each giving one weight.
        betas: number of temperatures, evenly spaced, or a tensor that rises from 0 to 1
            (`schedules.sigmoid(1000)`), climbed once; those of the result that is resumed; or left out, as above.
        kernel: an adjusted kernel for the moves, instead of the model's own.
        generator: the source of all randomness; required. `distributed.Shards(seed)` spreads the chains over the processes
            of a job: weights are gathered, `states` are those of this process.
        chunk: chains run at a time, to bound memory.
        resume: an earlier result for the same energy: its weights are kept and `chains` more are added, along
            its path.
        tolerance: nats by which climb and descent, or two climbs, may differ beyond two standard errors.
        max_betas: the longest ladder that is tried where `betas` is left out.
        progress: show a progress bar; by default on a terminal.

    Returns:
        `lower` and `upper` are the value ± 3 standard errors (delta method, or the jackknife where that is
        larger and few weights matter), wider where few weights matter or the descent ends higher. Diagnostics: `ess`
        effective number of weights, `log_weights` (log Z₀ included), `jackknife`, `log_z0`, `betas`, `states` the last
        positions, `path`; without betas also `reverse` the descent, `gap` by which it ends higher, and `ladders`, the
        number of temperatures with the climb and the descent of each that was tried.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rbm = gb.models.RBM(6, 4)
    >>> data = torch.bernoulli(torch.full((100, 6), 0.3), generator=g)
    >>> first = ais(rbm, data, chains=50, betas=100, generator=g)
    >>> both = ais(rbm, chains=50, resume=first, generator=g)
    >>> len(both.diagnostics["log_weights"])
    100
    """
    require_energy(energy)
    streams = streams_of(generator, placement(energy)[1])
    chains = check_count("ais", "chains", chains, 2)  # for an error bar
    chunk = chains if chunk is None else check_count("ais", "chunk", chunk)
    max_betas = check_count("ais", "max_betas", max_betas)
    check_number("ais", "tolerance", tolerance)
    if resume is not None and resume.method != "AIS":
        raise ArgumentError(f"only an estimate of ais can be resumed, this one is {resume.method!r}")
    grows = betas is None and resume is None
    path, ladder = prepared(
        energy, data, base, min(_FIRST, max_betas) if grows else betas, kernel, resume, streams.common
    )
    runs = _Runs(energy, path, chains, chunk, streams, progress)
    if grows:
        return _grown(runs, data, ladder, tolerance, max_betas)
    forward = runs.climb(ladder, [] if resume is None else [resume.diagnostics["log_weights"]])
    reverse = None if resume is None else resume.diagnostics.get("reverse")
    return forward if reverse is None else _between(forward, reverse)


_FIRST = 250  # temperatures of the first ladder; shorter ones agree with each other by being equally blind


class _Runs(NamedTuple):
    """What the runs along one path have in common."""

    energy: Energy
    path: Path
    chains: int
    size: int  # of the part of the chains that runs at a time
    streams: Streams
    progress: bool | None

    def climb(self, ladder: Tensor, earlier: list[Tensor], spread: Tensor | None = None, warn: bool = True) -> LogZ:
        """Weights from the base up to the energy, with those of an earlier climb; the variance over all chains of what every
        step adds to the log weights is added to `spread`."""
        sums, ends, grows = [], [], spread is not None
        with self._bar(len(ladder) - 1, f"AIS, {len(ladder) - 1} temperatures") as tick:
            for _, sizes, generator in self._parts():
                sums.append(torch.zeros(2, len(ladder) - 1, dtype=torch.float64, device=generator.device))
                for n in sizes:
                    start = self.path.sample(n, generator=generator)
                    ends.append(run_path(self.path, start, ladder, generator, tick, sums=sums[-1] if grows else None))
        x, log_w = (torch.cat(each) for each in zip(*ends, strict=True))
        if spread is not None:
            # of all chains: pieces of one chain have no variance of their own
            total, squares = self.streams.total(sums)
            variance = (squares - total.square() / self.chains) / (self.chains - 1)
            spread += variance.nan_to_num(0.0, 0.0).clamp(min=0)  # weights that vanish say nothing of where
        log_w = torch.cat([*earlier, self.path.log_z0().double() + self.streams.gather(log_w)])
        warn = warn and self.streams.world.first
        return of_run(self.energy, self.path, ladder, x, log_w, "AIS", warn=warn, stacklevel=5)

    def descend(self, ladder: Tensor, x: Tensor) -> LogZ:
        """Weights from positions at the energy down to the base."""
        with self._bar(len(ladder) - 1, f"reverse AIS, {len(ladder) - 1} temperatures") as tick:
            ends = [
                run_path(self.path, piece, ladder.flip(0), generator, tick)
                for rows, sizes, generator in self._parts()
                for piece in x[rows].split(sizes)
            ]
        x, log_w = (torch.cat(each) for each in zip(*ends, strict=True))
        log_w = self.streams.gather(log_w) - self.path.log_z0().double()
        return of_run(self.energy, self.path, ladder, x, log_w, "reverse AIS", warn=False)

    def wander(self, x: Tensor, steps: int) -> Tensor:
        """Move chains at the energy itself."""
        one, parts = torch.ones((), dtype=torch.float64), []
        with self._bar(steps, "chains at the energy") as tick:
            for rows, sizes, generator in self._parts():
                for part in x[rows].split(sizes):
                    for _ in range(steps):
                        part, _ = self.path.anneal(part, one, one, single(self.path.noise(part, 1, generator)))
                        tick(1)
                    parts.append(part)
        return torch.cat(parts)

    def _parts(self) -> list[tuple[slice, list[int], torch.Generator]]:
        """For every shard of this process: its rows, the sizes of the pieces that run at a time, and its stream."""
        return [
            (part.own, [min(self.size, part.size - start) for start in range(0, part.size, self.size)], part.generator)
            for part in self.streams.parts(self.chains)
        ]

    def _bar(self, steps: int, what: str) -> AbstractContextManager[Callable[..., None]]:
        pieces = sum(len(sizes) for _, sizes, _ in self._parts())
        return progress_bar(pieces * steps, what, self.progress if self.streams.world.first else False)


def _grown(runs: _Runs, data: Tensor | None, ladder: Tensor, tolerance: float, max_betas: int) -> LogZ:
    """Climb and descend ladders of doubled length until both ways agree and the climb no longer gains."""
    g = runs.streams.common
    x = None if data is None else _some(runs, data)
    tried: list[tuple[int, float, float]] = []
    before: LogZ | None = None
    while True:
        spread = torch.zeros(len(ladder) - 1, dtype=torch.float64, device=g.device)
        forward = runs.climb(ladder, [], spread, warn=False)
        if x is None or data is None:  # the ends of the climb, by their weights
            share = torch.softmax(forward.diagnostics["log_weights"], 0)
            chosen = systematic(share[None], g)[0][runs.streams.own(runs.chains)]
            x = runs.streams.pick(forward.diagnostics["states"], chosen)
        x = runs.wander(x, len(ladder) // 2)
        reverse = runs.descend(ladder, x)
        tried.append((len(ladder) - 1, float(forward.value), float(reverse.value)))
        gain, noise = (math.inf, 0.0) if before is None else difference(forward, before)
        gap, error = difference(reverse, forward)
        agree = abs(gap) < tolerance + 2 * error and error < 5 * tolerance
        calm = agree and abs(gain) < tolerance + 2 * noise
        if calm or 2 * (len(ladder) - 1) > max_betas:
            break
        before, ladder = forward, _crowded(ladder, spread.cpu(), 2 * (len(ladder) - 1))
    out = _between(forward, reverse)
    out.diagnostics["ladders"] = tried
    climbs = before is not None and gain > tolerance + 2 * noise
    if climbs:  # what the last doubling gained may be gained again
        out = replace(out, upper=torch.maximum(out.upper, out.value + gain + 3 * out.stderr))
    if (climbs or not agree) and runs.streams.world.first:
        warnings.warn(
            f"after {len(ladder) - 1} temperatures the climb (AIS) is at {float(forward.value):.2f} and the descent "
            f"(reverse AIS) at {float(reverse.value):.2f}: log Z lies in [{float(out.lower):.2f}, {float(out.upper):.2f}], "
            "and the value is likely low; raise max_betas= or chains=, or give a base closer to the model",
            EstimateWarning,
            stacklevel=3,
        )
    return out


def _some(runs: _Runs, data: Tensor) -> Tensor:
    """As many states as there are chains from rows of data."""
    g, path = runs.streams.common, runs.path
    rows = torch.randint(len(data), (runs.chains,), generator=g, device=g.device)
    dtype, device = placement(runs.energy)
    x = data.to(device, dtype)
    found = [path.complete(x[rows[part.rows].to(device)], part.generator) for part in runs.streams.parts(runs.chains)]
    return torch.cat(found)


def _between(forward: LogZ, reverse: LogZ) -> LogZ:
    """A climb whose interval reaches to the upper end of a descent, unless that contradicts it."""
    gap, _ = difference(reverse, forward)
    upper = forward.upper if contradicts(reverse, forward) else torch.maximum(forward.upper, reverse.upper)
    return replace(forward, upper=upper, diagnostics={**forward.diagnostics, "reverse": reverse, "gap": gap})


def _crowded(ladder: Tensor, variance: Tensor, count: int) -> Tensor:
    """A ladder of `count` steps, half of them spread evenly, half where the weights of an earlier ladder spread.

    Weights of total variance Σσ_k² over a given number of steps are best where every step has the same σ.
    """
    sigma = variance.sqrt()
    sigma = torch.nn.functional.avg_pool1d(sigma[None], 9, 1, 4, count_include_pad=False)[0]  # few chains are noisy
    density = ladder.diff() + sigma / sigma.sum().clamp(min=1e-300)
    reached = torch.cat([density.new_zeros(1), density.cumsum(0)]) / density.sum()
    at = torch.linspace(0, 1, count + 1, dtype=torch.float64)
    return ladder_of(torch.as_tensor(np.interp(at.numpy(), reached.numpy(), ladder.numpy())))
