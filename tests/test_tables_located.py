"""Numbers that are shifted by names: the law against the formula written out, its learning against the gradient of the likelihood."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from gibbsian.errors import DataError
from gibbsian.random import stream
from gibbsian.tables import Options, fit_table
from gibbsian.tables.codec import Codec
from gibbsian.tables.em import Whole
from gibbsian.tables.fitting import fit_mixture
from gibbsian.tables.frames import as_frame
from gibbsian.tables.located import Expanded, Located, fit_located, shifted, shifting
from gibbsian.tables.mixture import Mixture
from gibbsian.tables.rows import Rows
from gibbsian.tables.schema import Schema


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_mixture(k=3, m=2, states=(3, 2, 2), seed=0):
    a = draws(k, m, m, seed=seed)
    table = torch.cat([torch.log_softmax(draws(k, s, seed=seed + s), 1) for s in states], 1)
    covariance = a @ a.transpose(1, 2) + 0.3 * torch.eye(m, dtype=torch.float64)
    return Mixture(torch.log_softmax(draws(k, seed=7), 0), draws(k, m, seed=8), covariance, table, states)


def rows_of(z, code):
    zero = torch.zeros_like(z)
    return Rows(z, zero, zero, code, torch.zeros(len(z), 5, dtype=torch.float64))


def gappy(n, states, m=2, seed=0, share=0.3):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, m, generator=g, dtype=torch.float64)
    z[torch.rand(n, m, generator=g) < share] = math.nan
    code = torch.stack([torch.randint(0, size, (n,), generator=g) for size in states], 1)
    code[torch.rand(n, len(states), generator=g) < share] = -1
    return rows_of(z, code)


@pytest.fixture
def law():
    return Located(random_mixture(), (0, 2), draws(5, 2, seed=3))


def test_a_located_law_is_its_formula(law):
    """Every code and class against normal laws of scipy; missing codes are summed over, p(code | rest) is a ratio of the sums."""
    own, mixture = law.classes, law.mixture()
    rows = gappy(40, own.states)
    want = np.zeros((40, 3, 2, 2))
    for i, codes in itertools.product(range(40), itertools.product(range(3), range(2), range(2))):
        if any(seen not in (-1, c) for seen, c in zip(rows.code[i].tolist(), codes, strict=True)):
            continue
        o = (~rows.z[i].isnan()).nonzero().flatten().numpy()
        moved = law.shift[codes[0]] + law.shift[3 + codes[2]]
        for k in range(3):
            p = math.exp(float(own.log_weight[k] + sum(own.slot(j)[k, c] for j, c in enumerate(codes))))
            if len(o):
                normal = stats.multivariate_normal((own.mean[k] + moved)[o].numpy(), own.covariance[k][o][:, o].numpy())
                p *= normal.pdf(rows.z[i][o].numpy())
            want[(i, *codes)] += p
    np.testing.assert_allclose(mixture.log_prob(rows), np.log(want.sum((1, 2, 3))), atol=1e-9)
    for j in range(3):
        gone = rows.code[:, j] < 0
        sums = want.sum(tuple(a for a in (1, 2, 3) if a != j + 1))[gone.numpy()]
        np.testing.assert_allclose(
            mixture.codes_given(rows.take(gone), j), sums / sums.sum(1, keepdims=True), atol=1e-9
        )
    assert len(replace(law, slots=(), shift=law.shift[:0]).tuples) == 1


def test_components_that_share_covariances_are_as_with_copies(law):
    few = law.mixture()
    many = replace(few, covariance=few.covariance.repeat_interleave(6, 0))
    for rows in (gappy(50, few.states), gappy(9, few.states, share=0.0)):
        torch.testing.assert_close(few.log_joint(rows), many.log_joint(rows))
        z = rows._replace(z=torch.where(torch.tensor([True, False]), math.nan, rows.z))
        for a, b in zip(few.numbers_given(z, 0), many.numbers_given(z, 0), strict=True):
            torch.testing.assert_close(a, b)
        a, b = (one.complete(rows, stream(0, "draw")) for one in (few, many))
        torch.testing.assert_close(a.z, b.z)
        assert torch.equal(a.code, b.code)


def test_codes_that_may_not_be_drawn_are_not(law):
    mixture = law.mixture()
    drawn = mixture.complete(gappy(4000, mixture.states), stream(0, "draw"), drawable=(2, 2, 1))
    gaps = gappy(4000, mixture.states).code < 0
    assert int(drawn.code[gaps[:, 0], 0].max()) == 1
    assert int(drawn.code[gaps[:, 2], 2].max()) == 0


def test_shifts_end_where_the_gradient_of_the_likelihood_is_zero(law):
    """Shifts alone, again and again: the gradient of log-likelihood and prior by automatic differentiation goes to 0, gaps in numbers and
    names summed over; with the prior's sign turned or a class left out it would stay."""
    rows = gappy(60, law.classes.states, seed=5)
    whole = Whole.of(rows, law.classes.states)
    data = Expanded(rows, law)
    for _ in range(60):
        law = replace(law, shift=shifted(law, data, data.shares(law)[0], whole))
    shift = law.shift.clone().requires_grad_()
    prior = 0.5 * torch.einsum("si,ij,sj->", shift, torch.linalg.inv(whole.covariance), shift)
    total = replace(law, shift=shift).mixture().log_prob(rows).sum()
    assert float(total.detach()) == pytest.approx(data.shares(law)[1], abs=1e-8)
    (total - prior).backward()
    assert float(shift.grad.abs().max()) < 1e-4


