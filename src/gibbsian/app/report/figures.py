"""The pictures of a report: SVG whose ink follows the page's colors, and PNG for pixels."""

import base64
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gibbsian import plots
from gibbsian.drawing.style import COLOURS, INK, color, legend, tidy
from gibbsian.energy import Energy, ScoreField
from gibbsian.metrics.ood import roc_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# gray inks of the plots, in the page's own variables: dark mode and print follow by themselves
_INKS = {shade: f"var(--c{i})" for i, shade in enumerate(COLOURS)} | {
    "#404040": "var(--ink)",
    "#e6e6e6": "var(--grid)",
    "#999999": "var(--axis)",
    "#000000": "var(--ink)",
}


def svg(draw: Callable[["Axes"], Any], *, size: tuple[float, float] = (6.4, 3.2), name: str = "figure") -> str:
    """A drawing on axes as an inline SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}):
        figure = Figure(figsize=size, layout="constrained")
        ax = figure.subplots()
        draw(ax)
        for one in (ax, *ax.child_axes):
            for text in (one.xaxis.label, one.yaxis.label, one.title):
                text.set_color(INK)
            one.tick_params(colors=INK, which="both")
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, dpi=144, metadata={"Date": None, "Creator": None})
    drawn = out.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.S)
    for gray, ink in _INKS.items():
        drawn = drawn.replace(gray, ink)
    # ids must not meet those of other pictures on the page
    drawn = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', drawn)
    drawn = re.sub(r'(xlink:href="#|url\(#)([^")]+)', rf"\1{name}-\2", drawn)
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', rf'<svg role="img" aria-label="{name}" \1', drawn, count=1
    )


def _uri(png: io.BytesIO) -> str:
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


def picture(draw: Callable[["Axes"], Any], *, size: tuple[float, float] = (5.0, 4.4), name: str = "picture") -> str:
    """A drawing with many points or colors: these as pixels inside an SVG whose ink follows the page's colors."""

    def pixels(ax: "Axes") -> None:
        draw(ax)
        for artist in (*ax.collections, *ax.lines, *ax.images):
            artist.set_rasterized(True)
        for scale in ax.child_axes:
            for artist in (*scale.collections, *scale.images):
                artist.set_rasterized(True)

    return svg(pixels, size=size, name=name)


_ADDS, _TAKES = (0.85, 0.22, 0.13), (0.13, 0.47, 0.85)  # red and blue of weights


