"""Recovery likelihood on Gaussians: posteriors, gradients and the way down the ladder, in closed form."""

import pytest
import torch
from objective_oracles import F64, gen
from torch import nn

import gibbsian as gb
from gibbsian import domains, energies, errors, models, objectives, schedules
from gibbsian.objectives import RecoveryLikelihood
from gibbsian.objectives.recovery import Recovering
from gibbsian.testing import check_energy, check_objective

LADDER = torch.tensor([2.0, 1.0, 0.4], dtype=F64)
SPREAD = 0.7  # of the data


class Precisions(nn.Module):
    """E(x, σᵢ) = ½kᵢx²."""

    def __init__(self, k):
        super().__init__()
        self.k = nn.Parameter(k)

    def forward(self, x, sigma):
        at = (sigma[:, None] - LADDER).abs().argmin(1)
        return 0.5 * self.k[at] * x.square().sum(1)


def family(k=None, dim=1):
    k = 1 / (SPREAD**2 + LADDER**2) if k is None else k
    return models.NoiseConditionalEnergy(Precisions(k), domains.Real(dim), LADDER)


def test_what_was_seen_pulls():
    member, noisy = energies.Gaussian(torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64)), torch.ones(5, 2, dtype=F64)
    precision = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0], dtype=F64)
    energy, x = Recovering(member, noisy, precision), torch.randn(5, 2, generator=gen(), dtype=F64)
    torch.testing.assert_close(energy(x), member(x) + precision * (x - 1).square().sum(1) / 2)
    torch.testing.assert_close(energy.score(x), -x - precision[:, None] * (x - 1))
    assert torch.equal(energy.score(x)[0], member.score(x)[0])
    check_energy(Recovering(member, noisy[:1], precision[1:2]), x[:1], generator=gen())


def test_the_way_down_passes_through_every_blurred_law():
    """With exact energies and long adjusted chains: Var xᵢ = Var x + σᵢ², and Cov(xᵢ, xᵢ₋₁) the same, since x̃ is xᵢ plus noise."""
    run = gb.fit(family(), RecoveryLikelihood(), torch.randn(8, 1, generator=gen(), dtype=F64), steps=1, lr=1e-9)
    run.objective = RecoveryLikelihood(steps=60, step_size=(1.0, 0.8, 0.8), adjusted=True)
    n = 20000
    x = run.draw(n, generator=gen(1), levels=True)[..., 0]
    v = SPREAD**2 + LADDER**2
    for i in range(3):
        assert abs(float(x[i].var()) / float(v[i]) - 1) < 5 * (2 / n) ** 0.5
        if i:
            pair = float((x[i] * x[i - 1]).mean())
            assert abs(pair / float(v[i]) - 1) < 5 * (2 * float(v[i - 1] / v[i]) / n) ** 0.5
    assert torch.equal(run.draw(5, generator=gen(2)), run.draw(5, generator=gen(2), levels=True)[-1])


def test_draws_begin_at_noise_of_the_largest_size():
    """Steps that are next to none: five standard errors of a variance."""
    n, objective = 20000, RecoveryLikelihood(steps=1, step_size=1e-9)
    top = objective.generate(family(), n, (), gen(), levels=True)[0]
    assert abs(float(top.var()) / float(LADDER[0]) ** 2 - 1) < 5 * (2 / n) ** 0.5


def slopes(k, noise):
    """d/dk of the mean of -log p(x | x̃): half of the second moments of x and of the posterior; the top has seen nothing."""
    v, g2 = SPREAD**2 + LADDER**2, torch.cat([LADDER[:1], (LADDER[:-1] ** 2 - LADDER[1:] ** 2).sqrt()]) ** 2
    posterior = g2 / (1 + k * g2) + (v + g2) / (1 + k * g2) ** 2
    posterior[0] = 1 / k[0]
    weight = g2.sqrt().mean() / g2.sqrt() if noise else 1.0
    return weight * 0.5 * (v - posterior) / 3


@pytest.mark.parametrize(("off", "weighting"), [(1.0, "uniform"), (0.6, "uniform"), (1.8, "noise")])
def test_the_gradient_is_that_of_the_likelihood_of_recovery(off, weighting):
    """Mean over 40 seeds within 5.5 standard errors at every level (Student, 39 degrees of freedom: 1e-5 in all); 0 at 1/v."""
    truth = 1 / (SPREAD**2 + LADDER**2)
    energy = family(off * truth)
    objective = RecoveryLikelihood(steps=40, step_size=(1.0, 0.8, 0.8), adjusted=True, weighting=weighting)
    found = []
    for seed in range(40):
        x = SPREAD * torch.randn(300, 1, generator=gen(1000 + seed), dtype=F64)
        loss = objective(energy, x, (), gen(seed))
        found.append(torch.autograd.grad(loss.value, energy.net.k)[0])
    expected = slopes(off * truth, weighting == "noise")
    z = (torch.stack(found).mean(0) - expected) / torch.stack(found).std(0) * 40**0.5
    assert z.abs().max() < 5.5
    assert off != 1.0 or expected.abs().max() < 1e-12


