"""Annealed Langevin and the family of scores it runs on: exact linear laws, mode weights, inpainting."""

import math

import pytest
import torch
from exact_targets import D, correlated, gen

import gibbsian as gb
from gibbsian import domains, kernels, models
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, ShapeError

COVARIANCE = torch.tensor([[2.0, 1.2], [1.2, 1.0]], dtype=D)
MEAN = torch.tensor([1.0, -1.0], dtype=D)
LADDER = torch.tensor([5.0, 2.0, 0.7, 0.2], dtype=D)


class Blurred(torch.nn.Module):
    """The exact score of N(MEAN, COVARIANCE + σ²I)."""

    def forward(self, x, sigma):
        blurred = COVARIANCE.to(x) + sigma[:, None, None] ** 2 * torch.eye(2, dtype=x.dtype)
        return -torch.linalg.solve(blurred, (x - MEAN.to(x))[:, :, None])[:, :, 0]


def family(sigmas=LADDER):
    return models.NoiseConditionalScore(Blurred(), domains.Real(2), sigmas)


def precision(sigma):
    return torch.linalg.inv(COVARIANCE + sigma**2 * torch.eye(2, dtype=D))


def assert_moments(x, mean, cov):
    """Means and covariances within 5 standard errors: false-alarm rate below 1e-5."""
    n, var = len(x), cov.diagonal()
    assert ((x.mean(0) - mean).abs() < 5 * (var / n).sqrt()).all(), (x.mean(0), mean)
    error = ((torch.outer(var, var) + cov.square()) / n).sqrt()
    assert ((x.T.cov() - cov).abs() < 5 * error).all(), (x.T.cov(), cov)


@pytest.mark.parametrize("denoise", [False, True])
def test_the_law_of_every_level_is_a_linear_recursion(denoise):
    kernel = kernels.AnnealedLangevin(steps_per_level=7, step_size=0.05, denoise=denoise)
    x = torch.tensor([[30.0, 20.0]], dtype=D).expand(20000, 2).clone()
    trace = gb.sample(family(), kernel, x, generator=gen(1))
    assert trace.samples.shape == (28 + denoise, 20000, 2)
    assert math.isnan(float(trace.acceptance))
    mean, cov, one = x[0], torch.zeros(2, 2, dtype=D), torch.eye(2, dtype=D)
    for level, sigma in enumerate(LADDER):
        alpha = 0.05 * sigma**2 / LADDER[-1] ** 2
        move = one - alpha / 2 * precision(sigma)
        for _ in range(7):
            mean, cov = MEAN + move @ (mean - MEAN), move @ cov @ move + alpha * one
        assert_moments(trace.samples[7 * level + 6], mean, cov)
    if denoise:
        before = trace.samples[-2]
        assert torch.allclose(trace.last, before + LADDER[-1] ** 2 * family().score(before))
        move = one - LADDER[-1] ** 2 * precision(LADDER[-1])
        mean, cov = MEAN + move @ (mean - MEAN), move @ cov @ move
    assert_moments(trace.last, mean, cov)


def test_a_short_run_by_hand():
    """The double loop of the paper, with the same random numbers."""
    kernel = kernels.AnnealedLangevin(steps_per_level=3, step_size=0.1)
    x = torch.zeros(16, 2, dtype=D)
    got = gb.sample(family(), kernel, x, generator=gen(2)).samples
    z = torch.randn(12, 16, 2, generator=gen(2), dtype=D)
    step = 0
    for sigma in LADDER:
        alpha = 0.1 * sigma**2 / LADDER[-1] ** 2
        for _ in range(3):
            x = x + alpha / 2 * Blurred()(x, sigma.expand(16)) + alpha.sqrt() * z[step]
            assert torch.allclose(got[step], x)
            step += 1


def test_inpainting_follows_its_linear_recursion_and_keeps_what_is_known():
    kernel = kernels.AnnealedLangevin(steps_per_level=60, step_size=0.03, denoise=True)
    x = torch.tensor([[9.0, 0.5]], dtype=D).expand(20000, 2).clone()
    trace = gb.sample(family(), kernel, x, clamp=torch.tensor([False, True]), generator=gen(3))
    assert (trace.samples[..., 1] == 0.5).all()
    mean, var, steps = torch.tensor(9.0, dtype=D), torch.zeros((), dtype=D), [0.03] * 60
    for sigma in LADDER:
        p = precision(sigma)
        last = sigma == LADDER[-1]
        for alpha in [a * sigma**2 / LADDER[-1] ** 2 for a in steps]:
            mean = mean - alpha / 2 * (p[0, 0] * (mean - MEAN[0]) + p[0, 1] * (0.5 - MEAN[1]))
            var = (1 - alpha / 2 * p[0, 0]) ** 2 * var + (alpha / 2 * p[0, 1] * sigma) ** 2 + alpha
        if last:  # the denoising step
            mean = mean - sigma**2 * (p[0, 0] * (mean - MEAN[0]) + p[0, 1] * (0.5 - MEAN[1]))
            var = (1 - sigma**2 * p[0, 0]) ** 2 * var + (sigma**3 * p[0, 1]) ** 2
    assert_moments(trace.last[:, :1], mean[None], var[None, None])
    conditional = MEAN[0] + COVARIANCE[0, 1] / COVARIANCE[1, 1] * (0.5 - MEAN[1])
    assert abs(float(trace.last[:, 0].mean() - conditional)) < 0.3  # a short ladder: near 2.8, far from the mean 1


