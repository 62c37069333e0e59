"""Laws of tables against enumeration, quadrature and closed forms; types, gaps and bad tables."""

import itertools
import math
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

from gibbsian.errors import ArgumentError, DataError, GibbsianError
from gibbsian.partition import exact
from gibbsian.random import stream
from gibbsian.sklearn import TableEnergy
from gibbsian.tables import Options, Schema, TableWarning, as_frame, as_table, fit_table
from gibbsian.tables.boltzmann import TableRBM, fit_rbm, mean_log_prob
from gibbsian.tables.em import Whole, averaged, choose_mixture, expect, fit_mixture, maximize
from gibbsian.tables.fitting import learn_from_all
from gibbsian.tables.frames import Frame
from gibbsian.tables.gaussians import log_mass
from gibbsian.tables.keeping import model_of, tree_of
from gibbsian.tables.laws import MixtureLaw, TiltedLaw
from gibbsian.tables.mixture import Mixture
from gibbsian.tables.rows import Rows
from gibbsian.tables.stacked import StackedLaw, weigh
from gibbsian.tables.tilted import Net, Tilted, empty, normalized
from gibbsian.tables.transform import NearNormal
from gibbsian.training import checkpoint


def people(n=300, seed=0, gaps=True):
    rng = np.random.default_rng(seed)
    sex = rng.choice(["female", "male"], n)
    kids = rng.poisson(0.5 + (sex == "male"), n)
    wage = np.exp(rng.normal(1 + 0.5 * (sex == "male") + 0.2 * kids, 0.4))
    member = rng.random(n) < np.where(sex == "male", 0.7, 0.2)
    table = pd.DataFrame({"wage": wage, "sex": sex, "kids": kids, "member": member})
    if gaps:
        table.loc[rng.random(n) < 0.15, "wage"] = np.nan
        table.loc[rng.random(n) < 0.15, "sex"] = None
    return table


@pytest.fixture(scope="module", params=["mixture", "located", "rbm", "parzen"])
def exact_model(request):
    return fit_table(people(150), family=request.param, options=Options(units=3, steps=120))


# --- likelihoods ----------------------------------------------------------------------------------------


def cells(wages, names=("female", "male", "other"), kids=range(14), member=(False, True)):
    grid = list(itertools.product(names, kids, member))
    rows = [(w, *rest) for rest in grid for w in wages]
    return pd.DataFrame(rows, columns=["wage", "sex", "kids", "member"]), len(grid)


@pytest.mark.filterwarnings("ignore::gibbsian.tables.TableWarning")
def test_the_mass_of_all_cells_is_one_and_gaps_are_summed_over(exact_model):
    """Counting measure over names, counts and truth values, Lebesgue over reals, by quadrature."""
    wages = np.geomspace(1e-4, 1e4, 1200)
    table, groups = cells(wages)
    p = exact_model.log_prob(table).value.exp().numpy().reshape(groups, -1)
    integrals = np.trapezoid(p * wages, np.log(wages), axis=1)
    assert integrals.sum() == pytest.approx(1, abs=2e-3)
    rest = table.iloc[:: len(wages)].assign(wage=np.nan)  # the law without wages
    np.testing.assert_allclose(exact_model.log_prob(rest).value.exp(), integrals, rtol=5e-3, atol=1e-6)
    few = pd.DataFrame({"wage": [3.0] * 3, "sex": ["female", "male", "other"], "kids": [1] * 3, "member": [True] * 3})
    joint = torch.logsumexp(exact_model.log_prob(few).value, 0)
    gone = few.iloc[:1].assign(sex=None)
    assert float(exact_model.log_prob(gone).value[0]) == pytest.approx(float(joint), abs=1e-9)
    assert exact_model.log_prob(gone.assign(wage=np.nan, kids=np.nan, member=None)).value.item() == pytest.approx(
        0, abs=1e-9
    )


def test_a_cell_is_as_surprising_as_the_ratio_of_two_laws_says(exact_model):
    table = people(40, seed=5)
    surprise = exact_model.surprise(table)
    for i, name in enumerate(table.columns):
        without = table.assign(**{name: None if name in {"sex", "member"} else np.nan})
        ratio = exact_model.log_prob(without).value - exact_model.log_prob(table).value
        gone = table[name].isna().to_numpy()
        np.testing.assert_allclose(surprise[~gone, i], ratio[~gone], atol=1e-9)
        assert np.isnan(surprise[gone, i]).all()


def test_bins_have_the_mass_of_the_normal_law_in_both_tails():
    r = torch.tensor([-30.0, -3.0, 0.0, 3.0, 30.0], dtype=torch.float64)
    for below, above in ((0.5, 0.5), (math.inf, 0.2), (1e-5, 1e-5), (2.0, 0.0)):
        got = log_mass(r, torch.full_like(r, below), torch.full_like(r, above))
        a, b = r.numpy() - below, r.numpy() + above
        flip = a > 0
        a, b = np.where(flip, -b, a), np.where(flip, -a, b)
        want = stats.norm.logcdf(b) + np.log1p(-np.exp(stats.norm.logcdf(a) - stats.norm.logcdf(b)))
        np.testing.assert_allclose(got, want, rtol=1e-6 if above > 1e-4 else 1e-4)


def random_mixture(k=3, m=2, states=(3, 2), seed=0, full=True):
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    a = draw(k, m, m)
    covariance = a @ a.transpose(1, 2) + 0.3 * torch.eye(m, dtype=torch.float64)
    table = torch.cat([torch.log_softmax(draw(k, s), 1) for s in states], 1)
    full_cov = covariance if full else covariance.diagonal(dim1=1, dim2=2).clone()
    return Mixture(torch.log_softmax(draw(k), 0), draw(k, m), full_cov, table, states)


def plain_rows(z, code):
    zero = torch.zeros_like(z)
    return Rows(z, zero, zero, code, torch.zeros(len(z), 4, dtype=torch.float64))


