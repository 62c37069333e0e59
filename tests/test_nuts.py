"""NUTS: exact-start invariance, an independent recursive implementation, and what it does with bad chains."""

import math
import warnings

import numpy as np
import pytest
import torch
from exact_targets import TARGETS, D, correlated, gen, ramp, ramp_draws, two_modes

import gibbsian as gb
from gibbsian import domains, energies, kernels
from gibbsian.errors import ArgumentError, DivergenceWarning, DomainError, ShapeError
from gibbsian.kernels import nuts
from gibbsian.testing import check_invariance


def one_step(kernel, target, x, g=None):
    inputs = kernel.draw(target, x, 1, g or gen(15))
    return kernel.step(target, kernel.init(target, x), type(inputs)(*(part[0] for part in inputs)))


@pytest.mark.parametrize("step_size", [0.15, 0.45, 0.9])
@pytest.mark.parametrize("name", TARGETS)
def test_exact_start_stays_exact(name, step_size):
    """False-alarm rate 1e-6 for each case."""
    make, draw = TARGETS[name]
    g = gen(1)
    report = check_invariance(make(), kernels.NUTS(step_size=step_size), draws=draw(10000, g), steps=3, generator=g)
    assert report.moved > 0.5


MASSES = {"number": 2.0, "diagonal": torch.tensor([0.5, 3.0]), "dense": torch.tensor([[2.0, 0.7], [0.7, 1.0]])}


@pytest.mark.parametrize("mass", MASSES)
def test_every_mass_is_exact(mass):
    check_invariance(
        two_modes(), kernels.NUTS(step_size=0.6, mass=MASSES[mass]), chains=20000, steps=3, generator=gen(2)
    )


def test_diagonal_mass_in_a_box_is_exact():
    kernel = kernels.NUTS(step_size=0.5, mass=MASSES["diagonal"])
    check_invariance(ramp(), kernel, draws=ramp_draws(20000, gen(3)), steps=3, generator=gen(4))


def test_depth_limit_and_step_sizes_per_chain_are_exact():
    sizes = torch.linspace(0.05, 0.9, 20000, dtype=D)[None]
    check_invariance(two_modes(), kernels.NUTS(step_size=sizes, max_depth=3), chains=20000, steps=3, generator=gen(5))


@pytest.mark.parametrize("mass", [None, "dense"])
def test_clamped_entries_stay_and_the_rest_follows_its_conditional_law(mass):
    target = energies.Gaussian(torch.zeros(3, dtype=D), torch.eye(3, dtype=D) + 0.8)
    dense = torch.eye(3) + 0.5
    kernel = kernels.NUTS(step_size=0.6, mass=None if mass is None else dense)
    check_invariance(target, kernel, clamp=torch.tensor([False, True, False]), chains=20000, steps=3, generator=gen(6))
    per_chain = torch.rand(20000, 3, generator=gen(7)) < 0.4
    per_chain[:, 0] &= ~per_chain[:, 1:].all(1)
    x = target.sample(20000, generator=gen(8))
    trace = gb.sample(target, kernel, x, steps=2, clamp=per_chain, generator=gen(9))
    assert torch.equal(trace.last[per_chain], x[per_chain])
    check_invariance(target, kernel, draws=x, clamp=per_chain, steps=3, generator=gen(10))


# --- the test can fail, and the tree is the right one ----------------------------------------------


