"""Outliers in ten tables of ADBench: quality of EnergyOutlierDetector, and its time beside scikit-learn's 5-neighbour distance."""

import time
import warnings
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from tables_data import folder

from gibbsian.sklearn import EnergyOutlierDetector

SEEDS = 5


def split(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Half of the normal rows to train, the others and all anomalies to test, standardized by the training rows."""
    rng = np.random.default_rng(seed)
    normal = rng.permutation(np.flatnonzero(y == 0))
    half = len(normal) // 2
    test, train = np.concatenate([normal[half:], np.flatnonzero(y == 1)]), x[normal[:half]]
    spread = np.where(train.std(0) > 0, train.std(0), 1)
    return (train - train.mean(0)) / spread, (x[test] - train.mean(0)) / spread, y[test]


def run(seeds: int = SEEDS) -> list[dict[str, Any]]:
    """A record for every table and seed: AUROC and seconds of both, everybody once a round."""
    warnings.simplefilter("ignore")
    records = []
    for path in sorted((folder() / "adbench").glob("*.npz")):
        with np.load(path, allow_pickle=True) as file:
            x, y = file["X"].astype(float), file["y"].astype(int)
        for seed in range(seeds):
            train, test, labels = split(x, y, seed)
            begin = time.process_time()
            far = NearestNeighbors(n_neighbors=5).fit(train).kneighbors(test)[0].mean(1)
            middle = time.process_time()
            detector = EnergyOutlierDetector(random_state=seed).fit(train)
            odd = -detector.score_samples(test)
            end = time.process_time()
            base = {"table": path.stem.split("_", 1)[1], "seed": seed}
            records.append(base | {"detector": "5 neighbours", "auroc": float(roc_auc_score(labels, far)), "seconds": round(middle - begin, 4)})  # fmt: skip
            records.append(base | {"detector": "energy", "auroc": float(roc_auc_score(labels, odd)), "seconds": round(end - middle, 4)})  # fmt: skip
        print(records[-2], records[-1], flush=True)
    return records