def test_a_mixture_with_gaps_is_that_of_scipy():
    mixture = random_mixture(m=3)
    g = torch.Generator().manual_seed(1)
    z = torch.randn(40, 3, generator=g, dtype=torch.float64)
    z[torch.rand(40, 3, generator=g) < 0.4] = math.nan
    code = torch.randint(-1, 2, (40, 2), generator=g)
    got = mixture.log_joint(plain_rows(z, code))
    for i, k in itertools.product(range(40), range(3)):
        o = (~z[i].isnan()).nonzero().flatten().numpy()
        want = float(mixture.log_weight[k])
        if len(o):
            law = stats.multivariate_normal(mixture.mean[k][o].numpy(), mixture.covariance[k][o][:, o].numpy())
            want += law.logpdf(z[i][o].numpy())
        for j in range(2):
            want += float(mixture.slot(j)[k, code[i, j]]) if code[i, j] >= 0 else 0.0
        assert float(got[i, k]) == pytest.approx(want, abs=1e-9)
    many = mixture.log_joint(
        plain_rows(z[:1].repeat(3, 1), code[:1].repeat(3, 1))
    )  # one set of gaps: the other way through
    torch.testing.assert_close(many, got[:1].expand(3, -1))


def test_draws_and_conditionals_of_a_mixture_have_its_moments():
    """20000 draws of gaps: means and covariance within 5 standard errors (false alarms below 1e-5)."""
    mixture = random_mixture(m=2, states=(3,))
    n = 20000
    start = plain_rows(torch.tensor([[0.7, math.nan]], dtype=torch.float64).repeat(n, 1), torch.full((n, 1), -1))
    drawn = mixture.complete(start, stream(0, "test"))
    law = mixture.numbers_given(start.take(slice(0, 1)), 1)
    mean = float((law.weight * law.mean).sum())
    second = float((law.weight * (law.mean**2 + law.spread**2)).sum())
    x = drawn.z[:, 1]
    assert abs(float(x.mean()) - mean) < 5 * float(x.std()) / math.sqrt(n)
    assert abs(float(x.square().mean()) - second) < 5 * float(x.square().std()) / math.sqrt(n)
    p = mixture.codes_given(start.take(slice(0, 1)), 0)[0]
    share = torch.bincount(drawn.code[:, 0], minlength=3) / n
    assert bool(((share - p).abs() < 5 * (p * (1 - p) / n).sqrt()).all())
    assert bool((drawn.z[:, 0] == 0.7).all())


# --- Boltzmann machines ---------------------------------------------------------------------------------


