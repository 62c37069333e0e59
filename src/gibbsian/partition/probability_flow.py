"""Likelihood of noise-conditional models through their probability flow, without any partition function.

    dx/dσ = -σ s(x, σ),    log p_σL(x) = log p_σ1(x(σ₁)) - ∫ σ div s(x(σ), σ) dσ   from σ_L to σ₁

The flow carries p ∗ N(0, σ²I) from level to level; at the largest it is a Gaussian in all but name.
"""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import NoiseLevels, require
from gibbsian.derivatives.score_jacobian import (
    batchable,
    jacobian_diagonal,
    quadratic_forms,
    random_directions,
    score_with_graph,
)
from gibbsian.energies.gaussian import Gaussian
from gibbsian.energy import Energy, log_z_of
from gibbsian.errors import ArgumentError, DataError, EstimateWarning, check_count, check_number, check_tensor
from gibbsian.partition.likelihood import LogLikelihood, likelihood_of
from gibbsian.placement import check_rows
from gibbsian.random import require_generator

_EXACT = 64  # dimensions up to which the divergence is taken exactly unless something else is asked for
_BLOCK = 1 << 20  # numbers of one batch of exact divergences


@dataclass(frozen=True, repr=False)
class FlowLikelihood(LogLikelihood):
    """A mean log-likelihood by probability flow; its interval also holds the error of the solver.

    Attributes:
        solver_error: of every row, how much the last halving of the steps changed it: an upper estimate, since the
            finer solution is reported.
        trace_stderr: of every row, standard error over the random directions of the divergence; 0 where it is exact,
            NaN for one direction. The spread of the rows contains it already.
        steps: of the finer solution.
    """

    solver_error: Tensor
    trace_stderr: Tensor
    steps: int


def flow_log_likelihood(
    family: Any,
    x: Tensor,
    *,
    data: Tensor | None = None,
    prior: Energy | None = None,
    divergence: str | None = None,
    probes: int = 1,
    steps: int = 32,
    max_steps: int = 512,
    tolerance: float = 0.01,
    batch_size: int = 256,
    generator: torch.Generator | None = None,
) -> FlowLikelihood:
    """log p(x) of a noise-conditional model by integrating its probability flow, with its error.

    What is found is the density of the flow's own law at the noise level σ_L, which is near p ∗ N(0, σ_L²I): exact for
    an exact score. Runge-Kutta steps of fourth order in log σ; their number is doubled until no mean change is above
    the tolerance. A learned score gives the likelihood of its flow, not that of annealed Langevin draws.

    Reference: Song et al. 2021 (variance-exploding flow, Hutchinson's divergence).

    Args:
        family: `NoiseConditionalScore`, `NoiseConditionalEnergy`, or any family with `noise_levels()` and `given(sigma)`.
        x: `(batch, *event)`.
        data: training data, whose moments make the Gaussian at σ₁: N(mean, covariance + σ₁²I). A largest level of
            about the largest distance between data makes its form irrelevant.
        prior: the law at σ₁ instead, an energy that knows log Z.
        divergence: "exact" (d derivatives a step) or "hutchinson" (one for each of `probes` directions, unbiased);
            by default exact up to 64 dimensions.
        probes: random directions a row.
        steps, max_steps: of the first and of the finest solution.
        tolerance: nats, for the mean over rows of the change at the last halving.
        batch_size: rows at a time.
        generator: for "hutchinson".

    >>> import gibbsian as gb
    >>> class Exact(torch.nn.Module):  # the score of a blurred standard normal
    ...     def forward(self, x, sigma):
    ...         return -x / (1 + sigma[:, None] ** 2)
    >>> family = gb.models.NoiseConditionalScore(Exact(), gb.domains.Real(2), gb.schedules.geometric(20.0, 0.1, 20))
    >>> wide = gb.energies.Gaussian(torch.zeros(2), 401.0 * torch.eye(2))  # its law at the largest level
    >>> out = flow_log_likelihood(family, torch.zeros(4, 2), prior=wide)
    >>> round(float(out.value), 3)  # -log 2π·1.01
    -1.848
    """
    advice = "use models.NoiseConditionalScore or NoiseConditionalEnergy, or gibbsian.log_likelihood for an energy"
    require(family, NoiseLevels, "a probability flow over noise levels", advice)
    check_rows(family, x)
    kind = _divergence(divergence, x[0].numel())
    drawn = require_generator(generator, x.device) if kind == "hutchinson" else None
    check_number("flow_log_likelihood", "tolerance", tolerance, open_low=True)
    probes, steps, batch_size = (
        check_count("flow_log_likelihood", name, value)
        for name, value in (("probes", probes), ("steps", steps), ("batch_size", batch_size))
    )
    if check_count("flow_log_likelihood", "max_steps", max_steps) < 2 * steps:
        raise ArgumentError(
            f"steps={steps}, max_steps={max_steps}: max_steps must be at least twice steps, so that two solutions can be compared"
        )
    end = _gaussian(family, data, x) if prior is None else prior
    log_z = log_z_of(end, "the law at the largest noise level")
    parts = []
    for rows in x.split(batch_size):
        v = None if drawn is None else random_directions("rademacher", probes, rows, drawn)
        parts.append(_converged(family, rows.detach(), v, end, log_z, steps, max_steps, tolerance))
    found, missed, steps_used = zip(*parts, strict=True)
    values, errors, used = torch.cat(found, 1), torch.cat(missed), max(steps_used)
    if float(errors.mean()) > tolerance:
        warnings.warn(
            f"the flow changed by {float(errors.mean()):.2g} nats a row when {used // 2} steps were halved, above the "
            f"tolerance of {tolerance:g}; raise max_steps",
            EstimateWarning,
            stacklevel=2,
        )
    return _found(values, errors, used, kind)