def test_known_entries_are_shown_with_the_noise_of_the_level():
    seen = []

    class Watching(Blurred):
        def forward(self, x, sigma):
            seen.append((float(sigma[0]), x[:, 1].clone()))
            return super().forward(x, sigma)

    score = models.NoiseConditionalScore(Watching(), domains.Real(2), LADDER)
    x = torch.tensor([[9.0, 0.5]], dtype=D).expand(5000, 2).clone()
    kernel = kernels.AnnealedLangevin(steps_per_level=2, step_size=0.03)
    gb.sample(score, kernel, x, clamp=torch.tensor([False, True]), generator=gen(12))
    assert [s for s, _ in seen] == LADDER.repeat_interleave(2).tolist()
    for sigma, known in seen:  # N(0.5, σ²) within 5 standard errors
        assert abs(float(known.mean()) - 0.5) < 5 * sigma / math.sqrt(5000)
        assert abs(float(known.std()) / sigma - 1) < 5 / math.sqrt(2 * 5000)


def test_clamps_may_differ_between_chains():
    clamp = torch.tensor([[True, False], [False, True]]).repeat(500, 1)
    x = torch.zeros(1000, 2, dtype=D) + 0.5
    kernel = kernels.AnnealedLangevin(steps_per_level=20, step_size=0.03)
    last = gb.sample(family(), kernel, x, clamp=clamp, generator=gen(4)).last
    assert (last[clamp] == 0.5).all()
    assert (last[~clamp] != 0.5).all()


class TwoModes(torch.nn.Module):
    """The exact score of 0.8 N(5, 1) + 0.2 N(-5, 1) blurred by σ."""

    def forward(self, x, sigma):
        var, means = 1 + sigma[:, None] ** 2, x.new_tensor([5.0, -5.0])
        log_p = -((x - means) ** 2) / (2 * var) + x.new_tensor([0.8, 0.2]).log()
        return (torch.softmax(log_p, 1) * (means - x)).sum(1, keepdim=True) / var


def test_finds_the_weights_of_modes_where_plain_langevin_cannot():
    """Shares of 2000 chains; 0.06 is more than five standard errors, the ladder's own bias is about 0.02."""
    score = models.NoiseConditionalScore(TwoModes(), domains.Real(1), gb.schedules.geometric(20.0, 1.0, 10).to(D))
    x = 16 * torch.rand(2000, 1, generator=gen(5), dtype=D) - 8
    share = lambda x: float((x > 0).double().mean())  # noqa: E731
    annealed = gb.sample(score, kernels.AnnealedLangevin(60, step_size=0.1), x, keep=False, generator=gen(6)).last
    assert abs(share(annealed) - 0.8) < 0.06
    assert abs(float(annealed[annealed > 0].var()) - 2) < 0.3  # each mode blurred by the last level
    plain = gb.sample(score.given(1.0), kernels.Langevin(0.3), x, steps=300, keep=False, generator=gen(7)).last
    assert abs(share(plain) - 0.5) < 0.06


def test_runs_may_be_cut_and_prolonged():
    kernel, x = kernels.AnnealedLangevin(steps_per_level=5, step_size=0.05), torch.zeros(7, 2, dtype=D)
    whole = gb.sample(family(), kernel, x, generator=gen(8))
    assert whole.steps == 20
    g = gen(8)
    part = gb.sample(family(), kernel, x, steps=7, generator=g)
    rest = gb.sample(family(), kernel, part, steps=13, generator=g)
    assert torch.equal(whole.samples, torch.cat([part.samples, rest.samples]))
    longer = gb.sample(family(), kernel, x, steps=40, generator=gen(8))  # stays at the last level
    assert torch.equal(longer.samples[:20], whole.samples)
    moves = longer.samples.diff(dim=0)[25:].square().mean().sqrt()
    assert abs(float(moves) / math.sqrt(0.05) - 1) < 0.2


