"""Deep belief networks against enumeration: laws, bounds, phases of learning, classification, and their training."""

import contextlib
import copy
import math

import pytest
import scipy.stats
import torch
from objective_oracles import bits, gen, z_scores

import gibbsian as gb
from gibbsian import domains, kernels, models, objectives, partition, units
from gibbsian.errors import ArgumentError, CapabilityError, CheckpointError, DataError, RandomnessError
from gibbsian.models import DBN, RBM
from gibbsian.models.dbn.phases import sleep_phase, wake_phase
from gibbsian.models.rbm.fused import fused_contrast
from gibbsian.testing import check_energy, check_objective
from gibbsian.training.serialize import describe, rebuild

F64 = torch.float64
CD = objectives.ContrastiveDivergence(kernels.Gibbs())


def randomize(dbn, seed=0, scale=0.7):
    dbn.double()
    g = gen(seed)
    with torch.no_grad():
        for p in dbn.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=g, dtype=F64))
    return dbn


def states(n):
    return domains.Binary(n).states(dtype=F64)


def joint_by_hand(dbn):
    """p(v, h¹, h², y) of a Bernoulli network with two directed layers, as it stands in the papers."""
    low, high = dbn.layers
    v, h, k = (states(n) for n in (len(low.bias), len(high.bias), high.upper.n))
    t = states(dbn.top.hidden.n)
    y = torch.eye(dbn.classes or 1, dtype=F64)
    label = dbn.classes or 0
    w, b, c = dbn.top.weight, dbn.top.visible_bias, dbn.top.hidden_bias
    seen = torch.cat([y.repeat_interleave(len(k), 0)[:, :label], k.repeat(len(y), 1)], 1)
    top = (seen @ b)[:, None] + t @ c + seen @ w @ t.T
    p_top = torch.softmax(top.flatten(), 0).reshape(len(y), len(k), len(t)).sum(2)  # (y, k)

    def coin(x, field):  # p(x | field) for all pairs (x, rows of field)
        p = torch.sigmoid(field)
        return (x[:, None] * p + (1 - x[:, None]) * (1 - p)).prod(2)

    p_h = coin(h, high.bias + k @ high.weight.T)
    p_v = coin(v, low.bias + h @ low.weight.T)
    return torch.einsum("vh,hk,yk->vhky", p_v, p_h, p_top).detach()


@pytest.mark.parametrize("labels", [None, 3])
def test_energy_and_partition_function_by_enumeration(labels):
    dbn = randomize(DBN(4, 3, 2, 3, labels=labels))
    p = joint_by_hand(dbn).sum((1, 2, 3))
    log_z = partition.exact(dbn)
    torch.testing.assert_close(-dbn(states(4)).detach() - log_z.value, p.log())
    torch.testing.assert_close(gb.log_likelihood(dbn, states(4)).per_sample, p.log())
    torch.testing.assert_close(torch.logsumexp(-dbn(states(4)), 0).detach(), log_z.value)


@pytest.mark.parametrize("labels", [None, 3])
def test_the_bound_is_that_of_the_recognition_law(labels):
    """E_q[log p(v, h) - log q(h | v)] by enumeration, its estimate, and the order: bound ≤ importance ≤ exact."""
    dbn = randomize(DBN(4, 3, 2, 3, labels=labels))
    p = joint_by_hand(dbn).sum(3)  # (v, h, k)
    low, high = dbn.layers
    v, h, k = states(4), states(3), states(2)

    def coin(x, field):
        q = torch.sigmoid(field)
        return (x * q[:, None] + (1 - x) * (1 - q[:, None])).prod(2)

    q_h = coin(h, low.recognition_bias + v @ low.recognition_weight)
    q_k = coin(k, high.recognition_bias + h @ high.recognition_weight)
    q = (q_h[:, :, None] * q_k[None]).detach()
    bound = (q * (p / q).log()).sum((1, 2))
    exact = p.sum((1, 2)).log()
    assert bool((bound < exact).all())
    log_z = partition.exact(dbn).value
    n = 4000
    each = dbn.log_mass_bound(v.repeat_interleave(n, 0), samples=2, generator=gen()).reshape(16, n)
    z = (each.mean(1) - log_z - bound) / (each.std(1) / n**0.5)
    assert float(z.abs().max()) < 5  # 16 rows: a false alarm in 1e5
    many = dbn.log_mass_bound(v.repeat_interleave(n, 0), samples=5, generator=gen(1), importance=True) - log_z
    weights = many.exp().reshape(16, n)  # unbiased for p(v)
    assert float(((weights.mean(1) - exact.exp()) / (weights.std(1) / n**0.5)).abs().max()) < 5
    assert float((many.reshape(16, n).mean(1) - bound).min()) > 0


