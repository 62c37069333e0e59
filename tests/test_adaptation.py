"""Warm-up: reaches its acceptance, learns scales, leaves the old kernel alone, and survives bad regions."""

import math
import warnings
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from exact_targets import TARGETS, D, correlated, exponential, gen, ramp, ramp_draws, two_modes
from torch._dynamo.utils import counters

import gibbsian as gb
from gibbsian import domains, energies, kernels, models
from gibbsian.errors import AdaptationWarning, ArgumentError, CapabilityError, DivergenceError, DomainError
from gibbsian.sampling import warm_up as adaptation
from gibbsian.sampling.diagnostics import summarize
from gibbsian.testing import check_invariance

KERNELS = {
    "random walk": (kernels.RandomWalk(scale=0.01), 0.234),
    "MALA": (kernels.MALA(step_size=10.0), 0.574),
    "HMC": (kernels.HMC(step_size=0.01, leapfrog_steps=5, jitter=0.2), 0.8),
    "NUTS": (kernels.NUTS(step_size=3.0), 0.8),
    "guided": (kernels.UnderdampedLangevin(step_size=1.0, friction=0.5, adjusted=True), 0.9),
}


def ill_conditioned(scales=(0.2, 1.0, 8.0)):
    return energies.Gaussian(torch.zeros(len(scales), dtype=D), torch.diag(torch.tensor(scales, dtype=D) ** 2))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", [two_modes, ill_conditioned])
def test_reaches_its_acceptance_and_recovers_scales(name, target):
    """Acceptance over 64 x 100 further steps, whose own standard error is below 0.01; the average of 50 adaptive
    steps that the step size comes from adds about 0.015 (standard deviation over seeds).

    The variances that the mass stands for within 25 %: five standard errors for an effective size of 800 draws.
    """
    kernel, wanted = KERNELS[name]
    energy, g = target(), gen(1)
    x = torch.zeros(64, energy.domain.numel, dtype=D)
    warmed = gb.warm_up(energy, kernel, x, 500, generator=g)
    trace = gb.sample(energy, warmed.kernel, warmed.trace, steps=100, keep=False, generator=g)
    assert abs(float(trace.acceptance) - wanted) < 0.06
    assert type(warmed.kernel) is type(kernel)
    if target is ill_conditioned and name != "random walk":
        assert ((warmed.kernel.mass * energy.covariance.diagonal() - 1).abs() < 0.25).all()


@pytest.mark.filterwarnings("ignore:compiling took:gibbsian.errors.CompileWarning")
def test_a_compiled_warm_up_reaches_the_same_and_serves_the_run_after_it(monkeypatch):
    """Mass and step size change on the way, compiled once, which is told who watches and kept on disk for other processes;
    acceptance and variances as above."""
    notes: list[str] = []

    @contextmanager
    def watched(*_):
        yield lambda n, note=None, **shown: notes.append(note) if note else None

    monkeypatch.setattr(adaptation, "progress_bar", watched)
    left_out = counters["inductor"]["fxgraph_cache_bypass"]
    energy, g = ill_conditioned(), gen(1)
    warmed = gb.warm_up(energy, kernels.MALA(10.0), torch.zeros(64, 3, dtype=D), 500, generator=g, compile=True)
    torch.compiler.set_stance("fail_on_recompile")
    try:
        trace = gb.sample(energy, warmed.kernel, warmed.trace, steps=100, keep=False, generator=g, compile=True)
    finally:
        torch.compiler.set_stance("default")
    assert trace.compiled
    assert notes == ["compiling MALA (some seconds, the first time)"]
    assert counters["inductor"]["fxgraph_cache_bypass"] == left_out
    assert abs(float(trace.acceptance) - 0.574) < 0.06
    assert ((warmed.kernel.mass * energy.covariance.diagonal() - 1).abs() < 0.25).all()


@pytest.mark.parametrize("dim", [10, 50, 200])
def test_tuned_trajectories_do_not_come_back_to_where_they_began(dim):
    """The default on N(0, I): 1600 draws are worth at least a quarter, their squares a sixteenth. For lengths of one size the
    effective number lies below 40 where ten steps of the tuned size are half a period (d = 10, squares) or a whole one (50).
    With ε between ½ and 3/2 of it, refusals in a fifth of the steps leave correlations below 0.4 (squares: 0.7)."""
    energy = energies.Gaussian(torch.zeros(dim), torch.eye(dim))
    warmed = gb.warm_up(energy, kernels.HMC(0.1, leapfrog_steps=10), torch.zeros(16, dim), 150, generator=gen())
    trace = gb.sample(energy, warmed.kernel, warmed.trace, steps=100, generator=gen(1))
    x = trace.samples[..., :10]
    assert float(summarize(x)["ess"].min()) > 400
    assert float(summarize(x.square())["ess"].min()) > 100


