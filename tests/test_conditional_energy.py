"""Conditional energies against enumeration, quadrature, brute force over sequences, and coverage of intervals."""

import itertools
import math
import warnings

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, energies, kernels, objectives, partition
from gibbsian.energies import ChainField, ConditionalEnergy, LabelField, PairMLP
from gibbsian.errors import ArgumentError, CapabilityError, ConvergenceWarning, DomainError, ShapeError
from gibbsian.objectives import Around, Conditional, Flips, RankingContrastive
from gibbsian.testing import check_energy, check_objective
from gibbsian.training.serialize import describe, rebuild

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def rnd(*shape, seed=0):
    return torch.randn(*shape, generator=gen(seed), dtype=F64)


def filled(model, scale=0.7, seed=4):
    g = gen(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return model


def pair_model(domain, inputs=3, confine=0.0):
    return ConditionalEnergy(PairMLP(inputs, domain.numel, (16,)), domain, confine=confine).double()


def chain(length=4, classes=3, inputs=2):
    return filled(ChainField(energies_net(inputs, length, classes), length, classes).double())


def energies_net(inputs, length, classes):
    return torch.nn.Sequential(torch.nn.Linear(inputs, length * classes), torch.nn.Unflatten(1, (length, classes)))


def label_field(labels=4, inputs=3):
    return filled(LabelField(torch.nn.Linear(inputs, labels), labels).double())


DISCRETE = {
    "classes": lambda: pair_model(domains.Categorical(1, classes=5)),
    "bits": lambda: pair_model(domains.Binary(4)),
    "chain": lambda: chain(inputs=3),
    "labels": lambda: label_field(),
}


# --- what a conditional energy is -------------------------------------------------------------------


@pytest.mark.parametrize("name", DISCRETE)
def test_log_z_of_every_input_is_the_sum_over_outputs(name):
    model, x = DISCRETE[name](), rnd(5, 3)
    states = model.domain.states(dtype=F64)
    want = torch.stack([torch.logsumexp(-model.given(x[i : i + 1])(states), 0) for i in range(5)])
    torch.testing.assert_close(model.log_partition(x), want)
    torch.testing.assert_close(model.given(x).log_z(), want)
    total = torch.stack([model.log_prob(x, s.expand(5, *s.shape)) for s in states])
    torch.testing.assert_close(torch.logsumexp(total, 0), torch.zeros(5, dtype=F64), atol=1e-9, rtol=0)
    check_energy(model.given(x[:1]), generator=gen())


def test_rows_go_through_the_inputs_again():
    model, x = DISCRETE["bits"](), rnd(3, 3)
    y = model.domain.sample(6, generator=gen(), dtype=F64)
    want = torch.cat([model.pair_energy(x, y[:3]), model.pair_energy(x, y[3:])])
    torch.testing.assert_close(model.given(x)(y), want)
    torch.testing.assert_close(model.given(x).repeated(2)(y), want)
    with pytest.raises(ShapeError, match="3 inputs met 4"):
        model.given(x)(y[:4])
    with pytest.raises(CapabilityError, match="given"):
        model(y)


def test_large_sums_are_cut_in_blocks_with_the_same_gradient(monkeypatch):
    model, x = DISCRETE["bits"](), rnd(5, 3)
    p = next(model.parameters())
    (whole,) = torch.autograd.grad(model.log_partition(x).sum(), p)
    monkeypatch.setattr(energies.conditional, "_ROWS", 20)
    (cut,) = torch.autograd.grad(model.log_partition(x).sum(), p)
    torch.testing.assert_close(cut, whole)


@pytest.mark.parametrize(
    "domain", [domains.Real(1), domains.Real(2), domains.Box(2, -1.0, 2.0), domains.NonNegative(1)], ids=str
)
def test_log_z_of_real_outputs_is_the_integral(domain):
    """Against the adaptive quadrature of a single energy, for inputs that put the mass in different places."""
    model = filled(pair_model(domain, confine=0.0 if isinstance(domain, domains.Box) else 0.5), 0.8)
    x = 2 * rnd(3, 3)
    want = torch.stack([partition.quadrature(model.given(x[i : i + 1])).value for i in range(3)])
    torch.testing.assert_close(model.log_partition(x).detach(), want, atol=2e-4, rtol=0)


def test_integrals_follow_a_mass_that_is_far_and_narrow():
    model = ConditionalEnergy(lambda x, y: 0.5 * ((y - x) / 0.3).square().sum(1), domains.Real(1))
    x = torch.tensor([[0.0], [20.0], [-300.0]], dtype=F64)
    want = math.log(0.3 * math.sqrt(2 * math.pi))
    torch.testing.assert_close(model.log_partition(x), torch.full((3,), want, dtype=F64), atol=1e-6, rtol=0)


def test_what_cannot_be_summed_says_what_can():
    with pytest.raises(DomainError, match="RankingContrastive"):
        pair_model(domains.Real(3)).log_partition(rnd(2, 3))
    with pytest.raises(DomainError, match="2\\^30"):
        pair_model(domains.Binary(30)).log_partition(rnd(2, 3))
    with pytest.raises(ArgumentError, match="callable"):
        ConditionalEnergy(None, domains.Real(1))
    with pytest.raises(ShapeError, match="x\\[None\\]"):
        DISCRETE["bits"]().given(torch.tensor(1.0))


@pytest.mark.parametrize("name", DISCRETE)
def test_models_are_rebuilt_from_plain_text(name):
    model, tensors, x = DISCRETE[name](), {}, rnd(2, 3)
    again = rebuild(describe(model, tensors), tensors).double()
    again.load_state_dict(model.state_dict())
    y = model.domain.sample(2, generator=gen(), dtype=F64)
    assert torch.equal(again.given(x)(y), model.given(x)(y))


def test_the_likelihood_of_rows_comes_with_an_error():
    model, x = DISCRETE["labels"](), rnd(30, 3)
    y = model.domain.sample(30, generator=gen(), dtype=F64)
    found = partition.conditional_log_likelihood(model.given(x), y)
    each = model.log_prob(x, y).detach()
    torch.testing.assert_close(found.per_sample, each)
    assert float(found.data_stderr) == pytest.approx(float(each.std()) / math.sqrt(30))


# --- chains and label fields ------------------------------------------------------------------------


def test_the_chain_against_every_sequence():
    model, x = chain(), rnd(3, 2)
    states = model.domain.states(dtype=F64)
    h, a_to_b = model.encode(x).detach(), model.transition.detach()
    for i in range(3):
        for k, labels in enumerate(itertools.product(range(3), repeat=4)):
            by_hand = sum(h[i, t, a] for t, a in enumerate(labels))
            by_hand = by_hand + sum(a_to_b[a, b] for a, b in itertools.pairwise(labels))
            assert float(-model.given(x[i : i + 1])(states[k : k + 1]).detach()) == pytest.approx(float(by_hand))
    log_p = torch.stack([model.log_prob(x, s.expand(3, 4, 3)) for s in states]).detach()
    torch.testing.assert_close(model.mode(x), states[log_p.argmax(0)])
    torch.testing.assert_close(model.mean_given(x), torch.einsum("sn,stk->ntk", log_p.exp(), states))


def test_exact_draws_of_a_chain_have_its_probabilities():
    """A chi-square test over all 27 sequences: beyond the 1e-6 quantile of χ²(26), which is 82."""
    model = chain(3, 3)
    x = rnd(1, 2).expand(40000, 2)
    y = model.sample_given(x, generator=gen())
    states = model.domain.states(dtype=F64)
    p = torch.stack([model.log_prob(x[:1], s[None])[0] for s in states]).exp().detach()
    which = (y[:, None] == states).flatten(2).all(2).double().sum(0)
    chi2 = ((which - 40000 * p).square() / (40000 * p)).sum()
    assert float(chi2) < 82


def test_beam_icm_and_viterbi_on_one_chain():
    model, x = chain(6, 3), rnd(20, 2)
    exact = model.pair_energy(x, model.mode(x))
    wide = model.pair_energy(x, gb.predict(model, x, method="beam", width=81))
    torch.testing.assert_close(wide, exact)
    narrow = model.pair_energy(x, gb.predict(model, x, method="beam", width=1))
    icm = model.pair_energy(x, gb.predict(model, x, method="icm", starts=4, generator=gen()))
    assert bool((narrow >= exact - 1e-9).all())
    assert bool((icm >= exact - 1e-9).all())
    assert float((icm - exact).mean().detach()) < 0.5


def test_a_label_field_without_couplings_is_logistic_regression():
    model, x = label_field(), rnd(6, 3)
    with torch.no_grad():
        model.weight.zero_()
    torch.testing.assert_close(model.mean_given(x), torch.sigmoid(model.encode(x)))
    y = model.domain.sample(6, generator=gen(), dtype=F64)
    want = -torch.nn.functional.binary_cross_entropy_with_logits(model.encode(x), y, reduction="none").sum(1)
    torch.testing.assert_close(model.log_prob(x, y), want)


# --- learning ---------------------------------------------------------------------------------------


def outputs_of(model, x, seed=0):
    """Exact draws of p(y | x) by enumeration."""
    states = model.domain.states(dtype=F64)
    log_p = torch.stack([model.log_prob(x, s.expand(len(x), *s.shape)) for s in states], 1)
    return states[torch.multinomial(log_p.exp().detach(), 1, generator=gen(seed))[:, 0]]


def gradient(model, objective, batch, seed=0):
    g = gen(seed)
    loss = objective(model, batch, objective.init(model, batch, g), g)
    return torch.cat([p.flatten() for p in torch.autograd.grad(loss.value, list(model.parameters()))])


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("classes", RankingContrastive("uniform", 6)),
        ("bits", RankingContrastive("marginals", 4)),
        ("bits", RankingContrastive(Flips(0.4), 4, "pairs")),
        ("classes", RankingContrastive(Flips(0.5), 4, "pairs")),
    ],
    ids=str,
)
def test_consistent_rankings_have_no_gradient_at_the_truth(name, objective):
    """Data from the model itself: the mean gradient over 60 data sets is 0 within 4.5 standard errors."""
    model = filled(DISCRETE[name](), 0.9)
    draws = []
    for k in range(60):
        x = rnd(80, 3, seed=100 + k)
        draws.append(gradient(model, Conditional(objective), (x, outputs_of(model, x, k)), seed=k))
    draws = torch.stack(draws)
    error = draws.std(0) / math.sqrt(len(draws))
    moving = error > 1e-9
    z = draws.mean(0)[moving] / error[moving]
    assert float(z.abs().max()) < 4.5
    # the same away from the truth: the test has power
    other = filled(DISCRETE[name](), 0.9, seed=9)
    wrong = [
        gradient(other, Conditional(objective), (x, outputs_of(model, x, k)), seed=k)
        for k, x in ((k, rnd(80, 3, seed=100 + k)) for k in range(20))
    ]
    wrong = torch.stack(wrong)
    assert float((wrong.mean(0) / (wrong.std(0) + 1e-9) * math.sqrt(20)).abs().max()) > 8


