"""Units against sums, quadrature and scipy."""

import math

import pytest
import scipy.special
import scipy.stats
import torch

import gibbsian as gb
from gibbsian import domains, kernels, objectives, units
from gibbsian.errors import ArgumentError, DomainError, ShapeError
from gibbsian.random import quick_uniforms

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def moments_by_sum(unit, natural, states):
    """log Σ exp(η·φ - ½λv²) and the mean, over given states of one row."""
    flat = states.flatten(1)
    log_p = flat @ natural.linear
    if natural.precision is not None:
        log_p = log_p - 0.5 * flat.square() @ natural.precision
    return log_p, torch.softmax(log_p, 0) @ flat


@pytest.mark.parametrize("unit", [units.Bernoulli(4), units.Spin(4), units.Softmax(3, classes=4)], ids=str)
def test_finite_units_have_the_cumulant_and_mean_of_their_enumeration(unit):
    eta = 1.5 * torch.randn(unit.size, generator=gen(), dtype=F64)
    natural = units.Natural(eta)
    log_p, mean = moments_by_sum(unit, natural, unit.domain.states(dtype=F64))
    torch.testing.assert_close(unit.log_partition(natural), torch.logsumexp(log_p, 0))
    torch.testing.assert_close(unit.mean(natural).flatten(), mean)


def test_cumulants_differentiate_to_means():
    for unit in (units.Bernoulli(3), units.Spin(3), units.Gaussian(3), units.Rectified(3), units.Softmax(2, 3)):
        unit = unit.double()
        eta = torch.randn(5, unit.size, generator=gen(), dtype=F64).mul_(3).requires_grad_()
        natural = units.Natural(eta, torch.rand(unit.size, generator=gen(1), dtype=F64) + 0.5 if unit.real else None)
        (slope,) = torch.autograd.grad(unit.log_partition(natural).sum(), eta)
        torch.testing.assert_close(slope, unit.mean(natural).flatten(1).detach())


def test_counts_have_one_partition_function_per_length():
    unit, eta = units.Count(3, total=4), torch.tensor([0.3, -1.0, 0.8], dtype=F64)
    n = unit.domain.states(dtype=F64)
    assert len(n) == math.comb(6, 2)
    log_p = n @ eta + unit.domain.log_orders(n)
    natural = units.Natural(eta)
    torch.testing.assert_close(unit.log_partition(natural), torch.logsumexp(log_p, 0))
    torch.testing.assert_close(unit.mean(natural), torch.softmax(log_p, 0) @ n)
    lengths = torch.tensor([1.0, 4.0], dtype=F64)
    torch.testing.assert_close(unit.log_partition(natural, lengths)[1], torch.logsumexp(log_p, 0))


