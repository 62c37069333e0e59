"""Steps with everything on another device, on a machine that has none: what is left on the host meets the rest in an error."""

import pytest
import torch
from elsewhere import DEVICE, elsewhere, moved
from test_capture import PRINCIPLES, step_of
from test_invariance import KERNELS as REAL_KERNELS
from test_invariance import TARGETS
from test_machines_conformance import MODELS
from test_neural_energies import CASES as NETWORKS

from gibbsian import kernels, trees


def gen():
    return torch.Generator().manual_seed(0)


def test_what_is_left_on_the_host_is_found():
    with elsewhere() as generator:
        there = torch.randn(3, generator=generator, device=generator.device)
        with pytest.raises(RuntimeError, match="device"):
            there + torch.ones(3)


def take_steps(objective, energy, batch):
    """A step on the host, then two of them there."""
    state = step_of(objective, energy, batch, objective.init(energy, batch, gen()), gen(), 0)
    energy, batch, state = moved((energy, batch, state))
    with elsewhere() as generator:
        for done in (1, 2):
            state = step_of(objective, energy, batch, state, generator, done)


@pytest.mark.parametrize("name", [name for name in PRINCIPLES if name != "plane: explicit"])  # its law stays here
def test_principles(name):
    make, objective, data = PRINCIPLES[name]
    take_steps(objective, make(), data())


def step(kernel, energy, x):
    """Two steps of chains."""
    energy, x = moved((energy, x))
    with elsewhere() as generator:
        energy = kernel.target(energy)
        state, inputs = kernel.init(energy, x), kernel.draw(energy, x, 2, generator)
        for i in range(2):
            state, _ = kernel.step(energy, state, trees.mapped(lambda part, at=i: part[at], inputs))
    assert state.x.shape == x.shape
    assert state.x.device == DEVICE


# those whose step sizes are one a chain of many, whose laws and proposals are the test's own and stay here, and whose steps the host leads
HERE = {"per chain", "independence", "user", "NUTS", "ChEES"}


@pytest.mark.parametrize("name", [name for name in REAL_KERNELS if not any(word in name for word in HERE)])
def test_kernels(name):
    step(REAL_KERNELS[name], TARGETS["two modes"](), torch.randn(8, 2, generator=gen(), dtype=torch.float64))


@pytest.mark.parametrize(
    "kernel",
    [kernels.SiteGibbs(), kernels.SiteGibbs("random"), kernels.GibbsWithGradients(), kernels.DiscreteLangevin(0.5)],
    ids=str,
)
@pytest.mark.parametrize("name", ["RBM", "softmax RBM", "machine", "lattice"])
def test_discrete_kernels(name, kernel):
    energy = MODELS[name]()
    step(kernel, energy, energy.domain.sample(6, generator=gen()))


@pytest.mark.parametrize("name", MODELS)
def test_machines(name):
    energy = MODELS[name]()
    step(kernels.Gibbs(), energy, energy.domain.sample(6, generator=gen()))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("options", [{}, {"confine": 0.3}, {"spectral_norm": True}], ids=str)
def test_networks(name, options):
    make, shape = NETWORKS[name]
    energy = moved(make(**options))
    assert energy.score(torch.zeros(3, *shape, device=DEVICE)).device == DEVICE
