"""Training deep Boltzmann machines: gradients against enumeration, pre-training, centering, classifiers, run folders."""

import itertools
import math

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, kernels, models, objectives, partition, units
from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.models.dbm.doubled import DoubledRBM
from gibbsian.models.dbm.phases import negative_phase, positive_phase
from gibbsian.objectives.variational import LayerChains
from gibbsian.testing import check_objective

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def machine(*spec, scale=0.8):
    dbm, g = models.DBM(*(spec or (4, 3, 2))).double(), gen(3)
    with torch.no_grad():
        for p in dbm.parameters():
            p.add_(scale * torch.randn(p.shape, generator=g, dtype=F64))
    return dbm


def all_states(dbm):
    """Every state of all layers, and their probabilities."""
    each = [unit.domain.states(dtype=F64) for unit in dbm.layers]
    index = torch.tensor(list(itertools.product(*(range(len(s)) for s in each))))
    layers = [s[index[:, k]] for k, s in enumerate(each)]
    return layers, torch.softmax(-dbm.joint(*layers), 0).detach()


def exact_chains(dbm, n, seed=0):
    layers, p = all_states(dbm)
    index = torch.multinomial(p, n, replacement=True, generator=gen(seed))
    return tuple(layer[index] for layer in layers)


def structured(n=300, seed=0):
    """Six binary units: the first three agree, the others are their opposite, with some noise."""
    g = gen(seed)
    bit = (torch.rand(n, 1, generator=g) < 0.7).float()
    x = torch.cat([bit.expand(-1, 3), 1 - bit.expand(-1, 3)], 1)
    return (x - (torch.rand(n, 6, generator=g) < 0.1).float()).abs()


def likelihood(dbm, data):
    return float(gb.log_likelihood(dbm, data).value)


# --- gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [(4, 3, 2), (3, 2, 2, 2), (4, 3), (units.Spin(3), 2, units.Softmax(1, 3))], ids=str)
def test_both_phases_match_enumerated_expectations(spec):
    """Chains drawn exactly stay in their law, so their phase is E_model; 5 σ with entries of standard deviation ≤ 1."""
    dbm, m = machine(*spec), 100_000
    x = dbm.domain.sample(7, generator=gen(1), dtype=F64)
    objective = objectives.VariationalLikelihood(iterations=40, steps=2, chains=m)
    state = objective.init(dbm, x, gen())._replace(layers=exact_chains(dbm, m))
    objective(dbm, x, state, gen(5)).value.backward()
    layers, p = all_states(dbm)
    model = [unit.statistic(layer) for unit, layer in zip(dbm.layers, layers, strict=True)]
    means = dbm.infer(x, iterations=40, tolerance=None).means
    data = [unit.statistic(layer) for unit, layer in zip(dbm.layers, (x, *means), strict=True)]
    sizes = []
    for i, w in enumerate(dbm.weights):
        truth = (model[i] * p[:, None]).T @ model[i + 1] - data[i].T @ data[i + 1] / len(x)
        assert (w.grad - truth).abs().max() < 5 / math.sqrt(m)
        sizes.append(truth.abs().max())
    assert max(sizes) > 15 / math.sqrt(m)  # so that a wrong sign would be seen
    for i, b in enumerate(dbm.biases):
        assert (b.grad - (p @ model[i] - data[i].mean(0))).abs().max() < 5 / math.sqrt(m)


LABELED = units.Joined(units.Softmax(1, classes=3), units.Bernoulli(2))


@pytest.mark.parametrize("spec", [(4, 3, 2), (LABELED, 3, 2), (4, 3, LABELED)], ids=["plain", "below", "on top"])
def test_the_fast_gradient_is_that_of_the_energies(spec):
    """Handed-out gradients against automatic differentiation of the two terms, statistics held fixed."""
    dbm = machine(*spec)
    assert dbm.linear_biases()  # of units side by side too, so that they can be centered
    x = dbm.domain.sample(7, generator=gen(1), dtype=F64)
    objective = objectives.VariationalLikelihood(iterations=6, steps=3, chains=9)
    state = objective.init(dbm, x, gen())
    loss = objective(dbm, x, state, gen(2))
    fast = torch.autograd.grad(loss.value, list(dbm.parameters()))
    means = dbm.infer(x, iterations=6, tolerance=None).means
    v, _, h2 = loss.state.layers
    slow = dbm.joint(x, *means).mean() + dbm.mass([v, None, h2]).mean()
    for a, b in zip(fast, torch.autograd.grad(slow, list(dbm.parameters())), strict=True):
        assert torch.allclose(a, b)
    bound = dbm.log_mass_bound(x, iterations=6, tolerance=None).mean()
    assert torch.allclose(loss.value, -bound + dbm.mass([v, None, h2]).mean())


