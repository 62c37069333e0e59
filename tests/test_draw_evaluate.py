"""`draw` and `evaluate` for any model: by what suits it, with the right law and numbers, saying what was done."""

import json
import math

import pytest
import torch
from torch import nn

import gibbsian as gb
from gibbsian import domains, energies, kernels, models, objectives, partition
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, RandomnessError, ShapeError
from gibbsian.metrics.evaluation import summary
from gibbsian.uses.draw import draw_with_trace, suitable_kernel

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def scrambled(model, scale=0.7, seed=0):
    g = gen(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=g))
    return model.double()


class Blurred(nn.Module):
    """The score of a standard normal with noise on it."""

    def forward(self, x, sigma):
        return -x / (1 + sigma[:, None] ** 2)


def score_network():
    return models.NoiseConditionalScore(Blurred(), domains.Real(2), gb.schedules.geometric(5.0, 0.05, 40)).double()


def dbn():
    return scrambled(models.DBN(5, 4, 3))


def machine(n, hidden, scale=0.7):
    model = scrambled(models.BoltzmannMachine(n, hidden=hidden), scale)
    upper = model.weight.detach().triu(1)
    model.set_parameters(weight=upper + upper.T)
    return model


MODELS = {
    "RBM": (lambda: scrambled(models.RBM(5, 3)), "Gibbs"),
    "DBM": (lambda: scrambled(models.DBM(5, 4, 3)), "its own way"),
    "DBN": (dbn, "its own way"),
    "Gaussian": (lambda: energies.Gaussian(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64)), "exact"),
    "Ising": (lambda: models.Ising(6, coupling=0.4, field=0.2).double(), "Gibbs"),
    "machine": (lambda: machine(5, 2), "Gibbs"),
    "many hidden": (lambda: machine(3, 17, 0.3), "its own way"),
    "classes": (lambda: scrambled(models.ClassificationRBM(5, 2, 3)), "Gibbs"),
    "network": (lambda: energies.MLPEnergy(2, (8,), confine=1.0).double(), "HMC"),
    "score": (score_network, "AnnealedLangevin"),
    "any discrete": (lambda: gb.as_energy(lambda x: x.sum(-1), domains.Binary(4)), "SiteGibbs"),
}


@pytest.mark.parametrize("name", MODELS)
def test_draws_of_any_model(name):
    make, how = MODELS[name]
    model, before = make(), torch.random.get_rng_state()
    found = draw_with_trace(model, 20, steps=30, generator=gen(1))
    assert found.x.shape == (20, *model.domain.shape)
    assert found.how.startswith(how)
    assert torch.isfinite(found.x).all()
    model.domain.check(found.x)
    assert torch.equal(gb.draw(model, 20, steps=30, generator=gen(1)), found.x)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["RBM", "DBM", "DBN", "Ising", "machine", "any discrete"])
def test_draws_have_the_law_of_the_model(name):
    """Means and pair products against enumeration; 5 standard errors of up to 36 numbers fail once in 5·10⁴ tests."""
    model, n = MODELS[name][0](), 20000
    states = model.domain.states(dtype=F64)
    with torch.no_grad():
        p = torch.softmax(-model(states), 0)
    x = gb.draw(model, n, steps=60, generator=gen(2)).double()
    i, j = torch.triu_indices(x.shape[1], x.shape[1], 1)
    for statistic in (lambda x: x, lambda x: x[:, i] * x[:, j]):
        mean = p @ statistic(states)
        error = ((p @ statistic(states).square() - mean**2) / n).sqrt()
        assert ((statistic(x).mean(0) - mean).abs() < 5 * error).all()
    short = gb.draw(model, n, steps=60, kernel=kernels.SiteGibbs(), generator=gen(3)).double()
    assert (short.mean(0) - p @ states).abs().max() < 0.03


def test_long_runs_keep_few_enough_draws_and_end_where_they_would():
    """9000 steps: of the second half every second draw; the draws themselves do not depend on what is kept."""
    machine = gb.models.RBM(3, 2)
    kept, plain = (
        draw_with_trace(machine, 4, kernel=gb.kernels.Gibbs(), steps=9000, keep=keep, generator=gen(1))
        for keep in (True, False)
    )
    assert kept.trace.samples.shape == (2250, 4, 3)
    assert torch.equal(kept.x, plain.x)


