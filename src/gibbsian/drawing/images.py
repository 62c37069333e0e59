"""Images in grids: samples, filters, reconstructions."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gibbsian.capabilities import Filters, PicturedModel, ReconstructingModel, require
from gibbsian.errors import ArgumentError, ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def tile(images: Tensor, columns: int | None = None, pad: float = math.nan) -> Tensor:
    """Images `(count, height, width)` or `(count, height, width, 3)` as one of `rows·(height+1) - 1` lines and
    `columns·(width+1) - 1` columns, lines of `pad` between.

    >>> tile(torch.ones(3, 2, 2)).shape
    torch.Size([5, 5])
    """
    count, height, width, *colors = images.shape
    columns = math.ceil(math.sqrt(count)) if columns is None else columns
    rows = math.ceil(count / columns)
    canvas = images.new_full((rows * (height + 1) - 1, columns * (width + 1) - 1, *colors), pad)
    for i, image in enumerate(images):
        top, left = i // columns * (height + 1), i % columns * (width + 1)
        canvas[top : top + height, left : left + width] = image
    return canvas


def _as_images(x: Tensor, shape: tuple[int, int] | None) -> Tensor:
    x = x.detach().float().cpu()
    if shape is None and x.dim() == 4 and x.shape[1] in {1, 3}:
        return x[:, 0] if x.shape[1] == 1 else x.permute(0, 2, 3, 1)
    if shape is None:
        side = math.isqrt(x[0].numel())
        if x.dim() == 3:
            shape = (x.shape[1], x.shape[2])
        elif side * side == x[0].numel():
            shape = (side, side)
        else:
            raise ShapeError(f"rows of {x[0].numel()} numbers are no square image; say shape=(height, width)")
    if math.prod(shape) != x[0].numel():
        raise ShapeError(f"rows of {x[0].numel()} numbers cannot be images of shape {shape}")
    return x.reshape(len(x), *shape)


def image_grid(
    images: Tensor,
    ax: "Axes",
    *,
    shape: tuple[int, int] | None = None,
    columns: int | None = None,
    symmetric: bool = False,
    title: str = "",
) -> "Axes":
    """Rows of a batch as images in a grid.

    Args:
        images: `(count, pixels)`, `(count, height, width)`, or `(count, channels, height, width)` of one or three
            channels; colors lie in [0, 1], and what lies outside is cut off.
        shape: height and width; square where it is left out.
        columns: of the grid.
        symmetric: colors centered on 0, each image on its own scale (for weights).
    """
    if columns is not None and columns < 1:
        raise ArgumentError(f"columns={columns}: a grid needs at least one")
    images = _as_images(images, shape)
    if images.dim() == 4:
        ax.imshow(tile(images.clamp(0, 1), columns, pad=0.55).numpy(), interpolation="nearest")
    elif symmetric:
        images = images / images.abs().amax((1, 2), keepdim=True).clamp(min=1e-12)
        ax.imshow(tile(images, columns).numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    else:
        from matplotlib import colormaps

        grays = colormaps["gray"].with_extremes(bad="0.55")  # gaps that differ from white pixels
        ax.imshow(tile(images, columns).numpy(), cmap=grays, interpolation="nearest")
    ax.set_axis_off()
    if title:
        ax.set_title(title)
    return ax


def strongest(found: Filters, count: int) -> Tensor:
    """The weights of `count` hidden units, strongest first; those that are slid over images as they are."""
    weight = found.weight.detach()
    return weight[:count] if found.slid else weight.T[weight.norm(dim=0).argsort(descending=True)[:count]]


def filters(
    model: Any, ax: "Axes", *, shape: tuple[int, int] | None = None, count: int = 100, columns: int | None = None
) -> "Axes":
    """The weights of `count` hidden units as images, strongest first; those that are slid over images as they are."""
    found = require(model, PicturedModel, "plots.filters", "an RBM has them").filters()
    shape = None if found.slid else shape
    return image_grid(strongest(found, count), ax, shape=shape, columns=columns, symmetric=True, title="filters")


def samples(
    x: Tensor, ax: "Axes", *, shape: tuple[int, int] | None = None, columns: int | None = None, title: str = "samples"
) -> "Axes":
    """Samples of a model, or fantasy particles, as images."""
    return image_grid(x, ax, shape=shape, columns=columns, title=title)


def reconstructions(model: Any, x: Tensor, ax: "Axes", *, shape: tuple[int, int] | None = None) -> "Axes":
    """Inputs in the upper row, what the model makes of them in the lower."""
    able = require(model, ReconstructingModel, "plots.reconstructions", "an RBM has it")
    with torch.no_grad():
        both = torch.cat([x, able.reconstruct(x)])
    return image_grid(both, ax, shape=shape, columns=len(x), title="inputs and reconstructions")
