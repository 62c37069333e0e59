"""Mean field, Bethe, tree-reweighted and perturb-and-MAP against brute force on small graphs."""

import math
import sys

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, models, partition, units
from gibbsian.errors import ArgumentError, CapabilityError, DivergenceError, EstimateWarning
from gibbsian.partition.base import pairwise, tables
from gibbsian.partition.messages import propagate
from gibbsian.partition.perturb import attractive_flips, max_flow
from gibbsian.partition.tree_reweighted import all_trees, best_tree, covering_trees, dual_bound

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def machine_of(weight: torch.Tensor, bias: torch.Tensor, spin: bool = False) -> models.BoltzmannMachine:
    machine = models.BoltzmannMachine(len(bias), spin=spin).double()
    machine.set_parameters(weight=weight, bias=bias)
    return machine


def random_machine(n, seed, *, spin=False, kind="mixed", scale=1.0, density=1.0) -> models.BoltzmannMachine:
    g = gen(seed)
    w = scale * torch.randn(n, n, generator=g, dtype=F64)
    w = w * (torch.rand(n, n, generator=g) < density)
    if kind == "attractive":
        w = w.abs()
    if kind == "tree":  # every unit hangs on an earlier one
        keep = torch.zeros(n, n, dtype=F64)
        for i in range(1, n):
            keep[int(torch.randint(i, (), generator=g)), i] = 1
        w = w * keep
    w = w.triu(1)
    return machine_of(w + w.T, scale * torch.randn(n, generator=g, dtype=F64), spin)


def brute(energy: gb.Energy) -> float:
    return float(torch.logsumexp(-energy(energy.domain.states(dtype=F64)).detach(), 0))


GRAPHS = [
    (seed, spin, kind, scale)
    for seed, (spin, kind, scale) in enumerate(
        (spin, kind, scale) for spin in (False, True) for kind in ("mixed", "attractive") for scale in (0.3, 1.0, 3.0)
    )
]


# --- the common form --------------------------------------------------------------------------------


@pytest.mark.parametrize("spin", [False, True])
def test_pairwise_form_has_the_same_law(spin):
    machine = random_machine(6, 0, spin=spin)
    graph = pairwise(machine)
    bits = domains.Binary(6).states(dtype=F64)
    assert torch.allclose(graph.log_density(bits), -machine(2 * bits - 1 if spin else bits).detach())


@pytest.mark.parametrize(
    ("visible", "hidden"), [(3, 4), (units.Spin(3), units.Bernoulli(4)), (units.Spin(3), units.Spin(2))]
)
def test_rbm_is_a_bipartite_machine(visible, hidden):
    rbm = models.RBM(visible, hidden).double()
    g = gen(1)
    with torch.no_grad():
        for p in rbm.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=F64))
    graph = pairwise(rbm)
    bits = domains.Binary(graph.units).states(dtype=F64)
    assert torch.allclose(torch.logsumexp(graph.log_density(bits), 0), partition.exact(rbm).value)


@pytest.mark.parametrize("periodic", [True, False, (True, False)])
def test_lattice_is_a_sparse_machine(periodic):
    field = torch.randn(3, 4, generator=gen(), dtype=F64)
    lattice = models.Ising((3, 4), coupling=torch.tensor([0.4, -0.3]), field=field, periodic=periodic).double()
    graph = pairwise(lattice)
    bits = lattice.domain.sample(50, generator=gen(1), dtype=F64)
    assert torch.allclose(graph.log_density((bits.flatten(1) + 1) / 2), -lattice(bits), atol=1e-6)  # J in float32
    assert len(graph.weight) == int(lattice.bonds.sum())


def test_hidden_units_are_units():
    machine = models.BoltzmannMachine(3, hidden=2).double()
    w = torch.randn(5, 5, generator=gen(), dtype=F64).triu(1)
    machine.set_parameters(weight=w + w.T, bias=torch.randn(5, generator=gen(1), dtype=F64))
    bits = domains.Binary(5).states(dtype=F64)
    assert torch.allclose(
        torch.logsumexp(pairwise(machine).log_density(bits), 0), torch.tensor(brute(machine), dtype=F64)
    )


# --- mean field, Bethe, tree-reweighted -------------------------------------------------------------


