"""Runs of recipes: training, resuming, drawing, with everything that is needed later in the run folder.

run/recipe.yaml                the recipe, resolved: `gibbsian train run/recipe.yaml` does the same again
run/data.{json,safetensors}    what the steps learned from the training data
run/command.json               how the run was started, and how long it took
run/pretraining/               the runs of layers that are trained before the whole
run/snapshots/                 samples drawn through training
run/evaluation.json            what `gibbsian evaluate` found
run/report.html                see `gibbsian.app.report`
"""

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor

from gibbsian.app.draws import Snapshots, in_turn
from gibbsian.app.files import read_json, write_whole
from gibbsian.app.notation import read_recipe
from gibbsian.app.recipe import DataSpec, Recipe, parse_recipe
from gibbsian.capabilities import Classifier, InitializableModel, require
from gibbsian.data import Pipeline, Prepared, Rows, make_steps, path_of
from gibbsian.data.sets import ENDLESS
from gibbsian.distributed import join
from gibbsian.energy import ScoreField
from gibbsian.errors import ArgumentError, CheckpointError, DataError, GibbsianError, ShapeError, check_count
from gibbsian.metrics.evaluate import costly
from gibbsian.objectives.starts import check_starts
from gibbsian.placement import device_named, placement
from gibbsian.training import checkpoint, keep
from gibbsian.training.fit import fit, load, resume
from gibbsian.training.loop import Hook
from gibbsian.training.renames import current_recipe
from gibbsian.training.run import Engine, Run


class Opened(NamedTuple):
    """A recipe and its data after their steps: what judging and reporting need besides the run folder."""

    recipe: Recipe
    prepared: Prepared


_AT_HAND = 4 << 30  # bytes of training data that are put on the device as a whole


class _Recorded(Snapshots):
    """Snapshots of a new run, whose recipe, data steps and command are in its folder before the first step."""

    def __init__(self, recipe: Recipe, prepared: Prepared, folder: Path, total: int, arguments: Sequence[str]) -> None:
        super().__init__(recipe, prepared, folder, total)
        self.arguments = list(arguments)

    def begin(self, folder: Path) -> None:
        """Write what every later command needs."""
        (folder / "recipe.yaml").write_text(self.recipe.text, encoding="utf-8")
        checkpoint.write_tree(folder, "data", _kept(self.recipe, self.prepared))
        named = {"name": self.recipe.name, "about": self.recipe.about, "arguments": self.arguments}
        _note(folder, **named, began=time.time(), seconds=0.0)


def noted(folder: Path) -> dict[str, Any]:
    """What command.json holds: how a run was started, how long it took, the log Z that its objective learned."""
    path = folder / "command.json"
    return read_json(path) if path.exists() else {}


def _note(folder: Path, **more: Any) -> None:
    write_whole(folder / "command.json", json.dumps(noted(folder) | more, indent=1))


def _kept(recipe: Recipe, prepared: Prepared) -> dict[str, Any]:
    """What is kept of the data: all that samples need to be brought back to its units, and where it lies."""
    path = path_of(recipe.data.name)
    names = {"classes": list(prepared.classes), "columns": list(prepared.columns), "shape": list(prepared.shape)}
    source = {"name": recipe.data.name, "path": None if path is None else str(path)}
    return {"fitted": prepared.fitted, **names, "source": source}


def _note_end(folder: Path, run: Run, begun: float) -> None:
    """Add the time since `begun`, and write down what the objective learned of log Z."""
    if not join()[0].first:
        return
    log_z = run.objective.log_z(run.state)
    seconds = noted(folder).get("seconds", 0.0) + time.perf_counter() - begun
    _note(folder, seconds=seconds, log_z=None if log_z is None else float(log_z))


def _transform(prepared: Prepared) -> Any:
    """What is done to every batch, where there is something."""
    return prepared.transform if prepared.late or prepared.data.train.streamed else None


def _batches(recipe: Recipe, prepared: Prepared, part: str = "train") -> Any:
    rows = prepared.data.parts.get(part)
    if rows is None:
        return None
    device = recipe.fit["device"]
    if (
        device is not None and isinstance(rows.x, Tensor) and rows.x.nbytes < _AT_HAND
    ):  # batches are then cut on the device
        rows = Rows(rows.x.to(device), None if rows.y is None else rows.y.to(device))
    return rows.batches(recipe.data.labels)


def _held_out(recipe: Recipe, prepared: Prepared) -> Any:
    """The validation of a run: numbers from energies where there are any, else the objective's loss.

    They are the free-energy gap (a growing one is overfitting, and no log Z is needed for it), and the errors of models
    that know classes.
    """
    if prepared.data.validation is None or costly(recipe.model):  # too much so to be looked at now and then
        return None
    if isinstance(recipe.model, ScoreField):
        return _batches(recipe, prepared, "validation")
    held, train = prepared.finished("validation", 1000), prepared.finished("train", 1000)

    def numbers(energy: Any) -> dict[str, float]:
        dtype, device = placement(energy)
        with torch.no_grad():
            e, seen = (energy(rows.x.to(device, dtype)).double().mean() for rows in (held, train))
            found = {"energy_gap": float(e - seen), "energy": float(e), "train_energy": float(seen)}
            if held.y is not None and isinstance(energy, Classifier):
                guess = energy.class_log_prob(held.x.to(device, dtype)).argmax(1).cpu()
                found = {"error": float((guess != held.y).double().mean())} | found
        return found

    return numbers


