"""Gated, temporal and spike-and-slab machines against enumeration and quadrature."""

import itertools
import math

import pytest
import torch

import gibbsian as gb
from gibbsian import kernels, objectives, partition, units
from gibbsian.errors import ArgumentError, CapabilityError, DataError, DomainError, ShapeError
from gibbsian.models import RBM, GatedRBM, SpikeSlabRBM, TemporalRBM
from gibbsian.testing import check_energy, check_kernel, check_objective

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def randomize(model, seed=0, scale=0.7):
    model.double()
    g = gen(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=g, dtype=F64))
    return model


def normal(*shape, seed=9):
    return torch.randn(*shape, generator=gen(seed), dtype=F64)


def binary(n):
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)), dtype=F64)


def gated(visible=4, hidden=3, seed=0):
    return randomize(GatedRBM(5, visible, hidden, factors=6), seed)


def temporal(visible=4, hidden=3, order=2, seed=0):
    return randomize(TemporalRBM(visible, hidden, order), seed)


def gated_table(model, x, y, h):
    """E(x, y, h) from the definition, as sums over indices: (inputs, y, h)."""
    u, v, p = model.input_weight, model.weight, model.hidden_weight
    third = torch.einsum("ni,if,yj,jf,hk,kf->nyh", x, u, y, v, h, p)
    return -(third + (y @ model.visible_bias)[:, None] + h @ model.hidden_bias).detach()


def temporal_table(model, past, v, h):
    u = past.flatten(1)
    b, c = model.visible_bias + u @ model.past_visible, model.hidden_bias + u @ model.past_hidden
    both = torch.einsum("vi,ij,hj->vh", v, model.weight, h)
    return -(both + torch.einsum("ni,vi->nv", b, v)[:, :, None] + torch.einsum("nj,hj->nh", c, h)[:, None]).detach()


CASES = {
    "gated": (gated, lambda n=3: normal(n, 5), gated_table),
    "temporal": (temporal, lambda n=3: normal(n, 2, 4), temporal_table),
}


@pytest.mark.parametrize("name", CASES)
def test_binary_machines_by_enumeration(name):
    make, inputs, tabulate = CASES[name]
    model, x = make(), inputs()
    v, h = binary(4), binary(3)
    table = tabulate(model, x, v, h)  # (inputs, v, h)
    for i in range(len(x)):
        one = model.given(x[i])
        torch.testing.assert_close(one.joint(v, h[5].expand(16, 3)).detach(), table[i, :, 5])
        torch.testing.assert_close(one(v).detach(), -torch.logsumexp(-table[i], 1))
        torch.testing.assert_close(one.hidden_mean(v).detach(), torch.softmax(-table[i], 1) @ h)
        torch.testing.assert_close(one.visible_mean(h).detach(), torch.softmax(-table[i], 0).T @ v)
        torch.testing.assert_close(one.hidden_energy(h).detach(), -torch.logsumexp(-table[i], 0))
        torch.testing.assert_close(partition.exact(one).value, torch.logsumexp(-table[i].flatten(), 0))
        for beta in (torch.tensor(0.4, dtype=F64), torch.linspace(0.2, 2, 16, dtype=F64)):
            rows = beta[:, None] if beta.dim() else beta
            torch.testing.assert_close(one.annealed(beta)(v).detach(), -torch.logsumexp(-rows * table[i], 1))
    every = model.given(x)
    rows = v.repeat_interleave(len(x), 0)  # inputs run fastest
    torch.testing.assert_close(every(rows).detach().reshape(16, -1).T, -torch.logsumexp(-table, 2))
    torch.testing.assert_close(every(v[[3, 7, 12]]).detach(), -torch.logsumexp(-table, 2)[range(3), [3, 7, 12]])
    log_z = torch.logsumexp(-table.flatten(1), 1)
    torch.testing.assert_close(partition.exact_each(every).value.detach(), log_z)
    torch.testing.assert_close(partition.exact_each(every, rows=7).value.detach(), log_z)
    out = partition.conditional_log_likelihood(every, v[[3, 7, 12]])
    torch.testing.assert_close(out.per_sample, -every(v[[3, 7, 12]]).detach() - log_z)


