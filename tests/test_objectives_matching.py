"""Energy matching: pairs of least transport, the flow against closed forms, chains, phases."""

import itertools
import math
from functools import partial

import pytest
import torch
from objective_oracles import F64, gen, gradient
from torch import nn

import gibbsian as gb
from gibbsian import domains, energies, errors, kernels, objectives
from gibbsian.objectives import EnergyMatching
from gibbsian.objectives.base import Step
from gibbsian.objectives.matching import jumping
from gibbsian.objectives.noise import given_noise
from gibbsian.objectives.pairing import assigned, paired, sinkhorn_rows
from gibbsian.testing import check_kernel, check_objective

# --- pairs ------------------------------------------------------------------------------------------


def cost(x0, x1):
    return float((x0 - x1).square().sum())


def test_on_the_line_the_assignment_is_sorting():
    x0, x1 = (torch.randn(200, 1, generator=gen(i), dtype=F64) for i in range(2))
    rows = assigned(x0, x1)
    assert torch.equal(x0[rows].flatten().argsort(), x1.flatten().argsort())
    assert torch.equal(rows.sort().values, torch.arange(200))


def test_no_permutation_is_cheaper():
    x0, x1 = (torch.randn(6, 3, generator=gen(i), dtype=F64) for i in range(2))
    best = min(cost(x0[list(order)], x1) for order in itertools.permutations(range(6)))
    assert cost(paired("exact", x0, x1, gen()), x1) == pytest.approx(best, abs=1e-12)
    assert cost(paired("independent", x0, x1, gen()), x1) > best


@pytest.mark.parametrize("how", ["exact", "sinkhorn"])
def test_pairs_far_from_zero_are_those_near_it(how):
    """Of products of numbers around 30000 single precision holds what is beyond 64, more than pairs differ by."""
    x0, x1 = (torch.randn(32, 2, generator=gen(i)).mul(64).round() / 64 for i in range(2))
    far = torch.tensor([30000.0, -20000.0])  # sums and differences are exact
    near, moved = paired(how, x0, x1, gen(2)), paired(how, x0, x1 + far, gen(2))
    assert (near == moved).double().mean() > 0.8  # but for rounding of the means
    assert torch.equal(paired(how, x0 + far, x1 + far, gen(2)) - far, moved)


def test_the_entropic_plan_tends_to_the_assignment():
    x0, x1 = torch.randn(64, 2, generator=gen(), dtype=F64), 3 * torch.randn(64, 2, generator=gen(1), dtype=F64)
    exact, random = cost(x0[assigned(x0, x1)], x1), cost(x0, x1)
    ratios = [
        (cost(x0[sinkhorn_rows(x0, x1, gen(), entropy=h, rounds=r)], x1) - exact) / (random - exact)
        for h, r in ((3.0, 50), (0.3, 50), (0.003, 3000))
    ]
    assert ratios[0] > ratios[1] > ratios[2]
    assert abs(ratios[2]) < 0.01
    often = (
        torch.stack([torch.bincount(sinkhorn_rows(x0, x1, gen(i)), minlength=64) for i in range(200)]).double().mean(0)
    )
    assert (often - 1).abs().max() < 0.35  # 5 standard errors of a Poisson number, 1/√200, each


# --- the flow ---------------------------------------------------------------------------------------


class Bowl(gb.Energy):
    """E = ½(k/T)(x - c)², so that V = T·E = ½k(x - c)²."""

    def __init__(self, k, c=0.0, temperature=0.3, dim=1):
        super().__init__(domains.Real(dim))
        self.k = nn.Parameter(torch.tensor(k, dtype=F64))
        self.c, self.temperature = c, temperature

    def forward(self, x):
        return 0.5 * self.k / self.temperature * (x - self.c).square().sum(1)


@pytest.mark.parametrize(("k", "pairing"), [(0.4, "exact"), (2.0, "exact"), (2.0, "independent"), (0.4, "sinkhorn")])
def test_the_flow_loss_to_one_datum(k, pairing):
    """x₁ = c: -∇V - (x₁ - x₀) = (k(1-t) - 1)(c - x₀), so the loss is (k²/3 - k + 1)(1 + c²) at σ = 0."""
    c, energy = 1.5, Bowl(k, 1.5)
    objective = EnergyMatching(temperature=0.3, sigma=0.0, flow_steps=10, pairing=pairing)
    x, state = torch.full((64, 1), c, dtype=F64), objective.init(energy, torch.full((4, 1), c, dtype=F64), gen())
    losses, slopes = [], []
    for seed in range(100):
        loss = objective(energy, x, state, gen(seed)).value
        losses.append(loss.detach())
        slopes.append(torch.autograd.grad(loss, energy.k)[0])
    for found, truth in ((losses, (k * k / 3 - k + 1) * (1 + c * c)), (slopes, (2 * k / 3 - 1) * (1 + c * c))):
        found = torch.stack(found)
        assert abs(float(found.mean()) - truth) < 5 * float(found.std()) / 100**0.5