def tied(rbm):
    """A network whose upper RBM is the lower one turned over."""
    dbn = DBN(rbm.visible.n, rbm.hidden.n, rbm.visible.n).double()
    with torch.no_grad():
        layer, top = dbn.layers[0], dbn.top
        for a, b in [
            (layer.weight, rbm.weight),
            (layer.recognition_weight, rbm.weight),
            (layer.bias, rbm.visible_bias),
            (layer.recognition_bias, rbm.hidden_bias),
            (top.weight, rbm.weight.T),
            (top.visible_bias, rbm.hidden_bias),
            (top.hidden_bias, rbm.visible_bias),
        ]:
            a.copy_(b)
    return dbn


def random_rbm(n=5, m=3):
    rbm = RBM(n, m).double()
    g = gen(1)
    with torch.no_grad():
        for p in rbm.parameters():
            p.copy_(0.8 * torch.randn(p.shape, generator=g, dtype=F64))
    return rbm


def test_a_tied_network_is_its_rbm_and_its_bound_is_tight():
    rbm = random_rbm()
    dbn, v = tied(rbm), states(5)
    torch.testing.assert_close(dbn(v), rbm(v))
    torch.testing.assert_close(partition.exact(dbn).value, partition.exact(rbm).value)
    # every single up-pass gives the same number: the bound has no variance and no gap
    bound = dbn.log_mass_bound(v, samples=1, generator=gen())
    torch.testing.assert_close(bound, -rbm(v).detach())
    with torch.no_grad():
        dbn.top.hidden_bias += 0.5  # weights alone are not enough
    assert not torch.allclose(dbn(v) - partition.exact(dbn).value, rbm(v) - partition.exact(rbm).value, atol=0.01)


@pytest.mark.parametrize("labels", [None, 2])
def test_a_stage_starts_where_the_one_below_ended(labels):
    """Greedy training starts the next machine from the tied weights: the bound does not fall."""
    rbm = random_rbm()
    v = states(5)
    exact = -rbm(v).detach() - partition.exact(rbm).value
    for top in (5, 8):
        dbn = DBN(5, 3, top, labels=labels).double()
        with torch.no_grad():
            for a, b in zip(
                ("weight", "bias", "recognition_bias"), ("weight", "visible_bias", "hidden_bias"), strict=True
            ):
                getattr(dbn.layers[0], a).copy_(getattr(rbm, b))
        dbn.end_stage(0, dbn.machine(0))
        machine = dbn.begin_stage(1, torch.zeros(4, dbn.top.visible.size, dtype=F64))
        assert machine is dbn.top
        bound = dbn.log_mass_bound(v, samples=20, generator=gen()) - partition.exact(dbn).value
        # further units start with small weights, whose mean is taken out: what is left is of second order
        torch.testing.assert_close(bound, exact, atol=1e-9 if top == 5 else 2e-3, rtol=0)


def test_a_stage_without_room_starts_from_base_rates():
    dbn, h = DBN(6, 4, 5), bits(50, 4).float()
    machine = dbn.begin_stage(1, h)
    torch.testing.assert_close(torch.sigmoid(machine.visible_bias), (h.sum(0) + 1) / 52)
    machine = dbn.begin_stage(0, bits(50, 6).float())
    assert machine.weight is dbn.layers[0].weight
    assert DBN(4, 3, 4, tied=False).begin_stage(1, h[:, :3]).weight.abs().max() < 0.1


