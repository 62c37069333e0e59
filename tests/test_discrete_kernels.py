"""Kernels for discrete states: exact transition matrices, no randomness where that is possible."""

import itertools
import math
from contextlib import nullcontext

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, kernels, models, units
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, ShapeError
from gibbsian.kernels.base import ChainState, Info
from gibbsian.kernels.discrete import FlipInputs, PickInputs
from gibbsian.kernels.gibbs import SiteInputs, SiteState
from gibbsian.models import BoltzmannMachine
from gibbsian.sampling.chunks import advance

F64 = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


class Rugged(gb.Energy):
    """A smooth energy with interactions of every order, over any discrete domain."""

    def __init__(self, domain, seed=0, scale=1.0):
        super().__init__(domain)
        g = gen(seed)
        n = domain.numel
        self.first = scale * torch.randn(n, generator=g, dtype=F64)
        self.inner = torch.randn(n, 5, generator=g, dtype=F64)
        self.outer = scale * torch.randn(5, generator=g, dtype=F64)

    def forward(self, x):
        flat = x.flatten(1)
        return flat @ self.first + torch.sin(flat @ self.inner) @ self.outer + 0.3 * (flat @ self.first) ** 2


DOMAINS = [domains.Binary(4), domains.Spin((2, 2)), domains.Categorical(2, classes=3), domains.Categorical((1, 2), 4)]


def law(energy, x):
    return torch.softmax(-energy(x), 0)


def find(rows, states):
    return (rows.flatten(1)[:, None] == states.flatten(1)).all(2).double().argmax(1)


def clamps(domain):
    """No clamp, and one unit held."""
    mask = torch.zeros(domain.shape, dtype=torch.bool)
    if isinstance(domain, domains.Categorical):
        mask.reshape(-1, domain.classes)[0] = True
    else:
        mask.flatten()[0] = True
    return [None, mask]


def check_matrix(p, pi, x, clamp, reversible=True):
    """Rows add up to one, πP = π (within each class of clamped values) and detailed balance."""
    torch.testing.assert_close(p.sum(1), torch.ones_like(pi))
    torch.testing.assert_close(pi @ p, pi)
    if reversible:
        flow = pi[:, None] * p
        torch.testing.assert_close(flow, flow.T)
    if clamp is not None:
        held = clamp.flatten()
        same = (x.flatten(1)[:, None, held] == x.flatten(1)[None, :, held]).all(2)
        assert (p[~same] == 0).all()


def gwg_matrix(kernel, energy, x, clamp):
    """From the kernel's own move probabilities and acceptances: every move is forced through its uniform."""
    state = kernel.init(energy, x, clamp)
    log_q, _ = kernel.log_moves(energy.domain, state)
    q = log_q.exp()
    ends = q.cumsum(1)
    p = torch.zeros(len(x), len(x), dtype=F64)
    rows = torch.arange(len(x))
    for move in range(q.shape[1]):
        some = q[:, move] > 0
        if not some.any():
            continue
        part = ChainState(*(None if t is None else (t if t is clamp else t[some]) for t in state))
        u = (ends[:, move] - q[:, move] / 2)[some]
        new, info = kernel.step(energy, part, PickInputs(u, torch.full_like(u, -torch.inf)))
        p[rows[some], find(new.x, x)] += q[some, move] * info.acceptance
    p[rows, rows] += 1 - p.sum(1)
    return p


@pytest.mark.parametrize("held", [0, 1])
@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_gibbs_with_gradients_leaves_the_law_invariant(domain, held):
    energy, x, clamp = Rugged(domain), domain.states(dtype=F64), clamps(domain)[held]
    p = gwg_matrix(kernels.GibbsWithGradients(), energy, x, clamp)
    assert float(p.diagonal().min()) < 0.9
    check_matrix(p, law(energy, x), x, clamp)


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_gibbs_with_gradients_proposes_from_the_formula(domain):
    energy, x = Rugged(domain), domain.states(dtype=F64)
    state = kernels.GibbsWithGradients().init(energy, x)
    log_q, _ = kernels.GibbsWithGradients().log_moves(domain, state)
    s, flat = energy.score(x).flatten(1), x.flatten(1)
    if isinstance(domain, domains.Categorical):
        s, one_hot = s.unflatten(1, (-1, domain.classes)), flat.unflatten(1, (-1, domain.classes))
        d = (s - (s * one_hot).sum(2, keepdim=True)).masked_fill(one_hot == 1, -torch.inf).flatten(1)
    else:
        d = -2 * flat * s if isinstance(domain, domains.Spin) else -(2 * flat - 1) * s
    torch.testing.assert_close(log_q, torch.log_softmax(d / 2, 1))


