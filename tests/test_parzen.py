"""Parzen windows against scikit-learn, scipy and quadrature; bandwidths against plain loops."""

import math

import pytest
import torch
from scipy import stats
from sklearn.neighbors import KernelDensity

import gibbsian as gb
from gibbsian.energies import ColumnSplines, MarginalParzen, Parzen, WindowProduct, parzen, windows
from gibbsian.errors import GibbsianError
from gibbsian.testing import check_energy

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(n, d, seed=0):
    return torch.randn(n, d, generator=gen(seed), dtype=F64)


@pytest.mark.parametrize("d", [1, 3, 20])
def test_density_is_that_of_scikit_learn(d, monkeypatch):
    points, x = normal(70, d), 2 * normal(40, d, 1) + 5
    theirs = KernelDensity(bandwidth=0.6).fit(points).score_samples(x)
    assert torch.allclose(-Parzen(points, 0.6)(x), torch.from_numpy(theirs), atol=1e-9)
    monkeypatch.setattr(parzen, "_BLOCK", 500)  # seven rows at a time
    assert torch.allclose(-Parzen(points, 0.6)(x), torch.from_numpy(theirs), atol=1e-9)
    h = torch.rand(d, generator=gen(2), dtype=F64) + 0.2
    by_column = [stats.gaussian_kde(points[:, j], 1.0) for j in range(d)]
    for j, kde in enumerate(by_column):
        kde.set_bandwidth(float(h[j]) / float(points[:, j].std()))
    expected = sum(torch.from_numpy(kde.logpdf(x[:, j])) for j, kde in enumerate(by_column))
    near = torch.isfinite(expected)  # their densities vanish far away, ours are summed in logarithms
    assert int(near.sum()) > 5
    assert torch.allclose(-MarginalParzen(points, h)(x)[near], expected[near], atol=1e-6)


@pytest.mark.parametrize("kind", [Parzen, MarginalParzen])
def test_windows_conform(kind):
    energy = kind(normal(6, 2), torch.tensor([0.4, 0.8], dtype=F64))
    assert check_energy(energy, chains=5000, generator=gen()) == ["rows", "score", "log_z", "sample"]


def test_bandwidth_is_the_most_likely_under_the_others():
    x = torch.cat([normal(60, 2), normal(40, 2, 1) * 0.1 + 4])
    grid = torch.tensor([0.05, 0.1, 0.2, 0.4, 0.8, 1.6], dtype=F64)

    def loo(h):
        total = 0.0
        for i in range(len(x)):
            others = torch.cat([x[:i], x[i + 1 :]])
            total -= float(Parzen(others, h)(x[i : i + 1]))
        return total

    best = max(grid.tolist(), key=loo)
    assert Parzen.fit(x, grid).bandwidth.tolist() == [best, best]
    assert 0.05 < best < 1.6
    alone = [
        float(Parzen.fit(c[:, None], s * grid).bandwidth) for c, s in zip(x.T, x.std(0, correction=0), strict=True)
    ]
    assert MarginalParzen.fit(x, grid).bandwidth.tolist() == pytest.approx(alone)


@pytest.mark.parametrize("kind", [Parzen, MarginalParzen])
def test_weights_are_repetitions_and_left_out_points_are_left_out(kind):
    x, times = normal(40, 3), torch.randint(0, 4, (40,), generator=gen(1))
    seen = times > 0
    repeated, weighted = kind.fit(x.repeat_interleave(times, 0)), kind.fit(x[seen], weight=times[seen].to(F64))
    assert torch.allclose(repeated.bandwidth, weighted.bandwidth, rtol=1e-12)
    new = normal(20, 3, 2)
    assert torch.allclose(repeated(new), weighted(new), atol=1e-9)
    assert torch.allclose(repeated.score(new), weighted.score(new), atol=1e-9)
    drawn = weighted.sample(20000, generator=gen(3))  # means within 4 standard errors
    error = 4 * drawn.std(0) / math.sqrt(20000)
    assert ((drawn.mean(0) - (times.to(F64) @ x) / times.sum()).abs() < error).all()
    index = torch.tensor([0, 7, 13])
    once = kind(x, 0.5)
    for i, found in zip(index.tolist(), once.left_out(index), strict=True):
        others = kind(torch.cat([x[:i], x[i + 1 :]]), 0.5)
        assert float(found) == pytest.approx(float(others(x[i : i + 1])), abs=1e-9)
    twice = kind(x, 0.5, 2 * torch.ones(40, dtype=F64)).left_out(index[:1])  # its twin stays
    others = kind(torch.cat([x, x[1:], x[:1]])[: 2 * 40 - 1], 0.5)
    assert float(twice) == pytest.approx(float(others(x[:1])), abs=1e-9)


