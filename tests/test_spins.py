"""Inverse Ising and spike words: closed forms against the library's objectives, enumeration, and repeated samples."""

import numpy as np
import pytest
import torch

import gibbsian as gb
from gibbsian import kernels, models, objectives, spins
from gibbsian.errors import ArgumentError, CapabilityError, DataError, ShapeError
from gibbsian.spins.conditional import Conditional, Words, minimum

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def truth(spin: bool, n: int = 4, scale: float = 0.5):
    machine = models.BoltzmannMachine(n, spin=spin).double()
    w = scale * torch.randn(n, n, generator=gen(3), dtype=F64).triu(1)
    machine.set_parameters(weight=w + w.T, bias=0.3 * torch.randn(n, generator=gen(4), dtype=F64))
    return machine.requires_grad_(False)


def law(machine):
    states = machine.domain.states(dtype=F64)
    return states, torch.softmax(-machine(states), 0)


@pytest.mark.parametrize("flow", [False, True])
@pytest.mark.parametrize("spin", [False, True])
def test_the_closed_form_is_the_objective_of_the_library(spin, flow):
    machine = truth(spin).requires_grad_(True)
    x = machine.domain.sample(30, generator=gen(1), dtype=F64)
    objective = objectives.MinimumProbabilityFlow() if flow else objectives.PseudoLikelihood()
    loss = objective(machine, x, objective.init(machine, x, gen()), gen())
    words = Words(x, torch.full((30,), 1 / 30, dtype=F64), 30, -1.0 if spin else 0.0)
    function = Conditional(words, flow, (0.0, 0.0))
    flat = function.pairs.flat(machine.weight.detach().numpy(), machine.bias.detach().numpy())
    value, gradient = function(flat)
    assert value == pytest.approx(float(loss.value.detach()), rel=1e-12)
    want = torch.autograd.grad(loss.value, [machine.weight, machine.bias])
    mine = function.pairs.flat(2 * want[0].numpy(), want[1].numpy())  # one number a pair, the matrix holds it twice
    np.testing.assert_allclose(gradient, mine, atol=1e-12)


@pytest.mark.parametrize("flow", [False, True])
@pytest.mark.parametrize("spin", [False, True])
def test_at_the_law_itself_the_truth_is_the_minimum(spin, flow):
    machine = truth(spin)
    states, p = law(machine)
    function = Conditional(Words(states, p, 1, -1.0 if spin else 0.0), flow, (0.0, 0.0))
    found = minimum(function, np.zeros(10), 0.0, 500, 1e-10, False)
    want = function.pairs.flat(machine.weight.numpy(), machine.bias.numpy())
    np.testing.assert_allclose(found.flat, want, atol=1e-6)


@pytest.mark.parametrize(
    ("spin", "method"),
    [(True, "pseudo-likelihood"), (False, "flow"), (True, "mean-field"), (False, "mean-field"), (False, "exact")],
)
def test_standard_errors_are_the_spread_over_samples(spin, method):
    """80 times 800 rows: a spread is known to 8 %, the mean ratio over ten parameters to about 3 %."""
    machine = truth(spin)
    states, p = law(machine)
    pairs = torch.triu_indices(4, 4, 1)
    estimates, errors = [], []
    for seed in range(80):
        x = states[torch.multinomial(p, 800, True, generator=gen(seed))]
        found = spins.fit_ising(x, method)
        estimates.append(torch.cat([found.coupling[pairs[0], pairs[1]], found.field]))
        errors.append(torch.cat([found.coupling_error[pairs[0], pairs[1]], found.field_error]))
    ratio = torch.stack(errors).mean(0) / torch.stack(estimates).std(0)
    assert float((ratio.mean() - 1).abs()) < 0.13
    assert float((ratio - 1).abs().max()) < 0.36
    if method != "mean-field":
        want = torch.cat([machine.weight[pairs[0], pairs[1]], machine.bias])
        off = (torch.stack(estimates).mean(0) - want) / (torch.stack(estimates).std(0) / 80**0.5)
        assert float(off.abs().max()) < 6  # of a bias of order 1/rows, too


