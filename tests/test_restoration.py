"""Minima of energies against brute force and closed forms; posteriors against conjugate Gaussians and dense solves."""

import itertools
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gibbsian as gb
from gibbsian import domains, energies, kernels, models
from gibbsian.errors import ArgumentError, CapabilityError, ConvergenceWarning, DivergenceError, ShapeError
from gibbsian.testing import check_energy, check_invariance, check_kernel

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def rnd(*shape, seed=0):
    return torch.randn(*shape, generator=gen(seed), dtype=F64)


def gaussian(d=3, seed=0):
    root = rnd(d, d, seed=seed) + 2 * torch.eye(d, dtype=F64)
    return energies.Gaussian(rnd(d, seed=seed + 1), root @ root.T / d)


# --- minima -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["lbfgs", "gradient"])
def test_the_minimum_of_a_gaussian_is_its_mean_and_clamped_its_conditional_mean(method):
    energy, x0 = gaussian(), rnd(4, 3, seed=5)
    free = gb.minimize(energy, x0, method=method, steps=2000)
    torch.testing.assert_close(free.x, energy.mean.expand(4, 3), atol=1e-4, rtol=0)
    assert bool(free.converged.all())
    held = gb.minimize(energy, x0, method=method, clamp=torch.tensor([True, False, False]), steps=2000)
    p = energy.precision
    want = energy.mean[1:] - torch.linalg.solve(p[1:, 1:], p[1:, :1] @ (x0[:, :1] - energy.mean[0]).T).T
    torch.testing.assert_close(held.x[:, 1:], want, atol=1e-4, rtol=0)
    assert torch.equal(held.x[:, 0], x0[:, 0])


@pytest.mark.parametrize("method", ["lbfgs", "gradient"])
def test_walls_are_kept(method):
    slope = gb.as_energy(lambda x: x[:, 0] + (x[:, 1] - 0.3).square(), domains.Box(2))
    found = gb.minimize(slope, torch.full((2, 2), 0.7, dtype=F64), method=method, steps=400)
    torch.testing.assert_close(found.x, torch.tensor([[0.0, 0.3]] * 2, dtype=F64), atol=2e-3, rtol=0)
    half = gb.as_energy(lambda x: (x - 2).square().sum(1), domains.NonNegative(1))
    near = gb.minimize(half, torch.ones(1, 1, dtype=F64), method=method).x
    assert float(near) == pytest.approx(2.0, abs=1e-4)


def test_what_has_no_minimum_does_not_look_like_one():
    down = gb.as_energy(lambda x: -(x**3).sum(1), domains.Real(1))
    with pytest.raises(DivergenceError, match="without end"):
        gb.minimize(down, torch.ones(1, 1, dtype=F64))
    found = gb.minimize(gaussian(), rnd(2, 3), steps=1)
    assert not bool(found.converged.any())


def power(p, scale=1.0, offset=0.0, at=0.0):
    return gb.as_energy(lambda x: offset + scale * (x - at).abs().pow(p).sum(1), domains.Real(1))


