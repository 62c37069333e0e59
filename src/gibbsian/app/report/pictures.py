"""The parts of a report that are pictures of samples, data and weights."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.app.draws import snapshots_of
from gibbsian.app.recipe import Recipe
from gibbsian.app.report import figures
from gibbsian.app.report.words import thousands
from gibbsian.capabilities import Filters, PicturedModel
from gibbsian.data import Prepared
from gibbsian.domains import Discrete, Domain
from gibbsian.drawing.images import strongest
from gibbsian.drawing.style import color
from gibbsian.placement import placement
from gibbsian.uses.draw import Drawn


def image_shape(recipe: Recipe, prepared: Prepared) -> tuple[int, ...] | None:
    """The shape of pictures: what the recipe says, or that of the raw data where it looks like one."""
    if recipe.sample.shape:
        return tuple(recipe.sample.shape)
    raw = tuple(prepared.undo(prepared.finished("train", 2).x).shape[1:])
    return raw if len(raw) in (2, 3) and min(raw[-2:]) >= 4 and (len(raw) == 2 or raw[0] in (1, 3)) else None


def some_rows(prepared: Prepared, part: str, n: int, energy: Any) -> Tensor | None:
    if part not in prepared.data.parts:
        return None
    dtype, device = placement(energy)
    return prepared.finished(part, n).x.to(device, dtype)


def sample_pictures(
    folder: Path, prepared: Prepared, energy: Any, drawn: Drawn | None, shape: tuple[int, ...] | None
) -> dict[str, Any]:
    """Samples beside the data: as images, in the plane, or entry by entry; and how they came about."""
    out: dict[str, Any] = {"samples": [], "film": [], "plane": [], "marginals": [], "samples_text": ""}
    data = some_rows(prepared, "train", 4000, energy)
    if data is None or not bool(torch.isfinite(data).all()):
        return out
    x = None
    if drawn is not None:
        x, out["samples_text"] = drawn.x.cpu(), f"Drawn from the trained model by {drawn.how}."
    if shape is not None:
        return out | _images(folder, prepared, data.cpu(), x, shape)
    if energy.domain.numel == 2 and not isinstance(energy.domain, Discrete):
        return out | _plane(folder, energy, data.cpu().reshape(-1, 2), None if x is None else x.reshape(-1, 2))
    if x is not None and len(x) > 30:
        out["marginals"] = _entries(prepared, energy.domain, data.cpu(), x)
        if not isinstance(energy.domain, Discrete):
            many = prepared.undo(data[:1].cpu()).numel()
            which = "Every column" if many <= figures.COLUMNS else f"The first {figures.COLUMNS} of {many} columns"
            out["samples_text"] += (
                f" {which} of the data (filled) and of the samples (lines), and the pairs that hang together most."
            )
    return out


def _entries(prepared: Prepared, domain: Domain, data: Tensor, x: Tensor) -> list[str]:
    """Samples and data, number by number."""
    if isinstance(domain, Discrete):
        return figures.agreement(data.flatten(1), x.flatten(1))
    own, other, columns = prepared.undo(data).flatten(1), prepared.undo(x).flatten(1), prepared.data.columns
    return [*figures.marginals(own, other, columns), *figures.closest_pairs(own, other, columns)]


def _images(
    folder: Path, prepared: Prepared, data: Tensor, x: Tensor | None, shape: tuple[int, ...]
) -> dict[str, list[Any]]:
    def grid(rows: Tensor, columns: int) -> str:
        some = prepared.undo(rows[: columns**2].detach().float().cpu())
        return figures.pixel_grid(some.reshape(-1, *shape), columns=columns)

    sets = {"samples": x, "training data": data}
    return {
        "samples": [(name, grid(rows, 8)) for name, rows in sets.items() if rows is not None],
        "film": [{"name": name, "uri": grid(rows, 4)} for name, rows in _frames(folder, x).items()],
    }


def _plane(folder: Path, energy: Any, data: Tensor, x: Tensor | None) -> dict[str, list[Any]]:
    reach = 0.25 * (data.amax(0) - data.amin(0)).clamp(min=1e-6)
    low, high = data.amin(0) - reach, data.amax(0) + reach
    wide, tall = (high - low).tolist()
    size = (3.6, min(5.0, max(1.6, 3.6 * tall / wide)))
    dots = {name: _dots(rows.reshape(-1, 2)[:500], low, high) for name, rows in _frames(folder, x).items()}
    return {
        "plane": figures.plane(energy, data, x),
        "film": [
            {"name": name, "svg": figures.picture(one, size=size, name=f"film{i}")}
            for i, (name, one) in enumerate(dots.items())
        ],
    }


def _frames(folder: Path, x: Tensor | None) -> dict[str, Tensor]:
    """Samples through training by the names of their steps, and those of the trained model at the end."""
    frames = {f"step {thousands(step)}": rows for step, rows in snapshots_of(folder).items()}
    return frames if x is None or not frames else frames | {"trained": x}


def _dots(x: Tensor, low: Tensor, high: Tensor) -> Any:
    def draw(ax: Any) -> None:
        ax.plot(*x.T.numpy(), ".", markersize=2.5, color=color(1))
        xlim, ylim = torch.stack([low, high], 1).tolist()
        ax.set(xlim=xlim, ylim=ylim, xticks=[], yticks=[], aspect="equal")
        for side in ax.spines.values():
            side.set_color("0.6")

    return draw


def filter_pictures(energy: Any, prepared: Prepared, shape: tuple[int, ...] | None) -> dict[str, str] | None:
    """Weights as pictures: of hidden units in the space of the data, or of the first convolution."""
    found = energy.filters() if isinstance(energy, PicturedModel) else _convolution(energy)
    if found is None:
        return None
    images = strongest(found, 100).float().cpu()
    if not found.slid:
        if shape is None or (len(shape) == 3 and shape[0] != 1):
            return None
        if any("matrix" in fitted for fitted in prepared.fitted):  # in the space of the data where that was whitened
            images = prepared.undo(images) - prepared.undo(torch.zeros_like(images))
        images = images.reshape(-1, *shape[-2:])
    return {"title": found.title, "text": found.about, "uri": figures.pixel_grid(images, symmetric=True)}


def _convolution(energy: nn.Module) -> Filters | None:
    first = next((m for m in energy.modules() if isinstance(m, nn.Conv2d)), None)
    if first is None:
        return None
    about = "Convolution kernels, averaged over input channels."
    return Filters(first.weight.mean(1), "Filters of the first layer", about, slid=True)
