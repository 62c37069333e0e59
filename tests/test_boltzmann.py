"""Boltzmann machines with and without hidden units, by enumeration."""

import math

import pytest
import torch

import gibbsian as gb
from gibbsian import kernels
from gibbsian.domains import Binary, Spin
from gibbsian.errors import ArgumentError, CapabilityError, ShapeError
from gibbsian.models import BoltzmannMachine

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def machine_of(n, spin=False, hidden=0, seed=0, scale=0.7):
    machine = BoltzmannMachine(n, spin, hidden).double()
    g = gen(seed)
    upper = scale * torch.randn(n + hidden, n + hidden, generator=g, dtype=F64).triu(1)
    machine.set_parameters(weight=upper + upper.T, bias=scale * torch.randn(n + hidden, generator=g, dtype=F64))
    return machine


def states(n, spin):
    return (Spin(n) if spin else Binary(n)).states(dtype=F64)


def whole_energy(machine, z):
    w, b = machine.weight.detach(), machine.bias.detach()
    pairs = sum(w[i, j] * z[:, i] * z[:, j] for i in range(len(b)) for j in range(i + 1, len(b)))
    return -pairs - z @ b


@pytest.mark.parametrize("hidden", [0, 2])
@pytest.mark.parametrize("spin", [False, True])
def test_energy_and_conditionals_by_enumeration(spin, hidden):
    machine, x = machine_of(5, spin, hidden), states(5, spin)
    if not hidden:
        torch.testing.assert_close(machine(x).detach(), whole_energy(machine, x))
    p = torch.softmax(-machine(x).detach(), 0)
    for i in range(5):
        flipped = x.clone()
        flipped[:, i] = -x[:, i] if spin else 1 - x[:, i]
        other = p[(flipped[:, None] == x).all(2).double().argmax(1)]
        up = torch.where(x[:, i] == 1, p, other) / (p + other)
        torch.testing.assert_close(torch.sigmoid(machine.site_logits(x, i)).detach(), up)
        each = torch.full((len(x),), i)
        torch.testing.assert_close(machine.site_logits(x, each), machine.site_logits(x, i))


@pytest.mark.parametrize("spin", [False, True])
def test_hidden_units_are_summed_out(spin):
    machine = machine_of(4, spin, hidden=3)
    v, h = states(4, spin), states(3, spin)
    both = torch.cat([v.repeat_interleave(8, 0), h.repeat(16, 1)], 1)
    joint = whole_energy(machine, both).reshape(16, 8)
    torch.testing.assert_close(machine.joint(both[:, :4], both[:, 4:]).detach().reshape(16, 8), joint)
    torch.testing.assert_close(machine(v).detach(), -torch.logsumexp(-joint, 1))
    torch.testing.assert_close(machine.complete()(both).detach(), joint.flatten())
    for beta in (torch.tensor(0.4, dtype=F64), torch.linspace(0.2, 1.5, 16, dtype=F64)):
        by_row = beta[:, None] if beta.dim() else beta
        torch.testing.assert_close(machine.annealed(beta)(v).detach(), -torch.logsumexp(-by_row * joint, 1))


def sweep_statistic(machine, energy, n=50000, clamp=None):
    x = machine.domain.states(dtype=F64)
    pi = torch.softmax(-energy(x), 0).detach()
    start = torch.multinomial(pi, n, generator=gen(), replacement=True)
    last = gb.sample(energy, kernels.Gibbs(), x[start], steps=2, keep=False, clamp=clamp, generator=gen(1)).last
    index = (last[:, None] == x).all(2).double().argmax(1)
    counts = torch.bincount(index, minlength=len(x)).double()
    keep = n * pi > 5
    return float(((counts - n * pi)[keep] ** 2 / (n * pi)[keep]).sum()), int(keep.sum()) - 1


@pytest.mark.parametrize("tempered", [False, True])
@pytest.mark.parametrize("hidden", [0, 3])
@pytest.mark.parametrize("spin", [False, True])
def test_sweeps_keep_exact_starts_exact(spin, hidden, tempered):
    """Pearson's statistic within 5 standard deviations, clamped and free."""
    machine = machine_of(4, spin, hidden)
    energy = machine.annealed(0.5) if tempered else machine
    clamp = torch.rand(50000, 4, generator=gen(3)) < 0.4
    for held in (None, clamp):
        stat, freedom = sweep_statistic(machine, energy, clamp=held)
        assert stat < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("spin", [False, True])
