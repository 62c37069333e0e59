"""Maximum entropy against closed forms, enumeration, brute force over laws, and moments that cannot be."""

import math

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, energies, kernels, models, objectives, partition
from gibbsian.energies import ExponentialFamily, Monomials
from gibbsian.errors import ArgumentError, CapabilityError, DataError, EstimateWarning, InfeasibleError, ShapeError
from gibbsian.testing import check_energy
from gibbsian.training.serialize import describe, rebuild

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def rnd(*shape, seed=0):
    return torch.randn(*shape, generator=gen(seed), dtype=F64)


def spins(n, scale=0.3, seed=0):
    """Some η over pairs of spins, and its exact moments."""
    features = Monomials(n, 2, squares=False)
    f = features(domains.Spin(n).states(dtype=F64))
    eta = scale * rnd(f.shape[1], seed=seed)
    return features, eta, torch.softmax(f @ eta, 0) @ f


def index_feature(x):
    return (x[:, 0] * torch.arange(x.shape[-1], dtype=x.dtype)).sum(1, keepdim=True)


def heavy(x):
    return torch.log1p(x.square())


# --- closed forms -----------------------------------------------------------------------------------


def test_mean_and_variance_make_a_gaussian():
    """η = (m/v, -1/2v) and H = ½ log 2πev; far from the origin too."""
    for m, v in ((1.0, 4.0), (-30.0, 0.01), (1000.0, 1.0)):
        found = gb.maximum_entropy(Monomials(1, 2), [m, m * m + v], domains.Real(1))
        torch.testing.assert_close(found.eta, torch.tensor([m / v, -0.5 / v], dtype=F64), rtol=1e-5, atol=1e-7)
        assert float(found.entropy) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * v), abs=1e-6)
        assert float(found.dual) == pytest.approx(float(found.entropy), abs=1e-5)
        assert found.converged
        assert found.method == "quadrature"


@pytest.mark.parametrize("d", [2, 3])
def test_second_moments_make_a_full_gaussian(d):
    root = 0.5 * rnd(d, d, seed=d) + torch.eye(d, dtype=F64)
    cov, mean = root @ root.T, 0.3 * rnd(d, seed=9)
    second = cov + torch.outer(mean, mean)
    i, j = torch.triu_indices(d, d)
    found = gb.maximum_entropy(Monomials(d, 2), torch.cat([mean, second[i, j]]), domains.Real(d))
    precision = torch.linalg.inv(cov)
    want = torch.cat([precision @ mean, torch.where(i == j, -0.5, -1.0) * precision[i, j]])
    torch.testing.assert_close(found.eta, want, rtol=1e-4, atol=1e-5)
    exact = 0.5 * torch.linalg.slogdet(2 * math.pi * math.e * cov).logabsdet
    assert float(found.entropy) == pytest.approx(float(exact), abs=1e-5)


def test_a_mean_makes_an_exponential_and_a_logarithm_a_cauchy():
    found = gb.maximum_entropy(Monomials(1), [3.0], domains.NonNegative(1))
    assert float(found.eta) == pytest.approx(-1 / 3, rel=1e-7)
    assert float(found.entropy) == pytest.approx(1 + math.log(3), abs=1e-8)
    cauchy = gb.maximum_entropy(heavy, [2 * math.log(2)], domains.Real(1))
    assert float(cauchy.eta) == pytest.approx(-1, rel=1e-5)
    assert float(cauchy.entropy) == pytest.approx(math.log(4 * math.pi), abs=1e-6)


def test_a_mean_in_a_box_makes_a_truncated_exponential():
    """E[x] = 1/(1 - e^-η) - 1/η on [0, 1]."""
    eta = -2.5
    mean = 1 / (1 - math.exp(-eta)) - 1 / eta
    found = gb.maximum_entropy(Monomials(1), [mean], domains.Box(1))
    assert float(found.eta) == pytest.approx(eta, rel=1e-8)
    assert float(found.log_z) == pytest.approx(math.log((math.exp(eta) - 1) / eta), abs=1e-9)


