"""Tilted densities and energy priors against closed forms of Gaussians, and quadrature."""

import math

import pytest
import torch
from torch import nn

import gibbsian as gb
from gibbsian import domains, energies, kernels, objectives, partition
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, ShapeError
from gibbsian.testing import check_energy, check_objective

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=gen(seed), dtype=F64)


COV = torch.tensor([[1.0, 0.6], [0.6, 2.0]], dtype=F64)
MEAN = torch.tensor([1.0, -0.5], dtype=F64)


class Quadratic(nn.Module):
    """f(x) = ½xᵀAx - b·x."""

    def __init__(self, a=((0.8, 0.2), (0.2, 0.5)), b=(0.7, -1.1)):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a, dtype=F64))
        self.b = nn.Parameter(torch.tensor(b, dtype=F64))

    def forward(self, x):
        return 0.5 * (x @ self.a * x).sum(1) - x @ self.b


def tilted_moments(f, mean=MEAN, cov=COV):
    precision = torch.linalg.inv(cov) + f.a.detach()
    new = torch.linalg.inv(precision)
    return new @ (torch.linalg.inv(cov) @ mean + f.b.detach()), new


def test_a_tilted_gaussian_is_the_gaussian_of_the_closed_form():
    """E against the energy of N(m', S'), S'⁻¹ = S⁻¹ + A, in data space; log Z by annealing from the base itself."""
    f, base = Quadratic(), energies.Gaussian(MEAN, COV)
    tilted = energies.TiltedEnergy(base, f)
    mean, cov = tilted_moments(f)
    goal, x = energies.Gaussian(mean, cov), normal(50, 2)
    gap = tilted(x).detach() - goal(x)
    torch.testing.assert_close(gap, gap[:1].expand(50))
    log_z = float(goal.log_z() - gap[0])
    out = partition.ais(tilted, base=base, chains=2000, betas=30, generator=gen())
    assert abs(float(out.value) - log_z) < 5 * float(out.stderr) < 0.1
    check_energy(tilted, x, generator=gen())


@pytest.mark.parametrize("kind", ["energy", "log_prob", "zuko", "flow"])
def test_the_space_of_the_base_gives_the_same_law(kind):
    """z ~ exp(-E(z)), x = T(z): E_z differs from the pullback of E_x, less the Jacobian, by one constant."""
    f = Quadratic()
    if kind == "energy":
        tilted = energies.TiltedEnergy(energies.Gaussian(MEAN, COV), f)
    elif kind == "log_prob":
        tilted = energies.TiltedEnergy(Affine(), f, domains.Real(2))
    elif kind == "zuko":
        zuko = pytest.importorskip("zuko")
        with gb.random.isolated(gen()):
            flow = zuko.flows.MAF(2, transforms=2, hidden_features=(8,)).double()
        tilted = energies.TiltedEnergy(flow, f, domains.Real(2))
    else:
        pytest.importorskip("zuko")
        flow = objectives.flows.Flow((2,), "sample", MEAN, torch.ones(2, dtype=F64), hidden=(8,), generator=gen())
        tilted = energies.TiltedEnergy(flow, f, domains.Real(2))
    latent, z = tilted.latent(), normal(20, 2, seed=3)
    x = latent.push(z)
    slope = torch.vmap(torch.func.jacrev(lambda one: tilted.push(one[None])[0]))(z)
    pulled = tilted(x) - torch.linalg.slogdet(slope).logabsdet
    gap = (latent(z) - pulled).detach()
    torch.testing.assert_close(gap, gap[:1].expand(20), atol=1e-6, rtol=1e-6)
    if kind != "energy":  # a normalized base: not even the constant
        torch.testing.assert_close(gap, torch.zeros_like(gap), atol=1e-6, rtol=1e-6)


class Affine(nn.Module):
    """N(MEAN, COV) as a user would write it."""

    def log_prob(self, x):
        return torch.distributions.MultivariateNormal(MEAN, COV).log_prob(x)

    def push(self, z):
        return MEAN + z @ torch.linalg.cholesky(COV).T


def test_chains_in_either_space_reach_the_closed_form():
    """Means within 5 standard errors of independent chains, in data space and through T."""
    f, n = Quadratic(), 4000
    tilted = energies.TiltedEnergy(energies.Gaussian(MEAN, COV), f)
    mean, cov = tilted_moments(f)
    hmc = kernels.HMC(step_size=0.5, leapfrog_steps=5)
    z = torch.randn(n, 2, generator=gen(2), dtype=F64)
    there = gb.sample(tilted, hmc, z, steps=40, keep=False, generator=gen()).last
    through = tilted.latent().push(gb.sample(tilted.latent(), hmc, z, steps=40, keep=False, generator=gen()).last)
    for x in (there, through.detach()):
        assert bool(((x.mean(0) - mean).abs() < 5 * (cov.diagonal() / n).sqrt()).all())
        spread = (2 / n) ** 0.5 * cov.diagonal()
        assert bool(((x.var(0) - cov.diagonal()).abs() < 5 * spread).all())


