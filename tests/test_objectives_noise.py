"""Noise-contrastive estimation: its gradient, its log Z, its efficiency, and the noises it can use."""

import math

import pytest
import torch
from objective_oracles import (
    BINARY,
    CATEGORICAL,
    F64,
    SPIN,
    Machine,
    flat,
    gaussian,
    gen,
    gradient_of,
    mixture_of_three,
    some_data,
)
from sklearn.covariance import oas
from torch.nn.functional import softplus

import gibbsian as gb
from gibbsian import domains, errors, objectives
from gibbsian.objectives import NoiseContrastive
from gibbsian.objectives.noise import shrunk_covariance
from gibbsian.objectives.noise_contrastive import LearnedLogZ, NoiseState


def at(c, noise=None):
    return NoiseState(LearnedLogZ(torch.tensor(c, dtype=F64)), noise)


def nce_gradient(energy, objective, x, state, seed):
    """In the energy's parameters and in c."""
    loss = objective(energy, x, state, gen(seed))
    parameters = [*energy.parameters(), state.normalizer.log_z]
    return flat(torch.autograd.grad(loss.value, parameters, allow_unused=True, materialize_grads=True))


def truth_of(energy, x, c, points, log_noise, mass, ratio):
    """The loss with the expectation over noise done as a sum over points with the given mass."""
    g = lambda y, ln: -energy(y) - c - ln - math.log(ratio)  # noqa: E731
    on_data = softplus(-g(x, log_noise(x))).mean()
    return on_data + ratio * (mass * softplus(g(points, log_noise(points)))).sum()


def check(energy, objective, x, points, log_noise, mass, repeats=300):
    state = at(0.4, None)
    value = truth_of(energy, x, state.normalizer.log_z, points, log_noise, mass, objective.ratio)
    parameters = [*energy.parameters(), state.normalizer.log_z]
    truth = flat(torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True))
    draws = torch.stack([nce_gradient(energy, objective, x, state, seed) for seed in range(repeats)])
    moving = draws.std(0) > 1e-12
    z = ((draws.mean(0) - truth) / draws.std(0))[moving] * repeats**0.5
    assert z.abs().max() < 5.2


@pytest.mark.parametrize("ratio", [1, 5])
@pytest.mark.parametrize("make", [gaussian, mixture_of_three])
def test_gradient_on_the_plane_against_quadrature(make, ratio):
    energy, x = make(), some_data(40)
    noise = gb.energies.Gaussian(torch.zeros(2, dtype=F64), 2 * torch.eye(2, dtype=F64))
    side = torch.linspace(-9, 9, 181, dtype=F64)
    points = torch.cartesian_prod(side, side)
    log_noise = lambda y: -noise(y) - noise.log_z()  # noqa: E731
    mass = log_noise(points).exp() * 0.1**2
    assert abs(float(mass.sum()) - 1) < 1e-6
    check(energy, NoiseContrastive(noise, ratio), x, points, log_noise, mass)


@pytest.mark.parametrize("ratio", [1, 5])
@pytest.mark.parametrize("domain", [BINARY, SPIN, CATEGORICAL])
def test_gradient_on_an_enumerable_machine(domain, ratio):
    machine = Machine(domain)
    x = machine.states()[torch.multinomial(machine.log_probabilities().exp().detach(), 40, True, generator=gen())]
    states = machine.states()
    for kind in ("uniform", "marginals"):
        objective = NoiseContrastive(kind, ratio)
        noise = objective.init(machine, x, gen()).noise
        log_p = noise.log_prob(states)
        assert abs(float(log_p.exp().sum()) - 1) < 1e-12  # a law over all states
        state = at(0.4, noise)
        value = truth_of(machine, x, state.normalizer.log_z, states, noise.log_prob, log_p.exp(), ratio)
        parameters = [*machine.parameters(), state.normalizer.log_z]
        truth = flat(torch.autograd.grad(value, parameters))
        draws = torch.stack([nce_gradient(machine, objective, x, state, s) for s in range(200)])
        moving = draws.std(0) > 1e-12
        z = ((draws.mean(0) - truth) / draws.std(0))[moving] * 200**0.5
        assert z.abs().max() < 5.2


