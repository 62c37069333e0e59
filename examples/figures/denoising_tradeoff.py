"""Denoising score matching trades bias against variance: the noise level σ, with closed forms overlaid.

    python examples/figures/denoising_tradeoff.py --out out/figures

Data x₁…x_n ~ N(0, v), model score s(x) = -λx, true λ = 1/v. With one noise ε per datum the minimizer of the objective
is λ̂ = Σ x̃ε/σ / Σ x̃². Given x̃ the noise is N(σx̃/w, v/w) with w = v + σ², from which, for every n > 2,

    E λ̂ = 1/w,   bias² = (σ²/(v w))²,   Var λ̂ = v / (σ² w² (n - 2)).

Small noise: a noisy target, variance ∝ 1/σ². Large noise: the score of the blurred data instead of the data's. The
best σ lies between and moves towards 0 as n grows. Thousands of data sets are fitted at once: one coordinate each.

Reference: Vincent 2011.
"""

from typing import Any

import torch
from drawing import canvas, main, title
from matplotlib.figure import Figure

import gibbsian as gb
from gibbsian import domains, objectives
from gibbsian.drawing.style import color, tidy

N, V = 100, 1.0


class Precisions(gb.Energy):
    """½ Σ λᵢxᵢ²: as many one-dimensional models as there are coordinates, which do not meet."""

    def __init__(self, count: int) -> None:
        super().__init__(domains.Real(count))
        self.precision = torch.nn.Parameter(torch.zeros(count, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * (self.precision * x.square()).sum(1)


def fitted(sigma: float, repeats: int, g: torch.Generator) -> torch.Tensor:
    """The minimizer λ̂ of the objective in every data set: its gradient is linear in λ, so two of them tell."""
    x = V**0.5 * torch.randn(N, repeats, generator=g, dtype=torch.float64)
    model, objective = Precisions(repeats), objectives.DenoisingScoreMatching(sigma)
    before, gradients = g.get_state(), []
    for value in (0.0, 1.0):
        g.set_state(before)  # the same noise both times
        model.precision.data.fill_(value)
        (gradient,) = torch.autograd.grad(objective(model, x, (), g).value, model.precision)
        gradients.append(gradient)
    return -gradients[0] / (gradients[1] - gradients[0])


def closed_form(sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """bias² and variance of λ̂."""
    w = V + sigma**2
    return (sigma**2 / (V * w)) ** 2, V / (sigma**2 * w**2 * (N - 2))


def compute(quick: bool) -> tuple[dict[str, Any], Any]:
    g = gb.random.stream(0, "denoising")
    repeats = 2000 if quick else 20_000
    sigmas = torch.logspace(-1.5, 0.5, 5 if quick else 13, dtype=torch.float64)
    estimates = [fitted(float(sigma), repeats, g) for sigma in sigmas]
    bias = torch.stack([e.mean() for e in estimates]) - 1 / V
    variance = torch.stack([e.var() for e in estimates])
    squares, spread = closed_form(sigmas)
    fine = torch.logspace(-1.5, 0.5, 400, dtype=torch.float64)
    best = fine[sum(closed_form(fine)).argmin()]
    numbers: dict[str, Any] = {}
    for i, sigma in enumerate(sigmas):
        numbers[f"σ = {sigma:.3f}: bias² (closed form {squares[i]:.3g})"] = float(bias[i] ** 2)
        numbers[f"σ = {sigma:.3f}: variance (closed form {spread[i]:.3g})"] = float(variance[i])
    numbers["largest error of a bias, in standard errors"] = float(
        ((bias + squares.sqrt()).abs() / (variance / repeats).sqrt()).max()
    )
    numbers["largest relative error of a variance"] = float((variance / spread - 1).abs().max())
    numbers["data sets"] = repeats
    numbers["best σ"] = float(best)
    return numbers, (sigmas, bias, variance, best, g)


def draw(numbers: dict[str, Any], parts: Any) -> Figure:
    sigmas, bias, variance, best, g = parts
    figure = canvas(11.5, 4.2)
    axes = figure.subplots(1, 4, width_ratios=[2, 1, 1, 1])
    fine = torch.logspace(-1.5, 0.5, 400, dtype=torch.float64)
    squares, spread = closed_form(fine)
    for i, (name, dots, curve) in enumerate(
        (
            ("bias²", bias**2, squares),
            ("variance", variance, spread),
            ("mean squared error", bias**2 + variance, squares + spread),
        )
    ):
        axes[0].plot(fine, curve, color=color(i), linewidth=1.4)
        told = (
            dots > 9 * variance / numbers["data sets"] if name == "bias²" else torch.ones(len(dots), dtype=torch.bool)
        )
        axes[0].scatter(sigmas[told], dots[told], color=color(i), s=18, zorder=3, label=name)
        axes[0].scatter(sigmas[~told], dots[~told], edgecolors=color(i), facecolors="white", s=18, zorder=3)
    axes[0].axvline(float(best), color="0.6", linewidth=0.9, linestyle="dashed")
    axes[0].set(xscale="log", yscale="log", xlabel="σ", ylim=(5e-7, 30))
    axes[0].legend(frameon=False, fontsize=9, loc="upper center")
    title(tidy(axes[0], grid="both"), f"error of λ̂, n = {N}: measured (dots), closed form (lines)")
    axes[0].text(0.15, 7.5e-7, "hollow: within 3 standard errors of 0", color="0.4", fontsize=8)
    x = torch.linspace(-2.5, 2.5, 2, dtype=torch.float64)
    for ax, sigma, name in zip(axes[1:], (0.05, float(best), 2.0), ("too small", "best", "too large"), strict=True):
        for slope in fitted(sigma, 40, g):
            ax.plot(x, -slope * x, color=color(0), linewidth=0.7, alpha=0.5)
        ax.plot(x, -x / V, color="0.1", linewidth=1.8)
        ax.set(xlabel="x", ylim=(-5, 5), ylabel="score" if name == "too small" else "")
        title(tidy(ax, grid="both"), f"σ = {sigma:.2f}, {name}")
    return figure


if __name__ == "__main__":
    main(__doc__, "denoising_tradeoff", compute, draw)
