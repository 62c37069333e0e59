"""The score field of a Gaussian mixture: the density, its exact score, and a score learned from draws alone.

    python examples/figures/mixture_score.py --out out/figures

Arrows point uphill, along s(x) = ∇ log p(x) = -∇E(x), darker where longer. The network has seen 20000 draws and no
score; implicit score matching needs none, and no partition function either. Compare the arrows where there is density:
they agree. In the corners, where there were no data, nothing ties the network down.

Reference: Hyvärinen 2005.
"""

from typing import Any

import torch
from drawing import canvas, frame, main, title
from matplotlib.figure import Figure

import gibbsian as gb
from gibbsian import energies, objectives, plots

EXTENT = (-4.0, 4.0, -4.0, 4.0)


def mixture() -> energies.GaussianMixture:
    means = torch.tensor([[-1.6, -1.0], [1.6, -1.0], [0.0, 1.7]])
    covariances = torch.tensor([[[0.6, 0.3], [0.3, 0.5]], [[0.6, -0.3], [-0.3, 0.5]], [[0.8, 0.0], [0.0, 0.3]]])
    return energies.GaussianMixture(means, covariances, [0.3, 0.3, 0.4])


def compute(quick: bool) -> tuple[dict[str, Any], Any]:
    g = gb.random.stream(0, "mixture score")
    target = mixture()
    x = target.sample(2000 if quick else 20_000, generator=g)
    learned = energies.MLPEnergy(2, hidden=(64, 64), confine=0.1)
    gb.fit(
        learned,
        objectives.ImplicitScoreMatching(),
        x,
        steps=150 if quick else 5000,
        batch_size=256,
        lr=5e-3,
        schedule="cosine",
    )
    fresh = target.sample(5000, generator=g)
    true, found = target.score(fresh), learned.score(fresh)
    size, error = true.square().sum(1).mean(), (found - true).square().sum(1).mean()
    numbers = {
        "E‖s‖² of the exact score": float(size),
        "E‖ŝ - s‖² of the learned one": float(error),
        "unexplained share": float(error / size),
        "mean cosine of the angle": float(torch.cosine_similarity(true, found).mean()),
    }
    return numbers, (target, learned, x)


def draw(numbers: dict[str, Any], parts: Any) -> Figure:
    target, learned, x = parts
    figure = canvas(10.5, 3.9)
    axes = figure.subplots(1, 3, sharey=True)
    plots.landscape(target, axes[0], EXTENT, show="density", bar=False)
    axes[0].scatter(*x[:800].T.numpy(), s=3, color="0.2", alpha=0.5, linewidths=0)
    title(axes[0], "density, and 800 of the draws")
    for ax, energy, name in (
        (axes[1], target, "exact score"),
        (axes[2], learned, f"learned score: {100 * numbers['unexplained share']:.1f} % of E‖s‖² unexplained"),
    ):
        plots.landscape(energy, ax, EXTENT, show="density", bar=False)
        plots.score_field(energy, ax, EXTENT, points=17)
        title(ax, name)
    for ax in axes:
        frame(ax, EXTENT)
        ax.set_ylabel("$x_2$" if ax is axes[0] else "")
    return figure


if __name__ == "__main__":
    main(__doc__, "mixture_score", compute, draw)
