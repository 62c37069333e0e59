"""Score matching and its relatives against closed forms, and against each other."""

import pytest
import torch
from objective_oracles import F64, gaussian, gen, gradient, gradient_of, mixture_of_three, some_data, z_scores

import gibbsian as gb
from gibbsian import domains, errors, objectives
from gibbsian.objectives import (
    DenoisingScoreMatching,
    ExplicitScoreMatching,
    ImplicitScoreMatching,
    MultiScaleDenoising,
    NonNegativeScoreMatching,
    SlicedScoreMatching,
)

ENERGIES = {"gaussian": gaussian, "mixture": mixture_of_three}


def by_hand(energy, x):
    """E[tr ∇s + ½‖s‖²] from the full Hessian of every row."""

    def one(row):
        return energy(row[None])[0]

    total = 0.0
    for row in x:
        row = row.clone().requires_grad_(True)
        (g,) = torch.autograd.grad(one(row), row, create_graph=True)
        trace = sum(torch.autograd.grad(g[i], row, create_graph=True)[0][i] for i in range(len(row)))
        total = total - trace + 0.5 * g.square().sum()
    return total / len(x)


@pytest.mark.parametrize("name", ENERGIES)
@pytest.mark.parametrize("chunk", [None, 1])
def test_implicit_is_the_trace_of_the_full_hessian(name, chunk):
    energy, x = ENERGIES[name](), some_data(12)
    truth = by_hand(energy, x)
    loss = ImplicitScoreMatching(chunk=chunk)(energy, x, (), gen())
    torch.testing.assert_close(loss.value.detach(), truth.detach(), rtol=1e-12, atol=1e-12)
    expected = gradient_of(truth, energy)
    torch.testing.assert_close(gradient_of(loss.value, energy), expected, rtol=1e-10, atol=1e-12)


def test_a_chunked_trace_over_many_blocks_is_the_same():
    energy = gb.energies.MLPEnergy((2, 3, 2), hidden=(16,)).double()
    x = torch.randn(5, 2, 3, 2, generator=gen(), dtype=F64)
    whole = gradient(energy, ImplicitScoreMatching(), x)
    for chunk in (1, 5, 12):
        torch.testing.assert_close(
            gradient(energy, ImplicitScoreMatching(chunk=chunk), x), whole, rtol=1e-10, atol=1e-12
        )


@pytest.mark.parametrize("name", ENERGIES)
@pytest.mark.parametrize("kind", ["gaussian", "rademacher", "sphere"])
@pytest.mark.parametrize("variance_reduced", [True, False])
def test_the_mean_of_sliced_is_implicit(name, kind, variance_reduced):
    energy, x = ENERGIES[name](), some_data(8)
    truth = gradient(energy, ImplicitScoreMatching(), x)
    objective = SlicedScoreMatching(50, kind, variance_reduced)
    z = z_scores(energy, objective, x, truth, repeats=60)
    assert z.abs().max() < 5.5  # t with 59 degrees of freedom: below 1e-6 each


@pytest.mark.parametrize("name", ENERGIES)
def test_the_mean_of_hutchinson_is_implicit(name):
    energy, x = ENERGIES[name](), some_data(8)
    truth = gradient(energy, ImplicitScoreMatching(), x)
    z = z_scores(energy, ImplicitScoreMatching("hutchinson", probes=20), x, truth, repeats=60)
    assert z.abs().max() < 5.5


def test_directions_have_unit_covariance_in_many_dimensions():
    """E[vvᵀ] = I, so the sphere has radius √d: on ½xᵀHx the sliced trace is tr H, whatever d."""
    d = 30
    h = torch.randn(d, d, generator=gen(), dtype=F64)
    h = h @ h.T / d
    energy = gb.as_energy(lambda x: 0.5 * (x @ h * x).sum(1), domains.Real(d))
    x = torch.zeros(400, d, dtype=F64)  # the score vanishes, the trace is left
    for kind in ("gaussian", "rademacher", "sphere"):
        value = SlicedScoreMatching(20, kind, False)(energy, x, (), gen()).value
        spread = (2 * h.square().sum() / 8000) ** 0.5  # of a mean of 8000 Gaussian quadratic forms, the widest
        assert abs(value + h.trace()) < 5 * spread


