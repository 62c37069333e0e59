"""The guard does what people do by hand with a run that diverges: it goes back to the last good state, with a new seed, a
lower learning rate and more sampler steps, and writes down everything it saw and did.
"""

import dataclasses
import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gibbsian.errors import ArgumentError, check_number, hold_counts
from gibbsian.objectives.base import Objective

_MEASURED = ("loss", "gradient_norm", "energy_data", "energy_samples", "gap")
_OWN = (
    "loss",
    "gradient_norm",
)  # belong to the objective, which a rollback changes: found anew, and large while learning
_ENERGIES = ("energy_data", "energy_samples")
_SUSTAINED = 3  # looks in a row at a tenth of an explosion that count as one
_APART = 4.0  # standard deviations between the energies of data and samples: chains that keep up overlap with data
_REMEMBERED = ("scales", "looks", "tries", "trail", "warned", "high", "signs", "failed_at", "apart_since", "size")
_BASELINE = 5  # looks that find the scale of a number; looks in a row that make a sign a warning


@dataclass(frozen=True)
class Guard:
    """How a training run is watched and what is done when it diverges.

    A watched number x (loss, gradient norm, energies of data and samples, their gap) has exploded when
    |x| > `explosion`·max(1, its scale), or, for energies, is above a tenth of that three looks in a row. The scale is found in
    the first looks; from then on it follows |x| slowly and grows by two per cent a look at the most, so that a
    runaway cannot hide by dragging it along. A number that is not finite, or a `DivergenceError` of the
    objective, counts as well. Snapshots live in memory: a resumed run goes back no further than its checkpoint.

    Args:
        every: steps between two looks; a look waits once for the device, so training that captures many steps as
            one CUDA graph looks once a graph.
        snapshot_every: steps between two states kept in memory to roll back to.
        snapshots: how many are kept besides the first one; further failures go back further.
        tries: rollbacks before the run is given up with `DivergenceError`.
        explosion: how many times its scale a number may reach.
        patience: steps that the samples' energies may stay apart from the data's before the chains count as left
            behind: means more than four standard deviations apart at every look. They may well begin so.
        lr_factor: multiplies the learning rate at each rollback, `min_lr_factor` at the least in all.
        steps_factor: multiplies the objective's sampler `steps`, `max_steps_factor` at the most in all; whole cycles of a kernel
            whose steps fall again and again are rounded up to whole ones.
        penalty: least weight of the energy penalty after a rollback, for objectives that have one, where energies are of size 1;
            for a usual size S above that, `penalty`/S. A weight w holds energies within about ±1/2w, so 0.1 leaves them five
            times the room that they took. (The same weight for all would draw energies of some hundreds together within a few
            updates, and chains whose steps belong to steep energies would stand still in textures.)

    >>> Guard().factors(2)
    (0.25, 2.25)
    """

    every: int = 10
    snapshot_every: int = 100
    snapshots: int = 2
    tries: int = 10
    explosion: float = 1000.0
    patience: int = 500
    lr_factor: float = 0.5
    min_lr_factor: float = 1e-3
    steps_factor: float = 1.5
    max_steps_factor: float = 4.0
    penalty: float = 0.1

    def __post_init__(self) -> None:
        for name in ("every", "snapshot_every", "snapshots", "tries", "patience"):
            hold_counts(self, name)
        check_number(self, "explosion", self.explosion, 1.0, open_low=True)
        for name in ("min_lr_factor", "lr_factor", "steps_factor", "max_steps_factor"):
            check_number(self, name, getattr(self, name), open_low=True)
        if not (0 < self.min_lr_factor <= self.lr_factor <= 1 <= self.steps_factor <= self.max_steps_factor):
            raise ArgumentError(
                "Guard: needs 0 < min_lr_factor <= lr_factor <= 1 <= steps_factor <= max_steps_factor; got "
                f"{self.min_lr_factor}, {self.lr_factor}, {self.steps_factor}, {self.max_steps_factor}"
            )
        check_number(self, "penalty", self.penalty)

    def factors(self, tries: int) -> tuple[float, float]:
        """What learning rate and sampler steps are multiplied by after so many rollbacks."""
        return max(self.lr_factor**tries, self.min_lr_factor), min(self.steps_factor**tries, self.max_steps_factor)

    def soften(self, objective: Objective, tries: int, size: float = 1.0) -> Objective:
        """The objective after so many rollbacks: more sampler steps, and an energy penalty where it has one, that leaves room
        to energies of this usual size."""
        return objective.gentler(self.factors(tries)[1], self.penalty / max(1.0, size)) if tries else objective