def test_a_table_of_columns_is_the_law_of_the_columns():
    x = torch.cat([normal(150, 3), 4 + 0.1 * normal(50, 3, 1)])
    exact = MarginalParzen.fit(x)
    table = exact.tabulated()
    near, far = 2 * normal(300, 3, 2), 30 * normal(100, 3, 3)
    log_p = -exact.columns(near)
    error = (log_p + table.columns(near)).abs()
    assert torch.quantile(error, 0.9) < 0.001
    assert (error < 0.02 + 0.15 * log_p.abs()).all()
    assert (log_p < -20).any()  # some lie in the gap
    assert ((exact(far) - table(far)).abs() < 0.05 * exact(far).abs()).all()
    usual = (log_p > -4).all(1)
    assert (exact.score(near) - table.score(near))[usual].abs().max() < 0.2
    assert check_energy(table, chains=100, generator=gen()) == ["rows", "score"]
    narrow = MarginalParzen(x, 1e-4)
    assert narrow.tabulated() is narrow


def test_degenerate_data_keep_finite_energies():
    x = torch.zeros(30, 2)
    x[:, 1] = torch.randint(3, (30,), generator=gen()).float()
    far = torch.tensor([[1e6, 0.0]])
    for kind in (Parzen, MarginalParzen):
        energy = kind.fit(x)
        assert torch.isfinite(energy(torch.cat([x, far]))).all()
        assert torch.isfinite(kind.fit(x[:1])(far)).all()
        assert math.isfinite(float(energy.score(far).norm()))


@pytest.mark.parametrize("bad", [
    lambda: Parzen(torch.zeros(3), 1.0),
    lambda: Parzen(torch.zeros(3, 2).long(), 1.0),
    lambda: Parzen(torch.zeros(0, 2), 1.0),
    lambda: Parzen(torch.zeros(3, 2), 0.0),
    lambda: MarginalParzen(torch.zeros(3, 2), torch.ones(3)),
    lambda: Parzen(torch.zeros(3, 2), 1.0).sample(3, generator=None),
    lambda: Parzen(torch.zeros(3, 2), 1.0, torch.ones(2)),
    lambda: Parzen(torch.zeros(3, 2), 1.0, torch.zeros(3)),
    lambda: ColumnSplines(torch.zeros(2), torch.zeros(2), torch.zeros(3, 2), torch.zeros(3, 2), torch.ones(2)),
    lambda: ColumnSplines(torch.zeros(2), torch.ones(2), torch.zeros(3, 2), torch.zeros(2, 2), torch.ones(2)),
])  # fmt: skip
def test_bad_input_is_refused(bad):
    with pytest.raises(GibbsianError) as caught:
        bad()
    assert len(str(caught.value)) > 25


def product(x, **options):
    energy = WindowProduct(x.shape[1], **options).to(x.dtype)
    energy.stand_on(x, gen(5))
    return energy


def test_a_product_of_windows_is_that_of_joint_and_columns(monkeypatch):
    x, new = normal(40, 3), 2 * normal(12, 3, 1)
    energy = product(x, windows=50, column_windows=15, marginal_weight=0.7)
    points, widths = energy.points[:40], energy.log_widths.detach().exp()
    assert energy.standing() == 40
    assert energy.log_width.exp().item() == pytest.approx(float(Parzen.fit(points).bandwidth[0]))
    assert widths.tolist() == pytest.approx(MarginalParzen.fit(points[:15]).bandwidth.tolist())
    h = energy.log_width.detach().exp()
    expected = Parzen(points, h)(new) + 0.7 * MarginalParzen(points[:15], widths)(new)
    torch.testing.assert_close(energy(new).detach(), expected, rtol=0, atol=1e-9)
    monkeypatch.setattr(windows, "_BLOCK", 300)  # three rows at a time
    torch.testing.assert_close(energy(new).detach(), expected, rtol=0, atol=1e-9)
    left = energy.left_out(torch.tensor([3, 20])).detach()  # the second has no window on its columns
    for i, found in zip((3, 20), left, strict=True):
        rows, few = (torch.cat([some[:i], some[i + 1 :]]) for some in (points, points[:15]))
        one = points[i : i + 1]
        assert float(found) == pytest.approx(float(Parzen(rows, h)(one) + 0.7 * MarginalParzen(few, widths)(one)))
    assert check_energy(energy, chains=5000, generator=gen()) == ["rows", "score"]


def test_leaving_rows_out_learns_the_widths_of_windows():
    x = torch.cat([normal(60, 2), normal(40, 2, 1) * 0.1 + 4])
    energy = WindowProduct(2, windows=100).double()
    gb.fit(energy, gb.objectives.LeaveOneOut(rows=100), x, steps=150, lr=0.05, schedule="cosine", progress=False)
    grid = torch.linspace(0.05, 0.5, 91, dtype=F64)
    best = float(Parzen.fit(energy.points, grid).bandwidth[0])  # all rows judge: 100 are fewer than it takes a part of
    assert energy.log_width.exp().item() == pytest.approx(best, abs=0.006)  # a step of the grid
    with pytest.raises(GibbsianError, match="stand_on"):
        gb.fit(gb.energies.MLPEnergy(2).double(), gb.objectives.LeaveOneOut(), x, steps=1)
    with pytest.raises(GibbsianError, match="no rows yet"):
        WindowProduct(2)(x.float())
