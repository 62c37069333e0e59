"""Classification and subspace RBMs by enumeration."""

import itertools
import math

import pytest
import torch

import gibbsian as gb
from gibbsian import kernels, objectives, units
from gibbsian.errors import ArgumentError, CapabilityError, DataError, ShapeError
from gibbsian.models import RBM, ClassificationRBM, SubspaceRBM

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def randomize(model, seed=0, scale=0.7):
    model.double()
    g = gen(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=g, dtype=F64))
    return model


def classifier(visible=4, hidden=3):
    return randomize(ClassificationRBM(visible, classes=3, hidden=hidden))


def joint_table(model, x, h):
    """E(x, y, h) for all states, from the definition: (x, y, h)."""
    xs, hs = x.flatten(1), h.flatten(1)
    w, u = model.weight.detach(), model.label_weight.detach()
    b, c, d = model.visible_bias.detach(), model.hidden_bias.detach(), model.label_bias.detach()
    return -(
        (xs @ b)[:, None, None] + d[None, :, None] + (hs @ c)[None, None]
        + (xs @ w @ hs.T)[:, None] + (u @ hs.T)[None]
    )  # fmt: skip


MODELS = [(4, 3), (units.Spin(3), units.Spin(3)), (units.Softmax(2, 3), units.Softmax(2, 2))]


@pytest.mark.parametrize(("visible", "hidden"), MODELS, ids=str)
def test_classification_by_enumeration(visible, hidden):
    model = classifier(visible, hidden)
    x, h = model.domain.states(dtype=F64), model.hidden.domain.states(dtype=F64)
    table = joint_table(model, x, h)
    for y in range(3):
        rows = [torch.full((len(x),), y), h[1:2].expand(len(x), *h.shape[1:])]
        torch.testing.assert_close(model.joint(x, *rows).detach(), table[:, y, 1])
    pair = -torch.logsumexp(-table, 2)
    for y in range(3):
        torch.testing.assert_close(model.pair_energy(x, y).detach(), pair[:, y])
        torch.testing.assert_close(model.given(y)(x).detach(), pair[:, y])
    torch.testing.assert_close(model.class_log_prob(x).detach(), torch.log_softmax(-pair, 1))
    torch.testing.assert_close(model(x).detach(), -torch.logsumexp(-pair, 1))
    for beta in (torch.tensor(0.4, dtype=F64), torch.linspace(0.3, 2, len(x), dtype=F64)):
        rows = beta[:, None, None] if beta.dim() else beta
        exact = -torch.logsumexp((-rows * table).flatten(1), 1)
        torch.testing.assert_close(model.annealed(beta)(x).detach(), exact)
    features = torch.softmax(-table.flatten(1), 1).reshape(table.shape).sum(1) @ h.flatten(1)
    torch.testing.assert_close(model.hidden_mean(x).detach().flatten(1), features)
    one = torch.softmax(-table[:, 2], 1) @ h.flatten(1)
    torch.testing.assert_close(model.hidden_mean(x, 2).detach().flatten(1), one)


def test_paper_form_of_the_class_probabilities():
    model, x = classifier(), gb.domains.Binary(4).states(dtype=F64)
    fields = model.hidden_bias + model.label_weight[None] + (x @ model.weight)[:, None]
    scores = model.label_bias + torch.nn.functional.softplus(fields).sum(2)
    torch.testing.assert_close(model.class_log_prob(x), torch.log_softmax(scores, 1))


def pearson(counts, p):
    expected = counts.sum() * p
    keep = expected > 5
    stat, freedom = float(((counts - expected)[keep] ** 2 / expected[keep]).sum()), int(keep.sum()) - 1
    assert stat < freedom + 5 * math.sqrt(2 * freedom)


