"""Gaps that follow what they hide: leant laws against enumeration, mechanisms that were planted found again; windows that lack cells."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from gibbsian.errors import ArgumentError
from gibbsian.random import stream
from gibbsian.sklearn import TableEnergy
from gibbsian.tables import Options, as_table, fit_table
from gibbsian.tables.em import Whole
from gibbsian.tables.gaps import Gaps
from gibbsian.tables.keeping import model_of, tree_of
from gibbsian.tables.laws import MixtureLaw, TiltedLaw
from gibbsian.tables.parzen import told, windows
from gibbsian.tables.rows import Rows
from gibbsian.tables.stacked import StackedLaw
from gibbsian.tables.tilted import Net, normalized
from gibbsian.training import checkpoint


def votes(n, seed=0):
    """A table whose names follow a number and each other."""
    rng = np.random.default_rng(seed)
    age = rng.normal(size=n)
    p = 1 / (1 + np.exp(-1.2 - 2.5 * age))
    party = np.where(rng.random(n) < p, "old", np.where(rng.random(n) < 0.5, "new", "none"))
    paper = np.where(rng.random(n) < np.where(party == "old", 0.85, 0.25), "daily", "weekly")
    return pd.DataFrame({"age": age, "party": party, "paper": paper, "height": rng.normal(size=n)})


def hide(table, chance, seed=1):
    rng = np.random.default_rng(seed)
    gone = {name: rng.random(len(table)) < p for name, p in chance.items()}
    return table.assign(**{name: table[name].mask(where) for name, where in gone.items()}), gone


@pytest.fixture(scope="module")
def model():
    return fit_table(votes(150), family="mixture", options=Options(components=3))


def grid(model):
    """Rows of all codes at three ages, height missing."""
    codes = list(itertools.product(*(range(size) for size in model.codec.states)))
    z, code = [], []
    for age, each in itertools.product((-1.0, 0.2, 1.5), codes):
        z.append((age, math.nan))
        code.append(each)
    zero = torch.zeros(len(z), 2, dtype=torch.float64)
    return Rows(torch.tensor(z).double(), zero, zero, torch.tensor(code), torch.zeros(len(z), 4, dtype=torch.float64))


def laws(model):
    one = MixtureLaw(Whole.of(model.rows(votes(150)), tuple(model.codec.states)).component(), model.codec)
    stack = StackedLaw((model.law, one), torch.tensor([0.3, 0.7], dtype=torch.float64).log(), model.codec)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net(2, model.law.mixture.states, (16,))
        torch.nn.init.normal_(net.rest[-1].weight, std=0.6)
    tilted = TiltedLaw(normalized(model.law.mixture, net.requires_grad_(False), model.codec, 0), model.codec)
    return {"mixture": model.law, "stack": stack, "tilted": tilted}


@pytest.mark.parametrize("kind", ["mixture", "stack", "tilted"])
def test_a_leant_law_is_the_law_times_the_odds_and_its_conditionals_are_of_the_gaps(model, kind):
    """p_ω(x) against p(x) Π ω / Z on a grid of all codes, Z by their sum; and p(hidden | seen) ∝ p Π_hidden ω for every set of gaps."""
    law, rows = laws(model)[kind], grid(model)
    log_odds = torch.randn(sum(model.codec.states), generator=stream(0, "odds"), dtype=torch.float64)
    leant, log_z = law.leant(log_odds)
    first = torch.tensor([0, model.codec.states[0]])
    own = log_odds[rows.code + first].sum(1)
    plain = law.log_prob(rows).value
    error = 3 * math.hypot(leant.law.log_z_stderr, law.law.log_z_stderr) if kind == "tilted" else 1e-9
    # height is integrated by draws under the tilt, with draws that differ between the two laws
    slack = error + (0.15 if kind == "tilted" else 0)
    torch.testing.assert_close(leant.log_prob(rows).value, plain + own - log_z, atol=slack, rtol=0)
    bare = rows.take(slice(0, len(rows.z) // 3))._replace(z=torch.full((len(rows.z) // 3, 2), math.nan).double())
    total = torch.logsumexp(law.log_prob(bare).value + own[: bare.n], 0)
    assert float(log_z) == pytest.approx(float(total), abs=slack)
    if kind == "tilted":
        return
    party, paper = model.codec.states
    joint = (plain + own).view(3, party, paper)
    one = model.codec.without(rows, 1).take(torch.arange(0, rows.n, paper * party) + 1)  # paper is seen
    want = plain.view(3, party, paper)[:, :, 1] + log_odds[:party]
    torch.testing.assert_close(leant.cell(one, 1).codes, torch.softmax(want, 1))
    both = model.codec.without(one, 2)
    torch.testing.assert_close(leant.cell(both, 1).codes, torch.softmax(torch.logsumexp(joint, 2), 1))


def test_odds_that_were_planted_are_found_and_what_they_hide_is_filled_in_better():
    """Rare parties hide four times as often: log odds within 4 of their standard errors (0.21, over eight tables), and the accuracy of
    hidden parties, old or not, gains more than 4 standard errors of a difference."""
    table = votes(1500)
    rare = (table["party"] != "old").to_numpy()
    seen, gone = hide(table, {"party": np.where(rare, 0.6, 0.15), "paper": 0.2})
    found = TableEnergy("mixture", n_components=4, random_state=0).fit(seen)
    theta = dict(zip(found.schema_["party"].categories, found.gaps_.log_odds, strict=False))
    true = math.log((0.6 / 0.4) / (0.15 / 0.85))
    assert abs(float(theta["none"] + theta["new"]) / 2 - float(theta["old"]) - true) < 0.85
    plain = TableEnergy("mixture", n_components=4, gaps="ignorable", random_state=0).fit(seen)
    assert plain.gaps_ is None
    np.testing.assert_array_equal(plain.score_samples(seen), found.score_samples(seen))  # the law stays what it was
    where, truth = gone["party"], table["party"][gone["party"]] == "old"  # the other two are a coin
    right = [((one.impute(seen)["party"][where] == "old") == truth).to_numpy() for one in (found, plain)]
    change = right[0].astype(float) - right[1]
    assert change.mean() > 4 * change.std() / math.sqrt(len(change))
    drawn = found.impute(seen, draws=5)
    share = np.mean([(one["party"][where] == "old").mean() for one in drawn])
    assert abs(share - truth.mean()) < 0.06  # under the plain law 0.23 more
    kept = model_of(tree_of(found.model_))
    pd.testing.assert_frame_equal(as_table(kept.impute(seen)), found.impute(seen))


@pytest.mark.parametrize("follow", ["nothing", "others"])
def test_gaps_that_follow_nothing_or_other_cells_are_ignorable(follow):
    table = votes(1000, seed=2)
    chance = 0.3 if follow == "nothing" else np.where(table["height"] > 0, 0.6, 0.1)
    seen, _ = hide(table, {"party": chance, "paper": 0.2})
    made = fit_table(seen, family="mixture", options=Options(components=3))
    assert made.gaps is not None
    assert made.gaps.ignorable
    assert made.hidden is made.law


def test_gaps_that_follow_a_neighbour_are_told_from_those_that_follow_their_own():
    """Where gaps follow the number that the names follow too, names are an echo of it: the regression on other cells wins."""
    table = votes(1500, seed=3)
    seen, _ = hide(table, {"party": 1 / (1 + np.exp(1 - 2 * table["age"]))})
    made = fit_table(seen, family="mixture", options=Options(components=4))
    assert made.gaps is not None
    assert made.gaps.ignorable
    assert made.gaps.scores["others"] > made.gaps.scores["own"] > 5


def test_runs_keep_how_gaps_come_about(tmp_path, model):
    odd = replace(model, gaps=Gaps(torch.arange(sum(model.codec.states)).double(), {"own": 9.0}))
    checkpoint.write_tree(tmp_path, "table", tree_of(odd))
    again = model_of(checkpoint.read_tree(tmp_path, "table"))
    assert again.gaps is not None
    torch.testing.assert_close(again.gaps.log_odds, odd.gaps.log_odds)
    with pytest.raises(ArgumentError, match="gaps"):
        Options(gaps="odd")


def test_a_window_that_lacks_a_cell_has_what_the_windows_of_other_rows_say():
    """One round of three rows and two columns, written out; a row's own window says nothing of its gap."""
    z = torch.tensor([[0.0], [0.2], [3.0], [math.nan]]).double()
    code = torch.tensor([[-1], [0], [1], [1]])
    zero = torch.zeros_like(z)
    rows = Rows(z, zero, zero, code, torch.zeros(4, 2, dtype=torch.float64))
    whole = Whole.of(rows, (2,))
    plain = windows(rows, whole, 0.5, 0.1)
    normal = torch.distributions.Normal(plain.mean[:, 0], plain.covariance[:, 0].sqrt())
    share = torch.softmax(normal.log_prob(z[0]) + torch.tensor([-math.inf, 0, 0, 0]), 0)
    made = told(plain, rows, rounds=1)
    torch.testing.assert_close(made.table[0].exp(), share @ plain.table.exp())
    share = torch.softmax(plain.table[:, 1] + torch.tensor([0, 0, 0, -math.inf]), 0)
    mean = share @ plain.mean[:, 0]
    torch.testing.assert_close(made.mean[3, 0], mean)
    second = share @ (plain.covariance[:, 0] + plain.mean[:, 0].square())
    torch.testing.assert_close(made.covariance[3, 0], second - mean**2)
    torch.testing.assert_close(made.table[1:], plain.table[1:])
    torch.testing.assert_close(made.mean[:3], plain.mean[:3])


def test_windows_fill_in_the_rows_that_they_stand_on():
    """Two clusters in ten columns, with names of their own: hidden names are told by the neighbours, though every row is a window itself and
    nearer to itself than to others."""
    rng = np.random.default_rng(0)
    side = rng.random(200) < 0.7
    table = pd.DataFrame(rng.normal(1.6 * side[:, None], 1, (200, 10)), columns=[f"x{j}" for j in range(10)])
    table["c"] = np.where(side, "x", "y")
    seen, gone = hide(table, {"c": 0.3})
    filled = TableEnergy("parzen", random_state=0).fit(seen).impute(seen)
    assert (filled["c"] == table["c"])[gone["c"]].mean() > 0.9
