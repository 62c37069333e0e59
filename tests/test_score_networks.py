"""Noise-conditional networks, ladders from data, and likelihood by probability flow against closed forms."""

import math

import pytest
import torch
from scipy.stats import norm

import gibbsian as gb
from gibbsian import domains, energies, errors, kernels, models, objectives, partition, schedules
from gibbsian.derivatives.score_jacobian import random_directions

D = torch.float64
LADDER = schedules.geometric(20.0, 0.1, 20).double()


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


NETWORKS = {
    "mlp": lambda **k: (models.ScoreMLP(4, (8,), **k), (4,)),
    "unet 28": lambda **k: (models.ScoreUNet((1, 28, 28), (4, 8, 8), 1, **k), (1, 28, 28)),
    "unet 32": lambda **k: (models.ScoreUNet((3, 32, 32), (4, 8), 2, **k), (3, 32, 32)),
    "unet odd": lambda **k: (models.ScoreUNet((1, 7, 5), (6, 6, 6), 1, **k), (1, 7, 5)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_begin_as_a_blurred_gaussian(name):
    net, shape = NETWORKS[name](center=0.3, spread=2.0)
    net = net.double()
    x, sigma = torch.randn(3, *shape, generator=gen(), dtype=D), torch.tensor([5.0, 1.0, 0.05], dtype=D)
    wide = sigma.reshape(-1, *[1] * len(shape))
    torch.testing.assert_close(net(x, sigma), -(x - 0.3) / (4.0 + wide**2))
    # and every parameter but those behind the zero layer learns from there
    loss = (net(x, sigma) * torch.randn(x.shape, generator=gen(1), dtype=D)).sum()
    grads = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    assert all(g is not None for g in grads)
    assert float(grads[-1].abs().max()) > 0


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_recorded_and_repeatable(name):
    net, _ = NETWORKS[name]()
    other = type(net)(*net._arguments[0], **net._arguments[1])
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(errors.ArgumentError, match="spread"):
        NETWORKS[name](spread=0.0)


def test_the_level_matters_after_training():
    """A linear score, learned: N(m, s²) blurred has the score -(x - m)/(s² + σ²) at every level."""
    data = 2 + 0.5 * torch.randn(2000, 1, generator=gen(), dtype=D)
    net = models.ScoreMLP(1, (32,), center=0.0, spread=1.0).double()
    family = models.NoiseConditionalScore(net, domains.Real(1), schedules.geometric(5.0, 0.2, 8).double())
    gb.fit(
        family, objectives.MultiScaleDenoising(), data, steps=400, batch_size=400, lr=1e-2, schedule="cosine", ema=0.98
    )
    for sigma in (5.0, 1.0, 0.3):
        x = 2 + math.sqrt(0.25 + sigma**2) * torch.linspace(-1.5, 1.5, 7, dtype=D)[:, None]
        truth = -(x - 2) / (0.25 + sigma**2)
        error = (family.given(sigma).score(x) - truth).square().mean().sqrt() * math.sqrt(0.25 + sigma**2)
        assert error < 0.15, (sigma, error)  # in units of the score's own spread, 1


# --- energies -------------------------------------------------------------------------------------


class Blurred(torch.nn.Module):
    """½‖x‖²/(1 + σ²)."""

    def forward(self, x, sigma):
        return 0.5 * x.square().flatten(1).sum(1) / (1 + sigma**2)


@pytest.mark.parametrize(
    ("net", "shape"),
    [(energies.MLP(5, (6,)), (4,)), (energies.ConvNet((2, 8, 8), (4, 4), 4), (1, 8, 8))],
    ids=["vector", "image"],
)
def test_energies_of_levels(net, shape):
    inner = models.LevelEnergy(net, center=0.5, spread=2.0).double()
    family = models.NoiseConditionalEnergy(inner, domains.Real(shape), LADDER)
    x, sigma = torch.randn(6, *shape, generator=gen(), dtype=D), torch.linspace(0.1, 3, 6, dtype=D)
    member = family.given(sigma)
    wide = sigma.reshape(-1, *[1] * len(shape))
    u = (x - 0.5) / torch.sqrt(4 + wide**2)
    told = (wide.log() / 4).expand(6, 1, *shape[1:])
    by_hand = 0.5 * u.square().flatten(1).sum(1) + 2 / sigma * net(torch.cat([u, told], 1))[:, 0]
    torch.testing.assert_close(member(x), by_hand)
    one = torch.stack([family.given(float(s))(row[None])[0] for s, row in zip(sigma, x, strict=True)])
    torch.testing.assert_close(member(x), one)
    torch.testing.assert_close(family(x), family.given(LADDER[-1])(x))
    assert family.given(0.5).score(x).shape == x.shape
    loss = objectives.MultiScaleDenoising()(family, x, (), gen())
    loss.value.backward()
    assert all(p.grad is not None for p in net.parameters() if p.dim() > 1)


def test_an_energy_family_is_trained_sampled_and_saved(tmp_path):
    data = torch.tensor([[2.0, 0.0], [-2.0, 0.0]], dtype=D)[torch.arange(400) % 2]
    data = data + 0.3 * torch.randn(data.shape, generator=gen(), dtype=D)
    ladder = schedules.noise_ladder(data, last=0.2, steps_per_level=5)
    net = models.LevelEnergy(energies.MLP(3, (32, 32)).double(), spread=float(data.std()))
    family = models.NoiseConditionalEnergy(net, domains.Real(2), ladder.sigmas.double())
    gb.fit(
        family,
        objectives.MultiScaleDenoising(),
        data,
        steps=300,
        batch_size=200,
        lr=5e-3,
        schedule="cosine",
        run_dir=tmp_path / "run",
    )
    kernel = kernels.AnnealedLangevin(20, ladder.step_size, denoise=True)
    x = gb.sample(family, kernel, 4 * torch.randn(400, 2, generator=gen(1), dtype=D), keep=False, generator=gen(2)).last
    assert abs(float((x[:, 0] > 0).double().mean()) - 0.5) < 0.15
    assert ((x[:, 0].abs() - 2).abs() < 1.2).double().mean() > 0.9
    again = gb.load(tmp_path / "run")
    torch.testing.assert_close(again(x), family(x))


def test_level_families_refuse_what_does_not_fit():
    for make in (models.NoiseConditionalScore, models.NoiseConditionalEnergy):
        with pytest.raises(errors.DomainError, match="Real"):
            make(Blurred(), domains.Box(2), LADDER)
        with pytest.raises(errors.ArgumentError, match="noise ladder"):
            make(Blurred(), domains.Real(2), LADDER.flip(0))
        with pytest.raises(errors.ArgumentError, match="module"):
            make(3, domains.Real(2), LADDER)
    with pytest.raises(errors.ShapeError, match="one a row"):
        models.NoiseConditionalEnergy(Blurred(), domains.Real(2), LADDER).given(LADDER)(torch.zeros(3, 2, dtype=D))


@pytest.mark.parametrize(
    "net",
    [
        lambda: models.LevelEnergy(gb.nets.MLP(2, (4,))),  # the level is one more input
        lambda: models.LevelEnergy(gb.nets.MLP(3, (4,), outputs=2)),
        lambda: gb.nets.MLP(2, (4,)),  # knows of no level
    ],
)
def test_networks_that_do_not_take_a_level_are_told_what_does(net):
    family = models.NoiseConditionalEnergy(net(), domains.Real(2), LADDER.float())
    x = torch.zeros(5, 2)
    for way in (lambda: family(x), lambda: family.given(1.0).score(x), lambda: gb.fit(family, objectives.RecoveryLikelihood(2), x, steps=1)):  # fmt: skip
        with pytest.raises(errors.ShapeError, match=r"LevelEnergy\(nets\.MLP\(d \+ 1\)\)"):
            way()
    with pytest.raises(errors.ShapeError, match=r"expected \(batch, 2\)"):  # rows of another shape are the rows' fault
        family(torch.zeros(5, 3))
    scores = models.NoiseConditionalScore(models.ScoreMLP(3, (4,)), domains.Real(2), LADDER.float())
    with pytest.raises(errors.ShapeError, match=r"ScoreMLP\(d\)"):
        scores.score(x)


def test_a_network_that_runs_out_of_memory_says_so():
    class Full(torch.nn.Module):
        def forward(self, x, sigma):
            raise torch.OutOfMemoryError("CUDA out of memory; see max_split_size_mb")

    with pytest.raises(torch.OutOfMemoryError):
        models.NoiseConditionalEnergy(Full(), domains.Real(2), LADDER.float())(torch.zeros(5, 2))


def test_a_level_is_a_number_from_0_on():
    for family in (models.NoiseConditionalScore, models.NoiseConditionalEnergy):
        for level in (-1.0, "first", math.nan, [1.0, 0.5]):
            with pytest.raises(errors.ArgumentError, match=r"given\(sigma="):
                family(Blurred(), domains.Real(2), LADDER).given(level)


# --- ladders --------------------------------------------------------------------------------------


def test_ladders_solve_their_equations():
    data = torch.rand(300, 200, generator=gen(), dtype=D)
    ladder = schedules.noise_ladder(data, steps_per_level=4)
    sigmas = ladder.sigmas.double()
    assert float(sigmas[0]) == pytest.approx(float(torch.cdist(data, data).max()), rel=1e-6)
    assert float(sigmas[-1]) == pytest.approx(0.01 * float(data.max() - data.min()), rel=1e-6)
    gamma = float(sigmas[0] / sigmas[1])
    torch.testing.assert_close(
        sigmas[:-1] / sigmas[1:], torch.full((len(sigmas) - 1,), gamma, dtype=D), rtol=1e-5, atol=0
    )
    far = math.sqrt(400) * (gamma - 1)
    share = norm.cdf(far + 3 * gamma) - norm.cdf(far - 3 * gamma)
    assert 0.5 <= share < 0.53  # the ratio is rounded down to a whole number of levels

    def left(eta):  # the variance of the noise after T steps, by iterating it
        variance = gamma**2
        for _ in range(4):
            variance = (1 - eta) ** 2 * variance + 2 * eta
        return variance

    eta = ladder.step_size / (2 * float(sigmas[-1]) ** 2)
    assert 0 < eta < 1
    assert left(eta) < min(left(0.9 * eta), left(1.1 * eta))


def test_ladders_take_what_is_given():
    data = torch.randn(50, 2, generator=gen())
    ladder = schedules.noise_ladder(data, first=8.0, last=0.5, steps_per_level=3)
    assert (float(ladder.sigmas[0]), round(float(ladder.sigmas[-1]), 6), ladder.steps_per_level) == (8.0, 0.5, 3)
    assert float(ladder.sigmas[0] / ladder.sigmas[1]) <= 2.0 + 1e-6  # in few dimensions levels would be too far apart
    for bad in ({"first": 0.1, "last": 0.5}, {"overlap": 1.0}, {"steps_per_level": 0}):
        with pytest.raises(errors.ArgumentError):
            schedules.noise_ladder(data, **bad)
    with pytest.raises(errors.DataError, match="two"):
        schedules.noise_ladder(data[:1])


# --- likelihood by probability flow ---------------------------------------------------------------

WEIGHTS = torch.tensor([0.7, 0.3], dtype=D)
MEANS = torch.tensor([[1.5, 0.0, -1.0], [-2.0, 1.0, 0.5]], dtype=D)


class MixtureScore(torch.nn.Module):
    """The exact score of Σ wₖ N(mₖ, 0.25 I) blurred by σ."""

    def forward(self, x, sigma):
        variance = 0.25 + sigma[:, None] ** 2
        away = MEANS.to(x) - x[:, None]
        log_p = -0.5 * away.square().sum(2) / variance + WEIGHTS.to(x).log()
        return (log_p.softmax(1)[:, :, None] * away).sum(1) / variance


def mixture_log_p(x, sigma):
    variance = 0.25 + sigma**2
    log_p = -0.5 * (MEANS - x[:, None]).square().sum(2) / variance + WEIGHTS.log()
    return log_p.logsumexp(1) - 1.5 * math.log(2 * math.pi * variance)


def mixture_family(first=50.0):
    return models.NoiseConditionalScore(MixtureScore(), domains.Real(3), schedules.geometric(first, 0.1, 30).double())


def mixture_draws(n, sigma=0.1):
    g = gen(3)
    which = torch.multinomial(WEIGHTS, n, True, generator=g)
    return MEANS[which] + math.sqrt(0.25 + sigma**2) * torch.randn(n, 3, generator=g, dtype=D)


def test_the_flow_gives_the_exact_density_of_a_mixture():
    x = mixture_draws(200)
    out = partition.flow_log_likelihood(mixture_family(), x, data=mixture_draws(100_000, 0.0), tolerance=1e-4)
    truth = mixture_log_p(x, 0.1)
    # the Gaussian at σ₁ = 50 is off by third moments of order (m/σ₁)³, and by moments from 100000 draws
    torch.testing.assert_close(out.per_sample, truth, atol=2e-3, rtol=0)
    assert float(out.solver_error.mean()) <= 1e-4
    assert float(out.lower) < float(truth.mean()) < float(out.upper)
    assert (out.trace_stderr == 0).all()
    assert "exact" in out.method


def test_coarse_solutions_know_their_error():
    x = mixture_draws(100)
    with pytest.warns(errors.EstimateWarning, match="max_steps"):
        out = partition.flow_log_likelihood(
            mixture_family(), x, data=mixture_draws(4000, 0.0), steps=3, max_steps=6, tolerance=1e-6
        )
    assert out.steps == 6
    off = (out.per_sample - mixture_log_p(x, 0.1)).abs().mean()
    assert 1e-3 < off < 2 * out.solver_error.mean()


def test_random_directions_are_unbiased_and_say_how_far_they_stray():
    x = mixture_draws(20).repeat(20, 1)  # every row twenty times, with its own directions
    how = {"data": mixture_draws(4000, 0.0), "tolerance": 0.05, "steps": 16}
    out = partition.flow_log_likelihood(mixture_family(), x, divergence="hutchinson", probes=4, generator=gen(), **how)
    exact = mixture_log_p(x, 0.1)
    off = out.per_sample - exact
    spread = out.trace_stderr.square().mean().sqrt()
    assert off.std() == pytest.approx(float(spread), rel=0.2)
    assert abs(float(off.mean())) < 4 * float(off.std()) / math.sqrt(len(off)) + 5e-3
    with pytest.raises(errors.RandomnessError):
        partition.flow_log_likelihood(mixture_family(), x, divergence="hutchinson", **how)


def test_energies_flow_as_their_scores_do():
    """½‖x‖²/(1 + σ²) in five dimensions, from its own Gaussian at σ₁."""
    prior = energies.Gaussian(torch.zeros(5, dtype=D), 401.0 * torch.eye(5, dtype=D))
    family = models.NoiseConditionalEnergy(Blurred(), domains.Real(5), LADDER)
    x = torch.randn(10, 5, generator=gen(), dtype=D)
    out = partition.flow_log_likelihood(family, x, prior=prior, tolerance=1e-5, batch_size=4)
    truth = -0.5 * x.square().sum(1) / 1.01 - 2.5 * math.log(2 * math.pi * 1.01)
    torch.testing.assert_close(out.per_sample, truth, atol=1e-5, rtol=0)


def test_images_flow_too():
    net = models.ScoreUNet((1, 6, 6), (4, 4), 1, spread=0.5)
    family = models.NoiseConditionalScore(net, domains.Real((1, 6, 6)), schedules.geometric(10.0, 0.1, 10))
    x = 0.5 * torch.randn(3, 1, 6, 6, generator=gen())
    data = 0.5 * torch.randn(2000, 1, 6, 6, generator=gen(1))
    out = partition.flow_log_likelihood(family, x, data=data, divergence="hutchinson", generator=gen(2))
    variance = 0.26  # untrained, the network is the score of a Gaussian, and Rademacher directions are exact for it
    truth = -0.5 * x.flatten(1).square().sum(1) / variance - 18 * math.log(2 * math.pi * variance)
    torch.testing.assert_close(out.per_sample, truth.double(), atol=0.05, rtol=0)


def test_flows_refuse_what_does_not_fit():
    x = torch.zeros(2, 3, dtype=D)
    with pytest.raises(errors.CapabilityError, match="log_likelihood"):
        partition.flow_log_likelihood(energies.Gaussian(torch.zeros(3), torch.eye(3)), x, data=x)
    for bad, match in (
        ({}, "prior"),
        ({"data": x, "divergence": "none"}, "hutchinson"),
        ({"data": x, "steps": 8, "max_steps": 8}, "twice"),
    ):
        with pytest.raises(errors.ArgumentError, match=match):
            partition.flow_log_likelihood(mixture_family(), x, **bad)
    with pytest.raises(errors.DataError, match="two rows"):
        partition.flow_log_likelihood(mixture_family(), x, data=torch.zeros(2, 4, dtype=D))


@pytest.mark.parametrize("projections", [1, 3])
def test_second_derivatives_through_group_norm_are_taken_one_by_one(projections):
    """Torch's batched gradients fail there; the trace by brute force and by the objectives must agree."""
    net = models.ScoreUNet((1, 4, 4), (8, 8), 1).double()
    with torch.no_grad():
        for p in net.parameters():
            p += 0.2 * torch.randn(p.shape, generator=gen(5), dtype=D)
    family = models.NoiseConditionalScore(net, domains.Real((1, 4, 4)), LADDER)
    x = torch.randn(3, 1, 4, 4, generator=gen(), dtype=D)
    level = LADDER[-1:].expand(1)
    jacobians = [torch.autograd.functional.jacobian(lambda z: net(z[None], level)[0], row) for row in x]
    traces = torch.stack([j.reshape(16, 16).trace() for j in jacobians])
    norm_of = family.score(x).square().sum() / 3
    implicit = objectives.ImplicitScoreMatching()(family, x, (), gen()).value
    torch.testing.assert_close(implicit.detach(), traces.mean() + 0.5 * norm_of)
    g = gen(1)
    v = random_directions("rademacher", projections, x, g)
    curved = torch.stack(
        [one.flatten() @ j.reshape(16, 16) @ one.flatten() for k in v for j, one in zip(jacobians, k, strict=True)]
    )
    sliced = objectives.SlicedScoreMatching(projections=projections)(family, x, (), gen(1)).value
    torch.testing.assert_close(sliced.detach(), curved.mean() + 0.5 * norm_of)
    out = partition.flow_log_likelihood(family, x, data=x, steps=1, max_steps=2, tolerance=1e9)
    assert torch.isfinite(out.per_sample).all()