def total_steps(recipe: Recipe, prepared: Prepared) -> int:
    """How many updates a recipe asks for."""
    return _total(recipe, prepared, recipe.fit["steps"], recipe.fit["epochs"])


def _total(recipe: Recipe, prepared: Prepared, steps: int | None, epochs: int | None) -> int:
    if epochs is None:
        return check_count("fit", "steps", steps)
    check_count("fit", "epochs", epochs)
    if len(prepared.data.train) == ENDLESS:
        raise ArgumentError("a stream without an end has no epochs; say how long to train with fit.steps")
    rows, size = len(prepared.data.train), check_count("fit", "batch_size", recipe.fit["batch_size"])
    return epochs * math.ceil(rows / min(size, rows))


def on_this_machine(options: dict[str, Any]) -> dict[str, Any]:
    """`device: auto` as the GPU where there is one; steps are compiled and half precision is used only there."""
    if options["device"] not in {"auto", None}:
        device_named(
            options["device"],
            "fit.device:",
            "say auto, cpu, cuda or cuda:1, whichever `gibbsian doctor` finds, for a run that has begun in its recipe.yaml",
        )
        return dict(options)
    if options["device"] is None:
        return dict(options)
    if torch.cuda.is_available():
        return options | {"device": "cuda"}
    return options | {"device": None, "engine": Engine()}


@contextmanager
def _sizes_explained() -> Iterator[None]:
    """Say what to do where the rows do not fit the model."""
    try:
        yield
    except GibbsianError as error:
        if not isinstance(error, ShapeError) and not isinstance(error.__cause__, ShapeError):
            raise
        advice = "give the model the size of the rows, or change the steps of the data"
        raise type(error)(f"{error}; {advice}") from error


def train(
    recipe: Recipe,
    folder: Path,
    *,
    arguments: Sequence[str] = (),
    progress: bool | None = None,
    hooks: Sequence[Hook] = (),
) -> tuple[Run, Opened]:
    """Train a recipe into a new folder; `arguments` are those of the command line, for the report. Further `hooks` are
    called as those of `gibbsian.fit`."""
    options = recipe.fit = on_this_machine(recipe.fit)
    if (options["steps"] is None) == (options["epochs"] is None):
        raise ArgumentError("say how long to train: fit.steps or fit.epochs, one of the two")
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; say a new folder with --run")
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(
            f"{folder} already holds files; go on with `gibbsian resume {folder}`, or say another --run"
        )
    # here, since pictures are left out without a word where a model cannot be drawn from
    check_starts(recipe.sample.start, recipe.model)
    in_turn(recipe, recipe.model, 1)
    return _train(recipe, recipe.data.prepare(), folder, arguments, progress, hooks)


def _train(
    recipe: Recipe,
    prepared: Prepared,
    folder: Path,
    arguments: Sequence[str],
    progress: bool | None,
    hooks: Sequence[Hook] = (),
    *,
    again: bool = False,
) -> tuple[Run, Opened]:
    """Train into a new folder; or `again` into one where the pretraining of layers was interrupted."""
    options, model = recipe.fit, recipe.model
    if recipe.initialize:
        able = require(model, InitializableModel, "initialize: true", "leave it out")
        with _sizes_explained():
            able.initialize_visible_bias(prepared.finished("train", 65536).x)
    transform = _transform(prepared)
    data = _batches(recipe, prepared)
    begun = time.perf_counter()
    recorded = _Recorded(
        recipe, prepared, folder, _total(recipe, prepared, options["steps"], options["epochs"]), arguments
    )
    if recipe.pretrain.objective is not None:
        from gibbsian.training.pretrain import pretrain

        if not again and recorded.first:
            _begin(folder, recorded)
        shared = {key: options[key] for key in ("batch_size", "device", "seed")}
        shared["engine"] = Engine(compile=options["engine"].compile)
        shared["checkpoints"] = dataclasses.replace(options["checkpoints"], keep_last=1, keep_best=False)
        shared |= {"run_dir": folder / keep.PRETRAINING, "resume": again, "transform": transform, "progress": progress}
        pretrain(model, recipe.pretrain.objective, data, **shared | recipe.pretrain.options)
    with _sizes_explained():
        run = fit(
            model,
            recipe.objective,
            data,
            run_dir=folder,
            transform=transform,
            validation=_held_out(recipe, prepared),
            hooks=[(recorded.marks, recorded), *hooks],
            progress=progress,
            **options,
        )
    _note_end(folder, run, begun)
    return run, Opened(recipe, prepared)


def _begin(folder: Path, recorded: _Recorded) -> None:
    """Make the folder of a run whose layers are pretrained first, whole or not at all: it can be gone on with from then on."""
    new = keep.room_for(folder)
    recorded.begin(new)
    (new / keep.PRETRAINING).mkdir()
    new.rename(folder)


