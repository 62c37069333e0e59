"""RBMs of every pair of units against enumeration and quadrature."""

import math

import pytest
import torch

import gibbsian as gb
from gibbsian import kernels, units
from gibbsian.errors import ArgumentError, DivergenceError, DomainError, GibbsianError, ShapeError
from gibbsian.models import RBM

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def randomize(model, seed=0, scale=0.6):
    model.double()
    g = gen(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=g, dtype=F64))
    return model


def tables(rbm, v, h):
    """The joint energies of all pairs of given states."""
    rows = rbm.joint(v.repeat_interleave(len(h), 0), h.repeat(len(v), *[1] * (h.dim() - 1)))
    return rows.reshape(len(v), len(h)).detach()


VISIBLE = [units.Bernoulli(4), units.Spin(4), units.Softmax(2, classes=3), units.Count(3, total=3)]
HIDDEN = [units.Bernoulli(3), units.Spin(3), units.Softmax(2, classes=2)]


def orders(rbm, v):
    """log of the measure of each visible state."""
    return rbm.domain.log_orders(v) if isinstance(rbm.visible, units.Count) else torch.zeros(len(v), dtype=F64)


def by_hand(rbm, v, h):
    """E(v, h) as it stands in the papers."""
    n = v.flatten(1)
    scale = n.sum(1) if isinstance(rbm.visible, units.Count) else torch.ones(len(v), dtype=F64)
    energy = -(n @ rbm.visible_bias)[:, None] - scale[:, None] * (h.flatten(1) @ rbm.hidden_bias)
    return (energy - n @ rbm.weight @ h.flatten(1).T).detach()


@pytest.mark.parametrize("hidden", HIDDEN, ids=str)
@pytest.mark.parametrize("visible", VISIBLE, ids=str)
def test_finite_units_by_enumeration(visible, hidden):
    rbm = randomize(RBM(visible, hidden))
    v, h = rbm.domain.states(dtype=F64), hidden.domain.states(dtype=F64)
    joint = tables(rbm, v, h)
    torch.testing.assert_close(joint, by_hand(rbm, v, h))
    torch.testing.assert_close(rbm(v).detach(), -torch.logsumexp(-joint, 1))
    measured = joint - orders(rbm, v)[:, None]
    torch.testing.assert_close(rbm.hidden_energy(h).detach(), -torch.logsumexp(-measured, 0))
    p_h = torch.softmax(-joint, 1)
    torch.testing.assert_close(rbm.hidden_mean(v).detach().flatten(1), p_h @ h.flatten(1))
    p_v = torch.softmax(-measured, 0).T
    torch.testing.assert_close(rbm.visible_mean(h).detach().flatten(1), p_v @ v.flatten(1))


@pytest.mark.parametrize("hidden", HIDDEN, ids=str)
@pytest.mark.parametrize("visible", VISIBLE, ids=str)
def test_tempered_and_annealed_machines_by_enumeration(visible, hidden):
    rbm = randomize(RBM(visible, hidden))
    v, h = rbm.domain.states(dtype=F64), hidden.domain.states(dtype=F64)
    joint = tables(rbm, v, h)
    for beta in (0.3, 1.7):
        torch.testing.assert_close(rbm.annealed(beta)(v).detach(), -torch.logsumexp(-beta * joint, 1))
    rows = torch.linspace(0.1, 2, len(v), dtype=F64)
    torch.testing.assert_close(rbm.annealed(rows)(v).detach(), -torch.logsumexp(-rows[:, None] * joint, 1))
    base = torch.randn(rbm.visible.size, generator=gen(5), dtype=F64)
    path = rbm.path(base)
    own = -(v.flatten(1) @ base)[:, None]
    for beta in (0.0, 0.4, 1.0):
        mixed = (1 - beta) * own + beta * joint
        torch.testing.assert_close(path.at(beta)(v).detach(), -torch.logsumexp(-mixed, 1))
    zero = -torch.logsumexp(-own.expand(-1, len(h)), 1)
    torch.testing.assert_close(path.log_z0(), torch.logsumexp(-zero + orders(rbm, v), 0))
    noise = path.noise(v, 1, gen())
    noise = tuple(part[0] for part in noise)
    moved, weight = path.anneal(v, torch.tensor(0.2, dtype=F64), torch.tensor(0.5, dtype=F64), noise)
    torch.testing.assert_close(weight, (path.at(0.2)(v) - path.at(0.5)(v)).detach())
    assert torch.equal(moved, path.at(0.5).gibbs_sweep(v, noise))


