"""Plots draw what they say; binarization keeps means and refuses what is not gray."""

import io
import itertools
import math

import pytest
import torch
from matplotlib.figure import Figure

from gibbsian import energies, metrics, partition, plots
from gibbsian.data import binarize
from gibbsian.errors import ArgumentError, CapabilityError, DataError, GibbsianError, RandomnessError, ShapeError
from gibbsian.models import RBM


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def axes():
    return Figure().subplots()


def test_tiles_hold_every_image():
    images = torch.arange(5.0)[:, None, None].expand(5, 2, 3)
    canvas = plots.tile(images, columns=3)
    assert canvas.shape == (5, 11)
    assert torch.equal(canvas[:2, :3], images[0])
    assert torch.equal(canvas[3:, 4:7], images[4])
    assert torch.isnan(canvas[2]).all()
    assert torch.isnan(canvas[3:, 8:]).all()


def test_filters_are_ordered_by_strength_and_scaled_alike():
    rbm = RBM(4, 3)
    with torch.no_grad():
        rbm.weight.copy_(torch.tensor([[1.0, 5, 0], [1, 0, 0], [0, 0, 0], [0, 0, -2]]))
    ax = plots.filters(rbm, axes())
    shown = torch.as_tensor(ax.images[0].get_array())
    assert float(shown[0, 0]) == 1.0
    assert float(shown[0, 3]) == 0.0
    assert float(shown[1, 4]) == -1.0


def test_reconstructions_activity_and_energies():
    rbm, x = RBM(16, 6), (torch.rand(8, 16, generator=gen()) < 0.5).float()
    ax = plots.reconstructions(rbm, x, axes())
    assert ax.images[0].get_array().shape == (9, 39)
    ax = plots.hidden_activity(rbm, x, axes())
    assert sum(bar.get_height() for bar in ax.patches) == 6
    ax = plots.free_energies(rbm, {"train": x, "test": 1 - x}, axes())
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["train", "test"]
    ax = plots.free_energy_gap([0, 1], [-3.0, -4.0], [-3.0, -3.5], axes())
    assert ax.lines[0].get_ydata().tolist() == [0.0, 0.5]
    assert plots.samples(x, axes(), shape=(2, 8)).images


def test_binarize_keeps_means_and_extremes():
    x = torch.tensor([0.0, 0.2, 0.8, 1.0]).expand(20000, 4)
    drawn = binarize(x, how="sample", generator=gen())
    assert (drawn[:, 0] == 0).all()
    assert (drawn[:, 3] == 1).all()
    error = 4.5 * math.sqrt(0.16 / 20000)
    assert ((drawn.mean(0) - x[0]).abs() <= error).all()
    assert binarize(x[:1], how="threshold").tolist() == [[0.0, 0.0, 1.0, 1.0]]
    assert binarize(x[:1], how="threshold", threshold=0.1).tolist() == [[0.0, 1.0, 1.0, 1.0]]


@pytest.mark.parametrize(("bad", "error"), [
    (lambda: binarize(torch.ones(2), how="guess"), ArgumentError),
    (lambda: binarize(torch.full((2,), 1.5), how="threshold"), DataError),
    (lambda: binarize(torch.tensor([0.5, math.nan]), how="threshold"), DataError),
    (lambda: binarize(torch.ones(2, dtype=torch.uint8), how="threshold"), DataError),
    (lambda: binarize(torch.ones(2), how="sample"), RandomnessError),
    (lambda: plots.filters(torch.nn.ReLU(), axes()), CapabilityError),
    (lambda: plots.hidden_activity(torch.nn.ReLU(), torch.ones(1), axes()), CapabilityError),
    (lambda: plots.reconstructions(torch.nn.ReLU(), torch.ones(1), axes()), CapabilityError),
    (lambda: plots.samples(torch.ones(2, 5), axes()), ShapeError),
    (lambda: plots.samples(torch.ones(2, 6), axes(), shape=(4, 2)), ShapeError),
    (lambda: plots.image_grid(torch.ones(2, 4), axes(), columns=0), ArgumentError),
    (lambda: plots.free_energies(RBM(2, 2), {}, axes()), ArgumentError),
    (lambda: plots.free_energy_gap([0], [1.0], [], axes()), ShapeError),
])  # fmt: skip
def test_bad_input_is_refused(bad, error):
    with pytest.raises(error) as caught:
        bad()
    assert len(str(caught.value)) > 25


# --- landscapes, chains, curves -------------------------------------------------------------------


def test_landscape_shows_the_energy_where_it_is():
    energy = energies.Gaussian(torch.tensor([1.0, -2.0]), torch.eye(2))
    ax = plots.landscape(energy, axes(), (-4, 4, -5, 3), points=81, depth=3.0)
    filled = ax.collections[0]
    assert filled.levels[0] == pytest.approx(0.0, abs=1e-3)
    assert filled.levels[-1] == pytest.approx(3.0, abs=1e-3)
    innermost = filled.get_paths()[0]
    x, y = innermost.vertices.mean(0)  # the lowest region lies around the minimum
    assert abs(x - 1) < 0.2
    assert abs(y + 2) < 0.2
    line = plots.landscape(energies.Gaussian(torch.zeros(1), torch.eye(1)), axes(), (-2, 2), points=5).lines[0]
    assert line.get_ydata().tolist() == [2.0, 0.5, 0.0, 0.5, 2.0]
    plots.landscape(energies.Funnel(3), axes(), plane=(2, 0), at=torch.zeros(3), show="density", bar=False)


