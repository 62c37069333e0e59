"""Energy matching on MNIST, Fashion-MNIST or CIFAR-10: one potential that leads noise to images, beside a score network.

    GIBBSIAN_DATA=folder python examples/energy_matching.py --data mnist --seconds 100 --out out/energy_matching
    GIBBSIAN_DATA=folder python examples/energy_matching.py --data cifar --seconds 150 --no-rival --out out/cifar_energy

The energy is V(x)/ε_max with V(x) = ½‖x - U(x)‖² and a U-Net U; its flow begins at a Gaussian with the moments of the training images. The
score network has the same U-Net and the same training time, and climbs down a noise ladder: both get as many updates as fit into the
seconds, by their rates, which are measured first, or given (`--rates`) where others share the machine later. Distances (Fréchet's, and the kernel
distance) are those in the features of a separate classifier, the judge (the mean over positions of its last layer), between draws and
test images. Writes results.json: distances after an eighth, a quarter, a half and all of the training, and over the number of gradients
that a draw takes; and energy_matching.png: draws as they come, training images beside them, and the curves.

A GPU for a few minutes now and then is enough: `--seconds 1500 --stop 400` plans for 1500 seconds and ends after 400 of
them, with going/, from which `--going FOLDER` goes on on another machine: weights as they are, their average and the judge in half
precision, the second moments of Adam in bfloat16, in files of at most 15 MiB. Of a run that has ended (`--run`), such as that of
`gibbsian train cifar-energy`, the checkpoints are looked at instead.
"""

import argparse
import copy
import functools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from images import (
    Judge,
    augmented,
    carried,
    from_files,
    gone_on,
    in_files,
    panels_png,
    set_up,
    train_classifier,
    updates_a_second,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

import gibbsian as gb
from gibbsian import domains, energies, kernels, models, nets, objectives, schedules
from gibbsian.objectives.noise import GaussianNoise
from gibbsian.training import Checkpoints, Engine, Logging, checkpoint, keep

GRADIENTS = (25, 50, 100, 200, 400)
TIMES = (1.0, 1.25, 1.5, 2.0, 3.0)
EIGHTHS = (1, 2, 4, 8)


class Kind(NamedTuple):
    """What depends on the set."""

    widths: tuple[int, ...]  # of the U-Net
    judge: tuple[int, ...]  # widths of the classifier
    blocks: int  # of each of its stages
    shift: int  # pixels by which its images are moved
    flip: bool


KINDS = {
    "mnist": Kind((32, 64, 128), (32, 64, 128), 1, 2, False),
    "fashion": Kind((32, 64, 128), (32, 64, 128), 1, 2, True),
    "cifar": Kind((64, 128, 128), (64, 128, 256), 1, 4, True),
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(KINDS), default="mnist")
    parser.add_argument("--out", default="out/energy_matching")
    parser.add_argument("--run", help="the run folder; run/ in --out by default")
    parser.add_argument("--seconds", type=float, default=100.0, help="of the training of each of the two")
    parser.add_argument(
        "--rates", type=float, nargs=2, help="updates a second of the two, each alone on this machine; else measured"
    )
    parser.add_argument("--stop", type=float, help="end after so many seconds of training, wherever the plan is")
    parser.add_argument("--going", type=Path, help="going/ of an earlier call: go on from there")
    parser.add_argument("--rival", action=argparse.BooleanOptionalAction, default=True, help="the score network too")
    parser.add_argument("--contrast", type=float, default=0.01, help="share of the updates of the second phase")
    parser.add_argument("--noise", choices=["gaussian", "normal"], default="gaussian", help="where the flow begins")
    parser.add_argument("--pairing", choices=["sinkhorn", "exact", "independent"], default="sinkhorn")
    parser.add_argument("--temperature", type=float, default=0.01)
    parser.add_argument("--weight", type=float, default=1e-3)
    parser.add_argument("--chain-steps", type=int, default=20)
    parser.add_argument("--widths", type=int, nargs="+")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--matching-lr", type=float, default=3e-3)
    parser.add_argument("--precision", choices=["bf16", "tf32"], default="bf16", help="of the energy on a GPU")
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--classifier-steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="rows of each set, for a quick look")
    chosen = parser.parse_args()
    chosen.widths = chosen.widths or list(KINDS[chosen.data].widths)
    return chosen


