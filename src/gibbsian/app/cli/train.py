"""`gibbsian train`, `resume`, `evaluate` and `report`: a recipe from data to report."""

import argparse
import ctypes
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

from gibbsian.app import files, runs
from gibbsian.app.cli.launch import refuse_processes, world_of
from gibbsian.app.cli.show import Output
from gibbsian.app.cli.table import refuse_table, report_table, table_keys, train_table
from gibbsian.app.cli.watch import watched
from gibbsian.app.evaluation import evaluate_run, outside_sets
from gibbsian.app.recipe import make_parser, parse_recipe, recipe_source, split_comparison
from gibbsian.app.report.build import final_samples, write_report
from gibbsian.app.report.comparison import Compared, names_of, write_comparison
from gibbsian.app.report.table_comparison import write_table_comparison
from gibbsian.app.report.verdict import next_steps, verdict
from gibbsian.app.tables import is_run
from gibbsian.distributed.world import World
from gibbsian.errors import ArgumentError, CapabilityError, GibbsianError
from gibbsian.metrics.evaluation import summary
from gibbsian.training.log import read_log


def keep_freed_memory() -> None:
    """Let the C library (glibc) keep what an update frees for the next one, which would otherwise be handed back and asked
    for page by page. It is for the whole process to say, so the library leaves it alone and the command says it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library
        return
    mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, its largest value
    mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD


def run_train(options: argparse.Namespace, rest: list[str]) -> int:
    """Train, judge, report."""
    world = world_of(options)
    out = Output(options)
    if options.keys:
        make_parser().print_help()
        return 0
    keep_freed_memory()
    keys = table_keys(options.recipe, rest)
    if keys is not None:
        refuse_processes(options, "the law of a table")
        if options.live:
            raise ArgumentError(
                "--live follows trainings of recipes; the law of a table is chosen by other means: leave it out"
            )
        return train_table(out, options, keys)
    name, text = recipe_source(options.recipe)
    members = split_comparison(text, name)
    if members is not None:
        refuse_processes(options, "a comparison")
        return _compare(out, options, name, text, members, rest)
    recipe = parse_recipe(text, rest, name=name)
    options.live = options.live and (world is None or world.first)
    folder = options.folder = Path(options.run) if options.run else files.free_folder(name)
    out.say(f"[bold]{name}[/bold]  {recipe.about}" if recipe.about else f"[bold]{name}[/bold]")
    out.say(f"run folder: {folder}")
    with watched(out, options, folder):
        begun = time.perf_counter()
        done, opened = runs.train(recipe, folder, arguments=options.arguments, progress=out.progress)
        seconds = time.perf_counter() - begun
        what = f"{type(done.energy).__name__} on {opened.prepared.data!r}"
        out.say(f"trained {what}: {done.step} updates in {seconds:.1f} s")
        for event in done.events:
            out.say(f"guard, step {event['step']}: {event['message']}")
        return _finish(out, folder, opened, report=not options.no_report, world=world)


def run_resume(options: argparse.Namespace, rest: list[str]) -> int:
    """Train on, judge, report."""
    world = world_of(options)
    out = Output(options)
    keep_freed_memory()
    if options.steps is not None and options.epochs is not None:
        raise ArgumentError("say --steps or --epochs, one of the two")
    folder = Path(options.run)
    refuse_table(folder, "resume")
    if (folder / "comparison.json").exists():
        refuse_processes(options, "a comparison")
        known = files.read_json(folder / "comparison.json")
        members = split_comparison(known["text"], known["name"]) or {}
        return _compare(out, options, known["name"], known["text"], members, known["flags"])
    options.live = options.live and (world is None or world.first)
    with watched(out, options, folder):
        done, opened = runs.resume_run(folder, steps=options.steps, epochs=options.epochs, progress=out.progress)
        out.say(f"{folder} is at {done.step} updates")
        return _finish(out, folder, opened, report=not options.no_report, world=world)


def run_evaluate(options: argparse.Namespace, rest: list[str]) -> int:
    """Judge, print, and keep what was found in the run folder."""
    world = world_of(options)
    out = Output(options)
    folder = Path(options.run)
    refuse_table(folder, "evaluate")
    recipe, prepared = runs.open_run(folder)
    changes = {key: getattr(options, key) for key in ("likelihood", "chains", "betas", "outside")}
    given = {key: value for key, value in changes.items() if value is not None}
    recipe.evaluate = dataclasses.replace(recipe.evaluate, **given)
    energy = runs.trained(folder, recipe)
    outside = outside_sets(recipe, prepared, energy, strict=bool(options.outside))
    how: dict[str, Any] = {"progress": out.progress, "world": world}
    drawn = final_samples(recipe, prepared, energy, **how)
    found = evaluate_run(folder, recipe, prepared, energy, drawn, outside=outside, **how)
    _show(out, found, f"{type(energy).__name__} of {folder}, {found['step']} updates")
    out.document({"run": str(folder), **found})
    if options.likelihood and "likelihood" not in found and options.likelihood != "none":
        raise CapabilityError(f"--likelihood {options.likelihood}: {found['why_no_likelihood']}")
    return 0


def run_report(options: argparse.Namespace, rest: list[str]) -> int:
    """Write the report; judge the model first where that has not been done."""
    folders = [Path(name) for name in options.run]
    if len(folders) > 1:
        return _side_by_side(Output(options), folders, options)
    if options.out is not None:
        raise ArgumentError("--out is for the page of several runs; the report of one is RUN/report.html")
    if is_run(folders[0]):
        return report_table(Output(options), folders[0])
    return _judge(Output(options), folders[0], None, fresh=options.fresh)


def _side_by_side(out: Output, folders: list[Path], options: argparse.Namespace) -> int:
    """One page over several runs; those that have not been judged are judged first."""
    members = names_of(folders)
    shared = Path(os.path.commonpath([folder.resolve().parent for folder in folders]))
    target = Path(options.out) if options.out else shared / "comparison.html"
    title = " · ".join(members)
    if _all_tables(members):
        return _show_found(out, write_table_comparison(target, members, options.arguments, title=title))
    for folder in folders:
        if options.fresh or not (folder / "evaluation.json").exists() or not (folder / "report.html").exists():
            write_report(folder, fresh=options.fresh, progress=out.progress)
    return _show_found(out, write_comparison(target, members, options.arguments, title=title))


def _all_tables(members: dict[str, Path]) -> bool:
    """Are all runs those of tables, or none of them?"""
    laws = [name for name, folder in members.items() if is_run(folder)]
    if laws and len(laws) < len(members):
        raise ArgumentError(
            f"{', '.join(laws)} holds the law of a table, and others do not: compare runs of tables with runs of tables"
        )
    return bool(laws)


def _show_found(out: Output, compared: Compared) -> int:
    """What a page of several runs says, in the terminal."""
    rows = []
    for key, result in compared.found.items():
        ll = result.get("likelihood")
        closed = ll is not None and ll["upper"] is not None
        value = f"{ll['value']:.3f}, in [{ll['lower']:.3f}, {ll['upper']:.3f}]" if closed else ""
        rows.append((key, value, f"{result['two_sample']['value']:.4f}" if "two_sample" in result else ""))
    out.table(rows, title="side by side", header=("", "held-out log-likelihood", "energy distance of samples"))
    out.findings(compared.said)
    out.say(f"report: {compared.path}")
    out.document({"run": str(compared.path.parent), "report": str(compared.path), "members": compared.found})
    return 0


def _compare(
    out: Output, options: argparse.Namespace, name: str, text: str, members: dict[str, str], flags: list[str]
) -> int:
    """Train every member of a comparison into a folder of its own, and put them side by side."""
    recipes = {key: parse_recipe(member, flags, name=key) for key, member in members.items()}  # all, before any work
    folder = options.folder = Path(options.run) if options.run else files.free_folder(name)
    out.say(f"[bold]{name}[/bold]  {len(recipes)} runs in {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    known = {"name": name, "text": text, "flags": flags}
    files.write_whole(folder / "comparison.json", json.dumps(known, indent=1))
    with watched(out, options, folder):
        for key, recipe in recipes.items():
            if (folder / key / "recipe.yaml").exists():  # a comparison that was interrupted
                done, opened = runs.resume_run(folder / key, progress=out.progress)
            else:
                done, opened = runs.train(recipe, folder / key, arguments=options.arguments, progress=out.progress)
            out.say(f"{key}: {done.step} updates")
            write_report(folder / key, opened, fresh=True, progress=out.progress)
    about = next((recipe.about for recipe in reversed(recipes.values())), "")
    members_of = {key: folder / key for key in recipes}
    target = folder / "report.html"
    return _show_found(out, write_comparison(target, members_of, options.arguments, title=folder.name, about=about))


def _finish(out: Output, folder: Path, opened: runs.Opened, *, report: bool, world: World | None = None) -> int:
    """Judge a run that has just been trained and write its report; of several processes the first does."""
    if world is not None and not world.first:
        return 0
    if not report:
        out.say(f"judge it with: gibbsian report {folder}")
        out.document({"run": str(folder)})
        return 0
    try:
        return _judge(out, folder, opened, fresh=True)
    except GibbsianError as error:
        raise type(error)(f"the model is trained and saved in {folder}, but could not be judged: {error}") from error


def _judge(out: Output, folder: Path, opened: runs.Opened | None, *, fresh: bool) -> int:
    """Write the report of a run, and show what came out."""
    opened = opened or runs.open_run(folder)
    path, found = write_report(folder, opened, fresh=fresh, progress=out.progress)
    _show(out, found, "what came out")
    out.findings(verdict(found, [record for record in read_log(folder) if "event" in record]))
    out.say(f"report: {path}")
    out.next(next_steps(found, str(folder), opened.recipe.sample.steps))
    out.document({"run": str(folder), "report": str(path), **found})
    return 0


def _show(out: Output, found: dict[str, Any], title: str) -> None:
    out.table(summary(found), title=title)
    for text in found.get("warnings", []):
        out.say(f"[yellow]note[/yellow] {text}")
