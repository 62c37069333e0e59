"""Annealed importance sampling, and the runner that it shares with its reverse and resampled forms."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import Path
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, DivergenceError, EstimateWarning
from gibbsian.kernels import Kernel
from gibbsian.partition.base import LogZ, require_energy
from gibbsian.partition.paths import path_of, single
from gibbsian.placement import placement
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator


def ais(
    energy: Energy,
    data: Tensor | None = None,
    base: "Energy | Tensor | None" = None,
    chains: int = 100,
    betas: "int | Tensor | None" = None,
    kernel: Kernel | None = None,
    *,
    generator: torch.Generator | None = None,
    chunk: int | None = None,
    resume: LogZ | None = None,
    progress: bool | None = None,
) -> LogZ:
    """log Z by annealed importance sampling from a base whose log Z is known.

        w = Π_k p*_{β_k}(x_{k-1}) / p*_{β_{k-1}}(x_{k-1}),   x_k ~ T_{β_k}(· | x_{k-1}),   log Z ≈ log Z₀ + log mean w

    Each step weights first and then moves at the new temperature. w is unbiased, so log Z is low on average,
    and an estimate that is high by t nats has probability e^-t at most; it can be far too low, and then its
    error bar and effective sample size look healthy, because no chain has found the mass that is missing.
    Guard against that with a base fitted to data, more temperatures, and `reverse_ais`, which is high on
    average: a low log Z flatters every likelihood.

    The path depends on the model: RBMs anneal their joint energy from base rates with block Gibbs
    (Salakhutdinov & Murray 2008), Boltzmann machines from base rates with Gibbs sweeps, any other energy is
    mixed geometrically with the base, E_β = (1-β)E_base + βE, and moved by `kernel`: HMC with step sizes from
    a pilot run, or a sweep over the sites.

    Reference: Neal 2001.

    Args:
        energy: any energy with a normalizer.
        data: training data, to which the base is fitted; without data or base a warning is given.
        base: instead of data: a normalized energy with exact draws, or for discrete units their bias.
        chains: independent runs, each giving one weight.
        betas: number of temperatures, evenly spaced, or a tensor that rises from 0 to 1
            (`schedules.sigmoid(1000)`); 1000 where it is left out, or those of the result that is resumed.
        kernel: an adjusted kernel for the moves, instead of the model's own.
        generator: the source of all randomness; required.
        chunk: chains run at a time, to bound memory.
        resume: an earlier result for the same energy: its weights are kept and `chains` more are added, along
            its path.
        progress: show a progress bar; by default on a terminal.

    Returns:
        `lower` and `upper` are the value ± 3 standard errors (delta method, or the jackknife where that is
        larger and few weights matter). Diagnostics: `ess` effective number of weights, `log_weights` (log Z₀
        included), `jackknife`, `log_z0`, `betas`, `states` the last positions, `path`.

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
    generator = require_generator(generator, placement(energy)[1])
    if chains < 2 or (chunk is not None and chunk < 1):
        raise ArgumentError(
            f"chains={chains}, chunk={chunk}: at least two chains are needed for an error bar, one at a time"
        )
    if resume is not None and resume.method != "AIS":
        raise ArgumentError(f"only an estimate of ais can be resumed, this one is {resume.method!r}")
    path, ladder = prepared(energy, data, base, betas, kernel, resume, generator)
    old = [] if resume is None else [resume.diagnostics["log_weights"]]
    log_w, states = [], []
    size = chunk or chains
    with progress_bar(math.ceil(chains / size) * (len(ladder) - 1), "AIS", progress) as tick:
        for start in range(0, chains, size):
            x = path.sample(min(size, chains - start), generator=generator)
            x, w = run_path(path, x, ladder, generator, tick)
            log_w.append(w)
            states.append(x)
    log_z0 = path.log_z0().double()
    weights = torch.cat([*old, log_z0 + torch.cat(log_w)])
    diagnostics = {"log_z0": log_z0, "betas": ladder, "states": torch.cat(states), "path": path, "energy": energy}
    return from_weights(weights, "AIS", diagnostics).of(energy)


def prepared(
    energy: Energy,
    data: Tensor | None,
    base: "Energy | Tensor | None",
    betas: "int | Tensor | None",
    kernel: Kernel | None,
    earlier: LogZ | None,
    generator: torch.Generator,
) -> tuple[Path, Tensor]:
    """A path with its moves fitted, and a ladder: those of an earlier estimate, or as asked for."""
    if earlier is None:
        path, ladder = path_of(energy, data, base, kernel, stacklevel=4), ladder_of(1000 if betas is None else betas)
    elif data is not None or base is not None or kernel is not None:
        raise ArgumentError("an earlier estimate brings its own path; leave data, base and kernel out")
    else:
        path = path_from(earlier, energy)
        ladder = earlier.diagnostics["betas"] if betas is None else ladder_of(betas)
    path.tune(ladder, generator)
    return path, ladder


