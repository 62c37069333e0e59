"""Effective draws per gradient and per second of CPU time on DW-4 and LJ-13, and whether the draws have the right law.

Every kernel is warmed up (chains, steps and seed alike), then run; effective sizes are the smallest over functions that know
the slow directions: the energy, its square, the radius of gyration and, on DW-4, how many distances are above 4. Chains of DW-4
begin at noise, those of LJ-13 at its lowest configuration: nothing is borrowed from the references, which are the published
test set of LJ-13 and long Metropolis chains of DW-4 (its published sample departs from the law in the weights of its modes).

    GIBBSIAN_DATA=... OMP_NUM_THREADS=1 python benchmarks/particles.py --save benchmarks/results/particles.json
"""

import argparse
import math
import os
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from timing import save
from torch import Tensor

import gibbsian as gb
from gibbsian import energies, kernels
from gibbsian.errors import DivergenceWarning
from gibbsian.sampling.diagnostics import summarize

WARM_UP = 400


class Counted(gb.Energy):
    """An energy that counts gradients of single chains."""

    def __init__(self, base: gb.Energy) -> None:
        super().__init__(base.domain)
        self.base, self.gradients = base, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.gradients += len(x)
        return self.base.energy_and_score(x)


def functions(energy: gb.Energy, x: Tensor) -> dict[str, Tensor]:
    """What is looked at of draws `(n, particles, dim)`, each `(n,)`."""
    e = energy.internal(x)
    rest = energy.centered(x)
    values = {"energy": e, "energy²": (e - e.mean()).square(), "radius²": rest.square().mean((1, 2))}
    values["x·∇E"] = -(rest * energy.score(x)).sum((1, 2))
    if len(x[0]) == 4:
        far = (energy.distances(x) > 4).sum(1)
        values |= {"far": far.to(e), "two far": (far == 2).to(e), "four far": (far == 4).to(e)}
    return values


def lowest(energy: gb.Energy, chains: int, g: torch.Generator) -> Tensor:
    """The icosahedron, shaken a little."""
    golden = (1 + math.sqrt(5)) / 2
    signs = [(s, t * golden) for s in (-1, 1) for t in (-1, 1)]
    corners = [p for a, b in signs for p in ((0, a, b), (a, b, 0), (b, 0, a))]
    points = torch.tensor([(0.0, 0.0, 0.0), *corners]) / math.sqrt(1 + golden**2)
    return points + 0.02 * torch.randn(chains, 13, 3, generator=g)


def contenders(name: str) -> dict[str, tuple[kernels.Kernel, int]]:
    """Kernels with how many steps they are run for."""
    betas = [1.0, 0.7, 0.5, 0.35] if name == "DW-4" else [1.0, 0.85, 0.7, 0.6]
    return {
        "HMC, 10 steps": (kernels.HMC(0.05, 10), 3000),
        "ChEES": (kernels.ChEES(0.05), 2500),
        "MCLMC": (kernels.MCLMC(0.05), 15000),
        "MCLMC, minimal norm": (kernels.MCLMC(0.05, integrator="minimal norm"), 7500),
        "MAMS": (kernels.MAMS(0.05), 500),
        "tempering of HMC": (kernels.ParallelTempering(kernels.HMC(0.05, 10), betas), 1500),
        "NUTS": (kernels.NUTS(0.05), 120),
    }


def warmed_up(energy: Counted, kernel: kernels.Kernel, x: Tensor, g: torch.Generator) -> tuple[kernels.Kernel, Tensor]:
    """The tuned kernel and where its chains are; tempering is tuned by its inner kernel, and NUTS by HMC, which wants the same
    step size and mass."""
    inner = kernel.kernel if isinstance(kernel, kernels.ParallelTempering) else kernel
    if isinstance(kernel, kernels.NUTS):
        inner = kernels.HMC(0.05, 10)
    warmed = gb.warm_up(energy, inner, x, WARM_UP, generator=g, progress=False)
    if isinstance(kernel, kernels.NUTS):
        return kernels.NUTS(warmed.kernel.step_size, mass=warmed.kernel.mass), warmed.trace.last
    if inner is kernel:
        return warmed.kernel, warmed.trace
    roots = torch.as_tensor(kernel.betas).rsqrt()[None]  # flatter laws take longer steps
    tuned = kernels.HMC(warmed.kernel.step_size * roots, 10, mass=warmed.kernel.mass)
    return kernels.ParallelTempering(tuned, kernel.betas), warmed.trace.last


