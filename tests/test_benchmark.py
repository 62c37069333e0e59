"""The harness of trials: intervals that cover, differences that cancel what seeds share, failures that are counted."""

import math

import pytest
import torch
from scipy import stats

import gibbsian as gb
from gibbsian import errors, metrics


def test_intervals_cover_the_mean_as_often_as_they_say():
    """4000 samples of five normal numbers: coverage of 80 % within 3.9 standard errors, a false alarm in 10⁴."""
    g = torch.Generator().manual_seed(0)
    found = [metrics.mean_interval(row.tolist(), 0.8) for row in 3 + 2 * torch.randn(4000, 5, generator=g)]
    share = sum(i.lower < 3 < i.upper for i in found) / len(found)
    assert abs(share - 0.8) < 3.9 * math.sqrt(0.8 * 0.2 / 4000)  # a normal quantile instead of Student's gives .73


def test_an_interval_is_scipys():
    values = [0.3, 1.2, -0.4, 2.2]
    low, high = stats.t.interval(0.9, 3, loc=stats.tmean(values), scale=stats.sem(values))
    found = metrics.mean_interval(values, 0.9)
    assert found.lower == pytest.approx(low)
    assert found.upper == pytest.approx(high)


def test_trials_that_fail_are_counted_named_and_not_averaged():
    def sometimes(data, seed):
        if seed == 1:
            raise errors.DivergenceError("chains left the plane")
        return {"value": data + seed, "odd": math.nan if seed == 2 else 1.0}

    result = metrics.benchmark({"it": sometimes}, {"d": 10.0}, seeds=3)
    assert result.interval("d", "it", "value")[::3] == (11.0, 2)
    assert result.interval("d", "it", "value").failed == 1
    assert result.interval("d", "it", "odd").failed == 2
    assert result.errors == (("d", "it", 1, "chains left the plane"),)
    assert "1 failed" in result.to_markdown()
    with pytest.raises(ZeroDivisionError):
        metrics.benchmark({"it": lambda data, seed: 1 / 0}, {"d": 1.0})


def test_what_seeds_share_cancels_in_differences():
    g = torch.Generator().manual_seed(1)
    shared = (10 * torch.randn(8, generator=g)).tolist()
    entries = {"a": lambda d, seed: shared[seed], "b": lambda d, seed: shared[seed] + 0.5 + 0.01 * (seed % 2)}
    result = metrics.benchmark(entries, {"d": None}, seeds=8)
    a, b = (result.interval("d", name, "value") for name in "ab")
    assert a.upper > b.lower  # alone they cannot be told apart
    gap = result.difference("a")["d"]["b"]["value"]
    assert 0.49 < gap.lower < 0.505 < gap.upper < 0.52
    with pytest.raises(errors.ArgumentError, match="no such entry; there are a, b"):
        result.difference("c")
    assert {row["entry"] for row in result.rows()} == {"a", "b"}


def test_a_training_trial_finds_the_likelihood_of_the_truth():
    """A Gaussian by score matching: the held-out likelihood is that of the fitted moments, in closed form."""
    g = torch.Generator().manual_seed(0)
    x = 1 + 2 * torch.randn(3000, 1, generator=g)
    new = lambda: gb.energies.Gaussian(torch.zeros(1), torch.eye(1), trainable=True)  # noqa: E731
    entries = {
        "score": metrics.training_trial(new, gb.objectives.ImplicitScoreMatching(), steps=300, lr=0.05, batch_size=500),
        "none": metrics.training_trial(new, gb.objectives.ImplicitScoreMatching(), steps=1, lr=1e-9),
        "own": metrics.training_trial(new, gb.objectives.ImplicitScoreMatching(), judge=lambda e, x: 7, steps=1),
    }
    result = metrics.benchmark(entries, {"normal": (x[:2000], x[2000:])}, seeds=2)
    best = torch.distributions.Normal(x[:2000].mean(), x[:2000].std()).log_prob(x[2000:]).mean()
    found = result.interval("normal", "score", "log_likelihood").mean
    assert found == pytest.approx(float(best), abs=0.02)
    assert result.interval("normal", "none", "log_likelihood").mean < found - 0.5
    assert result.values["normal"]["own"]["value"] == [7.0, 7.0]


def test_a_sampling_trial_sees_a_wrong_law_and_a_slow_kernel():
    target = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    entries = {
        "MALA": metrics.sampling_trial(gb.kernels.MALA(1.2), chains=64, steps=400),
        "small steps": metrics.sampling_trial(gb.kernels.MALA(0.2), chains=64, steps=400),
        "unadjusted": metrics.sampling_trial(gb.kernels.Langevin(1.2), chains=64, steps=400),  # variance 1 / (1 - ε²/4)
    }
    result = metrics.benchmark(entries, {"normal": target}, seeds=3)
    number = lambda entry, name: result.interval("normal", entry, name).mean  # noqa: E731
    assert number("MALA", "bias") < 4  # the largest of four statistics
    assert number("unadjusted", "bias") > 10
    assert number("MALA", "ess") > 10 * number("small steps", "ess")
    assert "acceptance" not in result.values["normal"]["unadjusted"]
