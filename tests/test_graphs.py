"""Machines over sparse graphs: equal to the dense ones, to enumeration, and in memory of their edges."""

import math

import pytest
import scipy.sparse
import torch

import gibbsian as gb
from gibbsian import kernels, models, objectives, partition
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.fast.sparse import SparseMatrix
from gibbsian.graphs import coloring, read_edges
from gibbsian.testing import check_energy, check_invariance, check_kernel
from gibbsian.training.serialize import describe, rebuild

F64 = torch.float64
EDGES = torch.tensor([[0, 1], [2, 1], [2, 3], [3, 0], [4, 0], [4, 1]])  # a square with an ear: a triangle in it


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def two_valued(spin: bool, *, trainable: bool = True):
    coupling, field = torch.randn(6, generator=gen(1)), torch.tensor([0.5, -1.0, 1.0, -0.5, 0.2])
    make = models.BoltzmannMachine.on_graph
    return make(EDGES, coupling=coupling, field=field, spin=spin, trainable=trainable).double()


def uniform_spins():
    return models.Ising.on_graph(EDGES, coupling=0.4, field=-0.2, trainable=True).double()


def potts(kind: str = "tables"):
    shape = {"tables": (6, 3, 3), "numbers": (6,), "number": ()}[kind]
    coupling, field = torch.randn(shape, generator=gen(3)), torch.randn(5, 3, generator=gen(4))
    return models.Potts.on_graph(EDGES, 3, coupling=coupling, field=field).double()


MACHINES = {
    "bits": lambda: two_valued(False),
    "spins": lambda: two_valued(True),
    "one coupling": uniform_spins,
    "tables": potts,
    "numbers": lambda: potts("numbers"),
    "number": lambda: potts("number"),
}


def dense(model):
    """The dense machine of the same law, by hand."""
    if isinstance(model, models.BoltzmannGraph):
        out = models.BoltzmannMachine(model.sites, spin=model.spin).double()
        w = torch.zeros(model.sites, model.sites, dtype=F64)
        for (i, j), value in zip(EDGES.tolist(), model.weights().detach(), strict=True):
            w[i, j] = w[j, i] = value
        out.set_parameters(weight=w, bias=model.fields().detach())
        return out
    out = models.Potts(model.sites, model.states).double()
    j = torch.zeros(model.sites, 3, model.sites, 3, dtype=F64)
    for (a, b), table in zip(EDGES.tolist(), model.tables().detach(), strict=True):
        j[a, :, b], j[b, :, a] = table, table.T
    out.set_parameters(field=model.fields().detach(), coupling=j)
    return out


# --- edges ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edges", "sites", "words"),
    [
        ([[0, 1], [1, 2], [0, 1]], None, r"edge 2 = \(0, 1\) is edge 0 = \(0, 1\) again;"),
        ([[0, 1], [1, 2], [2, 1]], None, r"edge 2 = \(2, 1\) is edge 1 = \(1, 2\) again, reversed"),
        ([[0, 1], [2, 2]], None, "edge 1 joins site 2 with itself"),
        ([[0, 1], [1, 5]], 5, r"edge 1 = \(1, 5\) is out of range: sites run from 0 to 4"),
        ([[0, -1]], None, r"\(0, -1\) is out of range"),
        ([[0.0, 1.0]], None, "whole numbers"),
        ("edges", None, "expected pairs of sites"),
    ],
)
def test_what_is_no_graph_is_refused(edges, sites, words):
    for make in (
        models.Ising.on_graph,
        models.BoltzmannMachine.on_graph,
        lambda e, **k: models.Potts.on_graph(e, 3, **k),
    ):
        with pytest.raises(ArgumentError, match=words):
            make(edges, sites=sites)


def test_wrong_shapes_are_refused():
    with pytest.raises(ShapeError, match=r"\(2, 6\), expected \(m, 2\).*edges\.T"):
        models.Ising.on_graph(EDGES.T)
    with pytest.raises(ShapeError, match=r"coupling has shape \(5,\), expected a number or \(6,\)"):
        models.Ising.on_graph(EDGES, coupling=torch.ones(5))
    with pytest.raises(ShapeError, match="field"):
        models.Potts.on_graph(EDGES, 3, field=torch.ones(5))
    with pytest.raises(ArgumentError, match="not finite"):
        models.Ising.on_graph(EDGES, coupling=math.nan)


