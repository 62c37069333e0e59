"""ICA, products and fields of experts against closed forms, quadrature, brute force and exact starts."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch

import gibbsian as gb
from gibbsian import energies, kernels, metrics, objectives, partition
from gibbsian.energies.experts import strength
from gibbsian.energies.ica import SOURCES
from gibbsian.errors import ArgumentError, CapabilityError, DataError, ShapeError
from gibbsian.testing import check_energy, check_invariance, check_kernel
from gibbsian.training.serialize import describe, rebuild

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def rnd(*shape, seed=0):
    return torch.randn(*shape, generator=gen(seed), dtype=F64)


def ica(dim=2, sources="logistic", seed=0):
    model = energies.ICA(dim, sources).double()
    with torch.no_grad():
        model.weight.copy_(rnd(dim, dim, seed=seed) + torch.eye(dim, dtype=F64))
        model.mean.copy_(rnd(dim, seed=seed + 1))
    return model


def product(dim=2, experts=2, seed=0, alpha=1.5, confine=0.0):
    model = energies.ProductOfExperts(dim, experts, alpha=alpha, confine=confine, generator=gen(seed)).double()
    with torch.no_grad():
        model.log_alpha.add_(0.2 * rnd(experts, seed=seed + 1))
    return model


# --- ICA --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sources", ["logistic", "laplace", "two humps", ("laplace", "two humps")])
def test_ica_is_normalized_and_draws_from_its_law(sources):
    """Quadrature gives log Z = 0, and exact draws stay in their law under Metropolis (false alarms 1e-6)."""
    done = check_energy(ica(2, sources), generator=gen())
    assert done == ["rows", "score", "log_z", "sample"]


@pytest.mark.parametrize("name", SOURCES)
def test_the_deviations_of_sources_are_those_of_their_densities(name):
    s = torch.linspace(-60, 60, 240001, dtype=F64)
    p = torch.exp(-SOURCES[name].energy(s))
    assert float(torch.trapezoid(p, s)) == pytest.approx(1, abs=1e-7)
    assert float(torch.trapezoid(p * s**2, s)) == pytest.approx(SOURCES[name].deviation ** 2, rel=1e-6)


def test_ica_on_the_wrong_side_of_the_gaussian_is_told():
    """Uniform sources are sub-Gaussian, Laplace ones super-Gaussian; the test finds which is which."""
    s = torch.rand(5000, 3, generator=gen(), dtype=F64) - 0.5
    s[:, 1] = torch.distributions.Laplace(0.0, 1.0).icdf(s[:, 1] + 0.5).to(F64)
    model = energies.ICA(3).double()
    assert model.match_sources(s) == ["two humps", "logistic", "two humps"]
    assert torch.isfinite(model(s)).all()
    tensors = {}
    again = rebuild(describe(model, tensors), tensors)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(s), model(s))
    assert again.sources == model.sources


def laplace_mixture(d=3, n=4000, seed=0):
    s = torch.distributions.Laplace(0.0, 1.0).icdf(torch.rand(n, d, generator=gen(seed), dtype=F64)).to(F64)
    a = rnd(d, d, seed=seed + 1) + torch.eye(d, dtype=F64)
    return s @ a.T, a


def whitened(x, a):
    """The data on their whitened coordinates, and the mixing seen from there."""
    start = energies.ICA(x.shape[1]).double()
    start.whiten(x)
    scale = math.sqrt(3) / math.pi
    return start.components(x).detach() * scale, start.weight.detach() @ a * scale


PRINCIPLES = {
    "likelihood": objectives.ExactLikelihood(),
    "score matching": objectives.ImplicitScoreMatching(),
    "noise contrast": objectives.NoiseContrastive("gaussian", ratio=5),
    "contrastive divergence": objectives.ContrastiveDivergence(kernels.HMC(0.35, 4), steps=2),
}


@pytest.mark.parametrize("principle", PRINCIPLES)
def test_every_principle_recovers_the_mixing(principle):
    """Amari distance of 3 Laplace sources; the standard error of an entry with 4000 rows is about 0.02."""
    x, a = whitened(*laplace_mixture())
    model = energies.ICA(3).double()
    model.whiten(x)
    before = float(metrics.amari_distance(model.weight, a))
    gb.fit(model, PRINCIPLES[principle], x, steps=250, batch_size=500, lr=0.03, schedule="cosine")
    after = float(metrics.amari_distance(model.weight, a))
    assert before > 0.15
    assert after < 0.05


@pytest.mark.parametrize(("sources", "found"), [("two humps", True), ("logistic", False)])
def test_sub_gaussian_sources_need_a_density_on_their_side(sources, found):
    """Uniform sources: two humps undo the mixing, while the logistic density turns away from it."""
    s = torch.rand(4000, 2, generator=gen(), dtype=F64) - 0.5
    x, a = whitened(s @ (rnd(2, 2, seed=3) + torch.eye(2, dtype=F64)).T, rnd(2, 2, seed=3) + torch.eye(2, dtype=F64))
    model = energies.ICA(2, sources).double()
    model.whiten(x)
    gb.fit(model, objectives.ExactLikelihood(), x, steps=250, batch_size=1000, lr=0.03, schedule="cosine")
    assert (float(metrics.amari_distance(model.weight, a)) < 0.05) == found


def test_whitening_starts_at_unit_components_and_refuses_flat_data():
    x, _ = laplace_mixture()
    model = energies.ICA(3).double()
    model.whiten(x)
    s = model.components(x)
    torch.testing.assert_close(torch.cov(s.T), torch.eye(3, dtype=F64) * math.pi**2 / 3)
    with pytest.raises(DataError, match="principal"):
        model.whiten(torch.cat([x[:, :2], x[:, :1]], 1))
    with pytest.raises(ShapeError, match="rows"):
        model.whiten(x[:3])
    with pytest.raises(ArgumentError, match="two humps"):
        energies.ICA(2, "gaussian")


def test_amari_distance_sees_order_sign_and_scale_as_nothing():
    p = torch.zeros(4, 4, dtype=F64)
    p[torch.arange(4), torch.tensor([2, 0, 3, 1])] = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=F64)
    a = rnd(4, 4)
    w = p @ torch.linalg.inv(a)
    assert float(metrics.amari_distance(w, a)) < 1e-12
    worse = (p + 0.1 * p.abs().amax(1, keepdim=True)) @ torch.linalg.inv(a)
    assert 0.08 < float(metrics.amari_distance(worse, a)) < 0.4
    with pytest.raises(ShapeError):
        metrics.amari_distance(torch.ones(2, 3), torch.ones(3, 2))


# --- products of experts ----------------------------------------------------------------------------


def test_a_square_product_knows_its_log_z_and_draws_exactly():
    assert check_energy(product(), generator=gen()) == ["rows", "score", "log_z", "sample"]


def test_responses_of_exact_draws_are_student_t():
    """(1 + z²/2)^-α is a Student-t of 2α - 1 degrees, scaled: Kolmogorov-Smirnov, false alarms 1e-6."""
    model = product()
    z = model.responses(model.sample(50000, generator=gen())).detach()
    for k, alpha in enumerate(model.alpha.tolist()):
        df = 2 * alpha - 1
        assert scipy.stats.kstest(z[:, k].numpy() * math.sqrt(df / 2), "t", args=(df,)).pvalue > 1e-6


def test_square_likelihood_can_be_trained():
    x = product(seed=5).sample(2000, generator=gen(1))
    model = product(seed=7)
    loss = objectives.ExactLikelihood()(model, x, (), gen()).value.detach()
    gb.fit(model, objectives.ExactLikelihood(), x, steps=300, batch_size=2000, lr=0.03)
    truth = objectives.ExactLikelihood()(product(seed=5), x, (), gen()).value.detach()
    end = objectives.ExactLikelihood()(model, x, (), gen()).value.detach()
    assert end < loss - 0.05
    assert abs(end - truth) < 0.02


@pytest.mark.parametrize("experts", [3, 5])
def test_overcomplete_log_z_by_quadrature_needs_the_tools(experts):
    model = product(2, experts)
    with pytest.raises(CapabilityError, match="square"):
        model.log_z()
    with pytest.raises(CapabilityError, match="square"):
        model.sample(3, generator=gen())
    assert math.isfinite(float(partition.quadrature(model, tolerance=1e-6).value))


def brute_strength(w, c):
    """Over all subspaces spanned by subsets."""
    n, d = w.shape
    best = math.inf
    for k in range(d):
        for subset in itertools.combinations(range(n), k):
            span = w[list(subset)]
            rank = np.linalg.matrix_rank(span) if k else 0
            outside = [i for i in range(n) if np.linalg.matrix_rank(np.vstack([span, w[i : i + 1]])) > rank]
            best = min(best, c[outside].sum() / (d - rank))
    return best


@pytest.mark.parametrize("seed", range(6))
def test_strength_is_the_minimum_over_subspaces(seed):
    rng = np.random.default_rng(seed)
    d, n = 3, 7
    w = rng.integers(-1, 2, (n, d)).astype(float) if seed % 2 else rng.normal(size=(n, d))
    w[:d] += 3 * np.eye(d)
    c = rng.uniform(0.05, 1.0, n)
    assert strength(w, c) == pytest.approx(brute_strength(w, c), rel=1e-7)


def test_what_is_not_normalizable_is_refused():
    """Four experts, but three of them look at one direction, and the other's tail is too heavy alone."""
    model = product(2, 4, alpha=0.6)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0], [2.0, 0], [3.0, 0], [0, 1.0]]))
        model.log_alpha[-1] = math.log(0.49)
    assert model.strength() == pytest.approx(0.98)
    with pytest.raises(ArgumentError, match="not normalizable"):
        model.require_normalizable()
    product(2, 4, alpha=0.1, confine=0.1).require_normalizable()
    with torch.no_grad():
        model.weight[-1] = torch.tensor([1.0, 0])
    assert model.strength() == 0