def test_the_base_learns_only_when_asked():
    tilted = energies.TiltedEnergy(energies.Gaussian(MEAN, COV, trainable=True), Quadratic())
    assert {name for name, p in tilted.named_parameters() if p.requires_grad} == {"tilt.a", "tilt.b"}
    both = energies.TiltedEnergy(energies.Gaussian(MEAN, COV, trainable=True), Quadratic(), train_base=True)
    assert all(p.requires_grad for p in both.parameters())


def test_a_tilt_is_learned_by_contrast_with_the_base():
    """Noise-contrastive estimation with the base as noise finds the tilt that makes up the difference."""
    base = energies.Gaussian(torch.zeros(1), torch.eye(1))
    tilted = energies.TiltedEnergy(base, Line())
    data = 0.8 + torch.randn(4000, 1, generator=gen())  # exp(0.8x) times the base
    gb.fit(tilted, objectives.NoiseContrastive(energies.Gaussian(torch.zeros(1), torch.eye(1)), ratio=5), data,
           steps=300, lr=0.02, batch_size=500)  # fmt: skip
    assert abs(float(tilted.tilt.slope.detach()) + float(data.mean())) < 0.15


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.slope * x.squeeze(1)


def test_a_generator_through_its_optimal_discriminator_gives_the_data():
    """G(z) = 2z, data N(1, 1): the optimal logit is log p_data - log p_G. In latent space the law is N(½, ¼): by its
    energy, and log Z = 0."""
    push = lambda z: 2 * z  # noqa: E731
    data, made = energies.Gaussian(torch.ones(1).double(), torch.eye(1).double()), torch.distributions.Normal(0.0, 2.0)
    logit = lambda x: -data(x) - data.log_z() - made.log_prob(x).squeeze(1)  # noqa: E731
    corrected = energies.PushedEnergy.from_discriminator(push, logit, latent=1)
    z = torch.linspace(-12, 12, 4001, dtype=F64)[:, None]
    goal = torch.distributions.Normal(0.5, 0.5).log_prob(z).squeeze(1)
    torch.testing.assert_close(-corrected(z), goal)
    assert abs(float(partition.quadrature(corrected).value)) < 1e-6
    column = energies.PushedEnergy(push, lambda x: -logit(x)[:, None], latent=1)
    torch.testing.assert_close(column(z), corrected(z))


# --- energy priors ----------------------------------------------------------------------------------


class Linear(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, z):
        return z @ self.weight.T


def linear_model(sigma=0.5):
    return energies.LatentEnergy(
        Linear(normal(3, 2, seed=4)), Quadratic(), latent=2, domain=domains.Real(3), sigma=sigma
    )


def marginal(model, x):
    """log p(x) of the linear model in closed form, differentiable: z ~ N(m, S), x ~ N(Wm, WSWᵀ + σ²I)."""
    precision = torch.eye(2, dtype=F64) + 0.5 * (model.tilt.a + model.tilt.a.T)
    cov = torch.linalg.inv(precision)
    mean, w = cov @ model.tilt.b, model.decoder.weight
    noise = model.sigma**2 * torch.eye(3, dtype=F64)
    return torch.distributions.MultivariateNormal(w @ mean, w @ cov @ w.T + noise).log_prob(x)


def test_posterior_of_a_linear_decoder_is_the_gaussian_of_the_closed_form():
    model, x, z = linear_model(), normal(1, 3), normal(30, 2, seed=6)
    w = model.decoder.weight.detach()
    precision = torch.eye(2, dtype=F64) + model.tilt.a.detach() + w.T @ w / 0.25
    mean = torch.linalg.solve(precision, model.tilt.b.detach() + w.T @ x[0] / 0.25)
    goal = energies.Gaussian(mean, torch.linalg.inv(precision))
    gap = model.given(x)(z).detach() - goal(z)
    torch.testing.assert_close(gap, gap[:1].expand(30))
    prior_cov = torch.linalg.inv(torch.eye(2, dtype=F64) + model.tilt.a.detach())
    prior = energies.Gaussian(prior_cov @ model.tilt.b.detach(), prior_cov)
    prior_gap = (model(z).detach() - prior(z))[0]
    evidence = (goal.log_z() - gap[0]) - (prior.log_z() - prior_gap)  # log p(x): both normalizers
    torch.testing.assert_close(evidence, marginal(model, x).detach()[0])
    rows = normal(5, 3, seed=8)
    each = torch.stack([model.given(rows[i : i + 1])(z[i : i + 1])[0] for i in range(5)])
    torch.testing.assert_close(model.given(rows)(z[:5]), each)
    torch.testing.assert_close(model.given(rows)(z[:10])[5:], model.given(rows)(z[5:10]))