def test_graphs_of_other_libraries():
    weights = torch.arange(1.0, 7.0)
    upper = scipy.sparse.coo_array((weights.numpy(), (*EDGES.T.numpy(),)), shape=(5, 5))
    x = models.Ising.on_graph(EDGES).domain.sample(8, generator=gen())
    want = models.Ising.on_graph(EDGES, coupling=weights)(x)
    sym = upper + upper.T
    for matrix in (sym, sym.tocsr(), scipy.sparse.triu(sym), scipy.sparse.tril(sym)):
        assert torch.allclose(models.Ising.on_graph(matrix)(x), want)
    assert torch.allclose(models.Ising.on_graph(sym, coupling=1.0)(x), models.Ising.on_graph(EDGES)(x))
    with pytest.raises(ArgumentError, match="neither symmetric nor triangular"):
        models.Ising.on_graph(upper + 2 * upper.T)
    with pytest.raises(ArgumentError, match=r"not 0 at \(0, 0\)"):
        models.Ising.on_graph(scipy.sparse.eye_array(3))
    with pytest.raises(ShapeError, match="as many rows as columns"):
        models.Ising.on_graph(scipy.sparse.coo_array((3, 4)))
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph()
    graph.add_nodes_from("abcde")
    graph.add_weighted_edges_from(("abcde"[i], "abcde"[j], float(w)) for (i, j), w in zip(EDGES, weights, strict=True))
    assert torch.allclose(models.Ising.on_graph(graph)(x), want)
    with pytest.raises(ArgumentError, match="directed"):
        models.Ising.on_graph(networkx.DiGraph(graph))


@pytest.mark.parametrize("seed", range(5))
def test_colorings_are_proper_and_small(seed):
    n = 40
    possible = torch.triu_indices(n, n, 1)
    edges = possible[:, torch.rand(possible.shape[1], generator=gen(seed)) < 0.03 * (seed + 1)]
    color = coloring(edges, n)
    assert bool((color[edges[0]] != color[edges[1]]).all())
    assert int(color.max()) <= int(torch.bincount(edges.flatten(), minlength=n).max())
    left = torch.rand(n, generator=gen(seed)) < 0.5
    halves = edges[:, left[edges[0]] != left[edges[1]]]
    assert int(coloring(halves, n).max()) <= 1  # two colors where two do


# --- the dense machine ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_sparse_machines_equal_dense_ones(name):
    model = MACHINES[name]()
    twin = dense(model)
    x = model.domain.states(dtype=F64)
    assert torch.allclose(model(x), twin(x))
    for mine, theirs in zip(model.energy_and_score(x), twin.energy_and_score(x), strict=True):
        assert torch.allclose(mine, theirs)
    assert torch.allclose(model.conditional_fields(x), twin.conditional_fields(x))
    sites = torch.arange(len(x)) % 5
    for site in (0, 4, sites):
        assert torch.allclose(model.site_logits(x, site), twin.site_logits(x, site))
    assert float(partition.bethe(model).value) == pytest.approx(float(partition.bethe(twin).value), abs=1e-6)
    assert float(partition.exact(model).value) == pytest.approx(float(partition.exact(twin).value), abs=1e-9)


@pytest.mark.parametrize("sites", [None, 2])
@pytest.mark.parametrize(
    "kind", [objectives.PseudoLikelihood, objectives.RatioMatching, objectives.MinimumProbabilityFlow]
)
@pytest.mark.parametrize("name", MACHINES)
def test_closed_objectives_equal_the_general_ones(name, kind, sites):
    model = MACHINES[name]()
    if kind is objectives.RatioMatching and isinstance(model, models.PottsGraph):
        return  # it is for two-valued units
    x = model.domain.sample(12, generator=gen(8), dtype=F64)
    general = gb.as_energy(lambda y: model(y), model.domain)
    found = []
    for energy in (model, general):
        objective = kind(sites=sites)
        loss = objective(energy, x, objective.init(energy, x, gen()), gen(9))
        found.append((loss.value.detach(), torch.autograd.grad(loss.value, list(model.parameters()))))
    assert torch.allclose(found[0][0], found[1][0])
    for mine, theirs in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)