def test_boltzmann_learning_is_maximum_likelihood():
    machine = truth(True, 6)
    states, p = law(machine)
    x = states[torch.multinomial(p, 2000, True, generator=gen(1))]
    exact, learned = spins.fit_ising(x, "exact"), spins.fit_ising(x, "boltzmann", generator=gen(2))
    off = ((learned.coupling - exact.coupling) / exact.coupling_error)[~torch.eye(6, dtype=torch.bool)]
    assert float(off.abs().max()) < 0.5  # far less than what the data leave open
    ratio = (learned.coupling_error / exact.coupling_error)[~torch.eye(6, dtype=torch.bool)]
    assert float((ratio - 1).abs().max()) < 0.15
    off = ((exact.coupling - machine.weight) / exact.coupling_error)[~torch.eye(6, dtype=torch.bool)]
    assert float(off.abs().max()) < 4.5


@pytest.mark.parametrize("method", ["pseudo-likelihood", "mean-field", "exact"])
def test_bits_and_spins_are_one_law(method):
    machine = truth(True)
    states, p = law(machine)
    x = states[torch.multinomial(p, 3000, True, generator=gen(1))]
    one, other = spins.fit_ising(x, method), spins.fit_ising((x + 1) / 2, method)
    assert torch.allclose(one.coupling * 4, other.coupling, atol=1e-4)
    assert torch.allclose(2 * one.field - 2 * one.coupling.sum(1), other.field, atol=1e-4)
    assert torch.allclose(one.coupling_error * 4, other.coupling_error, rtol=1e-3, atol=1e-6)


def test_a_sparse_graph_is_recovered_from_samples():
    n = 24
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n], 1)
    chords = torch.tensor([[0, 8], [4, 15], [10, 20]])
    edges = torch.cat([ring, chords])
    sign = torch.where(torch.rand(len(edges), generator=gen(1)) < 0.5, -1.0, 1.0)
    model = models.Ising.on_graph(edges, coupling=0.5 * sign)
    x = gb.sample(model, kernels.Gibbs(), model.domain.sample(3000, generator=gen(2)), steps=80, burn_in=79, keep=False,
                  generator=gen(3), progress=False).last  # fmt: skip
    found = spins.fit_ising(x, l1=0.2)  # slopes of absent pairs deviate by 0.04: five times that
    want = {tuple(sorted(e)) for e in edges.tolist()}
    assert {tuple(e) for e in found.edges().tolist()} == want
    i, j = found.edges().T
    assert bool((found.coupling_error[i, j] > 0).all())
    assert bool(found.coupling_error[0, 2].isnan())
    refit = gb.spins.fit_ising(x)
    off = (refit.coupling - torch.zeros(n, n).index_put((edges[:, 0], edges[:, 1]), 0.5 * sign)) / refit.coupling_error
    assert float(off[edges[:, 0], edges[:, 1]].abs().max()) < 4.5


def test_units_that_are_never_active_together_need_a_pseudocount():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]).repeat(10, 1)
    with pytest.raises(gb.errors.InfeasibleError, match="pseudocount=1"):
        spins.fit_ising(x, "exact")
    found = spins.fit_ising(x, "exact", pseudocount=1.0)
    states, p = law(found.machine.double().requires_grad_(False))
    assert float(p @ states.prod(1)) == pytest.approx(1 / 31 / 9, abs=1e-6)
    assert float(p @ states[:, 0]) == pytest.approx(1 / 3, abs=1e-6)
    with pytest.raises(ArgumentError, match="use l2="):
        spins.fit_ising(x, pseudocount=1.0)


