"""Energies of reconstruction: a linear network gives a Gaussian, a U-Net an energy that can be matched."""

import pytest
import torch
from objective_oracles import F64, gen
from torch import nn

import gibbsian as gb
from gibbsian import domains, energies, errors, nets
from gibbsian.testing import check_energy


def linear(temperature):
    net = nn.Linear(3, 3).to(F64)
    with torch.no_grad():
        net.weight.copy_(0.4 * torch.randn(3, 3, generator=gen(), dtype=F64))
        net.bias.copy_(torch.randn(3, generator=gen(1), dtype=F64))
    return energies.ReconstructionEnergy(net, domains.Real(3), temperature)


def test_of_a_linear_network_it_is_a_gaussian():
    energy = linear(0.3)
    rest = torch.eye(3, dtype=F64) - energy.net.weight.detach()  # x - U(x) = rest x - b
    mean = torch.linalg.solve(rest, energy.net.bias.detach())
    law = energies.Gaussian(mean, 0.3 * torch.linalg.inv(rest.T @ rest))
    x = torch.randn(20, 3, generator=gen(2), dtype=F64)
    torch.testing.assert_close(energy(x), law(x) - law(mean[None]))
    torch.testing.assert_close(energy.score(x), law.score(x))


def u_net(**more):
    net = nets.UNet((2, 7, 6), (4, 8), 1, center=0.3, spread=0.5, **more).to(F64)
    return energies.ReconstructionEnergy(net, domains.Real((2, 7, 6)), 0.1)


def test_a_u_net_begins_at_the_mean_of_the_data():
    energy, x = u_net(), torch.randn(4, 2, 7, 6, generator=gen(), dtype=F64)
    torch.testing.assert_close(energy.net(x), torch.full_like(x, 0.3))
    torch.testing.assert_close(energy.score(x), (0.3 - x) / 0.1)


def test_a_u_net_is_the_denoiser_of_the_score_network_inside():
    """Tweedie's formula with the variance of data and noise: x + (1 + τ²)s(x, 1)."""
    energy, x = u_net(), torch.randn(4, 2, 7, 6, generator=gen(), dtype=F64)
    nn.init.normal_(energy.net.net.last.weight, generator=gen(3))
    u, total, level = energy.net.net.scaled(x, torch.ones(4, dtype=F64))
    inner = (energy.net.net(x, torch.ones(4, dtype=F64)) * total + u) * level / 0.5
    assert inner.abs().mean() > 0.1
    torch.testing.assert_close(energy.net(x), 0.3 + 0.5 * 1.25**0.5 * inner)


def test_conformance():
    check_energy(linear(0.3), generator=gen())
    energy, x = u_net(), torch.randn(4, 2, 7, 6, generator=gen(), dtype=F64)
    nn.init.normal_(energy.net.net.last.weight, generator=gen(3))
    check_energy(energy, x, generator=gen())


def test_it_is_rebuilt_from_a_run_folder(tmp_path):
    data = torch.randn(32, 2, 7, 6, generator=gen())
    how = gb.objectives.EnergyMatching(
        temperature=0.1, tau=1.0, sigma=0.0, steps=2, pairing="sinkhorn", noise="gaussian"
    )
    run = gb.fit(u_net().float(), how, data, steps=3, batch_size=8, run_dir=tmp_path / "run", progress=False)
    torch.testing.assert_close(gb.load(tmp_path / "run").eval()(data), run.energy.eval()(data))


def test_what_is_refused():
    with pytest.raises(errors.ArgumentError, match="temperature"):
        linear(0.0)
    energy = energies.ReconstructionEnergy(nn.Linear(3, 1), domains.Real(3))
    with pytest.raises(errors.ShapeError, match="shape of x"):
        energy(torch.zeros(2, 3))
    with pytest.raises(errors.ArgumentError, match="keeps the shape"):
        energies.ReconstructionEnergy(None, domains.Real(3))
    with pytest.raises(errors.ShapeError, match="makes a tuple of"):
        energies.ReconstructionEnergy(nn.LSTM(3, 3), domains.Real(3))(torch.zeros(2, 3))
