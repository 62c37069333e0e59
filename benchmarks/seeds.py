"""Do recipes end by themselves, whatever the seed? Several seeds of each at once on one GPU, and what they draw from noise.

    GIBBSIAN_DATA=folder python benchmarks/seeds.py mnist-energy:10 --seconds 330 --out out/seeds
    GIBBSIAN_DATA=folder python benchmarks/seeds.py fashion-jem:5 --whole --together 3 --lengths 40 200

Every seed is a process, `gibbsian train NAME --fit.seed S`, all of them at once or `--together` so many (start nvidia-cuda-mps-control
before, or they take turns; large networks slow each other down more than in proportion). Where not all updates of a recipe fit into the seconds, a first look at the speed of all of them together says how many do, and the whole
schedule of the rate is shrunk to those: `updates` and `planned` of a row tell; `--whole` takes all of them without that look. A separate classifier, trained meanwhile, then reads draws of the
averaged energy that began at uniform noise, of the given classes where the energy knows classes. Rows go to seeds.json.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "examples"))
from images import Judge, augmented, probabilities, read, save_png, share_read, train_classifier  # noqa: E402

import gibbsian as gb  # noqa: E402
from gibbsian import domains, hybrid  # noqa: E402
from gibbsian.app.recipe import parse_recipe, recipe_source  # noqa: E402
from gibbsian.capabilities import JointModel  # noqa: E402
from gibbsian.nets import ResidualNet  # noqa: E402
from gibbsian.training import checkpoint, keep  # noqa: E402

SHAPE = (1, 28, 28)


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log."""
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def start(name: str, seed: int, folder: Path, flags: list[str]) -> subprocess.Popen:
    """A training as a user starts it."""
    command = [sys.executable, "-m", "gibbsian", "train", name, "--run", str(folder), "--no-report"]
    command += ["--fit.seed", str(seed), *flags]
    log = open(f"{folder}.log", "w")  # noqa: SIM115  # as long as the process
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"})


def begin(
    jobs: list[tuple[str, int, Path]], flags: dict[str, list[str]], steps: dict[str, int]
) -> tuple[list[subprocess.Popen], float]:
    """Trainings of so many updates, and when they began."""
    every = [(name, seed, folder, [*flags[name], "--fit.steps", str(steps[name])]) for name, seed, folder in jobs]
    return [start(*one) for one in every], time.perf_counter()


def stop(processes: list[subprocess.Popen], until: float) -> list[int | None]:
    """Wait; what still runs then is asked to end, and gets half a minute to write its checkpoint."""
    for after, number in ((until, signal.SIGTERM), (until + 30, signal.SIGKILL)):
        while time.perf_counter() < after and any(p.poll() is None for p in processes):
            time.sleep(0.2)
        for p in processes:
            if p.poll() is None:
                p.send_signal(number)
    return [p.wait() for p in processes]


def whole_of(name: str, flags: list[str]) -> int:
    """The updates of a recipe as it is."""
    fit = parse_recipe(recipe_source(name)[1], flags, name=name).fit
    if fit.get("steps") is None:
        raise SystemExit(f"{name} counts epochs; say its updates with --flags '--fit.steps N'")
    return int(fit["steps"])


