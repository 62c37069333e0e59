"""Plots draw what they say; binarisation keeps means and refuses what is not grey."""

import math

import pytest
import torch
from matplotlib.figure import Figure

from gibbsian import plots
from gibbsian.data import binarise
from gibbsian.errors import ArgumentError, CapabilityError, DataError, RandomnessError, ShapeError
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


def test_binarise_keeps_means_and_extremes():
    x = torch.tensor([0.0, 0.2, 0.8, 1.0]).expand(20000, 4)
    drawn = binarise(x, how="sample", generator=gen())
    assert (drawn[:, 0] == 0).all()
    assert (drawn[:, 3] == 1).all()
    error = 4.5 * math.sqrt(0.16 / 20000)
    assert ((drawn.mean(0) - x[0]).abs() <= error).all()
    assert binarise(x[:1], how="threshold").tolist() == [[0.0, 0.0, 1.0, 1.0]]
    assert binarise(x[:1], how="threshold", threshold=0.1).tolist() == [[0.0, 1.0, 1.0, 1.0]]


@pytest.mark.parametrize(("bad", "error"), [
    (lambda: binarise(torch.ones(2), how="guess"), ArgumentError),
    (lambda: binarise(torch.full((2,), 1.5), how="threshold"), DataError),
    (lambda: binarise(torch.tensor([0.5, math.nan]), how="threshold"), DataError),
    (lambda: binarise(torch.ones(2, dtype=torch.uint8), how="threshold"), DataError),
    (lambda: binarise(torch.ones(2), how="sample"), RandomnessError),
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