def test_candidates_around_the_datum_tend_to_the_likelihood():
    """With many candidates the gradient is that of -log p(y|x) by quadrature: within 4.5 standard errors + 2 %."""
    model = filled(pair_model(domains.Real(1), confine=1.0), 0.5)
    x, y = rnd(16, 3), rnd(16, 1, seed=2)
    truth = torch.cat(
        [p.flatten() for p in torch.autograd.grad(-model.log_prob(x, y).mean(), list(model.parameters()))]
    )
    objective = Conditional(RankingContrastive(Around((0.5, 2.0)), 4000))
    draws = torch.stack([gradient(model, objective, (x, y), seed=k) for k in range(12)])
    off = (draws.mean(0) - truth).abs()
    assert bool((off < 4.5 * draws.std(0) / math.sqrt(12) + 0.02 * truth.abs().max()).all())


@pytest.mark.parametrize("proposal", [Around((0.2, 1.5)), Flips(0.3)], ids=str)
def test_proposals_are_symmetric_and_normalized(proposal):
    if isinstance(proposal, Around):
        domain, y = domains.Real(1), torch.tensor([[0.7]], dtype=F64)
        grid = torch.linspace(-15, 15, 20001, dtype=F64).reshape(-1, 1, 1)
        assert float(torch.trapezoid(proposal.log_prob(domain, grid, y).exp()[:, 0], grid[:, 0, 0])) == pytest.approx(1)
        draws = proposal.draw(domain, y, 20000, gen())
        assert float((draws - y).square().mean()) == pytest.approx((0.04 + 2.25) / 2, rel=0.06)
    else:
        for domain in (domains.Spin(3), domains.Categorical(2, classes=3)):
            states = domain.states(dtype=F64)
            log_q = proposal.log_prob(domain, states[:, None].expand(-1, len(states), *domain.shape), states)
            torch.testing.assert_close(log_q, log_q.T)
            torch.testing.assert_close(log_q.logsumexp(0), torch.zeros(len(states), dtype=F64), atol=1e-9, rtol=0)
            draws = proposal.draw(domain, states[:1], 40000, gen())[:, 0]
            seen = (draws[:, None] == states).flatten(2).all(2).double().mean(0)
            torch.testing.assert_close(seen, log_q[:, 0].exp(), atol=0.012, rtol=0)


