"""Likelihoods of held-out data and their intervals."""

import itertools
import math

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, energies, models, partition, units
from gibbsian.errors import ArgumentError, CapabilityError, DivergenceError, DomainError, GibbsianError, RandomnessError
from gibbsian.partition.base import LogZ

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


def estimate(value, stderr, lower, upper):
    return LogZ(*(torch.tensor(t, dtype=F64) for t in (value, stderr, lower, upper)), method="test")


def test_normalized_models_need_no_log_z():
    cov = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=F64)
    normal = energies.Gaussian(torch.zeros(2, dtype=F64), cov)
    x = normal.sample(500, generator=gen())
    out = gb.log_likelihood(normal, x)
    truth = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=F64), cov).log_prob(x)
    assert torch.allclose(out.per_sample, truth)
    assert torch.allclose(out.value, truth.mean())
    assert torch.allclose(out.data_stderr, truth.std() / math.sqrt(500))
    assert float(out.log_z_stderr) == 0
    assert torch.allclose(out.lower, out.value - 3 * out.data_stderr)


@pytest.mark.parametrize(
    "model",
    [
        models.RBM(5, 3),
        models.RBM(units.Spin(4), units.Spin(3)),
        models.BoltzmannMachine(5, spin=True),
        models.BoltzmannMachine(4, hidden=2),
        models.ClassificationRBM(4, classes=3, hidden=3),
        models.SubspaceRBM(4, 2, 2),
        models.RBM(units.Softmax(2, classes=3), 3),
    ],
    ids=lambda model: type(model).__name__,
)
def test_probabilities_of_small_machines_add_up_to_one(model):
    model = scramble(model)
    if isinstance(model, models.BoltzmannMachine):
        model.set_parameters(weight=model.coupling().detach())
    out = gb.log_likelihood(model, model.domain.states(dtype=F64))
    assert abs(float(out.per_sample.exp().sum()) - 1) < 1e-10


def test_counts_add_up_to_one_for_every_length():
    rbm = scramble(models.RBM(units.Count(3), 2))
    rows = [n for n in itertools.product(range(5), repeat=3) if 1 <= sum(n) <= 4]
    x = torch.tensor(rows, dtype=F64)
    p = gb.log_likelihood(rbm, x).per_sample.exp()
    for length in range(1, 5):
        assert abs(float(p[x.sum(1) == length].sum()) - 1) < 1e-10
    with pytest.raises(ArgumentError, match="several lengths"):
        gb.log_likelihood(rbm, x, log_z=1.0)
    one = x[x.sum(1) == 3]
    given = gb.log_likelihood(rbm, one, log_z=partition.exact(rbm, total=3))
    assert torch.allclose(given.per_sample, p[x.sum(1) == 3].log())


def test_errors_of_data_and_log_z_are_reported_apart_and_together():
    x = torch.randn(100, 1, generator=gen(), dtype=F64)
    energy = gb.as_energy(lambda x: 0.5 * x.square().sum(-1), domains.Real(1))
    out = gb.log_likelihood(energy, x, estimate(0.9, 0.1, 0.6, 1.2))
    per_row = -0.5 * x[:, 0].square() - 0.9
    spread = float(per_row.std()) / 10
    assert abs(float(out.value) - float(per_row.mean())) < 1e-12
    assert abs(float(out.data_stderr) - spread) < 1e-12
    assert abs(float(out.log_z_stderr) - 0.1) < 1e-12
    assert abs(float(out.stderr) - math.hypot(spread, 0.1)) < 1e-12
    width = 3 * math.hypot(spread, 0.1)
    assert abs(float(out.value - out.lower) - width) < 1e-12
    assert abs(float(out.upper - out.value) - width) < 1e-12


