"""Energies of one or two coordinates as pictures: landscape, score field, chains on top."""

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gibbsian.domains import Discrete
from gibbsian.drawing.style import color, tidy
from gibbsian.errors import ArgumentError, CapabilityError, ShapeError
from gibbsian.placement import placement

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@runtime_checkable
class Scored(Protocol):
    """Has a score, as energies and score fields have."""

    def score(self, x: Tensor, *, create_graph: bool = False) -> Tensor:
        """s(x)."""


@runtime_checkable
class Leveled(Protocol):
    """Has energies and their scores."""

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E(x) and s(x)."""


@runtime_checkable
class Kept(Protocol):
    """Holds draws `(draws, chains, *event)`, as a trace does; None where they were not kept."""

    @property
    def samples(self) -> Tensor | None:
        """The draws."""


Extent = tuple[float, float] | tuple[float, float, float, float]


def _grid(
    model: Any, extent: Extent, points: int, plane: tuple[int, int], at: Tensor | None
) -> tuple[list[Tensor], Tensor]:
    """Coordinates along each axis, and events on the grid `(points^axes, *event)`."""
    scored: bool = isinstance(model, Scored)
    if not scored:
        name = type(model).__name__
        raise CapabilityError(f"a landscape is drawn of an energy, got a {name}; wrap it with as_energy")
    if isinstance(model.domain, Discrete):
        raise CapabilityError(f"a landscape needs continuous coordinates, this model lives on {model.domain}")
    dtype, device = placement(model)
    options: dict[str, Any] = {"dtype": dtype, "device": device}
    if model.domain.numel == 1:
        if len(extent) != 2:
            raise ArgumentError(f"extent={extent}: one coordinate has extent (low, high)")
        line = torch.linspace(*extent, points, **options)
        return [line], line.reshape(-1, *model.domain.shape)
    low_x, high_x, low_y, high_y = extent * 2 if len(extent) == 2 else extent
    if not (low_x < high_x and low_y < high_y):
        raise ArgumentError(f"extent={extent}: expected (low, high) or (left, right, bottom, top), rising")
    xs, ys = torch.linspace(low_x, high_x, points, **options), torch.linspace(low_y, high_y, points, **options)
    flat = _through(model.domain.numel, plane, at).to(xs)
    events = flat.repeat(points * points, 1)
    i, j = plane
    events[:, i], events[:, j] = xs.repeat(points), ys.repeat_interleave(points)
    return [xs, ys], events.reshape(-1, *model.domain.shape)


def _through(size: int, plane: tuple[int, int], at: Tensor | None) -> Tensor:
    """The point that a slice in a plane goes through."""
    i, j = plane
    if not (0 <= i < size and 0 <= j < size and i != j):
        raise ArgumentError(f"plane={plane}: two different coordinates of 0 to {size - 1} span the picture")
    if at is None and size > 2:
        raise ArgumentError(f"the model has {size} coordinates: give at=, a point the slice in the plane goes through")
    if at is not None and at.numel() != size:
        raise ShapeError(f"at has {at.numel()} numbers, expected one event of {size}")
    return torch.zeros(size) if at is None else at.flatten()


def landscape(
    energy: Any,
    ax: "Axes",
    extent: Extent = (-4.0, 4.0),
    *,
    points: int = 150,
    show: str = "energy",
    depth: float | None = None,
    plane: tuple[int, int] = (0, 1),
    at: Tensor | None = None,
    bar: bool = True,
    cmap: Any = None,
) -> "Axes":
    """The energy over a line or a plane, lowest energies darkest; heights above `depth` are cut off.

    Args:
        energy: an energy over continuous coordinates.
        extent: (low, high) for both axes, or (left, right, bottom, top).
        points: along each axis.
        show: "energy", or "density" for exp(-E), scaled so that its highest point is 1.
        depth: how far above the lowest energy colors reach; 70 % of the picture where left out.
        plane, at: which two coordinates are drawn, and the event the slice goes through, for more than two.
        bar: draw a scale beside the picture.
        cmap: matplotlib's colormap, from the lowest number to the highest; blues where left out.

    >>> import matplotlib.figure, gibbsian as gb
    >>> ax = landscape(gb.energies.Banana(), matplotlib.figure.Figure().subplots(), (-3, 3, -2, 6))
    """
    if show not in {"energy", "density"}:
        raise ArgumentError(f"show={show!r}: expected 'energy' or 'density'")
    lines, events = _grid(energy, extent, points, plane, at)
    leveled: bool = isinstance(energy, Leveled)
    if not leveled:
        raise CapabilityError(f"{type(energy).__name__} has a score and no energy; use plots.score_field")
    with torch.no_grad():
        e = torch.cat([energy(part) for part in events.split(1 << 14)]).double().cpu()
    finite = e[torch.isfinite(e)]
    if not len(finite):
        raise ArgumentError(f"the energy is nowhere finite over {extent}")
    lowest = float(finite.min())
    if show == "density":
        value, low, high, colors, extend = torch.exp(lowest - e), 0.0, 1.0, "Blues", "neither"
    else:
        value, low, high, colors, extend = e, lowest, _top(finite, depth), "Blues_r", "max"
    if len(lines) == 1:
        return _profile(lines[0], value, ax, show)
    levels = torch.linspace(low, high, 31).tolist()
    xs, ys = (line.cpu().numpy() for line in lines)
    picture = value.reshape(points, points).numpy()
    drawn = ax.contourf(xs, ys, picture, levels=levels, cmap=cmap or colors, extend=extend)
    ax.contour(xs, ys, picture, levels=levels[3::3], colors="white", linewidths=0.5, alpha=0.55)
    ax.set(xlabel=f"$x_{plane[0] + 1}$", ylabel=f"$x_{plane[1] + 1}$")
    if bar:
        _scale(drawn, ax, show)
    return tidy(ax, grid=None)


def _scale(drawn: Any, ax: "Axes", label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    if ax.figure is not None:  # inside the axes' own frame: as tall as the picture, whatever its aspect
        scale = ax.figure.colorbar(drawn, cax=ax.inset_axes((1.04, 0.0, 0.045, 1.0)), label=label)
        scale.outline.set_visible(False)
        low, high = scale.ax.get_ylim()
        scale.set_ticks([tick for tick in MaxNLocator(6).tick_values(low, high) if low <= tick <= high])


def _top(energies: Tensor, depth: float | None) -> float:
    lowest = float(energies.min())
    if depth is not None:
        return lowest + depth
    highest = float(torch.quantile(energies[:: max(1, len(energies) // 10**6)], 0.7))
    return max(highest, lowest + 1e-6)


def _profile(line: Tensor, value: Tensor, ax: "Axes", show: str) -> "Axes":
    x, y = line.cpu().numpy(), value.numpy()
    ax.plot(x, y, color=color(0), linewidth=2)
    ax.fill_between(x, y, float(value.min()), color=color(0), alpha=0.12)
    ax.set(xlabel="x", ylabel=show)
    return tidy(ax, grid="both")


def score_field(
    model: Any,
    ax: "Axes",
    extent: Extent = (-4.0, 4.0),
    *,
    points: int = 22,
    plane: tuple[int, int] = (0, 1),
    at: Tensor | None = None,
    cmap: Any = "inferno_r",
) -> "Axes":
    """Arrows along the score s(x) = -∇E(x), longer and darker where it is larger; long ones are shortened.

    Args:
        model: an energy or a score field of two coordinates, or more with `plane` and `at`.
        extent, plane, at: as in `landscape`; draw over one, or alone.
        points: arrows along each axis.
        cmap: matplotlib's colormap, from the shortest arrow to the longest.

    >>> import matplotlib.figure, gibbsian as gb
    >>> ax = score_field(gb.energies.Ring(), matplotlib.figure.Figure().subplots())
    """
    lines, events = _grid(model, extent, points, plane, at)
    if len(lines) == 1:
        raise CapabilityError("a score field is drawn over two coordinates; plot landscape(energy, ax) for one")
    s = model.score(events).flatten(1)[:, list(plane)].double().cpu()
    norm = s.norm(dim=1, keepdim=True)
    reach = float(norm.median().clamp(min=1e-12))
    arrows = 1.5 * s / (norm + reach)  # of ¾ cell at the median, never above 1½
    cell = [float(line[1] - line[0]) for line in lines]
    xs, ys = (line.cpu().numpy() for line in lines)
    shown = torch.cat([arrows * arrows.new_tensor(cell), norm.clamp(min=1e-12).log()], 1)  # along x, along y, color
    look: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "cmap": cmap, "width": 0.004, "pivot": "mid"}
    ax.quiver(xs, ys, *shown.T.reshape(3, points, points).numpy(), scale=1.0, **look)
    ax.set(xlabel=f"$x_{plane[0] + 1}$", ylabel=f"$x_{plane[1] + 1}$")
    return tidy(ax, grid=None)


def chains(
    draws: Tensor | Kept,
    ax: "Axes",
    *,
    energy: Any = None,
    extent: Extent | None = None,
    plane: tuple[int, int] = (0, 1),
    count: int = 4,
    **options: Any,
) -> "Axes":
    """The paths of some chains in a plane, over the landscape where the energy is given; rings mark the starts.

    Args:
        draws: a trace that kept its samples, or draws `(draws, chains, *event)`.
        energy: draw its landscape below.
        extent: of the landscape; where the chains went where left out.
        plane: which two coordinates.
        count: chains drawn.
        options: of `landscape`.

    >>> import matplotlib.figure, gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> trace = gb.sample(gb.energies.Ring(), gb.kernels.RandomWalk(0.5), torch.ones(3, 2), steps=50, generator=g)
    >>> ax = chains(trace, matplotlib.figure.Figure().subplots(), energy=gb.energies.Ring())
    """
    paths = draws_of(draws).flatten(2)
    if paths.shape[2] < 2:
        raise ShapeError("paths are drawn in two coordinates; use plots.traces for one")
    paths = paths[:, :count, list(plane)]
    if energy is not None:
        landscape(energy, ax, extent or _around(paths), plane=plane, **options)
    for i, path in enumerate(paths.unbind(1)):
        x, y = path.T.numpy()
        ax.plot(x, y, color=color(i + 1), linewidth=0.9, alpha=0.75)
        ax.scatter(x, y, s=5, color=color(i + 1), linewidths=0, alpha=0.9, zorder=3)
        ax.scatter(x[:1], y[:1], s=60, facecolors="white", edgecolors=color(i + 1), linewidths=2, zorder=4)
    ax.set(xlabel=f"$x_{plane[0] + 1}$", ylabel=f"$x_{plane[1] + 1}$")
    return tidy(ax, grid=None)


def _around(paths: Tensor) -> tuple[float, float, float, float]:
    flat = paths.flatten(0, 1)
    low, high = flat.amin(0), flat.amax(0)
    pad = 0.15 * (high - low).clamp(min=1e-3)
    left, bottom, right, top = *(low - pad).tolist(), *(high + pad).tolist()
    return left, right, bottom, top


def draws_of(draws: Tensor | Kept) -> Tensor:
    """Finite draws `(draws, chains, *event)` on the CPU, in double precision."""
    kept = draws.samples if isinstance(draws, Kept) else draws
    if kept is None:
        raise CapabilityError("the draws of this trace were not kept; call sample(..., keep=True)")
    if not isinstance(kept, Tensor) or kept.dim() < 2 or not kept.numel():
        what = tuple(kept.shape) if isinstance(kept, Tensor) else type(kept).__name__
        raise ShapeError(f"draws are {what}, expected a trace or a tensor (draws, chains, *event)")
    kept = kept.detach().cpu().double()
    return kept[..., None] if kept.dim() == 2 else kept