def test_the_ways_of_the_flow_are_those_of_the_pairs():
    """Where V is flat the loss is the cost of transport: on the line that of sorted numbers, unsorted where pairs are independent."""
    x1, x0 = 2 + 3 * torch.randn(50, 1, generator=gen(), dtype=F64), torch.randn(50, 1, generator=gen(7), dtype=F64)
    costs = {"exact": x1.sort(0).values - x0.sort(0).values, "independent": x1 - x0}
    for pairing, ways in costs.items():
        objective, flat = EnergyMatching(pairing=pairing, flow_steps=10), Bowl(0.0)
        loss = objective(flat, x1, objective.init(flat, x1, gen()), gen(7)).value
        torch.testing.assert_close(loss.detach(), ways.square().mean())


def velocity(x, c):
    """∫ (c - x)/(1 - t) N(x; tc, (1-t)²) dt / ∫ N(x; tc, (1-t)²) dt."""
    t = (torch.arange(20000, dtype=F64) + 0.5) / 20000
    p = torch.exp(-((x[:, None] - t * c) ** 2) / (2 * (1 - t) ** 2)) / (1 - t)
    return ((c - x[:, None]) / (1 - t) * p).sum(1) / p.sum(1)


def test_training_finds_the_mean_velocity():
    """To one datum from N(0, 1), where noise has mass: the closed form within 0.12 (its size is 1 to 2)."""
    energy = energies.MLPEnergy(1, hidden=(32, 32)).double()
    objective = EnergyMatching(temperature=0.3, sigma=0.0, flow_steps=10**6, pairing="independent")
    gb.fit(energy, objective, torch.ones(512, 1, dtype=F64), steps=600, batch_size=256, lr=5e-3, schedule="cosine")
    x = torch.linspace(-1.0, 0.7, 18, dtype=F64)
    found = 0.3 * energy.score(x[:, None])[:, 0]
    assert (found - velocity(x, 1.0)).abs().max() < 0.12


def test_noise_of_the_path_blurs_it():
    """With σ the datum is hit less sharply: loss (k²(1/3·(1 + c²) + σ²) - k(1 + c²) + 1 + c²)."""
    k, c, sigma, energy = 1.2, 0.5, 0.7, Bowl(1.2, 0.5)
    objective = EnergyMatching(temperature=0.3, sigma=sigma, flow_steps=10)
    x = torch.full((64, 1), c, dtype=F64)
    found = torch.stack(
        [objective(energy, x, objective.init(energy, x, gen()), gen(i)).value.detach() for i in range(200)]
    )
    truth = (k * k / 3 - k + 1) * (1 + c * c) + k * k * sigma**2
    assert abs(float(found.mean()) - truth) < 5 * float(found.std()) / 200**0.5


# --- chains -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["euler", "heun"])
def test_the_law_of_its_chains(method):
    """V = ½kx²: Euler's stationary variance is ε/(k(1 - k dt/2)); Heun's (1 - h/2)²·2ε dt/(1 - (1 - h + h²/2)²), h = k dt."""
    k, dt, temperature = 2.0, 0.3, 0.25
    h = k * dt
    exact = temperature / (k * (1 - h / 2))
    if method == "heun":
        exact = 2 * temperature * dt * (1 - h / 2) ** 2 / (1 - (1 - h + h * h / 2) ** 2)
    kernel = kernels.GradientFlow(dt, temperature, begin=1.0, method=method)
    energy = Bowl(k, temperature=temperature)
    start = torch.zeros(20000, 1, dtype=F64)
    x = gb.sample(energy, kernel, start, steps=40, keep=False, generator=gen(), progress=False).last
    assert abs(float(x.var()) / exact - 1) < 5 * math.sqrt(2 / 20000)


def test_noise_begins_in_time():
    kernel = kernels.GradientFlow(step_size=0.05, temperature=0.2, tau=0.6, time=3.0)
    inputs = kernel.draw(None, torch.zeros(3, 1), 60, gen())
    epsilon = inputs.scale.double().square() / (2 * 0.05)
    t = 0.05 * torch.arange(60, dtype=F64)
    expected = 0.2 * ((t - 0.6) / 0.4).clamp(0, 1)
    torch.testing.assert_close(epsilon, expected, rtol=0, atol=1e-5)
    assert kernels.GradientFlow(step_size=0.1, time=0.7).total_steps(None) == 7  # 0.7/0.1 is less
    later = kernel.draw(None, torch.zeros(3, 1), 10, gen(), start=13)
    torch.testing.assert_close(later.scale, inputs.scale[13:23])
    begun = kernels.GradientFlow(0.05, 0.2, 0.6, begin=torch.tensor([[0.0, 0.8, 1.0]])).draw(
        None, torch.zeros(3, 1), 60, gen()
    )
    torch.testing.assert_close(begun.scale[:, 0], inputs.scale)
    torch.testing.assert_close(begun.scale[:44, 1], inputs.scale[16:])
    assert bool((begun.scale[:, 2] == inputs.scale[-1]).all())
    jump = kernels.GradientFlow(0.1, 0.2, tau=1.0).draw(None, torch.zeros(1, 1), 20, gen()).scale
    assert bool((jump[:10] == 0).all())
    assert bool((jump[10:] == jump[-1]).all())
    assert float(jump[-1]) > 0
    late = (
        kernels.GradientFlow(0.1, 0.2, tau=1.5).draw(None, torch.zeros(1, 1), 20, gen()).scale
    )  # the flow alone till then
    assert bool((late[:15] == 0).all())
    torch.testing.assert_close(late[15:], jump[15:])