@pytest.mark.parametrize("shape", ["full", "diagonal", "isotropic"])
def test_score_matching_of_a_gaussian_is_maximum_likelihood(shape):
    """Equal minimizers on any sample: at the maximum-likelihood estimate the gradient vanishes."""
    x = some_data(200)
    centered = x - x.mean(0)
    s = centered.T @ centered / len(x)
    if shape == "full":
        fitted = gb.energies.Gaussian(x.mean(0), s, trainable=True)
        assert gradient(fitted, ImplicitScoreMatching(), x).norm() < 1e-10
        return

    class Factorized(gb.Energy):
        def __init__(self, log_precision):
            super().__init__(domains.Real(2))
            self.mean = torch.nn.Parameter(x.mean(0))
            self.log_precision = torch.nn.Parameter(log_precision)

        def forward(self, y):
            return 0.5 * ((y - self.mean).square() * self.log_precision.exp()).sum(1)

    variance = s.diagonal() if shape == "diagonal" else s.trace() / 2
    assert gradient(Factorized(-variance.log()), ImplicitScoreMatching(), x).norm() < 1e-10
    assert gradient(Factorized(0.1 - variance.log()), ImplicitScoreMatching(), x).norm() > 1e-2


def test_explicit_recovers_the_target_and_is_zero_there():
    target = mixture_of_three(trainable=False)
    x = some_data(300)
    objective = ExplicitScoreMatching(target)
    assert float(objective(mixture_of_three(), x, (), gen()).value.detach()) < 1e-25
    energy = gaussian()
    half = 0.5 * (energy.score(x, create_graph=True) - target.score(x)).square().sum(1).mean()
    torch.testing.assert_close(gradient(energy, objective, x), gradient_of(half, energy))
    by_function = ExplicitScoreMatching(target.score)
    torch.testing.assert_close(gradient(energy, by_function, x), gradient_of(half, energy))
    assert energy.mean.grad is None  # nothing but the returned loss carries gradients


def test_explicit_and_implicit_differ_by_a_constant():
    """½E‖s - s*‖² = E[tr ∇s + ½‖s‖²] + const over draws of the target: equal gradients in expectation."""
    target, energy = mixture_of_three(False), gaussian()
    x = target.sample(40000, generator=gen())
    explicit, implicit = (gradient(energy, o, x) for o in (ExplicitScoreMatching(target), ImplicitScoreMatching()))
    halves = [
        gradient(energy, ExplicitScoreMatching(target), part) - gradient(energy, ImplicitScoreMatching(), part)
        for part in x.split(1000)
    ]
    error = torch.stack(halves).std(0) / len(halves) ** 0.5
    moving = error > 1e-12
    assert ((explicit - implicit)[moving] / error[moving]).abs().max() < 5.5


# --- denoising ------------------------------------------------------------------------------------


def denoising_gaussian(energy, x, sigma):
    """½E‖-P(x̃ - m) + ε/σ‖² over the noise, in closed form."""
    centered = x - energy.mean
    second = centered.T @ centered / len(x)
    p, d = energy.precision, x.shape[1]
    eye = torch.eye(d, dtype=F64)
    return 0.5 * ((p @ p * (second + sigma**2 * eye)).sum() - 2 * p.trace() + d / sigma**2)


@pytest.mark.parametrize("sigma", [0.2, 1.0])
def test_denoising_of_a_gaussian_in_closed_form(sigma):
    energy, x = gaussian(), some_data(64)
    truth = gradient_of(denoising_gaussian(energy, x, sigma), energy)
    z = z_scores(energy, DenoisingScoreMatching(sigma), x, truth, repeats=300)
    assert z.abs().max() < 5


