"""What the figures share: options, a place to write, the numbers in print, small pictures."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the other examples, whose data some figures share

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

INK = "0.25"


def main(
    doc: str,
    name: str,
    compute: Callable[[bool], tuple[dict[str, Any], Any]],
    draw: Callable[[dict[str, Any], Any], Figure],
) -> None:
    """`compute(quick)` gives numbers to print and what `draw` needs beside them; the picture is FOLDER/name.png."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="out/figures", help="folder of the picture")
    parser.add_argument("--quick", action="store_true", help="a tiny size, to see that it runs")
    options = parser.parse_args()
    begun = time.perf_counter()
    numbers, parts = compute(options.quick)
    report(numbers)
    print(f"{time.perf_counter() - begun:.1f} s")
    path = save(draw(numbers, parts), Path(options.out) / f"{name}.png")
    print(f"picture: {path}")


def report(numbers: Mapping[str, Any]) -> None:
    """One line a number; a pair is a value and its standard error."""
    width = max(map(len, numbers))
    for name, value in numbers.items():
        shown = f"{value[0]:.4g} ± {value[1]:.2g}" if isinstance(value, tuple) else f"{value:.4g}"
        print(f"{name:<{width}}  {shown}")


def save(figure: Figure, path: Path, dpi: int = 90, colors: int = 96) -> Path:
    """Write a picture with a palette of few colors, a third of the size of a full one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    full = BytesIO()
    figure.savefig(full, dpi=dpi, format="png")
    Image.open(full).convert("RGB").quantize(colors, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def canvas(width: float, height: float) -> Figure:
    """An empty figure whose parts do not overlap, with some air around them."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.06))


def title(ax: Axes, text: str) -> Axes:
    """A title at the left edge."""
    ax.set_title(text, loc="left", fontsize=10, color=INK)
    return ax


def frame(ax: Axes, extent: tuple[float, float, float, float]) -> Axes:
    """The same window on every panel."""
    ax.set(xlim=extent[:2], ylim=extent[2:])
    ax.set_aspect("equal")
    return ax
