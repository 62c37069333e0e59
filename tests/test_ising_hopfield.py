"""Ising lattices against enumeration and Kaufman's solution; Hopfield networks against what is known of them."""

import math

import pytest
import torch

import gibbsian as gb
from gibbsian import kernels
from gibbsian.errors import ArgumentError, DomainError, PrecisionError, ShapeError
from gibbsian.models import Hopfield, Ising

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def bonds(shape, periodic):
    """All neighboring pairs of flat sites, by hand."""
    pairs = []
    sites = torch.arange(math.prod(shape)).reshape(shape)
    for axis, length in enumerate(shape):
        for i in range(length if periodic[axis] else length - 1):
            a, b = sites.select(axis, i).flatten(), sites.select(axis, (i + 1) % length).flatten()
            pairs += list(zip(a.tolist(), b.tolist(), strict=True))
    return pairs


CASES = [
    ((6,), (True,)), ((5,), (True,)), ((6,), (False,)), ((3, 4), (True, True)), ((3, 3), (True, True)),
    ((2, 5), (False, True)), ((2, 3, 2), (False, True, False)), ((1, 4), (False, False)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "periodic"), CASES, ids=str)
def test_lattice_energies_and_conditionals(shape, periodic):
    g = gen()
    full = Ising(shape, periodic=periodic).bonds.double()
    coupling = torch.randn(len(shape), *shape, generator=g, dtype=F64) * full
    field = torch.randn(shape, generator=g, dtype=F64)
    lattice = Ising(shape, coupling, field, periodic=periodic).double()
    lattice.coupling.copy_(coupling)
    lattice.field.copy_(field)
    x = lattice.domain.states(dtype=F64)[:: max(1, 2 ** (math.prod(shape) - 8))]
    energy = -(x * field).flatten(1).sum(1)
    flat, sites = x.flatten(1), torch.arange(math.prod(shape)).reshape(shape)
    for axis in range(len(shape)):
        ahead = sites.roll(-1, axis)
        for i, j, strength in zip(sites.flatten(), ahead.flatten(), coupling[axis].flatten(), strict=True):
            energy = energy - strength * flat[:, i] * flat[:, j]
    torch.testing.assert_close(lattice(x), energy)
    machine = lattice.to_boltzmann()
    torch.testing.assert_close(machine(flat).detach(), energy)
    for site in (0, math.prod(shape) - 1):
        torch.testing.assert_close(lattice.site_logits(x, site), machine.site_logits(flat, site).detach())
        each = torch.full((len(x),), site)
        torch.testing.assert_close(lattice.site_logits(x, each), lattice.site_logits(x, site))
    for a, b in bonds(shape, periodic):
        assert lattice.color.flatten()[a] != lattice.color.flatten()[b]
    assert lattice.colors == (3 if any(p and n % 2 for n, p in zip(shape, periodic, strict=True)) else 2)


def test_uniform_and_axis_couplings():
    x = 2.0 * torch.randint(2, (5, 3, 4), generator=gen()).double() - 1
    pairs = bonds((3, 4), (True, True))
    flat = x.flatten(1)
    down = sum(flat[:, a] * flat[:, b] for a, b in pairs[:12])
    along = sum(flat[:, a] * flat[:, b] for a, b in pairs[12:])
    uniform = -0.7 * (down + along) - 0.2 * flat.sum(1)
    torch.testing.assert_close(Ising((3, 4), 0.7, 0.2).double()(x), uniform, atol=1e-6, rtol=0)
    two = Ising((3, 4), torch.tensor([0.5, -2.0])).double()
    torch.testing.assert_close(two(x), -0.5 * down + 2 * along)


@pytest.mark.parametrize("beta", [None, 0.5])
@pytest.mark.parametrize(("shape", "periodic"), [CASES[1], CASES[3], CASES[5]], ids=str)
def test_colored_sweeps_keep_exact_starts_exact(shape, periodic, beta):
    """Pearson's statistic within 5 standard deviations, free and with random clamps per chain."""
    lattice = Ising(shape, 0.5, 0.3, periodic=periodic).double()
    energy = lattice if beta is None else lattice.annealed(beta)
    x = lattice.domain.states(dtype=F64)
    pi = torch.softmax(-energy(x), 0)
    n = 40000
    start = torch.multinomial(pi, n, generator=gen(), replacement=True)
    clamp = torch.rand(n, *shape, generator=gen(2)) < 0.5
    clamp[clamp.flatten(1).all(1)] = False
    power = 2.0 ** torch.arange(x[0].numel() - 1, -1, -1, dtype=F64)
    for held in (None, clamp):
        last = gb.sample(energy, kernels.Gibbs(), x[start], steps=2, keep=False, clamp=held, generator=gen(1)).last
        index = ((last.flatten(1) + 1) / 2 @ power).long()
        counts = torch.bincount(index, minlength=len(x)).double()
        keep = n * pi > 5
        stat, freedom = ((counts - n * pi)[keep] ** 2 / (n * pi)[keep]).sum(), int(keep.sum()) - 1
        assert float(stat) < freedom + 5 * math.sqrt(2 * freedom)


