"""Judging the model of a run on its held-out data."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gibbsian.app.recipe import EvaluateSpec, Recipe
from gibbsian.app.runs import noted
from gibbsian.data import DataSet, Prepared, Rows, load
from gibbsian.energy import Energy
from gibbsian.errors import GibbsianError
from gibbsian.metrics.evaluate import costly, detection, energies_of, evaluate
from gibbsian.placement import placement
from gibbsian.random import stream
from gibbsian.training import checkpoint
from gibbsian.uses.draw import Drawn

_ROWS = 1 << 14


def held_out_part(prepared: Prepared) -> str:
    """The part that a model is judged on: test, else validation, else the training rows themselves."""
    return next((part for part in ("test", "validation") if part in prepared.data.parts), "train")


def evaluate_run(
    folder: Path, recipe: Recipe, prepared: Prepared, model: Any, drawn: Drawn | None, *, progress: bool | None = None
) -> dict[str, Any]:
    """Judge the model of a run and write `evaluation.json`: plain numbers, see `gibbsian.evaluate`.

    Further keys are `part` (that it was judged on), `learned_log_z`, `anomalies` (labeled ones in that part), what is
    `missing` of sets outside that could not be had, and `step`.
    """
    dtype, device = placement(model)
    part, spec = held_out_part(prepared), recipe.evaluate
    held, train = prepared.finished(part, spec.rows), prepared.finished("train", max(spec.rows, _ROWS))
    x, seen = held.x.to(device, dtype), train.x.to(device, dtype)
    able = isinstance(model, Energy) and not costly(model)
    outside, missing = _other_sets(prepared, spec, x) if able else ({}, {})
    found = evaluate(
        model,
        x if held.y is None else (x, held.y),
        train=seen,
        outside=outside,
        samples=None if drawn is None else drawn.x,
        likelihood=spec.likelihood,
        chains=spec.chains,
        betas=spec.betas,
        seed=recipe.fit["seed"],
        progress=progress,
    ).to_dict()
    if able:
        found["energies"] = {"train": found["energies"]["train"], part: found["energies"]["data"]}
        found |= _anomalies(prepared, model, x, held.y)
    if missing:
        found["outside"] = found.get("outside", {}) | missing
    learned = noted(folder).get("log_z")
    found = {"part": part} | found | ({} if learned is None else {"learned_log_z": learned})
    found["step"] = checkpoint.read_latest(folder, keys=("step",))["step"]
    (folder / "evaluation.json").write_text(json.dumps(found, indent=1))
    return found


def _anomalies(prepared: Prepared, model: Energy, x: Tensor, y: Tensor | None) -> dict[str, Any]:
    """How well labeled anomalies among the rows are found."""
    if y is None or prepared.data.classes != ("normal", "anomaly") or len(y.unique()) < 2:
        return {}
    inside, strange = (energies_of(model, x[(y == label).to(x.device)]) for label in (0, 1))
    return {"anomalies": detection(inside, strange)._asdict()}


def _other_sets(prepared: Prepared, spec: EvaluateSpec, x: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rows of other sets through the same steps, and why others are not there."""
    sets, missing = {}, {}
    for name in spec.outside:
        try:
            sets[name] = prepared.other(_other(name, prepared))[: spec.rows].to(x)
        except GibbsianError as error:
            missing[name] = {"missing": str(error)}
    return sets, missing


def _other(name: str, prepared: Prepared) -> DataSet:
    if name == "noise":  # uniform bytes of the raw shape
        shape = load(prepared.data.name, part="test").train.x.shape[1:]
        noise = torch.randint(0, 256, (2000, *shape), generator=stream(prepared.seed, "noise")).byte()
        return DataSet("noise", Rows(noise))
    return load(name, part="test")