@pytest.mark.parametrize("seed", range(4))
def test_the_largest_of_jittered_steps_is_stable(seed):
    """A narrow valley, two dimensions: at a mean acceptance of 0.8 the largest steps would lie beyond the stability of the
    integrator (2/ω = 0.447 without a mass), where hundreds of trajectories of any chain diverge; below it none does. What
    chains accept differs little from seed to seed, since jitter is spread evenly over them: 0.8 lies at the limit."""
    energy = gb.as_energy(lambda x: 5 * (x[:, 0] - x[:, 1]) ** 2 + torch.cosh(0.5 * x[:, 0]), domains.Real(2))
    g = gen(seed)
    warmed = gb.warm_up(energy, kernels.HMC(0.1, leapfrog_steps=10), torch.zeros(100, 2), 300, generator=g, mass=None)
    trace = gb.sample(energy, warmed.kernel, warmed.trace, steps=100, keep=False, generator=g)
    assert 0.36 < 1.5 * warmed.kernel.step_size < 0.4473
    assert int(trace.divergences.sum()) == 0
    assert 0.8 < float(trace.acceptance) < 0.9


@pytest.mark.parametrize("periods", [0.5, 1.0, 2.0])
def test_no_number_of_leapfrog_steps_resonates(periods):
    """ε = 2 sin(π·periods/L): L leapfrog steps are exactly so many periods of N(0, 1)."""
    energy = energies.Gaussian(torch.zeros(2), torch.eye(2))
    kernel = kernels.HMC(2 * math.sin(math.pi * periods / 10), leapfrog_steps=10)
    x = gb.sample(energy, kernel, torch.randn(16, 2, generator=gen()), steps=100, generator=gen(1)).samples
    for f in (x, x.square()):
        assert float(summarize(f)["ess"].min()) > 160  # of 1600; less than 40 without jitter
    still = gb.sample(
        energy, replace(kernel, jitter=0.0), torch.randn(16, 2, generator=gen()), steps=100, generator=gen(1)
    )
    assert float(summarize(still.samples.square())["ess"].min()) < 40


def test_one_dimensional_walks_aim_higher_and_targets_can_be_given():
    energy = energies.Gaussian(torch.zeros(1, dtype=D), torch.eye(1, dtype=D))
    x = torch.zeros(200, 1, dtype=D)
    for options, wanted in (({}, 0.44), ({"target_acceptance": 0.7}, 0.7)):
        warmed = gb.warm_up(energy, kernels.RandomWalk(scale=1.0), x, 300, generator=gen(2), **options)
        trace = gb.sample(energy, warmed.kernel, warmed.trace, steps=100, keep=False, generator=gen(3))
        assert abs(float(trace.acceptance) - wanted) < 0.04
    # acceptance of a Gaussian walk of scale s on N(0, 1) is (2/π) atan(2/s)
    assert abs(warmed.kernel.scale - 2 / math.tan(0.7 * math.pi / 2)) < 0.15


def test_recovers_correlations():
    mixing = torch.tensor([[1.0, 0.0, 0.0], [5.0, 1.0, 0.0], [-3.0, 0.5, 0.2]], dtype=D)
    covariance = mixing @ mixing.T
    energy = energies.Gaussian(torch.zeros(3, dtype=D), covariance)
    kernel = kernels.HMC(step_size=0.1, leapfrog_steps=8, jitter=0.3)
    warmed = gb.warm_up(energy, kernel, torch.zeros(128, 3, dtype=D), 800, mass="dense", generator=gen(5))
    white = torch.linalg.eigvalsh(mixing.T @ warmed.kernel.mass @ mixing)  # all 1 if the mass is the precision
    assert ((white - 1).abs() < 0.3).all()
    assert warmed.kernel.step_size > 0.4  # as on a standard normal


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", ["box", "non-negative"])
def test_works_between_walls(name, target):
    make, draw = TARGETS[target]
    kernel, _ = KERNELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdaptationWarning)  # walls may let any step through
        warmed = gb.warm_up(make(), kernel, draw(64, gen(6)), 150, generator=gen(7))
    assert make().domain.contains(warmed.trace.last).all()
    check_invariance(make(), warmed.kernel, draws=draw(10000, gen(8)), steps=3, generator=gen(9))


def test_the_adapted_kernel_is_exact():
    warmed = gb.warm_up(two_modes(), kernels.NUTS(step_size=1.0), torch.zeros(32, 2, dtype=D), 200, generator=gen(10))
    check_invariance(two_modes(), warmed.kernel, chains=20000, steps=3, generator=gen(11))