def grid(side, n):
    return torch.cartesian_prod(*[side] * n).reshape(-1, n), n * math.log(float(side[1] - side[0]))


@pytest.mark.parametrize("visible", [units.Bernoulli(4), units.Spin(3), units.Softmax(2, classes=3)], ids=str)
@pytest.mark.parametrize("hidden", [units.Gaussian(1, sigma=0.7), units.Gaussian(2), units.Rectified(2)], ids=str)
def test_real_hidden_units_by_quadrature(visible, hidden):
    rbm = randomize(RBM(visible, hidden), scale=0.4)
    v = rbm.domain.states(dtype=F64)
    lower = 0.0 if isinstance(hidden, units.Rectified) else -20.0
    side = torch.linspace(lower, 20 if lower else 12, 401, dtype=F64)
    if lower == 0.0:
        side = side[:-1] + (side[1] - side[0]) / 2  # midpoints: the wall is half a cell away
    h, log_cell = grid(side, hidden.n)
    joint = tables(rbm, v, h)
    torch.testing.assert_close(rbm(v).detach(), -torch.logsumexp(-joint, 1) - log_cell, atol=1e-3, rtol=0)
    mean = torch.softmax(-joint, 1) @ h
    torch.testing.assert_close(rbm.hidden_mean(v).detach(), mean, atol=1e-3, rtol=0)
    own = -torch.logsumexp(-joint, 0)
    torch.testing.assert_close(rbm.hidden_energy(h).detach(), own)
    for beta in (0.5, 1.5):
        tempered = -torch.logsumexp(-beta * joint, 1) - log_cell
        torch.testing.assert_close(rbm.annealed(beta)(v).detach(), tempered, atol=1e-3, rtol=0)
    path = rbm.path(torch.randn(rbm.visible.size, generator=gen(1), dtype=F64))
    torch.testing.assert_close(path.at(1.0)(v), rbm(v))
    torch.testing.assert_close(torch.logsumexp(-path.at(0.0)(v), 0), path.log_z0())


@pytest.mark.parametrize("visible", [units.Gaussian(2, sigma=torch.tensor([0.6, 1.3])), units.Rectified(2)], ids=str)
@pytest.mark.parametrize("hidden", [units.Bernoulli(3), units.Spin(3)], ids=str)
def test_real_visible_units_by_quadrature(visible, hidden):
    rbm = RBM(visible, hidden).double()
    g = gen()
    with torch.no_grad():
        for parameter in (rbm.weight, rbm.visible_bias, rbm.hidden_bias):
            parameter.copy_(0.6 * torch.randn(parameter.shape, generator=g, dtype=F64))
    real = isinstance(visible, units.Gaussian)
    side = torch.linspace(-12 if real else 0, 12, 401, dtype=F64)
    if not real:
        side = side[:-1] + (side[1] - side[0]) / 2
    v, log_cell = grid(side, 2)
    h = hidden.domain.states(dtype=F64)
    joint = tables(rbm, v, h)
    if real:  # as in the papers
        sigma = rbm.visible.sigma.detach()
        paper = ((v - rbm.visible_bias) ** 2 / (2 * sigma**2)).sum(1)[:, None] - h @ rbm.hidden_bias
        torch.testing.assert_close(joint, (paper - (v / sigma) @ rbm.weight @ h.T).detach())
    torch.testing.assert_close(rbm(v).detach(), -torch.logsumexp(-joint, 1))
    torch.testing.assert_close(rbm.hidden_energy(h).detach(), -torch.logsumexp(-joint, 0) - log_cell, atol=1e-3, rtol=0)
    p_v = torch.softmax(-joint, 0).T
    torch.testing.assert_close(rbm.visible_mean(h).detach(), p_v @ v, atol=1e-3, rtol=0)
    data = v[torch.multinomial(torch.softmax(-rbm(v), 0).detach(), 500, generator=g, replacement=True)]
    path = rbm.path(data=data)
    for beta in (0.0, 0.5, 1.0):
        log_z = torch.logsumexp(-path.at(beta)(v), 0).detach() + log_cell
        if beta == 0:
            torch.testing.assert_close(path.log_z0(), log_z, atol=1e-3, rtol=0)
        if beta == 1:
            torch.testing.assert_close(torch.logsumexp(-rbm.hidden_energy(h), 0).detach(), log_z, atol=1e-3, rtol=0)


