"""Annealed importance sampling, forward, reverse and resampled, against exact sums and quadrature."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import gibbsian as gb
from gibbsian import domains, energies, kernels, models, partition, schedules, units
from gibbsian.distributed import OneStream
from gibbsian.energies.bases import Exponential, Factorized, IndependentGaussian, Uniform, fitted_base
from gibbsian.errors import (
    ArgumentError,
    CapabilityError,
    DivergenceError,
    DomainError,
    EstimateWarning,
    GibbsianError,
    RandomnessError,
)
from gibbsian.models.rbm.fused_path import BernoulliPath
from gibbsian.models.rbm.path import RBMPath
from gibbsian.partition.annealed import _crowded, _Runs
from gibbsian.partition.paths import GeometricPath, path_of, single
from gibbsian.partition.runner import ladder_of, run_path, weight_statistics
from gibbsian.partition.smc import systematic

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scramble(model, seed=0, scale=0.6):
    g = gen(seed)
    model = model.double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=g, dtype=F64))
    return model


def machine(n=7, seed=0, *, spin=False, hidden=0, scale=0.8):
    w = scale * torch.randn(n + hidden, n + hidden, generator=gen(seed), dtype=F64).triu(1)
    out = models.BoltzmannMachine(n, spin=spin, hidden=hidden).double()
    out.set_parameters(weight=w + w.T, bias=torch.randn(n + hidden, generator=gen(seed + 1), dtype=F64))
    return out


def coin_flips(n, rows=300, p=0.3, seed=0):
    return (torch.rand(rows, n, generator=gen(seed)) < p).double()


def exact_draws(energy, n, seed):
    states = energy.domain.states(dtype=F64)
    p = torch.softmax(-energy(states).detach(), 0)
    return states[torch.multinomial(p, n, replacement=True, generator=gen(seed))]


def correlated():
    return energies.Gaussian(torch.tensor([1.0, -0.5], dtype=F64), torch.tensor([[1.0, 0.5], [0.5, 0.6]], dtype=F64))


def silent(n=1, **shown):
    return None


MODELS = {
    "RBM": lambda: scramble(models.RBM(6, 4)),
    "spin RBM": lambda: scramble(models.RBM(units.Spin(5), units.Bernoulli(3))),
    "softmax RBM": lambda: scramble(models.RBM(units.Softmax(3, classes=3), 3)),
    "Gaussian RBM": lambda: scramble(models.RBM(units.Gaussian(3), 3), scale=0.4),
    "Gaussian hidden RBM": lambda: scramble(models.RBM(5, units.Gaussian(2)), scale=0.4),
    "count RBM": lambda: scramble(models.RBM(units.Count(3, total=4), 3)),
    "classification RBM": lambda: scramble(models.ClassificationRBM(6, classes=3, hidden=3)),
    "subspace RBM": lambda: scramble(models.SubspaceRBM(6, 2, 2)),
    "machine": lambda: machine(),
    "spin machine": lambda: machine(spin=True, scale=0.4),
    "machine with hidden units": lambda: machine(5, hidden=3),
    "lattice": lambda: models.Ising((3, 4), coupling=0.15, field=0.2).double(),
    "trainable chain": lambda: models.Ising(6, 0.4, -0.2, periodic=False, trainable=True).double(),
    "any binary energy": lambda: gb.as_energy(lambda x: 1.5 * (x.sum(-1) % 2) - x[:, 0] * x[:, 2], domains.Binary(5)),
    "any categorical energy": lambda: gb.as_energy(
        lambda x: -2 * x[:, 0, 0] * x[:, 1, 2] - x[:, 2, 1] * x[:, 0, 1], domains.Categorical(3, classes=3)
    ),
    "Gaussian": correlated,
    "box": lambda: gb.as_energy(
        lambda x: 5 * ((x - 0.3) ** 2).sum(-1) + 2 * x[:, 0] * x[:, 1], domains.Box(2, -1.0, 1.0)
    ),
    "half line": lambda: gb.as_energy(lambda x: 3 * x.sum(-1) + x[:, 0] * x[:, 1], domains.NonNegative(2)),
}


def log_z_of(energy):
    if isinstance(energy.domain, domains.Real | domains.Box | domains.NonNegative) and not isinstance(
        energy, models.RBM
    ):
        return float(partition.quadrature(energy).value)
    return float(partition.exact(energy).value)


def data_of(energy, rows=300):
    data = energy.domain.sample(rows, generator=gen(99), dtype=F64)
    return 0.8 * data if isinstance(energy.domain, domains.Real) else data


# --- the law ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_unbiased_with_few_temperatures(name):
    """E[w] = Z/Z₀ whatever the schedule: four temperatures, so that a wrong order or a wrong move shows.
    Four standard errors of the mean weight: false alarm 1 in 16000 a model."""
    energy = MODELS[name]()
    betas = torch.tensor([0.0, 0.2, 0.5, 1.0])
    # a broken path is wrong by far more than 4 standard errors of this many weights
    out = partition.ais(energy, data_of(energy), chains=20000, betas=betas, generator=gen(1))
    w = torch.exp(out.diagnostics["log_weights"] - log_z_of(energy))
    assert abs(float(w.mean()) - 1) < 4 * float(w.std()) / math.sqrt(len(w))
    assert float(w.std()) / math.sqrt(len(w)) < 0.02  # sharp enough to see a break


@pytest.mark.parametrize(
    "name", ["RBM", "machine", "machine with hidden units", "lattice", "any binary energy", "subspace RBM"]
)
def test_reverse_weights_are_unbiased_from_exact_samples(name):
    energy = MODELS[name]()
    samples = exact_draws(energy, 20000, 3)
    betas = torch.tensor([0.0, 0.2, 0.5, 1.0])
    out = partition.reverse_ais(energy, samples, data_of(energy), betas=betas, generator=gen(1))
    w = torch.exp(out.diagnostics["log_weights"] + log_z_of(energy))
    assert abs(float(w.mean()) - 1) < 4 * float(w.std()) / math.sqrt(len(w))
    assert float(w.std()) / math.sqrt(len(w)) < 0.02


def test_reverse_weights_of_a_continuous_energy_are_unbiased():
    """The base is narrower than the target in every direction (0.25 < 0.26), so that weights are bounded."""
    energy = correlated()
    base = energies.Gaussian(torch.tensor([0.8, -0.3], dtype=F64), 0.25 * torch.eye(2, dtype=F64))
    out = partition.reverse_ais(
        energy, energy.sample(20000, generator=gen()), base=base, betas=torch.tensor([0.0, 0.3, 1.0]),
        kernel=kernels.HMC(0.4, 3), generator=gen(1),
    )  # fmt: skip
    w = torch.exp(out.diagnostics["log_weights"] + float(energy.log_z()))
    assert abs(float(w.mean()) - 1) < 4 * float(w.std()) / math.sqrt(len(w))


@pytest.mark.filterwarnings(
    "ignore::gibbsian.errors.EstimateWarning"
)  # three temperatures on purpose: few weights matter
@pytest.mark.parametrize("name", ["RBM", "machine", "Gaussian", "any binary energy", "Gaussian RBM"])
@pytest.mark.parametrize("options", [{"threshold": 0.9}, {"every": 1}, {"threshold": 0.0}])
def test_resampled_estimates_are_unbiased(name, options):
    energy = MODELS[name]()
    islands = 1500
    out = partition.smc(
        energy,
        data_of(energy),
        chains=6,
        islands=islands,
        betas=torch.tensor([0.0, 0.2, 0.5, 1.0]),
        generator=gen(2),
        **options,
    )
    z = torch.exp(out.diagnostics["log_weights"] - log_z_of(energy))
    assert abs(float(z.mean()) - 1) < 4 * float(z.std()) / math.sqrt(islands)
    resampled = out.diagnostics["resamplings"].double().mean()
    assert float(resampled) == {0.9: float(resampled), 0.0: 0.0}.get(options.get("threshold"), 3.0)
    if options.get("threshold") == 0.9:
        assert 0 < float(resampled) < 3


def test_three_standard_errors_cover_over_forty_seeds():
    rbm = scramble(models.RBM(20, 12), seed=5, scale=1.0)
    truth, data = float(partition.exact(rbm).value), coin_flips(20, 500)
    runs = [partition.ais(rbm, data, chains=100, betas=300, generator=gen(seed)) for seed in range(40)]
    z = torch.tensor([(float(run.value) - truth) / float(run.stderr) for run in runs])
    assert int((z.abs() < 3).sum()) >= 38
    assert abs(float(z.mean())) < 0.7
    assert 0.6 < float(z.square().mean().sqrt()) < 1.5
    assert all(float(run.lower) < float(run.value) < float(run.upper) for run in runs)


def test_resampled_intervals_cover_with_few_islands():
    """Student's factor: with five islands three plain standard errors would fail in 4 % of runs."""
    rbm = scramble(models.RBM(10, 6), seed=5, scale=1.2)
    truth, data = float(partition.exact(rbm).value), coin_flips(10)
    hits = 0
    for seed in range(60):
        out = partition.smc(rbm, data, chains=20, islands=5, betas=10, generator=gen(seed))
        hits += float(out.lower) < truth < float(out.upper)
        assert bool((out.diagnostics["resamplings"] > 0).any())
    assert hits >= 58