def test_is_reproducible_and_leaves_the_old_kernel_alone():
    kernel = kernels.HMC(step_size=0.3, leapfrog_steps=4)
    before, state = dict(vars(kernel)), torch.get_rng_state()
    run = lambda seed: gb.warm_up(correlated(), kernel, torch.zeros(8, 2, dtype=D), 120, generator=gen(seed))  # noqa: E731
    a, b, c = run(1), run(1), run(2)
    assert a.kernel.step_size == b.kernel.step_size != c.kernel.step_size
    assert torch.equal(a.kernel.mass, b.kernel.mass)
    assert torch.equal(a.trace.last, b.trace.last)
    assert vars(kernel) == before
    assert kernel.mass is None
    assert a.kernel is not kernel
    assert torch.equal(state, torch.get_rng_state())


def test_the_trace_goes_on():
    energy, g = correlated(), gen(12)
    warmed = gb.warm_up(energy, KERNELS["guided"][0], torch.zeros(8, 2, dtype=D), 120, generator=g)
    assert warmed.trace.steps == 120
    assert warmed.trace.samples is None
    assert float(warmed.trace.state.thermal) == 1
    copy = torch.Generator()
    copy.set_state(g.get_state())
    more = gb.sample(energy, warmed.kernel, warmed.trace, steps=5, generator=g)
    assert more.steps == 125
    again = gb.sample(energy, warmed.kernel, warmed.trace, steps=5, generator=copy)
    assert torch.equal(more.samples, again.samples)


def test_clamped_entries_stay_and_get_unit_mass():
    x = torch.tensor([[0.0, -1.0]], dtype=D).expand(64, 2).clone()
    clamp = torch.tensor([False, True])
    for mass in ("diagonal", "dense"):
        warmed = gb.warm_up(correlated(), kernels.HMC(0.3, 4), x, 200, mass=mass, clamp=clamp, generator=gen(13))
        trace = gb.sample(correlated(), warmed.kernel, warmed.trace, steps=100, generator=gen(14))
        assert (trace.samples[..., 1] == -1).all()
        got = warmed.kernel.mass
        diagonal = got.diagonal() if mass == "dense" else got
        assert float(diagonal[1]) == 1
        assert abs(0.19 * float(diagonal[0]) - 1) < 0.3  # the conditional variance
        assert mass == "diagonal" or float(got[0, 1]) == 0
        mean = trace.samples[..., 0].mean()
        assert abs(float(mean) - 1.9) < 0.05
    walk = gb.warm_up(correlated(), kernels.RandomWalk(1.0), x, 200, clamp=clamp, generator=gen(15))
    moved = gb.sample(correlated(), walk.kernel, walk.trace, steps=200, keep=False, generator=gen(16))
    assert abs(float(moved.acceptance) - 0.44) < 0.06  # one free coordinate


@pytest.mark.parametrize("name", KERNELS)
def test_regions_that_are_not_a_number_do_not_break_it(name):
    hole = gb.as_energy(lambda x: torch.where(x[:, 0] > 1, torch.nan, 0.5 * x.square().sum(-1)), domains.Real(2))
    warmed = gb.warm_up(hole, KERNELS[name][0], torch.zeros(64, 2, dtype=D), 200, generator=gen(17))
    size = warmed.kernel.scale if name == "random walk" else warmed.kernel.step_size
    assert 0.01 < size < 10
    assert torch.isfinite(warmed.trace.last).all()
    assert (warmed.trace.last[:, 0] <= 1).all()
    assert int(warmed.trace.divergences.sum()) > 0


def test_hopeless_energies_say_so():
    only_here = gb.as_energy(lambda x: torch.where(x[:, 0] == 0, x[:, 0], torch.nan), domains.Real(1))
    with pytest.raises(DivergenceError, match="however small"):
        gb.warm_up(only_here, kernels.MALA(0.1), torch.zeros(4, 1, dtype=D), 10, generator=gen())
    with pytest.raises(DomainError, match="energy at x0"):
        gb.warm_up(only_here, kernels.MALA(0.1), torch.ones(4, 1, dtype=D), 10, generator=gen())
    flat = gb.as_energy(lambda x: 0 * x.sum(-1), domains.Box(2))
    with pytest.warns(AdaptationWarning, match=r"acceptance 1\.00"):
        gb.warm_up(flat, kernels.MALA(0.1), torch.full((4, 2), 0.5, dtype=D), 50, generator=gen())


def test_discrete_proposals_too():
    machine = models.BoltzmannMachine(8).double()
    x = (torch.rand(64, 8, generator=gen(18), dtype=D) < 0.5).double()
    w = torch.randn(8, 8, generator=gen(19), dtype=D)
    machine.set_parameters(weight=((w + w.T) / 2).fill_diagonal_(0), bias=torch.zeros(8, dtype=D))
    kernel = kernels.DiscreteLangevin(step_size=0.1)
    warmed = gb.warm_up(machine, kernel, x, 300, generator=gen(20))
    trace = gb.sample(machine, warmed.kernel, warmed.trace, steps=200, keep=False, generator=gen(21))
    assert abs(float(trace.acceptance) - 0.5) < 0.06


