"""The part of a report about detectors: ROC curves, and the rows that the energy finds strangest."""

from typing import Any

import torch
from torch import Tensor

from gibbsian.app.evaluation import held_out_part, outside_sets
from gibbsian.app.recipe import Recipe
from gibbsian.app.report import figures
from gibbsian.app.report.words import rounded
from gibbsian.data import Prepared
from gibbsian.energy import Energy
from gibbsian.metrics.evaluate import costly, energies_of
from gibbsian.placement import placement

_STRANGE = 8
_CELLS = 4  # of a strange row that are named


def detectors(
    recipe: Recipe, prepared: Prepared, energy: Any, found: dict[str, Any], shape: tuple[int, ...] | None
) -> dict[str, Any] | None:
    """Rates, curves and strange rows, where the evaluation has anomalies or sets outside; None elsewhere."""
    rates = ({"labeled anomalies": found["anomalies"]} if "anomalies" in found else {}) | found.get("outside", {})
    if not rates:
        return None
    rows = [
        (name, one["missing"], "", "")
        if "missing" in one
        else (name, f"{one['auroc']:.3f}", f"{one['aupr']:.3f}", f"{100 * one['fpr95']:.1f} %")
        for name, one in rates.items()
    ]
    out: dict[str, Any] = {"rows": rows, "roc": None, "data": None, "strange": [], "images": None, "part": ""}
    if not isinstance(energy, Energy) or costly(energy):
        return out
    dtype, device = placement(energy)
    part = held_out_part(prepared)
    held = prepared.finished(part, recipe.evaluate.rows)
    x = held.x.to(device, dtype)
    scores = energies_of(energy, x).double().cpu()
    pairs = _pairs(recipe, prepared, energy, found, scores, held.y)
    return out | {"part": part} | _curves(pairs) | _strange(prepared, held.x, held.y, scores, shape)


def _pairs(
    recipe: Recipe, prepared: Prepared, energy: Energy, found: dict[str, Any], scores: Tensor, y: Tensor | None
) -> dict[str, tuple[Tensor, Tensor]]:
    """Energies inside and outside, by the name of what is to be found."""
    dtype, device = placement(energy)
    pairs = {}
    if "anomalies" in found and y is not None:
        pairs["labeled anomalies"] = (scores[y == 0], scores[y == 1])
    if found.get("outside"):
        for name, rows in outside_sets(recipe, prepared, energy).sets.items():
            pairs[name] = (scores, energies_of(energy, rows.to(device, dtype)).double().cpu())
    finite = {name: tuple(side[torch.isfinite(side)] for side in sides) for name, sides in pairs.items()}
    return {name: (a, b) for name, (a, b) in finite.items() if len(a) and len(b)}


def _curves(pairs: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    if not pairs:
        return {}
    picture, data = figures.roc(pairs)
    return {"roc": picture, "data": data}


def _strange(
    prepared: Prepared, x: Tensor, y: Tensor | None, scores: Tensor, shape: tuple[int, ...] | None
) -> dict[str, Any]:
    """The rows of highest energy: as pictures, or with the cells that lie furthest from those of the training rows."""
    order = torch.where(torch.isfinite(scores), scores, torch.full_like(scores, torch.inf)).argsort(descending=True)
    least = order[:_STRANGE]
    names = prepared.data.classes
    labels = [names[int(y[i])] if y is not None and int(y[i]) < len(names) else "" for i in least]
    raw = prepared.undo(x[least].float().cpu())
    if shape is not None:
        return {"images": figures.pixel_grid(raw.reshape(-1, *shape), columns=_STRANGE)}
    seen = prepared.undo(prepared.finished("train", 4000).x.float().cpu()).flatten(1).double()
    middle, spread = seen.median(0).values, seen.std(0).clamp(min=1e-12)
    columns = prepared.data.columns
    rows = []
    for k, i in enumerate(least):
        values = raw[k].flatten().double()
        away = (values - middle) / spread
        far = [int(j) for j in away.abs().argsort(descending=True)[:_CELLS] if abs(float(away[j])) > 2]
        cells = [f"{_name(columns, j)} = {rounded(float(values[j]))} ({float(away[j]):+.1f} sd)" for j in far]
        rows.append({"row": int(i) + 1, "label": labels[k], "energy": rounded(float(scores[i])), "cells": cells})
    return {"strange": rows}


def _name(columns: tuple[str, ...], j: int) -> str:
    return columns[j] if j < len(columns) else f"column {j + 1}"