def test_gaussian_pairs_are_gaussian_and_refused_when_they_are_not():
    rbm = randomize(RBM(units.Gaussian(3, sigma=0.5), units.Gaussian(2, sigma=2.0)), scale=0.2)
    weight, v = rbm.weight.detach(), torch.randn(6, 3, generator=gen(), dtype=F64)
    sv, sh = rbm.visible.sigma.detach(), rbm.hidden.sigma.detach()
    precision = torch.eye(5, dtype=F64)
    precision[:3, 3:] = -weight
    precision[3:, :3] = -weight.T
    scale = torch.cat([sv, sh])
    linear = torch.cat([rbm.visible_bias / sv, rbm.hidden_bias / sh]).detach()  # in units of sigma
    cov = torch.linalg.inv(precision)
    law = torch.distributions.MultivariateNormal((cov @ linear * scale)[:3], (cov * scale * scale[:, None])[:3, :3])
    gap = rbm(v).detach() + law.log_prob(v)
    torch.testing.assert_close(gap, gap[:1].expand(6))
    with torch.no_grad():
        rbm.weight.mul_(1.01 / torch.linalg.matrix_norm(rbm.weight, 2))
    for use in (lambda: rbm(v), lambda: rbm.gibbs_noise(v, 1, gen()), lambda: rbm.annealed(0.5)(v)):
        with pytest.raises(DivergenceError, match="singular value"):
            use()


def test_rectified_pairs_need_a_small_positive_part():
    rbm = RBM(units.Rectified(2), units.Rectified(2)).double()
    with torch.no_grad():
        rbm.weight.copy_(torch.tensor([[-5.0, 0.3], [0.2, -5.0]]))
    side = torch.linspace(0, 12, 401, dtype=F64)
    v, _ = grid(side[:-1] + 0.015, 2)
    assert torch.isfinite(rbm(v)).all()
    with torch.no_grad():
        rbm.weight[0, 0] = 1.0
    with pytest.raises(DivergenceError):
        rbm(v)


def transition(rbm, v, h, joint, measure):
    """p(v' | v) of one block sweep."""
    p_h = torch.softmax(-joint, 1)
    p_v = torch.softmax(-joint + measure[:, None], 0).T
    return p_h @ p_v


def test_block_gibbs_leaves_the_law_invariant_by_its_transition_matrix():
    rbm = randomize(RBM(4, 3), scale=1.0)
    v, h = rbm.domain.states(dtype=F64), units.Bernoulli(3).domain.states(dtype=F64)
    bits = lambda p, x: (torch.where(x.bool(), p, 1 - p)).prod(-1)  # noqa: E731
    up = bits(rbm.hidden_mean(v)[:, None], h[None]).detach()
    down = bits(rbm.visible_mean(h)[:, None], v[None]).detach()
    p, pi = up @ down, torch.softmax(-rbm(v), 0).detach()
    torch.testing.assert_close(pi @ p, pi)
    flow = pi[:, None] * p
    torch.testing.assert_close(flow, flow.T)  # up and down again is reversible