WELLS = {  # an energy with its minimum at 3 (0 for the quartics), where to start, and how near a row at rest must be
    "quartic from afar": (power(4), 100.0, 0.0, 0.02),  # its gradient is below 1e-6 from 0.0063 on
    "steep": (power(2, 1e6, at=3.0), 10.0, 3.0, 1e-5),
    "shallow": (power(2, 1e-8, at=3.0), 10.0, 3.0, 1e-2),  # the gradient is below 1e-6 at the start already
    "a large constant": (power(2, offset=1e8, at=3.0), 10.0, 3.0, 1e-5),
    "far from the origin": (power(2, at=3.0), -1e5, 3.0, 1e-5),
}


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("method", ["lbfgs", "gradient"])
@pytest.mark.parametrize("name", WELLS)
def test_rows_that_are_called_at_rest_are_at_the_minimum(name, method, dtype):
    energy, start, minimum, near = WELLS[name]
    found = gb.minimize(energy, torch.full((1, 1), start, dtype=dtype), method=method)
    assert bool(found.converged.all())
    assert abs(float(found.x) - minimum) < near


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    scale=st.floats(-6, 6), place=st.floats(-3, 3), away=st.floats(-2, 4), condition=st.floats(0, 3),
    power=st.sampled_from([2, 4]), dtype=st.sampled_from([torch.float32, F64]), seed=st.integers(0, 99),
)  # fmt: skip
def test_rest_does_not_depend_on_units(scale, place, away, condition, power, dtype, seed):
    """Wells of any depth, place and shape, all but the seed in powers of ten: a row at rest lies at the minimum but for a few
    times the √tolerance of its size that a further step would move it."""
    root, _ = torch.linalg.qr(rnd(3, 3, seed=seed))
    axes = (root * torch.logspace(0, condition / 2, 3, dtype=F64)).to(dtype)
    energy = gb.as_energy(lambda x: 10**scale * ((x - 10**place) @ axes).pow(power).sum(1), domains.Real(3))
    found = gb.minimize(energy, (10**place + 10**away * rnd(3, 3, seed=seed + 1)).to(dtype))
    off = (found.x.double() - 10**place).abs().amax(1) / max(1, 10**place)
    assert bool((off[found.converged] < 0.02).all())


@pytest.mark.parametrize("method", ["lbfgs", "gradient"])
def test_a_large_constant_hides_nothing_from_the_search(method):
    """In single precision 10⁸ swallows whatever a step gains; the gradient is followed all the same."""
    well = gaussian(seed=3).float()
    high = gb.as_energy(lambda x: well(x) + 1e8, domains.Real(3))
    found = gb.minimize(high, rnd(4, 3, seed=5).float(), method=method, tolerance=1e-4)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.x, well.mean.expand(4, 3), atol=1e-3, rtol=0)


@pytest.mark.parametrize("method", ["lbfgs", "gradient"])
def test_rows_do_not_disturb_each_other(method):
    """Each row as if it were alone, up to rounding: it is at rest where its own gradient is small, however steep others are."""
    quartic = gb.as_energy(lambda x: (x.square() + x**4).sum(1), domains.Real(1))
    for steps in (3, 10, 500):
        x0 = torch.tensor([[1.0], [1000.0], [-0.01]], dtype=F64)
        together = gb.minimize(quartic, x0, method=method, steps=steps)
        for i in range(3):
            alone = gb.minimize(quartic, x0[i : i + 1], method=method, steps=steps)
            torch.testing.assert_close(together.x[i], alone.x[0], rtol=1e-6, atol=1e-7)
            assert together.converged[i] == alone.converged[0]
    assert bool(together.converged.all())
    assert float(together.x.abs().max()) < 1e-5


@pytest.mark.parametrize("method", ["lbfgs", "gradient"])
def test_the_tolerance_bounds_the_gradient_at_rest(method):
    energy, x0 = gaussian(6), rnd(5, 6, seed=5)
    looks = []

    class Watched(gb.Energy):
        def forward(self, x):
            return energy(x)

        def energy_and_score(self, x):
            looks.append(len(x))
            return energy.energy_and_score(x)

    counts = []
    for tolerance in (1e-1, 1e-4, 1e-9) if method == "lbfgs" else (1e-1, 1e-3):
        looks.clear()
        found = gb.minimize(Watched(energy.domain), x0, method=method, tolerance=tolerance, steps=2000)
        assert bool(found.converged.all())
        assert float(energy.score(found.x).abs().max()) <= tolerance
        counts.append(len(looks))
    assert counts == sorted(set(counts))  # and the search does not go on beyond it
    rough = gb.minimize(energy, x0, method=method, tolerance=1e-9, steps=2)
    steep = energy.score(rough.x).abs().amax(1)
    assert not bool(rough.converged[steep > 1e-8].any())
    assert bool((steep > 1e-8).any())