def test_products_are_differentiable_twice_and_by_gathering():
    structure = SparseMatrix(EDGES, coloring(EDGES.T, 5))
    x, y, w = (
        torch.randn(s, generator=gen(i), dtype=F64).requires_grad_() for i, s in enumerate([(3, 5), (3, 5), (6,)])
    )
    assert torch.autograd.gradcheck(structure.product, (x, w))
    assert torch.autograd.gradgradcheck(structure.product, (x, w))
    assert torch.autograd.gradcheck(structure.pairs, (x, y))
    assert torch.autograd.gradgradcheck(structure.pairs, (x, y))
    a, b = x.detach(), y.detach()
    assert torch.allclose(structure.sampled(a, b), structure.gathered(a, b, most=6))


# --- sweeps -----------------------------------------------------------------------------------------------


def color_moves(model, groups):
    """The transition matrix over all states of resampling groups of sites in turn, each at once."""
    states = model.domain.states(dtype=F64)
    p_one = torch.sigmoid((2.0 if model.spin else 1.0) * model.conditional_fields(states).detach())
    out = torch.eye(len(states), dtype=F64)
    on = states > 0
    for sites in groups:
        rest = [i for i in range(model.sites) if i not in sites]
        same = (states[:, None, rest] == states[None, :, rest]).all(-1).double()
        p = torch.where(on[None, :, sites], p_one[:, None, sites], 1 - p_one[:, None, sites]).prod(-1)
        out = out @ (same * p)
    return states, out


@pytest.mark.parametrize("spin", [False, True])
def test_a_color_at_a_time_leaves_the_law_invariant_and_all_at_once_does_not(spin):
    model = two_valued(spin, trainable=False)
    color = coloring(EDGES.T, 5)
    groups = [(color == c).nonzero().flatten().tolist() for c in range(model.colors)]
    states, moves = color_moves(model, groups)
    law = torch.softmax(-model(states), 0)
    assert torch.allclose(law @ moves, law, atol=1e-12)
    _, at_once = color_moves(model, [list(range(5))])
    assert float((law @ at_once - law).abs().max()) > 1e-3
    # the sweep itself: transitions from every state, 8 rows of which a χ² of 31 degrees is below 76.8 but for 1e-5
    n = 6000
    for start in range(0, 32, 4):
        x = states[start].expand(n, 5).clone()
        (u,) = model.gibbs_noise(x, 1, gen(start))
        y = model.gibbs_sweep(x, (u[0],))
        counts = (y[:, None] == states).all(-1).sum(0)
        likely = moves[start] * n > 1e-9
        assert int(counts[~likely].sum()) == 0
        assert float(((counts - moves[start] * n).square() / (moves[start] * n))[likely].sum()) < 76.8


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("bits", kernels.Gibbs()), ("tables", kernels.Gibbs()), ("numbers", kernels.Gibbs()), ("tables", kernels.SiteGibbs()),
     ("numbers", kernels.SiteGibbs()), ("bits", kernels.GibbsWithGradients()), ("tables", kernels.DiscreteLangevin(0.4))],
    ids=str,
)  # fmt: skip
def test_kernels_leave_the_law_invariant(name, kernel):
    model = MACHINES[name]()
    states = model.domain.states(dtype=F64)
    p = torch.softmax(-model(states).detach(), 0)
    draws = states[torch.multinomial(p, 5000, True, generator=gen(9))]
    check_invariance(model, kernel, draws=draws, generator=gen(10))
    clamp = torch.zeros(model.domain.shape, dtype=torch.bool)
    clamp[1] = True
    check_invariance(model, kernel, draws=draws, clamp=clamp, generator=gen(11))


@pytest.mark.parametrize("name", MACHINES)
def test_they_keep_the_promises_of_energies_and_are_rebuilt_from_plain_text(name):
    model = MACHINES[name]().float()
    x = model.domain.sample(6, generator=gen(1))
    check_energy(model, x, generator=gen())
    check_kernel(kernels.Gibbs(), model, x, generator=gen())
    tensors = {}
    again = rebuild(describe(model, tensors), tensors)
    assert torch.allclose(again(x), model(x))
    assert list(again.state_dict()) == ["coupling", "field"]


