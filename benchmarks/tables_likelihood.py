"""Held-out likelihood of tables of numbers: EnergyDensity and TableEnergy against mixtures, kernel densities and a neural spline flow.

All are laws of the same numbers in the same units. Values that come again are dequantized alike for all: noise of the width of their
grid is added to every cell, in training and in test, so that nobody gains by infinite densities.
"""

import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import zuko
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity
from tables_data import NUMERIC, numeric

from gibbsian.sklearn import EnergyDensity, TableEnergy

ROWS, TEST, SEEDS = 2500, 1000, 1
EXACT = ("mixture", "rbm", "parzen")  # families of TableEnergy whose likelihoods are exact


def dequantized(x: np.ndarray, seed: int) -> np.ndarray:
    """Columns in which values come again with noise as wide as the least distance between values, and at least a hundredth of the column's
    standard deviation: zeros among reals, and rounding by several rules, have neighbours so near that the distance alone leaves a spike."""
    rng, out = np.random.default_rng(seed), x.copy()
    for j, column in enumerate(x.T):
        values = np.unique(column)
        if 1 < len(values) < len(column):
            width = max(np.diff(values).min(), 0.01 * column.std())
            out[:, j] += width * (rng.random(len(x)) - 0.5)
    return out


def mixture(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """The Gaussian mixture of 1 to 32 components with the best BIC."""
    tried = [GaussianMixture(k, random_state=seed, reg_covar=1e-6).fit(train) for k in (1, 2, 4, 8, 16, 32)]
    return min(tried, key=lambda law: law.bic(train)).score_samples(test)


def kernels(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """Gaussian kernels, their width by cross-validation."""
    search = GridSearchCV(KernelDensity(), {"bandwidth": np.geomspace(0.05, 1, 12)}, cv=5)
    return search.fit(train).best_estimator_.score_samples(test)


def flow(train: np.ndarray, test: np.ndarray, seed: int, seconds: float) -> np.ndarray:
    """A neural spline flow for so many seconds; of what it was on the way, the best on held-out training rows."""
    torch.manual_seed(seed)
    x = torch.from_numpy(train).float()
    held, x = x[: len(x) // 6], x[len(x) // 6 :]
    law = zuko.flows.NSF(x.shape[1], transforms=3, hidden_features=(64, 64))
    optimizer = torch.optim.Adam(law.parameters(), lr=2e-3)
    best, state, begin, step = -np.inf, law.state_dict(), time.process_time(), 0
    while time.process_time() - begin < seconds:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - min((time.process_time() - begin) / seconds, 1)) + 1e-5
        loss = -law().log_prob(x[torch.randint(len(x), (256,))]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(law.parameters(), 5.0)
        optimizer.step()
        step += 1
        if step % 20 == 0:
            with torch.no_grad():
                score = float(law().log_prob(held).mean())
            if score > best:
                best, state = score, {k: v.clone() for k, v in law.state_dict().items()}
    law.load_state_dict(state)
    with torch.no_grad():
        return law().log_prob(torch.from_numpy(test).float()).double().numpy()


def run(tables: tuple[str, ...] = NUMERIC, seeds: int = SEEDS) -> Iterator[list[dict[str, Any]]]:
    """Mean log-likelihood of held-out rows, in nats and original units, with its standard error, for every table, seed and law; all
    records that there are after every table and seed."""
    warnings.simplefilter("ignore")
    records: list[dict[str, Any]] = []
    for name in tables:
        whole = numeric(name)
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(whole))[: ROWS + TEST]
            x = dequantized(whole[order], seed)
            cut = max(len(x) - TEST, int(0.7 * len(x)))
            mean, spread = x[:cut].mean(0), x[:cut].std(0)
            volume = np.log(spread).sum()
            train, test = (x[:cut] - mean) / spread, (x[cut:] - mean) / spread
            own = {
                "EnergyDensity": EnergyDensity(random_state=seed),
                "TableEnergy": TableEnergy(EXACT, random_state=seed),
            }
            found, took = {}, {}
            for kind, law in own.items():
                begin = time.process_time()
                law.fit(train)
                took[kind] = time.process_time() - begin
                found[kind] = law.score_samples(test)
            longest = max(took.values())
            for kind, fit in {"mixture": mixture, "kernels": kernels}.items():
                begin = time.process_time()
                found[kind] = fit(train, test, seed)
                took[kind] = time.process_time() - begin
            found["spline flow"], took["spline flow"] = flow(train, test, seed, longest), longest
            for kind, score in found.items():
                margin = score - found["EnergyDensity"]
                records.append(
                    {
                        "table": name, "seed": seed, "law": kind, "seconds": round(took[kind], 2), "rows": cut, "columns": x.shape[1],
                        "nats": float(score.mean() - volume), "error": float(score.std() / np.sqrt(len(score))),
                        "behind": float(-margin.mean()), "behind_error": float(margin.std() / np.sqrt(len(score))),
                    }
                )  # fmt: skip
            shown = {r["law"]: (round(r["nats"], 3), round(r["behind_error"], 3), r["seconds"]) for r in records[-5:]}
            print(name, seed, cut, x.shape[1], shown, getattr(own["TableEnergy"], "scores_", None), flush=True)
            yield records
