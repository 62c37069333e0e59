"""Deep energies of binary images: a residual network over static MNIST or Caltech silhouettes, and its likelihood.

    GIBBSIAN_DATA=folder python examples/deep_discrete.py --data mnist --kernel langevin --seconds 600 --run out/deep_mnist
    GIBBSIAN_DATA=folder python examples/deep_discrete.py --data mnist --run out/deep_mnist --seconds 600     # goes on
    GIBBSIAN_DATA=folder python examples/deep_discrete.py --data mnist --run out/deep_mnist --settle 100 --evaluate

The network of Grathwohl et al. 2021: E(x) = -log Bern(x; μ) + f(x) with the base rates μ = .98·mean + .01 of the training
data fixed and f a residual network of 64 channels; persistent contrastive divergence by chains that take 40 steps an update, Adam
at 1e-4 after a warm-up, averaged weights. Their protocol has 100 images an update, 10000 chains of which 100 move at an update,
and 50000 updates: `--batch 100 --buffer 10000 --warm 10000`. By default it is 200 images and 1000 chains of which 200 move: Adam's step in
energy does not depend on how far apart data and chains are, so what they are apart by grows with the updates between two visits to a
chain, and a GPU that moves 200 chains takes hardly longer than with 100.

`--settle` goes on for so many seconds in a copy of the run, with a rate that falls to zero; the run itself can be gone on with. `--evaluate` looks at
that copy where there is one and writes results.json: log Z by annealed importance sampling from the base rates upwards (low on
average, so that the likelihood is flattered) and from long chains begun at data downwards (high on average), and the
test and validation likelihoods with both; and deep_discrete.png, a picture of images, of climbs and of chains. The folder holds binarized_mnist/, caltech101_silhouettes/ or, for
`--data omniglot`, omniglot28/omniglot28.npz: all of Omniglot in grey (x_train, x_test), ink where more than half of a pixel is; it
is not the file of Burda et al. 2016, so its likelihoods stand beside no published ones.
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from images import panels_png
from torch import Tensor

import gibbsian as gb
from gibbsian import domains, energies, kernels, objectives, partition
from gibbsian.data import load
from gibbsian.energies.bases import Factorized
from gibbsian.training import Checkpoints, Engine, Guard, Logging

SETS = {"mnist": "binarized-mnist", "caltech": "caltech-silhouettes", "omniglot": ""}
KERNELS = {"gradients": lambda alpha: kernels.GibbsWithGradients(), "langevin": kernels.DiscreteLangevin}


def read(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Training, validation and test images `(rows, 1, 28, 28)`."""
    if name == "omniglot":
        file = np.load(Path(os.environ["GIBBSIAN_DATA"]) / "omniglot28" / "omniglot28.npz")
        known, test = (torch.from_numpy(file[part] > 127)[:, None].float() for part in ("x_train", "x_test"))
        held = torch.arange(len(known)) % 18 == 0  # a drawing in eighteen for validation
        return known[~held], known[held], test
    found = load(SETS[name], offline=True)
    return tuple(part.x[:, None].float() for part in (found.train, found.validation, found.test))  # type: ignore[return-value,union-attr]


def network(data: Tensor, chosen: argparse.Namespace) -> energies.TiltedEnergy:
    """Base rates, tilted by a residual network of eight blocks, most of them on 7×7."""
    domain = domains.Binary((1, 28, 28))
    base = Factorized(domain, torch.logit(0.98 * data.mean(0) + 0.01))
    form: dict[str, Any] = {"stride": 2} if chosen.before else {"after": True}
    tilt = energies.ResidualEnergy(domain, (chosen.width,) * 2, (1, 7), **form)
    return energies.TiltedEnergy(base, tilt)