def test_one_width_is_drawn_for_all_entries_of_a_candidate():
    """In three dimensions: the density is that of torch's mixture, and draws follow it. The mean of any density over q is
    1 for draws of q, within 5 standard errors, here of all three widths; with a width for every entry it is not."""
    sigmas = (0.3, 1.0, 2.5)
    proposal, domain, y = Around(sigmas), domains.Real(3), rnd(1, 3)
    draws = proposal.draw(domain, y, 40000, gen())
    log_q = proposal.log_prob(domain, draws, y)
    widths = torch.tensor(sigmas, dtype=F64)
    parts = torch.distributions.Independent(torch.distributions.Normal(y.expand(3, 3), widths[:, None].expand(3, 3)), 1)
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(torch.ones(3, dtype=F64)), parts)
    torch.testing.assert_close(log_q[:, 0], mixture.log_prob(draws[:, 0]))
    for k in range(3):
        ratio = torch.exp(parts.log_prob(draws[:, :1].expand(-1, 3, 3))[:, k] - log_q[:, 0])
        assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / math.sqrt(40000)
    # shares of the widths: the widest alone reaches beyond four of the middle one
    far = (draws - y).norm(dim=2) > 4.0
    reach = float(torch.distributions.Chi2(torch.tensor(3.0, dtype=F64)).cdf(torch.tensor((4 / 2.5) ** 2, dtype=F64)))
    share = (1 - reach) / 3
    assert abs(float(far.double().mean()) - share) < 5 * math.sqrt(share / 40000) + 0.001  # of the middle one: 0.0004


