"""`gibbsian train`: a recipe from data to report."""

import argparse
import json
import time
from pathlib import Path

from gibbsian.app.cli.show import Output
from gibbsian.errors import GibbsianError


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Train, judge, report."""
    from gibbsian.app.recipe import make_parser, parse_recipe, recipe_source, split_comparison
    from gibbsian.app.runs import free_folder, train

    out = Output(options)
    if options.keys:
        make_parser().print_help()
        return 0
    name, text = recipe_source(options.recipe)
    members = split_comparison(text, name)
    if members is not None:
        return compare(out, options, name, text, members, rest)
    recipe = parse_recipe(text, rest, name=name)
    folder = Path(options.run) if options.run else free_folder(name)
    options.folder = folder
    out.say(f"[bold]{name}[/bold]  {recipe.about}" if recipe.about else f"[bold]{name}[/bold]")
    out.say(f"run folder: {folder}")
    begun = time.perf_counter()
    done, prepared = train(recipe, folder, arguments=options.arguments, progress=out.progress)
    out.say(
        f"trained {type(done.energy).__name__} on {prepared.data!r}: {done.step} updates in {time.perf_counter() - begun:.1f} s"
    )
    for event in done.events:
        out.say(f"guard, step {event['step']}: {event['message']}")
    return finish(out, folder, report=not options.no_report)


def compare(
    out: Output, options: argparse.Namespace, name: str, text: str, members: dict[str, str], flags: list[str]
) -> int:
    """Train every member of a comparison into a folder of its own, and put them side by side."""
    from gibbsian.app.recipe import parse_recipe
    from gibbsian.app.report.build import write_report
    from gibbsian.app.report.comparison import write_comparison
    from gibbsian.app.runs import free_folder, resume_run, train

    recipes = {key: parse_recipe(member, flags, name=key) for key, member in members.items()}  # all, before any work
    folder = Path(options.run) if options.run else free_folder(name)
    options.folder = folder
    out.say(f"[bold]{name}[/bold]  {len(recipes)} runs in {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps({"name": name, "text": text, "flags": flags}, indent=1))
    about = ""
    for key, recipe in recipes.items():
        about = recipe.about
        if (folder / key / "recipe.yaml").exists():  # a comparison that was interrupted
            done = resume_run(folder / key, progress=out.progress)[0]
        else:
            done = train(recipe, folder / key, arguments=options.arguments, progress=out.progress)[0]
        out.say(f"{key}: {done.step} updates")
        write_report(folder / key, fresh=True, progress=out.progress)
    path, found = write_comparison(folder, about, list(recipes), options.arguments)
    rows = []
    for key, result in found.items():
        ll = result.get("likelihood")
        value = (
            f"{ll['value']:.3f}, in [{ll['lower']:.3f}, {ll['upper']:.3f}]" if ll and ll["upper"] is not None else ""
        )
        rows.append((key, value, f"{result['two_sample']['value']:.4f}" if "two_sample" in result else ""))
    out.table(rows, title="side by side", header=("", "held-out log-likelihood", "energy distance of samples"))
    out.say(f"report: {path}")
    out.document({"run": str(folder), "report": str(path), "members": found})
    return 0


def finish(out: Output, folder: Path, *, report: bool) -> int:
    """Judge a run that has just been trained and write its report."""
    if not report:
        out.say(f"judge it with: gibbsian report {folder}")
        out.document({"run": str(folder)})
        return 0
    try:
        return judge(out, folder, fresh=True)
    except GibbsianError as error:
        raise type(error)(f"the model is trained and saved in {folder}, but could not be judged: {error}") from error


def judge(out: Output, folder: Path, *, fresh: bool) -> int:
    """Write the report of a run, and show what came out."""
    from gibbsian.app.report import write_report
    from gibbsian.metrics.evaluation import summary

    path, found = write_report(folder, fresh=fresh, progress=out.progress)
    out.table(summary(found), title="what came out")
    for text in found.get("warnings", []):
        out.say(f"[yellow]note[/yellow] {text}")
    out.say(f"report: {path}")
    out.document({"run": str(folder), "report": str(path), **found})
    return 0
