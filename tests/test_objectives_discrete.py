"""Exact likelihood, pseudo-likelihood, ratio matching and minimum probability flow on enumerable machines."""

import copy
import math

import pytest
import torch
from objective_oracles import (
    BINARY,
    CATEGORICAL,
    F64,
    SPIN,
    Machine,
    gaussian,
    gen,
    gradient,
    gradient_of,
    mixture_of_three,
    other_machine,
    random_rbm,
    some_data,
    z_scores,
)
from torch.nn.functional import softplus

import gibbsian as gb
from gibbsian import domains, errors, models, units
from gibbsian.fast import native
from gibbsian.models.rbm import neighbors
from gibbsian.objectives import ExactLikelihood, MinimumProbabilityFlow, PerturbAndMAP, PseudoLikelihood, RatioMatching
from gibbsian.objectives.base import Step

DOMAINS = {"binary": BINARY, "spin": SPIN, "categorical": CATEGORICAL}


def draws(machine, n=50, seed=0):
    which = torch.multinomial(machine.log_probabilities().exp().detach(), n, True, generator=gen(seed))
    return machine.states()[which]


# --- exact likelihood -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOMAINS)
def test_exact_likelihood_is_the_mean_log_probability(name):
    machine = Machine(DOMAINS[name])
    x = draws(machine)
    which = (x[:, None] == machine.states()).flatten(2).all(2).to(F64)
    truth = -(which @ machine.log_probabilities()).mean()
    loss = ExactLikelihood()(machine, x, (), gen())
    torch.testing.assert_close(loss.value.detach(), truth.detach())
    torch.testing.assert_close(gradient(machine, ExactLikelihood(), x), gradient_of(truth, machine))


def test_exact_likelihood_of_an_rbm_is_the_enumerated_one():
    rbm = random_rbm(6, 4)
    x = domains.Binary(6).states(dtype=F64)[::3]
    truth = rbm(x).mean() + torch.logsumexp(-rbm(domains.Binary(6).states(dtype=F64)), 0)
    torch.testing.assert_close(gradient(rbm, ExactLikelihood(), x), gradient_of(truth, rbm))


@pytest.mark.parametrize("make", [gaussian, mixture_of_three])
def test_exact_likelihood_of_normalized_energies(make):
    energy, x = make(), some_data(30)
    truth = energy(x).mean() + energy.log_z()
    torch.testing.assert_close(gradient(energy, ExactLikelihood(), x), gradient_of(truth, energy))
    if make is gaussian:  # at the sample moments it is the maximum
        centered = x - x.mean(0)
        best = gb.energies.Gaussian(x.mean(0), centered.T @ centered / len(x), trainable=True)
        assert gradient(best, ExactLikelihood(), x).norm() < 1e-12


# --- the three neighborhood objectives -----------------------------------------------------------


def one_unit_changes(machine, x):
    """For every unit, the energies of the states that differ from the row x in that unit alone."""
    states, energies = machine.states(), machine(machine.states())
    groups = (lambda t: t) if isinstance(machine.domain, domains.Categorical) else (lambda t: t[..., None])
    differs = (groups(states) != groups(x)).any(-1)
    for unit in range(differs.shape[1]):
        yield energies[differs[:, unit] & (differs.sum(1) == 1)]


def pseudo(e, others):
    return torch.logsumexp(torch.cat([-e, -others]), 0) + e[0]


def ratio(e, others):
    return torch.sigmoid(e - others).square().sum()


def flow(e, others):
    return torch.exp(0.5 * (e - others)).sum()


CASES = [
    (PseudoLikelihood, pseudo, "binary"),
    (PseudoLikelihood, pseudo, "spin"),
    (PseudoLikelihood, pseudo, "categorical"),
    (RatioMatching, ratio, "binary"),
    (RatioMatching, ratio, "spin"),
    (MinimumProbabilityFlow, flow, "binary"),
    (MinimumProbabilityFlow, flow, "spin"),
    (MinimumProbabilityFlow, flow, "categorical"),
]