@pytest.mark.parametrize("name", CASES)
def test_gaussian_outputs_by_completing_the_square(name):
    """log p(v | x) integrates to 1 over a grid of two real outputs, for every input; conditionals as moments of it."""
    make = CASES[name][0]
    model = make(visible=units.Gaussian(2), hidden=3)
    with torch.no_grad():
        model.visible.log_sigma.copy_(torch.tensor([-0.3, 0.2]))
    x = normal(2, 5) if name == "gated" else normal(2, 2, 2)
    axis = torch.linspace(-14, 14, 561, dtype=F64)
    v = torch.cartesian_prod(axis, axis)
    cell = float(axis[1] - axis[0]) ** 2
    log_z = partition.exact_each(model.given(x)).value
    for i in range(2):
        one = model.given(x[i])
        density = torch.exp(-one(v).detach() - log_z[i].detach())
        assert abs(float(density.sum()) * cell - 1) < 1e-6
        h = binary(3)
        exact_h = torch.stack([torch.exp(-one.joint(v, row.expand(len(v), 3))).sum() * cell for row in h]).detach()
        torch.testing.assert_close(-one.hidden_energy(h).detach(), exact_h.log(), atol=1e-6, rtol=1e-6)
        weights = torch.exp(-one.joint(v, h[5].expand(len(v), 3)).detach())
        mean = (weights[:, None] * v).sum(0) / weights.sum()
        torch.testing.assert_close(one.visible_mean(h[5:6])[0].detach(), mean, atol=1e-6, rtol=1e-6)


def transition_matrix(energy, hidden):
    """P(v'|v) of one sweep from the machine's own conditional means: Σ_h p(h|v) p(v'|h)."""
    v = energy.domain.states(dtype=F64)
    h = binary(hidden)
    up, down = energy.hidden_mean(v).detach(), energy.visible_mean(h).detach()
    p_h = torch.where(h[None] == 1, up[:, None], 1 - up[:, None]).prod(2)
    p_v = torch.where(v[None] == 1, down[:, None], 1 - down[:, None]).prod(2)
    return p_h @ p_v


@pytest.mark.parametrize("name", CASES)
def test_sweeps_have_the_machines_law_as_invariant_exactly(name):
    """The transition matrix from the conditionals keeps π exactly, and the sweep follows these conditionals to the
    last uniform: u just below a probability gives 1, just above it 0."""
    make, inputs, _ = CASES[name]
    model, x = make(), inputs()
    v = binary(4)
    for i in range(len(x)):
        one = model.given(x[i])
        p = transition_matrix(one, 3)
        pi = torch.softmax(-one(v).detach(), 0)
        torch.testing.assert_close(pi @ p, pi)
        torch.testing.assert_close(pi[:, None] * p, (pi[:, None] * p).T)  # reversible on v alone
        terms = one.terms(16)
        up = one.hidden_mean(v).detach()
        for sign in (-1, 1):
            h = torch.full_like(up, 1.0 if sign < 0 else 0.0)
            down = one.visible_mean(h).detach()
            for other in (-1, 1):
                got = one.gibbs_sweep(v, (up + sign * 1e-9, down + other * 1e-9, *terms))
                torch.testing.assert_close(got, torch.full_like(v, 1.0 if other < 0 else 0.0))


def pearson(counts, p):
    """Within 5 standard deviations: a false alarm once in a million."""
    expected = counts.sum() * p
    keep = expected > 5
    stat, freedom = float(((counts - expected)[keep] ** 2 / expected[keep]).sum()), int(keep.sum()) - 1
    assert stat < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("how", ["plain", "clamped", "tempered", "replicas"])
@pytest.mark.parametrize("name", CASES)
def test_chains_under_many_inputs_keep_exact_starts_exact(name, how):
    make, inputs, _ = CASES[name]
    model, x = make(), inputs()
    n = 60000
    every, v = model.given(x), binary(4)
    pi = torch.softmax(-every(v.repeat_interleave(3, 0)).detach().reshape(16, 3), 0)
    start = torch.stack([v[torch.multinomial(pi[:, i], n, True, generator=gen(i))] for i in range(3)], 1).flatten(0, 1)
    energy, kernel, clamp = model.given(x.repeat(n, *[1] * (x.dim() - 1))), kernels.Gibbs(), None
    if how == "clamped":
        clamp = torch.rand(len(start), 4, generator=gen(5)) < 0.4
    if how == "tempered":
        beta = torch.tensor(0.5, dtype=F64)
        energy = energy.annealed(beta)
        pi = torch.softmax(-every.annealed(beta)(v.repeat_interleave(3, 0)).detach().reshape(16, 3), 0)
        start = torch.stack([v[torch.multinomial(pi[:, i], n, True, generator=gen(i))] for i in range(3)], 1).flatten(
            0, 1
        )
    if how == "replicas":
        kernel = kernels.ParallelTempering(kernels.Gibbs(), betas=[1.0, 0.5])
    last = gb.sample(energy, kernel, start, steps=3, keep=False, clamp=clamp, generator=gen(1)).last
    index = (last @ torch.tensor([8.0, 4, 2, 1], dtype=F64)).long().reshape(n, 3)
    for i in range(3):
        pearson(torch.bincount(index[:, i], minlength=16).double(), pi[:, i])


def gradient(model, value):
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in found])


