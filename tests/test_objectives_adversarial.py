"""Adversarial training: exact and estimated entropy gradients, the two players apart, q → p."""

import pytest
import torch
from objective_oracles import F64, flat, gaussian, gen, gradient_of, mixture_of_three, some_data
from torch import nn

import gibbsian as gb
from gibbsian import domains, errors, kernels, objectives
from gibbsian.objectives import Adversarial, FlowSampler, ImplicitSampler
from gibbsian.objectives.flows import Flow


def players(loss, energy, state):
    """Gradients of the sampler, and of the energy."""
    own = list(state.sampler.parameters())
    theirs = torch.autograd.grad(loss.other, own, retain_graph=True, allow_unused=True, materialize_grads=True)
    return flat(theirs), gradient_of(loss.value, energy)


@pytest.mark.parametrize("fast", ["density", "sample"])
def test_a_flow_knows_its_density(fast):
    flow = Flow((2,), fast, torch.tensor([0.5, -1.0], dtype=F64), torch.tensor([1.0, 2.0], dtype=F64), generator=gen())
    x, log_q = flow.draw(50, generator=gen(1))
    torch.testing.assert_close(flow.log_prob(x), log_q, rtol=1e-6, atol=1e-6)
    a, b = torch.linspace(-5, 6, 221, dtype=F64), torch.linspace(-12, 10, 221, dtype=F64)
    grid = torch.cartesian_prod(a, b)
    with torch.no_grad():
        total = flow.log_prob(grid).exp().sum() * (a[1] - a[0]) * (b[1] - b[0])
    assert abs(float(total) - 1) < 1e-3
    before = torch.get_rng_state()
    again = Flow((2,), fast, flow.loc, flow.scale, generator=gen())
    assert all(torch.equal(p, q) for p, q in zip(flow.parameters(), again.parameters(), strict=True))
    assert torch.equal(before, torch.get_rng_state())


def test_the_players_do_not_touch_each_other():
    energy, x = gaussian(), some_data(64)
    for kind in ("flow", "implicit", ImplicitSampler(latent=2, entropy="posterior", steps=2)):
        objective = Adversarial(kind)
        state = objective.init(energy, x, gen())
        loss = objective(energy, x, state, gen(1))
        own = list(state.sampler.parameters())
        assert all(g is None for g in torch.autograd.grad(loss.value, own, allow_unused=True))
        unused = torch.autograd.grad(loss.other, list(energy.parameters()), retain_graph=True, allow_unused=True)
        assert all(g is None for g in unused)
        assert all(p.requires_grad for p in energy.parameters())


def test_the_energy_player_sees_data_minus_samples():
    energy, x = mixture_of_three(), some_data(64)
    objective = Adversarial("flow", penalty=0.2, gradient_penalty=0.3)
    state = objective.init(energy, x, gen())
    loss = objective(energy, x, state, gen(1))
    samples = state.sampler.sample(64, generator=gen(1))
    a, b = energy(x), energy(samples)
    smooth = 0.15 * energy.score(x, create_graph=True).square().sum(1).mean()
    truth = a.mean() - b.mean() + 0.2 * (a.square().mean() + b.square().mean()) + smooth
    torch.testing.assert_close(gradient_of(loss.value, energy), gradient_of(truth, energy))


def test_the_entropy_that_is_logged_is_that_of_the_loss():
    energy, x = gaussian(), some_data(64)
    state = Adversarial("flow").init(energy, x, gen())
    loss = Adversarial("flow")(energy, x, state, gen(1))
    samples = state.sampler.sample(64, generator=gen(1))
    torch.testing.assert_close(loss.metrics["entropy"], energy(samples).mean().detach() - loss.other.detach())
    torch.testing.assert_close(
        loss.metrics["entropy"], -state.sampler.flow.log_prob(samples).mean().detach(), rtol=1e-5, atol=1e-5
    )


