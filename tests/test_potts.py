"""Potts machines and the closed forms of pairwise machines, by enumeration and against the general forms."""

import itertools
import math

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, kernels, models, objectives, partition
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.partition.tree_reweighted import all_trees, dual_bound
from gibbsian.testing import check_invariance

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def potts(sites=3, states=3, seed=0, scale=0.8):
    j = scale * torch.randn(sites, states, sites, states, generator=gen(seed), dtype=F64)
    j = j + j.permute(2, 3, 0, 1)
    j[torch.arange(sites), :, torch.arange(sites)] = 0
    out = models.Potts(sites, states).double()
    out.set_parameters(field=torch.randn(sites, states, generator=gen(seed + 1), dtype=F64), coupling=j)
    return out


def boltzmann(spin: bool):
    w = torch.randn(5, 5, generator=gen(3), dtype=F64).triu(1)
    out = models.BoltzmannMachine(5, spin=spin).double()
    out.set_parameters(weight=w + w.T, bias=torch.randn(5, generator=gen(4), dtype=F64))
    return out


def ising():
    out = models.Ising(
        (3, 3), torch.randn(2, 3, 3, generator=gen(5)), torch.randn(3, 3, generator=gen(6)), trainable=True
    )
    return out.double()


MACHINES = {
    "potts": potts, "bits": lambda: boltzmann(False), "spins": lambda: boltzmann(True), "lattice": ising,
}  # fmt: skip


def law(model):
    states = model.domain.states(dtype=F64)
    return states, torch.softmax(-model(states).detach(), 0)


def test_energy_is_the_sum_over_sites_and_pairs():
    model = potts(3, 4).requires_grad_(False)
    x = model.domain.states(dtype=F64)
    labels = x.argmax(-1)
    for row in (0, 17, 63):
        a = labels[row].tolist()
        want = -sum(float(model.field[i, a[i]]) for i in range(3))
        want -= sum(float(model.coupling[i, a[i], j, a[j]]) for i, j in itertools.combinations(range(3), 2))
        assert float(model(x)[row]) == pytest.approx(want, abs=1e-12)


def test_conditionals_of_all_sites_come_from_one_product():
    model = potts(3, 3)
    states, p = law(model)
    at = states.argmax(-1)
    got = torch.softmax(model.conditional_fields(states), -1)
    for site in range(3):
        others = [i for i in range(3) if i != site]
        same = (at[:, None, others] == at[None, :, others]).all(-1).double()  # states that differ at most in this site
        want = torch.einsum("nm,m,ma->na", same, p, states[:, site])
        want = want / want.sum(1, keepdim=True)
        assert torch.allclose(got[:, site], want)
        assert torch.allclose(torch.softmax(model.site_logits(states, site), -1), want)
        assert torch.allclose(torch.softmax(model.site_logits(states, torch.full((27,), site)), -1), want)


@pytest.mark.parametrize("name", MACHINES)
def test_gaps_and_scores_equal_energies_and_autograd(name):
    model = MACHINES[name]()
    x = model.domain.sample(6, generator=gen(7), dtype=F64)
    u = model.conditional_fields(x).detach()
    if isinstance(model.domain, domains.Categorical):
        for i, a in itertools.product(range(model.sites), range(model.states)):
            y = x.clone()
            y[:, i] = torch.nn.functional.one_hot(torch.tensor(a), model.states).double()
            assert torch.allclose(u[:, i, a] - (u * x)[:, i].sum(-1), model(x) - model(y))
    else:
        for i in range(model.domain.numel):
            y = x.clone().flatten(1)
            y[:, i] = -y[:, i] if isinstance(model.domain, domains.Spin) else 1 - y[:, i]
            change = (y - x.flatten(1))[:, i]
            assert torch.allclose(change * u.flatten(1)[:, i], model(x) - model(y.reshape(x.shape)))
    energy, score = model.energy_and_score(x)
    general = gb.as_energy(lambda y: model(y), model.domain)
    want, slope = general.energy_and_score(x)
    assert torch.allclose(energy, want)
    assert torch.allclose(score, slope)


@pytest.mark.parametrize("sites", [None, 2])
@pytest.mark.parametrize(
    "kind", [objectives.PseudoLikelihood, objectives.RatioMatching, objectives.MinimumProbabilityFlow]
)
@pytest.mark.parametrize("name", MACHINES)
def test_objectives_in_closed_form_equal_the_general_ones(name, kind, sites):
    model = MACHINES[name]()
    if kind is objectives.RatioMatching and name == "potts":
        pytest.skip("ratio matching is for two-valued units")
    x = model.domain.sample(20, generator=gen(8), dtype=F64)
    general = gb.as_energy(lambda y: model(y), model.domain)
    found = []
    for energy in (model, general):
        objective = kind(sites=sites)
        loss = objective(energy, x, objective.init(energy, x, gen()), gen(9))
        found.append((loss.value.detach(), torch.autograd.grad(loss.value, list(model.parameters()))))
    assert torch.allclose(found[0][0], found[1][0])
    for mine, theirs in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)