@pytest.mark.parametrize("method", ["lbfgs", "gradient"])
@pytest.mark.parametrize("domain", [domains.Box(2, 0.0, 255.0), domains.NonNegative(2)], ids=str)
def test_what_is_held_on_a_wall_stays_there(domain, method):
    """(x₀ - 10x₁ - 50)² with x₁ held at 0: the minimum is at 50, and moves by 10 for every unit that x₁ moves."""
    energy = gb.as_energy(lambda x: (x[:, 0] - 10 * x[:, 1] - 50).square(), domain)
    x0 = torch.tensor([[100.0, 0.0], [20.0, 2.0]], dtype=F64)
    found = gb.minimize(energy, x0, method=method, clamp=torch.tensor([False, True]))
    torch.testing.assert_close(found.x, torch.tensor([[50.0, 0.0], [70.0, 2.0]], dtype=F64), atol=1e-6, rtol=0)
    assert bool(found.converged.all())
    assert torch.equal(found.x[:, 1], x0[:, 1])


def test_searches_that_have_not_come_to_rest_are_reported():
    prior, y = gaussian(4), rnd(3, 4, seed=3)
    with pytest.warns(ConvergenceWarning, match="3 of 3 searches .* after 1 steps") as caught:
        rough = gb.denoise(prior, y, 1.0, steps=1)
    assert caught[0].filename == __file__
    assert not bool(rough.converged.any())
    with pytest.warns(ConvergenceWarning, match="the first is row 0") as caught:
        rough = gb.inpaint(prior, y, torch.tensor([True, False, False, False]), steps=1)
    assert caught[0].filename == __file__
    assert not bool(rough.converged.any())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bool(gb.denoise(prior, y, 1.0).converged.all())
        assert bool(gb.inpaint(prior, y, torch.tensor([True, False, False, False])).converged.all())


@pytest.mark.parametrize("domain", [domains.Binary(5), domains.Spin(5), domains.Categorical(4, classes=3)], ids=str)
def test_discrete_searches_against_every_state(domain):
    """Enumeration finds the lowest state, a wide beam the same; ICM a state that no single change improves."""
    w = rnd(domain.numel, domain.numel)
    energy = gb.as_energy(lambda x: (x.flatten(1) @ w * x.flatten(1)).sum(1), domain)
    states = domain.states(dtype=F64)
    best = float(energy(states).min())
    x0 = states[:3]
    assert float(gb.minimize(energy, x0, method="enumerate").energy.max()) == pytest.approx(best)
    beam = gb.minimize(energy, x0, method="beam", width=len(states))
    assert float(beam.energy.max()) == pytest.approx(best)
    torch.testing.assert_close(energy(beam.x), beam.energy)
    narrow = gb.minimize(energy, x0, method="beam", width=1)
    assert bool((narrow.energy >= best - 1e-9).all())
    local = gb.minimize(energy, states, method="icm")
    assert bool(local.converged.all())
    assert bool((local.energy <= energy(states) + 1e-12).all())
    for x, e in zip(local.x[:20], local.energy[:20], strict=True):
        near = states[((states != x).reshape(len(states), -1)).sum(1) <= (2 if len(domain.shape) > 1 else 1)]
        assert float(energy(near).min()) >= float(e) - 1e-9


@pytest.mark.parametrize("method", ["icm", "beam", "enumerate"])
def test_discrete_clamps_hold(method):
    domain = domains.Spin(4)
    w = rnd(4, 4)
    energy = gb.as_energy(lambda x: (x @ w * x).sum(1), domain)
    x0 = domain.sample(6, generator=gen(3), dtype=F64)
    clamp = torch.tensor([True, False, True, False])
    found = gb.minimize(energy, x0, method=method, clamp=clamp, width=99)
    assert torch.equal(found.x[:, clamp], x0[:, clamp])
    if method != "icm":
        for row, e in zip(x0, found.energy, strict=True):
            every = [
                torch.tensor([row[0], a, row[2], b], dtype=F64) for a, b in itertools.product((-1.0, 1.0), repeat=2)
            ]
            assert float(e) == pytest.approx(float(energy(torch.stack(every)).min()))


