"""Every estimator on a GPU, against the same on the CPU; skipped where there is none."""

import math

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, energies, kernels, models, partition, units

F64 = torch.float64
DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def scrambled(model, scale=0.5):
    g = torch.Generator().manual_seed(0)
    model = model.double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=g, dtype=F64))
        if isinstance(model, models.BoltzmannMachine):
            model.weight.copy_(model.coupling())
    return model


MODELS = {
    "RBM": lambda: scrambled(models.RBM(6, 4)),
    "Gaussian RBM": lambda: scrambled(models.RBM(units.Gaussian(3), 3), 0.3),
    "softmax RBM": lambda: scrambled(models.RBM(units.Softmax(3, classes=3), 3)),
    "classification RBM": lambda: scrambled(models.ClassificationRBM(6, classes=3, hidden=3)),
    "subspace RBM": lambda: scrambled(models.SubspaceRBM(7, 2, 2)),
    "machine": lambda: scrambled(models.BoltzmannMachine(6, spin=True)),
    "machine with hidden units": lambda: scrambled(models.BoltzmannMachine(4, hidden=3)),
    "lattice": lambda: models.Ising((3, 3), coupling=0.2, field=0.1).double(),
}


@pytest.mark.parametrize("name", MODELS)
def test_sums_and_annealing(name):
    model = MODELS[name]()
    truth = partition.exact(model).value
    model = model.to(DEVICE)
    assert torch.allclose(partition.exact(model).value.cpu(), truth)
    assert torch.allclose(partition.exact_log_z(model, rows=5).detach().cpu(), truth)
    data = model.domain.sample(200, generator=gen(), dtype=F64)
    low = partition.ais(model, data, chains=400, betas=50, generator=gen(1))
    assert low.value.is_cuda
    assert abs(float(low.value) - float(truth)) < 5 * float(low.stderr)
    again = partition.ais(model, chains=100, resume=low, generator=gen(2))
    assert len(again.diagnostics["log_weights"]) == 500
    high = partition.reverse_ais(model, low.diagnostics["states"][:, : data.shape[1]], forward=low, generator=gen(3))
    partition.bounds(low, high)
    resampled = partition.smc(model, data, chains=50, betas=20, generator=gen(4))
    assert abs(float(resampled.value) - float(truth)) < 6 * float(resampled.stderr)
    assert torch.isfinite(partition.raise_bound(model, data[:5], data, betas=20, generator=gen(5)).per_sample).all()
    assert math.isfinite(float(gb.log_likelihood(model, data, low).value))


@pytest.mark.parametrize("name", ["RBM", "machine", "lattice"])
def test_variational(name):
    model = MODELS[name]()
    there = MODELS[name]().to(DEVICE)
    for estimator in (partition.bethe, partition.tree_reweighted, partition.mean_field):
        assert torch.allclose(estimator(model).value, estimator(there).value.cpu(), atol=1e-6)
    truth = float(partition.exact(model).value)
    for solver in ("enumerate", "max_flow") if name == "lattice" else ("enumerate",):
        out = partition.perturb_and_map(there, 100, solver=solver, generator=gen())
        assert float(out.lower) < truth < float(out.upper)
    full = partition.perturb_and_map(there, 500, order="full", generator=gen())
    assert abs(float(full.value) - truth) < 4 * float(full.stderr)


def test_continuous_energies():
    normal = energies.Gaussian(torch.ones(2, dtype=F64), torch.diag(torch.tensor([1.0, 0.2], dtype=F64))).to(DEVICE)
    assert abs(float(partition.quadrature(normal).value - normal.log_z())) < 1e-8
    out = partition.ais(normal, normal.sample(100, generator=gen()), chains=200, betas=30, generator=gen())
    assert abs(float(out.value - normal.log_z())) < 5 * float(out.stderr)


def test_clamped_annealing():
    machine = MODELS["machine with hidden units"]().to(DEVICE)
    v = domains.Binary(4).states(dtype=F64, device=DEVICE)
    out = partition.clamped_ais(machine, v, chains=200, betas=50, generator=gen())
    assert float((out.value + machine(v).detach()).abs().max()) < 0.2


@pytest.mark.parametrize("name", ["binary", "real"])
def test_a_neural_energy_is_annealed_in_one_graph(name):
    """120 temperatures: two graphs of fifty steps and twenty eager ones; the same law as on the CPU, where it is summed."""
    discrete = name == "binary"
    domain = domains.Binary(6) if discrete else domains.Box(2, -1, 1)
    energy = scrambled(energies.MLPEnergy(domain))
    truth = partition.exact(energy) if discrete else partition.quadrature(energy)
    energy = energy.to(DEVICE)
    data = domain.sample(200, generator=gen(), dtype=F64)
    kernel = kernels.GibbsWithGradients() if discrete else None
    low = partition.ais(energy, data, chains=2000, betas=120, kernel=kernel, generator=gen(1))
    assert abs(float(low.value) - float(truth.value)) < 5 * float(low.stderr)
    high = partition.reverse_ais(energy, low.diagnostics["states"], forward=low, generator=gen(2))
    assert abs(float(high.value) - float(truth.value)) < 5 * float(high.stderr) + 0.05