@pytest.mark.parametrize("sizes", [0.6, (0.4, 0.6, 0.8)])
def test_few_unadjusted_steps_have_the_moments_of_their_recursion(sizes):
    """x₊ = Ax + ½ε²x̃/g² + εz with A = 1 - ½ε²(k + 1/g²), ε a share of g, from x̃; at the top from noise alone. 40 seeds as above."""
    v, g2 = SPREAD**2 + LADDER**2, torch.cat([LADDER[:1], (LADDER[:-1] ** 2 - LADDER[1:] ** 2).sqrt()]) ** 2
    k, eps2, pull = 0.7 / v, torch.tensor(sizes, dtype=F64) ** 2 * g2, torch.tensor([0.0, 1.0, 1.0], dtype=F64) / g2
    share, spread = torch.ones(3, dtype=F64), torch.zeros(3, dtype=F64)
    for _ in range(2):
        keep = 1 - 0.5 * eps2 * (k + pull)
        share, spread = keep * share + 0.5 * eps2 * pull, keep**2 * spread + eps2
    seen = v + g2
    seen[0] = g2[0]
    expected = 0.5 * (v - share**2 * seen - spread) / 3
    energy, objective, found = family(k), RecoveryLikelihood(steps=2, step_size=sizes), []
    for seed in range(40):
        x = SPREAD * torch.randn(300, 1, generator=gen(1000 + seed), dtype=F64)
        found.append(torch.autograd.grad(objective(energy, x, (), gen(seed)).value, energy.net.k)[0])
    found = torch.stack(found)
    assert ((found.mean(0) - expected) / found.std(0) * 40**0.5).abs().max() < 5.5
    assert (expected - slopes(k, False)).abs().min() > 0.02  # so few are not the law


def test_every_level_is_met_by_batches_of_fewer_rows():
    """One row meets each of three levels in a third of 300 calls: five standard errors are 0.136."""
    energy, objective = family(), RecoveryLikelihood(steps=1)
    x, met = torch.ones(1, 1, dtype=F64), torch.zeros(3, dtype=F64)
    for seed in range(300):
        met += torch.autograd.grad(objective(energy, x, (), gen(seed)).value, energy.net.k)[0] != 0
    assert met.sum() == 300
    assert (met / 300 - 1 / 3).abs().max() < 0.136


def test_the_ladder_of_the_paper():
    s = schedules.recovery_ladder().double()
    kept = ((1 + s[1:] ** 2) / (1 + s[:-1] ** 2)).sqrt()  # a of x₊ = a x + √(1 - a²) z
    noise = (1 - kept**2).sqrt().flip(0)
    torch.testing.assert_close(noise, torch.tensor([0.324, 0.517, 0.632, 0.713, 0.773], dtype=F64), atol=1e-3, rtol=0)
    assert len(schedules.recovery_ladder(9, 2.0)) == 9
    torch.testing.assert_close(schedules.recovery_ladder(9, 2.0), 2.0 * schedules.recovery_ladder(9))
    with pytest.raises(errors.ArgumentError):
        schedules.recovery_ladder(0)
    assert (schedules.recovery_ladder(501).diff() < 0).all()
    with pytest.raises(errors.ArgumentError, match="levels must be a whole number from 1 to 501"):
        schedules.recovery_ladder(502)  # two would stand on one step


def test_draws_tell_of_chains_that_are_lost():
    steep = family(torch.tensor([1.0, 1.0, 1e9], dtype=F64))
    with pytest.raises(errors.DivergenceError, match="all 7 chains of Langevin"):
        RecoveryLikelihood(steps=60).generate(steep, 7, (), gen())


def level_family(hidden=(8,)):
    net = models.LevelEnergy(gb.nets.MLP(3, hidden))
    return models.NoiseConditionalEnergy(net, domains.Real(2), schedules.recovery_ladder())


def test_it_conforms_and_resumes(tmp_path):
    x = gb.data.toy("moons", 100, generator=gen())
    for adjusted in (False, True):
        check_objective(RecoveryLikelihood(3, adjusted=adjusted), level_family(), x[:24], generator=gen())
    how = {"batch_size": 24, "progress": False}
    whole = gb.fit(level_family(), RecoveryLikelihood(3), x, steps=5, **how)
    gb.fit(level_family(), RecoveryLikelihood(3), x, steps=3, run_dir=tmp_path / "run", **how)
    again = gb.resume(tmp_path / "run", x, steps=5)
    for a, b in zip(whole.energy.parameters(), again.energy.parameters(), strict=True):
        assert torch.equal(a, b)
    assert again.draw(6, generator=gen(), steps=2).shape == (6, 2)
    assert RecoveryLikelihood(10).gentler(1.5, 0.0).steps == 15


@pytest.mark.parametrize(
    ("make", "error", "word"),
    [
        (lambda: RecoveryLikelihood(step_size=0.0), errors.ArgumentError, "step_size"),
        (lambda: RecoveryLikelihood(weighting="all"), errors.ArgumentError, "uniform"),
        (lambda: RecoveryLikelihood(step_size=(0.1, 0.2)).check(level_family(), torch.zeros(2, 2)), errors.ArgumentError, "6 levels"),
        (lambda: RecoveryLikelihood().check(energies.MLPEnergy(2), torch.zeros(2, 2)), errors.CapabilityError, "NoiseConditionalEnergy"),
    ],
)  # fmt: skip
def test_what_is_refused(make, error, word):
    with pytest.raises(error, match=word):
        make()


def test_others_leave_their_ladder_alone():
    assert objectives.MultiScaleDenoising().turns() == ()