# --- sampling ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [None, 1])
def test_generation_leaves_the_law_of_the_network_invariant(label):
    """Chains that start in the law of the top machine stay there, and one pass down gives p(v), or p(v | y)."""
    dbn = randomize(DBN(3, 3, 2, 3, labels=3), scale=1.2)
    joint = joint_by_hand(dbn)
    p = joint.sum((1, 2, 3)) if label is None else joint[..., label].sum((1, 2)) / joint[..., label].sum()
    n, g = 40000, gen(2)
    if label is None:
        seen = dbn.top.domain.states(dtype=F64)
        start = seen[torch.multinomial(torch.softmax(-dbn.top(seen), 0).detach(), n, replacement=True, generator=g)]
        x = start
        for _ in range(3):
            x = dbn.top.gibbs_sweep(x, tuple(u[0] for u in dbn.top.gibbs_noise(x, 1, g)))
        v = dbn.down(dbn.features_of(x), generator=g)
    else:
        v = dbn.generate(n, steps=40, label=label, generator=g)
    counts = torch.bincount((v @ torch.tensor([4.0, 2.0, 1.0], dtype=F64)).long(), minlength=8)
    assert scipy.stats.chisquare(counts.numpy(), (n * p / p.sum()).numpy()).pvalue > 1e-4


def test_generation_from_data_and_as_means():
    dbn = DBN(6, 4, 3, 5, labels=2)
    x = bits(7, 6).float()
    out = dbn.generate(7, steps=2, start=x, mean=True, generator=gen())
    assert out.shape == (7, 6)
    assert bool(((out > 0) & (out < 1)).all())
    v = dbn.generate(4, steps=2, label=torch.tensor([0, 1, 0, 1]), generator=gen())
    assert bool(((v == 0) | (v == 1)).all())
    with pytest.raises(DataError, match="labels run from 2"):
        dbn.generate(2, label=2, generator=gen())
    with pytest.raises(RandomnessError):
        dbn.generate(2, generator=None)


# --- labels ---------------------------------------------------------------------------------------------


def test_classification_is_exact_in_the_top_machine():
    dbn = randomize(DBN(4, 3, 2, 3, labels=3))
    k = states(2)
    by_hand = joint_by_hand(dbn).sum((0, 1))  # (k, y)
    logits = dbn._label_logits(k)
    torch.testing.assert_close(torch.softmax(logits, 1).detach(), by_hand / by_hand.sum(1, keepdim=True))
    v = states(4)
    # averaged over stochastic up-passes: Σ_k q(k | v) p(y | k)
    low, high = dbn.layers
    log_q = torch.stack([
        torch.stack([low.log_q(h[None].expand(16, -1), v) + high.log_q(c[None], h[None]) for h in states(3)]) for c in k
    ])  # fmt: skip
    q = log_q.exp().sum(1).T
    expected = (q @ torch.softmax(logits, 1)).detach()
    rows = v.repeat_interleave(3000, 0)
    got = dbn.class_log_prob(rows, passes=2, generator=gen()).exp().reshape(16, 3000, 3).mean(1).detach()
    assert float((got - expected).abs().max()) < 5 * 0.5 / math.sqrt(6000)
    one = dbn.class_log_prob(v, method="up-pass")
    torch.testing.assert_close(one.exp().sum(1), torch.ones(16, dtype=F64))
    assert dbn.classify(v).shape == (16,)
    with pytest.raises(CapabilityError, match="labels=K"):
        DBN(4, 3, 2).class_log_prob(torch.zeros(1, 4))


# --- learning -------------------------------------------------------------------------------------------


