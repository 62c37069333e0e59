"""Trials over seeds and data as a table with intervals: is a new objective or kernel better than the others, or lucky?"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from scipy import stats
from torch import Tensor

from gibbsian.capabilities import Sampleable, require
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, GibbsianError, check_count
from gibbsian.kernels.base import Kernel
from gibbsian.metrics.evaluate import evaluate
from gibbsian.objectives.base import Objective
from gibbsian.progress import progress_bar
from gibbsian.random import stream
from gibbsian.sampling.diagnostics import summarize
from gibbsian.sampling.sample import sample
from gibbsian.training.fit import fit

_REFERENCE = 100_000  # exact draws that means are compared with
Trial = Callable[[Any, int], float | Mapping[str, float]]


class Interval(NamedTuple):
    """A mean over seeds with Student's interval; `failed` counts trials that gave no number."""

    mean: float
    lower: float
    upper: float
    seeds: int
    failed: int = 0

    def __str__(self) -> str:
        lost = f", {self.failed} failed" if self.failed else ""
        return (
            f"{self.mean:.4g} [{self.lower:.4g}, {self.upper:.4g}]{lost}" if self.seeds else f"all {self.failed} failed"
        )


def mean_interval(values: Iterable[float], confidence: float = 0.95) -> Interval:
    """x̄ ± t s/√n over the finite values, t the quantile of Student's law with n - 1 degrees of freedom.

    One value has an open interval; the others are counted as failed, and never averaged.

    >>> mean_interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, lower=-0.48..., upper=4.48..., seeds=3, failed=0)
    """
    found = list(values)
    kept = torch.tensor([v for v in found if math.isfinite(v)], dtype=torch.float64)
    n, failed = len(kept), len(found) - len(kept)
    mean = float(kept.mean()) if n else math.nan
    half = float(stats.t.ppf(0.5 + confidence / 2, n - 1) * kept.std() / math.sqrt(n)) if n > 1 else math.inf
    return Interval(mean, mean - half, mean + half, n, failed) if n else Interval(mean, mean, mean, 0, failed)


