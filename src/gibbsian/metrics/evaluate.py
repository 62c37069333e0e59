"""Judging a model: likelihood with an interval where there is one, classes, and what lies outside."""

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import BoundedModel, ClampedModel, Classifier, NoiseLevels, ReconstructingModel
from gibbsian.distributed.shards import OneStream, Shards, Streams
from gibbsian.domains import Binary, Discrete, Real
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, ShapeError, check_count, check_tensor
from gibbsian.metrics.calibration import expected_calibration_error
from gibbsian.metrics.evaluation import Baseline, Classes, Comparison, Detection, Evaluation
from gibbsian.metrics.ood import aupr, auroc, fpr95
from gibbsian.metrics.two_sample import two_sample_test
from gibbsian.objectives.neighbors import PseudoLikelihood
from gibbsian.partition.annealed import ais
from gibbsian.partition.base import LogZ
from gibbsian.partition.bounds import from_both_sides
from gibbsian.partition.exact import exact
from gibbsian.partition.likelihood import LogLikelihood, log_likelihood
from gibbsian.partition.probability_flow import flow_log_likelihood
from gibbsian.partition.quadrature import quadrature
from gibbsian.placement import check_rows
from gibbsian.random import stream

LIKELIHOODS = ("auto", "exact", "quadrature", "ais", "none")
_EXACT = 1 << 22  # states that an exact sum may visit here: seconds
_ROWS = 1 << 14  # that the base of annealing is fitted to
_BLOCK = 1024
_FLOW_DIMENSIONS = 64  # up to which a probability flow is solved with the exact divergence
_FLOW_ROWS, _FLOW_IMAGES = 500, 64
_FLOW_ERROR = 1e-3  # nats an entry that its solver may be off: rows of an image differ by a hundred times that
_SUMMED_ROWS, _ANNEALED_ROWS = 100, 200  # of models whose energy is a sum over many states, or annealed for every row
_NEIGHBORS = 1 << 17  # energies of neighbors that a pseudo-likelihood may ask for
_COMPARED = 500  # rows of a two-sample test


class _How(NamedTuple):
    """How log Z is found."""

    method: str
    chains: int
    betas: int | None
    streams: Streams
    progress: bool | None


def evaluate(
    model: Any,
    data: Tensor | Sequence[Tensor],
    *,
    train: Tensor | None = None,
    outside: Mapping[str, Tensor] | None = None,
    samples: Tensor | None = None,
    draws: Iterable[Tensor] = (),
    likelihood: str = "auto",
    chains: int = 100,
    betas: int | None = None,
    seed: "int | Shards" = 0,
    progress: bool | None = False,
) -> Evaluation:
    """What can be said about a model on held-out data.

    The likelihood with its interval comes first, by an exact sum where that is within reach, else by quadrature, else by
    annealed importance sampling, and for scores over noise levels by probability flow. Then, where the model can:
    pseudo-likelihood, reconstruction, classes with their calibration, detection of other sets by energy, and draws
    against the data.

    Args:
        model: an `Energy` or a `ScoreField`.
        data: held-out rows `(rows, *event)`, or a pair of them and labels `(rows,)`.
        train: training rows: the base of annealing and the simplest model are fitted to them, and as many as there are
            held-out rows are judged as well. Without them the base is fitted to the data.
        outside: other sets by name, which should get higher energies.
        draws: the same held-out rows again, where they are drawn (bits from gray values): classes are told by the mean probability
            over all draws.
        samples: draws of the model, to be compared with the data where x is not discrete; see `gibbsian.draw`.
        likelihood: "auto" as above, "exact", "quadrature", "ais" or "none".
        chains, betas: of AIS; without betas its ladder grows until climb and descent agree.
        seed: of all randomness; `distributed.Shards(seed)` spreads chains and rows over the processes of a job.
        progress: show bars.

    >>> import gibbsian as gb
    >>> x = (torch.rand(40, 6, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    >>> report = evaluate(gb.models.RBM(6, 3), x)
    >>> print(report.log_likelihood.method, round(float(report.log_likelihood.value), 1))
    exact sum -4.2
    """
    x, y = _rows_and_labels(model, data)
    chains = check_count("evaluate", "chains", chains, 2)
    betas = None if betas is None else check_count("evaluate", "betas", betas)
    for name, rows in {"train": train, "samples": samples, **(outside or {})}.items():
        if rows is not None:
            model.domain.check_shape(rows, name)
    if likelihood not in LIKELIHOODS:
        raise ArgumentError(f"likelihood={likelihood!r}: expected one of {', '.join(LIKELIHOODS)}")
    streams = seed if isinstance(seed, Shards) else OneStream(stream(seed, "evaluate", x.device))
    begun, how = time.perf_counter(), _How(likelihood, chains, betas, streams, progress)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        found = _likelihoods(model, x, train, how) | _by_energy(model, x, train, outside or {}, streams)
        found |= {
            "reconstruction_error": _reconstruction_error(model, x, streams),
            "classes": _classes(model, chain([x], draws), y, streams),
        }
        found["two_sample"] = _compared(model, samples, x, streams)
    said = {" ".join(str(w.message).split()) for w in caught if issubclass(w.category, UserWarning)}
    return Evaluation(len(x), **found, warnings=tuple(sorted(said)), seconds=time.perf_counter() - begun)


