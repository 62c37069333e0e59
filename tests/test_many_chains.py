"""Kernels for many chains: the criterion of ChEES and what its warm-up learns, against closed forms."""

import math

import numpy as np
import pytest
import torch

import gibbsian as gb
from gibbsian import energies, kernels
from gibbsian.errors import ArgumentError
from gibbsian.kernels import chees_learning
from gibbsian.kernels.chees_learning import criterion_slope, halton
from gibbsian.kernels.integrators import Metric

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def diagonal(*scales: float) -> energies.Gaussian:
    s = torch.tensor(scales, dtype=F64)
    return energies.Gaussian(torch.zeros(len(s), dtype=F64), torch.diag(s**2))


# --- ChEES ----------------------------------------------------------------------------------------


def test_lengths_go_through_the_unit_interval():
    assert [halton(n) for n in range(1, 8)] == [1 / 2, 1 / 4, 3 / 4, 1 / 8, 5 / 8, 3 / 8, 7 / 8]
    kernel = kernels.ChEES(0.1, 2.0, max_leapfrogs=12)
    assert [kernel.leapfrogs(n) for n in range(1, 6)] == [10, 5, 12, 3, 12]  # ⌈20u⌉, at most 12
    x = torch.zeros(3, 2)
    inputs = kernel.draw(diagonal(1.0, 1.0), x, 3, gen(), 2)
    assert inputs.leapfrogs.tolist() == [12, 3, 12]  # goes on where the run is


@pytest.mark.parametrize("clamped", [False, True])
def test_micro_steps_are_the_iterations(clamped):
    """The machine that compilers get gives the same draws as trajectory after trajectory, with room to spare or not."""
    energy = energies.Gaussian(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64) + 0.5)
    clamp = torch.tensor([False, True, False]) if clamped else None
    kernel = kernels.ChEES(0.5, 3.0, mass=torch.eye(3, dtype=F64) + 0.2)
    kernel = kernel if clamp is None else kernel.clamped(clamp)
    state = kernel.init(energy, torch.randn(6, 3, generator=gen(), dtype=F64), clamp)
    inputs = kernel.draw(energy, state.x, 9, gen(1))
    plain = kernel.run(energy, state, inputs)
    for room in (0, 20):
        ground, moving, slots = kernel.begin(energy, state, inputs, room)
        micro = 0
        while int(moving.reach) >= 0:
            moving = kernel.micro_step(energy, ground, moving, slots, 0)
            micro += 1
        assert micro == sum(kernel.moves_of(inputs))
        moving = kernel.micro_step(energy, ground, moving, slots, 0)  # one more changes nothing
        made = kernel.finish(state, ground, moving, slots)
        for a, b in zip((*plain[0][:3], plain[1], *plain[2]), (*made[0][:3], made[1], *made[2]), strict=True):
            torch.testing.assert_close(a, b)
    assert float(plain[2].acceptance.min()) < 0.9 < float(plain[2].acceptance.max())
    trace = gb.sample(energy, kernels.ChEES(0.5, 3.0), state.x, 9, generator=gen(1))
    assert trace.stats["n_steps"][:, 0].tolist() == inputs.leapfrogs.tolist()


def exact_flow(t, scales, n, seed):
    """N(0, s²) rows, where the flow leads them in time t under unit mass, and their momenta there."""
    s = torch.tensor(scales, dtype=F64)
    x, v = (
        s * torch.randn(n, len(s), generator=gen(seed), dtype=F64),
        torch.randn(n, len(s), generator=gen(seed + 1), dtype=F64),
    )
    return x, x * torch.cos(t / s) + s * v * torch.sin(t / s), v * torch.cos(t / s) - x / s * torch.sin(t / s)