def up_down_by_enumeration(dbn, x, y, steps):
    """The expected gradient of every parameter under the rule, summed over all states of the network."""
    low, high = dbn.layers
    h, k, t = states(low.upper.n), states(high.upper.n), states(dbn.top.hidden.n)

    def coins(p, values):  # (rows, states) of independent coins
        return (p[:, None] * values + (1 - p[:, None]) * (1 - values)).prod(2)

    def mean(field):
        return torch.sigmoid(field).detach()

    out = {}
    q_h = coins(mean(low.recognition_bias + x @ low.recognition_weight), h)  # (n, h)
    q_k = coins(mean(high.recognition_bias + h @ high.recognition_weight), k)  # (h, k)
    n = len(x)
    error = x[:, None] - mean(low.bias + h @ low.weight.T)  # (n, h, v)
    out["0.bias"] = -torch.einsum("nh,nhv->v", q_h, error) / n
    out["0.weight"] = -torch.einsum("nh,nhv,hj->vj", q_h, error, h) / n
    error = h[:, None] - mean(high.bias + k @ high.weight.T)  # (h, k, unit)
    out["1.bias"] = -torch.einsum("nh,hk,hku->u", q_h, q_k, error) / n
    out["1.weight"] = -torch.einsum("nh,hk,hku,kj->uj", q_h, q_k, error, k) / n

    # the top: one vector of probabilities over (label, k), moved by exact sweeps
    classes = dbn.classes
    seen = torch.cat([torch.eye(classes, dtype=F64).repeat_interleave(len(k), 0), k.repeat(classes, 1)], 1)
    w, b, c = (p.detach() for p in (dbn.top.weight, dbn.top.visible_bias, dbn.top.hidden_bias))
    start = torch.zeros(classes, len(k), dtype=F64)
    start.index_add_(0, y, q_h @ q_k / n)
    start = start.flatten()
    up = coins(torch.sigmoid(c + seen @ w), t)  # (seen, t)
    down = torch.softmax((b + t @ w.T) @ seen.T, 1)  # (t, seen)
    end = start @ torch.linalg.matrix_power(up @ down, steps)
    shift = end - start
    active = torch.sigmoid(c + seen @ w)
    out["weight"] = torch.einsum("s,si,sj->ij", shift, seen, active)
    out["visible_bias"], out["hidden_bias"] = shift @ seen, shift @ active

    p_k = end.reshape(classes, len(k)).sum(0)
    p_h = coins(mean(high.bias + k @ high.weight.T), h)  # (k, h)
    error = k[:, None] - mean(high.recognition_bias + h @ high.recognition_weight)  # (k, h, unit)
    out["1.recognition_bias"] = -torch.einsum("k,kh,khu->u", p_k, p_h, error)
    out["1.recognition_weight"] = -torch.einsum("k,kh,hi,khu->iu", p_k, p_h, h, error)
    v = states(x.shape[1])
    p_v = coins(mean(low.bias + h @ low.weight.T), v)  # (h, v)
    error = h[:, None] - mean(low.recognition_bias + v @ low.recognition_weight)  # (h, v, unit)
    out["0.recognition_bias"] = -torch.einsum("h,hv,hvu->u", p_k @ p_h, p_v, error)
    out["0.recognition_weight"] = -torch.einsum("h,hv,vi,hvu->iu", p_k @ p_h, p_v, v, error)
    return torch.cat([
        out[name.removeprefix("directed.").removeprefix("top.")].flatten() for name, _ in dbn.named_parameters()
    ])  # fmt: skip


@pytest.mark.parametrize("steps", [1, 3])
def test_phases_of_up_down_have_the_gradients_of_the_rule(steps):
    dbn = randomize(DBN(3, 2, 2, 2, labels=2))
    x, y = bits(40, 3), torch.arange(40) % 2
    truth = up_down_by_enumeration(dbn, x, y, steps)
    z = z_scores(dbn, objectives.UpDown(steps=steps), (x, y), truth, repeats=300)
    assert float(z.abs().max()) < 5  # about 50 entries: a false alarm in 3e4
    assert float(z.square().mean()) < 1.7