def _rows_and_labels(model: Any, data: Any) -> tuple[Tensor, Tensor | None]:
    if not isinstance(model, Energy | ScoreField):
        raise CapabilityError(f"{type(model).__name__} is neither an energy nor a score field; see gibbsian.as_energy")
    x, y = data if isinstance(data, tuple | list) and len(data) == 2 else (data, None)
    check_rows(model, x, "data")
    if y is not None:
        check_tensor(y, "labels", "(rows,)", whole=True)
    if y is not None and y.shape != x.shape[:1]:
        raise ShapeError(f"labels have shape {tuple(y.shape)}, expected ({len(x)},): one whole number a row")
    return x, y


def costly(model: Any) -> bool:
    """Is its energy out of reach, or a sum over so many states that thousands of rows would take long?"""
    return isinstance(model, BoundedModel) or (isinstance(model, ClampedModel) and not model.sums_exactly())


def _likelihoods(model: Any, x: Tensor, train: Tensor | None, how: _How) -> dict[str, Any]:
    base, most = x if train is None else train, len(x)
    judge: Callable[[Tensor], LogLikelihood]
    if _flows(model, x, how):
        most = _FLOW_ROWS if x[0].numel() <= _FLOW_DIMENSIONS else _FLOW_IMAGES
        flow, tolerance = torch.enable_grad()(flow_log_likelihood), max(0.01, _FLOW_ERROR * x[0].numel())
        judge = partial(flow, model, data=base, generator=how.streams.common, tolerance=tolerance)
    else:
        log_z, reason = _log_z_of(model, base, how)
        if log_z is None:
            return {"why_no_likelihood": reason}
        judge = partial(_judged, model, log_z, how.streams)
    found = {"log_likelihood": judge(x[:most])}
    if train is not None:
        found["train_log_likelihood"] = judge(train[:most])
    return found | _simplest(train, x[:most], model.domain)


def _flows(model: Any, x: Tensor, how: _How) -> bool:
    """Is it a score over noise levels, whose likelihood by probability flow is a matter of seconds here?"""
    near = x[0].numel() <= _FLOW_DIMENSIONS or x.is_cuda
    return near and how.method == "auto" and isinstance(model, NoiseLevels) and not isinstance(model, Energy)


def _log_z_of(model: Any, data: Tensor, how: _How) -> tuple[LogZ | None, str]:
    """log Z by what suits the model, or None with the reason why there is none."""
    if not isinstance(model, Energy):
        why = "a score without an energy, whose likelihood by probability flow takes long here"
        return None, f"{type(model).__name__} is {why}; see partition.flow_log_likelihood"
    if how.method == "none":
        return None, "it was not asked for"
    ladder: dict[str, Any] = {"chains": how.chains, "betas": how.betas, "generator": how.streams}
    tries: dict[str, Callable[[], LogZ]] = {
        "exact": lambda: exact(model, limit=_EXACT, progress=how.progress),
        "quadrature": lambda: quadrature(model),
        "ais": lambda: from_both_sides(ais(model, data[:_ROWS], progress=how.progress, **ladder)),
    }
    reasons = []
    for name in tries if how.method == "auto" else [how.method]:
        try:
            return tries[name](), ""
        except (DomainError, CapabilityError) as error:
            reasons.append(f"{name}: {error}")
    return None, "; ".join(reasons)


