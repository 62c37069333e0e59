"""`gibbsian sample`: draw from a trained model, or complete partial examples."""

import argparse
import io
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from gibbsian.app.cli.launch import refuse_processes, world_of
from gibbsian.app.cli.show import Output
from gibbsian.app.cli.table import sample_table
from gibbsian.app.draws import draw_by, start_of
from gibbsian.app.files import write_whole
from gibbsian.app.recipe import Recipe
from gibbsian.app.runs import open_pipeline, open_run, trained
from gibbsian.app.tables import is_run
from gibbsian.data import Pipeline
from gibbsian.data.readers import read_partial
from gibbsian.distributed.world import World
from gibbsian.errors import ArgumentError, DataError, suggest
from gibbsian.placement import placement
from gibbsian.random import stream
from gibbsian.sequences import Alphabet, Family
from gibbsian.training.fit import load
from gibbsian.uses.draw import draw_with_trace
from gibbsian.zoo import begin, chains_of
from gibbsian.zoo.cards import CARD, read_card


def run_sample(options: argparse.Namespace, rest: list[str]) -> int:
    """Draw, bring back to the data's units, write."""
    world = world_of(options)
    out = Output(options)
    folder = Path(options.run)
    if is_run(folder):
        refuse_processes(options, "drawing rows of a table")
        return sample_table(out, options)
    if options.given:
        raise ArgumentError("--given holds cells of a table; for other runs complete partial rows with --clamp FILE")
    target = Path(options.out) if options.out else folder / "samples.npz"
    if target.suffix not in (kinds := _writers(folder)):
        raise ArgumentError(f"--out {target}: give a file that ends in {', '.join(kinds)}")
    if (folder / CARD).exists() and not (folder / "recipe.yaml").exists():
        return _sample_alone(out, options, folder, target)
    recipe, pipeline = open_pipeline(folder)
    energy = trained(folder, recipe)
    label = _label(options.label, pipeline)
    clamp, n = None, options.n
    start: Tensor | None
    if options.clamp:
        start, clamp = (part.repeat_interleave(n, 0) for part in _partial(Path(options.clamp), pipeline, energy))
        n = len(start)
    else:
        start = _begun(folder, recipe, energy, label, n, options.seed)
    how: dict[str, Any] = {
        "start": start,
        "clamp": clamp,
        "label": label,
        "steps": options.steps or recipe.sample.steps,
        "world": world,
    }
    made = draw_by(recipe, energy, n, "sample", seed=options.seed, progress=out.progress, **how)
    if not (world or World()).first:
        return 0
    x = pipeline.undo(made.x.detach().float().cpu())
    if recipe.sample.shape and x.dim() == 2:
        x = x.reshape(len(x), *recipe.sample.shape)
    return _write(out, folder, target, x, made.how)


def _sample_alone(out: Output, options: argparse.Namespace, folder: Path, target: Path) -> int:
    """Draw from an energy of the zoo that was learned without a recipe: rows are as the energy has them."""
    refuse_processes(options, "drawing from a model without a recipe")
    for name, given in (("class", options.label), ("clamp", options.clamp)):
        if given is not None:
            raise ArgumentError(
                f"--{name} {given}: {folder.name} has no recipe, which would say what that is in its rows; leave it out, or draw in "
                f"Python: gibbsian.draw(gibbsian.zoo.load({folder.name!r}), ...)"
            )
    steps = {} if options.steps is None else {"steps": options.steps}
    generator = stream(options.seed, "sample")
    made = draw_with_trace(load(folder), options.n, generator=generator, progress=out.progress, **steps)
    return _write(out, folder, target, made.x.detach(), made.how)


def _write(out: Output, folder: Path, target: Path, x: Tensor, how: str) -> int:
    content = io.BytesIO()
    _writers(folder)[target.suffix](content, x)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, content.getvalue())
    out.say(f"{len(x)} samples of shape {tuple(x.shape[1:])} by {how}: {target}")
    out.document({"run": str(folder), "samples": str(target), "shape": list(x.shape), "how": how})
    return 0