def langevin_matrix(kernel, energy, x, clamp):
    """Every proposal is forced through its uniforms; its probability is computed here from the formula."""
    state, domain = kernel.init(energy, x, clamp), energy.domain
    alpha = kernel.step_size
    s, flat = energy.score(x).flatten(1), x.flatten(1)
    if isinstance(domain, domains.Categorical):
        k = domain.classes
        s, one_hot = s.unflatten(1, (-1, k)), flat.unflatten(1, (-1, k))
        d = s - (s * one_hot).sum(2, keepdim=True)
        q = torch.softmax(d / 2 - (1 - one_hot) / alpha, 2)
        choices = list(itertools.product(range(k), repeat=q.shape[1]))
    else:
        d = -2 * flat * s if isinstance(domain, domains.Spin) else -(2 * flat - 1) * s
        flip = torch.sigmoid(d / 2 - (2 / alpha if isinstance(domain, domains.Spin) else 0.5 / alpha))
        q = torch.stack([flip, 1 - flip], 2)  # class 0 flips: u below its probability
        choices = list(itertools.product(range(2), repeat=q.shape[1]))
    ends = q.cumsum(2)
    middles = ends - q / 2
    sites = torch.arange(q.shape[1])
    allowed = torch.ones(q.shape[1], dtype=torch.bool)
    if clamp is not None:
        allowed = ~clamp.flatten().unflatten(0, (q.shape[1], -1))[:, 0]
    p = torch.zeros(len(x), len(x), dtype=F64)
    rows = torch.arange(len(x))
    threshold = torch.full((len(x),), -torch.inf, dtype=F64)
    for choice in choices:
        index = torch.tensor(choice)
        inputs = FlipInputs(middles[:, sites, index], threshold, torch.tensor(alpha, dtype=F64))
        new, info = kernel.step(energy, state, inputs)
        chance = q[:, sites, index].prod(1)  # clamped sites: their alternatives lead to the same proposal
        acceptance = info.acceptance if kernel.adjusted else torch.ones(len(x), dtype=F64)
        p[rows, find(new.x, x)] += chance * acceptance
        p[rows, rows] += chance * (1 - acceptance)
    assert allowed.any()
    return p


@pytest.mark.parametrize("held", [0, 1])
@pytest.mark.parametrize("alpha", [0.4, 3.0])
@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_discrete_langevin_leaves_the_law_invariant(domain, alpha, held):
    energy, x, clamp = Rugged(domain), domain.states(dtype=F64), clamps(domain)[held]
    p = langevin_matrix(kernels.DiscreteLangevin(step_size=alpha), energy, x, clamp)
    check_matrix(p, law(energy, x), x, clamp)


def test_without_its_correction_discrete_langevin_is_biased():
    domain = domains.Binary(4)
    energy, x = Rugged(domain), domain.states(dtype=F64)
    p = langevin_matrix(kernels.DiscreteLangevin(step_size=3.0, adjusted=False), energy, x, None)
    pi = law(energy, x)
    torch.testing.assert_close(p.sum(1), torch.ones_like(pi))
    assert float((pi @ p - pi).abs().max()) > 1e-2
    trace = gb.sample(energy, kernels.DiscreteLangevin(3.0, adjusted=False), x, steps=3, generator=gen())
    assert torch.isnan(trace.acceptance)