@pytest.mark.parametrize("ratio", [1, 4])
def test_the_population_optimum_is_the_normalized_law(ratio):
    """Expectations as sums: at the truth the gradient vanishes with c = log Z, not with log Z - log ν."""
    machine = Machine(BINARY)
    states, law = machine.states(), machine.log_probabilities().detach()
    log_z = float(torch.logsumexp(-machine(states), 0).detach())
    noise = torch.full((16,), 1 / 16, dtype=F64)

    def population(c):
        parts = []
        for row, p in zip(states, law.exp(), strict=True):
            g = -machine(states) - c - noise.log() - math.log(ratio)
            on_data = softplus(machine(row[None])[0] + c + noise[0].log() + math.log(ratio))
            parts.append(p * (on_data + ratio * (noise * softplus(g)).sum()))
        return torch.stack(parts).sum()

    class Fixed:  # every state once: the batch of noise is the population of it
        def sample(self, shape):
            return states.repeat(shape[0] // 16, 1)

        def log_prob(self, y):
            return torch.full((len(y),), -math.log(16), dtype=F64)

    objective = NoiseContrastive(Fixed(), ratio)
    for c, bound in ((log_z, 1e-12), (log_z - math.log(ratio) - 0.1, None)):
        state = at(c)
        draws = []
        for row, p in zip(states, law.exp(), strict=True):
            batch = row.expand(16, 4)  # one datum, all noise states equally often
            loss = objective(machine, batch, state, gen())
            draws.append(p * loss.value)
        total = torch.stack(draws).sum()
        torch.testing.assert_close(total.detach(), population(torch.tensor(c, dtype=F64)).detach())
        grads = torch.cat([gradient_of(total, machine), torch.autograd.grad(total, state.normalizer.log_z)[0][None]])
        if bound is not None:
            assert grads.abs().max() < bound
        else:
            assert grads.abs().max() > 1e-2


class Replicated(gb.Energy):
    """Many one-dimensional studies in one batch: x = (value, study), E = ½λ[study]·value² + c[study]."""

    def __init__(self, studies):
        super().__init__(domains.Real(2))
        self.precision = torch.nn.Parameter(torch.ones(studies, dtype=F64))
        self.c = torch.nn.Parameter(torch.full((studies,), 0.5 * math.log(2 * math.pi), dtype=F64))

    def forward(self, x):
        study = x[:, 1].long()
        return 0.5 * self.precision[study] * x[:, 0].square() + self.c[study]


def efficiency(ratio, studies=400, n=400):
    """n·Var of the estimated precision and log Z of N(0, 1), noise equal to the data, by Newton's method."""
    g = gen(ratio)
    names = torch.arange(studies, dtype=F64).repeat_interleave(n)
    x = torch.stack([torch.randn(studies * n, generator=g, dtype=F64), names], 1)
    y = torch.stack([torch.randn(ratio * studies * n, generator=g, dtype=F64), names.repeat(ratio)], 1)

    class Standard:
        def sample(self, shape):
            return y

        def log_prob(self, z):
            return -0.5 * z[:, 0].square() - 0.5 * math.log(2 * math.pi)

    energy, objective = Replicated(studies), NoiseContrastive(Standard(), ratio)
    state = at(0.0)
    for _ in range(6):
        value = objective(energy, x, state, gen()).value * studies
        parameters = [energy.precision, energy.c]
        g1, g2 = torch.autograd.grad(value, parameters, create_graph=True)
        h11, h12 = torch.autograd.grad(g1.sum(), parameters, retain_graph=True)
        h22 = torch.autograd.grad(g2.sum(), energy.c)[0]
        det = h11 * h22 - h12 * h12
        with torch.no_grad():
            energy.precision -= (h22 * g1 - h12 * g2) / det
            energy.c -= (h11 * g2 - h12 * g1) / det
    assert max(float(g1.detach().abs().max()), float(g2.detach().abs().max())) < 1e-8
    return n * energy.precision.detach().var(), n * energy.c.detach().var()


@pytest.mark.parametrize("ratio", [1, 4, 10])
def test_efficiency_with_noise_equal_to_the_data(ratio):
    """n·Var → (1 + 1/ν)·Fisher⁻¹: 2(1 + 1/ν) for the precision and ½(1 + 1/ν) for log Z. A variance from 400
    studies has a relative error of 7 %; the limits are 3.5 of them and the bias of n = 400."""
    precision, log_z = efficiency(ratio)
    assert abs(float(precision) / (2 * (1 + 1 / ratio)) - 1) < 0.27
    assert abs(float(log_z) / (0.5 * (1 + 1 / ratio)) - 1) < 0.27


# --- noises ---------------------------------------------------------------------------------------


def test_the_background_of_a_mixture_reaches_all_data():
    """One row of 200 stands apart in a column that hardly varies: as likely as the formula says, not e^(-10⁵)."""
    x = torch.randn(200, 2, generator=gen(), dtype=F64)
    x[:, 1] = 0.0
    x[7, 1] = 1.0
    far = torch.tensor([[0.0, 0.9]], dtype=F64)
    narrow, broad = (
        objectives.MixtureNoise(3, floor=1e-6, background=m).fit(domains.Real(2), x, gen(1)) for m in (0.0, 2.0)
    )
    assert float(narrow.log_prob(far)) < -1e4
    reach = (x - x.mean(0)).abs().amax(0)
    least = math.log(2 / 202) - float((reach * math.sqrt(2 * math.pi)).log().sum()) - 1
    assert bool((broad.log_prob(torch.cat([x, far])) >= least - 1e-9).all())
    assert float(broad.energy.weights[-1]) == pytest.approx(2 / 202)
    usual = [noise.log_prob(x[:7]).mean() for noise in (narrow, broad)]
    assert abs(float(usual[0] - usual[1])) < 0.5  # the rest is fitted as before
    with pytest.raises(errors.ArgumentError, match="background"):
        objectives.MixtureNoise(background=-1.0)


@pytest.mark.parametrize(
    "kind",
    [
        "gaussian",
        objectives.MixtureNoise(3),
        objectives.MixtureNoise(2, background=30.0),
        objectives.FlowNoise(steps=60),
    ],
)
def test_fitted_noise_is_a_law_and_draws_from_it(kind):
    x = mixture_of_three(False).sample(600, generator=gen())
    objective = NoiseContrastive(kind)
    noise = objective.init(gaussian(), x, gen()).noise
    side = torch.linspace(-8, 8, 321, dtype=F64)
    grid = torch.cartesian_prod(side, side)
    with torch.no_grad():
        density = noise.log_prob(grid).exp() * 0.05**2
        assert abs(float(density.sum()) - 1) < 5e-3
        draws = noise.sample(4000, generator=gen(1))
    mean = (density[:, None] * grid).sum(0)
    second = (density[:, None, None] * grid[:, :, None] * grid[:, None, :]).sum(0) - torch.outer(mean, mean)
    error = (second.diagonal() / 4000).sqrt()
    assert ((draws.mean(0) - mean) / error).abs().max() < 5
    assert (draws.T.cov() / second - 1).abs().max() < 0.6
    assert torch.equal(draws, noise.sample(4000, generator=gen(1)).detach())


def test_a_mixture_is_closer_noise_than_one_gaussian():
    target = mixture_of_three(False)
    x, held_out = target.sample(3000, generator=gen()), target.sample(3000, generator=gen(1))
    fit = lambda kind: NoiseContrastive(kind).init(target, x, gen()).noise.log_prob(held_out).mean()  # noqa: E731
    one, three = fit("gaussian"), fit(objectives.MixtureNoise(3))
    truth = -target(held_out).mean()
    assert one < three - 0.05
    assert three > truth - 0.02


def test_shrunk_covariance_is_the_oracle_approximating_one():
    for n in (5, 50):
        x = torch.randn(n, 8, generator=gen(), dtype=F64) @ torch.randn(8, 8, generator=gen(1), dtype=F64)
        s = torch.cov(x.T, correction=0)
        trace, square = s.trace(), (s @ s).trace()  # Chen et al. 2010 but for terms in 2/p, as is usual
        share = min(1.0, float((square / 64 + trace**2 / 64) / ((n + 1) * (square / 64 - trace**2 / 512))))
        expected = (1 - share) * s + share * trace / 8 * torch.eye(8, dtype=F64)
        torch.testing.assert_close(shrunk_covariance(x), expected, rtol=1e-12, atol=1e-12)
        single = shrunk_covariance(x.float())
        assert single.dtype == torch.float32
        torch.testing.assert_close(single, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 8), (200, 8), (30, 1), (10, 40)])
