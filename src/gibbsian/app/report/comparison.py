"""The page of several runs side by side."""

import math
import os
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gibbsian
from gibbsian.app.draws import snapshots_of
from gibbsian.app.files import read_json, write_whole
from gibbsian.app.notation import read_recipe
from gibbsian.app.report import figures
from gibbsian.app.report.verdict import Finding, verdict
from gibbsian.app.report.words import duration, end, render, shortened, thousands
from gibbsian.app.runs import noted, open_run, trained
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError
from gibbsian.plots import landscape
from gibbsian.training.log import read_log

_SHARED = {
    "validation_energy_gap": "mean energy of held-out less that of training rows: a growing gap is overfitting",
    "validation_error": "share of held-out rows given a wrong class",
    "validation_loss": "the objective on held-out rows; to be compared where the objectives are the same",
    "loss": "the objective; to be compared where the objectives are the same",
    "steps_per_second": "updates a second",
}
_CLASS = re.compile(r"\bgibbsian\.(\w+\.)+(?=[A-Z])")  # before the name of a class
_KEYS = 24  # settings that differ, at most so many are shown


class Compared(NamedTuple):
    """A page of several runs, what was found of each, and which is best in words."""

    path: Path
    found: dict[str, Any]
    said: list[Finding]


def names_of(folders: list[Path]) -> dict[str, Path]:
    """Short names for run folders: their last parts, as many as tell them apart.

    >>> list(names_of([Path("runs/a/x"), Path("runs/b/x")]))
    ['a/x', 'b/x']
    """
    whole = [folder.resolve() for folder in folders]
    if len(set(whole)) < len(whole):
        raise ArgumentError("the same run is named twice; runs are compared with others")
    for depth in range(1, max(len(one.parts) for one in whole) + 1):
        names = ["/".join(one.parts[-depth:]) for one in whole]
        if len(set(names)) == len(names):
            break
    return dict(zip(names, folders, strict=True))


def write_comparison(
    target: Path, runs: Mapping[str, Path], arguments: list[str], *, title: str, about: str = ""
) -> Compared:
    """Write a page over runs that have been judged, by their names."""
    found = {name: read_json(folder / "evaluation.json") for name, folder in runs.items()}
    logs = {name: read_log(folder) for name, folder in runs.items()}
    said, intervals = best_of(found, same=comparable(found)), _intervals(found)
    events = {name: [record for record in log if "event" in record] for name, log in logs.items()}
    context = {
        "about": about,
        "verdict": said,
        "likelihoods": figures.intervals(intervals) if intervals else None,
        **in_rows(target.parent, runs, {name: _cells(folder, found[name]) for name, folder in runs.items()}),
        "findings": [(name, verdict(result, events[name])) for name, result in found.items()],
        "curves": _curves(logs),
        "pictures": _pictures(runs),
        "names": list(runs),
        "settings": differences([folder / "recipe.yaml" for folder in runs.values()]),
    }
    return Compared(write_side_by_side(target, context, arguments, title=title), found, said)


def write_side_by_side(target: Path, context: dict[str, Any], arguments: list[str], *, title: str) -> Path:
    """Write the page of several runs, of whatever kind."""
    made = {"version": gibbsian.__version__, "made": time.strftime("%d %B %Y, %H:%M")}
    command = "gibbsian " + shlex.join(arguments)
    write_whole(target, render("comparison.html.j2", {"title": title, "command": command, **made, **context}))
    return target


def best_of(found: Mapping[str, Any], *, same: bool) -> list[Finding]:
    """Which run is best by its held-out likelihood, and whether that is certain; `same` says that the data are.

    >>> a, b = ({"likelihood": {"value": v, "lower": v - 1, "upper": v + 1}} for v in (-5.0, -9.0))
    >>> best_of({"a": a, "b": b}, same=True)[0].text
    'a is best: 4.00 nats a row ahead of b, and their intervals do not meet'
    """
    judged = {name: result["likelihood"] for name, result in found.items() if "likelihood" in result}
    if len(judged) < 2:
        return []
    if not same:
        text = "the runs are judged on different data, or on data prepared in different ways: likelihoods cannot be compared"
        return [Finding("open", text)]
    first, second = sorted(judged, key=lambda name: -judged[name]["value"])[:2]
    ahead = judged[first]["value"] - judged[second]["value"]
    upper = max((math.inf if ll["upper"] is None else ll["upper"]) for name, ll in judged.items() if name != first)
    if judged[first]["lower"] > upper:
        return [
            Finding(
                "good", f"{first} is best: {ahead:.2f} nats a row ahead of {second}, and their intervals do not meet"
            )
        ]
    return [Finding("open", f"{first} is ahead of {second} by {ahead:.2f} nats a row, but their intervals meet: it may be chance")]  # fmt: skip


def comparable(found: Mapping[str, Any]) -> bool:
    """Is the simplest model equally good for all runs that have one? Then their rows are the same."""
    simplest = [result["baseline"]["value"] for result in found.values() if "baseline" in result]
    return all(math.isclose(value, simplest[0], rel_tol=1e-3) for value in simplest)


