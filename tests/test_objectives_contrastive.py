"""Monte-Carlo likelihood, contrastive divergence and persistent chains against enumerated chain laws."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from objective_oracles import (
    F64,
    bits,
    gaussian,
    gen,
    gradient,
    gradient_of,
    mixture_of_three,
    random_rbm,
    some_data,
    z_scores,
)

import gibbsian as gb
from gibbsian import domains, energies, errors, kernels
from gibbsian.kernels.base import Info, Kernel
from gibbsian.objectives import ContrastiveDivergence, MonteCarloLikelihood, PersistentContrastiveDivergence, chains
from gibbsian.objectives.base import Step
from gibbsian.objectives.chains import far_above, fused_step, walk
from gibbsian.objectives.contrastive import nearest_neighbor_entropy
from gibbsian.objectives.persistent import Chains

STATES = domains.Binary(6).states(dtype=F64)
HIDDEN = domains.Binary(4).states(dtype=F64)


@dataclass(frozen=True)
class GeneralGibbs(kernels.Gibbs):
    """Gibbs that is not the plain one, so that objectives take the general path."""


def sweep_matrix(rbm):
    """T[v, v'] = Σ_h p(h|v) p(v'|h), by enumeration."""
    h_given_v = torch.softmax(-rbm.joint(STATES.repeat_interleave(16, 0), HIDDEN.repeat(64, 1)).reshape(64, 16), 1)
    v_given_h = torch.softmax(-rbm.joint(STATES.repeat(16, 1), HIDDEN.repeat_interleave(64, 0)).reshape(16, 64), 1)
    return (h_given_v @ v_given_h).detach()


def law_of(x):
    return (x[:, None] == STATES).all(2).to(F64).mean(0)


def contrast(rbm, data, law):
    return gradient_of(rbm(data).mean() - law @ rbm(STATES), rbm)


# --- contrastive divergence -----------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [kernels.Gibbs(), GeneralGibbs()])
@pytest.mark.parametrize("steps", [1, 3])
def test_contrastive_divergence_has_the_gradient_of_its_chain_law(kernel, steps):
    rbm, data = random_rbm(), bits(40, 6)
    law = law_of(data) @ torch.linalg.matrix_power(sweep_matrix(rbm), steps)
    z = z_scores(rbm, ContrastiveDivergence(kernel, steps), data, contrast(rbm, data, law), repeats=300)
    assert z.abs().max() < 5.2  # 34 entries, false alarms below 1e-5


def test_many_steps_reach_the_exact_gradient():
    rbm, data = random_rbm(), bits(300, 6)
    exact = contrast(rbm, data, torch.softmax(-rbm(STATES), 0).detach())
    z = z_scores(rbm, ContrastiveDivergence(kernels.Gibbs(), 60), data, exact, repeats=40)
    assert z.abs().max() < 6  # t with 39 degrees of freedom
    z = z_scores(rbm, ContrastiveDivergence(kernels.Gibbs(), 1), data, exact, repeats=100)
    assert z.abs().max() > 10  # one step does not


def langevin_moments(energy, x, eps, steps):
    """Second moment about the mean, and mean, of chains from the rows of x, noise averaged."""
    p, eye = energy.precision, torch.eye(2, dtype=F64)
    a = eye - 0.5 * eps**2 * p
    centered = x - energy.mean
    second, first = centered.T @ centered / len(x), centered.mean(0)
    for _ in range(steps):
        second, first = a @ second @ a.T + eps**2 * eye, a @ first
    return second, first


def test_contrastive_divergence_of_a_gaussian_with_langevin():
    energy, x, eps, k = gaussian(), some_data(64), 0.5, 3
    second, first = (t.detach() for t in langevin_moments(energy, x, eps, k))
    at = energy.mean.detach()  # the samples stay where they are while parameters move
    shift = at - energy.mean
    moved = second + torch.outer(first, shift) + torch.outer(shift, first) + torch.outer(shift, shift)
    truth = gradient_of(energy(x).mean() - 0.5 * (energy.precision * moved).sum(), energy)
    objective = ContrastiveDivergence(kernels.Langevin(step_size=eps), steps=k)
    z = z_scores(energy, objective, x, truth, repeats=300)
    assert z.abs().max() < 5


@pytest.mark.parametrize("kernel", [kernels.MALA(step_size=0.6), kernels.HMC(step_size=0.4, leapfrog_steps=4)])
def test_contrastive_divergence_of_a_mixture_with_adjusted_kernels(kernel):
    """From exact draws the chains stay exact, so the gradient of the likelihood is zero on average."""
    energy = mixture_of_three()
    draws = []
    for seed in range(60):
        x = energy.sample(400, generator=gen(1000 + seed))
        draws.append(gradient(energy, ContrastiveDivergence(kernel, steps=2), x, seed=seed))
    g = torch.stack(draws)
    moving = g.std(0) > 1e-12
    assert (g.mean(0)[moving] / g.std(0)[moving] * 60**0.5).abs().max() < 5.5


# --- the entropy term -----------------------------------------------------------------------------


def test_the_sign_of_the_entropy_term_by_enumeration():
    """∇[KL(p_d‖p) - KL(q‖p)] = E_d[∇E] - E_q[∇E] - K on four bits, q = p_d Tᵏ with T from the parameters."""
    g = gen(5)
    weight = (0.8 * torch.randn(4, 4, generator=g, dtype=F64)).requires_grad_(True)
    states = domains.Binary(4).states(dtype=F64)
    data = torch.softmax(torch.randn(16, generator=g, dtype=F64), 0)
    gaps = (states[:, None] != states).sum(2)

    def energies(w):
        return -(states @ w * states).sum(1)

    def chain(w):
        """Random-scan Gibbs: flip bit i with probability ¼σ(E(x) - E(x'))."""
        e = energies(w)
        flip = torch.where(gaps == 1, 0.25 * torch.sigmoid(e[:, None] - e[None, :]), 0.0)
        return flip + torch.diag(1 - flip.sum(1))

    def law(w):
        return data @ torch.linalg.matrix_power(chain(w), 2)

    def kl(a, w):
        return (a * (a.log() - torch.log_softmax(-energies(w), 0))).sum()

    total = torch.autograd.grad(kl(data, weight) - kl(law(weight), weight), weight)[0]
    q = law(weight)
    plain = torch.autograd.grad((data - q.detach()) @ energies(weight), weight)[0]
    k = torch.autograd.grad((q * (energies(weight).detach() + q.log())).sum(), weight)[0]
    torch.testing.assert_close(total, plain - k, rtol=1e-9, atol=1e-12)
    assert (total - (plain + k)).norm() > 0.1 * total.norm()  # the sign matters


@pytest.mark.parametrize("kernel", [kernels.Langevin(step_size=0.7), kernels.ShortRunLangevin(0.245, 0.7)])
def test_the_entropy_term_on_a_gaussian_where_the_chain_law_is_known(kernel):
    """Data N(0, 2.25 I), E = ½e^λ‖x‖²: the chain is Gaussian with a known variance v(λ) after two steps."""

    class Isotropic(gb.Energy):
        def __init__(self):
            super().__init__(domains.Real(2))
            self.log_precision = torch.nn.Parameter(torch.tensor(0.3, dtype=F64))

        def forward(self, x):
            return 0.5 * self.log_precision.exp() * x.square().sum(1)

    energy, eps = Isotropic(), 0.7
    p = energy.log_precision.exp()
    v = torch.tensor(2.25, dtype=F64)
    for _ in range(2):
        v = (1 - 0.5 * eps**2 * p) ** 2 * v + eps**2
    data_energy, chain_energy, entropy = 2.25 * p, p * v, v.log()  # two dimensions, constants dropped
    truth = float(gradient_of(data_energy - chain_energy + entropy, energy))
    plain = float(gradient_of(data_energy - p * v.detach(), energy))

    def draws(**options):
        objective = ContrastiveDivergence(kernel, steps=2, **options)
        out = []
        for seed in range(40):
            x = 1.5 * torch.randn(1000, 2, generator=gen(1000 + seed), dtype=F64)
            out.append(gradient(energy, objective, x, seed=seed))
        g = torch.cat(out)
        return float(g.mean()), float(g.std()) / 40**0.5

    mean, error = draws(entropy=True, entropy_steps=2, neighbor=6)
    assert abs(mean - truth) < 5 * error
    assert error < 0.06 < 0.5 < abs(truth - plain)  # K is seen: with the other sign it would be off by 1.1
    mean, error = draws()
    assert abs(mean - plain) < 5 * error


class Scaled(gb.Energy):
    """½e^λ‖x‖² in any dimension."""

    def __init__(self, d):
        super().__init__(domains.Real(d))
        self.log_precision = torch.nn.Parameter(torch.tensor(0.3, dtype=F64))

    def forward(self, x):
        return 0.5 * self.log_precision.exp() * x.square().sum(1)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_the_noise_of_the_entropy_term_falls_with_the_batch(d):
    """Data N(0, 2.25 I), one step: the chain is Gaussian with a known variance. From 50 rows to 800 the variance of the
    gradient falls at least as n^(-1/3), 2.5 times; of a sample of 80 each its ratio is known to a factor of e^(5·0.22)
    at 5 standard deviations, and in one dimension the third neighbor's would have grown sixteenfold."""
    energy, eps = Scaled(d), 0.7
    p = energy.log_precision.exp()
    v = (1 - 0.5 * eps**2 * p) ** 2 * 2.25 + eps**2
    truth = float(gradient_of(d * (0.5 * 2.25 * p - 0.5 * p * v + 0.5 * v.log()), energy))
    objective = ContrastiveDivergence(kernels.Langevin(step_size=eps), entropy=True)
    spreads = []
    for n in (50, 800):
        g = torch.cat([
            gradient(energy, objective, 1.5 * torch.randn(n, d, generator=gen(1000 + seed), dtype=F64), seed=seed)
            for seed in range(80)
        ])  # fmt: skip
        assert abs(float(g.mean()) - truth) < 5 * float(g.std()) / 80**0.5
        spreads.append(float(g.var()))
    assert spreads[1] < spreads[0] * 16 ** (-1 / 3) * math.exp(5 * (4 / 80) ** 0.5)


def test_short_last_batches_go_without_the_entropy_term():
    """A row alone has no neighbor: its gradient is that of the usual rule, and an epoch comes to its end."""
    energy, kernel = Scaled(1), kernels.Langevin(step_size=0.5)
    with_term, plain = ContrastiveDivergence(kernel, entropy=True), ContrastiveDivergence(kernel)
    for rows in (1, 2, 3):
        x = torch.randn(rows, 1, generator=gen(), dtype=F64)
        assert torch.equal(gradient(energy, with_term, x, state=()), gradient(energy, plain, x, state=()))
    x = torch.randn(4, 1, generator=gen(), dtype=F64)
    assert not torch.equal(gradient(energy, with_term, x, state=()), gradient(energy, plain, x, state=()))
    seven = ContrastiveDivergence(kernel, entropy=True, neighbor=7)
    assert [seven.neighbor_of(torch.zeros(n, 1)) for n in (7, 8)] == [None, 7]
    data = torch.randn(41, 1, generator=gen(1), dtype=F64)
    run = gb.fit(energy, with_term, data, epochs=2, batch_size=20, lr=0.01, progress=False)
    assert run.step == 6


def test_nearest_neighbor_entropy():
    """Gaussian, any scale; the gradient of a scaling is exactly the dimension."""
    for d, neighbor in ((1, 1), (2, 3), (3, 1)):
        values = []
        for seed in range(20):
            x = torch.randn(2000, d, generator=gen(seed), dtype=F64)
            values.append(nearest_neighbor_entropy(x, neighbor))
        h = torch.stack(values)
        truth = 0.5 * d * (1 + torch.log(torch.tensor(2 * torch.pi, dtype=F64)))
        assert abs(h.mean() - truth) < 5 * h.std() / 20**0.5 + 0.02  # finite-sample bias below 0.02 here
        scale = torch.ones((), dtype=F64, requires_grad=True)
        nearest_neighbor_entropy(scale * x, neighbor).backward()
        assert abs(float(scale.grad) - d) < 1e-10
    with pytest.raises(errors.ArgumentError, match="neighbors"):
        nearest_neighbor_entropy(torch.zeros(3, 2), 3)


# --- Monte-Carlo likelihood -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [gaussian, mixture_of_three])
def test_monte_carlo_likelihood_with_exact_draws_is_unbiased(make):
    energy, x = make(), some_data(30)
    truth = gradient_of(energy(x).mean() + energy.log_z(), energy)
    z = z_scores(energy, MonteCarloLikelihood(chains=200), x, truth, repeats=200)
    assert z.abs().max() < 5


def test_monte_carlo_likelihood_with_a_kernel_forgets_its_start():
    rbm, data = random_rbm(), bits(40, 6)
    exact = contrast(rbm, data, torch.softmax(-rbm(STATES), 0).detach())
    z = z_scores(rbm, MonteCarloLikelihood(kernels.Gibbs(), steps=60, chains=200), data, exact, repeats=60)
    assert z.abs().max() < 5.7
    uniform = torch.full((64,), 1 / 64, dtype=F64)
    one = contrast(rbm, data, uniform @ sweep_matrix(rbm))
    z = z_scores(rbm, MonteCarloLikelihood(kernels.Gibbs(), steps=1, chains=200), data, one, repeats=60)
    assert z.abs().max() < 5.7
    with pytest.raises(errors.CapabilityError, match="kernel"):
        MonteCarloLikelihood()(rbm, data, (), gen())


# --- persistent chains ----------------------------------------------------------------------------


def chains_of(n=50, seed=11):
    return bits(n, 6, seed=seed, p=0.7)


@pytest.mark.parametrize("kernel", [kernels.Gibbs(), GeneralGibbs()])
@pytest.mark.parametrize(
    ("options", "fresh"),
    [
        ({}, 0.0),
        ({"buffer": 50, "chains": 20}, 0.0),
        ({"reinit": 0.4}, 0.4),
        ({"buffer": 50, "chains": 7, "reinit": 1.0}, 1.0),
    ],
)
def test_persistent_gradient_is_that_of_the_moved_chains(kernel, options, fresh):
    rbm, data, slots = random_rbm(), bits(40, 6), chains_of()
    uniform = torch.full((64,), 1 / 64, dtype=F64)
    law = ((1 - fresh) * law_of(slots) + fresh * uniform) @ sweep_matrix(rbm)
    objective = PersistentContrastiveDivergence(kernel, **({"chains": 50} | options))
    truth = contrast(rbm, data, law)
    draws = torch.stack([gradient(rbm, objective, data, seed=i, state=Chains(slots)) for i in range(300)])
    z = (draws.mean(0) - truth) / draws.std(0) * 300**0.5
    assert z.abs().max() < 5.2


def test_chains_start_from_the_data_where_asked():
    rbm, data = random_rbm(), torch.ones(30, 6, dtype=F64)
    reference = PersistentContrastiveDivergence(kernels.Gibbs(), chains=50).init(rbm, data, gen())
    assert 0.3 < float(reference.x.mean()) < 0.7
    from_data = PersistentContrastiveDivergence(kernels.Gibbs(), chains=50, start="data").init(rbm, data, gen())
    assert (from_data.x == 1).all()
    assert from_data.x.shape == (50, 6)


@dataclass(frozen=True)
class Counting(Kernel):
    """x[:, 0] is a name and stays; x[:, 1] counts the steps."""

    def init(self, energy: Any, x: torch.Tensor, clamp: Any = None) -> Any:
        return kernels.langevin.Positions(x, clamp)

    def draw(self, energy: Any, x: torch.Tensor, steps: int, generator: torch.Generator, start: int = 0) -> Any:
        return (torch.zeros(steps),)

    def step(self, energy: Any, state: Any, inputs: Any) -> Any:
        x = state.x + state.x.new_tensor([0.0, 1.0])
        still = torch.zeros(len(x), dtype=x.dtype)
        return kernels.langevin.Positions(x), Info(still + 1, still.bool())


def test_chains_far_above_the_data_start_anew_after_they_counted():
    energy, data = gaussian(), some_data(200)
    away = data[:3] * torch.tensor([[1.0], [1.0], [60.0]], dtype=F64)  # the third far out, and only that one high up
    plain = PersistentContrastiveDivergence(Counting(), chains=3, start="data")
    both = [replace(plain, reinit_far=share) for share in (0.0, 1.0)]
    before, after = (objective(energy, data, Chains(away), gen()) for objective in both)
    torch.testing.assert_close(after.value, before.value, rtol=0, atol=0)
    assert float(after.metrics["far"]) == pytest.approx(1 / 3)
    moved = away + torch.tensor([0.0, 1.0], dtype=F64)
    torch.testing.assert_close(before.state.x, moved)
    torch.testing.assert_close(after.state.x[:2], moved[:2])
    assert (after.state.x[2] == data).all(1).any()


@pytest.mark.parametrize("level", [-50.0, 0.0, 50.0])
def test_far_above_is_five_spreads_from_the_middle_of_the_data(level):
    """2 ± 1.4826, so that 9.413 is the border."""
    data, samples = torch.arange(5.0), torch.tensor([-99.0, 9.3, 9.5])
    assert far_above(level + data, level + samples).tolist() == [False, False, True]


def test_rows_that_are_mostly_equal_leave_no_sample_like_a_rare_one_far_above():
    """Words that are silent most of the time have no median deviation: five deviations of 0.4 from 0 are 2."""
    data, samples = torch.tensor([0.0] * 8 + [1.0] * 2), torch.tensor([0.0, 1.0, 1.9, 2.1])
    assert far_above(data, samples).tolist() == [False, False, False, True]
    assert far_above(torch.full((1,), 3.0), torch.tensor([3.0, 4.0])).tolist() == [False, True]
    machine = gb.models.BoltzmannMachine(6).double()
    machine.set_parameters(bias=torch.full((6,), -2.5, dtype=F64))
    data = (torch.rand(4000, 6, generator=gen(), dtype=F64) < 1 / (1 + math.exp(2.5))).double()  # its law
    assert (data.sum(1) == 0).double().mean() > 0.5
    objective = PersistentContrastiveDivergence(kernels.Gibbs(), chains=4000, reinit_far=1.0, start="data")
    found = objective(machine, data, objective.init(machine, data, gen(1)), gen(2)).metrics["far"]
    assert float(found) < 0.01  # four active units are 5 deviations off, and come in 5 of 10000 words


def test_the_share_of_those_far_above_that_starts_anew():
    """Of 4000 chains far out a share of 0.3: five standard errors are 0.036; those among the data stay."""
    objective = PersistentContrastiveDivergence(Counting(), chains=8000, reinit_far=0.3, start="data")
    slots = torch.cat([torch.full((4000, 2), 50.0, dtype=F64), torch.zeros(4000, 2, dtype=F64)])
    data = some_data(50)
    after = objective(gaussian(), data, Chains(slots), gen()).state.x
    anew = after[:, 0] != slots[:, 0]
    assert abs(float(anew[:4000].double().mean()) - 0.3) < 0.036
    assert not anew[4000:].any()


def test_class_bound_chains_far_above_the_data_start_anew_in_their_class():
    class Far(torch.nn.Module):
        def forward(self, x):
            return -x.square().sum(1, keepdim=True).expand(-1, 3)

    joint = gb.models.JointEnergy(Far(), domains.Real(2))
    x, y = some_data(9), torch.tensor([2, 0, 2, 2, 1, 0, 1, 1, 2])
    slots = torch.full((36, 2), 70.0, dtype=F64)
    objective = PersistentContrastiveDivergence(Counting(), classes=3, buffer=36, reinit_far=1.0, start="data")
    found = objective(joint, (x, y), Chains(slots), gen())
    assert float(found.metrics["far"]) == 1.0
    for k in range(3):
        mine = found.state.x[12 * k : 12 * (k + 1)]
        anew = mine[mine[:, 0] != 70.0]
        assert len(anew) == int((y == k).sum())
        assert (anew[:, None] == x[y == k]).all(2).any(1).all()


def test_what_starts_anew_is_of_its_class_and_takes_its_replicas_along():
    joint = gb.models.JointEnergy(gb.energies.MLP(2, (4,), outputs=3).double(), domains.Real(2))
    x, y = some_data(9), torch.tensor([2, 0, 2, 2, 1, 0, 1, 1, 2])
    slots = torch.full((36, 2), 7.0, dtype=F64)
    objective = PersistentContrastiveDivergence(Counting(), classes=3, buffer=36, reinit=1.0, start="data")
    after = objective(joint, (x, y), Chains(slots), gen()).state.x - torch.tensor([0.0, 1.0], dtype=F64)
    for k in range(3):
        mine = after[12 * k : 12 * (k + 1)]
        moved = mine[mine[:, 0] != 7.0]
        assert len(moved) == int((y == k).sum())
        assert (moved[:, None] - x[y == k]).abs().amax(2).amin(1).max() < 1e-12
    tempered = PersistentContrastiveDivergence(
        kernels.ParallelTempering(kernels.MALA(0.1), (1.0, 0.5, 0.2)), start="data"
    )
    chains = Chains(slots, None, slots[:, None].repeat(1, 2, 1), torch.zeros(1, dtype=torch.long))
    anew = tempered._anew(gaussian(), x, chains, None, 0.5, gen())
    begun = anew.x[:, 0] != 7.0
    assert 0 < int(begun.sum()) < 36
    assert torch.equal(anew.hot, anew.x[:, None].repeat(1, 2, 1))


def test_chains_are_written_back_to_the_slots_they_were_read_from():
    energy, data = gaussian(), some_data(10)
    objective = PersistentContrastiveDivergence(Counting(), steps=3, chains=7, buffer=40)
    slots = torch.stack([torch.arange(40, dtype=F64), torch.zeros(40, dtype=F64)], 1)
    state, g = Chains(slots), gen()
    for update in range(1, 31):
        before = state.x.clone()
        state = objective(energy, data, state, g).state
        assert torch.equal(state.x[:, 0], torch.arange(40, dtype=F64))  # every lineage lives, in its own slot
        assert float(state.x[:, 1].sum()) == 21 * update
        assert int((state.x[:, 1] != before[:, 1]).sum()) == 7  # seven distinct slots, no slot twice
    counts = state.x[:, 1] / 3
    assert counts.min() >= 1
    assert counts.max() < 15


def test_the_share_that_starts_anew():
    """Of 4000 chains a share of 0.3 starts anew: five standard errors are 0.036."""
    objective = PersistentContrastiveDivergence(Counting(), chains=4000, reinit=0.3, start="data")
    slots = torch.full((4000, 2), 5.0, dtype=F64)
    after = objective(gaussian(), torch.zeros(3, 2, dtype=F64), Chains(slots), gen()).state.x
    anew = after[:, 0] == 0
    assert abs(float(anew.double().mean()) - 0.3) < 0.036
    assert (after[anew, 1] == 1).all()  # they move as well
    assert (after[~anew, 1] == 6).all()


def test_class_bound_slots_stay_with_their_class():
    net = gb.energies.MLP(2, (8,), outputs=3).double()
    joint = gb.models.JointEnergy(net, domains.Real(2))
    y = torch.tensor([2, 0, 2, 2, 1, 0])
    x = some_data(6)
    objective = PersistentContrastiveDivergence(Counting(), steps=1, classes=3, buffer=18)
    slots = torch.stack([torch.arange(18, dtype=F64), torch.zeros(18, dtype=F64)], 1)
    state, g = Chains(slots), gen()
    for update in range(1, 21):
        loss = objective(joint, (x, y), state, g)
        state = loss.state
        assert torch.equal(state.x[:, 0], slots[:, 0])
        visits = state.x[:, 1].reshape(3, 6).sum(1)
        assert visits.tolist() == [2.0 * update, 1.0 * update, 3.0 * update]


def test_class_bound_chains_train_the_conditional_law():
    """-log p(x|y) on three bits: long chains of SiteGibbs give its exact gradient within the error."""
    joint = gb.models.JointEnergy(gb.energies.MLP(3, (6,), outputs=2).double(), domains.Binary(3))
    with torch.no_grad():
        for p in joint.parameters():
            p *= 3
    states = domains.Binary(3).states(dtype=F64)
    x, y = bits(20, 3), torch.arange(20) % 2
    truth = joint.given(y)(x).mean()
    for k in (0, 1):
        truth = truth + 0.5 * torch.logsumexp(-joint.given(k)(states), 0)
    objective = PersistentContrastiveDivergence(kernels.SiteGibbs(), steps=15, classes=2, buffer=40)
    z = z_scores(joint, objective, (x, y), gradient_of(truth, joint), repeats=200)
    assert z.abs().max() < 5.2


def test_fast_weights_move_the_chains_and_not_the_gradient():
    """Chains move under θ + φ, the contrast is taken at θ, and φ follows its own rule."""
    rbm, data, slots = random_rbm(), bits(40, 6), chains_of()
    count = sum(p.numel() for p in rbm.parameters())
    fast = 0.5 * torch.randn(count, generator=gen(2), dtype=F64)
    shifted = random_rbm()
    torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(shifted.parameters()).detach() + fast, shifted.parameters()
    )
    truth = contrast(rbm, data, law_of(slots) @ sweep_matrix(shifted))
    objective = PersistentContrastiveDivergence(kernels.Gibbs(), chains=50, fast_weights=0.1, fast_decay=0.9)
    before = [p.detach().clone() for p in rbm.parameters()]
    draws = torch.stack([gradient(rbm, objective, data, seed=i, state=Chains(slots, fast)) for i in range(300)])
    z = (draws.mean(0) - truth) / draws.std(0) * 300**0.5
    assert z.abs().max() < 5.2
    assert all(torch.equal(a, b) for a, b in zip(before, rbm.parameters(), strict=True))
    g = gen(4)
    loss = objective(rbm, data, Chains(slots, fast), g)
    rule = 0.9 * fast - 0.1 * gradient_of(loss.value, rbm)
    torch.testing.assert_close(loss.state.fast, rule)
    assert (objective.init(rbm, data, gen()).fast == 0).all()
    average = random_rbm().requires_grad_(False)  # is judged, and has nothing to learn
    judged = objective(average, data, Chains(slots, fast), gen(4))
    torch.testing.assert_close(judged.value, average(data).mean() - average(judged.state.x).mean())
    assert torch.equal(judged.state.fast, fast)


def test_tempered_chains_keep_the_exact_law_of_every_replica():
    """Replicas start at exact draws of their own temperature: the gradient is the likelihood's, on average."""
    rbm, data = random_rbm(scale=1.2), bits(40, 6)
    betas = [1.0, 0.6, 0.3]
    kernel = kernels.ParallelTempering(kernels.Gibbs(), betas)
    laws = [torch.softmax(-rbm.annealed(torch.tensor(b, dtype=F64))(STATES), 0).detach() for b in betas]
    objective = PersistentContrastiveDivergence(kernel, steps=2, chains=50)
    g, draws, hottest = gen(1), [], []
    for seed in range(200):
        replicas = [STATES[torch.multinomial(law, 50, True, generator=g)] for law in laws]
        hot = torch.stack(replicas[1:], 1)
        state = Chains(replicas[0], None, hot, torch.tensor([seed % 2]))
        draws.append(gradient(rbm, objective, data, seed=seed, state=state))
        hottest.append(objective(rbm, data, state, gen(seed)).state.hot[:, -1].mean(0))
    exact = contrast(rbm, data, laws[0])
    z = (torch.stack(draws).mean(0) - exact) / torch.stack(draws).std(0) * 200**0.5
    assert z.abs().max() < 5.2
    means = torch.stack(hottest)
    assert ((means.mean(0) - laws[-1] @ STATES) / means.std(0) * 200**0.5).abs().max() < 5


def test_tempered_chains_swap_even_and_odd_pairs_in_turn_across_updates():
    """On a flat energy every swap is accepted: with one step an update, pairs 01 and 12 swap alternately."""
    flat_energy = gb.as_energy(FlatNet(), domains.Real(2))
    objective = PersistentContrastiveDivergence(
        kernels.ParallelTempering(Still(), [1.0, 0.5, 0.25]), chains=3, buffer=6
    )
    names = torch.arange(18, dtype=F64).reshape(6, 3)[:, :, None].expand(6, 3, 2).clone()
    state, g = Chains(names[:, 0], None, names[:, 1:], torch.zeros(1).long()), gen()
    for turn in (0, 1, 0, 1):
        before = torch.cat([state.x[:, None], state.hot], 1)[:, :, 0]
        assert int(state.turn) == turn
        state = objective(flat_energy, some_data(4), state, g).state
        after = torch.cat([state.x[:, None], state.hot], 1)[:, :, 0]
        swapped = before[:, [1, 0, 2]] if turn == 0 else before[:, [0, 2, 1]]
        moved = (after != before).any(1)
        assert int(moved.sum()) == 3
        assert torch.equal(after[moved], swapped[moved])
    fresh = PersistentContrastiveDivergence(
        kernels.ParallelTempering(Still(), [1.0, 0.5]), chains=3, reinit=1.0, start="data"
    )
    data = torch.full((4, 2), 7.0, dtype=F64)
    renewed = fresh(flat_energy, data, Chains(names[:3, 0], None, names[:3, 1:2], torch.zeros(1).long()), g).state
    assert (renewed.x == 7).all()
    assert (renewed.hot == 7).all()


class FlatNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, dtype=F64))

    def forward(self, x):
        return x @ self.weight


