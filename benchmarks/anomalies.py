"""Anomalies in ten tables of ADBench: EnergyOutlierDetector as it comes against PyOD's detectors as they come.

Half of the normal rows train, the other half and all anomalies test; no label is used in training. Every detector
gets columns standardized by the training rows and runs with its defaults, one setting for all tables. Seconds are of the processor, on one core.

    GIBBSIAN_DATA=... python anomalies.py --save results/anomalies.json
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyod.models.ecod import ECOD
from pyod.models.iforest import IForest
from pyod.models.knn import KNN
from pyod.models.lof import LOF
from sklearn.neighbors import NearestNeighbors

from gibbsian.metrics import aupr, auroc
from gibbsian.sklearn import EnergyOutlierDetector


class Neighbors:
    """scikit-learn's mean distance to five neighbours, nothing around it: what a fast detector is measured by."""

    def fit(self, x: np.ndarray) -> "Neighbors":
        self.tree = NearestNeighbors(n_neighbors=5).fit(x)
        return self

    def decision_function(self, x: np.ndarray) -> np.ndarray:
        return self.tree.kneighbors(x)[0].mean(1)


DETECTORS: dict[str, Callable[[int], Any]] = {
    "energy": lambda seed: EnergyOutlierDetector(random_state=seed),
    "energy, joint alone": lambda seed: EnergyOutlierDetector(marginal_weight=0.0, random_state=seed),
    "5 neighbours": lambda seed: Neighbors(),
    "kNN": lambda seed: KNN(),
    "LOF": lambda seed: LOF(),
    "isolation forest": lambda seed: IForest(random_state=seed),
    "ECOD": lambda seed: ECOD(),
}


def split(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training rows, test rows and test labels, standardized by the training rows."""
    rng = np.random.default_rng(seed)
    normal = rng.permutation(np.flatnonzero(y == 0))
    half = len(normal) // 2
    test = np.concatenate([normal[half:], np.flatnonzero(y == 1)])
    train = x[normal[:half]]
    spread = train.std(0)
    spread[spread == 0] = 1
    return (train - train.mean(0)) / spread, (x[test] - train.mean(0)) / spread, y[test]


def outlyingness(detector: Any, x: np.ndarray) -> np.ndarray:
    """Scores that are higher for anomalies, as PyOD's are and scikit-learn's are not."""
    scores = detector.decision_function(x)
    return -scores if isinstance(detector, EnergyOutlierDetector) else scores


def run(folder: Path, seeds: int) -> dict[str, Any]:
    """AUROC and average precision of every detector, table and seed, and the seconds each took."""
    warnings.simplefilter("ignore")
    records: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.npz")):
        name = path.stem.split("_", 1)[1]
        with np.load(path, allow_pickle=True) as file:
            x, y = file["X"].astype(float), file["y"].astype(int)
        for seed in range(seeds):
            train, test, labels = split(x, y, seed)
            for kind, make in DETECTORS.items():
                begin = time.process_time()
                scores = torch.from_numpy(np.ascontiguousarray(outlyingness(make(seed).fit(train), test)))
                seconds = time.process_time() - begin
                truth = torch.from_numpy(labels)
                records.append(
                    {
                        "table": name,
                        "seed": seed,
                        "detector": kind,
                        "auroc": float(auroc(scores, labels=truth)),
                        "aupr": float(aupr(scores, labels=truth)),
                        "seconds": round(seconds, 4),
                    }
                )
        print(name, {k: round(mean(records, k, "auroc", name), 4) for k in DETECTORS}, flush=True)
    return {"seeds": seeds, "records": records}


def mean(records: list[dict[str, Any]], kind: str, what: str, table: str | None = None) -> float:
    """The mean of a figure over tables and seeds, or over the seeds of one table."""
    return float(np.mean([r[what] for r in records if r["detector"] == kind and table in {None, r["table"]}]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("GIBBSIAN_DATA", ".")) / "adbench")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = run(options.data, options.seeds)
    records = result["records"]
    by_seed = {
        k: [
            np.mean([r["auroc"] for r in records if r["detector"] == k and r["seed"] == s])
            for s in range(options.seeds)
        ]
        for k in DETECTORS
    }
    print(f"\n{'':22}   AUROC  [lowest, highest seed]    AUPR  seconds a table")
    for k in DETECTORS:
        low, high = min(by_seed[k]), max(by_seed[k])
        figures = mean(records, k, "auroc"), low, high, mean(records, k, "aupr"), mean(records, k, "seconds")
        print(f"{k:22}  {figures[0]:.4f}  [{low:.4f}, {high:.4f}]           {figures[3]:.4f}  {figures[4]:.2f}")
    if options.save:
        options.save.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
