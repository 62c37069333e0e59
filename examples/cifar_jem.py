"""A classifier of color images that is also their energy: a joint energy on CIFAR-10, in minutes on one GPU.

    GIBBSIAN_DATA=folder python examples/cifar_jem.py --seconds 330 --out out/cifar_jem

Trains a wide residual network without batch norm (standardized weights) as p(x, y): cross-entropy on moved and mirrored images, plus
persistent contrastive divergence on the images as they are; then the same network on cross-entropy alone for as many updates.
2000 training images are held out: for progress, and for the temperature of the class probabilities. Writes results.json
(test accuracy and calibration of both, detection of foreign images, how the other classifier reads generated images, what the guard did),
pictures (samples.png: a column a class, from chains of the buffer; fresh.png: from Gaussian draws with the moments of the
classes), model.safetensors: averaged weights in half precision; and run/, the run folder. Given a folder that holds a
run (`--run`), such as that of `gibbsian train cifar-jem`, which is the same training, it goes on with it.

Cross-entropy alone may also have a process and a time of its own, beside the other one: `--alone 300` (seconds; `--alone 0`: as many updates as `--updates` says) trains it and nothing else, and
`--reader out/alone/model.safetensors` lets that network read what the energy draws.

A GPU for a few minutes now and then is enough: `--seconds 1500 --stop 400` plans for 1500 seconds and ends after 400 of
them, with going/, from which `--going FOLDER` goes on on another machine: weights and their average as they are, the
moments of Adam in bfloat16, the chains as bytes.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from images import carried, gone_on, images_png, probabilities, share_read, updates_a_second
from safetensors.torch import load_file, save_file
from torch import Tensor

import gibbsian as gb
from gibbsian import domains, errors, hybrid, kernels, metrics, models, objectives
from gibbsian.nets import ResidualNet
from gibbsian.training import Checkpoints, Engine, Logging, keep

WALL = 1.09  # noise takes pixels out of [-1, 1]
HELD = 2000


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="out/cifar_jem")
    parser.add_argument("--run", help="the run folder; run/ in --out by default")
    parser.add_argument("--updates", type=int, default=12000)
    parser.add_argument("--seconds", type=float, help="as many updates as fit into this time; measured first")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--plain", action="store_true", help="weights as they are instead of standardized ones")
    parser.add_argument("--batch", type=int, default=256, help="images an update")
    parser.add_argument("--chains", type=int, default=128, help="chains an update")
    parser.add_argument("--steps", type=int, default=10, help="sampler steps an update")
    parser.add_argument("--buffer", type=int, default=2560)
    parser.add_argument("--bound", action="store_true", help="chains that belong to classes, as many as images")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument(
        "--decay", type=float, default=0.1, help="of arrays of weights, times the learning rate at every update"
    )
    parser.add_argument("--smoothing", type=float, default=0.03, help="of labels")
    parser.add_argument("--weight", type=float, default=0.2, help="of the energy term; 1 is the joint likelihood")
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--shift", type=int, default=4, help="augmentation: pixels")
    parser.add_argument("--cutout", type=int, default=12, help="augmentation: side of a square that is left out")
    parser.add_argument(
        "--classifier",
        type=float,
        default=1.0,
        help="updates of cross-entropy alone, over those of the energy; 0 for none",
    )
    parser.add_argument(
        "--alone",
        type=float,
        help="train on cross-entropy alone for so many seconds, and nothing else; 0: for the given updates",
    )
    parser.add_argument("--reader", type=Path, help="model.safetensors of such a call, which reads the draws")
    parser.add_argument("--stop", type=float, help="end after so many seconds of training, wherever the plan is")
    parser.add_argument("--going", type=Path, help="going/ of an earlier call: go on from there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="rows of each set, for a quick look")
    return parser.parse_args()


def on_device(limit: int | None, device: str) -> list[tuple[Tensor, Tensor]]:
    """Images `(rows, 3, 32, 32)` in [-1, 1] and labels: training, held-out and test images, as the recipe has them."""
    sets = gb.data.load("cifar10", offline=True)
    sets = sets.replace(train=sets.train[:limit], test=sets.test[:limit])
    held = min(HELD, len(sets.train) // 5)
    done = gb.data.prepare(sets, [{"split": {"validation": held}}, {"rescale": {"new": [-1, 1]}}]).data
    parts = (done.train, done.validation, done.test)
    return [(part.x.to(device, memory_format=torch.channels_last), part.y.to(device)) for part in parts]


def network(chosen: argparse.Namespace, device: str) -> models.JointEnergy:
    net = ResidualNet((3, 32, 32), chosen.widths, chosen.blocks, outputs=10, standardize=not chosen.plain)
    net = net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return models.JointEnergy(net, domains.Box((3, 32, 32), -WALL, WALL))


def objective(chosen: argparse.Namespace, *, density: bool) -> objectives.Objective:
    """Cross-entropy on moved images, and the density of the images as they are."""
    classes = objectives.Shifted(
        objectives.CrossEntropy(chosen.smoothing), chosen.shift, flip=True, cutout=chosen.cutout
    )
    if not density:
        return classes
    chains = objectives.PersistentContrastiveDivergence(
        kernels.ShortRunLangevin(2.0, 0.01, 0.1, last=0.05, cycle=chosen.steps),
        steps=chosen.steps,
        chains=chosen.chains,
        buffer=chosen.buffer,
        classes=10 if chosen.bound else None,
        reinit=0.05,
        start="gaussian",
        penalty=0.01,
    )
    return objectives.Weighted([classes, objectives.Blurred(chains, 0.03)], [1.0, chosen.weight])


def small(t: Tensor, path: str) -> Tensor:
    """Moments of Adam in bfloat16, chains as bytes."""
    if path.endswith(("/exp_avg", "/exp_avg_sq")):
        return t.bfloat16()
    return (
        ((t + WALL) * (255 / (2 * WALL))).round().clamp(0, 255).to(torch.uint8)
        if "/state/" in path and t.dim() == 4 and path.startswith("/ranks")
        else t
    )


def large(t: Tensor, path: str) -> Tensor:
    """What `small` made small."""
    return (
        t.float()
        if t.dtype == torch.bfloat16
        else t.float() * (2 * WALL / 255) - WALL
        if t.dtype == torch.uint8 and t.dim() == 4
        else t
    )


class Progress:
    """A line every half minute: accuracy on held-out images, updates a second, energies, what the guard did."""

    def __init__(self, held: tuple[Tensor, Tensor], total: int, every: float = 30.0) -> None:
        self.held, self.total, self.every = held, total, every
        self.begun = self.last = time.perf_counter()
        self.first: int | None = None

    def __call__(self, run: gb.training.Run) -> None:
        now = time.perf_counter()
        if self.first is None:
            self.first, self.begun = run.step, now  # what is captured first takes longer
        if now - self.last < self.every and run.step < self.total:
            return
        self.last = now
        right = share_read(probabilities(run.ema.eval(), self.held[0]), self.held[1])
        rate = (run.step - self.first) / max(now - self.begun, 1e-9)
        numbers = {name: f"{float(value):.3g}" for name, value in run.metrics.items()}
        print(
            f"{run.step}/{self.total} updates, {rate:.1f} a second, held-out accuracy {right:.4f}, {numbers}",
            flush=True,
        )
        for event in run.events:
            print("  guard:", event, flush=True)


def train(
    chosen: argparse.Namespace,
    data: tuple[Tensor, Tensor],
    held: tuple[Tensor, Tensor],
    updates: int,
    *,
    density: bool,
    folder: Path | None = None,
    more: Sequence[Any] = (),
) -> gb.training.Run:
    """One of the two trainings; goes on with the folder where it holds a run."""
    fast = data[0].is_cuda
    hooks = [(25, Progress(held, updates)), *more]
    if folder is not None and folder.exists():
        return gone_on(folder, data, hooks, updates)
    return gb.fit(
        network(chosen, str(data[0].device)),
        objective(chosen, density=density),
        data,
        steps=updates,
        batch_size=chosen.batch,
        lr=chosen.lr,
        optimizer={"name": "adamw", "weight_decay": chosen.decay, "spare_gains": True},
        schedule="warm-up cosine",
        clip=1.0,
        ema=chosen.ema,
        seed=chosen.seed,
        run_dir=folder,
        guard=gb.training.Guard(penalty=0.01),
        engine=Engine(precision="bf16" if fast else None, compile=fast, fuse=fast),
        checkpoints=Checkpoints(every=max(1, updates // 6), keep_last=1),
        logging=Logging(every=250 if fast else 5),
        hooks=hooks,
        progress=False,
    )


def measured(
    chosen: argparse.Namespace,
    data: tuple[Tensor, Tensor],
    held: tuple[Tensor, Tensor],
    seconds: float,
    *,
    density: bool,
) -> int:
    """How many updates fit into the seconds, from the time between two of them after all is captured."""
    marks = (50, 175) if data[0].is_cuda else (2, 4)
    rate = updates_a_second(lambda hooks: train(chosen, data, held, marks[1], density=density, more=hooks), marks)
    return max(2, int(seconds * rate))


def trained(
    chosen: argparse.Namespace, data: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor], out: Path, *, density: bool
) -> tuple[gb.training.Run, dict[str, Any]]:
    """The training that is asked for, begun or gone on with, in a folder; and what is to be told of it."""
    folder = Path(chosen.run) if chosen.run else out / "run"
    if chosen.going and not folder.exists():
        carried(chosen.going, folder, large)
    wanted = chosen.seconds if density else chosen.alone
    if folder.exists():
        updates = keep.read_config(folder, ("settings",))["settings"].steps
    else:
        updates = measured(chosen, data, held, wanted, density=density) if wanted else chosen.updates
    print(f"{updates} updates, {updates * chosen.batch / len(data[0]):.1f} epochs", flush=True)
    start = time.perf_counter()
    over = (25, lambda run: chosen.stop is not None and time.perf_counter() - start > chosen.stop)
    run = train(chosen, data, held, updates, density=density, folder=folder, more=[over])
    seconds = time.perf_counter() - start
    if run.step < updates:
        carried(folder, out / "going", small)
    weights = {name: t.half().contiguous() for name, t in run.ema.state_dict().items()}
    save_file(weights, out / "model.safetensors")
    return run, {
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(chosen).items()},
        "device": torch.cuda.get_device_name() if data[0].is_cuda else "cpu",
        "torch": torch.__version__,
        "updates": run.step,
        "planned_updates": updates,
        "parameters": sum(p.numel() for p in run.energy.parameters()),
        "training_seconds_of_this_call": seconds,
        "events": run.events,
        "history": [r for r in run.history if "event" not in r][-40:],
    }


def quality(p: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy with its standard error, expected calibration error with 15 bins, mean log loss."""
    right = float((p.argmax(1) == y).double().mean())
    return {
        "accuracy": right,
        "standard_error": (right * (1 - right) / len(y)) ** 0.5,
        "ece": float(metrics.expected_calibration_error(p, y, bins=15)),
        "log_loss": float(-p.gather(1, y[:, None]).clamp(min=1e-12).log().mean()),
    }