def test_a_flow_player_follows_the_exact_divergence():
    """E_q[E] - H(q) = KL(q‖p) - log Z: bounded below by -log Z, and reached by training q alone."""
    energy = gaussian(trainable=False)
    x = energy.sample(200, generator=gen())
    objective = Adversarial(FlowSampler(transforms=2, hidden=(16,)))
    state = objective.init(energy, x, gen())
    optimizer = torch.optim.Adam(state.sampler.parameters(), lr=0.01)
    g, values = gen(1), []
    for _ in range(250):
        optimizer.zero_grad()
        loss = objective(energy, x, state, g)
        loss.other.backward()
        optimizer.step()
        values.append(float(loss.other.detach()))
    floor = -float(energy.log_z())
    assert values[0] > floor + 0.1
    last = torch.tensor(values[-50:])
    assert floor - 0.02 < float(last.mean()) < floor + 0.03


class LinearGenerator(nn.Module):
    """G(z) = Az + b."""

    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = nn.Parameter(a), nn.Parameter(b)

    def forward(self, z):
        return z @ self.a.T + self.b


class GaussianScore(nn.Module):
    """The exact score of N(b, AAᵀ + σ²I)."""

    def __init__(self, precision, b):
        super().__init__()
        self.precision, self.b = nn.Parameter(precision), nn.Parameter(b)

    def forward(self, x):
        return -(x - self.b) @ self.precision


A = torch.tensor([[1.0, 0.2], [-0.3, 0.6]], dtype=F64)
B = torch.tensor([0.3, -0.2], dtype=F64)
SIGMA = 0.5


def exact_sampler_gradient(energy):
    """∇(E_q[E] - H(q)) for q = N(b, AAᵀ + σ²I) and a Gaussian energy, in closed form."""
    a, b = A.clone().requires_grad_(True), B.clone().requires_grad_(True)
    cov = a @ a.T + SIGMA**2 * torch.eye(2, dtype=F64)
    centered = b - energy.mean.detach()
    p = energy.precision.detach()
    mean_energy = 0.5 * ((p * cov).sum() + centered @ p @ centered)
    return flat(torch.autograd.grad(mean_energy - 0.5 * torch.logdet(cov), (a, b)))


@pytest.mark.parametrize("how", ["score", "posterior"])
def test_the_entropy_gradient_of_an_implicit_generator(how):
    energy, x = gaussian(), some_data(2000)
    cov = A @ A.T + SIGMA**2 * torch.eye(2, dtype=F64)
    sampler = ImplicitSampler(
        latent=2,
        sigma=SIGMA,
        network=LinearGenerator(A, B),
        score_network=GaussianScore(torch.linalg.inv(cov), B) if how == "score" else None,
        entropy=how,
        kernel=kernels.HMC(step_size=0.4, leapfrog_steps=4, jitter=0.3),
        steps=12,
    )
    objective = Adversarial(sampler)
    state = objective.init(energy, x, gen())
    own = list(state.sampler.network.parameters())
    truth = exact_sampler_gradient(energy)
    draws = []
    for seed in range(60):
        loss = objective(energy, x, state, gen(seed))
        draws.append(flat(torch.autograd.grad(loss.other, own)))
    g = torch.stack(draws)
    z = (g.mean(0) - truth) / g.std(0) * 60**0.5
    assert z.abs().max() < 5.7
    no_entropy = truth.clone()
    no_entropy[:4] += entropy_part()
    assert ((g.mean(0) - no_entropy) / g.std(0) * 60**0.5).abs().max() > 20  # the entropy is seen


def entropy_part():
    """∇H in A."""
    a = A.clone().requires_grad_(True)
    return torch.autograd.grad(0.5 * torch.logdet(a @ a.T + SIGMA**2 * torch.eye(2, dtype=F64)), a)[0].flatten()