@pytest.mark.parametrize("spec", [(6, 4, 3), (6, 4, 3, 3), (6, 4, 3, 2, 2), (6, 4)], ids=str)
@pytest.mark.parametrize("sweeps", [1, 3])
def test_phases_side_by_side_are_the_same(spec, sweeps, monkeypatch):
    """What is compiled for captured steps against the two phases one after the other, on the same random numbers."""
    dbm, x = machine(*spec), structured(9).double()
    objective = objectives.VariationalLikelihood(iterations=4, steps=sweeps, chains=7, centering=0.1)
    state = objective.init(dbm, x, gen())
    plain = objective(dbm, x, state, gen(2))
    asked = []

    def same(function, *key):
        asked.append(key)
        return function

    monkeypatch.setattr("gibbsian.models.dbm.machine.compiled_copy", same)
    beside = objective.loss(dbm, x, state, gen(2), objectives.base.Step(fused=True))
    assert len(asked) == 1
    assert torch.allclose(plain.value, beside.value)
    assert all(torch.equal(a, b) for a, b in zip(plain.state.layers, beside.state.layers, strict=True))
    assert all(torch.allclose(a, b) for a, b in zip(plain.state.offsets, beside.state.offsets, strict=True))
    assert torch.allclose(plain.metrics["residual"], beside.metrics["residual"], atol=1e-12)
    gradients = [torch.autograd.grad(loss.value, list(dbm.parameters())) for loss in (plain, beside)]
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


def test_gaussian_visible_units_learn_through_the_energy():
    dbm = machine(units.Gaussian(2), 3, 2, scale=0.3)
    x = 1 + torch.randn(50, 2, generator=gen(), dtype=F64)
    objective = objectives.VariationalLikelihood(iterations=6, steps=3, chains=9)
    loss = objective(dbm, x, objective.init(dbm, x, gen()), gen(2))
    loss.value.backward()
    v, _, h2 = loss.state.layers
    means = dbm.infer(x, iterations=6, tolerance=None).means
    slow = dbm.joint(x, *means).mean() + dbm.mass([v, None, h2]).mean()
    for p, g in zip(dbm.parameters(), torch.autograd.grad(slow, list(dbm.parameters())), strict=True):
        assert torch.allclose(p.grad, g)
    assert torch.allclose(
        loss.value, -dbm.log_mass_bound(x, iterations=6, tolerance=None).mean() + dbm.mass([v, None, h2]).mean()
    )
    with pytest.raises(CapabilityError, match="centering needs"):
        objectives.VariationalLikelihood(centering=0.1).init(dbm, x, gen())


def test_centering_is_the_gradient_of_the_centered_machine():
    """ΔW are differences of covariances about the offsets, and biases move so that centered ones take plain steps."""
    dbm = machine()
    x = dbm.domain.sample(7, generator=gen(1), dtype=F64)
    objective = objectives.VariationalLikelihood(iterations=6, steps=3, chains=9, centering=0.3)
    state = objective.init(dbm, x, gen())
    loss = objective(dbm, x, state, gen(2))
    loss.value.backward()
    with torch.no_grad():
        positive, _ = positive_phase(dbm, x, 6)
        negative, _ = negative_phase(dbm, state.layers, 3, gen(2))
        mu = [torch.lerp(a, b.mean(0), 0.3) for a, b in zip(state.offsets, positive.statistics, strict=True)]
        assert all(torch.equal(a, b) for a, b in zip(mu, loss.state.offsets, strict=True))

        def covariance(phase, i):
            a, b = phase.statistics[i] - mu[i], phase.statistics[i + 1] - mu[i + 1]
            return a.T @ b / len(a)

        dw = [covariance(negative, i) - covariance(positive, i) for i in range(2)]
        db = [b.mean(0) - a.mean(0) for a, b in zip(positive.statistics, negative.statistics, strict=True)]
        expected = [db[0] - dw[0] @ mu[1], db[1] - mu[0] @ dw[0] - dw[1] @ mu[2], db[2] - mu[1] @ dw[1]]
    assert all(torch.allclose(p.grad, g) for p, g in zip(dbm.weights, dw, strict=True))
    assert all(torch.allclose(p.grad, g) for p, g in zip(dbm.biases, expected, strict=True))
    with pytest.raises(ArgumentError, match="offsets"):
        objective(dbm, x, LayerChains(state.layers), gen())


@pytest.mark.parametrize("options", [{}, {"centering": 0.1}, {"start": "data"}], ids=str)
def test_the_objective_keeps_its_promises(options):
    objective = objectives.VariationalLikelihood(iterations=3, steps=2, chains=8, **options)
    check_objective(objective, models.DBM(6, 4, 3), structured(10), generator=gen())


# --- pre-training -----------------------------------------------------------------------------------