def test_the_kernel_conforms_and_clamps():
    energy = Bowl(1.0, temperature=0.25, dim=2)
    check_kernel(
        kernels.GradientFlow(0.1, 0.25), energy, torch.randn(6, 2, generator=gen(), dtype=F64), generator=gen()
    )
    x = torch.randn(6, 2, generator=gen(), dtype=F64)
    held = gb.sample(
        energy, kernels.GradientFlow(0.1, 0.25, method="heun"), x, clamp=torch.tensor([True, False]), generator=gen()
    )
    assert torch.equal(held.last[:, 0], x[:, 0])
    assert not torch.equal(held.last[:, 1], x[:, 1])
    assert held.steps == 20


def test_held_entries_are_held_where_heun_looks_ahead():
    """One step without noise on a slanted Gaussian: the score is averaged over x and over where the free entry goes."""
    p = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=F64)
    energy, x = energies.Gaussian(torch.zeros(2, dtype=F64), p.inverse()), torch.tensor([[1.0, -1.0]], dtype=F64)
    kernel = kernels.GradientFlow(0.1, 0.5, time=0.1, method="heun")
    found = gb.sample(energy, kernel, x, clamp=torch.tensor([True, False]), generator=gen(), progress=False).last
    h, slope = 0.05, float(x[0] @ p[1])
    assert float(found[0, 1]) == pytest.approx(-1.0 - h * slope + 0.5 * h * h * 3.0 * slope, rel=1e-12)


def contrast(**options):
    options = {"temperature": 0.3, "flow_steps": 0, "flow_weight": 0.0, "steps": 60, "step_size": 0.2, **options}
    return EnergyMatching(**options)


def test_contrast_rests_where_the_chains_have_the_variance_of_the_data():
    """At k with ε/(k(1 - k dt/2)) = s² the mean gradient is 0, and it points there from both sides."""
    dt, temperature, k = 0.2, 0.3, 1.4
    s2 = temperature / (k * (1 - k * dt / 2))
    x = math.sqrt(s2) * torch.randn(16, 2000, 1, generator=gen(5), dtype=F64)

    def slope(k):
        energy, objective = Bowl(k), contrast()
        found = torch.stack([gradient(energy, objective, rows, seed=i) for i, rows in enumerate(x)])
        return float(found.mean() / found.std() * len(x) ** 0.5)

    assert abs(slope(k)) < 6  # of Student's law with 15 degrees of freedom: 2e-5
    assert slope(0.7 * k) < -8 < 8 < slope(1.3 * k)


def test_the_gradient_is_that_of_data_and_of_detached_ends():
    energy, x = Bowl(1.1), torch.randn(32, 1, generator=gen(), dtype=F64)
    objective = contrast(weight=2.5)
    loss = objective(energy, x, objective.init(energy, x, gen()), gen(3))
    (slope,) = torch.autograd.grad(loss.value, energy.k)
    gap = float(loss.metrics["gap"])  # E = k·½x²/T, so that dE/dk = E/k
    assert float(slope) == pytest.approx(2.5 * 0.3 * gap / 1.1, rel=1e-10)
    assert float(loss.value.detach()) == pytest.approx(2.5 * 0.3 * gap, rel=1e-10)
    floored = contrast(weight=1e6, floor=-0.02)
    assert float(floored(energy, 0.01 * x, floored.init(energy, x, gen()), gen()).value.detach()) == pytest.approx(
        -0.02
    )


def test_the_floor_lets_gradients_through_above_and_nothing_infinite():
    x = torch.randn(32, 1, generator=gen(), dtype=F64)
    found = []
    for floor in (None, -1e3):
        objective, energy = contrast(floor=floor), Bowl(1.0)
        loss = objective(energy, x, objective.init(energy, x, gen()), gen())
        found.append((loss.value.detach(), *torch.autograd.grad(loss.value, list(energy.parameters()))))
    assert found[0] == found[1]
    walled = gb.as_energy(lambda x: torch.where(x.abs() > 3, torch.inf, 0.0 * x).sum(1), domains.Real(1))
    for floor in (None, -0.02):
        objective = contrast(floor=floor)
        with pytest.raises(errors.DivergenceError, match=r"-inf|nan"):
            objective(walled, 0.0 * x, objective.init(walled, 0.0 * x, gen()), gen())


