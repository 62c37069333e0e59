"""Looking at machines: every function draws on axes that you give it and returns them.

>>> import matplotlib.figure
>>> from gibbsian.models import RBM
>>> ax = matplotlib.figure.Figure().subplots()
>>> ax = filters(RBM(16, 6), ax, shape=(4, 4))
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, CapabilityError, ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "filters",
    "free_energies",
    "free_energy_gap",
    "hidden_activity",
    "image_grid",
    "reconstructions",
    "samples",
]


def tile(images: Tensor, columns: int | None = None, pad: float = math.nan) -> Tensor:
    """Images `(count, height, width)` as one `(rows·(height+1) - 1, columns·(width+1) - 1)`, lines of `pad` between.

    >>> tile(torch.ones(3, 2, 2)).shape
    torch.Size([5, 5])
    """
    count, height, width = images.shape
    columns = math.ceil(math.sqrt(count)) if columns is None else columns
    rows = math.ceil(count / columns)
    canvas = images.new_full((rows * (height + 1) - 1, columns * (width + 1) - 1), pad)
    for i, image in enumerate(images):
        top, left = i // columns * (height + 1), i % columns * (width + 1)
        canvas[top : top + height, left : left + width] = image
    return canvas


def _as_images(x: Tensor, shape: tuple[int, int] | None) -> Tensor:
    x = x.detach().float().cpu()
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
        images: `(count, pixels)` or `(count, height, width)`.
        ax: where to draw.
        shape: height and width; square where it is left out.
        columns: of the grid.
        symmetric: colours centred on 0, each image on its own scale (for weights).
    """
    if columns is not None and columns < 1:
        raise ArgumentError(f"columns={columns}: a grid needs at least one")
    images = _as_images(images, shape)
    if symmetric:
        images = images / images.abs().amax((1, 2), keepdim=True).clamp(min=1e-12)
        ax.imshow(tile(images, columns).numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    else:
        from matplotlib import colormaps

        greys = colormaps["gray"].with_extremes(bad="0.55")  # gaps that differ from white pixels
        ax.imshow(tile(images, columns).numpy(), cmap=greys, interpolation="nearest")
    ax.set_axis_off()
    if title:
        ax.set_title(title)
    return ax


def filters(
    model: Any, ax: "Axes", *, shape: tuple[int, int] | None = None, count: int = 100, columns: int | None = None
) -> "Axes":
    """The weights of the first `count` hidden units as images, strongest first."""
    weight = getattr(model, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() < 2:
        raise CapabilityError(f"filters needs a model with a weight matrix, such as an RBM; got {type(model).__name__}")
    columns_of = weight.detach().flatten(1).T
    order = columns_of.norm(dim=1).argsort(descending=True)[:count]
    return image_grid(columns_of[order], ax, shape=shape, columns=columns, symmetric=True, title="filters")


def samples(
    x: Tensor, ax: "Axes", *, shape: tuple[int, int] | None = None, columns: int | None = None, title: str = "samples"
) -> "Axes":
    """Samples of a model, or fantasy particles, as images."""
    return image_grid(x, ax, shape=shape, columns=columns, title=title)


def reconstructions(model: Any, x: Tensor, ax: "Axes", *, shape: tuple[int, int] | None = None) -> "Axes":
    """Inputs in the upper row, what the model makes of them in the lower."""
    if not hasattr(model, "reconstruct"):
        raise CapabilityError(f"{type(model).__name__} has no reconstruct(x); an RBM has")
    with torch.no_grad():
        both = torch.cat([x, model.reconstruct(x)])
    return image_grid(both, ax, shape=shape, columns=len(x), title="inputs and reconstructions")


def hidden_activity(model: Any, x: Tensor, ax: "Axes", *, bins: int = 40) -> "Axes":
    """How often each hidden unit is on over a batch: units at 0 or 1 are dead, a narrow peak at 1/2 is untrained."""
    if not hasattr(model, "hidden_mean"):
        raise CapabilityError(f"{type(model).__name__} has no hidden_mean(x); an RBM has")
    with torch.no_grad():
        activity = model.hidden_mean(x).flatten(1).mean(0).cpu()
    ax.hist(activity.numpy(), bins=bins)
    ax.set_xlabel("mean activity over the batch")
    ax.set_ylabel("hidden units")
    return ax


def free_energies(model: Any, sets: Mapping[str, Tensor], ax: "Axes", *, bins: int = 50) -> "Axes":
    """Histograms of the energies of several data sets: training and held-out data should lie on each other."""
    if not sets:
        raise ArgumentError("free_energies needs at least one data set, such as {'train': x, 'test': y}")
    with torch.no_grad():
        energies = {name: model(x).cpu() for name, x in sets.items()}
    low = min(float(e.min()) for e in energies.values())
    high = max(float(e.max()) for e in energies.values())
    for name, e in energies.items():
        ax.hist(e.numpy(), bins=bins, range=(low, max(high, low + 1e-6)), alpha=0.5, density=True, label=name)
    ax.set_xlabel("energy")
    ax.legend()
    return ax


def free_energy_gap(steps: Sequence[float], train: Sequence[float], held_out: Sequence[float], ax: "Axes") -> "Axes":
    """Mean energy of held-out data less that of training data along a run: a growing gap is overfitting.

    The partition function cancels in the difference, so this needs no estimate of it (Hinton 2012, section 6).
    """
    if not len(steps) == len(train) == len(held_out):
        raise ShapeError(
            f"steps, train and held_out have {len(steps)}, {len(train)} and {len(held_out)} entries; they must agree"
        )
    ax.plot(list(steps), [float(b) - float(a) for a, b in zip(train, held_out, strict=True)])
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.set_xlabel("step")
    ax.set_ylabel("held-out less training free energy")
    return ax