def test_clamped_units_take_no_room_in_a_beam():
    """As wide as the units that move have beginnings, it is exact, however many are held before them."""
    clamp = torch.arange(9) < 5
    for seed in range(20):
        w = 2 * torch.randn(9, 9, generator=gen(seed), dtype=F64)
        energy = gb.as_energy(lambda x, w=w: (x @ w * x).sum(1), domains.Binary(9))
        x0 = domains.Binary(9).sample(2, generator=gen(seed), dtype=F64)
        exact = gb.minimize(energy, x0, clamp=clamp, method="enumerate")
        torch.testing.assert_close(gb.minimize(energy, x0, clamp=clamp, method="beam", width=16).energy, exact.energy)


def test_icm_does_not_stir_where_two_values_tie():
    flat = gb.as_energy(lambda x: 0 * x.sum(1), domains.Binary(3))
    x0 = torch.tensor([[1.0, 0.0, 1.0]])
    assert torch.equal(gb.minimize(flat, x0).x, x0)


def test_methods_are_checked_against_the_domain():
    with pytest.raises(ArgumentError, match="'icm', 'beam'"):
        gb.minimize(models.RBM(3, 2), torch.zeros(1, 3), method="lbfgs")
    with pytest.raises(CapabilityError, match="as_energy"):
        gb.minimize(torch.nn.Linear(1, 1), torch.zeros(1, 1))


# --- posteriors -------------------------------------------------------------------------------------


def test_a_gaussian_posterior_is_conjugate():
    prior, y, sigma = gaussian(), rnd(2, 3, seed=3), 0.7
    seen = torch.tensor([True, False, True])
    posterior = energies.Observed(prior, y, sigma, seen)
    noise = torch.diag(seen.to(F64) / sigma**2)
    cov = torch.linalg.inv(prior.precision + noise)
    mean = (cov @ (prior.precision @ prior.mean + y @ noise).T).T
    torch.testing.assert_close(posterior.score(mean), torch.zeros(2, 3, dtype=F64), atol=1e-9, rtol=0)
    full = gb.denoise(prior, y, sigma)
    cov = torch.linalg.inv(prior.precision + torch.eye(3, dtype=F64) / sigma**2)
    want = (prior.precision @ prior.mean + y / sigma**2) @ cov
    torch.testing.assert_close(full.x, want, atol=1e-5, rtol=0)
    drawn = gb.denoise(
        prior, y, sigma, method="mean", kernel=kernels.HMC(0.4, 2), steps=120, chains=200, generator=gen()
    )
    torch.testing.assert_close(drawn.x, want, atol=0.03, rtol=0)  # 5 sigma: 0.6/√(200·50)
    torch.testing.assert_close(drawn.sd, cov.diagonal().sqrt().expand(2, 3), atol=0.03, rtol=0)
    check_energy(energies.Observed(prior, y[0], sigma, seen), rnd(4, 3), generator=gen())


def test_means_and_deviations_are_those_of_the_draws():
    """Of all chains and of the steps after the burn-in: the same chains run at once and kept."""
    prior, y, chains = gaussian(), rnd(2, 3, seed=3), 3
    kernel, how = kernels.HMC(0.4, 2), {"steps": 12, "generator": gen(5)}
    found = gb.denoise(prior, y, 0.7, method="mean", kernel=kernel, burn_in=5, chains=chains, **how)
    again = {**how, "generator": gen(5)}
    draws = gb.sample(energies.Observed(prior, y, 0.7), kernel, y.repeat(chains, 1), burn_in=5, **again).samples
    pooled = draws.reshape(-1, 2, 3)
    assert len(pooled) == 7 * chains
    torch.testing.assert_close(found.x, pooled.mean(0))
    torch.testing.assert_close(found.sd, pooled.std(0, correction=0))
    held = torch.tensor([True, False, False])
    filled = gb.inpaint(
        prior, y, held, method="mean", kernel=kernel, burn_in=5, chains=chains, steps=12, generator=gen(5)
    )
    draws = gb.sample(prior, kernel, y.repeat(chains, 1), 12, burn_in=5, clamp=held, generator=gen(5)).samples
    torch.testing.assert_close(filled.x, draws.reshape(-1, 2, 3).mean(0))
    torch.testing.assert_close(filled.sd, draws.reshape(-1, 2, 3).std(0, correction=0))