class ForgetsToCorrect(kernels.GibbsWithGradients):
    """A planted bug: symmetric acceptance for an asymmetric proposal."""

    def step(self, energy, state, inputs):
        new, info = super().step(energy, state, inputs)
        log_q, _ = self.log_moves(energy.domain, state)
        proposal = state.x.clone()
        move = (log_q.exp().cumsum(1) <= inputs.u[:, None]).sum(1, keepdim=True)
        proposal.scatter_(1, move, 1 - proposal.gather(1, move))
        return new, Info((state.energy - energy(proposal)).clamp(max=0).exp(), info.diverged)


def test_the_matrix_test_catches_a_missing_hastings_term():
    domain = domains.Binary(4)
    energy, x = Rugged(domain), domain.states(dtype=F64)
    p = gwg_matrix(ForgetsToCorrect(), energy, x, None)
    pi = law(energy, x)
    assert float((pi @ p - pi).abs().max()) > 1e-3


def conditional_path(energy, x0, target):
    """p(xᵢ = target | rest) along a systematic sweep that ends in `target`, by enumeration of each unit."""
    domain = energy.domain
    k = domain.classes if isinstance(domain, domains.Categorical) else 1
    x, flat = x0.clone(), target.reshape(-1, k)
    chances = []
    for i in range(len(flat)):
        if isinstance(domain, domains.Categorical):
            options = torch.eye(k, dtype=F64)
        else:
            options = torch.tensor([[-1.0 if isinstance(domain, domains.Spin) else 0.0], [1.0]], dtype=F64)
        rows = x.reshape(1, -1, k).repeat(len(options), 1, 1)
        rows[:, i] = options
        p = torch.softmax(-energy(rows.reshape(len(options), *domain.shape)), 0).detach()
        which = int((options == flat[i]).all(1).double().argmax())
        chances.append((p, which))
        x.reshape(-1, k)[i] = flat[i]
    return chances


@pytest.mark.parametrize(
    ("domain", "machine"),
    [(domains.Binary(3), False), (domains.Spin(3), False), (domains.Categorical(2, 3), False),
     (domains.Binary(3), True), (domains.Spin(3), True)],
    ids=str,
)  # fmt: skip
def test_site_gibbs_thresholds_are_the_enumerated_conditionals(domain, machine):
    """Uniforms a hair on either side of the enumerated conditionals decide as they must; then πP = π."""
    energy = Rugged(domain)
    if machine:
        energy = random_machine(3, isinstance(domain, domains.Spin))
    kernel, x = kernels.SiteGibbs(), domain.states(dtype=F64)
    p = torch.zeros(len(x), len(x), dtype=F64)
    for i, start in enumerate(x):
        for j, target in enumerate(x):
            path = conditional_path(energy, start, target)
            p[i, j] = math.prod(float(q[which]) for q, which in path)
            for edge in (1e-9, 1 - 1e-9):
                u = []
                for q, which in path:
                    if isinstance(domain, domains.Categorical):
                        low, size = float(q[:which].sum()), float(q[which])
                    else:  # u below p(1) gives 1
                        low, size = (0.0, float(q[1])) if which == 1 else (float(q[1]), float(q[0]))
                    u.append(low + edge * size)
                value = torch.tensor([u], dtype=F64)
                state = kernel.init(energy, start[None])
                new, _ = kernel.step(energy, state, SiteInputs(value, value))
                assert torch.equal(new.x[0], target)
                if not machine:
                    torch.testing.assert_close(new.energy, energy(new.x))
    check_matrix(p, law(energy, x).detach(), x, None, reversible=False)


def random_machine(n, spin, seed=0, scale=0.8, hidden=0):
    machine = BoltzmannMachine(n, spin, hidden).double()
    g = gen(seed)
    upper = scale * torch.randn(n + hidden, n + hidden, generator=g, dtype=F64).triu(1)
    machine.set_parameters(weight=upper + upper.T, bias=scale * torch.randn(n + hidden, generator=g, dtype=F64))
    return machine