def measure(energy: gb.Energy, kernel: kernels.Kernel, steps: int, x: Tensor, reference: dict[str, tuple]) -> dict:
    counted, g = Counted(energy), torch.Generator().manual_seed(1)
    start = time.process_time()
    tuned, state = warmed_up(counted, kernel, x, g)
    warm = time.process_time() - start
    counted.gradients, start = 0, time.process_time()
    trace = gb.sample(counted, tuned, state, steps, burn_in=steps // 10, generator=g, progress=False)
    seconds, used = time.process_time() - start, 0.9
    draws = trace.samples
    values = functions(energy, draws.flatten(0, 1))
    shaped = torch.stack([v.reshape(draws.shape[:2]) for v in values.values()], 2)
    summary = dict(zip(values, summarize(shaped)["ess"].tolist(), strict=True))
    errors = dict(zip(values, summarize(shaped)["mcse"].tolist(), strict=True))
    slow = [key for key in values if key in ("energy", "energy²", "radius²", "far")]
    size = min(summary[key] for key in slow)
    found = {
        key: {"value": float(values[key].mean()), "error": errors[key]}
        | (
            {"z": (float(values[key].mean()) - reference[key][0]) / math.hypot(errors[key], reference[key][1])}
            if key in reference
            else {}
        )
        for key in values
    }
    return {
        "ess": size, "per_thousand": 1000 * size / (used * counted.gradients), "per_second": size / (used * seconds),
        "r_hat": float(summarize(shaped)["r_hat"].max()), "acceptance": float(trace.acceptance),
        "gradients": counted.gradients, "seconds": seconds, "warm_up_seconds": warm, "found": found,
        "settings": {k: v for k, v in vars(tuned).items() if isinstance(v, int | float | str)},
    }  # fmt: skip


def reference(energy: gb.Energy, x: Tensor) -> dict[str, tuple[float, float]]:
    """Means and standard errors over independent configurations; x·∇E is known: the degrees of freedom."""
    n, dim = energy.domain.shape
    values = functions(energy, x)
    found = {
        key: (float(v.mean()), float(v.std()) / math.sqrt(len(v))) for key, v in values.items() if key != "energy²"
    }
    return found | {"x·∇E": (float(n * dim - dim), 0.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save")
    parser.add_argument("--chains", type=int, default=32)
    parser.add_argument("--only", default="")
    parser.add_argument("--target", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DivergenceWarning)
    folder = Path(os.environ["GIBBSIAN_DATA"]) / "particles"
    g = torch.Generator().manual_seed(0)
    sets = {
        "DW-4": (energies.DoubleWellParticles(), np.load(folder / "dw4_mcmc.npz")["x"]),
        "LJ-13": (energies.LennardJones(), np.load(folder / "lj13.npz")["x_test"]),
    }
    results = []
    for name, (energy, rows) in sets.items():
        if options.target not in name:
            continue
        truth = reference(energy, torch.as_tensor(rows))
        x = 2 * torch.randn(options.chains, 4, 2, generator=g) if name == "DW-4" else lowest(energy, options.chains, g)
        print(f"\n{name}: reference {truth}")
        for what, (kernel, steps) in contenders(name).items():
            if options.only not in what:
                continue
            row = measure(energy, kernel, steps, x, truth)
            results.append({"target": name, "kernel": what, "chains": options.chains, "steps": steps, **row})
            z = {key: round(v["z"], 1) for key, v in row["found"].items() if "z" in v}
            save(results, options.save)
            print(
                f"{what:22s} ess {row['ess']:8.0f}  per thousand gradients {row['per_thousand']:.2f}  per second {row['per_second']:8.1f}  "
                f"R-hat {row['r_hat']:.3f}  acceptance {row['acceptance']:.2f}  {row['seconds']:.0f} s (warm-up {row['warm_up_seconds']:.0f} s)  z {z}",
                flush=True,
            )
    save(results, options.save)


if __name__ == "__main__":
    main()