def test_shrunk_covariance_is_that_of_scikit_learn(shape):
    x = 1 + torch.randn(shape, generator=gen(), dtype=F64)
    expected = torch.from_numpy(oas(x.numpy())[0])
    torch.testing.assert_close(shrunk_covariance(x), expected.reshape(shape[1], -1), rtol=1e-10, atol=1e-12)
    still = torch.ones(4, 3, dtype=F64)
    assert not shrunk_covariance(still).any()


def test_events_may_have_any_shape():
    energy = gb.energies.MLPEnergy((2, 3), hidden=(8,), confine=0.5).double()
    x = torch.randn(50, 2, 3, generator=gen(), dtype=F64)
    for kind in ("gaussian", objectives.MixtureNoise(2), objectives.FlowNoise(steps=2)):
        objective = NoiseContrastive(kind, ratio=2)
        objective(energy, x, objective.init(energy, x, gen()), gen()).value.backward()


def test_log_z_starts_at_the_importance_estimate_and_is_learned():
    noise = gb.energies.Gaussian(torch.zeros(2, dtype=F64), 2 * torch.eye(2, dtype=F64))
    energy, x = gaussian(), gaussian().sample(2000, generator=gen())
    objective = NoiseContrastive(noise, ratio=2)
    state = objective.init(energy, x, gen())
    assert abs(float(objective.log_z(state) - energy.log_z().detach())) < 0.15
    with torch.no_grad():
        state.normalizer.log_z += 1.0
    optimizer = torch.optim.Adam([state.normalizer.log_z], lr=0.05)
    g = gen()
    for _ in range(150):
        optimizer.zero_grad()
        objective(energy, x, state, g).value.backward()
        optimizer.step()
    assert abs(float(objective.log_z(state) - energy.log_z().detach())) < 0.06