@pytest.mark.parametrize("visible", VISIBLE, ids=str)
@pytest.mark.parametrize("hidden", [units.Bernoulli(3), units.Softmax(2, classes=2)], ids=str)
def test_sweeps_started_exactly_have_the_exact_joint_law(visible, hidden):
    """(v, v') of one sweep against π(v) P(v'|v): Pearson's statistic within 5 standard deviations."""
    rbm = randomize(RBM(visible, hidden), scale=0.8)
    v, h = rbm.domain.states(dtype=F64), hidden.domain.states(dtype=F64)
    joint, measure = tables(rbm, v, h), orders(rbm, v)
    pi = torch.softmax(-rbm(v).detach() + measure, 0)
    p = transition(rbm, v, h, joint, measure)
    torch.testing.assert_close(pi @ p, pi)
    n = 60000
    start = torch.multinomial(pi, n, generator=gen(), replacement=True)
    noise = rbm.gibbs_noise(v[start], 1, gen(1))
    end = rbm.gibbs_sweep(v[start], tuple(part[0] for part in noise))
    index = (end.flatten(1)[:, None] == v.flatten(1)).all(2).double().argmax(1)
    counts = torch.bincount(start * len(v) + index, minlength=len(v) ** 2).double()
    expected = n * (pi[:, None] * p).flatten()
    keep = expected > 5
    stat, freedom = ((counts - expected)[keep] ** 2 / expected[keep]).sum(), int(keep.sum())
    assert float(stat) < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("visible", "hidden"),
    [(units.Gaussian(2, sigma=0.7), units.Bernoulli(3)), (units.Rectified(2), units.Spin(2)),
     (units.Spin(3), units.Gaussian(2)), (units.Bernoulli(3), units.Rectified(2)),
     (units.Gaussian(2), units.Gaussian(2)), (units.Gaussian(2), units.Rectified(2))],
    ids=str,
)  # fmt: skip
def test_sweeps_of_real_units_keep_exact_moments(visible, hidden):
    """Exact draws by quadrature, then three sweeps: means and second moments within 4.5 standard errors."""
    rbm = RBM(visible, hidden).double()
    g = gen()
    with torch.no_grad():
        for parameter in (rbm.weight, rbm.visible_bias, rbm.hidden_bias):
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=g, dtype=F64))
    if visible.real:
        low = 0.0 if isinstance(visible, units.Rectified) else -8.0
        side = torch.linspace(low, 8, 801, dtype=F64)
        v, _ = grid((side[:-1] + side[1:]) / 2, 2)
    else:
        v = rbm.domain.states(dtype=F64)
    p = torch.softmax(-rbm(v).detach(), 0)
    n = 40000
    x = v[torch.multinomial(p, n, generator=g, replacement=True)]
    for _ in range(3):
        x = rbm.gibbs_sweep(x, tuple(part[0] for part in rbm.gibbs_noise(x, 1, g)))
    for f in (lambda t: t, torch.square, lambda t: t[:, :1] * t[:, 1:2]):
        exact, spread = p @ f(v), (p @ f(v) ** 2 - (p @ f(v)) ** 2).clamp(min=0).sqrt()
        # 1e-3: the grid, whose cells the starting points sit in the middle of
        assert ((f(x).mean(0) - exact).abs() < 4.5 * spread / math.sqrt(n) + 1e-3).all()


def test_clamped_entries_complete_from_their_conditional():
    rbm = randomize(RBM(5, 3), scale=1.0)
    v = rbm.domain.states(dtype=F64)
    x0 = torch.tensor([[1.0, 0, 1, 0, 0], [0, 1, 0, 0, 1]], dtype=F64).repeat(8000, 1)
    clamp = torch.tensor([[True, True, False, False, False], [False, True, True, False, True]]).repeat(8000, 1)
    last = gb.sample(rbm, kernels.Gibbs(), x0, steps=60, burn_in=59, clamp=clamp, generator=gen()).last
    assert torch.equal(last[clamp], x0[clamp])
    p = torch.softmax(-rbm(v).detach(), 0)
    for chain in (0, 1):
        held = clamp[chain]
        fits = (v[:, held] == x0[chain, held]).all(1)
        exact = (p[fits] / p[fits].sum()) @ v[fits]
        error = (exact * (1 - exact) / 8000).clamp(min=0).sqrt()
        assert ((last[chain::2].mean(0) - exact).abs() <= 4.5 * error + 1e-12).all()


