"""Toy laws have the moments and supports they say."""

import math

import pytest
import torch

from gibbsian import data
from gibbsian.errors import ArgumentError, RandomnessError


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


# --- toys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", data.TOYS)
def test_toys_are_reproducible_points_in_the_plane(name):
    before = torch.get_rng_state()
    x = data.toy(name, 500, generator=gen(), dtype=torch.float64)
    assert x.shape == (500, 2)
    assert x.dtype == torch.float64
    assert torch.isfinite(x).all()
    assert 1 < float(x.std()) < 3
    assert torch.equal(x, data.toy(name.replace("_", "-"), 500, generator=gen(), dtype=torch.float64))
    assert not torch.equal(x, data.toy(name, 500, generator=gen(1), dtype=torch.float64))
    assert torch.equal(before, torch.get_rng_state())


def test_toys_follow_their_laws():
    n = 20000
    board = data.toy("checkerboard", n, generator=gen())
    squares = ((board + 4) / 2).floor().long()
    assert ((squares.sum(1) % 2) == 0).all()  # black squares only, each as likely as the other
    used = torch.bincount(squares[:, 0] * 4 + squares[:, 1], minlength=16).float() / n
    assert (used > 0).sum() == 8
    assert ((used[used > 0] - 1 / 8).abs() < 4.5 * math.sqrt(1 / 8 * 7 / 8 / n)).all()

    eight = data.toy("eight_gaussians", n, generator=gen(), dtype=torch.float64)
    # Var x = 2.5² E cos² + 0.2²; the fourth moment of a point at radius 2.5 bounds the error
    assert abs(float(eight[:, 0].var()) - (2.5**2 / 2 + 0.04)) < 4.5 * 2.5**2 / 2 / math.sqrt(n)
    assert float(eight.mean(0).abs().max()) < 4.5 * 1.8 / math.sqrt(n)

    rings = data.toy("rings", n, generator=gen()).norm(dim=1)
    nearest = (rings / 0.75).round().clamp(1, 4)
    assert ((torch.bincount(nearest.long(), minlength=5)[1:] / n - 0.25).abs() < 4.5 * math.sqrt(3 / 16 / n)).all()
    assert float((rings - 0.75 * nearest).abs().max()) < 6 * 0.08

    cross = data.toy("cross", n, generator=gen())
    along = cross[:, 0].abs() > 1.5  # of the lying bar half is there, of the standing one nothing
    assert abs(float(along.float().mean()) - 0.35) < 4.5 * math.sqrt(0.35 * 0.65 / n)


@pytest.mark.parametrize(("bad", "error", "says"), [
    (lambda: data.toy("mons", 5, generator=gen()), ArgumentError, "did you mean 'moons'"),
    (lambda: data.toy("moons", 0, generator=gen()), ArgumentError, "from 1 on"),
    (lambda: data.toy("moons", 5, generator=None), RandomnessError, "generator"),
])  # fmt: skip
def test_bad_toys_are_refused(bad, error, says):
    with pytest.raises(error, match=says):
        bad()
