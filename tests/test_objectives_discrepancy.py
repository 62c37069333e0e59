"""Energy discrepancy: against closed forms, enumeration, and the principles that it becomes at its ends."""

import itertools
import math

import pytest
import scipy.linalg
import torch
from objective_oracles import F64, SPIN, Machine, gen, gradient, gradient_of, other_machine, z_scores
from torch import nn

import gibbsian as gb
from gibbsian import domains, errors, objectives
from gibbsian.objectives import Around, EnergyDiscrepancy, ExactLikelihood, Flips, Heat, Masked, Neighbors
from gibbsian.objectives.noise import NAMED
from gibbsian.objectives.perturbations import heat_matrix
from gibbsian.testing import check_objective

BITS, SYMBOLS = domains.Binary(3), domains.Categorical(2, classes=3)


# --- on the real line -------------------------------------------------------------------------------


class Quadratic(gb.Energy):
    """½kx²."""

    def __init__(self, k, domain=None):
        super().__init__(domains.Real(1) if domain is None else domain)
        self.k = nn.Parameter(torch.tensor(k, dtype=F64))

    def forward(self, x):
        return 0.5 * self.k * x.square().sum(1)


def closed_form(k, s2, t):
    return 0.5 * k * s2 - 0.5 * k * (s2 + t) / (1 + k * t) - 0.5 * math.log(1 + k * t)


@pytest.mark.parametrize("t", [0.02, 1.0, 4.0])
@pytest.mark.parametrize("k", [0.3, 1.2])
def test_the_value_on_gaussians_is_the_closed_form(k, t):
    """With w = 0: within 5 standard errors, and of the bias of the logarithm, the squared deviation of the weights over 2M."""
    s2, m, n = 1.0, 2000, 2000
    x = torch.randn(n, 1, generator=gen(1), dtype=F64)
    objective = EnergyDiscrepancy(t=t, negatives=m, stabilizer=0.0)
    rows = torch.stack([objective(Quadratic(k), part, (), gen(i)).value.detach() for i, part in enumerate(x.split(50))])
    error = float(rows.std()) / len(rows) ** 0.5
    c = k**2 * t / ((1 + k * t) * (1 + 2 * k * t))
    weights = (1 + k * t) / math.sqrt(1 + 2 * k * t) / math.sqrt(1 - 2 * c * (s2 + t)) - 1
    assert abs(float(rows.mean()) - closed_form(k, s2, t)) < 5 * error + 2 * weights / (2 * m)


def test_the_closed_form_ends_in_score_matching_and_likelihood():
    k, s2 = 0.7, 2.0
    score = 0.5 * k**2 * s2 - k
    assert closed_form(k, s2, 1e-6) / 1e-6 == pytest.approx(score, abs=1e-4)
    t = 1e8
    likelihood = 0.5 * k * s2 + 0.5 * math.log(2 * math.pi / k)
    assert closed_form(k, s2, t) + 0.5 * (math.log(2 * math.pi * t) + 1) == pytest.approx(likelihood, abs=1e-6)


def slopes_at_the_truth(objective, k=0.5, repeats=300):
    """Gradients at the law of the data, fresh data every time: 0 on average where the minimizer is exact."""
    energy = Quadratic(k)
    data = torch.randn(repeats, 64, 1, generator=gen(2), dtype=F64) / math.sqrt(k)
    found = torch.stack([gradient(energy, objective, x, seed=i) for i, x in enumerate(data)])
    return float(found.mean() / found.std() * repeats**0.5)


@pytest.mark.parametrize("m", [1, 4])
def test_the_minimum_is_the_law_of_the_data_at_every_count_of_negatives(m):
    assert abs(slopes_at_the_truth(EnergyDiscrepancy(t=2.0, negatives=m))) < 4.5
    assert (
        slopes_at_the_truth(EnergyDiscrepancy(t=2.0, negatives=m, stabilizer=0.0)) < -8
    )  # it would make the law too narrow
    assert abs(slopes_at_the_truth(EnergyDiscrepancy(negatives=m, perturbation=Around((0.5, 2.0))))) < 4.5


def test_a_datum_is_perturbed_once_for_all_its_negatives():
    x = torch.zeros(20000, 1, dtype=F64)
    near = Heat(1.0).negatives(domains.Real(1), x, 2, gen())
    assert float((near[0] * near[1]).mean()) == pytest.approx(1.0, abs=5 * math.sqrt(5 / 20000))  # Cov = t
    assert float(near[0].var()) == pytest.approx(2.0, abs=5 * math.sqrt(8 / 20000))