def test_arrows_point_along_the_score():
    ax = plots.score_field(energies.Gaussian(torch.zeros(2), torch.eye(2)), axes(), points=5)
    arrows = ax.collections[0]
    inward = arrows.U * arrows.X + arrows.V * arrows.Y
    assert (inward[abs(arrows.X) + abs(arrows.Y) > 0] < 0).all()


def test_chains_traces_and_ranks_show_the_draws():
    draws = torch.randn(100, 4, 3, generator=gen())
    ax = plots.chains(draws, axes(), energy=energies.Gaussian(torch.zeros(2), torch.eye(2)), plane=(0, 1), count=2)
    assert len(ax.lines) == 2
    assert ax.lines[1].get_xdata().tolist() == draws[:, 1, 0].double().tolist()
    ax = plots.traces(draws, axes(), entry=2, count=3)
    assert ax.lines[2].get_ydata().tolist() == draws[:, 2, 2].double().tolist()
    ax = plots.ranks(draws, axes(), bins=10)
    heights = torch.tensor([bar.get_height() for bar in ax.patches if bar.get_facecolor()[:3] != (0.9, 0.9, 0.9)])
    assert float(heights.sum()) == 400  # every draw of every chain once
    apart = draws.clone()
    apart[:, 0] += 10
    bars = [bar for bar in plots.ranks(apart, axes(), bins=8).patches if bar.get_width() == 50][:8]
    assert [bar.get_height() > 0 for bar in bars] == [False] * 6 + [True] * 2  # the top quarter of the ranks


def test_curves_agree_with_the_metrics():
    inside, outside = torch.randn(50, generator=gen()), 1 + torch.randn(40, generator=gen(1))
    ax = plots.roc({"energy": (inside, outside)}, axes())
    area = float(metrics.auroc(inside, outside))
    assert ax.get_legend().get_texts()[0].get_text() == f"energy  {area:.3f}"
    p = torch.softmax(torch.randn(90, 3, generator=gen()), 1)
    y = torch.randint(3, (90,), generator=gen(1))
    curve = metrics.reliability_curve(p, y, 5)
    shown = plots.reliability(p, y, axes(), bins=5).lines[1].get_ydata()
    assert shown.tolist() == curve.accuracy[curve.rows > 0].tolist()
    estimate = partition.ais(RBM(6, 4), data=torch.ones(5, 6), betas=10, chains=20, generator=gen())
    ax = plots.ais_weights(estimate, axes())
    assert ax.lines[0].get_xdata()[0] == pytest.approx(float(estimate.value), abs=1e-4)
    assert sum(bar.get_height() for bar in ax.patches[:40]) == 20
    ax = plots.energy_histogram({"a": inside, "b": 5 * outside}, axes(), clip=0.05)
    assert len(ax.get_legend().get_texts()) == 2


def test_legends_find_their_place_without_a_warning_on_a_slow_machine(monkeypatch):
    """Warnings are errors here; matplotlib has one for a search that takes more than a second."""
    ticks = itertools.count(step=2)
    monkeypatch.setattr("matplotlib.legend.time.perf_counter", lambda: next(ticks))
    ax = plots.energy_histogram({"a": torch.randn(50, generator=gen())}, axes())
    ax.figure.savefig(io.BytesIO())
    assert next(ticks) > 0  # it did look


def test_colors_are_drawn_as_they_are():
    images = torch.rand(4, 3, 2, 2, generator=gen())
    shown = plots.image_grid(images, axes()).images[0].get_array()
    assert shown.shape == (5, 5, 3)
    assert torch.equal(torch.as_tensor(shown[:2, 3:]), images[1].permute(1, 2, 0))


@pytest.mark.parametrize("bad", [
    lambda: plots.landscape(RBM(2, 2), axes()),
    lambda: plots.landscape(torch.nn.Linear(2, 1), axes()),
    lambda: plots.landscape(energies.Funnel(3), axes()),
    lambda: plots.landscape(energies.Ring(), axes(), show="score"),
    lambda: plots.landscape(energies.Ring(), axes(), (3, -3)),
    lambda: plots.landscape(energies.Ring(), axes(), plane=(0, 0)),
    lambda: plots.score_field(energies.Bimodal(), axes(), (-1, 1)),
    lambda: plots.chains(torch.ones(5, 2, 1), axes()),
    lambda: plots.traces(torch.ones(5), axes()),
    lambda: plots.traces(torch.ones(5, 2, 3), axes(), entry=3),
    lambda: plots.ranks(torch.ones(5, 1, 3), axes()),
    lambda: plots.roc({}, axes()),
    lambda: plots.energy_histogram({}, axes()),
    lambda: plots.energy_histogram({"a": torch.tensor([1.0, math.inf])}, axes()),
    lambda: plots.ais_weights(partition.exact(RBM(2, 2)), axes()),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(bad):
    with pytest.raises(GibbsianError) as caught:
        bad()
    assert len(str(caught.value)) > 25
