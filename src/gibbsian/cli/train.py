"""`gibbsian train`: a recipe from data to report."""

import argparse
import time
from pathlib import Path
from typing import Any

from gibbsian.cli.show import Output, results_table
from gibbsian.errors import GibbsianError

__all__ = ["finish", "run"]


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Train, judge, report."""
    from gibbsian.recipe import make_parser, parse_recipe, recipe_source
    from gibbsian.runs import free_folder, train

    out = Output(options)
    if options.keys:
        make_parser().print_help()
        return 0
    name, text = recipe_source(options.recipe)
    recipe = parse_recipe(text, rest, name=name)
    folder = Path(options.run) if options.run else free_folder(name)
    options.folder = folder
    out.say(f"[bold]{name}[/bold]  {recipe.about}" if recipe.about else f"[bold]{name}[/bold]")
    out.say(f"run folder: {folder}")
    begun = time.perf_counter()
    done, prepared = train(recipe, folder, progress=out.progress)
    out.say(
        f"trained {type(done.energy).__name__} on {prepared.data!r}: {done.step} updates in {time.perf_counter() - begun:.1f} s"
    )
    for event in done.events:
        out.say(f"guard, step {event['step']}: {event['message']}")
    return finish(out, folder, report=not options.no_report, fresh=True)


def finish(out: Output, folder: Path, *, report: bool, fresh: bool) -> int:
    """Judge a trained run and write its report."""
    document: dict[str, Any] = {"run": str(folder)}
    if report:
        from gibbsian.report import write_report

        try:
            path, found = write_report(folder, fresh=fresh, progress=out.progress)
        except GibbsianError as error:
            raise type(error)(
                f"the model is trained and saved in {folder}, but could not be judged: {error}"
            ) from error
        out.table(results_table(found), title="what came out")
        for text in found.get("warnings", []):
            out.say(f"[yellow]note[/yellow] {text}")
        out.say(f"report: {path}")
        document |= {"report": str(path), **found}
    else:
        out.say(f"judge it with: gibbsian report {folder}")
    out.document(document)
    return 0
