"""Running kernels: what is kept, resumed, clamped, reported, summarized and refused."""

import gc
import math
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from arviz_stats.base import array_stats

import gibbsian as gb
from gibbsian import domains, energies, kernels
from gibbsian.errors import (
    ArgumentError,
    CapabilityError,
    DivergenceError,
    DivergenceWarning,
    GibbsianError,
    PrecisionWarning,
    RandomnessError,
)
from gibbsian.kernels.base import WalkState
from gibbsian.sampling.diagnostics import summarize
from gibbsian.sampling.streaming import StreamingMoments, sums_in_one_pass, sums_in_two_passes

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(dim: int = 2) -> energies.Gaussian:
    return energies.Gaussian(torch.zeros(dim), torch.eye(dim) + 0.5)


KERNELS = {
    "random walk": kernels.RandomWalk(0.7),
    "Langevin": kernels.Langevin(0.4),
    "short run": kernels.ShortRunLangevin(0.2, 0.3, clip=1.0),
    "falling short run": kernels.ShortRunLangevin(0.4, 0.3, last=0.05, cycle=7),
    "MALA": kernels.MALA(0.8),
    "HMC": kernels.HMC(0.4, 3, jitter=0.2),
    "HMC, dense": kernels.HMC(0.3, 4, mass=torch.tensor([[2.0, 0.5], [0.5, 1.0]]), jitter=0.4),
    "independence": kernels.Independence(energies.Gaussian(torch.zeros(2), 2 * torch.eye(2))),
    "NUTS": kernels.NUTS(0.5),
    "ChEES": kernels.ChEES(0.4, 2.0),
    "underdamped": kernels.UnderdampedLangevin(0.3),
    "guided": kernels.UnderdampedLangevin(0.3, adjusted=True),
    "tempering": kernels.ParallelTempering(kernels.MALA(0.8), [1.0, 0.5, 0.2]),
}
X0 = torch.randn(6, 2, generator=gen(9))


def run(name="MALA", steps=40, x0=X0, seed=1, **how):
    return gb.sample(gaussian(), KERNELS[name], x0, steps, generator=gen(seed), **how)


# --- burn-in, thinning, keeping -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["random walk", "Langevin", "HMC", "independence", "tempering"])
@pytest.mark.parametrize(("burn_in", "thin"), [(0, 3), (70, 1), (13, 4), (149, 5), (5, 200), (66, 7)])
def test_burn_in_and_thinning_pick_from_the_whole_chain(name, burn_in, thin):
    whole, part = run(name, 150), run(name, 150, burn_in=burn_in, thin=thin)
    assert torch.equal(part.samples, whole.samples[burn_in::thin])
    assert torch.equal(part.last, whole.last)
    assert torch.equal(part.draw_diverged, whole.draw_diverged[burn_in::thin])
    after = whole.draw_acceptance[burn_in:].double().mean()
    assert torch.allclose(part.acceptance, after, equal_nan=True)  # counts the steps between kept draws too


def test_samples_end_with_the_last_state():
    trace = run(steps=23)
    assert trace.samples.shape == (23, 6, 2)
    assert torch.equal(trace.samples[-1], trace.last)
    assert not torch.equal(trace.samples[0], X0)
    assert trace.steps == 23
    assert "MALA" in repr(trace)
    assert "(23, 6, 2)" in repr(trace)


def test_start_is_left_alone_and_so_are_kept_draws():
    before = X0.clone()
    trace = run()
    kept = trace.samples.clone()
    gb.sample(gaussian(), KERNELS["MALA"], trace, 10, generator=gen())
    assert torch.equal(X0, before)
    assert torch.equal(trace.samples, kept)


@pytest.mark.parametrize("name", ["random walk", "Langevin", "HMC", "independence", "tempering"])
@pytest.mark.parametrize(("steps", "burn_in", "thin"), [(40, 0, 1), (97, 13, 3), (3, 0, 1), (1, 0, 1), (150, 1, 2)])
def test_streamed_statistics_are_those_of_the_kept_draws(name, steps, burn_in, thin):
    how = {"steps": steps, "burn_in": burn_in, "thin": thin}
    kept, streamed = run(name, **how), run(name, keep=False, **how)
    assert streamed.samples is None
    assert torch.equal(kept.last, streamed.last)
    assert torch.allclose(kept.acceptance, streamed.acceptance, equal_nan=True)
    flat = kept.samples.flatten(0, 1)
    summary = streamed.summary()
    assert torch.allclose(summary["mean"], flat.mean(0), atol=1e-6)
    assert torch.allclose(summary["sd"], flat.std(0), atol=1e-6)
    assert torch.allclose(summary["sd"], kept.summary()["sd"], atol=1e-6)
    for key, value in kept.summary().items():  # so few draws are all at hand
        assert torch.allclose(summary[key], value, equal_nan=True)


