"""Whether chains mix, at a glance: trace plots and rank plots."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gibbsian.drawing.landscape import Kept, draws_of
from gibbsian.drawing.style import INK, color, tidy
from gibbsian.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _one(draws: Tensor | Kept, entry: int) -> Tensor:
    """One number of every draw, `(draws, chains)`."""
    flat = draws_of(draws).flatten(2)
    if not 0 <= entry < flat.shape[2]:
        raise ArgumentError(f"entry={entry}: events have {flat.shape[2]} numbers, counted from 0")
    return flat[:, :, entry]


def traces(draws: Tensor | Kept, ax: "Axes", *, entry: int = 0, count: int = 6) -> "Axes":
    """One number of the state along each chain: healthy chains look alike, like noise, from the first draw on.

    Args:
        draws: a trace that kept its samples, or draws `(draws, chains, *event)`.
        entry: which number of the flattened event.
        count: chains drawn.

    >>> import matplotlib.figure
    >>> g = torch.Generator().manual_seed(0)
    >>> ax = traces(torch.randn(200, 4, 2, generator=g), matplotlib.figure.Figure().subplots(), entry=1)
    """
    values = _one(draws, entry)
    for i, chain in enumerate(values[:, :count].unbind(1)):
        ax.plot(chain.numpy(), color=color(i), linewidth=0.8, alpha=0.8)
    ax.set(xlabel="draw", ylabel=f"$x_{{{entry + 1}}}$", xlim=(0, max(1, len(values) - 1)))
    return tidy(ax)


def ranks(draws: Tensor | Kept, ax: "Axes", *, entry: int = 0, count: int = 6, bins: int = 20) -> "Axes":
    """Where the draws of each chain rank among all: flat histograms where the chains have mixed.

    The shaded band holds 95 % of the bins of independent draws from one law; chains whose draws hang together
    leave it more often.

    Reference: Vehtari et al. 2021.

    Args:
        draws, entry: as in `traces`; two chains or more.
        count: chains drawn, one above the other; ranks are among all chains.
        bins: of each histogram.

    >>> import matplotlib.figure
    >>> g = torch.Generator().manual_seed(0)
    >>> ax = ranks(torch.randn(200, 4, 2, generator=g), matplotlib.figure.Figure().subplots())
    """
    values = _one(draws, entry)
    n, m = values.shape
    if m < 2:
        raise ArgumentError("ranks compare chains: at least two are needed")
    rank = values.flatten().argsort().argsort().reshape(n, m)
    expected = n / bins
    band = 1.96 * (expected * (1 - 1 / bins) * (1 - 1 / m)) ** 0.5  # drawing without replacement
    shown = min(count, m)
    edges = torch.linspace(0, n * m, bins + 1)
    height = 2.4 * expected  # room for one chain; taller bars are cut
    for i in range(shown):
        counts = torch.histc(rank[:, i].double(), bins, 0, n * m)
        base = (shown - 1 - i) * height
        ax.axhspan(base + expected - band, base + expected + band, color="0.9", linewidth=0, zorder=0)
        ax.hlines(base + expected, 0, n * m, color="0.6", linewidth=0.8, linestyles="dashed", zorder=1)
        ax.bar(
            edges[:-1].numpy(),
            counts.clamp(max=0.95 * height).numpy(),
            width=float(edges[1]),
            bottom=base,
            align="edge",
            color=color(i),
            alpha=0.75,
            edgecolor="white",
            linewidth=0.6,
        )
    ax.set(xlabel=f"rank of $x_{{{entry + 1}}}$ among all draws", xlim=(0, n * m), ylim=(0, shown * height))
    ax.set_yticks(
        [(shown - 1 - i) * height + expected / 2 for i in range(shown)], [f"chain {i + 1}" for i in range(shown)]
    )
    tidy(ax, grid=None)
    ax.tick_params(axis="y", length=0, labelcolor=INK)
    ax.spines["left"].set_visible(False)
    return ax
