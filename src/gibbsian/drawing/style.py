"""Colors and axes that all plots share; matplotlib's global settings stay untouched."""

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2f6c9e", "#d9622b", "#3f9470", "#8a5fa8", "#c49a1a", "#b04a5a", "#5f6b73")
GRID = "0.9"
INK = "0.25"


def color(i: int) -> str:
    """The i-th color, around and around."""
    return COLOURS[i % len(COLOURS)]


def axes(ax: "Axes | None", size: tuple[float, float] = (5.0, 3.2)) -> "Axes":
    """The axes that are given, or new ones of pyplot, which a notebook shows."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def tidy(ax: "Axes", *, grid: Literal["both", "x", "y"] | None = "y") -> "Axes":
    """No box around the picture, a light grid behind it."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("0.6")
    ax.tick_params(colors=INK, which="both", length=3)
    ax.set_axisbelow(True)
    if grid is not None:
        ax.grid(True, axis=grid, color=GRID, linewidth=0.8)
    return ax


def legend(ax: "Axes", loc: Literal["best", "lower left", "lower right"] = "best", **options: Any) -> None:
    """What the lines are called, without a box, where there is room. The place is named even so: where nobody names one matplotlib warns if finding
    it takes a second, as it does on a loaded machine."""
    ax.legend(loc=loc, frameon=False, labelcolor=INK, **options)
