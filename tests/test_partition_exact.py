"""Exact sums and quadrature against closed forms and against each other."""

import itertools
import math

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, energies, models, partition, units
from gibbsian.errors import ArgumentError, DivergenceError, DomainError, EstimateWarning

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scramble(model: torch.nn.Module, seed: int = 0, scale: float = 0.6) -> torch.nn.Module:
    g = gen(seed)
    model = model.double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=g, dtype=F64))
    return model


def joint_log_z(rbm: models.RBM) -> torch.Tensor:
    """The log-sum over both layers of a discrete RBM."""
    v, h = rbm.visible.domain.states(dtype=F64), rbm.hidden.domain.states(dtype=F64)
    table = torch.stack([-rbm.joint(v, row.expand(len(v), *row.shape)) for row in h])
    return torch.logsumexp(table.flatten(), 0).detach()


# --- exact sums -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 7, 64, 1 << 14])
def test_streamed_sum_does_not_depend_on_the_blocks(rows):
    slope = torch.arange(6, dtype=F64) - 2.5  # every state counts, the first and the last block too
    energy = gb.as_energy(lambda x: (x * slope).sum(-1), domains.Spin(6))
    truth = sum(math.log(2 * math.cosh(i - 2.5)) for i in range(6))
    out = partition.exact(energy, rows=rows)
    assert abs(float(out.value) - truth) < 1e-12
    assert float(out.stderr) == 0
    assert out.lower == out.value == out.upper
    assert out.diagnostics["states"] == 64


def test_categorical_states_are_summed():
    logits = torch.randn(3, 4, generator=gen(), dtype=F64)
    energy = gb.as_energy(lambda x: -(x * logits).sum((-1, -2)), domains.Categorical(3, classes=4))
    assert torch.allclose(partition.exact(energy).value, torch.logsumexp(logits, 1).sum(), atol=1e-12)


def test_normalized_energies_answer_with_their_own_log_z():
    normal = energies.Gaussian(torch.zeros(3, dtype=F64), 4 * torch.eye(3, dtype=F64))
    out = partition.exact(normal)
    assert out.method == "closed form"
    assert abs(float(out.value) - 1.5 * math.log(8 * math.pi)) < 1e-12


@pytest.mark.parametrize(
    ("visible", "hidden"),
    [
        (5, 3),
        (3, 5),
        (units.Spin(4), units.Bernoulli(3)),
        (units.Bernoulli(3), units.Spin(4)),
        (units.Softmax(2, classes=3), units.Bernoulli(4)),
        (units.Softmax(2, classes=3), units.Softmax(2, classes=2)),
    ],
)
def test_rbm_is_summed_over_its_smaller_layer(visible, hidden):
    rbm = scramble(models.RBM(visible, hidden))
    out = partition.exact(rbm)
    assert torch.allclose(out.value, joint_log_z(rbm), atol=1e-12)
    smaller = min(rbm.visible.domain.size, rbm.hidden.domain.size)
    assert out.diagnostics["states"] == smaller


@pytest.mark.parametrize(
    ("model", "states"),
    [
        (models.ClassificationRBM(6, classes=3, hidden=3), 8),
        (models.ClassificationRBM(units.Spin(5), classes=2, hidden=units.Spin(2)), 4),
        (models.ClassificationRBM(6, classes=3, hidden=3).given(1), 8),
        (models.SubspaceRBM(7, gates=2, subspace=2), 25),
        (models.SubspaceRBM(3, gates=2, subspace=2), 8),
    ],
    ids=["classification", "classification of spins", "given a label", "subspace", "wide subspace"],
)
def test_other_machines_are_summed_over_their_smaller_side(model, states):
    model = scramble(model)
    out = partition.exact(model)
    by_hand = torch.logsumexp(-model(model.domain.states(dtype=F64)), 0).detach()
    assert torch.allclose(out.value, by_hand, atol=1e-12)
    assert out.diagnostics["states"] == states
    assert torch.allclose(partition.exact_log_z(model).detach(), by_hand, atol=1e-12)