class Budget:
    """Ends a training after so many seconds, if there is such a limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self.begun = seconds, time.perf_counter()

    def over(self, run: Any) -> bool:
        """Is the time up?"""
        return self.seconds is not None and time.perf_counter() - self.begun > self.seconds


def engine(chosen: argparse.Namespace, device: str) -> Engine:
    """Captured steps on a GPU, compiled and in half precision where that is wanted; likelihoods are evaluated in single precision."""
    if device == "cpu":
        return Engine()
    return Engine(precision=chosen.precision, compile=True, fuse=chosen.fuse)


def train(chosen: argparse.Namespace, device: str) -> None:
    """Begin a run, or go on with it."""
    data = read(chosen.data)[0].to(device)
    hooks = [(100, Budget(chosen.seconds).over)]
    begun = time.perf_counter()
    if (chosen.run / "config.json").exists():
        run = gb.resume(chosen.run, data, device=device, hooks=hooks, progress=False)
    else:
        energy = network(data.cpu(), chosen).to(device, memory_format=torch.channels_last)
        chains = objectives.PersistentContrastiveDivergence(
            KERNELS[chosen.kernel](chosen.alpha),
            steps=chosen.steps,
            chains=chosen.batch,
            buffer=chosen.buffer,
            start="rates",
        )
        run = gb.fit(
            energy,
            chains,
            data,
            steps=chosen.updates,
            batch_size=chosen.batch,
            lr=chosen.lr,
            schedule=chosen.lr * torch.arange(1, chosen.updates + 1).div(chosen.warm).clamp(max=1),
            ema=0.999,
            guard=Guard(penalty=0.0, explosion=1e6),  # energies and gradients of a new network grow ten-thousandfold
            seed=chosen.seed,
            run_dir=chosen.run,
            engine=engine(chosen, device),
            checkpoints=Checkpoints(every=chosen.updates, keep_last=1),
            logging=Logging(every=200),
            hooks=hooks,
            progress=False,
        )
    kept = chosen.run / "training.json"  # what it was trained with and for how long, over all calls
    how = json.loads(kept.read_text()) if kept.exists() else {key: str(value) for key, value in vars(chosen).items()}
    spent = how.get("spent", 0.0) + time.perf_counter() - begun
    accepted = run.history[-1]["acceptance"] if run.history else None
    how |= {"device": device, "spent": spent, "step": run.step, "acceptance": accepted}
    kept.write_text(json.dumps(how, indent=1) + "\n")
    print(chosen.run, run.step, "updates", round(time.perf_counter() - begun), "s", run.history[-1:], flush=True)


def settled(run: Path) -> Path:
    """Where a copy of a run settles."""
    return run.with_name(run.name + "-settled")


def settle(chosen: argparse.Namespace, device: str) -> None:
    """Go on in a copy of the run, with a rate that falls to zero."""
    data = read(chosen.data)[0].to(device)
    begun = time.perf_counter()
    shutil.rmtree(settled(chosen.run), ignore_errors=True)
    folder = Path(shutil.copytree(chosen.run, settled(chosen.run)))
    how = json.loads((folder / "training.json").read_text())
    records = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    speeds = [record["steps_per_second"] for record in records if "steps_per_second" in record]
    more = max(1, int(chosen.settle * (speeds[-1] if speeds else how["step"] / how["spent"])))
    total = how["step"] + more
    schedule = torch.full((total,), float(how["lr"]) * min(1.0, how["step"] / int(how["warm"])))
    schedule[how["step"] :] *= torch.linspace(1, 0, more)
    run = gb.resume(folder, data, steps=total, schedule=schedule, device=device, hooks=(), progress=False)
    spent = how["spent"] + time.perf_counter() - begun
    how |= {"spent": spent, "step": run.step, "settled": more, "acceptance": run.history[-1]["acceptance"]}
    (folder / "training.json").write_text(json.dumps(how, indent=1) + "\n")
    print(folder, run.step, "updates", round(time.perf_counter() - begun), "s", run.history[-1:], flush=True)


def rounding(energy: Any, kernel: kernels.Kernel, x: Tensor, seed: int) -> dict[str, float]:
    """What half precision would do to chains: how far it moves energies, and moves accepted in six steps from x, with and without it."""
    found: dict[str, Any] = {}
    for name, half in (("single", False), ("acceptance", True)):
        g = gb.random.stream(seed, "rounding", x.device)
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=half), torch.no_grad():
            found[f"energies, {name}"] = energy(x).double()
            found[name] = float(
                gb.sample(energy, kernel, x, steps=6, keep=False, generator=g, progress=False).acceptance
            )
    error = found.pop("energies, acceptance") - found.pop("energies, single")
    return {"error": float(error.std()), **found}


def evaluate(chosen: argparse.Namespace, device: str) -> None:
    """log Z from both sides, the likelihoods that follow, and samples."""
    data, valid, test = (x.to(device) for x in read(chosen.data))
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    folder = settled(chosen.run) if settled(chosen.run).exists() else chosen.run
    energy = gb.load(folder, ema=True, device=device).to(memory_format=torch.channels_last)
    g = gb.random.stream(chosen.seed, "evaluate", device)
    kernel = KERNELS[chosen.kernel](chosen.alpha)
    training = json.loads((folder / "training.json").read_text())
    begun = time.perf_counter()
    forward = partition.ais(
        energy, base=energy.base, chains=chosen.chains, betas=chosen.betas, kernel=kernel, generator=g, progress=False
    )
    spent = time.perf_counter() - begun
    start = data[torch.randperm(len(data), generator=g, device=device)[: chosen.chains]]
    trace = gb.sample(energy, kernel, start, steps=chosen.long, keep=False, generator=g, progress=False)
    reverse = partition.reverse_ais(energy, trace.last, forward=forward, generator=g, progress=False)
    result = {
        "options": {key: str(value) for key, value in vars(chosen).items()},
        "training": training,
        "updates": training["step"],
        "seconds": {"climb": spent, "everything": time.perf_counter() - begun},
        "forward": {"log_z": float(forward.value), "stderr": float(forward.stderr), "ess": forward.diagnostics["ess"]},
        "reverse": {"log_z": float(reverse.value), "stderr": float(reverse.stderr), "ess": reverse.diagnostics["ess"]},
        "acceptance": float(trace.acceptance),
        "half": rounding(energy, kernel, start[:24], chosen.seed),
    }
    for name, x in (("train", data[:10_000]), ("validation", valid), ("test", test)):
        with torch.no_grad():
            mean = -torch.cat([energy(rows) for rows in x.split(1000)]).double()
        result[name] = {
            "forward": float(mean.mean()) - float(forward.value),
            "reverse": float(mean.mean()) - float(reverse.value),
            "stderr_of_rows": float(mean.std() / len(x) ** 0.5),
        }
    panels = {
        "training images": data[: min(100, chosen.chains)],
        f"annealed from the base rates, {chosen.betas} temperatures": forward.diagnostics["states"][:100],
        f"chains begun at images, {chosen.long} steps on": trace.last[:100],
    }
    low, high = sorted(result["test"][way] for way in ("forward", "reverse"))
    title = f"A deep energy of binary images: test log-likelihood {low:.1f} to {high:.1f} nats, by climbs and descents"
    panels_png({name: 2 * images - 1 for name, images in panels.items()}, chosen.run / "deep_discrete.png", title)
    (chosen.run / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(SETS), default="mnist")
    parser.add_argument("--kernel", choices=list(KERNELS), default="langevin")
    parser.add_argument("--alpha", type=float, default=0.15, help="step size of discrete Langevin")
    parser.add_argument("--steps", type=int, default=40, help="of every chain an update")
    parser.add_argument("--updates", type=int, default=50_000)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--buffer", type=int, default=1000, help="chains kept, --batch of which move at an update")
    parser.add_argument("--batch", type=int, default=200, help="images and chains an update")
    parser.add_argument(
        "--precision",
        choices=["tf32", "bf16"],
        default="tf32",
        help="of the training on a GPU; in bf16 energies of thousands are rounded by nats, and most moves refused",
    )
    parser.add_argument("--fuse", action="store_true", help="compile the steps of chains on a GPU")
    parser.add_argument("--width", type=int, default=64, help="channels")
    parser.add_argument(
        "--before",
        action="store_true",
        help="activations before the convolutions instead of after the sums: small networks of few chains wake up more gently",
    )
    parser.add_argument("--warm", type=int, default=3000, help="updates until the rate has risen to --lr")
    parser.add_argument("--seconds", type=float, help="end this part of the training after so long; 0 for none")
    parser.add_argument("--settle", type=float, help="so many seconds with a falling rate, in a copy of the run")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--betas", type=int, default=100_000)
    parser.add_argument("--chains", type=int, default=500)
    parser.add_argument("--long", type=int, default=20_000, help="steps of the chains from which the descent begins")
    parser.add_argument("--run", type=Path, default=Path("out/deep_discrete"))
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    if chosen.seconds != 0 and not (chosen.seconds is None and (chosen.evaluate or chosen.settle)):
        train(chosen, device)
    if chosen.settle:
        settle(chosen, device)
    if chosen.evaluate:
        evaluate(chosen, device)


if __name__ == "__main__":
    main()