def check_gradient(model, found, value):
    """A directional derivative by central differences."""
    step = [torch.randn(p.shape, generator=gen(4), dtype=F64) for p in model.parameters()]
    values = []
    with torch.no_grad():
        for size in (1e-5, -2e-5, 1e-5):
            for p, d in zip(model.parameters(), step, strict=True):
                p.add_(size * d)
            values.append(value())
    slope = (values[0] - values[1]) / 2e-5
    torch.testing.assert_close(found @ torch.cat([d.flatten() for d in step]), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_exact_gradients_and_long_chains_agree(name):
    """Contrastive divergence and bound persistent chains with many sweeps: the gradient of the mean of
    -log p(y | x), enumerated, within the standard errors of twenty repeats."""
    make, inputs, tabulate = CASES[name]
    model, x = make(), inputs(4)
    y = binary(4)[[1, 6, 9, 14]]
    exact = objectives.Conditional(objectives.ExactLikelihood())
    value = exact(model, (x, y), exact.init(model, (x, y), gen()), gen()).value
    table = tabulate(model, x, binary(4), binary(3))
    free = -torch.logsumexp(-table, 2)
    by_hand = free[range(4), [1, 6, 9, 14]] + torch.logsumexp(-table.flatten(1), 1)
    torch.testing.assert_close(value.detach(), by_hand.mean())
    goal = gradient(model, value)
    check_gradient(model, goal, lambda: exact(model, (x, y), (), gen()).value)
    big = x.repeat(400, *[1] * (x.dim() - 1)), y.repeat(400, 1)
    gibbs = kernels.Gibbs()
    found = {
        "shared products": objectives.ContrastiveDivergence(gibbs, steps=30),
        "any kernel": objectives.ContrastiveDivergence(kernels.SiteGibbs(), steps=15),
        "persistent": objectives.PersistentContrastiveDivergence(gibbs, steps=30, chains=1600),
    }
    for which, inner in found.items():
        objective = objectives.Conditional(inner)
        state = objective.init(model, big, gen(3))
        runs = torch.stack([gradient(model, objective(model, big, state, gen(seed)).value) for seed in range(20)])
        error = (runs.mean(0) - goal).abs() / (runs.std(0) / math.sqrt(20) + 1e-6)
        assert float(error.max()) < 7, (which, error.max())  # Student's t of 19: once in 10⁶ for each entry


@pytest.mark.parametrize("name", CASES)
def test_objectives_see_each_row_under_its_own_input(name):
    """Deterministic objectives on a batch: the mean of what they give for every row alone."""
    make, inputs, _ = CASES[name]
    parts = [objectives.PseudoLikelihood(), objectives.RatioMatching(), objectives.MinimumProbabilityFlow()]
    model, x = make(), inputs(4)
    y = binary(4)[[1, 6, 9, 14]]
    for inner in parts:
        objective = objectives.Conditional(inner)
        whole = objective(model, (x, y), (), gen()).value
        alone = [inner(model.given(x[i]), y[i : i + 1], (), gen()).value for i in range(4)]
        torch.testing.assert_close(whole, torch.stack(alone).mean())
    real = randomize(GatedRBM(5, units.Gaussian(3), 2, 4)) if name == "gated" else temporal(units.Gaussian(3), 2, 2)
    x, y = (normal(4, 5) if name == "gated" else normal(4, 2, 3)), normal(4, 3, seed=1)
    inner = objectives.ImplicitScoreMatching()
    whole = objectives.Conditional(inner)(real, (x, y), (), gen()).value
    alone = [inner(real.given(x[i]), y[i : i + 1], (), gen()).value for i in range(4)]
    torch.testing.assert_close(whole, torch.stack(alone).mean())


def test_persistent_chains_stay_with_their_inputs():
    model, x = gated(), normal(6, 5)
    y = binary(4)[:6]
    inner = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=4, buffer=8, reinit=0.0)
    objective = objectives.Conditional(inner)
    state = objective.init(model, (x, y), gen())
    assert state.x.shape == (8, 4)
    assert state.condition.shape == (8, 5)
    assert len(state.condition.unique(dim=0)) == 6  # every input once before any comes twice
    after = objective(model, (x, y), state, gen(1)).state
    torch.testing.assert_close(after.condition, state.condition)
    assert int((after.x != state.x).any(1).sum()) <= 4
    renewed = objectives.Conditional(
        objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=8, reinit=1.0, start="data")
    )
    other = renewed(model, (x + 1, y), state, gen(1)).state
    torch.testing.assert_close(other.condition.sort(0).values[[0]], (x + 1).sort(0).values[[0]])