# --- what judges ----------------------------------------------------------------------------------------


def judge_of(
    chosen: argparse.Namespace, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], known: Path | None
) -> Judge:
    """The judge of a set, rounded as `save_judge` leaves it; trained here where there is none to be read."""
    kind, (x, fast) = KINDS[chosen.data], (train[0], train[0].is_cuda)
    shape = tuple(x.shape[1:])
    net = nets.ResidualNet(shape, kind.judge if fast else (8, 8), kind.blocks, outputs=10).to(x.device)  # type: ignore[arg-type]
    box = domains.Box(shape, -1.0, 1.0)

    def weakened(batch: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        moved = augmented(batch[0], generator, shift=kind.shift, flip=kind.flip)
        noise = torch.randn(moved.shape, generator=generator, device=moved.device)
        return (moved + 0.05 * noise).clamp(-1, 1), batch[1]

    if known is None:
        model = train_classifier(net, train, weakened, chosen.classifier_steps, domain=box, lr=1e-3, seed=chosen.seed)
        model.load_state_dict({k: t.half().to(t.dtype) for k, t in model.state_dict().items()})
    else:
        model = models.JointEnergy(net, box).eval()
        model.load_state_dict({k: t.float() for k, t in load_file(known).items()})
    return Judge(model, test, train=x)


def save_judge(judge: Judge, path: Path) -> None:
    save_file({name: t.half().contiguous() for name, t in judge.model.state_dict().items()}, path)


# --- training -------------------------------------------------------------------------------------------


def usual(chosen: argparse.Namespace, x: Tensor) -> dict[str, Any]:
    """What both trainings have in common."""
    common = {"schedule": "warm-up cosine", "clip": 1.0, "ema": chosen.ema, "seed": chosen.seed, "progress": False}
    return {"batch_size": chosen.batch, "logging": Logging(every=100 if x.is_cuda else 10), **common}


def measured(model: Any, x: Tensor, fitted: Callable[[int, list[Any]], Any]) -> float:
    """Updates a second of a model, which is as it was afterwards."""
    weights = copy.deepcopy(model.state_dict())
    print("compiling", flush=True)
    rate = updates_a_second(functools.partial(fitted, 10_000), (25, 75) if x.is_cuda else (2, 4))
    model.load_state_dict(weights)  # of the same model, for which all is compiled
    print(f"{type(model).__name__}: {rate:.1f} updates a second", flush=True)
    return rate


# --- the score network ----------------------------------------------------------------------------------


def score_network(chosen: argparse.Namespace, x: Tensor, device: str) -> tuple[Any, Any]:
    """A trained noise-conditional score network, and what draws from it."""
    shape = x.shape[1:]
    ladder = schedules.noise_ladder(x, last=0.02, steps_per_level=5)
    net = models.ScoreUNet(shape, chosen.widths, chosen.blocks, center=float(x.mean()), spread=float(x.std()))  # type: ignore[arg-type]
    family = models.NoiseConditionalScore(net, domains.Real(shape), ladder.sigmas).to(device)
    flip = KINDS[chosen.data].flip and (lambda batch, g: augmented(batch, g, flip=True))

    def fitted(updates: int, hooks: list[Any]) -> gb.training.Run:
        return gb.fit(
            family,
            objectives.MultiScaleDenoising(),
            x,
            steps=updates,
            lr=chosen.lr,
            transform=flip or None,
            engine=Engine(precision="bf16" if x.is_cuda else None, compile=x.is_cuda),
            hooks=hooks,
            **usual(chosen, x),
        )

    rate = chosen.rates[1] if chosen.rates else measured(family, x, fitted)
    run = fitted(max(8, int(chosen.seconds * rate)), [])
    model = run.ema.eval()
    kernel = kernels.AnnealedLangevin(ladder.steps_per_level, ladder.step_size, denoise=True)
    g = gb.random.stream(chosen.seed, "score", device)

    def draw(n: int) -> Tensor:
        parts, size = [], min(500, n)
        for _ in range(0, n, size):
            begin = float(ladder.sigmas[0]) * torch.randn(size, *shape, generator=g, device=device)
            parts.append(gb.sample(model, kernel, begin, keep=False, generator=g, progress=False).last)
        return torch.cat(parts)[:n]

    return run, (draw, kernel.total_steps(model))


# --- the energy -----------------------------------------------------------------------------------------


def network(chosen: argparse.Namespace, x: Tensor) -> energies.ReconstructionEnergy:
    shape = tuple(x.shape[1:])
    net = nets.UNet(shape, chosen.widths, chosen.blocks, center=float(x.mean()), spread=float(x.std()))  # type: ignore[arg-type]
    return energies.ReconstructionEnergy(net, domains.Real(shape), chosen.temperature).to(x.device)


def objective(chosen: argparse.Namespace) -> objectives.Objective:
    matching = objectives.EnergyMatching(
        temperature=chosen.temperature,
        tau=1.0,
        sigma=0.0,
        weight=chosen.weight if chosen.contrast else 0.0,
        floor=-0.02,
        steps=chosen.chain_steps,
        step_size=1 / chosen.chain_steps,
        flow_steps=1 - chosen.contrast,
        pairing=chosen.pairing,
        noise="gaussian" if chosen.noise == "gaussian" else None,
    )
    return objectives.Shifted(matching, pixels=0, flip=True) if KINDS[chosen.data].flip else matching


def half(chosen: argparse.Namespace, device: str) -> AbstractContextManager[Any]:
    """The precision of the training."""
    wanted = device == "cuda" and chosen.precision == "bf16"
    return torch.autocast(device, dtype=torch.bfloat16) if wanted else nullcontext()


@contextmanager
def averaged(run: gb.training.Run) -> Iterator[Any]:
    """The trained energy with the averaged weights in the place of its own: what is compiled belongs to one energy."""
    pairs = list(zip(run.energy.parameters(), run.ema.parameters(), strict=True))
    own = [p.detach().clone() for p, _ in pairs]
    with torch.no_grad():
        for p, average in pairs:
            p.copy_(average)
        try:
            yield run.energy
        finally:
            for (p, _), before in zip(pairs, own, strict=True):
                p.copy_(before)


class Draws:
    """What draws from the average of a run, as many at a time as are trained on: that is compiled already."""

    def __init__(self, chosen: argparse.Namespace, device: str) -> None:
        self.chosen, self.rows, self.device = chosen, chosen.batch, device
        self.g = gb.random.stream(chosen.seed, "energy", device)

    def draw(self, run: gb.training.Run, step: float, span: float, start: Tensor | None = None) -> Tensor:
        """Where the flow is after a span of time; the noise that may end it is left out."""
        how = {"step_size": step, "time": span, "tau": span, "start": start, "compile": self.device == "cuda"}
        with averaged(run) as energy, half(self.chosen, self.device):
            return run.objective.generate(energy, self.rows, run.state, self.g, **how)

    def __call__(self, run: gb.training.Run, n: int, gradients: int, until: float) -> Tensor:
        """n draws by so many gradients each, up to the time `until`."""
        return torch.cat([self.draw(run, until / gradients, until) for _ in range(0, n, self.rows)])[:n]

    def along(self, run: gb.training.Run, n: int, step: float = 0.05) -> dict[float, Tensor]:
        """n draws at each of the `TIMES`: where the same ways have come by then."""
        parts: dict[float, list[Tensor]] = {t: [] for t in TIMES}
        for _ in range(0, n, self.rows):
            x, at = None, 0.0
            for until in TIMES:
                x, at = self.draw(run, step, until - at, x), until
                parts[until].append(x)
        return {t: torch.cat(found)[:n] for t, found in parts.items()}


class Progress:
    """A line every ten seconds, distances now and then, and the end when the time is up; only training counts as time."""

    def __init__(self, chosen: argparse.Namespace, updates: int, earlier: float, look: Callable[..., Any]) -> None:
        self.updates, self.earlier, self.stop, self.look = updates, earlier, chosen.stop, look
        self.planned = chosen.seconds if chosen.rates else None
        self.marks = [updates * n // 8 for n in EIGHTHS]
        self.begun = self.last = time.perf_counter()
        self.first: tuple[float, int] | None = None
        self.pause = 0.0

    def seconds(self) -> float:
        """Of training in this call, from its first look on: what is captured first takes longer."""
        return 0.0 if self.first is None else time.perf_counter() - self.first[0] - self.pause

    def told(self, run: gb.training.Run) -> float:
        """Of training in all calls; by the given rate where there is one, for then others share the machine."""
        return self.earlier + self.seconds() if self.planned is None else self.planned * run.step / self.updates

    def __call__(self, run: gb.training.Run) -> bool:
        now = time.perf_counter()
        if self.first is None or now - self.last > 10:
            loss = float(run.metrics["loss"])  # waits for the device
            if self.first is None:
                print(f"first updates after {time.perf_counter() - self.begun:.1f} s", flush=True)
                self.first = (time.perf_counter(), run.step)
            rate = (run.step - self.first[1]) / max(self.seconds(), 1e-9)
            print(f"{run.step}/{self.updates} updates, {rate:.1f} a second, loss {loss:.4f}", flush=True)
            self.last = time.perf_counter()
        return self.stop is not None and self.seconds() > self.stop

    def at_mark(self, run: gb.training.Run) -> None:
        float(run.metrics["loss"])
        begun = time.perf_counter()
        self.look(run, self.told(run))
        self.pause += time.perf_counter() - begun


def train(
    chosen: argparse.Namespace, energy: Any, x: Tensor, updates: int, hooks: list[Any], folder: Path | None = None
) -> gb.training.Run:
    """So many updates; goes on with the folder where it holds a run."""
    fast = x.is_cuda
    if folder is not None and folder.exists():
        return gone_on(folder, x, hooks)
    return gb.fit(
        energy,
        objective(chosen),
        x,
        steps=updates,
        lr=chosen.matching_lr,
        run_dir=folder,
        engine=Engine(precision=chosen.precision if fast else None, compile=fast),
        checkpoints=Checkpoints(every=max(1, updates // 4), keep_last=1),
        hooks=hooks,
        **usual(chosen, x),
    )


def planned(chosen: argparse.Namespace, energy: Any, x: Tensor) -> int:
    """How many updates fit into the seconds.

    A gradient takes about a third of an update of the first phase, and one of the second makes `chain_steps` of them besides.
    """
    rate = chosen.rates[0] if chosen.rates else measured(energy, x, functools.partial(train, chosen, energy, x))
    return max(8, int(chosen.seconds * rate / (1 + chosen.contrast * chosen.chain_steps / 3)))


def small(t: Tensor, path: str) -> Tensor:
    """Averaged weights in half precision, second moments of Adam in bfloat16; its first ones, which remember ten updates, and
    the moments of the images, which can be had again, not at all."""
    if path.endswith(("/exp_avg", "/exp_avg_sq")):
        return t.bfloat16() if path.endswith("sq") else torch.zeros_like(t)
    if path.startswith("/ema/"):
        return t.half()
    return t.new_empty(0) if path.startswith("/ranks") and "/state/" in path else t


def large(x: Tensor) -> Callable[[Tensor, str], Tensor]:
    """What makes large again what `small` made small."""

    @functools.cache
    def noise() -> dict[str, Tensor]:
        return GaussianNoise().fit(domains.Real(x.shape[1:]), x[:20000], torch.Generator(x.device)).state_dict()

    def change(t: Tensor, path: str) -> Tensor:
        if path.startswith("/ranks") and "/state/" in path:
            return noise()[path.rsplit("/", 1)[1]]
        return t.float() if t.dtype in (torch.bfloat16, torch.half) else t

    return change


def clocked(device: str, work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    found = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return found, time.perf_counter() - begun


def curve(ax: Any, found: dict[str, Any], score: dict[str, Any] | None) -> None:
    """How near draws are to test images, for what they cost."""
    points = found["curve"]
    ax.plot([p["gradients"] for p in points], [p["fid"] for p in points], "o-", label="energy matching")
    for p in found["by_time"]:
        ax.axhline(p["fid"], color="C0", lw=0.5)
        ax.annotate(f"after {p['seconds']:.0f} s", (GRADIENTS[0], p["fid"]), fontsize=7, va="bottom")
    if score is not None:
        ax.plot([score["gradients"]], [score["fid"]], "s", color="black", label="score network")
    ax.set(xscale="log", yscale="log", xlabel="gradients (scores) a draw", ylabel="Fréchet distance in a classifier")
    ax.set_xticks(GRADIENTS, [str(n) for n in GRADIENTS])
    ax.set_xticks([], minor=True)
    ax.set_title("distance to test images", fontsize=10)
    ax.legend(frameon=False)


class Matched:
    """An energy trained by matching, what is found out about it on the way, and draws of it."""

    def __init__(
        self, chosen: argparse.Namespace, x: Tensor, judge: Judge, found: dict[str, Any], save: Callable[[], None]
    ) -> None:
        self.chosen, self.x, self.judge, self.found, self.save = chosen, x, judge, found, save
        self.device = x.device.type
        self.draws, self.few = Draws(chosen, self.device), min(chosen.samples, 8 * chosen.batch)

    def look(self, run: gb.training.Run, seconds: float) -> None:
        """When the flow is best left, as training images say, and how near to test images it is then."""
        ends = self.draws.along(run, self.few)
        known = {t: self.judge.distance(images, "train") for t, images in ends.items()}
        until = min(known, key=known.__getitem__)
        point = {"seconds": seconds, "updates": run.step, "draws": self.few, "time": until}
        point |= self.judge.distances(ends[until])
        self.found["by_time"].append(point | {"fid_of_times_on_training_images": {str(t): d for t, d in known.items()}})
        print(json.dumps(self.found["by_time"][-1]), flush=True)
        self.save()

    def train(self, folder: Path, parts: Path) -> gb.training.Run:
        """Begin, or go on with what lies in `parts` or in the run folder; what is to be moved is left in going/."""
        chosen, found = self.chosen, self.found
        energy = network(chosen, self.x)
        if chosen.going and not folder.exists():
            carried(parts / "run", folder, large(self.x))
        known = keep.read_config(folder, ("settings",))["settings"].steps if folder.exists() else None
        updates = known or planned(chosen, energy, self.x)
        found |= {"planned_updates": updates, "parameters": sum(p.numel() for p in energy.parameters())}
        progress = Progress(chosen, updates, found.get("seconds", 0.0), self.look)
        hooks = [(min(25, updates // 8), progress), (progress.marks, progress.at_mark)]
        run = train(chosen, energy, self.x, updates, hooks, folder)
        flow = min(run.step, int((1 - chosen.contrast) * updates))
        found |= {"updates": [flow, run.step - flow], "seconds": progress.told(run)}
        found |= {"events": run.events, "last_numbers": [r for r in run.history if "event" not in r][-3:]}
        self.save()
        if run.step < updates:
            carried(folder, parts / "run", small)
            save_judge(self.judge, parts / "judge.safetensors")
            (parts / "found.json").write_text(json.dumps(found))
            in_files(parts, Path(chosen.out) / "going")
        if run.step < updates:  # ended between two marks
            self.look(run, found["seconds"])
        elif not found["by_time"]:  # ended before this call
            self.look_back(run, folder)
        return run

    def look_back(self, run: gb.training.Run, folder: Path) -> None:
        """The checkpoints of a run that has ended, as far as there are some at the marks; its log says when they were made."""
        end, saved = run.step, checkpoint.steps_saved(folder)
        for run.step in sorted({end * n // 8 for n in EIGHTHS} & set(saved) | {end}):
            run.ema.load_state_dict(gb.load(folder, run.step, ema=True).state_dict())
            self.found["seconds"] = max(r["seconds"] for r in run.history if "seconds" in r and r["step"] <= run.step)
            self.look(run, self.found["seconds"])

    def draw(self, run: gb.training.Run) -> Tensor:
        """Draws by more and more gradients, up to the time that the last look found best; the last of them."""
        self.found |= {"time": self.found["by_time"][-1]["time"], "curve": []}
        for n in GRADIENTS:
            how = (run, self.chosen.samples, n, self.found["time"])
            images, seconds = clocked(self.device, lambda how=how: self.draws(*how))
            self.found["curve"].append({"gradients": n, "sampling_seconds": seconds, **self.judge.distances(images)})
            print(json.dumps(self.found["curve"][-1]), flush=True)
            self.save()
        return images


def main() -> None:
    chosen = options()
    begun = time.perf_counter()
    device, out, train_set, test_set = set_up(chosen)
    torch.backends.cudnn.benchmark = False  # gradients of gradients have so many shapes that trying them takes longer
    x = train_set[0]
    parts = Path(tempfile.mkdtemp())
    if chosen.going:
        from_files(chosen.going, parts)
    print(f"{len(x)} images; the judge first", flush=True)
    judge = judge_of(chosen, train_set, test_set, parts / "judge.safetensors" if chosen.going else None)
    found: dict[str, Any] = json.loads((parts / "found.json").read_text()) if chosen.going else {"by_time": []}
    order = torch.randperm(len(x), generator=gb.random.stream(chosen.seed, "shown")).to(device)  # files have theirs
    shown = x[order[: chosen.samples]]
    among = judge.distances(shown)
    result: dict[str, Any] = {
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(chosen).items()},
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__,
        "judge_test_accuracy": judge.accuracy,
        "fid_of_training_images": among["fid"], "kid_of_training_images": among["kid"], "energy_matching": found,
    }  # fmt: skip

    def save() -> None:
        result["wall_seconds"] = time.perf_counter() - begun
        (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")

    def picture(panels: dict[str, Tensor]) -> None:
        title = f"{chosen.data}: draws after {found['seconds']:.0f} s of training, not selected"
        panels_png(panels, out / "energy_matching.png", title, lambda ax: curve(ax, found, result.get("score_network")))

    save()
    print(json.dumps({k: v for k, v in result.items() if k != "options"}), flush=True)
    matched = Matched(chosen, x, judge, found, save)
    run = matched.train(Path(chosen.run) if chosen.run else out / "run", parts)
    shutil.rmtree(parts)
    panels = {f"energy matching, {GRADIENTS[-1]} gradients": matched.draw(run)[:100], "training images": shown[:100]}
    picture(panels)
    if chosen.rival:
        other, (draw, scores) = score_network(chosen, x, device)
        images, seconds = clocked(device, lambda: draw(chosen.samples))
        result["score_network"] = {"updates": other.step, "gradients": scores, "sampling_seconds": seconds,
                                   "events": other.events, **judge.distances(images)}  # fmt: skip
        print(json.dumps(result["score_network"]), flush=True)
        picture(panels | {f"score network, {scores} scores": images[:100]})
    save()
    print(json.dumps({k: v for k, v in result.items() if k != "options"}, indent=1))


if __name__ == "__main__":
    main()