@pytest.mark.parametrize(("kind", "term", "name"), CASES)
def test_value_and_gradient_by_brute_force(kind, term, name):
    machine = Machine(DOMAINS[name])
    x = draws(machine, 6)
    truth = sum(term(machine(row[None]), others) for row in x for others in one_unit_changes(machine, row)) / len(x)
    for options in ({}, {"chunk": 1}, {"chunk": 3}):
        loss = kind(**options)(machine, x, (), gen())
        torch.testing.assert_close(loss.value.detach(), truth.detach())
        torch.testing.assert_close(gradient(machine, kind(**options), x), gradient_of(truth, machine))


@pytest.mark.parametrize(("kind", "term", "name"), CASES)
def test_random_sites_are_unbiased(kind, term, name):
    machine = Machine(DOMAINS[name])
    x = draws(machine, 6)
    truth = gradient(machine, kind(), x)
    z = z_scores(machine, kind(sites=1), x, truth, repeats=400)
    assert z.abs().max() < 5


def population(kind, machine, log_p):
    """The objective's expectation over data with the given law."""
    values = [kind()(machine, row[None], (), gen()).value for row in machine.states()]
    return (log_p.exp() * torch.stack(values)).sum()


@pytest.mark.parametrize(("kind", "term", "name"), CASES)
def test_consistent_on_an_enumerable_machine(kind, term, name):
    """With the data's law in the family, the population gradient vanishes at the truth and nowhere near."""
    machine = Machine(DOMAINS[name])
    law = machine.log_probabilities().detach()
    at_truth = gradient_of(population(kind, machine, law), machine)
    assert at_truth.abs().max() < 1e-12
    elsewhere = other_machine(machine)
    assert gradient_of(population(kind, elsewhere, law), elsewhere).abs().max() > 1e-2


@pytest.mark.parametrize("kind", [PseudoLikelihood, RatioMatching, MinimumProbabilityFlow, ExactLikelihood])
def test_training_recovers_the_distribution(kind):
    machine = Machine(domains.Binary(3), scale=0.5)
    law = machine.log_probabilities().detach()
    learner = other_machine(machine, scale=0.3)
    optimizer = torch.optim.LBFGS(learner.parameters(), max_iter=80, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = population(kind, learner, law)
        loss.backward()
        return loss

    optimizer.step(closure)
    distance = 0.5 * (learner.log_probabilities().exp() - law.exp()).abs().sum()
    assert distance < 1e-4


@pytest.mark.parametrize("spin", [False, True])
@pytest.mark.parametrize(
    "objective", [PseudoLikelihood(), RatioMatching(), MinimumProbabilityFlow()], ids=lambda o: type(o).__name__
)
def test_boltzmann_machines_in_one_pass_equal_the_definition(objective, spin):
    """Any matrix, of which the symmetric part counts, in sizes that fill no tile and no row of 120, against energies of all neighbors
    in double precision."""
    machine = gb.models.BoltzmannMachine(37, spin=spin, generator=gen(1))
    with torch.no_grad():
        machine.weight.normal_(0, 0.3, generator=gen(2))
        machine.bias.normal_(0, 1, generator=gen(3))
    x = machine.domain.sample(251, generator=gen(4))
    found = machine.neighbor_sums(x, objective.function)
    assert found is not None or not native.library("int f(void) { return 0; }")
    plain = copy.deepcopy(machine).double()
    value = objective(gb.as_energy(plain.forward, machine.domain), x.double(), (), gen()).value
    truth = torch.autograd.grad(value, [plain.weight, plain.bias])
    loss = objective(machine, x, (), gen())
    torch.testing.assert_close(loss.value.double(), value, rtol=3e-6, atol=0, check_dtype=False)
    for mine, exact in zip((loss.gradients[machine.weight], loss.gradients[machine.bias]), truth, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))
    with torch.no_grad():
        fields = machine.conditional_fields(x)
        twin, _ = objective._in_closed_form(machine, x, fields, None)
    torch.testing.assert_close(twin.double(), value, rtol=3e-6, atol=0, check_dtype=False)