def test_walls_reflect_and_the_minimum_stays():
    energy = Quadratic(0.8, domains.NonNegative(1))
    data = torch.randn(300, 64, 1, generator=gen(4), dtype=F64).abs() / math.sqrt(0.8)
    objective = EnergyDiscrepancy(t=1.0, negatives=2)
    found = torch.stack([gradient(energy, objective, x, seed=i) for i, x in enumerate(data)])
    assert abs(float(found.mean() / found.std() * 300**0.5)) < 4.5


class Slope(gb.Energy):
    """ax on [0, 1], a = 3."""

    def __init__(self):
        super().__init__(domains.Box(1))
        self.a = nn.Parameter(torch.tensor(3.0, dtype=F64))

    def forward(self, x):
        return self.a * x.sum(1)


def test_walls_reflect_where_the_energy_is_not_even():
    """Noise past the walls would meet energies of no state, and the minimum would move."""
    u = torch.rand(300, 64, 1, generator=gen(4), dtype=F64)
    data = -torch.log1p(-u * (1 - math.exp(-3.0))) / 3.0
    objective = EnergyDiscrepancy(t=0.5, negatives=2)
    found = torch.stack([gradient(Slope(), objective, x, seed=i) for i, x in enumerate(data)])
    assert abs(float(found.mean() / found.std() * 300**0.5)) < 4.5


# --- discrete states, enumerated --------------------------------------------------------------------


def jumps(domain, kind, t):
    """exp(tΔ) of one unit, by the matrix exponential of its rates."""
    k = domain.classes if isinstance(domain, domains.Categorical) else 2
    rates = torch.zeros(k, k, dtype=F64)
    for a, b in itertools.permutations(range(k), 2):
        near = abs(a - b) == 1 or (kind == "cyclic" and abs(a - b) == k - 1)
        rates[a, b] = 1 / k if kind == "uniform" else float(near)
    return torch.from_numpy(scipy.linalg.expm((t * (rates - rates.sum(1).diag())).numpy()))


def labels_of(domain):
    states = domain.states(dtype=F64)
    return states.argmax(-1) if isinstance(domain, domains.Categorical) else (states > 0).long()


def by_unit(domain, one):
    """The matrix of independent jumps of all units."""
    labels = labels_of(domain)
    return torch.stack([one[labels[:, None, i], labels[None, :, i]] for i in range(labels.shape[1])]).prod(0)


def one_step(domain, lazy, kind="uniform"):
    labels, k = labels_of(domain), domain.classes if isinstance(domain, domains.Categorical) else 2
    n, q = len(labels), lazy * torch.eye(len(labels), dtype=F64)
    index = {tuple(row): i for i, row in enumerate(labels.tolist())}
    for i, row in enumerate(labels.tolist()):
        for unit in range(len(row)):
            if kind == "uniform":
                ends = [(v, 1 / (k - 1)) for v in range(k) if v != row[unit]]
            elif kind == "cyclic":
                ends = [((row[unit] + d) % k, 0.5) for d in (-1, 1)]
            else:
                ends = [(min(max(row[unit] + d, 0), k - 1), 0.5) for d in (-1, 1)]
            for value, p in ends:
                q[i, index[(*row[:unit], value, *row[unit + 1 :])]] += (1 - lazy) * p / len(row)
    assert q.shape == (n, n)
    return q


def one_mask(domain, sites):
    """q(y | x) over masked states y: which sites are hidden, and what the others are."""
    labels = labels_of(domain)
    hidden = list(itertools.combinations(range(labels.shape[1]), sites))
    seen = {}
    for sub in hidden:
        for row in labels.tolist():
            seen.setdefault((sub, tuple(v for i, v in enumerate(row) if i not in sub)), len(seen))
    q = torch.zeros(len(labels), len(seen), dtype=F64)
    for i, row in enumerate(labels.tolist()):
        for sub in hidden:
            q[i, seen[sub, tuple(v for j, v in enumerate(row) if j not in sub)]] = 1 / len(hidden)
    return q


