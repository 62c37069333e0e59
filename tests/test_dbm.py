"""Deep Boltzmann machines against enumeration: energies, bounds, conditionals, paths, sampling."""

import itertools
import math

import pytest
import torch

import gibbsian as gb
from gibbsian import kernels, models, partition, units
from gibbsian.errors import ArgumentError, CapabilityError, ShapeError
from gibbsian.testing import check_energy, check_kernel
from gibbsian.training.serialize import describe, rebuild

F64 = torch.float64
SPECS = {
    "two layers": (4, 3, 3),
    "small top": (4, 5, 2),
    "three layers": (3, 3, 2, 2),
    "one layer": (4, 3),
    "mixed": (units.Spin(3), 3, units.Spin(2)),
    "softmax": (units.Softmax(2, 3), 2, units.Softmax(1, 3)),
    "label on top": (4, 3, units.Joined(units.Softmax(1, classes=3), units.Bernoulli(2))),
    "Gaussian": (units.Gaussian(2), 3, 3),
}
DISCRETE = [name for name in SPECS if name != "Gaussian"]


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def machine(name="two layers", scale=0.8, seed=0):
    dbm, g = models.DBM(*SPECS[name]).double(), gen(seed)
    with torch.no_grad():
        for p in dbm.parameters():
            p.add_(scale * torch.randn(p.shape, generator=g, dtype=F64))
    return dbm


def hidden_states(dbm):
    """Every state of all hidden layers."""
    each = [unit.domain.states(dtype=F64) for unit in list(dbm.layers)[1:]]
    index = torch.tensor(list(itertools.product(*(range(len(s)) for s in each))))
    return [s[index[:, k]] for k, s in enumerate(each)]


def plain_energy(dbm, v, *hidden):
    """E(v, h) from its definition, term by term."""
    layers = [v, *hidden]
    phi = [unit.statistic(x) for unit, x in zip(dbm.layers, layers, strict=True)]
    own = sum(unit.energy(x, b) for unit, x, b in zip(dbm.layers, layers, dbm.biases, strict=True))
    return own - sum(torch.einsum("bi,ij,bj->b", a, w, c) for a, w, c in zip(phi, dbm.weights, phi[1:], strict=False))


def joint_table(dbm, v):
    """-E(v, h) for every row and hidden state."""
    states = hidden_states(dbm)
    rows = [plain_energy(dbm, row.expand(len(states[0]), *row.shape), *states) for row in v]
    return -torch.stack(rows)


@pytest.mark.parametrize("name", SPECS)
def test_energies_agree_with_their_definition_and_enumeration(name):
    dbm = machine(name)
    v = dbm.domain.sample(5, generator=gen(1), dtype=F64)
    h = [unit.domain.sample(5, generator=gen(2), dtype=F64) for unit in list(dbm.layers)[1:]]
    assert torch.allclose(dbm.joint(v, *h), plain_energy(dbm, v, *h))
    assert torch.allclose(dbm(v), -torch.logsumexp(joint_table(dbm, v), 1))


def test_the_two_layer_energy_is_the_formula():
    dbm, g = machine(), gen(1)
    v, h1, h2 = ((torch.rand(6, n, generator=g) < 0.5).double() for n in (4, 3, 3))
    (w1, w2), (b, c1, c2) = dbm.weights, dbm.biases
    expected = -((v @ w1) * h1).sum(1) - ((h1 @ w2) * h2).sum(1) - v @ b - h1 @ c1 - h2 @ c2
    assert torch.allclose(dbm.joint(v, h1, h2), expected)


@pytest.mark.parametrize("name", DISCRETE)
def test_both_sides_and_the_exact_sum_have_one_log_z(name):
    dbm = machine(name)
    whole = torch.logsumexp(joint_table(dbm, dbm.domain.states(dtype=F64)).flatten(), 0)
    for side in (dbm.marginal(0), dbm.marginal(1)):
        total = torch.logsumexp(-side(side.domain.states(dtype=F64)), 0)
        assert torch.allclose(total, whole)
    assert torch.allclose(partition.exact(dbm).value, whole.detach())


