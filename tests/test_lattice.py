"""Lattices and cluster updates: packed sweeps, exact transitions, Kaufman's and Onsager's closed forms."""

import itertools

import pytest
import torch

import gibbsian as gb
from gibbsian import kernels, models, partition, spins
from gibbsian.errors import CapabilityError
from gibbsian.graphs import hooked, joined
from gibbsian.models import checkerboard
from gibbsian.testing import check_invariance, check_kernel

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- packed colors ----------------------------------------------------------------------------------------


def lattice(shape, kind, periodic=True):
    axes = len(shape)
    coupling = {
        "number": 0.4,
        "axes": torch.linspace(0.2, 0.6, axes),
        "sites": torch.randn(axes, *shape, generator=gen(1)),
    }[kind]
    field = torch.randn(shape, generator=gen(2))
    if kind == "sites":
        coupling = coupling * models.Ising(shape, periodic=periodic).bonds
    return models.Ising(shape, coupling, field, periodic=periodic).double()


@pytest.mark.parametrize("kind", ["number", "axes", "sites"])
@pytest.mark.parametrize(
    ("shape", "periodic"), [((6,), True), ((4, 6), True), ((3, 4), (False, True)), ((5, 4), False), ((4, 4, 4), True)]
)
def test_packed_sweeps_equal_plain_ones(shape, periodic, kind):
    model = lattice(shape, kind, periodic)
    assert model.packed
    x = model.domain.sample(3, generator=gen(3), dtype=F64)
    u = torch.rand(x.shape, generator=gen(4), dtype=F64)
    clamp = torch.rand(x.shape, generator=gen(5)) < 0.3
    at_sites = checkerboard.join(*u.chunk(2, -1), model.first)  # the same numbers where the plain sweep looks for them
    for held, beta in (
        (None, None),
        (clamp, None),
        (clamp[0], torch.tensor(0.5, dtype=F64)),
        (None, torch.rand(3).double()),
    ):
        packed = model.gibbs_sweep(x, (u,), held, beta)
        model.packed = False
        assert torch.equal(packed, model.gibbs_sweep(x, (at_sites,), held, beta))
        model.packed = True
        assert not torch.equal(packed, x)


def test_colors_are_split_and_joined():
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.arange(48.0, dtype=dtype).reshape(1, 4, 2, 6)
        first = checkerboard.begins((4, 2, 6))
        assert torch.equal(checkerboard.join(*checkerboard.split(x, first), first), x)
    assert not checkerboard.packs((4, 5), 2)
    assert not checkerboard.packs((3, 4), 3)


def test_a_sweep_leaves_the_law_of_a_lattice_invariant():
    model = lattice((2, 4), "sites", (False, True))
    states = model.domain.states(dtype=F64)
    p = torch.softmax(-model(states), 0)
    draws = states[torch.multinomial(p, 6000, True, generator=gen(9))]
    check_invariance(model, kernels.Gibbs(), draws=draws, generator=gen(10))


# --- clusters ---------------------------------------------------------------------------------------------

EDGES = torch.tensor([[0, 1], [2, 1], [2, 3], [3, 0], [3, 1]])


def attractive(kind: str, field: float = 0.0):
    coupling = torch.tensor([0.3, 0.8, 0.5, 0.1, 0.6])
    if kind == "potts":
        h = field * torch.randn(4, 3, generator=gen(1))
        return models.Potts.on_graph(EDGES, 3, coupling=coupling, field=h, trainable=False).double()
    h = field * torch.tensor([0.5, -1.0, 1.0, 0.2])
    return models.BoltzmannMachine.on_graph(
        EDGES, coupling=coupling, field=h, spin=kind == "spins", trainable=False
    ).double()


def law_of(model):
    states = model.domain.states(dtype=F64)
    return states, torch.softmax(-model(states), 0)