LAYERS = {
    "bits and bits": (units.Bernoulli(5), units.Bernoulli(3)),
    "spins and bits": (units.Spin(5), units.Bernoulli(3)),
    "bits and spins": (units.Bernoulli(5), units.Spin(3)),
    "spins and classes": (units.Spin(5), units.Softmax(2, classes=3)),
}


def scrambled_rbm(name, dtype=F64):
    rbm = models.RBM(*LAYERS[name]).to(dtype)
    with torch.no_grad():
        for p in rbm.parameters():
            p.normal_(0, 0.8, generator=gen(p.numel()))
    return rbm


def of_its_energy_alone(rbm, objective, x):
    """Value and gradients by the energies of all neighbors."""
    value = objective(gb.as_energy(rbm.forward, rbm.domain), x, (), gen()).value
    return value.detach(), torch.autograd.grad(value, list(rbm.parameters()))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("sites", [None, 2, 5])
@pytest.mark.parametrize("kind", [PseudoLikelihood, RatioMatching, MinimumProbabilityFlow])
@pytest.mark.parametrize("at_a_time", [1, 1 << 17])
def test_neighbors_of_an_rbm_are_compared_without_their_energies(name, sites, kind, at_a_time, monkeypatch):
    monkeypatch.setattr(neighbors, "NEAR", at_a_time)
    rbm, objective = scrambled_rbm(name), kind(sites=sites)
    x = rbm.domain.sample(7, generator=gen(1), dtype=F64)
    value, gradients = of_its_energy_alone(rbm, objective, x)
    monkeypatch.setattr(models.RBM, "free_energy", lambda *_: pytest.fail("asked for an energy"))
    loss = objective.loss(rbm, x, (), gen(), Step(watched=False))
    torch.testing.assert_close(loss.value.detach(), value)
    for p, exact in zip(rbm.parameters(), gradients, strict=True):
        torch.testing.assert_close(loss.gradients[p], exact)


def test_neighbors_of_an_rbm_in_single_precision():
    rbm = scrambled_rbm("bits and bits", torch.float32)
    x = rbm.domain.sample(300, generator=gen(1))
    loss = PseudoLikelihood()(rbm, x, (), gen())
    value, gradients = of_its_energy_alone(copy.deepcopy(rbm).double(), PseudoLikelihood(), x.double())
    torch.testing.assert_close(loss.value.double(), value, rtol=3e-6, atol=0)
    for p, exact in zip(rbm.parameters(), gradients, strict=True):
        torch.testing.assert_close(loss.gradients[p].double(), exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))


def test_rows_that_do_not_fit_an_rbm_are_said():
    rbm = models.RBM(4, 3)
    with pytest.raises(errors.PrecisionError, match="bring them together"):
        PseudoLikelihood()(rbm, torch.zeros(3, 4, dtype=F64), (), gen())
    with pytest.raises(errors.ShapeError, match="expected"):
        PseudoLikelihood()(rbm, torch.zeros(3, 5), (), gen())


class Stiffer(models.RBM):
    """An energy of its own, of which the gaps of an RBM know nothing."""

    def hidden_natural(self, v):
        return super().hidden_natural(2 * v)