@dataclass(frozen=True)
class Benchmark:
    """What all trials gave: `values[data][entry][number]` is a list with one number a seed, NaN where a trial failed.

    Attributes:
        values: the numbers.
        errors: (data, entry, seed, message) of the trials that failed.
        confidence: of all intervals.
    """

    values: dict[str, dict[str, dict[str, list[float]]]]
    errors: tuple[tuple[str, str, int, str], ...] = ()
    confidence: float = 0.95

    def interval(self, data: str, entry: str, number: str) -> Interval:
        """The mean over seeds of one number, with its interval."""
        return mean_interval(self.values[data][entry][number], self.confidence)

    def difference(self, reference: str) -> dict[str, dict[str, dict[str, Interval]]]:
        """Every entry minus the reference, seed by seed: what all trials of a seed share (data, starts) cancels.

        An interval that does not hold zero is a difference at the level of confidence; with many entries some will be by chance.
        """
        found: dict[str, dict[str, dict[str, Interval]]] = {}
        for data, entries in self.values.items():
            if reference not in entries:
                raise ArgumentError(f"reference={reference!r}: there is no such entry; there are {', '.join(entries)}")
            base = entries[reference]
            for entry in (name for name in entries if name != reference):
                pairs = {
                    name: zip(entries[entry][name], base[name], strict=True) for name in entries[entry] if name in base
                }
                found.setdefault(data, {})[entry] = {
                    name: mean_interval((a - b for a, b in both), self.confidence) for name, both in pairs.items()
                }
        return found

    def rows(self) -> list[dict[str, Any]]:
        """A row for each number of each entry on each data set, for `pandas.DataFrame`."""
        return [
            {"data": data, "entry": entry, "number": name, **self.interval(data, entry, name)._asdict()}
            for data, entries in self.values.items()
            for entry, numbers in entries.items()
            for name in numbers
        ]

    def to_markdown(self) -> str:
        """A table, a line for each entry on each data set."""
        names = list(dict.fromkeys(row["number"] for row in self.rows()))
        lines = [f"| data | entry | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
        for data, entries in self.values.items():
            for entry, numbers in entries.items():
                cells = [str(self.interval(data, entry, name)) if name in numbers else "" for name in names]
                lines.append(f"| {data} | {entry} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def __repr__(self) -> str:
        said = [f"failed: {data}, {entry}, seed {seed}: {why}" for data, entry, seed, why in self.errors]
        return "\n".join([self.to_markdown(), *said])


def benchmark(
    entries: Mapping[str, Trial],
    data: Mapping[str, Any],
    *,
    seeds: int | Sequence[int] = 5,
    confidence: float = 0.95,
    progress: bool | None = None,
) -> Benchmark:
    """Run every entry on every data set with every seed, and say what came out with intervals over the seeds.

    Seeds go round outermost, so that a benchmark that is broken off has treated all entries alike, and drifts of the machine
    meet them all. A trial that ends with a `GibbsianError` (a divergence) is a failure that is counted and named; anything else is an error of the
    program and is raised. CPU seconds are added as `seconds`.

    Args:
        entries: by name, a callable of a data set and a seed that returns a number or a mapping of numbers:
            `training_trial`, `sampling_trial`, or your own.
        data: by name, whatever the entries take.
        seeds: how many, or which.
        confidence: of the intervals.
        progress: show a bar; by default on a terminal.

    >>> import gibbsian as gb
    >>> entries = {"a": lambda mean, seed: mean + 0.1 * seed, "b": lambda mean, seed: mean + 1 + 0.1 * seed}
    >>> result = benchmark(entries, {"zero": 0.0, "ten": 10.0}, seeds=3)
    >>> print(result.interval("ten", "a", "value"))
    10.1 [9.852, 10.35]
    >>> print(result.difference("a")["zero"]["b"]["value"].mean)
    1.0
    """
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen or not entries or not data:
        raise ArgumentError("benchmark needs an entry, a data set and a seed at least")
    found: dict[tuple[str, str], list[dict[str, float]]] = {(d, e): [] for d in data for e in entries}
    errors: list[tuple[str, str, int, str]] = []
    with progress_bar(len(chosen) * len(found), "benchmark", progress) as advance:
        for seed, (name, rows), (entry, trial) in itertools.product(chosen, data.items(), entries.items()):
            numbers, why = _tried(trial, rows, seed)
            found[name, entry].append(numbers)
            errors += [(name, entry, seed, why)] if why else []
            advance(1, note=f"{name}, {entry}")
    values: dict[str, dict[str, dict[str, list[float]]]] = {name: {} for name in data}
    for (name, entry), trials in found.items():
        known = list(dict.fromkeys(key for numbers in trials for key in numbers)) or ["value"]
        values[name][entry] = {key: [float(numbers.get(key, math.nan)) for numbers in trials] for key in known}
    return Benchmark(values, tuple(errors), confidence)


def _tried(trial: Trial, data: Any, seed: int) -> tuple[dict[str, float], str]:
    """Numbers of a trial with its CPU seconds, and why there are no others."""
    begun, numbers, why = time.process_time(), {}, ""
    try:
        got = trial(data, seed)
        numbers = dict(got) if isinstance(got, Mapping) else {"value": float(got)}
    except GibbsianError as error:
        why = str(error)
    return numbers | {"seconds": time.process_time() - begun}, why


def training_trial(
    energy: Callable[[], Any], objective: Objective, *, judge: Callable[[Any, Any], Any] | None = None, **settings: Any
) -> Trial:
    """A trial that trains a new energy on the first part of a data set and judges it on the second.

    Args:
        energy: makes a new one: `lambda: gb.models.RBM(64, 32)`.
        objective: one of `gibbsian.objectives`, or yours.
        judge: `judge(energy, held_out)` returns a number or a mapping of numbers; by default the mean log-likelihood of
            `gibbsian.evaluate`, in nats a row.
        settings: of `gibbsian.fit`: steps, lr, batch_size and so on; those of your choice for this objective, chosen on training data.

    >>> import gibbsian as gb
    >>> x = 2 + torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    >>> new = lambda: gb.energies.Gaussian(torch.zeros(1), torch.eye(1), trainable=True)
    >>> trial = training_trial(new, gb.objectives.ImplicitScoreMatching(), steps=200, lr=0.05)
    >>> bool(abs(trial((x[:300], x[300:]), 0)["log_likelihood"] + 1.42) < 0.2)
    True
    """

    def run(data: Any, seed: int) -> Mapping[str, float]:
        train, held_out = data
        model = energy()
        fit(model, objective, train, seed=seed, progress=False, **settings)
        if judge is not None:
            got = judge(model, held_out)
            return got if isinstance(got, Mapping) else {"value": float(got)}
        found = evaluate(model, held_out, train=train if isinstance(train, Tensor) else None, seed=seed)
        if found.log_likelihood is None:
            raise ArgumentError(f"no likelihood of this model ({found.why_no_likelihood}); give judge=")
        return {"log_likelihood": float(found.log_likelihood.value)}

    return run


def sampling_trial(kernel: Kernel, *, chains: int = 16, steps: int = 1000, burn_in: int = 0) -> Trial:
    """A trial that runs a kernel from exact draws of a target (the data set), and says how fast it mixes and whether it is right.

    Numbers: `ess`, the smallest effective sample size of all entries of x and of all entries of x², a thousand draws; `bias`, the largest error of
    their means in Monte-Carlo standard errors of chain and reference together, which should be about 1 to 3; `acceptance` where there is a test.

    Args:
        kernel: with the settings of your choice for this target; `gibbsian.warm_up` finds them.
        chains, steps, burn_in: as in `gibbsian.sample`.

    >>> import gibbsian as gb
    >>> trial = sampling_trial(gb.kernels.HMC(0.2, leapfrog_steps=5), steps=200)
    >>> sorted(trial(gb.energies.Gaussian(torch.zeros(2), torch.eye(2)), 0))
    ['acceptance', 'bias', 'ess']
    """
    check_count("sampling_trial", "steps", steps, 4)

    def run(target: Energy, seed: int) -> Mapping[str, float]:
        draw = require(target, Sampleable, "sampling_trial", "write a trial of your own").sample
        generator = stream(seed, "chains")
        trace = sample(target, kernel, draw(chains, generator=generator), steps, burn_in=burn_in, generator=generator)
        assert trace.samples is not None  # kept
        samples = trace.samples.double().flatten(2)
        truth = draw(_REFERENCE, generator=generator).double().flatten(1)
        found, exact = summarize(torch.cat([samples, samples**2], -1)), torch.cat([truth, truth**2], -1)
        error = (found["mean"] - exact.mean(0)).abs()
        scale = (found["mcse"] ** 2 + exact.var(0) / len(exact)).sqrt()
        numbers = {
            "ess": float(1000 * found["ess"].min() / samples.shape[:2].numel()),
            "bias": float((error / scale).max()),
        }
        return numbers | ({"acceptance": float(trace.acceptance)} if math.isfinite(trace.acceptance) else {})

    return run