@pytest.mark.parametrize("confine", [0.0, 0.7])
def test_block_gibbs_leaves_a_square_or_confined_product_alone(confine):
    """From exact draws (rejection for the confined one) nothing moves, with and without a clamp: false alarms 1e-6."""
    model = product(2, 2, alpha=2.0, confine=confine)
    bare = product(2, 2, alpha=2.0)
    x = bare.sample(60000, generator=gen(2))
    if confine:
        keep = torch.rand(len(x), generator=gen(3), dtype=F64) < torch.exp(-0.5 * confine * x.square().sum(1))
        x = x[keep]
    check_invariance(model, kernels.Gibbs(), draws=x, steps=3, generator=gen(4))


def test_block_gibbs_of_an_overcomplete_product_has_the_moments_of_quadrature():
    model = product(2, 4, alpha=1.5)
    grid = torch.linspace(-25, 25, 1201, dtype=F64)
    x = torch.cartesian_prod(grid, grid)
    p = torch.softmax(-model(x).detach(), 0)
    f = torch.stack([x[:, 0].abs(), x[:, 1].abs(), (x[:, 0] * x[:, 1]).tanh()], 1)
    truth = (p[:, None] * f).sum(0)
    trace = gb.sample(model, kernels.Gibbs(), torch.zeros(400, 2, dtype=F64), steps=120, burn_in=20, generator=gen())
    y = trace.samples
    seen = torch.stack([y[..., 0].abs(), y[..., 1].abs(), (y[..., 0] * y[..., 1]).tanh()], -1).mean(0)
    z = (seen.mean(0) - truth) / (seen.std(0) / math.sqrt(len(seen)))
    assert z.abs().max() < 4.5