@pytest.mark.parametrize("name", [name for name in SPECS if name != "label on top"])
def test_the_bound_is_below_and_is_the_bound_of_its_means(name):
    dbm = machine(name)
    v = dbm.domain.sample(8, generator=gen(3), dtype=F64)
    bound, exact = dbm.log_mass_bound(v, iterations=200, tolerance=1e-12), torch.logsumexp(joint_table(dbm, v), 1)
    assert (bound <= exact + 1e-9).all()
    assert (exact - bound).max() < 0.6  # not a trivial bound
    posterior = dbm.infer(v, iterations=200, tolerance=1e-12)
    assert posterior.converged
    assert posterior.residual <= 1e-12
    states = hidden_states(dbm)
    log_q = torch.zeros(len(v), len(states[0]), dtype=F64)  # q(h|v) of every state, from the means
    for unit, mean, state in zip(list(dbm.layers)[1:], posterior.means, states, strict=True):
        one = mean if not isinstance(unit, units.Spin) else (1 + mean) / 2
        on = state.flatten(1) if not isinstance(unit, units.Spin) else (1 + state.flatten(1)) / 2
        flat = one.flatten(1)
        log_q = log_q + flat.log() @ on.T
        if not isinstance(unit, units.Softmax):
            log_q = log_q + (1 - flat).log() @ (1 - on).T
    q = log_q.exp()
    assert torch.allclose(q.sum(1), torch.ones(len(v), dtype=F64))
    assert torch.allclose(bound, (q * (joint_table(dbm, v) - log_q)).sum(1), atol=1e-8)


def test_mean_field_rises_to_a_fixed_point_and_reports_it():
    dbm = machine("three layers", scale=1.5)
    v = dbm.domain.sample(8, generator=gen(3), dtype=F64)
    bounds = torch.stack([dbm.log_mass_bound(v, iterations=k, tolerance=None) for k in range(1, 12)])
    assert (bounds.diff(dim=0) >= -1e-12).all()
    assert (bounds[-1] - bounds[0]).max() > 1e-4
    slow = dbm.infer(v, iterations=500, tolerance=1e-10, damping=0.5)
    fast = dbm.infer(v, iterations=500, tolerance=1e-10)
    assert slow.converged
    assert slow.iterations > fast.iterations
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(slow.means, fast.means, strict=True))
    few = dbm.infer(v, iterations=1, tolerance=1e-10)
    assert not few.converged
    assert few.iterations == 1
    assert few.residual > 1e-6
    for means, i in zip(fast.means, (1, 2, 3), strict=True):  # σ of the input from both sides
        below = [v, *fast.means][i - 1] @ dbm.weights[i - 1]
        above = fast.means[i] @ dbm.weights[i].T if i < 3 else 0
        assert torch.allclose(means, torch.sigmoid(dbm.biases[i] + below + above), atol=1e-8)


# --- sampling ---------------------------------------------------------------------------------------


def transition(side, states):
    """The exact matrix of a sweep: both half-sweeps are products of independent conditionals."""
    dbm = side.dbm
    other = dbm.marginal(1 - side.parity)
    middle = other.domain.states(dtype=F64)
    forward = conditional(other, states, middle)
    back = conditional(side, middle, states)
    return forward @ back


def conditional(side, given, states):
    """p(states of this side | states of the other one), from the joint energy alone."""
    dbm, other = side.dbm, side.dbm.marginal(1 - side.parity)
    rows = []
    for row in given:
        layers = [None] * len(dbm.layers)
        for i, x in zip(side.own, side.split(states), strict=True):
            layers[i] = x
        for i, x in zip(other.own, other.split(row[None]), strict=True):
            layers[i] = x.expand(len(states), *x.shape[1:])
        rows.append(torch.softmax(-plain_energy(dbm, *layers), 0))
    return torch.stack(rows)


