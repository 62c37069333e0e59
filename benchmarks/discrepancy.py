"""Energy discrepancy against chains on discrete data, for the same processor time: spins, sites of five states, binarized digits.

    GIBBSIAN_DATA=folder python benchmarks/discrepancy.py --save benchmarks/results/discrepancy.json

Every principle gets the same seconds of one core for each of three learning rates; the rate is chosen by held-out training rows and
judged on test rows. Spins (16, a glass) and sites (7 of 5 states) have laws that can be enumerated: data are exact draws,
the divergence from the true law is exact. Digits: a machine of 200 hidden units on statically binarized MNIST, its likelihood by AIS
from both sides.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from timing import save
from torch import Tensor

import gibbsian as gb
from gibbsian import kernels, models, objectives
from gibbsian.data import load

ROWS, RATES = 4000, (0.003, 0.01, 0.03)
DIGIT_RATES = (0.001, 0.003, 0.01)  # trainings of minutes


def stream(name: str, seed: int) -> torch.Generator:
    return gb.random.stream(seed, name)


def spins(seed: int) -> models.BoltzmannMachine:
    """A glass of 16 spins with couplings N(0, 1/16)."""
    g, n = stream("truth", seed), 16
    w = (torch.randn(n, n, generator=g) / n**0.5).triu(1)
    machine = models.BoltzmannMachine(n, spin=True)
    machine.set_parameters(weight=w + w.T, bias=0.2 * torch.randn(n, generator=g))
    return machine


def sites(seed: int) -> models.Potts:
    """Seven sites of five states, couplings N(0, 0.4²)."""
    g = stream("truth", seed)
    machine = models.Potts(7, 5)
    j = 0.4 * torch.randn(7, 5, 7, 5, generator=g) * torch.ones(7, 7).triu(1)[:, None, :, None]
    machine.set_parameters(field=0.4 * torch.randn(7, 5, generator=g), coupling=j + j.permute(2, 3, 0, 1))
    return machine


def principles() -> dict[str, objectives.Objective]:
    return {
        "discrepancy, flips": objectives.EnergyDiscrepancy(t=0.2, negatives=16),
        "discrepancy, neighbors": objectives.EnergyDiscrepancy(negatives=16, perturbation=objectives.Neighbors()),
        "discrepancy, masked": objectives.EnergyDiscrepancy(negatives=16, perturbation=objectives.Masked()),
        "PCD-1": objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=1, chains=256),
        "pseudo-likelihood": objectives.PseudoLikelihood(),
    }


def trained(make: Callable[[], Any], objective: objectives.Objective, x: Tensor, seconds: float, lr: float, seed: int) -> tuple[Any, int, float]:  # fmt: skip
    """An energy trained for so many seconds of the processor: the pace of a few updates says how many are planned."""

    def fit(steps: int) -> gb.training.Run:
        return gb.fit(make(), objective, x, steps=steps, batch_size=256, lr=lr, schedule="cosine", ema=0.99, seed=seed, progress=False)  # fmt: skip

    def seconds_of(steps: int) -> float:
        begin = time.process_time()
        fit(steps)
        return time.process_time() - begin

    seconds_of(3)  # what only a first call does
    start = seconds_of(5)
    pace = max((seconds_of(45) - start) / 40, 1e-5)
    longer = 5 + max(40, int(0.05 * seconds / pace))  # a pace of forty updates may be off by half
    pace = max((seconds_of(longer) - start) / (longer - 5), 1e-5)
    steps = max(30, int(seconds / pace))
    begin = time.process_time()
    run = fit(steps)
    return run.ema, steps, time.process_time() - begin


def chosen(make: Callable[[], Any], objective: objectives.Objective, rows: dict[str, Tensor], seconds: float, seed: int, likelihood: Callable[[Any, Tensor], float], rates: Sequence[float] = RATES) -> dict[str, Any]:  # fmt: skip
    """The training whose rate suits held-out rows best."""
    tried = []
    for lr in rates:
        energy, steps, used = trained(make, objective, rows["train"], seconds, lr, seed)
        tried.append(({"lr": lr, "updates": steps, "seconds": used, "held_out": likelihood(energy, rows["held out"])}, energy))  # fmt: skip
    best, energy = max(tried, key=lambda pair: pair[0]["held_out"])
    return best | {"energy": energy}


def enumerated(name: str, truth: Callable[[int], Any], fresh: Callable[[], Any], seconds: float, seed: int) -> list[dict[str, Any]]:  # fmt: skip
    """Divergences from a law that is known in full."""
    with torch.no_grad():
        law = truth(seed)
        states = law.domain.states()
        log_p = -law(states) - gb.partition.exact(law, progress=False).value
        picked = torch.multinomial(log_p.double().exp(), ROWS + 1000, replacement=True, generator=stream("rows", seed))
    rows = {"train": states[picked[:ROWS]], "held out": states[picked[ROWS:]]}

    def likelihood(energy: Any, x: Tensor) -> float:
        with torch.no_grad():
            return float((-energy(x)).mean() - gb.partition.exact(energy, progress=False).value)

    records = []
    for principle, objective in principles().items():
        found = chosen(fresh, objective, rows, seconds, seed, likelihood)
        energy = found.pop("energy")
        with torch.no_grad():
            log_q = -energy(states) - gb.partition.exact(energy, progress=False).value
            found["divergence"] = float((log_p.double().exp() * (log_p - log_q).double()).sum())
        records.append({"data": name, "principle": principle, "seed": seed} | found)
        print(records[-1], flush=True)
    return records


def digits(seconds: float, seed: int) -> list[dict[str, Any]]:
    """A machine of 200 hidden units on binarized MNIST."""
    data = load("binarized-mnist", offline=True)
    x, test = data.train.x.float().flatten(1), data.test.x.float().flatten(1)
    rows = {"train": x[:-2000], "held out": x[-2000:]}

    def fresh() -> models.RBM:
        machine = models.RBM(784, 200, generator=stream("machine", seed))
        machine.initialize_visible_bias(rows["train"])
        return machine

    def judged(energy: Any, x: Tensor) -> Any:
        log_z = gb.partition.ais(energy, data=rows["train"][:1000], generator=stream("ais", seed), progress=False)
        return gb.log_likelihood(energy, x, log_z)

    ways = {
        "discrepancy, flips": objectives.EnergyDiscrepancy(t=0.01, negatives=16),  # half a percent flips
        "discrepancy, neighbors": objectives.EnergyDiscrepancy(negatives=16, perturbation=objectives.Neighbors()),
        "pseudo-likelihood": objectives.PseudoLikelihood(),
        "PCD-1": objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=1, chains=256),
    }
    records = []
    for principle, objective in ways.items():
        found = chosen(
            fresh, objective, rows, seconds, seed, lambda energy, x: float(judged(energy, x).value), DIGIT_RATES
        )
        value = judged(found.pop("energy"), test)
        found |= {"test": float(value.value), "lower": float(value.lower), "upper": float(value.upper)}
        records.append({"data": "binarized digits", "principle": principle, "seed": seed} | found)
        print(records[-1], flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="of every training on spins and sites")
    parser.add_argument(
        "--digits", type=float, default=150.0, help="seconds of every training on digits; 0 leaves them out"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--save")
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    for seed in range(options.seeds):
        records += enumerated("16 spins", spins, lambda: models.BoltzmannMachine(16, spin=True), options.seconds, seed)
        records += enumerated("7 sites of 5 states", sites, lambda: models.Potts(7, 5), options.seconds, seed)
    if options.digits:
        records += digits(options.digits, 0)
    save(records, options.save)


if __name__ == "__main__":
    main()