def test_gibbs_conforms_and_respects_a_clamp():
    model = product(3, 4)
    check_kernel(kernels.Gibbs(), model, rnd(6, 3), generator=gen())
    clamp = torch.tensor([True, False, False])
    x0 = rnd(6, 3)
    trace = gb.sample(model, kernels.Gibbs(), x0, steps=5, clamp=clamp, generator=gen())
    assert torch.equal(trace.last[:, 0], x0[:, 0])
    assert not torch.equal(trace.last[:, 1], x0[:, 1])


def test_clamped_gibbs_draws_from_the_conditional_law():
    """Moments of the free entry given the other, by quadrature: within 4.5 standard errors over 500 chains."""
    model = product(2, 3)
    grid = torch.linspace(-60, 60, 40001, dtype=F64)
    p = torch.softmax(-model(torch.stack([torch.full_like(grid, 2.0), grid], 1)).detach(), 0)
    x0 = torch.tensor([[2.0, 0.0]], dtype=F64).repeat(500, 1)
    clamp = torch.tensor([True, False])
    y = gb.sample(model, kernels.Gibbs(), x0, steps=60, burn_in=20, clamp=clamp, generator=gen()).samples[..., 1]
    for f in (torch.tanh, torch.abs, lambda v: torch.tanh(v).square()):
        chains = f(y).mean(0)
        z = (chains.mean() - p @ f(grid)) / (chains.std() / math.sqrt(500))
        assert abs(float(z)) < 4.5