def autoregressive(draws, chains, rho, seed=0):
    z = torch.randn(draws, chains, 1, generator=gen(seed), dtype=F64)
    x = z.clone()
    for i in range(1, draws):
        x[i] = rho * x[i - 1] + math.sqrt(1 - rho**2) * z[i]
    return x


@pytest.mark.parametrize("rho", [0.0, 0.7, 0.9])
def test_streamed_effective_sample_size(rho):
    """Of an autoregressive chain it is n(1-ρ)/(1+ρ); batch means of 8 chains know it to about 10 %."""
    x = autoregressive(6400, 8, rho)
    stream = StreamingMoments(len(x))
    for part in x.split(37):
        stream.update(part)
    summary = stream.summary()
    exact = x.numel() * (1 - rho) / (1 + rho)
    assert 0.6 * exact < float(summary["ess"]) < 1.5 * exact
    assert abs(float(summary["mcse"]) - float(summary["sd"]) / math.sqrt(float(summary["ess"]))) < 1e-9
    assert float(summary["r_hat"]) < 1.02


@pytest.mark.parametrize("draws", [513, 640, 1000, 1023])
def test_streamed_effective_sample_sizes_are_those_of_batch_means(draws):
    """n·s²/(n_b·Var of batch means), batches of nearly one length whose means are weighted by it, computed from all draws."""
    x = autoregressive(draws, 3, 0.6, seed=draws) + 1e3
    stream = StreamingMoments(draws)
    for part in x.split(7):
        stream.update(part)
    batches = 64
    which = np.arange(draws) * batches // draws
    parts = [x[which == b] for b in range(batches)]
    mean = x.mean()
    spread = sum(len(p) * (p.mean(0) - mean).square().sum() for p in parts) / (3 * batches - 1)
    summary = stream.summary()
    torch.testing.assert_close(summary["ess"][0], x.numel() * x.var() / spread)
    torch.testing.assert_close(summary["mcse"][0], (spread / x.numel()).sqrt())
    torch.testing.assert_close(summary["sd"][0], x.std())


def test_streamed_statistics_see_chains_that_disagree():
    x = torch.randn(1000, 4, 1, generator=gen(), dtype=F64) + 5 * torch.arange(4.0)[:, None].double()
    stream = StreamingMoments(1000)
    stream.update(x)
    summary = stream.summary()
    assert float(summary["r_hat"]) > 2  # ranks of four chains that nowhere overlap: 2.9
    assert float(summary["ess"]) < 400  # of 4000
    assert torch.allclose(summary["sd"], x.flatten(0, 1).std(0))


def test_streams_keep_their_digits_far_from_nought():
    x = (1e4 + torch.randn(20000, 2, 1, generator=gen())).float()
    stream = StreamingMoments(20000)
    for part in x.split(64):
        stream.update(part)
    assert abs(float(stream.summary()["sd"]) - float(x.double().std())) < 1e-3
    with pytest.raises(ArgumentError, match="seen 0 of 5"):
        StreamingMoments(5).summary()


def test_memory_is_flat_in_steps_when_nothing_is_kept():
    def tensors(steps):
        trace = run("random walk", steps=steps, keep=False)
        gc.collect()
        held = {id(t): t.numel() for t in gc.get_objects() if type(t) is torch.Tensor}
        assert trace.moments.sums.shape[0] <= 64
        return sum(held.values())

    assert tensors(2000) <= tensors(500) + 1000


# --- resuming -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("cut", [1, 10, 33])
def test_resuming_gives_the_same_chain_to_the_bit(name, cut):
    whole = run(name)
    g = gen(1)
    first = gb.sample(gaussian(), KERNELS[name], X0, cut, generator=g)
    rest = gb.sample(gaussian(), KERNELS[name], first, 40 - cut, generator=g)
    assert torch.equal(whole.samples, torch.cat([first.samples, rest.samples]))
    assert rest.steps == 40
    assert first.steps == cut


def test_resuming_goes_on_in_a_schedule():
    kernel = kernels.RandomWalk(torch.linspace(0.1, 2.0, 20))
    whole = gb.sample(gaussian(), kernel, X0, 20, generator=gen())
    g = gen()
    first = gb.sample(gaussian(), kernel, X0, 6, generator=g)
    rest = gb.sample(gaussian(), kernel, first, 14, generator=g)
    assert torch.equal(whole.last, rest.last)
    with pytest.raises(ArgumentError, match="schedule"):
        gb.sample(gaussian(), kernel, rest, 1, generator=g)


