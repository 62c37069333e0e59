"""How often the interval of `partition.ais`, called without betas, holds the true log Z.

    python benchmarks/ais_coverage.py --runs 100 --save benchmarks/results/ais_coverage.json [--only wells] [--mnist weights.pt]

Machines whose log Z is summed exactly: RBMs of 15 to 16 hidden units trained by the exact gradient on two to five
prototypes (deep wells, one of them rare, far apart), bars and stripes, a cold Ising lattice, a spin glass. With `--mnist`
(weights of an RBM of 784 x 500 units and GIBBSIAN_DATA) a machine out of reach, against a ladder of 100 000 temperatures
climbed and descended by 2000 chains. Beside the interval: how often three standard errors of the climb alone cover.
"""

import argparse
import itertools
import json
import math
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch.nn import functional

import gibbsian as gb
from gibbsian import data, models, partition


def gen(seed: int, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def trained(rbm: models.RBM, x: torch.Tensor, steps: int, lr: float) -> models.RBM:
    """Maximum likelihood, log Z summed over the hidden states at every step."""
    h = torch.tensor(list(itertools.product([0.0, 1.0], repeat=rbm.hidden_bias.numel())))
    optimizer = torch.optim.Adam(rbm.parameters(), lr)
    for _ in range(steps):
        log_z = torch.logsumexp(
            h @ rbm.hidden_bias + functional.softplus(rbm.visible_bias + h @ rbm.weight.T).sum(1), 0
        )
        optimizer.zero_grad()
        (rbm(x).mean() + log_z).backward()
        optimizer.step()
    return rbm


def wells(visible: int, hidden: int, shares: list[float], noise: float, seed: int, steps: int):
    """Prototypes with these shares and flipped bits."""
    g = gen(seed)
    prototypes = (torch.rand(len(shares), visible, generator=g) < 0.5).float()
    x = prototypes[torch.multinomial(torch.tensor(shares), 600, True, generator=g)]
    x = torch.where(torch.rand(x.shape, generator=g) < noise, 1 - x, x)
    return trained(models.RBM(visible, hidden), x, steps, 0.03), x


def bars():
    """Bars and stripes of 4 x 4."""
    rows = [torch.tensor(bits) for bits in itertools.product([0.0, 1.0], repeat=4)]
    x = torch.stack([image.flatten() for row in rows for image in (row[:, None].expand(4, 4), row[None].expand(4, 4))])
    return trained(models.RBM(16, 15), x, 600, 0.05), x


def drawn(machine):
    """A machine with 600 exact draws as its data."""
    states = machine.domain.states()
    p = torch.softmax(-machine(states).detach(), 0)
    return machine, states[torch.multinomial(p, 600, True, generator=gen(0))]


def glass():
    """Sixteen units with random couplings."""
    w = 1.5 * torch.randn(16, 16, generator=gen(0)).triu(1)
    machine = models.BoltzmannMachine(16)
    machine.set_parameters(weight=w + w.T, bias=torch.zeros(16))
    return drawn(machine)


MACHINES = {
    "two equal wells": lambda: wells(20, 15, [0.5, 0.5], 0.03, 1, 400),
    "a rare well": lambda: wells(24, 15, [0.93, 0.07], 0.03, 2, 400),
    "five wells": lambda: wells(20, 16, [0.4, 0.3, 0.15, 0.1, 0.05], 0.02, 3, 400),
    "two deep wells": lambda: wells(20, 15, [0.8, 0.2], 0.01, 5, 800),
    "three deep wells": lambda: wells(30, 15, [0.6, 0.35, 0.05], 0.01, 6, 800),
    "bars and stripes": bars,
    "cold lattice": lambda: drawn(models.Ising((4, 4), 0.8, 0.02)),
    "spin glass": glass,
}


def run(job) -> tuple:
    machine, x, seed, device = job
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begun = time.perf_counter()
        out = partition.ais(machine, x, generator=gen(seed, device), progress=False)
    seconds = time.perf_counter() - begun
    warned = any(issubclass(w.category, gb.errors.EstimateWarning) for w in caught)
    ladder = out.diagnostics["ladders"][-1][0]
    return float(out.value), float(out.stderr), float(out.lower), float(out.upper), ladder, warned, seconds


def judged(name: str, rows: list[tuple], truth: float) -> dict:
    n = len(rows)
    found = {
        "machine": name,
        "truth": truth,
        "runs": n,
        "covered": sum(low <= truth <= high for _, _, low, high, *_ in rows) / n,
        "covered by the climb alone": sum(abs(value - truth) < 3 * error for value, error, *_ in rows) / n,
        "bias": sum(row[0] for row in rows) / n - truth,
        "width": sum(row[3] - row[2] for row in rows) / n,
        "temperatures": sum(row[4] for row in rows) / n,
        "warned": sum(row[5] for row in rows) / n,
        "seconds": sum(row[6] for row in rows) / n,
    }
    print(
        ", ".join(f"{key} {value if isinstance(value, str) else round(value, 3)}" for key, value in found.items()),
        flush=True,
    )
    return found


def mnist(weights: str, device: str):
    """A trained RBM of 784 x 500 units with binarized digits, and its log Z from long ladders."""
    rbm = models.RBM(784, 500)
    rbm.load_state_dict(torch.load(weights, weights_only=True))
    digits = data.load("mnist").train.x[:10000].float().flatten(1)
    x = torch.bernoulli(digits / digits.max(), generator=gen(0)).to(device)
    rbm = rbm.to(device).requires_grad_(False)
    low = partition.ais(rbm, x, chains=2000, betas=100_000, generator=gen(1, device), progress=False)
    return rbm, x, low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--mnist")
    parser.add_argument("--save")
    options = parser.parse_args()
    results = []
    if options.mnist:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        rbm, x, low = mnist(options.mnist, device)
        rows: list[tuple] = []
        for seed in range(options.first, options.first + options.runs):
            rows.append(run((rbm, x, seed, device)))
            if len(rows) % 10 == 0 or len(rows) == options.runs:
                found = judged("MNIST RBM 784 x 500", rows, float(low.value)) | {
                    "stderr of the truth": float(low.stderr)
                }
                results = [found | {"rows": rows}]
                if options.save:
                    Path(options.save).write_text(json.dumps(results, indent=1))
    else:
        with ProcessPoolExecutor(options.workers, mp_context=torch.multiprocessing.get_context("spawn")) as pool:
            for name, make in MACHINES.items():
                if options.only in name:
                    machine, x = make()
                    truth = float(partition.exact(machine.double()).value)
                    machine = machine.float().requires_grad_(False)
                    rows = list(pool.map(run, [(machine, x, seed, "cpu") for seed in range(options.runs)]))
                    results.append(judged(name, rows, truth))
    if options.save:
        Path(options.save).write_text(json.dumps(results, indent=1))
    worst = min((row["covered"] for row in results), default=math.nan)
    print(f"lowest coverage: {worst:.2f}")


if __name__ == "__main__":
    main()
