"""The moving picture of the README: chains on a landscape, and an RBM that learns handwritten digits.

    python examples/hero.py --out out/hero.webp

On the left sixty chains of Hamiltonian Monte Carlo find the wells of an energy. On the right an RBM of 784 × 256 units learns
binarized MNIST by persistent contrastive divergence: what its chains dream, and the held-out log-likelihood by annealed importance
sampling, with its interval, at the updates that are shown. Two minutes on one core; reads MNIST from $GIBBSIAN_DATA or fetches it. `--quick` runs it at a tiny size on the
embedded 8×8 digits.
"""

import argparse
import os
from io import BytesIO
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt
import torch
from PIL import Image

import gibbsian as gb
from gibbsian import data, energies, kernels, models, objectives, partition, plots

BACK, INK, LINE, WARM = "#0b2530", "#e8f1f2", "#7fd6c9", "#ffb454"
SHOWN = 40
UPDATES = (0, 10, 20, 40, 80, 150, 300, 600, 1000, 1600, 2500, 4000, 6000, 9000)


def landscape() -> gb.Energy:
    """Five wells on a ring and one in the middle, of different depth."""
    angle = torch.arange(5) * 2 * torch.pi / 5 + 0.3
    means = torch.cat([2.6 * torch.stack([angle.cos(), angle.sin()], 1), torch.zeros(1, 2)])
    widths = torch.tensor([0.25, 0.4, 0.3, 0.5, 0.2, 0.35])
    parts = [energies.Gaussian(m, w * torch.eye(2)) for m, w in zip(means, widths, strict=True)]
    return gb.mixture(parts, [0.2, 0.2, 0.15, 0.15, 0.15, 0.15])


def chains(energy: gb.Energy, frames: int, generator: torch.Generator) -> torch.Tensor:
    """Positions `(frames, 60, 2)`, a few leapfrog steps apart, from one corner."""
    start = torch.tensor([-4.2, 3.8]) + 0.3 * torch.randn(60, 2, generator=generator)
    kernel = kernels.HMC(0.12, leapfrog_steps=4)
    return gb.sample(energy, kernel, start, steps=frames, generator=generator).samples


def digits(quick: bool) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Training and held-out rows of bits, and the side of a picture."""
    if quick:
        x = data.binarize(data.load("digits").train.x.flatten(1).float() / 16, "threshold")
        return x[:1500], x[1500:], 8
    sets = data.load("mnist")
    g = torch.Generator().manual_seed(0)
    bits = [data.binarize(part.x.flatten(1).float() / 255, "sample", generator=g) for part in (sets.train, sets.test)]
    return bits[0], bits[1][:2000], 28


def learn(quick: bool, generator: torch.Generator) -> list[tuple[int, torch.Tensor, str]]:
    """Update, probabilities of the pixels of what chains dream, and the likelihood in words, at the updates shown."""
    train, test, side = digits(quick)
    rbm = models.RBM(side * side, 32 if quick else 256)
    rbm.initialize_visible_bias(train)
    objective = objectives.Centered(objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=1, chains=100))
    found: list[tuple[int, torch.Tensor, str]] = []

    def look(step: int, rows: torch.Tensor) -> None:
        rungs = 50 if quick else (1000 if step < 2500 else 4000)  # sharper laws need longer ladders
        log_z = partition.ais(rbm, data=train[:2000], chains=100, betas=rungs, generator=generator, progress=False)
        value = gb.log_likelihood(rbm, test, log_z)
        means = rbm.visible_mean(rbm.hidden_mean(rows[:SHOWN]))
        found.append((step, means.detach().clone(), f"{float(value.value):.1f} nats a digit held out"))

    look(0, (torch.rand(SHOWN, side * side, generator=generator) < train.mean(0)).float())
    shown = [step for step in UPDATES[1:] if not quick or step <= 20]
    hook = (shown, lambda run: look(run.step, run.chains))
    gb.fit(
        rbm,
        objective,
        train,
        steps=shown[-1],
        batch_size=100,
        lr=0.05,
        schedule="linear",
        optimizer="sgd",
        hooks=[hook],
        seed=0,
    )
    return found


def frame(
    axes: tuple, background: torch.Tensor, paths: torch.Tensor, at: int, dream: tuple[int, torch.Tensor, str], side: int
) -> None:
    """One picture: chains with their tails, and what the machine dreams."""
    left, right = axes
    for ax in axes:
        ax.clear()
        ax.set_xticks([])
        ax.set_yticks([])
        for spine in ax.spines.values():
            spine.set_visible(False)
    left.contourf(*background, levels=18, cmap="GnBu_r")
    tail = paths[max(0, at - 5) : at + 1]
    left.plot(tail[:, :, 0], tail[:, :, 1], color=WARM, lw=0.6, alpha=0.35)
    left.scatter(paths[at, :, 0], paths[at, :, 1], s=11, color=WARM, edgecolors=BACK, linewidths=0.4, zorder=3)
    left.set(xlim=(-5, 5), ylim=(-5, 5), aspect="equal")
    left.set_title("sample: chains on an energy", color=INK, fontsize=11)
    step, pixels, words = dream
    right.imshow(plots.tile(pixels.reshape(-1, side, side), 8), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    right.set_title(f"learn: an RBM after {step} updates, {words}", color=INK, fontsize=11)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="out/hero.webp")
    parser.add_argument("--quick", action="store_true", help="a tiny size, to see that it runs")
    options = parser.parse_args()
    g = torch.Generator().manual_seed(1)
    dreams = learn(options.quick, g)
    side = 8 if options.quick else 28
    energy, frames = landscape(), 5 * len(dreams)
    line = torch.linspace(-5, 5, 120)
    values = energy(torch.cartesian_prod(line, line)).reshape(120, 120).T.clamp(max=12)
    paths = chains(energy, frames, g)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 4.2), width_ratios=(1, 1.55), facecolor=BACK, layout="constrained")
    pictures = []
    for at in range(frames):
        frame(tuple(axes), (line, line, -values), paths, at, dreams[at // 5], side)
        buffer = BytesIO()
        figure.savefig(buffer, dpi=100, format="png", facecolor=BACK)
        pictures.append(Image.open(buffer).convert("RGB"))
    path = Path(options.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    waits = [140] * (frames - 1) + [2500]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=waits, loop=0, quality=55, method=6)
    for step, _, words in dreams:
        print(f"update {step:>5}: {words}")
    print(f"picture: {path}, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