def test_doubled_machines_have_the_conditionals_of_the_paper():
    v, h = torch.rand(3, 4, generator=gen()), torch.rand(3, 2, generator=gen(1))
    for up, down in ((2, 1), (1, 2), (2, 2)):
        rbm = DoubledRBM(4, 2, up=up, down=down)
        with torch.no_grad():
            rbm.weight.normal_(generator=gen(2)), rbm.visible_bias.normal_(generator=gen(3))
            rbm.hidden_bias.normal_(generator=gen(4))
            assert torch.allclose(rbm.hidden_mean(v), torch.sigmoid(rbm.hidden_bias + up * v @ rbm.weight))
            assert torch.allclose(rbm.visible_mean(h), torch.sigmoid(rbm.visible_bias + down * h @ rbm.weight.T))
    x = (v > 0.5).float()
    value, y, _ = rbm.contrast(x, None, 1, gen(5))
    value.backward()
    p, q = rbm.hidden_mean(x).detach(), rbm.hidden_mean(y).detach()
    assert torch.allclose(rbm.weight.grad, (y.T @ q - x.T @ p) / 3, atol=1e-6)
    assert torch.allclose(rbm.hidden_bias.grad, (q - p).mean(0), atol=1e-6)
    assert torch.allclose(rbm.visible_bias.grad, (y - x).mean(0), atol=1e-6)
    with pytest.raises(CapabilityError, match="pre-training"):
        partition.ais(rbm, x, generator=gen())
    with pytest.raises(ArgumentError, match="once or twice"):
        DoubledRBM(4, 2, up=3)


def test_machines_of_the_stages_are_put_together():
    dbm = models.DBM(6, 4, 3, 2)
    x = structured(20)
    stages = [dbm.begin_stage(0, x), dbm.begin_stage(1, dbm.encode(1, x, gen())), None]
    stages[2] = dbm.begin_stage(2, dbm.encode(2, x, gen()))
    assert [(s.up, s.down) for s in stages] == [(2, 1), (2, 2), (1, 2)]
    with torch.no_grad():
        for k, stage in enumerate(stages):
            for p in stage.parameters():
                p.normal_(generator=gen(k))
            dbm.end_stage(k, stage)
        bottom, middle, top = stages
        assert all(torch.equal(w, s.weight) for w, s in zip(dbm.weights, stages, strict=True))
        assert torch.equal(dbm.biases[0], bottom.visible_bias)
        assert torch.equal(dbm.biases[3], top.hidden_bias)
        assert torch.allclose(dbm.biases[1], (bottom.hidden_bias + middle.visible_bias) / 2)
        assert torch.allclose(dbm.biases[2], (middle.hidden_bias + top.visible_bias) / 2)
        h, k = torch.rand(20, 4, generator=gen(8)), torch.rand(20, 3, generator=gen(9))
        both = dbm.natural(1, [x, h, k, None]).linear  # the average of what the two machines say
        alone = (bottom.hidden_natural(x).linear + middle.visible_natural(k).linear) / 2
        assert torch.allclose(both, alone, atol=1e-6)


def test_layers_are_encoded_with_doubled_inputs():
    dbm = machine(6, 4, 3)
    x = structured(5).double()
    mean = dbm.encode(1, x, None)
    assert torch.allclose(mean, torch.sigmoid(dbm.biases[1] + 2 * x @ dbm.weights[0]))
    many = dbm.encode(1, x[:1].expand(40000, -1), gen())
    assert ((many.mean(0) - mean[0]).abs() < 5 * 0.5 / 200).all()
    assert dbm.encode(0, x, gen()) is x


def test_pretraining_and_joint_training_raise_the_likelihood(tmp_path):
    data = structured()
    dbm = models.DBM(6, 4, 3)
    dbm.initialize_visible_bias(data)
    start = likelihood(dbm, data)
    cd = objectives.ContrastiveDivergence(kernels.Gibbs())
    gb.pretrain(dbm, cd, data, steps=150, batch_size=50, lr=0.2, optimizer="sgd", seed=0)
    before = likelihood(dbm, data)
    objective = objectives.VariationalLikelihood(iterations=10, steps=2, chains=50)
    gb.fit(dbm, objective, data, steps=200, batch_size=50, lr=0.1, optimizer="sgd", run_dir=tmp_path / "run")
    after = likelihood(dbm, data)
    assert before > start + 0.3
    assert after > before + 0.05
    again = gb.load(tmp_path / "run")
    assert torch.equal(again(data), dbm(data))


def test_centering_trains_all_layers_from_scratch():
    data = structured()
    dbm = models.DBM(6, 4, 3)
    dbm.initialize_visible_bias(data)
    start = likelihood(dbm, data)
    objective = objectives.VariationalLikelihood(iterations=10, steps=2, chains=50, centering=0.05)
    gb.fit(dbm, objective, data, steps=300, batch_size=50, lr=0.3, optimizer="sgd")
    assert likelihood(dbm, data) > start + 0.8


