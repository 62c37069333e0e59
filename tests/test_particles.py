"""Clusters of particles: their minima, symmetries and scores, and the law of their center."""

import math

import pytest
import torch

import gibbsian as gb
from gibbsian import energies, kernels
from gibbsian.testing import check_energy

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def icosahedron():
    """Twelve corners around a center, at distance 1 from it."""
    golden = (1 + math.sqrt(5)) / 2
    signs = [(s, t * golden) for s in (-1, 1) for t in (-1, 1)]
    corners = [p for a, b in signs for p in ((0, a, b), (a, b, 0), (b, 0, a))]
    points = torch.tensor([(0.0, 0.0, 0.0), *corners], dtype=F64)
    return points / math.sqrt(1 + golden**2)


def settled(energy, x):
    x = x.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([x], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = energy(x[None]).sum()
        value.backward()
        return value

    optimizer.step(closure)
    return float(energy.internal(x[None].detach()))


@pytest.mark.parametrize(("strength", "lowest"), [(2.0, -83.09), (1.0, -38.77)])
def test_thirteen_particles_rest_in_an_icosahedron(strength, lowest):
    energy = energies.LennardJones(strength=strength).double()
    assert settled(energy, icosahedron()) == pytest.approx(lowest, abs=0.005)
    free = energies.LennardJones(strength=strength, trap=0.0).double()
    assert settled(free, icosahedron()) == pytest.approx(-44.326801 * strength, abs=1e-5)  # tabulated


def test_a_pair_rests_where_it_should():
    energy = energies.DoubleWellParticles(2, 2).double()
    for sign in (-1, 1):
        r = 4 + sign * math.sqrt(20 / 9)
        x = torch.tensor([[[0.0, 0.0], [r, 0.0]]], dtype=F64)
        assert float(energy.internal(x)) == pytest.approx(-40 / 9, abs=1e-12)
        x = energy.centered(x)
        assert float(energy.score(x).abs().max()) < 1e-12


@pytest.mark.parametrize("energy", [energies.DoubleWellParticles().double(), energies.LennardJones(5).double()])
def test_energies_conform_and_see_distances_alone(energy):
    n, dim = energy.domain.shape
    x = 2 * torch.randn(6, n, dim, generator=gen(), dtype=F64)
    check_energy(energy, x, generator=gen(1))
    spin, _ = torch.linalg.qr(torch.randn(dim, dim, generator=gen(2), dtype=F64))
    moved = (x @ spin)[:, torch.randperm(n, generator=gen(3))] + 3.0
    torch.testing.assert_close(energy.internal(moved), energy.internal(x))
    torch.testing.assert_close(energy(energy.centered(x)), energy.internal(x))
    torch.testing.assert_close(energy.distances(x)[:, 0], (x[:, 0] - x[:, 1]).norm(dim=1))


def test_the_center_is_standard_normal_and_the_virial_holds():
    """E[x·∇E] is the number of degrees of freedom, 2n - 2 inside and 2 of the center, for which √n x̄ ~ N(0, I): 400 chains
    of MALA, five standard errors of batch means."""
    energy = energies.DoubleWellParticles(3, 2).double()
    angles = torch.arange(3, dtype=F64) * 2 * math.pi / 3
    corners = 5.5 / math.sqrt(3) * torch.stack([angles.cos(), angles.sin()], 1)
    x = corners + 0.2 * torch.randn(400, 3, 2, generator=gen(), dtype=F64)
    warmed = gb.warm_up(energy, kernels.MALA(0.1), x, 200, generator=gen(1))
    draws = gb.sample(energy, warmed.kernel, warmed.trace, 400, burn_in=200, thin=4, generator=gen(2)).samples
    flat = draws.flatten(0, 1)
    center = flat.mean(1)
    for part, freedom in (((flat - center[:, None]), 4), (center[:, None].expand_as(flat), 2)):
        virial = -(part * energy.score(flat)).sum((1, 2)).reshape(draws.shape[:2]).mean(0)
        assert float(virial.mean()) == pytest.approx(freedom, abs=5 * float(virial.std()) / math.sqrt(400))