def test_machines_with_many_hidden_units_are_drawn_with_them():
    """Against the law of the same machine over all units; 5 standard errors of 6 numbers fail once in 10⁵ tests."""
    model, n = machine(3, 17, 0.3), 2000
    states = domains.Binary(17).states(dtype=F64)
    with torch.no_grad():
        each = [-model.joint(v.expand(len(states), 3), states) for v in domains.Binary(3).states(dtype=F64)]
    p, visible = torch.softmax(torch.stack(each).logsumexp(1), 0), domains.Binary(3).states(dtype=F64)
    x = gb.draw(model, n, steps=40, generator=gen(4))
    assert ((x.mean(0) - p @ visible).abs() < 5 * (0.25 / n) ** 0.5).all()
    held = gb.draw(model, n, steps=40, start=torch.ones(1, 3, dtype=F64), clamp=torch.arange(3) < 2, generator=gen(5))
    on = visible[:, :2].all(1)
    assert abs(float(held[:, 2].mean() - p[on] @ visible[on, 2] / p[on].sum())) < 5 * (0.25 / n) ** 0.5


def test_score_networks_are_drawn_down_their_levels():
    x = gb.draw(score_network(), 4000, generator=gen())
    assert x.var(0).tolist() == pytest.approx([1.0, 1.0], rel=0.1)  # 4000 draws: 2 % standard error


def test_classes_are_drawn_where_a_model_knows_them():
    class Wells(nn.Module):
        def forward(self, x):
            return torch.stack([-((x - c) ** 2).sum(1) for c in (-3.0, 3.0)], 1)

    joint = models.JointEnergy(Wells(), domains.Real(1)).double()
    for label, center in ((0, -3.0), (1, 3.0)):
        x = gb.draw(joint, 500, label=label, generator=gen())
        assert float(x.mean()) == pytest.approx(center, abs=0.2)
    labels = torch.arange(200) % 2
    for randomness in (gen(), gb.distributed.Shards(0)):  # which draws eight rows after the other, or so
        made = draw_with_trace(joint, 200, label=labels, generator=randomness, keep=True)
        assert (
            (made.x[:, 0] > 0) == (labels == 1)
        ).all()  # wells are three times their width away from zero, and a barrier of 9
        assert made.trace is None
    with pytest.raises(ShapeError, match="3 labels were given for 5 draws"):
        gb.draw(joint, 5, label=torch.arange(3) % 2, generator=gen())
    with pytest.raises(ShapeError, match="3 labels were given for 5 draws"):  # a model that draws in its own way
        gb.draw(models.DBN(5, 4, 3, labels=2), 5, label=torch.arange(3) % 2, generator=gen())
    with pytest.raises(CapabilityError, match=r"class_log_prob\(x\)"):
        gb.draw(energies.Banana(), 5, label=1, generator=gen())
    with pytest.raises(CapabilityError, match="classes"):
        gb.draw(scrambled(models.DBM(4, 3, 2)), 5, label=1, generator=gen())


@pytest.mark.parametrize("name", ["RBM", "DBM", "network", "Gaussian"])
def test_what_is_clamped_stays_and_the_rest_is_drawn(name):
    model = MODELS[name][0]()
    start = model.domain.sample(3, generator=gen(5), dtype=F64)
    clamp = torch.arange(start.shape[1]) < 1
    found = draw_with_trace(model, 6, steps=25, start=start, clamp=clamp, generator=gen())
    assert torch.equal(found.x[:, :1], start[torch.arange(6) % 3, :1])
    assert (found.x[:, 1:] != start[torch.arange(6) % 3, 1:]).any()
    other = torch.arange(start.shape[1]) == torch.arange(3)[:, None] % 2  # another entry in every row of start
    for n in (2, 3, 7):
        rows = torch.arange(n) % 3
        found = draw_with_trace(model, n, steps=25, start=start, clamp=other, generator=gen())
        assert torch.equal(found.x[other[rows]], start[rows][other[rows]])
        assert (found.x[~other[rows]] != start[rows][~other[rows]]).any()


def test_a_kernel_or_the_objective_says_how():
    banana, kernel = energies.Banana(), kernels.MALA(0.3)
    assert draw_with_trace(banana, 5, kernel=kernel, steps=9, generator=gen()).how == "MALA, 9 steps"
    trained = objectives.Weighted([objectives.CrossEntropy(), objectives.ContrastiveDivergence(kernel)])
    network = energies.MLPEnergy(2, (8,))
    assert suitable_kernel(network, trained) is kernel
    kept = draw_with_trace(network, 5, objective=trained, steps=20, keep=True, generator=gen()).trace
    assert kept.samples.shape == (10, 5, 2)
    assert kept.kernel is kernel