def kaufman_log_z(size, coupling):
    """log Z of the size × size torus (Kaufman 1949), J = coupling."""
    n = size
    h = torch.as_tensor(coupling, dtype=F64)
    c = torch.cosh(2 * h) / torch.tanh(2 * h)
    gamma = []
    for k in range(2 * n):
        inner = c - math.cos(math.pi * k / n)
        g = torch.log(inner + torch.sqrt((inner**2 - 1).clamp(min=0)))
        gamma.append(2 * h + torch.log(torch.tanh(h)) if k == 0 else g)  # γ₀ changes sign at the critical point
    odd, even = gamma[1::2], gamma[0::2]
    terms = [
        sum(torch.log(2 * torch.cosh(n * g / 2)) for g in odd),
        sum(torch.log(2 * torch.sinh(n * g / 2).abs()) for g in odd),
        sum(torch.log(2 * torch.cosh(n * g / 2)) for g in even),
        sum(torch.log(2 * torch.sinh(n * g / 2).abs()) for g in even),
    ]
    signs = torch.stack([torch.ones((), dtype=F64)] * 3 + [torch.sign(gamma[0])])
    top = torch.stack(terms).max()
    total = (signs * torch.exp(torch.stack(terms) - top)).sum()
    return n * n / 2 * torch.log(2 * torch.sinh(2 * h)) + top + torch.log(total) - math.log(2)


def test_kaufmans_formula_agrees_with_enumeration():
    x = Ising((4, 4)).domain.states(dtype=F64)
    for coupling in (0.2, 0.7):
        log_z = torch.logsumexp(-Ising((4, 4), coupling).double()(x), 0)
        torch.testing.assert_close(kaufman_log_z(4, coupling), log_z, atol=1e-5, rtol=0)