def ladder_of(betas: "int | Tensor") -> Tensor:
    """Inverse temperatures from 0 to 1 in float64."""
    if isinstance(betas, int) and not isinstance(betas, bool):
        if betas < 1:
            raise ArgumentError(f"betas={betas}: at least one step from the base to the energy is needed")
        return torch.linspace(0, 1, betas + 1, dtype=torch.float64)
    ladder = torch.as_tensor(betas, dtype=torch.float64).cpu()
    rising = ladder.dim() == 1 and len(ladder) > 1 and bool((ladder.diff() >= 0).all())
    if not rising or abs(float(ladder[0])) > 1e-6 or abs(float(ladder[-1]) - 1) > 1e-6:
        raise ArgumentError(
            "betas must be a number of temperatures, or a 1-D tensor that rises from 0 to 1 (the base and the "
            f"energy themselves), such as schedules.sigmoid(1000); got shape {tuple(ladder.shape)}"
        )
    ladder = ladder.clone()
    ladder[0], ladder[-1] = 0.0, 1.0
    return ladder


def path_from(estimate: LogZ, energy: Energy) -> Path:
    """The path of an earlier estimate, which must be of the same energy with the same parameters."""
    known = estimate.diagnostics
    if "path" not in known:
        raise ArgumentError(f"an estimate of ais or smc has a path to go along, one of {estimate.method!r} has none")
    if known["energy"] is not energy or estimate.parameters.changed(energy):
        raise ArgumentError(
            "the earlier estimate belongs to another model, or its parameters have changed since (it was trained "
            "or loaded anew); start afresh with data="
        )
    return known["path"]


def run_path(
    path: Path,
    x: Tensor,
    ladder: Tensor,
    generator: torch.Generator,
    tick: Callable[..., None],
    resample: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda x, log_w: (x, log_w),
) -> tuple[Tensor, Tensor]:
    """Go along the ladder, up or down: weight each step, then move. The positions and log weights after it; `resample`
    may exchange the first and reset the second after every step."""
    log_w = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    betas = ladder.cpu().unbind()
    shown = 0
    for k in range(1, len(betas)):
        noise = single(path.noise(x, 1, generator))
        x, increment = path.anneal(x, betas[k - 1], betas[k], noise)
        log_w += increment
        x, log_w = resample(x, log_w)
        if k % 50 == 0:
            tick(k - shown)
            shown = k
    tick(len(betas) - 1 - shown)
    if not bool((log_w < math.inf).all()):  # False for NaN
        bad = int((~(log_w < math.inf)).nonzero()[0])
        raise DivergenceError(
            f"the weight of chain {bad} is {float(log_w[bad])}: energies along the path are NaN or -∞; use a "
            "smaller step size, or check the parameters of the energy"
        )
    return x, log_w


def from_weights(log_w: Tensor, method: str, diagnostics: dict[str, Any], sign: float = 1.0) -> LogZ:
    """sign · log mean exp(log_w) with its standard error and a warning where few weights matter."""
    n = len(log_w)
    value, stderr, ess, jackknife = weight_statistics(log_w)
    if not math.isfinite(float(value)):
        raise DivergenceError(
            f"all {n} weights of {method} vanish; use more temperatures or a base closer to the model"
        )
    if ess < max(min(5.0, n / 4), 0.02 * n):
        stderr = torch.maximum(stderr, jackknife)
        side = "low" if sign > 0 else "high"
        warnings.warn(
            f"only {ess:.1f} of {n} weights of {method} matter, so the estimate is likely {side} by more than its "
            "error bar says; use more temperatures (betas=) or a base closer to the model",
            EstimateWarning,
            stacklevel=3,
        )
    value = sign * value
    diagnostics = {"ess": ess, "log_weights": log_w, "jackknife": jackknife, **diagnostics}
    return LogZ(value, stderr, value - 3 * stderr, value + 3 * stderr, method, diagnostics)


def weight_statistics(log_w: Tensor) -> tuple[Tensor, Tensor, float, Tensor]:
    """log mean w, its standard error by the delta method, the effective number of weights, and the jackknife error."""
    n = len(log_w)
    value = torch.logsumexp(log_w, 0) - math.log(n)
    w = torch.exp(log_w - value)  # mean 1
    stderr = w.std() / math.sqrt(n)
    ess = float(n / w.square().mean())
    without = torch.log1p(-w.clamp(max=n * (1 - 1e-12)) / n)  # log of the mean of the others, up to a constant
    jackknife = ((n - 1) * without.var(correction=0)).sqrt()
    return value, stderr, ess, jackknife
