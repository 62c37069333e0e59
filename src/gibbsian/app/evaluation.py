"""Judging a trained model: likelihood with an interval where there is one, classes, and what lies outside."""

import inspect
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gibbsian import metrics, partition
from gibbsian.app.recipe import EvaluateSpec
from gibbsian.app.runs import Drawn
from gibbsian.capabilities import BoundedModel, Family
from gibbsian.data import DataSet, Prepared, Rows, load
from gibbsian.domains import Binary, Discrete, Real
from gibbsian.energy import Energy
from gibbsian.errors import CapabilityError, DomainError, GibbsianError
from gibbsian.models.boltzmann import BoltzmannMachine
from gibbsian.partition.base import LogZ
from gibbsian.partition.clamped import clamped_log_likelihood
from gibbsian.partition.likelihood import LogLikelihood, log_likelihood
from gibbsian.placement import placement
from gibbsian.random import stream

__all__ = ["evaluate", "log_z_of_model"]

_EXACT = 1 << 22  # states that an exact sum may visit here: seconds
_ROWS = 1 << 14
_FLOW_DIMENSIONS = 64  # up to which a probability flow is solved with the exact divergence
_FLOW_ROWS, _FLOW_IMAGES = 500, 64


def log_z_of_model(
    energy: Any, data: Tensor, spec: EvaluateSpec, generator: torch.Generator, *, progress: bool | None = None
) -> tuple[LogZ | None, str]:
    """log Z by what suits the model, or None with the reason why there is none."""
    if not isinstance(energy, Energy):
        return (
            None,
            f"{type(energy).__name__} is a score without an energy, whose likelihood by probability flow takes long here; see partition.flow_log_likelihood",
        )
    if spec.likelihood == "none":
        return None, "the recipe asks for none"
    tries: dict[str, Callable[[], LogZ]] = {
        "exact": lambda: partition.exact(energy, limit=_EXACT, progress=progress),
        "quadrature": lambda: partition.quadrature(energy),
        "ais": lambda: partition.ais(
            energy, data[:_ROWS], chains=spec.chains, betas=spec.betas, generator=generator, progress=progress
        ),
    }
    chosen = [spec.likelihood] if spec.likelihood != "auto" else list(tries)
    reasons = []
    for name in chosen:
        try:
            return tries[name](), ""
        except (DomainError, CapabilityError) as error:
            reasons.append(f"{name}: {error}")
    return None, "; ".join(reasons)


def _likelihood(energy: Any, rows: Tensor, log_z: LogZ, generator: torch.Generator) -> LogLikelihood:
    if isinstance(energy, BoltzmannMachine) and energy.hidden:
        return clamped_log_likelihood(energy, rows[:200], log_z, generator=generator)
    bounded = isinstance(energy, BoundedModel) and not energy.sums_exactly()
    if isinstance(energy, BoundedModel) and not bounded:
        rows = rows[:100]
    takes = bounded and "generator" in inspect.signature(energy.log_mass_bound).parameters
    return log_likelihood(energy, rows, log_z, **({"generator": generator} if takes else {}))


def _plain(found: LogLikelihood) -> dict[str, Any]:
    return {
        "value": float(found.value),
        "lower": float(found.lower),
        "upper": float(found.upper) if math.isfinite(float(found.upper)) else None,
        "stderr": float(found.stderr),
        "rows": len(found.per_sample),
        "method": found.method,
    }


def baseline(train: Tensor, rows: Tensor, domain: Any) -> tuple[str, float] | None:
    """The mean log-likelihood of the simplest model: independent bits, or one Gaussian; what is to be beaten."""
    x, y = train.flatten(1).double(), rows.flatten(1).double()
    if isinstance(domain, Binary):
        p = (x.sum(0) + 1) / (len(x) + 2)
        return "independent units", float((y * p.log() + (1 - y) * (1 - p).log()).sum(1).mean())
    if isinstance(domain, Real) and x.shape[1] <= 200 and len(x) > 2 * x.shape[1]:
        ridge = 1e-6 * x.var(0).mean() * torch.eye(x.shape[1], dtype=x.dtype)
        law = torch.distributions.MultivariateNormal(x.mean(0), torch.cov(x.T) + ridge)
        return "one Gaussian", float(law.log_prob(y).mean())
    return None


def _simplest(train: Tensor, rows: Tensor, domain: Any) -> dict[str, Any]:
    found = baseline(train.cpu(), rows.cpu(), domain)
    return {} if found is None else {"baseline": {"what": found[0], "value": found[1]}}


def _flows(energy: Any, x: Tensor, spec: EvaluateSpec) -> bool:
    """Is it a score over noise levels, whose likelihood by probability flow is a matter of seconds here?"""
    levels = not isinstance(energy, Energy) and isinstance(energy, Family) and hasattr(energy, "sigmas")
    return levels and spec.likelihood == "auto" and (x[0].numel() <= _FLOW_DIMENSIONS or x.is_cuda)