def test_denoising_minimum_is_the_blurred_precision():
    x, sigma = some_data(500), 0.5
    centered = x - x.mean(0)
    blurred = centered.T @ centered / len(x) + sigma**2 * torch.eye(2, dtype=F64)
    fitted = gb.energies.Gaussian(x.mean(0), blurred, trainable=True)
    assert gradient_of(denoising_gaussian(fitted, x, sigma), fitted).norm() < 1e-12
    zero = torch.zeros(8, dtype=F64)
    z = z_scores(fitted, DenoisingScoreMatching(sigma), x, zero, repeats=200)
    assert z.abs().max() < 5
    sharp = gb.energies.Gaussian(x.mean(0), centered.T @ centered / len(x), trainable=True)
    z = z_scores(sharp, DenoisingScoreMatching(sigma), x, zero, repeats=50)
    assert z.abs().max() > 10  # the precision of the data itself is not the minimum


def test_denoising_of_a_mixture_is_explicit_matching_to_the_blurred_mixture():
    """Data drawn from p: E over data and noise equals ½E‖s - s_blurred‖² + const."""
    sigma, target, energy = 0.6, mixture_of_three(False), gaussian()
    covariance = (0.4 + sigma**2) * torch.eye(2, dtype=F64)
    blurred = gb.energies.GaussianMixture(target.means, covariance, target.weights)
    draws = []
    for seed in range(60):
        x = target.sample(2000, generator=gen(2000 + seed))
        y = blurred.sample(2000, generator=gen(1000 + seed))
        draws.append(
            gradient(energy, DenoisingScoreMatching(sigma), x, seed)
            - gradient(energy, ExplicitScoreMatching(blurred), y)
        )
    both = torch.stack(draws)
    moving = both.std(0) > 1e-12
    z = both.mean(0)[moving] / both.std(0)[moving] * len(draws) ** 0.5
    assert z.abs().max() < 5.5


def test_multi_scale_is_the_weighted_mean_of_its_levels():
    energy, x, sigmas = gaussian(), some_data(30), (0.3, 0.6, 1.2)
    for power in (2.0, 0.0):
        truth = sum(s**power * denoising_gaussian(energy, x, s) for s in sigmas) / 3
        objective = MultiScaleDenoising(sigmas, power=power)
        z = z_scores(energy, objective, x, gradient_of(truth, energy), repeats=300)
        assert z.abs().max() < 5


def test_multi_scale_visits_levels_evenly_even_when_they_do_not_divide_the_batch():
    seen = []

    class Family(torch.nn.Module):
        domain = domains.Real(1)
        sigmas = torch.tensor([1.0, 2.0, 4.0], dtype=F64)

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones((), dtype=F64))

        def noise_levels(self):
            return self.sigmas

        def given(self, sigma):
            seen.append(sigma)
            outer = self

            class Member(gb.ScoreField):
                def score(self, x, *, create_graph=False):
                    return -outer.weight * x / (1 + sigma[:, None] ** 2)

            return Member(domains.Real(1))

    family, x = Family(), some_data(64)[:4, :1]
    for seed in range(300):
        MultiScaleDenoising()(family, x, (), gen(seed)).value.backward()
    counts = torch.stack([torch.stack([(s == level).sum() for level in Family.sigmas]) for s in seen])
    assert counts.min() >= 1
    assert counts.max() <= 2
    share = counts.double().mean(0) / 4
    assert (share - 1 / 3).abs().max() < 5 * (2 / 9 / 16 / 300) ** 0.5


