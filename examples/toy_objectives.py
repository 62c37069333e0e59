"""Nine learning principles on five laws of the plane: which densities do they learn?

    python examples/toy_objectives.py --out out/toy_objectives --jobs 2

One network (an MLP with quadratic confinement) is trained on 20000 points of every law by contrastive divergence,
persistent contrastive divergence, denoising and sliced score matching, noise-contrastive estimation, adversarial
training, energy discrepancy, energy matching and recovery likelihood. What is judged is the learned density and not how well a chain
mixes: the draws that are compared come from the density itself, tabulated on a grid. Principles that have a way of their own
to draw (`run.draw`: down the flow, down the ladder) are judged by those draws as well. The yardstick is the MMD between two held-out samples of the same size; a
principle passes with less than twice that. Writes a picture of all densities and a table, and keeps the densities: later calls add to them, and
`--redraw` draws them again.
"""

import argparse
import dataclasses
import json
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib
import torch
from safetensors.torch import load_file, save_file

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gibbsian as gb
from gibbsian import domains, energies, kernels, metrics, models, objectives, schedules
from gibbsian.data import toy

LAWS = ("moons", "rings", "eight_gaussians", "checkerboard", "pinwheel")
HELD_OUT = 2000
DRAWS = 20  # of the density, in a principle's own way, and of the law itself, whose distances are averaged
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
        "discrepancy": (
            objectives.EnergyDiscrepancy(t=0.5, negatives=8),
            {"steps": 4000, "lr": 2e-3, "schedule": "cosine"},
        ),
        "matching": (
            # noise as wide as the data, so that every way in is learned; chains from data alone, which are at home there: short ones
            # from noise, or the flow on its way, would bend the energy; jumps between modes, which Langevin steps do not cross
            objectives.EnergyMatching(
                temperature=0.1, step_size=0.02, steps=20, flow_steps=0.2, flow_weight=0.0, data_share=1.0, jump_every=2,
                noise="gaussian", time=4.0,
            ),
            {"steps": 6000, "lr": 2e-3, "schedule": "cosine", "batch_size": 128},
        ),
        "recovery": (
            objectives.RecoveryLikelihood(steps=20, step_size=0.3),
            {"steps": 2400, "lr": 1e-3, "schedule": "cosine", "batch_size": 128},
        ),
    }  # fmt: skip


def on_gpu(objective: objectives.Objective) -> objectives.Objective:
    """Pairs are found on the device there, so that steps can be captured."""
    matching = isinstance(objective, objectives.EnergyMatching)
    return dataclasses.replace(objective, pairing="sinkhorn") if matching else objective


def model(name: str, seed: int) -> gb.Energy:
    """The network, confined at the scale of the energies that the principle learns."""
    g = gb.random.stream(seed, "net")
    if name == "recovery":
        ladder = torch.cat([schedules.recovery_ladder(6, 1.7)[:-1], torch.tensor([0.05])])
        net = models.LevelEnergy(energies.MLP(3, (128, 128, 128), generator=g), spread=1.7)
        return models.NoiseConditionalEnergy(net, domains.Real(2), ladder)
    return energies.MLPEnergy(2, (128, 128, 128), confine=5.0 if name == "matching" else 0.1, generator=g)


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


def own_draws(run: gb.training.Run, held_out: torch.Tensor, seed: int) -> float | None:
    """MMD of draws in the principle's own way, the mean over some of them; None where it has none."""
    try:
        drawn = [run.draw(HELD_OUT, generator=gb.random.stream(seed, f"own {i}")) for i in range(DRAWS)]
    except gb.errors.CapabilityError:
        return None
    return statistics.fmean(distance(x, held_out) for x in drawn)