def invariant(energy, clamp=False, n=50000):
    """Exact starts, two sweeps, Pearson's statistic within 5 standard deviations."""
    x = energy.domain.states(dtype=F64)
    pi = torch.softmax(-energy(x).detach(), 0)
    start = x[torch.multinomial(pi, n, generator=gen(), replacement=True)]
    mask = None
    if clamp:
        mask = torch.rand(n, x.shape[1], generator=gen(5)) < 0.4
    last = gb.sample(energy, kernels.Gibbs(), start, steps=2, keep=False, clamp=mask, generator=gen(1)).last
    index = (last.flatten(1)[:, None] == x.flatten(1)).all(2).double().argmax(1)
    pearson(torch.bincount(index, minlength=len(x)).double(), pi)


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize(("visible", "hidden"), MODELS, ids=str)
def test_classification_sweeps_keep_exact_starts_exact(visible, hidden, clamp):
    model = classifier(visible, hidden)
    for energy in (model, model.annealed(0.5), model.given(1)):
        invariant(energy, clamp)


def test_pair_sweeps_keep_the_joint_law():
    model, n = classifier(), 60000
    x = model.domain.states(dtype=F64)
    energies = torch.stack([model.pair_energy(x, y) for y in range(3)], 1).detach()
    pi = torch.softmax(-energies.flatten(), 0)
    start = torch.multinomial(pi, n, generator=gen(), replacement=True)
    u, y, g = x[start // 3], start % 3, gen(1)
    for _ in range(2):
        u, y = model.pair_sweep(u, y, tuple(part[0] for part in model.gibbs_noise(u, 1, g)))
    index = (u[:, None] == x).all(2).double().argmax(1) * 3 + y
    pearson(torch.bincount(index, minlength=len(pi)).double(), pi)


def gradient(model, value):
    model.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel(), dtype=F64)
                      for p in model.parameters()])  # fmt: skip


def test_objective_gradients_against_enumeration():
    """Long chains from many copies of the data: the exact gradients of log p(x, y), log p(y|x) and log p(x)."""
    model = classifier()
    states = model.domain.states(dtype=F64)
    x, y = states[[1, 6, 9, 14]], torch.tensor([0, 1, 2, 1])
    big = x.repeat(5000, 1), y.repeat(5000)
    log_z = torch.logsumexp(-model(states), 0)
    exact = {
        "generative": gradient(model, model.pair_energy(x, y).mean() + log_z),
        "discriminative": gradient(model, -model.class_log_prob(x)[torch.arange(4), y].mean()),
    }
    exact["unsupervised"] = gradient(model, model(x).mean() + torch.logsumexp(-model(states), 0))
    for name, goal in exact.items():
        weights = {"generative": 0.0, "discriminative": 0.0, "unsupervised": 0.0, name: 1.0}
        objective = objectives.ClassificationLikelihood(**weights, steps=40)
        rows = (big[0], torch.full_like(big[1], -1)) if name == "unsupervised" else big
        found = gradient(model, objective(model, rows, objective.init(model, rows, gen()), gen()).value)
        tolerance = 1e-10 if name == "discriminative" else 4.5 * 0.5 * math.sqrt(1 / 20000) * 2
        assert float((found - goal).abs().max()) < tolerance, name


def test_hybrid_is_the_sum_of_its_parts_and_ignores_unlabeled_rows():
    model = classifier()
    x = model.domain.states(dtype=F64)
    y = torch.tensor([0, 1, 2, -1] * 4)
    call = lambda **w: objectives.ClassificationLikelihood(**w)(model, (x, y), (), gen()).value  # noqa: E731
    disc = call(generative=0.0, discriminative=1.0)
    torch.testing.assert_close(disc, torch.nn.functional.nll_loss(model.class_log_prob(x[y >= 0]), y[y >= 0]))
    gen_only, both = call(generative=1.0), call(generative=0.5, discriminative=2.0)
    torch.testing.assert_close(both, 0.5 * gen_only + 2 * disc)
    plain = objectives.CrossEntropy()(model, (x[y >= 0], y[y >= 0]), (), gen()).value
    torch.testing.assert_close(plain, disc)