PERTURBED = {
    "bits": (BITS, Flips(0.2), lambda d: by_unit(d, torch.tensor([[0.8, 0.2], [0.2, 0.8]], dtype=F64))),
    "heat on bits": (BITS, Heat(0.7), lambda d: by_unit(d, jumps(d, "uniform", 0.7))),
    "heat on spins": (domains.Spin(3), Heat(0.7), lambda d: by_unit(d, jumps(d, "uniform", 0.7))),
    "uniform": (SYMBOLS, Heat(0.7), lambda d: by_unit(d, jumps(d, "uniform", 0.7))),
    "cyclic": (domains.Categorical(1, 5), Heat(0.7, "cyclic"), lambda d: by_unit(d, jumps(d, "cyclic", 0.7))),
    "ordinal": (domains.Categorical(1, 5), Heat(0.7, "ordinal"), lambda d: by_unit(d, jumps(d, "ordinal", 0.7))),
    "neighbors": (BITS, Neighbors(0.4), lambda d: one_step(d, 0.4)),
    "neighbors of symbols": (SYMBOLS, Neighbors(0.2), lambda d: one_step(d, 0.2)),
    "cyclic neighbors": (SYMBOLS, Neighbors(0.2, "cyclic"), lambda d: one_step(d, 0.2, "cyclic")),
    "ordinal neighbors": (SYMBOLS, Neighbors(0.2, "ordinal"), lambda d: one_step(d, 0.2, "ordinal")),
    "mask": (BITS, Masked(), lambda d: one_mask(d, 1)),
    "two masks": (SYMBOLS, Masked(2), lambda d: one_mask(d, 2)),
    "a mask on symbols": (SYMBOLS, Masked(), lambda d: one_mask(d, 1)),
}  # fmt: skip


def population(machine, q, weights, w):
    """The loss with two negatives, every expectation a sum over states."""
    e = machine(machine.states())
    back = q / q.sum(0)  # q(x' | y) of every y
    gaps = e[:, None, None] - e  # x, -, x'
    inner = torch.log(w / 2 + 0.5 * (gaps.exp() + gaps.transpose(1, 2).exp()))
    each = torch.einsum("xy,ay,by,xab->x", q, back, back, inner)
    return (weights * each).sum()


@pytest.mark.parametrize("name", PERTURBED)
def test_gradients_against_enumeration(name):
    """Its mean over 150 seeds lies within 5 standard errors of the sum over all states, which draws each pair together."""
    domain, perturbation, matrix = PERTURBED[name]
    machine, q = Machine(domain), matrix(domain)
    torch.testing.assert_close(q.sum(1), torch.ones(len(q), dtype=F64))
    states = machine.states()
    truth = gradient_of(population(machine, q, torch.full((len(states),), 1 / len(states), dtype=F64), 0.5), machine)
    objective = EnergyDiscrepancy(negatives=2, stabilizer=0.5, perturbation=perturbation)
    assert z_scores(machine, objective, states.repeat(20, *[1] * len(domain.shape)), truth, repeats=150).abs().max() < 5


@pytest.mark.parametrize("name", PERTURBED)
def test_the_exact_minimum(name):
    domain, _, matrix = PERTURBED[name]
    machine, q = Machine(domain), matrix(domain)
    p = machine.log_probabilities().exp().detach()
    assert gradient_of(population(machine, q, p, 1.0), machine).abs().max() < 1e-12
    assert gradient_of(population(machine, q, p, 0.0), machine).abs().max() > 1e-4
    other = other_machine(machine)
    assert float(population(other, q, p, 1.0).detach()) > float(population(machine, q, p, 1.0).detach())


@pytest.mark.parametrize("kind", ["uniform", "cyclic", "ordinal"])
@pytest.mark.parametrize("k", [2, 3, 6])
def test_heat_kernels_of_many_states(kind, k):
    for t in (0.01, 1.0, 30.0):
        found = heat_matrix(kind, k, t, torch.zeros((), dtype=F64))
        expected = jumps(domains.Categorical(1, k), kind, t)
        if kind == "cyclic" and k == 2:
            expected = jumps(domains.Categorical(1, 2), "ordinal", 2 * t)  # both ways round lead to the other one
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert (heat_matrix(kind, 12, 1e-6, torch.zeros((), dtype=F64)) >= 0).all()  # not even by rounding