def _judged(model: Any, log_z: LogZ, streams: Streams, rows: Tensor) -> LogLikelihood:
    if isinstance(model, BoundedModel) and model.sums_exactly():
        rows = rows[:_SUMMED_ROWS]
    elif isinstance(model, ClampedModel) and not model.sums_exactly():
        rows = rows[:_ANNEALED_ROWS]
    return log_likelihood(model, rows, log_z, generator=streams)


def _simplest(train: Tensor | None, rows: Tensor, domain: Any) -> dict[str, Any]:
    """The likelihood of independent bits, or of one Gaussian."""
    if train is None:
        return {}
    x, y = train.cpu().flatten(1).double(), rows.cpu().flatten(1).double()
    if isinstance(domain, Binary):
        p = (x.sum(0) + 1) / (len(x) + 2)
        value = (y * p.log() + (1 - y) * (1 - p).log()).sum(1).mean()
        return {"baseline": Baseline("independent units", float(value))}
    if isinstance(domain, Real) and x.shape[1] <= 200 and len(x) > 2 * x.shape[1]:
        ridge = 1e-6 * x.var(0).mean() * torch.eye(x.shape[1], dtype=x.dtype)
        law = torch.distributions.MultivariateNormal(x.mean(0), torch.cov(x.T) + ridge)
        return {"baseline": Baseline("one Gaussian", float(law.log_prob(y).mean()))}
    return {}


def _by_energy(
    model: Any, x: Tensor, train: Tensor | None, outside: Mapping[str, Tensor], streams: Streams
) -> dict[str, Any]:
    if not isinstance(model, Energy) or costly(model):
        return {}
    inside = energies_of(model, x, streams)
    means = {} if train is None else {"train": float(energies_of(model, train[: len(x)], streams).mean())}
    return {
        "energies": means | {"data": float(inside.mean())},
        "outside": {name: detection(inside, energies_of(model, rows, streams)) for name, rows in outside.items()},
        "pseudo_log_likelihood": _pseudo(model, x) if isinstance(model.domain, Discrete) else None,
    }


def energies_of(model: Energy, x: Tensor, streams: Streams | None = None) -> Tensor:
    """Energies of many rows, in double precision; of its share on every process."""
    with torch.no_grad():
        if streams is None:
            return torch.cat([model(part) for part in x.split(_BLOCK)]).double()
        return streams.by_rows(x, model, _BLOCK).double()


def detection(inside: Tensor, outside: Tensor) -> Detection:
    """How well scores that are higher outside tell the two apart."""
    one, two, three = (float(rate(inside, outside)) for rate in (auroc, aupr, fpr95))
    return Detection(one, two, three, len(outside))


def _pseudo(model: Energy, x: Tensor) -> float | None:
    rows = x[: max(1, _NEIGHBORS // x[0].numel())]
    try:
        objective = PseudoLikelihood()
        objective.check(model, rows)
        return -float(objective(model, rows, (), stream(0, "unused", x.device)).value)
    except (CapabilityError, DomainError):  # units of other kinds than it knows
        return None


def _reconstruction_error(model: Any, x: Tensor, streams: Streams) -> float | None:
    if not isinstance(model, ReconstructingModel):
        return None

    def squares(part: Tensor) -> Tensor:
        return (model.reconstruct(part) - part).double().square().sum()[None]

    return sum(streams.by_rows(x, squares, _BLOCK).tolist()) / x.numel()


def _classes(model: Any, draws: Iterable[Tensor], y: Tensor | None, streams: Streams) -> Classes | None:
    """Told by the mean probability p(y | x) over several draws of the same rows."""
    if y is None or not isinstance(model, Classifier):
        return None
    try:
        each = [streams.by_rows(x, model.class_log_prob, _BLOCK).exp() for x in draws]
    except CapabilityError:  # a deep belief network without labels
        return None
    p = torch.stack(each).mean(0)
    y = y.to(p.device)
    accuracy = float((p.argmax(1) == y).double().mean())
    commonest = int(y.unique(return_counts=True)[1].max()) / len(y)
    return Classes(accuracy, float(expected_calibration_error(p, y)), len(y), commonest)


def _compared(model: Any, samples: Tensor | None, x: Tensor, streams: Streams) -> Comparison | None:
    size = 0 if samples is None else min(_COMPARED, len(x), len(samples))
    if samples is None or size < 20 or isinstance(model.domain, Discrete):
        return None
    test = two_sample_test(samples[:size].to(x), x[:size], method="energy", permutations=200, generator=streams)
    return Comparison("energy distance", float(test.value), test.p_value)