@dataclass(frozen=True)
class Still(kernels.RandomWalk):
    """A random walk that hardly moves and whose moves are taken back."""

    scale: Any = 1e-30

    def step(self, energy: Any, state: Any, inputs: Any) -> Any:
        _, info = super().step(energy, state, inputs)
        return state, info


def test_the_energy_penalty_is_the_mean_of_squares():
    energy, x = gaussian(), some_data(20)
    for objective, plain in (
        (ContrastiveDivergence(kernels.MALA(0.5), penalty=0.3), ContrastiveDivergence(kernels.MALA(0.5))),
        (
            PersistentContrastiveDivergence(kernels.MALA(0.5), chains=9, penalty=0.3),
            PersistentContrastiveDivergence(kernels.MALA(0.5), chains=9),
        ),
    ):
        state = objective.init(energy, x, gen())
        with_penalty = objective(energy, x, state, gen(1))
        without = plain(energy, x, state, gen(1))
        if isinstance(state, Chains):
            samples = without.state.x
            squares = energy(x).square().mean() + energy(samples).square().mean()
            torch.testing.assert_close(with_penalty.value, without.value + 0.3 * squares)
        assert float(with_penalty.value.detach()) > float(without.value.detach())
        torch.testing.assert_close(with_penalty.metrics["gap"], without.metrics["gap"])


