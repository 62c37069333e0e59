"""The page of a search: the best trials, what mattered, and all trials as lines through the space."""

import math
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gibbsian
from gibbsian.app.files import write_whole
from gibbsian.app.report import figures
from gibbsian.app.report.words import duration, render
from gibbsian.app.search.judge import AIMS
from gibbsian.app.search.space import Axis
from gibbsian.app.search.study import Search, library, ranked
from gibbsian.drawing.style import color, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN = 15


def write_search(
    search: Search,
    study: Any,
    judged: dict[str, Any],
    weights: dict[str, float],
    *,
    arguments: list[str],
    seconds: float,
) -> Path:
    """Write `report.html` into the folder of a search.

    `judged` are evaluations on the test part, of the `best` trial and of the `recipe` as it is, `weights` the
    importances of the keys.
    """
    best, larger = ranked(study), study.direction.name == "MAXIMIZE"
    every = study.get_trials(deepcopy=False)
    lines = len(best) > 1
    page = render(
        "search.html.j2",
        {
            "title": search.name,
            "about": AIMS[search.objective].about,
            "ended": _ended(every),
            "head": [search.objective, "interval", *(axis.key for axis in search.axes), "time"],
            "rows": [_row(search, trial) for trial in best[:_SHOWN]],
            "test": _test_rows(judged),
            "parallel": _parallel(search.axes, best, larger, search.objective) if lines else None,
            "rem": round(8 * _inches(search.axes)),
            "progress": _progress(best, larger, search.objective) if lines else None,
            "importance": _bars(weights) if weights else None,
            "failures": [(t.number, t.user_attrs["error"]) for t in every if "error" in t.user_attrs],
            "command": "gibbsian " + shlex.join(arguments),
            "seconds": duration(seconds),
            "version": gibbsian.__version__,
            "made": time.strftime("%d %B %Y, %H:%M"),
        },
    )
    target = search.folder / "report.html"
    write_whole(target, page)
    return target


def _ended(every: list[Any]) -> list[tuple[str, int]]:
    """How many trials ended how."""
    states = library().trial.TrialState
    found = {
        "done": [t for t in every if t.state == states.COMPLETE],
        "given up by the pruner": [t for t in every if t.state == states.PRUNED],
        "failed": [t for t in every if t.state == states.FAIL and "error" in t.user_attrs],
        "killed": [t for t in every if t.state == states.FAIL and "error" not in t.user_attrs],
    }
    return [(name, len(trials)) for name, trials in found.items() if trials]


def _row(search: Search, trial: Any) -> dict[str, Any]:
    told = trial.user_attrs
    folder = Path(told["folder"])
    linked = next((folder / name for name in ("report.html", "recipe.yaml") if (folder / name).exists()), None)
    cells = [
        f"{trial.value:.4f}",
        _interval(told),
        *(_short(axis.shown(trial.params[axis.key])) for axis in search.axes),
    ]
    name = f"{trial.number}, the recipe as it is" if told.get("recipe") else str(trial.number)
    link = None if linked is None else os.path.relpath(linked, search.folder)
    return {"name": name, "link": link, "cells": [*cells, duration(told.get("seconds", 0.0))]}


def _interval(told: dict[str, Any]) -> str:
    ends = [told.get(name) for name in ("lower", "upper")]
    return f"[{ends[0]:.3f}, {ends[1]:.3f}]" if all(isinstance(x, float) and math.isfinite(x) for x in ends) else ""


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _test_rows(judged: dict[str, Any]) -> list[tuple[str, str]]:
    """Likelihoods of the test part."""
    names = {"best": "the best trial", "recipe": "the recipe as it is"}
    found = [(names[name], result["likelihood"]) for name, result in judged.items() if "likelihood" in result]
    return [(name, f"{ll['value']:.3f} nats a row {_interval(ll)}") for name, ll in found]


# --- pictures -------------------------------------------------------------------------------------