def judged(model: models.JointEnergy, held: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> dict[str, object]:
    """Quality on test images, as the model says and at the temperature that suits held-out training images best."""
    z, y = probabilities(model, held[0]).clamp(min=1e-30).log(), held[1].cpu()
    p, truth = probabilities(model, test[0]), test[1].cpu()
    try:
        temperature = metrics.fit_temperature(z, y)
    except errors.DataError as error:  # as after a few updates, for a quick look
        return {"as it is": quality(p, truth), "temperature": None, "why": str(error)}
    cooled = torch.softmax(p.clamp(min=1e-30).log() / temperature, 1)
    return {"as it is": quality(p, truth), "temperature": temperature, "at the temperature": quality(cooled, truth)}


def drawn(
    chosen: argparse.Namespace, run: gb.training.Run, reader: models.JointEnergy, data: tuple[Tensor, Tensor], out: Path
) -> dict[str, object]:
    """Pictures of all classes, and how another network reads them (the same one where there is no other)."""
    model, (x, y) = run.ema.eval(), data
    g = gb.random.stream(chosen.seed, "evaluate", x.device)
    kernel = kernels.ShortRunLangevin(2.0, 0.01, 0.1, last=0.05, cycle=chosen.steps)
    with torch.no_grad():
        height, limit = model(run.chains), model(x[:2000]).quantile(0.99)
    arrived = run.chains[height.argsort()[: max(100, int((height <= limit).sum()))]]
    begin = hybrid.like_classes(x[:5000], y[:5000], 2000, generator=g).clamp(-1, 1)
    classes = torch.arange(10, device=x.device).repeat(10)
    images = {
        "samples": hybrid.generate(model, classes, kernel, chosen.steps, pool=arrived, generator=g),
        "fresh": hybrid.generate(model, classes, kernel, 20 * chosen.steps, pool=begin, generator=g),
    }
    result: dict[str, object] = {}
    for name, made in images.items():
        images_png(made, out / f"{name}.png", 10)
        p = probabilities(reader, made.clamp(-1, 1))
        right = (p.argmax(1) == classes.cpu()).double()
        each = [float(right[classes.cpu() == k].mean()) for k in range(10)]
        result[name] = {"read_as_their_class": float(right.mean()), "per_class": each}
    images_png(run.chains[:200], out / "buffer.png", 20)
    images_png(x[:100], out / "data.png", 10)
    return result


def main() -> None:
    chosen = options()
    begun = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True  # all batches have one shape
    out = Path(chosen.out)
    out.mkdir(parents=True, exist_ok=True)
    data, held, test = on_device(chosen.limit, device)

    if chosen.alone is not None:
        run, result = trained(chosen, data, held, out, density=False)
        result["cross_entropy_alone"] = judged(run.ema.eval(), held, test)
        (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result["cross_entropy_alone"], indent=1), flush=True)
        return
    run, result = trained(chosen, data, held, out, density=True)
    result["joint"] = judged(run.ema.eval(), held, test)
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["joint"], indent=1), flush=True)
    reader, result["reader"] = run.ema.eval(), "itself"
    if chosen.reader and chosen.reader.exists():
        result["reader"] = "cross-entropy alone, in a process of its own"
        reader = network(chosen, device).eval()
        reader.load_state_dict({name: t.float() for name, t in load_file(chosen.reader).items()})
    elif chosen.classifier:
        start = time.perf_counter()
        other = train(chosen, data, held, max(1, int(chosen.classifier * result["planned_updates"])), density=False)
        reader, result["reader"] = other.ema.eval(), "cross-entropy alone"
        alone = {"updates": other.step, "seconds": time.perf_counter() - start}
        result["cross_entropy_alone"] = judged(reader, held, test) | alone
        (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result["cross_entropy_alone"], indent=1), flush=True)
    result["draws"] = drawn(chosen, run, reader, data, out)
    result["seconds"] = {"everything": time.perf_counter() - begun}
    if device == "cuda":
        result["memory_mib"] = torch.cuda.max_memory_allocated() / 2**20
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k not in ("history", "options")}, indent=1))


if __name__ == "__main__":
    main()