@pytest.mark.parametrize("jump_every", [0, 3])
def test_chains_from_data_begin_in_their_time(jump_every):
    """At t = 0.95, where float32 is below it: five steps of V = ½kx² without noise, then one of N(0, 2ε dt), five standard errors."""
    k, dt, n, x = 1.4, 0.01, 20000, torch.randn(20000, 1, generator=gen(), dtype=F64)
    quiet = {"tau": 1.0, "data_share": 1.0, "data_time": 0.95, "step_size": dt, "jump_every": jump_every}
    for steps, spread in ((5, 0.0), (6, 2 * 0.3 * dt)):
        objective, energy = contrast(steps=steps, **quiet), Bowl(k)
        metrics = objective(energy, x, objective.init(energy, x, gen()), gen(1)).metrics
        expected = 0.5 * k / 0.3 * ((1 - k * dt) ** (2 * steps) * float(x.square().mean()) + spread)
        error = 0.5 * k / 0.3 * (2 * spread**2 / n + 4 * spread / n) ** 0.5
        assert float(metrics["energy_samples"]) == pytest.approx(expected, rel=1e-9, abs=5 * error)
        assert not metrics.get("jumped")  # cuts at t = 0.95 and 0.98


@pytest.mark.parametrize("tau", [0.5, 0.8])
def test_taper_leaves_the_end_of_the_way_to_the_contrast(tau):
    """(1 + c²)·∫ w(t)(k(1-t) - 1)² dt with w = min(1, (1-t)/(1-τ))."""
    k, c, energy = 1.0, 0.5, Bowl(1.0, 0.5)
    x = torch.full((64, 1), c, dtype=F64)
    objective = contrast(flow_weight=1.0, taper=True, tau=tau, steps=1, sigma=0.0)
    found = torch.stack(
        [objective(energy, x, objective.init(energy, x, gen()), gen(i)).metrics["flow"] for i in range(200)]
    )
    t = (torch.arange(10000, dtype=F64) + 0.5) / 10000
    truth = float((((1 - t) / (1 - tau)).clamp(max=1) * (k * (1 - t) - 1) ** 2).mean()) * (1 + c * c)
    assert abs(float(found.mean()) - truth) < 5 * float(found.std()) / 200**0.5


def test_the_flow_counts_by_its_weight_and_tapers_in_the_second_phase_alone():
    energy, x = Bowl(1.1), torch.randn(16, 1, generator=gen(), dtype=F64)
    by = lambda objective: objective(energy, x, objective.init(energy, x, gen()), gen(3))  # noqa: E731
    both = by(contrast(flow_weight=0.5, weight=1.0))
    expected = 0.3 * both.metrics["gap"] + 0.5 * both.metrics["flow"]
    torch.testing.assert_close(both.value.detach(), expected)
    first = [float(by(contrast(flow_steps=9, taper=taper, tau=0.2)).value.detach()) for taper in (False, True)]
    assert first[0] == first[1]


# --- jumps ------------------------------------------------------------------------------------------


class Islands(gb.Energy):
    """Two Gaussians of deviation 0.2 at -2 and 2, that at 2 with log-odds θ; 50 nats lie between them."""

    def __init__(self, odds):
        super().__init__(domains.Real(1))
        self.odds = nn.Parameter(torch.tensor(odds, dtype=F64))

    def forward(self, x):
        x = x.flatten()
        log_p = torch.stack([-12.5 * (x + 2) ** 2, self.odds - 12.5 * (x - 2) ** 2])
        return -log_p.logsumexp(0)


def islands(n, odds, seed=0):
    right = torch.rand(n, generator=gen(seed), dtype=F64) < torch.tensor(odds).sigmoid()
    return (torch.where(right, 2.0, -2.0) + 0.2 * torch.randn(n, generator=gen(seed + 100), dtype=F64))[:, None]


WIDE = energies.Gaussian(torch.zeros(1, dtype=F64), 4 * torch.eye(1, dtype=F64))


@pytest.mark.parametrize("noise", [None, WIDE, torch.distributions.Normal(torch.zeros(1), 2.0)])
def test_jumps_leave_the_law_alone_and_find_its_weights(noise):
    energy, odds = Islands(1.2), 1.2
    objective = contrast(noise=noise, jump_every=1, step_size=0.01, data_share=1.0)
    state = objective.init(energy, islands(10, odds), gen())
    all_of_them = torch.ones(1, dtype=torch.bool)
    truth, n = 1 / (1 + math.exp(-odds)), 20000
    error = (truth * (1 - truth) / n) ** 0.5
    x, _ = objective._jump(energy, islands(n, odds), all_of_them, state, gen(1))
    assert abs(float((x > 0).double().mean()) - truth) < 4 * error
    assert float((x.abs() - 2).var()) == pytest.approx(0.04, rel=0.05)
    x = islands(n, -50.0)  # all at -2
    still, _ = objective._jump(energy, x, ~all_of_them, state, gen(1))
    assert torch.equal(still, x)
    for i in range(100):
        x, _ = objective._jump(energy, x, all_of_them, state, gen(i))
    assert abs(float((x > 0).double().mean()) - truth) < 4 * error


