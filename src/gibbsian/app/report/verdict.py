"""What came out, in words: one sentence a finding, with what to do where something is wrong."""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Level = Literal["good", "bad", "open"]
LEVELS: tuple[Level, ...] = ("bad", "open", "good")  # in the order in which they are said
MARKS: dict[Level, str] = {"good": "✓", "bad": "✗", "open": "–"}

_MIXED, _NEARLY = 1.01, 1.05  # R-hat below which chains have forgotten where they began (Vehtari et al. 2021)
_SEEN, _DOUBT = 0.01, 0.05  # p-values below which samples are said to differ from the data, or may do so
_SURE = 0.05  # calibration error above which a classifier is said to be too sure, or too shy


class Finding(NamedTuple):
    """A sentence, and whether it is good news."""

    level: Level
    text: str

    @property
    def mark(self) -> str:
        """A sign for it."""
        return MARKS[self.level]


def verdict(found: Mapping[str, Any], events: Sequence[Mapping[str, Any]] = ()) -> list[Finding]:
    """What an evaluation (`evaluation.json`) and the guard's events say, bad news first.

    >>> verdict({"two_sample": {"method": "energy distance", "value": 0.1, "p_value": 0.005}})
    [Finding(level='bad', text='samples differ from data, p = .005: train longer, or give the model more to learn with')]
    """
    said = [finding for judge in _JUDGES for finding in judge(found)]
    rolled = [event for event in events if event["event"] == "rollback"]
    if rolled:
        times = "once" if len(rolled) == 1 else f"{len(rolled)} times"
        said.append(
            Finding("bad", f"training diverged and was rolled back {times}: lower the learning rate (--fit.lr)")
        )
    return sorted(said, key=lambda finding: LEVELS.index(finding.level))


def next_steps(found: Mapping[str, Any], folder: str, steps: int | None = None) -> list[str]:
    """Commands that make sense after a run, the most useful first; `steps` are those of its chains.

    >>> next_steps({"step": 100}, "runs/a")
    ['gibbsian resume runs/a --steps 200', 'gibbsian sample runs/a -n 100']
    """
    folder = shlex.quote(folder)
    out = []
    if found.get("chains", {}).get("r_hat", 0.0) > _MIXED and steps:
        out.append(f"gibbsian sample {folder} -n 100 --steps {10 * steps}")
    if "step" in found:
        out.append(f"gibbsian resume {folder} --steps {2 * found['step']}")
    plain = f"gibbsian sample {folder} -n 100"
    return out if any(line.startswith(plain) for line in out) else [*out, plain]


def p_value(p: float) -> str:
    """A p-value as papers write it.

    >>> p_value(0.0049), p_value(0.00002), p_value(1.0)
    ('p = .005', 'p < .001', 'p = 1')
    """
    if p < 0.0005:
        return "p < .001"
    return "p = 1" if p > 0.9995 else f"p = {p:.3f}".replace(" 0.", " .")


def _likelihood(found: Mapping[str, Any]) -> Iterator[Finding]:
    ll, simple = found.get("likelihood"), found.get("baseline")
    if ll is None or simple is None:
        return
    gain, what, part = ll["value"] - simple["value"], simple["what"], found.get("part", "held-out")
    if ll["lower"] > simple["value"]:
        yield Finding("good", f"{part} rows are {gain:.1f} nats likelier than under {what}")
    elif ll["upper"] is not None and ll["upper"] < simple["value"]:
        text = f"{part} rows are {-gain:.1f} nats less likely than under {what}: nothing useful is learned yet"
        yield Finding("bad", f"{text}; train longer, or change the learning rate")
    else:
        yield Finding("open", f"whether {part} rows are likelier than under {what} is not known: "
                              "the interval of the likelihood holds both; estimate it with more chains "
                              "(gibbsian evaluate RUN --chains 1000)")  # fmt: skip