@pytest.mark.parametrize("per_chain", [False, True])
@pytest.mark.parametrize("name", ["MALA", "HMC, dense", "independence", "guided", "underdamped", "tempering"])
def test_a_resumed_run_keeps_its_clamp(name, per_chain):
    clamp = torch.tensor([True, False])
    first = run(name, steps=5, clamp=clamp.expand(6, 2) if per_chain else clamp)
    rest = gb.sample(gaussian(), KERNELS[name], first, 5, generator=gen())
    assert torch.equal(rest.samples[..., 0], X0[:, 0].expand(5, 6))
    assert not torch.equal(rest.last[:, 1], first.last[:, 1])


def test_resuming_refuses_what_it_cannot_go_on_with():
    first = run(steps=5)
    hotter = energies.Gaussian(torch.zeros(2), 9 * torch.eye(2))
    for energy, kernel, how, message in (
        (gaussian(), kernels.RandomWalk(0.5), {}, "trace.last"),
        (hotter, KERNELS["MALA"], {}, "not the one"),
        (gaussian(), KERNELS["MALA"], {"clamp": torch.tensor([True, False])}, "clamp"),
    ):
        with pytest.raises(ArgumentError, match=message):
            gb.sample(energy, kernel, first, 5, generator=gen(), **how)
    gb.sample(hotter, KERNELS["MALA"], first.last, 5, generator=gen())


def wider(scale=9.0):
    return energies.Gaussian(torch.zeros(2), scale * torch.eye(2))


def tempered(kernel=None, betas=(1.0, 0.5)):
    return kernels.ParallelTempering(kernels.MALA(0.5) if kernel is None else kernel, list(betas))


