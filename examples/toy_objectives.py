"""Six learning principles on five laws of the plane: which densities do they learn?

    python examples/toy_objectives.py --out out/toy_objectives --jobs 2

One network (an MLP with quadratic confinement) is trained on 20000 points of every law by contrastive divergence,
persistent contrastive divergence, denoising and sliced score matching, noise-contrastive estimation and adversarial
training. What is judged is the learned density and not how well a chain mixes: the draws that are compared come from
the density itself, tabulated on a grid. The yardstick is the MMD between two held-out samples of the same size; a
principle passes with less than twice that. Writes a picture of all densities and a table.
"""

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gibbsian as gb
from gibbsian import energies, kernels, metrics, objectives
from gibbsian.data import toy

LAWS = ("moons", "rings", "eight_gaussians", "checkerboard", "pinwheel")
HELD_OUT = 2000
EXTENT, CELLS = 5.0, 400


class Noisy:
    """Adds noise to every batch: score matching needs a density without cliffs, and modes that touch."""

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def __call__(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + self.sigma * torch.randn(x.shape, generator=generator, dtype=x.dtype)


def principles() -> dict[str, tuple[objectives.Objective, dict]]:
    """Objective and settings of `fit`, the same for every law."""
    return {
        "CD": (
            objectives.ContrastiveDivergence(kernels.MALA(0.25), steps=10),
            {"steps": 5000, "lr": 1e-3, "schedule": "cosine"},
        ),
        "PCD": (
            # chains do not cross between far modes: a fifth of them starts at data again
            objectives.PersistentContrastiveDivergence(
                kernels.MALA(0.3), steps=20, chains=256, buffer=4096, reinit=0.2, start="data"
            ),
            {"steps": 5000, "lr": 5e-4, "schedule": "cosine"},
        ),
        "denoising": (objectives.DenoisingScoreMatching(0.25), {"steps": 12000, "lr": 2e-3, "schedule": "cosine"}),
        "sliced": (
            objectives.SlicedScoreMatching(projections=1),
            {"steps": 12000, "lr": 2e-3, "schedule": "cosine", "transform": Noisy(0.2)},
        ),
        "NCE": (objectives.NoiseContrastive("mixture", ratio=4), {"steps": 6000, "lr": 2e-3, "schedule": "cosine"}),
        "adversarial": (
            # the energy learns ten times slower than the sampler, and smoothly, or the sampler loses modes
            objectives.Adversarial(objectives.FlowSampler(transforms=5, hidden=(128, 128)), gradient_penalty=0.1),
            {
                "steps": 6000,
                "lr": (2e-4, 2e-3),
                "schedule": "cosine",
                "optimizer": {"name": "adam", "betas": (0.0, 0.9)},
            },
        ),
    }


def tabulate(energy: gb.Energy) -> torch.Tensor:
    """log of the learned density on the grid, normalized there."""
    axis = (torch.arange(CELLS) + 0.5) / CELLS * 2 * EXTENT - EXTENT
    points = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        logits = -torch.cat([energy(part) for part in points.split(20_000)])
    return (logits - logits.logsumexp(0) - 2 * torch.tensor(2 * EXTENT / CELLS).log()).reshape(CELLS, CELLS)


def draw(log_density: torch.Tensor, n: int, generator: torch.Generator) -> torch.Tensor:
    """Draws from the table: a cell, and a place in it."""
    p = log_density.double().exp().flatten()
    cell = torch.multinomial(p, n, replacement=True, generator=generator)
    corner = torch.stack([cell // CELLS, cell % CELLS], 1) + torch.rand(n, 2, generator=generator)
    return corner / CELLS * 2 * EXTENT - EXTENT


def distance(x: torch.Tensor, y: torch.Tensor) -> float:
    return float(metrics.mmd(x, y, unbiased=False)) ** 0.5


def one(law: str, name: str, seed: int, quick: float) -> dict:
    """Train, tabulate, compare."""
    torch.set_num_threads(1)
    stream = gb.random.stream
    data = toy(law, 20_000, generator=stream(seed, "data"))
    held_out, other = (toy(law, HELD_OUT, generator=stream(seed, s)) for s in ("held-out", "other"))
    energy = energies.MLPEnergy(2, (128, 128, 128), confine=0.1, generator=stream(seed, "net"))
    objective, how = principles()[name]
    how = {**how, "steps": max(20, int(how["steps"] * quick))}
    begun = time.perf_counter()
    run = gb.fit(energy, objective, data, batch_size=256, seed=seed, ema=0.999, progress=False, **how)
    seconds = time.perf_counter() - begun
    table = tabulate(run.ema)
    inside = (held_out.abs() < EXTENT).all(1)
    index = ((held_out[inside] + EXTENT) / (2 * EXTENT) * CELLS).long()
    return {
        "law": law,
        "principle": name,
        "mmd": distance(draw(table, HELD_OUT, stream(seed, "draw")), held_out),
        "mmd_held_out": distance(other, held_out),
        "log_likelihood": float(table[index[:, 0], index[:, 1]].mean()),
        "rollbacks": sum(r.get("event") == "rollback" for r in run.history),
        "seconds": round(seconds, 1),
        "table": table.exp()[::2, ::2].half(),
    }


def picture(results: list[dict], laws: list[str], names: list[str], path: Path) -> None:
    figure, axes = plt.subplots(
        len(laws),
        len(names) + 1,
        figsize=(2.1 * (len(names) + 1), 2.2 * len(laws)),
        squeeze=False,
        layout="constrained",
    )
    for row, law in zip(axes, laws, strict=True):
        x = toy(law, 3000, generator=gb.random.stream(0, "held-out"))
        row[0].plot(*x.T, ".", ms=1, alpha=0.4, color="black")
        row[0].set(xlim=(-EXTENT, EXTENT), ylim=(-EXTENT, EXTENT), ylabel=law.replace("_", " "))
        found = {r["principle"]: r for r in results if r["law"] == law}
        for ax, name in zip(row[1:], names, strict=True):
            r = found[name]
            p = r["table"].float().T
            ax.imshow(
                p, extent=(-EXTENT, EXTENT) * 2, origin="lower", cmap="magma", vmax=float(p.flatten().quantile(0.995))
            )
            ax.set_title(f"{name}: {r['mmd'] / r['mmd_held_out']:.2f}", fontsize=9)
        for ax in row:
            ax.set(xticks=[], yticks=[], aspect="equal")
    axes[0][0].set_title("held-out data", fontsize=9)
    figure.suptitle("learned densities; MMD to held-out data over that between two held-out samples", fontsize=10)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--laws", nargs="*", default=list(LAWS))
    parser.add_argument("--principles", nargs="*", default=list(principles()))
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--quick", type=float, default=1.0, help="share of the steps to take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out/toy_objectives")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    results = []
    with ProcessPoolExecutor(options.jobs) as pool:
        jobs = [
            pool.submit(one, law, name, options.seed, options.quick)
            for law in options.laws
            for name in options.principles
        ]
        for job in as_completed(jobs):
            r = job.result()
            results.append(r)
            print(
                f"{r['law']:16s} {r['principle']:12s} MMD {r['mmd']:.4f} = {r['mmd'] / r['mmd_held_out']:.2f} times held out; "
                f"log-likelihood {r['log_likelihood']:.3f}; {r['seconds']:.0f} s, {r['rollbacks']} rollbacks",
                flush=True,
            )
    picture(results, options.laws, options.principles, out / "toy_objectives.png")
    kept = [
        {k: v for k, v in r.items() if k != "table"} for r in sorted(results, key=lambda r: (r["law"], r["principle"]))
    ]
    (out / "results.json").write_text(json.dumps(kept, indent=1) + "\n")
    worst = max(results, key=lambda r: r["mmd"] / r["mmd_held_out"])
    print(f"worst: {worst['principle']} on {worst['law']}, {worst['mmd'] / worst['mmd_held_out']:.2f} times")


if __name__ == "__main__":
    main()
