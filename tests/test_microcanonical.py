"""Microcanonical kernels: the exact kick, the work of their integrators, exact starts, known bias, and what warm-ups learn."""

import math

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, energies, kernels
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, CapabilityError, DomainError
from gibbsian.kernels import microcanonical
from gibbsian.kernels.microcanonical import Course, Moving, degrees, integrate, kick, unit
from gibbsian.testing import check_invariance, check_kernel

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class LogExponential(Energy):
    """E = Σ exp(x) - x: skewed, steep on one side."""

    def __init__(self, dim: int):
        super().__init__(domains.Real(dim))

    def forward(self, x):
        return (x.exp() - x).sum(1)

    def sample(self, n, *, generator):
        return torch.empty(n, *self.domain.shape, dtype=F64).exponential_(generator=generator).log()


class Pull(ScoreField):
    """The score of a standard normal law, and nothing else."""

    def score(self, x):
        return -x


def diagonal(*scales: float) -> energies.Gaussian:
    s = torch.tensor(scales, dtype=F64)
    return energies.Gaussian(torch.zeros(len(s), dtype=F64), torch.diag(s**2))


def directions(n, d, seed=0):
    return unit(torch.randn(n, d, generator=gen(seed), dtype=F64))


def test_a_kick_solves_its_equation():
    """u̇ = (I - uuᵀ)f/(d - 1) by two thousand small steps, and ΔK = ∫ u·f dt, the force that speed would have felt."""
    u, f, eps, d = directions(5, 4), torch.randn(5, 4, generator=gen(1), dtype=F64), torch.tensor(1.7, dtype=F64), 4
    got, gain = kick(u, f, eps, d)
    n = 2000
    v, work = u.clone(), torch.zeros(5, dtype=F64)
    slope = lambda v: (f - (v * f).sum(1, keepdim=True) * v) / (d - 1)  # noqa: E731
    for _ in range(n):
        middle = v + eps / (2 * n) * slope(v)
        work += eps / n * (middle * f).sum(1)
        v = v + eps / n * slope(middle)
    torch.testing.assert_close(got, v, atol=1e-6, rtol=0)
    torch.testing.assert_close(gain, work, atol=1e-6, rtol=0)


def test_kicks_stand_any_force():
    u = directions(6, 3)
    f = u.roll(1, 0) * torch.tensor([0.0, 1e-300, 1e-8, 1.0, 1e8, 1e30], dtype=F64)[:, None]
    got, gain = kick(u, f, torch.tensor(1.0, dtype=F64), 3)
    torch.testing.assert_close(got.norm(dim=1), torch.ones(6, dtype=F64))
    assert torch.isfinite(gain).all()
    torch.testing.assert_close(got[:2], u[:2])
    back, loss = kick(-got[2:4], f[2:4], torch.tensor(1.0, dtype=F64), 3)  # there and back
    torch.testing.assert_close(-back, u[2:4])
    torch.testing.assert_close(loss, -gain[2:4])


def work_of(energy, x, u, eps, steps, integrator="leapfrog"):
    course = kernels.MAMS(0.1, integrator=integrator).course(energy, x, None)
    e, s = energy.energy_and_score(x)
    end = integrate(course, Moving(x, u, e, s, torch.zeros_like(e)), torch.tensor(eps, dtype=F64), steps)
    return end.energy - e + end.gain, end


@pytest.mark.parametrize("integrator", ["leapfrog", "minimal norm"])
def test_integrators_are_reversible(integrator):
    energy, x, u = LogExponential(3), torch.randn(20, 3, generator=gen(), dtype=F64), directions(20, 3, 1)
    work, end = work_of(energy, x, u, 0.7, 4, integrator)
    again, home = work_of(energy, end.x, -end.u, 0.7, 4, integrator)
    torch.testing.assert_close(home.x, x)
    torch.testing.assert_close(-home.u, u)
    torch.testing.assert_close(again, -work)


@pytest.mark.parametrize("integrator", ["leapfrog", "minimal norm"])
@pytest.mark.parametrize("d", [2, 5])
def test_work_is_fair(d, integrator, monkeypatch):
    """E[exp(-W)] = 1 from an exact start, five standard errors of 100000 chains; with d instead of d - 1 it is not."""
    energy, n = LogExponential(d), 100000
    x, u = energy.sample(n, generator=gen()), directions(n, d, 1)

    def score():
        weights = torch.exp(-work_of(energy, x, u, 0.3 * math.sqrt(d), 2, integrator)[0])
        return abs(float(weights.mean()) - 1) * math.sqrt(n) / float(weights.std())

    assert score() < 5
    monkeypatch.setattr(microcanonical, "degrees", lambda x, clamp: degrees(x, clamp) + 1)
    assert score() > 10


