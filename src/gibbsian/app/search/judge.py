"""What a search is after, by name: held-out likelihood, a distance of draws to data, detection, accuracy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gibbsian.app.draws import draw_by, start_of
from gibbsian.app.evaluation import outside_sets
from gibbsian.app.recipe import Recipe
from gibbsian.capabilities import Classifier, require
from gibbsian.data import Prepared
from gibbsian.errors import CapabilityError, DataError
from gibbsian.metrics import mmd
from gibbsian.metrics.evaluate import detection, energies_of, evaluate
from gibbsian.placement import placement

_PART = "validation"  # settings are chosen on it, and never on the test part
_DRAWS = 1000


class Score(NamedTuple):
    """A value, and its interval where there is one."""

    value: float
    lower: float | None = None
    upper: float | None = None


class Aim(NamedTuple):
    """What a search is after."""

    about: str
    direction: str
    judge: Callable[[Recipe, Prepared, Any], Score]


def rows_of(prepared: Prepared, most: int) -> Any:
    """The rows that settings are chosen on."""
    if _PART not in prepared.data.parts:
        raise DataError(
            "a search chooses settings on validation rows, and never on those of the test; hold some out with the step "
            "split: {validation: 0.1}"
        )
    return prepared.finished(_PART, most)


def _likelihood(recipe: Recipe, prepared: Prepared, model: Any) -> Score:
    dtype, device = placement(model)
    spec = recipe.evaluate
    x = rows_of(prepared, spec.rows).x.to(device, dtype)
    train = prepared.finished("train", max(spec.rows, 16384)).x.to(device, dtype)
    how = {"likelihood": spec.likelihood, "chains": spec.chains, "betas": spec.betas, "seed": recipe.fit["seed"]}
    found = evaluate(model, x, train=train, **how)
    if found.log_likelihood is None:
        raise CapabilityError(f"there is no likelihood to be after: {found.why_no_likelihood}; say another --objective")
    ll = found.log_likelihood
    return Score(float(ll.value), float(ll.lower), float(ll.upper))


def _mmd(recipe: Recipe, prepared: Prepared, model: Any) -> Score:
    dtype, device = placement(model)
    x = rows_of(prepared, _DRAWS).x.to(device, dtype)
    drawn = draw_by(recipe, model, _DRAWS, "search", start=start_of(recipe, prepared, model)).x
    return Score(float(mmd(drawn.flatten(1), x.flatten(1))))


def _auroc(recipe: Recipe, prepared: Prepared, model: Any) -> Score:
    dtype, device = placement(model)
    held = rows_of(prepared, recipe.evaluate.rows)
    x = held.x.to(device, dtype)
    if held.y is not None and prepared.data.classes == ("normal", "anomaly"):
        inside, strange = (x[(held.y == label).to(device)] for label in (0, 1))
    else:
        sets = outside_sets(recipe, prepared, model).sets
        if not sets:
            raise DataError("auroc needs another set: name one under evaluate: outside:, such as noise")
        inside, strange = x, next(iter(sets.values())).to(x)
    return Score(detection(energies_of(model, inside), energies_of(model, strange)).auroc)


def _accuracy(recipe: Recipe, prepared: Prepared, model: Any) -> Score:
    dtype, device = placement(model)
    held = rows_of(prepared, recipe.evaluate.rows)
    if held.y is None:
        raise DataError("accuracy needs labels; say data.label, or another --objective")
    able = require(model, Classifier, "--objective accuracy", "say another --objective")
    with torch.no_grad():
        right = able.class_log_prob(held.x.to(device, dtype)).argmax(1).cpu() == held.y
    rate, n = float(right.double().mean()), len(right)
    spread = 3 * (rate * (1 - rate) / n) ** 0.5
    return Score(rate, max(0.0, rate - spread), min(1.0, rate + spread))


AIMS = {
    "likelihood": Aim("log-likelihood of validation rows, nats a row", "maximize", _likelihood),
    "mmd": Aim("squared MMD of draws to validation rows", "minimize", _mmd),
    "auroc": Aim("AUROC of validation rows against the set outside", "maximize", _auroc),
    "accuracy": Aim("share of validation rows whose class is told", "maximize", _accuracy),
}