DISCRETE_PRINCIPLES = {
    "exact": objectives.ExactLikelihood(),
    "ranking": RankingContrastive("marginals", 16),
    "pseudo-likelihood": objectives.PseudoLikelihood(),
    "contrastive divergence": objectives.ContrastiveDivergence(kernels.SiteGibbs(), steps=2),
}


@pytest.mark.parametrize("principle", DISCRETE_PRINCIPLES)
def test_every_principle_learns_labels_that_depend_on_each_other(principle):
    """The mean log p(y|x) of fresh data under the learned field comes close to the truth's."""
    truth = label_field()
    x = rnd(3000, 3)
    y = outputs_of(truth, x)
    model = LabelField(torch.nn.Linear(3, 4), 4).double()
    gb.fit(
        model,
        Conditional(DISCRETE_PRINCIPLES[principle]),
        (x, y),
        steps=250,
        batch_size=500,
        lr=0.05,
        schedule="cosine",
    )
    fresh = rnd(4000, 3, seed=8)
    seen = outputs_of(truth, fresh, seed=5)
    best, got = (float(m.log_prob(fresh, seen).mean().detach()) for m in (truth, model))
    assert best - got < 0.03
    assert float((model.coupling() - truth.coupling()).abs().max().detach()) < 0.35


REAL_PRINCIPLES = {
    "exact": objectives.ExactLikelihood(),
    "ranking": RankingContrastive(Around((0.2, 1.0)), 32),
    "pairs": RankingContrastive(Around((0.5,)), 8, "pairs"),
    "score matching": objectives.ImplicitScoreMatching(),
    "denoising": objectives.DenoisingScoreMatching(0.1),
    "contrastive divergence": objectives.ContrastiveDivergence(kernels.HMC(0.15, 5), steps=3),
}


