"""`gibbsian sample`: draw from a trained model, or complete partial examples."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gibbsian.app.cli.show import Output
from gibbsian.app.runs import draw_by, open_run, start_of, trained
from gibbsian.data import Prepared
from gibbsian.errors import ArgumentError, DataError
from gibbsian.placement import placement
from gibbsian.random import stream


def run_sample(options: argparse.Namespace, rest: list[str]) -> int:
    """Draw, bring back to the data's units, write."""
    out = Output(options)
    if options.n < 1:
        raise ArgumentError(f"-n {options.n}: draw at least one sample")
    folder = Path(options.run)
    target = Path(options.out) if options.out else folder / "samples.npz"
    if target.suffix not in _WRITERS:
        raise ArgumentError(f"--out {target}: give a file that ends in {', '.join(_WRITERS)}")
    recipe, prepared = open_run(folder)
    energy = trained(folder, recipe)
    label = _label(options.label, prepared)
    clamp, n = None, options.n
    start: Tensor | None
    if options.clamp:
        start, clamp = (part.repeat_interleave(n, 0) for part in _partial(Path(options.clamp), prepared, energy))
        n = len(start)
    else:
        start = start_of(recipe, prepared, energy, label)
    how = {"start": start, "clamp": clamp, "label": label, "steps": options.steps or recipe.sample.steps}
    made = draw_by(recipe, energy, n, "sample", seed=options.seed, progress=out.progress, **how)
    x = prepared.undo(made.x.detach().float().cpu())
    if recipe.sample.shape and x.dim() == 2:
        x = x.reshape(len(x), *recipe.sample.shape)
    target.parent.mkdir(parents=True, exist_ok=True)
    _WRITERS[target.suffix](target, x)
    out.say(f"{len(x)} samples of shape {tuple(x.shape[1:])} by {made.how}: {target}")
    out.document({"run": str(folder), "samples": str(target), "shape": list(x.shape), "how": made.how})
    return 0


def _label(given: str | None, prepared: Prepared) -> int | None:
    if given is None:
        return None
    names = prepared.data.classes
    if given in names:
        return names.index(given)
    if not given.isdigit():
        known = ", ".join(names) or "no names: there are none"
        raise ArgumentError(f"--class {given}: expected a number, or one of {known}")
    return int(given)


def _partial(path: Path, prepared: Prepared, energy: Any) -> tuple[Tensor, Tensor]:
    """Rows with unknown entries, through the steps of the data: where chains start, and what stays."""
    rows = _table(path)
    raw = prepared.undo(prepared.finished("train", 1).x).shape[1:]
    size = raw.numel()
    if rows.size % size or rows.size == 0:
        expected = f"rows of {size} numbers, as the data has ({tuple(raw)})"
        raise DataError(f"{path} has shape {rows.shape}; expected {expected}")
    values = torch.from_numpy(rows).reshape(-1, *raw)
    known = torch.isfinite(values)
    if bool(known.all()):
        raise DataError(f"every number in {path} is known; leave those to be drawn as NaN")
    x, held = prepared.clamped(torch.where(known, values, torch.zeros(())).float(), known)
    dtype, device = placement(energy)
    fresh = energy.domain.sample(len(x), generator=stream(0, "clamp", device), dtype=dtype)
    held = held.to(device)
    return torch.where(held, x.to(device, dtype), fresh), held


def _table(path: Path) -> np.ndarray:
    if not path.exists():
        raise DataError(f"there is no file {path} to complete")
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False).astype(np.float64)
        return np.genfromtxt(path, delimiter=",", ndmin=2)
    except ValueError as error:
        raise DataError(f"{path} holds no table of numbers ({' '.join(str(error).split())[:120]})") from error


def _png(path: Path, x: Tensor) -> None:
    import base64

    from gibbsian.app.report.figures import pixel_grid

    if x.dim() < 3:
        raise DataError(
            f"samples of shape {tuple(x.shape[1:])} are no pictures; write .npz or .csv, or say sample.shape in the recipe"
        )
    path.write_bytes(base64.b64decode(pixel_grid(x).partition(",")[2]))


_WRITERS: dict[str, Any] = {
    ".npz": lambda path, x: np.savez_compressed(path, x=x.numpy()),
    ".npy": lambda path, x: np.save(path, x.numpy()),
    ".csv": lambda path, x: np.savetxt(path, x.flatten(1).numpy(), delimiter=",", fmt="%.7g"),
    ".png": _png,
}