def test_kernels_never_use_energies_of_older_parameters():
    """A MALA chain continued after a change of parameters is what a fresh start from its positions gives."""
    energy, x = gaussian(), some_data(20)
    objective = PersistentContrastiveDivergence(kernels.MALA(0.8), steps=2, chains=30)
    state = objective(energy, x, objective.init(energy, x, gen()), gen(1)).state
    with torch.no_grad():
        energy.mean += 3.0
    after = objective(energy, x, state, gen(2)).state.x
    fresh = gb.sample(energy, kernels.MALA(0.8), state.x, steps=2, generator=gen(2)).last
    assert torch.equal(after, fresh)


def test_metrics_tell_frozen_chains():
    energy, x = gaussian(), some_data(20)
    wild = kernels.MALA(step_size=60.0)
    loss = PersistentContrastiveDivergence(wild, chains=30)(energy, x, Chains(some_data(30)), gen())
    assert float(loss.metrics["acceptance"]) < 1e-3
    assert float(loss.metrics["movement"]) == 0.0
    loss = PersistentContrastiveDivergence(kernels.MALA(0.5), chains=30)(energy, x, Chains(some_data(30)), gen())
    assert float(loss.metrics["acceptance"]) > 0.5
    assert float(loss.metrics["movement"]) > 0.1
    for name in ("energy_data", "energy_samples", "gap", "divergent"):
        assert loss.metrics[name].dim() == 0
        assert not loss.metrics[name].requires_grad
    gap = loss.metrics["energy_data"] - loss.metrics["energy_samples"]
    torch.testing.assert_close(loss.metrics["gap"], gap)