MASKS = {
    "none": None,
    "one for all": torch.tensor([True, False, True]),
    "one a row": torch.tensor([[True, False, True], [False, True, False]]),
}


@pytest.mark.parametrize("name", MASKS)
def test_only_what_was_seen_counts(name):
    """E(x) + Σ over seen entries of (x - y)²/2σ², written out; and entries that were not seen may be anything."""
    prior, y, mask, sigma = gaussian(), rnd(2, 3, seed=3), MASKS[name], 0.7
    seen = torch.ones(2, 3, dtype=torch.bool) if mask is None else mask.expand(2, 3)
    posterior = energies.Observed(prior, y, sigma, mask)
    x = rnd(4, 3, seed=4)  # rows go through the observations again
    want, score = prior(x), prior.score(x)
    for i, j in itertools.product(range(4), range(3)):
        if seen[i % 2, j]:
            gap = x[i, j] - y[i % 2, j]
            want[i] += gap**2 / (2 * sigma**2)
            score[i, j] -= gap / sigma**2
    torch.testing.assert_close(posterior(x), want)
    energy, slope = posterior.energy_and_score(x)
    torch.testing.assert_close(energy, want)
    torch.testing.assert_close(slope, score)
    other = energies.Observed(prior, torch.where(seen, y, 1e3), sigma, mask)
    torch.testing.assert_close(other(x), want)
    single = energies.Observed(prior, y[0], sigma, None if mask is None else mask.reshape(-1, 3)[0])
    torch.testing.assert_close(single(x[:1]), want[:1])


@pytest.mark.parametrize("seen", [[True, False], [False, True], [[True, False], [False, True]]])
def test_gibbs_steps_heed_the_mask(seen):
    """Exact draws: those of the prior, kept by what was seen of each row alone."""
    prior = energies.ProductOfExperts(2, alpha=2.0).double()
    y, sigma, mask = torch.tensor([0.8, -0.5], dtype=F64), 0.4, torch.tensor(seen)
    x = prior.sample(100000, generator=gen(1))
    rows = mask.reshape(-1, 2)
    log_keep = -(rows[torch.arange(len(x)) % len(rows)] * (x - y).square()).sum(1) / (2 * sigma**2)
    keep = torch.rand(len(x), generator=gen(2), dtype=F64).log() < log_keep
    parts = [x[k :: len(rows)][keep[k :: len(rows)]] for k in range(len(rows))]
    n = min(map(len, parts))
    draws = torch.stack([part[:n] for part in parts], 1).flatten(0, 1)
    posterior = energies.Observed(prior, y.expand(len(rows), 2), sigma, mask)
    check_invariance(posterior, kernels.Gibbs(), draws=draws, steps=3, generator=gen(3))


def test_strength_multiplies_the_prior():
    prior, y = gaussian(), rnd(2, 3, seed=3)
    cov = torch.linalg.inv(0.25 * prior.precision + torch.eye(3, dtype=F64))
    want = (0.25 * prior.precision @ prior.mean + y) @ cov
    torch.testing.assert_close(gb.denoise(prior, y, 1.0, strength=0.25).x, want, atol=1e-5, rtol=0)
    product = energies.ProductOfExperts(3, 4, confine=0.2).double()
    x = rnd(5, 3)
    torch.testing.assert_close(product.tempered(torch.tensor(0.3))(x), 0.3 * product(x))
    assert float(product.alpha[0].detach()) == pytest.approx(1.5)


