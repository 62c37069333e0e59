"""Two checkouts of the library against each other: is the newer one slower anywhere?

    python benchmarks/two_trees.py OLD NEW --save benchmarks/results/two_trees.json [--device cuda] [--only rbm]

One process for each tree, and a second one for the old: what old against old differs by is the spread of the machine.
A round runs every workload once in every process, one after the other; ratios are taken within rounds. Names and options
of either version are understood, so that a renaming does not stop the comparison.
"""

import argparse
import contextlib
import inspect
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

WORKLOADS = {}


def workload(steps: int, device: str = "cpu"):
    """Register a function that returns `run(steps)`."""

    def note(make):
        WORKLOADS[make.__name__] = (make, steps, device)
        return make

    return note


# --- inside the process of one tree ------------------------------------------------------------------------------


def fitting(energy, objective, data, batch, *, compile: bool = False, lr: float = 0.01):
    """The steps of `fit`: a short call subtracted from a long one, on a GPU those after the first quarter by the log."""
    import gibbsian as gb

    known = inspect.signature(gb.fit).parameters
    how = {"optimizer" if "optimizer" in known else "optimiser": "sgd", "progress": False, "guard": True}
    if compile:
        how |= {"compile": True} if "compile" in known else {"engine": gb.training.Engine(compile=True)}

    def call(steps: int) -> list[dict]:
        return gb.fit(energy, objective, data, steps=steps, batch_size=batch, lr=lr, **how).history

    def by_the_log(steps: int) -> float:  # what begins and captures takes as long as many steps
        rows = call(steps)
        first, last = next(row for row in rows if row["step"] >= steps / 4), rows[-1]
        return (last["seconds"] - first["seconds"]) / (last["step"] - first["step"]) * steps

    def by_the_clock(steps: int) -> float:
        times = [time.process_time()]  # one thread: what others do on the machine is left out
        for count in (steps // 2, steps + steps // 2):
            call(count)
            times.append(time.process_time())
        return times[2] - 2 * times[1] + times[0]

    return by_the_log if any(p.is_cuda for p in energy.parameters()) else by_the_clock


def bits(rows: int, columns: int, device: str = "cpu"):
    import torch

    return (torch.rand(rows, columns, generator=torch.Generator().manual_seed(0)) < 0.3).float().to(device)


def named(home, *names: str):
    """The first of some names that a module has."""
    return next(getattr(home, name) for name in names if name in dir(home))


@workload(150)
def rbm_cd1():
    from gibbsian import kernels, models, objectives

    return fitting(models.RBM(784, 500), objectives.ContrastiveDivergence(kernels.Gibbs()), bits(2000, 784), 100)


@workload(150)
def rbm_pcd1():
    from gibbsian import kernels, models, objectives

    chains = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=100)
    return fitting(models.RBM(784, 500), chains, bits(2000, 784), 100)


@workload(1500)
def rbm_small():
    from gibbsian import kernels, models, objectives

    chains = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=10)
    return fitting(models.RBM(64, 32), chains, bits(2000, 64), 10)


@workload(100)
def rbm_recipe():
    """Centered persistent chains with weight decay on data binarized anew, as the recipes train."""
    from gibbsian import kernels, models, objectives

    centered, binarized = named(objectives, "Centered", "Centred"), named(objectives, "Binarized", "Binarised")
    chains = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=100)
    objective = objectives.Weighted([binarized(centered(chains)), objectives.WeightDecay(1e-4)])
    return fitting(models.RBM(784, 500), objective, bits(2000, 784), 100)


@workload(300)
def gaussian_rbm():
    import torch

    from gibbsian import kernels, models, objectives, units

    data = torch.randn(2000, 64, generator=torch.Generator().manual_seed(0))
    return fitting(
        models.RBM(units.Gaussian(64), 64), objectives.ContrastiveDivergence(kernels.Gibbs()), data, 100, lr=1e-4
    )


@workload(25)
def dbm():
    from gibbsian import models, objectives

    return fitting(models.DBM(784, 500, 500), objectives.VariationalLikelihood(), bits(2000, 784), 100)


@workload(50)
def dbn():
    from gibbsian import models, objectives

    return fitting(models.DBN(784, 500, 500), objectives.UpDown(), bits(2000, 784), 100)


@workload(200)
def temporal_rbm():
    from gibbsian import kernels, models, objectives

    inner = objectives.ContrastiveDivergence(kernels.Gibbs())
    past, now = bits(2000, 128).reshape(2000, 2, 64), bits(2000, 64)
    return fitting(models.TemporalRBM(visible=64, hidden=64, order=2), objectives.Conditional(inner), (past, now), 100)


def sampling(energy, kernel, x, **how):
    import torch

    import gibbsian as gb

    def run(steps: int) -> float:
        g = torch.Generator(x.device).manual_seed(0)
        begun = time.perf_counter()
        gb.sample(energy, kernel, x, steps=steps, keep=False, generator=g, progress=False, **how)
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    return run


@workload(600)
def langevin():
    import torch

    from gibbsian import energies, kernels

    return sampling(energies.Banana(), kernels.Langevin(0.1), torch.zeros(100, 2))