def test_chains_do_not_depend_on_the_chunk():
    rbm = randomize(RBM(units.Gaussian(3), 2), scale=0.4)
    x0 = torch.zeros(5, 3, dtype=F64)
    whole = gb.sample(rbm, kernels.Gibbs(), x0, steps=25, generator=gen()).samples
    g = gen()
    first = gb.sample(rbm, kernels.Gibbs(), x0, steps=7, generator=g)
    second = gb.sample(rbm, kernels.Gibbs(), first, steps=18, generator=g)
    assert torch.equal(whole, torch.cat([first.samples, second.samples]))


def test_documents_of_different_lengths_keep_them():
    rbm = randomize(RBM(units.Count(4), 3))
    n = torch.tensor([[1.0, 0, 2, 0], [0, 5, 0, 1], [0, 0, 0, 1]], dtype=F64)
    lengths = n.sum(1)
    for _ in range(5):
        n = rbm.gibbs_sweep(n, tuple(part[0] for part in rbm.gibbs_noise(n, 1, gen())))
        assert torch.equal(n.sum(1), lengths)
    h = torch.ones(3, 3, dtype=F64)
    assert torch.equal(rbm.sample_visible(h, generator=gen(), total=lengths).sum(1), lengths)
    assert torch.equal(rbm.reconstruct(n).sum(1).round(), lengths)


def test_samples_of_layers_and_bias_initialization():
    rbm = randomize(RBM(4, 3))
    v = torch.ones(20000, 4, dtype=F64)
    h = rbm.sample_hidden(v, generator=gen())
    p = rbm.hidden_mean(v[:1]).detach()
    assert ((h.mean(0) - p).abs() < 4.5 * (p * (1 - p) / 20000).sqrt()).all()
    back = rbm.sample_visible(torch.ones(20000, 3, dtype=F64), generator=gen())
    q = rbm.visible_mean(torch.ones(1, 3, dtype=F64)).detach()
    assert ((back.mean(0) - q).abs() < 4.5 * (q * (1 - q) / 20000).sqrt()).all()
    data = (torch.rand(3000, 4, generator=gen(), dtype=F64) < 0.2).double()
    rbm.initialize_visible_bias(data)
    torch.testing.assert_close(torch.sigmoid(rbm.visible_bias).detach(), data.mean(0), atol=1e-3, rtol=0)
    assert rbm.reconstruct(v[:2]).shape == (2, 4)


def test_parameters_start_alike_and_leave_global_randomness_alone():
    before = torch.get_rng_state()
    a, b = RBM(5, 4), RBM(5, 4)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(a.weight, b.weight)
    assert not torch.equal(a.weight, RBM(5, 4, generator=gen()).weight)
    unit = units.Gaussian(2)
    first, second = RBM(unit, 2), RBM(unit, 2)
    assert first.visible.log_sigma is not second.visible.log_sigma


