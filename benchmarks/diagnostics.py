"""R-hat, bulk and tail ESS and Monte-Carlo error of every entry of an event: `summarize` against arviz-stats, CPU time of one
thread, µs an entry (500 draws of 20 chains; 784 entries at once here, one after the other there).

    OMP_NUM_THREADS=1 python benchmarks/diagnostics.py --save benchmarks/results/diagnostics.json
"""

import argparse
import time

import numpy as np
import torch
from arviz_stats.base import array_stats
from timing import interleave, save

from gibbsian.sampling.diagnostics import summarize
from gibbsian.sampling.streaming import StreamingMoments

DRAWS, CHAINS, ENTRIES = 500, 20, 784


def arviz(x: np.ndarray) -> None:
    axes = {"chain_axis": 1, "draw_axis": 0}
    array_stats.rhat(x, **axes)
    array_stats.ess(x, **axes, method="bulk")
    array_stats.ess(x, **axes, method="tail", prob=(0.05, 0.95))
    array_stats.mcse(x, **axes, method="mean")


def streamed(x: torch.Tensor) -> None:
    stream = StreamingMoments(len(x))
    for part in x.split(50):
        stream.update(part)
    stream.summary()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save")
    options = parser.parse_args()
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    results = []
    for kind in ("normal draws, float32", "binary draws"):
        x = torch.randn(DRAWS, CHAINS, ENTRIES, generator=g)
        x = (x > 0).float() if kind.startswith("binary") else x
        contenders = [
            ("summarize", lambda n, x=x: summarize(x[..., :n]), ENTRIES),
            ("streamed", lambda n, x=x: streamed(x[..., :n]), ENTRIES),
            ("arviz-stats", lambda n, x=x: arviz(x[..., :n].double().numpy()), 28),
        ]
        title = f"{DRAWS} draws × {CHAINS} chains, {kind}, µs an entry"
        results.append(interleave(title, contenders, base="arviz-stats", rounds=5, clock=time.process_time))
    save(results, options.save)


if __name__ == "__main__":
    main()
