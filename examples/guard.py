"""What the guard is for: a convolutional energy of MNIST digits, trained ten times too fast.

    GIBBSIAN_DATA=folder python examples/guard.py --out out/guard

The setting is the one that course notes use for this energy (four convolutions, 60 cold Langevin steps of size 10 with
noise 0.005, a buffer of 8192 with 5 % new chains, Adam with β₁ = 0), without what usually holds it together: no energy
penalty, no clipped gradients. At a rate of 1e-3 it still trains; --lr, 1e-2, is ten times that. First it runs without the
guard, then with it. Writes the curves of the energy gap with the rollbacks, and samples of both.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from mnist_rbm import read_gray

import gibbsian as gb
from gibbsian import domains, energies, errors, kernels, objectives, plots
from gibbsian.training import Engine


def jitter(batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A little noise, so that an energy cannot live on the exact black of the margin."""
    noise = torch.randn(batch.shape, generator=generator, device=batch.device, dtype=batch.dtype)
    return (batch + 0.005 * noise).clamp(-1, 1)


def train(data: torch.Tensor, options: argparse.Namespace, guard: bool) -> tuple[list[dict], torch.Tensor, str]:
    """History, sixty-four samples and how it ended."""
    energy = energies.ConvEnergy(
        domains.Box((1, options.side, options.side), -1.0, 1.0), generator=gb.random.stream(options.seed, "net")
    )
    energy.to(data.device)
    kernel = kernels.ShortRunLangevin(step_size=10.0, noise=0.005, clip=0.03)
    objective = objectives.PersistentContrastiveDivergence(
        kernel, steps=options.sampler_steps, chains=128, buffer=8192, reinit=0.05, penalty=options.penalty
    )
    records: list[dict] = []
    last: dict[str, torch.Tensor] = {}

    def watch(run: gb.training.Run) -> None:
        records.append({"step": run.step, "gap": float(run.metrics["gap"])})
        last["x"] = run.state.x[:64].clone()
        last["events"] = [r for r in run.history if "event" in r]

    ended = "reached the last step"
    try:
        gb.fit(
            energy,
            objective,
            data,
            steps=options.steps,
            batch_size=128,
            lr=options.lr,
            optimizer={"name": "adam", "betas": (0.0, 0.999)},
            schedule=options.schedule,
            clip=options.clip,
            seed=options.seed,
            transform=jitter,
            engine=Engine(compile=data.is_cuda),
            guard=guard,
            hooks=[(10, watch)],
        )
    except errors.DivergenceError as error:
        ended = f"DivergenceError: {error}"
    g = gb.random.stream(options.seed, "fresh", data.device)
    fresh = energy.domain.sample(64, generator=g)
    trace = gb.sample(energy, kernel, fresh, steps=options.fresh, keep=False, generator=g)
    events = last.get("events", [])
    return [*records, *events], torch.stack([last["x"], trace.last]).cpu(), ended


def draw_row(row: Any, name: str, curve: list, rollbacks: list[int], samples: torch.Tensor, fresh: int) -> None:
    """The gap of energies, on one scale in both rows, with the rollbacks; chains of the buffer; chains from noise."""
    row[0].plot(*zip(*curve, strict=True), lw=0.8)
    row[0].axhline(0, color="0.8", lw=0.8, zorder=0)
    row[0].set_yscale("symlog", linthresh=0.1)
    row[0].set(xlabel="update", ylabel="E(data) - E(samples)", title=name)
    for k, step in enumerate(rollbacks):
        row[0].axvline(step, color="tab:red", lw=0.9, ls=":", label=None if k else "rolled back")
    if rollbacks:
        row[0].legend(frameon=False)
    for ax, images, title in zip(row[1:], samples, ("chains in the buffer", f"{fresh} steps from noise"), strict=True):
        plots.image_grid((images[:, 0] + 1) / 2, ax=ax)
        ax.set_title(f"{title}, {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--penalty", type=float, default=0.0)
    parser.add_argument("--clip", type=float, help="largest norm of a gradient")
    parser.add_argument("--sampler-steps", type=int, default=60)
    parser.add_argument("--schedule", default=None)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--fresh", type=int, default=512, help="steps of chains that start from noise at the end")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--side", type=int, choices=[28, 14], default=28, help="14: averages of 2×2 pixels, for a CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out/guard")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = (2 * read_gray()[: options.rows] - 1).reshape(-1, 1, 28, 28).to(device)
    data = torch.nn.functional.avg_pool2d(data, 28 // options.side)

    figure = plt.figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplots(2, 3, width_ratios=[1.2, 1, 1])
    axes[0, 0].sharey(axes[1, 0])
    results = {}
    for row, guard in zip(axes, (False, True), strict=True):
        begun = time.perf_counter()
        records, samples, ended = train(data, options, guard)
        name = "with the guard" if guard else "without the guard"
        events = [r for r in records if "event" in r]
        curve = [(r["step"], r["gap"]) for r in records if "gap" in r]
        results[name] = {
            "ended": ended,
            "seconds": round(time.perf_counter() - begun, 1),
            "steps": curve[-1][0] if curve else 0,
            "events": [{k: r[k] for k in ("step", "event", "message")} for r in events],
        }
        print(name, json.dumps(results[name], indent=1), flush=True)
        draw_row(row, name, curve, [r["step"] for r in events if r["event"] == "rollback"], samples, options.fresh)
    figure.savefig(out / "guard.png", dpi=110)
    (out / "results.json").write_text(json.dumps({"options": vars(options), **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