def test_a_mean_of_whole_numbers_makes_a_geometric_law():
    """k = 0, 1, ..., 199 with mean 2: p ∝ (2/3)^k, entropy (1+m)log(1+m) - m log m; the cut tail weighs 1e-35."""
    found = gb.maximum_entropy(index_feature, [2.0], domains.Categorical(1, classes=200))
    assert float(found.eta) == pytest.approx(math.log(2 / 3), rel=1e-7)
    assert float(found.entropy) == pytest.approx(3 * math.log(3) - 2 * math.log(2), abs=1e-7)


def test_word_counts_make_a_multinomial():
    """The measure counts orders, so the mean counts N·π give η = log π up to a constant, and log Z = N log Σe^η."""
    pi = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    found = gb.maximum_entropy(Monomials(3), 4 * pi, domains.Counts(3, total=4))
    torch.testing.assert_close(torch.softmax(found.eta, 0), pi, rtol=1e-7, atol=1e-9)
    assert float(found.log_z) == pytest.approx(4 * float(torch.logsumexp(found.eta, 0)), abs=1e-8)


@pytest.mark.parametrize("n", [4, 8])
def test_moments_of_spins_give_the_couplings_back(n):
    features, eta, mu = spins(n)
    found = gb.maximum_entropy(features, mu, domains.Spin(n))
    torch.testing.assert_close(found.eta, eta, atol=1e-6, rtol=1e-6)
    assert found.method == "exact"
    p = torch.softmax(features(domains.Spin(n).states(dtype=F64)) @ eta, 0)
    assert float(found.entropy) == pytest.approx(-float(p @ p.log()), abs=1e-9)
    machine = models.BoltzmannMachine(n, spin=True).double()
    i, j = torch.triu_indices(n, n, 1)
    w = torch.zeros(n, n, dtype=F64)
    w[i, j] = w[j, i] = found.eta[n:]
    machine.set_parameters(weight=w, bias=found.eta[:n])
    assert float(partition.exact(machine).value) == pytest.approx(float(found.log_z), abs=1e-8)


def test_no_other_law_with_the_moments_has_more_entropy():
    """Perturb p within the null space of the constraints: entropy falls."""
    features, _, mu = spins(3, 0.2)
    features, mu = Monomials(3, 1, squares=False), mu[:3]
    f = features(domains.Spin(3).states(dtype=F64))
    found = gb.maximum_entropy(features, mu, domains.Spin(3))
    p = torch.softmax(f @ found.eta, 0)
    rows = torch.cat([f.T, torch.ones(1, 8, dtype=F64)])
    null = torch.linalg.svd(rows).Vh[4:]
    for direction in [*null, *(-null)]:
        q = p + 1e-3 * direction
        torch.testing.assert_close(q @ f, mu, atol=1e-7, rtol=0)
        assert -(q @ q.log()) < found.entropy


def test_redundant_features_are_no_trouble():
    def doubled(x):
        return torch.cat([x, x, x.sum(1, keepdim=True)], 1)

    mu = torch.tensor([0.2, 0.7], dtype=F64)
    found = gb.maximum_entropy(doubled, torch.cat([mu, mu, mu.sum()[None]]), domains.Binary(2))
    assert found.converged
    total = found.eta[:2] + found.eta[2:4] + found.eta[4]
    torch.testing.assert_close(total, torch.logit(mu), atol=1e-6, rtol=1e-6)
    # squares of spins are 1
    squares = gb.maximum_entropy(energies.Monomials(2, 2), [0.1, 0.2, 1.0, 0.3, 1.0], domains.Spin(2))
    without = gb.maximum_entropy(energies.Monomials(2, 2, squares=False), [0.1, 0.2, 0.3], domains.Spin(2))
    assert squares.converged
    torch.testing.assert_close(squares.eta[[0, 1, 3]], without.eta, atol=1e-9, rtol=0)