@pytest.mark.filterwarnings("ignore::gibbsian.errors.EstimateWarning")  # eight chains, and few of them matter
def test_forward_and_reverse_averages_bracket_the_truth():
    """Few chains and temperatures, so that the gap is many standard errors of the average of 40 runs."""
    rbm = scramble(models.RBM(12, 8), seed=5, scale=1.2)
    truth, data = float(partition.exact(rbm).value), coin_flips(12)
    how = {"betas": 6, "generator": None}
    low, high = [], []
    for seed in range(40):
        how["generator"] = gen(seed)
        low.append(float(partition.ais(rbm, data, chains=8, **how).value))
        high.append(float(partition.reverse_ais(rbm, exact_draws(rbm, 8, 1000 + seed), data, **how).value))
    low, high = torch.tensor(low), torch.tensor(high)
    assert truth - float(low.mean()) > 2 * float(low.std()) / math.sqrt(40)
    assert float(high.mean()) - truth > 2 * float(high.std()) / math.sqrt(40)


def test_both_sides_and_their_best_combination():
    rbm = scramble(models.RBM(12, 8), seed=5, scale=1.0)
    truth, data = float(partition.exact(rbm).value), coin_flips(12)
    errors = []
    for seed in range(20):
        low = partition.ais(rbm, data, chains=50, betas=50, generator=gen(seed))
        high = partition.reverse_ais(rbm, exact_draws(rbm, 50, 50 + seed), forward=low, generator=gen(seed))
        both = partition.bounds(low, high)
        assert float(both.lower) <= truth <= float(both.upper)
        errors.append([float(e.value) - truth for e in (low, high, both)])
    rms = torch.tensor(errors).square().mean(0).sqrt()
    assert float(rms[2]) < 0.8 * float(rms[:2].min())  # the acceptance ratio beats both