def test_counts_have_one_log_z_per_length():
    rbm = scramble(models.RBM(units.Count(3), 2))
    for length in (1, 2, 4):
        words = torch.tensor(list(itertools.product(range(3), repeat=length)))
        counts = torch.nn.functional.one_hot(words, 3).sum(1).double()  # every ordered document
        by_hand = torch.logsumexp(-rbm(counts), 0).detach()
        assert torch.allclose(partition.exact(rbm, total=length).value, by_hand, atol=1e-12)


def test_gaussian_visible_units_are_integrated_out():
    rbm = scramble(models.RBM(units.Gaussian(2), 3), scale=0.4)
    by_grid = partition.quadrature(rbm)
    assert abs(float(partition.exact(rbm).value - by_grid.value)) < 1e-8
    rbm = scramble(models.RBM(units.Bernoulli(3), units.Gaussian(2)), scale=0.4)
    by_hand = torch.logsumexp(-rbm(domains.Binary(3).states(dtype=F64)), 0).detach()
    assert torch.allclose(partition.exact(rbm).value, by_hand)


def test_differentiable_sum_has_the_moments_as_gradient_whatever_the_blocks():
    machine = scramble(models.BoltzmannMachine(6, spin=True))
    with torch.no_grad():
        machine.weight.copy_(machine.coupling())
    x = domains.Spin(6).states(dtype=F64)
    p = torch.softmax(-machine(x), 0).detach()
    moments = (p[:, None] * x).sum(0)
    for rows in (5, 64):
        machine.zero_grad()
        log_z = partition.exact_log_z(machine, rows=rows)
        assert torch.allclose(log_z.detach(), partition.exact(machine).value)
        log_z.backward()
        assert torch.allclose(machine.bias.grad, moments, atol=1e-12)
        pairs = torch.einsum("b,bi,bj->ij", p, x, x) / 2
        assert torch.allclose(machine.weight.grad, pairs - torch.diag(pairs.diagonal()), atol=1e-12)


def test_single_precision_models_are_summed_in_double():
    energy = gb.as_energy(torch.nn.Sequential(torch.nn.Linear(10, 1), torch.nn.Flatten(0)), domains.Binary(10))
    net = energy.function[0]
    truth = torch.nn.functional.softplus(-net.weight.double()).sum() - net.bias.double()
    assert abs(float((partition.exact(energy).value - truth).detach())) < 1e-6


def test_sums_that_cannot_be_done_are_refused_with_the_alternatives():
    with pytest.raises(DomainError, match=r"2\^200 states.*years.*partition\.ais"):
        partition.exact(models.BoltzmannMachine(200))
    with pytest.raises(DomainError, match="limit is 2\\^4"):
        partition.exact(models.BoltzmannMachine(5), limit=16)
    with pytest.raises(DomainError, match="quadrature"):
        partition.exact(gb.as_energy(lambda x: x.square().sum(-1), domains.Real(2)))
    with pytest.raises(ArgumentError, match="rows=0"):
        partition.exact(models.BoltzmannMachine(3), rows=0)
    with pytest.raises(gb.errors.CapabilityError, match="as_energy"):
        partition.exact(torch.nn.Linear(2, 1))
    with pytest.raises(DivergenceError, match="NaN"):
        partition.exact(gb.as_energy(lambda x: x.sum(-1) * math.nan, domains.Binary(2)))


# --- quadrature -----------------------------------------------------------------------------------


def normal(mean, cov):
    return energies.Gaussian(torch.tensor(mean, dtype=F64), torch.tensor(cov, dtype=F64))


