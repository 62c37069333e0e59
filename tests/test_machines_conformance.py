"""Machines and their kernels under the checks that are shipped to users."""

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, kernels, models, objectives, units
from gibbsian.testing import check_energy, check_kernel, check_objective
from gibbsian.training.serialize import describe, rebuild


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def scrambled(model, scale=0.4):
    g = gen(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=g))
        if isinstance(model, models.BoltzmannMachine):
            model.weight.copy_(model.coupling())
    return model


MODELS = {
    "RBM": lambda: scrambled(models.RBM(6, 4)),
    "spin RBM": lambda: scrambled(models.RBM(units.Spin(5), units.Spin(3))),
    "Gaussian RBM": lambda: scrambled(models.RBM(units.Gaussian(3), 3), 0.2),
    "rectified RBM": lambda: scrambled(models.RBM(units.Rectified(3), 3), 0.2),
    "softmax RBM": lambda: scrambled(models.RBM(units.Softmax(3, classes=3), units.Rectified(2))),
    "joined RBM": lambda: scrambled(models.RBM(units.Joined(units.Softmax(1, classes=3), units.Bernoulli(3)), 3)),
    "tempered RBM": lambda: scrambled(models.RBM(6, 4)).annealed(torch.tensor(0.5)),
    "annealed RBM": lambda: scrambled(models.RBM(6, 4)).path(torch.ones(6)).at(0.5),
    "classification RBM": lambda: scrambled(models.ClassificationRBM(6, classes=3, hidden=3)),
    "labeled RBM": lambda: scrambled(models.ClassificationRBM(6, classes=3, hidden=3)).given(1),
    "subspace RBM": lambda: scrambled(models.SubspaceRBM(6, 2, 2)),
    "machine": lambda: scrambled(models.BoltzmannMachine(6, spin=True)),
    "machine with hidden units": lambda: scrambled(models.BoltzmannMachine(5, hidden=3)),
    "lattice": lambda: models.Ising((3, 4), coupling=0.2, field=0.1),
    "Hopfield network": lambda: scrambled(models.Hopfield(6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_energies_keep_their_promises(name):
    energy = MODELS[name]()
    x = energy.domain.sample(8, generator=gen(1))
    if isinstance(energy.domain, domains.NonNegative):
        x = x + 0.1  # away from the wall, where differences are two-sided
    check_energy(energy, x, generator=gen())


@pytest.mark.parametrize("name", MODELS)
def test_gibbs_keeps_its_promises(name):
    energy = MODELS[name]()
    check_kernel(kernels.Gibbs(), energy, energy.domain.sample(6, generator=gen(1)), generator=gen())


@pytest.mark.parametrize(
    "kernel",
    [kernels.SiteGibbs(), kernels.SiteGibbs("random"), kernels.GibbsWithGradients(), kernels.DiscreteLangevin(0.5)],
    ids=str,
)
@pytest.mark.parametrize("name", ["RBM", "softmax RBM", "machine", "lattice"])
def test_discrete_kernels_keep_their_promises(name, kernel):
    energy = MODELS[name]()
    check_kernel(kernel, energy, energy.domain.sample(6, generator=gen(1)), generator=gen())


def test_the_classification_objective_keeps_its_promises():
    batch = (torch.rand(10, 6, generator=gen()) < 0.5).float(), torch.tensor([0, 1, 2, -1, 0] * 2)
    model = MODELS["classification RBM"]()
    check_objective(objectives.ClassificationLikelihood(1.0, 0.5, 0.2), model, batch, generator=gen())


@pytest.mark.parametrize("name", [name for name in MODELS if name not in {"tempered RBM", "annealed RBM"}])
def test_machines_are_rebuilt_from_plain_text(name):
    model, tensors = MODELS[name](), {}
    again = rebuild(describe(model, tensors), tensors)
    x = model.domain.sample(5, generator=gen())
    assert torch.equal(again(x), model(x))


@pytest.mark.parametrize("visible", [6, units.Gaussian(6), units.Spin(6)], ids=str)
def test_contrastive_training_raises_the_likelihood(visible):
    """Fitting runs through the objective, and the likelihood of a small machine rises."""
    rbm = models.RBM(visible, 3)
    data = rbm.domain.sample(200, generator=gen())
    if isinstance(rbm.domain, domains.Real):
        data = data + 2
    else:
        data[:, :3] = data[:, :1]  # three units that agree
    before, after = [], []
    for store, steps in ((before, 1), (after, 300)):
        machine = models.RBM(visible, 3)
        objective = objectives.ContrastiveDivergence(kernels.Gibbs(), steps=2)
        gb.fit(machine, objective, data, steps=steps, batch_size=50, lr=0.05, seed=0)
        with torch.no_grad():
            store.append(float((-machine(data)).mean() - gb.partition.exact(machine).value))
    assert after[0] > before[0] + 0.3