def test_semi_supervised_training_uses_inputs_without_labels():
    """Two clusters, two labels: discriminative training on few labels plus many inputs learns to tell them apart."""
    g = gen()
    centers = torch.tensor([[1.0, 1, 1, 1, 0, 0, 0, 0], [0.0, 0, 0, 0, 1, 1, 1, 1]], dtype=F64)
    truth = torch.randint(2, (600,), generator=g)
    flips = (torch.rand(600, 8, generator=g, dtype=F64) < 0.15).double()
    x = (centers[truth] - flips).abs()
    y = truth.clone()
    y[6:] = -1
    model = ClassificationRBM(8, classes=2, hidden=6).double()
    objective = objectives.ClassificationLikelihood(generative=0.1, discriminative=1.0, unsupervised=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        objective(model, (x, y), (), g).value.backward()
        optimizer.step()
    accuracy = (model.class_log_prob(x).argmax(1) == truth).double().mean()
    assert float(accuracy) > 0.95


def subspace(seed=0):
    return randomize(SubspaceRBM(visible=4, gates=2, subspace=2), seed)


def all_states(n):
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)), dtype=F64)


def subspace_table(model):
    x, h, s = all_states(4), all_states(2), all_states(4).reshape(-1, 2, 2)
    w = torch.einsum("ai,ijk,bj,cjk->abc", x, model.weight, h, s)
    gated = torch.einsum("bj,jk,cjk->bc", h, model.subspace_bias, s)
    own = (x @ model.visible_bias)[:, None, None] + (h @ model.gate_bias)[None, :, None]
    return x, h, s, -(w + own + gated).detach()


def test_subspace_energies_by_enumeration():
    model = subspace()
    x, h, s, table = subspace_table(model)
    torch.testing.assert_close(model(x).detach(), -torch.logsumexp(-table.flatten(1), 1))
    p = torch.softmax(-table.flatten(1), 1).reshape(table.shape)
    torch.testing.assert_close(model.gate_mean(x).detach(), p.sum(2) @ h)
    for beta in (torch.tensor(0.3, dtype=F64), torch.linspace(0.2, 2, 16, dtype=F64)):
        rows = beta[:, None] if beta.dim() else beta
        exact = -torch.logsumexp(-rows * table.flatten(1), 1)
        torch.testing.assert_close(model.annealed(beta)(x).detach(), exact)
    inner = torch.softmax(-table[:, 2], 1) @ s.flatten(1)
    gates = h[2:3].expand(16, 2)
    torch.testing.assert_close(model.subspace_mean(x, gates).detach().flatten(1), inner)
    outer = torch.softmax(-table[:, 3], 0).T @ x
    torch.testing.assert_close(model.visible_mean(h[3:4].expand(16, 2), s).detach(), outer)


@pytest.mark.parametrize("clamp", [False, True])
def test_subspace_sweeps_keep_exact_starts_exact(clamp):
    model = subspace()
    for energy in (model, model.annealed(0.5)):
        invariant(energy, clamp)


@pytest.mark.parametrize(("bad", "error"), [
    (lambda: ClassificationRBM(4, 1, 3), ArgumentError),
    (lambda: ClassificationRBM(4, 3, units.Gaussian(3)), ArgumentError),
    (lambda: ClassificationRBM(units.Count(3), 3, 3), ArgumentError),
    (lambda: ClassificationRBM(4, 3, 2).given(3), DataError),
    (lambda: ClassificationRBM(4, 3, 2).given(torch.tensor(1.0)), DataError),
    (lambda: ClassificationRBM(4, 3, 2).given(torch.zeros(2, 2).long()), ShapeError),
    (lambda: SubspaceRBM(4, 0, 2), ArgumentError),
    (lambda: objectives.ClassificationLikelihood(generative=0.0), ArgumentError),
    (lambda: objectives.ClassificationLikelihood(steps=0), ArgumentError),
    (lambda: objectives.ClassificationLikelihood().init(RBM(4, 2), (torch.zeros(2, 4), torch.zeros(2).long()), gen()),
     CapabilityError),
    (lambda: objectives.ClassificationLikelihood().init(ClassificationRBM(4, 2, 2), torch.zeros(2, 4), gen()),
     DataError),
    (lambda: objectives.ClassificationLikelihood().init(
        ClassificationRBM(4, 2, 2), (torch.zeros(2, 4), torch.tensor([0, 2])), gen()), DataError),
])  # fmt: skip
def test_bad_input_is_refused(bad, error):
    with pytest.raises(error) as caught:
        bad()
    assert len(str(caught.value)) > 25