def evaluate(
    energy: Any,
    prepared: Prepared,
    spec: EvaluateSpec,
    *,
    seed: int = 0,
    samples: Drawn | None = None,
    learned_log_z: float | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """What can be said about a trained model on held-out data, as plain numbers.

    Keys, where they apply: `part` and `rows` used, `log_z`, `likelihood` and `train_likelihood` with interval,
    `baseline`, `why_no_likelihood`, `energies` (means), `classes` (accuracy, calibration), `outside` (AUROC, ...),
    `anomalies`, `two_sample`, `seconds`, `warnings`.
    """
    begun = time.perf_counter()
    dtype, device = placement(energy)
    generator = stream(seed, "evaluate", device)
    part = (
        "test" if prepared.data.test is not None else "validation" if prepared.data.validation is not None else "train"
    )
    held = prepared.finished(part, spec.rows)
    train = prepared.finished("train", max(spec.rows, _ROWS))
    x, seen = held.x.to(device, dtype), train.x.to(device, dtype)
    found: dict[str, Any] = {"part": part, "rows": len(x)}
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        log_z, reason = log_z_of_model(energy, seen, spec, generator, progress=progress)
        if _flows(energy, x, spec):
            some = _FLOW_ROWS if x[0].numel() <= _FLOW_DIMENSIONS else _FLOW_IMAGES
            for key, rows in (("likelihood", x), ("train_likelihood", seen)):
                with torch.enable_grad():
                    flow = partition.flow_log_likelihood(energy, rows[:some], data=seen, generator=generator)
                found[key] = _plain(flow)
            found |= _simplest(seen, x[:some], energy.domain)
        elif log_z is None:
            found["why_no_likelihood"] = reason
        else:
            found["log_z"] = {
                "value": float(log_z.value),
                "lower": float(log_z.lower),
                "upper": float(log_z.upper),
                "stderr": float(log_z.stderr),
                "method": log_z.method,
            }
            if "ess" in log_z.diagnostics:
                found["log_z"]["ess"] = float(log_z.diagnostics["ess"])
            found["likelihood"] = _plain(_likelihood(energy, x, log_z, generator))
            found["train_likelihood"] = _plain(_likelihood(energy, seen[: len(x)], log_z, generator))
            found |= _simplest(seen, x, energy.domain)
        if learned_log_z is not None:
            found["learned_log_z"] = learned_log_z
        if isinstance(energy, Energy) and not _intractable(energy):
            found["energies"] = {"train": _mean(energy, seen[: len(x)]), part: _mean(energy, x)}
            found |= _detection(energy, prepared, spec, held, x)
        found |= _classes(energy, held, x)
        if samples is not None and not isinstance(energy.domain, Discrete):
            size = min(500, len(x), len(samples.x))
            if size >= 20:
                test = metrics.two_sample_test(
                    samples.x[:size].to(x), x[:size], method="energy", permutations=200, generator=generator
                )
                found["two_sample"] = {"method": "energy distance", "value": float(test.value), "p_value": test.p_value}
    found["warnings"] = sorted(
        {" ".join(str(w.message).split()) for w in caught if issubclass(w.category, UserWarning)}
    )
    found["seconds"] = time.perf_counter() - begun
    return found


def _intractable(energy: Any) -> bool:
    """Is its energy out of reach, or a sum over so many states that thousands of rows would take long?"""
    return isinstance(energy, BoundedModel) or (isinstance(energy, BoltzmannMachine) and bool(energy.hidden))


def _mean(energy: Any, x: Tensor) -> float:
    return float(torch.cat([energy(part) for part in x.split(1024)]).double().mean())


def _classes(energy: Any, rows: Rows, x: Tensor) -> dict[str, Any]:
    if rows.y is None or not hasattr(energy, "class_log_prob"):
        return {}
    y = rows.y.to(x.device)
    try:
        log_p = torch.cat([energy.class_log_prob(part) for part in x.split(1024)])
    except CapabilityError:  # a deep belief network without labels
        return {}
    ece = metrics.expected_calibration_error(log_p.exp(), y)
    accuracy = float((log_p.argmax(1) == y).double().mean())
    return {"classes": {"accuracy": accuracy, "calibration_error": float(ece), "rows": len(x)}}


def _scores(energy: Any, x: Tensor) -> Tensor:
    return torch.cat([energy(part) for part in x.split(1024)]).double()


def _detection(energy: Any, prepared: Prepared, spec: EvaluateSpec, rows: Rows, x: Tensor) -> dict[str, Any]:
    """AUROC of the energy: of labeled anomalies in the held-out part, and against other sets."""
    found: dict[str, Any] = {}
    if rows.y is not None and prepared.data.classes == ("normal", "anomaly"):
        inside, outside = _scores(energy, x[rows.y == 0]), _scores(energy, x[rows.y == 1])
        if len(inside) and len(outside):
            found["anomalies"] = _rates(inside, outside)
    if not spec.outside:
        return found
    inside = _scores(energy, x)
    found["outside"] = {}
    for name in spec.outside:
        try:
            other = prepared.other(_other(name, x, prepared))[: spec.rows].to(x)
            found["outside"][name] = _rates(inside, _scores(energy, other))
        except GibbsianError as error:
            found["outside"][name] = {"missing": str(error)}
    return found


def _other(name: str, x: Tensor, prepared: Prepared) -> DataSet:
    if name == "noise":  # uniform bytes of the raw shape
        raw = prepared.data.name
        shape = load(raw, part="test").train.x.shape[1:]
        noise = torch.randint(0, 256, (2000, *shape), generator=stream(prepared.seed, "noise")).byte()
        return DataSet("noise", Rows(noise))
    return load(name, part="test")


def _rates(inside: Tensor, outside: Tensor) -> dict[str, float]:
    return {
        "auroc": float(metrics.auroc(inside, outside)),
        "aupr": float(metrics.aupr(inside, outside)),
        "fpr95": float(metrics.fpr95(inside, outside)),
        "rows": len(outside),
    }