def recipe_of(folder: Path) -> Recipe:
    """The recipe of a run folder."""
    path = folder / "recipe.yaml"
    if not folder.exists():
        raise CheckpointError(f"there is no run folder {folder}; `gibbsian train` makes one")
    if (folder / "comparison.json").exists():
        members = ", ".join(str(one.parent) for one in sorted(folder.glob("*/recipe.yaml"))) or "none yet"
        raise CheckpointError(
            f"{folder} holds several runs side by side; name one of them: {members}. `gibbsian resume {folder}` trains those "
            "that are not done and writes the page of all"
        )
    if not path.exists() and not (folder / "config.json").exists():
        kind = "an empty folder or one of something else" if folder.is_dir() else "a file"
        raise CheckpointError(f"{folder} is no run but {kind}; give a folder that `gibbsian train` made")
    if not path.exists():
        raise CheckpointError(
            f"{folder} holds no recipe.yaml: it was not trained from the command line, so its data is not known here; use "
            "gibbsian.load and gibbsian.resume in Python"
        )
    with checkpoint.damage(path):
        text = path.read_text(encoding="utf-8")
        if "\ninitialise:" in text:  # of an older version; every recipe in a folder names all its keys
            text = yaml.safe_dump(current_recipe(read_recipe(text, path.name)), sort_keys=False, allow_unicode=True)
    return parse_recipe(text, name=noted(folder).get("name", folder.name))


def open_run(folder: Path, *, whole: bool = False) -> Opened:
    """The recipe of a run folder and its data, through the same steps with what they learned then.

    Steps are done where rows are asked for, as far as they can be; for training, `whole`, all at once.
    """
    recipe = recipe_of(folder)
    kept = checkpoint.read_tree(folder, "data")
    return Opened(recipe, _source(recipe, kept, folder).prepare(kept["fitted"], whole=whole))


def _source(recipe: Recipe, kept: dict[str, Any], folder: Path) -> DataSpec:
    """The data of a run: a file is looked for where it lay, then from here, unless the recipe names another now."""
    then = kept.get("source", {"name": None, "path": None})
    if then["path"] is None or then["name"] != recipe.data.name:
        return recipe.data
    if Path(then["path"]).exists():
        return dataclasses.replace(recipe.data, name=then["path"])
    if not Path(then["name"]).expanduser().exists():
        raise DataError(
            f"{folder} was trained on {then['path']}, which is not there any more; put it back, or say where it is under "
            f"data: name: in {folder / 'recipe.yaml'}"
        )
    return recipe.data


def open_pipeline(folder: Path) -> tuple[Recipe, Pipeline]:
    """The recipe of a run folder and the steps of its data with what they learned; the data itself is not read, but for
    runs of older versions."""
    recipe = recipe_of(folder)
    kept = checkpoint.read_tree(folder, "data")
    if "shape" not in kept:
        return open_run(folder)
    names = tuple(kept["classes"]), tuple(kept["columns"])
    return recipe, Pipeline(
        make_steps(recipe.data.steps), kept["fitted"], recipe.data.seed, tuple(kept["shape"]), *names
    )


def resume_run(
    folder: Path, *, steps: int | None = None, epochs: int | None = None, progress: bool | None = None
) -> tuple[Run, Opened]:
    """Go on with a run folder."""
    recipe, prepared = open_run(folder, whole=True)
    recipe.fit = on_this_machine(recipe.fit)
    if keep.only_pretrained(folder):
        if steps is not None or epochs is not None:
            recipe.fit |= {"steps": steps, "epochs": epochs}
        return _train(recipe, prepared, folder, noted(folder).get("arguments", ()), progress, again=True)
    asked = recipe.fit["steps"], recipe.fit["epochs"]
    total = _total(recipe, prepared, *(asked if steps is None and epochs is None else (steps, epochs)))
    then = noted(folder).get("then", [])  # how far earlier ones went on, for the report
    if (steps is not None or epochs is not None) and total != (then or [_total(recipe, prepared, *asked)])[-1]:
        then = [*then, total]
    snapshots = Snapshots(recipe, prepared, folder, total)
    first = checkpoint.read_latest(folder, keys=("step",))["step"] + 1

    def note_total(run: Run) -> None:  # once nobody else trains here: those who watch learn how far it will go
        _note(folder, total=total, then=then)

    begun = time.perf_counter()
    run = resume(
        folder,
        _batches(recipe, prepared),
        steps,
        epochs=epochs,
        device=recipe.fit["device"],
        transform=_transform(prepared),
        validation=_held_out(recipe, prepared),
        hooks=[([first], note_total), (snapshots.marks, snapshots)],
        loggers=recipe.fit["loggers"],
        progress=progress,
    )
    _note_end(folder, run, begun)
    return run, Opened(recipe, prepared)


def trained(folder: Path, recipe: Recipe) -> Any:
    """The trained model of a run folder, where it would be trained: averaged weights where there are any and the
    recipe asks for them."""
    device = on_this_machine(recipe.fit)["device"] or "cpu"
    return load(folder, ema=recipe.evaluate.ema and recipe.fit["ema"] is not None, device=device)
