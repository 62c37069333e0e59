"""The analytic zoo against scipy: densities, partition functions by quadrature, exact draws."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from gibbsian import domains, energies
from gibbsian.energies.analytic import rejection_sample
from gibbsian.errors import GibbsianError
from gibbsian.testing import check_energy

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tensor(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


COV3 = tensor([2.0, 0.5, -0.3], [0.5, 1.0, 0.2], [-0.3, 0.2, 0.7])
MIXTURE = (
    tensor([-2.0, 0.0], [2.0, 1.0], [0.0, 3.0]),
    torch.stack([torch.eye(2), tensor([0.5, 0.2], [0.2, 0.3]), 2 * torch.eye(2)]).double(),
    [0.2, 0.3, 0.5],
)
ZOO = {
    "gaussian": lambda: energies.Gaussian(tensor(1.0, -1.0), COV3[:2, :2]),
    "mixture": lambda: energies.GaussianMixture(*MIXTURE),
    "mixture, one variance": lambda: energies.GaussianMixture(tensor([-1.0], [3.0]), 0.25),
    "mixture, trainable": lambda: energies.GaussianMixture(*MIXTURE, trainable=True),
    "student": lambda: energies.StudentT(3.0, tensor(1.0, 0.0), COV3[:2, :2]),
    "cauchy": lambda: energies.StudentT(1.0).double(),
    "student, 3-D": lambda: energies.StudentT(2.5, scale=COV3),
    "student, trainable": lambda: energies.StudentT(5.0, trainable=True).double(),
    "banana": lambda: energies.Banana().double(),
    "banana, 4-D": lambda: energies.Banana(4, curvature=-0.2, scale=1.5).double(),
    "double well": lambda: energies.DoubleWell().double(),
    "double well, low": lambda: energies.DoubleWell(1, barrier=0.05, distance=2.0).double(),
    "double well, high": lambda: energies.DoubleWell(3, barrier=8.0).double(),
    "ring": lambda: energies.Ring().double(),
    "ring, 1-D": lambda: energies.Ring(1).double(),
    "ring, wide": lambda: energies.Ring(2, radius=0.3, width=1.0).double(),
    "ring, 9-D": lambda: energies.Ring(9, radius=1.0, width=0.5).double(),
    "funnel": lambda: energies.Funnel().double(),
    "funnel, 4-D": lambda: energies.Funnel(4, scale=1.0).double(),
    "bimodal": lambda: energies.Bimodal().double(),
    "grid": lambda: energies.Grid(torch.randn(3, 3, generator=gen(), dtype=F64)),
    "grid, one unit": lambda: energies.Grid(torch.randn(5, generator=gen(), dtype=F64)),
    "grid, binary": lambda: energies.Grid(torch.randn(32, generator=gen(), dtype=F64), domains.Binary(5)),
    "grid, spins": lambda: energies.Grid(
        torch.randn(16, generator=gen(), dtype=F64), domains.Spin((2, 2)), trainable=True
    ),
}


@pytest.mark.parametrize("name", ZOO)
def test_conformance(name):
    energy = ZOO[name]()
    done = check_energy(energy, generator=gen(1))
    assert {"rows", "score", "sample"} <= set(done)
    assert ("log_z" in done) == (energy.domain.discrete or energy.domain.numel <= 2)


@pytest.mark.parametrize("name", ZOO)
def test_dtype_follows(name):
    energy = ZOO[name]().float()
    draws = energy.sample(3, generator=gen())
    assert draws.dtype == torch.float32
    assert energy(draws).dtype == torch.float32
    assert energy.score(draws).dtype == torch.float32
    assert energy.log_z().dtype == torch.float32


def log_z_by_scipy(energy, low, high):
    """Adaptive quadrature of exp(-E) in one or two dimensions."""
    if energy.domain.numel == 1:
        density = lambda x: math.exp(-float(energy(tensor([x]))))  # noqa: E731
        value, _ = integrate.quad(density, low, high, epsabs=1e-11, limit=200)
        return math.log(value)
    nodes, weights = np.polynomial.legendre.leggauss(800)
    x = torch.tensor(0.5 * (high - low) * nodes + 0.5 * (high + low))
    w = torch.tensor(0.5 * (high - low) * weights)
    p = torch.exp(-energy(torch.cartesian_prod(x, x))).reshape(len(x), -1)
    return math.log(float(w @ p @ w))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("gaussian", -14, 14),
        ("mixture", -14, 16),
        ("mixture, one variance", -8, 10),
        ("banana", -20, 60),
        ("double well", -9, 9),
        ("double well, low", -12, 12),
        ("ring", -5, 5),
        ("ring, 1-D", -6, 6),
        ("ring, wide", -10, 10),
        ("bimodal", -14, 30),
    ],
)
def test_log_z_against_quadrature(name, low, high):
    energy = ZOO[name]()
    tolerance = 1e-6 if name in {"banana", "ring, wide"} else 1e-8  # a long tail, a kink at the center
    assert abs(float(energy.log_z().detach()) - log_z_by_scipy(energy, low, high)) < tolerance


@pytest.mark.parametrize("dim", [1, 2, 3, 9, 60])
@pytest.mark.parametrize(("radius", "width"), [(2.0, 0.3), (0.1, 1.0), (30.0, 0.2)])
def test_ring_log_z_by_its_radial_integral(dim, radius, width):
    mode = 0.5 * (radius + math.sqrt(radius**2 + 4 * (dim - 1) * width**2))
    log_f = lambda r: (dim - 1) * math.log(r) - (r - radius) ** 2 / (2 * width**2)  # noqa: E731
    peak, ends = log_f(mode), (max(1e-300, mode - 12 * width), mode + 12 * width)
    value, _ = integrate.quad(lambda r: math.exp(log_f(r) - peak), *ends, epsabs=1e-12)
    surface = math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)
    energy = energies.Ring(dim, radius=radius, width=width).double()
    expected = surface + peak + math.log(value)
    assert abs(float(energy.log_z()) - expected) < 1e-6 * max(1, abs(expected))


def test_funnel_log_z_by_nested_quadrature():
    """The inner integral over x is Gaussian for each v."""
    energy = energies.Funnel().double()

    def inner(v):
        scale = math.exp(v / 2)
        f = lambda u: scale * math.exp(-float(energy(tensor([v, scale * u]))))  # noqa: E731
        return integrate.quad(f, -10, 10)[0]

    value, _ = integrate.quad(inner, -24, 24, epsabs=1e-10)
    assert abs(float(energy.log_z()) - math.log(value)) < 1e-7


def test_densities_are_those_of_scipy():
    x = 2 * torch.randn(50, 3, generator=gen(), dtype=F64)
    student = energies.StudentT(2.5, tensor(1.0, 0.0, -1.0), COV3)
    expected = stats.multivariate_t([1.0, 0.0, -1.0], COV3.numpy(), df=2.5).logpdf(x.numpy())
    assert np.allclose(-student(x) - student.log_z(), expected, atol=1e-12)
    means, covariances, weights = MIXTURE
    mixture = energies.GaussianMixture(means, covariances, weights)
    density = sum(
        w * stats.multivariate_normal(m, c).pdf(x[:, :2].numpy())
        for w, m, c in zip(weights, means.numpy(), covariances.numpy(), strict=True)
    )
    assert np.allclose(-mixture(x[:, :2]), np.log(density), atol=1e-12)
    assert np.allclose(mixture.covariances, covariances)
    assert np.allclose(mixture.weights, weights)
    parts = [energies.Gaussian(m, c) for m, c in zip(means, covariances, strict=True)]
    log_share = torch.stack([-p(x[:, :2]) - p.log_z() for p in parts], 1) + tensor(*weights).log()
    assert torch.allclose(mixture.responsibilities(x[:, :2]), torch.softmax(log_share, 1))
    t = torch.linspace(-9, 12, 40, dtype=F64)[:, None]
    two = energies.Bimodal().double()
    by_hand = -torch.log(3 * torch.exp(-((t + 2) ** 2) / 2) + torch.exp(-((t - 4) ** 2) / 8))[:, 0]
    assert torch.allclose(two(t), by_hand)
    assert math.isclose(float(two.log_z().exp()), 5 * math.sqrt(2 * math.pi))


def test_exact_draws_against_distribution_functions():
    """Kolmogorov-Smirnov at a level of 1e-6 for every marginal that scipy knows."""
    n = 20000
    radius = energies.Ring(2).double().sample(n, generator=gen()).norm(dim=1)
    cdf_r = lambda r: integrate.quad(lambda t: t * math.exp(-((t - 2) ** 2) / 0.18), 0, r)[0]  # noqa: E731
    total = cdf_r(6.0)
    grid = np.linspace(0.3, 4.0, 400)
    table = np.array([cdf_r(r) / total for r in grid])
    well = energies.DoubleWell(1, barrier=3.0).double().sample(n, generator=gen(1))[:, 0]
    points = np.linspace(-3, 3, 4001)
    mass = np.exp(-3 * (points**2 - 1) ** 2)
    cumulative = np.concatenate([[0], np.cumsum((mass[1:] + mass[:-1]) / 2)])
    cumulative /= cumulative[-1]
    banana = energies.Banana().double().sample(n, generator=gen(2))
    student = energies.StudentT(2.5, tensor(1.0), tensor([4.0])).sample(n, generator=gen(3))
    funnel = energies.Funnel().double().sample(n, generator=gen(4))
    cases = {
        "ring": (radius, lambda r: np.interp(r, grid, table)),
        "double well": (well, lambda u: np.interp(u, points, cumulative)),
        "banana, along": (banana[:, 0], stats.norm(0, 2).cdf),
        "banana, across": (banana[:, 1] - 0.5 * (banana[:, 0] ** 2 - 4), stats.norm.cdf),
        "student": (student[:, 0], stats.t(2.5, 1, 2).cdf),
        "funnel, v": (funnel[:, 0], stats.norm(0, 3).cdf),
        "funnel, x": (funnel[:, 1] / torch.exp(funnel[:, 0] / 2), stats.norm.cdf),
        "bimodal": (
            energies.Bimodal().double().sample(n, generator=gen(5))[:, 0],
            lambda t: 0.6 * stats.norm(-2, 1).cdf(t) + 0.4 * stats.norm(4, 2).cdf(t),
        ),
    }
    for name, (draws, cdf) in cases.items():
        assert stats.kstest(draws.numpy(), cdf).pvalue > 1e-6, name
    assert stats.kstest(1.05 * radius.numpy(), cases["ring"][1]).pvalue < 1e-6  # it can fail


def test_grid_is_its_table():
    table = torch.randn(2, 2, 2, generator=gen(), dtype=F64)
    grid = energies.Grid(table)
    for index in np.ndindex(2, 2, 2):
        x = grid.domain.one_hot(torch.tensor([index]), dtype=F64)
        assert torch.equal(grid(x), table[index][None])
    counts = torch.zeros(8)
    draws = grid.sample(40000, generator=gen())
    code = (grid.domain.labels(draws) * torch.tensor([4, 2, 1])).sum(1)
    counts = torch.bincount(code, minlength=8).double()
    expected = 40000 * torch.softmax(-table.flatten(), 0)
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert stats.chi2(7).sf(chi2) > 1e-6
    assert torch.allclose(grid.probabilities, torch.softmax(-table.flatten(), 0))


def test_grid_gradient_gives_exact_differences():
    """The interpolation is linear in each unit, so one-site energy differences by gradient are exact."""
    grid = energies.Grid(torch.randn(16, generator=gen(), dtype=F64), domains.Binary(4))
    x = grid.domain.states(dtype=F64)
    by_gradient = (2 * x - 1) * grid.score(x)
    for i in range(4):
        flipped = x.clone()
        flipped[:, i] = 1 - flipped[:, i]
        assert torch.allclose(by_gradient[:, i], grid(flipped) - grid(x))


def test_trainable_parameters_get_the_gradient_of_the_likelihood():
    data = energies.Gaussian(tensor(1.0, 0.0), torch.eye(2, dtype=F64)).sample(200, generator=gen())
    mixture = energies.GaussianMixture(*MIXTURE, trainable=True)
    mixture(data).mean().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in mixture.parameters())
    share = mixture.responsibilities(data).detach()
    by_hand = torch.softmax(mixture.logits, 0).detach() - share.mean(0)
    assert torch.allclose(mixture.logits.grad, by_hand)
    assert not list(energies.GaussianMixture(*MIXTURE).parameters())


def test_ring_is_smooth_at_its_center():
    ring = energies.Ring()
    assert torch.equal(ring.score(torch.zeros(1, 2)), torch.zeros(1, 2))
    assert torch.isfinite(ring.score(torch.zeros(1, 2), create_graph=True)).all()


@pytest.mark.parametrize(
    "bad",
    [
        lambda: energies.Banana(1),
        lambda: energies.Banana(scale=0.0),
        lambda: energies.Funnel(1),
        lambda: energies.Funnel(scale=-1.0),
        lambda: energies.Ring(radius=-1.0),
        lambda: energies.Ring(width=float("nan")),
        lambda: energies.DoubleWell(barrier=0.0),
        lambda: energies.DoubleWell(0),
        lambda: energies.StudentT(0.0),
        lambda: energies.StudentT(3.0, torch.zeros(2), torch.eye(3)),
        lambda: energies.GaussianMixture(torch.zeros(3)),
        lambda: energies.GaussianMixture(torch.zeros(3, 2), torch.ones(2, 2, 2)),
        lambda: energies.GaussianMixture(torch.zeros(3, 2), -1.0),
        lambda: energies.GaussianMixture(torch.zeros(3, 2), tensor([1.0, 0.5], [0.0, 1.0]).float()),
        lambda: energies.GaussianMixture(torch.zeros(3, 2), weights=[0.5, 0.6, 0.1]),
        lambda: energies.GaussianMixture(torch.zeros(3, 2), weights=[0.5, 0.5]),
        lambda: energies.Grid(torch.zeros(2, 3)),
        lambda: energies.Grid(torch.tensor([0.0, float("inf")])),
        lambda: energies.Grid(torch.zeros(5), domains.Binary(2)),
        lambda: energies.Grid(torch.zeros(4), domains.Real(2)),
        lambda: energies.Gaussian(torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])),
        lambda: energies.Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.2], [0.0, 1.0]])),
        lambda: energies.Gaussian(torch.zeros(2, 2), torch.eye(2)),
        lambda: energies.Ring().sample(4, generator=None),
        lambda: energies.Grid(torch.zeros(3)).sample(4, generator=3),
        lambda: rejection_sample(0, torch.zeros, torch.zeros_like, gen()),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(bad):
    with pytest.raises(GibbsianError) as caught:
        bad()
    assert len(str(caught.value)) > 25