@pytest.mark.parametrize(("up", "down"), [(400, 8), (8, 400)])
def test_the_acceptance_ratio_knows_how_many_weights_each_side_has(up, down):
    """Bennett's estimate is consistent for any numbers of forward and reverse weights; with the ratio of the numbers
    turned around it would be off by twice its log, 7.8 nats."""
    rbm = scramble(models.RBM(8, 6), seed=5, scale=0.5)
    truth, data = float(partition.exact(rbm).value), coin_flips(8)
    off = []
    for seed in range(12):
        low = partition.ais(rbm, data, chains=up, betas=30, generator=gen(seed))
        high = partition.reverse_ais(rbm, exact_draws(rbm, down, 50 + seed), forward=low, generator=gen(seed))
        off.append(float(partition.bounds(low, high).value) - truth)
    errors = torch.tensor(off)
    assert abs(float(errors.mean())) < 5 * float(errors.std()) / math.sqrt(12)
    assert float(errors.std()) < 0.2


def test_both_sides_of_one_path_meet_at_bennetts_root_and_of_two_in_the_middle():
    """The maximum of the likelihood of log Z given who climbed and who descended, by scipy; the sides and their distance."""
    rbm, data = scramble(models.RBM(8, 6), seed=5, scale=1.0), coin_flips(8)
    low = partition.ais(rbm, data, chains=60, betas=10, generator=gen())
    high = partition.reverse_ais(rbm, exact_draws(rbm, 25, 1), forward=low, generator=gen(1))
    up, down = low.diagnostics["log_weights"].numpy(), -high.diagnostics["log_weights"].numpy()

    def minus_log_likelihood(z):  # of a weight w the odds that it comes from a climb are 60/25 e^(z - w) (Crooks)
        odds = np.log(60 / 25) + z
        return np.logaddexp(0, up - odds).sum() + np.logaddexp(0, odds - down).sum()

    best = scipy.optimize.minimize_scalar(
        minus_log_likelihood, bracket=(up.min(), down.max()), options={"xtol": 1e-12}
    ).x
    both = partition.bounds(low, high)
    assert abs(float(both.value) - best) < 1e-6
    apart = partition.reverse_ais(rbm, exact_draws(rbm, 25, 1), data, betas=10, generator=gen(1))
    middle = partition.bounds(low, apart)
    assert float(middle.value) == pytest.approx((float(low.value) + float(apart.value)) / 2, abs=1e-12)
    assert abs(float(middle.value) - float(both.value)) > 1e-3
    for estimate, side in ((both, high), (middle, apart)):
        own = math.hypot(float(low.stderr), float(side.stderr))
        assert float(estimate.stderr) == pytest.approx(max(abs(float(side.value - low.value)), own) / 2)
        assert (float(estimate.lower), float(estimate.upper)) == (float(low.lower), float(side.upper))
        assert estimate.diagnostics["gap"] == pytest.approx(float(side.value - low.value))


def test_a_reverse_run_from_the_wrong_law_is_noticed():
    rbm = scramble(models.RBM(8, 6), seed=1, scale=1.5)
    data = coin_flips(8)
    low = partition.ais(rbm, data, chains=200, betas=200, generator=gen())
    states = domains.Binary(8).states(dtype=F64)
    worst = states[rbm(states).argmax()].expand(200, 8)
    wrong = partition.reverse_ais(rbm, worst, forward=low, generator=gen())
    with pytest.warns(EstimateWarning, match="do not come from the model"):
        partition.bounds(low, wrong)


def test_conservative_likelihood_is_that_of_the_annealing_chain():
    """exp(RAISE) averages to the probability that annealing ends in v, which is computed by powers of exact
    transition matrices; four standard errors for each of 16 states."""
    rbm = scramble(models.RBM(4, 3), seed=2, scale=2.0)
    data = coin_flips(4)
    states = domains.Binary(4).states(dtype=F64)
    path = rbm.path(data=data)
    betas = torch.tensor([0.0, 0.3, 1.0], dtype=F64)
    law = torch.softmax(-path.at(0.0)(states), 0).detach()
    h = domains.Binary(3).states(dtype=F64)
    for beta in betas[1:]:
        b = (1 - beta) * path.base[0].linear + beta * rbm.visible_bias.detach()
        logits = states @ b[:, None] + beta * (
            states @ rbm.weight.detach() @ h.T + (h @ rbm.hidden_bias.detach())[None]
        )
        up, down = torch.softmax(logits, 1), torch.softmax(logits, 0)  # p(h | v), p(v | h)
        law = law @ up @ down.T
    n = 4000
    out = partition.raise_bound(rbm, states.repeat_interleave(n, 0), data, betas=betas, chains=1, generator=gen())
    p = out.per_sample.exp().reshape(16, n)
    assert bool(((p.mean(1) - law).abs() < 4 * p.std(1) / math.sqrt(n)).all())
    assert not torch.allclose(law, torch.softmax(-rbm(states).detach(), 0), atol=0.01)  # and not that of the model
    assert bool((out.per_sample.reshape(16, n).mean(1) < law.log() + 0.02).all())  # its log is a lower bound