def test_sweep_thresholds_are_the_enumerated_conditionals(spin):
    """Every target state is reached with uniforms just inside its conditionals: no randomness at all."""
    machine, x = machine_of(3, spin), states(3, spin)
    low = -1.0 if spin else 0.0
    for start in x:
        for target in x:
            now, u = start.clone(), []
            for i in range(3):
                pair = now.repeat(2, 1)
                pair[0, i], pair[1, i] = low, 1.0
                p = float(torch.softmax(-machine(pair), 0)[1].detach())
                u.append(p * (1 - 1e-9) if target[i] == 1 else p * (1 + 1e-9))
                now[i] = target[i]
            swept = machine.gibbs_sweep(start[None], (torch.tensor([u], dtype=F64),))
            assert torch.equal(swept[0], target)


@pytest.mark.parametrize("hidden", [0, 2])
@pytest.mark.parametrize("spin", [False, True])
def test_a_matrix_of_any_shape_has_one_law(spin, hidden):
    """Assigned or loaded weights with a diagonal and no symmetry: energy, conditionals, sweeps, pairwise form, paths
    and pictures are all those of the symmetric part."""
    machine, n = machine_of(4, spin, hidden), 4 + hidden
    odd = BoltzmannMachine(4, spin, hidden).double()
    twist = torch.randn(n, n, generator=gen(9), dtype=F64)
    skew = twist.triu(1) - twist.triu(1).T + torch.diag(twist.diagonal())
    odd.load_state_dict({"weight": machine.weight.detach() + skew, "bias": machine.bias.detach()})
    x = states(4, spin)
    torch.testing.assert_close(odd(x), machine(x))
    for i in range(4):
        for site in (i, torch.full((len(x),), i)):
            torch.testing.assert_close(odd.site_logits(x, site), machine.site_logits(x, site))
    noise = machine.gibbs_noise(x, 1, gen(1))
    for beta in (None, torch.tensor(0.6, dtype=F64)):
        swept = [m.gibbs_sweep(x, (noise[0][0],), None, beta) for m in (odd, machine)]
        assert torch.equal(swept[0], swept[1])
    torch.testing.assert_close(odd.pairwise().weight, machine.pairwise().weight)
    torch.testing.assert_close(odd.filters().weight, machine.filters().weight)
    stat, freedom = sweep_statistic(odd, odd)
    assert stat < freedom + 5 * math.sqrt(2 * freedom)
    low = [gb.partition.ais(m, x, chains=20, betas=20, generator=gen()) for m in (odd, machine)]
    torch.testing.assert_close(low[0].value, low[1].value)


def test_recall_of_a_loaded_matrix_descends():
    memory, n = gb.models.Hopfield(12).double(), 12
    memory.store((torch.rand(2, n, generator=gen(), dtype=F64) < 0.5).double() * 2 - 1)
    skew = torch.randn(n, n, generator=gen(1), dtype=F64).triu(1)
    with torch.no_grad():
        memory.weight.add_(skew - skew.T + torch.eye(n, dtype=F64))
    cue = (torch.rand(50, n, generator=gen(2), dtype=F64) < 0.5).double() * 2 - 1
    recall = memory.recall(cue)
    assert bool((recall.energies.diff(dim=0) <= 1e-9).all())
    assert bool(recall.converged.all())
    assert torch.equal(memory.recall(recall.x, update="synchronous", steps=1).x, recall.x)


def test_hidden_units_of_a_path_are_drawn_given_the_visible_ones_or_refused():
    """By inversion of one uniform a row: the shares of all hidden states against p(h | v), 5 standard deviations."""
    machine = machine_of(3, hidden=3)
    v = torch.tensor([[1.0, 0.0, 1.0]], dtype=F64)
    full = machine.path().complete(v.expand(20000, 3), gen(4))
    h = states(3, False)
    p = torch.softmax(-machine.joint(v.expand(8, 3), h).detach(), 0)
    counts = (full[:, None, 3:] == h).all(2).double().sum(0)
    assert torch.equal(full[:, :3], v.expand(20000, 3))
    stat = float(((counts - 20000 * p).square() / (20000 * p)).sum())
    assert stat < 7 + 5 * math.sqrt(14)
    big = BoltzmannMachine(3, hidden=30)
    with pytest.raises(CapabilityError, match=r"2\^30"):
        big.path().complete(torch.zeros(2, 3), gen())


