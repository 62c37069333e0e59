"""What takes a model to be seen: samples, filters, landscape, energies and chains, as JSON for the page.

`serve` answers one question a line, `{"folder": ..., "kind": "samples", "step": 42}`, by one line; `gibbsian.app.live.painting` is the
process that does.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gibbsian.app.draws import draw_by, start_of
from gibbsian.app.evaluation import chain_numbers
from gibbsian.app.report import figures
from gibbsian.app.report.pictures import filter_pictures, image_shape, some_rows
from gibbsian.app.report.sections import energies
from gibbsian.app.runs import Opened, open_run
from gibbsian.domains import Discrete
from gibbsian.energy import Energy
from gibbsian.errors import GibbsianError
from gibbsian.training.fit import load

_GRID, _BINS, _COLUMNS = 96, 40, 8


class Pictures:
    """Answers about runs, whose data are prepared once."""

    def __init__(self) -> None:
        self.opened: dict[Path, Opened] = {}

    def answer(self, folder: Path, kind: str, step: int) -> dict[str, Any]:
        """What there is to see of a step, or under `why` the reason that there is nothing."""
        try:
            if folder not in self.opened:
                self.opened[folder] = open_run(folder)
            look = samples_of if kind == "samples" else model_of
            return look(folder, step, self.opened[folder])
        except (GibbsianError, OSError, SafetensorError) as error:  # such as a checkpoint that was removed meanwhile
            return {"why": str(error)}


def samples_of(folder: Path, step: int, opened: Opened) -> dict[str, Any]:
    """Samples drawn through training: as images, as points in the plane, or column by column beside the data."""
    x, prepared = _drawn(folder, step), opened.prepared
    if x is None:
        return {"why": f"there are no samples of step {step}"}
    shape = image_shape(opened.recipe, prepared)
    if shape is not None:
        images = prepared.undo(x[:64].float()).reshape(-1, *shape)
        return {"image": figures.pixel_grid(images, columns=8), "count": len(images)}
    data = prepared.finished("train", 2000).x
    if x[0].numel() == 2:
        return {"points": _flat(x), "data": _flat(data[:500]), "view": _view(data.reshape(-1, 2))}
    rows, drawn = prepared.undo(data).flatten(1), prepared.undo(x).flatten(1)
    names = prepared.data.columns
    columns = [
        {
            "name": names[i] if i < len(names) else f"column {i + 1}",
            **_histograms({"data": rows[:, i], "samples": drawn[:, i]}),
        }
        for i in range(min(_COLUMNS, rows.shape[1]))
    ]
    return {"columns": columns}


def model_of(folder: Path, step: int, opened: Opened) -> dict[str, Any]:
    """A checkpoint: filters, energies, the landscape in the plane, and chains that are run for the look."""
    recipe, prepared = opened
    energy = load(folder, step, ema=recipe.evaluate.ema and recipe.fit["ema"] is not None)
    before = [int(path.stem[5:]) for path in (folder / "snapshots").glob("step-*.safetensors")]
    drawn = _drawn(folder, max((one for one in before if one <= step), default=-1))
    values = energies(energy, prepared, drawn)
    noise = values.pop("noise", None)  # so far above that the others would be squeezed into a few bins
    return {
        "filters": filter_pictures(energy, prepared, image_shape(recipe, prepared)),
        "energies": _histograms(values, clip=0.003) if values else None,
        "noise": None if noise is None else _number(float(noise.mean())),
        "landscape": _landscape(energy, some_rows(prepared, "train", 2000, energy)),
        "chains": _chains(energy, step, opened),
    }


def _drawn(folder: Path, step: int) -> Tensor | None:
    path = folder / "snapshots" / f"step-{step:012d}.safetensors"
    return load_file(path)["x"] if path.exists() else None


def _landscape(energy: Any, data: Tensor | None) -> dict[str, Any] | None:
    """The energy over the middles of a grid of cells, row by row from below."""
    if (
        data is None
        or not isinstance(energy, Energy)
        or energy.domain.numel != 2
        or isinstance(energy.domain, Discrete)
    ):
        return None
    left, right, bottom, top = view = _view(data.reshape(-1, 2))
    middles = (torch.arange(_GRID) + 0.5) / _GRID
    y, x = torch.meshgrid(bottom + middles * (top - bottom), left + middles * (right - left), indexing="ij")
    with torch.no_grad():
        found = energy(torch.stack([x, y], -1).reshape(-1, *energy.domain.shape).to(data)).double()
    return {"n": _GRID, "view": view, "energy": _numbers(found), "data": _flat(data[:500])}


def _chains(energy: Any, step: int, opened: Opened) -> dict[str, Any] | None:
    """Chains from where the recipe lets them begin: R-hat, effective sample size, acceptance; in the plane their ways."""
    recipe, prepared = opened
    n = 64 if energy.domain.numel <= 100 else 16
    try:
        start = start_of(recipe, prepared, energy)
        drawn = draw_by(recipe, energy, n, f"live/{step}", start=start, keep=True, steps=min(recipe.sample.steps, 200))
    except GibbsianError:  # no law to draw from yet
        return None
    found = chain_numbers(drawn).get("chains", {})
    if drawn.trace is None or drawn.trace.samples is None:
        return None
    paths = drawn.trace.samples[-4:].flatten(2).transpose(0, 1) if energy.domain.numel == 2 else ()
    return {
        **{key: found.get(key) for key in ("r_hat", "ess", "draws", "acceptance")},
        "how": f"{n} chains, {drawn.trace.steps} steps, the second half kept",
        "paths": [_flat(path if i < 12 else path[-1:]) for i, path in enumerate(paths)],  # of the others their places
    }


def _view(x: Tensor) -> tuple[float, float, float, float]:
    low, high = torch.quantile(x.double().cpu(), torch.tensor([0.002, 0.998], dtype=torch.float64), dim=0)
    reach = 0.15 * (high - low).clamp(min=1e-6)
    (left, bottom), (right, top) = (low - reach).tolist(), (high + reach).tolist()
    return left, right, bottom, top


def _histograms(sets: dict[str, Tensor], *, clip: float = 0.0) -> dict[str, Any]:
    """Densities over common bins, from the `clip` quantile of all to that of 1 - clip."""
    both = torch.cat([values.double().cpu() for values in sets.values()])
    both = both[torch.isfinite(both)]
    ends = torch.tensor([clip, 1 - clip], dtype=torch.float64)
    low, high = torch.quantile(both, ends).tolist() if len(both) else (0.0, 1.0)
    high = high if high > low else low + 1
    counts = {
        name: torch.histc(values[torch.isfinite(values)].double().cpu(), _BINS, low, high) / max(1, len(values))
        for name, values in sets.items()
    }
    return {"low": low, "high": high, "sets": {name: (n * _BINS / (high - low)).tolist() for name, n in counts.items()}}


def _number(value: float) -> float | None:
    return value if value - value == 0 else None  # JSON has no word for what is not finite


def _numbers(x: Tensor) -> list[float | None]:
    return [_number(round(value, 5)) for value in x.flatten().tolist()]


def _flat(x: Tensor) -> list[float | None]:
    return _numbers(x.detach().double().cpu())


def serve(questions: Iterable[str], out: IO[str]) -> None:
    """Answer every line."""
    pictures = Pictures()
    for line in questions:
        asked = json.loads(line)
        found = pictures.answer(Path(asked["folder"]), asked["kind"], asked["step"])
        out.write(json.dumps(found) + "\n")
        out.flush()