def test_conservative_likelihood_tends_to_the_models():
    rbm = scramble(models.RBM(8, 5), seed=2)
    x, data = coin_flips(8, 200, seed=4), coin_flips(8)
    truth = gb.log_likelihood(rbm, x)
    out = partition.raise_bound(rbm, x, data, betas=500, chains=10, generator=gen())
    assert abs(float(out.value - truth.value)) < 0.05
    hidden = machine(5, hidden=3)
    x = coin_flips(5, 100, seed=4)
    out = partition.raise_bound(hidden, x, x, betas=200, chains=10, generator=gen())
    assert abs(float(out.value - gb.log_likelihood(hidden, x).value)) < 0.1


# --- the pieces -------------------------------------------------------------------------------------


def test_fused_path_is_the_rbms_own_path_number_for_number():
    rbm = scramble(models.RBM(9, 7))
    fused = rbm.path(data=coin_flips(9))
    assert isinstance(fused, BernoulliPath)
    own = RBMPath(rbm, rbm.visible.fit(coin_flips(9)))
    assert type(own) is RBMPath
    assert isinstance(path_of(rbm, coin_flips(9), None, None), BernoulliPath)
    assert torch.equal(own.log_z0(), fused.log_z0())
    v = own.sample(30, generator=gen())
    noise = single(own.noise(v, 1, gen(1)))
    for beta, after in ((0.0, 0.1), (0.4, 0.45), (1.0, 0.6)):
        pair = torch.tensor(beta, dtype=F64), torch.tensor(after, dtype=F64)
        (x, w), (y, u) = own.anneal(v, *pair, noise), fused.anneal(v, *pair, noise)
        assert torch.equal(x, y)
        assert torch.allclose(w, u, atol=1e-12)
        by_energies = own.at(pair[0])(v) - own.at(pair[1])(v)
        assert torch.allclose(w, by_energies.detach(), atol=1e-12)
    with torch.no_grad():
        rbm.weight.mul_(0.5)  # both follow the machine
    (x, w), (y, u) = own.anneal(v, *pair, noise), fused.anneal(v, *pair, noise)
    assert torch.equal(x, y)
    assert torch.allclose(w, u, atol=1e-12)


def test_single_precision_weights_are_accurate():
    double = scramble(models.RBM(100, 60), scale=0.1)
    rbm = models.RBM(100, 60)
    rbm.load_state_dict(double.state_dict())
    data = coin_flips(100)
    truth = partition.ais(double, data, chains=300, betas=200, generator=gen())
    single_precision = partition.ais(rbm, data.float(), chains=300, betas=200, generator=gen(1))
    gap = float(single_precision.value) - float(truth.value)
    assert abs(gap) < 4 * math.hypot(float(truth.stderr), float(single_precision.stderr))
    assert single_precision.value.dtype == F64


@pytest.mark.parametrize("name", MODELS)
def test_the_base_is_normalized_and_drawn_exactly(name):
    """log Z₀ is that of the path at β = 0: weights from 0 to 0 are 1, and its draws have the base's law."""
    energy = MODELS[name]()
    path = path_of(energy, data_of(energy), None, None)
    x = path.sample(50, generator=gen())
    zero = torch.zeros((), dtype=F64)
    _, w = path.anneal(x, zero, zero, single(path.noise(x, 1, gen(1))))
    assert torch.allclose(w, torch.zeros_like(w))
    assert math.isfinite(float(path.log_z0()))


@pytest.mark.parametrize(
    "domain",
    [
        domains.Binary((2, 2)),
        domains.Spin(4),
        domains.Categorical(2, classes=3),
        domains.JoinedStates(domains.Categorical(1, classes=3), domains.Spin(2), domains.Binary((1, 2))),
        domains.JoinedStates(domains.JoinedStates(domains.Spin(1), domains.Categorical(1, classes=2)), domains.Spin(1)),
    ],
)
def test_factorized_bases_have_the_means_of_the_data(domain):
    data = domain.sample(200, generator=gen(), dtype=F64)
    base = fitted_base(domain, data, torch.zeros((), dtype=F64))
    assert isinstance(base, Factorized)
    states = domain.states(dtype=F64)
    assert torch.allclose(base.log_z(), torch.logsumexp(-base(states), 0))
    p = torch.softmax(-base(states), 0)
    mean = (p.reshape(-1, *[1] * len(domain.shape)) * states).sum(0)
    assert float((mean - data.mean(0)).abs().max()) < 0.02  # smoothed by one row of each value
    draws = base.sample(20000, generator=gen(1))
    domain.check(draws, "draws")
    assert float((draws.mean(0) - mean).abs().max()) < 4 * 1 / math.sqrt(20000)


def test_continuous_bases_are_normalized():
    like = torch.zeros((), dtype=F64)
    data = torch.randn(500, 2, generator=gen(), dtype=F64) @ torch.tensor([[1.0, 0.5], [0.0, 0.3]], dtype=F64) + 1
    full = fitted_base(domains.Real(2), data, like)
    assert isinstance(full, energies.Gaussian)
    assert torch.allclose(full.covariance, torch.cov(data.T, correction=0))
    cases = [
        fitted_base(domains.Real(2), data[:10], like),
        fitted_base(domains.Real((1, 2)), None, like),
        fitted_base(domains.NonNegative(2), data.abs(), like),
        fitted_base(domains.Box(2, -1.0, 3.0), None, like),
    ]
    for base, kind in zip(cases, (IndependentGaussian, IndependentGaussian, Exponential, Uniform), strict=True):
        assert isinstance(base, kind)
        assert abs(float(partition.quadrature(base).value - base.log_z())) < 1e-7
        x = base.sample(1000, generator=gen(3))
        energy, score = base.energy_and_score(x)
        assert torch.allclose(energy, base(x))
        assert torch.allclose(score, gb.Energy.energy_and_score(base, x)[1])
        base.domain.check(x)
    with pytest.raises(ArgumentError, match="varies"):
        fitted_base(domains.Real(2), torch.ones(10, 2), like)


