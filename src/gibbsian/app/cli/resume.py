"""`gibbsian resume`: go on with a run."""

import argparse
import json
from pathlib import Path

from gibbsian.app.cli.show import Output
from gibbsian.app.cli.train import compare, finish
from gibbsian.errors import ArgumentError


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Train on, judge, report."""
    from gibbsian.app.recipe import split_comparison
    from gibbsian.app.runs import resume_run

    out = Output(options)
    if options.steps is not None and options.epochs is not None:
        raise ArgumentError("say --steps or --epochs, one of the two")
    folder = Path(options.run)
    if (folder / "comparison.json").exists():
        known = json.loads((folder / "comparison.json").read_text())
        members = split_comparison(known["text"], known["name"]) or {}
        return compare(out, options, known["name"], known["text"], members, known["flags"])
    done, _, _ = resume_run(folder, steps=options.steps, epochs=options.epochs, progress=out.progress)
    out.say(f"{folder} is at {done.step} updates")
    return finish(out, folder, report=not options.no_report)