@pytest.mark.parametrize(("call", "error", "says"), [
    (lambda: gb.draw(models.RBM(4, 3), 0, generator=gen()), ArgumentError, "n=0"),
    (lambda: gb.draw(models.RBM(4, 3), 3, steps=0, generator=gen()), ArgumentError, "steps=0"),
    (lambda: gb.draw(models.RBM(4, 3), 3, generator=None), RandomnessError, "no generator"),
    (lambda: gb.draw(models.RBM(4, 3), 3, clamp=torch.ones(4) > 0, generator=gen()), ArgumentError, "give start="),
    (lambda: gb.draw(nn.ReLU(), 3, generator=gen()), CapabilityError, "as_energy"),
    (lambda: gb.draw(models.RBM(4, 3), 3, start=torch.full((1, 4), 0.5), generator=gen()), DomainError, "0.5"),
    (lambda: gb.draw(dbn(), 3, start=torch.ones(1, 5).double(), clamp=torch.ones(5) > 0, generator=gen()), CapabilityError, "held"),
    (lambda: gb.evaluate(nn.ReLU(), torch.zeros(3, 2)), CapabilityError, "as_energy"),
    (lambda: gb.evaluate(models.RBM(4, 3), torch.zeros(3, 5)), ShapeError, "5"),
    (lambda: gb.evaluate(models.RBM(4, 3), (torch.zeros(3, 4), torch.zeros(2))), ShapeError, "one whole number a row"),
    (lambda: gb.evaluate(models.RBM(4, 3), torch.zeros(3, 4), likelihood="aiz"), ArgumentError, "expected one of auto"),
])  # fmt: skip
def test_refusals_say_what_to_do(call, error, says):
    with pytest.raises(error, match=says):
        call()


# --- evaluate -------------------------------------------------------------------------------------------


def bits(n, d, seed=0):
    return (torch.rand(n, d, generator=gen(seed)) < 0.4).double()


def test_an_evaluation_says_what_a_model_can_be_asked():
    rbm, x, train = scrambled(models.RBM(6, 3)), bits(50, 6), bits(80, 6, 1)
    report = gb.evaluate(rbm, x, train=train, outside={"ones": torch.ones(9, 6, dtype=F64)})
    exact = gb.log_likelihood(rbm, x, partition.exact(rbm))
    assert float(report.log_likelihood.value) == float(exact.value)
    assert report.log_likelihood.method == "exact sum"
    assert report.log_likelihood.lower < report.log_likelihood.value < report.log_likelihood.upper
    assert len(report.train_log_likelihood.per_sample) == 50
    with torch.no_grad():
        assert report.energies["data"] == pytest.approx(float(rbm(x).mean()))
        assert report.reconstruction_error == pytest.approx(float((rbm.reconstruct(x) - x).square().mean()))
        each = [  # log p(xᵢ | rest) from the energies of both values
            torch.log_softmax(torch.stack([-rbm(x), -rbm(torch.where(torch.arange(6) == i, 1 - x, x))]), 0)[0]
            for i in range(6)
        ]
    assert report.pseudo_log_likelihood == pytest.approx(float(sum(each).mean()))
    p = (train.sum(0) + 1) / 82
    assert report.baseline.value == pytest.approx(float((x * p.log() + (1 - x) * (1 - p).log()).sum(1).mean()))
    assert 0 <= report.outside["ones"].auroc <= 1
    assert report.outside["ones"].rows == 9
    assert report.classes is None
    assert report.two_sample is None
    plain = report.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    text = repr(report)
    for part in ("50 rows", "held-out log-likelihood", "exact sum", "reconstruction", "against ones", "simplest"):
        assert part in text
    assert len(summary(plain)) == 7
    assert gb.evaluate(rbm, x, train=train, seed=0).to_dict()["likelihood"] == plain["likelihood"]


def test_the_estimator_is_chosen_by_the_model():
    def method(model, x, **options):
        found = gb.evaluate(model, x, chains=20, betas=40, **options)
        return found.why_no_likelihood or found.log_likelihood.method

    large = scrambled(models.RBM(40, 30), 0.05)
    assert method(large, bits(30, 40)).startswith("AIS")
    assert method(models.RBM(6, 3), bits(5, 6).float(), likelihood="ais").startswith("AIS")
    assert method(energies.Gaussian(torch.zeros(5), torch.eye(5)), torch.zeros(5, 5)) == "closed form"
    assert method(energies.MLPEnergy(2, (4,), confine=1.0), torch.zeros(5, 2)) == "quadrature"
    assert method(score_network(), torch.randn(30, 2, generator=gen(), dtype=F64)).startswith("probability flow")
    assert method(models.RBM(6, 3), bits(5, 6).float(), likelihood="none") == "it was not asked for"
    assert "exact: " in method(large, bits(30, 40), likelihood="exact")


def test_machines_whose_energy_cannot_be_summed_are_bounded_or_annealed():
    deep = scrambled(models.DBM(12, 30, 30), 0.05)
    report = gb.evaluate(deep, bits(20, 12), chains=20, betas=40)
    assert "bound" in report.log_likelihood.method
    assert math.isinf(float(report.log_likelihood.upper))
    assert report.to_dict()["likelihood"]["upper"] is None
    assert report.energies == {}  # which would take long
    report = gb.evaluate(machine(6, 20, 0.05), bits(10, 6), chains=20, betas=40)
    assert report.log_likelihood.method.startswith("clamped AIS")


