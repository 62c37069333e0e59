"""What an evaluation found: numbers with their intervals, plain for programs and in words for people."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gibbsian.partition.base import LogZ
from gibbsian.partition.likelihood import LogLikelihood


class Baseline(NamedTuple):
    """The mean log-likelihood of the simplest model: what is to be beaten."""

    what: str
    value: float


class Classes(NamedTuple):
    """How well classes are told; the share of the commonest one is what naming it for every row would reach."""

    accuracy: float
    calibration_error: float
    rows: int
    commonest: float


class Detection(NamedTuple):
    """How well energies tell rows outside from rows inside."""

    auroc: float
    aupr: float
    fpr95: float
    rows: int


class Comparison(NamedTuple):
    """A two-sample test of draws against data."""

    method: str
    value: float
    p_value: float


@dataclass(frozen=True)
class Evaluation:
    """What can be said about a model on held-out data; what does not apply is None or empty.

    Attributes:
        rows: of the data.
        log_likelihood: of the data, mean with interval and method; `log_likelihood.log_z` is the log Z.
        train_log_likelihood: of as many training rows.
        why_no_likelihood: why there is none.
        baseline: that of the simplest model.
        pseudo_log_likelihood: mean of Σᵢ log p(xᵢ | x₋ᵢ), for discrete x.
        reconstruction_error: mean squared difference of an entry of x and of its reconstruction.
        energies: mean energies, by name.
        classes: accuracy and calibration.
        outside: for every other set, how well energies tell it from the data.
        two_sample: draws against the data.
        warnings: what the estimators said meanwhile.
        seconds: how long all of it took.
    """

    rows: int
    log_likelihood: LogLikelihood | None = None
    train_log_likelihood: LogLikelihood | None = None
    why_no_likelihood: str = ""
    baseline: Baseline | None = None
    pseudo_log_likelihood: float | None = None
    reconstruction_error: float | None = None
    energies: dict[str, float] = field(default_factory=dict)
    classes: Classes | None = None
    outside: dict[str, Detection] = field(default_factory=dict)
    two_sample: Comparison | None = None
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for JSON; what does not apply is left out."""
        ll = self.log_likelihood
        found = {
            "rows": self.rows,
            "log_z": ll and _plain(ll.log_z),
            "likelihood": _plain(ll),
            "train_likelihood": _plain(self.train_log_likelihood),
            "baseline": _plain(self.baseline),
            "why_no_likelihood": self.why_no_likelihood or None,
            "pseudo_likelihood": self.pseudo_log_likelihood,
            "reconstruction_error": self.reconstruction_error,
            "energies": self.energies or None,
            "classes": _plain(self.classes),
            "outside": {name: _plain(rates) for name, rates in self.outside.items()} or None,
            "two_sample": _plain(self.two_sample),
            "warnings": list(self.warnings),
            "seconds": self.seconds,
        }
        return {name: value for name, value in found.items() if value is not None}

    def __repr__(self) -> str:
        lines = [f"{name:<26}{text}" for name, text in summary(self.to_dict())]
        return "\n".join([f"Evaluation on {self.rows} rows", *lines, *(f"note: {text}" for text in self.warnings)])


def _plain(found: "LogLikelihood | LogZ | Baseline | Classes | Detection | Comparison | None") -> dict[str, Any] | None:
    if found is None or isinstance(found, tuple):
        return found and found._asdict()
    plain: dict[str, Any] = {name: float(getattr(found, name)) for name in ("value", "lower", "upper", "stderr")}
    plain["method"] = found.method
    if isinstance(found, LogLikelihood):
        closed = math.isfinite(plain["upper"])
        return plain | {"upper": plain["upper"] if closed else None, "rows": len(found.per_sample)}
    return plain | ({"ess": float(found.diagnostics["ess"])} if "ess" in found.diagnostics else {})


# --- one line for each thing found ------------------------------------------------------------------


def summary(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What an evaluation found, as names and texts for people; `found` is `Evaluation.to_dict()`."""
    return [line for key, say in _SAY.items() if key in found for line in say(found[key], found)]


def _log_likelihood(name: str, ll: Mapping[str, Any]) -> tuple[str, str]:
    upper = "open" if ll["upper"] is None else f"{ll['upper']:.2f}"
    return name, f"{ll['value']:.2f} nats a row, in [{ll['lower']:.2f}, {upper}]  ({ll['rows']} rows)"


def _log_z(z: Mapping[str, Any]) -> str:
    ess = f", {z['ess']:.0f} effective weights" if "ess" in z else ""
    return f"{z['value']:.3f} ± {z['stderr']:.2g}  ({z['method']}{ess})"


def _rates(rates: Mapping[str, Any]) -> str:
    if "missing" in rates:
        return rates["missing"]
    return f"AUROC {rates['auroc']:.3f}, AUPR {rates['aupr']:.3f}, FPR95 {rates['fpr95']:.3f}"


_SAY: dict[str, Callable[[Any, Mapping[str, Any]], Iterable[tuple[str, str]]]] = {
    "likelihood": lambda ll, found: [_log_likelihood(f"{found.get('part', 'held-out')} log-likelihood", ll)],
    "train_likelihood": lambda ll, _: [_log_likelihood("training log-likelihood", ll)],
    "baseline": lambda b, _: [(b["what"], f"{b['value']:.2f}  (the simplest model)")],
    "log_z": lambda z, _: [("log Z", _log_z(z))],
    "learned_log_z": lambda z, _: [("log Z as learned", f"{z:.3f}")],
    "why_no_likelihood": lambda why, _: [("likelihood", f"none: {why}")],
    "pseudo_likelihood": lambda value, _: [("log pseudo-likelihood", f"{value:.2f} nats a row")],
    "reconstruction_error": lambda value, _: [("reconstruction error", f"{value:.4g}  (mean square of an entry)")],
    "classes": lambda c, _: [
        ("accuracy", f"{100 * c['accuracy']:.2f} %, calibration error {c['calibration_error']:.3f}")
    ],
    "anomalies": lambda rates, _: [("anomalies", _rates(rates))],
    "outside": lambda sets, _: [(f"against {name}", _rates(rates)) for name, rates in sets.items()],
    "two_sample": lambda t, _: [("samples and data", f"{t['method']} {t['value']:.4f}, p = {t['p_value']:.3f}")],
}
