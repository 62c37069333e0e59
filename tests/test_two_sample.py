"""Two-sample metrics against plain loops, scipy and closed forms for Gaussians."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import gibbsian as gb
from gibbsian import distributed, domains, energies, metrics
from gibbsian.errors import GibbsianError
from gibbsian.metrics import two_sample

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(n, d, seed=0, dtype=F64):
    return torch.randn(n, d, generator=gen(seed), dtype=dtype)


def within(values, expected, standard_errors=5.0):
    """The mean of independent values lies within so many of its standard errors (5: false alarm 6e-7)."""
    values = torch.as_tensor(values, dtype=F64)
    return abs(float(values.mean()) - expected) < standard_errors * float(values.std()) / math.sqrt(len(values))


# --- MMD ------------------------------------------------------------------------------------------


def loops(x, y, k, unbiased):
    """The definition, pair by pair."""
    n, m = len(x), len(y)
    xx = sum(k(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j or not unbiased)
    yy = sum(k(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j or not unbiased)
    xy = sum(k(a, b) for a in x for b in y)
    pairs = (n * (n - 1), m * (m - 1)) if unbiased else (n * n, m * m)
    return xx / pairs[0] + yy / pairs[1] - 2 * xy / (n * m)


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("d", [1, 3, 7])
@pytest.mark.parametrize("bandwidth", [0.7, [0.5, 2.0]])
def test_mmd_is_its_definition(bandwidth, d, unbiased):
    x, y = normal(7, d), normal(5, d, 1) + 0.5
    widths = bandwidth if isinstance(bandwidth, list) else [bandwidth]
    k = lambda a, b: sum(math.exp(-float((a - b).square().sum()) / (2 * w * w)) for w in widths)  # noqa: E731
    value = float(metrics.mmd(x, y, bandwidth=bandwidth, unbiased=unbiased))
    assert abs(value - loops(x, y, k, unbiased)) < 1e-12


def gaussian_mmd(mean, cov_x, cov_y, h):
    """Closed form of MMD² between N(0, cov_x) and N(mean, cov_y) for exp(-‖·‖²/2h²)."""

    def expected(delta, cov):
        inner = torch.linalg.inv(cov + h * h * torch.eye(len(cov), dtype=F64))
        scale = torch.linalg.det(torch.eye(len(cov), dtype=F64) + cov / h**2)
        return float(torch.exp(-0.5 * delta @ inner @ delta) / scale.sqrt())

    zero = torch.zeros_like(mean)
    return expected(zero, 2 * cov_x) + expected(zero, 2 * cov_y) - 2 * expected(mean, cov_x + cov_y)


def test_mmd_of_gaussians_averages_to_the_closed_form():
    mean = torch.tensor([0.5, -0.3], dtype=F64)
    cov = torch.tensor([[1.5, 0.4], [0.4, 0.8]], dtype=F64)
    p, q = energies.Gaussian(torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64)), energies.Gaussian(mean, cov)
    exact = gaussian_mmd(mean, torch.eye(2, dtype=F64), cov, 1.3)
    runs = [
        float(metrics.mmd(p.sample(300, generator=gen(s)), q.sample(200, generator=gen(s + 999)), bandwidth=1.3))
        for s in range(200)
    ]
    assert within(runs, exact)
    assert not within(runs, 1.2 * exact)  # a fifth off would be seen
    same = [
        float(metrics.mmd(p.sample(300, generator=gen(s)), p.sample(200, generator=gen(s + 999)), bandwidth=1.3))
        for s in range(200)
    ]
    assert within(same, 0.0)


def test_median_bandwidth():
    x, y = normal(30, 3), normal(20, 3, 1)
    pool = torch.cat([x, y])
    median = float(torch.pdist(pool).median())
    assert abs(metrics.median_distance(pool) - median) < 1e-12
    assert torch.allclose(metrics.mmd(x, y), metrics.mmd(x, y, bandwidth=median))
    many = normal(7000, 2)
    assert abs(metrics.median_distance(many) - math.sqrt(2 * 2 * math.log(2))) < 0.1  # of ‖N(0, 2I)‖


def test_permutation_p_values_are_valid_and_have_power():
    p_values = []
    for seed in range(200):
        x, y = normal(30, 2, seed), normal(20, 2, seed + 5000)
        p_values.append(metrics.two_sample_test(x, y, permutations=39, generator=gen(seed)).p_value)
    # under one law p is uniform on {1/40, ..., 1}: Kolmogorov-Smirnov against that at 1e-6
    assert stats.kstest(np.array(p_values) - 1 / 80, "uniform").pvalue > 1e-6
    for method in ("mmd", "energy"):
        test = metrics.two_sample_test(normal(150, 2), normal(150, 2, 1) * 1.6, method=method, generator=gen())
        assert test.p_value < 0.01
        assert test.permuted.shape == (500,)
        statistic = metrics.mmd if method == "mmd" else metrics.energy_distance
        assert torch.allclose(test.value, statistic(normal(150, 2), normal(150, 2, 1) * 1.6, unbiased=True))


def test_permutations_are_those_of_the_labels():
    """A permuted value is the statistic of a relabeled pool."""
    x, y = normal(6, 2), normal(4, 2, 1) + 1
    test = metrics.two_sample_test(x, y, permutations=3, bandwidth=1.0, generator=gen(5))
    pool, g = torch.cat([x, y]), gen(5)
    for value in test.permuted:
        order = torch.randperm(10, generator=g)
        first = order < 6
        assert torch.allclose(value, metrics.mmd(pool[first], pool[~first], bandwidth=1.0))


# --- energy distance ------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(50, 50), (40, 73)])
def test_energy_distance_in_one_dimension_is_scipys_squared(n, m):
    x, y = normal(n, 1), 1.5 * normal(m, 1, 1) + 0.7
    expected = stats.energy_distance(x[:, 0].numpy(), y[:, 0].numpy()) ** 2
    assert abs(float(metrics.energy_distance(x, y)) - expected) < 1e-12


@pytest.mark.parametrize("d", [2, 6])
@pytest.mark.parametrize("unbiased", [True, False])
def test_energy_distance_is_its_definition(unbiased, d):
    x, y = normal(7, d), normal(5, d, 1) + 0.5
    k = lambda a, b: -float((a - b).norm())  # noqa: E731
    assert abs(float(metrics.energy_distance(x, y, unbiased=unbiased)) - loops(x, y, k, unbiased)) < 1e-7


def test_energy_distance_of_gaussians():
    """E|N(δ, 2)| = 2/√π · exp(-δ²/4) + δ·erf(δ/2)."""
    delta = 0.8
    folded = lambda t: 2 / math.sqrt(math.pi) * math.exp(-t * t / 4) + t * math.erf(t / 2)  # noqa: E731
    exact = 2 * folded(delta) - 2 * folded(0.0)
    runs = [
        float(metrics.energy_distance(normal(200, 1, s), normal(150, 1, s + 999) + delta, unbiased=True))
        for s in range(200)
    ]
    assert within(runs, exact)
    assert float(metrics.energy_distance(normal(50, 3), normal(50, 3))) == 0.0


# --- sliced Wasserstein ---------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(40, 40), (40, 73), (12, 5)])
def test_wasserstein_of_numbers_is_scipys(n, m):
    x, y = normal(n, 1), 1.5 * normal(m, 1, 1) + 0.7
    expected = stats.wasserstein_distance(x[:, 0].numpy(), y[:, 0].numpy())
    assert abs(float(metrics.sliced_wasserstein(x, y, p=1)) - expected) < 1e-12
    copies = math.lcm(n, m)  # as many copies of each make the sizes equal
    a, b = (torch.sort(t[:, 0].repeat_interleave(copies // len(t))).values for t in (x, y))
    for p in (1.0, 2.0, 3.0):
        by_hand = float((a - b).abs().pow(p).mean() ** (1 / p))
        assert abs(float(metrics.sliced_wasserstein(x, y, p=p)) - by_hand) < 1e-12


def test_sliced_wasserstein_of_a_shift_and_a_stretch():
    """W₂ of a projected shift is │θ·δ│, so SW₂² tends to ‖δ‖²/d; of a stretch by c it is (c-1)²·Var."""
    x = normal(300, 5)
    delta = torch.tensor([1.0, -2.0, 0.5, 0.0, 1.0], dtype=F64)
    runs = [float(metrics.sliced_wasserstein(x, x + delta, projections=200, generator=gen(s))) ** 2 for s in range(50)]
    assert within(runs, float(delta.square().sum()) / 5)
    runs = [float(metrics.sliced_wasserstein(x, 3 * x, projections=200, generator=gen(s))) ** 2 for s in range(50)]
    assert within(runs, 4 * float(x.square().sum(1).mean()) / 5)


# --- kernel Stein discrepancy ---------------------------------------------------------------------


def stein_kernel_by_autograd(x, y, score, kernel, c):
    """The definition, with all derivatives of k from autograd."""

    def k(a, b):
        q = (a - b).square().sum()
        return (1 + q / c**2) ** -0.5 if kernel == "imq" else torch.exp(-q / (2 * c * c))

    a, b = x.clone().requires_grad_(True), y.clone().requires_grad_(True)
    grad_a, grad_b = torch.autograd.grad(k(a, b), (a, b), create_graph=True)
    trace = sum(torch.autograd.grad(grad_a[i], b, retain_graph=True)[0][i] for i in range(len(a)))
    sa, sb = score(x[None])[0], score(y[None])[0]
    return float((sa @ sb * k(a, b) + sa @ grad_b + sb @ grad_a + trace).detach())


@pytest.mark.parametrize("kernel", ["imq", "rbf"])
@pytest.mark.parametrize("d", [1, 3, 6])
def test_stein_kernel_against_autograd(d, kernel):
    energy = gb.as_energy(lambda x: (x**4).sum(1) / 4 + x[:, 0], domains.Real(d))
    x = normal(5, d)
    u = [[stein_kernel_by_autograd(a, b, energy.score, kernel, 1.3) for b in x] for a in x]
    every = sum(sum(row) for row in u)
    diagonal = sum(u[i][i] for i in range(5))
    call = lambda unbiased: float(  # noqa: E731
        metrics.kernel_stein_discrepancy(x, energy, kernel=kernel, bandwidth=1.3, unbiased=unbiased)
    )
    assert abs(call(False) - every / 25) < 1e-10
    assert abs(call(True) - (every - diagonal) / 20) < 1e-10


@pytest.mark.parametrize("kernel", ["imq", "rbf"])
@pytest.mark.parametrize(
    "target", [energies.Banana(), energies.Ring(), energies.StudentT(3.0)], ids=lambda e: type(e).__name__
)
def test_stein_discrepancy_averages_to_zero_for_the_law_and_sees_others(target, kernel):
    target = target.double()
    draws = [target.sample(200, generator=gen(s)) for s in range(150)]
    call = lambda x: float(metrics.kernel_stein_discrepancy(x, target, kernel=kernel, bandwidth=1.5))  # noqa: E731
    null = [call(x) for x in draws]
    assert within(null, 0.0)
    wrong = [call(1.4 * x) for x in draws]
    assert not within(wrong, 0.0)
    assert np.mean(wrong) > np.mean(null)


def test_stein_discrepancy_of_a_shifted_gaussian_is_closed():
    """For N(0, 1) as target, x ~ N(δ, 1) and the Gaussian kernel: E u = δ² E k, E k = exp(0)/√(1 + 2/c²)."""
    energy = energies.Gaussian(torch.zeros(1, dtype=F64), torch.eye(1, dtype=F64))
    delta, c = 0.6, 1.1
    exact = delta**2 / math.sqrt(1 + 2 / c**2)
    runs = [
        float(metrics.kernel_stein_discrepancy(normal(200, 1, s) + delta, energy, kernel="rbf", bandwidth=c))
        for s in range(200)
    ]
    assert within(runs, exact)


def test_scores_may_be_given_in_three_ways():
    energy, x = energies.Banana().double(), normal(20, 2)
    values = [metrics.kernel_stein_discrepancy(x, how) for how in (energy, energy.score(x), lambda y: energy.score(y))]
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])


# --- blocks, precision, bad input -----------------------------------------------------------------


def test_blocks_change_nothing(monkeypatch):
    x, y, energy = (
        normal(60, 6),
        normal(45, 6, 1),
        energies.Gaussian(torch.zeros(6, dtype=F64), torch.eye(6, dtype=F64)),
    )

    def everything():
        return [
            metrics.mmd(x, y),
            metrics.energy_distance(x, y),
            metrics.kernel_stein_discrepancy(x, energy),
            metrics.kernel_stein_discrepancy(x, energy, unbiased=False, kernel="rbf"),
            metrics.sliced_wasserstein(x, y, generator=gen()),
            metrics.two_sample_test(x, y, permutations=5, generator=gen()).permuted.sum(),
        ]

    whole = everything()
    monkeypatch.setattr(two_sample, "_TILE", 17)
    assert len(list(two_sample.tiles(60))) == 10
    for a, b in zip(whole, everything(), strict=True):
        assert torch.allclose(a, b, atol=1e-13)


def test_a_share_whose_other_rows_nobody_has_is_refused():
    share = distributed.Share(normal(50, 2), 100)
    for call in (
        lambda: metrics.mmd(share, normal(40, 2)),
        lambda: metrics.fid(share, normal(40, 2), torch.nn.Identity()),
    ):
        with pytest.raises(GibbsianError, match="50 rows of a share of 100"):
            call()
    whole = share._replace(total=50)
    assert torch.equal(metrics.mmd(whole, normal(40, 2)), metrics.mmd(whole.rows, normal(40, 2)))


def test_images_and_single_precision():
    x, y = torch.rand(20, 1, 4, 4, generator=gen()), torch.rand(30, 1, 4, 4, generator=gen(1))
    for value in (metrics.mmd(x, y), metrics.energy_distance(x, y), metrics.sliced_wasserstein(x, y, generator=gen())):
        assert value.dtype == torch.float32
        assert value.shape == ()
    near = x.double(), y.double()  # a far center costs no digits
    assert torch.allclose(metrics.mmd(1e4 + near[0], 1e4 + near[1]), metrics.mmd(*near), atol=1e-9)


def distances(x, y):
    """Everything that compares two samples, and the values of a test."""
    test = metrics.two_sample_test(x, y, permutations=9, generator=gen())
    other = metrics.two_sample_test(x, y, method="energy", permutations=9, generator=gen())
    return [
        metrics.mmd(x, y),
        metrics.mmd(x, y, bandwidth=[1.0, 2.0], unbiased=False),
        metrics.energy_distance(x, y),
        metrics.energy_distance(x, y, unbiased=True),
        metrics.sliced_wasserstein(x, y, generator=gen()),
        test.value,
        *test.permuted,
        *other.permuted,
    ]


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64, torch.bool])
def test_whole_numbers_and_flags_are_numbers(kind):
    """The distances of {0, 1} rows do not depend on the type that holds them."""
    x, y = torch.rand(30, 5, generator=gen()) < 0.4, torch.rand(25, 5, generator=gen(1)) < 0.7
    truth = distances(x.double(), y.double())
    for left, right in ((kind, kind), (kind, F64), (F64, kind), (torch.float32, kind)):
        for value, expected in zip(distances(x.to(left), y.to(right)), truth, strict=True):
            assert value.dtype == (F64 if F64 in (left, right) else torch.float32)
            assert float(value) == pytest.approx(float(expected), rel=1e-5, abs=1e-8)
    energy = energies.Gaussian(torch.zeros(5), torch.eye(5))
    stein = [metrics.kernel_stein_discrepancy(x.to(k), lambda z: -z.to(torch.float32)) for k in (kind, torch.float32)]
    assert stein[0] == stein[1]
    assert stein[0].dtype == torch.float32
    assert float(stein[1]) == pytest.approx(float(metrics.kernel_stein_discrepancy(x.float(), energy)), rel=1e-5)
    mixing = torch.tensor([[1, 1], [0, 1]]).to(kind)
    assert float(metrics.amari_distance(mixing, torch.eye(2))) == 0.5


@pytest.mark.parametrize("scale", [1.0, 0.1, 3.7])
@pytest.mark.parametrize("d", [1, 8])
@pytest.mark.parametrize("method", ["mmd", "energy"])
def test_ties_count_as_no_smaller(method, d, scale):
    """Of two values many relabelings have the observed statistic itself. It is then a multiple of a whole number, so the
    p-value is known exactly, whatever the order in which floats are added up."""
    x, y = torch.arange(40) % 2, (torch.arange(30) % 5 > 2).long()
    pool, n, m, g = torch.cat([x, y]), 40, 30, gen(3)

    def whole(s, t):  # ones among x and among y
        within = s * (n - s) * m * (m - 1) + t * (m - t) * n * (n - 1)
        return (s * (m - t) + t * (n - s)) * (n - 1) * (m - 1) - within

    at_least = 1
    for _ in range(500):
        s = int(pool[torch.randperm(70, generator=g) < n].sum())
        at_least += whole(s, int(pool.sum()) - s) >= whole(int(x.sum()), int(y.sum()))
    rows = [scale * part.double()[:, None].expand(-1, d) for part in (x, y)]
    assert metrics.two_sample_test(*rows, method=method, generator=gen(3)).p_value == at_least / 501
    same = torch.full((7, d), scale)
    assert metrics.two_sample_test(same, same[:5], method=method, bandwidth=1.0, generator=gen()).p_value == 1.0


X = torch.zeros(4, 2)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: metrics.mmd(X, torch.zeros(4, 3)),
        lambda: metrics.mmd(X[0], X[0]),
        lambda: metrics.mmd(X[:1], X),
        lambda: metrics.mmd([1.0], X),
        lambda: metrics.mmd(X, X),  # no median
        lambda: metrics.mmd(X, X, bandwidth=0.0),
        lambda: metrics.mmd(X, X, bandwidth=[]),
        lambda: metrics.mmd(X, X * torch.nan, bandwidth=1.0),
        lambda: metrics.mmd(X.to(torch.complex64), X, bandwidth=1.0),
        lambda: metrics.energy_distance(X, X + torch.inf),
        lambda: metrics.sliced_wasserstein(X, X),
        lambda: metrics.sliced_wasserstein(X, X, p=0.5, generator=gen()),
        lambda: metrics.sliced_wasserstein(X, X, projections=0, generator=gen()),
        lambda: metrics.two_sample_test(X, X, generator=None),
        lambda: metrics.two_sample_test(X, X, permutations=0, generator=gen()),
        lambda: metrics.two_sample_test(X, X, method="ks", generator=gen()),
        lambda: metrics.kernel_stein_discrepancy(X, "gauss", bandwidth=1.0),
        lambda: metrics.kernel_stein_discrepancy(X, torch.zeros(3, 2), bandwidth=1.0),
        lambda: metrics.kernel_stein_discrepancy(X, X * torch.nan, bandwidth=1.0),
        lambda: metrics.kernel_stein_discrepancy(X, X, bandwidth=-1.0),
        lambda: metrics.kernel_stein_discrepancy(X, X, kernel="cubic", bandwidth=1.0),
        lambda: metrics.kernel_stein_discrepancy(X, X, beta=0.5, bandwidth=1.0),
        lambda: metrics.kernel_stein_discrepancy(X, gb.as_energy(lambda x: x.sum(1), domains.Box(2)), bandwidth=1.0),
        lambda: metrics.kernel_stein_discrepancy(X, energies.Banana(3), bandwidth=1.0),
    ],
)
def test_bad_input_is_refused_with_a_reason(bad):
    with pytest.raises(GibbsianError) as caught:
        bad()
    assert len(str(caught.value)) > 25
