"""Underdamped Langevin: linear laws of BAOAB on Gaussians, exact-start invariance of the adjusted form."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from exact_targets import TARGETS, D, correlated, gen, ramp, ramp_draws, two_modes

import gibbsian as gb
from gibbsian import domains, energies, kernels
from gibbsian.errors import ArgumentError, CapabilityError, DivergenceWarning, DomainError
from gibbsian.testing import check_invariance

PRECISION = np.array([[2.0, 0.8], [0.8, 1.0]])
MASS = np.array([[1.5, -0.4], [-0.4, 0.8]])


def baoab(eps, friction, mass=MASS):
    """The linear map z' = A z + B ξ of one step on N(0, PRECISION⁻¹), z = (x, v)."""
    one, zero = np.eye(2), np.zeros((2, 2))
    kick = np.block([[one, zero], [-0.5 * eps * PRECISION, one]])
    drift = np.block([[one, 0.5 * eps * np.linalg.inv(mass)], [zero, one]])
    c = math.exp(-friction * eps)
    cool = np.block([[one, zero], [zero, c * one]])
    noise = np.vstack([zero, math.sqrt(1 - c * c) * np.linalg.cholesky(mass)])
    return kick @ drift @ cool @ drift @ kick, kick @ drift @ noise


def moments(state):
    z = torch.cat([state.x, state.v], 1)
    return z.mean(0).numpy(), z.T.cov().numpy()


def assert_moments(state, mean, cov):
    """Every mean and covariance within 5 standard errors: false-alarm rate below 1e-5."""
    n = len(state.x)
    got_mean, got_cov = moments(state)
    assert (np.abs(got_mean - mean) < 5 * np.sqrt(np.diag(cov) / n)).all(), (got_mean, mean)
    error = np.sqrt((np.outer(np.diag(cov), np.diag(cov)) + cov**2) / n)
    assert (np.abs(got_cov - cov) < 5 * error).all(), (got_cov, cov, error)


@pytest.mark.parametrize(("eps", "friction"), [(0.3, 0.5), (0.9, 1.0), (0.9, 5.0)])
def test_unadjusted_law_on_a_gaussian(eps, friction):
    """The stationary law solves a discrete Lyapunov equation; the law of the first steps is a recursion."""
    target = energies.Gaussian(torch.zeros(2, dtype=D), torch.tensor(np.linalg.inv(PRECISION)))
    kernel = kernels.UnderdampedLangevin(step_size=eps, friction=friction, mass=torch.tensor(MASS))
    x = torch.tensor([[2.0, -1.0]], dtype=D).expand(40000, 2).clone()
    a, b = baoab(eps, friction)
    a0, b0 = baoab(eps, math.inf)  # the first step draws the momenta
    mean, cov = a0 @ np.array([2.0, -1.0, 0.0, 0.0]), b0 @ b0.T
    for _ in range(2):
        mean, cov = a @ mean, a @ cov @ a.T + b @ b.T
    g = gen(1)
    trace = gb.sample(target, kernel, x, steps=3, keep=False, generator=g)
    assert_moments(trace.state, mean, cov)
    for _ in range(77):
        mean = a @ mean
    trace = gb.sample(target, kernel, trace, steps=77, keep=False, generator=g)
    stationary = scipy.linalg.solve_discrete_lyapunov(a, b @ b.T)
    assert_moments(trace.state, mean, stationary)
    assert np.allclose(stationary[:2, :2], np.linalg.inv(PRECISION))  # BAOAB: positions come out exactly
    assert math.isnan(float(trace.acceptance))


@pytest.mark.parametrize(("step_size", "friction"), [(0.4, 0.1), (1.7, 0.5)])
def test_unadjusted_form_keeps_a_flat_law_in_a_box(step_size, friction):
    box = domains.Box(2, low=-1.0, high=0.5)
    flat = gb.as_energy(lambda x: 0 * x.sum(-1), box)
    kernel = kernels.UnderdampedLangevin(step_size, friction, mass=torch.tensor([1.0, 0.1]))
    draws = box.sample(20000, generator=gen(2), dtype=D)
    check_invariance(flat, kernel, draws=draws, steps=6, generator=gen(3))
    state = gb.sample(flat, kernel, draws, steps=6, generator=gen(3)).state
    outwards = state.v * (state.x + 0.25)  # momenta are independent of positions, as they turn round at walls
    assert (outwards.mean(0).abs() < 5 * outwards.std(0) / math.sqrt(20000)).all()


@pytest.mark.parametrize("dense", [False, True])
def test_unadjusted_form_with_clamped_entries_follows_the_conditional_law(dense):
    """Positions of a Gaussian come out exactly, so the conditional law does too; 5 standard errors."""
    target = energies.Gaussian(torch.zeros(2, dtype=D), torch.tensor(np.linalg.inv(PRECISION)))
    kernel = kernels.UnderdampedLangevin(step_size=0.8, mass=torch.tensor(MASS) if dense else None)
    x = torch.tensor([[0.0, 1.5]], dtype=D).expand(20000, 2).clone()
    clamp = torch.tensor([False, True])
    last = gb.sample(target, kernel, x, steps=60, clamp=clamp, keep=False, generator=gen(12)).last
    assert (last[:, 1] == 1.5).all()
    mean, var = -PRECISION[0, 1] * 1.5 / PRECISION[0, 0], 1 / PRECISION[0, 0]
    assert abs(float(last[:, 0].mean()) - mean) < 5 * math.sqrt(var / 20000)
    assert abs(float(last[:, 0].var()) - var) < 5 * var * math.sqrt(2 / 20000)