@pytest.mark.parametrize(("bad", "error"), [
    (lambda: RBM(0, 5), ArgumentError),
    (lambda: RBM(5, -1), ArgumentError),
    (lambda: RBM("five", 2), ArgumentError),
    (lambda: RBM(3, units.Count(3, total=2)), ArgumentError),
    (lambda: RBM(units.Count(3), units.Gaussian(2)), ArgumentError),
    (lambda: RBM(3, 2, products="int4"), ArgumentError),
    (lambda: RBM(3, 2).path(torch.zeros(4)), ShapeError),
    (lambda: RBM(3, 2).path(torch.zeros(3), data=torch.zeros(2, 3)), ArgumentError),
    (lambda: RBM(3, 2).path(data=torch.full((2, 3), 0.5)), DomainError),
    (lambda: RBM(3, 2).initialize_visible_bias(torch.full((2, 3), 0.5)), DomainError),
    (lambda: RBM(3, 2).annealed(torch.ones(2, 2)), ArgumentError),
    (lambda: gb.sample(RBM(3, 2), kernels.Gibbs(), torch.full((2, 3), 0.5), steps=1, generator=gen()), DomainError),
    (lambda: RBM(3, 2).gibbs_noise(torch.zeros(2, 3), 1, None), GibbsianError),
])  # fmt: skip
def test_bad_input_is_refused(bad, error):
    with pytest.raises(error) as caught:
        bad()
    assert len(str(caught.value)) > 25


# --- the fast path of contrastive divergence --------------------------------------------------------