def test_a_flow_trained_along_gets_its_own_gradient_and_gives_none():
    """The energy's gradient does not see the flow move, and the flow follows its likelihood alone."""
    energy, x = gaussian(), some_data(100)
    along, fixed = (NoiseContrastive(objectives.FlowNoise(steps=5, train=t), ratio=2) for t in (True, False))
    state, still = along.init(energy, x, gen()), fixed.init(energy, x, gen())
    assert all(p.requires_grad for p in state.noise.parameters())
    assert not any(p.requires_grad for p in still.noise.parameters())
    moved = along(energy, x, state, gen(1)).value
    unmoved = fixed(energy, x, still, gen(1)).value
    torch.testing.assert_close(gradient_of(moved, energy), gradient_of(unmoved, energy))
    own = list(state.noise.parameters())
    expected = torch.autograd.grad(-state.noise.log_prob(x).mean(), own)
    got = torch.autograd.grad(moved, own)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_torch_distributions_draw_from_the_generator():
    energy, x = gaussian(), some_data(50)
    normal = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=F64), 2 * torch.eye(2, dtype=F64))
    objective = NoiseContrastive(normal, ratio=3)
    before = torch.get_rng_state()
    state = objective.init(energy, x, gen())
    values = [objective(energy, x, state, gen(5)).value for _ in range(2)]
    assert torch.equal(values[0], values[1])
    assert torch.equal(before, torch.get_rng_state())
    same = gb.energies.Gaussian(torch.zeros(2, dtype=F64), 2 * torch.eye(2, dtype=F64))
    points = some_data(9, seed=1)
    torch.testing.assert_close(normal.log_prob(points), -same(points) - same.log_z())
    per_entry = torch.distributions.Normal(torch.zeros(2, dtype=F64), math.sqrt(2.0))
    noise = objectives.noise_contrastive.given_noise(per_entry, domains.Real(2))
    torch.testing.assert_close(noise.log_prob(points), normal.log_prob(points))
    check_shape = noise.sample(7, generator=gen())
    assert check_shape.shape == (7, 2)


