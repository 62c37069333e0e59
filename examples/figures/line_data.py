"""Score matching on data that lie on a line, without noise and with noise of variance 1e-4: the loss has no minimum, or has one.

    python examples/figures/line_data.py --out out/figures

Points on a line in the plane have no density there. Implicit score matching can then sink without end: across the line
the data have no spread, so the sharper the model, the lower tr ∇s, and nothing in ½‖s‖² pays for it. A little noise
makes the density exist. For a Gaussian model everything is known: the minimum is -½ tr Σ̂⁻¹, Σ̂ the second moments of the
sample, which is finite with noise and -∞ without (middle). A neural energy behaves alike (right); it
gets fresh noise on every batch, for to a network a fixed noisy sample is again a set of points without density. The
loss is negative, so its size is shown: up is down.

Reference: Song & Ermon 2019, section 3.1 and figure 1 (there on images).
"""

import math
from typing import Any

import torch
from drawing import canvas, main, title
from matplotlib.figure import Figure

import gibbsian as gb
from gibbsian import energies, objectives
from gibbsian.drawing.style import color, tidy
from gibbsian.training import Logging

NOISE = 1e-4  # variance
NAMES = ("on the line", "with noise")


def perturb(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Fresh noise on every batch."""
    return x + math.sqrt(NOISE) * torch.randn(x.shape, generator=generator, dtype=x.dtype)


def losses(energy: gb.Energy, x: torch.Tensor, **options: Any) -> list[tuple[int, float]]:
    """The loss along the training; no guard, since it would rescue what is to be seen."""
    run = gb.fit(energy, objectives.ImplicitScoreMatching(), x, logging=Logging(every=10), guard=False, **options)
    return [(record["step"], record["loss"]) for record in run.history if "loss" in record]


def compute(quick: bool) -> tuple[dict[str, Any], Any]:
    g = gb.random.stream(0, "line")
    t = torch.randn(500, 1, generator=g, dtype=torch.float64)
    line = torch.cat([t, torch.zeros_like(t)], 1)  # turned for the picture only: rounding would be noise as well
    noisy = perturb(line, g)
    whole: dict[str, Any] = {"steps": 400 if quick else 1000, "batch_size": len(t), "lr": 0.01 if quick else 0.005}
    parts: dict[str, Any] = {"steps": 150 if quick else 3000, "batch_size": 100, "lr": 5e-3}
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {"Gaussian": {}, "network": {}}
    for name, x in zip(NAMES, (line, noisy), strict=True):
        gaussian = energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True).double()
        curves["Gaussian"][name] = losses(gaussian, x, **whole)
        network = energies.MLPEnergy(2, hidden=(32, 32), confine=1.0).double()
        transform = None if name == NAMES[0] else perturb
        curves["network"][name] = losses(network, line, transform=transform, **parts)
    moments = torch.linalg.inv(noisy.T.cov(correction=0))
    numbers: dict[str, Any] = {"Gaussian, minimum with noise": -0.5 * float(moments.trace())}
    for model, found in curves.items():
        for name, curve in found.items():
            numbers[f"{model}, {name}: halfway"] = curve[len(curve) // 2][1]
            numbers[f"{model}, {name}: at the end"] = curve[-1][1]
    return numbers, (line, noisy, curves)


def draw(numbers: dict[str, Any], parts: Any) -> Figure:
    line, noisy, curves = parts
    figure = canvas(12, 4.0)
    axes = figure.subplots(1, 3, width_ratios=[1.05, 1.15, 1.15])
    turn = torch.tensor([[math.cos(0.6), math.sin(0.6)], [-math.sin(0.6), math.cos(0.6)]], dtype=torch.float64)
    inset = axes[0].inset_axes((0.56, 0.05, 0.38, 0.38))
    for ax in (axes[0], inset):
        for i, x in enumerate((line, noisy)):
            ax.scatter(*(x @ turn).T.numpy(), s=5, color=color(1 - i), alpha=0.7, linewidths=0)
        tidy(ax, grid=None)
    inset.set(xlim=(-0.1, 0.1), ylim=(-0.1, 0.1), xticks=[], yticks=[])
    axes[0].set(xlabel="$x_1$", ylabel="$x_2$", xlim=(-3, 3), ylim=(-3, 3))
    axes[0].set_aspect("equal")
    axes[0].indicate_inset_zoom(inset, edgecolor="0.5")
    title(axes[0], f"500 points, and noise of variance {NOISE:g}")
    for ax, found in zip(axes[1:], curves.values(), strict=True):
        for i, name in enumerate(NAMES):
            steps, values = zip(*[(s, -v) for s, v in found[name] if v < 0], strict=True)
            ax.plot(steps, values, color=color(1 - i), linewidth=1.6, label=name)
        ax.set(yscale="log", xlabel="step", ylabel="minus the loss")
        tidy(ax)
    minimum = -numbers["Gaussian, minimum with noise"]
    for ax in axes[1:]:
        ax.axhline(minimum, color="0.3", linewidth=0.9, linestyle="dashed")
    axes[1].text(480, minimum / 6, "½ tr Σ̂⁻¹ of the noisy sample", color="0.35", fontsize=8)
    axes[1].legend(frameon=False, fontsize=9, loc="upper left")
    title(axes[1], "Gaussian with trained mean and precision")
    title(axes[2], "neural energy")
    return figure


if __name__ == "__main__":
    main(__doc__, "line_data", compute, draw)