def test_a_noise_family_learns_the_precision_of_every_level():
    """s(x, σ) = -a(σ)x with one a per level: the minimum is a = 1/(S + σ²), the blurred precision."""
    sigmas, x = (0.5, 1.0, 2.0), some_data(60)[:, :1]

    class Family(gb.ScoreField):
        def __init__(self, a):
            super().__init__(domains.Real(1))
            self.sigmas = torch.tensor(sigmas, dtype=F64)
            self.a = torch.nn.Parameter(a)

        def noise_levels(self):
            return self.sigmas

        def given(self, sigma):
            outer = self

            class Member(gb.ScoreField):
                def score(self, y, *, create_graph=False):
                    level = (outer.sigmas[:, None] == sigma).to(F64)
                    return -(outer.a @ level)[:, None] * y

            return Member(self.domain)

        def score(self, x, *, create_graph=False):
            raise NotImplementedError

    second = x.square().mean()
    best = 1 / (second + torch.tensor(sigmas, dtype=F64) ** 2)
    for a, largest, least in ((best, 5.0, 0.0), (1.3 * best, 1e9, 8.0)):
        z = z_scores(Family(a), MultiScaleDenoising(), x, torch.zeros(3, dtype=F64), repeats=300)
        assert z.abs().max() < largest
        assert z.abs().min() > least or least == 0.0


# --- non-negative ---------------------------------------------------------------------------------


class Gamma(gb.Energy):
    """E = rate·x - (shape - 1)·log x, each entry with its own."""

    def __init__(self, rate, shape):
        super().__init__(domains.NonNegative(len(rate)))
        self.rate = torch.nn.Parameter(torch.tensor(rate, dtype=F64))
        self.shape = torch.nn.Parameter(torch.tensor(shape, dtype=F64))

    def forward(self, x):
        return (self.rate * x - (self.shape - 1) * x.log()).sum(1)


def test_non_negative_score_matching_of_an_exponential():
    x = torch.empty(100, 1, dtype=F64).exponential_(2.0, generator=gen())
    rate = 2 * x.mean() / x.square().mean()
    energy = Gamma([float(rate)], [1.0])
    assert abs(gradient(energy, NonNegativeScoreMatching(), x)[0]) < 1e-12
    value = NonNegativeScoreMatching()(energy, x, (), gen()).value.detach()
    torch.testing.assert_close(value, (-2 * rate * x + 0.5 * rate**2 * x.square()).mean())
    assert abs(gradient(Gamma([1.1 * float(rate)], [1.0]), NonNegativeScoreMatching(), x)[0]) > 1e-2


def test_non_negative_score_matching_in_closed_form_and_its_estimate():
    """For a gamma law: s = (k-1)/x - r, so the sum is Σ[2(k-1) - 2rx - (k-1) + ½(k-1-rx)²]."""
    energy = Gamma([1.0, 2.0, 0.5], [2.0, 1.5, 3.0])
    x = torch.rand(20, 3, generator=gen(), dtype=F64) + 0.1
    k, r = energy.shape, energy.rate
    truth = ((k - 1) - 2 * r * x + 0.5 * (k - 1 - r * x).square()).sum(1).mean()
    for objective in (NonNegativeScoreMatching(), NonNegativeScoreMatching(chunk=2)):
        value = objective(energy, x, (), gen()).value
        torch.testing.assert_close(value.detach(), truth.detach())
        torch.testing.assert_close(gradient(energy, objective, x), gradient_of(truth, energy))
    coupled = gb.as_energy(CoupledEnergy(), domains.NonNegative(3))
    exact = gradient(coupled, NonNegativeScoreMatching(), x)
    z = z_scores(coupled, NonNegativeScoreMatching("hutchinson", probes=10), x, exact, repeats=100)
    assert z.abs().max() < 5.5


class CoupledEnergy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 3, generator=gen(), dtype=F64))

    def forward(self, x):
        return x.sum(1) + (x @ self.weight).sin().sum(1)


# --- refusals and cost ----------------------------------------------------------------------------