def test_systematic_resampling_is_unbiased_and_even():
    p = torch.tensor([[0.1, 0.5, 0.05, 0.35], [0.25, 0.25, 0.25, 0.25]], dtype=F64)
    counts = torch.zeros(2, 4, dtype=F64)
    rounds = 4000
    g = gen()
    for _ in range(rounds):
        index = systematic(p, g)
        counts += torch.stack([torch.bincount(row, minlength=4) for row in index])
        assert bool((torch.bincount(index[0], minlength=4) - 4 * p[0]).abs().max() < 1)  # never off by one or more
    assert float((counts / (4 * rounds) - p).abs().max()) < 4 * 0.5 / math.sqrt(4 * rounds)


def test_weight_statistics():
    log_w = 700 + 0.3 * torch.randn(4000, generator=gen(), dtype=F64)
    value, stderr, ess, jackknife = weight_statistics(log_w)
    assert abs(float(value) - 700 - 0.045) < 4 * float(stderr)
    assert abs(float(stderr) - math.sqrt(math.expm1(0.09) / 4000)) < 2e-4
    assert abs(ess / 4000 - math.exp(-0.09)) < 0.02
    assert abs(float(jackknife / stderr) - 1) < 0.01
    *_, ess, jackknife = weight_statistics(torch.tensor([0.0, -800.0, -900.0], dtype=F64))
    assert abs(ess - 1) < 1e-9
    assert math.isfinite(float(jackknife))


def test_pilot_finds_step_sizes_that_fit_each_temperature():
    narrow = energies.Gaussian(torch.zeros(3, dtype=F64), 1e-4 * torch.eye(3, dtype=F64))
    base = energies.Gaussian(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64))
    with pytest.warns(EstimateWarning, match="matter"):
        out = partition.ais(narrow, base=base, chains=100, betas=torch.linspace(0, 1, 200) ** 4, generator=gen())
    _, sizes = out.diagnostics["path"].tuned
    assert 20 < float(sizes[0] / sizes[-1]) < 500  # widths 1 and 0.01
    assert abs(float(out.value - narrow.log_z())) < 4 * float(out.stderr)


# --- without betas: from both sides ----------------------------------------------------------------


def two_wells(rare: float):
    """20 visible and 15 hidden units: two far prototypes, the second with this share of the mass; exact log Z, data."""
    g = gen(3)
    prototype = (torch.rand(20, generator=g) < 0.5).double()
    rbm = models.RBM(20, 15).double()
    with torch.no_grad():
        rbm.weight.copy_(1.4 * (2 * prototype[:, None] - 1) * torch.ones(1, 15).double())
        rbm.weight.add_(0.05 * torch.randn(20, 15, generator=g, dtype=F64))
        rbm.visible_bias.copy_(-7.0 * (2 * prototype - 1))
        rbm.hidden_bias.zero_()
        ones = 2 * prototype - 1
        both = torch.stack([(1 - ones) / 2, (1 + ones) / 2])
        for _ in range(60):  # the hidden bias that gives the well of the prototype its share
            energy = rbm(both)
            rbm.hidden_bias.add_(0.05 * (math.log(rare / (1 - rare)) - float(energy[0] - energy[1])))
    which = torch.rand(400, generator=g) < rare
    data = both[which.long()]
    data = torch.where(torch.rand(data.shape, generator=g) < 0.02, 1 - data, data)
    return rbm, data, float(partition.exact(rbm).value)


def test_an_interval_from_both_sides_covers_where_chains_miss_a_well():
    """Without betas the interval reaches from the climb to the descent, whose chains begin at data in both wells: it
    covers in all of 12 runs (a true coverage of 0.95 would miss more than three of 12 once in 500 times; none is
    allowed to), where three standard errors of a climb alone miss most of the time."""
    rbm, data, truth = two_wells(0.1)
    alone, both = [], []
    for seed in range(12):
        found = partition.ais(rbm, data, chains=50, generator=gen(seed))
        alone.append(abs(float(found.value) - truth) < 3 * float(found.stderr))
        both.append(float(found.lower) < truth < float(found.upper))
    assert sum(both) >= 11
    assert sum(alone) <= 8