@pytest.mark.parametrize(("seed", "spin", "kind", "scale"), GRAPHS)
def test_bounds_hold_on_random_graphs(seed, spin, kind, scale):
    machine = random_machine(7, seed, spin=spin, kind=kind, scale=scale, density=0.8)
    truth = brute(machine)
    low, high = partition.mean_field(machine), partition.tree_reweighted(machine)
    assert float(low.value) <= truth + 1e-9
    assert low.lower == low.value
    assert float(low.upper) == math.inf
    assert float(high.value) >= truth - 1e-9
    assert high.upper == high.value
    assert float(high.lower) == -math.inf
    assert float(high.value) <= float(high.diagnostics["start"]) + 1e-9  # better trees never loosen it
    if scale < 1 and not spin:
        assert truth - float(low.value) < 0.3
        assert float(high.value) - truth < 0.3


def test_mean_field_bounds_at_any_m():
    machine = random_machine(6, 3)
    for steps in (1, 2, 5):
        with_few = partition.mean_field(machine, steps=steps, restarts=3)
        assert float(with_few.diagnostics["restarts"].max()) <= brute(machine)
    m = partition.mean_field(machine).diagnostics["means"]
    w, b = machine.weight.detach(), machine.bias.detach()
    assert torch.allclose(m, torch.sigmoid(w @ m + b), atol=1e-8)
    by_hand = 0.5 * m @ w @ m + b @ m + (torch.special.entr(m) + torch.special.entr(1 - m)).sum()
    assert torch.allclose(partition.mean_field(machine).value, by_hand)


def test_mean_field_of_spins_is_the_tanh_form():
    machine = random_machine(5, 8, spin=True, scale=0.5)
    out = partition.mean_field(machine)
    m = 2 * out.diagnostics["means"] - 1
    w, b = machine.weight.detach(), machine.bias.detach()
    assert torch.allclose(m, torch.tanh(w @ m + b), atol=1e-8)
    p = (1 + m) / 2
    by_hand = 0.5 * m @ w @ m + b @ m + (torch.special.entr(p) + torch.special.entr(1 - p)).sum()
    assert torch.allclose(out.value, by_hand)