def test_refusals():
    rbm, data = random_rbm(), bits(10, 6)
    energy, x = gaussian(), some_data(10)
    gibbs = kernels.Gibbs()
    for bad in (
        lambda: ContrastiveDivergence(gibbs, steps=0),
        lambda: ContrastiveDivergence("gibbs"),
        lambda: ContrastiveDivergence(kernels.MALA(0.1), entropy=True),
        lambda: ContrastiveDivergence(gibbs, penalty=-1.0),
        lambda: ContrastiveDivergence(kernels.Langevin(0.1), entropy=True, entropy_steps=2),
        lambda: ContrastiveDivergence(kernels.MALA(0.1)).init(rbm, data, gen()),
        lambda: ContrastiveDivergence(gibbs).init(energy, x, gen()),
        lambda: ContrastiveDivergence(gibbs).init(rbm, data.float(), gen()),
        lambda: ContrastiveDivergence(kernels.Langevin(0.1), entropy=True).init(energy, x[:2], gen()),
        lambda: PersistentContrastiveDivergence(gibbs, chains=10, buffer=9),
        lambda: PersistentContrastiveDivergence(gibbs, reinit=1.5),
        lambda: PersistentContrastiveDivergence(gibbs, start="noise"),
        lambda: PersistentContrastiveDivergence(gibbs, classes=3, buffer=10),
        lambda: PersistentContrastiveDivergence(gibbs, classes=3),
        lambda: PersistentContrastiveDivergence(gibbs, fast_weights=0.0),
        lambda: PersistentContrastiveDivergence(gibbs, classes=2, buffer=40).init(rbm, (data, torch.arange(10)), gen()),
        lambda: PersistentContrastiveDivergence(gibbs).init(rbm, data, None),
        lambda: MonteCarloLikelihood(gibbs, steps=-3),
    ):
        with pytest.raises(errors.GibbsianError) as caught:
            bad()
        assert len(str(caught.value)) > 25
    joint = gb.models.JointEnergy(gb.energies.MLP(6, outputs=3).double(), domains.Binary(6))
    bound = PersistentContrastiveDivergence(kernels.SiteGibbs(), classes=3, buffer=30)
    with pytest.raises(errors.DataError, match="labels"):
        bound.init(joint, data, gen())
    with pytest.raises(errors.DataError, match="expected 0 to 2"):
        bound.init(joint, (data, torch.full((10,), 5)), gen())
    for classes in (2, 5):
        with pytest.raises(errors.ArgumentError, match="JointEnergy has 3 classes"):
            replace(bound, classes=classes, buffer=10 * classes).init(joint, (data, torch.zeros(10).long()), gen())
    with pytest.raises(errors.CapabilityError, match="no hotter replicas"):
        replace(bound, kernel=kernels.ParallelTempering(kernels.SiteGibbs(), (1.0, 0.5)))
    with pytest.raises(errors.CapabilityError, match="reinit_far"):
        gb.objectives.Conditional(PersistentContrastiveDivergence(kernels.SiteGibbs(), reinit_far=0.5))
    state = bound.init(joint, (data, torch.zeros(10).long()), gen())
    with pytest.raises(errors.ArgumentError, match="buffer"):
        bound(joint, (bits(11, 6), torch.zeros(11).long()), state, gen())


