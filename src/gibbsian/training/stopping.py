"""Stopping early: when the validation has not become better for a while."""

import math
from dataclasses import dataclass
from typing import Any

from gibbsian.errors import ArgumentError, check_number, hold_counts


@dataclass(frozen=True)
class EarlyStopping:
    """End the training once a number of the validation has not become better `patience` validations in a row.

    Args:
        patience: how many.
        number: which, such as "loss", "validation_loss" or "error"; by default the first of them.
        least: by how much it must be better to count.
        largest: whether larger is better.

    >>> watch = Watch(EarlyStopping(patience=2))
    >>> [watch.look({"validation_loss": x}) for x in (3.0, 2.0, 2.5, 2.1)]
    [False, False, False, True]
    """

    patience: int = 10
    number: str | None = None
    least: float = 0.0
    largest: bool = False

    def __post_init__(self) -> None:
        hold_counts(self, "patience")
        check_number(self, "least", self.least)


class Watch:
    """What early stopping remembers during a run."""

    def __init__(self, rule: EarlyStopping) -> None:
        self.rule, self.best, self.bad = rule, math.inf, 0

    def look(self, values: dict[str, float]) -> bool:
        """Is it time to stop, after a validation that found these?"""
        value = self.value(values)
        better = value < self.best - (self.rule.least if math.isfinite(self.best) else 0.0)
        self.best, self.bad = (value, 0) if better else (self.best, self.bad + 1)
        return self.over

    def value(self, values: dict[str, float]) -> float:
        """The number that is looked at, as one whose least is best."""
        name = self.rule.number or next(iter(values))
        key = name if name in values else f"validation_{name}"
        if key not in values:
            raise ArgumentError(f"EarlyStopping(number={name!r}): the validation gives {', '.join(values)}")
        return -values[key] if self.rule.largest else values[key]

    @property
    def over(self) -> bool:
        """Has the patience come to its end?"""
        return self.bad >= self.rule.patience

    def why(self) -> str:
        """The end, in words."""
        best = -self.best if self.rule.largest else self.best
        many = "one validation was" if self.bad == 1 else f"{self.bad} validations in a row were"
        return f"stopped early: {many} no better than {best:.6g}"

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"best": self.best if math.isfinite(self.best) else None, "bad": self.bad}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.best = math.inf if state["best"] is None else state["best"]
        self.bad = state["bad"]
