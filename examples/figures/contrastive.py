"""Contrastive learning at work: the energy is pushed down at the data and up at the model's own samples.

    python examples/figures/contrastive.py --out out/figures

Data from 0.6 N(-2, 1) + 0.4 N(4, 4), a neural energy on the line, persistent contrastive divergence with MALA chains.
The gradient of the loss is ∇E at the data less ∇E at the chains. First panels: where there are more data than chains
(blue above orange) the energy goes down until the next panel, where there are more chains it goes up; when both agree
there is nothing left to push, and the energy has become -log p up to a constant. Last panel: the divergence between the
two laws along the training, by quadrature.

Reference: Hinton 2002; Tieleman 2008.
"""

import copy
from typing import Any

import torch
from drawing import canvas, main, title
from matplotlib.figure import Figure

import gibbsian as gb
from gibbsian import energies, kernels, objectives
from gibbsian.drawing.style import color, tidy
from gibbsian.training.run import Run

LOW, HIGH = -8.0, 12.0


def compute(quick: bool) -> tuple[dict[str, Any], Any]:
    g = gb.random.stream(0, "contrastive")
    target = energies.Bimodal()
    x = target.sample(1000 if quick else 10_000, generator=g)
    energy = energies.MLPEnergy(1, hidden=(64, 64), confine=0.1)
    shown = [0, 30, 100] if quick else [0, 30, 150, 1500]
    steps = shown[-1]
    kernel = kernels.MALA(1.5)
    chains = 500
    grid = torch.linspace(LOW, HIGH, 401)[:, None]
    true = -target(grid) - target.log_z()
    snapshots: list[tuple[int, gb.Energy, torch.Tensor]] = []
    divergences: list[float] = []
    # what the chains of the untrained model are: a hundred steps from its reference draws
    start = gb.sample(energy, kernel, energy.domain.sample(chains, generator=g), steps=100, keep=False, generator=g)
    snapshots.append((0, copy.deepcopy(energy), start.last))

    def look(run: Run) -> None:
        divergences.append(divergence(normalized(run.energy, grid), true, grid))
        if run.step in shown:
            snapshots.append((run.step, copy.deepcopy(run.energy), run.state.x.detach().clone()))

    gb.fit(
        energy,
        objectives.PersistentContrastiveDivergence(kernel, steps=20, chains=chains),
        x,
        steps=steps,
        batch_size=500,
        lr=2e-3,
        schedule="cosine",
        hooks=[look],
    )
    curves = [(step, normalized(model, grid), samples) for step, model, samples in snapshots]
    numbers: dict[str, Any] = {
        f"update {step}: KL(data ‖ model)": divergence(curve, true, grid) for step, curve, _ in curves
    }
    (_, before, samples), (_, after, _) = snapshots[:2]
    with torch.no_grad():  # both are shifted alike by a constant of the energy, so their difference is what counts
        at_data, at_chains = ((after(y) - before(y)).mean() for y in (x, samples))
    numbers[f"push of the first {shown[1]} updates, data less chains"] = float(at_data - at_chains)
    return numbers, (grid[:, 0], true, x, curves, divergences)


def normalized(energy: gb.Energy, grid: torch.Tensor) -> torch.Tensor:
    """-log p on the grid, normalized there."""
    with torch.no_grad():
        return -torch.log_softmax(-energy(grid), 0) + (grid[1, 0] - grid[0, 0]).log()


def divergence(curve: torch.Tensor, true: torch.Tensor, grid: torch.Tensor) -> float:
    """KL(data ‖ model) by a sum over the grid."""
    return float((true.exp() * (true + curve)).sum() * (grid[1, 0] - grid[0, 0]))


def draw(numbers: dict[str, Any], parts: Any) -> Figure:
    line, true, x, curves, divergences = parts
    figure = canvas(12.5, 4.6)
    columns = len(curves) + 1
    axes = figure.subplots(2, columns, height_ratios=[2, 1], sharex="col")
    for i, (step, curve, samples) in enumerate(curves):
        top, low = axes[0, i], axes[1, i]
        top.plot(line, -true, color="0.6", linewidth=1.2, linestyle="dashed", label="-log p of the data")
        top.plot(line, curve, color=color(2), linewidth=2, label="energy + log Z")
        if i + 1 < len(curves):
            after = curves[i + 1][1]
            for down, shade in ((after < curve, color(0)), (after > curve, color(1))):
                top.fill_between(line, curve, after, where=down.numpy(), color=shade, alpha=0.3, linewidth=0)
        top.set(ylim=(0.5, 9), xlim=(LOW, HIGH), ylabel="" if i else "energy + log Z")
        title(tidy(top), f"update {step}, KL {numbers[f'update {step}: KL(data ‖ model)']:.3f}")
        for y, shade, name in ((x, color(0), "data"), (samples, color(1), "chains")):
            low.hist(y[:, 0].numpy(), bins=40, range=(LOW, HIGH), density=True, color=shade, alpha=0.5, label=name)
        low.set(ylim=(0, 0.42), yticks=[], xlabel="x")
        tidy(low, grid=None)
    axes[0, -2].legend(frameon=False, fontsize=8, loc="upper center")
    axes[1, 0].legend(frameon=False, fontsize=8, loc="upper right")
    for ax in axes[:, -1]:
        ax.remove()
    last = figure.add_subplot(axes[0, 0].get_gridspec()[:, -1])
    last.plot(range(1, len(divergences) + 1), divergences, color=color(3), linewidth=1)
    last.set(xscale="log", yscale="log", xlabel="update")
    title(tidy(last), "KL(data ‖ model)")
    return figure


if __name__ == "__main__":
    main(__doc__, "contrastive", compute, draw)