@pytest.mark.parametrize("parity", [0, 1])
def test_a_sweep_has_the_exact_transition_matrix(parity):
    """Empirical rows of the sweep against the matrix, whose invariance is checked without randomness; 5 σ over 10⁵ draws."""
    dbm = models.DBM(2, 2, 2).double()
    with torch.no_grad():
        for p in dbm.parameters():
            p.copy_(1.2 * torch.randn(p.shape, generator=gen(7), dtype=F64))
    side = dbm.marginal(parity)
    states = side.domain.states(dtype=F64)
    matrix = transition(side, states)
    pi = torch.softmax(-side(states), 0)
    assert torch.allclose(pi @ matrix, pi)
    n = 20000
    for k in (0, len(states) - 2):
        x = states[k].expand(n, -1)
        noise = tuple(part[0] for part in side.gibbs_noise(x, 1, gen(k)))
        y = side.gibbs_sweep(x, noise)
        code = (y * 2.0 ** torch.arange(y.shape[1] - 1, -1, -1)).sum(1).long()
        seen = torch.bincount(code, minlength=len(states)).double() / n
        error = (matrix[k] * (1 - matrix[k]) / n).sqrt()
        assert ((seen - matrix[k]).abs() < 5 * error + 1e-12).all()


@pytest.mark.parametrize("name", ["two layers", "small top", "three layers", "mixed", "softmax", "label on top"])
def test_exact_draws_stay_in_their_law(name):
    """Exact draws, one sweep of the machine itself and of its even side: the visible law must not move (5 σ)."""
    dbm, n = machine(name), 40000
    states = dbm.domain.states(dtype=F64)
    p = torch.softmax(-dbm(states), 0).detach()
    index = torch.multinomial(p, n, replacement=True, generator=gen(1))
    v = states[index]
    moved = dbm.gibbs_sweep(v, tuple(part[0] for part in dbm.gibbs_noise(v, 1, gen(2))))
    even = dbm.marginal(0)
    start = even.join([v, *dbm.draw_hidden(v, generator=gen(3))[1::2]])
    after = even.gibbs_sweep(start, tuple(part[0] for part in even.gibbs_noise(start, 1, gen(4))))
    for y in (moved, even.split(after)[0]):
        match = (y.flatten(1)[:, None] == states.flatten(1)[None]).all(2).double().mean(0)
        assert ((match - p).abs() < 5 * (p * (1 - p) / n).sqrt()).all()
        assert not torch.equal(y, v)


def test_clamped_chains_complete_partial_examples():
    dbm, n = machine(), 20000
    held = torch.tensor([True, True, False, False])
    given = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=F64)
    states = dbm.domain.states(dtype=F64)
    fits = (states[:, :2] == given[:2]).all(1)
    truth = torch.softmax(-dbm(states[fits]), 0).detach() @ states[fits]
    even = dbm.marginal(0)
    start = even.join([given.expand(n, -1), even.domain.sample(n, generator=gen(), dtype=F64)[:, 4:]])
    clamp = torch.cat([held, torch.zeros(3, dtype=torch.bool)])
    last = gb.sample(even, kernels.Gibbs(), start, steps=30, keep=False, clamp=clamp, generator=gen(1)).last
    v = even.split(last)[0]
    assert (v[:, :2] == given[:2]).all()
    assert ((v.mean(0) - truth)[2:].abs() < 5 * 0.5 / math.sqrt(n)).all()
    filled = dbm.fill_in(given.expand(n, -1), held, steps=30, generator=gen(2))
    assert (filled[:, :2] == given[:2]).all()
    assert ((filled.mean(0) - truth)[2:].abs() < 5 * 0.5 / math.sqrt(n)).all()
    with pytest.raises(ArgumentError, match="bool tensor"):
        dbm.fill_in(given[None], held.double(), generator=gen())


