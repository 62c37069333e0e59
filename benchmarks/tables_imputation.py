"""Hidden cells: TableEnergy against scikit-learn's imputers and MissForest; and how often intervals of its draws hold the truth."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from tables_data import MIXED, Hidden, Plain, hide, is_number, mixed, taken

from gibbsian.sklearn import TableEnergy

ROWS, DRAWS, SEEDS = 600, 19, 2
FAMILIES = ("mixture", "located", "rbm", "parzen")  # the exact ones, chosen from or weighed by held-out rows
PATTERNS = {"10 %": (0.1, True), "30 %": (0.3, True), "50 %": (0.5, True), "30 %, not at random": (0.3, False)}


def by_sklearn(make: Callable[[int], Any]) -> Callable[[pd.DataFrame, int], pd.DataFrame]:
    """An imputer of scikit-learn on standardized numbers and one-of-K columns."""

    def fill(table: pd.DataFrame, seed: int) -> pd.DataFrame:
        plain = Plain(table)
        imputer = make(seed).set_params(keep_empty_features=True)
        return plain.decode(imputer.fit_transform(plain.encode(table)), table)

    return fill


def miss_forest(table: pd.DataFrame, seed: int, rounds: int = 10) -> pd.DataFrame:
    """Forests, column after column, until the filled-in table changes more than before (Stekhoven & Bühlmann 2012)."""
    plain = Plain(table)
    x = plain.ordinal(table)
    gone, m = np.isnan(x), len(plain.numbers)
    start = [np.nanmean(c) if j < m else float(pd.Series(c).mode().iloc[0]) for j, c in enumerate(x.T)]
    x = np.where(gone, start, x)
    before, best = (np.inf, np.inf), x
    for _ in range(rounds):
        old = x.copy()
        for j in np.argsort(gone.sum(0), kind="stable"):
            if not gone[:, j].any():
                continue
            others = np.delete(x, j, 1)
            forest = (RandomForestRegressor if j < m else RandomForestClassifier)(
                50, max_features="sqrt", random_state=seed
            )
            x[gone[:, j], j] = forest.fit(others[~gone[:, j]], x[~gone[:, j], j]).predict(others[gone[:, j]])
        change = (
            ((x - old)[:, :m] ** 2).sum() / max((x[:, :m] ** 2).sum(), 1e-12),
            ((x != old)[:, m:] & gone[:, m:]).mean() if x.shape[1] > m else 0.0,
        )
        if all(now >= then for now, then in zip(change, before, strict=True)):
            break
        before, best = change, x.copy()
    made = pd.DataFrame(best[:, :m], columns=plain.numbers)
    for k, c in enumerate(plain.names):
        made[c] = np.array(plain.known[c], dtype=object)[best[:, m + k].round().astype(int)]
    return made[list(table.columns)]


PEERS = {
    "IterativeImputer": by_sklearn(lambda seed: IterativeImputer(random_state=seed)),
    "KNNImputer": by_sklearn(lambda seed: KNNImputer()),
    "MissForest": miss_forest,
}


def judge(hidden: Hidden, filled: pd.DataFrame) -> dict[str, float]:
    """Root mean square error in standard deviations, mean over numeric columns; accuracy, mean over the others."""
    errors, right = [], []
    for j, name in enumerate(hidden.truth.columns):
        gone, truth = hidden.gone[:, j], hidden.truth[name]
        if not gone.any():
            continue
        if is_number(truth):
            spread = float(truth.std()) or 1.0
            miss = (filled[name].to_numpy(float) - truth.to_numpy(float))[gone]
            errors.append(float(np.sqrt((miss**2).mean())) / spread)
        else:
            right.append(float((filled[name].astype(str).to_numpy() == truth.astype(str).to_numpy())[gone].mean()))
    return {"error": float(np.mean(errors)) if errors else None, "accuracy": float(np.mean(right)) if right else None}  # type: ignore[dict-item]


def covered(hidden: Hidden, draws: list[pd.DataFrame], seed: int) -> dict[str, float]:
    """How many hidden numbers lie between the least and the greatest of 19 draws, as 90 % should; ties broken by a coin, and not."""
    rng, inside, within, cells = np.random.default_rng(seed), 0.0, 0, 0
    for j, name in enumerate(hidden.truth.columns):
        gone = hidden.gone[:, j]
        if not is_number(hidden.truth[name]) or not gone.any():
            continue
        truth = hidden.truth[name].to_numpy(float)[gone]
        drawn = np.stack([d[name].to_numpy(float)[gone] for d in draws])
        low, ties = (drawn < truth).sum(0), (drawn == truth).sum(0)
        rank = low + np.floor(rng.random(len(truth)) * (ties + 1))
        inside += ((rank > 0) & (rank < len(draws))).sum()
        within += int(((drawn.min(0) <= truth) & (truth <= drawn.max(0))).sum())
        cells += int(gone.sum())
    return {"inside": float(inside), "within": within, "cells": cells}


def run(
    tables: tuple[str, ...] = tuple(MIXED), seeds: int = SEEDS, kept: Sequence[dict[str, Any]] = ()
) -> Iterator[list[dict[str, Any]]]:
    """A record for every table, pattern, seed and imputer; all there are after every table and seed. `kept` has records of peers."""
    warnings.simplefilter("ignore")
    records: list[dict[str, Any]] = []
    for seed in range(seeds):
        for name in tables:
            table = mixed(name, ROWS, seed)
            for pattern, (share, at_random) in PATTERNS.items():
                hidden = hide(table, share, seed, at_random=at_random)
                base = {"table": name, "hidden": pattern, "seed": seed}
                own = base | ours(hidden, seed)
                records.append(own)
                for peer, fill in PEERS.items():
                    found = taken(kept, **base, imputer=peer)
                    begin = time.process_time()
                    judged = None if found else judge(hidden, fill(hidden.table, seed))
                    new = base | {"imputer": peer, "seconds": round(time.process_time() - begin, 2)} | (judged or {})
                    records.append(margins(own, found[0] if found else new))
                shown = {r["imputer"]: (r["error"] and round(r["error"], 3), r["accuracy"] and round(r["accuracy"], 3), r["seconds"]) for r in records[-4:]}  # fmt: skip
                print(name, seed, pattern, shown, own["family"], round(own["inside"] / max(own["cells"], 1), 3), flush=True)  # fmt: skip
            yield records


def margins(own: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    """A peer's record, with how much greater its error and less its accuracy is than ours on the same cells."""
    more = None if own["error"] is None else peer["error"] - own["error"]
    less = None if own["accuracy"] is None else own["accuracy"] - peer["accuracy"]
    return peer | {"more_error": more, "less_accuracy": less}


def ours(hidden: Hidden, seed: int) -> dict[str, Any]:
    """What TableEnergy fills in and draws; numbers by their mean as all peers do, whole ones too."""
    begin = time.process_time()
    model = TableEnergy(FAMILIES, random_state=seed).fit(hidden.table)
    filled = model.impute(hidden.table, round_integers=False)
    seconds = time.process_time() - begin
    draws = model.impute(hidden.table, draws=DRAWS)
    own = {"imputer": "gibbsian", "seconds": round(seconds, 2), "family": model.family_}
    return own | judge(hidden, filled) | covered(hidden, draws, seed)