def stones(n, seed=0):
    """Log prices that follow log size, colour and clarity, added up; a name that follows nothing; sizes of two kinds."""
    rng = np.random.default_rng(seed)
    colour, clarity = rng.integers(4, size=n), rng.integers(3, size=n)
    size = rng.normal(np.where(rng.random(n) < 0.5, -0.5, 0.5), 0.2)
    price = 1.7 * size + 0.3 * colour + 0.5 * clarity - 1 + rng.normal(0, 0.1, n)
    return pd.DataFrame({
        "size": size, "price": price, "colour": np.array(list("DEFG"))[colour], "clarity": np.array(["bad", "fair", "good"])[clarity],
        "box": rng.choice(["red", "blue"], n),
    })  # fmt: skip


def hidden(table, share, seed=1):
    gone = np.random.default_rng(seed).random(table.shape) < share
    return table.mask(gone), gone


def test_planted_shifts_are_found_behind_gaps():
    """Slots of the names that shift prices and no others; shifts of log price within 0.05 (5 standard errors of 0.1/√100); held-out rows more
    likely than under mixtures of as many classes, and than under any."""
    seen, _ = hidden(stones(600), 0.2)
    frame = as_frame(seen)
    schema = Schema.learn(frame)
    codec = Codec.fit(schema, frame, 2)
    rows = codec.encode(frame)
    whole = Whole.of(rows, tuple(codec.states))
    slots = shifting(rows, whole, codec)
    assert [schema.names[codec.code_slot.index(j)] for j in slots] == ["colour", "clarity"]
    found = fit_located(rows, whole, slots, 2)
    by_name = dict(zip(schema["colour"].categories, found.shift[:4, 1], strict=True))
    slope = codec.coders[1].transform.slope[0] / codec.coders[1].transform.scale  # z a log price
    for first, second in itertools.pairwise("DEFG"):
        step = float(by_name[second] - by_name[first]) / slope
        assert step == pytest.approx(0.3, abs=0.05)
    new = codec.encode(as_frame(stones(300, seed=9)))
    plain = [fit_mixture(rows, whole, k).log_prob(new).mean() for k in (2, 8, 24)]
    assert float(found.mixture().log_prob(new).mean()) > float(max(plain)) + 0.3


def test_a_table_with_shifts_is_filled_in_by_them():
    """Hidden names as well as anyone can who knows the law: within 4 standard errors (0.05) of the rule of Bayes."""
    table = stones(400, seed=3)
    seen, gone = hidden(table, 0.1)
    model = fit_table(seen, family=["mixture", "located"], options=Options(components=4))
    assert model.scores["located"] > model.scores["mixture"]
    where = gone[:, 2] & ~gone[:, [0, 1, 3]].any(1)
    filled = model.impute(seen).columns[2].values[where]
    left = 1 + table["price"] - 1.7 * table["size"] - 0.5 * table["clarity"].map({"bad": 0, "fair": 1, "good": 2})
    best = np.array(list("DEFG"))[np.clip(np.round(left / 0.3), 0, 3).astype(int)[where]]
    truth = table["colour"].to_numpy()[where]
    assert (filled == truth).mean() > (best == truth).mean() - 0.2
    assert (best == truth).mean() > 0.8


KINDS = {
    "numbers": lambda rng, n: rng.normal(size=n),
    "counts": lambda rng, n: rng.poisson(3, n),
    "names": lambda rng, n: rng.choice(list("abc"), n),
    "truth": lambda rng, n: rng.random(n) < 0.3,
    "one name": lambda rng, n: ["same"] * n,
    "keys": lambda rng, n: 10**18 + np.arange(n),
}


@pytest.mark.parametrize("kinds", [some for k in (1, 2) for some in itertools.combinations(KINDS, k)][:-1])
@pytest.mark.filterwarnings("ignore:column 'keys' holds whole numbers of more than 2⁵³, like a key")
def test_tables_of_any_kinds_of_columns_have_a_law(kinds):
    """Also those of numbers alone, or of names alone."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: KINDS[name](rng, 40) for name in kinds})
    if kinds == ("keys",):
        with pytest.raises(DataError, match="no column is left"):
            fit_table(table, family="located")
        return
    model = fit_table(table, family=["located", "parzen"], options=Options(steps=5))
    assert torch.isfinite(model.log_prob(table).value).all()
    assert model.sample(3, generator=stream(0, "drawn")).names == kinds