def test_annealing_every_input_finds_its_log_z():
    """E[w] = Z(x)/Z₀(x): AIS with many chains within 5 standard errors, for binary and real outputs."""
    for model, x in (
        (gated(), normal(3, 5)),
        (temporal(), normal(3, 2, 4)),
        (temporal(units.Gaussian(2)), normal(3, 2, 2)),
    ):
        member = model.given(x)
        exact = partition.exact_each(member).value.detach()
        out = partition.ais_each(member, chains=2000, betas=20, generator=gen())
        assert bool(((out.value - exact).abs() < 5 * out.stderr).all()), (out.value - exact, out.stderr)
        assert bool((out.stderr < 0.05).all())
    one = temporal().given(normal(2, 4))
    data = binary(4)
    found = partition.ais(one, data, chains=2000, betas=20, generator=gen())
    assert abs(float(found.value - partition.exact(one).value)) < 5 * float(found.stderr)


def test_temporal_machine_without_a_past_is_an_rbm():
    for visible in (4, units.Gaussian(4)):
        model, rbm = temporal(visible, 3, 0), RBM(visible, 3).double()
        rbm.load_state_dict(model.state_dict(), strict=False)
        v = binary(4) + (normal(16, 4) if visible != 4 else 0)
        none = v.new_zeros(16, 0, 4)
        torch.testing.assert_close(model(v), rbm(v))
        torch.testing.assert_close(model.given(none).hidden_mean(v), rbm.hidden_mean(v))
        log_z = partition.exact(model.given(none[0])).value
        torch.testing.assert_close(log_z, partition.exact(rbm).value)
        cd = objectives.ContrastiveDivergence(kernels.SiteGibbs() if visible == 4 else kernels.Langevin(0.1), steps=2)
        ours = objectives.Conditional(cd)(model, (none, v), (), gen())
        theirs = cd(rbm, v, (), gen())
        torch.testing.assert_close(ours.value, theirs.value)
        for name, p in rbm.named_parameters():
            a, b = (torch.autograd.grad(loss.value, q, retain_graph=True)[0]
                    for loss, q in ((ours, dict(model.named_parameters())[name]), (theirs, p)))  # fmt: skip
            torch.testing.assert_close(a, b)
        assert model.generate(none[:2], 3, generator=gen()).shape == (2, 3, 4)


def test_windows_follow_time():
    model = TemporalRBM(units.Gaussian(2), 3, order=3)
    long, short = torch.arange(14.0).reshape(7, 2), 100 + torch.arange(8.0).reshape(4, 2)
    past, frame = model.windows([long, short])
    assert past.shape == (5, 3, 2)
    assert frame.shape == (5, 2)
    torch.testing.assert_close(past[1], long[1:4])  # oldest first
    torch.testing.assert_close(frame[1], long[4])
    torch.testing.assert_close(past[4], short[:3])
    whole = torch.stack([long, long + 50])
    for a, b in zip(model.split(whole), model.windows(list(whole)), strict=True):
        torch.testing.assert_close(a, b)


def test_a_machine_can_begin_as_a_ridge_regression():
    """A, b and σ against the normal equations with an unpenalized constant; without hidden weights it predicts it."""
    model = TemporalRBM(units.Gaussian(2), 3, order=2).double()
    past, frame = normal(50, 2, 2), normal(50, 2, seed=3)
    model.initialize_past(past, frame, ridge=4.0)
    design = torch.cat([past.flatten(1), torch.ones(50, 1, dtype=F64)], 1)
    penalty = 4.0 * torch.diag(torch.tensor([1.0, 1, 1, 1, 0], dtype=F64))
    solution = torch.linalg.solve(design.T @ design + penalty, design.T @ frame)
    torch.testing.assert_close(torch.cat([model.past_visible, model.visible_bias[None]]).detach(), solution)
    left = (frame - design @ solution).square().mean(0).sqrt()
    torch.testing.assert_close(model.visible.sigma.detach(), left)
    with torch.no_grad():
        model.weight.zero_()
    torch.testing.assert_close(model.predict(past, chains=2, sweeps=2, generator=gen()), design @ solution)
    with pytest.raises(CapabilityError):
        TemporalRBM(4, 3, 1).initialize_past(torch.zeros(3, 1, 4), torch.zeros(3, 4))


def test_generation_and_prediction_follow_the_conditional_law():
    """Frames drawn one after the other against the enumerated chain p(v1|u) p(v2|u,v1); the mean against E[v|u]."""
    model, n = temporal(2, 2, 2), 40000
    v = binary(2)
    past = v[[2, 1]]
    law = lambda *u: torch.softmax(-model.given(torch.stack(u))(v).detach(), 0)  # noqa: E731
    first = law(*past)
    both = torch.cat([first[k] * law(past[1], v[k]) for k in range(4)])
    out = model.generate(past.expand(n, 2, 2), 2, sweeps=30, generator=gen())
    index = (out @ torch.tensor([2.0, 1], dtype=F64)).long()
    pearson(torch.bincount(index[:, 0] * 4 + index[:, 1], minlength=16).double(), both)
    out = model.generate(past.expand(n, 2, 2), 2, sweeps=None, generator=gen(3))
    index = (out @ torch.tensor([2.0, 1], dtype=F64)).long()
    pearson(torch.bincount(index[:, 0] * 4 + index[:, 1], minlength=16).double(), both)
    two = torch.stack([past, past.flip(0)])
    exact = torch.stack([law(*u) @ v for u in two])
    torch.testing.assert_close(model.given(two).exact_mean(), exact)
    mean = model.predict(past, chains=4000, sweeps=40, generator=gen())
    assert float((mean[0] - first @ v).abs().max()) < 5 * 0.5 / math.sqrt(4000)