@pytest.mark.parametrize("t", [0.3, 1.0, 2.5])
def test_the_slope_of_the_criterion_is_that_of_the_closed_form(t):
    """C(t) = Σ s⁴ sin²(t/s), so C' = Σ s³ sin(2t/s); 400000 chains, five standard errors from batches."""
    scales, n = (1.0, 0.6, 0.3), 400000
    x, end, v = exact_flow(t, scales, n, 3)
    want = sum(s**3 * math.sin(2 * t / s) for s in scales)
    ones, none = torch.ones(n // 20, dtype=F64), Metric(None, None)
    parts = torch.stack(
        [criterion_slope(*rows, ones, none) for rows in zip(*(r.chunk(20) for r in (x, end, v)), strict=True)]
    )
    assert float(parts.mean()) == pytest.approx(want, abs=5 * float(parts.std()) / math.sqrt(20))
    assert abs(want) > 20 * float(parts.std()) / math.sqrt(20)  # a wrong sign would be seen


@pytest.mark.parametrize(
    "mass", [torch.tensor([2.0, 0.5], dtype=F64), torch.tensor([[2.0, 0.7], [0.7, 1.0]], dtype=F64)]
)
def test_the_slope_under_a_mass_is_that_of_transformed_coordinates(mass):
    """With M = R Rᵀ: the same as unit mass in y = Rᵀx, whose momenta are R⁻¹v."""
    root = torch.linalg.cholesky(mass) if mass.dim() == 2 else torch.diag(mass.sqrt())
    x, new, v = torch.randn(3, 50, 2, generator=gen(), dtype=F64)
    weight = torch.rand(50, generator=gen(1), dtype=F64)
    weight[7] = 0.0
    plain = criterion_slope(x @ root, new @ root, torch.linalg.solve(root, v.T).T, weight, Metric(None, None))
    spoilt = new.clone()
    spoilt[7] = torch.nan  # it diverged, and counts for nothing
    torch.testing.assert_close(criterion_slope(x, spoilt, v, weight, Metric.of(mass)), plain)


def best_length(scales):
    """argmax of ∫₀¹ C(uT) du = Σ s⁴(½ - s·sin(2T/s)/4T)."""
    t = np.linspace(0.01, 6 * max(scales), 20001)
    return t[np.argmax(sum(s**4 * (0.5 - s * np.sin(2 * t / s) / (4 * t)) for s in scales))]


def learned(scales, seed=0):
    """T after a warm-up with steps so small that leapfrogs are the flow."""
    energy = diagonal(*scales)
    x = energy.sample(200, generator=gen(seed))
    warmed = gb.warm_up(energy, kernels.ChEES(0.1), x, 250, mass=None, target_acceptance=0.9, generator=gen(seed + 1))
    return warmed.kernel.trajectory


@pytest.mark.parametrize("scales", [(1.0, 0.5, 0.2, 0.1), (3.0, 1.0, 1.0, 1.0)])
def test_the_learned_length_is_the_best(scales):
    """Steps of log T are 0.025, averaged: within 15 %. Steps up to a third of a unit make lengths ⌈uT/ε⌉ε longer by ε/2."""
    assert learned(scales) == pytest.approx(best_length(scales), rel=0.15)


def test_the_wrong_sign_of_the_criterion_would_be_seen(monkeypatch):
    monkeypatch.setattr(chees_learning, "criterion_slope", lambda *a: -criterion_slope(*a))
    assert learned((1.0, 0.5, 0.2, 0.1)) < 0.5 * best_length((1.0, 0.5, 0.2, 0.1))


def test_warm_up_of_chees():
    """ε, T and mass of an ill-conditioned target: 400 draws of each of 64 chains, more than a fifth of them effective; the
    variances that the mass stands for within 25 % (five standard errors of 800 effective draws)."""
    energy = diagonal(0.1, 1.0, 1.0, 10.0, 30.0)
    warmed = gb.warm_up(energy, kernels.ChEES(3.0), torch.zeros(64, 5, dtype=F64), 400, generator=gen(2))
    assert ((warmed.kernel.mass * energy.covariance.diagonal() - 1).abs() < 0.25).all()
    assert abs(float(warmed.trace.acceptance) - 0.651) < 0.1
    trace = gb.sample(energy, warmed.kernel, warmed.trace, steps=200, generator=gen(3))
    assert float(trace.summary()["ess"].min()) > 64 * 200 / 5
    assert float(trace.summary()["r_hat"].max()) < 1.02


def test_clamped_entries_do_not_teach():
    energy = energies.Gaussian(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64) + 0.5)
    x = torch.randn(64, 3, generator=gen(), dtype=F64)
    clamp = torch.tensor([False, True, False])
    warmed = gb.warm_up(energy, kernels.ChEES(0.3), x, 120, mass="dense", clamp=clamp, generator=gen(1))
    assert torch.equal(warmed.trace.last[:, 1], x[:, 1])
    assert float(warmed.kernel.mass[1, 1]) == 1
    assert 0.5 < warmed.kernel.trajectory < 8
    trace = gb.sample(energy, warmed.kernel, warmed.trace, steps=20, generator=gen(2))
    assert torch.equal(trace.samples[..., 1], x[:, 1].expand(20, 64))


def test_entries_held_in_some_chains_stay_under_a_dense_mass():
    energy = energies.Gaussian(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64) + 0.5)
    x, mass = torch.randn(64, 3, generator=gen(), dtype=F64), torch.linalg.inv(energy.covariance)
    for clamp in (torch.tensor([False, True, False]), torch.rand(64, 3, generator=gen(1)) < 0.4):
        for kernel, learned in ((kernels.ChEES(0.3, mass=mass), None), (kernels.ChEES(0.3), "dense")):
            last = gb.warm_up(energy, kernel, x, 40, mass=learned, clamp=clamp, generator=gen(2)).trace.last
            assert torch.equal(last[clamp.expand_as(x)], x[clamp.expand_as(x)])


def test_chees_refuses():
    with pytest.raises(ArgumentError, match="one number for all"):
        kernels.ChEES(torch.tensor([0.1, 0.2]))
    with pytest.raises(ArgumentError, match="trajectory"):
        kernels.ChEES(0.1, trajectory=0.0)
    with pytest.raises(ArgumentError, match="at least a dozen"):
        gb.warm_up(diagonal(1.0, 1.0), kernels.ChEES(0.1), torch.zeros(1, 2, dtype=F64), 20, generator=gen())
