"""Stochastic-gradient kernels against the laws that they have in closed form, and posteriors of data."""

import math

import pytest
import torch
from torch import nn

import gibbsian as gb
from gibbsian import domains, energies, kernels
from gibbsian.errors import ArgumentError, CapabilityError, DataError, ShapeError
from gibbsian.testing import check_energy, check_kernel

F64 = torch.float64
N, CHAINS = 60, 10000


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal_rows(theta, rows):
    return -0.5 * (rows - theta[:, None]).square().sum(2)


def logistic(theta, x, y):
    logit = torch.einsum("cnp,cp->cn", x, theta)
    return y * logit - nn.functional.softplus(logit)


def one_mean(**how):
    rows = 1.5 + 0.8 * torch.randn(N, 1, generator=gen(5), dtype=F64)
    return energies.DataPosterior(domains.Real(1), normal_rows, rows, **how), rows


def regression(rows=37, **how):
    x, y = torch.randn(rows, 3, generator=gen(1), dtype=F64), (torch.rand(rows, generator=gen(2)) < 0.4).double()
    prior = energies.Gaussian(torch.zeros(3, dtype=F64), 4 * torch.eye(3, dtype=F64))
    return energies.DataPosterior(prior, logistic, x, y, **how), prior, x, y


# --- posteriors -----------------------------------------------------------------------------------


def test_the_energy_is_prior_and_rows():
    for chunk in (4096, 10, 1):
        law, prior, x, y = regression(chunk=chunk)
        theta = torch.randn(5, 3, generator=gen(3), dtype=F64)
        logit = theta @ x.T
        nll = nn.functional.binary_cross_entropy_with_logits(logit, y.expand_as(logit), reduction="none").sum(1)
        torch.testing.assert_close(law(theta), prior(theta) + nll)
    check_energy(law, theta, generator=gen())


@pytest.mark.parametrize("center", [False, True])
def test_estimates_are_right_on_average(center):
    """The mean over all single rows is the score itself, whatever θ; with a center the noise is gone there."""
    point = torch.tensor([0.3, -0.2, 0.5], dtype=F64)
    law, *_ = regression(center=point if center else None)
    theta = torch.randn(4, 3, generator=gen(3), dtype=F64)
    estimates = torch.stack([law.score_estimate(theta, torch.full((4, 1), i)) for i in range(law.data_rows())])
    torch.testing.assert_close(estimates.mean(0), law.score(theta))
    at = point.expand(4, 3)
    noise = (law.score_estimate(at, torch.tensor([[0, 3], [1, 1], [5, 2], [9, 8]])) - law.score(at)).abs().max()
    assert (float(noise) < 1e-12) == center


# --- laws -----------------------------------------------------------------------------------------


def variance_of(kernel, steps, law, start):
    """Over chains after a run, in standard errors' reach of its value: √(2/n) for nearly Gaussian laws."""
    x = torch.full((CHAINS, 1), float(start), dtype=F64)
    last = gb.sample(law, kernel, x, steps, keep=False, generator=gen(7)).last
    assert float(last.mean()) == pytest.approx(float(start), abs=5 * float(last.std()) / math.sqrt(CHAINS))
    return float(last.var())


NEAR = 5 * math.sqrt(2 / CHAINS)


@pytest.mark.parametrize(("share", "n"), [(0.2, 1), (1.0, 4)])
def test_the_law_of_sgld(share, n):
    """ε = share/N; without the noise of rows, or with their number wrong by one, it would be off by far more."""
    law, rows = one_mean()
    eps, v = share / N, N**2 * float(rows.var(correction=0)) / n
    want = (1 + eps * v / 4) / (N * (1 - eps * N / 4))
    steps = math.ceil(12 / share)
    assert variance_of(kernels.SGLD(eps, n), steps, law, rows.mean()) == pytest.approx(want, rel=NEAR)
    assert abs(want * N - 1) > 2 * NEAR


@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_the_law_of_sghmc(alpha):
    law, rows = one_mean()
    k, n, eta = N, 8, 0.1 / N
    v = N**2 * float(rows.var(correction=0)) / n
    damp = 1 - eta * k / (2 * (2 - alpha))
    plain = kernels.SGHMC(eta, alpha, batch_size=n)
    assert variance_of(plain, 120, law, rows.mean()) == pytest.approx(
        (1 + eta * v / (2 * alpha)) / (k * damp), rel=NEAR
    )
    eta = 0.05 / N
    made_up = kernels.SGHMC(eta, alpha, noise=eta * v / 2, batch_size=n)
    damp = 1 - eta * k / (2 * (2 - alpha))
    assert variance_of(made_up, 160, law, rows.mean()) == pytest.approx(1 / (k * damp), rel=NEAR)