def test_as_many_jump_as_the_laws_overlap():
    """From N(0, s²) to N(0, 1) with s < 1: 2 P(|y| < |x|) = (4/π) atan s."""
    s, energy = 0.6, Bowl(0.3 / 0.36)  # E = ½x²/0.36
    x = s * torch.randn(40000, 1, generator=gen(), dtype=F64)
    objective = contrast(jump_every=1)
    _, share = objective._jump(energy, x, torch.ones(1, dtype=torch.bool), objective.init(energy, x, gen()), gen(2))
    truth = 4 / math.pi * math.atan(s)
    assert abs(float(share) - truth) < 4 * (truth * (1 - truth) / len(x)) ** 0.5
    may = torch.arange(len(x)) % 4 == 0  # of those that may
    _, share = objective._jump(energy, x, may, objective.init(energy, x, gen()), gen(3))
    assert abs(float(share) - truth) < 4 * (truth * (1 - truth) / int(may.sum())) ** 0.5


def test_jumps_are_judged_in_whole_precision():
    """Energies of some thousand are multiples of 8 and more in half precision, which autocast would let decide."""
    energy, objective, n = energies.MLPEnergy(2, (16,), generator=gen()) * 1e4, contrast(jump_every=1), 2000
    x, may = torch.randn(n, 2, generator=gen(1)), torch.ones(1, dtype=torch.bool)
    whole, share = objective._jump(energy, x, may, objective.init(energy, x, gen()), gen(2))
    with torch.autocast("cpu", torch.bfloat16):
        half, _ = objective._jump(energy, x, may, objective.init(energy, x, gen()), gen(2))
    assert 0.1 < float(share) < 0.9
    assert torch.equal(whole, half)


def test_only_chains_that_jump_teach_the_weights_of_islands():
    """The gradient in the log-odds is their share among chains less that among data: 0 for chains that stay, whatever they are."""
    x = islands(8000, 0.0)
    slopes = {}
    for every in (0, 1):
        for odds in (-1.5, 0.0, 1.5):
            objective = contrast(
                noise=WIDE, jump_every=every, steps=60, step_size=0.01, data_share=1.0, weight=1.0, temperature=0.1
            )
            slopes[every, odds] = float(gradient(Islands(odds), objective, x)) / 0.1
    share = torch.tensor(1.5).sigmoid() - 0.5
    assert max(abs(slopes[0, odds]) for odds in (-1.5, 0.0, 1.5)) < 1e-6
    assert slopes[1, -1.5] == pytest.approx(-float(share), abs=0.03)  # 4 standard errors: 4 √(½/8000)
    assert slopes[1, 0.0] == pytest.approx(0.0, abs=0.03)
    assert slopes[1, 1.5] == pytest.approx(float(share), abs=0.03)


def test_chains_jump_only_when_the_flow_is_over():
    energy = Islands(1.2)
    objective = small(temperature=0.1, step_size=0.05, jump_every=2, noise=WIDE, steps=20, flow_steps=0)
    x = islands(64, 1.2)
    state = objective.init(energy, x, gen())
    quiet = {"time": 1.0, "tau": 1.0, "start": x}  # ends before the first of them
    assert torch.equal(
        objective.generate(energy, 64, state, gen(), **quiet),
        objective.generate(energy, 64, state, gen(), jump_every=0, **quiet),
    )
    n, truth = 8000, 1 / (1 + math.exp(-1.2))
    right = lambda **o: float((objective.generate(energy, n, state, gen(), **o) > 0).double().mean())  # noqa: E731
    assert abs(right(time=7.0) - truth) < 4 * (truth * (1 - truth) / n) ** 0.5
    assert abs(right(time=7.0, jump_every=0) - truth) > 0.15  # noise falls to both sides alike
    clamp = (torch.arange(64) < 32)[:, None]
    held = objective.generate(energy, 64, state, gen(), start=x, clamp=clamp, time=7.0)
    assert torch.equal(held[:32], x[:32])
    assert torch.equal(held.sign(), x.sign())  # clamped runs walk, and nobody jumps
    loss = objective.loss(energy, x, state, gen(), Step())
    assert 0 < float(loss.metrics["jumped"]) < 0.5
    with pytest.raises(errors.ArgumentError, match="jump_every"):
        objective.generate(energy, 5, state, gen(), jump_every=-1)