@pytest.mark.parametrize("kernel", [kernels.Gibbs(), kernels.SiteGibbs(), kernels.SiteGibbs(scan="random"),
                                    kernels.GibbsWithGradients(), kernels.DiscreteLangevin(0.4)])  # fmt: skip
def test_kernels_leave_the_law_of_a_potts_machine_invariant(kernel):
    model = potts(3, 3)
    states, p = law(model)
    draws = states[torch.multinomial(p, 20000, True, generator=gen(9))]
    check_invariance(model, kernel, draws=draws, generator=gen(10))
    clamp = torch.zeros(3, 3, dtype=torch.bool)
    clamp[1] = True
    check_invariance(model, kernel, draws=draws, clamp=clamp, generator=gen(10))


def test_clamped_sites_stay_and_the_rest_has_its_conditional_law():
    model = potts(3, 3)
    states, p = law(model)
    held = states[5].expand(6000, 3, 3)
    clamp = torch.zeros(3, 3, dtype=torch.bool)
    clamp[1] = True
    trace = gb.sample(
        model, kernels.Gibbs(), held, steps=30, clamp=clamp, keep=False, generator=gen(11), progress=False
    )
    x = trace.last
    assert torch.equal(x[:, 1], held[:, 1])
    given = p * (states[:, 1] * states[5, 1]).sum(-1)
    given = given / given.sum()
    want = torch.einsum("n,nia->ia", given, states)
    error = (want.clamp(0, 1) * (1 - want).clamp(0, 1) / 6000).sqrt()
    assert bool(((x.mean(0) - want).abs() < 4.5 * error + 1e-9).all())


def test_log_z_by_annealing_from_the_profile():
    model = potts(4, 3)
    states, p = law(model)
    data = states[torch.multinomial(p, 500, True, generator=gen(12))]
    exact = partition.exact(model)
    assert float(exact.value) == pytest.approx(float(torch.logsumexp(-model(states).detach(), 0)), abs=1e-9)
    found = partition.ais(model, data, chains=400, betas=200, generator=gen(13))
    assert abs(float(found.value - exact.value)) < 4 * float(found.stderr)
    assert float(found.stderr) < 0.1
    base = found.diagnostics["path"].base
    assert torch.allclose(torch.softmax(base.bias, -1), (data.sum(0) + 1) / 503)


def test_gauges_keep_the_law():
    model = potts(3, 4).requires_grad_(False)
    states, p = law(model)
    for gauged in (model.zero_sum(), model.lattice_gas(), model.lattice_gas(2)):
        assert torch.allclose(law(gauged)[1], p)
        assert torch.allclose(gauged.coupling, gauged.coupling.permute(2, 3, 0, 1))
    zero = model.zero_sum()
    assert float(zero.coupling.sum(-1).abs().max()) < 1e-12
    assert float(zero.field.sum(-1).abs().max()) < 1e-12
    shift = float(model.field.mean(-1).sum() + model.coupling.mean((1, 3)).sum() / 2)
    assert torch.allclose(zero(states) - model(states), torch.tensor(shift, dtype=F64).expand(64))
    gas = model.lattice_gas(2)
    assert float(gas.coupling[:, 2].abs().max()) < 1e-12
    assert float(gas.field[:, 2].abs().max()) < 1e-12
    assert float(zero.coupling.square().sum()) < float(gas.coupling.square().sum())
    wrong = model.zero_sum()
    wrong.set_parameters(field=model.field.detach())  # moving J without h is another law
    assert not torch.allclose(law(wrong)[1], p, atol=1e-3)
    with pytest.raises(ArgumentError, match="reference=4"):
        model.lattice_gas(4)


def test_training_keeps_couplings_symmetric_and_learns():
    truth = potts(4, 3, scale=0.5)
    states, p = law(truth)
    x = states[torch.multinomial(p, 4000, True, generator=gen(14))].float()
    model = models.Potts(4, 3)
    model.initialize_visible_bias(x)
    start = model.coupling.detach().clone()
    run = gb.fit(model, objectives.PseudoLikelihood(), x, steps=400, batch_size=1000, lr=0.05, progress=False)
    j = model.coupling.detach()
    assert torch.equal(j, j.permute(2, 3, 0, 1))
    assert float(j[torch.arange(4), :, torch.arange(4)].abs().max()) == 0
    assert not torch.equal(j, start)
    want, got = truth.zero_sum().coupling.detach().float(), model.zero_sum().coupling.detach()
    pairs = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)[:, None, :, None].expand(4, 3, 4, 3)
    both = torch.stack([want[pairs], got[pairs]])
    assert float(torch.corrcoef(both)[0, 1]) > 0.95
    assert math.isfinite(run.history[-1]["energy_data"])