def test_one_sided_bounds_on_log_z_turn_round():
    x = torch.randn(100, 1, generator=gen(), dtype=F64)
    energy = gb.as_energy(lambda x: 0.5 * x.square().sum(-1), domains.Real(1))
    lower_bound = gb.log_likelihood(energy, x, estimate(0.9, math.nan, 0.9, math.inf))  # as mean field gives
    assert float(lower_bound.lower) == -math.inf
    assert math.isfinite(float(lower_bound.upper))
    upper_bound = gb.log_likelihood(energy, x, estimate(0.9, math.nan, -math.inf, 0.9))
    assert float(upper_bound.upper) == math.inf
    assert math.isfinite(float(upper_bound.lower))


def test_interval_covers_with_an_estimated_log_z():
    """Data from the model and log Z by AIS: the interval covers the true mean log-likelihood (minus the
    entropy) in at least 38 of 40 repeats of three-standard-error intervals.
    """
    rbm = scramble(models.RBM(8, 4))
    states = domains.Binary(8).states(dtype=F64)
    log_p = torch.log_softmax(-rbm(states).detach(), 0)
    truth = float((log_p.exp() * log_p).sum())
    hits = 0
    for seed in range(40):
        x = states[torch.multinomial(log_p.exp(), 100, replacement=True, generator=gen(seed))]
        log_z = partition.ais(rbm, x, chains=20, betas=20, generator=gen(seed))
        out = gb.log_likelihood(rbm, x, log_z)
        hits += float(out.lower) <= truth <= float(out.upper)
    assert hits >= 38


@pytest.mark.parametrize("spin", [False, True])
def test_clamped_annealing_sums_over_hidden_units(spin):
    machine = models.BoltzmannMachine(4, spin=spin, hidden=5).double()
    w = torch.randn(9, 9, generator=gen(), dtype=F64).triu(1)
    machine.set_parameters(weight=w + w.T, bias=torch.randn(9, generator=gen(1), dtype=F64))
    v = machine.domain.states(dtype=F64)
    few = partition.clamped_ais(machine, v, chains=4000, betas=torch.tensor([0.0, 0.3, 1.0]), generator=gen(2))
    ratio = torch.exp(few.value + machine(v).detach())  # unbiased: 1 on average
    assert bool(((ratio - 1).abs() < 4.5 * few.stderr * ratio).all())
    x = v[torch.randint(16, (50,), generator=gen(3))]
    out = partition.clamped_log_likelihood(machine, x, chains=50, betas=100, generator=gen(4))
    assert abs(float(out.value) - float(gb.log_likelihood(machine, x).value)) < 0.1


def test_the_standard_error_of_clamped_annealing_is_the_spread_of_its_estimates():
    """400 rows alike are 400 runs: their spread is known to a share of 1/√800, the mean reported error better than that."""
    machine = models.BoltzmannMachine(3, hidden=4).double()
    w = torch.randn(7, 7, generator=gen(), dtype=F64).triu(1)
    machine.set_parameters(weight=w + w.T, bias=torch.randn(7, generator=gen(1), dtype=F64))
    v, ladder = torch.ones(400, 3, dtype=F64), torch.tensor([0.0, 0.3, 1.0])
    for chains in (50, 200):
        out = partition.clamped_ais(machine, v, chains=chains, betas=ladder, generator=gen(2))
        share = float(out.value.std() / out.stderr.square().mean().sqrt())
        assert abs(share - 1) < 5 / math.sqrt(800)


def test_machines_with_too_many_hidden_units_still_have_a_likelihood():
    machine = models.BoltzmannMachine(3, hidden=18).double()
    w = 0.2 * torch.randn(21, 21, generator=gen(), dtype=F64).triu(1)
    machine.set_parameters(weight=w + w.T, bias=0.2 * torch.randn(21, generator=gen(1), dtype=F64))
    v = domains.Binary(3).states(dtype=F64)
    exact = partition.exact(machine)
    out = partition.clamped_log_likelihood(machine, v, exact, chains=100, betas=100, generator=gen(2))
    assert abs(float(out.per_sample.exp().sum()) - 1) < 0.02


# --- without a log Z ------------------------------------------------------------------------------------


