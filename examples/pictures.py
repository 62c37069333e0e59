"""The pictures of the README, in plain Python: an RBM on embedded digits with its likelihood, and four kernels.

    python examples/pictures.py [--out out/pictures]

About half a minute on two cores, no network. Writes pictures and prints where.
"""

import argparse
import os
import time
import warnings
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table

import gibbsian as gb
from gibbsian import data, energies, kernels, models, objectives, partition, plots


def digits(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """scikit-learn's 8×8 digits, binarized at half their range and split 1500 / 297."""
    x = data.load("digits").train.x.flatten(1).float() / 16
    x = data.binarize(x, "threshold")[torch.randperm(len(x), generator=generator)]
    return x[:1500], x[1500:]


def train_and_measure(out: Path, console: Console) -> list[Path]:
    g = gb.random.stream(0, "demo")
    train, test = digits(g)
    rbm = models.RBM(64, 100)
    rbm.initialize_visible_bias(train)
    objective = objectives.Centered(objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=5, chains=100))
    begun = time.perf_counter()
    run = gb.fit(
        rbm, objective, train, epochs=300, batch_size=100, lr=0.05, schedule="linear", optimizer="sgd", ema=0.999
    )
    model = run.ema
    seconds = time.perf_counter() - begun
    log_z = partition.ais(model, data=train, chains=200, betas=2000, generator=g)
    held_out, seen = gb.log_likelihood(model, test, log_z), gb.log_likelihood(model, train, log_z)
    table = Table(title="RBM 64 × 100 on scikit-learn's digits", show_header=False)
    table.add_row("training", f"{run.step} updates of centered persistent CD-5 in {seconds:.1f} s")
    table.add_row("log Z by AIS", f"{float(log_z.value):.2f} ± {float(log_z.stderr):.2f}")
    table.add_row("train log-likelihood", f"{float(seen.value):.2f} nats a digit")
    table.add_row(
        "held-out log-likelihood",
        f"{float(held_out.value):.2f}, in [{float(held_out.lower):.2f}, {float(held_out.upper):.2f}]",
    )
    table.add_row("independent pixels", f"{independent_pixels(train, test):.2f}")
    console.print(table)
    return [draw_machine(out, model, train, test, g), draw_kernels(out, g)]


def independent_pixels(train: torch.Tensor, test: torch.Tensor) -> float:
    """Held-out log-likelihood of the product of pixel frequencies: what the RBM must beat."""
    p = (train.sum(0) + 1) / (len(train) + 2)
    return float((test * p.log() + (1 - test) * (1 - p).log()).sum(1).mean())


def draw_machine(out: Path, rbm: models.RBM, train: torch.Tensor, test: torch.Tensor, g: torch.Generator) -> Path:
    """Filters, fantasies, and digits completed from their upper half."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.4))
    plots.filters(rbm, axes[0], shape=(8, 8))
    axes[0].set_title("filters")
    fantasies = gb.sample(rbm, kernels.Gibbs(), train[:49], steps=2000, keep=False, generator=g).last
    plots.samples(fantasies, axes[1], shape=(8, 8))
    axes[1].set_title("fantasies after 2000 Gibbs sweeps")
    clamp = torch.zeros(64, dtype=torch.bool)
    clamp[:32] = True
    shown = test[:16]
    cue = torch.where(clamp, shown, torch.zeros(()))
    completed = gb.sample(rbm, kernels.Gibbs(), cue, steps=200, clamp=clamp, keep=False, generator=g).last
    plots.samples(torch.stack([shown, cue, completed], 1).flatten(0, 1), axes[2], shape=(8, 8), columns=6)
    axes[2].set_title("held out, upper half given, completed")
    figure.tight_layout()
    path = out / "digits_rbm.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def draw_kernels(out: Path, g: torch.Generator) -> Path:
    """Four kernels on the banana, each after a warm-up that finds its step: one chain, and the effective draws of twenty."""
    banana = energies.Banana()
    side = torch.linspace(-5, 5, 200), torch.linspace(-5.5, 11, 240)
    heights = banana(torch.cartesian_prod(*side)).reshape(200, 240).T
    figure, axes = plt.subplots(
        2, 2, figsize=(8, 8), sharex=True, sharey=True, layout="constrained"
    )  # a phone is narrow
    choices = [kernels.RandomWalk(1.0), kernels.MALA(0.5), kernels.HMC(0.2, 25, jitter=0.3), kernels.NUTS(0.3)]
    wanted = [None, 0.7, 0.95, 0.95]  # smaller steps than usual: the arms are steep
    for ax, kernel, rate in zip(axes.flat, choices, wanted, strict=True):
        begin = torch.randn(20, 2, generator=g)
        warm = gb.warm_up(banana, kernel, begin, steps=500, mass=None, target_acceptance=rate, generator=g)
        trace = gb.sample(banana, warm.kernel, warm.trace, steps=400, generator=g)
        ax.contour(*side, heights, levels=[heights.min() + k for k in (1, 2, 4, 8)], colors="0.7", linewidths=0.8)
        chain = trace.samples[:, 0]
        ax.plot(chain[:, 0], chain[:, 1], lw=0.4, marker=".", ms=3, color="C0", alpha=0.8)
        ess = float(trace.summary()["ess"].min())
        ax.set_title(
            f"{type(kernel).__name__}, {kernel.tuned.replace('_', ' ')} {float(getattr(warm.kernel, kernel.tuned)):.2f}\n"
            f"acceptance {float(trace.acceptance):.2f}, {ess:.0f} effective draws of 8000",
            fontsize=11,
        )
        ax.set(xlim=(-5, 5), ylim=(-5.5, 11))
    figure.supxlabel("$x_1$")
    figure.supylabel("$x_2$")
    path = out / "kernels_on_a_banana.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="out/pictures")
    out = Path(parser.parse_args().out)
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    warnings.simplefilter("default")
    for path in train_and_measure(out, console):
        console.print(f"picture: {path}")


if __name__ == "__main__":
    main()
