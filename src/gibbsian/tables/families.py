"""Families of laws over tables, and the choice among them by the likelihood of held-out rows.

mixture   latent classes with correlated numbers, by expectation-maximization from several starts, averaged where rows are few
located   classes whose numbers are shifted by names (general location model), averaged likewise
tilted    the mixture, tilted by a network
neural    a network energy over the transformed row, on top of independent columns
rbm       a Boltzmann machine of joined units, numbers tied to each other, its hidden states gone through
parzen    windows on the rows
stacked   those of them whose laws are exact, weighed: where rows are few and "auto" or several are asked for; windows only where no row
          has gaps, as each claims the row that it stands on for itself, and knows least of what that row lacks

A new family is a function that fits it, which says too how it is fitted again, and a row of `_FITTED_BY`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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

GAPS = ("auto", "ignorable")
_COMPARED = 6000  # rows at most that the families are compared on
_MIXED = 50000  # rows at most that the chosen mixture goes through as a whole
_LOCATED = 10000  # rows at most that learn shifts: one with gaps in names stands for many
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
        if not self.hidden:
            raise ArgumentError("hidden is empty: say the widths of the networks, such as hidden: [64, 64]")
        for width in self.hidden:
            check_count("a table", "hidden", width)
        check_count("a table", "steps", self.steps)
        check_count("a table", "seed", self.seed, 0)
        check_choice("a table", "gaps", self.gaps, GAPS)
        if check_count("a table", "units", self.units) > MOST_HIDDEN:
            raise ArgumentError(f"units={self.units}: the Boltzmann machine of a table goes through all 2^units states of its hidden units; give at most {MOST_HIDDEN}, or take the family mixture or tilted")  # fmt: skip


class Compared(NamedTuple):
    """What families are compared on: rows that teach, rows that choose, and what the first are as a whole."""

    codec: Codec
    train: Rows
    held: Rows
    whole: Whole
    few: bool  # so few that exact laws are weighed, and not only chosen


@dataclass
class Chosen:
    """A family that was fitted.

    Attributes:
        family: its name.
        law: of the rows that taught.
        again: the law of other rows, `again(rows, whole)`, with all that was chosen on the first.
        starts: the mixtures whose average it is, where it is one: others may begin with them.
        scores: the held-out log-likelihood a row of all families that were tried.
    """

    family: str
    law: Law
    again: Callable[[Rows, Whole], Law]
    starts: list[Mixture] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)


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
    on = Compared(codec, train, held, Whole.of(train, tuple(codec.states)), few)
    exact_ones = _EXACT_WITH_GAPS if codec.gaps(train).any() else _EXACT
    best: Chosen | None = None
    scores: dict[str, float] = {}
    exact: list[tuple[Chosen, torch.Tensor]] = []

    def judged(made: Chosen, score: float) -> Chosen:
        scores[made.family] = score
        if watch is not None:
            watch(f"{made.family}: {score:.3f} nats a held-out row")
        return made if best is None or score > scores[best.family] + _WORTH else best

    for family in sorted(families, key=FAMILIES.index):
        made = _FITTED_BY[family](on, options, best)
        log_prob = made.law.log_prob(held).value.clamp(min=-1e6)
        best = judged(made, float(log_prob.mean()))
        if family in exact_ones:
            exact.append((made, log_prob))
    if len(exact) > 1 and few:
        log_probs = torch.stack([log_prob for _, log_prob in exact], 1)
        best = judged(_stack([made for made, _ in exact], weigh(log_probs), codec), gain(log_probs))
    assert best is not None
    best.scores = scores
    return best


def _stack(parts: list[Chosen], weight: torch.Tensor, codec: Codec) -> Chosen:
    kept = [part for part, share in zip(parts, weight, strict=True) if share > 0]
    log_weight = weight[weight > 0].log()

    def again(rows: Rows, whole: Whole) -> Law:
        return StackedLaw(tuple(part.again(rows, whole) for part in kept), log_weight, codec)

    return Chosen("stacked", StackedLaw(tuple(part.law for part in kept), log_weight, codec), again)


# --- the families -------------------------------------------------------------------------------------


def _mixture(on: Compared, options: Options, so_far: Chosen | None) -> Chosen:
    starts = _starts(on, options, so_far)

    def again(rows: Rows, whole: Whole) -> Law:
        return MixtureLaw(_gone_on(starts, rows, whole, options.seed), on.codec)

    return Chosen("mixture", MixtureLaw(averaged(starts), on.codec), again, starts)


def _tilted(on: Compared, options: Options, so_far: Chosen | None) -> Chosen:
    starts = _starts(on, options, so_far)

    def base(rows: Rows, whole: Whole) -> Mixture:
        return _gone_on(starts, rows, whole, options.seed)

    return _by_network("tilted", averaged(starts), base, on, options)


def _neural(on: Compared, options: Options, so_far: Chosen | None) -> Chosen:
    return _by_network("neural", independent(on.whole), lambda rows, whole: independent(whole), on, options)


def _by_network(
    family: str, first: Mixture, base: Callable[[Rows, Whole], Mixture], on: Compared, options: Options
) -> Chosen:
    """A mixture tilted by a network: `first` where families are compared, `base(rows, whole)` on other rows."""
    how: dict[str, Any] = {"hidden": options.hidden, "seed": options.seed}
    tilted, took = fit_tilt(first, on.codec, on.train, on.held, steps=options.steps, **how)

    def again(rows: Rows, whole: Whole) -> Law:
        below = base(rows, whole)
        if not took:
            return MixtureLaw(below, on.codec)
        return TiltedLaw(fit_tilt(below, on.codec, rows, None, steps=took, **how)[0], on.codec, options.seed)

    return Chosen(family, TiltedLaw(tilted, on.codec, options.seed), again)


def _located(on: Compared, options: Options, so_far: Chosen | None) -> Chosen:
    slots = shifting(on.train, on.whole, on.codec)
    laws = choose_located(on.train, on.held, on.whole, slots, seed=options.seed)

    def again(rows: Rows, whole: Whole) -> Law:
        some = rows.take(torch.randperm(rows.n, generator=stream(options.seed, "located"))[:_LOCATED])
        return MixtureLaw(mean_of([fit_located(some, whole, law.slots, 0, start=law) for law in laws]), on.codec)

    return Chosen("located", MixtureLaw(mean_of(laws), on.codec), again)


def _rbm(on: Compared, options: Options, so_far: Chosen | None) -> Chosen:
    how: dict[str, Any] = {"hidden": options.units, "seed": options.seed}
    machine, took = fit_rbm(on.train, on.held, on.whole, steps=max(options.steps // 2, 1), **how)

    def again(rows: Rows, whole: Whole) -> Law:
        return MixtureLaw(fit_rbm(rows, None, whole, steps=max(took, 1), **how)[0], on.codec)

    return Chosen("rbm", MixtureLaw(machine, on.codec), again)


def _parzen(on: Compared, options: Options, so_far: Chosen | None) -> Chosen:
    windows, chosen = fit_parzen(on.train, on.whole, seed=options.seed)

    def again(rows: Rows, whole: Whole) -> Law:
        return MixtureLaw(fit_parzen(rows, whole, seed=options.seed, chosen=chosen)[0], on.codec)

    return Chosen("parzen", MixtureLaw(windows, on.codec), again)


_FITTED_BY = {
    "mixture": _mixture, "tilted": _tilted, "neural": _neural, "located": _located, "rbm": _rbm, "parzen": _parzen,
}  # fmt: skip
FAMILIES = tuple(_FITTED_BY)
_EXACT = {"mixture", "located", "rbm", "parzen"}  # laws that may be weighed
_EXACT_WITH_GAPS = _EXACT - {"parzen"}


def _starts(on: Compared, options: Options, so_far: Chosen | None) -> list[Mixture]:
    """Mixtures from several starts: those that are there, or chosen, or as large as was asked for."""
    if so_far is not None and so_far.starts:
        return so_far.starts
    if options.components is not None:
        return [fit_mixture(on.train, on.whole, options.components, seed=options.seed)]
    return choose_mixture(on.train, on.held, on.whole, seed=options.seed, **({} if on.few else {"starts": 1}))


def _gone_on(starts: list[Mixture], rows: Rows, whole: Whole, seed: int) -> Mixture:
    """Mixtures that go on, on all rows or 50000 of them, averaged."""
    some = rows if rows.n <= _MIXED else rows.take(torch.randperm(rows.n, generator=stream(seed, "mixed"))[:_MIXED])
    steps = rounds(len(starts))
    steps = steps if rows.n <= _COMPARED else max(5, math.ceil(steps * _COMPARED / some.n))
    return averaged([fit_mixture(some, whole, part.components - 1, steps=steps, start=part) for part in starts])