def pixel_grid(images: Tensor, *, columns: int | None = None, symmetric: bool = False) -> str:
    """Images `(n, height, width)` or `(n, channels, height, width)` as one PNG, a clear line between them.

    Gray values are stretched from the least to the greatest of all; with `symmetric` each image has its own scale
    around zero, in red and blue that fade into the page, whether that is light or dark.
    """
    x = images.detach().float().cpu()
    if x.dim() == 4 and x.shape[1] == 1:
        x = x[:, 0]
    if symmetric:
        unit = (x / x.abs().amax((1, 2), keepdim=True).clamp(min=1e-12))[..., None]
        ink = torch.where(unit > 0, torch.tensor(_ADDS), torch.tensor(_TAKES))
        colors = torch.cat([ink, unit.abs()], -1)
    else:
        low, high = torch.quantile(x.flatten()[:1_000_000], torch.tensor([0.001, 0.999]))
        unit = ((x - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
        gray = unit[..., None].expand(-1, -1, -1, 3) if unit.dim() == 3 else unit.permute(0, 2, 3, 1)
        colors = torch.cat([gray, torch.ones_like(gray[..., :1])], -1)
    tiled = plots.tile(colors, columns, pad=math.nan)
    between = torch.tensor((0.5, 0.5, 0.5, 0.25) if symmetric else (0.0, 0.0, 0.0, 0.0))
    pixels = (torch.where(tiled.isnan(), between, tiled) * 255).round().byte().numpy()
    factor = max(1, round(720 / max(pixels.shape[:2])))  # whole pixels, so that no row comes out wider than another
    out = io.BytesIO()
    Image.fromarray(pixels.repeat(factor, 0).repeat(factor, 1)).save(out, format="PNG", optimize=True)
    return _uri(out)


def curve(points: list[tuple[float, float]], events: Iterable[tuple[float, str]], *, label: str, name: str) -> str:
    """A number along a run, with vertical lines where something happened."""

    def draw(ax: "Axes") -> None:
        steps, values = zip(*points, strict=True)
        ax.plot(steps, values, color=color(0), linewidth=1.8, marker="o" if len(points) < 30 else "", markersize=3)
        for step, kind in events:
            ax.axvline(step, color=color(1 if kind == "rollback" else 4), linewidth=1.2, linestyle="--")
        ax.set(xlabel="step", ylabel=label)
        ax.margins(x=0.02)
        tidy(ax)

    return svg(draw, size=(5.2, 2.7), name=name)


def curves(lines: Mapping[str, list[tuple[float, float]]], *, label: str, name: str) -> str:
    """One number along several runs."""

    def draw(ax: "Axes") -> None:
        for i, (run, points) in enumerate(lines.items()):
            ax.plot(*zip(*points, strict=True), color=color(i), linewidth=1.8, label=run)
        ax.set(xlabel="step", ylabel=label)
        legend(ax, fontsize=8)
        tidy(ax)

    return svg(draw, size=(5.2, 2.7), name=name)


COLUMNS = 12  # whose histograms are drawn
_POINTS = 600  # of a curve; more cannot be told apart


def chart(
    series: Mapping[str, list[tuple[float, float]]],
    events: Iterable[tuple[float, str]] = (),
    *,
    x: str = "step",
    y: str,
    **more: Any,
) -> dict[str, Any]:
    """The numbers of a curve for the page's script, which draws it to be hovered and zoomed; see `explore.js`."""
    thin = {name: points[:: -(-len(points) // _POINTS)] + points[-1:] for name, points in series.items() if points}
    lines = [{"name": name, "points": [_short(point) for point in points]} for name, points in thin.items()]
    return {"x": x, "y": y, "series": lines, "events": list(events), **more}


def roc(pairs: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[str, dict[str, Any]]:
    """ROC curves of energies inside and outside, as a still picture and for the page's script."""
    found = {name: roc_curve(*pair) for name, pair in pairs.items()}
    lines = {
        name: list(zip(one.false_positive_rate.tolist(), one.true_positive_rate.tolist(), strict=True))
        for name, one in found.items()
    }
    ends: dict[str, Any] = {"range": [0, 1], "tall": [0, 1], "square": True, "diagonal": True}
    data = chart(lines, x="inside rows taken for outside", y="outside rows found", **ends)
    return svg(lambda ax: plots.roc(pairs, ax), size=(4.4, 4.0), name="roc"), data


def _short(point: tuple[float, float]) -> list[float]:
    return [float(f"{value:.7g}") for value in point]


def energies(sets: Mapping[str, Tensor], seen: Mapping[str, Tensor]) -> str:
    """Histograms of energies over the range of those that are `seen`, widened at most threefold for the others."""
    ends = torch.tensor([0.003, 0.997], dtype=torch.float64)
    (low, high), (least, most) = (
        torch.quantile(torch.cat([v.double().cpu() for v in some.values()])[:100000], ends).tolist()
        for some in (seen, sets)
    )
    reach = max(high - low, 1e-6)
    within = (max(low - reach, min(low, least)), min(high + 2 * reach, max(high, most)))
    draw = partial(plots.energy_histogram, sets, within=within)
    return svg(draw, size=(5.6, 2.7), name="energies")


def intervals(rows: list[tuple[str, float, float | None, float | None]], *, name: str = "likelihood") -> str:
    """Values with their intervals on one axis; an open end is an arrow."""
    from matplotlib.ticker import MaxNLocator

    def draw(ax: "Axes") -> None:
        for i, (_, value, lower, upper) in enumerate(reversed(rows)):
            if lower is not None:
                if upper is None:
                    ahead = value + 0.6 * abs(value - lower) + 1e-9
                    ax.annotate("", (ahead, i), (value, i), arrowprops={"arrowstyle": "->", "color": color(0)})
                ax.hlines(i, lower, value if upper is None else upper, color=color(0), linewidth=7, alpha=0.28)
            ax.plot([value], [i], "o", color=color(0) if lower is not None else color(6), markersize=7)
        ax.set_yticks(range(len(rows)), [row[0] for row in reversed(rows)])
        ax.set(xlabel="log-likelihood, nats a row", ylim=(-0.6, len(rows) - 0.4))
        ax.margins(x=0.08)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        tidy(ax, grid="x")
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)

    return svg(draw, size=(4.8, 0.4 * len(rows) + 0.75), name=name)


def plane(energy: Any, data: Tensor, samples: Tensor | None) -> list[tuple[str, str]]:
    """The landscape of an energy in the plane (or the field of a score), data and samples beside each other."""
    both = torch.cat([data, samples.to(data)]) if samples is not None else data
    both = both[torch.isfinite(both).all(1)]
    low, high = torch.quantile(both[:20000].double(), torch.tensor([0.002, 0.998], dtype=torch.float64), dim=0)
    reach = 0.15 * (high - low).clamp(min=1e-6)
    (left, bottom), (right, top) = (low - reach).tolist(), (high + reach).tolist()
    extent = (left, right, bottom, top)

    def points(x: Tensor, which: int) -> Callable[["Axes"], None]:
        def draw(ax: "Axes") -> None:
            ax.plot(*x[:4000].T.numpy(), ".", markersize=2.2, color=color(which), alpha=0.6)
            ax.set(xlim=extent[:2], ylim=extent[2:], xlabel="$x_1$", ylabel="$x_2$")
            tidy(ax, grid=None)

        return draw

    drawings: dict[str, Callable[[Axes], Any]] = {}
    if isinstance(energy, Energy):
        drawings["energy landscape"] = lambda ax: plots.landscape(energy, ax, extent, cmap=fading(up=False))
        drawings["density"] = lambda ax: plots.landscape(energy, ax, extent, show="density", cmap=fading(up=True))
    elif isinstance(energy, ScoreField):
        drawings["score field"] = lambda ax: plots.score_field(energy, ax, extent, cmap=_arrows())
    drawings["data"] = points(data, 0)
    if samples is not None:
        drawings["samples"] = points(samples.cpu(), 1)
    size = (5.0, min(6.0, max(2.2, 0.6 + 3.7 * (top - bottom) / (right - left))))
    shown = {name: partial(_equal, draw) for name, draw in drawings.items()}
    return [(name, picture(draw, size=size, name=f"plane-{name.replace(' ', '-')}")) for name, draw in shown.items()]


def _equal(draw: Callable[["Axes"], Any], ax: "Axes") -> None:
    """One unit is as long upwards as it is to the right."""
    draw(ax)
    ax.set_aspect("equal")


def fading(*, up: bool) -> Any:
    """A colormap from nothing to blue, or back: on white paper and on a dark page alike."""
    from matplotlib.colors import ListedColormap

    strength = np.linspace(0, 1, 64) if up else np.linspace(1, 0, 64)
    colors = ListedColormap([(0.18 + 0.1 * (1 - s), 0.46 + 0.1 * (1 - s), 0.72 + 0.1 * (1 - s), s) for s in strength])
    return colors if up else colors.with_extremes(over=(0, 0, 0, 0))


def _arrows() -> Any:
    """A colormap from blue to orange: seen on white paper and on a dark page."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("arrows", ["#4a86b8", "#e0703a"])


def marginals(data: Tensor, samples: Tensor, columns: tuple[str, ...], *, most: int = COLUMNS) -> list[str]:
    """Histograms of every column, data and samples on each other."""
    out = []
    for i in range(min(most, data.shape[1])):

        def draw(ax: "Axes", i: int = i) -> None:
            both = torch.cat([data[:, i], samples[:, i]]).double()
            ends = torch.tensor([0.005, 0.995], dtype=torch.float64)
            low, high = torch.quantile(both[torch.isfinite(both)][:100000], ends).tolist()
            edges = np.linspace(low, max(high, low + 1e-9), 36).tolist()
            look: dict[str, Any] = {"density": True, "linewidth": 1.6}
            ax.hist(data[:, i].numpy(), edges, color=color(0), label="data", histtype="stepfilled", alpha=0.35, **look)
            ax.hist(samples[:, i].numpy(), edges, color=color(1), label="samples", histtype="step", **look)
            ax.set(xlabel=_column(columns, i), yticks=[])
            few_ticks(ax)
            if i == 0:
                legend(ax, fontsize=8)
            tidy(ax, grid=None)

        out.append(svg(draw, size=(2.6, 1.9), name=f"marginal{i}"))
    return out


def few_ticks(ax: "Axes") -> None:
    """At most four numbers below a small picture, thousands as k."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(4))
    if max(abs(end) for end in ax.get_xlim()) >= 1e4:
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def closest_pairs(data: Tensor, samples: Tensor, columns: tuple[str, ...], *, most: int = 4) -> list[str]:
    """The pairs of columns that hang together most in the data, as clouds of points: data below, samples above."""
    if data.shape[1] < 2:
        return []
    strength = torch.nan_to_num(torch.corrcoef(data.double().T)).abs().triu(1)
    best = strength.flatten().argsort(descending=True)[:most].tolist()
    out = []
    for k, (i, j) in enumerate(divmod(at, data.shape[1]) for at in best):
        if float(strength[i, j]) == 0:
            continue

        def draw(ax: "Axes", i: int = i, j: int = j) -> None:
            for x, which in ((data, 0), (samples, 1)):
                ax.plot(x[:1000, i].numpy(), x[:1000, j].numpy(), ".", markersize=2.4, color=color(which), alpha=0.45)
            ends = torch.tensor([0.002, 0.998], dtype=torch.float64)
            (left, right), (bottom, top) = (
                _wider(*torch.quantile(data[:, at].double(), ends).tolist()) for at in (i, j)
            )
            ax.set(xlim=(left, right), ylim=(bottom, top))
            ax.set(xlabel=_column(columns, i), ylabel=_column(columns, j))
            few_ticks(ax)
            tidy(ax, grid=None)

        out.append(picture(draw, size=(2.6, 2.3), name=f"pair{k}"))
    return out


def _wider(low: float, high: float) -> tuple[float, float]:
    reach = 0.15 * max(high - low, 1e-9)
    return low - reach, high + reach


def _column(columns: tuple[str, ...], i: int) -> str:
    return columns[i] if i < len(columns) else f"column {i + 1}"


def agreement(data: Tensor, samples: Tensor) -> list[str]:
    """Means of all entries, and correlations of pairs, of samples against those of the data."""
    some = torch.linspace(0, data.shape[1] - 1, min(100, data.shape[1])).long()
    means = [x.double().mean(0) for x in (data, samples)]
    above = torch.triu_indices(len(some), len(some), 1)
    pairs = [torch.corrcoef(x[:, some].double().T)[*above] for x in (data, samples)]
    both = torch.isfinite(pairs[0]) & torch.isfinite(pairs[1])  # entries that never change correlate with none
    out = [_against(*means, name="means of entries")]
    return [*out, _against(pairs[0][both], pairs[1][both], name="correlations of pairs")] if bool(both.any()) else out


def _against(data: Tensor, samples: Tensor, *, name: str) -> str:
    def draw(ax: "Axes") -> None:
        low, high = (float(end) for end in torch.cat([data, samples]).aminmax())
        ax.plot([low, high], [low, high], color="0.7", linewidth=1, linestyle="dashed")
        ax.plot(data.numpy(), samples.numpy(), ".", markersize=4, color=color(0), alpha=0.6)
        ax.set(xlabel="data", ylabel="samples", title=name)
        tidy(ax, grid="both")

    return svg(draw, size=(3.2, 2.9), name=name.replace(" ", "-"))