def test_what_is_no_potts_machine_is_refused():
    model = models.Potts(3, 2)
    with pytest.raises(ShapeError, match="site, state, site, state"):
        model.set_parameters(coupling=torch.zeros(3, 3))
    with pytest.raises(ShapeError, match="field"):
        model.set_parameters(field=torch.zeros(2, 3))
    j = torch.zeros(3, 2, 3, 2)
    j[0, 1, 2, 0] = 1.0
    with pytest.raises(ArgumentError, match=r"coupling\[0, 1, 2, 0\] = 1"):
        model.set_parameters(coupling=j)
    j = torch.zeros(3, 2, 3, 2)
    j[1, 0, 1, 0] = 1.0
    with pytest.raises(ArgumentError, match="no site acts on itself"):
        model.set_parameters(coupling=j)
    with pytest.raises(ArgumentError):
        models.Potts(0, 3)
    with pytest.raises(ArgumentError):
        models.Potts(3, 1)


# --- bounds and Bethe -------------------------------------------------------------------------------------


def potts_tree(seed: int):
    """Six sites of three states, every one joined to one before it."""
    j = torch.zeros(6, 3, 6, 3, dtype=F64)
    for i in range(1, 6):
        parent = int(torch.randint(i, (), generator=gen(100 * seed + i)))
        j[parent, :, i] = 1.5 * torch.randn(3, 3, generator=gen(200 * seed + i), dtype=F64)
    out = models.Potts(6, 3).double()
    field = torch.randn(6, 3, generator=gen(seed), dtype=F64)
    out.set_parameters(field=field, coupling=j + j.permute(2, 3, 0, 1))
    return out


def test_tables_of_a_potts_machine_have_its_law():
    model = potts(3, 3).requires_grad_(False)
    states = model.domain.states(dtype=F64)
    graph = model.pairwise_tables()
    assert graph.bias.shape == (3, 2)
    assert torch.allclose(graph.log_density(states[:, :, 1:]), -model(states))


@pytest.mark.parametrize("seed", range(3))
def test_message_passing_is_exact_on_potts_trees(seed):
    model = potts_tree(seed)
    truth, (states, p) = float(partition.exact(model).value), law(model)
    bethe, trees = partition.bethe(model), partition.tree_reweighted(model)
    assert float(bethe.value) == pytest.approx(truth, abs=1e-7)
    assert float(trees.value) == pytest.approx(truth, abs=1e-7)
    want = torch.einsum("n,nia->ia", p, states)
    assert torch.allclose(bethe.diagnostics["means"], want, atol=1e-7)
    assert torch.allclose(trees.diagnostics["means"], want, atol=1e-6)


@pytest.mark.parametrize("scale", [0.2, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_of_potts_machines_hold(seed, scale):
    model = potts(5, 3, seed=seed, scale=scale)
    truth = float(partition.exact(model).value)
    low, high = partition.mean_field(model), partition.tree_reweighted(model, trees=4)
    assert float(low.value) <= truth + 1e-9
    assert float(high.value) >= truth - 1e-9
    assert float(high.value) <= float(high.diagnostics["start"]) + 1e-9
    if scale < 1:
        assert truth - float(low.value) < 0.5
        assert float(high.value) - truth < 0.5
        assert abs(float(partition.bethe(model).value) - truth) < 0.1
    m = low.diagnostics["means"]
    fields = model.field + torch.einsum("iajb,jb->ia", model.symmetric(), m)
    assert torch.allclose(m, torch.softmax(fields, 1), atol=1e-6)


def test_the_dual_of_a_potts_machine_bounds_log_z_at_any_messages():
    model = potts(4, 3)
    graph, truth = model.pairwise_tables(), float(partition.exact(model).value)
    shares, roots = all_trees(graph), torch.full((4,), 0.25, dtype=F64)
    for seed in range(20):
        cavities = 2 * torch.randn(2 * len(graph.weight), 2, generator=gen(seed), dtype=F64)
        assert float(dual_bound(graph, shares, roots, cavities)) >= truth


def test_two_states_give_what_two_valued_units_give():
    machine = boltzmann(False).requires_grad_(False)
    twin = models.Potts(5, 2).double()
    j = torch.zeros(5, 2, 5, 2, dtype=F64)
    j[:, 1, :, 1] = machine.weight
    twin.set_parameters(field=torch.stack([torch.zeros(5), machine.bias], 1), coupling=j)
    twin = twin.zero_sum()  # another gauge, another constant
    shift = float(partition.exact(twin).value - partition.exact(machine).value)
    for estimator in (partition.mean_field, partition.bethe, partition.tree_reweighted):
        assert float(estimator(twin).value) == pytest.approx(float(estimator(machine).value) + shift, abs=1e-6)
