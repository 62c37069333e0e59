"""The parts of a report that are pictures of samples, data and weights."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.app.recipe import Recipe
from gibbsian.app.report import figures
from gibbsian.app.runs import Drawn, snapshots_of
from gibbsian.data import Prepared
from gibbsian.domains import Discrete
from gibbsian.placement import placement
from gibbsian.plots.style import color

__all__ = ["filter_pictures", "image_shape", "sample_pictures", "some_rows"]


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


def _as_images(x: Tensor, prepared: Prepared, shape: tuple[int, ...]) -> Tensor:
    return prepared.undo(x.detach().float().cpu()).reshape(len(x), *shape)


def sample_pictures(
    folder: Path, prepared: Prepared, energy: Any, drawn: Drawn | None, shape: tuple[int, ...] | None
) -> dict[str, Any]:
    out: dict[str, Any] = {"samples": [], "strip": [], "plane": [], "marginals": [], "samples_text": ""}
    flat = math.prod(energy.domain.shape)
    data = some_rows(prepared, "train", 4000, energy)
    if data is None or not bool(torch.isfinite(data).all()):
        return out
    data = data.cpu()
    if drawn is not None:
        out["samples_text"] = f"Drawn from the trained model by {drawn.how}."
    x = None if drawn is None else drawn.x.cpu()
    snapshots = snapshots_of(folder)
    if shape is not None:
        if x is not None:
            out["samples"].append(("samples", figures.pixel_grid(_as_images(x[:64], prepared, shape), columns=8)))
        out["samples"].append(("training data", figures.pixel_grid(_as_images(data[:64], prepared, shape), columns=8)))
        for step, s in snapshots.items():
            out["strip"].append((step, figures.pixel_grid(_as_images(s[:16], prepared, shape), columns=4), "pixels"))
    elif flat == 2 and not isinstance(energy.domain, Discrete):
        out["plane"] = figures.plane(energy, data.reshape(-1, 2), None if x is None else x.reshape(-1, 2))
        extent = data.reshape(-1, 2)
        low, high = extent.amin(0) - 0.5, extent.amax(0) + 0.5
        for step, s in snapshots.items():
            out["strip"].append((step, figures.picture(_dots(s.reshape(-1, 2), low, high), size=(1.6, 1.6)), "chart"))
    elif x is not None and len(x) > 30 and not isinstance(energy.domain, Discrete):
        undone = [prepared.undo(part).flatten(1) for part in (data, x)]
        out["marginals"] = figures.marginals(undone[0], undone[1], prepared.data.columns)
    return out


def _dots(x: Tensor, low: Tensor, high: Tensor) -> Any:
    def draw(ax: Any) -> None:
        ax.plot(*x.T.numpy(), ".", markersize=2.5, color=color(1))
        ax.set(
            xlim=(float(low[0]), float(high[0])),
            ylim=(float(low[1]), float(high[1])),
            xticks=[],
            yticks=[],
            aspect="equal",
        )
        for side in ax.spines.values():
            side.set_color("0.85")

    return draw


def filter_pictures(energy: Any, prepared: Prepared, shape: tuple[int, ...] | None) -> dict[str, str] | None:
    """Weights as pictures: of hidden units in the space of the data, or of the first convolution."""
    own = getattr(energy, "weight", None)
    size = math.prod(energy.domain.shape)
    if hasattr(energy, "mixing"):
        own, title, text = energy.mixing, "Basis", "Each picture is what one source adds to the data."
    elif isinstance(own, Tensor) and own.dim() >= 2 and own.shape[0] == size and shape is not None:
        title, text = "Filters", "What each hidden unit looks for, strongest first: red adds, blue takes away."
    elif isinstance(own, Tensor) and own.dim() >= 3 and own.shape[-1] <= 16:
        kernels = own.detach().reshape(-1, *own.shape[-2:])
        return {
            "title": "Filters",
            "text": "The filters that are slid over images.",
            "uri": figures.pixel_grid(kernels[:100], symmetric=True),
        }
    elif hasattr(energy, "weights") and isinstance(energy.weights, nn.ParameterList) and shape is not None:
        own, title, text = (
            energy.weights[0],
            "Filters of the first layer",
            "What each unit of the first hidden layer looks for.",
        )
    else:
        convolution = next((m for m in energy.modules() if isinstance(m, nn.Conv2d)), None)
        if convolution is None:
            return None
        kernels = convolution.weight.detach().mean(1)
        return {
            "title": "Filters of the first layer",
            "text": "Convolution kernels, averaged over input channels.",
            "uri": figures.pixel_grid(kernels[:100], symmetric=True),
        }
    if shape is None or (len(shape) == 3 and shape[0] != 1) or not isinstance(own, Tensor):
        return None
    weight = own.detach().float().cpu().flatten(1).T
    order = weight.norm(dim=1).argsort(descending=True)[:100]
    rows = weight[order]
    if any("matrix" in fitted for fitted in prepared.fitted):  # whitened: shown in the space of the data
        rows = prepared.undo(rows).flatten(1) - prepared.undo(torch.zeros_like(rows)).flatten(1)
    images = rows.reshape(len(rows), *shape[-2:])
    return {"title": title, "text": text, "uri": figures.pixel_grid(images, symmetric=True)}
