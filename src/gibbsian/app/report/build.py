"""Gathering a run folder into one page."""

import shlex
import time
from pathlib import Path
from typing import Any

import gibbsian
from gibbsian.app.draws import draw_by, start_of
from gibbsian.app.evaluation import chain_numbers, evaluate_run
from gibbsian.app.files import read_json, write_whole
from gibbsian.app.recipe import Recipe
from gibbsian.app.report import pictures, sections
from gibbsian.app.report.detectors import detectors
from gibbsian.app.report.verdict import next_steps, verdict
from gibbsian.app.report.words import render
from gibbsian.app.runs import Opened, noted, open_run, trained
from gibbsian.data import Prepared
from gibbsian.distributed.world import World
from gibbsian.domains import Discrete
from gibbsian.errors import GibbsianError
from gibbsian.training.log import read_log
from gibbsian.uses.draw import Drawn


def write_report(
    folder: Path, opened: Opened | None = None, *, fresh: bool = False, progress: bool | None = None
) -> tuple[Path, dict[str, Any]]:
    """Write `report.html` into a run folder; returns its path and the evaluation it shows.

    `opened` are recipe and data where they are at hand. With `fresh` the model is judged anew even if
    `evaluation.json` is there.
    """
    recipe, prepared = opened or open_run(folder)
    energy = trained(folder, recipe)
    drawn = final_samples(recipe, prepared, energy, progress=progress)
    path = folder / "evaluation.json"
    if path.exists() and not fresh:
        found = read_json(path)
        found |= {} if "chains" in found else chain_numbers(drawn)  # of an older version
    else:
        found = evaluate_run(folder, recipe, prepared, energy, drawn, progress=progress)
    target = folder / "report.html"
    write_whole(target, _page(folder, recipe, prepared, energy, drawn, found))
    return target, found


def final_samples(
    recipe: Recipe, prepared: Prepared, energy: Any, *, progress: bool | None = None, world: World | None = None
) -> Drawn | None:
    """Samples of the trained model for the report, or None where it cannot be sampled."""
    pictured = isinstance(energy.domain, Discrete) and pictures.image_shape(recipe, prepared) is not None
    n = 1000 if energy.domain.numel <= 64 and not pictured else recipe.sample.show
    try:
        start = start_of(recipe, prepared, energy)
        return draw_by(recipe, energy, n, "report", start=start, keep=True, progress=progress, world=world)
    except GibbsianError:
        return None


_SECTIONS = {  # in the contents, and which of them need something to show
    "what": ("What was trained", ()),
    "likelihood": ("Likelihood", ("likelihood", "why_no_likelihood")),
    "samples": ("Samples", ("samples", "plane", "film", "marginals")),
    "filters": ("Filters", ("filters",)),
    "curves": ("Curves", ("curves", "events")),
    "energies": ("Energies", ("histogram",)),
    "classes": ("Classes and outsiders", ("classes", "outside")),
    "chains": ("Chains", ("chains",)),
    "again": ("Do it again", ()),
}


def _page(
    folder: Path, recipe: Recipe, prepared: Prepared, energy: Any, drawn: Drawn | None, found: dict[str, Any]
) -> str:
    history = read_log(folder)
    known = noted(folder)
    environment = read_json(folder / "environment.json")
    events = [record for record in history if "event" in record]
    shape = pictures.image_shape(recipe, prepared)
    context: dict[str, Any] = {
        "title": recipe.name,
        "about": recipe.about,
        "verdict": verdict(found, events),
        "next": next_steps(found, str(folder), recipe.sample.steps),
        "cards": sections.cards(energy, found, known, events),
        "facts": sections.facts(recipe, prepared, energy, found, known),
        "model_text": repr(energy),
        "why_no_likelihood": None if recipe.evaluate.likelihood == "none" else found.get("why_no_likelihood"),
        "likelihood": sections.likelihood(found),
        "warnings": found.get("warnings", []),
        "curves": sections.curves(history, events),
        "curves_text": sections.speed(history, events),
        "events": events,
        "histogram": sections.histogram(energy, prepared, drawn),
        "classes": sections.classes(energy, prepared, found, recipe.evaluate.rows),
        "outside": detectors(recipe, prepared, energy, found, shape),
        "chains": sections.chains(drawn, found),
        "filters": pictures.filter_pictures(energy, prepared, shape),
        "command": "\n".join(_commands(folder, known)),
        "recipe": recipe.text,
        "environment": list(environment.items()),
        "version": gibbsian.__version__,
        "made": time.strftime("%d %B %Y, %H:%M"),
        **pictures.sample_pictures(folder, prepared, energy, drawn, shape),
    }
    context["contents"] = _contents(context)
    return render("run.html.j2", context)


def _commands(folder: Path, known: dict[str, Any]) -> list[str]:
    """How the run was started, and how it went on to other lengths than its recipe says."""
    further = [["resume", str(folder), "--steps", str(total)] for total in known.get("then", [])]
    return ["gibbsian " + shlex.join(one) for one in (known.get("arguments") or ["train", "recipe.yaml"], *further)]


def _contents(context: dict[str, Any]) -> list[tuple[str, str]]:
    """The sections that have something to show, and their titles."""
    shown = {key: title for key, (title, parts) in _SECTIONS.items() if not parts or any(context[p] for p in parts)}
    if "classes" in shown and not (context["classes"] and context["outside"]):
        shown["classes"] = "Classes" if context["classes"] else "Outsiders"
    return list(shown.items())