def test_fast_phases_are_those_of_any_units():
    """Bernoulli layers by hand against the same network by autograd, on the same states."""
    dbn = randomize(DBN(6, 5, 4, 3))
    x = bits(9, 6)
    low, high = dbn.layers
    wake, slopes, top = wake_phase(dbn.layers, x, gen())
    noise = torch.rand(9, 5, generator=(g := gen()), dtype=F64), torch.rand(9, 4, generator=g, dtype=F64)
    h = (noise[0] < torch.sigmoid(low.recognition_bias + x @ low.recognition_weight)).double()
    k = (noise[1] < torch.sigmoid(high.recognition_bias + h @ high.recognition_weight)).double()
    assert torch.equal(top, k)
    expected = -(low.log_p(x, h) + high.log_p(h, k)).mean()
    torch.testing.assert_close(wake, expected)
    names = [low.weight, low.bias, high.weight, high.bias]
    got = torch.autograd.grad(wake, names)
    for p, a, b in zip(names, got, torch.autograd.grad(expected, names), strict=True):
        torch.testing.assert_close(a, b)
        assert torch.equal(a, slopes[p])
    sleep, _ = sleep_phase(dbn.layers, k, x, gen(1))
    noise = torch.rand(9, 6, generator=(g := gen(1)), dtype=F64), torch.rand(9, 5, generator=g, dtype=F64)
    h = (noise[1] < torch.sigmoid(high.bias + k @ high.weight.T)).double()
    v = (noise[0] < torch.sigmoid(low.bias + h @ low.weight.T)).double()
    expected = -(high.log_q(k, h) + low.log_q(h, v)).mean()
    torch.testing.assert_close(sleep, expected)
    names = [low.recognition_weight, low.recognition_bias, high.recognition_weight, high.recognition_bias]
    for a, b in zip(torch.autograd.grad(sleep, names), torch.autograd.grad(expected, names), strict=True):
        torch.testing.assert_close(a, b)


def test_the_value_of_saturated_units_is_finite_in_single_precision():
    dbn = DBN(6, 4, 3)
    with torch.no_grad():
        dbn.layers[0].bias.fill_(100.0)
    loss = objectives.UpDown()(dbn, torch.zeros(5, 6), (), gen())
    assert 550 < float(loss.metrics["wake"]) < 610


NETWORKS = {
    "binary": lambda: DBN(6, 4, 3, 5),
    "labels": lambda: DBN(6, 4, 6, labels=3),
    "spins": lambda: DBN(units.Spin(5), units.Spin(3), 4),
    "Gaussian": lambda: DBN(units.Gaussian(4), 3, 3, labels=2),
    "softmax": lambda: DBN(units.Softmax(3, classes=3), units.Softmax(2, classes=2), 4, labels=2),
    "real features": lambda: DBN(5, units.Gaussian(3, learned=False), 3, labels=2),
    "rectified": lambda: DBN(units.Rectified(4), 3, units.Spin(2)),
}


def data_of(dbn, n=30):
    x = dbn.domain.sample(n, generator=gen(4))
    return x if dbn.classes is None else (x, torch.arange(n) % dbn.classes)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_of_unit_is_pretrained_fine_tuned_bounded_and_generates(name):
    dbn = NETWORKS[name]()
    data = data_of(dbn)
    x = data if torch.is_tensor(data) else data[0]
    runs = gb.pretrain(dbn, CD, data, steps=4, lr=0.01, batch_size=10)
    assert len(runs) == dbn.stages()
    check_objective(objectives.UpDown(steps=2), dbn, data, generator=gen())
    gb.fit(dbn, objectives.UpDown(steps=1), data, steps=3, batch_size=10, lr=0.01)
    log_z = partition.ais(dbn, x, chains=10, betas=30, generator=gen())
    if dbn.sums_exactly():
        exact = gb.log_likelihood(dbn, x).per_sample
        bound = dbn.log_mass_bound(x, samples=200, generator=gen()) - partition.exact(dbn).value
        assert float((bound - exact).max()) < 0.1
    else:
        out = gb.log_likelihood(dbn, x, log_z, generator=gen(), samples=3)
        assert "bound" in out.method
        assert math.isinf(float(out.upper))
    v = dbn.generate(5, steps=3, generator=gen())
    dbn.domain.check(v, "v")
    assert dbn.features(x).shape[0] == len(x)
    again = rebuild(describe(dbn, tensors := {}), tensors)
    assert torch.equal(again.features(x), dbn.features(x))
    classifier = dbn.to_classifier(dbn.classes or 2)
    assert classifier.class_log_prob(x).shape == (30, dbn.classes or 2)