def _overfit(found: Mapping[str, Any]) -> Iterator[Finding]:
    ll, train = found.get("likelihood"), found.get("train_likelihood")
    if ll is None or train is None or found.get("part") == "train" or ll["upper"] is None:
        return
    if ll["upper"] < train["lower"]:
        gap = train["value"] - ll["value"]
        yield Finding("bad", f"training rows are {gap:.1f} nats likelier than {found.get('part', 'held-out')} rows: "
                             "stop earlier, or take a smaller model or more data")  # fmt: skip


def _chains(found: Mapping[str, Any]) -> Iterator[Finding]:
    chains = found.get("chains")
    if chains is None:
        return
    r_hat = f"R-hat {chains['r_hat']:.2f}" if chains["r_hat"] >= 1.015 else f"R-hat {chains['r_hat']:.3f}"
    if chains["divergent"]:
        yield Finding("bad", f"{chains['divergent']} of {chains['chains']} chains met energies that are not finite: "
                             "take smaller steps")  # fmt: skip
    if chains["r_hat"] <= _MIXED:
        if chains["divergent"]:
            return
        yield Finding("good", f"chains have mixed: {r_hat}, {chains['ess']:.0f} effective draws")
    elif chains["r_hat"] <= _NEARLY:
        yield Finding("open", f"chains have nearly mixed: {r_hat}, run longer to be sure (--sample.steps)")
    else:
        yield Finding("bad", f"chains have not mixed: {r_hat}, run longer (--sample.steps)")


def _samples(found: Mapping[str, Any]) -> Iterator[Finding]:
    test = found.get("two_sample")
    if test is None:
        return
    if test["p_value"] < _SEEN:
        advice = "train longer, or give the model more to learn with"
        if found.get("chains", {}).get("r_hat", 0.0) > _NEARLY:
            advice = "run the chains longer first"
        yield Finding("bad", f"samples differ from data, {p_value(test['p_value'])}: {advice}")
    elif test["p_value"] < _DOUBT:
        yield Finding("open", f"samples may differ from data, {p_value(test['p_value'])}: look at more of them")
    else:
        yield Finding("good", f"samples cannot be told from data, {p_value(test['p_value'])}")


def _detection(found: Mapping[str, Any]) -> Iterator[Finding]:
    sets = ({"labeled anomalies": found["anomalies"]} if "anomalies" in found else {}) | dict(found.get("outside", {}))
    for name, rates in sets.items():
        if "missing" in rates:
            continue
        area = rates["auroc"]
        if area >= 0.8:
            yield Finding("good", f"energies find {name}: AUROC {area:.3f}")
        elif area >= 0.6:
            yield Finding("open", f"energies find {name} in part: AUROC {area:.3f}")
        else:
            yield Finding("bad", f"energies do not find {name}: AUROC {area:.3f}, chance is 0.5")


def _classes(found: Mapping[str, Any]) -> Iterator[Finding]:
    classes = found.get("classes")
    if classes is None:
        return
    right = f"{100 * classes['accuracy']:.1f} % of {found.get('part', 'held-out')} rows get their class"
    error, common = classes["calibration_error"], classes.get("commonest", 0.0)  # evaluations of before do not say it
    if 0 < common < 1 and classes["accuracy"] <= common + 3 * math.sqrt(common * (1 - common) / classes["rows"]):
        yield Finding("bad", f"{right}, which cannot be told from naming the commonest for all ({100 * common:.1f} %): "
                             "train longer, or give the model more to learn with")  # fmt: skip
    elif error > _SURE:
        yield Finding("open", f"{right}, but its confidence is off by {100 * error:.0f} points on average")
    else:
        yield Finding("good", f"{right}, with a confidence that can be believed")


_JUDGES: tuple[Callable[[Mapping[str, Any]], Iterator[Finding]], ...] = (
    _likelihood,
    _overfit,
    _chains,
    _samples,
    _detection,
    _classes,
)
