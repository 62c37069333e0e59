"""What is searched: keys of a recipe, each with a range or a list of choices.

fit.lr: {low: 0.01, high: 1.0, log: true}
model.hidden: [50, 400]                    # from 50 to 400; whole numbers stay whole
objective.objective.steps: {choices: [1, 5, 20]}
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from gibbsian.app.notation import read_yaml
from gibbsian.errors import ArgumentError, suggest


@dataclass(frozen=True)
class Axis:
    """A key of a recipe and what it may be: a number of a range, or one of a few choices."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()

    @property
    def whole(self) -> bool:
        """Is it a range of whole numbers?"""
        return not self.choices and all(isinstance(x, int) for x in (self.low, self.high, self.step or 1))

    def ask(self, trial: Any) -> Any:
        """A value, by Optuna's trial."""
        if self.choices:
            return json.loads(trial.suggest_categorical(self.key, [json.dumps(one) for one in self.choices]))
        if self.whole:
            return trial.suggest_int(self.key, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)

    def place(self, value: Any) -> Any:
        """A value of the recipe as Optuna notes it, or None where it does not lie on the axis."""
        if self.choices:
            return json.dumps(value) if value in self.choices else None
        number = isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high
        return (
            (int(value) if self.whole else float(value)) if number and (not self.whole or value == int(value)) else None
        )

    def shown(self, noted: Any) -> Any:
        """What Optuna noted, as it stands in the recipe."""
        return json.loads(noted) if self.choices else noted

    @property
    def middle(self) -> Any:
        """A value of the axis."""
        if self.choices:
            return self.choices[0]
        if self.whole:
            return int(self.low)
        return math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2


def read_space(text: str, name: str) -> list[Axis]:
    """The axes of a search from YAML.

    >>> [axis.whole for axis in read_space("fit.lr: {low: 0.01, high: 1.0, log: true}\\nmodel.hidden: [50, 400]", "space")]
    [False, True]
    """
    try:
        loaded = read_yaml(text)
    except yaml.YAMLError as error:
        raise ArgumentError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict) or not loaded:
        raise ArgumentError(f"{name} holds no space; give keys of the recipe with ranges, as in fit.lr: [0.01, 1.0]")
    return [_axis(str(key), told, name) for key, told in loaded.items()]


def _axis(key: str, told: Any, name: str) -> Axis:
    if isinstance(told, list) and len(told) == 2 and all(map(_is_number, told)):
        told = {"low": told[0], "high": told[1]}
    if not isinstance(told, dict):
        raise ArgumentError(
            f"{name}: {key} is {told!r}; give [low, high], {{low, high, log, step}} or {{choices: [...]}}"
        )
    known = ("low", "high", "log", "step", "choices")
    odd = [one for one in told if one not in known]
    if odd:
        raise ArgumentError(
            f"{name}: {key} has no {odd[0]!r}; {suggest(str(odd[0]), known)}It takes {', '.join(known)}"
        )
    return _choices(key, told, name) if "choices" in told else _range(key, told, name)


def _choices(key: str, told: dict[str, Any], name: str) -> Axis:
    choices = told["choices"]
    if not isinstance(choices, list) or not choices or len(told) > 1:
        raise ArgumentError(f"{name}: {key}: choices: is a list of values, and stands alone")
    return Axis(key, choices=tuple(choices))


def _range(key: str, told: dict[str, Any], name: str) -> Axis:
    low, high, step = told.get("low"), told.get("high"), told.get("step")
    numbers = _is_number(low) and _is_number(high) and (step is None or _is_number(step))
    if not numbers or not low < high or (told.get("log") and (low <= 0 or step is not None)):  # type: ignore[operator]
        raise ArgumentError(
            f"{name}: {key} is {told}; a range needs low < high, and with log: true both above 0 and no step"
        )
    return Axis(key, low, high, bool(told.get("log", False)), step)  # type: ignore[arg-type]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def as_flags(values: dict[str, Any]) -> list[str]:
    """Values by key as flags of `gibbsian train`.

    >>> as_flags({"fit.lr": 0.1, "fit.schedule": "linear"})
    ['--fit.lr=0.1', '--fit.schedule=linear']
    """
    return [f"--{key}={_text(value)}" for key, value in values.items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def settled(recipe: dict[str, Any], axes: Sequence[Axis]) -> dict[str, Any]:
    """The point of the space where a resolved recipe stands, if it lies inside; nothing otherwise."""
    found = {axis.key: axis.place(_at(recipe, axis.key.split("."))) for axis in axes}
    return {} if any(value is None for value in found.values()) else found


def _at(tree: Any, path: list[str]) -> Any:
    for name in path:
        inner = tree.get("init_args", tree) if isinstance(tree, dict) else {}
        tree = inner.get(name) if isinstance(inner, dict) else None
    return tree