PLANTED = {
    "a choice that forgets the weights": ("chosen", lambda u, log_share: u <= 0.5),
    "trajectories that only go forward": ("scrambled", lambda seed, n, right=nuts.scrambled: right(seed, n) & ~1),
    "a doubling that is always taken": ("chosen", lambda u, log_share: log_share < 10),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_caught(fault, monkeypatch):
    name, broken = PLANTED[fault]
    monkeypatch.setattr(nuts, name, broken)
    with pytest.raises(AssertionError, match="invariant"):
        check_invariance(correlated(), kernels.NUTS(step_size=0.45), chains=20000, steps=3, generator=gen(1))


def test_cutting_by_work_instead_of_iterations_is_caught():
    """After so many micro-steps a chain is rather where its trajectories are long."""
    parts = [energies.Gaussian(torch.zeros(1, dtype=D), v * torch.eye(1, dtype=D)) for v in (0.04, 4.0)]
    target = gb.mixture(parts, weights=[0.5, 0.5])

    class Hasty(kernels.NUTS):
        def run(self, energy, state, inputs):
            ground, trees, slots = self.begin(energy, state, inputs)
            for _ in range(12):
                trees = self.micro_step(energy, ground, trees, slots, 5)
            return self.finish(state, ground, trees, slots)

    with pytest.raises(AssertionError, match="invariant"):
        check_invariance(target, Hasty(step_size=0.4), chains=10000, steps=10, generator=gen(2))


def recursive_nuts(energy_and_gradient, x, z, seed, eps, max_depth):
    """One transition of one chain as the recursion of the papers, on the numbers that the kernel draws: the new x,
    acceptance, leaves, depth, and H there."""
    v = z
    h0 = energy_and_gradient(x)[0] + 0.5 * v @ v
    stats = {"accept": 0.0, "leaves": 0, "diverged": False}
    pool = {}

    def bits(counter):
        return int(nuts.scrambled(seed, torch.tensor(counter)))

    def straight(rho, a, b):
        return rho @ a > 0 and rho @ b > 0

    def leaf(x, v, sign, depth):
        v = v - 0.5 * sign * eps * energy_and_gradient(x)[1]
        x = x + sign * eps * v
        e, gradient = energy_and_gradient(x)
        v = v - 0.5 * sign * eps * gradient
        delta = h0 - e - 0.5 * v @ v
        stats["leaves"] += 1
        if not -1000 < delta < math.inf:
            stats["diverged"] = True
            return False, x, v, v, v
        stats["accept"] += math.exp(min(delta, 0.0))
        n = pool["n"]
        pool["weight"] = delta if n == 0 else np.logaddexp(pool["weight"], delta)
        if n == 0 or (bits(32 + 2**depth + n) + 0.5) / 2**32 <= math.exp(delta - pool["weight"]):
            pool["x"], pool["h"] = x, h0 - delta
        pool["n"] += 1
        return True, x, v, v, v

    def build(x, v, sign, level, depth):
        """(valid, x at the end, v there, rho, v at the beginning)"""
        if level == 0:
            return leaf(x, v, sign, depth)
        ok1, x1, v1, r1, b1 = build(x, v, sign, level - 1, depth)
        if not ok1:
            return (False, *[None] * 4)
        ok2, x2, v2, r2, b2 = build(x1, v1, sign, level - 1, depth)
        if not ok2:
            return (False, *[None] * 4)
        ok = straight(r1 + r2, b1, v2) and straight(r1 + b2, b1, b2) and straight(r2 + v1, v1, v2)
        return ok, x2, v2, r1 + r2, b1

    ends, sign = [(x, v), (x, v)], 1  # near, far
    choice, weight, rho, depth = (x, h0), 0.0, v, 0
    while depth < max_depth:
        coin = bits(depth)
        if coin & 1:
            ends, sign = ends[::-1], -sign
        near, far = ends
        pool = {"n": 0}
        ok, xe, ve, r, begin = build(*near, sign, depth, depth)
        if not ok:
            break
        if ((coin >> 1) + 0.5) / 2**31 <= math.exp(min(pool["weight"] - weight, 0.0)):
            choice = pool["x"], pool["h"]
        weight, depth = np.logaddexp(weight, pool["weight"]), depth + 1
        ends[0] = (xe, ve)
        whole = straight(rho + r, far[1], ve)
        across = straight(rho + begin, far[1], begin) and straight(r + near[1], near[1], ve)
        rho = rho + r
        if not (whole and across):
            break
    acceptance = stats["accept"] / stats["leaves"]
    return choice[0], acceptance, stats["diverged"], depth, stats["leaves"], choice[1]


SCALES = np.array([0.2, 1.0, 2.0])


def bent(x):
    """A Gaussian with a kink of x⁴, as torch and as numpy see it."""
    scales = torch.tensor(SCALES, dtype=D)
    return 0.5 * (x / scales).square().sum(-1) + 0.1 * x[..., 0].pow(4)


def bent_by_hand(x):
    gradient = x / SCALES**2
    gradient[0] += 0.4 * x[0] ** 3
    return 0.5 * ((x / SCALES) ** 2).sum() + 0.1 * x[0] ** 4, gradient


def test_trees_are_those_of_the_recursion():
    """Draw by draw on the same numbers, four iterations of forty chains that run freely: positions, depth, leapfrogs."""
    target = gb.as_energy(bent, domains.Real(3))
    kernel = kernels.NUTS(step_size=0.15, max_depth=6)
    x = torch.randn(40, 3, generator=gen(11), dtype=D) * torch.tensor(SCALES)
    inputs = kernel.draw(target, x, 4, gen(15))
    _, draws, info = kernel.run(target, kernel.init(target, x), inputs)
    for chain in range(40):
        now = x[chain].numpy()
        for i in range(4):
            z, seed = inputs.z[i, chain].numpy(), inputs.seed[i, chain]
            now, acceptance, diverged, depth, leaves, h = recursive_nuts(bent_by_hand, now, z, seed, 0.15, 6)
            got = info.depth[i, chain], info.leapfrogs[i, chain], info.diverged[i, chain]
            assert got == (depth, leaves, diverged), (chain, i)
            np.testing.assert_allclose(draws[i, chain].numpy(), now, atol=1e-8)
            assert float(info.acceptance[i, chain]) == pytest.approx(acceptance, abs=1e-8)
            assert float(info.hamiltonian[i, chain]) == pytest.approx(h, abs=1e-8)
    assert {1, 2, 3, 4, 5} <= set(info.depth.flatten().tolist())


def test_long_trees_are_exact():
    target = energies.Gaussian(torch.zeros(2, dtype=D), torch.diag(torch.tensor([1.0, 4000.0], dtype=D)))
    kernel = kernels.NUTS(step_size=1.2)
    check_invariance(target, kernel, chains=4000, steps=1, generator=gen(13))
    _, info = one_step(kernel, target, target.sample(1000, generator=gen(14)))
    assert float((info.leapfrogs > 32).double().mean()) > 0.2


def test_the_numbers_of_a_tree_are_uniform_and_unrelated():
    """Over seeds and over counters, single and in pairs of neighbors: false-alarm rate 1e-6 each (five standard errors)."""
    seeds = kernels.NUTS(0.1).draw(None, torch.zeros(512, 1), 8, gen(3)).seed.flatten()
    u = nuts.unit(nuts.scrambled(seeds[:, None], torch.arange(64)), 32, D)
    for rows in (u, u.T):
        n = rows.numel()
        counts = torch.histc(rows, 64, 0, 1)
        assert abs(float((counts - n / 64).square().sum() / (n / 64)) - 63) < 5 * math.sqrt(126)
        for gap in (1, 2, 16):
            a, b = rows[:, :-gap] - 0.5, rows[:, gap:] - 0.5
            assert abs(float((a * b).mean())) < 5 / 12 / math.sqrt(a.numel())
    coins = (nuts.scrambled(seeds[:, None], torch.arange(10)) & 1).double() - 0.5
    assert float((coins.T @ coins / len(seeds) - 0.25 * torch.eye(10)).abs().max()) < 5 * 0.25 / math.sqrt(len(seeds))


def test_what_a_tree_tells_reaches_the_trace_and_arviz():
    trace = gb.sample(
        correlated(), kernels.NUTS(0.4), torch.zeros(5, 2, dtype=D), steps=30, burn_in=4, thin=3, generator=gen()
    )
    assert set(trace.stats) == {"tree_depth", "n_steps", "energy", "lp", "step_size"}
    whole = gb.sample(correlated(), kernels.NUTS(0.4), torch.zeros(5, 2, dtype=D), steps=30, generator=gen())
    for name, values in trace.stats.items():
        assert torch.equal(values, whole.stats[name][4::3])
    torch.testing.assert_close(trace.stats["lp"], -torch.stack([correlated()(x) for x in trace.samples]))
    assert bool((trace.stats["energy"] >= -trace.stats["lp"]).all())
    assert bool((trace.stats["n_steps"] >= 2 ** trace.stats["tree_depth"] - 1).all())
    tree = trace.to_arviz()
    assert set(tree["sample_stats"].data_vars) == {*trace.stats, "acceptance_rate", "diverging"}
    assert tree["sample_stats"]["tree_depth"].shape == (5, 9)


# --- laws of the runner -----------------------------------------------------------------------------


def test_a_run_does_not_depend_on_how_it_is_cut():
    kernel, x = kernels.NUTS(step_size=0.4), torch.zeros(7, 2, dtype=D)
    before = torch.get_rng_state()
    whole = gb.sample(correlated(), kernel, x, steps=9, generator=gen(3))
    g = gen(3)
    part = gb.sample(correlated(), kernel, x, steps=4, generator=g)
    rest = gb.sample(correlated(), kernel, part, steps=5, generator=g)
    assert torch.equal(whole.samples, torch.cat([part.samples, rest.samples]))
    assert torch.equal(before, torch.get_rng_state())


def test_chains_do_not_depend_on_their_neighbors():
    """To the bit, although trees of all chains grow together and the first one decides how long."""
    kernel, x = kernels.NUTS(step_size=0.05), torch.zeros(9, 2, dtype=D)
    plain = gb.sample(correlated(), kernel, x, steps=6, generator=gen(4)).samples
    x[0] = torch.tensor([40.0, -70.0], dtype=D)
    other = gb.sample(correlated(), kernel, x, steps=6, generator=gen(4)).samples
    assert torch.equal(plain[:, 1:], other[:, 1:])


def test_single_precision_and_image_events():
    target = gb.as_energy(lambda x: 0.5 * x.square().flatten(1).sum(1), domains.Real((2, 3)))
    trace = gb.sample(
        target, kernels.NUTS(step_size=0.8), torch.zeros(500, 2, 3), steps=30, burn_in=10, generator=gen()
    )
    assert trace.samples.dtype == torch.float32
    assert trace.samples.shape == (20, 500, 2, 3)
    assert abs(float(trace.samples.var()) - 1) < 0.05  # more than ten standard errors of 60000 nearly independent draws


def test_bad_regions_are_reported_and_do_not_spoil_the_neighbors():
    def broken(x):
        return torch.where(x[:, 0] > 1.5, torch.nan, 0.5 * x.square().sum(-1))

    def walled(x):
        return torch.where(x[:, 0] > 1.5, torch.inf, 0.5 * x.square().sum(-1))

    x = torch.linspace(-1, 1.4, 1200, dtype=D)[:, None].expand(1200, 2).clone()
    for energy in (broken, walled):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)
            trace = gb.sample(
                gb.as_energy(energy, domains.Real(2)), kernels.NUTS(step_size=0.4), x, steps=60, generator=gen()
            )
        assert bool(torch.isfinite(trace.samples).all())
        assert float(trace.samples[..., 0].max()) <= 1.5
        assert int((trace.divergences > 0).sum()) > 0
        # the truncated Gaussian's mean, -φ(1.5)/Φ(1.5); 0.03 is about five standard errors here
        mean = -math.exp(-1.125) / math.sqrt(2 * math.pi) / (0.5 * (1 + math.erf(1.5 / math.sqrt(2))))
        assert abs(float(trace.samples[10:, :, 0].mean()) - mean) < 0.03


