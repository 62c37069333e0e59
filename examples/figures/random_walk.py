"""Random-walk Metropolis on a density with two humps: a proposal that is too small, right, and too large.

    python examples/figures/random_walk.py --out out/figures

Target: 3·exp(-(x+2)²/2) + exp(-(x-4)²/8), which is 0.6 N(-2, 1) + 0.4 N(4, 4) unnormalized. Four chains start in the
left hump. Look at the left panels for how the chain moves and at the right ones for what that does to the histogram:
small steps are nearly all accepted and hardly cross, huge ones stand still for long, those of about the width of the
whole target cross often. The acceptance rate alone does not tell; the effective sample size does.

Reference: Metropolis et al. 1953; Roberts, Gelman & Gilks 1997 (scaling of the proposal).
"""

from typing import Any

import torch
from drawing import canvas, main, title
from matplotlib.figure import Figure

import gibbsian as gb
from gibbsian import energies, kernels, plots
from gibbsian.drawing.style import color, tidy

SCALES = {"too small": 0.15, "good": 7.0, "too large": 150.0}
CUT = 1.0  # between the humps


def compute(quick: bool) -> tuple[dict[str, Any], Any]:
    target = energies.Bimodal()
    g = gb.random.stream(0, "random walk")
    steps = 1000 if quick else 5000
    left, right = torch.distributions.Normal(-2.0, 1.0), torch.distributions.Normal(4.0, 2.0)
    at = torch.tensor(CUT)
    numbers: dict[str, Any] = {"P(x > 1), exact": 1 - float(0.6 * left.cdf(at) + 0.4 * right.cdf(at))}
    runs = {}
    for name, scale in SCALES.items():
        trace = gb.sample(target, kernels.RandomWalk(scale), torch.full((4, 1), -2.0), steps=steps, generator=g)
        summary = trace.summary()
        numbers[f"{name}: step"] = scale
        numbers[f"{name}: acceptance"] = float(trace.acceptance)
        numbers[f"{name}: effective draws"] = float(summary["ess"].min())
        numbers[f"{name}: R-hat"] = float(summary["r_hat"].max())
        numbers[f"{name}: share above 1"] = float((trace.samples > CUT).float().mean())
        runs[name] = trace.samples
    numbers["draws of each"] = 4 * steps
    return numbers, (target, runs)


def draw(numbers: dict[str, Any], parts: Any) -> Figure:
    target, runs = parts
    figure = canvas(11, 7.2)
    axes = figure.subplots(3, 2, width_ratios=[2.6, 1])
    grid = torch.linspace(-8, 12, 400)
    density = torch.exp(-target(grid[:, None]) - target.log_z())
    for row, (name, draws), i in zip(axes, runs.items(), range(3), strict=True):
        shown = draws[:1500, :1]
        plots.traces(shown, row[0])
        row[0].lines[0].set_color(color(i))
        row[0].set(ylim=(-8, 12), ylabel="x", xlabel="step of the first chain" if i == 2 else "")
        title(
            row[0],
            f"{name}: proposal N(x, {SCALES[name]:g}²), acceptance {numbers[f'{name}: acceptance']:.2f}, "
            f"{numbers[f'{name}: effective draws']:.0f} effective of {numbers['draws of each']} draws",
        )
        row[1].hist(draws.flatten().numpy(), bins=60, range=(-8, 12), density=True, color=color(i), alpha=0.5)
        row[1].plot(grid.numpy(), density.numpy(), color="0.15", linewidth=1.4)
        row[1].set(xlim=(-8, 12), ylim=(0, 0.42), yticks=[], xlabel="x" if i == 2 else "")
        tidy(row[1], grid=None)
        title(row[1], "all four chains, and the density")
    return figure


if __name__ == "__main__":
    main(__doc__, "random_walk", compute, draw)