def test_step_sizes_may_differ_between_chains():
    sizes = torch.tensor([[0.01, 0.04]], dtype=D)
    kernel = kernels.AnnealedLangevin(steps_per_level=4, step_size=sizes)
    x = torch.zeros(2, 2, dtype=D)
    both = gb.sample(family(), kernel, x, generator=gen(9)).samples
    for i in (0, 1):
        alone = kernels.AnnealedLangevin(steps_per_level=4, step_size=float(sizes[0, i]))
        assert torch.allclose(gb.sample(family(), alone, x, generator=gen(9)).samples[:, i], both[:, i])


def test_any_family_with_levels_will_do():
    """`noise_levels` and `given` are all that the kernel asks for."""

    class Levels(gb.ScoreField):
        def noise_levels(self):
            return LADDER

        def given(self, sigma):
            return family().given(sigma)

        def score(self, x, *, create_graph=False):
            return family().score(x, create_graph=create_graph)

    kernel, x = kernels.AnnealedLangevin(3, 0.05, denoise=True), torch.zeros(6, 2, dtype=D)
    got = gb.sample(Levels(domains.Real(2)), kernel, x, generator=gen(1))
    assert torch.equal(got.samples, gb.sample(family(), kernel, x, generator=gen(1)).samples)
    assert got.steps == 13


# --- the family ---------------------------------------------------------------------------------------


def test_the_family_gives_score_fields():
    score, x = family(), torch.randn(5, 2, generator=gen(10), dtype=D)
    levels = torch.tensor([0.1, 0.5, 1.0, 2.0, 3.0], dtype=D)
    rows = torch.stack([-precision(s) @ (y - MEAN) for s, y in zip(levels, x, strict=True)])
    assert torch.allclose(score.given(levels).score(x), rows)
    assert torch.allclose(score.given(0.5).score(x)[1], rows[1])
    assert torch.equal(score.score(x), score.given(LADDER[-1]).score(x))
    assert not score.given(0.5).score(x).requires_grad
    assert score.given(0.5).score(x.requires_grad_(True), create_graph=True).requires_grad
    assert isinstance(score, gb.ScoreField)
    assert "sigmas" in score.state_dict()
    assert score.float().sigmas.dtype == torch.float32


def test_the_family_is_trained_by_multi_scale_denoising():
    """s = -a(x - b)/(1 + σ²) with the data N(2, 1): the minimum is at a = 1, b = 2."""

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.tensor(0.5, dtype=D))
            self.b = torch.nn.Parameter(torch.tensor(0.0, dtype=D))

        def forward(self, x, sigma):
            return -self.a * (x - self.b) / (1 + sigma[:, None] ** 2)

    score = models.NoiseConditionalScore(Linear(), domains.Real(1), torch.tensor([2.0, 1.0, 0.5], dtype=D))
    data = 2 + torch.randn(4000, 1, generator=gen(11), dtype=D)
    gb.fit(score, gb.objectives.MultiScaleDenoising(), data, steps=300, batch_size=1000, lr=0.05, seed=0)
    assert abs(float(score.net.a.detach()) - 1) < 0.1
    assert abs(float(score.net.b.detach()) - 2) < 0.1


def test_what_does_not_fit_is_refused():
    net = Blurred()
    for ladder in ([0.1, 1.0], [1.0, 1.0], [1.0, 0.0], [], [[1.0]], [math.inf, 1.0]):
        with pytest.raises(ArgumentError, match="ladder"):
            models.NoiseConditionalScore(net, domains.Real(2), torch.tensor(ladder))
    with pytest.raises(DomainError, match="Real"):
        models.NoiseConditionalScore(net, domains.Box(2), LADDER)
    with pytest.raises(ShapeError, match="noise levels"):
        family().given(torch.ones(3, dtype=D)).score(torch.zeros(2, 2, dtype=D))
    wrong = models.NoiseConditionalScore(torch.nn.Bilinear(2, 1, 1), domains.Real(2), torch.ones(1))
    wrong.net.forward = lambda x, sigma: x[:, :1]
    with pytest.raises(ShapeError, match="score network"):
        wrong.score(torch.zeros(2, 2))
    for options in ({"steps_per_level": 0, "step_size": 0.1}, {"steps_per_level": 5, "step_size": 0.0}):
        with pytest.raises(ArgumentError):
            kernels.AnnealedLangevin(**options)
    x = torch.zeros(3, 2, dtype=D)
    with pytest.raises(CapabilityError, match="ladder"):
        gb.sample(correlated(), kernels.AnnealedLangevin(5, 0.1), x, generator=gen())
    with pytest.raises(CapabilityError, match="only a score"):
        gb.sample(family(), kernels.MALA(0.1), x, steps=1, generator=gen())