def exact_start(energy, kernel, steps=3, n=50000, seed=0, clamp=None):
    """Chains drawn exactly, a few steps, and Pearson's statistic of where they end."""
    x = energy.domain.states(dtype=F64)
    pi = law(energy, x).detach()
    start = torch.multinomial(pi, n, generator=gen(seed), replacement=True)
    last = gb.sample(energy, kernel, x[start], steps=steps, keep=False, clamp=clamp, generator=gen(seed + 1)).last
    counts = torch.bincount(find(last, x), minlength=len(x)).double()
    keep = n * pi > 5
    stat = ((counts - n * pi)[keep] ** 2 / (n * pi)[keep]).sum()
    return float(stat), int(keep.sum()) - 1


KERNELS = [
    kernels.SiteGibbs(), kernels.SiteGibbs(scan="random"), kernels.GibbsWithGradients(),
    kernels.DiscreteLangevin(step_size=0.5), kernels.DiscreteLangevin(step_size=torch.tensor([0.1, 1.0, 5.0])),
]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("domain", [domains.Binary(4), domains.Spin((2, 2)), domains.Categorical(2, 3)], ids=str)
def test_exact_starts_stay_exact(domain, kernel):
    """Within 5 standard deviations of Pearson's statistic: a false alarm in about a million, seeds fixed."""
    stat, freedom = exact_start(Rugged(domain), kernel)
    assert stat < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_clamping_keeps_the_conditional_law_per_chain(kernel):
    """Exact joint draws with one random unit clamped per chain: the joint law stays."""
    domain = domains.Binary(4)
    clamp = torch.nn.functional.one_hot(torch.randint(4, (50000,), generator=gen(9)), 4).bool()
    stat, freedom = exact_start(Rugged(domain), kernel, clamp=clamp)
    assert stat < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("kernel", KERNELS[:4], ids=str)
@pytest.mark.parametrize("domain", [domains.Binary(3), domains.Categorical(2, 3)], ids=str)
def test_clamped_units_never_move_and_others_do(domain, kernel):
    x0 = domain.sample(300, generator=gen(), dtype=F64)
    sites = (300, 3) if isinstance(domain, domains.Binary) else (300, 2)
    clamp = torch.rand(sites, generator=gen(1)) < 0.5
    last = gb.sample(Rugged(domain), kernel, x0, steps=20, clamp=clamp, generator=gen()).last
    held = clamp if clamp.shape == x0.shape else clamp[..., None].expand_as(x0)
    assert torch.equal(last[held], x0[held])
    assert not torch.equal(last, x0)
    whole_rows = held.flatten(1).all(1)
    assert whole_rows.any()  # chains that may not move at all are among them


def softmax_machine():
    rbm = models.RBM(units.Softmax(2, 3), 2).double()
    with torch.no_grad():
        for p in rbm.parameters():
            p.copy_(torch.randn(p.shape, generator=gen(5), dtype=F64))
    return rbm


PARTS = domains.JoinedStates(domains.Categorical(1, classes=3), domains.Binary(2))


@pytest.mark.parametrize("per_chain", [False, True])
@pytest.mark.parametrize("kernel", [*KERNELS[:4], kernels.Gibbs()], ids=str)
def test_a_part_of_a_one_hot_unit_cannot_be_held(kernel, per_chain):
    machine = softmax_machine()
    x0 = machine.domain.sample(6, generator=gen(), dtype=F64)
    clamp = torch.zeros(x0.shape if per_chain else x0.shape[1:], dtype=torch.bool)
    clamp[..., 0, 1] = True
    with pytest.raises(ArgumentError, match=r"whole units, by one bool for each: shape \(2,\)"):
        gb.sample(machine, kernel, x0, 5, clamp=clamp, generator=gen())
    with pytest.raises(ArgumentError, match="whole units"):
        gb.minimize(machine, x0, clamp=clamp)
    with pytest.raises(ArgumentError, match="whole units"):
        gb.draw(machine, 6, start=x0, clamp=clamp, kernel=kernel, generator=gen())
    clamp[..., 0, :] = True
    last = gb.sample(machine, kernel, x0, 5, clamp=clamp, generator=gen()).last
    assert bool(machine.domain.contains(last).all())
    assert torch.equal(last[:, 0], x0[:, 0])