def test_unadjusted_form_needs_only_a_score():
    class Field(gb.ScoreField):
        def score(self, x, *, create_graph=False):
            return -x

    field = Field(domains.Real(1))
    kernel = kernels.UnderdampedLangevin(step_size=0.5)
    trace = gb.sample(field, kernel, torch.zeros(20000, 1, dtype=D), steps=60, keep=False, generator=gen(4))
    assert abs(float(trace.last.var()) - 1) < 5 * math.sqrt(2 / 20000)
    with pytest.raises(CapabilityError, match="only a score"):
        gb.sample(
            field, kernels.UnderdampedLangevin(step_size=0.5, adjusted=True), trace.last, steps=1, generator=gen()
        )


@pytest.mark.parametrize(("step_size", "friction"), [(0.3, 0.1), (0.8, 0.1), (1.2, 0.1), (0.8, 3.0)])
@pytest.mark.parametrize("name", TARGETS)
def test_adjusted_form_is_exact(name, step_size, friction):
    """False-alarm rate 1e-6 for each case; the steps are large, so that many are refused."""
    make, draw = TARGETS[name]
    kernel = kernels.UnderdampedLangevin(step_size=step_size, friction=friction, adjusted=True)
    check_invariance(make(), kernel, draws=draw(20000, gen(5)), steps=10, generator=gen(6))


@pytest.mark.parametrize("mass", [2.0, torch.tensor([0.5, 3.0]), torch.tensor([[2.0, 0.7], [0.7, 1.0]])])
def test_every_mass_is_exact(mass):
    kernel = kernels.UnderdampedLangevin(step_size=0.9, friction=0.3, mass=mass, adjusted=True)
    check_invariance(two_modes(), kernel, chains=20000, steps=6, generator=gen(7))


@pytest.mark.parametrize("dense", [False, True])
def test_clamped_entries_stay_and_the_rest_follows_its_conditional_law(dense):
    target = energies.Gaussian(torch.zeros(3, dtype=D), torch.eye(3, dtype=D) + 0.8)
    kernel = kernels.UnderdampedLangevin(
        step_size=0.7, friction=0.5, mass=torch.eye(3) + 0.5 if dense else None, adjusted=True
    )
    x = target.sample(20000, generator=gen(8))
    for clamp in (torch.tensor([False, True, False]), x < -0.3):
        clamp = clamp & ~clamp.all(-1, keepdim=True)
        trace = gb.sample(target, kernel, x, steps=2, clamp=clamp, generator=gen(9))
        held = clamp.expand_as(x)
        assert torch.equal(trace.last[held], x[held])
        if clamp.dim() == 1:
            check_invariance(target, kernel, draws=x, clamp=clamp, steps=6, generator=gen(10))


def test_a_momentum_that_does_not_turn_round_is_caught():
    class Straight(kernels.UnderdampedLangevin):
        def step(self, energy, state, inputs):
            new, info = super().step(energy, state, inputs)
            refused = (new.x == state.x).all(1, keepdim=True)
            return new._replace(v=torch.where(refused, -new.v, new.v)), info

    kernel = Straight(step_size=0.8, friction=0.1, adjusted=True)
    with pytest.raises(AssertionError, match="invariant"):
        check_invariance(correlated(), kernel, chains=20000, steps=10, generator=gen(11))


@pytest.mark.parametrize("adjusted", [False, True])
def test_a_run_does_not_depend_on_how_it_is_cut(adjusted):
    kernel, x = kernels.UnderdampedLangevin(step_size=0.4, adjusted=adjusted), torch.zeros(7, 2, dtype=D)
    whole = gb.sample(correlated(), kernel, x, steps=25, generator=gen(3))
    g = gen(3)
    part = gb.sample(correlated(), kernel, x, steps=4, generator=g)
    rest = gb.sample(correlated(), kernel, part, steps=21, generator=g)
    assert torch.equal(whole.samples, torch.cat([part.samples, rest.samples]))


def test_bad_chains_are_reported_and_stay_alone():
    hole = gb.as_energy(lambda x: torch.where(x[:, 0] > 1, torch.nan, 0.5 * x[:, 0] ** 2), domains.Real(1))
    x = torch.linspace(-1, 0.9, 50, dtype=D)[:, None]
    with pytest.warns(DivergenceWarning):
        trace = gb.sample(hole, kernels.UnderdampedLangevin(step_size=0.5, adjusted=True), x, steps=50, generator=gen())
    assert bool((trace.samples <= 1).all())
    assert int(trace.divergences.sum()) > 0


def test_bad_options_are_refused():
    for options in ({"step_size": 0.0}, {"step_size": 0.1, "friction": -1.0}, {"step_size": 0.1, "mass": 0.0}):
        with pytest.raises(ArgumentError):
            kernels.UnderdampedLangevin(**options)
    x = ramp_draws(3, gen())
    with pytest.raises(DomainError, match="dense"):
        gb.sample(ramp(), kernels.UnderdampedLangevin(step_size=0.1, mass=torch.eye(2)), x, steps=1, generator=gen())
    plain = gb.sample(correlated(), kernels.UnderdampedLangevin(step_size=0.1), x, steps=1, generator=gen())
    with pytest.raises(ArgumentError, match=r"cannot be resumed .* start anew from its positions"):
        gb.sample(
            correlated(), kernels.UnderdampedLangevin(step_size=0.1, adjusted=True), plain, steps=1, generator=gen()
        )