@pytest.mark.parametrize("kind", ["uniform", "cyclic", "ordinal"])
def test_one_jump(kind):
    """Frequencies of 20000 jumps from the second of five states, within 5 standard errors."""
    domain = domains.Categorical(1, classes=5)
    at = domain.one_hot(torch.tensor([[1]]), dtype=F64)
    found = Heat(0.6, kind).draw(domain, at, 20000, gen()).mean((0, 1, 2))
    expected = jumps(domain, kind, 0.6)[1]
    assert ((found - expected).abs() < 5 * (expected * (1 - expected) / 20000).sqrt()).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chances_are_not_those_of_half_precision(dtype):
    """Uniforms of bfloat16 are multiples of 1/256: small chances were rounded up, or to 0 in one direction. Five standard errors."""
    n, t = 200_000, 0.01
    for domain, at in ((domains.Binary(1), 0.0), (domains.Spin(1), -1.0)):
        x = torch.full((1, 1), at, dtype=dtype)
        found, p = float((Heat(t).draw(domain, x, n, gen()) != x).double().mean()), -0.5 * math.expm1(-t)
        assert abs(found - p) < 5 * (p * (1 - p) / n) ** 0.5
    symbols, expected = domains.Categorical(1, classes=3), jumps(domains.Categorical(1, 3), "uniform", t)
    for label in range(3):
        drawn = Heat(t).draw(symbols, symbols.one_hot(torch.tensor([[label]]), dtype=dtype), n, gen(label))
        assert drawn.dtype == dtype
        found, p = drawn.double().mean((0, 1, 2)), expected[label]
        assert ((found - p).abs() < 5 * (p * (1 - p) / n).sqrt()).all()


def many(machine, perturbation, m=40000, **options):
    objective = EnergyDiscrepancy(negatives=m, stabilizer=0.0, perturbation=perturbation, **options)
    return float(objective(machine, machine.states(), (), gen(3)).value.detach())


def test_what_it_becomes_at_its_ends():
    """Coin flips give the likelihood, one mask the pseudo-likelihood. Deviations of 40000 negatives are below 0.01 each."""
    machine = Machine(BITS)
    states = machine.states()
    likelihood = float(ExactLikelihood()(machine, states, (), gen()).value.detach())
    assert many(machine, Flips(0.5)) == pytest.approx(likelihood - 3 * math.log(2), abs=0.05)
    assert many(machine, Masked(3)) == pytest.approx(likelihood - 3 * math.log(2), abs=0.05)
    pseudo = float(objectives.PseudoLikelihood()(machine, states, (), gen()).value.detach())
    objective = EnergyDiscrepancy(negatives=2000, stabilizer=0.0, perturbation=Masked())
    values = torch.stack([objective(machine, states, (), gen(i)).value.detach() for i in range(300)])
    error = float(values.std()) / len(values) ** 0.5
    assert abs(float(values.mean()) - (pseudo / 3 - math.log(2))) < 5 * error + 1e-3
    symbols = Machine(SYMBOLS)
    likelihood = float(ExactLikelihood()(symbols, symbols.states(), (), gen()).value.detach())
    assert many(symbols, Masked(2)) == pytest.approx(likelihood - 2 * math.log(3), abs=0.05)


def test_neighbors_without_a_lazy_step_cannot_see_parity():
    """There and back is an even number of flips: a term of parity changes nothing. With a lazy step it is seen."""
    machine, states = Machine(SPIN), SPIN.states(dtype=F64)
    odd = gb.as_energy(lambda x: machine(x) + 3 * x.prod(1), SPIN)
    values = {
        lazy: [
            float(EnergyDiscrepancy(perturbation=Neighbors(lazy))(e, states, (), gen()).value.detach())
            for e in (machine, odd)
        ]
        for lazy in (0.0, 0.5)
    }
    assert values[0.0][0] == pytest.approx(values[0.0][1], abs=1e-12)
    assert abs(values[0.5][0] - values[0.5][1]) > 0.1


# --- rows of several kinds --------------------------------------------------------------------------


class Mixed(gb.Energy):
    """c of three kinds with logits a; z ~ N(μ_c, 1)."""

    def __init__(self):
        super().__init__(domains.Joined(domains.Categorical(1, classes=3), domains.Real(1)))
        self.a = nn.Parameter(torch.tensor([0.0, 1.0, -0.5], dtype=F64))
        self.mu = nn.Parameter(torch.tensor([-1.0, 0.0, 2.0], dtype=F64))

    def forward(self, x):
        return -x[:, :3] @ self.a + 0.5 * (x[:, 3] - x[:, :3] @ self.mu).square()

    def sample(self, n, *, generator):
        c = torch.multinomial(self.a.detach().softmax(0), n, replacement=True, generator=generator)
        z = self.mu.detach()[c] + torch.randn(n, generator=generator, dtype=F64)
        return torch.cat([nn.functional.one_hot(c, 3).to(F64), z[:, None]], 1)


