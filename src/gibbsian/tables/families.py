"""Families of laws over tables, and the choice among them by the likelihood of held-out rows.

mixture   latent classes with correlated numbers, by expectation-maximization from several starts, averaged where rows are few
located   classes whose numbers are shifted by names (general location model), averaged likewise
tilted    the mixture, tilted by a network
neural    a network energy over the transformed row, on top of independent columns
rbm       a Boltzmann machine of joined units, numbers tied to each other, its hidden states gone through
parzen    windows on the rows
stacked   those of them whose laws are exact, weighed: where rows are few and "auto" or several are asked for; windows only where no row
          has gaps, as each claims the row that it stands on for itself, and knows least of what that row lacks
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gibbsian.errors import ArgumentError, check_choice, check_count
from gibbsian.random import stream
from gibbsian.tables.boltzmann import MOST_HIDDEN, fit_rbm
from gibbsian.tables.codec import Codec
from gibbsian.tables.em import Whole, averaged, choose_mixture, fit_mixture, rounds
from gibbsian.tables.laws import Law, MixtureLaw, TiltedLaw
from gibbsian.tables.located import choose_located, fit_located, mean_of, shifting
from gibbsian.tables.mixture import Mixture
from gibbsian.tables.parzen import fit_parzen
from gibbsian.tables.rows import Rows
from gibbsian.tables.stacked import StackedLaw, gain, weigh
from gibbsian.tables.tilted import fit_tilt

FAMILIES = ("mixture", "tilted", "neural", "located", "rbm", "parzen")
GAPS = ("auto", "ignorable")
_COMPARED = 6000  # rows at most that the families are compared on
_MIXED = 50000  # rows at most that the chosen mixture goes through as a whole
_LOCATED = 10000  # rows at most that learn shifts: one with gaps in names stands for many
_EXACT = ("mixture", "located", "rbm", "parzen")
_STACKED = 10000  # rows up to which families are weighed, and not only chosen: more rows tell which is right
_WORTH = 0.01  # nats a row by which a costlier family must be better


@dataclass(frozen=True)
class Options:
    """What the families share.

    Attributes:
        components: of the mixture, None to choose.
        hidden: widths of networks.
        units: hidden units of the Boltzmann machine, at most 12: all their states are gone through.
        steps: updates of networks, at most, and half as many of the Boltzmann machine.
        seed: of everything.
        gaps: "auto" to find out whether gaps follow what they hide (`gibbsian.tables.gaps`), "ignorable" to take it that they do not.
    """

    components: int | None = None
    hidden: tuple[int, ...] = (64, 64)
    units: int = 6
    steps: int = 800
    seed: int = 0
    gaps: str = "auto"

    def __post_init__(self) -> None:
        if self.components is not None:
            check_count("a table", "components", self.components)
        for width in self.hidden:
            check_count("a table", "hidden", width)
        check_count("a table", "steps", self.steps)
        check_count("a table", "seed", self.seed, 0)
        check_choice("a table", "gaps", self.gaps, GAPS)
        if check_count("a table", "units", self.units) > MOST_HIDDEN:
            raise ArgumentError(f"units={self.units}: the Boltzmann machine of a table goes through all 2^units states of its hidden units; give at most {MOST_HIDDEN}, or take the family mixture or tilted")  # fmt: skip


@dataclass
class Chosen:
    """A family that was fitted: its law, the held-out log-likelihood a row of all that were tried, and how to fit it again; of a
    stack also its parts."""

    family: str
    law: Law
    scores: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)
    parts: tuple["Chosen", ...] = ()


def independent(whole: Whole) -> Mixture:
    """Columns that know nothing of each other."""
    one = whole.component()
    return Mixture(one.log_weight, one.mean, whole.covariance.diagonal()[None] + whole.floor, one.table, whole.states)


def choose(
    families: Sequence[str], codec: Codec, train: Rows, held: Rows, options: Options, watch: Callable[[str], None] | None = None
) -> Chosen:  # fmt: skip
    """Fit families and keep the one under which held-out rows are most likely.

    Families are compared on some thousand rows; those that cost more must be better by 0.01 nats a row, and so must a stack of the exact
    ones, where there are at most 10000 rows.
    """
    few = train.n <= _STACKED
    if train.n > _COMPARED:
        train = train.take(torch.randperm(train.n, generator=stream(options.seed, "compared"))[:_COMPARED])
    whole = Whole.of(train, tuple(codec.states))
    best: Chosen | None = None
    scores: dict[str, float] = {}
    exact: list[tuple[Chosen, torch.Tensor]] = []

    def judged(made: Chosen, score: float) -> Chosen:
        scores[made.family] = score
        if watch is not None:
            watch(f"{made.family}: {score:.3f} nats a held-out row")
        return made if best is None or score > scores[best.family] + _WORTH else best

    may_stack = _EXACT[: -int(codec.gaps(train).any()) or None]  # windows only where there are no gaps
    for family in sorted(families, key=FAMILIES.index):
        made = _fit(family, codec, train, held, whole, options, best, few)
        log_prob = made.law.log_prob(held).value.clamp(min=-1e6)
        best = judged(made, float(log_prob.mean()))
        if family in may_stack:
            exact.append((made, log_prob))
    if len(exact) > 1 and few:
        log_probs = torch.stack([log_prob for _, log_prob in exact], 1)
        best = judged(_stack([made for made, _ in exact], weigh(log_probs), codec), gain(log_probs))
    assert best is not None
    best.scores = scores
    return best


def _stack(parts: list[Chosen], weight: torch.Tensor, codec: Codec) -> Chosen:
    kept = [i for i in range(len(parts)) if weight[i] > 0]
    log_weight = weight[kept].log()
    law = StackedLaw(tuple(parts[i].law for i in kept), log_weight, codec)
    return Chosen("stacked", law, {}, {"log_weight": log_weight}, tuple(parts[i] for i in kept))


def _fit(family: str, codec: Codec, train: Rows, held: Rows, whole: Whole, options: Options, so_far: Chosen | None, few: bool) -> Chosen:  # fmt: skip
    seed, steps = options.seed, {"steps": options.steps, "hidden": options.hidden, "seed": options.seed}
    if family in {"mixture", "tilted"}:
        if so_far is not None and so_far.family == "mixture":
            starts = so_far.settings["starts"]
        elif options.components is None:
            starts = choose_mixture(train, held, whole, seed=seed, **({} if few else {"starts": 1}))
        else:
            starts = [fit_mixture(train, whole, options.components, seed=seed)]
        base, settings = averaged(starts), {"starts": starts}
        if family == "mixture":
            return Chosen(family, MixtureLaw(base, codec), {}, settings)
        law, took = fit_tilt(base, codec, train, held, **steps)  # type: ignore[arg-type]
        return Chosen(family, TiltedLaw(law, codec, seed), {}, settings | {"steps": took})
    if family == "neural":
        law, took = fit_tilt(independent(whole), codec, train, held, **steps)  # type: ignore[arg-type]
        return Chosen(family, TiltedLaw(law, codec, seed), {}, {"steps": took})
    if family == "located":
        return _located(codec, train, held, whole, seed)
    if family == "rbm":
        mixture, took = fit_rbm(train, held, whole, hidden=options.units, seed=seed, steps=max(options.steps // 2, 1))
        return Chosen(family, MixtureLaw(mixture, codec), {}, {"steps": took})
    mixture, chosen = fit_parzen(train, whole, seed=seed)
    return Chosen(family, MixtureLaw(mixture, codec), {}, {"chosen": chosen})


def _located(codec: Codec, train: Rows, held: Rows, whole: Whole, seed: int) -> Chosen:
    slots = shifting(train, whole, codec)
    laws = choose_located(train, held, whole, slots, seed=seed)
    return Chosen("located", MixtureLaw(mean_of(laws), codec), {}, {"laws": laws})


def refit(chosen: Chosen, codec: Codec, rows: Rows, options: Options) -> Law:
    """The chosen family once more, on all rows, with the settings that were chosen."""
    if chosen.parts:
        laws = tuple(refit(part, codec, rows, options) for part in chosen.parts)
        return StackedLaw(laws, chosen.settings["log_weight"], codec)
    whole, seed = Whole.of(rows, tuple(codec.states)), options.seed
    if chosen.family == "parzen":
        return MixtureLaw(fit_parzen(rows, whole, seed=seed, chosen=chosen.settings["chosen"])[0], codec)
    if chosen.family == "located":
        some = rows.take(torch.randperm(rows.n, generator=stream(seed, "located"))[:_LOCATED])
        parts = [fit_located(some, whole, law.slots, 0, start=law) for law in chosen.settings["laws"]]
        return MixtureLaw(mean_of(parts), codec)
    if chosen.family == "rbm":
        return MixtureLaw(fit_rbm(rows, None, whole, hidden=options.units, seed=seed, steps=max(chosen.settings["steps"], 1))[0], codec)  # fmt: skip
    base = independent(whole) if chosen.family == "neural" else _again(chosen.settings["starts"], rows, whole, seed)
    if chosen.family == "mixture" or not chosen.settings["steps"]:
        return MixtureLaw(base, codec)
    law, _ = fit_tilt(base, codec, rows, None, seed=seed, steps=chosen.settings["steps"], hidden=options.hidden)
    return TiltedLaw(law, codec, seed)


def _again(starts: list[Mixture], rows: Rows, whole: Whole, seed: int) -> Mixture:
    """Mixtures that go on, on all rows or 50000 of them, averaged."""
    some = rows if rows.n <= _MIXED else rows.take(torch.randperm(rows.n, generator=stream(seed, "mixed"))[:_MIXED])
    steps = rounds(len(starts))
    steps = steps if rows.n <= _COMPARED else max(5, math.ceil(steps * _COMPARED / some.n))
    return averaged([fit_mixture(some, whole, part.components - 1, steps=steps, start=part) for part in starts])