def test_the_law_of_preconditioned_sgld():
    """With squares that are averaged for long, G is a number: the law of SGLD with step εG."""
    law, rows = one_mean()
    n, size = 4, 2e-3
    s2 = float(rows.var(correction=0))
    kernel = kernels.SGLD(size, n, preconditioned=True, decay=0.98, floor=1.0)
    x = torch.full((CHAINS, 1), float(rows.mean()), dtype=F64)
    trace = gb.sample(law, kernel, x, 300, keep=False, generator=gen(7))
    eps = size / (1 + float((trace.state.square / trace.state.weight).sqrt().mean()))
    want = (1 + eps * N**2 * s2 / n / 4) / (N * (1 - eps * N / 4))
    assert float(trace.last.var()) == pytest.approx(want, rel=NEAR)
    # squares of g/N in that law: the spread of θ about the mean, and that of a mean of n rows
    assert float(trace.state.square.mean() / trace.state.weight) == pytest.approx(want + s2 / n, rel=0.03)


def test_a_center_removes_the_noise_of_rows():
    """Gaussian rows have gradients that differ by constants only: with a center SGLD is unadjusted Langevin dynamics."""
    law, rows = one_mean(center=torch.tensor([1.0], dtype=F64))
    eps = 0.5 / N
    want = 1 / (N * (1 - eps * N / 4))
    assert variance_of(kernels.SGLD(eps, 1), 40, law, rows.mean()) == pytest.approx(want, rel=NEAR)


def test_a_regression_agrees_with_hmc():
    """ε = 0.02 in units of the posterior: some 800 effective draws here, more there: means and spreads within four standard
    errors, 0.15 of a standard deviation."""
    law, *_ = regression(rows=400)
    warmed = gb.warm_up(law, kernels.HMC(0.1, 6), torch.zeros(16, 3, dtype=F64), 120, generator=gen())
    exact = gb.sample(law, warmed.kernel, warmed.trace, 300, generator=gen(1)).summary()
    center = exact["mean"]
    near, *_ = regression(rows=400, center=center)
    eps = 0.02 * float(exact["sd"].square().min())
    trace = gb.sample(
        near, kernels.SGLD(eps, 40), center.expand(400, 3).clone(), 700, burn_in=500, thin=20, generator=gen(2)
    )
    found = trace.summary()
    assert float(((found["mean"] - exact["mean"]) / exact["sd"]).abs().max()) < 0.15
    assert float((found["sd"] / exact["sd"] - 1).abs().max()) < 0.15


# --- conformance and refusals -----------------------------------------------------------------------

KERNELS = {
    "SGLD": kernels.SGLD(0.05, 4),
    "SGLD, falling": kernels.SGLD(torch.linspace(0.05, 0.01, 60), 4),
    "pSGLD": kernels.SGLD(1e-3, 4, preconditioned=True),
    "SGHMC": kernels.SGHMC(0.02, 0.2, noise=0.05, batch_size=4),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_conform(name):
    law, *_ = regression()
    x = torch.randn(6, 3, generator=gen(), dtype=F64)
    assert check_kernel(KERNELS[name], law, x, generator=gen()) == ["seed", "shapes", "pieces", "clamp"]


def test_walls_hold():
    rows = torch.rand(30, 1, generator=gen(), dtype=F64)
    law = energies.DataPosterior(domains.NonNegative(1), lambda t, d: t - d.squeeze(2) * t, rows)  # pushes to nought
    for kernel in (kernels.SGLD(0.05, 3), kernels.SGHMC(0.05, batch_size=3)):
        draws = gb.sample(law, kernel, torch.ones(50, 1, dtype=F64), 60, generator=gen()).samples
        assert float(draws.min()) >= 0


def test_refusals():
    law, *_ = regression()
    plain = energies.Gaussian(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64))
    x = torch.zeros(4, 3, dtype=F64)
    with pytest.raises(CapabilityError, match="DataPosterior"):
        gb.sample(plain, kernels.SGLD(0.1), x, 5, generator=gen())
    with pytest.raises(CapabilityError, match="unadjusted"):
        gb.warm_up(law, kernels.SGLD(0.1), x, 5, generator=gen())
    with pytest.raises(ArgumentError, match="may not exceed"):
        kernels.SGHMC(0.1, friction=0.1, noise=0.2)
    with pytest.raises(ShapeError, match=r"expected \(4, 37\)"):
        energies.DataPosterior(plain, lambda t, d: d.sum(2).expand(4, -1).T, torch.zeros(37, 1, dtype=F64))(x)
    with pytest.raises(DataError, match="no data"):
        energies.DataPosterior(plain, logistic)
    with pytest.raises(ShapeError, match="as data"):
        energies.DataPosterior(plain, logistic, torch.zeros(5, 3), torch.zeros(4))
    with pytest.raises(ShapeError, match="center"):
        energies.DataPosterior(plain, logistic, torch.zeros(5, 3), torch.zeros(5), center=torch.zeros(2))