def edwards_sokal(model):
    """The transition matrix of Swendsen-Wang, by a sum over all sets of bonds."""
    states, _ = law_of(model)
    values = states.argmax(-1) if states.dim() == 3 else (states > 0).long()
    (i, j), strength, field = model.cluster_bonds()
    kinds, n = int(values.max()) + 1, values.shape[1]
    field = torch.zeros(n, kinds, dtype=F64) if field is None else field
    place = {tuple(v): k for k, v in enumerate(values.tolist())}
    out = torch.zeros(len(states), len(states), dtype=F64)
    for bound in itertools.product([0, 1], repeat=len(strength)):
        on = torch.tensor(bound).bool()
        cluster = hooked(i[on], j[on], n).tolist()
        roots = sorted(set(cluster))
        equal = values[:, i] == values[:, j]
        p = -torch.expm1(-strength)
        weight = torch.where(on, equal * p, torch.where(equal, 1 - p, 1.0)).prod(1)  # p(bonds | state)
        for new in itertools.product(range(kinds), repeat=len(roots)):
            chance = 1.0
            for root, a in zip(roots, new, strict=True):
                total = field[[k for k in range(n) if cluster[k] == root]].sum(0)
                chance *= float(torch.softmax(total, 0)[a])
            out[:, place[tuple(new[roots.index(c)] for c in cluster)]] += weight * chance
    return states, out


