"""Inverse Ising: 64 spins from 3000 samples, against a closed form written by hand, by error and by time.

    python benchmarks/inverse_ising.py --save benchmarks/results/inverse_ising.json

Couplings are N(0, 1/64)·0.8 (a spin glass above its transition), fields N(0, 0.1²). "numpy by hand" is the pseudo-likelihood with its gradient written out
in numpy and minimized by scipy's L-BFGS to the same tolerance. Errors are root mean squares of couplings over pairs; "in errors" is the mean
square of (estimate - truth)/standard error, 1 where standard errors are right.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import scipy.optimize
import torch

import gibbsian as gb
from gibbsian import kernels, models, spins


def make(n: int, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    w = (0.8 / n**0.5 * torch.randn(n, n, generator=g)).triu(1)
    machine = models.BoltzmannMachine(n, spin=True)
    machine.set_parameters(weight=w + w.T, bias=0.1 * torch.randn(n, generator=g))
    start = machine.domain.sample(rows, generator=g)
    return w + w.T, gb.sample(
        machine, kernels.Gibbs(), start, steps=300, burn_in=299, keep=False, generator=g, progress=False
    ).last


def by_hand(x: np.ndarray) -> np.ndarray:
    rows, n = x.shape
    i, j = np.triu_indices(n, 1)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = np.zeros((n, n))
        w[i, j] = flat[: len(i)]
        w = w + w.T
        t = 2 * x * (x @ w + flat[len(i) :])
        value = np.logaddexp(0, -t).sum() / rows
        r = -2 * x / (1 + np.exp(t)) / rows
        a = r.T @ x
        return value, np.concatenate([(a + a.T)[i, j], r.sum(0)])

    start = np.concatenate([np.zeros(len(i)), np.arctanh(x.mean(0))])
    out = scipy.optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-6}
    )
    w = np.zeros((n, n))
    w[i, j] = out.x[: len(i)]
    return w + w.T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=64)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pairs = torch.triu_indices(options.units, options.units, 1)
    found: dict[str, list[dict]] = {}
    for seed in range(options.rounds):
        truth, x = make(options.units, options.rows, seed)
        numbers = x.double().numpy()
        contenders = {"numpy by hand": lambda: by_hand(numbers)}  # noqa: B023
        contenders["fit_ising, pseudo-likelihood"] = lambda: spins.fit_ising(x, errors=False)  # noqa: B023
        contenders["fit_ising, pseudo-likelihood, errors"] = lambda: spins.fit_ising(x)  # noqa: B023
        contenders["fit_ising, flow, errors"] = lambda: spins.fit_ising(x, "flow")  # noqa: B023
        contenders["fit_ising, mean-field, errors"] = lambda: spins.fit_ising(x, "mean-field")  # noqa: B023
        if seed == 0:
            contenders["fit_ising, boltzmann, errors"] = lambda: spins.fit_ising(x, "boltzmann")  # noqa: B023
        for name, run in contenders.items():
            begun = time.process_time()
            out = run()
            seconds = time.process_time() - begun
            w = torch.from_numpy(out) if isinstance(out, np.ndarray) else out.coupling
            off = (w - truth)[pairs[0], pairs[1]]
            row = {"seconds": seconds, "rms_error": float(off.square().mean().sqrt())}
            if not isinstance(out, np.ndarray) and out.coupling_error is not None:
                row["in_errors"] = float((off / out.coupling_error[pairs[0], pairs[1]]).square().mean())
            found.setdefault(name, []).append(row)
    rows = []
    for name, each in found.items():
        base = found["numpy by hand"][: len(each)]
        ratios = sorted(a["seconds"] / b["seconds"] for a, b in zip(each, base, strict=True))
        row = {
            "name": name,
            "seconds": float(np.median([r["seconds"] for r in each])),
            "time_ratio": ratios[len(ratios) // 2],
            "rms_error": float(np.mean([r["rms_error"] for r in each])),
            "error_ratio": float(np.mean([a["rms_error"] / b["rms_error"] for a, b in zip(each, base, strict=True)])),
            "in_errors": float(np.mean([r["in_errors"] for r in each])) if "in_errors" in each[0] else None,
            "rounds": len(each),
        }
        rows.append(row)
        inside = "" if row["in_errors"] is None else f"  in errors {row['in_errors']:.2f}"
        print(
            f"{name:40s}{row['seconds']:8.2f} s  {row['time_ratio']:6.2f} of by hand   error {row['rms_error']:.4f} ({row['error_ratio']:.3f}){inside}"
        )
    if options.save:
        Path(options.save).write_text(
            json.dumps({"units": options.units, "rows": options.rows, "results": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