@pytest.mark.parametrize("spin", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_everything_message_passing_is_exact_on_trees(seed, spin):
    tree = random_machine(9, seed, kind="tree", spin=spin, scale=1.5)
    truth = brute(tree)
    assert abs(float(partition.bethe(tree).value) - truth) < 1e-7
    assert abs(float(partition.tree_reweighted(tree).value) - truth) < 1e-7


def test_forests_and_lonely_units_are_exact_too():
    w = torch.zeros(5, 5, dtype=F64)
    w[0, 1] = w[1, 0] = 1.3
    w[2, 3] = w[3, 2] = -0.7
    machine = machine_of(w, torch.randn(5, generator=gen(), dtype=F64))
    for estimate in (partition.bethe(machine), partition.tree_reweighted(machine)):
        assert abs(float(estimate.value) - brute(machine)) < 1e-8
    nothing = machine_of(torch.zeros(3, 3, dtype=F64), torch.ones(3, dtype=F64))
    for estimator in (partition.mean_field, partition.bethe, partition.tree_reweighted):
        assert abs(float(estimator(nothing).value) - 3 * math.log(1 + math.e)) < 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_bethe_is_close_and_low_for_attractive_machines(seed):
    machine = random_machine(8, seed, kind="attractive", scale=0.4)
    out = partition.bethe(machine)
    assert out.diagnostics["converged"]
    assert brute(machine) - 0.1 < float(out.value) <= brute(machine) + 1e-9


def test_bethe_keeps_the_best_of_several_fixed_points():
    w = 0.6 * (torch.ones(8, 8, dtype=F64) - torch.eye(8, dtype=F64))
    machine = machine_of(w, torch.full((8,), 0.2, dtype=F64), spin=True)  # two magnetized phases, one favored
    out = partition.bethe(machine)
    assert float(out.diagnostics["fixed_points"].max() - out.diagnostics["fixed_points"].min()) > 1
    assert abs(float(out.value) - brute(machine)) < 0.05


def test_bethe_starts_from_mean_field_too():
    """An antiferromagnet on a lattice of two colors: its order is staggered, and no uniform start finds it."""
    lattice = models.Ising((4, 4), -0.8, 0.1).double()
    out, low = partition.bethe(lattice), partition.mean_field(lattice)
    assert out.diagnostics["converged"]
    assert float(out.diagnostics["fixed_points"][:3].max()) < float(low.value) - 5  # the disordered phase
    assert float(low.value) < float(out.value) < brute(lattice)
    assert brute(lattice) - float(out.value) < math.log(2) + 0.01  # one of two equal phases, else close


@pytest.mark.filterwarnings("ignore::gibbsian.errors.EstimateWarning")
@pytest.mark.parametrize("coupling", [-0.5, -0.8, -1.5])
@pytest.mark.parametrize("shape", [(8,), (3, 4), (4, 4)])
def test_bethe_never_ends_below_mean_field(shape, coupling):
    """Independent beliefs are beliefs, so the best Bethe value is never below; on frustrated lattices too."""
    lattice = models.Ising(shape, coupling, 0.1).double()
    out, low = partition.bethe(lattice), partition.mean_field(lattice)
    assert float(out.value) >= float(low.value) - 1e-9 * (1 + abs(float(low.value)))
    assert float(out.diagnostics["mean_field"]) == float(low.value)


@pytest.mark.parametrize("seed", [5, 12, 20])
def test_where_no_fixed_point_is_found_the_mean_field_bound_is_returned(seed):
    """Strongly frustrated machines: swinging messages have beliefs that contradict each other, and values nats away."""
    machine = random_machine(8, seed, spin=True, scale=4.0, density=0.8)
    with pytest.warns(EstimateWarning, match="mean-field bound"):
        out = partition.bethe(machine, steps=300)
    assert bool(out.diagnostics["fixed_points"].isnan().all())
    assert not out.diagnostics["converged"]
    low = partition.mean_field(machine)
    assert float(out.value) == float(low.value) <= brute(machine)
    assert torch.equal(out.diagnostics["means"], low.diagnostics["means"])


def test_bethe_of_beliefs_near_zero_and_one_is_finite():
    """Marginals of an edge add up to more than 1 by rounding; their entropies must not become infinite."""
    machine = random_machine(8, 10, spin=True, scale=4.0, density=0.8)
    out = partition.bethe(machine)
    assert out.diagnostics["converged"]
    assert abs(float(out.value) - brute(machine)) < 1e-3  # one state holds nearly all


def test_damping_brings_messages_to_rest():
    """Undamped messages of an antiferromagnet swing for ever; with a share of the old ones kept they settle."""
    graph = tables(models.Ising((4, 4), -0.8, 0.1).double())
    rho, start = torch.ones_like(graph.weight[:, 0, 0]), graph.weight[:, 0].repeat(2, 1)
    runs = [propagate(graph, rho, damping=d, steps=500, tolerance=1e-9, messages=start) for d in (0.0, 0.5, 0.8)]
    assert [run.converged for run in runs] == [False, True, True]
    assert torch.allclose(runs[1].messages, runs[2].messages, atol=1e-6)


def test_bethe_reports_when_it_does_not_converge():
    with pytest.warns(EstimateWarning, match="did not converge"):
        out = partition.bethe(random_machine(10, 2, spin=True, scale=2.0), steps=5)
    assert not out.diagnostics["converged"]
    assert out.diagnostics["residual"] > 1e-10


def test_the_dual_bounds_log_z_at_any_messages():
    machine = random_machine(6, 5, spin=True, scale=1.0, density=0.7)
    graph = tables(machine)
    shares = all_trees(graph)
    labels = 1 / torch.full((6,), 6.0, dtype=F64)
    for seed in range(20):
        cavities = 3 * torch.randn(2 * len(graph.weight), 1, generator=gen(seed), dtype=F64)
        assert float(dual_bound(graph, shares, labels, cavities)) >= brute(machine)


def test_tree_reweighted_equals_its_free_energy_at_the_fixed_point():
    machine = random_machine(6, 7, scale=1.0)
    graph = tables(machine)
    out = partition.tree_reweighted(machine, trees=0, steps=3000)
    rho = out.diagnostics["edge_weights"]
    assert torch.allclose(rho, torch.full_like(rho, 2 / 6))  # complete graph
    beliefs = propagate(graph, rho, damping=0.5, steps=3000, tolerance=1e-12)
    assert beliefs.converged
    assert abs(float(beliefs.value - out.value)) < 1e-9


def test_shares_of_trees_are_those_of_a_count_over_all_spanning_trees():
    # a square with one diagonal: eight spanning trees, four of them with the diagonal
    w = torch.zeros(4, 4, dtype=F64)
    for i, j in ((0, 1), (1, 2), (2, 3), (0, 3), (0, 2)):
        w[i, j] = w[j, i] = 1.0
    graph = tables(machine_of(w, torch.zeros(4, dtype=F64)))
    shares = all_trees(graph)
    rho = shares[:5] + shares[5:]
    by_edge = dict(zip(map(tuple, graph.edges.T.tolist()), rho.tolist(), strict=True))
    assert abs(by_edge[(0, 2)] - 4 / 8) < 1e-12
    assert abs(by_edge[(0, 1)] - 5 / 8) < 1e-12
    assert abs(float(rho.sum()) - 3) < 1e-12
    source, *_ = graph.directed()
    into_parents = torch.zeros(4, dtype=F64).index_add_(0, source, shares)
    assert torch.allclose(into_parents, torch.full((4,), 3 / 4, dtype=F64))  # every unit but the root has a parent
    tree = best_tree(graph, torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=F64))
    assert abs(float(tree.sum()) - 3) < 1e-12
    assert torch.allclose(torch.zeros(4, dtype=F64).index_add_(0, source, tree), torch.full((4,), 3 / 4, dtype=F64))