@pytest.mark.parametrize(("eta", "precision"), [(0.7, 1.0), (-3.0, 2.0), (5.0, 0.5), (-40.0, 1.0)])
def test_rectified_units_are_truncated_gaussians(eta, precision):
    unit = units.Rectified(1)
    natural = units.Natural(torch.tensor([eta], dtype=F64), torch.tensor([precision], dtype=F64))
    m, s = eta / precision, precision**-0.5
    exact = scipy.stats.truncnorm(-m / s, math.inf, loc=m, scale=s)
    assert math.isclose(float(unit.mean(natural)), exact.mean(), rel_tol=1e-6)
    log_z = m**2 * precision / 2 + scipy.stats.norm.logcdf(m / s) + 0.5 * math.log(2 * math.pi / precision)
    assert math.isclose(float(unit.log_partition(natural)), log_z, rel_tol=1e-10, abs_tol=1e-10)
    u = torch.linspace(0, 1, 1001, dtype=F64)[:-1]
    draws = unit.sample(natural, u[:, None]).squeeze(1)
    assert torch.all(draws[1:] > draws[:-1])
    assert float(draws[0]) < 1e-12
    # the sampler inverts the distribution function: survival(draw) = 1 - u, in logarithms because of the tail
    log_survival = torch.special.log_ndtr(m / s - draws / s) - torch.special.log_ndtr(torch.tensor(m / s, dtype=F64))
    torch.testing.assert_close(log_survival, torch.log1p(-u), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("z", [-4.5, -8.0, -30.0, -1e3, -1e4, -1e6])
def test_rectified_units_draw_far_in_the_tail(z, dtype):
    """Draws of about 1/|z|, which is lost beside z: quantiles and mean of the law, to the precision of the numbers."""
    unit, eps = units.Rectified(1), torch.finfo(dtype).eps
    natural = units.Natural(torch.tensor([z], dtype=dtype), torch.ones(1, dtype=dtype))
    u = torch.cat([(torch.arange(4000) + 0.5) / 4000, 1 - 2.0 ** -torch.arange(9, 24)]).to(dtype)
    x = unit.sample(natural, u[:, None]).squeeze(1).double()
    erfcx = lambda t: scipy.special.erfcx(t / math.sqrt(2))  # noqa: E731
    # log P(more than x) = log Q(a + x) - log Q(a), and Q(t) = ½ exp(-½t²) erfcx(t/√2)
    log_left = -x * (0.5 * x - z) + torch.tensor(erfcx(x.numpy() - z) / erfcx(-z)).log()
    torch.testing.assert_close(log_left, torch.log1p(-u.double()), rtol=50 * eps, atol=50 * eps)
    # the midpoint rule for ∫ Q⁻¹, whose end at u = 1 is cut off by 1/8000 of a logarithm
    assert float(x[:4000].mean()) == pytest.approx(float(unit.mean(natural)), rel=1e-3)


def test_rectified_samples_stay_finite_in_single_precision():
    unit = units.Rectified(1)
    z = torch.tensor([-1e4, -100.0, -5.0, 0.0, 5.0, 100.0])[:, None]
    for u in (0.0, 0.5, 1 - 2**-24):
        draws = unit.sample(units.Natural(z, torch.ones(1)), torch.full_like(z, u))
        assert torch.isfinite(draws).all()
        assert (draws >= 0).all()


def test_gaussian_units_follow_their_definition():
    unit = units.Gaussian(2, sigma=torch.tensor([0.5, 2.0])).double()
    bias, inputs = torch.tensor([1.0, -1.0], dtype=F64), torch.tensor([[0.3, -0.7]], dtype=F64)
    natural = unit.natural(bias, inputs)
    sigma = unit.sigma.detach()
    torch.testing.assert_close(unit.mean(natural).detach(), bias + sigma * inputs)
    z = torch.tensor([[1.0, -2.0]], dtype=F64)
    torch.testing.assert_close(unit.sample(natural, z), bias + sigma * inputs + sigma * z)
    side = torch.linspace(-30, 30, 60001, dtype=F64)
    for i in range(2):
        log_p = -((side - bias[i]) ** 2) / (2 * sigma[i] ** 2) + side / sigma[i] * inputs[0, i]
        both = torch.logsumexp(log_p, 0) + math.log(float(side[1] - side[0]))
        linear, precision = natural.linear[0, i : i + 1], natural.precision[i : i + 1]
        one = units.Gaussian(1).double().log_partition(units.Natural(linear, precision))
        torch.testing.assert_close((one - bias[i] ** 2 / (2 * sigma[i] ** 2)).detach(), both)
    total = unit.log_partition(natural) - unit.constant(bias)
    v = torch.randn(4, 2, generator=gen(), dtype=F64)
    log_density = -unit.energy(v, bias) + (unit.statistic(v) * inputs).sum(1) - total
    law = torch.distributions.Normal(bias + sigma * inputs, sigma)
    torch.testing.assert_close(log_density.detach(), law.log_prob(v).sum(1))


def chi_square(counts, p, sigmas=5.0):
    """Pearson's statistic against its own mean and standard deviation."""
    expected = p * counts.sum()
    keep = expected > 5
    stat = float(((counts - expected)[keep] ** 2 / expected[keep]).sum())
    freedom = int(keep.sum()) - 1
    assert stat < freedom + sigmas * math.sqrt(2 * freedom) + 5


@pytest.mark.parametrize("unit", [units.Bernoulli(2), units.Spin(2), units.Softmax(2, classes=3)], ids=str)
def test_finite_units_sample_their_law(unit):
    natural = units.Natural(torch.randn(unit.size, generator=gen(3), dtype=F64))
    u = torch.rand(40000, unit.noise_size(), generator=gen(), dtype=F64)
    states = unit.domain.states(dtype=F64).flatten(1)
    draws = unit.sample(natural, u).flatten(1)
    counts = (draws[:, None] == states).all(2).double().sum(0)
    assert int(counts.sum()) == 40000
    chi_square(counts, torch.softmax(states @ natural.linear, 0))


def test_counts_sample_their_law_and_keep_clamped_words():
    unit = units.Count(3, total=3)
    natural = units.Natural(torch.tensor([0.5, -0.5, 0.2], dtype=F64))
    u = torch.rand(40000, 3, generator=gen(), dtype=F64)
    n = unit.domain.states(dtype=F64)
    p = torch.softmax(n @ natural.linear + unit.domain.log_orders(n), 0)
    counts = (unit.sample(natural, u)[:, None] == n).all(2).double().sum(0)
    chi_square(counts, p)
    start = torch.tensor([[1.0, 1.0, 1.0]], dtype=F64).expand(40000, 3)
    clamp = torch.tensor([False, True, False])
    draws = unit.resample(natural, u, start, clamp)
    assert (draws[:, 1] == 1).all()
    assert (draws.sum(1) == 3).all()
    kept = n[:, 1] == 1
    counts = (draws[:, None] == n[kept]).all(2).double().sum(0)
    chi_square(counts, p[kept] / p[kept].sum())


def test_picking_never_chooses_a_class_without_mass():
    p = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    for u in (0.0, 0.3 - 1e-7, 0.3, 0.9999999, 1 - 2**-24):
        assert int(units.pick(p, torch.tensor([u]))) in {1, 3}
    tenths = torch.tensor([[0.1] * 10 + [0.0]])  # their sum in single precision is not 1
    assert int(units.pick(tenths, torch.tensor([1 - 2**-24]))) == 9
    unnormalized = torch.tensor([[2.0, 6.0]])
    assert [int(units.pick(unnormalized, torch.tensor([u]))) for u in (0.24, 0.26, 0.99)] == [0, 1, 1]


def test_biases_fitted_to_data_reproduce_its_means():
    g = gen()
    for unit, data in (
        (units.Bernoulli(2), (torch.rand(5000, 2, generator=g, dtype=F64) < 0.3).double()),
        (units.Spin(2), 2 * (torch.rand(5000, 2, generator=g, dtype=F64) < 0.3).double() - 1),
        (units.Gaussian(2), 3 + torch.randn(5000, 2, generator=g, dtype=F64)),
        (units.Rectified(2), torch.randn(5000, 2, generator=g, dtype=F64).abs() * 0.3),
        (units.Softmax(1, 3), domains.Categorical(1, 3).sample(5000, generator=g, dtype=F64)),
    ):
        unit = unit.double()
        fitted = unit.mean(unit.natural(unit.fit_bias(data))).detach()
        torch.testing.assert_close(fitted.flatten(), data.mean(0).flatten(), atol=1e-3, rtol=0)
    zeros = torch.zeros(10, 2, dtype=F64)
    assert torch.isfinite(units.Bernoulli(2).fit_bias(zeros)).all()  # smoothed


def test_noise_does_not_depend_on_the_cut():
    for layers in ([units.Bernoulli(3), units.Spin(5)], [units.Bernoulli(3), units.Gaussian(2)]):
        x = torch.zeros(7, 2)
        whole = units.layer_noise(layers, x, 5, gen(4))
        g = gen(4)
        parts = [units.layer_noise(layers, x, k, g) for k in (1, 3, 1)]
        for i, part in enumerate(whole):
            assert torch.equal(part, torch.cat([p[i] for p in parts]))


@pytest.mark.parametrize("bad", [
    lambda: units.Bernoulli(0),
    lambda: units.Bernoulli(2.5),
    lambda: units.Gaussian(2, sigma=0.0),
    lambda: units.Gaussian(2, sigma=float("nan")),
    lambda: units.Gaussian(2, sigma=torch.ones(3)),
    lambda: units.Softmax(2, classes=1),
    lambda: units.Count(3, total=0),
    lambda: units.Count(3).noise_size(),
    lambda: units.Rectified(2).fit_bias(torch.zeros(4, 2)),
    lambda: units.Gaussian(2).fit(torch.zeros(4, 2)),
])  # fmt: skip
def test_bad_units_are_refused(bad):
    with pytest.raises((ArgumentError, ShapeError)) as caught:
        bad()
    assert len(str(caught.value)) > 25


def test_quick_uniforms_are_fair_coins():
    """Against probabilities that differ in the shared last bits, over many calls; 4.5 standard errors."""
    before, g = torch.get_rng_state(), gen()
    p = torch.tensor([0.0, 2.0**-20, 0.3, 0.5 + 2.0**-17, 1 - 2.0**-10, 1.0])
    calls, each = 2000, 200
    u = torch.cat([
        quick_uniforms(each * len(p), g, dtype=torch.float32, device=torch.device("cpu")).reshape(each, -1)
        for _ in range(calls)
    ])  # fmt: skip
    assert bool((u >= 0).all())
    assert bool((u < 1).all())
    share = (u < p).double().mean(0)
    error = (p.double() * (1 - p.double()) / len(u)).sqrt()
    assert ((share - p).abs() <= 4.5 * error).all()
    assert torch.equal(u * 2**24, (u * 2**24).round())  # the grid of torch.rand
    last = (u[::each, 0] * 2**24).long() % 256  # drawn once a call, and uniform over calls
    counts = torch.bincount(last, minlength=256).double()
    assert float(((counts - calls / 256) ** 2 / (calls / 256)).sum()) < 255 + 5 * math.sqrt(2 * 255)
    assert abs(float(torch.corrcoef(u[:, :2].T)[0, 1])) < 4.5 / math.sqrt(len(u))
    assert torch.equal(before, torch.get_rng_state())


def test_joined_units_are_their_parts_side_by_side():
    unit = units.Joined(units.Softmax(1, classes=3), units.Bernoulli(2), units.Spin(1))
    eta = 1.5 * torch.randn(unit.size, generator=gen(), dtype=F64)
    natural, states = unit.natural(eta), unit.domain.states(dtype=F64)
    assert len(states) == 24
    assert bool(unit.domain.contains(states).all())
    log_p, mean = moments_by_sum(unit, natural, states)
    torch.testing.assert_close(-unit.energy(states, eta), log_p)
    torch.testing.assert_close(unit.log_partition(natural), torch.logsumexp(log_p, 0))
    torch.testing.assert_close(unit.mean(natural), mean)
    noise = torch.rand(40000, unit.noise_size(), generator=gen(1), dtype=F64)
    counts = (unit.sample(natural, noise)[:, None] == states).all(2).double().sum(0)
    expected = 40000 * torch.softmax(log_p, 0)
    assert scipy.stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-4
    with pytest.raises(ArgumentError, match="other than Count"):
        units.Joined(units.Count(3))


def test_joined_units_of_two_kinds_of_noise_keep_their_laws():
    unit = units.Joined(units.Softmax(1, classes=2), units.Gaussian(1, sigma=0.5), units.Rectified(1)).double()
    natural = unit.natural(torch.tensor([0.4, -0.3, 1.0, 0.2], dtype=F64))
    assert unit.noise == "normal"
    assert unit.real
    v = unit.sample(natural, torch.randn(40000, 3, generator=gen(), dtype=F64))
    error = v.std(0) / 200
    assert bool(((v.mean(0) - unit.mean(natural).detach()).abs() < 5 * error).all())  # false alarm 2e-6
    parts = [p.log_partition(p.natural(b)) for p, b in zip(unit.layers, unit._cut(natural.linear), strict=True)]
    parts[1] = unit.layers[1].log_partition(unit.layers[1].natural(torch.tensor([1.0], dtype=F64)))
    torch.testing.assert_close(unit.log_partition(natural), torch.stack([p.reshape(()) for p in parts]).sum())
    torch.testing.assert_close(unit.statistic(v)[:, 2], 2 * v[:, 2])


@pytest.mark.parametrize(
    "use",
    [
        lambda rbm, x: gb.minimize(rbm, x),
        lambda rbm, x: gb.minimize(rbm, x, method="beam"),
        lambda rbm, x: gb.energies.Grid(torch.zeros(12, dtype=F64), rbm.domain),
        lambda rbm, x: objectives.RankingContrastive(objectives.Flips(0.3), 4).init(rbm, x, gen()),
        lambda rbm, x: objectives.NoiseContrastive("marginals").init(rbm, x, gen()),
        lambda rbm, x: objectives.PseudoLikelihood().init(rbm, x, gen()),
        lambda rbm, x: kernels.SiteGibbs().check(rbm),
    ],
    ids=["icm", "beam", "table", "flips", "marginals", "neighbors", "sites"],
)
def test_who_goes_unit_by_unit_refuses_units_of_several_kinds(use):
    """States of joined units are finitely many, but there is no one value that they all flip to."""
    rbm = gb.models.RBM(units.Joined(units.Softmax(1, classes=3), units.Spin(2)), 2).double()
    x = rbm.domain.sample(5, generator=gen(), dtype=F64)
    with pytest.raises(DomainError, match=r"JoinedStates") as caught:
        use(rbm, x)
    assert "'marginals'" not in str(caught.value)
    best = gb.minimize(rbm, x, method="enumerate")
    states = rbm.domain.states(dtype=F64)
    torch.testing.assert_close(best.x, states[rbm(states).argmin()].expand(5, -1))
