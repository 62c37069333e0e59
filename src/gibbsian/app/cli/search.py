"""`gibbsian search`: many trainings of a recipe with other settings, by Optuna."""

import argparse
import shlex
import time
from pathlib import Path
from typing import Any

from gibbsian.app import files
from gibbsian.app.cli.show import Output
from gibbsian.app.recipe import recipe_source, split_comparison
from gibbsian.app.report.build import write_report
from gibbsian.app.report.search import write_search
from gibbsian.app.search.judge import AIMS
from gibbsian.app.search.space import read_space
from gibbsian.app.search.study import Search, counted, importances, ranked
from gibbsian.errors import ArgumentError, GibbsianError


def run_search(options: argparse.Namespace, rest: list[str]) -> int:
    """Take trials until there are enough; write the best recipe and the page."""
    out = Output(options)
    search = _search(options, rest)
    out.say(f"[bold]{search.name}[/bold]  {AIMS[search.objective].about}")
    out.say(f"folder: {search.folder}; start the same command again, here or elsewhere, for one more worker")
    begun = time.perf_counter()
    study = search.work(options.trials, lambda trial: out.say(_line(trial)))
    best = ranked(study)
    if not best:
        failed = [t.user_attrs["error"] for t in counted(study) if "error" in t.user_attrs]
        raise ArgumentError(
            f"no trial came to an end; the last one failed: {failed[-1] if failed else 'they were given up'}"
        )
    folder = Path(best[0].user_attrs["folder"])
    recipe = folder / "recipe.yaml"
    target = search.folder / "best.yaml"
    if recipe.exists():  # on another machine it may lie elsewhere
        files.write_whole(target, recipe.read_text(encoding="utf-8"))
    judged = {} if options.no_report else _judged(search, study, out)
    weights = importances(study, search.axes)
    seconds = time.perf_counter() - begun
    page = write_search(search, study, judged, weights, arguments=options.arguments, seconds=seconds)
    _show(out, search, study, weights)
    out.say(f"best recipe: {target}; train it with: gibbsian train {shlex.quote(str(target))}")
    out.say(f"report: {page}")
    values = {axis.key: axis.shown(best[0].params[axis.key]) for axis in search.axes}
    told = {
        "trial": best[0].number,
        "value": best[0].value,
        **{k: best[0].user_attrs.get(k) for k in ("lower", "upper")},
    }
    out.document(
        {
            "folder": str(search.folder),
            "report": str(page),
            "best": told | {"settings": values},
            "trials": len(counted(study)),
        }
        | {"test": judged, "importances": weights}
    )
    return 0


def _search(options: argparse.Namespace, rest: list[str]) -> Search:
    name, text = recipe_source(options.recipe)
    if split_comparison(text, name) is not None:
        raise ArgumentError(f"{name} is a comparison of several recipes; search one of them")
    space = Path(options.space).expanduser()
    if not space.is_file():
        raise ArgumentError(f"--space {options.space}: there is no such file; see docs/tuning.md for what stands in it")
    axes = read_space(space.read_text(encoding="utf-8"), space.name)
    folder = options.folder = Path(options.run) if options.run else files.usual_folder(f"search-{name}")
    keys = ("objective", "storage", "sampler", "pruner", "seed", "looks", "heartbeat")
    return Search(name, text, tuple(rest), tuple(axes), folder=folder, **{key: getattr(options, key) for key in keys})


def _judged(search: Search, study: Any, out: Output) -> dict[str, Any]:
    """What the test part says of the best trial and of the recipe as it is: it was not chosen by."""
    best = ranked(study)
    plain = [trial for trial in best if trial.user_attrs.get("recipe")]
    found = {}
    for name, trial in [("best", best[0]), *(("recipe", one) for one in plain[:1])]:
        folder = Path(trial.user_attrs["folder"])
        if (folder / "recipe.yaml").exists():
            try:
                found[name] = write_report(folder, progress=out.progress)[1]
            except GibbsianError as error:
                out.say(f"[yellow]note[/yellow] trial {trial.number} could not be judged: {error}")
    return found


def _line(trial: Any) -> str:
    if trial.value is not None:
        return f"trial {trial.number}: {trial.value:.4f}"
    return f"trial {trial.number}: {trial.state.name.lower()}{': ' + trial.user_attrs['error'] if 'error' in trial.user_attrs else ''}"


def _show(out: Output, search: Search, study: Any, weights: dict[str, float]) -> None:
    rows = []
    for trial in ranked(study)[:10]:
        told = trial.user_attrs
        interval = f"[{told['lower']:.3f}, {told['upper']:.3f}]" if told.get("lower") is not None else ""
        cells = [_short(axis.shown(trial.params[axis.key])) for axis in search.axes]
        name = f"{trial.number} (the recipe)" if told.get("recipe") else str(trial.number)
        rows.append((name, f"{trial.value:.4f}", interval, *cells))
    out.table(
        rows,
        title="the best trials",
        header=("trial", search.objective, "interval", *(axis.key for axis in search.axes)),
    )
    if weights:
        out.table([(key, f"{100 * share:.0f} %") for key, share in weights.items()], title="what mattered")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
