"""Ising lattices: how fast they are swept, and whether their samples have the energies that are known.

    python benchmarks/lattice.py --save benchmarks/results/lattice.json
    python benchmarks/lattice.py --device cuda --chains 32 --save benchmarks/results/lattice_gpu.json

"plain torch" is what one writes by hand: neighbors by `roll`, a mask for each color. The samples are Swendsen-Wang's on a periodic
lattice; errors are those of batches of its chains. Energies are compared with Kaufman's of the same finite lattice,
magnetizations below the critical temperature with Onsager's, Binder's ratio 1 - ⟨m⁴⟩/3⟨m²⟩² at the critical point with its limit
0.61069 (Kamieniarz & Blöte 1993).
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from timing import interleave

import gibbsian as gb
from gibbsian import kernels, models, spins

BINDER = 0.61069


def speed(side: int, device: str, rounds: int) -> dict:
    g = torch.Generator(device).manual_seed(0)
    model = models.Ising((side, side), spins.CRITICAL).to(device)
    x = model.domain.sample(1, generator=g)
    mask = ((torch.arange(side)[:, None] + torch.arange(side)) % 2 == 0).to(device)

    def plain(steps: int) -> None:
        y = x[0]
        for _ in range(steps):
            for color in (mask, ~mask):
                near = y.roll(1, 0) + y.roll(-1, 0) + y.roll(1, 1) + y.roll(-1, 1)
                u = torch.rand(side, side, generator=g, device=device)
                y = torch.where(color, 2 * (u < torch.sigmoid(2 * spins.CRITICAL * near)).float() - 1, y)

    def ours(steps: int) -> None:
        gb.sample(model, kernels.Gibbs(), x, steps=steps, burn_in=steps - 1, keep=False, generator=g, progress=False)

    def captured(steps: int) -> None:  # one graph of fused kernels, replayed
        gb.sample(
            model,
            kernels.Gibbs(),
            x,
            steps=steps,
            burn_in=steps - 1,
            keep=False,
            compile=True,
            generator=g,
            progress=False,
        )

    def sweeps(steps: int) -> None:
        model.swept(x, steps, g)

    def numbers(steps: int) -> None:
        for _ in range(steps):
            torch.rand(side, side, generator=g, device=device)

    cuda = device != "cpu"
    out = interleave(
        f"a sweep of {side} x {side} spins on {device}",
        [
            ("plain torch", plain, 10),
            ("gb.sample", ours, 10),
            ("sweeps alone", sweeps, 10),
            ("torch.rand alone", numbers, 10),
            *([("gb.sample, compile=True", captured, 100)] if cuda else []),
        ],
        base="plain torch",
        rounds=rounds,
        sync=torch.cuda.synchronize if cuda else None,
        clock=time.perf_counter if cuda else time.process_time,
    )
    for name, row in out["rows"].items():
        row["spins_per_ns"] = side * side / (row["us"] * 1e3)
        print(f"{name:34s}{row['spins_per_ns']:10.3f} spins/ns")
    return out


def batch_error(x: torch.Tensor, batches: int = 16) -> tuple[float, float]:
    """Mean and standard error of `(draws, chains)` from the means of batches of each chain."""
    means = torch.stack([part.mean(0) for part in x.tensor_split(batches)]).flatten()
    return float(x.mean()), float(means.std()) / math.sqrt(len(means))


def binder(m: torch.Tensor, batches: int = 16) -> tuple[float, float]:
    """1 - ⟨m⁴⟩/3⟨m²⟩² with its standard error, by leaving out one batch after the other."""
    parts = [part for chain in m.unbind(1) for part in chain.tensor_split(batches)]
    two = torch.stack([part.square().sum() for part in parts])
    four = torch.stack([part.pow(4).sum() for part in parts])
    count = torch.tensor([len(part) for part in parts], dtype=torch.float64)

    def ratio(a: torch.Tensor, b: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return 1 - (b / n) / (3 * (a / n).square())

    left = ratio(two.sum() - two, four.sum() - four, count.sum() - count)
    k = len(parts)
    return float(ratio(two.sum(), four.sum(), count.sum())), float(
        ((left - left.mean()).square().sum() * (k - 1) / k).sqrt()
    )


def physics(side: int, temperature: float, device: str, chains: int, steps: int, burn_in: int) -> dict:
    coupling = 1 / temperature
    g = torch.Generator(device).manual_seed(int(1e4 * temperature))
    model = models.Ising((side, side), coupling).to(device)
    kernel = kernels.SwendsenWang()
    state = kernel.init(model, torch.ones(chains, side, side, device=device))  # from order, which clusters soon undo
    energies, moments = [], []
    start = time.process_time() if device == "cpu" else time.perf_counter()
    for step in range(steps):
        inputs = kernel.draw(model, state.x, 1, g)
        state, _ = kernel.step(model, state, type(inputs)(*(part[0] for part in inputs)))
        if step >= burn_in:
            energies.append(model(state.x).double() / (coupling * side * side))
            moments.append(model.magnetization(state.x).double())
    seconds = (time.process_time() if device == "cpu" else time.perf_counter()) - start
    e, m = torch.stack(energies).cpu(), torch.stack(moments).cpu()
    found = {
        "temperature": temperature,
        "side": side,
        "chains": chains,
        "steps": steps,
        "burn_in": burn_in,
        "device": device,
    }
    found["seconds_a_step_and_chain"] = seconds / steps / chains
    checks = {"energy": (*batch_error(e), spins.finite_energy((side, side), coupling))}
    if coupling > spins.CRITICAL and temperature < 2.25:
        checks["magnetization"] = (*batch_error(m.abs()), spins.magnetization(coupling))
    if abs(coupling - spins.CRITICAL) < 1e-9:
        checks["binder"] = (*binder(m), BINDER)
    for name, (value, error, exact) in checks.items():
        found[name] = {"value": value, "stderr": error, "exact": exact, "off": (value - exact) / error}
        print(
            f"T = {temperature:.6f}  {name:14s}{value:10.6f} ± {error:.6f}  exact {exact:10.6f}  off by {(value - exact) / error:+.2f} standard errors"
        )
    return found


def decorrelation(side: int, device: str) -> list[dict]:
    """Seconds for an independent draw of |m| at the critical point, by three kernels."""
    g = torch.Generator(device).manual_seed(1)
    model = models.Ising((side, side), spins.CRITICAL).to(device)
    out = []
    for kernel, steps in ((kernels.Gibbs(), 6000), (kernels.SwendsenWang(), 600), (kernels.Wolff(), 1500)):
        x = torch.ones(4, side, side, device=device)
        start = time.process_time()
        series = []
        for _ in range(steps // 10):
            trace = gb.sample(model, kernel, x, steps=10, generator=g, progress=False)
            x = trace.last
            series.append(trace.samples.flatten(2).mean(2).abs())
        seconds = time.process_time() - start
        m = torch.cat(series)[steps // 10 :].double()
        centered = m - m.mean()
        rho = (
            torch.stack([(centered[: len(m) - k] * centered[k:]).mean() for k in range(1, min(len(m) // 4, 2000))])
            / centered.square().mean()
        )
        cut = int((rho < 0.02).nonzero()[0]) if bool((rho < 0.02).any()) else len(rho)
        tau = 1 + 2 * float(rho[:cut].sum())
        row = {
            "kernel": type(kernel).__name__,
            "side": side,
            "autocorrelation_steps": tau,
            "ms_a_draw": seconds / steps / 4 * tau * 1e3,
        }
        print(
            f"{row['kernel']:14s} {side} x {side}: {tau:8.1f} steps, {row['ms_a_draw']:10.2f} ms an independent draw of |m|"
        )
        out.append(row)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--fast-side", type=int, default=1024)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--burn-in", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--only-speed", action="store_true", help="measure sweeps and keep the samples of an earlier run"
    )
    parser.add_argument("--save")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict = {"torch": torch.__version__}
    if options.only_speed and options.save and Path(options.save).exists():
        results = json.loads(Path(options.save).read_text()) | results

    def keep() -> None:
        if options.save:
            Path(options.save).write_text(json.dumps(results, indent=1) + "\n")

    results["speed"] = speed(options.fast_side, options.device, options.rounds)
    keep()
    if options.only_speed:
        return
    if options.device == "cpu":
        results["decorrelation"] = decorrelation(64, options.device)
        keep()
    results["physics"] = []
    for temperature in (2.0, 2.2, 2.269, 2.4, 1 / spins.CRITICAL):
        results["physics"].append(
            physics(options.side, temperature, options.device, options.chains, options.steps, options.burn_in)
        )
        keep()
    with torch.no_grad():
        worst = max(
            abs(row[name]["off"])
            for row in results["physics"]
            for name in ("energy", "magnetization", "binder")
            if name in row
        )
    print(f"the farthest is {worst:.2f} standard errors off")


if __name__ == "__main__":
    main()