def test_counts_at_the_bottom():
    dbn = DBN(units.Count(5), 3, 4)
    x = torch.tensor([[2.0, 1, 0, 0, 3], [1, 0, 0, 1, 0], [0, 0, 4, 0, 1]])
    gb.pretrain(dbn, CD, x, steps=3, lr=0.01, batch_size=3)
    gb.fit(dbn, objectives.UpDown(), x, steps=2, batch_size=3, lr=0.01)
    v = dbn.generate(3, steps=2, total=x.sum(1), generator=gen())
    assert torch.equal(v.sum(1), x.sum(1))
    n = domains.Counts(5, total=2).states()
    p = gb.log_likelihood(dbn, n).per_sample.exp()  # documents of one length: probabilities
    torch.testing.assert_close(p.sum(), torch.ones((), dtype=F64), atol=1e-5, rtol=0)


def test_ais_of_the_network_is_that_of_its_top_machine():
    dbn = randomize(DBN(5, 4, 3, 4, labels=2), scale=0.5)
    estimate = partition.ais(dbn, bits(50, 5), chains=200, betas=200, generator=gen())
    assert abs(float(estimate.value - partition.exact(dbn).value)) < 5 * float(estimate.stderr) + 1e-3


def test_greedy_training_raises_the_likelihood_and_up_down_goes_on(tmp_path):
    g = gen(3)
    p = torch.tensor([[0.9] * 4 + [0.1] * 4, [0.1] * 4 + [0.9] * 4])
    y = torch.randint(2, (600,), generator=g)
    x = torch.bernoulli(p[y], generator=g)
    dbn = DBN(8, 4, 8, labels=2)
    before = float(gb.log_likelihood(dbn, x).value)
    gb.pretrain(dbn, CD, (x, y), epochs=[8, 12], lr=0.2, batch_size=20, optimizer="sgd", run_dir=tmp_path / "greedy")
    assert isinstance(gb.load(tmp_path / "greedy" / "stage-1"), RBM)
    greedy = float(gb.log_likelihood(dbn, x).value)
    assert greedy > before + 0.5
    assert float((dbn.classify(x) == y).double().mean()) > 0.9
    gb.fit(dbn, objectives.UpDown(), (x, y), epochs=6, lr=0.02, batch_size=20, optimizer="sgd", run_dir=tmp_path / "up")
    assert float(gb.log_likelihood(dbn, x).value) > greedy - 0.1
    again = gb.load(tmp_path / "up")
    assert torch.equal(again(x), dbn(x))
    assert torch.equal(again.class_log_prob(x), dbn.class_log_prob(x))
    classifier = again.to_classifier()
    gb.fit(classifier, objectives.CrossEntropy(), (x, y), epochs=3, lr=1e-3, run_dir=tmp_path / "net")
    assert float((classifier.class_log_prob(x).argmax(1) == y).double().mean()) > 0.9
    assert torch.equal(gb.load(tmp_path / "net").class_log_prob(x), classifier.class_log_prob(x))


def stop(run):
    raise KeyboardInterrupt


@pytest.mark.parametrize("network", ["dbn", "dbm"])
@pytest.mark.parametrize("stage", [1, 2])
def test_greedy_training_goes_on_where_it_was_interrupted(network, stage, tmp_path):
    """After the checkpoint of step 4 or 8 of a stage: the machines are those of a training that nobody stopped, to the bit."""
    x, y = bits(200, 8).float(), torch.arange(200) % 2
    make = (lambda: DBN(8, 5, 4, 6, labels=2)) if network == "dbn" else (lambda: models.DBM(8, 5, 4, 3))
    data = (x, y) if network == "dbn" else x
    how = {"steps": 9, "batch_size": 20, "lr": 0.2, "optimizer": {"name": "sgd", "momentum": 0.5}}
    how["checkpoints"] = gb.training.Checkpoints(every=4)
    whole, again = make(), make()
    gb.pretrain(whole, CD, data, **how)
    for last in (6, 9):
        late = [[(99, stop)] if i != stage else [(last, stop)] for i in range(3)][: again.stages()]
        with contextlib.suppress(KeyboardInterrupt):
            gb.pretrain(make(), CD, data, **how, hooks=late, run_dir=tmp_path / str(last))
        assert sorted(p.name for p in (tmp_path / str(last)).iterdir()) == [f"stage-{i + 1}" for i in range(stage + 1)]
        again = make()
        runs = gb.pretrain(again, CD, data, **how, hooks=(), run_dir=tmp_path / str(last), resume=True)
        assert [run.step for run in runs] == [9] * again.stages()
        for p, q in zip(again.parameters(), whole.parameters(), strict=True):
            assert torch.equal(p, q)
    with pytest.raises(ArgumentError, match="run_dir"):
        gb.pretrain(make(), CD, data, **how, resume=True)
    with pytest.raises(CheckpointError, match="already holds files"):
        gb.pretrain(make(), CD, data, **how, run_dir=tmp_path / "6")


