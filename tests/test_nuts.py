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
    report = check_invariance(make(), kernels.NUTS(step_size=step_size), draws=draw(20000, g), steps=3, generator=g)
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


def test_a_choice_that_forgets_the_weights_is_caught(monkeypatch):
    right = nuts.choose
    monkeypatch.setattr(
        nuts,
        "choose",
        lambda leaves, w, u: right(leaves, torch.zeros_like(w), u)._replace(log_weight=torch.logsumexp(w, 0)),
    )
    with pytest.raises(AssertionError, match="invariant"):
        check_invariance(correlated(), kernels.NUTS(step_size=0.45), chains=20000, steps=3, generator=gen(1))


def recursive_nuts(grad, energy, x, eps, max_depth, rng):
    """One transition of one chain as the recursion of the papers: x, acceptance, leaves, depth."""
    v = rng.standard_normal(len(x))
    h0 = energy(x) + 0.5 * v @ v
    stats = {"accept": 0.0, "leaves": 0}

    def straight(rho, a, b):
        return rho @ a > 0 and rho @ b > 0

    def build(x, v, sign, depth):
        """(valid, x_end, v_end, choice, log weight, rho, v_begin)"""
        if depth == 0:
            v = v - 0.5 * sign * eps * grad(x)
            x = x + sign * eps * v
            v = v - 0.5 * sign * eps * grad(x)
            delta = h0 - energy(x) - 0.5 * v @ v
            stats["leaves"] += 1
            stats["accept"] += min(1.0, math.exp(min(delta, 0.0)))
            return delta > -1000, x, v, x, delta, v.copy(), v
        ok1, x1, v1, c1, w1, r1, b1 = build(x, v, sign, depth - 1)
        if not ok1:
            return (False, *[None] * 6)
        ok2, x2, v2, c2, w2, r2, b2 = build(x1, v1, sign, depth - 1)
        if not ok2:
            return (False, *[None] * 6)
        w = np.logaddexp(w1, w2)
        choice = c2 if math.log(rng.random()) < w2 - w else c1
        ok = straight(r1 + r2, b1, v2) and straight(r1 + b2, b1, b2) and straight(r2 + v1, v1, v2)
        return ok, x2, v2, choice, w, r1 + r2, b1

    ends = {1: (x, v), -1: (x, v)}
    choice, weight, rho, depth = x, 0.0, v.copy(), 0
    while depth < max_depth:
        sign = 1 if rng.random() < 0.5 else -1
        near, far = ends[sign], ends[-sign]
        ok, xe, ve, c, w, r, begin = build(*near, sign, depth)
        if not ok:
            break
        if math.log(rng.random()) < w - weight:
            choice = c
        weight, depth = np.logaddexp(weight, w), depth + 1
        ends[sign] = (xe, ve)
        whole = straight(rho + r, far[1], ve)
        across = straight(rho + begin, far[1], begin) and straight(r + near[1], near[1], ve)
        rho = rho + r
        if not (whole and across):
            break
    return choice, stats["accept"] / stats["leaves"], stats["leaves"], depth


def test_trees_are_those_of_the_recursion():
    """Means of leaves, depth, acceptance and squared jump over exact starts, within 5 standard errors of the
    difference: false-alarm rate below 1e-5."""
    scales = np.array([0.5, 1.0, 2.0])
    target = energies.Gaussian(torch.zeros(3, dtype=D), torch.diag(torch.tensor(scales, dtype=D) ** 2))
    x = target.sample(20000, generator=gen(11))
    kernel = kernels.NUTS(step_size=0.5)
    end, info = one_step(kernel, target, x)
    jump = (end.x - x).square().sum(1)
    ours = [t.double().numpy() for t in (info.leapfrogs, info.depth, info.acceptance, jump)]
    rng = np.random.default_rng(0)
    rows = []
    for start in x[:2000].numpy():
        new, accept, leaves, depth = recursive_nuts(
            lambda x: x / scales**2, lambda x: 0.5 * (x**2 / scales**2).sum(), start, 0.5, 10, rng
        )
        rows.append((leaves, depth, accept, ((new - start) ** 2).sum()))
    for name, a, b in zip(("leaves", "depth", "acceptance", "jump"), ours, np.array(rows).T, strict=True):
        error = math.hypot(a.std() / math.sqrt(len(a)), b.std() / math.sqrt(len(b)))
        assert abs(a.mean() - b.mean()) < 5 * error, (name, a.mean(), b.mean(), error)
    assert int(info.leapfrogs.max()) > nuts.BLOCK  # some trees were longer than one block


def test_trees_longer_than_one_block_are_exact():
    target = energies.Gaussian(torch.zeros(2, dtype=D), torch.diag(torch.tensor([1.0, 4000.0], dtype=D)))
    kernel = kernels.NUTS(step_size=1.2)
    check_invariance(target, kernel, chains=10000, steps=2, generator=gen(13))
    _, info = one_step(kernel, target, target.sample(1000, generator=gen(14)))
    assert float((info.leapfrogs > 2 * nuts.BLOCK).double().mean()) > 0.2


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

    x = torch.linspace(-1, 1.4, 400, dtype=D)[:, None].expand(400, 2).clone()
    for energy in (broken, walled):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)
            trace = gb.sample(
                gb.as_energy(energy, domains.Real(2)), kernels.NUTS(step_size=0.4), x, steps=200, generator=gen()
            )
        assert bool(torch.isfinite(trace.samples).all())
        assert float(trace.samples[..., 0].max()) <= 1.5
        assert int((trace.divergences > 0).sum()) > 0
        # the truncated Gaussian's mean, -φ(1.5)/Φ(1.5); 0.03 is about five standard errors here
        mean = -math.exp(-1.125) / math.sqrt(2 * math.pi) / (0.5 * (1 + math.erf(1.5 / math.sqrt(2))))
        assert abs(float(trace.samples[50:, :, 0].mean()) - mean) < 0.03


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