class Monitor:
    """What the guard remembers during a run: scales, snapshots, rollbacks and warnings."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.scales: dict[str, float] = {}
        self.looks = 0
        self.tries = 0
        self.trail: list[str] = []  # one sentence per rollback
        self.warned: list[str] = []
        self.gaps: deque[float] = deque(maxlen=40)
        self.high: dict[str, int] = {}  # for how many looks in a row a number has been suspiciously large
        self.signs: dict[str, int] = {}  # for how many looks in a row a sign of trouble has been seen
        self.snapshots: list[Any] = []
        self.failed_at: int | None = None
        self.apart_since: int | None = None
        self.size = 1.0  # of energies, as usual before the last rollback

    # --- divergence -------------------------------------------------------------------------------

    def look(self, numbers: dict[str, float], step: int = 0) -> str | None:
        """Why the run has diverged, or None; learns the scale of what is normal on the way."""
        for name, value in numbers.items():
            # a kernel without an acceptance test reports NaN for it, which says nothing
            if not math.isfinite(value) and not name.endswith("acceptance"):
                return f"{name} is {value}"
        for kind in _MEASURED:
            for name, value in _each(numbers, kind).items():
                if explosion := self._explosion(name, value):
                    return explosion
        self.looks += 1
        return self._left_behind(max(_each(numbers, "separation").values(), default=0.0), step)

    def _explosion(self, name: str, value: float) -> str | None:
        """Is this number far above its scale? If not, the scale follows it."""
        size = abs(value)
        scale = max(1.0, self.scales.get(name, size))
        self.high[name] = self.high.get(name, 0) + 1 if size > 0.1 * self.guard.explosion * scale else 0
        sustained = self.high[name] == _SUSTAINED and name not in _OWN
        if size > self.guard.explosion * scale or sustained:
            return f"{name} is {value:.4g}, {size / scale:.0f} times its usual size"
        # the first looks find the scale, later ones follow it slowly: a runaway cannot drag it along
        first = min(max(scale, size), 2 * scale)
        later = min(0.98 * scale + 0.02 * size, 1.02 * scale)
        self.scales[name] = first if self.looks < _BASELINE else later
        return None

    def _left_behind(self, separation: float, step: int) -> str | None:
        """Have the chains been away from the data for too long?"""
        if separation < _APART:
            self.apart_since = None
        elif self.apart_since is None:
            self.apart_since = step
        elif step - self.apart_since >= self.guard.patience:
            return (
                f"the chains are left behind: for {step - self.apart_since} steps the energies of samples and data were "
                f"more than {_APART:.0f} standard deviations apart"
            )
        return None

    def wants_snapshot(self, step: int) -> bool:
        """Is it time to keep the state? Not while the chains are behind: that would be no state to go back to."""
        if not self.snapshots:
            return True
        return self.apart_since is None and step - self.snapshots[-1][0] >= self.guard.snapshot_every

    def keep(self, step: int, snapshot: Any) -> None:
        """Remember a good state: the first one always, of the others the latest few."""
        self.snapshots.append((step, snapshot))
        if len(self.snapshots) > 1 + self.guard.snapshots:
            del self.snapshots[1]

    def roll_back(self, step: int, reason: str, objective: Objective) -> Any:
        """The state to go back to; one further back when the last rollback got no further than this."""
        self.tries += 1
        if self.failed_at is not None and step <= self.failed_at + self.guard.snapshot_every:
            del self.snapshots[max(1, len(self.snapshots) - 1) :]
        self.failed_at = step
        self.size = max((size for kind in _ENERGIES for size in _each(self.scales, kind).values()), default=1.0)
        self.gaps.clear()
        self.high.clear()
        for name in _OWN:
            self.scales.pop(name, None)
        self.apart_since = None
        target, snapshot = self.snapshots[-1]
        rate = f"learning rate times {self.guard.factors(self.tries)[0]:.3g}"
        gentler = ", ".join([rate, *_changes(objective, self.softened(objective))])
        self.trail.append(f"step {step}: {reason}; back to step {target} with new random numbers, {gentler}")
        return snapshot

    def softened(self, objective: Objective) -> Objective:
        """The objective as it goes on with after the rollbacks so far."""
        return self.guard.soften(objective, self.tries, self.size)

    # --- early warnings ---------------------------------------------------------------------------

    def warnings(self, numbers: dict[str, float], objective: Objective) -> list[str]:
        """Signs of trouble to tell the user, each once."""
        if "gap" in numbers:
            self.gaps.append(numbers["gap"])
        seen = _chain_signs(numbers) | objective.signs(numbers)
        if _oscillates(list(self.gaps)):
            seen["oscillation"] = (
                "the gap between the energies of data and samples swings back and forth ever wider; "
                "lower the learning rate or run more sampler steps"
            )
        self.signs = {name: self.signs.get(name, 0) + 1 for name in seen}
        found = [name for name in seen if self.signs[name] >= _BASELINE and name not in self.warned]
        self.warned += found
        return [seen[name] for name in found]

    # --- saving -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {name: getattr(self, name) for name in _REMEMBERED} | {"gaps": list(self.gaps)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name in _REMEMBERED:
            setattr(self, name, state.get(name, getattr(self, name)))
        self.gaps = deque(state["gaps"], maxlen=40)


def _changes(before: Objective, after: Objective) -> list[str]:
    """What differs between two objectives of one kind, in words."""
    names = [field.name for field in dataclasses.fields(before)]
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in names]
    numbers = [(name, a, b) for name, a, b in pairs if isinstance(a, int | float) and a != b]
    found = [f"{name} {a:g} → {b:g}" for name, a, b in numbers]
    for part, gentler in zip(before.parts(), after.parts(), strict=True):
        found += _changes(part, gentler)
    return found


def _each(numbers: dict[str, float], kind: str) -> dict[str, float]:
    """The numbers of a kind, by name: those of several parts of a sum are called after these.

    >>> _each({"gap": 1.0, "0.CD.gap": 2.0, "gaps": 3.0}, "gap")
    {'gap': 1.0, '0.CD.gap': 2.0}
    """
    return {name: value for name, value in numbers.items() if name.rpartition(".")[2] == kind}


def _chain_signs(numbers: dict[str, float]) -> dict[str, str]:
    """Chains that stand still."""
    accepted = _each(numbers, "acceptance")
    few = min((share for share in accepted.values() if share < 0.01), default=None)
    if few is not None:
        moves = f"{100 * few:.2g} % of their moves are accepted; use a smaller step size"
        return {"acceptance": f"the chains are frozen: {moves}"}
    for name, movement in _each(numbers, "movement").items():
        unadjusted = not math.isfinite(accepted.get(f"{name.removesuffix('movement')}acceptance", math.nan))
        if unadjusted and movement < 1e-6:
            how = f"they move by {movement:.2g} a step; use a larger step size or another kernel"
            return {"movement": f"the chains are frozen: {how}"}
    return {}


def _oscillates(gaps: list[float]) -> bool:
    """Does the sign change nearly every time, with twice the amplitude in the second half?"""
    if len(gaps) < 20:
        return False
    flips = sum(a * b < 0 for a, b in pairwise(gaps)) / (len(gaps) - 1)
    half = len(gaps) // 2
    early, late = (max(map(abs, part)) for part in (gaps[:half], gaps[half:]))
    return flips > 0.7 and late > 2 * early
