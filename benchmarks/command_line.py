"""`gibbsian train mnist-rbm` against `examples/mnist_rbm.py`, the same machine trained for as many updates: by turns, each in a
process of its own, from the first import to the trained model on disk.

    GIBBSIAN_DATA=folder python benchmarks/command_line.py --save benchmarks/results/command_line.json

`everything` is the CPU time of a process (on a GPU its wall-clock time); `an update` is that of two lengths of training,
subtracted, so that only what grows with the updates is left. Answers without work (`--help`, `list`,
`import gibbsian`) are measured too.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from timing import save

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "mnist_rbm.py"


def seconds(command: list[str]) -> float:
    """CPU time of a process, or wall-clock time where there is a GPU."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if torch.cuda.is_available():
        return time.perf_counter() - begun
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def recipe(updates: int, folder: str) -> list[str]:
    command = [sys.executable, "-m", "gibbsian", "train", "mnist-rbm", "--no-report"]
    return [*command, "--fit.steps", str(updates), "--run", f"{folder}/run"]


def example(updates: int, folder: str) -> list[str]:
    command = [sys.executable, str(EXAMPLE), "--centered", "--gray", "--train-only"]
    return [*command, "--updates", str(updates), "--out", f"{folder}/out"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, nargs=2, default=(500, 2500), help="a short and a long training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-answers", action="store_true", help="trainings alone")
    parser.add_argument("--save", help="write the results as JSON")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found: dict[str, dict[int, list[float]]] = {"recipe": {}, "example": {}}
    for _ in range(options.rounds):
        for updates in options.updates:
            for name, command in (("recipe", recipe), ("example", example)):
                with tempfile.TemporaryDirectory() as folder:
                    found[name].setdefault(updates, []).append(seconds(command(updates, folder)))
                print(f"{name}, {updates} updates: {found[name][updates][-1]:.1f} s", flush=True)
    answers = {"gibbsian --help": ["-m", "gibbsian", "--help"], "gibbsian list": ["-m", "gibbsian", "list"]}
    answers |= {"import torch": ["-c", "import torch"], "import gibbsian": ["-c", "import gibbsian"]}
    quick = {
        name: min(seconds([sys.executable, *rest]) for _ in range(options.rounds))
        for name, rest in ({} if options.no_answers else answers).items()
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "one thread of a CPU"
    where = {"device": device, "torch": torch.__version__, "updates": list(options.updates)}
    save({**where, "rows": summary(found, *options.updates), "answers": quick}, options.save)


def summary(found: dict[str, dict[int, list[float]]], short: int, long: int) -> dict[str, dict]:
    """Times of the long training, and what an update of it takes, of every round."""
    rows = {}
    for name, times in found.items():
        each = [(b - a) / (long - short) * 1e6 for a, b in zip(times[short], times[long], strict=True)]
        rows[name] = {"everything": times[long], "us_an_update": statistics.median(each), "us_of_rounds": each}
    return rows


if __name__ == "__main__":
    main()