def test_hidden_units_of_large_machines_are_drawn_by_clamped_sweeps():
    """A machine too large to enumerate whose extra units are free: the marginals of the others are known."""
    small, large = machine(), models.DBM(4, 20, 20).double()
    with torch.no_grad():
        for p in large.parameters():
            p.zero_()
        for i in range(2):
            large.weights[i][: small.weights[i].shape[0], :3].copy_(small.weights[i])
        for i in range(3):
            large.biases[i][: len(small.biases[i])].copy_(small.biases[i])
    v = torch.tensor([[1.0, 0.0, 1.0, 1.0]], dtype=F64).expand(4000, -1)
    h1, h2 = large.draw_hidden(v, generator=gen(), steps=30)
    table = torch.softmax(joint_table(small, v[:1])[0], 0)
    s1, s2 = hidden_states(small)
    off = torch.cat([h1[:, :3].mean(0) - table @ s1, h2[:, :3].mean(0) - table @ s2])
    assert (off.abs() < 5 * 0.5 / math.sqrt(4000)).all()
    with pytest.raises(CapabilityError, match="log_mass_bound"):
        large(v)


# --- annealing --------------------------------------------------------------------------------------


def test_the_path_is_the_formula():
    dbm, base = machine(), torch.linspace(-1, 1, 4, dtype=F64)
    (w1, w2), (b, c1, c2) = dbm.weights, dbm.biases
    path = dbm.path(base)
    h = dbm.marginal(1).domain.states(dtype=F64)
    zeta = torch.nn.functional.softplus

    def formula(beta):
        visible = zeta((1 - beta) * base + beta * (b + h @ w1.T)).sum(1)
        return beta * (h @ c1) + visible + zeta(beta * (c2 + h @ w2)).sum(1)

    for beta in (0.0, 0.3, 1.0):
        assert torch.allclose(path.log_density(h, torch.tensor(beta, dtype=F64)), formula(beta))
    assert torch.allclose(path.log_z0(), zeta(base).sum() + 6 * math.log(2))
    assert torch.allclose(torch.logsumexp(formula(0.0), 0), path.log_z0())
    noise = tuple(part[0] for part in path.noise(h, 1, gen()))
    _, weight = path.anneal(h, torch.tensor(0.2, dtype=F64), torch.tensor(0.7, dtype=F64), noise)
    assert torch.allclose(weight, formula(0.7) - formula(0.2))


@pytest.mark.parametrize("name", ["two layers", "three layers", "mixed", "softmax"])
def test_annealed_moves_keep_their_member_invariant(name):
    """Exact draws of p_β over the odd layers, moved at β: their law stays (5 σ)."""
    dbm, n, beta = machine(name), 40000, torch.tensor(0.6, dtype=F64)
    bias = 0.5 * torch.randn(dbm.biases[0].shape, generator=gen(9), dtype=F64)
    path = dbm.path(bias)
    states = dbm.marginal(1).domain.states(dtype=F64)
    p = torch.softmax(path.log_density(states, beta), 0).detach()
    x = states[torch.multinomial(p, n, replacement=True, generator=gen(1))]
    y, weight = path.anneal(x, beta, beta, tuple(part[0] for part in path.noise(x, 1, gen(2))))
    assert weight.abs().max() == 0
    match = (y.flatten(1)[:, None] == states.flatten(1)[None]).all(2).double().mean(0)
    assert ((match - p).abs() < 5 * (p * (1 - p) / n).sqrt()).all()


@pytest.mark.parametrize("name", ["two layers", "three layers", "mixed", "Gaussian"])
def test_ais_is_unbiased(name):
    """The mean weight of few temperatures against the exact sum, 4 σ."""
    dbm = machine(name, scale=0.5)
    data = dbm.domain.sample(200, generator=gen(1), dtype=F64)
    truth = torch.logsumexp(-dbm.marginal(1)(dbm.marginal(1).domain.states(dtype=F64)), 0).detach()
    for estimate in (
        partition.ais(dbm, data, chains=4000, betas=10, generator=gen(2)),
        partition.smc(dbm, data, chains=200, betas=10, generator=gen(3)),
    ):
        assert (estimate.value - truth).abs() < 4 * estimate.stderr
        assert estimate.stderr < 0.1