@pytest.mark.parametrize("coupling", [0.2, 0.3, 0.55])
def test_mean_energy_of_a_torus_is_kaufmans(coupling):
    """Within 4.5 standard errors over independent chains, started all up."""
    size, chains = 16, 400
    j = torch.tensor(coupling, dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(kaufman_log_z(size, j), j)
    exact = -float(slope) / size**2  # E/J per site
    lattice = Ising((size, size), coupling)
    up = torch.ones(chains, size, size)
    last = gb.sample(lattice, kernels.Gibbs(), up, steps=150, keep=False, generator=gen()).last
    per_site = lattice(last).double() / coupling / size**2
    assert abs(float(per_site.mean()) - exact) < 4.5 * float(per_site.std()) / math.sqrt(chains)


def test_a_lattice_learns_its_coupling():
    lattice = Ising((3, 3), 0.1, 0.0, trainable=True)
    data = Ising((3, 3), 0.4).domain.states()
    p = torch.softmax(-Ising((3, 3), 0.4)(data), 0)
    optimizer = torch.optim.LBFGS(lattice.parameters(), max_iter=50, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = (p * lattice(data)).sum() + torch.logsumexp(-lattice(data), 0)
        value.backward()
        return value

    optimizer.step(loss)
    assert abs(float(lattice.coupling.detach()) - 0.4) < 1e-3
    assert abs(float(lattice.field.detach())) < 1e-3


@pytest.mark.parametrize(("bad", "error"), [
    (lambda: Ising((2, 4)), ArgumentError),
    (lambda: Ising((0, 4)), ArgumentError),
    (lambda: Ising((4, 4), periodic=(True,)), ArgumentError),
    (lambda: Ising((4, 4), torch.ones(3)), ShapeError),
    (lambda: Ising((4, 4), 1.0, torch.ones(4)), ShapeError),
    (lambda: Ising((3, 3), torch.ones(2, 3, 3), periodic=False), ArgumentError),
    (lambda: Hopfield(4).store(torch.zeros(1, 4)), DomainError),
    (lambda: Hopfield(4).store(torch.ones(1, 4), rule="magic"), ArgumentError),
    (lambda: Hopfield(4).store(torch.ones(2, 4), rule="pseudo-inverse"), ArgumentError),
    (lambda: Hopfield(4).recall(torch.ones(1, 4), update="now"), ArgumentError),
    (lambda: Hopfield(4).recall(torch.ones(1, 4), steps=0), ArgumentError),
    (lambda: Hopfield(4).recall(torch.ones(1, 4).double()), PrecisionError),
])  # fmt: skip
def test_bad_input_is_refused(bad, error):
    with pytest.raises(error) as caught:
        bad()
    assert len(str(caught.value)) > 25


def spins(count, n, seed=0):
    return 2.0 * torch.randint(2, (count, n), generator=gen(seed)) - 1


def test_hebb_recalls_perfectly_at_low_load():
    n = 400
    memory, patterns = Hopfield(n), spins(20, n)  # load 0.05
    memory.store(patterns)
    by_hand = patterns.T @ patterns / n
    torch.testing.assert_close(memory.weight.detach(), by_hand.fill_diagonal_(0))
    noise = torch.where(torch.rand(20, n, generator=gen(1)) < 0.1, -1.0, 1.0)
    recall = memory.recall(patterns * noise)
    assert torch.equal(recall.x, patterns)
    assert recall.converged.all()
    assert (recall.energies[1:] <= recall.energies[:-1] + 1e-4).all()
    torch.testing.assert_close(memory.overlap(recall.x, patterns).diagonal(), torch.ones(20))


def retrieval_overlap(load):
    """The overlap of the retrieval state of an infinite network (Amit, Gutfreund & Sompolinsky 1985)."""
    m, r = 1.0, 1.0
    for _ in range(2000):
        c = math.sqrt(2 / (math.pi * load * r)) * math.exp(-(m**2) / (2 * load * r))
        r, m = 1 / (1 - c) ** 2, math.erf(m / math.sqrt(2 * load * r))
    return m


def test_hebb_keeps_as_many_bits_as_the_replica_theory_says():
    """Load 0.1, from the patterns themselves; tolerance 4.5 standard errors over patterns plus 1/n effects."""
    n = 800
    patterns, memory = spins(80, n), Hopfield(n)
    memory.store(patterns)
    share = (memory.recall(patterns).x == patterns).double().mean(1)
    error = float(share.std()) / math.sqrt(len(share))
    assert abs(float(share.mean()) - (1 + retrieval_overlap(0.1)) / 2) < 4.5 * error + 2 / n


def test_hebb_begins_to_forget_near_its_capacity():
    n = 400
    patterns, memory = spins(54, n), Hopfield(n)  # load 0.135
    memory.store(patterns)
    share = float((memory.recall(patterns).x == patterns).double().mean())
    assert 0.93 < share < 0.99


def test_pseudo_inverse_keeps_correlated_patterns_that_hebb_loses():
    n = 100
    common = spins(1, n)
    flips = torch.where(torch.rand(30, n, generator=gen(1)) < 0.15, -1.0, 1.0)
    patterns = common * flips
    exact, hebb = Hopfield(n), Hopfield(n)
    exact.store(patterns, rule="pseudo-inverse")
    hebb.store(patterns)
    assert torch.equal(exact.recall(patterns).x, patterns)
    assert not torch.equal(hebb.recall(patterns).x, patterns)


def test_synchronous_updates_may_cycle_and_say_so():
    memory = Hopfield(2)
    memory.set_parameters(weight=torch.tensor([[0.0, -1.0], [-1.0, 0.0]]))
    cue = torch.tensor([[1.0, 1.0]])
    both = memory.recall(cue, update="synchronous", steps=5)
    assert not both.converged.any()
    assert len(both.energies) == 6
    one = memory.recall(cue)
    assert one.converged.all()
    assert float(one.energies[-1]) < float(one.energies[0])


def test_random_order_also_descends_and_is_reproducible():
    memory, patterns = Hopfield(60), spins(4, 60)
    memory.store(patterns)
    cue = spins(10, 60, 5)
    first = memory.recall(cue, generator=gen(1))
    assert (first.energies[1:] <= first.energies[:-1] + 1e-5).all()
    assert first.converged.all()
    assert torch.equal(first.x, memory.recall(cue, generator=gen(1)).x)