@pytest.mark.parametrize(("every", "step"), [(3, 0.02), (8, 0.01), (8, 0.02), (16, 0.005)])
def test_noise_begins_at_one_however_the_way_is_cut(every, step):
    """Ten steps of Langevin dynamics on a flat energy have variance 10·2ε dt, also where a cut falls on t = 1 but for rounding."""
    flat, x = gb.as_energy(lambda x: 0.0 * x.sum(1), domain=domains.Real(1)), torch.zeros(20000, 1)
    kernel = kernels.GradientFlow(step, 0.1, tau=1.0, time=1 + 10 * step)
    stay = lambda x, may: (x, torch.zeros(()))  # noqa: E731
    steps = kernel.total_steps(flat)
    y, _ = jumping(flat, kernel, x, steps, every, stay, gen())
    assert float(y.var()) == pytest.approx(
        10 * 2 * 0.1 * step, rel=0.05
    )  # five standard errors; a step less is a tenth


def test_chains_that_jump_out_of_a_divergence_have_diverged():
    steep = gb.as_energy(lambda x: (x**4).sum(1), domain=domains.Real(1))
    start = torch.tensor([[1e30], [0.0]])  # one is lost in the first of two pieces, and brought back before the second
    jumps = iter((start, torch.zeros(2, 1)))
    y, metrics = jumping(
        steep, kernels.GradientFlow(0.01, 0.1), start, 2, 1, lambda x, may: (next(jumps), torch.zeros(())), gen()
    )
    assert y.isfinite().all()
    assert float(metrics["divergent"]) == 0.5


def test_draws_with_jumps_tell_of_chains_that_are_lost():
    hole = gb.as_energy(lambda x: -(x**4).sum(1), domain=domains.Real(1))
    objective = small(jump_every=2, time=3.0)
    state = objective.init(hole, torch.zeros(4, 1), gen())
    with pytest.raises(errors.DivergenceError, match="all 50 chains"):
        objective.generate(hole, 50, state, gen(), start=torch.full((50, 1), 30.0))
    start = torch.cat([torch.full((1, 1), 30.0), torch.zeros(1, 1)])
    with pytest.warns(errors.DivergenceWarning, match="1 of 2 chains"):
        objective.generate(hole, 2, state, gen(3), start=1e3 * start, tau=1.0, time=1.0)


@pytest.mark.parametrize("checked", [True, False])  # importing zuko turns checks of torch off
def test_noise_of_torch_is_nowhere_beyond_its_support_and_leaves_lost_chains_alone(checked):
    normal = torch.distributions.Normal(0.0, 1.0, validate_args=checked)
    uniform = torch.distributions.Uniform(-1.0, 1.0, validate_args=checked)
    hole = gb.as_energy(lambda x: (x**2 - x**4).sum(1), domain=domains.Real(1))  # ∞ - ∞ far away
    for noise in (None, normal, uniform):
        objective = small(jump_every=1, noise=noise)
        start = torch.tensor([[1e15], [0.0]])
        with pytest.warns(errors.DivergenceWarning, match="1 of 2 chains"):
            objective.generate(hole, 2, objective.init(hole, start, gen()), gen(3), start=start, begin=1.0, time=0.5)
    x = torch.tensor([[0.5], [3.0], [-0.25]])
    found = given_noise(uniform, domains.Real(1)).log_prob(x)
    torch.testing.assert_close(found, torch.tensor([-math.log(2), -math.inf, -math.log(2)]))
    beyond = given_noise(torch.distributions.Exponential(2.0, validate_args=checked), domains.Real(1))
    torch.testing.assert_close(beyond.log_prob(x), torch.tensor([math.log(2) - 1, math.log(2) - 6, -math.inf]))
    assert (beyond.log_prob(-x.abs()) == -math.inf).all()
    several = torch.distributions.Independent(torch.distributions.Exponential(torch.ones(2), validate_args=checked), 1, validate_args=checked)  # fmt: skip
    found = given_noise(several, domains.Real(2)).log_prob(torch.tensor([[1.0, 2.0], [1.0, -2.0]]))
    torch.testing.assert_close(found, torch.tensor([-3.0, -math.inf]))
    x[1] = math.nan
    found = given_noise(normal, domains.Real(1)).log_prob(x)
    torch.testing.assert_close(found, -0.5 * (x[:, 0].square() + math.log(2 * math.pi)), equal_nan=True)
    bowl = gb.as_energy(lambda x: x.square().sum(1), domains.Real(1))
    with pytest.raises(errors.DataError, match="no density at some of the data"):
        objectives.NoiseContrastive(uniform).init(bowl, torch.tensor([[0.5], [3.0]]), gen())


# --- phases, runs -----------------------------------------------------------------------------------


def small(**options):
    return EnergyMatching(**{"steps": 4, "step_size": 0.1, **options})