def test_a_small_machine_is_the_rbm_of_joined_units_and_its_gradient_with_gaps_is_that_of_enumeration():
    machine = TableRBM(2, (3, 2), 3, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        machine.bias.copy_(torch.linspace(-0.5, 0.5, 7))
        machine.hidden_bias.copy_(torch.tensor([0.3, -0.2, 0.1]))
        machine.log_sigma.copy_(torch.tensor([-0.3, 0.2]))
        machine.lower.fill_(0.7)
        machine.root.copy_(torch.tensor([[1.5, 0.0], [-0.4, 0.8]]))
        machine.floor.fill_(0.1)
    rbm, factor = machine.machine(), machine.factor().detach()
    log_z = exact(rbm).value + torch.linalg.slogdet(factor).logabsdet  # of a density of z = Lu
    states = list(itertools.product(range(3), range(2)))
    z = torch.tensor([[0.4, -1.1]] * 6, dtype=torch.float64)
    u = torch.linalg.solve(factor, z.T).T
    code = torch.tensor(states)
    hot = torch.cat(
        [torch.nn.functional.one_hot(code[:, 0], 3), torch.nn.functional.one_hot(code[:, 1], 2)], 1
    ).double()
    want = -rbm(torch.cat([u, hot], 1)) - log_z
    torch.testing.assert_close(machine.mixture().log_prob(plain_rows(z, code)), want)
    gone = plain_rows(z[:1], torch.tensor([[-1, 1]]))  # the first code is missing
    loss = machine.mixture().log_prob(gone)[0]
    got = torch.autograd.grad(loss, [machine.weight, machine.hidden_bias])
    summed = torch.logsumexp(-rbm(torch.cat([u, hot], 1))[code[:, 1] == 1], 0) - exact_log_z(rbm)
    torch.testing.assert_close(loss, summed - torch.linalg.slogdet(factor).logabsdet)
    for ours, theirs in zip(got, torch.autograd.grad(summed, [rbm.weight, rbm.hidden_bias]), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("gaps", [0.0, 0.4])
def test_the_likelihood_that_a_machine_learns_by_is_that_of_its_mixture(gaps):
    machine = TableRBM(3, (3, 2), 2, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        machine.lower.copy_(torch.arange(9.0).view(3, 3) / 5)
    g = torch.Generator().manual_seed(1)
    z, code = torch.randn(30, 3, generator=g, dtype=torch.float64), torch.randint(2, (30, 2), generator=g)
    z[torch.rand(30, 3, generator=g) < gaps], code[torch.rand(30, 2, generator=g) < gaps] = math.nan, -1
    hot = torch.cat([torch.nn.functional.one_hot(code[:, j] + 1, size + 1)[:, 1:] for j, size in enumerate((3, 2))], 1)
    law = machine.mixture()
    torch.testing.assert_close(mean_log_prob(law, z, hot.double()), law.log_prob(plain_rows(z, code)).mean())


def test_a_machine_finds_a_law_of_tied_numbers_and_codes_behind_gaps():
    """-E[log q] of 4000 new rows is within 0.08 nats of -E[log p]; numbers that are tied cost a machine without ties 0.8 of them."""
    truth = TableRBM(2, (3,), 1, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        truth.weight.copy_(torch.tensor([[1.5], [-1.0], [2.0], [-1.0], [-1.0]]))
        truth.lower.fill_(2.0)
        law = truth.mixture()
    blank = torch.full((5000, 2), math.nan, dtype=torch.float64), torch.full((5000, 1), -1)
    rows = law.complete(plain_rows(*blank), stream(0, "truth"))
    new, seen = rows.take(slice(1000, 5000)), rows.take(slice(0, 1000))
    gone = torch.rand(1000, 3, generator=stream(1, "gaps")) < 0.2
    z, code = seen.z.masked_fill(gone[:, :2], math.nan), seen.code.masked_fill(gone[:, 2:], -1)
    seen = seen._replace(z=z, code=code)
    found, _ = fit_rbm(seen, None, Whole.of(seen, (3,)), hidden=2, steps=250)
    excess = law.log_prob(new) - found.log_prob(new)
    assert float(excess.mean()) < 0.08 + 4 * float(excess.std()) / math.sqrt(4000)


def exact_log_z(rbm):
    """log Z by the sum over hidden states, with its gradient."""
    h = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 3)
    return torch.logsumexp(-rbm.hidden_energy(h), 0)


# --- tilted mixtures ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tilted():
    """A mixture over two small codes and a number, under a network with large random weights."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.choice(list("xyz"), 200), "b": rng.random(200) < 0.4, "c": rng.normal(size=200)})
    model = fit_table(table, family="mixture", options=Options(components=2))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net(1, model.law.mixture.states, (16,))
        torch.nn.init.normal_(net.rest[-1].weight, std=0.8)
    net.requires_grad_(False)
    law = TiltedLaw(normalized(model.law.mixture, net, model.codec, 0), model.codec)
    return model.codec, law


def tilted_table(c=(0.0,)):
    rows = [(a, b, value) for a in "xyzw" for b in (False, True) for value in c]
    return as_frame(pd.DataFrame(rows, columns=["a", "b", "c"]))


@pytest.mark.filterwarnings("ignore::gibbsian.tables.TableWarning")  # w stands for all unseen names
def test_a_tilted_law_is_normalized_and_its_conditionals_are_ratios(tilted):
    codec, law = tilted
    c = np.linspace(-9, 9, 1201)
    p = law.log_prob(codec.encode(tilted_table(c))).value.exp().numpy().reshape(8, -1)
    joint = np.trapezoid(p, c, axis=1)
    assert joint.sum() == pytest.approx(1, abs=3 * law.law.log_z_stderr + 1e-4)
    rows = codec.encode(tilted_table())
    at = law.log_prob(rows).value.view(4, 2)
    want = (at - torch.logsumexp(at, 0)).flatten()  # p(a | b, c)
    np.testing.assert_allclose(law.log_given(rows, 0), want, atol=1e-6)
    density = law.log_given(rows, 2).exp().numpy()  # p(c | a, b), by 64 nodes
    np.testing.assert_allclose(density[:6], (p[:, 600] / joint)[:6], rtol=0.02)
    gone = law.log_prob(codec.without(rows, 2))
    inside = (gone.lower - 0.02 <= torch.from_numpy(np.log(joint))) & (
        torch.from_numpy(np.log(joint)) <= gone.upper + 0.02
    )
    assert bool(inside.all())


@pytest.mark.filterwarnings("ignore::gibbsian.tables.TableWarning")
def test_draws_of_a_tilted_law_are_from_it(tilted):
    """Shares of six states in 4000 draws, chi-square at 1e-4."""
    codec, law = tilted
    c = np.linspace(-9, 9, 601)
    p = law.log_prob(codec.encode(tilted_table(c))).value.exp().numpy().reshape(8, -1)
    joint = np.trapezoid(p, c, axis=1)[:6]  # unseen names are not drawn
    drawn = law.complete(empty(codec, 4000), stream(0, "draws"))
    names = codec.decode(drawn, np.random.default_rng(0)).columns
    index = np.array(["xyz".index(a) for a in names[0].values]) * 2 + names[1].values.astype(int)
    counts = np.bincount(index, minlength=6)
    assert stats.chisquare(counts, joint / joint.sum() * 4000).pvalue > 1e-4


def test_the_tilt_learns_what_the_mixture_cannot_say():
    """Columns whose product is positive: independent columns cannot know, log 2 nats are to be won."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 600))
    table = pd.DataFrame({"a": a, "b": np.abs(b) * np.sign(a)})
    plain = fit_table(table, family="mixture", options=Options(components=1))
    neural = fit_table(table, family="neural", options=Options(steps=300))
    fresh = pd.DataFrame({"a": (x := rng.normal(size=500)), "b": np.abs(rng.normal(size=500)) * np.sign(x)})
    truth = stats.norm.logpdf(fresh).sum(1).mean() + math.log(2)
    found = float(neural.log_prob(fresh).value.mean())
    assert found > float(plain.log_prob(fresh).value.mean()) + 0.05
    assert found < truth + 0.1


# --- learning -------------------------------------------------------------------------------------------


def gappy_normal(n, seed=0, share=0.3):
    rng = np.random.default_rng(seed)
    cov = np.array([[1.0, 0.8, 0.3], [0.8, 1.0, 0.5], [0.3, 0.5, 1.0]])
    x = rng.multivariate_normal(np.zeros(3), cov, n)
    gaps = rng.random(x.shape) < share
    return np.where(gaps, np.nan, x), x, cov


def test_expectation_maximization_climbs_and_finds_the_law_behind_gaps():
    """The penalized likelihood rises in every round but for the prior's pull; the covariance of 4000 rows with 30 % gaps is right
    to 5 standard errors of complete rows times 1.5."""
    x, _, cov = gappy_normal(4000)
    rows = plain_rows(torch.from_numpy(x), torch.empty(4000, 0, dtype=torch.long))
    whole = Whole.of(rows, ())
    model, values = fit_mixture(rows, whole, 2, steps=1), []
    for _ in range(8):
        sums = expect(model, rows)
        values.append(sums.log_prob)
        model = maximize(model, sums, whole, rows.n)
    assert all(b > a - 1.0 for a, b in itertools.pairwise(values))
    one = fit_mixture(rows, whole, 1, steps=40, tolerance=1e-6)
    found = one.covariance[0].numpy()
    error = 1.5 * 5 * np.sqrt((np.outer(np.diag(cov), np.diag(cov)) + cov**2) / 4000)
    assert (np.abs(found - cov) < error).all()


def test_the_mean_of_mixtures_is_one_and_better_than_they_are():
    """log q of every row is that of (1/S) Σ p_s, and its mean over new rows is above theirs, by Jensen."""
    table = people(400)
    model = fit_table(table, family="mixture", options=Options(components=1))
    rows, new = model.rows(table), model.rows(people(200, seed=8))
    whole = Whole.of(rows, tuple(model.codec.states))
    parts = [fit_mixture(rows, whole, k, seed=k, steps=5) for k in (1, 3, 6)]
    each = torch.stack([part.log_prob(new) for part in parts])
    both = averaged(parts).log_prob(new)
    torch.testing.assert_close(both, torch.logsumexp(each, 0) - math.log(3))
    assert float(both.mean()) > float(each.mean())
    chosen = choose_mixture(rows, new, whole, starts=4)
    assert len({part.components for part in chosen}) == 1
    assert len(chosen) in (1, 4)


def test_means_of_whole_numbers_are_rounded_unless_asked_not_to_be(estimator):
    table = people(60, seed=2).assign(kids=np.nan)
    _, values, p = estimator.predict(table, "kids", return_probabilities=True)
    mean = estimator.impute(table, round_integers=False)["kids"]
    np.testing.assert_allclose(mean, p @ np.array(values, dtype=float), atol=1e-9)
    np.testing.assert_array_equal(estimator.impute(table)["kids"], mean.round())
    assert (mean != mean.round()).any()
    typed = table.assign(kids=pd.array([1] + [None] * 59, dtype="Int64"))
    assert estimator.impute(typed)["kids"].dtype == "Int64"
    np.testing.assert_allclose(estimator.impute(typed, round_integers=False)["kids"][1:], mean[1:])


def test_a_round_piece_by_piece_is_a_round_over_all_rows():
    model = fit_table(people(200), family="mixture", options=Options(components=3))
    every = people(500, seed=4)
    rows, whole = model.rows(every), Whole.of(model.rows(people(200)), tuple(model.codec.states))
    at_once = maximize(model.law.mixture, expect(model.law.mixture, rows), whole, rows.n)
    again, n = learn_from_all(model, (every[i : i + 120] for i in range(0, 500, 120)), people(200))
    assert n == 500
    for a, b in zip((at_once.log_weight, at_once.mean, at_once.covariance, at_once.table), (again.law.mixture.log_weight, again.law.mixture.mean, again.law.mixture.covariance, again.law.mixture.table), strict=True):  # fmt: skip
        torch.testing.assert_close(a, b)
    new = people(1000, seed=5)
    assert float(again.log_prob(new).value.mean()) > float(model.log_prob(new).value.mean())


@pytest.mark.parametrize("family", ["mixture", "tilted"])
def test_intervals_of_several_draws_cover(family):
    """Between the second least and the second greatest of 39 imputations lie 36/40 of 270 hidden cells: to 4 binomial errors and 2 points."""
    x, truth, _ = gappy_normal(300, seed=3)
    model = fit_table(x, family=family, options=Options(steps=100))
    g = stream(0, "draws")
    draws = np.stack([as_table(model.draw(x, generator=g)) for _ in range(39)])
    ordered = np.sort(draws, axis=0)
    low, high = ordered[1], ordered[-2]  # of 40 equally likely places 36 lie between
    gone = np.isnan(x)
    covered = ((low <= truth) & (truth <= high))[gone].mean()
    assert abs(covered - 0.9) < 4 * math.sqrt(0.09 / gone.sum()) + 0.02
    np.testing.assert_array_equal(draws[:, ~gone], np.broadcast_to(x, draws.shape)[:, ~gone])
    ends = model.interval(x, "x1")
    assert abs(((ends[:, 0] <= truth[:, 1]) & (truth[:, 1] <= ends[:, 1])).mean() - 0.9) < 0.05


def test_p_values_hold_their_level_on_new_rows():
    """Of new rows a share α has p ≤ α; given c calibrating rows that share is Beta(l, c + 1 - l), l = ⌊α(c + 1)⌋: ends at 1e-4."""
    model = fit_table(people(2000), family="mixture", options=Options(components=4))
    fresh = people(4000, seed=99)
    c = len(model.calibration)
    some = fresh.head(50)
    score = model.judged(some)
    counted = [(1 + sum(own <= s for own in model.calibration)) / (c + 1) for s in score]
    np.testing.assert_allclose(model.p_values(some), counted)
    for alpha in (0.05, 0.2):
        low = math.floor(alpha * (c + 1))
        share = (model.p_values(fresh) <= alpha).mean()
        ends = stats.betabinom(4000, low, c + 1 - low).ppf([1e-4, 1 - 1e-4]) / 4000
        assert ends[0] <= share <= ends[1]
    bare = fresh[["wage"]].assign(sex=None, kids=None, member=None)[list(fresh.columns)]
    bare["kids"] = bare["kids"].astype("float64")
    p = model.p_values(bare[bare["wage"].notna()])
    assert (
        0.3 < np.median(p) < 0.7
    )  # a row looks neither usual nor strange for want of cells: the median of three cells fewer was 0.95
    assert 0.05 < (p <= 0.2).mean() < 0.4


# --- schema and transforms ------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [None, 0.0])
def test_the_transform_is_monotone_invertible_and_knows_its_slope(bound):
    x = np.random.default_rng(0).gamma(1.5, 3.0, 500) + (0 if bound == 0.0 else -2)
    t = NearNormal.fit(x, bound)
    at = np.linspace(x.min() * 0.5 if bound == 0.0 else x.min() - 5, x.max() + 5, 400)
    z = t(at)
    assert (np.diff(z) > 0).all()
    np.testing.assert_allclose(t.inverse(z), at, rtol=1e-8, atol=1e-8)
    h = 1e-6
    np.testing.assert_allclose(t.log_slope(at[1:-1]), np.log((t(at[1:-1] + h) - t(at[1:-1] - h)) / (2 * h)), atol=1e-4)
    assert stats.kstest(t(x), "norm").statistic < 0.05
    if bound == 0.0:
        assert (t.inverse(np.linspace(-60, 0, 50)) >= 0).all()


def test_maps_are_stiff_where_columns_have_several_heights_and_close_where_they_are_skewed():
    rng = np.random.default_rng(0)
    clusters = rng.normal(size=(400, 3)) + 9 * rng.integers(0, 3, (400, 1)) * [1, -1, 1]
    skewed = np.exp(1.5 * rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 400)) - 3
    knots = []
    for x in (clusters, skewed):
        model = fit_table(x, family="mixture", options=Options(components=2))
        knots.append({len(coder.transform.u) for coder in model.codec.coders})
    assert max(knots[0]) == 2  # a straight line
    assert min(knots[1]) > 5


def test_a_schema_is_learned_printed_edited_and_written():
    table = people().assign(day=pd.date_range("2020-01-01", periods=300), key=[f"k{i}" for i in range(300)], half=0.5)
    schema = Schema.learn(as_frame(table))
    kinds = {
        "wage": "numeric",
        "sex": "category",
        "kids": "integer",
        "member": "boolean",
        "day": "date",
        "key": "ignored",
        "half": "numeric",
    }
    assert {c.name: c.kind for c in schema} == kinds
    assert "2020-01-01 to 2020-10-26" in str(schema)
    assert Schema.from_json(schema.to_json()).to_json() == schema.to_json()
    assert Schema.learn(as_frame(table), {"kids": "category"})["kids"].kind == "category"
    model = fit_table(people(), schema=Schema.learn(as_frame(people())).edit("wage", lower=None), family="mixture")
    assert math.isfinite(float(model.log_prob(people(1).assign(wage=-1.0)).value[0]))
    with pytest.raises(ArgumentError, match="did you mean 'kids'"):
        schema.edit("kid", lower=0)


def test_values_that_carry_mass_of_their_own_keep_it():
    """Half of an income is 0; the law gives exact zeros half of the time (4 binomial errors) and their own probability."""
    rng = np.random.default_rng(0)
    income = np.where(rng.random(1000) < 0.5, 0.0, np.exp(rng.normal(7, 1, 1000)).round(2))
    hours = np.where(rng.random(1000) < 0.4, 40, rng.integers(1, 99, 1000))
    table = pd.DataFrame({"income": income, "hours": hours})
    model = fit_table(table, family="mixture", options=Options(components=2))
    assert model.schema["income"].atoms == (0.0,)
    assert model.schema["hours"].atoms == (40.0,)
    drawn = as_table(model.sample(2000, generator=stream(0, "s")))
    assert abs((drawn["income"] == 0).mean() - (income == 0).mean()) < 4 * math.sqrt(0.25 / 1000) + 0.01
    assert drawn["hours"].dtype == np.int64
    hour = np.arange(0, 400)
    p = model.log_prob(pd.DataFrame({"income": np.nan, "hours": hour})).value.exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-6)
    assert float(p[40]) == pytest.approx((hours == 40).mean(), abs=0.05)


@pytest.mark.parametrize(
    ("origin", "unit"), [(1e9, 1.0), (1e12, 1.0), (0.0, 1e-9), (0.0, 1e30)], ids=["1e9", "1e12", "tiny", "huge"]
)
def test_the_units_of_a_column_change_its_law_by_their_logarithm(origin, unit):
    x, y = np.random.default_rng(0).normal(size=(2, 300))
    plain, other = (
        fit_table(c[:, None], family="mixture", options=Options(components=1)) for c in (x, origin + unit * x)
    )
    assert other.schema["x0"].step is None
    expected = plain.log_prob(y[:, None]).value - math.log(unit)
    np.testing.assert_allclose(other.log_prob((origin + unit * y)[:, None]).value, expected, atol=1e-3)
    drawn = as_table(other.sample(1000, generator=stream(0, "s")))[:, 0]
    assert len(np.unique(drawn)) > 950  # on no grid
    assert abs((drawn - origin).std() / unit - x.std()) < 0.1  # four standard errors


def test_whole_numbers_far_from_zero_are_drawn_with_all_their_digits():
    """Milliseconds since 1970, of an hour: the last digits are as likely as each other."""
    x = 1_700_000_000_000 + np.random.default_rng(0).integers(0, 3_600_000, (300, 1))
    drawn = as_table(fit_table(x, family="mixture").sample(1000, generator=stream(0, "s")))
    assert drawn.dtype == np.int64
    assert stats.chisquare(np.bincount(drawn[:, 0] % 10, minlength=10)).pvalue > 1e-4


# --- the estimator --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def estimator():
    return TableEnergy("mixture", n_components=4, random_state=0).fit(people())


def test_what_comes_back_is_what_went_in(estimator):
    table = people()
    drawn = estimator.sample(60, given={"sex": "female", "kids": 2})
    assert list(drawn.columns) == list(table.columns)
    assert (drawn["sex"] == "female").all()
    assert (drawn["kids"] == 2).all()
    assert drawn.dtypes.to_dict() == table.dtypes.to_dict()
    assert (drawn["wage"] > 0).all()
    filled = estimator.impute(table)
    assert not filled.isna().any().any()
    pd.testing.assert_frame_equal(filled[~table.isna().any(axis=1)], table[~table.isna().any(axis=1)])
    assert filled.index.equals(table.index)
    two = estimator.impute(table, draws=2)
    assert len(two) == 2
    assert not two[0].equals(two[1])
    surprise = estimator.explain(table)
    np.testing.assert_array_equal(surprise.isna(), table.isna())
    value, values, p = estimator.predict(table, "sex", return_probabilities=True)
    assert set(value) <= {"female", "male"}
    np.testing.assert_allclose(p.sum(1), 1)
    assert (np.array(values)[p.argmax(1)] == value).all()
    value, interval = estimator.predict(table, "kids", return_interval=0.9)
    assert (value == np.round(value)).all()
    assert ((interval[:, 0] <= value) & (value <= interval[:, 1])).all()
    score, ends = estimator.score_samples(table, return_interval=True)
    np.testing.assert_array_equal(ends[:, 0], score)
    assert set(estimator.predict_outliers(table)) <= {-1, 1}


@pytest.mark.parametrize("labels", [[0, 1], [("a", "x"), ("a", "y")]], ids=["numbers", "levels"])
def test_columns_are_called_as_they_were(labels):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)))
    table.columns = pd.MultiIndex.from_tuples(labels) if isinstance(labels[0], tuple) else labels
    model = TableEnergy("mixture", n_components=1, random_state=0).fit(table)
    for made in (model.impute(table), model.impute(table, draws=1)[0], model.explain(table), model.sample(3)):
        pd.testing.assert_index_equal(made.columns, table.columns, exact=False)
    assert (model.sample(3, given={labels[0]: 0.5})[labels[0]] == 0.5).all()
    assert len(model.predict(table, labels[1])) == 40
    with pytest.raises(ArgumentError, match=r"alpha must be a finite number in \(0, 1\)"):
        model.predict_outliers(table, alpha=2.0)