def _height(axis: Axis, noted: Any) -> float:
    """Where a value stands on its axis, from 0 to 1."""
    if axis.choices:
        return axis.choices.index(axis.shown(noted)) / max(1, len(axis.choices) - 1)
    low, high, value = ((math.log(x) if axis.log else float(x)) for x in (axis.low, axis.high, noted))
    return (value - low) / (high - low)


def _broken(key: str) -> str:
    """A long key in two lines."""
    return key if len(key) <= 16 else "\n.".join(key.rsplit(".", 1))


def _parallel(axes: tuple[Axis, ...], best: list[Any], larger: bool, label: str) -> str:
    """A line a trial through all axes, the better the stronger; the last axis is the objective."""
    values = np.array([trial.value for trial in best])
    low, high = float(np.quantile(values, 0.1 if larger else 0.0)), float(np.quantile(values, 1.0 if larger else 0.9))
    spread = max(high - low, 1e-12)

    def draw(ax: "Axes") -> None:
        for rank, trial in reversed(list(enumerate(best))):
            heights = [_height(axis, trial.params[axis.key]) for axis in axes]
            heights.append(float(np.clip((trial.value - low) / spread, 0, 1)))
            strength = 1 - rank / max(1, len(best) - 1)
            ax.plot(heights, color=color(0), alpha=0.12 + 0.8 * strength**2, linewidth=0.8 + 1.6 * (rank == 0))
        for i, axis in enumerate(axes):
            ends = (
                (str(axis.choices[0]), str(axis.choices[-1])) if axis.choices else (_short(axis.low), _short(axis.high))
            )
            for y, text in zip((-0.05, 1.05), ends, strict=True):
                ax.text(i, y, text, ha="center", va="top" if y < 0 else "bottom", fontsize=8)
        for y, number in ((-0.05, low), (1.05, high)):
            ax.text(len(axes), y, f"{number:.4g}", ha="center", va="top" if y < 0 else "bottom", fontsize=8)
        names = [*(_broken(axis.key) for axis in axes), label]
        ax.set_xticks(range(len(names)), names)
        ax.set_yticks([])
        ax.set_ylim(-0.15, 1.15)
        for side in ("left", "right", "top"):
            ax.spines[side].set_visible(False)
        for i in range(len(names)):
            ax.axvline(i, 0.115, 0.885, color="#999999", linewidth=0.8, zorder=0)

    return figures.svg(draw, size=(_inches(axes), 3.2), name="parallel")


def _inches(axes: tuple[Axis, ...]) -> float:
    """The width of the lines through the space: narrow, so that a phone shows its words."""
    return max(4.8, 1.2 * len(axes) + 1.2)


def _progress(best: list[Any], larger: bool, label: str) -> str:
    trials = sorted(best, key=lambda t: t.number)
    record = (np.maximum if larger else np.minimum).accumulate([t.value for t in trials])

    def draw(ax: "Axes") -> None:
        ax.plot([t.number for t in trials], [t.value for t in trials], "o", color=color(0), alpha=0.5, markersize=4)
        ax.step([t.number for t in trials], record, where="post", color=color(1))
        ax.set_xlabel("trial")
        ax.set_ylabel(label)
        bad, good = (np.quantile([t.value for t in trials], q) for q in ((0.1, 1) if larger else (0.9, 0)))
        pad = 0.1 * abs(good - bad) or 1.0
        ax.set_ylim(min(bad, good) - pad, max(bad, good) + pad)
        tidy(ax)

    return figures.svg(draw, size=(6.4, 2.8), name="trials")


def _bars(weights: dict[str, float]) -> str:
    names = list(weights)[::-1]

    def draw(ax: "Axes") -> None:
        ax.barh(range(len(names)), [weights[name] for name in names], color=color(0), height=0.6)
        ax.set_yticks(range(len(names)), names)
        ax.set_xlabel("share of the spread of the objective")
        ax.set_xlim(0, 1)
        tidy(ax)

    return figures.svg(draw, size=(6.4, 0.7 + 0.36 * len(names)), name="importance")
