"""Do new rows still follow the law of the training rows? Two-sample tests, of whole rows and column by column."""

from typing import NamedTuple

import numpy as np
import torch
from scipy import stats

from gibbsian.errors import DataError
from gibbsian.metrics.two_sample import two_sample_test
from gibbsian.random import stream
from gibbsian.tables.em import Whole, features
from gibbsian.tables.model import TableModel
from gibbsian.tables.rows import Rows

_LEAST = 5  # new rows that a column of a chi-square test should expect
_ROWS = 1000  # of either side, in the test of whole rows


class Drift(NamedTuple):
    """What was found.

    Attributes:
        p_value: of the hypothesis that nothing has changed: the least of both tests below, doubled.
        likelihood: p-value of a Kolmogorov-Smirnov test of log-likelihoods against those of the calibrating rows.
        rows: p-value of a permutation test of the energy distance between rows.
        columns: p-value of each column's own test, times the number of columns, by name, least first.
    """

    p_value: float
    likelihood: float
    rows: float
    columns: dict[str, float]


def drift(
    model: TableModel, kept: Rows, new: Rows, scores: np.ndarray, *, seed: int = 0, permutations: int = 999
) -> Drift:
    """Compare new rows with kept ones.

    Args:
        model: whose law is in question.
        kept: rows of the training table.
        new: new rows; the test of whole rows uses a random thousand.
        scores: of all new rows, as `TableModel.judged` has them.
        seed: of the choice and of the permutations.
        permutations: how many.
    """
    finite = np.where(np.isfinite(scores), scores, -1e300)
    likelihood = float(stats.ks_2samp(model.calibration, finite).pvalue) if len(scores) else 1.0
    generator = stream(seed, "drift")
    whole = Whole.of(kept, tuple(model.codec.states))
    if new.n < 2:
        raise DataError(f"{new.n} new rows are too few to be compared; give at least 2")
    sides = []
    for rows in (kept, new):
        some = rows.take(torch.randperm(rows.n, generator=generator)[:_ROWS])
        gone = model.codec.missing(some).double()
        sides.append(torch.cat([torch.from_numpy(features(some, whole)), gone], 1))
    test = two_sample_test(*sides, method="energy", permutations=permutations, generator=generator)
    columns = {name: _column(model, kept, new, i) for i, name in enumerate(model.schema.names) if model.codec.coders[i]}
    many = len(columns)
    ordered = dict(sorted(((name, min(1.0, p * many)) for name, p in columns.items()), key=lambda pair: pair[1]))
    return Drift(min(1.0, 2 * min(likelihood, test.p_value)), likelihood, test.p_value, ordered)


def _column(model: TableModel, kept: Rows, new: Rows, i: int) -> float:
    """The p-value of a column's own test: of its numbers, its codes and its gaps."""
    found = []
    z, code = model.codec.z_slot[i], model.codec.code_slot[i]
    if z >= 0:
        sides = [rows.z[:, z][~rows.z[:, z].isnan()].numpy() for rows in (kept, new)]
        if all(map(len, sides)):
            found.append(float(stats.ks_2samp(*sides).pvalue))
    gone = [model.codec.missing(rows)[:, i].long() for rows in (kept, new)]
    codes = [rows.code[:, code] for rows in (kept, new)] if code >= 0 else [-g for g in gone]
    counts = np.stack(
        [torch.bincount(side + 1, minlength=int(max(s.max() for s in codes)) + 2).numpy() for side in codes]
    )
    counts = counts[:, counts.sum(0) > 0]
    if counts.shape[1] > 1:
        found.append(counted(counts))
    return min(1.0, len(found) * min(found)) if found else 1.0


def counted(counts: np.ndarray) -> float:
    """The p-value of two rows of counts with the same shares: Fisher's exact one of two columns, else the chi-square of columns that are put
    together, the rarest first, until each should hold at least five, below which it says too much."""
    counts = counts[:, np.argsort(counts.sum(0))]
    share = counts.sum(1).min() / counts.sum()
    while counts.shape[1] > 2 and share * counts[:, 0].sum() < _LEAST:
        counts = np.concatenate([counts[:, :1] + counts[:, 1:2], counts[:, 2:]], 1)
        counts = counts[:, np.argsort(counts.sum(0))]
    if counts.shape[1] == 2:
        return float(stats.fisher_exact(counts).pvalue)
    return float(stats.chi2_contingency(counts).pvalue)