def _begun(folder: Path, recipe: Recipe, energy: Any, label: int | None, n: int, seed: int) -> Tensor | None:
    """Where chains begin: at chains that were packed with the model, else as the recipe says; members of the zoo without chains anywhere,
    since they are drawn from without the data that they were learned from.

    Packed chains lie class by class, so that their first rows would be of one class: they are taken in an order by lot.
    """
    if recipe.sample.start == "reference":
        return None
    chains = chains_of(folder)
    if chains is None:
        return None if (folder / CARD).exists() else start_of(*open_run(folder), energy, label)
    dtype, device = placement(energy)
    chains = chains.to(device, dtype)
    if label is None:
        return chains[torch.randperm(len(chains), generator=stream(seed, "start")).to(device)]
    return begin(energy, chains, torch.full((n,), label, device=device))


def _label(given: str | None, pipeline: Pipeline) -> int | None:
    if given is None:
        return None
    names = pipeline.classes
    if given in names:
        return names.index(given)
    if not given.isdecimal() or (names and int(given) >= len(names)):
        numbers = f"a number from 0 to {len(names) - 1}, or one of {', '.join(names)}"
        known = numbers if names else "a number: the classes have no names here"
        raise ArgumentError(f"--class {given}: {suggest(given, names)}expected {known}")
    return int(given)


def _partial(path: Path, pipeline: Pipeline, energy: Any) -> tuple[Tensor, Tensor]:
    """Rows with unknown entries, through the steps of the data: where chains start, and what stays."""
    rows, names = read_partial(path)
    if names and pipeline.columns:
        rows = rows[:, _order(path, names, pipeline.columns)]
    raw, size = pipeline.shape, math.prod(pipeline.shape)
    if rows.shape == raw:
        rows = rows[None]
    if rows.shape[1:] not in {raw, (size,)}:
        expected = f"rows of {size} numbers" + (f", or of shape {raw}" if len(raw) > 1 else "")
        raise DataError(f"{path} has shape {rows.shape}; expected {expected}, as the data has")
    values = torch.from_numpy(rows).reshape(-1, *raw)
    known = ~torch.isnan(values)
    if bool(known.all()):
        raise DataError(f"every number in {path} is known; leave those to be drawn as NaN")
    x, held = pipeline.clamped(torch.where(known, values, torch.zeros(())).float(), known)
    dtype, device = placement(energy)
    fresh = energy.domain.sample(len(x), generator=stream(0, "clamp", device), dtype=dtype)
    held = held.to(device)
    return torch.where(held, x.to(device, dtype), fresh), held


def _order(path: Path, names: tuple[str, ...], columns: tuple[str, ...]) -> list[int]:
    """Where the columns of the data stand in a file with a header, whatever their order."""
    if sorted(names) != sorted(columns):
        raise DataError(f"{path} has the columns {', '.join(names)}; expected those of the data: {', '.join(columns)}")
    return [names.index(name) for name in columns]


def _csv(file: BinaryIO, x: Tensor) -> None:
    np.savetxt(file, x.flatten(1).numpy(), delimiter=",", fmt="%.7g")


def _png(file: BinaryIO, x: Tensor) -> None:
    import base64

    from gibbsian.app.report.figures import pixel_grid

    if x.dim() < 3:
        raise DataError(
            f"samples of shape {tuple(x.shape[1:])} are no pictures; write .npz or .csv, or say sample.shape in the recipe"
        )
    file.write(base64.b64decode(pixel_grid(x).partition(",")[2]))


def _fasta(file: BinaryIO, x: Tensor, letters: str) -> None:
    file.writelines(Family(x.argmax(-1), Alphabet(letters)).fasta())


def _writers(folder: Path) -> dict[str, Callable[[BinaryIO, Tensor], None]]:
    """How draws are written, by the ending of the file; as letters where a card says which they are."""
    letters = read_card(folder).letters if (folder / CARD).exists() else ""
    return _WRITERS | {".fasta": partial(_fasta, letters=letters)} if letters else _WRITERS


_WRITERS: dict[str, Callable[[BinaryIO, Tensor], None]] = {
    ".npz": lambda file, x: np.savez_compressed(file, x=x.numpy()),
    ".npy": lambda file, x: np.save(file, x.numpy()),
    ".csv": _csv,
    ".png": _png,
}