@pytest.mark.parametrize(
    "machine", [Stiffer(4, 3), models.RBM(4, units.Gaussian(2)), models.RBM(units.Softmax(2, classes=2), 3)]
)
def test_other_machines_are_asked_for_energies(machine):
    machine = machine.double()
    with torch.no_grad():
        machine.weight.normal_(0, 0.3, generator=gen())
    x = machine.domain.sample(6, generator=gen(1), dtype=F64)
    value, gradients = of_its_energy_alone(machine, PseudoLikelihood(), x)
    torch.testing.assert_close(PseudoLikelihood()(machine, x, (), gen()).value.detach(), value)
    torch.testing.assert_close(gradient(machine, PseudoLikelihood(), x), torch.cat([g.flatten() for g in gradients]))
    assert machine.neighbor_gaps(x) is None
    with pytest.raises(errors.CapabilityError, match="energies"):
        machine.gap_gradients(x, x)


@pytest.mark.parametrize("objective", [PseudoLikelihood(), MinimumProbabilityFlow()], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("broken", [float("inf"), float("nan")])
def test_parameters_that_ran_away_are_said_in_one_pass_too(objective, broken):
    machine = gb.models.BoltzmannMachine(5)
    with torch.no_grad():
        machine.bias[2] = broken
    with pytest.raises(errors.DivergenceError):
        objective(machine, torch.zeros(3, 5), (), gen())


@pytest.mark.parametrize("coupling", [0.3, torch.tensor([0.2, -0.4]), "each"])
@pytest.mark.parametrize("periodic", [True, False])
def test_lattices_know_the_gradients_of_their_fields(coupling, periodic):
    shape = (3, 4)
    if isinstance(coupling, str):
        coupling = torch.randn(2, *shape, generator=gen()) * gb.models.Ising(shape, periodic=periodic).bonds
    field = torch.randn(shape, generator=gen(1)) if torch.is_tensor(coupling) else 0.2
    lattice = gb.models.Ising(shape, coupling, field, periodic=periodic, trainable=True).double()
    x, weight = lattice.domain.sample(6, generator=gen(2)).double(), torch.randn(6, *shape, generator=gen(3), dtype=F64)
    parameters = [lattice.coupling, lattice.field]
    truth = torch.autograd.grad((weight * lattice.conditional_fields(x)).sum(), parameters)
    found = lattice.field_gradients(x, weight)
    for p, exact in zip(parameters, truth, strict=True):
        torch.testing.assert_close(found[p], exact * (lattice.bonds if p.dim() == 3 else 1))


def test_neighbors_that_are_data_count_in_minimum_probability_flow():
    """On all states at once, dropping those that are data would leave an empty sum."""
    machine = Machine(BINARY)
    assert float(MinimumProbabilityFlow()(machine, machine.states(), (), gen()).value.detach()) > 1.0


def test_flat_energies_give_known_numbers():
    flat = gb.as_energy(lambda x: 0 * x.flatten(1).sum(1), domains.Categorical((2, 2), classes=3))
    x = flat.domain.sample(5, generator=gen(), dtype=F64)
    assert math.isclose(float(PseudoLikelihood()(flat, x, (), gen()).value), 4 * math.log(3))
    assert math.isclose(float(MinimumProbabilityFlow()(flat, x, (), gen()).value), 8.0)
    skewed = gb.as_energy(lambda x: -2.0 * x.sum(1), domains.Binary(3))
    value = float(PseudoLikelihood()(skewed, torch.ones(2, 3, dtype=F64), (), gen()).value)
    assert math.isclose(value, 3 * float(softplus(torch.tensor(-2.0, dtype=F64))))


# --- perturb-and-MAP ------------------------------------------------------------------------------


def test_perturb_and_map_is_exact_for_independent_units():
    """Without couplings the maximum of every unit is Gumbel: E max = log Z, and x̂ has the model's law."""
    for domain in (BINARY, SPIN, CATEGORICAL):
        machine = Machine(domain)
        with torch.no_grad():
            machine.pairs.zero_()
            machine.triple.zero_()
        x = draws(machine, 20)
        truth = gradient_of(machine(x).mean() + torch.logsumexp(-machine(machine.states()), 0), machine)
        seeds = range(300)
        d = domain.numel
        got = torch.stack([gradient(machine, PerturbAndMAP(50), x, seed=s)[:d] for s in seeds])
        z = (got.mean(0) - truth[:d]) / got.std(0) * len(seeds) ** 0.5
        assert z.abs().max() < 5.2
        value = torch.stack([PerturbAndMAP(50)(machine, x, (), gen(s)).value.detach() for s in seeds])
        exact = ExactLikelihood()(machine, x, (), gen()).value.detach()
        assert abs(value.mean() - exact) < 5 * value.std() / len(seeds) ** 0.5


def test_perturb_and_map_bounds_the_likelihood_and_has_the_gradient_of_its_value():
    machine = Machine(BINARY)
    x = draws(machine, 20)
    objective = PerturbAndMAP(4000)
    value = objective(machine, x, (), gen()).value
    exact = ExactLikelihood()(machine, x, (), gen()).value
    assert float(exact.detach()) < float(value.detach()) < float(exact.detach()) + 1.5
    got, h = gradient_of(value, machine), 1e-6
    with torch.no_grad():
        for i in (0, 3):
            machine.bias[i] += h
            up = objective(machine, x, (), gen()).value
            machine.bias[i] -= 2 * h
            down = objective(machine, x, (), gen()).value
            machine.bias[i] += h
            assert abs(float((up - down) / (2 * h) - got[i])) < 1e-5  # the maxima stay where they are


def test_minimum_cuts_find_the_enumerated_maxima():
    machine = gb.models.BoltzmannMachine(6).double()
    g = gen(2)
    w = torch.rand(6, 6, generator=g, dtype=F64)
    w = torch.triu(w, 1) + torch.triu(w, 1).T
    flip = torch.tensor([1.0, -1, 1, 1, -1, 1], dtype=F64)
    machine.set_parameters(weight=w * torch.outer(flip, flip), bias=torch.randn(6, generator=g, dtype=F64))
    x = domains.Binary(6).sample(10, generator=g, dtype=F64)
    by_cut, by_hand = (gradient(machine, PerturbAndMAP(40, s), x, seed=1) for s in ("max_flow", "enumerate"))
    torch.testing.assert_close(by_cut, by_hand)
    with torch.no_grad():
        machine.weight[0, 1] = machine.weight[1, 0] = -machine.weight[0, 1]
    with pytest.raises(errors.CapabilityError, match="attractive"):
        PerturbAndMAP(2, "max_flow")(machine, x, (), gen())
    big = gb.as_energy(lambda x: x.sum(1), domains.Binary(40))
    with pytest.raises(errors.CapabilityError, match="out of reach"):
        PerturbAndMAP().init(big, torch.ones(2, 40), gen())


def test_refusals():
    real = gb.as_energy(lambda x: x.sum(1), domains.Real(2))
    for objective in (PseudoLikelihood(), RatioMatching(), MinimumProbabilityFlow()):
        with pytest.raises(errors.DomainError, match="score-matching"):
            objective.init(real, torch.zeros(3, 2), gen())
    categorical = gb.as_energy(lambda x: x.flatten(1).sum(1), CATEGORICAL)
    with pytest.raises(errors.DomainError, match="two-valued"):
        RatioMatching().init(categorical, CATEGORICAL.sample(3, generator=gen()), gen())
    binary = gb.as_energy(lambda x: x.sum(1), BINARY)
    with pytest.raises(errors.ArgumentError, match="4 units"):
        PseudoLikelihood(sites=5).init(binary, torch.ones(2, 4), gen())
    with pytest.raises(errors.ArgumentError, match="whole number"):
        PseudoLikelihood(chunk=0)
    with pytest.raises(errors.DomainError, match="binarize"):
        PseudoLikelihood().init(binary, torch.full((2, 4), 0.5), gen())
    exploding = gb.as_energy(lambda x: 1e4 * x.sum(1), BINARY)
    with pytest.raises(errors.DivergenceError):
        MinimumProbabilityFlow()(exploding, torch.ones(2, 4), (), gen())