def plain_gradient(rbm, batch, samples):
    """Value and gradients of the same contrast by autograd."""
    copy = RBM(rbm.visible.n, rbm.hidden.n).to(rbm.weight.dtype)
    copy.load_state_dict(rbm.state_dict())
    value = copy(batch).mean() - copy(samples).mean()
    value.backward()
    return value.detach(), [p.grad for p in copy.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("chains", [None, 10, 7])
@pytest.mark.parametrize("steps", [1, 3])
def test_contrast_has_the_value_and_gradient_of_its_samples(steps, chains, dtype):
    rbm = randomize(RBM(9, 5), scale=1.0).to(dtype)
    batch = (torch.rand(10, 9, generator=gen()) < 0.4).to(dtype)
    start = None if chains is None else (torch.rand(chains, 9, generator=gen(3)) < 0.6).to(dtype)
    value, samples, _ = rbm.contrast(batch, start, steps, gen(1))
    assert samples.shape == (chains or 10, 9)
    assert rbm.domain.contains(samples).all()
    exact, gradients = plain_gradient(rbm, batch, samples)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {}
    torch.testing.assert_close(value.detach(), exact, **close)
    (0.25 * value).backward()
    for p, g in zip(rbm.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, 0.25 * g, **close)


def test_gradients_are_those_that_backward_would_put_there():
    batch = (torch.rand(10, 9, generator=gen()) < 0.4).double()
    plain, taken = (randomize(RBM(9, 5), scale=1.0).double() for _ in range(2))
    plain.contrast(batch, None, 1, gen(1)).value.backward()
    taken.visible_bias.requires_grad_(False)
    _, _, gradients = taken.contrast(batch, None, 1, gen(1))
    assert set(gradients) == {taken.weight, taken.hidden_bias}
    assert torch.equal(gradients[taken.weight], plain.weight.grad)
    assert torch.equal(gradients[taken.hidden_bias], plain.hidden_bias.grad)


@pytest.mark.parametrize("chains", [None, 5])
def test_contrast_for_the_compiler_is_the_plain_one_to_rounding(chains):
    from gibbsian.models.rbm.fused import fused_contrast

    rbm, x = randomize(RBM(4, 3), scale=1.0).double(), (torch.rand(7, 4, generator=gen(1)) < 0.5).double()
    start = None if chains is None else (torch.rand(chains, 4, generator=gen(2)) < 0.5).double()
    plain, v, _ = rbm.contrast(x, start, 2, gen(3))
    g, m = gen(3), chains or 7
    coins = [torch.rand(m * 7, generator=g, dtype=torch.float64) for _ in range(2)]
    b, c = rbm.visible_bias.detach(), rbm.hidden_bias.detach()
    value, samples, gradient = fused_contrast(rbm.weight.detach(), b, c, x, start, coins)
    assert torch.equal(samples, v)
    assert torch.allclose(value, plain)
    for a, p in zip(gradient, torch.autograd.grad(plain, list(rbm.parameters())), strict=True):
        assert torch.allclose(a, p)
    compiled, w, known = rbm.contrast(x, start, 2, gen(3), fused=True)
    for p, a in zip(rbm.parameters(), gradient, strict=True):
        assert torch.allclose(known[p], a)
    assert torch.equal(w, v)
    for a, p in zip(torch.autograd.grad(compiled, list(rbm.parameters())), gradient, strict=True):
        assert torch.allclose(a, p)


def test_contrast_draws_from_the_transition_law():
    """(v, v') of CD-1 from exact starts against π(v)P(v'|v), in single precision with fused products."""
    rbm = randomize(RBM(4, 3), scale=0.9)
    v, h = rbm.domain.states(dtype=F64), units.Bernoulli(3).domain.states(dtype=F64)
    joint, measure = tables(rbm, v, h), torch.zeros(16, dtype=F64)
    p, pi = transition(rbm, v, h, joint, measure), torch.softmax(-rbm(v).detach(), 0)
    rbm.float()
    n = 60000
    start = torch.multinomial(pi, n, generator=gen(), replacement=True)
    weights = 2.0 ** torch.arange(3, -1, -1)
    for chains in (None, v[start].float()):
        batch = v[start].float() if chains is None else torch.zeros(5, 4)
        _, samples, _ = rbm.contrast(batch, chains, 1, gen(1))
        counts = torch.bincount(start * 16 + (samples @ weights).long(), minlength=256).double()
        expected = n * (pi[:, None] * p).flatten()
        keep = expected > 5
        stat, freedom = ((counts - expected)[keep] ** 2 / expected[keep]).sum(), int(keep.sum())
        assert float(stat) < freedom + 5 * math.sqrt(2 * freedom)


def test_contrast_is_right_when_activations_saturate():
    rbm = randomize(RBM(6, 4), scale=1.0).float()
    with torch.no_grad():
        rbm.weight.mul_(100)  # logits of hundreds: probabilities underflow to 0
    batch = (torch.rand(12, 6, generator=gen()) < 0.5).float()
    value, samples, _ = rbm.contrast(batch, None, 1, gen(1))
    exact, _ = plain_gradient(rbm, batch, samples)
    torch.testing.assert_close(value.detach(), exact, rtol=1e-5, atol=1e-3)


def test_half_precision_products_stay_close():
    full = randomize(RBM(40, 30), scale=0.3).float()
    half = RBM(40, 30, products="bf16")
    half.load_state_dict(full.state_dict())
    batch = (torch.rand(64, 40, generator=gen()) < 0.5).float()
    chains = (torch.rand(32, 40, generator=gen(2)) < 0.5).float()
    value, samples, _ = half.contrast(batch, chains, 1, gen(1))
    assert half.weight.dtype == torch.float32
    assert samples.dtype == torch.float32
    exact, gradients = plain_gradient(full, batch, samples)
    value.backward()
    torch.testing.assert_close(value.detach(), exact, rtol=0, atol=0.05)
    for p, g in zip(half.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=0, atol=4e-3)  # a few units of 2^-8 of probabilities over 1


def test_contrast_of_other_units_and_refusals():
    rbm = randomize(RBM(units.Gaussian(3), 2), scale=0.3)
    batch = torch.randn(6, 3, generator=gen(), dtype=F64)
    value, samples, _ = rbm.contrast(batch, None, 2, gen(1))
    value.backward()
    assert samples.shape == (6, 3)
    assert torch.isfinite(rbm.visible.log_sigma.grad).all()
    plain = RBM(3, 2)
    value, _, _ = plain.contrast(torch.ones(2, 3), None, 1, gen())
    value.backward(retain_graph=True)
    value.backward()
    again = RBM(3, 2)
    again.contrast(torch.ones(2, 3), None, 1, gen()).value.backward()
    assert torch.equal(plain.weight.grad, 2 * again.weight.grad)
    with pytest.raises(ArgumentError):
        plain.contrast(torch.ones(2, 3), None, 0, gen())
    with pytest.raises(ArgumentError):
        RBM(units.Spin(3), 2, products="bf16")
    with pytest.raises(GibbsianError):
        plain.contrast(torch.ones(2, 3), None, 1, None)
