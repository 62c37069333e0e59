"""Plain Langevin against annealed Langevin on two far modes of weights 0.2 and 0.8: who finds the weights?

    python examples/figures/annealed_mixing.py --out out/figures

Target: 0.2 N((-5, -5), I) + 0.8 N((5, 5), I), with exact scores, so that nothing but the sampler is judged. Chains
start uniformly in [-8, 8]². Plain Langevin goes to the nearer mode and stays: half of the chains each, whatever the
weights. Annealed Langevin walks down a ladder of ten noise levels from 20 to 1, a hundred steps each: at high noise the
modes are one, and they part with nearly the right weights. Because the distance along the line through the modes is a
Markov chain of its own, the share that annealing must reach is also computed without sampling, on a grid; it is 0.78
and not 0.80 because the chains no longer cross from a level on at which the blurred modes still overlap.

Reference: Song & Ermon 2019, section 3.2.2 and figure 3.
"""

import math
from typing import Any

import torch
from drawing import canvas, frame, main, title
from matplotlib.figure import Figure

import gibbsian as gb
from gibbsian import domains, energies, kernels, models, plots, schedules
from gibbsian.drawing.style import color, tidy

MEANS, WEIGHTS = torch.tensor([[-5.0, -5.0], [5.0, 5.0]]), [0.2, 0.8]
LADDER = schedules.geometric(20.0, 1.0, 10)
STEPS, EPSILON = 100, 0.1  # steps a level, and ε, the variance of a step at the last one
EXTENT = (-11.0, 11.0, -11.0, 11.0)


class Blurred(torch.nn.Module):
    """The exact score of the mixture with noise σ added."""

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        variance, means = 1 + sigma[:, None] ** 2, MEANS.to(x)
        log_p = -0.5 * (x[:, None] - means).square().sum(2) / variance + x.new_tensor(WEIGHTS).log()
        return (torch.softmax(log_p, 1) @ means - x) / variance


def exact_share(cell: float = 0.3, cells: int = 350) -> list[float]:
    """P(a chain is nearer to the mode of weight 0.8) after every level, by pushing the law through the transitions.

    Along u = (x₁ + x₂)/√2 the modes are at ±5√2 and the dynamics do not see the other coordinate. A uniform start
    in the square [-8, 8]² is the triangle on ±8√2.
    """
    u = cell * torch.arange(-cells, cells + 1, dtype=torch.float64)  # five deviations at the highest noise
    p = (8 * math.sqrt(2) - u.abs()).clamp(min=0)
    p, mode = p / p.sum(), 5 * math.sqrt(2)
    shares = []
    for sigma in LADDER.double():
        variance, alpha = 1 + sigma**2, EPSILON * sigma**2 / LADDER[-1] ** 2
        # softmax over the two modes: a logistic in u
        right = torch.sigmoid(math.log(WEIGHTS[1] / WEIGHTS[0]) + 2 * mode * u / variance)
        center = u + alpha / 2 * (mode * (2 * right - 1) - u) / variance
        move = torch.softmax(-0.5 * (u - center[:, None]).square() / alpha, 1)
        for _ in range(STEPS):
            p = p @ move
        shares.append(float(p[u > 0].sum() + p[u == 0].sum() / 2))
    return shares


def share(x: torch.Tensor) -> tuple[float, float]:
    """The share of chains nearer to (5, 5), and its standard error."""
    q = float((x.sum(1) > 0).double().mean())
    return q, math.sqrt(q * (1 - q) / len(x))


def compute(quick: bool) -> tuple[dict[str, Any], Any]:
    g = gb.random.stream(0, "annealed")
    chains = 2000 if quick else 10_000
    target = energies.GaussianMixture(MEANS, 1.0, WEIGHTS)
    family = models.NoiseConditionalScore(Blurred(), domains.Real(2), LADDER)
    start = 16 * torch.rand(chains, 2, generator=g) - 8
    steps = len(LADDER) * STEPS
    plain = gb.sample(
        target, kernels.Langevin(math.sqrt(EPSILON)), start, steps=steps, thin=STEPS, burn_in=STEPS - 1, generator=g
    )
    annealed = gb.sample(
        family, kernels.AnnealedLangevin(STEPS, EPSILON), start, thin=STEPS, burn_in=STEPS - 1, generator=g
    )
    exact = exact_share()
    numbers: dict[str, Any] = {
        "share at (5, 5), target": WEIGHTS[1],
        "plain Langevin": share(plain.last),
        "annealed Langevin": share(annealed.last),
        "annealed Langevin, on a grid": exact[-1],
        "chains": chains,
        "steps": steps,
    }
    return numbers, (target, start, plain.samples, annealed.samples, exact)


def draw(numbers: dict[str, Any], parts: Any) -> Figure:
    target, start, plain, annealed, exact = parts
    figure = canvas(12.5, 3.8)
    axes = figure.subplots(1, 4, width_ratios=[1, 1, 1, 1.25])
    for ax, x, name in (
        (axes[0], target.sample(1000, generator=gb.random.stream(1, "annealed")), "exact draws: 0.80"),
        (axes[1], plain[-1], "plain Langevin: {:.3f} ± {:.3f}".format(*numbers["plain Langevin"])),
        (axes[2], annealed[-1], "annealed Langevin: {:.3f} ± {:.3f}".format(*numbers["annealed Langevin"])),
    ):
        plots.landscape(target, ax, EXTENT, show="density", bar=False)
        near = x[:1000].sum(1) > 0
        for rows, shade in ((x[:1000][near], color(1)), (x[:1000][~near], color(3))):
            ax.scatter(*rows.T.numpy(), s=4, color=shade, alpha=0.5, linewidths=0)
        title(frame(ax, EXTENT), name)
        if ax is not axes[0]:
            ax.set_ylabel("")
    ax = axes[3]
    level = torch.arange(len(LADDER) + 1)
    for i, (name, x) in enumerate((("plain", plain), ("annealed", annealed))):
        found = [share(y) for y in (start, *x)]
        ax.errorbar(
            level, [q for q, _ in found], [2 * e for _, e in found], color=color(i), marker="o", ms=3.5, label=name
        )
    ax.plot(level[1:], exact, color="0.15", linewidth=1, linestyle="dashed", label="annealed, on a grid")
    ax.axhline(WEIGHTS[1], color="0.6", linewidth=0.9)
    ax.text(0.1, WEIGHTS[1] + 0.008, "weight 0.8", color="0.4", fontsize=8)
    ax.set(xlabel="noise levels passed, 100 steps each", ylim=(0.42, 0.9), xticks=range(0, 11, 2))
    ax.legend(frameon=False, fontsize=8, loc="center right", bbox_to_anchor=(1, 0.42))
    title(tidy(ax), "share at (5, 5) ± 2 standard errors")
    return figure


if __name__ == "__main__":
    main(__doc__, "annealed_mixing", compute, draw)