def test_reverse_ais_brackets_log_z():
    dbm = machine()
    states = dbm.domain.states(dtype=F64)
    truth = partition.exact(dbm).value
    v = states[torch.multinomial(torch.softmax(-dbm(states), 0).detach(), 2000, replacement=True, generator=gen(1))]
    forward = partition.ais(dbm, v, chains=2000, betas=20, generator=gen(2))
    reverse = partition.reverse_ais(dbm, v, forward=forward, generator=gen(3))
    assert (reverse.value - truth).abs() < 4 * reverse.stderr
    odd = dbm.marginal(1)
    h = odd.join(dbm.draw_hidden(v, generator=gen(4))[::2])
    base = dbm.layers[0].fit_bias(v)
    again = partition.reverse_ais(odd, h, base=base, betas=20, generator=gen(5))
    assert (again.value - truth).abs() < 4 * again.stderr
    with pytest.raises(ArgumentError, match="odd layers"):
        partition.ais(dbm.marginal(0), base=torch.zeros(7, dtype=F64), generator=gen())
    with pytest.raises(ShapeError):
        dbm.path(torch.zeros(3))


def test_tempered_sides_keep_their_conditionals_exact():
    dbm = machine()
    side = dbm.marginal(1)
    beta = torch.tensor(0.5, dtype=F64)
    states = side.domain.states(dtype=F64)
    v, h2 = dbm.domain.states(dtype=F64), dbm.layers[2].domain.states(dtype=F64)
    even = [(a.expand(len(states), -1), b.expand(len(states), -1)) for a in v for b in h2]
    sums = torch.logsumexp(torch.stack([-0.5 * plain_energy(dbm, a, states, b) for a, b in even]), 0)
    assert torch.allclose(side.annealed(beta)(states), -sums)
    check_kernel(kernels.Gibbs(), side.annealed(beta), states[:6], generator=gen())


def test_the_likelihood_of_a_large_machine_is_its_bound():
    dbm = models.DBM(6, 18, 20).double()
    with torch.no_grad():
        for p in dbm.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=gen(), dtype=F64))
    x = dbm.domain.sample(20, generator=gen(1), dtype=F64)
    log_z = partition.exact(dbm).value  # over h¹: 2^18 states
    out = gb.log_likelihood(dbm, x, log_z)
    assert out.method.startswith("variational bound")
    assert out.upper == math.inf
    assert torch.allclose(out.per_sample, dbm.log_mass_bound(x) - log_z)
    assert out.lower < out.value
    small = machine()
    exact = gb.log_likelihood(small, small.domain.states(dtype=F64))
    assert torch.allclose(exact.per_sample.exp().sum(), torch.ones((), dtype=F64))


# --- contracts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["two layers", "three layers", "softmax"])
def test_machines_keep_the_promises_of_energies(name):
    dbm = machine(name).float()
    for energy in (dbm, dbm.marginal(0), dbm.marginal(1)):
        x = energy.domain.sample(8, generator=gen(1))
        check_energy(energy, x, generator=gen())
        check_kernel(kernels.Gibbs(), energy, x, generator=gen())


@pytest.mark.parametrize("name", SPECS)
def test_machines_are_rebuilt_from_plain_text(name):
    dbm, tensors = machine(name), {}
    again = rebuild(describe(dbm, tensors), tensors)
    x = dbm.domain.sample(5, generator=gen(), dtype=F64)
    assert torch.equal(again(x), dbm(x))


def test_impossible_machines_are_refused():
    with pytest.raises(ArgumentError, match="at least one hidden layer"):
        models.DBM(4)
    with pytest.raises(ArgumentError, match="hidden units must be"):
        models.DBM(4, units.Gaussian(3))
    with pytest.raises(ArgumentError, match="hidden units must be"):
        models.DBM(units.Count(4), 3)
    with pytest.raises(ArgumentError, match="marginal"):
        models.DBM(4, 3).marginal(2)
    with pytest.raises(ArgumentError, match="damping"):
        models.DBM(4, 3).infer(torch.zeros(1, 4), damping=1.0)