def test_transfer_applies_the_inferred_transformation():
    model = gated()
    x, y, to = normal(1, 5), binary(4)[6:7], normal(3, 5, seed=2)
    h = model.given(x).hidden_mean(y)
    torch.testing.assert_close(model.transfer(x, y, to)[2:], model.given(to[2]).visible_mean(h))


# --- spike and slab ---------------------------------------------------------------------------------


def spike_slab(visible=2, hidden=3, scale=0.8, seed=0):
    return randomize(SpikeSlabRBM(visible, hidden), seed, scale)


def grid(half=16.0, n=641):
    axis = torch.linspace(-half, half, n, dtype=F64)
    return torch.cartesian_prod(axis, axis), float(axis[1] - axis[0]) ** 2


@pytest.mark.parametrize("seed", range(3))
def test_spike_slab_integrates_to_its_log_z(seed):
    """∫exp(-F) over the plane, by a grid, against the sum over spikes in closed form."""
    model = spike_slab(seed=seed)
    v, cell = grid()
    log_z = partition.exact(model).value
    integral = torch.logsumexp(-model(v).detach(), 0) + math.log(cell)
    torch.testing.assert_close(integral, log_z, atol=1e-7, rtol=1e-7)
    h = binary(3)
    torch.testing.assert_close(torch.logsumexp(-model.hidden_energy(h).detach(), 0), log_z)
    dense = torch.diag(model.precision()) - torch.einsum("hj,ij,kj,j->hik", h, model.weight, model.weight,
                                                         1 / model.slab_precision)  # fmt: skip
    m = model.visible_bias + (h * model.slab_mean) @ model.weight.T
    closed = (h @ model.hidden_bias + 0.5 * torch.einsum("hi,hik,hk->h", m, torch.linalg.inv(dense), m)
              - 0.5 * torch.logdet(dense) + 0.5 * (math.log(2 * math.pi) - model.log_slab_precision).sum()
              + math.log(2 * math.pi))  # fmt: skip
    torch.testing.assert_close(-model.hidden_energy(h), closed)