def test_a_share_of_the_run_becomes_a_number_of_steps():
    assert small(flow_steps=0.75).planned(40).flow_steps == 30
    assert small(flow_steps=30).planned(40).flow_steps == 30
    assert small(flow_steps=0.29).planned(100).flow_steps == 29  # 0.29 · 100 is below 29 in floats
    assert small(flow_steps=0.9).planned(6).flow_steps == 5
    together = objectives.Weighted([small(flow_steps=0.5), objectives.WeightDecay(1e-3)]).planned(10)
    assert together.turns() == (5,)
    for held in (objectives.Sparing(small(flow_steps=0.5), ["net"]), objectives.FirstRows(small(flow_steps=0.5))):
        assert held.planned(10).turns() == (5,)
    energy, x = energies.MLPEnergy(2, (8,)), torch.randn(16, 2, generator=gen())
    objective = small(flow_steps=5)
    state = objective.init(energy, x, gen())
    keys = [set(objective.loss(energy, x, state, gen(), Step(done=done)).metrics) for done in (0, 4, 5, 9)]
    assert keys[0] == keys[1] == {"flow"}
    assert keys[2] == keys[3] >= {"flow", "gap", "energy_data"}


def test_a_run_turns_and_resumes_to_the_bit(tmp_path):
    x = gb.data.toy("moons", 200, generator=gen())
    how = {"batch_size": 32, "progress": False, "logging": gb.training.Logging(every=1)}
    make = lambda: energies.MLPEnergy(2, (8,))  # noqa: E731
    whole = gb.fit(make(), small(flow_steps=0.5), x, steps=8, validation=x[:40], **how)
    assert [("gap" in r) for r in whole.history if "loss" in r] == [False] * 4 + [True] * 4
    gb.fit(make(), small(flow_steps=4), x, steps=3, run_dir=tmp_path / "run", **how)
    again = gb.resume(tmp_path / "run", x, steps=8)
    assert again.objective.flow_steps == 4
    for a, b in zip(whole.energy.parameters(), again.energy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_draws_follow_the_flow():
    energy, x = Bowl(2.0, 1.0, 0.25, dim=2), torch.randn(64, 2, generator=gen(), dtype=F64)
    run = gb.fit(energy, small(temperature=0.25, flow_steps=5, step_size=0.02), x, steps=1)
    still = run.draw(3000, generator=gen(), time=1.0, tau=1.0)  # e^{-k} of the way is left
    k = float(energy.k.detach())
    assert float(still.var()) == pytest.approx((1 - k * 0.02) ** 100, rel=0.1)
    law = run.draw(3000, generator=gen(), time=6.0)
    assert float(law.var()) == pytest.approx(0.25 / (k * (1 - k * 0.01)), rel=0.1)
    assert run.draw(5, generator=gen(), method="heun", start=x[:5]).shape == (5, 2)
    assert gb.draw(energy, 5, generator=gen(), steps=10).shape == (5, 2)  # by any kernel
    assert isinstance(gb.uses.draw.suitable_kernel(energy, run.objective), kernels.GradientFlow)
    other = gb.fit(energy, objectives.DenoisingScoreMatching(0.3), x, steps=1)
    with pytest.raises(errors.CapabilityError, match=r"gibbsian\.draw"):
        other.draw(5, generator=gen())


@pytest.mark.parametrize(
    "noise", [None, "gaussian", objectives.MixtureNoise(2), energies.Gaussian(torch.zeros(2), torch.eye(2))]
)
def test_it_conforms_whatever_the_noise(noise):
    pytest.importorskip("sklearn.covariance")  # whose import moves Python's random state
    x = torch.randn(32, 2, generator=gen())
    for options in ({"flow_steps": 0}, {"flow_steps": 7}, {"flow_steps": 0, "jump_every": 2}):
        check_objective(small(noise=noise, **options), energies.MLPEnergy(2, (8,)), x, generator=gen())


def test_noise_is_not_trained_along():
    x = torch.randn(20, 2, generator=gen())
    noise = objectives.FlowNoise(steps=1, hidden=(4,), train=True)
    state = small(noise=noise).init(energies.MLPEnergy(2, (8,)), x, gen())
    assert not any(p.requires_grad for p in state.noise.parameters())


@pytest.mark.parametrize("at", [0, 1])
def test_a_sum_draws_as_its_first_part_does_that_can(at):
    energy, x = energies.MLPEnergy(2, (8,)), 3 + torch.randn(32, 2, generator=gen())
    part = small(noise="gaussian")
    parts = [
        objectives.WeightDecay(0.1),
        objectives.FirstRows(objectives.PersistentContrastiveDivergence(gb.kernels.MALA(0.1)), 8),
    ]
    both = objectives.Weighted([*parts[:at], part, *parts[at:]])
    state = both.init(energy, x, gen())
    draws = both.generate(energy, 5, state, gen(1), time=0.3)
    torch.testing.assert_close(draws, part.generate(energy, 5, state[at], gen(1), time=0.3), rtol=0, atol=0)
    none = objectives.Weighted(parts)
    with pytest.raises(errors.CapabilityError, match="no way of its own to draw"):
        none.generate(energy, 5, none.init(energy, x, gen()), gen())


def test_noise_over_rows_of_numbers_serves_images():
    energy = gb.as_energy(lambda x: x.flatten(1).square().sum(1), domains.Real((1, 2, 3)))
    noise = energies.Gaussian(torch.arange(6.0), 1e-8 * torch.eye(6))
    objective = EnergyMatching(noise=noise)
    start = objective.generate(
        energy, 4, objective.init(energy, torch.zeros(4, 1, 2, 3), gen()), gen(), time=1e-9, step_size=1e-9
    )
    assert (start - torch.arange(6.0).reshape(1, 2, 3)).abs().max() < 1e-2  # a hundred standard deviations
    other = gb.as_energy(lambda x: x.flatten(1).square().sum(1), domains.Real((1, 2, 2)))
    state = objective.init(other, torch.zeros(4, 1, 2, 2), gen())
    with pytest.raises(errors.DomainError, match="must agree"):
        objective.generate(other, 4, state, gen())


class OnlyDraws(gb.Energy):
    """Does not know its log Z."""

    def forward(self, x):
        return x.square().sum(1)

    def sample(self, n, *, generator):
        return torch.randn(n, 2, generator=generator)


@pytest.mark.parametrize(
    ("make", "error", "word"),
    [
        (lambda: small(temperature=0.0), errors.ArgumentError, "temperature"),
        (lambda: small(pairing="greedy"), errors.ArgumentError, "sinkhorn"),
        (lambda: small(noise="pink"), errors.ArgumentError, "gaussian"),
        (lambda: small(noise=3), errors.ArgumentError, "standard normal"),
        (lambda: small(noise=OnlyDraws(domains.Real(2))), errors.ArgumentError, r"log_z\(\) and sample\(\)"),
        (lambda: small(flow_steps=2.5), errors.ArgumentError, "flow_steps"),
        (lambda: small(tau=1.5), errors.ArgumentError, "tau"),
        (lambda: small(jump_every=0.5), errors.ArgumentError, "jump_every"),
        (lambda: small().check(gb.models.RBM(3, 2), torch.ones(2, 3)), errors.DomainError, "EnergyDiscrepancy"),
    ],
)
def test_what_is_refused(make, error, word):
    with pytest.raises(error, match=word):
        make()


def test_one_row_goes_with_one_draw():
    x0, x1 = torch.zeros(1, 2), torch.ones(1, 2)
    for how in ("exact", "sinkhorn", "independent"):
        assert torch.equal(paired(how, x0, x1, gen()), x0)


@pytest.mark.parametrize("jump_every", [0, 2])
def test_starts_are_gone_through_again_where_there_are_fewer(jump_every):
    energy, x = Bowl(1.0, temperature=0.15), torch.arange(3, dtype=F64)[:, None]
    objective = small(jump_every=jump_every)
    draw = partial(objective.generate, energy, 7, objective.init(energy, x, gen()), gen(), start=x)
    ends = draw(time=0.1, tau=1.0)
    torch.testing.assert_close(ends, 0.9 * x[[0, 1, 2, 0, 1, 2, 0]])
    held = draw(clamp=torch.tensor([[True], [False], [False]]))
    assert ((held == 0).flatten() == torch.tensor([True, False, False, True, False, False, True])).all()
    assert len(objective.generate(energy, 2, objective.init(energy, x, gen()), gen(), start=x)) == 2
    last = torch.arange(7)[:, None] == 6  # a mask of all draws, as `gibbsian.draw` takes it
    held = draw(clamp=last)
    assert ((held == x[[0, 1, 2, 0, 1, 2, 0]]) == last).all()
    with pytest.raises(errors.ShapeError, match="clamp has shape"):
        draw(clamp=last[:1])
    with pytest.raises(errors.ArgumentError, match="give start="):
        objective.generate(energy, 7, objective.init(energy, x, gen()), gen(), clamp=last)


def test_draws_say_what_they_do_not_know():
    energy, x = energies.MLPEnergy(2, (8,)), torch.zeros(4, 2)
    state = small().init(energy, x, gen())
    with pytest.raises(errors.ArgumentError, match=r"GradientFlow, got levels, steps"):
        small().generate(energy, 4, state, gen(), steps=3, levels=True)
    for begin in (torch.zeros(1, 3), torch.zeros(4), torch.zeros(4, 1)):
        with pytest.raises(errors.ArgumentError, match=r"of shape \(1, 4\)"):
            small().generate(energy, 4, state, gen(), begin=begin)
        with pytest.raises(errors.ArgumentError, match=r"of shape \(1, 4\)"):
            small(jump_every=1).generate(energy, 4, state, gen(), begin=begin)


def test_the_guard_makes_it_gentler():
    assert small(steps=10).gentler(2.0, 0.1).steps == 20