def test_diverged_chains_raise():
    energy = gb.as_energy(lambda x: -x.pow(4).sum(1), domains.Real(2))
    objective = ContrastiveDivergence(kernels.Langevin(step_size=1.0), steps=20)
    with pytest.raises(errors.DivergenceError, match="not finite"):
        objective(energy, some_data(10), (), gen())


def test_compiled_steps_of_chains_are_the_plain_ones(monkeypatch):
    """Same numbers, same chains; and plain steps where the compiler fails."""
    energy = energies.MLPEnergy(domains.Binary(6), (5,)).double().requires_grad_(False)
    x = torch.randint(0, 2, (8, 6), generator=gen(1)).double()
    ends = [walk(energy, kernels.DiscreteLangevin(0.4), x, 12, gen(2), fused=fused)[0] for fused in (False, True)]
    assert not torch.equal(ends[0], x)
    assert torch.equal(*ends)
    assert not fused_step(energy, type(energy), kernels.DiscreteLangevin, False, x.shape).failure
    broken = energies.MLPEnergy(domains.Binary(6), (5,)).double().requires_grad_(False)
    made = fused_step(broken, type(broken), kernels.DiscreteLangevin, False, x.shape)
    monkeypatch.setattr(made, "compiled", lambda *arguments: (_ for _ in ()).throw(RuntimeError("no")))
    with pytest.warns(errors.CompileWarning, match="not compiled, because no"):
        assert torch.equal(walk(broken, kernels.DiscreteLangevin(0.4), x, 12, gen(2), fused=True)[0], ends[0])
    assert made.failure == "no"


def test_steps_of_class_bound_chains_are_compiled_once_for_all_batches(monkeypatch):
    """Every batch has members of the family of its own, with other labels."""
    graphs = []
    monkeypatch.setattr(chains, "compiled", lambda f: torch.compile(f, backend=lambda g, _: graphs.append(g) or g))
    joint = gb.models.JointEnergy(gb.energies.MLP(2, (5,), outputs=3).double(), domains.Real(2)).requires_grad_(False)
    bound = PersistentContrastiveDivergence(kernels.ShortRunLangevin(0.5, 0.01), steps=4, classes=3, buffer=30)
    x, ends = some_data(10), {}
    for fused in (False, True):
        state = bound.init(joint, (x, torch.arange(10) % 3), gen(1))
        for seed in range(3):
            batch = (x, (torch.arange(10) + seed) % 3)
            state = bound.loss(joint, batch, state, gen(seed), Step(chains=fused)).state
        ends[fused] = state.x
    torch.testing.assert_close(ends[True], ends[False])
    assert len(graphs) == 1


def test_chains_are_fused_only_where_steps_are_captured():
    with pytest.raises(errors.ArgumentError, match="compile=True"):
        gb.training.Engine(fuse=True)
