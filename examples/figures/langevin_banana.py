"""Langevin Monte Carlo on the banana, without and with the Metropolis test, against exact draws.

    python examples/figures/langevin_banana.py --out out/figures

Many independent chains start at the origin and only their last states are kept, so the draws are independent and the
permutation test of the maximum mean discrepancy is valid: p is uniform where the law is right. Unadjusted Langevin
(ULA) settles in a law of its own: at the large step the arms are cut off, x₂ has little more than half of its variance,
and a few chains fly off to infinity (they are counted and left out). At half the step the bias is about a quarter and
hides below what this many draws can show. The adjusted chain (MALA) takes the large step and
cannot be told from exact draws.

Reference: Roberts & Tweedie 1996; Gretton et al. 2012 (the test).
"""

import warnings
from typing import Any

import torch
from drawing import canvas, frame, main, title
from matplotlib.figure import Figure

import gibbsian as gb
from gibbsian import energies, kernels, metrics, plots
from gibbsian.drawing.style import color
from gibbsian.errors import DivergenceWarning

LARGE, SMALL = 0.6, 0.3
EXTENT = (-6.0, 6.0, -4.0, 10.0)
BANANA = energies.Banana(curvature=0.5, scale=1.5)
VARIANCE = 1 + 2 * 0.5**2 * 1.5**4  # of x₂


def compute(quick: bool) -> tuple[dict[str, Any], Any]:
    g = gb.random.stream(0, "banana")
    chains, permutations = (1000, 100) if quick else (4000, 500)
    draws = {"exact draws": BANANA.sample(chains, generator=g)}
    lost = {"exact draws": 0}
    for name, kernel, steps in (
        (f"ULA, ε = {LARGE}", kernels.Langevin(LARGE), 600),
        (f"ULA, ε = {SMALL}", kernels.Langevin(SMALL), 1200),
        (f"MALA, ε = {LARGE}", kernels.MALA(LARGE), 1000),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)  # lost chains are counted here
            last = gb.sample(BANANA, kernel, torch.zeros(chains, 2), steps=steps, keep=False, generator=g).last
        near = last.abs().amax(1) < 100  # false for NaN as well
        draws[name], lost[name] = last[near], int((~near).sum())
    numbers: dict[str, Any] = {"variance of x₂, exact": VARIANCE, "chains": chains}
    for name, x in draws.items():
        exact = BANANA.sample(chains, generator=g)
        test = metrics.two_sample_test(x, exact, permutations=permutations, generator=g)
        square = (x[:, 1] - x[:, 1].mean()).square()
        numbers[f"{name}: MMD²"] = float(test.value)
        numbers[f"{name}: p"] = test.p_value
        numbers[f"{name}: variance of x₂"] = float(square.mean()), float(square.std() / len(x) ** 0.5)
        numbers[f"{name}: chains lost"] = lost[name]
    return numbers, draws


def draw(numbers: dict[str, Any], draws: Any) -> Figure:
    figure = canvas(12, 4.4)
    for i, (ax, (name, x)) in enumerate(zip(figure.subplots(1, 4, sharey=True), draws.items(), strict=True)):
        plots.landscape(BANANA, ax, EXTENT, show="density", bar=False)
        ax.scatter(*x[:1500].T.numpy(), s=3, color=color(1), alpha=0.45, linewidths=0)
        frame(ax, EXTENT)
        ax.set_ylabel("$x_2$" if i == 0 else "")
        variance, error = numbers[f"{name}: variance of x₂"]
        title(
            ax,
            f"{name}\nMMD² {1000 * numbers[f'{name}: MMD²']:.2f}·10⁻³, p = {numbers[f'{name}: p']:.3f}\n"
            f"Var $x_2$ = {variance:.2f} ± {error:.2f} (exact {VARIANCE:.2f})",
        )
    return figure


if __name__ == "__main__":
    main(__doc__, "langevin_banana", compute, draw)