def test_a_ladder_grows_until_the_climb_gains_no_more():
    rbm, data = MODELS["RBM"](), coin_flips(6)
    easy = partition.ais(rbm, data, generator=gen())
    assert [count for count, *_ in easy.diagnostics["ladders"]] == [250, 500]
    assert len(easy.diagnostics["betas"]) == 501
    assert float(easy.value) == pytest.approx(
        float(torch.logsumexp(easy.diagnostics["log_weights"], 0)) - math.log(100)
    )
    assert easy.diagnostics["gap"] == pytest.approx(float(easy.diagnostics["reverse"].value - easy.value))
    assert float(easy.stderr) == pytest.approx(float(weight_statistics(easy.diagnostics["log_weights"])[1]))
    more = partition.ais(rbm, chains=50, resume=easy, generator=gen(1))
    assert len(more.diagnostics["log_weights"]) == 150
    assert float(more.upper) >= float(easy.diagnostics["reverse"].upper)
    narrow = energies.Gaussian(torch.zeros(3, dtype=F64), 1e-4 * torch.eye(3, dtype=F64))
    wide = energies.Gaussian(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64))
    with pytest.warns(EstimateWarning, match="raise max_betas"):
        hard = partition.ais(narrow, base=wide, chains=50, max_betas=500, generator=gen())
    assert len(hard.diagnostics["ladders"]) == 2
    assert float(hard.lower) < float(narrow.log_z()) < float(hard.upper)
    short = partition.ais(rbm, data, max_betas=60, tolerance=10.0, generator=gen())
    assert [count for count, *_ in short.diagnostics["ladders"]] == [60]


def test_temperatures_are_crowded_where_weights_spread():
    ladder = ladder_of(100)
    variance = torch.where(ladder[1:] > 0.9, 1.0, 1e-6).double()
    crowded = _crowded(ladder, variance, 200)
    assert len(crowded) == 201
    assert float(crowded[0]) == 0
    assert float(crowded[-1]) == 1
    assert bool((crowded.diff() > 0).all())
    assert 90 < int((crowded > 0.9).sum()) < 120  # half of the steps, and an even share of the other half
    even = _crowded(ladder, torch.zeros(100, dtype=F64), 200)
    assert torch.allclose(even, ladder_of(200), atol=1e-12)


# --- how it is used ---------------------------------------------------------------------------------


def test_resumed_chains_and_chunks_add_up():
    rbm, data = MODELS["RBM"](), coin_flips(6)
    first = partition.ais(rbm, data, chains=30, betas=20, generator=gen(1))
    both = partition.ais(rbm, chains=50, resume=first, generator=gen(2))
    weights = both.diagnostics["log_weights"]
    assert len(weights) == 80
    assert torch.equal(weights[:30], first.diagnostics["log_weights"])
    assert torch.allclose(both.value, torch.logsumexp(weights, 0) - math.log(80))
    assert torch.equal(both.diagnostics["betas"], first.diagnostics["betas"])
    longer = partition.ais(rbm, chains=10, betas=40, resume=first, generator=gen(2))
    assert len(longer.diagnostics["betas"]) == 41
    assert len(longer.diagnostics["log_weights"]) == 40
    cut = partition.ais(rbm, data, chains=30, betas=20, chunk=7, generator=gen(1))
    assert len(cut.diagnostics["log_weights"]) == 30
    assert cut.diagnostics["states"].shape == (30, 6)
    with pytest.raises(ArgumentError, match="leave data"):
        partition.ais(rbm, data, resume=first, generator=gen())
    with pytest.raises(ArgumentError, match="resumed"):
        partition.ais(rbm, resume=partition.exact(rbm), generator=gen())
    with pytest.raises(ArgumentError, match="another model"):
        partition.ais(MODELS["RBM"](), resume=first, generator=gen())
    with torch.no_grad():
        rbm.weight.mul_(1.1)
    with pytest.raises(ArgumentError, match="parameters have changed"):
        partition.ais(rbm, resume=first, generator=gen())


@pytest.mark.filterwarnings("ignore::gibbsian.errors.EstimateWarning")
@pytest.mark.parametrize("chunk", [1, 7])
def test_a_ladder_grows_from_the_spread_of_all_chains_however_few_run_at_a_time(monkeypatch, chunk):
    """Temperatures crowd where the weights of all chains spread: pieces of one chain have no variance of their own."""
    monkeypatch.setattr("gibbsian.partition.annealed._FIRST", 20)
    rbm = models.RBM(6, 4).double()
    with torch.no_grad():
        rbm.weight.copy_(1.5 * torch.randn(6, 4, generator=gen(3), dtype=torch.float64))
    options = {"base": torch.zeros(6, dtype=torch.float64), "chains": 64, "max_betas": 40, "tolerance": 0.0}
    cut = partition.ais(rbm, chunk=chunk, generator=gen(1), **options)
    assert [n for n, _, _ in cut.diagnostics["ladders"]] == [20, 40]
    betas = cut.diagnostics["betas"]
    assert bool((betas.diff() > 0).all())
    assert not torch.allclose(betas, torch.linspace(0, 1, 41, dtype=torch.float64))
    assert abs(float(cut.value) - float(partition.exact(rbm).value)) < 4 * float(cut.stderr)
    path = path_of(rbm, None, options["base"], None, stacklevel=1)
    runs, spread = _Runs(rbm, path, 64, chunk, OneStream(gen(2)), False), torch.zeros(1, dtype=torch.float64)
    weights = runs.climb(ladder_of(1), [], spread, warn=False).diagnostics["log_weights"]  # one step adds all of them
    assert float(spread) == pytest.approx(float(weights.var()))


def test_same_seed_same_estimate_and_no_global_randomness():
    before = torch.get_rng_state()
    for name in ("RBM", "Gaussian", "machine"):
        energy = MODELS[name]()
        runs = [partition.ais(energy, data_of(energy), chains=10, betas=10, generator=gen(5)) for _ in range(2)]
        assert torch.equal(runs[0].diagnostics["log_weights"], runs[1].diagnostics["log_weights"])
    assert torch.equal(before, torch.get_rng_state())


