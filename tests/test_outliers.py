"""Outliers by energy: rates that are promised, explanations against quadrature, weights against repetitions."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

import gibbsian as gb
from gibbsian.errors import GibbsianError
from gibbsian.sklearn import EnergyOutlierDetector
from gibbsian.sklearn.surprise import quadrature


def test_outliers_of_both_kinds_are_found_at_the_promised_rate():
    rng = np.random.RandomState(0)
    mix = rng.randn(6, 6)
    normal, new = rng.randn(1000, 6) @ mix, rng.randn(4000, 6) @ mix
    detector = EnergyOutlierDetector(random_state=0).fit(normal)
    rate = (detector.predict(new) == -1).mean()
    assert 0.02 < rate < 0.09  # 5 %, the threshold from 200 rows: its standard error is 1.5 %
    alone = new[:500] + 0.0
    alone[:, 2] += 6 * normal[:, 2].std()  # one strange value
    shuffled = np.stack([rng.permutation(column) for column in new.T], 1)  # every value usual, not together
    scores = detector.score_samples(new)
    for strange, least in ((alone, 0.99), (shuffled, 0.7)):
        y = np.r_[np.zeros(len(new)), np.ones(len(strange))]
        assert roc_auc_score(y, -np.r_[scores, detector.score_samples(strange)]) > least
    flagged = EnergyOutlierDetector(contamination=0.1).fit(normal)
    assert (flagged.predict(normal) == -1).mean() == pytest.approx(0.1, abs=0.002)


def test_a_cell_is_as_surprising_as_quadrature_says():
    rng = np.random.RandomState(0)
    x = pd.DataFrame(rng.randn(80, 3) @ rng.randn(3, 3), columns=list("abc"))
    for weight in (0.5, 0.0):
        detector = EnergyOutlierDetector(marginal_weight=weight, random_state=0).fit(x)
        strange = x[:6] + rng.randn(6, 3)
        rows = detector._rows(strange)
        far = torch.full((3,), 12.0, dtype=rows.dtype)
        expected = quadrature(detector.energy_, rows, -far, far).numpy()
        found = detector.explain(strange)
        assert list(found.columns) == list("abc")
        np.testing.assert_allclose(found.to_numpy(), expected, atol=0.01)
    x = x.to_numpy()
    odd = x[:1].copy()
    odd[0, 1] += 8 * x[:, 1].std()
    assert EnergyOutlierDetector(random_state=0).fit(x).explain(odd)[0].argmax() == 1
    other = EnergyOutlierDetector(energy=gaussian_energy, random_state=0).fit(x)
    row = other._rows(odd)
    precision = torch.linalg.inv(other.energy_.covariance)
    for i in range(3):  # a normal law given the others
        mean = row[0, i] - (precision[i] @ (row[0] - other.energy_.mean)) / precision[i, i]
        log_p = torch.distributions.Normal(mean, precision[i, i] ** -0.5).log_prob(row[0, i])
        assert other.explain(odd)[0, i] == pytest.approx(-float(log_p), abs=0.01)


def test_outliers_of_weighted_rows_are_those_of_repeated_ones():
    rng = np.random.RandomState(0)
    x, times = rng.randn(90, 2), rng.randint(0, 3, 90)
    for contamination in ("auto", 0.2):
        plain = EnergyOutlierDetector(contamination, random_state=0).fit(np.repeat(x, times, 0))
        weighted = EnergyOutlierDetector(contamination, random_state=0).fit(x, sample_weight=times)
        assert plain.offset_ == pytest.approx(weighted.offset_, abs=1e-4)
        np.testing.assert_allclose(plain.score_samples(x), weighted.score_samples(x), atol=1e-4)
    with pytest.raises(GibbsianError, match="your own energy"):
        EnergyOutlierDetector(energy=gaussian_energy).fit(x, sample_weight=times)


def gaussian_energy(x, seed):
    return gb.energies.Gaussian(x.mean(0), torch.cov(x.T))


def test_any_energy_detects():
    x = np.random.RandomState(0).randn(300, 3)
    detector = EnergyOutlierDetector(energy=gaussian_energy, random_state=0).fit(x)
    assert isinstance(clone(detector).fit(x).energy_, gb.energies.Gaussian)
    assert list(detector.predict([[0, 0, 0], [6, 0, 0]])) == [1, -1]
