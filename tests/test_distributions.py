"""Distributions of torch and zuko as energies, and energies as distributions: the same densities, draws and supports."""

import math

import pytest
import torch
from torch import distributions as td
from torch.distributions import constraints

import gibbsian as gb
from gibbsian import domains, energies, kernels, objectives, partition
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, RandomnessError, ShapeError
from gibbsian.testing import check_energy

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def t(*values):
    return torch.tensor(values, dtype=F64)


LAWS = {
    "normal": (lambda: td.Normal(t(0.5)[0], t(2.0)[0]), domains.Real(1)),
    "normals": (lambda: td.Normal(t(0.0, 1.0), t(1.0, 2.0)), domains.Real(2)),
    "multivariate normal": (
        lambda: td.MultivariateNormal(t(0.0, 1.0), torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=F64)),
        domains.Real(2),
    ),
    "mixture": (
        lambda: td.MixtureSameFamily(td.Categorical(t(0.3, 0.7)), td.Normal(t(-2.0, 1.0), t(0.5, 1.0))),
        domains.Real(1),
    ),
    "gamma": (lambda: td.Gamma(t(2.0, 3.0), t(1.0, 2.0)), domains.NonNegative(2)),
    "log-normal": (lambda: td.LogNormal(t(0.0), t(0.5)), domains.NonNegative(1)),
    "uniform": (lambda: td.Uniform(t(-1.0, 0.0), t(1.0, 3.0)), domains.Box(2, t(-1.0, 0.0), t(1.0, 3.0))),
    "beta": (lambda: td.Independent(td.Beta(t(2.0, 3.0), t(3.0, 2.0)), 1), domains.Box(2)),
    "angle": (lambda: td.VonMises(t(0.3), t(1.5)), domains.Box(1, -math.pi, math.pi)),
    "bernoulli": (lambda: td.Independent(td.Bernoulli(t(0.2, 0.5, 0.9)), 1), domains.Binary(3)),
    "categorical": (lambda: td.Categorical(t(0.2, 0.5, 0.3)), domains.Categorical(1, 3)),
    "categoricals": (lambda: td.Categorical(t(0.2, 0.5, 0.3).expand(2, 3)), domains.Categorical(2, 3)),
    "one-hot": (
        lambda: td.Independent(td.OneHotCategorical(t(0.2, 0.5, 0.3).expand(2, 3)), 1),
        domains.Categorical(2, 3),
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_distribution_is_an_energy_with_its_density_its_draws_and_its_domain(name):
    """Normalization by quadrature or enumeration, draws by invariance under a walk on the energy."""
    make, domain = LAWS[name]
    energy = gb.as_energy(make())
    assert energy.domain == domain
    done = check_energy(energy, generator=gen())
    assert {"rows", "log_z", "sample"} <= set(done)
    assert float(energy.log_z()) == 0


@pytest.mark.parametrize("name", [n for n in LAWS if "categorical" not in n and n != "one-hot"])
def test_the_energy_is_minus_the_log_density_and_its_distribution_is_the_first_again(name):
    law = LAWS[name][0]()
    energy = gb.as_energy(law)
    x = energy.sample(7, generator=gen())
    log_p = law.log_prob(x.reshape(7, *law.batch_shape, *law.event_shape)).reshape(7, -1).sum(1)
    torch.testing.assert_close(-energy(x), log_p)
    again = gb.as_distribution(energy, generator=gen(3))
    torch.testing.assert_close(again.log_prob(x), log_p)
    assert again.log_prob(x[0]).shape == ()
    assert again.sample((2, 3)).shape == (2, 3, *energy.domain.shape)
    assert gb.as_energy(again) is energy


def test_draws_come_from_the_generator_alone():
    energy = gb.as_energy(LAWS["gamma"][0]())
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, other, more = (energy.sample(5, generator=gen(s)) for s in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one, other)
    assert not torch.equal(one, more)
    with pytest.raises(RandomnessError):
        energy.sample(5, generator=None)


def test_outside_the_support_the_energy_is_infinite_and_nothing_is_raised():
    energy = gb.as_energy(td.Gamma(t(2.0), t(1.0), validate_args=True))
    assert energy(t(-1.0, math.nan, math.inf, 1.0)[:, None]).tolist() == [math.inf] * 3 + [1.0]


def test_an_energy_from_a_distribution_is_sampled_and_composed_as_any_other():
    prior = gb.as_energy(td.Normal(torch.zeros(2), torch.ones(2)))
    both = prior + gb.as_energy(td.MultivariateNormal(torch.ones(2), torch.eye(2)))
    trace = gb.sample(both, kernels.HMC(0.5, 5), torch.zeros(400, 2), steps=30, keep=False, generator=gen())
    assert float((trace.last.mean(0) - 0.5).abs().max()) < 5 * math.sqrt(0.5 / 400)
    mixed = gb.mixture([prior, gb.as_energy(td.Normal(3 * torch.ones(2), torch.ones(2)))], [0.5, 0.5])
    assert mixed.sample(5, generator=gen()).shape == (5, 2)


@pytest.mark.parametrize(
    "energy",
    [
        energies.Banana().double(),
        energies.DoubleWell(1).double(),
        energies.Grid(t(0.0, 1.0, 2.0, 3.0), domains.Spin(2)),
        energies.Grid(torch.randn(3, 3, generator=gen(), dtype=F64)),
        energies.Grid(t(0.0, 1.0, 2.0, 3.0), domains.Binary(2)),
    ],
    ids=lambda e: f"{type(e).__name__} on {e.domain}",
)
def test_an_energy_is_a_distribution_where_its_log_z_is_known(energy):
    law = gb.as_distribution(energy, generator=gen())
    x = law.sample((6,))
    assert x.shape == (6, *energy.domain.shape)
    torch.testing.assert_close(law.log_prob(x), -energy(x) - energy.log_z())
    assert bool(law.support.check(x).all())
    assert law.support.check(x).shape == (6,)
    outside = x + 0.3 if energy.domain.discrete else x * math.nan
    with pytest.raises(ValueError, match="support"):  # whatever the default of torch is
        law.log_prob(outside)
    if energy.domain.discrete:
        states = law.enumerate_support()
        torch.testing.assert_close(law.log_prob(states.double()).exp().sum(), t(1.0)[0])
    given = gb.as_energy(gb.as_distribution(energy, energy.log_z()))
    torch.testing.assert_close(given(x), energy(x) + energy.log_z())
    check_energy(given, generator=gen(1), chains=5000)


def test_a_log_z_that_was_estimated_will_do():
    quartic = gb.as_energy(lambda x: (x**4).sum(-1), domains.Real(1))
    with pytest.raises(CapabilityError, match="log_z="):
        gb.as_distribution(quartic)
    law = gb.as_distribution(quartic, partition.quadrature(quartic).value)
    torch.testing.assert_close(law.log_prob(torch.zeros(1, dtype=F64)), -t(2 * math.gamma(1.25)).log()[0])
    with pytest.raises(CapabilityError, match="sample"):
        law.sample((3,))


def test_a_trained_energy_keeps_its_gradient_through_its_distribution():
    energy = energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    gb.as_distribution(energy).log_prob(torch.ones(3, 2)).sum().backward()
    torch.testing.assert_close(energy.mean.grad, 3 * torch.ones(2))


@pytest.mark.parametrize("image", [False, True])
def test_a_flow_of_zuko_is_an_energy_that_trains(image):
    zuko = pytest.importorskip("zuko")
    with gb.random.isolated(gen()):
        flow = zuko.flows.MAF(4, transforms=1, hidden_features=(8,))
    domain = domains.Real((2, 2)) if image else None
    energy = gb.as_energy(flow, domain)
    assert energy.domain == (domain or domains.Real(4))
    x = energy.sample(50, generator=gen())
    torch.testing.assert_close(-energy(x), flow().log_prob(x.flatten(1)))
    torch.testing.assert_close(gb.as_energy(flow(), domain)(x), energy(x))
    before = float(energy(x + 1).detach().mean())
    gb.fit(energy, objectives.ImplicitScoreMatching(), x + 1, steps=20)
    assert float(energy(x + 1).detach().mean()) < before


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (lambda: gb.as_energy(td.Dirichlet(torch.ones(3))), DomainError),
        (lambda: gb.as_energy(td.Poisson(2.0)), DomainError),
        (lambda: gb.as_energy(td.Pareto(1.0, 1.0)), DomainError),
        (lambda: gb.as_energy(td.Gamma(1.0, 1.0), domains.Real(1)), DomainError),
        (lambda: gb.as_energy(td.Normal(torch.zeros(2), 1.0), domains.Real(3)), DomainError),
        (lambda: gb.as_energy(lambda x: x.sum(1)), ArgumentError),
        (lambda: gb.as_energy(3, domains.Real(1)), ArgumentError),
        (lambda: gb.as_distribution(td.Normal(0.0, 1.0)), ArgumentError),
        (lambda: gb.as_distribution(energies.Banana()).log_prob(torch.zeros(3)), ShapeError),
        (lambda: gb.as_distribution(energies.Banana()).sample((3,)), RandomnessError),
        (lambda: gb.as_distribution(energies.Banana()).enumerate_support(), DomainError),
    ],
)
def test_what_does_not_fit_is_refused(bad, error):
    with pytest.raises(error) as caught:
        bad()
    assert len(str(caught.value)) > 25


def test_supports_are_those_that_torch_knows():
    law = gb.as_distribution(gb.as_energy(td.Uniform(t(-1.0), t(2.0))))
    assert isinstance(law.support, constraints.independent)
    u = td.biject_to(law.support)(torch.zeros(3, 1, dtype=F64))
    torch.testing.assert_close(u, torch.full((3, 1), 0.5, dtype=F64))
