"""`gibbsian evaluate`: judge a trained model."""

import argparse
import dataclasses
from pathlib import Path

from gibbsian.app.cli.show import Output


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Judge, print, and keep what was found in the run folder."""
    from gibbsian.app.report.build import evaluate_run, final_samples
    from gibbsian.app.runs import open_run, trained
    from gibbsian.metrics.evaluation import summary

    out = Output(options)
    folder = Path(options.run)
    recipe, prepared = open_run(folder)
    changes = {key: getattr(options, key) for key in ("likelihood", "chains", "betas", "outside")}
    given = {key: value for key, value in changes.items() if value is not None}
    recipe.evaluate = dataclasses.replace(recipe.evaluate, **given)
    energy = trained(folder, recipe)
    drawn = final_samples(recipe, prepared, energy, progress=out.progress)
    found = evaluate_run(folder, recipe, prepared, energy, drawn, progress=out.progress)
    out.table(summary(found), title=f"{type(energy).__name__} of {folder}, {found['step']} updates")
    for text in found.get("warnings", []):
        out.say(f"[yellow]note[/yellow] {text}")
    out.document({"run": str(folder), **found})
    return 0
