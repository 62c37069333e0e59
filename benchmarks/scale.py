"""Several processes on one machine: weak scaling, bytes on the wire, eight processes against one, and fifty kills.

    OMP_NUM_THREADS=1 python scale.py --save results/scale.json        (all parts; or some: --parts weak kills, which leave the others as saved)

Ranks are forks of one interpreter with one thread each. Where it may, the script moves into a network namespace of its own, so that
the counters of the loopback are its own. A machine shared with others is measured by processor time: what a process computes,
packs and sends counts, what it waits for does not; wall time is saved beside it with the load that it met.
"""

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from timing import save
from torch import Tensor
from torch.distributed.elastic.utils.distributed import get_free_port

import gibbsian as gb
from gibbsian import domains, energies, kernels, models, objectives, partition
from gibbsian.distributed import Shards, World, join

SIZES = (1, 2, 4, 8)
KILLS, STEPS, EVERY = 50, 60, 10


def own_network() -> bool:
    """Move into a network namespace of our own, where that is allowed."""
    if ctypes.CDLL(None).unshare(0x40000000) != 0:  # CLONE_NEWNET
        return False
    return subprocess.run(["ip", "link", "set", "lo", "up"], check=False).returncode == 0


def wire() -> int:
    """Bytes that have gone over the loopback."""
    line = next(row for row in Path("/proc/net/dev").read_text().splitlines() if row.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def start(function: Callable[[World, Path], Any], size: int, folder: Path) -> list[int]:
    """Fork the ranks of a job, which write what they return as JSON; their process ids."""
    port, children = get_free_port(), []
    for rank in range(size):
        child = os.fork()
        if not child:
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "GIBBSIAN_TIMEOUT": "120",
            }
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(size)}
            code = 1
            try:
                torch.set_num_threads(1)
                found = function(join()[0], folder)
                (folder / f"{rank}.json").write_text(json.dumps(found))
                code = 0
            except gb.errors.ProcessError as error:
                (folder / f"{rank}.txt").write_text(str(error))
            finally:
                os._exit(code)
        children.append(child)
    return children


def run(function: Callable[[World, Path], Any], size: int) -> list[Any]:
    """What every rank of a job returns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        codes = [os.waitpid(child, 0)[1] for child in start(function, size, folder)]
        if any(codes):
            raise RuntimeError(f"{function.__name__} on {size} processes ended with {codes}")
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- weak scaling ------------------------------------------------------------------------------------------------


def machine() -> models.RBM:
    rbm = models.RBM(256, 128)
    with torch.no_grad():
        rbm.weight.copy_(0.1 * torch.randn(rbm.weight.shape, generator=gen()))
    return rbm


def chains(world: World, rbm: models.RBM) -> int:
    x0 = torch.zeros(64 * world.size, 256)
    trace = gb.sample(rbm, kernels.Gibbs(), x0, 250, burn_in=50, keep=False, generator=Shards(0))
    trace.summary()
    return 0


def annealing(world: World, rbm: models.RBM) -> int:
    partition.ais(rbm, base=torch.zeros(256), chains=64 * world.size, betas=300, generator=Shards(0))
    return 0


def training(world: World, rbm: models.RBM) -> int:
    data = (torch.rand(2048, 256, generator=gen(1)) < 0.3).float()
    pcd = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=1, chains=64)
    gb.fit(rbm, pcd, data, steps=100, batch_size=64 * world.size, optimizer="sgd", lr=0.01)
    return 100


def matching(world: World, rbm: models.RBM) -> int:
    net = energies.MLPEnergy(64, hidden=(256, 256))
    data = torch.randn(2048, 64, generator=gen(1))
    gb.fit(net, objectives.DenoisingScoreMatching(0.3), data, steps=40, batch_size=64 * world.size)
    return 40


WEAK = {"chains": chains, "AIS": annealing, "PCD": training, "score matching": matching}


def weak(rounds: int) -> list[dict[str, Any]]:
    """Processor time of a process, where each has as much to do as one process alone."""
    private = own_network()
    records = []
    for turn in range(rounds):
        for name, task in WEAK.items():
            for size in SIZES if turn < 1 else SIZES[:2]:

                def job(world: World, folder: Path, task: Callable[..., int] = task) -> dict[str, float]:
                    rbm = machine()
                    world.wait(torch.device("cpu"))
                    cpu, wall = time.process_time(), time.perf_counter()
                    updates = task(world, rbm)
                    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "updates": updates}

                load, before = os.getloadavg()[0], wire()
                found = run(job, size)
                cpu = sum(one["cpu"] for one in found) / size
                record = {
                    "task": name,
                    "processes": size,
                    "cpu": cpu,
                    "wall": max(one["wall"] for one in found),
                    "load": load,
                }
                record["bytes"] = (wire() - before) / size if private else None
                record["updates"] = found[0]["updates"]
                records.append(record)
                print(
                    {key: round(value, 3) if isinstance(value, float) else value for key, value in record.items()},
                    flush=True,
                )
    return records


def efficiencies(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By task and number of processes: processor time of one process alone over that of one among several, paired by round."""
    out = []
    for name in WEAK:
        alone = [r for r in records if r["task"] == name and r["processes"] == 1]
        for size in SIZES[1:]:
            many = [r for r in records if r["task"] == name and r["processes"] == size]
            ratios = [a["cpu"] / b["cpu"] for a, b in zip(alone, many, strict=False)]
            walls = [a["wall"] / b["wall"] for a, b in zip(alone, many, strict=False)]
            row = {"task": name, "processes": size, "efficiency": median(ratios), "lowest": min(ratios)}
            row |= {
                "highest": max(ratios),
                "wall": median(walls),
                "load": max(b["load"] for b in many),
                "rounds": len(ratios),
            }
            sent = [b["bytes"] for b in many if b["bytes"] is not None]
            row["bytes"] = min(sent) if sent else None
            out.append(row)
    return out


