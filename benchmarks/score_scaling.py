"""How training a score network scales with the dimension: time a step and peak memory, from 48 to 3072 dimensions.

    PYTHONPATH=src:benchmarks python benchmarks/score_scaling.py --save benchmarks/results/score_scaling.json

Contenders: denoising over a noise ladder, sliced score matching with one projection, and implicit score matching, whose
exact trace costs a derivative for every dimension (small dimensions only). Networks: a perceptron of three layers of 512,
and a U-Net on images of three channels. A step is loss, backward pass and Adam.
"""

import argparse
import math
import statistics
import time
from pathlib import Path

import torch
from timing import save

from gibbsian import domains, models, objectives, schedules

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def network(kind: str, side: int, small: bool) -> models.NoiseConditionalScore:
    shape = (3, side, side)
    if kind == "perceptron":
        net = models.ScoreMLP(math.prod(shape), (128,) * 3 if small else (512,) * 3)
    else:
        net = models.ScoreUNet(shape, (8, 16) if small else (32, 64, 128), 1)
    return models.NoiseConditionalScore(net, domains.Real(shape), schedules.geometric(10.0, 0.1, 10)).to(DEVICE)


class Peak:
    """Peak memory since it was made, in MiB: of the device, or of the process."""

    def __init__(self) -> None:
        if CUDA:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # forgets the high-water mark

    def read(self) -> float:
        if CUDA:
            return torch.cuda.max_memory_allocated() / 2**20
        line = next(t for t in Path("/proc/self/status").read_text().splitlines() if t.startswith("VmHWM"))
        return int(line.split()[1]) / 1024


def measure(
    kind: str, name: str, objective: objectives.Objective, side: int, batch: int, steps: int, small: bool
) -> dict:
    family = network(kind, side, small)
    g = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(batch, 3, side, side, generator=g, device=DEVICE)
    optimizer = torch.optim.Adam(family.parameters(), lr=1e-4)
    state = objective.init(family, x, g)
    times = []
    peak = Peak()
    for k in range(steps + 2):
        begun = time.perf_counter()
        loss = objective(family, x, state, g)
        optimizer.zero_grad()
        loss.value.backward(inputs=list(family.parameters()))
        optimizer.step()
        if CUDA:
            torch.cuda.synchronize()
        if k >= 2:
            times.append(time.perf_counter() - begun)
    parameters = sum(p.numel() for p in family.parameters())
    row = {
        "network": kind,
        "objective": name,
        "dimensions": 3 * side * side,
        "batch": batch,
        "parameters": parameters,
        "ms_a_step": 1e3 * statistics.median(times),
        "peak_mib": peak.read(),
    }
    print(
        f"{kind:12s}{name:12s}{row['dimensions']:6d} dimensions{parameters:10d} parameters"
        f"{row['ms_a_step']:10.2f} ms{row['peak_mib']:10.1f} MiB"
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128 if CUDA else 16)
    parser.add_argument("--steps", type=int, default=30 if CUDA else 5)
    parser.add_argument("--sides", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--exact", type=int, default=192, help="largest dimension for the exact trace")
    parser.add_argument("--small", action="store_true", help="small networks, the default without a GPU")
    parser.add_argument("--save")
    chosen = parser.parse_args()
    small = chosen.small or not CUDA
    kinds = {
        "denoising": objectives.MultiScaleDenoising(),
        "sliced": objectives.SlicedScoreMatching(projections=1),
        "implicit": objectives.ImplicitScoreMatching(),
    }
    rows = []
    for kind in ("perceptron", "u-net"):
        for name, objective in kinds.items():
            for side in chosen.sides:
                if name != "implicit" or 3 * side * side <= chosen.exact:
                    rows.append(measure(kind, name, objective, side, chosen.batch, chosen.steps, small))
    device = torch.cuda.get_device_name() if CUDA else "cpu"
    save([{"device": device, "torch": torch.__version__, "small": small, "rows": rows}], chosen.save)


if __name__ == "__main__":
    main()
