"""Draws as a recipe wants them: of a trained model, and of one that is being trained."""

import time
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialize_tensors
from torch import Tensor

from gibbsian.app.files import write_whole
from gibbsian.app.recipe import Recipe
from gibbsian.capabilities import Classifier, require
from gibbsian.data import Prepared
from gibbsian.distributed import Shards, World, join
from gibbsian.errors import GibbsianError, TrainingWarning
from gibbsian.objectives.starts import start_points
from gibbsian.placement import placement
from gibbsian.random import stream
from gibbsian.training.run import Run
from gibbsian.uses.draw import Drawn, draw_with_trace

_COUNT = 8  # snapshots of a training


class Snapshots:
    """A hook that draws a few samples now and then, without touching the randomness of the training."""

    def __init__(self, recipe: Recipe, prepared: Prepared, folder: Path, total: int) -> None:
        self.recipe, self.prepared, self.folder = recipe, prepared, folder / "snapshots"
        self.marks = sorted({round(total ** (i / (_COUNT - 1))) for i in range(_COUNT)})
        self.last: Tensor | None = None
        self.first = join()[0].first  # of several processes one draws
        self.began, self.spent = time.perf_counter(), 0.0

    def __call__(self, run: Run) -> None:
        if not self.first:
            return
        now = time.perf_counter()
        late = self.spent > 5 + 0.1 * (now - self.began)  # pictures must not cost much; the last one tells most
        if late and run.step < self.marks[-1]:
            return
        self._draw(run)
        self.spent += time.perf_counter() - now

    def _draw(self, run: Run) -> None:
        """Draw and keep."""
        spec = self.recipe.sample
        energy = run.ema if run.ema is not None else run.energy
        was_training = energy.training
        energy.eval()
        n = 500 if energy.domain.numel <= 3 else min(spec.show, 64)
        options: dict[str, Any] = {"objective": run.objective, "steps": min(spec.steps, 100)}
        try:
            start = self.last if self.last is not None else start_of(self.recipe, self.prepared, energy)
            made = draw_by(self.recipe, energy, n, f"snapshot/{run.step}", start=start, **options)
        except GibbsianError:  # an early model may have no law to draw from yet: the report shows one picture less
            return
        finally:
            energy.train(was_training)
        self.last = made.x if made.kernel is None or made.kernel.mixes else None  # ways are gone from their beginning
        self.folder.mkdir(exist_ok=True)
        content = serialize_tensors({"x": made.x.detach().cpu().contiguous()})
        write_whole(self.folder / f"step-{run.step:012d}.safetensors", content)


def draw_by(
    recipe: Recipe,
    energy: Any,
    n: int,
    name: str,
    *,
    seed: int | None = None,
    world: World | None = None,
    **options: Any,
) -> Drawn:
    """n draws as a recipe says, but for the options that are given; `name` is that of the stream of random numbers. Several
    processes, `world`, share the work, and all get all draws."""
    dtype, device = placement(energy)
    seed = recipe.fit["seed"] if seed is None else seed
    generator = stream(seed, name, device) if world is None else Shards(seed, name, device=device)
    if options.get("start") is not None:
        options["start"] = options["start"].to(device, dtype)  # rows of a file come in the precision of the file
    if options.get("label") is None and options.get("clamp") is None:
        options["label"] = in_turn(recipe, energy, n)
    how = {"kernel": recipe.sample.kernel, "objective": recipe.objective, "steps": recipe.sample.steps}
    return draw_with_trace(energy, n, generator=generator, **how | options)


def in_turn(recipe: Recipe, energy: Any, n: int) -> Tensor | None:
    """The classes of n draws where the recipe wants them in turn."""
    if not recipe.sample.by_class:
        return None
    dtype, device = placement(energy)
    row = energy.domain.sample(1, generator=stream(0, "a row", device), dtype=dtype)
    classes = require(energy, Classifier, "sample.by_class", "leave it out").class_log_prob(row).shape[1]
    return torch.arange(n, device=device) % classes


def start_of(recipe: Recipe, prepared: Prepared, energy: Any, label: int | None = None) -> Tensor | None:
    """Where chains begin: training rows or draws like them (of a class), as the recipe says; None for anywhere."""
    start = recipe.sample.start
    if start == "reference":
        return None
    rows = prepared.finished("train", 4096)
    if start == "data" and label is None and not recipe.sample.by_class:
        return rows.x
    n = len(rows.x)
    wanted = in_turn(recipe, energy, n) if label is None else torch.full((n,), label)
    generator = stream(recipe.fit["seed"], "start")
    wanted = None if wanted is None else wanted.cpu()  # as the rows are
    return start_points(start, n, energy, rows.x, generator, y=rows.y, wanted=wanted)


def snapshots_of(folder: Path) -> dict[int, Tensor]:
    """The samples that were drawn through training, by step; damaged ones are left out with a warning."""
    found = {}
    for path in sorted((folder / "snapshots").glob("step-*.safetensors")):
        try:
            found[int(path.stem[5:])] = load_file(path)["x"]
        except (SafetensorError, KeyError, ValueError):
            warnings.warn(f"{path} is damaged and left out", TrainingWarning, stacklevel=2)
    return found