def test_spike_slab_free_energy_and_conditionals_by_quadrature_over_slabs():
    model = spike_slab(2, 2)
    axis = torch.linspace(-16, 16, 641, dtype=F64)
    s = torch.cartesian_prod(axis, axis)
    cell = float(axis[1] - axis[0]) ** 2
    alpha = model.slab_precision.detach()
    for v in normal(3, 2):
        rows = v.expand(len(s), 2)
        weights = torch.stack([torch.exp(-model.joint(rows, h.expand(len(s), 2), s).detach()) for h in binary(2)])
        torch.testing.assert_close(-model(v[None])[0].detach(), (weights.sum() * cell).log(), atol=1e-7, rtol=1e-7)
        p = weights.sum(1) / weights.sum()
        torch.testing.assert_close(model.hidden_mean(v[None])[0].detach(), p @ binary(2), atol=1e-7, rtol=1e-7)
        for h, w in zip(binary(2), weights, strict=True):
            mean = (w[:, None] * s).sum(0) / w.sum()
            torch.testing.assert_close(model.slab_mean_given(v[None], h[None])[0].detach(), mean, atol=1e-6, rtol=1e-6)
            spread = (w[:, None] * (s - mean).square()).sum(0) / w.sum()
            torch.testing.assert_close(spread, 1 / alpha, atol=1e-6, rtol=1e-6)
        beta = torch.tensor(0.6, dtype=F64)
        hot = (weights**0.6).sum() * cell
        torch.testing.assert_close(-model.annealed(beta)(v[None])[0].detach(), hot.log(), atol=1e-6, rtol=1e-6)
        path = model.path()  # base N(0, I) with slabs of precision α
        base = 0.5 * v.square().sum() + 0.5 * (s.square() @ alpha)
        half = (weights**0.6 * torch.exp(-0.4 * base)).sum() * cell
        torch.testing.assert_close(-path.energy(v[None], 0.6)[0].detach(), half.log(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_spike_slab_always_has_a_normalizer(scale):
    """The precision given any spikes is positive definite, at least λ⁰ in every direction, for any weights."""
    model = spike_slab(6, 5, seed=3)
    with torch.no_grad():
        model.weight.mul_(scale)
    h = binary(5)
    dense = torch.diag(model.precision()) - torch.einsum("hj,ij,kj,j->hik", h, model.weight, model.weight,
                                                         1 / model.slab_precision)  # fmt: skip
    smallest = torch.linalg.eigvalsh(dense.detach()).min()
    assert float(smallest) >= float(model.log_precision.detach().exp().min()) * (1 - 1e-9)
    assert bool(torch.isfinite(partition.exact(model).value))


def exact_spike_slab(model, n, seed):
    """Draws of v: spikes from their exact law, then the Gaussian given them."""
    h = binary(len(model.hidden_bias))
    p = torch.softmax(-model.hidden_energy(h).detach(), 0)
    h = h[torch.multinomial(p, n, True, generator=gen(seed))]
    dense = torch.diag(model.precision()) - torch.einsum("hj,ij,kj,j->hik", h, model.weight, model.weight,
                                                         1 / model.slab_precision)  # fmt: skip
    m = model.visible_bias + (h * model.slab_mean) @ model.weight.T
    factor = torch.linalg.cholesky(dense.detach())
    z = torch.randn(n, m.shape[1], 1, generator=gen(seed + 1), dtype=F64)
    mean = torch.cholesky_solve(m[:, :, None].detach(), factor)
    return (mean + torch.linalg.solve_triangular(factor.mT, z, upper=True)).squeeze(2)


@pytest.mark.parametrize("clamp", [False, True])
def test_spike_slab_sweeps_keep_exact_starts_exact(clamp):
    """Shares of 25 cells of the plane after sweeps, against exact draws, within 5 standard deviations."""
    model, n = spike_slab(seed=1, scale=1.2), 60000
    start = exact_spike_slab(model, n, 0)
    mask = torch.rand(n, 2, generator=gen(5)) < 0.4 if clamp else None
    last = gb.sample(model, kernels.Gibbs(), start, steps=3, keep=False, clamp=mask, generator=gen(1)).last
    edges = torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=F64)
    which = lambda x: torch.bucketize(x.contiguous(), edges) @ torch.tensor([5, 1])  # noqa: E731
    fine = exact_spike_slab(model, 400000, 7)
    p = torch.bincount(which(fine), minlength=25).double() / len(fine)
    counts = torch.bincount(which(last), minlength=25).double()
    spread = (p * (1 - p) * (1 / n + 1 / len(fine))).sqrt().clamp_min(1e-12)
    assert float(((counts / n - p) / spread).abs().max()) < 5


def test_spike_slab_gradient_of_the_likelihood():
    """Contrasts after many sweeps against the exact gradient; λ depends on W, which autograd must see."""
    model = spike_slab(2, 2, 0.6)
    data = exact_spike_slab(spike_slab(2, 2, 0.6, seed=5), 20000, 3)
    exact = objectives.ExactLikelihood()(model, data, (), gen()).value
    goal = gradient(model, exact)
    check_gradient(model, goal, lambda: objectives.ExactLikelihood()(model, data, (), gen()).value)
    inner = objectives.ContrastiveDivergence(kernels.Gibbs(), steps=40)
    found = gradient(model, inner(model, data, (), gen()).value)
    each = torch.stack([gradient(model, model(part).mean()) for part in data.split(100)])
    sigma = each.std(0) / math.sqrt(len(each))
    assert float(((found - goal).abs() / (sigma + 1e-3)).max()) < 6
    for chains in (None, data):
        value, v, _ = model.contrast(data[:50], None if chains is None else chains[:50], 3, gen(2))
        torch.testing.assert_close(value, model(data[:50]).mean() - model(v).mean())
        again = gradient(model, model(data[:50]).mean() - model(v).mean())
        torch.testing.assert_close(gradient(model, value), again)


def test_spike_slab_annealing():
    model = spike_slab(3, 4)
    data = exact_spike_slab(model, 500, 0) + 0.3
    path = model.path(data=data)
    torch.testing.assert_close(path.energy(data, 1.0).detach(), model(data).detach())
    flat = torch.logsumexp(torch.stack([path.energy(data[:1], 0.0)]), 0).detach()
    gauss = 0.5 * ((data[:1] - data.mean(0)).square() / data.var(0, correction=0)).sum()
    hidden = 4 * math.log(2) + 0.5 * (math.log(2 * math.pi) - model.log_slab_precision.detach()).sum()
    torch.testing.assert_close(flat[0] if flat.dim() else flat, gauss - hidden)
    out = partition.ais(model, data, chains=2000, betas=30, generator=gen())
    assert abs(float(out.value - partition.exact(model).value)) < 5 * float(out.stderr) < 0.2


@pytest.mark.parametrize("name", CASES)
def test_shared_products_give_the_plain_gradient(name):
    """The fast path of contrastive divergence: the same value and gradient as the energies of its samples."""
    make, inputs, _ = CASES[name]
    fixed = randomize(GatedRBM(5, units.Gaussian(4, 0.7, learned=False), 3, 6)) if name == "gated" else make()
    cases = [(make(), inputs(4)), (make(visible=units.Gaussian(4)), inputs(4)), (fixed, inputs(4)),
             (make(hidden=units.Spin(3)), inputs(4)), (make(), inputs(1)), (make(), inputs(2))]  # fmt: skip
    for model, x in cases:
        y = binary(4)[[1, 6, 9, 14]]
        member = model.given(x)
        for chains in (None, binary(4)[:4]):
            value, v, _ = member.contrast(y, chains, 2, gen(3))
            plain = member(y).mean() - member(v).mean()
            torch.testing.assert_close(value, plain)
            torch.testing.assert_close(gradient(model, value), gradient(model, plain))


# --- the checks that are shipped, folders, refusals -------------------------------------------------


@pytest.mark.parametrize("make", [
    lambda: gated().given(normal(5)), lambda: temporal().given(normal(2, 4)),
    lambda: temporal(units.Gaussian(4)).given(normal(2, 4)), lambda: gated(units.Gaussian(4)).given(normal(5)),
    lambda: gated(units.Softmax(2, 3), units.Spin(3)).given(normal(5)), lambda: spike_slab(4),
    lambda: spike_slab(4).annealed(torch.tensor(0.5)),
])  # fmt: skip
def test_conformance(make):
    energy = make()
    x = energy.domain.sample(8, generator=gen(1), dtype=F64)
    check_energy(energy, x, generator=gen())
    check_kernel(kernels.Gibbs(), energy, x, generator=gen())


@pytest.mark.parametrize("inner", [
    objectives.ContrastiveDivergence(kernels.Gibbs()), objectives.PseudoLikelihood(),
    objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=5),
    objectives.Weighted([objectives.ContrastiveDivergence(kernels.Gibbs()), objectives.WeightDecay(1e-3),
                         objectives.Sparsity(0.1)]),
], ids=lambda inner: type(inner).__name__)  # fmt: skip
def test_conditional_objectives_keep_their_promises(inner):
    batch = torch.randn(6, 5, generator=gen()), (torch.rand(6, 4, generator=gen(1)) < 0.5).float()
    check_objective(objectives.Conditional(inner), GatedRBM(5, 4, 3, 6), batch, generator=gen())