def test_any_schedule_and_any_adjusted_kernel():
    rbm = MODELS["RBM"]()
    truth = float(partition.exact(rbm).value)
    for betas in (schedules.sigmoid(100), schedules.salakhutdinov(100), torch.linspace(0, 1, 50) ** 2):
        out = partition.ais(rbm, coin_flips(6), chains=200, betas=betas, generator=gen())
        assert abs(float(out.value) - truth) < 4 * float(out.stderr)
    out = partition.ais(rbm, coin_flips(6), kernel=kernels.SiteGibbs(), chains=200, betas=50, generator=gen())
    assert abs(float(out.value) - truth) < 4 * float(out.stderr)
    out = partition.ais(rbm, base=torch.zeros(6, dtype=F64), chains=200, betas=50, generator=gen())
    assert abs(float(out.value) - truth) < 4 * float(out.stderr)
    target = correlated()
    wide = energies.Gaussian(torch.zeros(2, dtype=F64), 4 * torch.eye(2, dtype=F64))
    for kernel in (kernels.MALA(0.5), kernels.RandomWalk(0.7), kernels.HMC(0.3, 4)):
        out = partition.ais(target, base=wide, kernel=kernel, chains=300, betas=60, generator=gen())
        assert abs(float(out.value - target.log_z())) < 4 * float(out.stderr)


def test_warnings_where_an_estimate_is_not_to_be_trusted():
    rbm = MODELS["RBM"]()
    with pytest.warns(EstimateWarning, match="no data"):
        partition.ais(rbm, chains=50, betas=10, generator=gen())
    with pytest.warns(EstimateWarning, match="no data"):
        partition.ais(correlated(), chains=50, betas=10, generator=gen())
    narrow = energies.Gaussian(torch.zeros(20, dtype=F64), 1e-4 * torch.eye(20, dtype=F64))
    base = energies.Gaussian(torch.zeros(20, dtype=F64), torch.eye(20, dtype=F64))
    with pytest.warns(EstimateWarning, match="weights of AIS matter"):
        out = partition.ais(narrow, base=base, chains=50, betas=5, generator=gen())
    assert out.diagnostics["ess"] < 5


def test_a_poor_base_is_low_and_its_error_bar_does_not_show_it():
    """Why data is asked for: two far modes, a base that sees one. The reverse run shows the gap."""
    target = gb.mixture([
        energies.Gaussian(torch.full((2,), m, dtype=F64), 0.01 * torch.eye(2, dtype=F64)) for m in (0.0, 8.0)
    ], [0.1, 0.9])  # fmt: skip
    base = energies.Gaussian(torch.zeros(2, dtype=F64), 0.02 * torch.eye(2, dtype=F64))
    low = partition.ais(target, base=base, chains=100, betas=100, generator=gen())
    assert float(low.value) < math.log(0.1) + 0.2
    assert low.diagnostics["ess"] > 50
    assert float(low.upper) < 0
    with pytest.warns(EstimateWarning, match="likely high"):
        high = partition.reverse_ais(target, target.sample(100, generator=gen()), forward=low, generator=gen())
    assert float(high.value) - float(low.value) > 2
    assert float(high.upper) > 0


def test_bad_input_is_refused_with_a_reason():
    rbm, data = MODELS["RBM"](), coin_flips(6)
    with pytest.raises(RandomnessError):
        partition.ais(rbm, data)
    for betas in (0, torch.tensor([0.0, 0.5]), torch.tensor([0.0, 0.7, 0.3, 1.0]), torch.zeros(2, 2)):
        with pytest.raises(ArgumentError, match="betas"):
            partition.ais(rbm, data, betas=betas, generator=gen())
    with pytest.raises(ArgumentError, match="chains=1"):
        partition.ais(rbm, data, chains=1, generator=gen())
    with pytest.raises(DomainError, match="binarize"):
        partition.ais(rbm, data * 0.5, generator=gen())
    with pytest.raises(ArgumentError, match="not both"):
        partition.ais(rbm, data, base=torch.zeros(6, dtype=F64), generator=gen())
    wide = energies.Gaussian(torch.zeros(2, dtype=F64), 4 * torch.eye(2, dtype=F64))
    with pytest.raises(CapabilityError, match="unadjusted"):
        partition.ais(correlated(), base=wide, kernel=kernels.Langevin(0.1), generator=gen())
    with pytest.raises(CapabilityError, match="log_z"):
        partition.ais(correlated(), base=gb.as_energy(lambda x: x.square().sum(-1), domains.Real(2)), generator=gen())
    with pytest.raises(DomainError, match="domain"):
        partition.ais(rbm, base=wide, generator=gen())
    in_a_box = gb.as_energy(lambda x: x.square().sum(-1), domains.Box(2))  # the base has mass beyond its walls
    with pytest.raises(DomainError, match="domain"):
        partition.ais(in_a_box, base=wide, generator=gen())
    nowhere = gb.as_energy(lambda x: x.sum(-1) * math.nan, domains.Real(2))
    with pytest.raises(DivergenceError, match="NaN"):
        partition.ais(nowhere, base=energies.Gaussian(torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64)),
                      kernel=kernels.RandomWalk(0.1), betas=3, generator=gen())  # fmt: skip
    with pytest.raises(ArgumentError, match="islands=1"):
        partition.smc(rbm, data, islands=1, generator=gen())
    with pytest.raises(ArgumentError, match="has none"):
        partition.reverse_ais(rbm, data, forward=partition.exact(rbm), generator=gen())
    with pytest.raises(ArgumentError, match="bounds takes"):
        partition.bounds(partition.exact(rbm), partition.exact(rbm))