def test_a_deep_machine_holds_whole_one_hot_units():
    machine = models.DBM(units.Softmax(2, 3), 3, 2).double()
    v, clamp = machine.domain.sample(4, generator=gen(), dtype=F64), torch.zeros(2, 3, dtype=torch.bool)
    clamp[0, 1] = True
    for torn in (
        lambda: machine.fill_in(v, clamp, steps=2, generator=gen()),
        lambda: machine.draw(4, start=v, clamp=clamp, steps=2, generator=gen()),
    ):
        with pytest.raises(ArgumentError, match="whole units"):
            torn()
    clamp[0] = True
    assert torch.equal(machine.draw(4, start=v, clamp=clamp, steps=2, generator=gen())[:, 0], v[:, 0])


def test_a_part_of_a_one_hot_unit_among_others_cannot_be_held():
    for held, fine in (([0, 0, 0, 1, 0], True), ([1, 1, 1, 0, 1], True), ([1, 0, 0, 0, 0], False)):
        clamp = torch.tensor(held).bool()
        for mask in (clamp, clamp.expand(4, 5)):
            with nullcontext() if fine else pytest.raises(ArgumentError, match="whole units"):
                PARTS.check_clamp(mask)


@pytest.mark.parametrize("machine", [False, True])
def test_tempered_categorical_sites_leave_the_extended_law_alone(machine):
    """All joint states of two replicas by enumeration, six standard errors: a false alarm in about 1e-6 of the cases."""
    energy = softmax_machine() if machine else Rugged(domains.Categorical(2, 3))
    betas, n = torch.tensor([1.0, 0.4], dtype=F64), 20000
    x = energy.domain.states(dtype=F64)
    laws = torch.stack([torch.softmax(-energy.annealed(b)(x), 0) for b in betas]).detach()
    index = torch.multinomial(laws, n, replacement=True, generator=gen(4))
    kernel = kernels.ParallelTempering(kernels.SiteGibbs(), betas)
    target = kernel.target(energy)
    with torch.no_grad():
        state = kernel.init_replicas(target, x[index].flatten(0, 1))
        state, _, _ = advance(target, kernel, state, 3, gen(5))
    after = torch.stack([find(r, x) for r in kernel.replicas(state)])
    joint = lambda i: torch.nn.functional.one_hot(i[0] * len(x) + i[1], len(x) ** 2).double()  # noqa: E731
    d = joint(after) - joint(index)
    assert float((d.sum(0) / d.square().sum(0).sqrt().clamp(min=1)).abs().max()) < 6
    assert float((after != index).double().mean()) > 0.3


def test_energies_with_something_for_each_row_go_round_again():
    """Temperatures and labels of n rows serve 2n and 3n, row by row: candidates of a site are tried all at once."""
    machine, spins = softmax_machine(), BoltzmannMachine(3).double()
    labeled = models.ClassificationRBM(units.Softmax(2, 3), 2, 3).double()
    betas, y = torch.tensor([1.0, 0.3], dtype=F64), torch.tensor([0, 1])
    for energy in (machine.annealed(betas), machine.tempered(betas), spins.annealed(betas), labeled.given(y)):
        x = energy.domain.sample(6, generator=gen(), dtype=F64)
        parts = torch.cat([energy(part) for part in x.split(2)])
        torch.testing.assert_close(energy(x), parts)
        torch.testing.assert_close(energy.score(x), torch.cat([energy.score(part) for part in x.split(2)]))
        with pytest.raises(ShapeError, match=r"2 (temperatures|labels) met 3 rows"):
            energy(x[:3])
    best = gb.minimize(labeled.given(y), x[:2], method="enumerate")
    for i in (0, 1):
        alone = gb.minimize(labeled.given(i), x[:1], method="enumerate")
        torch.testing.assert_close(best.energy[i], alone.energy[0])