def test_a_run_goes_on_where_it_stopped(tmp_path):
    data = structured(100)
    objective = objectives.VariationalLikelihood(iterations=3, steps=1, chains=10, centering=0.05)
    options = {"batch_size": 20, "lr": 0.05, "seed": 1}
    whole = gb.fit(models.DBM(6, 4, 3), objective, data, steps=20, **options)
    gb.fit(models.DBM(6, 4, 3), objective, data, steps=10, run_dir=tmp_path / "run", **options)
    rest = gb.resume(tmp_path / "run", data, steps=20)
    for a, b in zip(whole.energy.parameters(), rest.energy.parameters(), strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(whole.state.layers, rest.state.layers, strict=True))


def test_weights_decay_and_others_are_refused():
    dbm, x = models.DBM(6, 4, 3), structured(10)
    objectives.WeightDecay(0.1)(dbm, x, (), gen()).value.backward()
    assert all(torch.allclose(w.grad, 0.1 * w) for w in dbm.weights)
    assert all(b.grad is None for b in dbm.biases)
    with pytest.raises(CapabilityError, match=r"trains models\.DBM"):
        objectives.VariationalLikelihood().init(models.RBM(6, 3), x, gen())
    with pytest.raises(ArgumentError, match="chains"):
        objectives.VariationalLikelihood(chains=0)


# --- classifiers ------------------------------------------------------------------------------------


def test_a_classifier_starts_as_one_more_mean_field_iteration():
    dbm = machine(4, 3, 3, 2)
    x = torch.rand(5, 4, generator=gen(), dtype=F64)
    classifier = models.DBMClassifier(dbm, classes=3, iterations=300)
    means = dbm.infer(x, iterations=300, tolerance=None).means
    logits = means[-1] @ classifier.net.read_out + classifier.net.read_out_bias
    assert torch.allclose(classifier.class_log_prob(x), torch.log_softmax(logits, 1), atol=1e-8)
    assert isinstance(classifier.domain, domains.Box)
    trained = {name for name, p in classifier.named_parameters() if p.requires_grad}
    assert not any(name.startswith("net.dbm") for name in trained)
    assert "net.above.0" in trained


def test_classifiers_learn_and_come_back_from_a_run_folder(tmp_path):
    x = structured(400)
    y = (x[:, 0] > x[:, 5]).long()
    dbm = models.DBM(6, 5, 4)
    classifier = models.DBMClassifier(dbm, classes=2, iterations=3)
    objective = objectives.DropoutCrossEntropy(inputs=0.1, hidden=0.2)
    gb.fit(classifier, objective, (x, y), steps=300, batch_size=50, lr=0.02, run_dir=tmp_path / "run")
    wrong = (classifier.class_log_prob(x).argmax(1) != y).double().mean()
    assert wrong < 0.05
    assert all(torch.equal(a, b) for a, b in zip(classifier.net.dbm.parameters(), dbm.parameters(), strict=True))
    again = gb.load(tmp_path / "run")
    assert torch.equal(again.class_log_prob(x), classifier.class_log_prob(x))


def test_units_are_dropped_from_the_generator():
    x = structured(50)
    batch = x, (x[:, 0] > 0.5).long()
    classifier = models.DBMClassifier(machine(6, 5, 4).float(), classes=2)
    noisy = objectives.DropoutCrossEntropy(inputs=0.3, hidden=0.5)
    values = [noisy(classifier, batch, (), gen(seed)).value.item() for seed in (0, 0, 1)]
    assert values[0] == values[1] != values[2]
    quiet = objectives.DropoutCrossEntropy(inputs=0.0, hidden=0.0)(classifier, batch, (), gen())
    assert torch.equal(quiet.value, objectives.CrossEntropy()(classifier, batch, (), gen()).value)
    seen = []

    class Watch(models.DBMClassifier):
        def class_log_prob(self, x, drop=None):
            seen.append([drop(torch.ones(2000, 50), inputs) for inputs in (True, False)])
            return super().class_log_prob(x, drop)

    noisy(Watch(machine(6, 5, 4).float(), classes=2), batch, (), gen())
    for kept, share in zip(seen[0], (0.3, 0.5), strict=True):
        assert abs(float((kept == 0).double().mean()) - share) < 5 * math.sqrt(share * (1 - share) / 1e5)
        assert torch.allclose(kept[kept != 0], torch.tensor(1 / (1 - share)))
    joint = models.JointEnergy(torch.nn.Linear(6, 2), domains.Box(6))
    with pytest.raises(CapabilityError, match="DBMClassifier"):
        noisy.init(joint, batch, gen())
