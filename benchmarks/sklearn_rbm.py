"""gibbsian.sklearn.BernoulliRBM against scikit-learn's: one pass over 3000 rows, the same random numbers, one thread.

python sklearn_rbm.py --save results/sklearn_rbm.json
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.neural_network import BernoulliRBM as Original
from timing import interleave, save

from gibbsian.sklearn import BernoulliRBM

torch.set_num_threads(1)
ROWS = 3000
CASES = [(64, 256, 10, "float64"), (784, 256, 10, "float64"), (784, 256, 10, "float32"), (784, 500, 100, "float32")]


def passes(kind: type, x: np.ndarray, hidden: int, batch: int) -> Callable[[int], None]:
    def run(steps: int) -> None:
        kind(hidden, batch_size=batch, n_iter=1, random_state=0).fit(x[: steps * batch])

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save")
    options = parser.parse_args()
    results = []
    for visible, hidden, batch, dtype in CASES:
        x = (np.random.default_rng(0).random((ROWS, visible)) < 0.3).astype(dtype)
        ours, theirs = (
            kind(hidden, batch_size=batch, n_iter=1, random_state=0).fit(x) for kind in (BernoulliRBM, Original)
        )
        apart = float(np.abs(ours.components_ - theirs.components_).max())
        contenders = [
            ("scikit-learn", passes(Original, x, hidden, batch), ROWS // batch),
            ("gibbsian", passes(BernoulliRBM, x, hidden, batch), ROWS // batch),
        ]
        title = f"{visible}×{hidden}, batch {batch}, {dtype}; components differ by at most {apart:.1e}"
        results.append(
            interleave(title, contenders, base="scikit-learn", rounds=options.rounds, clock=time.process_time)
        )
    save(results, options.save)


if __name__ == "__main__":
    main()