def test_limits_of_the_tree_are_kept_and_reported():
    target, x = correlated(), torch.zeros(50, 2, dtype=D)
    _, info = one_step(kernels.NUTS(step_size=0.001, max_depth=4), target, x)
    assert (info.leapfrogs == 15).all()
    assert (info.depth == 4).all()
    assert (info.acceptance > 0.999).all()
    with pytest.warns(DivergenceWarning):
        trace = gb.sample(target, kernels.NUTS(step_size=50.0), x + 1, steps=3, generator=gen())
    assert (trace.divergences == 3).all()
    assert torch.equal(trace.last, x + 1)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: kernels.NUTS(step_size=0.0),
        lambda: kernels.NUTS(step_size=0.1, max_depth=0),
        lambda: kernels.NUTS(step_size=0.1, max_depth=2.5),
        lambda: kernels.NUTS(step_size=0.1, mass=-1.0),
    ],
)
def test_bad_options_are_refused(bad):
    with pytest.raises(ArgumentError):
        bad()


def test_masses_that_do_not_fit_are_refused():
    with pytest.raises(DomainError, match="dense"):
        gb.sample(
            ramp(), kernels.NUTS(step_size=0.1, mass=torch.eye(2)), torch.zeros(3, 2, dtype=D), steps=1, generator=gen()
        )
    with pytest.raises(ShapeError):
        gb.sample(
            correlated(),
            kernels.NUTS(step_size=0.1, mass=torch.ones(3)),
            torch.zeros(3, 2, dtype=D),
            steps=1,
            generator=gen(),
        )