@pytest.mark.parametrize("integrator", ["leapfrog", "minimal norm"])
def test_the_error_grows_as_the_sixth_power(integrator):
    """Of one step of a stationary start: halving ε divides Var W by 64; 40000 chains know each to 1.5 %, the ratio and the next
    order to 8 %."""
    d, n = 40, 40000
    energy = diagonal(*torch.linspace(0.5, 2, d).tolist())
    x, u = energy.sample(n, generator=gen()), directions(n, d, 1)
    large, small = (float(work_of(energy, x, u, eps, 1, integrator)[0].var()) for eps in (1.0, 0.5))
    assert large / small == pytest.approx(64, rel=0.08)


def test_planted_bugs_are_caught(monkeypatch):
    """With d for d - 1, without ΔK, with momenta that are not on the sphere: none leaves the law alone."""
    energy, kernel = LogExponential(3), kernels.MAMS(1.2, 3)
    check_invariance(energy, kernel, generator=gen())

    def caught(name, value):
        with monkeypatch.context() as patch:
            patch.setattr(microcanonical, name, value)
            with pytest.raises(AssertionError, match="does not leave the law invariant"):
                check_invariance(energy, kernel, generator=gen())

    caught("degrees", lambda x, clamp: degrees(x, clamp) + 1)
    caught("kick", lambda *a: (kick(*a)[0], 0 * kick(*a)[1]))


def test_held_entries_leave_fewer_degrees_of_freedom():
    energy = energies.Gaussian(torch.zeros(4, dtype=F64), 0.5 * torch.eye(4, dtype=F64) + 0.5)
    clamp = torch.tensor([[True, False, False, False], [False, True, False, True]]).repeat(10000, 1)
    mass = torch.linalg.inv(energy.covariance)
    for kernel in (kernels.MAMS(1.0, 3), kernels.MAMS(1.2, 2, mass=mass)):
        check_invariance(energy, kernel, clamp=clamp, chains=20000, generator=gen(2))
    assert degrees(torch.zeros(2, 4), clamp[:2]).tolist() == [3, 2]


@pytest.mark.parametrize("kernel", [kernels.MCLMC(0.3, 1.5), kernels.MAMS(0.3, 3, mass=2 * torch.eye(5) + 0.3)])
def test_kernels_conform(kernel):
    energy = energies.Gaussian(torch.zeros(5), torch.eye(5) + 0.3)
    x = torch.randn(6, 5, generator=gen())
    assert check_kernel(kernel, energy, x, generator=gen()) == ["seed", "shapes", "pieces", "clamp", "neighbors"]
    if kernel.metric.root is None:
        walled = gb.as_energy(lambda x: x.sum(1) + x[:, 0] * x[:, 1], domains.NonNegative(5))
        assert "neighbors" in check_kernel(kernel, walled, x.abs(), generator=gen())