# --- communication -----------------------------------------------------------------------------------------------


def update_bytes(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bytes that a process puts on the wire for an update, beside the least that a sum over processes needs; joining, logging
    and the guard are counted in."""
    out, gradient = [], sum(4 * p.numel() for p in machine().parameters())
    for size in SIZES[1:]:
        found = [
            r["bytes"] / r["updates"] for r in records if r["task"] == "PCD" and r["processes"] == size and r["bytes"]
        ]
        least = 2 * (size - 1) / size * gradient
        if found:
            out.append({"processes": size, "bytes": min(found), "bound": least, "ratio": min(found) / least})
    return out


def link() -> list[dict[str, Any]]:
    """Seconds of a sum over processes by its size, the best of many."""
    out = []
    for size in SIZES[1:]:

        def job(world: World, folder: Path) -> list[float]:
            best = []
            for numbers in (1 << 2, 1 << 12, 1 << 16, 1 << 20):
                x, times = torch.zeros(numbers), []
                for _ in range(40 if numbers < 1 << 20 else 12):
                    world.wait(torch.device("cpu"))
                    begun = time.perf_counter()
                    dist.all_reduce(x)
                    times.append(time.perf_counter() - begun)
                best.append(min(times))
            return best

        found = run(job, size)
        for i, numbers in enumerate((1 << 2, 1 << 12, 1 << 16, 1 << 20)):
            out.append({"processes": size, "bytes": 4 * numbers, "seconds": max(one[i] for one in found)})
            print(out[-1], flush=True)
    return out


# --- eight processes ---------------------------------------------------------------------------------------------


def agreement() -> dict[str, Any]:
    """Eight processes against one: AIS of the same shards, and an exact training."""

    def job(world: World, folder: Path) -> dict[str, Any]:
        z = partition.ais(machine(), base=torch.zeros(256), chains=128, betas=50, generator=Shards(0))
        data = (torch.rand(320, 6, generator=gen(1)) < 0.3).double()
        fit = gb.fit(models.RBM(6, 3).double(), objectives.ExactLikelihood(), data, steps=50, batch_size=64, lr=0.05)
        trained = torch.cat([p.detach().flatten() for p in fit.energy.parameters()]).tolist()
        return {"weights": z.diagnostics["log_weights"].tolist(), "trained": trained}

    one, eight = run(job, 1)[0], run(job, 8)
    far = max(abs(a - b) for other in eight for a, b in zip(other["trained"], one["trained"], strict=True))
    return {"log_weights_equal": all(other["weights"] == one["weights"] for other in eight), "training_differs_by": far}


# --- fifty kills -------------------------------------------------------------------------------------------------

STATES = domains.Binary(6).states(dtype=torch.float64)
TRUTH = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9, 0.5], dtype=torch.float64)
DATA = (torch.rand(96, 6, generator=gen(7), dtype=torch.float64) < TRUTH).double()
PCD = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=2, chains=24)


class Notes:
    """A transform that writes down which rows a process has seen, batch by batch, so that a kill loses none."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w")

    def __call__(self, batch: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
        x, rows = batch
        print(*rows.tolist(), file=self.file, flush=True)
        return x


def begin(seed: int) -> Callable[[World, Path], Any]:
    def job(world: World, folder: Path) -> Any:
        how: dict[str, Any] = {
            "batch_size": 20,
            "lr": 0.02,
            "seed": seed,
            "transform": Notes(folder / f"first-{world.rank}"),
        }
        kept = gb.training.Checkpoints(every=EVERY)
        done = gb.fit(
            models.RBM(6, 3).double(),
            PCD,
            (DATA, torch.arange(96)),
            steps=STEPS,
            run_dir=folder / "run",
            checkpoints=kept,
            **how,
        )
        return judged(done)

    return job


def again(world: World, folder: Path) -> Any:
    notes = Notes(folder / f"second-{world.rank}")
    return judged(gb.resume(folder / "run", (DATA, torch.arange(96)), transform=notes))


def judged(run: Any) -> dict[str, Any]:
    with torch.no_grad():
        likely = float(-run.energy(DATA).mean() - torch.logsumexp(-run.energy(STATES), 0))
    return {
        "log_likelihood": likely,
        "step": run.step,
        "weights": [p.detach().flatten().tolist() for p in run.energy.parameters()],
    }


def seen(folder: Path, which: str, size: int) -> list[list[int]]:
    """The rows of every batch over all processes; the first look is the objective's."""
    each = [(folder / f"{which}-{rank}").read_text().splitlines()[1:] for rank in range(size)]
    return [sorted(int(n) for line in lines for n in line.split()) for lines in zip(*each, strict=False)]


def kills(count: int) -> dict[str, Any]:
    """Kill a random rank of two at a random moment, go on on one, two or three processes, and compare with what nobody disturbed."""
    whole, straight = [], []
    for seed in range(5):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            children = start(begin(seed), 2, folder)
            while not (folder / "run" / "checkpoints").exists():
                time.sleep(0.005)
            begun = time.perf_counter()
            codes = [os.waitpid(child, 0)[1] for child in children]
            took = time.perf_counter() - begun
            if any(codes):
                raise RuntimeError(f"an undisturbed run ended with {codes}")
            straight.append(json.loads((folder / "0.json").read_text()))
            whole.append(seen(folder, "first", 2))
    likely = torch.tensor([one["log_likelihood"] for one in straight])
    interval = float(likely.mean() - 4 * likely.std()), float(likely.mean() + 4 * likely.std())
    records, dice = [], random.Random(0)
    while len(records) < count:
        with tempfile.TemporaryDirectory() as name:
            record = one_kill(Path(name), dice, took, straight[0], whole[0])
            if record is not None:
                record["likelihood_within"] = interval[0] <= record["log_likelihood"] <= interval[1]
                records.append(record)
                print(len(records), record, flush=True)
    return {"interval": interval, "records": records}


def one_kill(
    folder: Path, dice: random.Random, took: float, straight: dict[str, Any], whole: list[Any]
) -> dict[str, Any] | None:
    children = start(begin(0), 2, folder)
    while not (folder / "run" / "checkpoints").exists():
        time.sleep(0.005)
    time.sleep(dice.random() * took)
    victim, size = dice.randrange(2), dice.choice((1, 2, 3))
    os.kill(children[victim], signal.SIGKILL)
    begun = time.perf_counter()
    codes = [os.waitpid(child, 0)[1] for child in children]
    seconds = time.perf_counter() - begun
    if codes[1 - victim] == 0:  # it had ended before
        return None
    said = folder / f"{1 - victim}.txt"
    step = max(int(path.name[5:]) for path in (folder / "run" / "checkpoints").glob("step-*"))
    shutil.rmtree(folder / "second", ignore_errors=True)
    if any(os.waitpid(child, 0)[1] for child in start(again, size, folder)):
        raise RuntimeError(f"the resumed run failed: {[p.read_text() for p in folder.glob('*.txt')]}")
    done = json.loads((folder / "0.json").read_text())
    rows = seen(folder, "first", 2)[:step] + seen(folder, "second", size)
    return {
        "killed": victim, "resumed_on": size, "from_step": step, "seconds_to_end": seconds,
        "one_sentence": said.exists() and "another process of this job was lost" in said.read_text(),
        "rows_as_undisturbed": rows == whole, "to_the_bit": done["weights"] == straight["weights"],
        "log_likelihood": done["log_likelihood"], "step": done["step"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save")
    parser.add_argument("--parts", nargs="+", default=["weak", "link", "eight", "kills"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kills", type=int, default=KILLS)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.save and Path(options.save).exists():
        results = json.loads(Path(options.save).read_text())
    results |= {"torch": torch.__version__, "cores": os.cpu_count()}
    if "weak" in options.parts:
        results["weak_rounds"] = weak(options.rounds)
        results["weak"] = efficiencies(results["weak_rounds"])
        results["bytes"] = update_bytes(results["weak_rounds"])
    if "link" in options.parts:
        results["link"] = link()
    if "eight" in options.parts:
        results["eight"] = agreement()
    if "kills" in options.parts:
        results["kills"] = kills(options.kills)
    save(results, options.save)


if __name__ == "__main__":
    sys.exit(main())
