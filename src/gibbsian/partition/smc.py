"""Sequential Monte Carlo: annealed importance sampling with resampling, for log Z."""

import math
from dataclasses import replace

import scipy  # its parts are imported on first use
import torch
from torch import Tensor

from gibbsian.distributed.shards import Streams, streams_of
from gibbsian.energy import Energy
from gibbsian.errors import check_count, check_number
from gibbsian.kernels import Kernel
from gibbsian.partition.base import LogZ, require_energy
from gibbsian.partition.runner import from_weights, prepared, run_path
from gibbsian.placement import placement
from gibbsian.progress import progress_bar

_THREE_SIGMA = 0.99865  # the normal law below three standard deviations


def smc(
    energy: Energy,
    data: Tensor | None = None,
    base: "Energy | Tensor | None" = None,
    chains: int = 100,
    betas: "int | Tensor" = 1000,
    kernel: Kernel | None = None,
    *,
    islands: int = 10,
    threshold: float = 0.5,
    every: int | None = None,
    generator: "torch.Generator | Streams | None" = None,
    progress: bool | None = None,
) -> LogZ:
    """log Z by sequential Monte Carlo: the path of `ais`, with chains resampled by their weights on the way.

        Ẑ = Z₀ Π (mean weight between resamplings)

    Chains that went astray are replaced by copies of better ones, so fewer temperatures suffice than for
    `ais`; the copies share ancestors, so weights within a population say little about the error. Therefore
    `islands` independent populations of `chains` each are run, each giving one unbiased Ẑ, and the error
    comes from their spread.

    Reference: Del Moral, Doucet & Jasra 2006; systematic resampling of Carpenter, Clifford & Fearnhead 1999.

    Args:
        energy, data, base, betas, kernel, generator, progress: as in `ais`; with `distributed.Shards` populations are spread
            over processes.
        chains: chains in each population.
        islands: independent populations, at least two.
        threshold: resample a population when its effective sample size falls below this share of its chains.
        every: resample after every so many temperatures instead.

    Returns:
        `lower` and `upper` hold as much as three standard errors do, with Student's factor for few islands (4.1
        for ten). Diagnostics: `log_weights` (one log Ẑ an island, or a chain where nothing was resampled), `ess`
        among them, `resamplings` per island, `states` and their `state_log_weights` at the end, `betas`, `path`.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.ones(2), torch.eye(2) / 4)
    >>> wide = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    >>> out = smc(target, base=wide, betas=20, generator=g)
    >>> bool((out.value - target.log_z()).abs() < 4 * out.stderr)
    True
    """
    streams = streams_of(generator, placement(require_energy(energy))[1])
    chains, islands = check_count("smc", "chains", chains, 2), check_count("smc", "islands", islands, 2)
    check_number("smc", "threshold", threshold, 0.0, 1.0)
    if every is not None:
        every = check_count("smc", "every", every)
    path, ladder = prepared(energy, data, base, betas, kernel, None, streams.common)
    parts, first, ends = streams.parts(islands, 1), streams.world.first, []
    with progress_bar(len(parts) * (len(ladder) - 1), "SMC", progress if first else False) as tick:
        for part in parts:  # islands never meet, so that those of a process need no others
            x = path.sample(part.size * chains, generator=part.generator)
            population = _Population(part.size, chains, threshold, every, part.generator, x)
            x, log_w = run_path(path, x, ladder, part.generator, tick, population.resample)
            ends.append((x, log_w, population.log_z, population.count))
    x, log_w, log_z, count = (torch.cat(each) for each in zip(*ends, strict=True))
    log_w, log_z, count = (streams.gather(each) for each in (log_w, log_z, count))
    log_z0 = path.log_z0().double()
    estimates = log_z0 + log_z + torch.logsumexp(log_w.reshape(islands, chains), 1) - math.log(chains)
    diagnostics = {
        "log_z0": log_z0,
        "betas": ladder,
        "resamplings": count,
        "states": x,
        "state_log_weights": log_w,
        "path": path,
        "energy": energy,
    }
    if not bool(count.any()):  # plain annealed importance sampling: every chain has a weight of its own
        return from_weights(log_z0 + log_w, "SMC", diagnostics, warn=first).of(energy)
    out = from_weights(estimates, "SMC", diagnostics, warn=first).of(energy)
    width = float(scipy.special.stdtrit(islands - 1, _THREE_SIGMA)) * out.stderr
    return replace(out, lower=out.value - width, upper=out.value + width)


class _Population:
    """Islands of chains that are resampled by their weights, each on its own."""

    def __init__(
        self, islands: int, chains: int, threshold: float, every: int | None, generator: torch.Generator, x: Tensor
    ) -> None:
        self.shape, self.threshold, self.every, self.generator = ((islands, chains), threshold, every, generator)
        self.log_z = torch.zeros(islands, dtype=torch.float64, device=x.device)
        self.count = torch.zeros(islands, dtype=torch.long, device=x.device)
        self.steps = 0

    def resample(self, x: Tensor, log_w: Tensor) -> tuple[Tensor, Tensor]:
        """Resample the islands that are due; their mean weight goes into log Ẑ and their weights start afresh."""
        islands, chains = self.shape
        self.steps += 1
        log_w = log_w.reshape(islands, chains)
        p = torch.softmax(log_w, 1)
        if self.every is None:
            due = p.square().sum(1) * self.threshold * chains > 1  # ESS < threshold · chains
        else:
            due = torch.full_like(self.count, self.steps % self.every == 0, dtype=torch.bool)
        if not bool(due.any()):
            return x, log_w.flatten()
        chosen = systematic(p, self.generator)
        stay = torch.arange(chains, device=x.device).expand(islands, chains)
        index = torch.where(due[:, None], chosen, stay) + chains * torch.arange(islands, device=x.device)[:, None]
        mean = torch.logsumexp(log_w, 1) - math.log(chains)
        self.log_z += torch.where(due, mean, torch.zeros_like(mean))
        self.count += due
        return x[index.flatten()], torch.where(due[:, None], torch.zeros_like(log_w), log_w).flatten()


def systematic(p: Tensor, generator: torch.Generator) -> Tensor:
    """Systematic resampling of each row of probabilities `(rows, n)`: indices `(rows, n)`, one uniform number a row."""
    rows, n = p.shape
    u = torch.rand(rows, 1, generator=generator, dtype=p.dtype, device=p.device)
    points = (torch.arange(n, dtype=p.dtype, device=p.device) + u) / n
    cumulative = p.cumsum(1)
    cumulative = cumulative / cumulative[:, -1:]
    return torch.searchsorted(cumulative, points, right=True).clamp_(max=n - 1)