def test_bound_chains_in_a_sum_learn_what_they_learn_alone():
    model = GatedRBM(5, 4, 3, 6)
    batch = torch.randn(6, 5, generator=gen()), (torch.rand(6, 4, generator=gen(1)) < 0.5).float()
    alone = objectives.Conditional(objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=6))
    found = []
    for objective in (alone, objectives.Weighted([alone, objectives.Conditional(objectives.WeightDecay(0.0))])):
        g = gen(2)
        found.append(objective(model, batch, objective.init(model, batch, g), g).value)
    assert torch.equal(found[0], found[1])


def test_training_saving_and_going_on(tmp_path):
    """fit on pairs and on sequences, a folder, resume to the bit, load."""
    g = gen()
    x = torch.randn(200, 5, generator=g)
    y = (x[:, :4] > 0).float()
    cd = objectives.Conditional(objectives.ContrastiveDivergence(kernels.Gibbs()))
    pcd = objectives.Conditional(objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=20))
    model = GatedRBM(5, 4, 8, 10)
    before = partition.conditional_log_likelihood(model.given(x), y).value
    gb.fit(model, cd, (x, y), steps=400, lr=0.02, batch_size=50)
    after = partition.conditional_log_likelihood(model.given(x), y).value
    assert float(after) > float(before) + 1  # from 4 log 2 = 2.77 nats
    waves = torch.sin(torch.arange(40.0)[None, :, None] * 0.5 + torch.rand(12, 1, 3, generator=g) * 6)
    whole = TemporalRBM(units.Gaussian(3), 4, 2)
    gb.fit(whole, pcd, waves, steps=20, lr=0.01, batch_size=6, run_dir=tmp_path / "whole")
    half = TemporalRBM(units.Gaussian(3), 4, 2)
    gb.fit(half, pcd, waves, steps=10, lr=0.01, batch_size=6, run_dir=tmp_path / "half")
    again = gb.resume(tmp_path / "half", waves, steps=20).energy
    loaded = gb.load(tmp_path / "whole")
    for name, p in whole.named_parameters():
        assert torch.equal(p, dict(again.named_parameters())[name])
        assert torch.equal(p, dict(loaded.named_parameters())[name])
    slab = SpikeSlabRBM(3, 4)
    slab.initialize_visible_bias(waves.flatten(0, 1))
    gb.fit(slab, objectives.ContrastiveDivergence(kernels.Gibbs()), waves.flatten(0, 1), steps=5,
           run_dir=tmp_path / "slab")  # fmt: skip
    v = torch.randn(5, 3, generator=g)
    assert torch.equal(gb.load(tmp_path / "slab")(v), slab(v))