@workload(100)
def mala_mlp():
    import torch

    from gibbsian import domains, energies, kernels

    return sampling(energies.MLPEnergy(domains.Real(2), hidden=(64, 64)), kernels.MALA(0.1), torch.zeros(100, 2))


@workload(60)
def hmc():
    import torch

    from gibbsian import energies, kernels

    return sampling(energies.Gaussian(torch.zeros(50), torch.eye(50)), kernels.HMC(0.3, 10), torch.zeros(64, 50))


@workload(2000)
def hmc_compiled():
    import torch

    from gibbsian import energies, kernels

    return sampling(
        energies.Gaussian(torch.zeros(10), torch.eye(10)), kernels.HMC(0.3, 5), torch.zeros(64, 10), compile=True
    )


@workload(20)
def nuts():
    import torch

    from gibbsian import energies, kernels

    return sampling(energies.Gaussian(torch.zeros(10), torch.eye(10)), kernels.NUTS(0.4), torch.zeros(16, 10))


@workload(100)
def gibbs_rbm():
    from gibbsian import kernels, models

    return sampling(models.RBM(784, 500), kernels.Gibbs(), bits(100, 784))


@workload(200)
def ais_rbm():
    import torch

    from gibbsian import models, partition

    rbm, data = models.RBM(784, 500), bits(500, 784)

    def run(steps: int) -> float:
        begun = time.perf_counter()
        g = torch.Generator().manual_seed(0)
        partition.ais(rbm, data=data, chains=100, betas=steps, generator=g, progress=False)
        return time.perf_counter() - begun

    return run


@workload(40000, "cuda")
def gpu_pcd1():
    from gibbsian import kernels, models, objectives

    chains = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=100)
    return fitting(models.RBM(784, 500).cuda(), chains, bits(20000, 784, "cuda"), 100, compile=True)


@workload(20000, "cuda")
def gpu_rbm_recipe():
    from gibbsian import kernels, models, objectives

    centered, binarized = named(objectives, "Centered", "Centred"), named(objectives, "Binarized", "Binarised")
    chains = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=100)
    objective = objectives.Weighted([binarized(centered(chains)), objectives.WeightDecay(1e-4)])
    return fitting(models.RBM(784, 500).cuda(), objective, bits(20000, 784, "cuda"), 100, compile=True)


@workload(4000, "cuda")
def gpu_dbm():
    from gibbsian import models, objectives

    machine = models.DBM(784, 500, 1000).cuda()
    return fitting(machine, objectives.VariationalLikelihood(), bits(20000, 784, "cuda"), 100, compile=True)


@workload(5000, "cuda")
def gpu_dbn():
    from gibbsian import models, objectives

    machine = models.DBN(784, 500, 500).cuda()
    return fitting(machine, objectives.UpDown(), bits(20000, 784, "cuda"), 100, compile=True)


@workload(1000, "cuda")
def gpu_pcd1_eager():
    from gibbsian import kernels, models, objectives

    chains = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=100)
    return fitting(models.RBM(784, 500).cuda(), chains, bits(20000, 784, "cuda"), 100)


@workload(5000, "cuda")
def gpu_hmc():
    import torch

    from gibbsian import energies, kernels

    law = energies.Gaussian(torch.zeros(50), torch.eye(50)).cuda()
    return sampling(law, kernels.HMC(0.3, 5), torch.zeros(1024, 50, device="cuda"), compile=True)


def serve() -> None:
    """Run what is asked for, one line of JSON each way."""
    warnings.simplefilter("ignore")
    made = {}
    answers = sys.stdout
    for line in sys.stdin:
        name, steps = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            if name not in made:
                made[name] = WORKLOADS[name][0]()
                made[name](max(2, steps // 5))
            seconds = made[name](steps)
        print(json.dumps(seconds / steps * 1e6), file=answers, flush=True)


# --- outside -----------------------------------------------------------------------------------------------------


class Tree:
    """The process of one checkout."""

    def __init__(self, folder: str) -> None:
        env = os.environ | {"PYTHONPATH": str(Path(folder) / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def __call__(self, name: str, steps: int) -> float:
        self.process.stdin.write(json.dumps([name, steps]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{name} failed")
        return json.loads(answer)


def main() -> None:
    from timing import interleave, save

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?")
    parser.add_argument("new", nargs="?")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="workloads whose name holds this")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--save")
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    trees = {"old": Tree(options.old), "old again": Tree(options.old), "new": Tree(options.new)}
    results = []
    for name, (_, steps, device) in WORKLOADS.items():
        if device == options.device and options.only in name:
            clock = Clock()
            contenders = [(label, clock.running(tree, name), steps) for label, tree in trees.items()]
            results.append(interleave(name, contenders, base="old", rounds=options.rounds, clock=clock))
            save(results, options.save)


class Clock:
    """The time that the processes say they took: theirs, not that of the pipe."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def running(self, tree: Tree, name: str):
        """Let a tree run a workload, and move on by what it took."""

        def run(steps: int) -> None:
            self.now += tree(name, steps) * steps * 1e-6

        return run


if __name__ == "__main__":
    main()
