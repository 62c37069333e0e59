"""Composing trained energies: and, or, not of two densities of the plane, without training anything again.

    python examples/figures/composition.py --out out/figures

Two networks are trained apart by noise-contrastive estimation, one on a ring, one on a blob. Their energies are then
put together: the sum is a product of densities (ring *and* blob: the arc inside the blob); the mixture of the
normalized densities is ring *or* blob, for which each log Z is needed and found by quadrature; the difference is ring
and *not* blob: the ring without the arc. Every composition is an energy like any other, sampled by MALA (dots); the
share of draws inside the blob moves as the words say. With a factor on what is negated: E₁ - αE₂ must stay
normalizable, here α = 0.15, and both networks carry a quadratic confinement that leaves it so.

Reference: Hinton 2002 (products of experts); Du, Li & Mordatch 2020 (composition of energies).
"""

import math
from typing import Any

import torch
from drawing import canvas, frame, main, title
from matplotlib.figure import Figure

import gibbsian as gb
from gibbsian import energies, kernels, objectives, partition, plots
from gibbsian.drawing.style import color

EXTENT = (-4.5, 4.5, -4.5, 4.5)
CENTRE, DEVIATION, RADIUS = torch.tensor([2.0, 0.0]), 0.8, 2.2
ALPHA = 0.15


def ring(n: int, g: torch.Generator) -> torch.Tensor:
    angle = 2 * math.pi * torch.rand(n, generator=g)
    return RADIUS * torch.stack([angle.cos(), angle.sin()], 1) + 0.25 * torch.randn(n, 2, generator=g)


def blob(n: int, g: torch.Generator) -> torch.Tensor:
    return CENTRE + DEVIATION * torch.randn(n, 2, generator=g)


def inside(x: torch.Tensor) -> tuple[float, float]:
    """The share of draws within two deviations of the blob's center, and its standard error."""
    q = float(((x - CENTRE).norm(dim=1) < 2 * DEVIATION).double().mean())
    return q, math.sqrt(q * (1 - q) / len(x))


def train(x: torch.Tensor, quick: bool) -> gb.Energy:
    energy = energies.MLPEnergy(2, hidden=(64, 64), confine=0.3)
    wide = energies.Gaussian(torch.zeros(2), 6 * torch.eye(2))  # noise everywhere: the tails are learned as well
    gb.fit(
        energy,
        objectives.NoiseContrastive(wide, ratio=4),
        x,
        steps=200 if quick else 4000,
        batch_size=256,
        lr=5e-3,
        schedule="cosine",
    )
    return energy


def compute(quick: bool) -> tuple[dict[str, Any], Any]:
    g = gb.random.stream(0, "composition")
    n = 4000 if quick else 20_000
    a, b = train(ring(n, g), quick), train(blob(n, g), quick)
    log_z = [partition.quadrature(part, tolerance=1e-4).value for part in (a, b)]
    composed = {
        "ring": a,
        "blob": b,
        "ring and blob": a + b,
        "ring or blob": gb.mixture([a, b], [0.5, 0.5], log_z=log_z),
        "ring, not blob": a - ALPHA * b,
    }
    numbers: dict[str, Any] = {}
    draws = {}
    chains, steps = (500, 100) if quick else (2000, 1000)
    side = torch.linspace(-6, 6, 301)
    grid = torch.cartesian_prod(side, side)
    for name, energy in composed.items():
        start = 3 * torch.randn(chains, 2, generator=g)
        draws[name] = gb.sample(energy, kernels.MALA(0.25), start, steps=steps, keep=False, generator=g).last
        with torch.no_grad():
            p = torch.softmax(-energy(grid), 0)
        numbers[f"{name}: share in the blob, draws"] = inside(draws[name])
        numbers[f"{name}: share in the blob, on a grid"] = float(p[(grid - CENTRE).norm(dim=1) < 2 * DEVIATION].sum())
    return numbers, (composed, draws)


def draw(numbers: dict[str, Any], parts: Any) -> Figure:
    composed, draws = parts
    figure = canvas(13, 3.4)
    formulas = ("$E_1$, trained", "$E_2$, trained", "$E_1 + E_2$", "$½p_1 + ½p_2$", f"$E_1 - {ALPHA}E_2$")
    for i, (ax, (name, energy)) in enumerate(zip(figure.subplots(1, 5, sharey=True), composed.items(), strict=True)):
        plots.landscape(energy, ax, EXTENT, show="density", bar=False, points=110)
        ax.scatter(*draws[name][:350].T.numpy(), s=4, color=color(1), alpha=0.7, linewidths=0)
        frame(ax, EXTENT)
        ax.set_ylabel("$x_2$" if i == 0 else "")
        share, _ = numbers[f"{name}: share in the blob, draws"]
        title(ax, f"{name}: {formulas[i]}\n{100 * share:.0f} % of draws in the blob")
    return figure


if __name__ == "__main__":
    main(__doc__, "composition", compute, draw)