def test_a_folder_of_layers_becomes_a_run_by_the_training_of_the_whole(tmp_path):
    x, y = bits(60, 6).float(), torch.arange(60) % 2
    dbn = DBN(6, 4, 5, labels=2)
    gb.pretrain(dbn, CD, (x, y), steps=2, lr=0.1, run_dir=tmp_path / "run" / "pretraining")
    with pytest.raises(CheckpointError, match="no training of the whole yet"):
        gb.load(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "half").mkdir(
        parents=True
    )  # of a first try that was killed while it made its folder
    gb.fit(dbn, objectives.UpDown(), (x, y), steps=2, lr=0.1, run_dir=tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "step-000000000000",
        "step-000000000002",
    ]
    assert torch.equal(gb.load(tmp_path / "run")(x), dbn(x))
    assert isinstance(gb.load(tmp_path / "run" / "pretraining" / "stage-2"), RBM)
    with pytest.raises(CheckpointError, match="already holds files"):
        gb.fit(dbn, objectives.UpDown(), (x, y), steps=2, lr=0.1, run_dir=tmp_path / "run")


def test_batches_are_encoded_on_the_fly_with_new_draws():
    """The machine of the second stage sees states drawn from those below, another draw every time."""
    dbn, x = DBN(6, 4, 5), bits(300, 6).float()
    a, b = (dbn.encode(1, x, gen(i)) for i in range(2))
    assert not torch.equal(a, b)
    mean = dbn.encode(1, x, None)
    torch.testing.assert_close(mean, dbn.features(x, depth=1))
    assert float((a.mean(0) - mean.mean(0)).abs().max()) < 5 * 0.5 / 300**0.5


def test_refusals_say_what_to_do():
    with pytest.raises(ArgumentError, match="three layers or more"):
        DBN(4, 3)
    with pytest.raises(ArgumentError, match="learned=False"):
        DBN(4, units.Gaussian(3), 2)
    big = DBN(784, 500, 500)
    with pytest.raises(CapabilityError, match="log_likelihood"):
        big(torch.zeros(1, 784))
    with pytest.raises(CapabilityError, match="layer by layer"):
        gb.pretrain(RBM(3, 2), CD, torch.zeros(4, 3), steps=1)
    with pytest.raises(ArgumentError, match="one for each of 2 stages"):
        gb.pretrain(DBN(4, 3, 2), CD, torch.zeros(4, 4), steps=[1, 2, 3])
    with pytest.raises(DataError, match="pairs"):
        gb.pretrain(DBN(4, 3, 2, labels=2), CD, torch.zeros(4, 4), steps=1)
    with pytest.raises(DataError, match="labels run from 0 to 2"):
        gb.fit(DBN(4, 3, 2, labels=2), objectives.UpDown(), (torch.zeros(3, 4), torch.arange(3)), steps=1)
    with pytest.raises(CapabilityError, match="UpDown trains"):
        objectives.UpDown().check(RBM(3, 2), torch.zeros(2, 3))
    with pytest.raises(ArgumentError, match="no bound"):
        gb.log_likelihood(RBM(3, 2), torch.zeros(2, 3), samples=3)