@pytest.mark.parametrize("make", ["polars", "pyarrow"])
def test_other_frames(make, estimator):
    library = pytest.importorskip(make)
    table = people()
    columns = {
        name: [None if value is None or value != value else value for value in table[name].tolist()] for name in table
    }
    other = library.DataFrame(columns, strict=False) if make == "polars" else library.table(columns)
    model = TableEnergy("mixture", n_components=4, random_state=0).fit(other)
    np.testing.assert_allclose(model.score_samples(other), estimator.score_samples(table))
    drawn, filled = model.sample(5), model.impute(other)
    assert type(drawn) is type(filled) is type(other)
    assert drawn.schema == filled.schema == other.schema


def test_dates_and_nullable_types_come_back():
    rng = np.random.default_rng(0)
    day = pd.Timestamp("2021-03-01") + pd.to_timedelta(rng.integers(0, 300, 120), unit="D")
    table = pd.DataFrame(
        {"day": day, "n": pd.array(rng.poisson(3, 120), "Int64"), "f": pd.array(rng.random(120) < 0.5, "boolean")}
    )
    table.loc[3, "n"] = pd.NA
    table.loc[4, "f"] = pd.NA
    model = TableEnergy("mixture", random_state=0).fit(table)
    drawn = model.sample(20, given={"day": "2021-05-01"})
    assert drawn.dtypes.to_dict() == table.dtypes.to_dict()
    assert (drawn["day"] == pd.Timestamp("2021-05-01")).all()
    free = model.sample(20)["day"]
    assert (free.dt.normalize() == free).all()
    assert not model.impute(table).isna().any().any()


