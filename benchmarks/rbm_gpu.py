"""PCD-1 updates of an RBM on one GPU: many in one CUDA graph against eager ones and the bare products.

    PYTHONPATH=src:benchmarks python benchmarks/rbm_gpu.py --save benchmarks/results/rbm_gpu.json

RBM 784×500, batch and chains of 100 and 1000, SGD, random binary data on the device; whole calls of `gibbsian.fit`,
capture and compilation left out by subtracting a short call of the same kind.
"""

import argparse
import time
import warnings

import torch
from timing import save

import gibbsian as gb
from gibbsian import kernels, models, objectives
from gibbsian.training import Engine, Logging

warnings.simplefilter("ignore")


def trainer(data: torch.Tensor, batch: int, **how):
    """A function of the number of updates that trains one more time, with the graphs of this call left out."""
    rbm = models.RBM(784, 500).cuda()
    objective = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=1, chains=batch)
    if how.pop("centered", False):
        objective = objectives.Centered(objective)

    def call(updates: int) -> float:
        begun = time.perf_counter()
        gb.fit(rbm, objective, data, steps=updates, batch_size=batch, lr=0.01, optimizer="sgd", **how)
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    return call


def microseconds(call, short: int, long: int, rounds: int) -> list[float]:
    """Per update, from pairs of a short and a long call."""
    call(short)
    return [(call(long) - call(short)) / (long - short) * 1e6 for _ in range(rounds)]


def products(batch: int, precision: str) -> float:
    """The six products of PCD-1, a hundred times in one graph."""
    torch.set_float32_matmul_precision(precision)
    w = torch.randn(784, 500, device="cuda")
    v, h = torch.rand(batch, 784, device="cuda"), torch.rand(batch, 500, device="cuda")

    def six() -> None:
        v @ w, v @ w, h @ w.T, v @ w, v.T @ h, v.T @ h

    six()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            six()
    torch.set_float32_matmul_precision("highest")
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begun) / 100 * 1e6)
    return sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--ways", type=int, default=4, help="the first so many of them")
    parser.add_argument("--updates", type=int, default=11_000, help="of a long call")
    parser.add_argument("--save")
    options = parser.parse_args()
    results = []
    for batch in options.batches:
        data = (torch.rand(10_000, 784, device="cuda") < 0.3).float()
        quiet = {"guard": False, "logging": Logging(every=1000)}
        tf32 = Engine(precision="tf32", compile=True)
        ways = {
            "many updates in a graph, tf32": {"engine": tf32, **quiet},
            "many updates in a graph, f32": {"engine": Engine(compile=True), **quiet},
            "the same with guard and log as usual": {"engine": tf32},
            "the same, centered": {"engine": tf32, "centered": True, **quiet},
        }
        row: dict = {"batch": batch}
        for name, how in list(ways.items())[: options.ways]:
            begun = time.perf_counter()
            call = trainer(data, batch, **how)
            call(200)
            first = time.perf_counter() - begun
            row[name] = microseconds(call, options.updates // 11, options.updates, options.rounds)
            print(f"batch {batch}, {name}: {[round(t, 1) for t in row[name]]} µs; first call {first:.1f} s", flush=True)
        row["eager"] = microseconds(trainer(data, batch, **quiet), 100, 600, options.rounds)
        for name, precision in (("tf32", "high"), ("f32", "highest")):
            row[f"six products in a graph, {name}"] = [products(batch, precision) for _ in range(options.rounds)]
        print({k: v for k, v in row.items() if "products" in k or k == "eager"}, flush=True)
        results.append(row)
        keep(results, options)


def keep(results: list[dict], options: argparse.Namespace) -> None:
    """Save what there is so far."""
    work = "RBM 784×500, PCD-1, as many chains as rows, SGD; whole calls of fit, µs an update"
    where = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    save({**where, "work": work, "rounds": options.rounds, "rows": results}, options.save)


if __name__ == "__main__":
    main()