def test_the_score_network_is_fitted_by_denoising():
    """At the exact score of q its own gradient vanishes; elsewhere it is that of the closed form."""
    energy, x = gaussian(), some_data(2000)
    cov = A @ A.T + SIGMA**2 * torch.eye(2, dtype=F64)
    for wrong in (False, True):
        precision = torch.linalg.inv(cov) + 0.3 * wrong
        sampler = ImplicitSampler(
            latent=2, sigma=SIGMA, network=LinearGenerator(A, B), score_network=GaussianScore(precision, B)
        )
        objective = Adversarial(sampler)
        state = objective.init(energy, x, gen())
        own = list(state.sampler.score.parameters())
        draws = torch.stack(
            [flat(torch.autograd.grad(objective(energy, x, state, gen(s)).other, own)) for s in range(60)]
        )
        p = precision.clone().requires_grad_(True)  # ½E‖-σP(x-b) + ε‖², ε·(x-b) correlated by σ
        fit = 0.5 * SIGMA**2 * (p.T @ p * cov).sum() - SIGMA**2 * p.trace()
        truth = torch.cat([torch.autograd.grad(fit, p)[0].T.flatten(), torch.zeros(2, dtype=F64)])
        z = (draws.mean(0) - truth) / draws.std(0) * 60**0.5
        assert z.abs().max() < 5.7
        assert wrong or truth.abs().max() < 1e-12


def test_training_brings_the_sampler_to_the_model_and_the_model_to_the_data():
    """A trainable mixture and a flow on data from another mixture: both end near the data's law."""
    target = gb.energies.GaussianMixture(torch.tensor([[-1.0, 0.0], [1.2, 0.5]], dtype=F64), 0.3, [0.6, 0.4])
    energy = gb.energies.GaussianMixture(
        torch.tensor([[-0.6, 0.2], [0.8, 0.0]], dtype=F64), 0.6, [0.5, 0.5], trainable=True
    )
    x = target.sample(1500, generator=gen())
    objective = Adversarial(FlowSampler(transforms=3, hidden=(32, 32)))
    state = objective.init(energy, x, gen())
    ours = torch.optim.Adam(energy.parameters(), lr=0.004)
    theirs = torch.optim.Adam(state.sampler.parameters(), lr=0.01)
    g = gen(1)
    before = float((energy(x).mean() - target(x).mean()).detach())
    for _ in range(350):
        batch = x[torch.randint(len(x), (200,), generator=g)]
        loss = objective(energy, batch, state, g)
        gradients = torch.autograd.grad(loss.value, list(energy.parameters()), retain_graph=True)
        for p, gradient in zip(energy.parameters(), gradients, strict=True):
            p.grad = gradient
        theirs.zero_grad()
        loss.other.backward(inputs=list(state.sampler.parameters()))
        ours.step()
        theirs.step()
    after = float((energy(x).mean() - target(x).mean()).detach())  # both normalized: a difference of likelihoods
    assert before > 0.1
    assert after < 0.35 * before
    draws = state.sampler.sample(4000, generator=gen(2))
    assert (draws.mean(0) - x.mean(0)).abs().max() < 0.2
    assert float((target(draws).mean() - target(x).mean()).detach()) < 0.4


def test_refusals():
    energy, x = gaussian(), some_data(10)
    box = gb.as_energy(lambda y: y.sum(1), domains.Box(2))
    for bad in (
        lambda: Adversarial("gan"),
        lambda: Adversarial(3),
        lambda: Adversarial(penalty=-1.0),
        lambda: ImplicitSampler(sigma=0.0),
        lambda: ImplicitSampler(latent=0),
        lambda: ImplicitSampler(entropy="none"),
        lambda: ImplicitSampler(hidden=5),
        lambda: ImplicitSampler(kernel=5),
        lambda: ImplicitSampler(network=5),
        lambda: FlowSampler(hidden=(-1,)),
        lambda: Adversarial(ImplicitSampler(3, network=nn.Linear(2, 2).double())).init(energy, x, gen()),
        lambda: Adversarial(ImplicitSampler(score_network=nn.Linear(2, 1).double())).init(energy, x, gen()),
        lambda: Adversarial(ImplicitSampler(entropy="posterior", kernel=kernels.SiteGibbs())).init(energy, x, gen()),
        lambda: Adversarial("flow").init(box, torch.full((3, 2), 0.5), gen()),
        lambda: Adversarial(ImplicitSampler(2, network=nn.Linear(2, 3).double())).init(energy, x, gen()),
    ):
        with pytest.raises(errors.GibbsianError) as caught:
            bad()
        assert len(str(caught.value)) > 25
    assert objectives.Adversarial is Adversarial