@pytest.mark.filterwarnings("ignore:column '(key|x0)'")
@pytest.mark.parametrize("make", ["pandas", "nullable", "polars", "arrow", "array"])
def test_keys_of_more_digits_than_floats_have_come_back_as_they_went_in(make):
    keys = 2**53 + 1 + 2 * np.arange(60)
    table = pd.DataFrame({"key": keys, "x": np.arange(60) % 7})
    if make == "nullable":
        table = table.astype({"key": "Int64"})
        table.loc[3, "key"] = pd.NA
    given = {
        "polars": pytest.importorskip("polars").DataFrame,
        "arrow": pytest.importorskip("pyarrow").Table.from_pandas,
    }
    other = table.to_numpy() if make == "array" else given[make](table) if make in given else table
    filled = TableEnergy("mixture", n_components=1, random_state=0).fit(other).impute(other)
    assert pd.DataFrame(filled).equals(table) if make == "nullable" else np.array_equal(np.array(filled)[:, 0], keys)
    names = TableEnergy("mixture", n_components=1, types={"key" if make != "array" else "x0": "category"}).fit(other)
    assert len(names.schema_.columns[0].categories) == 60 - (make == "nullable")


@pytest.mark.filterwarnings("ignore:column 'none'")
def test_orders_zones_and_what_is_predicted_keep_their_types():
    rng, n = np.random.default_rng(0), 80  # before summer time begins
    day = pd.date_range("2021-01-01", periods=n, tz="Europe/Berlin")  # no whole days in UTC
    size = pd.Categorical(rng.choice(["low", "high"], n), ["low", "middle", "high"], ordered=True)
    few = pd.Timestamp("2021-03-01 07:30:05") + pd.to_timedelta(rng.integers(0, 9, n), unit="h")
    table = pd.DataFrame({"day": day, "size": size, "few": few, "n": rng.poisson(30, n), "k": rng.poisson(1, n), "none": np.full(n, np.nan)})  # fmt: skip
    model = TableEnergy("mixture", n_components=1, random_state=0).fit(table)
    drawn = model.sample(50)
    assert drawn.dtypes.to_dict() == table.dtypes.to_dict()
    assert ((drawn["day"] - day[0]) % pd.Timedelta("1D") == pd.Timedelta(0)).all()
    assert ((drawn["few"] - few.min()) % pd.Timedelta("1h") == pd.Timedelta(0)).all()
    assert model.predict(table, "n").dtype == model.predict(table, "n", return_interval=0.9)[1].dtype == np.int64
    assert all(isinstance(v, np.integer) for v in model.predict(table, "k", return_probabilities=True)[1])
    value, ends = model.predict(table, "few", return_interval=0.9)
    assert value.dtype.kind == ends.dtype.kind == "M"
    assert (ends[:, 0] >= np.datetime64("2021-03-01")).all()
    assert (ends[:, 0] <= value).all()
    assert (value <= ends[:, 1]).all()


