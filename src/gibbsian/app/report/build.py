"""Gathering a run folder into one page."""

import json
import time
from pathlib import Path
from typing import Any

import gibbsian
from gibbsian.app.evaluation import evaluate_on
from gibbsian.app.recipe import Recipe
from gibbsian.app.report import pictures, sections
from gibbsian.app.report.words import render
from gibbsian.app.runs import open_run, start_of, trained
from gibbsian.data import Prepared
from gibbsian.domains import Discrete
from gibbsian.errors import GibbsianError
from gibbsian.placement import placement
from gibbsian.random import stream
from gibbsian.training import checkpoint
from gibbsian.training.log import read_log
from gibbsian.uses.draw import Drawn, draw_with_trace


def write_report(folder: Path, *, fresh: bool = False, progress: bool | None = None) -> tuple[Path, dict[str, Any]]:
    """Write `report.html` into a run folder; returns its path and the evaluation it shows.

    Args:
        folder: a run folder of the command line.
        fresh: judge the model anew even if `evaluation.json` is there.
        progress: show bars.
    """
    recipe, prepared = open_run(folder)
    energy = trained(folder, recipe)
    drawn = final_samples(recipe, prepared, energy, progress=progress)
    path = folder / "evaluation.json"
    if path.exists() and not fresh:
        found = json.loads(path.read_text())
    else:
        found = evaluate_run(folder, recipe, prepared, energy, drawn, progress=progress)
    page = _page(folder, recipe, prepared, energy, drawn, found)
    target = folder / "report.html"
    new = target.with_suffix(".new")
    new.write_text(page, encoding="utf-8")
    new.replace(target)
    return target, found


def evaluate_run(
    folder: Path, recipe: Recipe, prepared: Prepared, energy: Any, drawn: Drawn | None, *, progress: bool | None = None
) -> dict[str, Any]:
    """Judge the model of a run and write `evaluation.json`."""
    known = json.loads((folder / "command.json").read_text())
    found = evaluate_on(
        prepared,
        energy,
        recipe.evaluate,
        seed=recipe.fit["seed"],
        samples=drawn,
        learned_log_z=known.get("log_z"),
        progress=progress,
    )
    found["step"] = checkpoint.read_latest(folder, keys=("step",))["step"]
    (folder / "evaluation.json").write_text(json.dumps(found, indent=1))
    return found


def final_samples(recipe: Recipe, prepared: Prepared, energy: Any, *, progress: bool | None = None) -> Drawn | None:
    """Samples of the trained model for the report, or None where it cannot be sampled."""
    spec = recipe.sample
    generator = stream(recipe.fit["seed"], "report", placement(energy)[1])
    pictured = isinstance(energy.domain, Discrete) and pictures.image_shape(recipe, prepared) is not None
    small = energy.domain.numel <= 64 and not pictured
    try:
        return draw_with_trace(
            energy,
            1000 if small else spec.show,
            generator=generator,
            kernel=spec.kernel,
            objective=recipe.objective,
            steps=spec.steps,
            start=start_of(recipe, prepared, energy),
            keep=True,
            progress=progress,
        )
    except GibbsianError:
        return None


def _page(
    folder: Path, recipe: Recipe, prepared: Prepared, energy: Any, drawn: Drawn | None, found: dict[str, Any]
) -> str:
    history = read_log(folder)
    known = json.loads((folder / "command.json").read_text())
    environment = json.loads((folder / "environment.json").read_text())
    events = [record for record in history if "event" in record]
    shape = pictures.image_shape(recipe, prepared)
    context: dict[str, Any] = {
        "title": recipe.name,
        "about": recipe.about,
        "cards": sections.cards(energy, found, known, events),
        "facts": sections.facts(recipe, prepared, energy, found, known),
        "model_text": repr(energy),
        "why_no_likelihood": found.get("why_no_likelihood"),
        "likelihood": sections.likelihood(found),
        "warnings": found.get("warnings", []),
        "curves": sections.curves(history, events),
        "curves_text": sections.speed(history),
        "events": events,
        "histogram": sections.histogram(energy, prepared, drawn),
        "classes": sections.classes(energy, prepared, found, recipe.evaluate.rows),
        "outside": sections.outside(found),
        "chains": sections.chains(drawn),
        "filters": pictures.filter_pictures(energy, prepared, shape),
        "command": sections.command_of(recipe, known),
        "recipe": recipe.text,
        "environment": list(environment.items()),
        "version": gibbsian.__version__,
        "made": time.strftime("%d %B %Y, %H:%M"),
        **pictures.sample_pictures(folder, prepared, energy, drawn, shape),
    }
    names = {
        "what": "What was trained",
        "likelihood": "Likelihood",
        "samples": "Samples",
        "filters": "Filters",
        "curves": "Curves",
        "energies": "Energies",
        "classes": "Classes and outsiders",
        "chains": "Chains",
        "again": "Do it again",
    }
    there = {
        "likelihood": context["likelihood"] or context["why_no_likelihood"],
        "samples": context["samples"] or context["plane"] or context["strip"] or context["marginals"],
        "filters": context["filters"],
        "energies": context["histogram"],
        "classes": context["classes"] or context["outside"],
        "chains": context["chains"],
    }
    context["contents"] = [(key, name) for key, name in names.items() if there.get(key, True)]
    return render("run.html.j2", context)