@pytest.mark.parametrize("name", ["binary", "labels", "spins", "softmax"])
def test_small_networks_keep_the_promises_of_energies(name):
    dbn = NETWORKS[name]()
    with torch.no_grad():
        for p in dbn.parameters():
            p.add_(0.5 * torch.randn(p.shape, generator=gen(3)))
    check_energy(dbn, dbn.domain.sample(8, generator=gen(1)), generator=gen())


def test_labeled_contrast_is_the_one_of_any_units():
    """The fast contrast of a joined label and features against free energies, and its chain against enumeration."""
    rbm = RBM(units.Joined(units.Softmax(1, classes=3), units.Bernoulli(2)), 2).double()
    g = gen(1)
    with torch.no_grad():
        for p in rbm.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=F64))
    seen = rbm.domain.states(dtype=F64)
    law = torch.softmax(-rbm(seen), 0).detach()
    batch = seen[torch.multinomial(law, 40000, replacement=True, generator=g)]
    value, chain, _ = rbm.contrast(batch, None, 2, g)
    torch.testing.assert_close(value, rbm(batch).mean() - rbm(chain).mean())
    gradient = torch.autograd.grad(value, list(rbm.parameters()))
    plain = torch.autograd.grad(rbm(batch).mean() - rbm(chain).mean(), list(rbm.parameters()))
    for a, b in zip(gradient, plain, strict=True):
        torch.testing.assert_close(a, b)
    counts = (chain[:, None] == seen).all(2).double().sum(0)
    assert scipy.stats.chisquare(counts.numpy(), (40000 * law).numpy()).pvalue > 1e-4


def test_labeled_contrast_for_the_compiler_is_the_plain_one():
    rbm = RBM(units.Joined(units.Softmax(1, classes=3), units.Bernoulli(4)), 5).double()
    g = gen(1)
    with torch.no_grad():
        for p in rbm.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=F64))
    batch, g = rbm.domain.sample(8, generator=gen(2), dtype=F64), gen(7)
    coins = [torch.rand(8 * (7 + 5), generator=g, dtype=F64) for _ in range(2)]
    weights = [p.detach() for p in (rbm.weight, rbm.visible_bias, rbm.hidden_bias)]
    value, chain, gradients = fused_contrast(*weights, batch, None, coins, 3)
    plain, samples, _ = rbm.contrast(batch, None, 2, gen(7))
    assert torch.equal(chain, samples)
    torch.testing.assert_close(value, plain.detach())
    expected = torch.autograd.grad(plain, [rbm.weight, rbm.visible_bias, rbm.hidden_bias])
    torch.testing.assert_close(tuple(gradients), expected)


def test_copies_do_not_share_units():
    unit = units.Gaussian(3)
    dbn = DBN(unit, 2, 2)
    assert copy.deepcopy(dbn).layers[0].lower is not dbn.layers[0].lower
    assert dbn.layers[0].lower is not unit


def test_gray_digits_are_drawn_anew_inside_the_step():
    gray, dbn = torch.rand(40, 6, generator=gen()), DBN(6, 4, 3, labels=2)
    y = torch.arange(40) % 2
    a, b = (objectives.Binarized(CD).drawn(dbn, (gray, y), gen(i)) for i in range(2))
    assert not torch.equal(a[0], b[0])
    assert a[1] is y
    often = torch.stack([objectives.Binarized(CD).drawn(dbn, gray, gen(i)) for i in range(400)]).mean(0)
    assert float((often - gray).abs().max()) < 5 * 0.5 / 20
    gb.pretrain(dbn, objectives.Binarized(CD), (gray, y), steps=3, batch_size=10, lr=0.01)
    gb.fit(dbn, objectives.Binarized(objectives.UpDown(steps=1)), (gray, y), steps=3, batch_size=10, lr=0.01)
    check_objective(objectives.Binarized(objectives.UpDown()), dbn, (gray, y), generator=gen())
    with pytest.raises(DataError, match="outside Box"):
        gb.fit(dbn, objectives.Binarized(objectives.UpDown()), (2 * gray, y), steps=1)