def test_a_known_log_z_is_used_and_said_so():
    normal = energies.Gaussian(torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64))
    assert gb.log_likelihood(normal, torch.zeros(3, 2, dtype=F64)).method == "closed form"


@pytest.mark.parametrize(
    "model",
    [
        models.RBM(30, 4),  # over the hidden layer
        models.RBM(units.Gaussian(30), 4),
        models.DBM(4, 30, 3),
        models.SpikeSlabRBM(20, 4),
        models.BoltzmannMachine(6, hidden=3),
        models.Ising((3, 4), 0.2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_small_machines_are_summed_exactly(model):
    model = scramble(model, scale=0.2)
    if isinstance(model, models.BoltzmannMachine):
        model.set_parameters(weight=model.coupling().detach())
    x = model.domain.sample(20, generator=gen(), dtype=F64)
    chosen = gb.log_likelihood(model, x)
    assert chosen.method.endswith("exact sum")
    assert float(chosen.log_z_stderr) == 0
    given = gb.log_likelihood(model, x, partition.exact(model))
    assert torch.equal(chosen.per_sample, given.per_sample)


def test_few_dimensions_are_integrated():
    cubic = gb.as_energy(lambda x: (x**4).sum(-1), domains.Real(1))
    x = torch.linspace(-1, 1, 7, dtype=F64)[:, None]
    out = gb.log_likelihood(cubic, x)
    assert out.method == "quadrature"
    torch.testing.assert_close(out.per_sample, -(x**4)[:, 0] - math.log(2 * math.gamma(1.25)))
    inside = gb.log_likelihood(gb.as_energy(lambda x: x.sum(-1), domains.Box(2)), torch.rand(5, 2, generator=gen()))
    assert float(inside.log_z.value) == pytest.approx(2 * math.log(1 - math.exp(-1)))


def test_members_that_do_not_know_the_log_z_of_their_class_are_integrated():
    x = torch.randn(20, 2, generator=gen(), dtype=F64)
    free = gb.unconstrained(gb.as_energy(lambda x: (3 * x).sum(-1), domains.Box(2)))
    for energy in (energies.ProductOfExperts(2, 3).double(), free):
        out = gb.log_likelihood(energy, x)
        assert out.method == "quadrature"
        assert torch.allclose(out.per_sample, -energy(x) - partition.quadrature(energy).value)


@pytest.mark.filterwarnings("ignore::gibbsian.errors.EstimateWarning")
@pytest.mark.parametrize("estimate", [partition.exact, lambda e: partition.ais(e, chains=4, betas=3, generator=gen())])
def test_laws_of_their_own_in_every_row_have_no_common_log_z(estimate):
    """Two of them share 8 states and 4 chains evenly, so that a sum would mix them without a stumble."""
    machine, past = scramble(models.TemporalRBM(3, 2, order=1)), torch.eye(2, 3, dtype=F64)[:, None]
    labels = scramble(models.ClassificationRBM(3, 2, 2)).given(torch.tensor([0, 1]))
    hot = scramble(models.RBM(3, 2))
    two = torch.tensor([0.5, 2.0], dtype=F64)
    for energy in (machine.given(past), machine.given(past) / 2, labels, hot.tempered(two), hot.annealed(two)):
        with pytest.raises(GibbsianError, match=r"one log Z for each|one for each row"):
            estimate(energy)


def test_other_models_are_annealed_where_a_generator_is_given():
    """40 hidden units on weights in two blocks that do not touch: log Z is the sum of two exact ones."""
    halves = [scramble(models.RBM(20, 20), seed=i, scale=0.3) for i in range(2)]
    rbm = models.RBM(40, 40).double()
    with torch.no_grad():
        rbm.weight.zero_()
        for i, half in enumerate(halves):
            part = slice(20 * i, 20 * i + 20)
            rbm.weight[part, part] = half.weight
            rbm.visible_bias[part], rbm.hidden_bias[part] = half.visible_bias, half.hidden_bias
    x = (torch.rand(300, 40, generator=gen()) < 0.4).double()
    truth = gb.log_likelihood(rbm, x, sum(partition.exact(half).value for half in halves))
    out = gb.log_likelihood(rbm, x, generator=gen(1))
    assert out.method == "AIS bounds"
    assert out.log_z.method == "AIS bounds"
    assert 0 < float(out.log_z_stderr) < 0.1
    assert abs(float(out.value - truth.value)) < 4 * float(out.log_z_stderr)
    assert float(out.lower) <= float(truth.value) <= float(out.upper)
    with pytest.raises(CapabilityError, match="pass generator="):
        gb.log_likelihood(rbm, x)
    net = energies.MLPEnergy(domains.Real(4), hidden=(8,), confine=1.0).double()
    rows = torch.randn(60, 4, generator=gen(), dtype=F64)
    assert gb.log_likelihood(net, rows, generator=gen()).method == "AIS bounds"


def test_rows_under_inputs_have_a_log_z_each():
    model = scramble(models.TemporalRBM(visible=4, hidden=3, order=1))
    past, v = (domains.Binary(4).sample(9, generator=gen(i), dtype=F64) for i in range(2))
    out = gb.log_likelihood(model.given(past[:, None]), v)
    one_by_one = [gb.log_likelihood(model.given(past[i, None]), v[i : i + 1]).value for i in range(9)]
    torch.testing.assert_close(out.per_sample, torch.stack(one_by_one))
    assert out.method == "exact sum for every input"


def test_bounded_models_say_that_it_is_a_bound():
    dbm = scramble(models.DBM(5, 20, 20), scale=0.05)
    x = dbm.domain.states(dtype=F64)
    out = gb.log_likelihood(dbm, x)
    assert out.method == "variational bound, exact sum"
    assert float(out.upper) == math.inf
    assert 0.9 < float(out.per_sample.exp().sum()) <= 1
    dbn = scramble(models.DBN(5, 30, 8), scale=0.1)
    out = gb.log_likelihood(dbn, x, generator=gen(), samples=50)
    assert out.method == "variational bound, exact sum"
    assert 0.5 < float(out.per_sample.exp().sum()) < 1.05
    with pytest.raises(RandomnessError):
        gb.log_likelihood(dbn, x)


def test_hidden_units_beyond_summing_are_annealed():
    machine = models.BoltzmannMachine(3, hidden=18).double()
    w = 0.2 * torch.randn(21, 21, generator=gen(), dtype=F64).triu(1)
    machine.set_parameters(weight=w + w.T, bias=0.2 * torch.randn(21, generator=gen(1), dtype=F64))
    out = gb.log_likelihood(machine, domains.Binary(3).states(dtype=F64), generator=gen(2))
    assert out.method == "clamped AIS, exact sum"
    assert abs(float(out.per_sample.exp().sum()) - 1) < 0.05


def test_what_cannot_be_done_is_refused():
    with pytest.raises(CapabilityError, match=r"log_z=gibbsian\.partition\.ais"):
        gb.log_likelihood(models.RBM(100, 100), torch.zeros(2, 100))
    with pytest.raises(DomainError, match="binarize"):
        gb.log_likelihood(models.RBM(3, 2), torch.full((2, 3), 0.5))
    with pytest.raises(ArgumentError, match="finite number"):
        gb.log_likelihood(models.RBM(3, 2), torch.zeros(2, 3), math.nan)
    with pytest.raises(DivergenceError, match="NaN"):
        gb.log_likelihood(gb.as_energy(lambda x: math.nan * x.sum(-1), domains.Real(1)), torch.zeros(2, 1), 0.0)
    with pytest.raises(CapabilityError, match="exact"):
        partition.clamped_ais(models.RBM(3, 2), torch.zeros(2, 3), generator=gen())
    out = gb.log_likelihood(models.RBM(3, 2), torch.zeros(1, 3))
    assert math.isnan(float(out.data_stderr))
    assert "1 rows" in repr(out)