@pytest.mark.parametrize("name", ["spins", "tables", "number"])
def test_log_z_by_annealing(name):
    model = MACHINES[name]()
    data = model.domain.sample(100, generator=gen(12), dtype=F64)
    found = partition.ais(model, data, chains=300, betas=150, generator=gen(13))
    assert abs(float(found.value - partition.exact(model).value)) < 4 * float(found.stderr)
    assert float(found.stderr) < 0.1


@pytest.mark.parametrize("kind", ["tables", "numbers"])
def test_gauges_of_sparse_potts_machines_keep_the_law(kind):
    model = potts(kind).requires_grad_(False)
    x = model.domain.states(dtype=F64)
    p = torch.softmax(-model(x), 0)
    zero, gas = model.zero_sum().requires_grad_(False), model.lattice_gas(1).requires_grad_(False)
    for gauged in (zero, gas):
        assert torch.allclose(torch.softmax(-gauged(x), 0), p)
    assert float(zero.coupling.sum(2).abs().max()) < 1e-6  # couplings of single precision
    assert float(zero.field.sum(1).abs().max()) < 1e-6
    assert float(gas.coupling[:, 1].abs().max()) < 1e-6
    assert float(gas.field[:, 1].abs().max()) < 1e-6


# --- training and size ------------------------------------------------------------------------------------


def test_training_in_a_run_folder(tmp_path):
    truth = two_valued(True, trainable=False)
    states = truth.domain.states(dtype=F64)
    p = torch.softmax(-truth(states), 0)
    x = states[torch.multinomial(p, 4000, True, generator=gen(14))].float()
    model = models.BoltzmannMachine.on_graph(EDGES, spin=True)
    gb.fit(
        model,
        objectives.PseudoLikelihood(),
        x,
        steps=120,
        batch_size=2000,
        lr=0.1,
        run_dir=tmp_path / "run",
        progress=False,
    )
    assert torch.allclose(model.coupling.detach().double(), truth.coupling, atol=0.25)  # several standard errors
    assert float((model.coupling.detach().double() - truth.coupling).square().mean().sqrt()) < 0.12
    again = gb.load(tmp_path / "run")
    assert torch.equal(again(x[:5]), model(x[:5]))


def ring_with_chords(n):
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n], 1)
    chords = torch.stack([torch.arange(0, n, 2), (torch.arange(0, n, 2) + 777) % n], 1)
    return torch.cat([ring, chords])


def test_a_hundred_thousand_sites_need_no_matrix():
    """A dense matrix would take 40 GB."""
    model = models.BoltzmannMachine.on_graph(ring_with_chords(100_000), coupling=0.2, field=0.1, spin=True)
    x = model.domain.sample(2, generator=gen())
    for kernel in (kernels.Gibbs(), kernels.GibbsWithGradients()):
        trace = gb.sample(model, kernel, x, steps=2, keep=False, generator=gen(), progress=False)
        assert bool(torch.isfinite(model(trace.last)).all())
    loss = objectives.PseudoLikelihood()(model, x, (), gen())
    assert set(loss.gradients) == set(model.parameters())


def test_bethe_of_a_large_graph():
    """Without a field and above the transition the Bethe value is that of independent edges, Σ log cosh w."""
    n = 4000
    edges = ring_with_chords(n)
    found = partition.bethe(models.Ising.on_graph(edges, coupling=0.2))
    assert found.diagnostics["converged"]
    assert float(found.value) == pytest.approx(n * math.log(2) + len(edges) * math.log(math.cosh(0.2)), rel=1e-7)


def test_read_edges_names_the_number_of_sites():
    with pytest.raises(ArgumentError, match="sites=4, but the graph has 5"):
        read_edges(scipy.sparse.coo_array((5, 5)), 4)
    assert read_edges([], 3).pairs.shape == (0, 2)
    lonely = models.Ising.on_graph([], field=0.5, sites=3)
    assert float(lonely(torch.ones(1, 3))) == -1.5
    assert float(partition.exact(lonely).value) == pytest.approx(3 * math.log(2 * math.cosh(0.5)), abs=1e-5)