class Line(torch.nn.Module):
    """½e^r(y - wx - b)²: a line with a learned noise."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.log_precision = torch.nn.Linear(1, 1), torch.nn.Parameter(torch.zeros(()))
        with torch.no_grad():
            self.line.weight.zero_()
            self.line.bias.zero_()

    def forward(self, x, y):
        return 0.5 * self.log_precision.exp() * (y - self.line(x)).square().sum(1)


@pytest.mark.parametrize("principle", REAL_PRINCIPLES)
def test_every_principle_learns_a_line_and_its_noise(principle):
    """y = 2x - 1 + 0.5 noise; slopes to 0.05 (their standard error is 0.01), noise to 10 % (the blur of denoising
    by 0.1 adds 2 %; ranking with 32 candidates is not yet the likelihood)."""
    x = rnd(2500, 1)
    y = 2 * x - 1 + 0.5 * rnd(2500, 1, seed=1)
    model = ConditionalEnergy(Line().double(), domains.Real(1))
    objective = Conditional(REAL_PRINCIPLES[principle])
    gb.fit(model, objective, (x, y), steps=200, batch_size=250, lr=0.08, schedule="cosine")
    net = model.net
    assert float(net.line.weight.detach()) == pytest.approx(2, abs=0.05)
    assert float(net.line.bias.detach()) == pytest.approx(-1, abs=0.05)
    assert float((-0.5 * net.log_precision).exp().detach()) == pytest.approx(0.5, rel=0.1)


def test_the_objective_keeps_its_promises():
    x, y = rnd(12, 3).float(), rnd(12, 1, seed=1).float()
    model = ConditionalEnergy(PairMLP(3, 1, (8,)), domains.Real(1), confine=1.0)
    check_objective(Conditional(RankingContrastive(Around(), 8)), model, (x, y), generator=gen())
    with pytest.raises(DomainError, match="Flips"):
        RankingContrastive(Around()).check(DISCRETE["bits"]().given(rnd(2, 3)), torch.zeros(2, 4, dtype=F64))
    with pytest.raises(ArgumentError, match="symmetric"):
        RankingContrastive("uniform", kind="pairs")
    with pytest.raises(ArgumentError, match="Around"):
        RankingContrastive(noise=3.0)


# --- prediction -------------------------------------------------------------------------------------


def test_predictions_minimize_the_energy():
    model = filled(pair_model(domains.Real(1), confine=1.0), 1.2)
    x = rnd(5, 3)
    y = gb.predict(model, x, generator=gen(), starts=6)
    grid = torch.linspace(-6, 6, 4001, dtype=F64)
    every = torch.stack([model.given(x)(v.expand(5, 1)) for v in grid])
    torch.testing.assert_close(model.given(x)(y), every.min(0).values, atol=1e-4, rtol=0)
    labels = DISCRETE["labels"]()
    states = labels.domain.states(dtype=F64)
    best = torch.stack([labels.given(x)(s.expand(5, 4)) for s in states]).min(0)
    torch.testing.assert_close(gb.predict(labels, x), states[best.indices])
    with pytest.raises(CapabilityError, match="given"):
        gb.predict(energies.Gaussian(torch.zeros(1), torch.eye(1)), x)
    with pytest.raises(CapabilityError, match="mode"):
        gb.predict(labels, x, method="exact")


def two_wells(x, y):
    """Minima near y = ±3, the lower one on the side of x."""
    return (0.1 * (y.square() - 9).square() - x * y).sum(1)


@pytest.mark.parametrize("method", ["lbfgs", "gradient"])
def test_the_best_of_several_searches_is_taken_for_every_input(method):
    """One search ends in the nearer well, twelve leave none of 40 inputs in the wrong one but with chance 40·2^-12 (a
    reference draw lies on either side of 0 alike); with one start about half of them do."""
    model = ConditionalEnergy(two_wells, domains.Real(1))
    x = torch.where(torch.arange(40) % 3 == 0, -1.0, 2.0).double()[:, None]
    best = gb.predict(model, x, method=method, starts=12, generator=gen(3))
    assert torch.equal(best.sign(), x.sign())
    slope = 0.4 * best * (best.square() - 9) - x  # and it is the minimum of that well
    assert float(slope.abs().max()) < 1e-4
    once = gb.predict(model, x, method=method, starts=1, generator=gen(3))
    wrong = int((once.sign() != x.sign()).sum())
    assert 4 < wrong < 36  # 20 ± 5 standard deviations
    torch.testing.assert_close(model.given(x)(best), torch.minimum(model.given(x)(best), model.given(x)(once)))


def test_predictions_say_where_the_best_search_had_not_come_to_rest():
    model = ConditionalEnergy(two_wells, domains.Real(1))
    x = rnd(6, 1)
    for how in ({"starts": 3, "generator": gen()}, {"start": rnd(6, 1, seed=2)}):
        with pytest.warns(ConvergenceWarning, match="6 of 6 searches") as caught:
            gb.predict(model, x, steps=1, **how)
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gb.predict(model, x, **how)


def test_intervals_cover_what_they_claim():
    """Outputs from the model itself: an interval of level 0.8 covers 0.8 of 600 of them within 4 standard errors,
    widened by the finite number of draws."""
    model = ConditionalEnergy(
        lambda x, y: 0.5 * ((y - torch.sin(x)) / (0.2 + 0.5 * x.abs())).square().sum(1), domains.Real(1)
    )
    x = rnd(600, 1)
    y = torch.sin(x) + (0.2 + 0.5 * x.abs()) * rnd(600, 1, seed=3)
    found = gb.predict_interval(
        model, x, kernels.HMC(0.15, 8), level=0.8, steps=80, burn_in=40, chains=8, generator=gen(), start=torch.sin(x)
    )
    covered = float(((y > found.lower) & (y < found.upper)).double().mean())
    assert covered == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / 600) + 0.01)
    assert float((found.median - torch.sin(x)).abs().mean()) < 0.15
    wide = (found.upper - found.lower) / (2 * 1.2816 * (0.2 + 0.5 * x.abs()))
    assert float(wide.mean()) == pytest.approx(1, abs=0.05)
    with pytest.raises(ArgumentError, match="level"):
        gb.predict_interval(model, x, kernels.HMC(0.15, 8), level=1.0, generator=gen())


def test_a_conditional_energy_is_trained_saved_and_loaded(tmp_path):
    x, y = rnd(50, 3).float(), rnd(50, 1, seed=1).float()
    model = ConditionalEnergy(PairMLP(3, 1, (8,)), domains.Real(1), confine=1.0)
    objective = Conditional(RankingContrastive(Around((0.3, 1.0)), 8))
    gb.fit(model, objective, (x, y), steps=5, batch_size=10, run_dir=tmp_path / "run")
    again = gb.load(tmp_path / "run")
    assert torch.equal(again.given(x)(y), model.given(x)(y))