def test_training_keeps_the_weights_symmetric_without_a_diagonal():
    machine = machine_of(6, hidden=2)
    data = (torch.rand(50, 6, generator=gen(), dtype=F64) < 0.4).double()
    optimizer = torch.optim.Adam(machine.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        loss, _, _ = machine.contrast(data, None, 1, gen(1))
        loss.backward()
        optimizer.step()
    assert torch.equal(machine.weight, machine.weight.T)
    assert (machine.weight.diagonal() == 0).all()


@pytest.mark.parametrize("hidden", [0, 2])
def test_gradient_is_that_of_the_enumerated_likelihood(hidden):
    """E_data[∇F] - E_model[∇F] by autograd against moments of the joint law."""
    machine = machine_of(3, hidden=hidden)
    data = torch.tensor([[1.0, 0, 1], [0, 0, 1]], dtype=F64)
    (machine(data).mean() + torch.logsumexp(-machine(states(3, False)), 0)).backward()
    z = states(3 + hidden, False)
    p = torch.softmax(-whole_energy(machine, z), 0)
    model = torch.einsum("b,bi,bj->ij", p, z, z)
    positive = torch.zeros_like(model)
    for row in data:
        fits = (z[:, :3] == row).all(1)
        q = p[fits] / p[fits].sum()
        positive += torch.einsum("b,bi,bj->ij", q, z[fits], z[fits]) / len(data)
    difference = 0.5 * (model - positive)  # each pair occurs twice in the full matrix
    torch.testing.assert_close(machine.weight.grad, difference.fill_diagonal_(0))
    torch.testing.assert_close(machine.bias.grad, (model - positive).diagonal() + 0.0 * machine.bias.grad)


def test_contrast_of_many_hidden_units_tends_to_the_likelihood_gradient():
    """The path for machines that cannot be enumerated, forced on a small one: many sweeps, many chains."""
    machine = machine_of(4, hidden=2, scale=0.5)
    rows = states(4, False)[[3, 5, 12]]
    data = rows.repeat(8000, 1)
    (machine(rows).mean() + torch.logsumexp(-machine(states(4, False)), 0)).backward()
    exact = machine.weight.grad.clone()
    machine.zero_grad()
    import gibbsian.models.boltzmann as module

    limit = module._MOST_HIDDEN
    try:
        module._MOST_HIDDEN = 1
        loss, samples, _ = machine.contrast(data, None, 30, gen())
        loss.backward()
    finally:
        module._MOST_HIDDEN = limit
    assert samples.shape == data.shape
    # each entry is half a difference of two means of 24000 numbers of variance at most 1/4
    assert float((machine.weight.grad - exact).abs().max()) < 4.5 * 0.5 * math.sqrt(2 * 0.25 / 24000)


def test_big_hidden_layers_are_refused_where_they_cannot_be_summed():
    machine = BoltzmannMachine(3, hidden=20)
    with pytest.raises(CapabilityError, match="complete"):
        machine(torch.zeros(2, 3))
    loss, samples, _ = machine.contrast(torch.ones(4, 3), None, 2, gen())
    loss.backward()
    assert samples.shape == (4, 3)
    assert machine.weight.grad.abs().sum() > 0
    _, again, _ = machine.contrast(torch.ones(4, 3), samples, 2, gen())
    assert again.shape == (4, 3)
    trace = gb.sample(machine.complete(), kernels.Gibbs(), torch.zeros(5, 23), steps=3, generator=gen())
    assert trace.last.shape == (5, 23)


@pytest.mark.parametrize(("bad", "error"), [
    (lambda: BoltzmannMachine(0), ArgumentError),
    (lambda: BoltzmannMachine(3, hidden=-1), ArgumentError),
    (lambda: BoltzmannMachine(2).set_parameters(weight=torch.tensor([[0.0, 1.0], [0.5, 0.0]])), ArgumentError),
    (lambda: BoltzmannMachine(2).set_parameters(weight=torch.eye(2)), ArgumentError),
    (lambda: BoltzmannMachine(2).set_parameters(weight=torch.zeros(3, 3)), ShapeError),
    (lambda: BoltzmannMachine(2).set_parameters(bias=torch.zeros(3)), ShapeError),
    (lambda: BoltzmannMachine(2).annealed(torch.ones(2, 2)), ArgumentError),
])  # fmt: skip
def test_bad_input_is_refused(bad, error):
    with pytest.raises(error) as caught:
        bad()
    assert len(str(caught.value)) > 25