CLOSED_FORMS = {
    "correlated": (normal([3.0, -1.0], [[1.0, 0.99], [0.99, 1.0]]), None),
    "3-D": (normal([1.0, 2.0, 3.0], [[2.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 0.5]]), None),
    "far and narrow": (normal([1e4], [[1e-6]]), None),
    "far and wide": (normal([-1e4, 5.0], [[1e8, 0.0], [0.0, 1.0]]), None),
    "Cauchy": (gb.as_energy(lambda x: torch.log1p(x.square().sum(-1)), domains.Real(1)), math.log(math.pi)),
    "Student in 2-D": (
        gb.as_energy(lambda x: 1.5 * torch.log1p(x.square().sum(-1)), domains.Real(2)),
        math.log(2 * math.pi),
    ),
    "two distant modes": (gb.mixture([normal([-50.0], [[0.01]]), normal([50.0], [[4.0]])], [0.3, 0.7]), 0.0),
    "two modes in 2-D": (
        gb.mixture(
            [normal([-5.0, 0.0], [[0.04, 0.0], [0.0, 0.04]]), normal([5.0, 3.0], [[4.0, 0.0], [0.0, 4.0]])], [0.3, 0.7]
        ),
        0.0,
    ),
    "box": (gb.as_energy(lambda x: 0 * x.sum(-1), domains.Box(3, low=-1.0, high=3.0)), 3 * math.log(4)),
    "narrow in a box": (
        gb.as_energy(lambda x: ((x - 0.7) ** 2).sum(-1) / 2e-8, domains.Box(2)),
        math.log(2 * math.pi * 1e-8),
    ),
    "half line": (gb.as_energy(lambda x: 7 * x.sum(-1), domains.NonNegative(2)), -2 * math.log(7)),
    "singular at 0": (gb.as_energy(lambda x: (x + 0.5 * x.log()).sum(-1), domains.NonNegative(1)), math.lgamma(0.5)),
    "image-shaped": (
        gb.as_energy(lambda x: x.square().flatten(1).sum(1) / 2, domains.Real((1, 2))),
        math.log(2 * math.pi),
    ),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_quadrature_finds_the_mass_and_integrates_it(name):
    energy, truth = CLOSED_FORMS[name]
    truth = float(energy.log_z()) if truth is None else truth
    out = partition.quadrature(energy)
    assert abs(float(out.value) - truth) < 1e-7
    assert float(out.lower) <= float(out.value) <= float(out.upper)
    assert out.diagnostics["converged"]


def test_quadrature_over_given_bounds_only():
    out = partition.quadrature(normal([0.0], [[1.0]]), bounds=[(-1, 1)])
    assert abs(float(out.value) - math.log(math.sqrt(2 * math.pi) * math.erf(math.sqrt(0.5)))) < 1e-10


def test_quadrature_says_how_wrong_it_is():
    kink = gb.as_energy(lambda x: 3 * (x - 0.3).abs().sum(-1), domains.Real(1))
    with pytest.warns(EstimateWarning, match="only good to"):
        out = partition.quadrature(kink, points=51)
    assert not out.diagnostics["converged"]
    assert 0 < abs(float(out.value) - math.log(2 / 3)) < 3 * float(out.stderr)
    with pytest.warns(EstimateWarning):
        funnel = partition.quadrature(energies.Funnel(2).double())
    assert abs(float(funnel.value) - float(energies.Funnel(2).double().log_z())) < 2 * float(funnel.stderr)


def test_quadrature_refuses_what_has_no_integral():
    for energy in (
        gb.as_energy(lambda x: 0 * x.sum(-1), domains.Real(1)),
        gb.as_energy(lambda x: -x.square().sum(-1), domains.Real(1)),
        gb.as_energy(lambda x: 0.5 * torch.log1p(x.square().sum(-1)), domains.Real(1)),  # 1/|x|
    ):
        with pytest.raises(DivergenceError):
            partition.quadrature(energy)
    arcsine = gb.as_energy(lambda x: 0.5 * (x * (1 - x)).log().sum(-1), domains.Box(1))  # -∞ where 1 - x rounds to 0
    with pytest.raises(DivergenceError, match="-∞ at"):
        partition.quadrature(arcsine)
    chi_squared = gb.as_energy(torch.distributions.Chi2(torch.ones((), dtype=F64)))  # -∞ where no mass is left
    assert abs(float(partition.quadrature(chi_squared).value)) < 1e-8
    with pytest.raises(DomainError, match="up to three"):
        partition.quadrature(normal([0.0] * 4, torch.eye(4).tolist()))
    with pytest.raises(DomainError, match=r"partition\.exact"):
        partition.quadrature(models.BoltzmannMachine(2))
    with pytest.raises(ArgumentError, match="bounds"):
        partition.quadrature(normal([0.0], [[1.0]]), bounds=[(-1, 1), (0, 1)])
    with pytest.raises(DomainError, match="outside"):
        partition.quadrature(gb.as_energy(lambda x: x.sum(-1), domains.NonNegative(1)), bounds=[(-1, 1)])
    with pytest.raises(ArgumentError, match="points=2"):
        partition.quadrature(normal([0.0], [[1.0]]), points=2)
