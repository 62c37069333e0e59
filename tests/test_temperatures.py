"""Two laws at an inverse temperature, never mixed up: βE of what is observed, and βE of everything, hidden units too."""

import pytest
import torch

import gibbsian as gb
from gibbsian import energies, kernels, models, partition, units
from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.models.dbm.doubled import DoubledRBM
from gibbsian.testing import check_invariance

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def scramble(model, seed=0, scale=1.0):
    g = gen(seed)
    model = model.double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=g, dtype=F64))
        if isinstance(model, models.BoltzmannMachine):
            model.weight.copy_(model.coupling())
    return model


def by_hand(model, x, h, beta):
    """-log Σ_h exp(-βE(x, h))."""
    joint = torch.stack([model.joint(x, row.expand(len(x), *row.shape)) for row in h], 1).detach()
    return -torch.logsumexp(-beta * joint, 1)


MACHINES = {
    "RBM": lambda: scramble(models.RBM(4, 3)),
    "spin RBM": lambda: scramble(models.RBM(units.Spin(4), units.Softmax(2, classes=3))),
    "Boltzmann machine with hidden units": lambda: scramble(models.BoltzmannMachine(4, hidden=3)),
    "classification RBM": lambda: scramble(models.ClassificationRBM(4, classes=3, hidden=3)),
    "subspace RBM": lambda: scramble(models.SubspaceRBM(4, 2, 2)),
    "gated RBM": lambda: scramble(models.GatedRBM(3, 4, 3, factors=4)).given(torch.ones(3, dtype=F64)),
    "layers of a DBM": lambda: scramble(models.DBM(3, 3, 2)).marginal(0),
}


@pytest.mark.parametrize("name", MACHINES)
def test_tempered_is_division_by_a_temperature_and_annealed_is_not(name):
    machine = MACHINES[name]()
    x = machine.domain.states(dtype=F64)
    half, rows = machine(x).detach() / 2, torch.linspace(0.2, 2, len(x), dtype=F64)
    for cooled in (machine.tempered(0.5), machine.tempered(torch.tensor(0.5)), machine / 2, 0.5 * machine):
        torch.testing.assert_close(cooled(x).detach(), half)
    torch.testing.assert_close(machine.tempered(rows)(x).detach(), rows * machine(x).detach())
    law, other = torch.softmax(-half, 0), torch.softmax(-machine.annealed(0.5)(x).detach(), 0)
    assert float((law - other).abs().sum()) > 0.05
    torch.testing.assert_close(machine.annealed(1.0)(x), machine(x))


@pytest.mark.parametrize("name", ["RBM", "spin RBM", "Boltzmann machine with hidden units", "gated RBM"])
def test_annealed_machines_scale_their_joint_energy(name):
    machine = MACHINES[name]()
    domain = machine.hidden_domain if isinstance(machine, models.BoltzmannMachine) else machine.hidden.domain
    x, h = machine.domain.states(dtype=F64), domain.states(dtype=F64)
    for beta in (0.3, 1.0, 1.8):
        torch.testing.assert_close(machine.annealed(beta)(x).detach(), by_hand(machine, x, h, beta))


@pytest.mark.parametrize("name", MACHINES)
def test_sweeps_of_annealed_machines_keep_their_law_and_no_other(name):
    """Exact draws stay exact under sweeps at β; those of the tempered law, whose conditionals these are not, move."""
    machine = MACHINES[name]()
    states, annealed = machine.domain.states(dtype=F64), machine.annealed(0.4)

    def drawn(energy):
        p = torch.softmax(-energy(states).detach(), 0)
        return states[torch.multinomial(p, 60000, replacement=True, generator=gen(1))]

    check_invariance(annealed, kernels.Gibbs(), draws=drawn(annealed), generator=gen(2))
    with pytest.raises(AssertionError):
        check_invariance(annealed, kernels.Gibbs(), draws=drawn(machine.tempered(0.4)), generator=gen(2))


def test_plain_energies_have_one_law_at_a_temperature():
    x = torch.randn(5, 2, generator=gen(), dtype=F64)
    for energy in (energies.Banana().double(), energies.Gaussian(torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64))):
        torch.testing.assert_close(energy.annealed(0.3)(x), energy.tempered(0.3)(x))
    lattice = models.Ising((3, 3), 0.4, 0.1).double()
    x = lattice.domain.sample(7, generator=gen(), dtype=F64)
    torch.testing.assert_close(lattice.annealed(0.3)(x), lattice.tempered(0.3)(x))


