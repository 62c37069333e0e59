"""EnergyDensity: integrals, odd columns beside kernel density and Gaussian mixture, intervals, weights."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits, make_moons
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity

import gibbsian as gb
from gibbsian.errors import GibbsianError
from gibbsian.sklearn import EnergyDensity

MIXTURE = {"hidden_layer_sizes": (), "random_state": 0}


def kernel_density(train):
    search = GridSearchCV(KernelDensity(), {"bandwidth": [0.03, 0.1, 0.3, 1.0]}, cv=3)
    return search.fit(train).best_estimator_


def test_density_integrates_to_one_and_beats_its_mixture():
    x, _ = make_moons(1000, noise=0.06, random_state=0)
    x = x * [2.0, 5.0] + 3
    train, test = x[:600], x[600:]
    mixture = EnergyDensity(4, **MIXTURE).fit(train)
    density = EnergyDensity(4, hidden_layer_sizes=(32, 32), max_iter=150, random_state=0).fit(train)
    assert mixture.score(test) > GaussianMixture(4, random_state=0).fit(train).score(test) * 400 - 0.1 * 400
    assert density.score(test) > mixture.score(test) + 0.1 * 400
    a, b = np.meshgrid(np.linspace(-3, 9, 81), np.linspace(-5, 12, 81))
    log_p, ends = density.score_samples(np.c_[a.ravel(), b.ravel()], return_interval=True)
    mass = np.exp(log_p).sum() * (12 / 80) * (17 / 80)
    assert mass == pytest.approx(1, abs=2 * float((ends[:, 1] - ends[:, 0]).max()) + 0.01)
    test_of = gb.metrics.two_sample_test  # p-values: 1 in 1000 false alarms
    drawn = torch.tensor(density.sample(400))
    found = test_of(drawn, torch.tensor(test), permutations=999, generator=torch.Generator().manual_seed(0))
    assert found.p_value > 0.001


def test_density_of_nearly_constant_columns_does_not_collapse():
    """The rim of digits, ten columns of which some are 0 in all rows but a few: a row a little aside is no miracle.

    Beside a kernel density of cross-validated width, which takes even the columns that never vary for a density: more likely on average all the
    same, and nowhere less by more than a hundred nats.
    """
    x = load_digits().data[:, :10] / 16
    train, test = x[:900], x[900:]
    kernel = kernel_density(train).score_samples(test)
    found = EnergyDensity(**MIXTURE).fit(train).score_samples(test)
    assert found.mean() > kernel.mean() + 2
    assert (kernel - found).max() < 100


def odd_columns(n, seed):
    """A heavy tail, whole numbers, a column that repeats another but for little, one that is constant but for few, one that is 0 for half of
    the rows."""
    rng = np.random.default_rng(seed)
    heavy, counts = rng.standard_t(1.5, n), rng.poisson(30, n)
    twin = heavy + 1e-3 * rng.normal(size=n)
    nearly = np.where(rng.random(n) < 0.02, 1 + rng.random(n), 1.0)
    zeros = np.where(rng.random(n) < 0.5, 0.0, rng.exponential(1, n))
    return np.stack([heavy, counts, twin, nearly, zeros], 1)


def test_density_of_odd_columns_is_near_the_truth():
    """In the units of the data, masses as masses: the mean log p of new rows against the law they were drawn from."""
    train, test = odd_columns(800, 0), odd_columns(1000, 1)
    density = EnergyDensity(8, **MIXTURE).fit(train)
    heavy, counts, twin, nearly, zeros = test.T
    truth = stats.t(1.5).logpdf(heavy) + stats.poisson(30).logpmf(counts) + stats.norm(0, 1e-3).logpdf(twin - heavy)
    truth = truth + np.where(nearly == 1, np.log(0.98), np.log(0.02))
    truth = truth + np.where(zeros == 0, np.log(0.5), np.log(0.5) - zeros)
    found = density.score_samples(test)
    assert np.isfinite(found).all()
    columns = [EnergyDensity(4, **MIXTURE).fit(train[:, [j]]) for j in (0, 1, 3, 4)]
    laws = [
        stats.t(1.5).logpdf(heavy), stats.poisson(30).logpmf(counts), np.where(nearly == 1, np.log(0.98), np.log(0.02)),
        np.where(zeros == 0, np.log(0.5), np.log(0.5) - zeros),
    ]  # fmt: skip
    for j, one, law in zip(
        (0, 1, 3, 4), columns, laws, strict=True
    ):  # each alone: within 0.06 nats, no better than 4 standard errors
        miss = law - one.score_samples(test[:, [j]])
        assert -4 * miss.std() / np.sqrt(1000) < miss.mean() < 0.06
    plain = GaussianMixture(8, random_state=0).fit(train[:, :2]).score_samples(test[:, :2])
    both = EnergyDensity(4, **MIXTURE).fit(train[:, :2]).score_samples(test[:, :2])
    assert both.mean() > max(plain.mean(), kernel_density(train[:, :2]).score_samples(test[:, :2]).mean())
    assert truth.mean() - found.mean() < 4  # the twin is narrower than the mixture dares to be


def test_constant_and_repeated_columns():
    rng = np.random.RandomState(0)
    x = np.c_[rng.randn(200, 2), np.zeros(200), np.full(200, 3.7)]
    density = EnergyDensity(2, **MIXTURE).fit(x)
    usual, other = density.score_samples([[0.0, 0.0, 0.0, 3.7], [0.0, 0.0, 1.0, 3.7]])
    assert usual - 20 < other < usual - np.log(100)
    alone = EnergyDensity(2, **MIXTURE).fit(x[:, :2]).score_samples(x[:50, :2])
    np.testing.assert_allclose(density.score_samples(x[:50]), alone, atol=0.3)
    assert abs((density.score_samples(x[:50]) - alone).mean()) < 0.03
    twice = EnergyDensity(2, **MIXTURE).fit(x[:, [0, 0]])
    drawn = twice.sample(500)
    assert np.quantile(np.abs(drawn[:, 0] - drawn[:, 1]), 0.97) < 0.1
    assert np.isfinite(twice.score_samples([[0.0, 3.0]])).all()
    assert set(np.unique(density.sample(50)[:, 2])) == {0.0}


def test_intervals_hold_what_they_say_and_columns_are_named():
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([0, 0], [[1, 0.9], [0.9, 1]], 3000)
    frame = pd.DataFrame(x, columns=["a", "b"])
    density = EnergyDensity(1, **MIXTURE).fit(frame[:1000])
    for level in (0.5, 0.9):
        ends = density.predict_interval(frame[1000:], "b", level)
        inside = ((ends[:, 0] <= x[1000:, 1]) & (x[1000:, 1] <= ends[:, 1])).mean()
        assert (
            abs(inside - level) < 4 * np.sqrt(0.25 / 2000) + 0.02
        )  # 4 binomial errors, and those of 1000 training rows
    wide = 2 * stats.norm.ppf(0.95) * np.sqrt(1 - 0.81)
    assert np.mean(ends[:, 1] - ends[:, 0]) == pytest.approx(wide, rel=0.1)
    np.testing.assert_allclose(density.predict_interval(frame[:5], 1), density.predict_interval(frame[:5], "b"))
    assert list(density.explain(frame[:3]).columns) == ["a", "b"]
    with pytest.raises(GibbsianError, match="none of the columns: a, b"):
        density.predict_interval(frame[:5], "c")


def test_weights_are_repetitions():
    rng = np.random.default_rng(0)
    x, times = rng.normal(size=(80, 2)), rng.integers(0, 3, 80)
    weighted, plain = (
        EnergyDensity(2, **MIXTURE).fit(x, sample_weight=times),
        EnergyDensity(2, **MIXTURE).fit(np.repeat(x, times, 0)),
    )
    np.testing.assert_array_equal(weighted.score_samples(x), plain.score_samples(x))
    leaning = EnergyDensity(1, **MIXTURE).fit(x, sample_weight=np.exp(x[:, 0]))
    assert leaning.sample(2000)[:, 0].mean() > 0.5 + x[:, 0].mean()
    with pytest.raises(ValueError, match="non-zero"):
        EnergyDensity().fit(x, sample_weight=np.zeros(80))