def test_what_cannot_be_learned_is_refused():
    x = models.BoltzmannMachine(4).domain.sample(50, generator=gen())
    still = x.clone()
    still[:, 2] = 1
    with pytest.raises(DataError, match="unit 2 has the same value"):
        spins.fit_ising(still)
    with pytest.raises(DataError, match=r"the value 0\.5"):
        spins.fit_ising(x / 2)
    with pytest.raises(ShapeError, match=r"\(samples, units\)"):
        spins.fit_ising(x[0])
    with pytest.raises(ArgumentError, match="l1 and l2 are for"):
        spins.fit_ising(x, "mean-field", l1=0.1)
    with pytest.raises(ArgumentError, match="errors=False"):
        spins.fit_ising(models.BoltzmannMachine(200).domain.sample(50, generator=gen()))
    with pytest.raises(CapabilityError, match="at most 16 units"):
        spins.fit_ising(models.BoltzmannMachine(20).domain.sample(50, generator=gen()), "exact")
    with pytest.warns(gb.errors.TrainingWarning, match="raise steps="):
        spins.fit_ising(x, steps=1)


# --- words ------------------------------------------------------------------------------------------------


def test_checks_of_words_by_enumeration():
    machine = truth(False, 5)
    states, p = law(machine)
    x = states[torch.multinomial(p, 20000, True, generator=gen(1))]
    checks = spins.check_words(machine, x)
    bits = float(-(p * p.log2()).sum())
    assert checks.pairwise_entropy == pytest.approx(bits, abs=1e-9)
    # the entropy of frequencies is known to √(Var log p / N) bits
    spread = float(((p * p.log2().square()).sum() - bits**2) / 20000) ** 0.5
    assert abs(checks.word_entropy - bits) < 4.5 * spread
    assert checks.multi_information == pytest.approx(checks.independent_entropy - checks.word_entropy)
    assert float(checks.activity.sum(1).sub(1).abs().max()) < 1e-9
    k = states.sum(1).long()
    assert torch.allclose(checks.activity[1], torch.zeros(6, dtype=F64).index_add(0, k, p))
    q = x.mean(0)
    independent = (states * q + (1 - states) * (1 - q)).prod(1)
    assert torch.allclose(checks.activity[2], torch.zeros(6, dtype=F64).index_add(0, k, independent))
    d = states - p @ states
    want = torch.stack(
        [p @ (d[:, a] * d[:, b] * d[:, c]) for a, b, c in torch.combinations(torch.arange(5), 3).tolist()]
    )
    assert torch.allclose(checks.triplets[1], want)
    assert float(((checks.triplets[0] - want) / checks.triplet_error).abs().max()) < 4.5
    assert torch.allclose(
        checks.words[1].sum() + p[~(states[:, None] == x.unique(dim=0)).all(-1).any(1)].sum(),
        torch.tensor(1.0).double(),
    )


def test_pairs_explain_a_pairwise_law_and_not_a_parity():
    machine = truth(False, 6, scale=1.0)
    states, p = law(machine)
    x = states[torch.multinomial(p, 20000, True, generator=gen(1))]
    assert spins.check_words(spins.fit_ising(x, "exact").machine, x).ratio == pytest.approx(1, abs=0.03)
    parity = (torch.rand(20000, 3, generator=gen(2)) < 0.5).double()
    parity[:, 2] = (parity[:, 0] + parity[:, 1]) % 2
    checks = spins.check_words(spins.fit_ising(parity, "exact").machine, parity)
    assert checks.ratio < 0.01  # one bit, and no pair knows of it
    assert checks.multi_information == pytest.approx(1, abs=0.01)


def test_words_of_many_units_are_checked_by_draws():
    machine = truth(True, 24, scale=0.1).float()
    x = gb.sample(machine, kernels.Gibbs(), machine.domain.sample(4000, generator=gen(1)), steps=30, burn_in=29, keep=False,
                  generator=gen(2), progress=False).last  # fmt: skip
    checks = spins.check_words(machine, x, draws=4000, steps=30, generator=gen(3))
    assert checks.ratio is None
    assert float((checks.activity[0] - checks.activity[1]).abs().max()) < 0.03
    assert checks.triplets.shape == (2, 2024)
    with pytest.raises(gb.errors.RandomnessError):
        spins.check_words(machine, x)
    with pytest.raises(CapabilityError, match="hidden"):
        spins.check_words(models.BoltzmannMachine(3, hidden=1), x[:, :3])
