"""Score estimation fails where there are no data: true score, estimated score, and a map of the error.

    python examples/figures/low_density.py --out out/figures

Data: 0.2 N((-5, -5), I) + 0.8 N((5, 5), I). Score matching weighs its error by the density, so between and beside the
modes the estimate is free to be anything. The map shows ‖ŝ - s‖ as a share of ‖s‖ + 1 (so that it does not blow up
where the true score vanishes), with the data on top: the dark region is where the data are. A chain that starts outside
follows the wrong arrows first, which is one reason why noise at many levels helps.

Reference: Song & Ermon 2019, section 3.2.1 and figure 2.
"""

from typing import Any

import torch
from drawing import canvas, frame, main, title
from matplotlib.figure import Figure

import gibbsian as gb
from gibbsian import energies, objectives, plots
from gibbsian.drawing.style import tidy

EXTENT = (-9.0, 9.0, -9.0, 9.0)


def relative_error(target: gb.Energy, learned: gb.Energy, x: torch.Tensor) -> torch.Tensor:
    true = target.score(x)
    return (learned.score(x) - true).norm(dim=1) / (true.norm(dim=1) + 1)


def compute(quick: bool) -> tuple[dict[str, Any], Any]:
    g = gb.random.stream(0, "low density")
    target = energies.GaussianMixture(torch.tensor([[-5.0, -5.0], [5.0, 5.0]]), 1.0, [0.2, 0.8])
    x = target.sample(2000 if quick else 10_000, generator=g)
    learned = energies.MLPEnergy(2, hidden=(128, 128))
    gb.fit(
        learned,
        objectives.ImplicitScoreMatching(),
        x,
        steps=300 if quick else 4000,
        batch_size=256,
        lr=3e-3,
        schedule="cosine",
    )
    side = torch.linspace(EXTENT[0], EXTENT[1], 120)
    grid = torch.cartesian_prod(side, side)
    distance = (grid[:, None] - target.means).norm(dim=2).amin(1)  # in standard deviations, to the nearer mode
    error = relative_error(target, learned, grid)
    numbers = {
        "error at fresh draws, mean": float(relative_error(target, learned, target.sample(5000, generator=g)).mean()),
        "error within 2 deviations of a mode, mean": float(error[distance < 2].mean()),
        "error beyond 4 deviations, mean": float(error[distance > 4].mean()),
        "share of the data beyond 4 deviations": float((torch.cdist(x, target.means).amin(1) > 4).float().mean()),
        "share of the square beyond 4 deviations": float((distance > 4).float().mean()),
    }
    return numbers, (target, learned, x, side, error)


def draw(numbers: dict[str, Any], parts: Any) -> Figure:
    target, learned, x, side, error = parts
    figure = canvas(12.4, 4.2)
    axes = figure.subplots(1, 3, sharey=True)
    for ax, energy, name in (
        (axes[0], target, "true score"),
        (axes[1], learned, f"score estimated from {len(x)} draws"),
    ):
        plots.landscape(target, ax, EXTENT, show="density", bar=False)
        plots.score_field(energy, ax, EXTENT, points=22)
        title(ax, name)
    picture = error.reshape(len(side), len(side)).T.clamp(max=1)
    drawn = axes[2].contourf(side, side, picture, levels=torch.linspace(0, 1, 21).tolist(), cmap="magma")
    axes[2].scatter(*x[:1000].T.numpy(), s=2, color="white", alpha=0.5, linewidths=0)
    figure.colorbar(drawn, ax=axes[2], ticks=[0, 0.25, 0.5, 0.75, 1], label="‖ŝ - s‖ / (‖s‖ + 1), cut at 1")
    axes[2].set_xlabel("$x_1$")
    title(
        tidy(axes[2], grid=None),
        f"error: {numbers['error within 2 deviations of a mode, mean']:.2f} near a mode, "
        f"{numbers['error beyond 4 deviations, mean']:.2f} beyond 4 deviations",
    )
    for ax in axes:
        frame(ax, EXTENT)
        ax.set_ylabel("$x_2$" if ax is axes[0] else "")
    return figure


if __name__ == "__main__":
    main(__doc__, "low_density", compute, draw)