def planned(
    recipes: dict[str, int], out: Path, flags: dict[str, list[str]], seconds: float, look: int, most: float
) -> dict[str, int]:
    """How many updates of each recipe fit into the seconds, by the slowest of its seeds while all of them run."""
    begun, found = time.perf_counter(), {}
    probes = {
        name: [out / "probe" / f"{Path(name).stem}-{seed}" for seed in range(count)] for name, count in recipes.items()
    }
    (out / "probe").mkdir(parents=True)
    every = max(1, look // 4)
    extra = ["--fit.steps", "1000000", "--fit.logging.every", str(every), "--fit.logging.validate_every", "1000000"]
    running = [
        start(name, seed, folder, [*flags[name], *extra])
        for name, folders in probes.items()
        for seed, folder in enumerate(folders)
    ]

    def rates(name: str) -> list[float]:
        lines = [[r for r in log_of(folder) if "seconds" in r] for folder in probes[name]]
        return [
            (one[-1]["step"] - one[0]["step"]) / (one[-1]["seconds"] - one[0]["seconds"])
            for one in lines
            if len(one) > 3
        ]

    while time.perf_counter() - begun < most:
        time.sleep(1)
        if all(len(rates(name)) == len(folders) for name, folders in probes.items()):
            break
    for name in recipes:
        rate, whole = min(rates(name), default=1.0), whole_of(name, flags[name])
        found[name] = max(10, min(whole, int(rate * seconds)))
        print(f"{name}: {rate:.1f} updates a second beside the others, {found[name]} of {whole}", flush=True)
    stop(running, 0.0)
    return found


class ImageSet(NamedTuple):
    """Images and labels of a set, and who reads draws of models of it."""

    train: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    judge: Judge


def image_set(name: str, device: str, updates: int) -> ImageSet:
    """A set with a judge that is trained here, for so many updates."""
    (x, y), test = ([t.to(device) for t in read(name, part)] for part in ("train", "test"))
    net = ResidualNet(SHAPE, (32, 64, 128) if device == "cuda" else (8, 8), 1, outputs=10, pool=False).to(device)
    moved = lambda b, g: (augmented(b[0], g, shift=1, flip=name == "fashion"), b[1])  # noqa: E731
    model = train_classifier(net, (x, y), moved, updates, domain=domains.Box(SHAPE, -1.0, 1.0), lr=1e-3)
    return ImageSet((x, y), (test[0], test[1]), Judge(model, (test[0], test[1])))


def read_by(judge: Judge, images: torch.Tensor, labels: torch.Tensor | None) -> dict[str, Any]:
    """How a judge reads draws, and how far their features are from those of test images."""
    p = judge.read(images)
    shares = [float((p.argmax(1) == k).double().mean()) for k in range(10)]
    found: dict[str, Any] = {"confidence": float(p.amax(1).mean()), "shares": shares, "fid": judge.distance(images)}
    return found if labels is None else found | {"read_as_their_class": share_read(p, labels)}


def judged(folder: Path, images: ImageSet, n: int, lengths: list[int], picture: Path) -> dict[str, Any]:
    """Draws of the averaged energy from uniform noise, of ten classes where it knows them, and from Gaussians with their moments."""
    device = images.test[0].device
    model = gb.load(folder, ema=True, device=device)
    kernel = keep.read_config(folder, ("objective",))["objective"].kernels()[0]
    g = gb.random.stream(0, "judge", device)
    labels = torch.arange(10, device=device).repeat(n // 10)
    joint = isinstance(model, JointModel)
    law = model.given(labels) if joint else model
    x, y = (t[:5000] for t in images.train)
    like = {"wanted": labels} if joint else {}
    found: dict[str, Any] = {}
    for start in ("noise", "gaussian"):
        for steps in lengths:
            begin = (
                model.domain.sample(n, generator=g)
                if start == "noise"
                else hybrid.like_classes(x, y if joint else None, n, generator=g, **like).clamp(-1, 1)
            )
            made = gb.sample(law, kernel, begin, steps=steps, keep=False, generator=g, progress=False).last
            found[f"{start}, {steps} steps"] = read_by(images.judge, made, labels if joint else None)
        save_png(made[:100], picture.with_name(f"{picture.name}-{start}.png"), 10)
    if joint:
        found["accuracy"] = share_read(probabilities(model, images.test[0]), images.test[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", help="name:seeds, such as mnist-energy:10, or a file of one's own")
    parser.add_argument("--out", default="out/seeds", type=Path)
    parser.add_argument("--seconds", type=float, default=330.0, help="for the training of all of them together")
    parser.add_argument("--whole", action="store_true", help="all updates of the recipes; the seconds are a limit then")
    parser.add_argument("--together", type=int, help="trainings at a time, each with all the seconds; all by default")
    parser.add_argument("--look", type=int, default=80, help="updates of the first look at the speed")
    parser.add_argument("--look-seconds", type=float, default=60.0, help="that it may take at most")
    parser.add_argument("--judge", type=int, default=3000, help="updates of the classifier")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--lengths", type=int, nargs="+", default=[200, 400], help="steps of the draws")
    parser.add_argument("--flags", default="", help="further flags of every training")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipes = {name: int(count) for name, count in (one.rsplit(":", 1) for one in chosen.recipes)}
    chosen.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp())
    flags = {name: chosen.flags.split() for name in recipes}
    steps = (
        {name: whole_of(name, flags[name]) for name in recipes}
        if chosen.whole
        else planned(recipes, work, flags, chosen.seconds, chosen.look, chosen.look_seconds)
    )
    jobs = [
        (name, seed, work / f"{Path(name).stem}-{seed}") for name, count in recipes.items() for seed in range(count)
    ]
    some = chosen.together or len(jobs)
    waves = [jobs[i : i + some] for i in range(0, len(jobs), some)]
    running, begun = begin(waves[0], flags, steps)
    sets = {name: "fashion" if "fashion" in name else "mnist" for name in recipes}
    images = {one: image_set(one, device, chosen.judge) for one in sorted(set(sets.values()))}
    judges = {name: one.judge.accuracy for name, one in images.items()}
    print(judges, flush=True)
    codes = []
    for after in [*waves[1:], []]:
        codes += stop(running, begun + 1.2 * chosen.seconds + 40)
        running, begun = begin(after, flags, steps)
    rows = []
    for (name, seed, folder), code in zip(jobs, codes, strict=True):
        log = log_of(folder)
        events = [str(r.get("message", r)) for r in log if "event" in r]
        trained = [r for r in log if "seconds" in r]
        row: dict[str, Any] = {"recipe": Path(name).stem, "seed": seed, "planned": steps[name], "exit_code": code}
        row |= {"seconds": trained[-1]["seconds"] if trained else 0.0}
        row["updates"] = max(checkpoint.steps_saved(folder), default=0) if folder.exists() else 0
        row |= {"ended": code == 0 and row["updates"] == steps[name], "events": events}
        row["rollbacks"] = sum("back to step" in event for event in events)
        row["held_out"] = [[r["step"], 1 - r["validation_error"]] for r in log if "validation_error" in r]
        if row["updates"]:
            row |= judged(folder, images[sets[name]], chosen.draws, chosen.lengths, chosen.out / folder.name)
        else:
            row["output"] = Path(f"{folder}.log").read_text()[-600:]
        rows.append(row)
        print(json.dumps({k: v for k, v in row.items() if k != "events"}), flush=True)
        found = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__}
        found |= {"judges": judges, "seconds": chosen.seconds, "rows": rows}
        (chosen.out / "seeds.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