def in_rows(start: Path, runs: Mapping[str, Path], cells: Mapping[str, dict[str, str]]) -> dict[str, Any]:
    """Head and rows of the numbers side by side, without those that no run has; names lead to reports from `start`."""
    head = [key for key in next(iter(cells.values())) if any(row[key] for row in cells.values())]
    rows = [{"name": name, "link": _link(start, runs[name]), "cells": [row[key] for key in head]} for name, row in cells.items()]  # fmt: skip
    return {"head": ["", *head], "rows": rows}


def _cells(folder: Path, result: dict[str, Any]) -> dict[str, str]:
    ll, classes = result.get("likelihood"), result.get("classes")
    return {
        "held-out log-likelihood": f"{ll['value']:.2f} [{ll['lower']:.2f}, {end(ll['upper'], 2)}]" if ll else "",
        "accuracy": f"{100 * classes['accuracy']:.1f} %" if classes else "",
        "AUROC of anomalies": f"{result['anomalies']['auroc']:.3f}" if "anomalies" in result else "",
        "energy distance to data": f"{result['two_sample']['value']:.4f}" if "two_sample" in result else "",
        "R-hat": f"{result['chains']['r_hat']:.2f}" if "chains" in result else "",
        "updates": thousands(result["step"]),
        "time": duration(noted(folder).get("seconds", 0.0)),
    }


def _link(start: Path, folder: Path) -> str:
    """The way from a page in `start` to the report of a run, or nothing where it has none."""
    page = folder / "report.html"
    return Path(os.path.relpath(page, start)).as_posix() if page.exists() else ""


def _intervals(found: dict[str, Any]) -> list[tuple[str, float, float | None, float | None]]:
    """The likelihoods of all, and that of the simplest model."""
    judged = {name: result["likelihood"] for name, result in found.items() if "likelihood" in result}
    if not comparable(found):
        return []
    rows = [(name, ll["value"], ll["lower"], ll["upper"]) for name, ll in judged.items()]
    simplest = next((r["baseline"] for r in found.values() if "baseline" in r), None)
    return [*rows, (simplest["what"], simplest["value"], None, None)] if rows and simplest else rows


def _curves(logs: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Numbers of the logs that at least two runs have, on one axis each."""
    out = []
    for key, caption in _SHARED.items():
        lines = {
            name: [(r["step"], float(r[key])) for r in log if key in r and "event" not in r and math.isfinite(r[key])]
            for name, log in logs.items()
        }
        lines = {name: points for name, points in lines.items() if len(points) > 1}
        if len(lines) > 1:
            label = key.removeprefix("validation_").replace("_", " ")
            still = figures.curves(lines, label=label, name=f"curve-{key}")
            out.append({"picture": still, "data": figures.chart(lines, y=label), "caption": caption})
    return out


def differences(files: list[Path]) -> list[list[str]]:
    """Keys of YAML files that are not the same in all, and their values."""
    flat = [_flat(read_recipe(file.read_text(encoding="utf-8"), str(file))) for file in files]
    keys = dict.fromkeys(key for one in flat for key in one if key not in {"about", "name"})
    rows = [[key, *(one.get(key, "") for one in flat)] for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1][:_KEYS]


def _flat(tree: Any, path: str = "") -> dict[str, str]:
    """A nested dictionary by dotted keys, values as text."""
    if isinstance(tree, dict) and tree:
        return {k: v for key, value in tree.items() for k, v in _flat(value, _under(path, str(key))).items()}
    text = f"{tree:.6g}" if isinstance(tree, float) else str(tree)
    return {path: shortened(_CLASS.sub("", text), 400)}


def _under(path: str, key: str) -> str:
    """The path of a key; `class_path` and `init_args` say how recipes are written and not what differs."""
    return path if key in {"class_path", "init_args"} else f"{path}.{key}" if path else key


def _pictures(runs: Mapping[str, Path]) -> list[dict[str, str]]:
    """What each run has learned, where that can be seen."""
    drawn = {name: _picture(folder, i) for i, (name, folder) in enumerate(runs.items())}
    return [{"name": name, **picture} for name, picture in drawn.items() if picture is not None]


def _picture(folder: Path, number: int) -> dict[str, str] | None:
    """The learned density in the plane, or the last samples as pictures."""
    recipe, prepared = open_run(folder)
    energy = trained(folder, recipe)
    if tuple(energy.domain.shape) == (2,) and isinstance(energy, Energy):
        x = prepared.finished("train", 4000).x
        (left, bottom), (right, top) = (x.amin(0) - 0.5).tolist(), (x.amax(0) + 0.5).tolist()
        extent = (left, right, bottom, top)
        size = (3.4, min(4.4, max(2.0, 0.4 + 3.0 * (top - bottom) / (right - left))))
        draw = lambda ax: landscape(energy, ax, extent, show="density", bar=False, cmap=figures.fading(up=True))  # noqa: E731
        return {"svg": figures.picture(draw, size=size, name=f"density{number}")}
    snapshots = snapshots_of(folder)
    if snapshots:
        images = prepared.undo(snapshots[max(snapshots)])
        if images.dim() >= 3:
            return {"uri": figures.pixel_grid(images[:36])}
    return None