# --- slack ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slack", [0.05, 0.2])
def test_slack_keeps_residuals_below_it_and_eta_sparse(slack):
    """The conditions of optimality: residual = -λ sign η where η ≠ 0, at most λ elsewhere."""
    features, _, mu = spins(4, 0.15)
    found = gb.maximum_entropy(features, mu, domains.Spin(4), slack=slack)
    on = found.eta != 0
    assert 0 < int(on.sum()) < len(mu) + (slack < 0.1)
    torch.testing.assert_close(found.residual[on], -slack * found.eta[on].sign(), atol=1e-6, rtol=0)
    assert bool((found.residual.abs() <= slack + 1e-6).all())
    assert float(found.entropy) > float(gb.maximum_entropy(features, mu, domains.Spin(4)).entropy)
    # strong duality: the dual value is the entropy of the law that was found
    assert float(found.dual) == pytest.approx(float(found.entropy), abs=1e-5)


def test_slack_makes_impossible_moments_possible():
    mu = [0.0, 0.0, 0.0, -0.9, -0.9, -0.9]
    features = Monomials(3, 2, squares=False)
    with pytest.raises(InfeasibleError, match="outside"):
        gb.maximum_entropy(features, mu, domains.Spin(3))
    with pytest.raises(InfeasibleError, match="slack"):
        gb.maximum_entropy(features, mu, domains.Spin(3), slack=0.1)
    found = gb.maximum_entropy(features, mu, domains.Spin(3), slack=0.7)
    assert found.converged


# --- what cannot be, and what only takes longer -----------------------------------------------------


@pytest.mark.parametrize(
    ("features", "mu", "domain", "says"),
    [
        (Monomials(2), [0.5, 1.0], domains.Binary(2), "boundary"),
        (Monomials(2), [0.5, 1.2], domains.Binary(2), "lies between"),
        (Monomials(2, 2, squares=False), [0.6, 0.6, 0.2], domains.Binary(2), "boundary"),
        (Monomials(2, 2, squares=False), [0.6, 0.6, 0.1], domains.Binary(2), "outside"),
        (Monomials(1, 2), [1.0, 0.5], domains.Real(1), "no density"),
        (Monomials(1), [-1.0], domains.NonNegative(1), "no density"),
        (Monomials(1, 3), [0.0, 1.0, 0.5], domains.Real(1), "not attained"),
        (Monomials(16), [0.0] * 15 + [1.0], domains.Spin(16), "boundary"),
    ],
)
def test_impossible_moments_are_told_by_what_is_wrong(features, mu, domain, says):
    with pytest.raises(InfeasibleError, match=says):
        gb.maximum_entropy(features, mu, domain)


def test_nearly_impossible_moments_are_still_found():
    found = gb.maximum_entropy(Monomials(2), [0.5, 1 - 1e-5], domains.Binary(2))
    assert float(found.eta[1]) == pytest.approx(math.log((1 - 1e-5) / 1e-5), rel=1e-6)


def test_too_few_iterations_warn_and_say_so():
    features, _, mu = spins(4, 1.0)
    with pytest.warns(EstimateWarning, match="not come to its end"):
        found = gb.maximum_entropy(features, mu, domains.Spin(4), iterations=1)
    assert not found.converged


def test_arguments_are_checked():
    with pytest.raises(ShapeError, match="3 moments"):
        gb.maximum_entropy(Monomials(2), [0.1, 0.2, 0.3], domains.Binary(2))
    with pytest.raises(DataError, match="finite"):
        gb.maximum_entropy(Monomials(2), [0.1, math.nan], domains.Binary(2))
    with pytest.raises(ArgumentError, match="method"):
        gb.maximum_entropy(Monomials(2), [0.1, 0.2], domains.Binary(2), method="guess")
    with pytest.raises(CapabilityError, match="kernel"):
        gb.maximum_entropy(Monomials(4), [0.1] * 4, domains.Real(4), generator=gen())
    with pytest.raises(ArgumentError, match="start"):
        gb.maximum_entropy(Monomials(4), [0.1] * 4, domains.Real(4), kernel=kernels.HMC(0.1, 5), generator=gen())
    with pytest.raises(ShapeError, match="one row an event"):
        ExponentialFamily(lambda x: x.sum(1), domains.Binary(2))