def one(law: str, name: str, seed: int, quick: float) -> dict:
    """Train, tabulate, compare."""
    torch.set_num_threads(1)
    stream = gb.random.stream
    data = toy(law, 20_000, generator=stream(seed, "data"))
    held_out, other = (toy(law, HELD_OUT, generator=stream(seed, s)) for s in ("held-out", "other"))
    energy = model(name, seed)
    objective, how = principles()[name]
    how = {"batch_size": 256, **how, "steps": max(20, int(how["steps"] * quick))}
    if torch.cuda.is_available():
        objective, how["device"], how["engine"] = on_gpu(objective), "cuda", gb.training.Engine(compile=True)
    begun, worked = time.perf_counter(), time.process_time()
    run = gb.fit(energy, objective, data, seed=seed, ema=0.999, progress=False, **how)
    seconds, worked = time.perf_counter() - begun, time.process_time() - worked
    run.energy, run.ema = run.energy.cpu(), run.ema.cpu()
    others = [distance(toy(law, HELD_OUT, generator=stream(seed, f"other {i}")), held_out) for i in range(DRAWS)]
    table = tabulate(run.ema)
    inside = (held_out.abs() < EXTENT).all(1)
    index = ((held_out[inside] + EXTENT) / (2 * EXTENT) * CELLS).long()
    return {
        "law": law,
        "principle": name,
        "mmd": distance(draw(table, HELD_OUT, stream(seed, "draw")), held_out),
        "mmd_mean": statistics.fmean(
            distance(draw(table, HELD_OUT, stream(seed, f"draw {i}")), held_out) for i in range(DRAWS)
        ),
        "mmd_draws": DRAWS,
        "mmd_held_out": distance(other, held_out),
        "mmd_held_out_mean": statistics.fmean(others),
        "mmd_held_out_sd": statistics.stdev(others),
        "mmd_own_draws": own_draws(run, held_out, seed),
        "log_likelihood": float(table[index[:, 0], index[:, 1]].mean()),
        "rollbacks": sum(r.get("event") == "rollback" for r in run.history),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(worked, 1),
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
            own = "" if r["mmd_own_draws"] is None else f" ({r['mmd_own_draws'] / r['mmd_held_out_mean']:.2f})"
            ax.set_title(f"{name}: {r['mmd_mean'] / r['mmd_held_out_mean']:.2f}{own}", fontsize=9)
        for ax in row:
            ax.set(xticks=[], yticks=[], aspect="equal")
    axes[0][0].set_title("held-out data", fontsize=9)
    title = "learned densities; MMD to held-out data over the mean between held-out samples, that of a principle's own draws in brackets"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)


def saved(out: Path) -> list[dict]:
    """What earlier calls have found, with its tables."""
    if not (out / "tables.safetensors").exists():
        return []
    tables = load_file(out / "tables.safetensors")
    found = json.loads((out / "results.json").read_text())
    return [r | {"table": tables[f"{r['law']}/{r['principle']}"]} for r in found]


def save(results: list[dict], out: Path) -> None:
    """Figures as text, learned densities as tensors."""
    results = sorted(results, key=lambda r: (r["law"], r["principle"]))
    save_file({f"{r['law']}/{r['principle']}": r["table"].contiguous() for r in results}, out / "tables.safetensors")
    kept = [{k: v for k, v in r.items() if k != "table"} for r in results]
    (out / "results.json").write_text(json.dumps(kept, indent=1) + "\n")


def trained(options: argparse.Namespace, results: list[dict], out: Path) -> list[dict]:
    """Earlier results with those of this call, saved one by one."""
    with ProcessPoolExecutor(options.jobs) as pool:
        jobs = [
            pool.submit(one, law, name, options.seed, options.quick)
            for law in options.laws
            for name in options.principles
        ]
        for job in as_completed(jobs):
            r = job.result()
            results = [old for old in results if (old["law"], old["principle"]) != (r["law"], r["principle"])] + [r]
            save(results, out)
            own = r["mmd_own_draws"]
            print(
                f"{r['law']:16s} {r['principle']:12s} MMD {r['mmd']:.4f} = {r['mmd'] / r['mmd_held_out']:.2f} times held out; "
                + ("" if own is None else f"own draws {own / r['mmd_held_out_mean']:.2f}; ")
                + f"log-likelihood {r['log_likelihood']:.3f}; {r['seconds']:.0f} s, {r['rollbacks']} rollbacks",
                flush=True,
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--laws", nargs="*", default=list(LAWS))
    parser.add_argument("--principles", nargs="*", default=list(principles()))
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--quick", type=float, default=1.0, help="share of the steps to take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out/toy_objectives")
    parser.add_argument(
        "--redraw", action="store_true", help="draw what --out holds of earlier calls, and train nothing"
    )
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    results = saved(out)
    if not options.redraw:
        results = trained(options, results, out)
    picture(results, options.laws, options.principles, out / "toy_objectives.png")
    worst = max(results, key=lambda r: r["mmd"] / r["mmd_held_out"])
    print(f"worst: {worst['principle']} on {worst['law']}, {worst['mmd'] / worst['mmd_held_out']:.2f} times")


if __name__ == "__main__":
    main()
