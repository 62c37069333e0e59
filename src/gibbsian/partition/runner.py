"""Going along a path: ladders of inverse temperatures, weights on the way up or down, and what they say of log Z."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import Path
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, DivergenceError, EstimateWarning, as_numbers, check_count
from gibbsian.fast.graphs import CapturedChunk, fixed_copy
from gibbsian.kernels import Kernel
from gibbsian.partition.base import LogZ
from gibbsian.partition.paths import path_of
from gibbsian.trees import like_tuple


def prepared(
    energy: Energy,
    data: Tensor | None,
    base: "Energy | Tensor | None",
    betas: "int | Tensor | None",
    kernel: Kernel | None,
    earlier: LogZ | None,
    generator: torch.Generator,
) -> tuple[Path, Tensor]:
    """A path with its moves fitted, and a ladder: those of an earlier estimate, or as asked for (1000 temperatures)."""
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
    ladder = as_numbers("annealing", "betas", betas, torch.float64).cpu()
    if not ladder.dim():
        return torch.linspace(0, 1, check_count("annealing", "betas", betas) + 1, dtype=torch.float64)
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


Resample = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def run_path(
    path: Path,
    x: Tensor,
    ladder: Tensor,
    generator: torch.Generator,
    tick: Callable[..., None],
    resample: Resample | None = None,
    sums: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Go along the ladder, up or down: weight each step, then move. The positions and log weights after it; `resample`
    may exchange the first and reset the second after every step; the sums over chains of what every step adds to the
    log weights, and of its square, are added to `sums` `(2, steps)`."""
    state = x, torch.zeros(len(x), dtype=torch.float64, device=x.device)
    captured = x.is_cuda and path.on_device and resample is None
    betas = ladder.to(x.device) if captured else ladder.cpu()
    size = min(_CHUNK, len(betas) - 1) if captured else 1
    graph = CapturedChunk(_along, _one) if captured else None
    shown = done = 0
    while done < len(betas) - 1:
        count = min(size, len(betas) - 1 - done)
        inputs = betas[done : done + count], betas[done + 1 : done + count + 1], path.noise(x, count, generator)
        if graph is None or count < size:
            state, increments = _along(path, state, inputs, _one, resample)
        else:
            state, increments = graph(path, state, inputs)
        if sums is not None:
            added = increments.double()
            sums[:, done : done + count] += torch.stack([added.sum(1), added.square().sum(1)]).to(sums.device)
        done += count
        if done - shown >= 50:
            tick(done - shown)
            shown = done
    tick(done - shown)
    x, log_w = fixed_copy(state)
    if not bool((log_w < math.inf).all()):  # False for NaN
        bad = int((~(log_w < math.inf)).nonzero()[0])
        raise DivergenceError(
            f"the weight of chain {bad} is {float(log_w[bad])}: energies along the path are NaN or -∞; use a "
            "smaller step size, or check the parameters of the energy"
        )
    return x, log_w


_CHUNK = 50  # steps that a GPU takes in one graph


def _one(path: Path, state: tuple[Tensor, Tensor], inputs: Any) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """One step of every chain, and what it adds to their log weights."""
    (x, log_w), (beta, next_beta, noise) = state, inputs
    x, increment = path.anneal(x, beta, next_beta, noise)
    return (x, log_w + increment), increment


def _along(
    path: Path, state: tuple[Tensor, Tensor], inputs: Any, one: Callable[..., Any], resample: Resample | None = None
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Some steps, and `(steps, chains)` increments."""
    betas, next_betas, noise = inputs
    state, increments = (state[0].clone(), state[1]), []  # a copy: nothing that is known of an earlier x holds for it
    for k in range(len(betas)):
        state, increment = one(path, state, (betas[k], next_betas[k], like_tuple(type(noise), [t[k] for t in noise])))
        increments.append(increment)
        state = state if resample is None else resample(*state)
    return state, torch.stack(increments)


def from_weights(
    log_w: Tensor,
    method: str,
    diagnostics: dict[str, Any],
    sign: float = 1.0,
    *,
    warn: bool = True,
    stacklevel: int = 3,
) -> LogZ:
    """sign · log mean exp(log_w) with its standard error, and a warning where few weights matter: more are missing then
    than the error bar knows of."""
    n = len(log_w)
    value, stderr, ess, jackknife = weight_statistics(log_w)
    if not math.isfinite(float(value)):
        raise DivergenceError(
            f"all {n} weights of {method} vanish; use more temperatures or a base closer to the model"
        )
    if ess < max(min(5.0, n / 4), 0.02 * n):
        stderr = torch.maximum(stderr, jackknife)
    if warn and ess < max(min(30.0, n / 4), 0.02 * n):
        side = "low" if sign > 0 else "high"
        warnings.warn(
            f"only {ess:.1f} of {n} weights of {method} matter, so the estimate is likely {side} by more than its error "
            "bar says; use more temperatures (betas=) or a base closer to the model, or ais without betas=, which goes on "
            "until climb and descent agree",
            EstimateWarning,
            stacklevel=stacklevel,
        )
    value = sign * value
    diagnostics = {"ess": ess, "log_weights": log_w, "jackknife": jackknife, **diagnostics}
    return LogZ(value, stderr, value - 3 * stderr, value + 3 * stderr, method, diagnostics)


def of_run(
    energy: Energy,
    path: Path,
    ladder: Tensor,
    x: Tensor,
    log_w: Tensor,
    method: str,
    *,
    warn: bool = True,
    stacklevel: int = 4,
) -> LogZ:
    """The estimate of runs along a path that ended at x: up from the base ("AIS"), or down to it ("reverse AIS")."""
    known = {"log_z0": path.log_z0().double(), "betas": ladder, "states": x, "path": path, "energy": energy}
    sign = 1.0 if method == "AIS" else -1.0
    return from_weights(log_w, method, known, sign, warn=warn, stacklevel=stacklevel).of(energy)


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