def stationary(kernel, energy, chains, steps, seed=0):
    """The variance of every entry over its true one, after a run long enough to forget the exact start."""
    x = energy.sample(chains, generator=gen(seed))
    trace = gb.sample(energy, kernel, x, steps, burn_in=steps // 2, generator=gen(seed + 1))
    return trace.samples.var((0, 1)) / energy.covariance.diagonal()


def test_the_bias_is_what_the_error_tells():
    """d = 10, sd ½ to 2, how much too wide the narrowest direction is: about 1 % at Var W/d = 10⁻⁵, 10 % at 3·10⁻³, where ε is 2.6
    times as long, as befits an order of ε²; 1000 chains of 150 steps know it to half a per cent."""
    energy = diagonal(*torch.linspace(0.5, 2, 10).tolist())
    x, u = energy.sample(20000, generator=gen()), directions(20000, 10, 1)
    for error, low, high in ((1e-5, 0.0, 0.03), (3e-3, 0.06, 0.14)):
        eps = 1.0
        for _ in range(4):  # Newton's method, where the error is a power
            eps *= (error / (float(work_of(energy, x, u, eps, 1)[0].var()) / 10)) ** (1 / 6)
        bias = math.sqrt(float(stationary(kernels.MCLMC(eps, 3.0), energy, 1000, 300)[0])) - 1
        assert low < bias < high


def test_directions_are_forgotten_over_the_length():
    """Without a force E[u·u₀] after k steps is exp(-kε/L) to O(1/d): each refreshment halves a step's share."""
    d, n, eps, length, k = 200, 500, 0.5, 3.0, 6
    flat = gb.as_energy(lambda x: 0.0 * x.sum(1), domains.Real(d))
    kernel = kernels.MCLMC(eps, length)
    x = torch.zeros(n, d, dtype=F64)
    state = kernel.init(flat, x)._replace(u=directions(n, d))
    start = state.u
    for i in range(k):
        inputs = kernel.draw(flat, x, 1, gen(100 + i))
        state, _ = kernel.step(flat, state, type(inputs)(*(part[0] for part in inputs)))
    assert float((state.u * start).sum(1).mean()) == pytest.approx(math.exp(-k * eps / length), rel=0.03)


@pytest.mark.parametrize("integrator", ["leapfrog", "minimal norm"])
def test_warm_up_of_the_unadjusted_form(integrator):
    """Var W/d = 5·10⁻⁴ within a factor of two (12 % of ε), variances within 25 %, the length near the radius √d."""
    energy = diagonal(*torch.logspace(-1, 1, 20).tolist())
    kernel = kernels.MCLMC(3.0, integrator=integrator)
    warmed = gb.warm_up(energy, kernel, torch.ones(32, 20, dtype=F64), 400, generator=gen(1))
    new = warmed.kernel
    assert ((new.mass * energy.covariance.diagonal() - 1).abs() < 0.25).all()
    assert 0.3 < new.length / math.sqrt(20) < 3
    assert math.isnan(float(warmed.trace.acceptance))
    x, z = energy.sample(4000, generator=gen(2)), directions(4000, 20, 3)
    e, s = energy.energy_and_score(x)
    course = Course(energy, new.metric.to(x), None, integrator, False)
    end = integrate(course, Moving(x, z, e, s, torch.zeros_like(e)), torch.tensor(new.step_size, dtype=F64), 1)
    assert 0.5 < float((end.energy - e + end.gain).var()) / 20 / 5e-4 < 2
    trace = gb.sample(energy, new, warmed.trace, steps=200, generator=gen(4))
    assert float(trace.summary()["ess"].min()) > 32 * 200 / 10


def test_warm_up_of_the_adjusted_form():
    energy = diagonal(*torch.logspace(-1, 1, 20).tolist())
    warmed = gb.warm_up(energy, kernels.MAMS(3.0), torch.ones(32, 20, dtype=F64), 400, generator=gen(1))
    assert ((warmed.kernel.mass * energy.covariance.diagonal() - 1).abs() < 0.25).all()
    trace = gb.sample(energy, warmed.kernel, warmed.trace, steps=150, generator=gen(4))
    assert abs(float(trace.acceptance) - 0.9) < 0.06
    assert float(trace.summary()["ess"].min()) > 32 * 150 / 5
    assert warmed.kernel.leapfrog_steps < 12


def test_warm_up_with_held_entries_and_steep_starts():
    energy = LogExponential(4)
    clamp = torch.tensor([True, False, False, False])
    x = torch.full((16, 4), 3.0, dtype=F64)
    for kernel in (kernels.MCLMC(5.0), kernels.MAMS(5.0)):
        warmed = gb.warm_up(energy, kernel, x, 150, clamp=clamp, generator=gen(1))
        assert torch.equal(warmed.trace.last[:, 0], x[:, 0])
        assert float(warmed.kernel.mass[0]) == 1
        more = gb.sample(energy, warmed.kernel, warmed.trace, steps=20, generator=gen(2))
        assert torch.isfinite(more.samples).all()


def test_refusals():
    with pytest.raises(DomainError, match="one dimension"):
        gb.sample(LogExponential(1), kernels.MAMS(0.1), torch.zeros(3, 1, dtype=F64), 5, generator=gen())
    for kernel in (kernels.MCLMC(0.1), kernels.MAMS(0.1)):
        clamp = torch.tensor([True, False])
        with pytest.raises(ArgumentError, match="two entries that move"):
            gb.sample(LogExponential(2), kernel, torch.zeros(3, 2, dtype=F64), 5, clamp=clamp, generator=gen())
    with pytest.raises(ArgumentError, match="integrator"):
        kernels.MCLMC(0.1, integrator="euler")
    field = Pull(domains.Real(2))
    assert gb.sample(field, kernels.MCLMC(0.1), torch.zeros(3, 2), 5, generator=gen()).samples.shape == (5, 3, 2)
    with pytest.raises(CapabilityError, match="only a score"):
        gb.warm_up(field, kernels.MCLMC(0.1), torch.zeros(3, 2), 20, generator=gen())
    with pytest.raises(ArgumentError, match="accepts all"):
        gb.warm_up(
            LogExponential(2),
            kernels.MCLMC(0.1),
            torch.zeros(3, 2, dtype=F64),
            20,
            target_acceptance=0.9,
            generator=gen(),
        )