def test_covering_trees_use_every_edge_and_are_rooted_uniformly():
    """Two parts and a unit alone: as many edges as trees of so many units have, a parent for all but the root."""
    edges = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (4, 5), (5, 6), (4, 6)]
    graph = tables(models.Ising.on_graph(edges, coupling=0.5, sites=8))
    shares, (source, *_) = covering_trees(graph), graph.directed()
    rho = shares[:8] + shares[8:]
    assert bool((rho > 0).all() and (rho <= 1).all())
    assert abs(float(rho.sum()) - (3 + 2)) < 1e-12
    into_parents = torch.zeros(8, dtype=F64).index_add_(0, source, shares)
    assert torch.allclose(into_parents, torch.tensor([3 / 4] * 4 + [2 / 3] * 3 + [0], dtype=F64))


def test_the_bound_of_a_large_graph_is_that_of_a_small_one(monkeypatch):
    """Begun at covering trees it is an upper bound too, and both ends of the descent are within the gap of the same optimum."""
    machine = random_machine(9, 3, spin=True, scale=0.8, density=0.4)
    truth, small = brute(machine), partition.tree_reweighted(machine, gap=1e-3, trees=60, steps=500)
    monkeypatch.setattr(sys.modules["gibbsian.partition.tree_reweighted"], "DENSE", 0)
    first = partition.tree_reweighted(machine, trees=0, steps=500)
    large = partition.tree_reweighted(machine, gap=1e-3, trees=60, steps=500)
    assert truth <= float(large.value) < float(first.value)
    assert abs(float(large.value - small.value)) < 5e-3


def test_tree_reweighted_on_graphs_beyond_dense_matrices():
    """A chain is a tree, so exact: log Z = n log 2 + (n-1) log cosh J. A periodic lattice: above Kaufman's
    log Z, and as near as a lattice whose spanning trees are all counted."""
    n = 5000
    chain = models.Ising.on_graph([(i, i + 1) for i in range(n - 1)], coupling=0.7)
    exact = n * math.log(2) + (n - 1) * math.log(math.cosh(0.7))
    assert float(partition.tree_reweighted(chain, damping=0.0, steps=n).value) == pytest.approx(exact, rel=1e-6)
    sides = {
        side: float(partition.tree_reweighted(models.Ising((side, side), 0.3)).value) / side**2 for side in (20, 60)
    }
    assert float(gb.spins.finite_log_z((60, 60), 0.3)) / 60**2 <= sides[60]
    assert sides[60] == pytest.approx(sides[20], rel=1e-3)  # all trees of the small one: by symmetry nothing is lower


def test_variational_estimators_refuse_other_models():
    for model in (models.RBM(units.Gaussian(2), 3), gb.energies.Gaussian(torch.zeros(2), torch.eye(2))):
        for estimator in (partition.mean_field, partition.bethe, partition.tree_reweighted):
            with pytest.raises(CapabilityError, match=r"partition\.(ais|exact)"):
                estimator(model)
    with pytest.raises(ArgumentError, match="damping=1"):
        partition.bethe(models.BoltzmannMachine(3), damping=1.0)
    with pytest.raises(ArgumentError, match="restarts=0"):
        partition.mean_field(models.BoltzmannMachine(3), restarts=0)
    broken = models.BoltzmannMachine(3)
    with torch.no_grad():
        broken.bias[0] = math.nan
    with pytest.raises(DivergenceError, match="not finite"):
        partition.mean_field(broken)


# --- perturb-and-MAP --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_minimum_cuts_are_the_exact_maxima(seed):
    g = gen(seed)
    n = 2 + seed % 9
    machine = random_machine(n, seed, spin=bool(seed % 2), kind="attractive", scale=10.0 ** (seed % 4 - 1), density=0.6)
    flip = torch.where(torch.rand(n, generator=g) < 0.5, -1.0, 1.0).double()
    machine.set_parameters(weight=machine.weight.detach() * flip[:, None] * flip)  # balanced, with negative weights
    graph = pairwise(machine)
    flips = attractive_flips(graph)
    fields = 3 * torch.randn(20, n, generator=g, dtype=F64)
    out = max_flow(graph, flips, fields)
    bits = domains.Binary(n).states(dtype=F64)
    table = graph.log_density(bits) + fields @ bits.T
    assert torch.allclose(out.value, table.max(1).values, atol=1e-9)


