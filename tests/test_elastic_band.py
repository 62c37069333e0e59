"""Ways of lowest energy: passes of surfaces whose saddles are known."""

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, energies, errors
from gibbsian.uses.band import _tangents, elastic_band

F64 = torch.float64


def mueller_brown(x):
    """Müller & Brown 1979: minima at -146.700, -80.768 and -108.167, saddles at -40.665 and -72.249."""
    a = x.new_tensor([-200.0, -100.0, -170.0, 15.0])
    p, q, r = (
        x.new_tensor([-1.0, -1.0, -6.5, 0.7]),
        x.new_tensor([0.0, 0.0, 11.0, 0.6]),
        x.new_tensor([-10.0, -10.0, -6.5, 0.7]),
    )
    dx, dy = x[:, :1] - x.new_tensor([1.0, 0.0, -0.5, -1.0]), x[:, 1:] - x.new_tensor([0.0, 0.5, 1.5, 1.0])
    return (a * torch.exp(p * dx * dx + q * dx * dy + r * dy * dy)).sum(1)


SURFACE = gb.as_energy(mueller_brown, domains.Real(2))
LEFT, MIDDLE, RIGHT = (
    torch.tensor(p, dtype=F64) for p in ([-0.558224, 1.441726], [-0.050011, 0.466694], [0.623499, 0.028038])
)


@pytest.mark.parametrize(
    ("start", "end", "saddle", "height"),
    [(LEFT, MIDDLE, (-0.822002, 0.624313), -40.664843), (MIDDLE, RIGHT, (0.212487, 0.292988), -72.248940),
     (LEFT, RIGHT, (-0.822002, 0.624313), -40.664843), (RIGHT, LEFT, (-0.822002, 0.624313), -40.664843)],
)  # fmt: skip
def test_passes_of_mueller_and_brown(start, end, saddle, height):
    band = elastic_band(SURFACE, start, end, images=11, steps=3000)
    assert band.converged
    assert float(band.energy[1:-1].max()) == pytest.approx(height, abs=0.01)
    torch.testing.assert_close(band.saddle, torch.tensor(saddle, dtype=F64), rtol=0, atol=2e-3)
    assert float(band.barrier) == pytest.approx(height - float(SURFACE(start[None])), abs=0.01)
    assert torch.equal(band.x[0], start)
    assert torch.equal(band.x[-1], end)
    gaps = (band.x[1:] - band.x[:-1]).norm(dim=1)
    assert float(gaps.max() / gaps.min()) < 3  # springs hold the images apart


def test_without_climbing_the_pass_is_missed_from_below():
    """Images of a coarse band straddle it, and their sideways forces vanish all the same."""
    band = elastic_band(SURFACE, LEFT, MIDDLE, images=4, climb=False, steps=3000)
    assert band.converged
    assert float(band.energy[1:-1].max()) < -40.7


@pytest.mark.parametrize(("end", "ahead", "behind"), [(1.0, 2.0, 1.0), (-1.0, 2.0, 3.0)])
def test_tops_lean_towards_the_higher_neighbor(end, ahead, behind):
    """Henkelman & Jónsson 2000, equation 10: the way to the higher neighbor has the larger of both differences of energy."""
    x, e = torch.tensor([[0.0, -1.0], [0.0, 0.0], [1.0, 0.0]]), torch.tensor([0.0, 2.0, end])
    tangent = torch.tensor([[ahead, behind]])
    torch.testing.assert_close(_tangents(x, e), tangent / tangent.norm())
    torch.testing.assert_close(_tangents(x.flip(0), e.flip(0)), -tangent / tangent.norm())


def test_a_bent_band_comes_back_to_the_pass_between_two_wells():
    well = energies.DoubleWell(3, barrier=2.5, distance=1.5).double()
    ends = torch.tensor([[-1.5, 0.0, 0.0], [1.5, 0.0, 0.0]], dtype=F64)
    band = elastic_band(well, *ends, via=torch.tensor([[0.0, 1.0, -1.0]], dtype=F64), images=8)
    assert float(band.barrier) == pytest.approx(2.5, abs=1e-3)
    torch.testing.assert_close(band.saddle, torch.zeros(3, dtype=F64), rtol=0, atol=1e-2)


def test_images_stay_inside_walls_and_keep_their_shape():
    """The straight way leads over a hill, and around it there is no room but along the walls."""
    hill = gb.as_energy(lambda x: 9 * torch.exp(-(x.flatten(1) - 0.5).square().sum(1)), domains.Box((1, 2, 1)))
    corner = torch.tensor([[[1.0], [0.0]]])
    band = elastic_band(hill, torch.zeros(1, 2, 1), torch.ones(1, 2, 1), images=5, via=0.9 * corner[None], climb=False)
    assert band.x.shape == (7, 1, 2, 1)
    assert bool(hill.domain.contains(band.x).all())
    assert float(band.energy.max()) < 9 * 2.718281828**-0.25 + 1e-3  # that at the middle of a wall


def test_no_pass_where_all_lies_below_the_ends():
    bowl = gb.as_energy(lambda x: x.square().sum(1), domains.Real(2))
    band = elastic_band(
        bowl, torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.0]), via=torch.tensor([[0.0, 1.0]]), images=5, steps=500
    )
    assert band.converged
    assert float(band.barrier) < 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"energy": gb.models.RBM(2, 2)}, errors.DomainError),
        ({"end": LEFT}, errors.ArgumentError),
        ({"start": LEFT[None]}, errors.ArgumentError),
        ({"images": 0}, errors.ArgumentError),
        ({"spring": 0.0}, errors.ArgumentError),
        ({"via": LEFT}, errors.ShapeError),
        ({"via": [[0.0, 1.0]]}, errors.ShapeError),
    ],
)
def test_what_is_refused(change, error):
    with pytest.raises(error):
        elastic_band(**({"energy": SURFACE, "start": LEFT, "end": RIGHT} | change))


def test_corners_named_twice_change_nothing():
    well, bend = gb.energies.DoubleWell(2, barrier=3.0, distance=1.0), torch.tensor([[0.0, 1.0]])
    start, end = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.0])
    plain = elastic_band(well, start, end, via=bend)
    again = elastic_band(well, start, end, via=torch.cat([start[None], bend, bend, end[None]]))
    torch.testing.assert_close(again.x, plain.x, atol=1e-3, rtol=0)


def test_a_band_that_is_still_moving_is_said():
    with pytest.warns(errors.ConvergenceWarning):
        assert not elastic_band(SURFACE, LEFT, RIGHT, steps=3).converged