# --- fields of experts ------------------------------------------------------------------------------


def field(shape=(5, 6), **options):
    model = energies.FieldOfExperts(shape, filters=3, size=3, scale=2.0, **options).double()
    with torch.no_grad():
        model.log_alpha.add_(0.2 * rnd(3))
    return model


def test_a_field_is_a_product_with_shared_filters():
    """The energy, term by term at every place, and filters of mean zero."""
    model = field(confine=0.3)
    x = rnd(2, 5, 6)
    total = 0.15 * x.flatten(1).square().sum(1)
    for w, a in zip(model.weight, model.alpha, strict=True):
        assert abs(float(w.detach().mean())) < 1e-7
        for i, j in itertools.product(range(3), range(4)):
            z = (x[:, i : i + 3, j : j + 3] * w).sum((1, 2))
            total = total + a * torch.log(1 + z**2 / 2)
    torch.testing.assert_close(model(x), total)
    shift = model(x + 5.0) - 0.15 * (x + 5.0).flatten(1).square().sum(1)
    torch.testing.assert_close(shift, model(x) - 0.15 * x.flatten(1).square().sum(1), atol=1e-5, rtol=1e-5)


def test_fields_keep_the_promises_of_energies():
    check_energy(field(), rnd(5, 5, 6), generator=gen())
    check_energy(field(box=(0.0, 1.0)), torch.rand(5, 5, 6, generator=gen(), dtype=F64), generator=gen())
    check_kernel(kernels.Gibbs(), field(), rnd(4, 5, 6), generator=gen())
    tensors = {}
    big = field().resized((7, 8))
    again = rebuild(describe(big, tensors), tensors)
    again.load_state_dict(big.state_dict())
    x = rnd(2, 7, 8)
    assert torch.allclose(again.double()(x), big(x))


def test_resizing_shares_the_parameters():
    small = field()
    big = small.resized((9, 4))
    with torch.no_grad():
        small.log_alpha.add_(1.0)
    assert torch.equal(big.alpha, small.alpha)
    assert (tuple(big.domain.shape), tuple(small.domain.shape)) == ((9, 4), (5, 6))
    with pytest.raises(ShapeError, match="smaller"):
        small.resized((2, 9))


@pytest.mark.parametrize("clamped", [False, True])
def test_the_gaussian_step_of_a_field_is_the_dense_one(clamped):
    """Conjugate gradients against the dense product of experts with one row for each place."""
    model = field((4, 5), confine=0.2)
    eye = torch.eye(20, dtype=F64).reshape(20, 4, 5)
    rows = model.responses(eye).reshape(20, -1).T.detach()
    dense = energies.ProductOfExperts(20, len(rows), confine=0.2).double()
    with torch.no_grad():
        dense.weight.copy_(rows)
        dense.log_alpha.copy_(model.log_alpha[:, None].expand(3, 6).flatten())
    x = rnd(3, 4, 5)
    noise = tuple(part[0] for part in model.gibbs_noise(x, 1, gen()))
    clamp = (torch.arange(20) % 3 == 0).reshape(4, 5) if clamped else None
    seen = model.gibbs_sweep(x, noise, clamp)
    want = dense.gibbs_sweep(
        x.flatten(1), tuple(p.flatten(1) for p in noise), None if clamp is None else clamp.flatten()
    )
    torch.testing.assert_close(seen.flatten(1), want, atol=1e-8, rtol=1e-8)


def test_a_walled_field_has_no_gibbs_and_says_what_has():
    model = field(box=(0.0, 1.0))
    with pytest.raises(CapabilityError, match="reflect"):
        gb.sample(model, kernels.Gibbs(), torch.rand(2, 5, 6, generator=gen(), dtype=F64), steps=1, generator=gen())
    with pytest.raises(ArgumentError, match="constant image"):
        energies.FieldOfExperts((5, 5), confine=0.0)
    with pytest.raises(ArgumentError, match="fit into it"):
        energies.FieldOfExperts((4, 4), size=5)