def test_classes_and_samples_are_judged():
    class Halves(nn.Module):
        def forward(self, x):
            return torch.cat([x, -x], 1) - 0.5 * x.square()

    joint = models.JointEnergy(Halves(), domains.Real(1)).double()
    x = torch.randn(200, 1, generator=gen(), dtype=F64)
    y = (x[:, 0] < 0).long()
    report = gb.evaluate(joint, (x, y), samples=torch.randn(200, 1, generator=gen(1), dtype=F64))
    assert report.classes.accuracy == 1.0
    assert 0 < report.classes.calibration_error < 1
    assert report.classes.commonest == max(int(y.sum()), 200 - int(y.sum())) / 200
    assert 0 < report.two_sample.p_value <= 1
    assert gb.evaluate(dbn(), (bits(20, 5), torch.arange(20) % 2)).classes is None  # a network without labels


def test_warnings_of_estimators_are_kept_in_the_report():
    found = gb.evaluate(scrambled(models.RBM(30, 30), 3.0), bits(40, 30), chains=5, betas=3, likelihood="ais")
    assert found.warnings
    assert f"note: {found.warnings[0]}" in repr(found)


def test_classes_are_told_by_the_mean_probability_over_draws_of_the_rows():
    """Of bits from gray values: one draw misses what twenty tell; the means are those of the model's own probabilities."""
    g = torch.Generator().manual_seed(0)
    gray, y = 0.3 + 0.4 * torch.eye(10).repeat(40, 1), torch.arange(10).repeat(40)
    net = torch.nn.Linear(10, 10)
    torch.nn.init.eye_(net.weight)
    torch.nn.init.zeros_(net.bias)
    joint = gb.models.JointEnergy(net, gb.domains.Binary(10))
    draws = [(torch.rand(gray.shape, generator=g) < gray).float() for _ in range(20)]
    one = gb.evaluate(joint, (draws[0], y), likelihood="none").classes
    many = gb.evaluate(joint, (draws[0], y), likelihood="none", draws=iter(draws[1:])).classes
    p = torch.stack([joint.class_log_prob(x).exp() for x in draws]).mean(0)
    assert many.accuracy == float((p.argmax(1) == y).double().mean())
    assert many.accuracy > one.accuracy + 0.2
    assert many.rows == one.rows == 400


def test_held_out_rows_that_are_drawn_have_many_forms(tmp_path):
    rows = gb.data.DataSet(
        "gray", gb.data.Rows(torch.full((50, 20), 0.5)), test=gb.data.Rows(torch.full((30, 20), 0.5))
    )
    anew, once = (gb.data.prepare(rows, [{"binarize": {"how": "sample", "anew": a}}]) for a in (True, False))
    assert anew.redraws
    assert not once.redraws
    first, second = (anew.finished("test", draw=k).x for k in (0, 1))
    assert torch.equal(first, anew.finished("test").x)
    assert torch.equal(second, anew.finished("test", draw=1).x)
    assert abs(float((first != second).double().mean()) - 0.5) < 5 * 0.5 / 600**0.5


def test_flows_of_images_are_solved_to_a_thousandth_of_a_nat_a_pixel(monkeypatch):
    """Of a blurred standard normal, whose score and likelihood are known, in fewer passes than a hundredth of a nat in all takes."""
    passes = []

    class Exact(nn.Module):
        def forward(self, x, sigma):
            passes.append(len(x))
            return -x / (1 + sigma[:, None, None, None] ** 2)

    side, last = 20, 0.1
    family = models.NoiseConditionalScore(
        Exact(), domains.Real((1, side, side)), gb.schedules.geometric(300.0, last, 20)
    )
    x = (1 + last**2) ** 0.5 * torch.randn(8, 1, side, side, generator=gen(), dtype=F64)
    base = torch.randn(2000, 1, side, side, generator=gen(1), dtype=F64)
    monkeypatch.setattr("gibbsian.metrics.evaluate._flows", lambda *_: True)  # as on a GPU
    found = gb.evaluate(family, x, train=base).log_likelihood
    truth = torch.distributions.Normal(0.0, (1 + last**2) ** 0.5).log_prob(x).sum((1, 2, 3)).mean()
    assert abs(float(found.value - truth)) < 1e-3 * side**2
    used = len(passes)
    passes.clear()
    partition.flow_log_likelihood(family, x, data=base, generator=gen())
    assert used < 2 * len(passes)  # for held-out and for training rows