def test_runner_goes_down_as_it_goes_up():
    """Up and down again from base draws: the sum of both weights has mean 1 in exponentials on average."""
    rbm = MODELS["RBM"]()
    path = path_of(rbm, coin_flips(6), None, None)
    ladder = torch.linspace(0, 1, 6, dtype=F64)
    x = path.sample(20000, generator=gen())
    x, up = run_path(path, x, ladder, gen(1), silent)
    x, down = run_path(path, x, ladder.flip(0), gen(2), silent)
    w = torch.exp(up + down)
    assert abs(float(w.mean()) - 1) < 4 * float(w.std()) / math.sqrt(len(w))


@pytest.mark.parametrize("odd", [10.0, "10", None, float("nan"), True])
def test_odd_counts_and_rows_are_refused_with_a_sentence(odd):
    rbm, data = MODELS["RBM"](), coin_flips(6)
    with pytest.raises(GibbsianError):
        partition.ais(rbm, data, chains=odd, betas=5, generator=gen())
    if odd is not None:
        with pytest.raises(GibbsianError):
            partition.ais(rbm, data, chunk=odd, betas=5, generator=gen())
    for name in ("max_betas", "tolerance"):
        if name == "max_betas" or odd != 10.0:
            with pytest.raises(GibbsianError):
                partition.ais(rbm, data, generator=gen(), **{name: odd})
    with pytest.raises(GibbsianError):
        partition.raise_bound(rbm, data[:2], data, betas=5, chains=odd, generator=gen())
    with pytest.raises(GibbsianError):
        partition.reverse_ais(rbm, data.float(), data, betas=5, generator=gen())
    with pytest.raises(GibbsianError):
        partition.raise_bound(rbm, data[:2].float(), data, betas=5, generator=gen())
    with pytest.raises(GibbsianError):
        gb.log_likelihood(rbm, data, "three")


def test_warnings_about_weights_point_to_the_line_that_asked():
    narrow = energies.Gaussian(torch.zeros(3, dtype=F64), 1e-4 * torch.eye(3, dtype=F64))
    wide = energies.Gaussian(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64))
    with pytest.warns(EstimateWarning, match="of AIS matter") as caught:
        partition.ais(narrow, base=wide, chains=20, betas=10, generator=gen())
    with pytest.warns(EstimateWarning, match="of reverse AIS matter") as more:
        partition.reverse_ais(wide, wide.sample(20, generator=gen()), base=narrow, betas=10, generator=gen())
    assert {w.filename for w in [*caught, *more]} == {__file__}


def test_a_path_that_a_gpu_captures_never_looks_at_values():
    """Tensors without values go along it; whoever reads one, and would break the capture, raises."""
    path, g = models.Potts(4, 3).path(), gen(3)
    x = path.sample(3, generator=g)
    noise, betas = single(path.noise(x, 1, g)), torch.tensor([0.2, 0.4], dtype=F64)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        x, betas, noise = (pytree.tree_map(fake.from_tensor, part) for part in (x, betas, tuple(noise)))
        after, increment = path.anneal(x, betas[0], betas[1], noise)
    assert path.on_device
    assert after.shape == x.shape
    assert increment.shape == (3,)


ONE_PROPOSAL = {
    "MALA": (lambda: energies.Banana(), lambda: kernels.MALA(0.8)),
    "HMC": (lambda: energies.Banana(), lambda: kernels.HMC(0.6, 4)),
    "HMC in a box": (lambda: energies.MLPEnergy(domains.Box(2, -1, 1)), lambda: kernels.HMC(0.2, 3)),
    "Gibbs with gradients": (lambda: energies.MLPEnergy(domains.Binary(6)), kernels.GibbsWithGradients),
    "discrete Langevin": (lambda: energies.MLPEnergy(domains.Spin(6)), lambda: kernels.DiscreteLangevin(2.0)),
    "categories": (lambda: energies.MLPEnergy(domains.Categorical(3, 4)), kernels.GibbsWithGradients),
}


@pytest.mark.parametrize("name", ONE_PROPOSAL)
def test_what_a_path_knows_of_its_chains_is_true_of_them(name):
    make, kernel = ONE_PROPOSAL[name]
    energy, g = scramble(make()), gen(3)
    base = fitted_base(energy.domain, None, torch.zeros((), dtype=torch.float64))
    path = GeometricPath(energy, base, kernel())
    x = path.sample(50, generator=g)
    fresh = GeometricPath(energy, base, kernel())  # asked anew at every step
    total = 0
    for beta in torch.linspace(0, 1, 6, dtype=torch.float64):
        noise = single(path.noise(x, 1, g))
        after, increment = path.anneal(x, beta, beta + 0.1, noise)
        plain, expected = fresh.anneal(x.clone(), beta, beta + 0.1, noise)
        torch.testing.assert_close((after, increment), (plain, expected))
        known = path.bridge.parts(after)
        truth = (*base.energy_and_score(after), *energy.energy_and_score(after))
        torch.testing.assert_close(known, truth)
        total += int((after != x).flatten(1).any(1).sum())
        x = after
    assert 20 < total < 300  # some chains went, some stayed