@pytest.mark.parametrize("written", ["1.0", "1", 1, 1.0])
def test_categories_that_are_numbers_are_given_as_anyone_writes_them(written):
    table = pd.DataFrame({"x": np.arange(60.0), "stage": np.tile([0.0, 1.0, 2.0], 20)})
    estimator = TableEnergy("mixture", n_components=1, types={"stage": "category"}, random_state=0).fit(table)
    assert estimator.sample(4, given={"stage": written})["stage"].tolist() == [1.0] * 4
    with pytest.raises(DataError, match=r"knows no '1\.5'"):
        estimator.sample(4, given={"stage": "1.5"})


def test_declared_categories_stay_what_they_are_declared():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=90), "ward": pd.Categorical(rng.choice([1, 2, 10], 90), [1, 2, 5, 10])})
    for types in (None, {"ward": "category"}):
        estimator = TableEnergy("mixture", n_components=1, types=types, random_state=0).fit(table)
        assert sorted(estimator.schema_["ward"].categories) == [1, 2, 5, 10]
        gaps = table.assign(ward=table["ward"].where(table.index > 40))
        assert estimator.impute(gaps)["ward"].value_counts()[5] == 0
        assert not estimator.impute(gaps).isna().any().any()
        assert set(estimator.sample(50)["ward"]) <= {1, 2, 5, 10}
    day = table.assign(ward=pd.Categorical(pd.date_range("2020-01-01", periods=90)))
    gaps = day.assign(ward=day["ward"].where(day.index > 40))
    assert not TableEnergy("mixture", n_components=1, random_state=0).fit(day).impute(gaps).isna().any().any()
    binary = table.assign(ward=np.where(table["x"] > 0, b"u", b"v"))
    assert set(TableEnergy("mixture", n_components=1, random_state=0).fit(binary).sample(50)["ward"]) == {b"u", b"v"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sexx": "male"}, "did you mean 'sex'"),
        ({"sex": "robot"}, "knows no 'robot'"),
        ({"wage": -1.0}, "below 0"),
        ({"kids": 1.5}, "no whole number"),
        ({"kids": "many"}, "a number was expected"),
        ({"wage": math.inf}, "infinite"),
    ],
)
def test_what_cannot_be_given_is_refused(estimator, given, words):
    with pytest.raises(GibbsianError, match=words):
        estimator.sample(3, given=given)