def _divergence(asked: str | None, numel: int) -> str:
    """How the divergence is taken: as asked for, else exactly in few dimensions."""
    kind = asked or ("exact" if numel <= _EXACT else "hutchinson")
    if kind not in {"exact", "hutchinson"}:
        raise ArgumentError(f"divergence={asked!r}: expected 'exact' or 'hutchinson'")
    return kind


def _found(values: Tensor, errors: Tensor, steps: int, kind: str) -> FlowLikelihood:
    """The likelihood of log p `(probes, batch)` whose solver errs by `errors` `(batch,)`."""
    found = likelihood_of(values.mean(0), None, f"probability flow, {kind} divergence")
    spread = values.std(0) / math.sqrt(len(values)) if len(values) > 1 else torch.full_like(errors, math.nan)
    solver = errors.mean()
    found = replace(
        found, stderr=torch.hypot(found.stderr, solver), lower=found.lower - solver, upper=found.upper + solver
    )
    spread = torch.zeros_like(errors) if kind == "exact" else spread
    return FlowLikelihood(**vars(found), solver_error=errors, trace_stderr=spread, steps=steps)


def _gaussian(family: Any, data: Tensor | None, x: Tensor) -> Gaussian:
    """N(mean, covariance + σ₁²I) of the data."""
    if data is None:
        raise ArgumentError("the law at the largest noise level is not known; give data= (training data) or prior=")
    check_tensor(data, "data")
    flat = data.flatten(min(1, data.dim() - 1)).double() if data.dim() else data[None].double()
    if len(flat) < 2 or data.shape[1:] != x.shape[1:]:
        raise DataError(
            f"data has shape {tuple(data.shape)}, expected at least two rows of events {tuple(x.shape[1:])}"
        )
    covariance = torch.atleast_2d(flat.T.cov())
    covariance.diagonal().add_(float(family.noise_levels()[0]) ** 2)
    return Gaussian(flat.mean(0), covariance).to(x.device)


def _converged(
    family: Any, x: Tensor, v: Tensor | None, end: Energy, log_z: Tensor, steps: int, most: int, tolerance: float
) -> tuple[Tensor, Tensor, int]:
    """log p `(probes, batch)` of the finer of two solutions, how far the rows of the coarser were, and its steps."""
    coarse = _solve(family, x, v, end, log_z, steps)
    while True:
        steps *= 2
        fine = _solve(family, x, v, end, log_z, steps)
        error = (fine - coarse).mean(0).abs()
        if float(error.mean()) <= tolerance or 2 * steps > most:
            return fine, error, steps
        coarse = fine


def _solve(family: Any, x: Tensor, v: Tensor | None, end: Energy, log_z: Tensor, steps: int) -> Tensor:
    """log p of every row for each probe, by `steps` Runge-Kutta steps in t = log σ."""
    sigmas = family.noise_levels().double()
    start, stop = float(sigmas[-1].log()), float(sigmas[0].log())
    h = (stop - start) / steps
    gain = torch.zeros(1 if v is None else len(v), len(x), dtype=torch.float64, device=x.device)
    y = x.double()
    for k in range(steps):
        t = start + k * h
        d1, g1 = _slope(family, y, t, v, x.dtype)
        d2, g2 = _slope(family, y + h / 2 * d1, t + h / 2, v, x.dtype)
        d3, g3 = _slope(family, y + h / 2 * d2, t + h / 2, v, x.dtype)
        d4, g4 = _slope(family, y + h * d3, t + h, v, x.dtype)
        y = y + h / 6 * (d1 + 2 * d2 + 2 * d3 + d4)
        gain = gain + h / 6 * (g1 + 2 * g2 + 2 * g3 + g4)
    with torch.no_grad():
        shaped = y.reshape(len(y), *end.domain.shape)
        like = next((t for t in (*end.parameters(), *end.buffers()) if t.is_floating_point()), shaped)
        return gain - end(shaped.to(like.dtype)).double() - log_z.double()


def _slope(family: Any, y: Tensor, t: float, v: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """dx/dt = -σ² s, and -σ² div s, what log p gains on the way, for each probe."""
    sigma = math.exp(t)
    x, s = score_with_graph(family.given(sigma), y.to(dtype))
    batched = batchable(family)
    if v is not None:
        trace = quadratic_forms(x, s, v, batched=batched)
    else:
        d = x[0].numel()
        size = max(1, _BLOCK // x.numel())
        parts = [jacobian_diagonal(x, s, i, min(i + size, d), batched=batched).sum(1) for i in range(0, d, size)]
        trace = torch.stack(parts).sum(0)[None]
    return -(sigma**2) * s.detach().double(), -(sigma**2) * trace.detach().double()
