"""Reverse annealed importance sampling: log Z from above, bounds from both sides, and a conservative likelihood."""

import math

import torch
from torch import Tensor

from gibbsian.distributed.shards import Streams, streams_of
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, check_count
from gibbsian.kernels import Kernel
from gibbsian.partition.base import LogZ, require_energy
from gibbsian.partition.likelihood import LogLikelihood, likelihood_of
from gibbsian.partition.paths import single
from gibbsian.partition.runner import of_run, prepared, run_path
from gibbsian.placement import check_rows, placement
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator


def reverse_ais(
    energy: Energy,
    samples: Tensor,
    data: Tensor | None = None,
    base: "Energy | Tensor | None" = None,
    betas: "int | Tensor | None" = None,
    kernel: Kernel | None = None,
    *,
    forward: LogZ | None = None,
    generator: "torch.Generator | Streams | None" = None,
    progress: bool | None = None,
) -> LogZ:
    """log Z from above: annealed importance sampling run backwards, from samples of the model down to the base.

        w' = Π p*_{β_{k-1}}(x_k) / p*_{β_k}(x_k),   log Z ≈ log Z₀ - log mean w'

    w' is unbiased for Z₀/Z, so this is high on average where `ais` is low: together they bracket log Z, and
    a gap between them shows what an error bar cannot. That needs samples of the model itself: exact ones, or
    the last states of long chains; samples of an unconverged chain (or the data, for an imperfect model)
    spoil the bound.

    Reference: Grosse, Ghahramani & Adams 2015 (bidirectional Monte Carlo); Burda, Grosse & Salakhutdinov
    2015.

    Args:
        energy: the energy of the forward run.
        samples: `(chains, *event)` independent draws of the model.
        data, base, betas, kernel, generator, progress: as in `ais`.
        forward: an estimate of `ais` whose path and temperatures are used instead.

    Returns:
        `lower` and `upper` are the value ± 3 standard errors; diagnostics as in `ais`, with log w' - log Z₀
        as `log_weights`.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.ones(2), torch.eye(2) / 4)
    >>> wide = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    >>> low = gb.partition.ais(target, base=wide, betas=100, generator=g)
    >>> high = reverse_ais(target, target.sample(100, generator=g), forward=low, generator=g)
    >>> truth, both = target.log_z(), gb.partition.bounds(low, high)
    >>> bool(both.lower < truth) and bool(truth < both.upper)
    True
    """
    streams = streams_of(generator, placement(require_energy(energy))[1])
    check_rows(energy, samples, "samples")
    if len(samples) < 2:
        raise ArgumentError("at least two samples are needed for an error bar")
    path, ladder = prepared(energy, data, base, betas, kernel, forward, streams.common)
    parts, ends = streams.parts(len(samples)), []
    with progress_bar(
        len(parts) * (len(ladder) - 1), "reverse AIS", progress if streams.world.first else False
    ) as tick:
        for part in parts:
            start = path.complete(samples[part.rows], part.generator)
            ends.append(run_path(path, start, ladder.flip(0), part.generator, tick))
    x, log_w = (torch.cat(each) for each in zip(*ends, strict=True))
    log_w = streams.gather(log_w) - path.log_z0().double()
    return of_run(energy, path, ladder, x, log_w, "reverse AIS", warn=streams.world.first)


def raise_bound(
    energy: Energy,
    x: Tensor,
    data: Tensor | None = None,
    base: "Energy | Tensor | None" = None,
    betas: "int | Tensor | None" = None,
    kernel: Kernel | None = None,
    *,
    chains: int = 5,
    forward: LogZ | None = None,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> LogLikelihood:
    """A conservative likelihood of test points: a lower bound on their log-probability under the annealing
    chain (RAISE).

        log p_ann(v) ≥ E log [p*(v)/Z₀ · Π p*_{β_{k-1}}(x_{k-1}) / p*_{β_k}(x_{k-1})],   x_K = v

    where each step down moves at β_k first and then weights.

    Annealing from the base through all temperatures is itself a generative model, with a density that needs
    no log Z. Its likelihood cannot be flattered by an estimate of log Z that is too low; as temperatures grow
    it tends to the model's. It is the likelihood of that chain, not a bound on the model's own.

    Reference: Burda, Grosse & Salakhutdinov 2015.

    Args:
        energy: the model.
        x: test points `(batch, *event)`.
        data, base, betas, kernel, forward, generator, progress: as in `reverse_ais`.
        chains: backward runs from every test point; more make the bound tighter.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rbm = gb.models.RBM(6, 4)
    >>> data = torch.bernoulli(torch.full((50, 6), 0.3), generator=g)
    >>> raise_bound(rbm, data[:5], data, betas=50, generator=g).per_sample.shape
    torch.Size([5])
    """
    generator = require_generator(generator, placement(require_energy(energy))[1])
    check_rows(energy, x)
    chains = check_count("raise_bound", "chains", chains)
    path, ladder = prepared(energy, data, base, betas, kernel, forward, generator)
    start = path.complete(x.repeat_interleave(chains, 0), generator)
    with torch.no_grad():
        noise = single(path.noise(start, 1, generator))
        moved, _ = path.anneal(start, ladder[-1], ladder[-1], noise)
        with progress_bar(len(ladder) - 1, "RAISE", progress) as tick:
            _, log_w = run_path(path, moved, ladder.flip(0), generator, tick)
        log_w = torch.logsumexp(log_w.reshape(len(x), chains), 1) - math.log(chains)
        per_sample = log_w - energy(x).double() - path.log_z0().double()
    return likelihood_of(per_sample, None, "RAISE")