def test_random_scans_visit_sites_evenly():
    """With a flat energy every visit redraws its site by a fair coin."""
    flat = gb.as_energy(lambda x: 0 * x.sum(-1), domains.Binary(5))
    n = 40000
    last = gb.sample(flat, kernels.SiteGibbs("random"), torch.zeros(n, 5, dtype=F64), steps=1, generator=gen()).last
    p = 0.5 * (1 - (1 - 1 / 5) ** 5)  # visited at least once, and then up
    assert ((last.mean(0) - p).abs() < 4.5 * math.sqrt(p * (1 - p) / n)).all()


@pytest.mark.parametrize("kernel", KERNELS[:4], ids=str)
def test_chains_do_not_depend_on_the_chunk_or_on_global_randomness(kernel):
    energy, x0 = Rugged(domains.Categorical(3, 3)), domains.Categorical(3, 3).sample(7, generator=gen(), dtype=F64)
    before = torch.get_rng_state()
    whole = gb.sample(energy, kernel, x0, steps=23, generator=gen()).samples
    g = gen()
    first = gb.sample(energy, kernel, x0, steps=5, generator=g)
    second = gb.sample(energy, kernel, first, steps=18, generator=g)
    assert torch.equal(whole, torch.cat([first.samples, second.samples]))
    assert torch.equal(before, torch.get_rng_state())


def test_extreme_gradients_do_not_overflow():
    steep = gb.as_energy(lambda x: 1e4 * x.sum(-1), domains.Binary(3))
    x0 = torch.ones(4, 3)
    for kernel in (kernels.GibbsWithGradients(), kernels.DiscreteLangevin(step_size=0.01)):
        trace = gb.sample(steep, kernel, x0, steps=30, generator=gen())
        assert torch.isfinite(trace.acceptance)
        assert int(trace.divergences.sum()) == 0
        assert torch.equal(trace.last, torch.zeros(4, 3))


def test_undefined_energies_are_reported_and_not_entered():
    def energy(x):
        return torch.where(x.sum(-1) > 1.5, torch.nan, x.sum(-1))

    for kernel in (kernels.SiteGibbs(), kernels.GibbsWithGradients(), kernels.DiscreteLangevin(step_size=2.0)):
        with pytest.warns(gb.errors.DivergenceWarning):
            trace = gb.sample(
                gb.as_energy(energy, domains.Binary(3)), kernel, torch.zeros(50, 3), steps=20, generator=gen()
            )
        assert (trace.last.sum(1) < 1.5).all()
        assert int(trace.divergences.sum()) > 0


def test_walls_are_respected_without_alarm():
    even = gb.as_energy(lambda x: torch.where(x[:, 0] + x[:, 1] > 1.5, torch.inf, 0.0), domains.Binary(3))
    trace = gb.sample(even, kernels.SiteGibbs(), torch.zeros(2000, 3), steps=20, burn_in=19, generator=gen())
    assert (trace.last[:, 0] + trace.last[:, 1] < 1.5).all()
    assert int(trace.divergences.sum()) == 0
    assert abs(float(trace.last[:, 0].mean()) - 1 / 3) < 4.5 * math.sqrt(2 / 9 / 2000)


def one_step(domain, kernel):
    return gb.sample(Rugged(domain), kernel, torch.zeros(2, 2, dtype=F64), steps=1, generator=gen())


@pytest.mark.parametrize(("bad", "error"), [
    (lambda: kernels.SiteGibbs(scan="zigzag"), ArgumentError),
    (lambda: kernels.DiscreteLangevin(step_size=0.0), ArgumentError),
    (lambda: one_step(domains.Real(2), kernels.SiteGibbs()), DomainError),
    (lambda: one_step(domains.Real(2), kernels.GibbsWithGradients()), DomainError),
    (lambda: one_step(domains.Binary(2), kernels.Gibbs()), CapabilityError),
    (lambda: one_step(domains.Real(2), kernels.Gibbs()), CapabilityError),
])  # fmt: skip
def test_bad_input_is_refused(bad, error):
    with pytest.raises(error) as caught:
        bad()
    assert len(str(caught.value)) > 25


def test_states_are_named_tuples():
    state = kernels.SiteGibbs().init(Rugged(domains.Binary(2)), torch.zeros(1, 2, dtype=F64))
    assert isinstance(state, SiteState)
    assert state.energy is not None
