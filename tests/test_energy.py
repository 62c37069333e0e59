"""Domains, schedules, random streams, energies and their algebra."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from torch import nn

import gibbsian as gb
from gibbsian import domains, energies, kernels, random, schedules
from gibbsian.capabilities import Normalized, Sampleable
from gibbsian.energy import Sum, Tempered, Unconstrained
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, GibbsianError, RandomnessError, ShapeError
from gibbsian.testing import check_energy, check_invariance

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tensor(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def quartic() -> gb.Energy:
    return gb.as_energy(lambda x: (x**4).sum(-1) / 4, domains.Real(2))


# --- domains --------------------------------------------------------------------------------------

SHAPES = st.one_of(st.integers(1, 5), st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple))
BOUNDS = st.floats(-1e3, 1e3, allow_nan=False)


@st.composite
def any_domain(draw):
    shape = draw(SHAPES)
    kind = draw(st.sampled_from(["real", "box", "nonnegative", "binary", "spin", "categorical"]))
    if kind == "box":
        low = draw(BOUNDS)
        return domains.Box(shape, low, low + draw(st.floats(1e-2, 1e3)))
    if kind == "categorical":
        return domains.Categorical(shape, classes=draw(st.integers(2, 4)))
    return {"real": domains.Real, "nonnegative": domains.NonNegative, "binary": domains.Binary, "spin": domains.Spin}[
        kind
    ](shape)


@settings(deadline=None, max_examples=100)
@given(any_domain(), st.integers(1, 20), st.sampled_from([torch.float32, torch.float64]), st.integers(0, 99))
def test_reference_draws_lie_in_their_domain(domain, n, dtype, seed):
    x = domain.sample(n, generator=gen(seed), dtype=dtype)
    assert x.shape == (n, *domain.shape)
    assert x.dtype == dtype
    domain.check(x)
    assert torch.equal(x, domain.sample(n, generator=gen(seed), dtype=dtype))
    assert domain.contains(x).shape == x.shape
    assert domain.numel == x[0].numel()
    assert {domain: 1}[copy.deepcopy(domain)] == 1  # equal by value, and hashable


@settings(deadline=None, max_examples=60)
@given(any_domain(), st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 99))
def test_one_bad_entry_is_named(domain, bad, seed):
    x = domain.sample(4, generator=gen(seed), dtype=F64)
    place = tuple(int(torch.randint(s, (1,), generator=gen(seed))) for s in x.shape)
    x[place] = bad
    with pytest.raises(DomainError) as caught:
        domain.check(x, "data")
    message = str(caught.value)
    assert message.startswith(f"data[{place[0]}")
    assert "entries" in message
    if not isinstance(domain, domains.Categorical):  # there the whole unit is wrong
        assert message.startswith(f"data[{', '.join(map(str, place))}] = {bad:g} is not finite (1 of")


@pytest.mark.parametrize(
    ("domain", "bad", "fix"),
    [
        (domains.Binary(2), [[0.5, 1.0]], "binarize"),
        (domains.Spin(2), [[0.0, 1.0]], "2 \\* x - 1"),
        (domains.Categorical(1, classes=2), [[[1.0, 1.0]]], "one_hot"),
        (domains.Box(2, -1.0, 1.0), [[0.0, 1.5]], "rescale"),
        (domains.NonNegative(2), [[-0.1, 0.0]], "Real"),
    ],
)
def test_values_outside_are_refused_with_the_fix(domain, bad, fix):
    with pytest.raises(DomainError, match=fix) as caught:
        domain.check(torch.tensor(bad))
    assert str(domain) in str(caught.value)


@settings(deadline=None, max_examples=60)
@given(any_domain(), st.lists(st.integers(1, 4), max_size=4))
def test_wrong_shapes_are_refused(domain, shape):
    x = torch.zeros(shape)
    if tuple(shape[1:]) == domain.shape and shape:
        return
    with pytest.raises(ShapeError, match="expected"):
        domain.check_shape(x)


def test_shape_errors_say_what_to_do():
    with pytest.raises(ShapeError, match=r"x\[None\]"):
        domains.Real(3).check(torch.zeros(3))
    with pytest.raises(ShapeError, match="empty batch"):
        domains.Real(3).check(torch.zeros(0, 3))
    with pytest.raises(ShapeError, match=r"expected a torch.Tensor"):
        domains.Real(3).check([[0.0, 0.0, 0.0]])
    with pytest.raises(DomainError, match=r"\.float\(\)"):
        domains.Binary(3).check(torch.zeros(1, 3, dtype=torch.long))


@pytest.mark.parametrize(
    ("domain", "size"),
    [
        (domains.Binary(4), 16),
        (domains.Spin((2, 2)), 16),
        (domains.Categorical(3, classes=3), 27),
        (domains.Categorical((2, 1), classes=4), 16),
    ],
)
def test_enumeration_is_complete_and_ordered(domain, size):
    states = domain.states(dtype=F64)
    assert len(states) == domain.size == size
    assert math.isclose(domain.log_size, math.log(size))
    domain.check(states)
    assert len(states.flatten(1).unique(dim=0)) == size
    assert torch.equal(states, torch.cat(list(domain.chunks(5, dtype=F64))))
    units = states.reshape(size, -1, domain.classes if isinstance(domain, domains.Categorical) else 1)
    assert torch.equal(units[0, :-1], units[1, :-1])  # the last unit changes fastest
    assert not torch.equal(units[0, -1], units[1, -1])


def test_too_many_states_are_not_enumerated():
    with pytest.raises(DomainError, match="chunks"):
        domains.Binary(30).states()
    with pytest.raises(DomainError, match="too many"):
        next(domains.Binary(60).chunks())
    assert sum(len(c) for c in domains.Binary(12).chunks(1000)) == 4096


def test_categorical_labels_and_one_hot():
    domain = domains.Categorical(3, classes=4)
    labels = torch.tensor([[0, 3, 1], [2, 2, 0]])
    assert torch.equal(domain.labels(domain.one_hot(labels)), labels)
    assert domain.units == 3


def test_a_box_is_the_same_domain_however_its_bounds_are_written():
    uniform = gb.as_energy(torch.distributions.Uniform(torch.zeros(2), torch.ones(2)))
    assert uniform.domain == domains.Box(2)
    assert hash(uniform.domain) == hash(domains.Box(2))
    assert (uniform + gb.as_energy(lambda x: x.sum(-1), domains.Box(2))).domain == domains.Box(2)


def test_box_bounds_and_volume():
    box = domains.Box(2, low=tensor(-1.0, 0.0), high=tensor(1.0, 3.0))
    assert math.isclose(box.log_volume, math.log(6))
    x = box.sample(5000, generator=gen(), dtype=F64)
    assert bool((x.amin(0) < tensor(-0.99, 0.01)).all())
    assert bool((x.amax(0) > tensor(0.99, 2.99)).all())


@pytest.mark.parametrize(
    "bad",
    [
        lambda: domains.Real(0),
        lambda: domains.Real(()),
        lambda: domains.Real((2, 0)),
        lambda: domains.Real(2.5),
        lambda: domains.Real("ab"),
        lambda: domains.Box(2, 1.0, 1.0),
        lambda: domains.Box(2, 0.0, math.inf),
        lambda: domains.Box(2, torch.zeros(3), 1.0),
        lambda: domains.Categorical(2, classes=1),
        lambda: domains.Real(2).sample(3, generator=None),
        lambda: domains.Box(2).sample(3, generator=None),
        lambda: domains.NonNegative(2).sample(3, generator=None),
        lambda: domains.Binary(2).sample(3, generator=0),
        lambda: domains.Categorical(2, classes=3).sample(3, generator=None),
        lambda: domains.Spin(2).sample(0, generator=gen()),
        lambda: schedules.linear(0, 1, 0),
        lambda: schedules.linear(0, 1, 2.5),
        lambda: schedules.geometric(0.0, 1.0, 3),
        lambda: schedules.polynomial(0.0, 1.0, 3, power=0),
        lambda: schedules.sigmoid(3, delta=-1),
        lambda: random.require_generator(gen(), torch.device("cuda")),
        lambda: random.require_generator(None, torch.device("cpu")),
        lambda: random.require_generator("seed", torch.device("cpu")),
        lambda: gb.as_energy(3, domains.Real(2)),
        lambda: gb.as_energy(lambda x: x.sum(1), 2),
        lambda: quartic() / 0.0,
        lambda: quartic() / -1.0,
        lambda: quartic() / math.inf,
        lambda: quartic() * math.nan,
        lambda: quartic() * quartic(),
        lambda: quartic() * "two",
        lambda: quartic() * torch.ones(2),
        lambda: quartic() * nn.Parameter(torch.tensor(2.0)),
        lambda: quartic() + gb.as_energy(lambda x: x.sum(1), domains.Real(3)),
        lambda: Sum([]),
        lambda: gb.mixture([], []),
        lambda: gb.mixture([quartic()], [1.0]),
        lambda: gb.mixture([energies.Banana()], [0.5]),
        lambda: gb.mixture([energies.Banana(), energies.Ring()], [1.2, -0.2]),
        lambda: gb.mixture([energies.Banana(), energies.Ring()], [1.0]),
        lambda: gb.mixture([energies.Banana(), energies.Bimodal()], [0.5, 0.5]),
        lambda: gb.mixture([quartic(), quartic()], [0.5, 0.5], log_z=[1.0]),
        lambda: gb.mixture([quartic(), quartic()], [0.5, 0.5], log_z=[1.0, math.nan]),
        lambda: gb.mixture([quartic(), nn.Identity()], [0.5, 0.5], log_z=[1.0, 1.0]),
        lambda: gb.mixture([quartic(), quartic()], [0.5, 0.5], log_z=[1.0, 1.0]).sample(3, generator=gen()),
        lambda: gb.mixture([energies.Banana(), energies.Ring()], [0.5, 0.5]).sample(3, generator=None),
        lambda: gb.unconstrained(quartic()),
        lambda: gb.as_energy(lambda x: torch.zeros(len(x)), domains.Real(2)).score(torch.zeros(3, 2)),
        lambda: gb.as_energy(lambda x: x.sum(), domains.Real(2))(torch.zeros(3, 2)),
        lambda: gb.as_energy(lambda x: x, domains.Real(2))(torch.zeros(3, 2)),
        lambda: gb.as_energy(lambda x: x.sum(1, keepdim=True), domains.Real(2))(torch.zeros(3, 2)),
        lambda: gb.as_energy(lambda x: 3.0, domains.Real(2))(torch.zeros(3, 2)),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(bad):
    before = torch.get_rng_state()
    with pytest.raises(GibbsianError) as caught:
        bad()
    assert len(str(caught.value)) > 25
    assert torch.equal(before, torch.get_rng_state())


# --- schedules ------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(st.floats(0.1, 50), st.floats(0.1, 50), st.integers(2, 60))
def test_schedules_run_from_start_to_end(start, end, n):
    for schedule in (
        schedules.linear(start, end, n),
        schedules.geometric(start, end, n),
        schedules.cosine(start, end, n),
        schedules.polynomial(start, end, n, power=3.0),
    ):
        assert schedule.shape == (n,)
        assert math.isclose(float(schedule[0]), start, rel_tol=1e-4)
        assert math.isclose(float(schedule[-1]), end, rel_tol=1e-4)
        steps = schedule.diff() * (1 if end >= start else -1)
        assert bool((steps >= -1e-5 * max(start, end)).all())
    ratios = schedules.geometric(start, end, n).double()
    assert torch.allclose(ratios[1:] / ratios[:-1], (ratios[1] / ratios[0]).expand(n - 1), rtol=1e-4)


@pytest.mark.parametrize("n", [2, 10, 1000])
def test_inverse_temperatures_run_from_nought_to_one(n):
    for betas in (schedules.sigmoid(n), schedules.salakhutdinov(n)):
        assert betas.shape == (n,)
        assert float(betas[0]) == 0.0
        assert float(betas[-1]) == 1.0
        assert bool((betas.diff() > 0).all())


def test_salakhutdinovs_proportions():
    betas = schedules.salakhutdinov(14501)
    assert abs(int((betas < 0.5).sum()) - 500) <= 1
    assert abs(int(((betas >= 0.5) & (betas < 0.9)).sum()) - 4000) <= 1


# --- random streams -------------------------------------------------------------------------------


def test_streams_are_named_and_reproducible():
    draw = lambda seed, name: torch.rand(4, generator=random.stream(seed, name))  # noqa: E731
    assert torch.equal(draw(0, "data"), draw(0, "data"))
    assert not torch.equal(draw(0, "data"), draw(0, "chains"))
    assert not torch.equal(draw(0, "data"), draw(1, "data"))
    assert not torch.equal(draw(1, "1"), draw(11, ""))  # the parts of the name do not run together


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 70), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from(["normals", "uniforms"])
)
def test_draws_do_not_depend_on_the_cut(count, cuts, name):
    draw = getattr(random, name)
    for dtype in (torch.float32, torch.float64):
        how = {"dtype": dtype, "device": torch.device("cpu")}
        one, other = gen(1), gen(1)
        whole = draw(sum(cuts), count, one, **how)
        assert torch.equal(whole, torch.cat([draw(k, count, other, **how) for k in cuts]))
        assert torch.equal(torch.rand(1, generator=one), torch.rand(1, generator=other))


def test_isolated_code_leaves_the_global_state():
    before = torch.get_rng_state()
    with random.isolated(gen(3)):
        first = torch.rand(3)
    with random.isolated(gen(3)):
        second = torch.rand(3)
    assert torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())


# --- energies -------------------------------------------------------------------------------------


def test_score_is_detached_unless_asked():
    x = torch.randn(4, 2, generator=gen(), dtype=F64, requires_grad=True)
    energy = quartic()
    assert not energy.score(x).requires_grad
    score = energy.score(x, create_graph=True)
    assert torch.allclose(score, -(x**3))
    (second,) = torch.autograd.grad(score.sum(), x)
    assert torch.allclose(second, -3 * x**2)


def test_scores_work_under_no_grad_and_leave_no_gradient():
    net = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 1), nn.Flatten(0))
    energy = gb.as_energy(net, domains.Real(2))
    assert len(list(energy.parameters())) == 4
    x = torch.randn(5, 2, generator=gen())
    with torch.no_grad():
        value, score = energy.energy_and_score(x)
    assert not value.requires_grad
    assert score.shape == x.shape
    assert all(p.grad is None for p in energy.parameters())
    loss = energy.score(x, create_graph=True).square().sum()
    loss.backward()
    assert any(bool(p.grad.abs().sum() > 0) for p in energy.parameters() if p.grad is not None)


def test_sum_scale_and_negation():
    a, b = quartic(), energies.Banana().double()
    x = torch.randn(6, 2, generator=gen(), dtype=F64)
    cases = {
        "sum": (a + b, a(x) + b(x)),
        "difference": (a - 0.5 * b, a(x) - 0.5 * b(x)),
        "temperature": (a / 3.0, a(x) / 3),
        "factor": (2 * a * 3, 6 * a(x)),
        "negation": (-a, -a(x)),
        "nested": (2 * (a + b) - (a - b) / 2, 1.5 * a(x) + 2.5 * b(x)),
        "number in a tensor": (a * torch.tensor(2.0), 2 * a(x)),
    }
    for name, (energy, expected) in cases.items():
        assert torch.allclose(energy(x), expected), name
        value, score = energy.energy_and_score(x)
        assert torch.allclose(value, expected), name
        assert torch.allclose(score, energy.score(x, create_graph=True).detach()), name
    assert len((2 * (a + b) - (a - b) / 2).parts) == 4  # flat, however it was written
    for plus in (lambda: a + 3, lambda: 3 + a, lambda: a - 3, lambda: 3 - a, lambda: a + x, lambda: a + None):
        with pytest.raises(CapabilityError, match="energies are added to energies"):
            plus()
    torch.testing.assert_close(sum([a, b, a])(x), 2 * a(x) + b(x))  # begins with 0 + a
    torch.testing.assert_close((0 - a)(x), -a(x))
    single = x.float()
    assert (a + a).double()(single).dtype == torch.float32


def test_products_of_gaussians_are_gaussian():
    """Precisions add, and so do precision-weighted means."""
    cov_a, cov_b = tensor([2.0, 0.3], [0.3, 1.0]), tensor([0.7, -0.2], [-0.2, 0.5])
    a, b = energies.Gaussian(tensor(1.0, 0.0), cov_a), energies.Gaussian(tensor(-1.0, 2.0), cov_b)
    precision = torch.linalg.inv(cov_a) + torch.linalg.inv(cov_b)
    mean = torch.linalg.solve(precision, torch.linalg.solve(cov_a, a.mean) + torch.linalg.solve(cov_b, b.mean))
    exact = energies.Gaussian(mean, torch.linalg.inv(precision))
    x = torch.randn(9, 2, generator=gen(), dtype=F64)
    gap = (a + b)(x) - exact(x)
    assert torch.allclose(gap, gap[:1].expand_as(gap))
    assert torch.allclose((a + b).score(x), exact.score(x))
    draws = exact.sample(20000, generator=gen(1))
    check_invariance(a + b, kernels.HMC(0.5, 3), draws=draws, generator=gen(2))


def test_temperature_widens_a_gaussian():
    energy = energies.Gaussian(tensor(0.0, 0.0), tensor([1.0, 0.5], [0.5, 1.0]))
    hot = energies.Gaussian(energy.mean, 4 * energy.covariance)
    x = torch.randn(9, 2, generator=gen(), dtype=F64)
    assert torch.allclose((energy / 4.0)(x), hot(x))
    assert torch.allclose(energy.tempered(torch.tensor(0.25))(x), hot(x))


def test_tempering_per_row():
    energy, beta = quartic(), tensor(0.1, 1.0, 2.0)
    x = torch.randn(3, 2, generator=gen(), dtype=F64)
    tempered = energy.tempered(beta)
    assert isinstance(tempered, Tempered)
    assert torch.allclose(tempered(x), beta * energy(x))
    value, score = tempered.energy_and_score(x)
    assert torch.allclose(value, beta * energy(x))
    assert torch.allclose(score, beta[:, None] * energy.score(x))
    assert torch.allclose(score, tempered.score(x, create_graph=True).detach())


def test_mixture_of_normalized_parts():
    parts = [energies.Banana().double(), energies.Ring().double(), energies.StudentT(3.0).double()]
    mixed = gb.mixture(parts, [0.5, 0.2, 0.3])
    x = torch.randn(9, 2, generator=gen(), dtype=F64)
    density = sum(w * torch.exp(-p(x) - p.log_z()) for w, p in zip([0.5, 0.2, 0.3], parts, strict=True))
    assert torch.allclose(mixed(x), -density.log())
    assert float(mixed.log_z()) == 0.0
    assert check_energy(mixed, generator=gen())[-1] == "sample"


def test_mixture_of_parts_with_given_log_z():
    log_z = 2 * math.log(2 * 4**0.25 * math.gamma(1.25))  # of two factors exp(-t⁴/4)
    wide = energies.Gaussian(tensor(0.0, 0.0), 4 * torch.eye(2, dtype=F64))
    mixed = gb.mixture([quartic(), wide], [0.4, 0.6], log_z=[log_z, float(wide.log_z())])
    assert check_energy(mixed, torch.randn(5, 2, generator=gen(), dtype=F64), generator=gen()) == [
        "rows",
        "score",
        "log_z",
    ]


def test_mixture_refuses_unknown_partition_functions():
    with pytest.raises(CapabilityError, match="log_z="):
        gb.mixture([energies.Banana(), quartic()], [0.5, 0.5])


def test_mixture_stays_normalized_while_its_parts_are_trained():
    part = energies.Gaussian(tensor(0.0), tensor([1.0]), trainable=True)
    mixed = gb.mixture([part, energies.Gaussian(tensor(3.0), tensor([1.0]))], [0.5, 0.5])
    data = tensor([0.1], [2.0], [-1.0])
    mixed(data).mean().backward()
    by_hand = nn.Parameter(part.log_diagonal.detach().clone())
    precision = torch.exp(2 * by_hand)
    log_p = torch.logsumexp(
        torch.stack(
            [
                0.5 * torch.log(precision / (2 * math.pi)) - 0.5 * precision * data[:, 0] ** 2,
                -0.5 * math.log(2 * math.pi) - 0.5 * (data[:, 0] - 3) ** 2,
            ]
        ),
        0,
    )
    (-log_p.mean() + math.log(2)).backward()
    assert torch.allclose(part.log_diagonal.grad, by_hand.grad)
    with torch.no_grad():
        part.log_diagonal += 0.7
    assert "log_z" in check_energy(mixed, tensor([0.0], [1.0]), chains=2000, generator=gen())


# --- unconstrained coordinates --------------------------------------------------------------------


def test_box_and_half_line_by_quadrature():
    """Pulling back keeps probabilities: masses of intervals agree, and so does log Z."""
    skew = gb.as_energy(lambda x: 3 * x[:, 0] - x[:, 0] ** 2, domains.Box(1, -1.0, 2.0))
    decay = gb.as_energy(lambda x: x[:, 0] + x[:, 0] ** 2, domains.NonNegative(1))
    for energy, low, high in ((skew, -1.0, 2.0), (decay, 0.0, 20.0)):
        free = gb.unconstrained(energy)
        density = lambda t, e=energy: math.exp(-float(e(tensor([t]))))  # noqa: E731
        pulled = lambda u, f=free: math.exp(-float(f(tensor([u]))))  # noqa: E731
        z = integrate.quad(density, low, high)[0]
        assert math.isclose(integrate.quad(pulled, -45, 45, limit=200)[0], z, rel_tol=1e-7)
        for cut in (0.2, 0.9):
            u = float(free.unconstrain(tensor([cut])))
            assert math.isclose(
                integrate.quad(pulled, -45, u, limit=200)[0], integrate.quad(density, low, cut)[0], rel_tol=1e-7
            )


@settings(deadline=None, max_examples=40)
@given(st.floats(-5, 5), st.floats(0.1, 10), st.integers(0, 99))
def test_constrain_and_back(low, width, seed):
    u = torch.randn(6, 3, generator=gen(seed), dtype=F64)
    for domain in (domains.Box(3, low, low + width), domains.NonNegative(3)):
        free = Unconstrained(gb.as_energy(lambda x: x.square().sum(1), domain))
        x = free.constrain(u)
        domain.check(x)
        assert torch.allclose(free.unconstrain(x), u, atol=1e-6)
        assert free.domain == domains.Real(3)
        jacobian = torch.func.vmap(torch.func.jacrev(free.constrain))(u)
        expected = free.base(x) - torch.linalg.slogdet(jacobian).logabsdet
        assert torch.allclose(free(u), expected)


def test_unconstrained_chains_sample_the_bounded_law():
    """Exponential numbers on the real line: exact starts stay exact."""
    rate = gb.as_energy(lambda x: 2 * x.sum(1), domains.NonNegative(2))
    free = gb.unconstrained(rate)
    x = torch.empty(20000, 2, dtype=F64).exponential_(2.0, generator=gen())
    check_invariance(free, kernels.HMC(0.5, 4), draws=free.unconstrain(x), generator=gen(1))


def test_unconstrained_knows_log_z_only_when_its_base_does():
    free = gb.unconstrained(gb.as_energy(lambda x: x.sum(1), domains.NonNegative(2)))
    with pytest.raises(CapabilityError, match="partition"):
        free.log_z()
    assert check_energy(free, generator=gen()) == ["rows", "score"]


# --- capabilities ---------------------------------------------------------------------------------


def test_capabilities_are_what_a_model_has():
    gaussian, plain = energies.Banana(), quartic()
    assert isinstance(gaussian, Normalized)
    assert isinstance(gaussian, Sampleable)
    assert not isinstance(plain, Normalized)
    assert not isinstance(plain, Sampleable)


def test_errors_derive_from_what_fits():
    for error, builtin in (
        (ArgumentError, ValueError),
        (ShapeError, ValueError),
        (DomainError, ValueError),
        (RandomnessError, ValueError),
        (CapabilityError, TypeError),
    ):
        assert issubclass(error, GibbsianError)
        assert issubclass(error, builtin)