@pytest.mark.parametrize("t", [0.8, (1.5, 0.3)])
def test_mixed_rows(t):
    energy, objective = Mixed(), EnergyDiscrepancy(t=t, negatives=4)
    found = torch.stack(
        [gradient(energy, objective, energy.sample(64, generator=gen(1000 + i)), seed=i) for i in range(300)]
    )
    assert (found.mean(0) / found.std(0) * 300**0.5).abs().max() < 4.8
    check_objective(objective, energy, energy.sample(9, generator=gen()), generator=gen())


class Answers(nn.Module):
    """(y - ax)² + y⁴/10."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.7, dtype=F64))

    def forward(self, x, y):
        return (y - self.a * x).square().sum(1) + 0.1 * y.flatten() ** 4


@pytest.mark.parametrize("perturbation", ["uniform", Around((0.3,))])
def test_negatives_of_a_row_are_judged_under_its_input(perturbation):
    x, y = (torch.randn(7, 1, generator=gen(i), dtype=F64) for i in range(2))
    model, objective = gb.energies.ConditionalEnergy(Answers(), domains.Real(1)), EnergyDiscrepancy(0.5, 3, 1.0, perturbation)  # fmt: skip
    bound = objectives.Conditional(objective)
    found = bound(model, (x, y), bound.init(model, (x, y), gen()), gen(4)).value
    negatives, own = objective.source.negatives(domains.Real(1), y, 3, gen(4)), Answers()
    by_hand = sum((own(x, y) - own(x, other)).exp() for other in negatives)
    torch.testing.assert_close(found, ((1 + by_hand) / 3).log().mean())


def test_first_rows_go_with_their_inputs():
    """Negatives of few rows, as many as there are inputs, were judged under those of other rows."""
    x, y = (torch.randn(8, 1, generator=gen(i), dtype=F64) for i in range(2))
    model, objective = gb.energies.ConditionalEnergy(Answers(), domains.Real(1)), EnergyDiscrepancy(0.5, negatives=3)
    for inner in (
        objectives.FirstRows(objective, rows=2),
        objectives.Weighted([objectives.FirstRows(objective, rows=2)]),
    ):
        with pytest.raises(errors.CapabilityError, match=r"FirstRows\(Conditional\("):
            objectives.Conditional(inner)
    few, bound = objectives.FirstRows(objectives.Conditional(objective), rows=2), objectives.Conditional(objective)
    found = few(model, (x, y), few.init(model, (x, y), gen()), gen(4)).value
    torch.testing.assert_close(found, bound(model, (x[:2], y[:2]), (), gen(4)).value, rtol=0, atol=0)


def test_accuracy_is_how_often_the_datum_lies_lowest():
    """Of M + 1 energies that are alike: 1/(M + 1) by chance, 5 standard errors; never where a negative is the datum again."""
    n, m = 20000, 3
    rough = gb.as_energy(lambda x: torch.sin(1e6 * x).sum(1), domains.Real(1))
    x = torch.randn(n, 1, generator=gen(), dtype=F64)
    found = float(EnergyDiscrepancy(1.0, m)(rough, x, (), gen(1)).metrics["accuracy"])
    assert abs(found - 1 / (m + 1)) < 5 * (m / (m + 1) ** 2 / n) ** 0.5
    lowest = Quadratic(1e4)
    assert float(EnergyDiscrepancy(1.0, m)(lowest, 0 * x, (), gen(1)).metrics["accuracy"]) == 1
    flat, bits = gb.as_energy(lambda x: 0.0 * x.sum(1), BITS), BITS.states(dtype=F64)
    assert float(EnergyDiscrepancy(1.0, m)(flat, bits, (), gen(1)).metrics["accuracy"]) == 0


def test_every_part_diffuses_for_its_own_time():
    """Variance of numbers and chance of a jump, five standard errors each."""
    mixed, n, times = Mixed().domain, 20000, (1.5, 0.3)
    x = torch.tensor([[0.0, 1.0, 0.0, 0.4]], dtype=F64)
    drawn = Heat(times).draw(mixed, x, n, gen())[:, 0]
    stay = float(jumps(mixed.parts[0], "uniform", times[0])[1, 1])
    assert abs(float(drawn[:, 1].mean()) - stay) < 5 * (stay * (1 - stay) / n) ** 0.5
    assert abs(float(drawn[:, 3].var()) / times[1] - 1) < 5 * (2 / n) ** 0.5


# --- in use -----------------------------------------------------------------------------------------


def test_it_conforms():
    for domain in (BITS, SYMBOLS):
        machine = Machine(domain)
        for perturbation in ("uniform", Neighbors(), Masked()):
            objective = EnergyDiscrepancy(perturbation=perturbation)
            check_objective(objective, machine, machine.states(), generator=gen())


def test_training_finds_a_precision_and_resumes(tmp_path):
    data = 2 * torch.randn(4000, 1, generator=gen(3))
    energy = gb.energies.Gaussian(torch.zeros(1), torch.eye(1), trainable=True)
    how = {"batch_size": 500, "lr": 2e-2, "progress": False}
    run = gb.fit(energy, EnergyDiscrepancy(1.0, 8), data, steps=300, run_dir=tmp_path / "run", **how)
    assert float(energy.sample(20000, generator=gen(9)).var()) == pytest.approx(float(data.var()), rel=0.15)
    assert run.objective.gentler(2.0, 0.1) == run.objective
    again = gb.resume(tmp_path / "run", data, steps=302)
    assert again.step == 302


@pytest.mark.parametrize(
    ("make", "error", "word"),
    [
        (lambda: EnergyDiscrepancy(t=0.0), errors.ArgumentError, "t"),
        (lambda: Around(0.3), errors.ArgumentError, "positive widths"),
        (lambda: Around((0.3, "a")), errors.ArgumentError, "sigmas"),
        (lambda: EnergyDiscrepancy(perturbation="grid"), errors.ArgumentError, "uniform"),
        (lambda: EnergyDiscrepancy(perturbation=3), errors.ArgumentError, "Neighbors"),
        (lambda: EnergyDiscrepancy(perturbation=Masked(4)).check(Machine(BITS), BITS.states(dtype=F64)), errors.ArgumentError, "3 units"),
        (lambda: EnergyDiscrepancy(perturbation=Masked()).check(Quadratic(1.0), torch.zeros(2, 1, dtype=F64)), errors.DomainError, "Heat"),
        (lambda: EnergyDiscrepancy(t=(1.0, 2.0)).check(Quadratic(1.0), torch.zeros(2, 1, dtype=F64)), errors.ArgumentError, "one t"),
    ],
)  # fmt: skip
def test_what_is_refused(make, error, word):
    with pytest.raises(error, match=word):
        make()


@pytest.mark.parametrize(
    "domain",
    [BITS, domains.Real(2), domains.Box(2), domains.NonNegative(2), domains.Joined(domains.Real(1), domains.Binary(1))],
    ids=str,
)
def test_what_is_refused_is_not_advised(domain):
    candidates = {"Around": Around(), "Flips": Flips(), "EnergyDiscrepancy(t)": Heat()}
    kinds = {f"'{name}'": kind for name, kind in NAMED.items() if name != "flow"}
    ways = {name: way.check for name, way in candidates.items()}
    ways |= {
        name: lambda d, kind=kind: kind.fit(d, d.sample(9, generator=gen()), gen()) for name, kind in kinds.items()
    }
    for way in ways.values():
        try:
            way(domain)
        except errors.DomainError as error:
            advice = str(error).partition("; use ")[2]
            assert advice
            for named in ways:
                if named in advice:
                    ways[named](domain)


def test_it_says_when_negatives_are_too_easy():
    assert "smaller t" in EnergyDiscrepancy().signs({"accuracy": 0.999})["accuracy"]
    assert not EnergyDiscrepancy().signs({"accuracy": 0.5})
    # beside a classifier, whose accuracy is another one
    joint = gb.models.JointEnergy(gb.nets.MLP(1, outputs=2), domains.Real(1))
    x, y = torch.zeros(8, 1), torch.zeros(8).long()
    both = gb.objectives.Weighted([EnergyDiscrepancy(), gb.objectives.CrossEntropy()])
    sum_of_sums = gb.objectives.Weighted([gb.objectives.CrossEntropy(), both])
    for objective, own in ((both, "0.EnergyDiscrepancy.accuracy"), (sum_of_sums, "0.EnergyDiscrepancy.accuracy")):
        metrics = objective(joint, (x, y), objective.init(joint, (x, y), gen()), gen()).metrics
        numbers = dict.fromkeys(metrics, 0.5)
        assert own in metrics
        assert not objective.signs(dict.fromkeys(metrics, 1.0) | {own: 0.5})
        assert "smaller t" in objective.signs(numbers | {own: 0.999})["accuracy"]