def test_gibbs_of_a_posterior_stays_in_its_law():
    """Exact posterior draws: prior draws of a square product, weighted by the observation (rejection)."""
    prior = energies.ProductOfExperts(2, alpha=2.0).double()
    y, sigma = torch.tensor([0.8, -0.5], dtype=F64), 0.6
    x = prior.sample(200000, generator=gen(1))
    posterior = energies.Observed(prior, y, sigma)
    keep = torch.rand(len(x), generator=gen(2), dtype=F64).log() < -(x - y).square().sum(1) / (2 * sigma**2)
    check_invariance(posterior, kernels.Gibbs(), draws=x[keep], steps=3, generator=gen(3))
    check_kernel(kernels.Gibbs(), posterior, x[:5], generator=gen())


def test_a_field_denoises_and_fills_in():
    """A smooth image: the posterior mean beats the observation, and a hole is filled to within the noise."""
    field = energies.FieldOfExperts((12, 12), filters=8, size=3, alpha=0.5, scale=10.0).double()
    clean = 0.5 + 0.3 * torch.outer(torch.linspace(-1, 1, 12, dtype=F64), torch.linspace(0, 1, 12, dtype=F64))[None]
    noisy = clean + 0.1 * rnd(1, 12, 12)
    mean = gb.denoise(field, noisy, 0.1, method="mean", steps=60, burn_in=10, chains=2, generator=gen())
    mode = gb.denoise(field, noisy, 0.1)
    before = float((noisy - clean).square().mean())
    assert float((mean.x - clean).square().mean()) < 0.4 * before
    assert float((mode.x - clean).square().mean()) < 0.4 * before
    hole = torch.zeros(12, 12, dtype=torch.bool)
    hole[4:7, 5:8] = True
    torn = torch.where(hole, 0.0, clean)
    for how in ("mode", "mean"):
        filled = gb.inpaint(field, torn, ~hole, method=how, generator=gen(), steps=100).x
        assert torch.equal(filled[:, ~hole], clean[:, ~hole])
        assert float((filled - clean)[:, hole].abs().max()) < 0.12


def test_posteriors_check_what_they_are_given():
    prior = gaussian()
    with pytest.raises(ShapeError, match="observation"):
        energies.Observed(prior, torch.zeros(4), 1.0)
    with pytest.raises(ArgumentError, match="sigma"):
        energies.Observed(prior, torch.zeros(3), 0.0)
    with pytest.raises(ArgumentError, match="continuous"):
        energies.Observed(models.RBM(3, 2), torch.zeros(3), 1.0)
    with pytest.raises(CapabilityError, match="HMC"):
        gb.denoise(prior, rnd(1, 3), 1.0, method="mean", generator=gen())
    with pytest.raises(ArgumentError, match="'mode' or 'mean'"):
        gb.denoise(prior, rnd(1, 3), 1.0, method="median", generator=gen())
    assert math.isfinite(float(energies.Observed(prior, torch.zeros(3, dtype=F64), 1.0)(rnd(1, 3))))


def test_every_row_is_filled_in_given_its_own_entries_by_every_chain():
    """Rows that hold other entries, copied to several chains, against the conditional law at inverse temperature 2: within a
    tenth of its deviation, some ten standard errors."""
    covariance, held = (
        torch.tensor([[2.0, 1.2], [1.2, 1.0]]),
        torch.tensor([[True, False], [False, True], [True, False]]),
    )
    prior, x = (
        gb.energies.Gaussian(torch.tensor([1.0, -1.0]), covariance),
        torch.tensor([[3.0, 9.0], [9.0, 1.0], [0.0, 9.0]]),
    )
    found = gb.inpaint(
        prior, x, held, method="mean", strength=2.0, kernel=gb.kernels.MALA(0.6), steps=600, burn_in=100, chains=100,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    mean = torch.tensor([[3.0, -1 + 0.6 * 2], [1 + 1.2 * 2, 1.0], [0.0, -1 - 0.6]])
    deviation = torch.tensor([[0.0, 0.28], [0.56, 0.0], [0.0, 0.28]]).div(2).sqrt()
    assert found.sd is not None
    assert bool(((found.x - mean).abs() <= 0.1 * deviation).all())
    assert bool(((found.sd - deviation).abs() <= 0.1 * deviation).all())