def test_scikit_learn_finds_nothing_wrong():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(TableEnergy("mixture", n_components=2))


def test_cloning_searching_pickling(estimator):
    table = people(80)
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(again.score_samples(table), estimator.score_samples(table))
    assert clone(estimator).get_params() == estimator.get_params()
    search = GridSearchCV(TableEnergy("mixture", random_state=0), {"n_components": [1, 2]}, cv=2).fit(table)
    assert search.best_params_["n_components"] in {1, 2}
    one, two = (TableEnergy("tilted", max_iter=50, random_state=3).fit(table).score_samples(table) for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_all_families_are_compared_by_the_likelihood_of_held_out_rows():
    model = TableEnergy(max_iter=50, random_state=0).fit(people(120))
    assert set(model.scores_) == {"mixture", "tilted", "neural", "located", "rbm", "parzen", "stacked"}
    assert model.scores_[model.family_] > max(model.scores_.values()) - 0.05
    assert all(-20 < score < 0 for score in model.scores_.values())


def test_a_stack_is_the_weighted_sum_of_its_laws(tmp_path):
    """Masses, conditionals and draws of a stack against the sum written out; weights against a search."""
    model = fit_table(people(150), family="mixture", options=Options(components=3))
    codec, table = model.codec, people(40, seed=5)
    rows = model.rows(table)
    other = MixtureLaw(Whole.of(model.rows(people(150)), tuple(codec.states)).component(), codec)
    pi = torch.tensor([0.3, 0.7], dtype=torch.float64)
    law = StackedLaw((model.law, other), pi.log(), codec)
    value = law.log_prob(rows).value
    plain = (pi[0] * model.law.log_prob(rows).value.exp() + pi[1] * other.log_prob(rows).value.exp()).log()
    torch.testing.assert_close(value, plain)
    stacked = replace(model, law=law)
    for i, column in enumerate(model.schema):
        rest = law.log_prob(codec.without(rows, i)).value
        seen = ~codec.missing(rows)[:, i]
        torch.testing.assert_close(law.log_given(rows, i)[seen], (value - rest)[seen])
        if column.numbers and not column.values:
            continue
        values, p = stacked.probabilities(table, column.name)
        ones = [
            model.frame(table.assign(**{column.name: pd.Series([v] * 40, dtype=table[column.name].dtype)}))
            for v in values
        ]
        ratio = np.stack([law.log_prob(model.rows(one)).value.numpy() for one in ones], 1)
        ratio = np.exp(ratio - ratio.max(1, keepdims=True))
        np.testing.assert_allclose(p, ratio / ratio.sum(1, keepdims=True), atol=1e-9)
    drawn = as_table(stacked.sample(4000, generator=stream(0, "stack")))
    alone = [as_table(replace(model, law=one).sample(4000, generator=stream(0, "one"))) for one in (model.law, other)]
    for name in ("wage", "kids"):  # means within 5 standard errors of the three
        expected = sum(float(w) * one[name].mean() for w, one in zip(pi, alone, strict=True))
        assert abs(drawn[name].mean() - expected) < 5 * drawn[name].std() * math.sqrt(1.6 / 4000)
    checkpoint.write_tree(tmp_path, "table", tree_of(stacked))
    again = model_of(checkpoint.read_tree(tmp_path, "table"))
    torch.testing.assert_close(again.log_prob(table).value, value)
    x = torch.randn(3000, generator=stream(0, "rows")) + 2 * (torch.rand(3000, generator=stream(0, "side")) < 0.7)
    log_probs = torch.stack([torch.distributions.Normal(m, 1.0).log_prob(x).double() for m in (0.0, 2.0, 9.0)], 1)
    found = weigh(log_probs)
    grid = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    fits = [float(torch.logsumexp(log_probs[:, :2] + torch.stack([g, 1 - g]).log(), 1).mean()) for g in grid]
    assert abs(float(found[0]) - float(grid[int(np.argmax(fits))])) < 0.011
    assert float(found[2]) == 0


# --- bad tables -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pd.DataFrame({"a": []}), "no rows|0 sample"),
        (pd.DataFrame({"a": [1.0]}), "one row"),
        (pd.DataFrame(index=range(3)), "no columns|0 feature"),
        (pd.DataFrame({"a": [1.0, np.inf, 2.0]}), "row 2, column 'a' is infinite"),
        (pd.DataFrame({"a": [1.0, "two", 3.0]}), "row 2, column 'a' holds 'two' where most cells hold numbers"),
        (pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]), "more than one column named 'a'"),
        (pd.DataFrame({"a": [None, None]}), "no column is left"),
        (pd.DataFrame({"a": [[1], [2]]}), "row 1, column 'a' holds a list"),
    ],
    ids=["empty", "one row", "no columns", "infinite", "mixed types", "duplicate names", "all missing", "lists"],
)
def test_bad_tables_are_refused_in_a_sentence(table, words):
    with pytest.raises((GibbsianError, ValueError), match=words):
        TableEnergy("mixture").fit(table)