def test_events_with_several_axes_in_single_precision():
    energy = gb.as_energy(lambda x: 0.5 * (x.square() * 4).flatten(1).sum(1), domains.Real((2, 2)))
    warmed = gb.warm_up(energy, kernels.MALA(0.5), torch.zeros(64, 2, 2), 200, generator=gen(22))
    assert warmed.kernel.mass.shape == (4,)
    trace = gb.sample(energy, warmed.kernel, warmed.trace, steps=10, generator=gen(23))
    assert trace.samples.dtype == torch.float32


def test_running_covariance_is_that_of_all_draws():
    x = torch.randn(7, 5, 3, generator=gen(24), dtype=D) + 100
    flat = x.reshape(-1, 3)
    for dense in (False, True):
        running = adaptation.Covariance(x[0], dense)
        for part in x:
            running.update(part)
        exact = flat.T.cov()
        assert torch.allclose(running.mean, flat.mean(0))
        assert torch.allclose(running.spread / 34, exact if dense else exact.diagonal())
    assert running.mass(None) is not None
    stuck = adaptation.Covariance(x[0], False)
    stuck.update(torch.zeros(5, 3, dtype=D))
    assert stuck.mass(None) is None


def test_every_window_forgets_the_one_before(monkeypatch):
    """The mass of a window is that of its own draws: chains that come from afar would else be in it for good."""
    seen = []

    class Watched(adaptation.Covariance):
        def mass(self, clamp):
            seen.append(self.count)
            return super().mass(clamp)

    monkeypatch.setattr(adaptation, "Covariance", Watched)
    gb.warm_up(correlated(), kernels.MALA(0.5), torch.zeros(6, 2, dtype=D), 400, generator=gen())
    assert seen == [6 * (b - a) for a, b in pairwise(adaptation.windows(400))]
    assert len(seen) == 3


def test_the_mass_of_a_warm_up_from_afar_is_that_of_the_target():
    """Chains that begin 300 standard deviations away, with steps that need the first windows to arrive: variances within
    40 %, five standard errors for 250 steps of 16 chains; draws of the arrival alone would multiply them by more than 100."""
    energy = energies.Gaussian(torch.zeros(2, dtype=D), torch.eye(2, dtype=D))
    warmed = gb.warm_up(energy, kernels.HMC(0.3), torch.full((16, 2), 300.0, dtype=D), 600, generator=gen(1))
    assert ((warmed.kernel.mass - 1).abs() < 0.4).all()


@pytest.mark.parametrize("steps", [20, 50, 149, 150, 151, 400, 1000, 5000])
def test_windows_fill_the_middle(steps):
    edges = adaptation.windows(steps)
    lengths = [b - a for a, b in pairwise(edges)]
    assert edges[0] >= 0.07 * steps or edges[0] == 75
    assert 0.05 * steps <= steps - edges[-1] <= max(50, 0.11 * steps)
    assert all(b >= 2 * a for a, b in pairwise(lengths))


@pytest.mark.parametrize(
    ("error", "kernel", "options"),
    [
        (CapabilityError, kernels.Langevin(0.1), {}),
        (CapabilityError, kernels.UnderdampedLangevin(0.1), {}),
        (CapabilityError, kernels.ParallelTempering(kernels.MALA(0.1), [1.0, 0.5]), {}),
        (ArgumentError, kernels.MALA(torch.tensor([0.1, 0.2])), {}),
        (ArgumentError, kernels.RandomWalk(0.1), {"mass": "dense"}),
        (ArgumentError, kernels.MALA(0.1), {"mass": "full"}),
        (ArgumentError, kernels.MALA(0.1), {"target_acceptance": 1.0}),
        (ArgumentError, kernels.MALA(0.1), {"steps": 0}),
        (ArgumentError, "MALA", {}),
    ],
)
def test_what_cannot_be_adapted_is_refused(error, kernel, options):
    with pytest.raises(error):
        gb.warm_up(correlated(), kernel, torch.zeros(4, 2, dtype=D), **{"steps": 30, **options}, generator=gen())


def test_dense_masses_and_walls_do_not_go_together():
    with pytest.raises(DomainError, match="dense"):
        gb.warm_up(ramp(), kernels.HMC(0.1), ramp_draws(4, gen()), 30, mass="dense", generator=gen())
    with pytest.raises(DomainError):
        gb.warm_up(exponential(), kernels.HMC(0.1), -torch.ones(4, 2, dtype=D), 30, generator=gen())
