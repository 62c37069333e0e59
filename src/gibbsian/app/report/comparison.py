"""The page of several runs side by side."""

import shlex
import time
from pathlib import Path
from typing import Any

import gibbsian
from gibbsian.app.report import figures
from gibbsian.app.report.words import duration, end, render
from gibbsian.app.runs import noted, open_run, read_json, snapshots_of, trained, write_whole
from gibbsian.energy import Energy
from gibbsian.plots import landscape


def write_comparison(folder: Path, about: str, names: list[str], arguments: list[str]) -> tuple[Path, dict[str, Any]]:
    """Write `report.html` over runs in subfolders that have been judged; returns its path and what was found."""
    found = {name: read_json(folder / name / "evaluation.json") for name in names}
    intervals = _intervals(found)
    pictures = {name: _picture(folder / name) for name in names}
    page = render(
        "comparison.html.j2",
        {
            "title": folder.name,
            "about": about,
            "likelihoods": figures.intervals(intervals) if intervals else None,
            "head": ["", "held-out log-likelihood", "energy distance to data", "updates", "time"],
            "rows": [_row(folder, name, result) for name, result in found.items()],
            "pictures": [{"name": name, **picture} for name, picture in pictures.items() if picture is not None],
            "command": "gibbsian " + shlex.join(arguments),
            "version": gibbsian.__version__,
            "made": time.strftime("%d %B %Y, %H:%M"),
        },
    )
    target = folder / "report.html"
    write_whole(target, page)
    return target, found


def _row(folder: Path, name: str, result: dict[str, Any]) -> dict[str, Any]:
    distance = f"{result['two_sample']['value']:.4f}" if "two_sample" in result else ""
    ll = result.get("likelihood")
    likelihood = f"{ll['value']:.3f} [{ll['lower']:.3f}, {end(ll['upper'], 3)}]" if ll else "none"
    cells = [likelihood, distance, str(result["step"]), duration(noted(folder / name)["seconds"])]
    return {"name": name, "link": f"{name}/report.html", "cells": cells}


def _intervals(found: dict[str, Any]) -> list[tuple[str, float, float | None, float | None]]:
    """The likelihoods of all, and that of the simplest model."""
    judged = {name: result["likelihood"] for name, result in found.items() if "likelihood" in result}
    rows = [(name, ll["value"], ll["lower"], ll["upper"]) for name, ll in judged.items()]
    simplest = next((r["baseline"] for r in found.values() if "baseline" in r), None)
    return [*rows, (simplest["what"], simplest["value"], None, None)] if rows and simplest else rows


def _picture(folder: Path) -> dict[str, str] | None:
    """The learned density in the plane, or the last samples as pictures."""
    recipe, prepared = open_run(folder)
    energy = trained(folder, recipe)
    if tuple(energy.domain.shape) == (2,) and isinstance(energy, Energy):
        x = prepared.finished("train", 4000).x
        (left, bottom), (right, top) = (x.amin(0) - 0.5).tolist(), (x.amax(0) + 0.5).tolist()
        extent = (left, right, bottom, top)
        draw = lambda ax: landscape(energy, ax, extent, show="density", bar=False).set_aspect("equal")  # noqa: E731
        return {"uri": figures.picture(draw, size=(3.4, 3.2)), "kind": "chart"}
    snapshots = snapshots_of(folder)
    if snapshots:
        images = prepared.undo(snapshots[max(snapshots)])
        if images.dim() >= 3:
            return {"uri": figures.pixel_grid(images[:36]), "kind": "pixels"}
    return None