@pytest.mark.parametrize(
    ("column", "kind", "words"),
    [
        (pd.date_range("2020-01-01", periods=30), "category", "holds dates and is said to be of kind 'category'"),
        (pd.date_range("2020-01-01", periods=30), "numeric", "holds dates and is said to be of kind 'numeric'"),
        (np.arange(30), "date", "holds numbers and is said to be of kind 'date'"),
        (np.arange(30) / 4, "integer", "row 2, column 'c' holds 0.25, which is no whole number"),
        (np.arange(30) > 9, "numeric", "holds truth values and is said to be numeric"),
    ],
    ids=["dates as names", "dates as numbers", "numbers as dates", "parts of numbers", "truth"],
)
def test_kinds_that_cells_cannot_be_of_are_refused(column, kind, words):
    with pytest.raises(DataError, match=words):
        TableEnergy("mixture", types={"c": kind}).fit(pd.DataFrame({"c": column, "x": np.arange(30.0)}))


def test_no_rows_are_refused(estimator):
    for ask in (estimator.score_samples, estimator.predict, estimator.explain, estimator.p_values):
        with pytest.raises(DataError, match="the table has no rows"):
            ask(people(5).head(0))
    for n in (0, -1, 2.5):
        with pytest.raises(ArgumentError, match="n must be a whole number from 1 on"):
            estimator.sample(n)


def test_new_cells_of_another_make_are_refused():
    """A date is no number of days where numbers were learned, nor a year a date."""
    table = pd.DataFrame(
        {"day": pd.date_range("2020-01-01", periods=60), "x": np.random.default_rng(0).normal(size=60)}
    )
    estimator = TableEnergy("mixture", n_components=1, random_state=0).fit(table)
    for other, words in [
        (table.assign(day=2020), "row 1, column 'day' holds 2020, a date was expected"),
        (table.assign(x=table["day"]), "row 1, column 'x' holds 2020-01-01, a number was expected"),
    ]:
        with pytest.raises(DataError, match=words):
            estimator.score_samples(other)
    for given, words in [({"day": 2020}, "a date"), ({"x": table["day"][0]}, "a number"), ({"x": [1, 2]}, "one value")]:
        with pytest.raises(ArgumentError, match=f"{words} was expected"):
            estimator.sample(2, given=given)


def test_odd_tables_are_taken_with_a_word():
    rng = np.random.default_rng(0)
    one = TableEnergy("mixture").fit(pd.DataFrame({"a": rng.normal(size=50)}))  # one column
    assert one.sample(3).shape == (3, 1)
    table = pd.DataFrame({"a": rng.normal(size=300), "empty": None, "key": [f"k{i}" for i in range(300)], "same": 1.0})
    words = "'key' holds 300 different words"
    with pytest.warns(TableWarning, match="'empty' is empty"), pytest.warns(TableWarning, match=words):
        model = TableEnergy("mixture", random_state=0).fit(table)
    assert model.impute(table)["key"].equals(table["key"])
    mixed = pd.DataFrame({"a": [1, "two", 3] * 20})
    assert set(TableEnergy("mixture", types={"a": "category"}).fit(mixed).sample(20)["a"].astype(str)) <= {
        "1",
        "two",
        "3",
    }


def test_names_never_seen_many_names_and_other_columns(estimator):
    with pytest.warns(TableWarning, match="row 1, column 'sex': 'robot' was never seen"):
        odd = estimator.score_samples(people(1, gaps=False).assign(sex="robot"))
    assert odd[0] < estimator.score_samples(people(1, gaps=False))[0]
    with pytest.warns(TableWarning, match="below 0"):
        assert estimator.score_samples(people(1).assign(wage=-2.0))[0] == -np.inf
    for other in (people(3).assign(more=1), people(3).drop(columns="kids")):
        with pytest.raises(ValueError, match="feature names"):
            estimator.score_samples(other)
        with pytest.raises(DataError, match=r"the table (lacks|has)"):
            estimator.model_.log_prob(other)
    rng = np.random.default_rng(0)
    many = pd.DataFrame({"a": [f"n{i}" for i in rng.integers(0, 20000, 50000)], "b": rng.normal(size=50000)})
    model = fit_table(many, family="mixture", options=Options(components=1))
    assert len(model.schema["a"].categories) == 255
    assert len(model.schema["a"].pooled) > 10000
    assert np.isfinite(model.log_prob(many.head(50)).value.numpy()).all()
    assert as_table(model.sample(5, generator=stream(0, "x")))["a"].str.startswith("n").all()


def test_frames_are_like_lists_of_columns():
    frame = as_frame(np.array([[1, 2], [3, 4]]))
    assert isinstance(frame, Frame)
    assert len(frame.take([0])) == 1
    np.testing.assert_array_equal(as_table(frame), [[1, 2], [3, 4]])


@pytest.mark.filterwarnings("ignore::gibbsian.tables.TableWarning")
def test_a_tilted_law_without_a_tilt_is_its_mixture(tilted):
    codec, law = tilted
    net = Net(1, law.law.base.states, (8,)).requires_grad_(False)
    plain = TiltedLaw(Tilted(law.law.base, net, 0.0, 0.0), codec)
    rows = codec.encode(tilted_table((0.3,)))
    torch.testing.assert_close(plain.log_prob(rows).value, law.law.base.log_prob(rows))