@pytest.mark.parametrize(("kind", "field"), [("spins", 0.0), ("bits", 1.0), ("potts", 0.0), ("potts", 1.0)])
def test_swendsen_wang_has_the_transitions_of_edwards_and_sokal(kind, field):
    model = attractive(kind, field)
    states, moves = edwards_sokal(model)
    _, law = law_of(model)
    assert torch.allclose(moves.sum(1), torch.ones(len(states), dtype=F64))
    assert torch.allclose(law @ moves, law, atol=1e-12)
    n, starts = 4000, (0, 3, len(states) // 2, len(states) - 2)
    x = states[list(starts)].repeat_interleave(n, 0)
    kernel = kernels.SwendsenWang()
    inputs = kernel.draw(model, x, 1, gen(5))
    state, _ = kernel.step(model, kernel.init(model, x), type(inputs)(*(part[0] for part in inputs)))
    flat = states.flatten(1)
    found = (state.x.flatten(1)[:, None] == flat).all(-1).reshape(4, n, -1).sum(1)
    expected = moves[list(starts)] * n
    assert int(found[expected == 0].sum()) == 0
    some = expected > 0
    chi, degrees = float(((found - expected).square() / expected)[some].sum()), int(some.sum()) - 4
    assert chi < degrees + 4.5 * (2 * degrees) ** 0.5 + 8  # one in 1e5


@pytest.mark.parametrize("kernel", [kernels.SwendsenWang(), kernels.Wolff()], ids=str)
@pytest.mark.parametrize(("kind", "field"), [("spins", 0.0), ("bits", 0.7), ("potts", 0.7)])
def test_clusters_leave_the_law_invariant(kind, field, kernel):
    model = attractive(kind, field)
    states, p = law_of(model)
    draws = states[torch.multinomial(p, 5000, True, generator=gen(9))]
    check_invariance(model, kernel, draws=draws, generator=gen(10))
    clamp = torch.zeros(model.domain.shape, dtype=torch.bool)
    clamp[1] = True
    check_invariance(model, kernel, draws=draws, clamp=clamp, generator=gen(11))


@pytest.mark.parametrize("kernel", [kernels.SwendsenWang(), kernels.Wolff()], ids=str)
def test_clusters_reach_every_state(kernel):
    """From one state, in so many steps, the law is reached: χ² of all states but for one in 1e5."""
    model = attractive("potts", 0.5)
    states, p = law_of(model)
    x = states[0].expand(6000, 4, 3)
    last = gb.sample(model, kernel, x, steps=40, burn_in=39, keep=False, generator=gen(1), progress=False).last
    found = (last.flatten(1)[:, None] == states.flatten(1)).all(-1).sum(0)
    chi = float(((found - 6000 * p).square() / (6000 * p)).sum())
    assert chi < 80 + 4.5 * 160**0.5 + 8


def test_cluster_kernels_keep_their_promises():
    model = models.Ising((4, 4), 0.3, 0.1)
    for kernel in (kernels.SwendsenWang(), kernels.Wolff()):
        check_kernel(kernel, model, model.domain.sample(6, generator=gen(1)), generator=gen())


def test_bonds_have_the_law_of_the_machine():
    open_lattice = models.Ising((2, 3), torch.tensor([0.2, 0.5]), 0.3, periodic=(False, True)).double()
    for model in (attractive("spins", 1.0), attractive("bits", 1.0), attractive("potts", 1.0), open_lattice):
        states, p = law_of(model)
        values = (
            states.argmax(-1)
            if model.domain.shape[-1] == 3 and states.dim() == 3 and states.min() == 0
            else (states.flatten(1) > 0).long()
        )
        (i, j), strength, field = model.cluster_bonds()
        log_p = (values[:, i] == values[:, j]).double() @ strength + field[torch.arange(len(field)), values].sum(1)
        assert torch.allclose(torch.softmax(log_p, 0), p)


def test_machines_without_clusters_are_refused():
    for kernel in (kernels.SwendsenWang(), kernels.Wolff()):
        with pytest.raises(CapabilityError, match=r"sites 0 and 1 is negative"):
            kernel.check(models.Ising.on_graph([[0, 1]], coupling=-1.0))
        with pytest.raises(CapabilityError, match="cluster_bonds"):
            kernel.check(models.RBM(3, 2))
        with pytest.raises(CapabilityError, match="tables"):
            kernel.check(models.Potts.on_graph([[0, 1]], 3))


@pytest.mark.parametrize("seed", range(4))
def test_components_by_hooking_are_those_of_scipy(seed):
    n, m = 200, 60 * (seed + 1)
    a, b = torch.randint(n, (2, m), generator=gen(seed))
    one, other = joined(a, b, n), hooked(a, b, n)
    assert torch.equal(one[:, None] == one, other[:, None] == other)
    assert bool((one[a] == one[b]).all())


# --- closed forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", [0.1, spins.CRITICAL, 0.44, 1.3])
@pytest.mark.parametrize("shape", [(4, 4), (3, 4), (5, 3)])
def test_kaufman_by_enumeration(shape, coupling):
    model = models.Ising(shape, coupling).double()
    coupling = float(model.coupling)  # as single precision holds it
    exact = float(partition.exact(model).value)
    assert float(spins.finite_log_z(shape, coupling)) == pytest.approx(exact, abs=1e-9)
    states = model.domain.states(dtype=F64)
    energies = model(states)
    mean = float(torch.softmax(-energies, 0) @ energies) / coupling / (shape[0] * shape[1])
    assert spins.finite_energy(shape, coupling) == pytest.approx(mean, abs=1e-9)


def test_large_lattices_tend_to_onsager():
    for coupling in (0.3, 0.5, 1.0):
        assert spins.finite_energy((256, 256), coupling) == pytest.approx(spins.infinite_energy(coupling), abs=1e-8)
    # at the critical point the energy tends as 1/n to -√2 (Ferdinand & Fisher 1969)
    gaps = [spins.finite_energy((n, n), spins.CRITICAL) + 2**0.5 for n in (32, 64, 128)]
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.01)
    assert gaps[1] / gaps[2] == pytest.approx(2, rel=0.01)
    assert spins.magnetization(0.6) == pytest.approx(0.9736, abs=1e-4)
    with pytest.raises(gb.errors.ArgumentError, match="ferromagnets"):
        spins.finite_log_z((4, 4), -0.3)


@pytest.mark.parametrize("kernel", [kernels.SwendsenWang(), kernels.Wolff()], ids=str)
def test_clusters_find_the_energy_of_a_critical_lattice(kernel):
    """A periodic 16 × 16 lattice at the critical point: Kaufman's energy, within 4.5 standard errors of independent chains."""
    shape = (16, 16)
    model = models.Ising(shape, spins.CRITICAL)
    trace = gb.sample(model, kernel, torch.ones(64, *shape), steps=70, burn_in=40, generator=gen(2), progress=False)
    e = model(trace.samples.flatten(0, 1)).reshape(30, 64).mean(0) / (spins.CRITICAL * 256)
    error = float(e.std()) / 8
    assert abs(float(e.mean()) - spins.finite_energy(shape, spins.CRITICAL)) < 4.5 * error
    assert error < 0.02  # a temperature off by a tenth moves the energy by 0.2