def test_spike_slab_learns_a_covariance():
    """Correlated data of mean 0, which means of Gaussian units cannot see: the likelihood nears the truth's."""
    cov = torch.tensor([[1.0, 0.8], [0.8, 1.0]])
    data = torch.randn(4000, 2, generator=gen()) @ torch.linalg.cholesky(cov).T
    model = SpikeSlabRBM(2, 3, generator=gen(2))
    model.initialize_visible_bias(data)
    gb.fit(model, objectives.ExactLikelihood(), data, steps=300, batch_size=500, lr=0.05)
    found = gb.log_likelihood(model, data).value
    truth = -0.5 * (2 * math.log(2 * math.pi) + torch.logdet(cov) + 2)
    independent = -0.5 * (2 * math.log(2 * math.pi) + 2)
    assert float(found) > float(truth) - 0.1 > float(independent) + 0.3


@pytest.mark.parametrize(("bad", "error"), [
    (lambda: GatedRBM(0, 4, 3, 2), ArgumentError),
    (lambda: GatedRBM(4, 4, units.Gaussian(3), 2), ArgumentError),
    (lambda: GatedRBM(4, 4, 3, 2, scale=0.0), ArgumentError),
    (lambda: GatedRBM(4, 4, 3, 2)(torch.zeros(2, 4)), CapabilityError),
    (lambda: GatedRBM(4, 4, 3, 2).given(torch.zeros(2, 5)), ShapeError),
    (lambda: GatedRBM(4, 4, 3, 2).given(torch.zeros(2, 4).double()), ArgumentError),
    (lambda: GatedRBM(4, 4, 3, 2).given(torch.zeros(2, 4))(torch.zeros(3, 4)), ShapeError),
    (lambda: partition.exact(GatedRBM(4, 4, 3, 2).given(torch.zeros(2, 4))), CapabilityError),
    (lambda: partition.exact_each(GatedRBM(4, 40, 30, 2).given(torch.zeros(2, 4))), DomainError),
    (lambda: partition.exact_each(RBM(3, 2)), CapabilityError),
    (lambda: GatedRBM(4, 4, 30, 2).given(torch.zeros(2, 4)).exact_mean(), DomainError),
    (lambda: TemporalRBM(4, 3, -1), ArgumentError),
    (lambda: TemporalRBM(4, 3, 2)(torch.zeros(2, 4)), CapabilityError),
    (lambda: TemporalRBM(4, 3, 2).given(torch.zeros(2, 3, 4)), ShapeError),
    (lambda: TemporalRBM(4, 3, 2).windows([torch.zeros(2, 4)]), DataError),
    (lambda: TemporalRBM(4, 3, 2).split((torch.zeros(2, 2, 4), torch.zeros(3, 4))), ShapeError),
    (lambda: TemporalRBM(4, 3, 2).generate(torch.zeros(2, 4), 0, generator=gen()), ArgumentError),
    (lambda: SpikeSlabRBM(0, 3), ArgumentError),
    (lambda: SpikeSlabRBM(3, 3, precision=0.0), ArgumentError),
    (lambda: SpikeSlabRBM(3, 3).path(torch.zeros(3)), ArgumentError),
    (lambda: SpikeSlabRBM(3, 3).path(data=torch.zeros(5, 3)), ArgumentError),
    (lambda: objectives.Conditional("cd"), ArgumentError),
    (lambda: objectives.Conditional(objectives.PersistentContrastiveDivergence(kernels.Gibbs(), fast_weights=0.1)),
     CapabilityError),
    (lambda: objectives.Conditional(objectives.EnergyMatching()), CapabilityError),  # transport ties noise to inputs
    (lambda: objectives.Conditional(objectives.Weighted([objectives.FirstRows(objectives.EnergyMatching(), 4)])),
     CapabilityError),
    (lambda: objectives.Conditional(objectives.Weighted([objectives.PersistentContrastiveDivergence(kernels.Gibbs())])),
     CapabilityError),  # chains that nobody binds
    (lambda: objectives.Conditional(objectives.Adversarial()), CapabilityError),  # its sampler knows no inputs
    (lambda: objectives.Conditional(objectives.Sparing(objectives.PerturbAndMAP(), ["net"])), CapabilityError),
    (lambda: objectives.Conditional(objectives.PseudoLikelihood()).init(RBM(4, 2), torch.zeros(2, 4), gen()),
     CapabilityError),
    (lambda: objectives.Conditional(objectives.PseudoLikelihood()).init(
        GatedRBM(4, 4, 3, 2), torch.zeros(2, 4), gen()), DataError),
])  # fmt: skip
def test_bad_input_is_refused(bad, error):
    with pytest.raises(error) as caught:
        bad()
    assert len(str(caught.value)) > 25