def test_refusals():
    with pytest.raises(ArgumentError, match="one per row"):
        models.RBM(3, 2).annealed(torch.ones(2, 2))
    for law in (DoubledRBM(3, 2).annealed, DoubledRBM(3, 2).tempered):
        with pytest.raises(CapabilityError, match="no law of its own"):
            law(0.5)


# --- log p(x) of rows ---------------------------------------------------------------------------------


def test_log_prob_takes_any_log_z():
    rbm = scramble(models.RBM(5, 3))
    x = rbm.domain.states(dtype=F64)
    exact = partition.exact(rbm)
    for log_z in (exact, exact.value, float(exact.value)):
        log_p = rbm.log_prob(x, log_z)
        assert float(log_p.detach().exp().sum()) == pytest.approx(1.0)
    rbm.log_prob(x, exact).sum().backward()
    assert rbm.weight.grad is not None
    normal = energies.Gaussian(torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64), trainable=True)
    truth = torch.distributions.MultivariateNormal(normal.mean.detach(), torch.eye(2, dtype=F64)).log_prob(x[:, :2])
    torch.testing.assert_close(normal.log_prob(x[:, :2]).detach(), truth)
    with pytest.raises(CapabilityError, match="needs log Z"):
        rbm.log_prob(x)


def test_a_log_z_of_earlier_parameters_is_refused():
    rbm = scramble(models.RBM(5, 3))
    x = rbm.domain.states(dtype=F64)
    estimates = [
        partition.exact(rbm),
        partition.ais(rbm, x, chains=4, betas=5, generator=gen()),
        partition.mean_field(rbm),
        partition.tree_reweighted(rbm),
        partition.perturb_and_map(rbm, samples=5, generator=gen()),
    ]
    copy = models.RBM(5, 3).double()
    copy.load_state_dict(rbm.state_dict())
    for z in estimates:
        gb.log_likelihood(rbm, x, z)
    with torch.no_grad():
        rbm.weight.add_(1.0)
    for z in estimates:
        with pytest.raises(ArgumentError, match="earlier parameters"):
            gb.log_likelihood(rbm, x, z)
        with pytest.raises(ArgumentError, match="earlier parameters"):
            rbm.log_prob(x, z)
        gb.log_likelihood(copy, x, z)  # a copy: the same parameters
    dbm = scramble(models.DBM(4, 3, 2))
    z = partition.exact(dbm.marginal(1))  # the machine's own parameters, seen through its odd layers
    x = dbm.domain.states(dtype=F64)
    assert float(gb.log_likelihood(dbm, x, z).per_sample.exp().sum()) == pytest.approx(1.0)
    with torch.no_grad():
        dbm.biases[0].add_(1.0)
    with pytest.raises(ArgumentError, match="earlier parameters"):
        gb.log_likelihood(dbm, x, z)


def test_a_log_z_of_another_model_is_refused_and_so_are_probabilities_above_one():
    rbm, other = scramble(models.RBM(5, 3)), scramble(models.RBM(5, 3), seed=7)
    x = rbm.domain.states(dtype=F64)
    with pytest.raises(ArgumentError, match="another model"):
        gb.log_likelihood(rbm, x, partition.exact(other))
    with pytest.raises(ArgumentError, match="another model"):
        rbm.log_prob(x, partition.exact(other))
    found = partition.exact(rbm)
    gb.log_likelihood(rbm.float(), x.float(), found)  # precision is not another model
    rbm = rbm.double()
    true = float(partition.exact(rbm).value)
    with pytest.raises(ArgumentError, match="above 0 on a discrete domain"):
        gb.log_likelihood(rbm, x, true - 25.0)
    assert float(gb.log_likelihood(rbm, x, true).value) < 0
    narrow = energies.Gaussian(torch.zeros(1, dtype=F64), 1e-4 * torch.eye(1, dtype=F64))
    assert float(gb.log_likelihood(narrow, torch.zeros(2, 1, dtype=F64)).value) > 0  # a density may be above 1