def test_wrong_domains_and_options_are_refused():
    box = gb.as_energy(lambda x: x.sum(1), domains.Box(2))
    binary = gb.as_energy(lambda x: x.sum(1), domains.Binary(2))
    inside, on = torch.full((3, 2), 0.5), torch.ones(3, 2)
    for objective in (ImplicitScoreMatching(), SlicedScoreMatching(), DenoisingScoreMatching(0.1)):
        for energy, x in ((box, inside), (binary, on)):
            with pytest.raises(errors.DomainError, match=r"lives on"):
                objective.init(energy, x, gen())
    with pytest.raises(errors.DomainError, match="NonNegative"):
        NonNegativeScoreMatching().init(box, inside, gen())
    for bad in (
        lambda: ImplicitScoreMatching(trace="approximate"),
        lambda: ImplicitScoreMatching(chunk=0),
        lambda: SlicedScoreMatching(0),
        lambda: SlicedScoreMatching(1, "cauchy"),
        lambda: DenoisingScoreMatching(0.0),
        lambda: DenoisingScoreMatching(float("nan")),
        lambda: MultiScaleDenoising(sigmas=(1.0, -1.0)),
        lambda: MultiScaleDenoising(sigmas=()),
        lambda: ExplicitScoreMatching(3.0),
        lambda: MultiScaleDenoising().init(gaussian(), some_data(3), gen()),
    ):
        with pytest.raises(errors.ArgumentError) as caught:
            bad()
        assert len(str(caught.value)) > 25
    with pytest.raises(errors.ShapeError, match="target score"):
        ExplicitScoreMatching(lambda x: x.sum(1))(gaussian(), some_data(3), (), gen())


def test_layers_whose_third_derivative_torch_gets_wrong_are_refused():
    for layer in (torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(4)):
        net = torch.nn.Sequential(gb.energies.MLP(2, (4,), 4), layer, torch.nn.SiLU(), gb.energies.MLP(4, (4,)))
        energy = gb.energies.NeuralEnergy(net, domains.Real(2)).double()
        for objective in (ImplicitScoreMatching(), SlicedScoreMatching()):
            with pytest.raises(errors.CapabilityError, match="three times"):
                objective.init(energy, some_data(5), gen())
        DenoisingScoreMatching(0.1).init(energy, some_data(5), gen())


def test_a_non_finite_loss_is_never_a_number():
    energy = gb.as_energy(lambda x: (x * torch.nan).sum(1), domains.Real(2))
    for objective in (ImplicitScoreMatching(), SlicedScoreMatching(2), DenoisingScoreMatching(0.3)):
        with pytest.raises(errors.DivergenceError, match="not finite"):
            objective(energy, some_data(3), (), gen())


def test_score_networks_can_be_matched():
    class Linear(gb.ScoreField):
        def __init__(self):
            super().__init__(domains.Real(2))
            self.matrix = torch.nn.Parameter(torch.tensor([[-1.0, 0.3], [0.1, -2.0]], dtype=F64))

        def score(self, x, *, create_graph=False):
            s = x @ self.matrix.T
            return s if create_graph else s.detach()

    field, x = Linear(), some_data(10)
    truth = field.matrix.trace() + 0.5 * (x @ field.matrix.T).square().sum(1).mean()
    torch.testing.assert_close(gradient(field, ImplicitScoreMatching(), x), gradient_of(truth, field))
    z = z_scores(field, SlicedScoreMatching(5, "gaussian", False), x, gradient_of(truth, field), repeats=200)
    assert z.abs().max() < 5
    with pytest.raises(errors.CapabilityError, match="only a score"):
        objectives.ExactLikelihood().init(field, x, gen())


def test_projections_share_the_forward_pass():
    """Five projections evaluate the energy once."""
    calls = []

    def energy(x):
        calls.append(len(x))
        return x.pow(4).sum(1)

    SlicedScoreMatching(5)(gb.as_energy(energy, domains.Real(2)), some_data(7), (), gen())
    assert calls == [7]