def test_the_gradient_of_long_runs_is_that_of_the_likelihood():
    """Exact kernels and many steps against the closed-form marginal, within the standard errors of ten repeats."""
    model, x = linear_model(), normal(4, 3).repeat(500, 1)
    parameters = list(model.parameters())
    goal = torch.cat([g.flatten() for g in torch.autograd.grad(-marginal(model, x).mean(), parameters)])
    objective = objectives.LatentLikelihood(
        kernels.HMC(0.3, leapfrog_steps=4, jitter=0.5), kernels.HMC(0.1, leapfrog_steps=5, jitter=0.5), 25, 40
    )
    runs = []
    for seed in range(10):
        value = objective(model, x, (), gen(seed)).value
        found = [g.flatten() for g in torch.autograd.grad(value, parameters)]
        runs.append(torch.cat(found))
    runs = torch.stack(runs)
    # a symmetric A is one parameter twice: compare its symmetric part
    fold = lambda g: torch.cat([g[..., :6], g[..., 6:10] + g[..., [6, 8, 7, 9]], g[..., 10:]], -1)  # noqa: E731
    error = (fold(runs).mean(0) - fold(goal)).abs() / (fold(runs).std(0) / math.sqrt(10) + 1e-9)
    assert float(error.max()) < 9  # Student's t of 9: once in 10⁵ for each entry


def test_binary_pixels():
    model = energies.LatentEnergy(Linear(normal(4, 2)), Quadratic(), 2, domains.Binary(4))
    x, z = (normal(6, 4, seed=2) > 0).double(), normal(6, 2, seed=5)
    p = torch.sigmoid(z @ model.decoder.weight.T)
    by_hand = torch.where(x == 1, p, 1 - p).log().sum(1)
    torch.testing.assert_close(model.log_prob_given(z, x), by_hand)
    torch.testing.assert_close(model.decode(z), p)


def test_prior_and_decoder_learn_together(tmp_path):
    """Two clusters on a line in the plane, which a linear decoder of a Gaussian cannot make: the prior grows two modes,
    and generated data fit better than the best Gaussian."""
    side = 2.0 * torch.sign(torch.randn(2000, 1, generator=gen()))
    data = torch.cat([side, side], 1) + 0.2 * torch.randn(2000, 2, generator=gen(1))
    model = energies.LatentEnergy(energies.MLP(1, outputs=2, hidden=(32,)), energies.MLP(1, hidden=(32, 32)), 1,
                                  domains.Real(2), sigma=0.3)  # fmt: skip
    objective = objectives.LatentLikelihood(kernels.Langevin(0.4), kernels.Langevin(0.15), 20, 20)
    gb.fit(model, objective, data, steps=200, batch_size=100, lr=0.004, run_dir=tmp_path / "run")
    short = kernels.Langevin(0.4)  # the run that it was trained with
    z = gb.sample(model, short, model.start(2000, generator=gen()), steps=20, keep=False, generator=gen()).last
    with torch.no_grad():
        made = model.decode(z) + 0.3 * torch.randn(2000, 2, generator=gen(3))
        loaded = gb.load(tmp_path / "run")
        torch.testing.assert_close(loaded.decode(z), model.decode(z))
    root = torch.linalg.cholesky(data.T.cov())
    plain = data.mean(0) + torch.randn(2000, 2, generator=gen(4)) @ root.T
    assert float(gb.metrics.mmd(made, data)) < 0.5 * float(gb.metrics.mmd(plain, data))
    check_objective(objective, model, data[:20], generator=gen())


@pytest.mark.parametrize(("bad", "error"), [
    (lambda: energies.TiltedEnergy(3, Quadratic()), CapabilityError),
    (lambda: energies.TiltedEnergy(Affine(), Quadratic()), ArgumentError),
    (lambda: energies.TiltedEnergy(energies.Gaussian(MEAN, COV), 3), ArgumentError),
    (lambda: energies.TiltedEnergy(energies.Gaussian(MEAN, COV), energies.MLPEnergy(3)), DomainError),
    (lambda: energies.TiltedEnergy(energies.Gaussian(MEAN, COV), Quadratic(), domains.Real(3)), DomainError),
    (lambda: energies.TiltedEnergy(energies.Banana(), Quadratic()).latent(), CapabilityError),
    (lambda: energies.TiltedEnergy(energies.TiltedEnergy(energies.Gaussian(MEAN, COV), Quadratic()),
                                   Quadratic()).latent(), CapabilityError),
    (lambda: energies.PushedEnergy(lambda z: z, lambda x: x, 2)(torch.zeros(3, 2)), ShapeError),
    (lambda: energies.PushedEnergy(lambda z: z, 1, 2), ArgumentError),
    (lambda: energies.LatentEnergy(nn.Identity(), 1, 2, domains.Real(2)), ArgumentError),
    (lambda: energies.LatentEnergy(nn.Identity(), Quadratic(), 2, domains.Real(2), sigma=0.0), ArgumentError),
    (lambda: energies.LatentEnergy(nn.Identity(), Quadratic(), 2, domains.Spin(2)), ArgumentError),
    (lambda: linear_model().given(normal(2, 3))(normal(3, 2)), ShapeError),
    (lambda: objectives.LatentLikelihood(kernels.Langevin(0.1), 3), ArgumentError),
    (lambda: objectives.LatentLikelihood(kernels.Langevin(0.1), kernels.Langevin(0.1)).init(
        energies.MLPEnergy(2), torch.zeros(2, 2), gen()), CapabilityError),
])  # fmt: skip
def test_bad_input_is_refused(bad, error):
    with pytest.raises(error) as caught:
        bad()
    assert len(str(caught.value)) > 25