CHANGED = {  # what a trace was run with, and what it must not be resumed with
    "tempering, another energy": (gaussian(), tempered(), wider(), tempered()),
    "tempering, another ladder": (gaussian(), tempered(), gaussian(), tempered(betas=(1.0, 0.2))),
    "tempering, a longer ladder": (gaussian(), tempered(), gaussian(), tempered(betas=(1.0, 0.5, 0.2, 0.1))),
    "tempering, another inner kernel": (gaussian(), tempered(), gaussian(), tempered(kernels.RandomWalk(0.5))),
    "tempering, another inner proposal": (
        gaussian(), tempered(kernels.Independence(wider())), gaussian(), tempered(kernels.Independence(wider(4.0))),
    ),
    "tempering without energies, another ladder": (
        gaussian(), tempered(kernels.Langevin(0.1)), gaussian(), tempered(kernels.Langevin(0.1), (1.0, 0.2)),
    ),
    "another proposal": (gaussian(), kernels.Independence(wider()), gaussian(), kernels.Independence(wider(4.0))),
    "scores of another energy": (gaussian(), kernels.UnderdampedLangevin(0.3), wider(), kernels.UnderdampedLangevin(0.3)),
    "the adjusted form": (
        gaussian(), kernels.UnderdampedLangevin(0.3), gaussian(), kernels.UnderdampedLangevin(0.3, adjusted=True),
    ),
    "a slightly other energy": (gaussian(), kernels.MALA(0.5), 1.01 * gaussian(), kernels.MALA(0.5)),
    "a mass of another shape": (gaussian(), kernels.HMC(0.3), gaussian(), kernels.HMC(0.3, mass=torch.ones(3))),
    "another shape, nothing carried": (gaussian(), kernels.Langevin(0.1), gaussian(3), kernels.Langevin(0.1)),
    "another precision": (gaussian(), kernels.Langevin(0.1), energies.MLPEnergy(2).double(), kernels.Langevin(0.1)),
    "another domain": (
        gaussian(), kernels.Langevin(0.1), gb.as_energy(lambda x: x.sum(1), domains.NonNegative(2)), kernels.Langevin(0.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_traces_of_other_energies_kernels_and_domains_are_refused(name):
    energy, kernel, other, changed = CHANGED[name]
    trace = gb.sample(energy, kernel, X0, 5, generator=gen())
    with pytest.raises(GibbsianError) as caught:
        gb.sample(other, changed, trace, 5, generator=gen())
    assert not isinstance(caught.value, CapabilityError)
    gb.sample(energy, kernel, trace, 5, generator=gen())


def test_another_step_size_and_lost_chains_do_not_prevent_a_resume():
    first = gb.sample(gaussian(), tempered(), X0, 5, generator=gen())
    gb.sample(gaussian(), tempered(kernels.MALA(0.1)), first, 5, generator=gen())
    x0 = torch.zeros(4, 2)
    x0[2, 0] = 1e30
    steep = gb.as_energy(lambda x: (x**4).sum(1), domains.Real(2))
    for kernel in (kernels.Langevin(0.1), kernels.UnderdampedLangevin(0.1)):
        with pytest.warns(DivergenceWarning):
            first = gb.sample(steep, kernel, x0, 10, generator=gen())
        with pytest.warns(DivergenceWarning):
            gb.sample(steep, kernel, first, 10, generator=gen())


class Counted(NamedTuple):
    x: torch.Tensor
    energy: torch.Tensor
    count: torch.Tensor


@dataclass(frozen=True)
class Counting(kernels.RandomWalk):
    """A kernel of one's own, whose state has a count and knows no clamps."""

    def init(self, energy, x, clamp=None):
        return Counted(x, energy(x), torch.zeros(len(x)))

    def energies(self, state):
        return state.energy

    def step(self, energy, state, inputs):
        new, info = super().step(energy, WalkState(state.x, state.energy), inputs)
        return Counted(new.x, new.energy, state.count + 1), info


def test_own_kernels_are_resumed_and_checked_by_the_energies_they_tell():
    whole = gb.sample(gaussian(), Counting(0.5), X0, 10, generator=gen(1))
    g = gen(1)
    first = gb.sample(gaussian(), Counting(0.5), X0, 4, generator=g)
    rest = gb.sample(gaussian(), Counting(0.5), first, 6, generator=g)
    assert torch.equal(rest.last, whole.last)
    assert rest.state.count.tolist() == [10.0] * 6
    with pytest.raises(ArgumentError, match="not the one"):
        gb.sample(wider(), Counting(0.5), first, 6, generator=g)


# --- rounding -------------------------------------------------------------------------------------


def offset(constant, dim=1):
    return gb.as_energy(lambda x: 0.5 * x.square().sum(1) + constant, domains.Real(dim))


@pytest.mark.parametrize(
    "kernel",
    [kernels.RandomWalk(1.0), kernels.MALA(0.5), kernels.HMC(0.3, 3), kernels.NUTS(0.5), tempered(),
     kernels.UnderdampedLangevin(0.3, adjusted=True)],
    ids=str,
)  # fmt: skip
def test_energies_too_large_for_their_precision_are_noticed_once(kernel):
    """10⁸ is known to ±4 in single precision; 10⁴ to ±5e-4, and in double precision both well enough."""
    with pytest.warns(PrecisionWarning, match=r"1e\+08 are rounded to 8 in torch.float32.*double") as caught:
        gb.sample(offset(1e8), kernel, torch.zeros(6, 1), 20, generator=gen())
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gb.sample(offset(1e8), kernel, torch.zeros(6, 1, dtype=F64), 20, generator=gen())
        gb.sample(offset(1e4), kernel, torch.zeros(6, 1), 20, generator=gen())


def test_rounding_is_noticed_by_sites_and_draws_and_not_where_energies_are_not_asked():
    bits = gb.as_energy(lambda x: x.sum(1) - 1e8, domains.Binary(3))
    with pytest.warns(PrecisionWarning):
        gb.sample(bits, kernels.SiteGibbs(), torch.zeros(4, 3), 3, generator=gen())
    with pytest.warns(PrecisionWarning):
        gb.draw(gaussian(1) + offset(1e8), 4, steps=3, kernel=kernels.MALA(0.5), generator=gen())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gb.sample(offset(1e8), kernels.Langevin(0.1), torch.zeros(4, 1), 3, generator=gen())
        far = torch.cat([torch.zeros(5, 1), torch.full((1, 1), 3e3)])  # one chain that has not arrived yet
        gb.sample(offset(0.0), kernels.RandomWalk(0.5), far, 3, generator=gen())


# --- clamping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("per_chain", [False, True])
def test_clamped_entries_keep_their_bits(name, per_chain):
    clamp = torch.tensor([True, False])
    if per_chain:
        clamp = torch.tensor([[True, False], [False, True]] * 3)
    trace = run(name, clamp=clamp, steps=60)
    held = clamp.expand_as(X0)
    assert bool((trace.samples == X0)[:, held].all())
    assert bool((trace.samples != X0)[:, ~held].any(0).all())


@pytest.mark.parametrize("name", ["random walk", "MALA", "HMC", "HMC, dense", "independence", "NUTS", "guided"])
def test_clamped_chains_reach_the_conditional_gaussian(name):
    """x₁ given x₀ = c is N(μ₁ + ρc/σ₀², ...): from one start, 4000 chains, five standard errors."""
    energy = energies.Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
    x0 = torch.stack([torch.linspace(-2, 2, 4000), torch.full((4000,), 3.0)], 1)
    trace = gb.sample(energy, KERNELS[name], x0, 200, burn_in=199, clamp=torch.tensor([True, False]), generator=gen(2))
    z = (trace.last[:, 1] - 0.9 * trace.last[:, 0]) / math.sqrt(1 - 0.81)
    assert abs(float(z.mean())) < 5 / math.sqrt(4000)
    assert abs(float(z.var()) - 1) < 5 * math.sqrt(2 / 4000)
    assert abs(float((z * x0[:, 0]).mean())) < 5 * float(x0[:, 0].std()) / math.sqrt(4000)


@pytest.mark.parametrize("name", ["random walk", "MALA", "HMC", "NUTS", "guided", "Langevin", "underdamped"])
def test_an_infinite_score_at_a_held_entry_does_no_harm(name):
    energy = gb.as_energy(lambda x: x[:, 0].sqrt() + x[:, 1] + x[:, 1] * x[:, 0], domains.NonNegative(2))
    x0 = torch.tensor([[0.0, 1.0], [0.0, 0.3]])
    trace = gb.sample(energy, KERNELS[name], x0, 30, clamp=torch.tensor([True, False]), generator=gen())
    assert int(trace.divergences.sum()) == 0
    assert bool((trace.last[:, 1] != x0[:, 1]).all())


def test_clamping_categorical_units():
    table = energies.Grid(torch.zeros(3, 3))
    x0 = table.domain.one_hot(torch.tensor([[0, 2], [1, 1]]))

    def relabel(x, generator):
        new = table.domain.one_hot(torch.randint(3, (2, 2), generator=generator))
        return torch.where(torch.tensor([[True], [False]]), x, new)

    trace = gb.sample(
        table, kernels.Metropolis(relabel, symmetric=True), x0, 20, clamp=torch.tensor([True, False]), generator=gen()
    )
    assert bool((trace.samples[:, :, 0] == x0[:, 0]).all())


def test_a_proposal_that_moves_a_clamped_entry_is_refused():
    walk = kernels.Metropolis(lambda x, generator: x + 1, symmetric=True)
    with pytest.raises(ArgumentError, match="clamped"):
        gb.sample(gaussian(), walk, X0, 5, clamp=torch.tensor([True, False]), generator=gen())
    heavy = kernels.Independence(energies.StudentT(3.0))
    with pytest.raises(CapabilityError, match="Gaussian"):
        gb.sample(gaussian(), heavy, X0, 5, clamp=torch.tensor([True, False]), generator=gen())


# --- divergences ----------------------------------------------------------------------------------


class Cliff(gb.Energy):
    """NaN beyond x₀ = 1, a Gaussian before it."""

    def __init__(self):
        super().__init__(domains.Real(2))

    def forward(self, x):
        return torch.where(x[:, 0] > 1, torch.nan, 0.5 * x.square().sum(1))


@pytest.mark.parametrize("name", ["random walk", "MALA", "HMC", "NUTS", "guided", "independence", "tempering"])
def test_chains_that_meet_nan_are_refused_reported_and_stay_alone(name):
    x0 = torch.zeros(8, 2)
    x0[:, 0] = torch.tensor([0.99, 0.99, 0.99, 0.99, -9.0, -9.0, -9.0, -9.0])
    with pytest.warns(DivergenceWarning, match="divergent"):
        trace = gb.sample(Cliff(), KERNELS[name], x0, 30, generator=gen(3))
    assert bool((trace.divergences[:4] > 0).any())
    assert bool(torch.isfinite(trace.samples).all())
    assert bool((trace.samples[..., 0] <= 1).all())
    assert torch.equal(trace.divergences, trace.draw_diverged.sum(0))


def test_unadjusted_chains_that_are_lost_are_named():
    x0 = torch.zeros(4, 2)
    x0[2, 0] = 1e30
    steep = gb.as_energy(lambda x: (x**4).sum(1), domains.Real(2))
    with pytest.warns(DivergenceWarning, match="the first is chain 2"):
        trace = gb.sample(steep, kernels.Langevin(0.1), x0, 10, generator=gen())
    assert trace.divergences.tolist()[:2] == [0, 0]
    assert int(trace.divergences[2]) > 0
    assert bool(torch.isfinite(trace.last[[0, 1, 3]]).all())
    calm = gb.sample(steep, kernels.Langevin(0.1), torch.zeros(4, 2), 10, generator=gen())
    assert torch.equal(calm.last[[0, 1, 3]], trace.last[[0, 1, 3]])
    with pytest.raises(DivergenceError, match="all 4 chains"):
        gb.sample(steep, kernels.Langevin(0.1), torch.full((4, 2), 1e30), 10, generator=gen())


def test_infinite_energy_is_a_wall_and_no_divergence():
    walled = gb.as_energy(lambda x: torch.where(x[:, 0] > 0, torch.inf, x.square().sum(1)), domains.Real(2))
    trace = gb.sample(walled, kernels.RandomWalk(1.0), -torch.ones(20, 2), 50, generator=gen())
    assert int(trace.divergences.sum()) == 0
    assert bool((trace.samples[..., 0] <= 0).all())


def test_acceptance_is_not_a_number_for_unadjusted_kernels():
    assert math.isnan(float(run("Langevin").acceptance))
    assert 0 < float(run("MALA").acceptance) < 1


# --- summaries and export -------------------------------------------------------------------------


def test_summary_is_arviz():
    trace = run("random walk", steps=400, burn_in=100)
    array = trace.samples.double().numpy()
    summary = trace.summary()
    axes = {"chain_axis": 1, "draw_axis": 0}
    assert np.allclose(summary["mean"], array.mean((0, 1)), atol=1e-5)
    assert np.allclose(summary["sd"], array.std((0, 1), ddof=1), atol=1e-5)
    assert np.allclose(summary["r_hat"], array_stats.rhat(array, **axes), rtol=1e-5)
    assert np.allclose(summary["ess"], array_stats.ess(array, **axes, method="bulk"), rtol=1e-5)
    assert np.allclose(summary["ess_tail"], array_stats.ess(array, **axes, method="tail", prob=(0.05, 0.95)), rtol=1e-5)
    assert np.allclose(summary["mcse"], array_stats.mcse(array, **axes, method="mean"), rtol=1e-5)
    swapped = array_stats.ess(array, chain_axis=0, draw_axis=1, method="bulk")
    assert not np.allclose(summary["ess"], swapped, rtol=0.1)  # draws and chains are not confused


def test_summary_of_an_autoregressive_chain():
    x = autoregressive(4000, 4, 0.8)
    exact = x.numel() * 0.2 / 1.8
    assert 0.8 * exact < float(summarize(x)["ess"]) < 1.2 * exact


def test_summary_keeps_the_event_shape_and_tells_short_runs():
    x = torch.randn(50, 3, 2, 4, generator=gen())
    assert all(v.shape == (2, 4) for v in summarize(x).values())
    short = summarize(x[:3])
    assert bool(short["r_hat"].isnan().all())
    assert torch.allclose(short["mean"], x[:3].mean((0, 1)))
    one = run(steps=1, x0=X0[:1]).summary()
    assert bool(one["sd"].isnan().all())


def test_export_to_arviz():
    trace = run(steps=30)
    tree = trace.to_arviz("y")
    assert tree["posterior"]["y"].shape == (6, 30, 2)
    assert np.array_equal(tree["posterior"]["y"].values, trace.samples.transpose(0, 1).numpy())
    assert np.array_equal(tree["sample_stats"]["diverging"].values, trace.draw_diverged.T.numpy())
    assert np.allclose(tree["sample_stats"]["acceptance_rate"].values, trace.draw_acceptance.T.numpy())
    with pytest.raises(CapabilityError, match="keep=True"):
        run(keep=False).to_arviz()


def test_progress_bar_changes_nothing(capsys):
    assert torch.equal(run(progress=True).last, run(progress=False).last)
    assert "MALA" in capsys.readouterr().err


def test_same_seed_same_bytes_and_no_global_randomness():
    before = torch.get_rng_state()
    for name in KERNELS:
        assert torch.equal(run(name, seed=4).samples, run(name, seed=4).samples)
        assert not torch.equal(run(name, seed=4).samples, run(name, seed=5).samples)
    assert torch.equal(before, torch.get_rng_state())


def test_double_precision_everywhere():
    energy = gaussian().double()
    for name, kernel in KERNELS.items():
        if name == "independence":
            kernel = kernels.Independence(energies.Gaussian(torch.zeros(2), 2 * torch.eye(2)).double())
        trace = gb.sample(energy, kernel, X0.double(), 5, generator=gen())
        assert trace.samples.dtype == trace.last.dtype == F64


# --- bad input ------------------------------------------------------------------------------------

G = gaussian()
M = KERNELS["MALA"]
BOX = gb.as_energy(lambda x: x.sum(1), domains.Box(2))
BITS = gb.as_energy(lambda x: x.sum(1), domains.Binary(2))


@pytest.mark.parametrize(
    "bad",
    [
        # hyper-parameters
        *[lambda k=k, v=v: k(v) for k in (kernels.RandomWalk, kernels.Langevin, kernels.MALA, kernels.HMC, kernels.NUTS)
          for v in (0.0, -1.0, math.nan, math.inf, torch.tensor([0.1, -0.1]), torch.tensor([]))],
        lambda: kernels.ShortRunLangevin(0.1, -0.1),
        lambda: kernels.ShortRunLangevin(0.1, 0.1, clip=0.0),
        lambda: kernels.ShortRunLangevin(0.1, 0.1, last=0.0),
        lambda: kernels.ShortRunLangevin(torch.ones(5), 0.1, last=0.1),
        lambda: kernels.ShortRunLangevin(0.1, 0.1, cycle=1),
        lambda: kernels.UnderdampedLangevin(0.1, friction=-1.0),
        lambda: kernels.HMC(0.1, 0),
        lambda: kernels.HMC(0.1, 2.5),
        lambda: kernels.HMC(0.1, 3, jitter=1.0),
        lambda: kernels.HMC(0.1, 3, jitter=-0.1),
        lambda: kernels.HMC(0.1, 3, mass=-1.0),
        lambda: kernels.HMC(0.1, 3, mass=torch.tensor([1.0, 0.0])),
        lambda: kernels.HMC(0.1, 3, mass=torch.tensor([[1.0, 2.0], [2.0, 1.0]])),
        lambda: kernels.HMC(0.1, 3, mass=torch.tensor([[1.0, 0.5], [0.0, 1.0]])),
        lambda: kernels.Metropolis(3),
        lambda: kernels.Metropolis(lambda x, generator: x),
        lambda: kernels.Independence(BOX),
        # shapes of masses, schedules and proposals
        lambda: gb.sample(G, kernels.HMC(0.1, 3, mass=torch.ones(3)), X0, 5, generator=gen()),
        lambda: gb.sample(G, kernels.HMC(0.1, 3, mass=torch.eye(3)), X0, 5, generator=gen()),
        lambda: gb.sample(G, kernels.RandomWalk(torch.tensor([0.1, 0.2])), X0, 5, generator=gen()),
        lambda: gb.sample(G, kernels.MALA(torch.full((1, 4), 0.1)), X0, 5, generator=gen()),
        lambda: gb.sample(G, kernels.Metropolis(lambda x, generator: x[:3], symmetric=True), X0, 5, generator=gen()),
        lambda: gb.sample(G, kernels.Metropolis(lambda x, generator: x, lambda a, b: a), X0, 5, generator=gen()),
        lambda: gb.sample(G, kernels.Independence(gaussian(3)), X0, 5, generator=gen()),
        # starting points
        lambda: gb.sample(G, M, X0[:0], 5, generator=gen()),
        lambda: gb.sample(G, M, X0[0], 5, generator=gen()),
        lambda: gb.sample(G, M, torch.zeros(4, 5), 5, generator=gen()),
        lambda: gb.sample(G, M, X0.tolist(), 5, generator=gen()),
        lambda: gb.sample(G, M, X0.long(), 5, generator=gen()),
        lambda: gb.sample(G, M, X0 * math.nan, 5, generator=gen()),
        lambda: gb.sample(G, M, X0 + math.inf, 5, generator=gen()),
        lambda: gb.sample(G, M, X0.double(), 5, generator=gen()),
        lambda: gb.sample(gaussian().double(), M, X0, 5, generator=gen()),
        lambda: gb.sample(gaussian().double(), KERNELS["Langevin"], X0, 5, generator=gen()),
        lambda: gb.sample(G, KERNELS["Langevin"], X0.double(), 5, generator=gen()),
        lambda: gb.sample(energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True).double(), M, X0, 5,
                          generator=gen()),
        lambda: gb.sample(BOX, M, X0 * 10, 5, generator=gen()),
        lambda: gb.sample(Cliff(), M, torch.full((3, 2), 2.0), 5, generator=gen()),
        # energies
        lambda: gb.sample(gb.as_energy(lambda x: x.sum(), domains.Real(2)), M, X0, 5, generator=gen()),
        lambda: gb.sample(gb.as_energy(lambda x: x, domains.Real(2)), M, X0, 5, generator=gen()),
        lambda: gb.sample(gb.as_energy(lambda x: x.sum(1, keepdim=True), domains.Real(2)), M, X0, 5, generator=gen()),
        lambda: gb.sample(gb.as_energy(lambda x: torch.ones(len(x)), domains.Real(2)), M, X0, 5, generator=gen()),
        lambda: gb.sample(lambda x: x.sum(1), M, X0, 5, generator=gen()),
        lambda: gb.sample(torch.nn.Identity(), M, X0, 5, generator=gen()),
        # domains and kernels
        lambda: gb.sample(BITS, M, torch.zeros(3, 2), 5, generator=gen()),
        lambda: gb.sample(BITS, KERNELS["random walk"], torch.zeros(3, 2), 5, generator=gen()),
        lambda: gb.sample(BOX, KERNELS["HMC, dense"], torch.zeros(3, 2), 5, generator=gen()),
        lambda: gb.sample(G, "MALA", X0, 5, generator=gen()),
        lambda: gb.sample(G, kernels.MALA, X0, 5, generator=gen()),
        # counts
        lambda: gb.sample(G, M, X0, generator=gen()),
        lambda: gb.sample(G, M, X0, 0, generator=gen()),
        lambda: gb.sample(G, M, X0, 2.5, generator=gen()),
        lambda: gb.sample(G, M, X0, 5, burn_in=5, generator=gen()),
        lambda: gb.sample(G, M, X0, 5, burn_in=-1, generator=gen()),
        lambda: gb.sample(G, M, X0, 5, burn_in=1.5, generator=gen()),
        lambda: gb.sample(G, M, X0, 5, thin=0, generator=gen()),
        lambda: gb.sample(G, M, X0, 5, thin=1.5, generator=gen()),
        # randomness
        lambda: gb.sample(G, M, X0, 5),
        lambda: gb.sample(G, M, X0, 5, generator=3),
        lambda: gb.sample(G, M, X0, 5, generator=np.random.default_rng(0)),
        # clamps
        lambda: gb.sample(G, M, X0, 5, clamp=torch.tensor([1.0, 0.0]), generator=gen()),
        lambda: gb.sample(G, M, X0, 5, clamp=[True, False], generator=gen()),
        lambda: gb.sample(G, M, X0, 5, clamp=torch.tensor([True, False, True]), generator=gen()),
        lambda: gb.sample(G, M, X0, 5, clamp=torch.zeros(5, 2, dtype=torch.bool), generator=gen()),
        lambda: gb.sample(G, M, X0, 5, clamp=torch.tensor([True, True]), generator=gen()),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_a_reason(bad):
    before = torch.get_rng_state()
    with pytest.raises(GibbsianError) as caught:
        bad()
    assert len(str(caught.value)) > 25
    assert torch.equal(before, torch.get_rng_state())


def test_messages_name_the_remedy():
    cases = [
        (lambda: gb.sample(BITS, M, torch.zeros(3, 2), 5, generator=gen()), "Gibbs"),
        (lambda: gb.sample(G, M, X0, 5), "torch.Generator"),
        (lambda: gb.sample(BOX, M, X0 * 10, 5, generator=gen()), "outside Box"),
        (lambda: gb.sample(BOX, KERNELS["HMC, dense"], torch.zeros(3, 2), 5, generator=gen()), "unconstrained"),
        (lambda: gb.sample(G, M, X0[0], 5, generator=gen()), r"x\[None\]"),
        (lambda: gb.sample(lambda x: x.sum(1), M, X0, 5, generator=gen()), "as_energy"),
        (lambda: gb.sample(G, M, X0, 5, burn_in=5, generator=gen()), "steps counts the burn-in"),
    ]
    for call, remedy in cases:
        with pytest.raises(GibbsianError, match=remedy):
            call()
    with pytest.raises(RandomnessError, match="lives on"):
        gb.random.require_generator(gen(), torch.device("cuda"))


def test_score_fields_run_where_no_energy_is_needed():
    class Pull(gb.ScoreField):
        def score(self, x, *, create_graph=False):
            return -x

    field = Pull(domains.Real(2))
    for name in ("Langevin", "short run", "underdamped"):
        assert gb.sample(field, KERNELS[name], X0, 5, generator=gen()).samples.shape == (5, 6, 2)
    for name in ("MALA", "random walk", "HMC", "NUTS"):
        with pytest.raises(CapabilityError, match="only a score"):
            gb.sample(field, KERNELS[name], X0, 5, generator=gen())


def test_sums_in_one_pass_are_those_in_two():
    x = 1000 + torch.randn(7, 5, 3, generator=torch.Generator().manual_seed(0))
    for n in (1, 7):
        for a, b in zip(sums_in_one_pass(x[:n], x[0]), sums_in_two_passes(x[:n], x[0]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)  # 1000 is known to 6e-5