def test_minimum_cut_of_a_lattice_beyond_enumeration():
    lattice = models.Ising((20, 20), coupling=0.5, field=0.0).double()
    graph = pairwise(lattice)
    field = torch.full((1, 400), 1e-3, dtype=F64)
    out = max_flow(graph, attractive_flips(graph), field)
    assert bool((out.states == 1).all())
    assert abs(float(out.value) - 400.4) < 1e-9


def test_frustrated_machines_are_not_attractive():
    w = torch.zeros(3, 3, dtype=F64)
    w[0, 1] = w[1, 0] = w[1, 2] = w[2, 1] = 1.0
    w[0, 2] = w[2, 0] = -1.0
    assert attractive_flips(pairwise(machine_of(w, torch.zeros(3, dtype=F64)))) is None
    w[0, 1] = w[1, 0] = -1.0
    assert attractive_flips(pairwise(machine_of(w, torch.zeros(3, dtype=F64)))) is not None


@pytest.mark.parametrize("spin", [False, True])
def test_full_order_perturbation_is_unbiased_with_a_gumbel_law(spin):
    machine = random_machine(5, 4, spin=spin)
    n = 4000
    out = partition.perturb_and_map(machine, n, order="full", generator=gen())
    maxima = out.diagnostics["maxima"]
    sd = math.pi / math.sqrt(6)
    assert abs(float(maxima.mean()) - brute(machine)) < 4 * sd / math.sqrt(n)
    # the variance of a sample variance of Gumbel numbers is σ⁴ (κ - 1)/n with kurtosis κ = 5.4
    assert abs(float(maxima.var()) - math.pi**2 / 6) < 4 * sd**2 * math.sqrt(4.4 / n)
    assert abs(float(out.stderr) - sd / math.sqrt(n)) < 1e-12


@pytest.mark.parametrize("kind", ["mixed", "attractive"])
@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_low_order_perturbations_bound_from_both_sides(kind, scale):
    machine = random_machine(7, 1, kind=kind, scale=scale)
    out = partition.perturb_and_map(machine, 2000, generator=gen(2))
    truth, wide = brute(machine), out.diagnostics
    above, below = wide["maxima"], wide["scaled_maxima"]
    assert float(above.mean()) + 4 * float(above.std()) / math.sqrt(2000) > truth
    assert float(below.mean()) - 4 * float(below.std()) / math.sqrt(2000) < truth
    assert float(out.lower) <= truth <= float(out.upper)


def test_both_solvers_agree_to_the_last_perturbation():
    lattice = models.Ising((3, 4), coupling=0.5, field=0.1).double()
    runs = [partition.perturb_and_map(lattice, 50, solver=s, generator=gen(3)) for s in ("enumerate", "max_flow")]
    for name in ("maxima", "scaled_maxima"):
        assert torch.allclose(runs[0].diagnostics[name], runs[1].diagnostics[name], atol=1e-6)


def test_categorical_units_are_perturbed():
    logits = torch.randn(2, 3, 3, generator=gen(), dtype=F64)
    energy = gb.as_energy(
        lambda x: -torch.einsum("bk,kl,bl->b", x[:, 0], logits[0], x[:, 1]) - (x[:, 2] * logits[1, 0]).sum(1),
        domains.Categorical(3, classes=3),
    )
    out = partition.perturb_and_map(energy, 500, generator=gen())
    assert out.diagnostics["units"] == 3
    assert float(out.lower) < brute(energy) < float(out.upper)


def test_large_attractive_machines_are_solved_and_others_refused():
    lattice = models.Ising((6, 6), coupling=0.3).double()
    out = partition.perturb_and_map(lattice, 20, generator=gen())
    assert out.diagnostics["solver"] == "max_flow"
    assert float(out.lower) < float(out.upper)
    with pytest.raises(CapabilityError, match=r"neither small .* nor an attractive machine"):
        partition.perturb_and_map(random_machine(30, 0), generator=gen())
    with pytest.raises(CapabilityError, match="enumerated"):
        partition.perturb_and_map(lattice, order="full", generator=gen())
    with pytest.raises(ArgumentError, match="order"):
        partition.perturb_and_map(random_machine(3, 0), order="half", generator=gen())
    with pytest.raises(gb.errors.RandomnessError):
        partition.perturb_and_map(random_machine(3, 0))