# --- Monte Carlo ------------------------------------------------------------------------------------


def test_chains_find_what_enumeration_finds():
    """Moments at the η from chains, by enumeration: within five of the standard errors that are reported."""
    features, eta, mu = spins(5, 0.2)
    found = gb.maximum_entropy(
        features, mu, domains.Spin(5), method="monte carlo", chains=128, steps=10, iterations=30, generator=gen()
    )
    f = features(domains.Spin(5).states(dtype=F64))
    true = torch.softmax(f @ found.eta, 0) @ f
    assert bool(((found.moments - true).abs() < 5 * found.stderr).all())
    assert bool(((true - mu).abs() < 0.05).all())
    assert float((found.eta - eta).abs().max()) < 0.1
    assert found.converged
    exact = float(torch.logsumexp(f @ found.eta, 0))
    assert float(found.log_z) == pytest.approx(exact, abs=0.05)


def test_chains_work_on_real_numbers():
    d = 4
    features = Monomials(d, 2)
    start = ExponentialFamily(features, domains.Real(d)).eta.detach().double()
    pairs = [(i, j) for i in range(d) for j in range(i, d)]
    for k, (i, j) in enumerate(pairs):
        start[d + k] = -0.5 if i == j else 0.0
    cov = 0.5 * torch.eye(d, dtype=F64) + 0.3
    mu = torch.cat([torch.zeros(d, dtype=F64), torch.stack([cov[i, j] for i, j in pairs])])
    found = gb.maximum_entropy(
        features, mu, domains.Real(d), start=start, kernel=kernels.HMC(0.4, 5), steps=5, iterations=30, generator=gen()
    )
    assert found.converged
    assert float((found.residual / found.stderr).abs().max()) < 5
    assert float(found.residual.abs().max()) < 0.06


@pytest.mark.parametrize("value", [1.0, 1.2])
def test_chains_see_that_eta_grows_without_end(value):
    with pytest.raises(InfeasibleError, match="feature 3"):
        gb.maximum_entropy(
            Monomials(4),
            [0.1, 0.1, 0.1, value],
            domains.Spin(4),
            method="monte carlo",
            chains=32,
            iterations=15,
            generator=gen(),
        )


# --- the family as an energy ------------------------------------------------------------------------


def test_the_family_is_an_energy_and_likelihood_matches_moments():
    features, eta, _ = spins(4)
    family = ExponentialFamily(features, domains.Spin(4), eta)
    check_energy(family, generator=gen())
    tensors = {}
    again = rebuild(describe(family, tensors), tensors)
    x = domains.Spin(4).sample(200, generator=gen(1), dtype=F64)
    assert torch.equal(again(x), family(x))
    family = ExponentialFamily(features, domains.Spin(4)).double()
    gb.fit(family, objectives.ExactLikelihood(), x, steps=400, batch_size=200, lr=0.05)
    found = gb.maximum_entropy(features, family.moments(x), domains.Spin(4))
    torch.testing.assert_close(family.eta.detach(), found.eta, atol=2e-3, rtol=0)


def test_score_matching_of_the_gaussian_family_is_its_maximum_entropy():
    x = 0.5 + 1.3 * rnd(500, 1)
    family = energies.ExponentialFamily(Monomials(1, 2), domains.Real(1), torch.tensor([0.0, -1.0], dtype=F64))
    gb.fit(family, objectives.ImplicitScoreMatching(), x, steps=500, batch_size=500, lr=0.02)
    found = gb.maximum_entropy(Monomials(1, 2), family.moments(x), domains.Real(1))
    torch.testing.assert_close(family.eta.detach(), found.eta, atol=2e-3, rtol=0)
