"""The numbers of a run along its steps."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gibbsian.drawing.style import INK, color, tidy
from gibbsian.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIRST = ("validation_energy_gap", "validation_error", "validation_loss", "validation_score", "loss")


def history(records: Sequence[dict[str, Any]], ax: "Axes", *, name: str | None = None) -> "Axes":
    """A number of the log of a run along its steps, events as dashed lines.

    Args:
        records: `run.history`, or the lines of `metrics.jsonl`.
        name: of the number; left out, the first of those on held-out rows that there is, else the loss.

    >>> import matplotlib.figure
    >>> log = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    >>> history(log, matplotlib.figure.Figure().subplots()).get_ylabel()
    'loss'
    """
    chosen = _choose(records, name)
    points = [(r["step"], float(r[chosen])) for r in records if chosen in r and math.isfinite(r[chosen])]
    if points:
        dots = "o" if len(points) < 30 else ""
        ax.plot(*zip(*points, strict=True), color=color(0), linewidth=1.8, marker=dots, markersize=3)
    for step in (record["step"] for record in records if "event" in record):
        ax.axvline(step, color=color(1), linewidth=1.2, linestyle="--")
    ax.set(xlabel="step", ylabel=chosen.replace("_", " "))
    ax.yaxis.label.set_color(INK)
    return tidy(ax)


def _choose(records: Sequence[dict[str, Any]], name: str | None) -> str:
    """The name that is given, or the number that says most of a run."""
    known = {key for record in records if "event" not in record for key in record}
    chosen = name or next((key for key in _FIRST if key in known), None)
    if chosen is None or chosen not in known:
        there = ", ".join(sorted(known - {"step"})) or "nothing yet"
        raise ArgumentError(f"name={name!r}: the log of this run has no such number; it has {there}")
    return chosen
