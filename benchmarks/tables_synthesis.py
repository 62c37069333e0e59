"""Synthetic rows: TableEnergy against SDV's Gaussian copula and CTGAN, by a classifier that tells them from real ones and by one that is
trained on them and tested on real rows."""

import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sdv.metadata import Metadata
from sdv.single_table import CTGANSynthesizer, GaussianCopulaSynthesizer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.model_selection import cross_val_predict
from tables_data import MIXED, Plain, is_number, mixed, taken

from gibbsian.sklearn import TableEnergy

ROWS, TEST, SEEDS, EPOCHS = 1000, 500, 2, 300
FAMILY = "mixture"  # the quickest to learn
PEERS: dict[str, tuple[type, dict[str, Any]]] = {
    "GaussianCopula": (GaussianCopulaSynthesizer, {}),
    "CTGAN": (CTGANSynthesizer, {"epochs": EPOCHS, "enable_gpu": False}),
}


def by_sdv(kind: type, table: pd.DataFrame, n: int, seed: int, **options: Any) -> tuple[pd.DataFrame, float]:
    """Rows of one of SDV's synthesizers, and the seconds of its training."""
    import torch

    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    kinds = {c: "numerical" if is_number(table[c]) else "categorical" for c in table.columns}
    columns = {c: {"sdtype": kind} for c, kind in kinds.items()}
    metadata = Metadata.load_from_dict({"tables": {"rows": {"columns": columns}}})
    begin = time.process_time()
    made = kind(metadata, **options)
    made.fit({"rows": table})
    drawn = made.sample(n)
    return drawn["rows"] if isinstance(drawn, dict) else drawn, time.process_time() - begin


def told_apart(real: pd.DataFrame, drawn: pd.DataFrame, seed: int) -> float:
    """AUROC of boosted trees, cross-validated, that tell drawn rows from real ones they were not learned from: 0.5 is the best."""
    both = pd.concat([real, drawn], ignore_index=True)
    x, y = Plain(both).ordinal(both), np.r_[np.zeros(len(real)), np.ones(len(drawn))]
    trees = HistGradientBoostingClassifier(max_iter=60, random_state=seed)
    p = cross_val_predict(trees, x, y, cv=3, method="predict_proba")[:, 1]
    return float(roc_auc_score(y, p))


def transfer(train: pd.DataFrame, test: pd.DataFrame, label: str, seed: int) -> float:
    """Accuracy on real rows of boosted trees that were trained on others."""
    train, test = train.dropna(subset=[label]), test.dropna(subset=[label])
    plain = Plain(pd.concat([train, test]).drop(columns=label))
    x, y = plain.ordinal(train.drop(columns=label)), train[label].astype(str)
    if y.nunique() < 2:
        return float((test[label].astype(str) == y.iloc[0]).mean())
    trees = HistGradientBoostingClassifier(max_iter=60, random_state=seed).fit(x, y)
    return float(accuracy_score(test[label].astype(str), trees.predict(plain.ordinal(test.drop(columns=label)))))


def by_energy(table: pd.DataFrame, n: int, seed: int) -> tuple[pd.DataFrame, float]:
    """Rows of TableEnergy, and the seconds of its training."""
    begin = time.process_time()
    model = TableEnergy(FAMILY, gaps="ignorable", random_state=seed).fit(table)  # nothing is to be filled in
    drawn = model.sample(n)
    return drawn, time.process_time() - begin


def run(
    tables: tuple[str, ...] = tuple(MIXED), seeds: int = SEEDS, kept: Sequence[dict[str, Any]] = ()
) -> Iterator[list[dict[str, Any]]]:
    """A record for every table, seed and synthesizer; all there are after every table and seed. `kept` has records of peers."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    records: list[dict[str, Any]] = []
    for seed in range(seeds):
        for name in tables:
            label = MIXED[name][0]
            whole = mixed(name, ROWS + TEST, seed, shuffled=True).dropna(subset=[label])
            whole[label] = whole[label].astype(str)
            cut = min(ROWS, int(0.67 * len(whole)))
            train, test = whole[:cut].reset_index(drop=True), whole[cut:].reset_index(drop=True)
            upper = transfer(train, test, label, seed)
            base = {"table": name, "seed": seed, "rows": cut}

            def judged(kind: str, rows: pd.DataFrame, seconds: float) -> dict[str, Any]:
                rows = rows[list(test.columns)]  # noqa: B023
                drawn, larger = rows[: len(test)], rows[len(test) :].reset_index(drop=True)  # noqa: B023
                return base | {  # noqa: B023
                    "synthesizer": kind, "seconds": round(seconds, 2), "real": upper,  # noqa: B023
                    "told apart": told_apart(test, drawn, seed), "accuracy": transfer(larger, test, label, seed),  # noqa: B023
                }  # fmt: skip

            records.append(judged("gibbsian", *by_energy(train, cut + len(test), seed)))
            for kind, (make, options) in PEERS.items():
                found = taken(kept, **base, synthesizer=kind)
                records += found or [judged(kind, *by_sdv(make, train, cut + len(test), seed, **options))]
            shown = {
                r["synthesizer"]: (round(r["told apart"], 3), round(r["accuracy"], 3), r["seconds"])
                for r in records[-3:]
            }
            print(name, seed, cut, "real", round(upper, 3), shown, flush=True)
            yield records