def test_torch_distributions_over_other_shapes_are_reshaped_or_refused():
    """As many numbers are one event, whatever their axes; a law of fewer or more is none of these events."""
    normal = torch.distributions.Normal(torch.zeros(2, dtype=F64), torch.tensor([1.0, 3.0], dtype=F64))
    for distribution in (normal, torch.distributions.Independent(normal, 1)):
        noise = objectives.noise_contrastive.given_noise(distribution, domains.Real((2, 1)))
        x = noise.sample(5, generator=gen())
        assert x.shape == (5, 2, 1)
        torch.testing.assert_close(noise.log_prob(x), normal.log_prob(x[..., 0]).sum(1))
    for other in (torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(torch.zeros(3), 1.0)):
        for objective in (NoiseContrastive(other), objectives.EnergyMatching(noise=other, flow_steps=0, steps=1)):
            with pytest.raises(errors.ShapeError, match=r"give one of shape \(2,\)"):
                objective(gaussian(), some_data(4), objective.init(gaussian(), some_data(4), gen()), gen())


def test_accuracy_tells_noise_that_is_too_easy():
    energy = gaussian()
    x = energy.sample(500, generator=gen())
    accuracy = {}
    for scale in (1.0, 1e4):
        noise = gb.energies.Gaussian(energy.mean.detach(), scale * energy.covariance.detach())
        objective = NoiseContrastive(noise)
        state = objective.init(energy, x, gen())
        with torch.no_grad():
            state.normalizer.log_z.copy_(energy.log_z())
        accuracy[scale] = float(objective(energy, x, state, gen(1)).metrics["accuracy"])
    assert accuracy[1e4] > 0.99
    assert accuracy[1.0] < 0.6


def test_refusals():
    energy, x = gaussian(), some_data(10)
    real = domains.Real(2)
    for bad in (
        lambda: NoiseContrastive("pink"),
        lambda: NoiseContrastive(ratio=0),
        lambda: NoiseContrastive(3.0),
        lambda: objectives.MixtureNoise(0),
        lambda: objectives.FlowNoise(lr=0.0),
        lambda: objectives.FlowNoise(hidden=5),
        lambda: NoiseContrastive("uniform").init(energy, x, gen()),
        lambda: NoiseContrastive("marginals").init(energy, x, gen()),
        lambda: NoiseContrastive("gaussian").init(Machine(BINARY), torch.ones(3, 4, dtype=F64), gen()),
        lambda: NoiseContrastive(gb.as_energy(lambda y: y.sum(1), real)),
        lambda: NoiseContrastive(gb.energies.Gaussian(torch.zeros(3), torch.eye(3))).init(energy, x, gen()),
        lambda: NoiseContrastive().init(energy, x, None),
    ):
        with pytest.raises(errors.GibbsianError) as caught:
            bad()
        assert len(str(caught.value)) > 25
