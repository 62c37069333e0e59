"""Parallel tempering: the extended law stays exact, every pair swaps, and the cold chain crosses barriers."""

import math

import numpy as np
import pytest
import torch
from exact_targets import D, correlated, gen

import gibbsian as gb
from gibbsian import domains, energies, kernels, models
from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.sampling.chunks import advance, run_steps

BETAS = torch.tensor([1.0, 0.6, 0.35, 0.2], dtype=D)


def far_apart():
    """0.3 N(-6, 1) + 0.7 N(6, 1)."""
    parts = [energies.Gaussian(torch.tensor([m], dtype=D), torch.eye(1, dtype=D)) for m in (-6.0, 6.0)]
    return gb.mixture(parts, weights=[0.3, 0.7])


def near():
    """Two overlapping modes, one of them narrow."""
    parts = [
        energies.Gaussian(torch.tensor([m], dtype=D), s * torch.eye(1, dtype=D)) for m, s in ((-1.5, 0.3), (1.0, 1.0))
    ]
    return gb.mixture(parts, weights=[0.4, 0.6])


def skewed():
    return gb.as_energy(lambda x: (x.exp() - x).sum(-1), domains.Real(1))


def tempered_draws(energy, beta, n, rng):
    """Draws of exp(-βE) on the line by inversion on a fine grid."""
    x = torch.linspace(-60, 30, 900001, dtype=D)[:, None]
    with torch.no_grad():
        log_p = -beta * energy(x)
    cumulative = np.cumsum(torch.exp(log_p - log_p.max()).numpy())
    cumulative /= cumulative[-1]
    step = float(x[1] - x[0])
    at = np.searchsorted(cumulative, rng.random(n))
    return torch.tensor(x[at, 0].numpy() + step * (rng.random(n) - 0.5), dtype=D)[:, None]


def run(energy, kernel, replicas, steps, g, clamp=None):
    """Run from given positions of every replica `(replicas, chains, *event)`; the state at the end."""
    target = kernel.target(energy)
    state = kernel.init(target, replicas[0], clamp)
    state = state._replace(inner=kernel.kernel.init(target.model, replicas.flatten(0, 1), state.inner.clamp))
    with torch.no_grad():
        for k in range(steps):
            state, _, _ = run_steps(target, kernel, state, kernel.draw(target, replicas[0], 1, g, k))
    return state


def assert_unmoved(before, after):
    """Paired tests of functions of each replica and of neighbors `(replicas, chains)`, 6 standard errors:
    over about 60 functions the false-alarm rate is below 1e-6."""
    functions = {
        "x": lambda x: x,
        "x²": lambda x: x * x,
        "sin": lambda x: torch.sin(2 * x),
        "cos": lambda x: torch.cos(1.3 * x),
        **{f"x < {q}": lambda x, q=q: (x < q).double() for q in (-3, -1.5, -0.5, 0.5, 1.5)},
        "neighbors": lambda x: x[:-1] * x[1:],
        "same side": lambda x: ((x[:-1] < 0) == (x[1:] < 0)).double(),
    }
    for name, f in functions.items():
        d = f(after) - f(before)
        z = d.sum(1) / d.square().sum(1).sqrt().clamp(min=1e-300)
        assert (z.abs() < 6).all(), (name, z)


INNER = {
    "random walk": kernels.RandomWalk(scale=2.0),
    "MALA": kernels.MALA(step_size=1.2),
    "HMC": kernels.HMC(step_size=0.8, leapfrog_steps=3),
    "NUTS": kernels.NUTS(step_size=0.9),
    "guided": kernels.UnderdampedLangevin(step_size=1.0, friction=0.2, adjusted=True),
    "independence": kernels.Independence(energies.Gaussian(torch.zeros(1, dtype=D), 16 * torch.eye(1, dtype=D))),
    "a step size per temperature": kernels.MALA(step_size=(0.9 / BETAS.sqrt())[None]),
}


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("target", [near, skewed])
def test_the_extended_law_stays(inner, target):
    check_extended_law(inner, target)


def check_extended_law(inner, target):
    rng = np.random.default_rng(1)
    start = torch.stack([tempered_draws(target(), float(b), 20000, rng) for b in BETAS])
    kernel = kernels.ParallelTempering(INNER[inner], BETAS)
    state = run(target(), kernel, start, 5, gen(2))
    assert_unmoved(start[..., 0], kernel.replicas(state)[..., 0])
    rate = kernel.swap_acceptance(state)
    assert rate.shape == (3,)
    assert ((rate > 0.3) & (rate < 0.99)).all()
    assert torch.equal(state.tries, torch.tensor([3.0, 2.0, 3.0], dtype=D))


@pytest.mark.parametrize("inner", [kernels.RandomWalk(scale=1.0), kernels.MALA(step_size=1e-9), kernels.Langevin(1e-9)])
def test_swaps_are_accepted_up_to_the_exact_ratio(inner):
    """Replicas that stand still, and a hair on either side of (βᵢ - βⱼ)(E(xᵢ) - E(xⱼ)): below it the pair swaps, above it not.
    Both parities of pairs, energies up and down the ladder."""
    energy = near()
    kernel = kernels.ParallelTempering(inner, BETAS)
    x = torch.tensor(
        [[-1.5, 0.2, 2.0, -3.0], [1.0, 4.0, -2.5, 0.6], [-4.0, 0.0, 1.0, 3.0], [2.5, -1.0, 0.5, -2.0]], dtype=D
    )
    chains, target = x.shape[1], kernel.target(energy)
    for turn, pairs in ((0, [(0, 1), (2, 3)]), (1, [(1, 2)])):
        state = kernel.init_replicas(target, x.reshape(-1, 1), torch.tensor([turn]))
        inputs = run_one(kernel.draw(target, x[0][:, None], 1, gen()))
        e = energy(x.reshape(-1, 1)).reshape(x.shape)
        exact, tries = torch.full_like(x, -1.0), 0
        for i, j in pairs:
            exact[i] = exact[j] = (BETAS[i] - BETAS[j]) * (e[i] - e[j])
        for side in (-1, 1):
            threshold = exact * (1 + 1e-6 * side * exact.sign())
            still = inputs.inner._replace(z=torch.zeros_like(inputs.inner.z))
            end, _ = kernel.step(target, state, inputs._replace(inner=still, threshold=threshold.flatten()))
            got = kernel.replicas(end)[..., 0]
            for i, j in pairs:
                swapped = side < 0
                torch.testing.assert_close(got[i], x[j] if swapped else x[i], atol=1e-6, rtol=0)
                torch.testing.assert_close(got[j], x[i] if swapped else x[j], atol=1e-6, rtol=0)
                torch.testing.assert_close(kernel.swap_acceptance(end)[i], exact[i].clamp(max=0).exp().mean())
                tries += chains
        assert tries == 2 * chains * len(pairs)


def run_one(inputs):
    """The inputs of the only step of many."""
    if isinstance(inputs, torch.Tensor):
        return inputs[0]
    return type(inputs)(*map(run_one, inputs))


def swap_everything(self, energy, inner, turn, threshold, right=kernels.ParallelTempering._swap):
    return right(self, energy, inner, turn, torch.full_like(threshold, -40.0))


def test_swaps_that_are_never_refused_are_caught(monkeypatch):
    monkeypatch.setattr(kernels.ParallelTempering, "_swap", swap_everything)
    with pytest.raises(AssertionError):
        check_extended_law("HMC", near)


def small_machine():
    rbm, g = models.RBM(3, 2).double(), gen(3)
    with torch.no_grad():
        for p in rbm.parameters():
            p.copy_(3 * torch.randn(p.shape, generator=g, dtype=D))
    return rbm


@pytest.mark.parametrize("inner", [kernels.Gibbs(), kernels.GibbsWithGradients()])
def test_a_machine_with_hidden_units_is_tempered_exactly(inner):
    """Its free energy at β is not β times its free energy. All 8³ joint states by enumeration, 6 standard
    errors: false-alarm rate below 1e-5."""
    rbm, betas = small_machine(), torch.tensor([1.0, 0.5, 0.2], dtype=D)
    states = rbm.domain.states(dtype=D)
    laws = torch.stack([torch.softmax(-rbm.annealed(b)(states), 0) for b in betas]).detach()
    scaled = torch.softmax(-0.2 * rbm(states), 0).detach()
    assert float((laws[2] - scaled).abs().max()) > 0.02  # so plain scaling would be seen
    n = 40000
    index = torch.multinomial(laws, n, replacement=True, generator=gen(4))
    kernel = kernels.ParallelTempering(inner, betas)
    end = kernel.replicas(run(rbm, kernel, states[index], 4, gen(5)))
    after = (end.detach() @ torch.tensor([4.0, 2.0, 1.0], dtype=D)).long()
    joint = lambda i: torch.nn.functional.one_hot(i[0] * 64 + i[1] * 8 + i[2], 512).double()  # noqa: E731
    d = joint(after) - joint(index)
    z = d.sum(0) / d.square().sum(0).sqrt().clamp(min=1e-300)
    assert float(z.abs().max()) < 6
    singles = torch.stack([torch.bincount(i, minlength=8) for i in after]) / n
    assert float(((singles - laws) / (laws / n).sqrt()).abs().max()) < 6


def test_a_machine_with_as_many_hidden_units_as_replicas_keeps_its_biases():
    past = torch.zeros(3, 1, 4, dtype=D)
    for hidden in (2, 3):  # beside two replicas
        for machine in (models.TemporalRBM(4, hidden, order=1), models.GatedRBM(4, 4, hidden, factors=2)):
            given = machine.double().given(past if isinstance(machine, models.TemporalRBM) else past[:, 0])
            trace = gb.sample(
                given, kernels.ParallelTempering(kernels.Gibbs(), [1.0, 0.5]), past[:, 0], steps=5, generator=gen()
            )
            assert trace.samples.shape == (5, 3, 4)


def test_odd_and_even_pairs_swap_in_turn():
    """On a flat energy every swap is accepted, so positions travel along a known braid."""
    flat = gb.as_energy(lambda x: 0 * x.sum(-1), domains.Real(1))
    kernel = kernels.ParallelTempering(kernels.RandomWalk(scale=1e-9), torch.linspace(1, 0.2, 5, dtype=D))
    start = torch.arange(5.0, dtype=D)[:, None, None].expand(5, 3, 1)
    seen = [run(flat, kernel, start, k, gen()) for k in range(1, 6)]
    got = [kernel.replicas(s)[:, 0, 0].round().long().tolist() for s in seen]
    assert got == [[1, 0, 3, 2, 4], [1, 3, 0, 4, 2], [3, 1, 4, 0, 2], [3, 4, 1, 2, 0], [4, 3, 2, 1, 0]]
    assert (kernel.swap_acceptance(seen[-1]) == 1).all()


def test_single_steps_alternate_too():
    """The turn is part of the state: runs of one step each still swap every pair."""
    kernel = kernels.ParallelTempering(kernels.MALA(step_size=0.8), BETAS)
    target, g = kernel.target(near()), gen(6)
    state = kernel.init(target, torch.zeros(50, 1, dtype=D))
    for _ in range(6):
        state, acceptance, diverged = advance(target, kernel, state, 1, g)
    assert torch.equal(state.tries, torch.full((3,), 3.0, dtype=D))
    assert acceptance.shape == diverged.shape == (50,)


def test_the_cold_chain_crosses_where_the_inner_kernel_cannot():
    """Weights of two modes twelve standard deviations apart. 400 independent chains started in one mode: the
    share of the last positions there is 0.3 ± 5 standard errors."""
    x = torch.full((400, 1), -6.0, dtype=D)
    alone = gb.sample(far_apart(), kernels.HMC(step_size=0.7, leapfrog_steps=5), x, steps=300, generator=gen(7))
    assert (alone.samples < 0).all()
    betas = gb.schedules.geometric(1.0, 0.02, 7)
    inner = kernels.HMC(step_size=(0.7 / betas.sqrt().clamp(min=0.3))[None].double(), leapfrog_steps=5)
    trace = gb.sample(far_apart(), kernels.ParallelTempering(inner, betas), x, steps=400, burn_in=200, generator=gen(8))
    assert trace.samples.shape == (200, 400, 1)
    share = float((trace.last < 0).double().mean())
    assert abs(share - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 400)
    right = trace.samples[trace.samples > 0]
    assert abs(float(right.mean()) - 6) < 0.05
    assert abs(float(right.var()) - 1) < 0.1
    assert 0.5 < float(trace.acceptance) <= 1
    assert (trace.kernel.swap_acceptance(trace.state) > 0.15).all()


@pytest.mark.parametrize("per_chain", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_clamped_entries_stay_in_every_replica(per_chain, dense):
    """The conditional law of a Gaussian: mean 0.9 (x₂ + 2) + 1, variance 0.19, within 5 standard errors."""
    target = correlated(0.9)
    x = torch.tensor([[0.0, -1.0]], dtype=D).expand(4000, 2).clone()
    clamp = torch.tensor([False, True])
    clamp = clamp.expand(4000, 2).clone() if per_chain else clamp
    inner = kernels.HMC(step_size=0.3, leapfrog_steps=4, mass=torch.eye(2) + 0.3 if dense else None)
    kernel = kernels.ParallelTempering(inner, [1.0, 0.5, 0.2])
    trace = gb.sample(target, kernel, x, steps=60, clamp=clamp, keep=False, generator=gen(9))
    assert (trace.kernel.replicas(trace.state)[..., 1] == -1).all()
    free = trace.last[:, 0]
    assert abs(float(free.mean()) - 1.9) < 5 * math.sqrt(0.19 / 4000)
    assert abs(float(free.var()) - 0.19) < 5 * 0.19 * math.sqrt(2 / 4000)


def test_known_energies_are_reused_without_changing_the_chain():
    class Other(gb.Energy):
        """Plain scaling that the kernel cannot recognize."""

        def __init__(self, base, beta):
            super().__init__(base.domain)
            self.base, self.beta = base, beta

        def forward(self, x):
            return self.beta * self.base(x)

    class Same(gb.Energy):
        def forward(self, x):
            return near()(x)

        def tempered(self, beta):
            return Other(self, beta)

    x = torch.linspace(-2, 2, 30, dtype=D)[:, None]
    for inner in (kernels.MALA(step_size=0.8), kernels.RandomWalk(scale=1.0)):
        kernel = kernels.ParallelTempering(inner, BETAS)
        a = gb.sample(near(), kernel, x, steps=40, generator=gen(10)).samples
        b = gb.sample(Same(domains.Real(1)), kernel, x, steps=40, generator=gen(10)).samples
        assert torch.allclose(a, b)


@pytest.mark.parametrize("inner", ["MALA", "NUTS", "guided"])
def test_a_run_does_not_depend_on_how_it_is_cut(inner):
    kernel, x = kernels.ParallelTempering(INNER[inner], BETAS), torch.zeros(7, 1, dtype=D)
    whole = gb.sample(near(), kernel, x, steps=23, generator=gen(3))
    g = gen(3)
    part = gb.sample(near(), kernel, x, steps=4, generator=g)
    rest = gb.sample(near(), kernel, part, steps=19, generator=g)
    assert torch.equal(whole.samples, torch.cat([part.samples, rest.samples]))


def test_unadjusted_kernels_run_and_say_so():
    kernel = kernels.ParallelTempering(kernels.Langevin(step_size=0.3), BETAS)
    assert not kernel.adjusted
    trace = gb.sample(near(), kernel, torch.zeros(20, 1, dtype=D), steps=20, generator=gen())
    assert math.isnan(float(trace.acceptance))
    assert (trace.kernel.swap_acceptance(trace.state) > 0).all()


@pytest.mark.parametrize(
    "betas", [[1.0], [0.9, 0.5], [1.0, 1.0], [1.0, 0.5, 0.7], [1.0, 0.0], [1.0, math.nan], [[1.0, 0.5]]]
)
def test_bad_ladders_are_refused(betas):
    with pytest.raises(ArgumentError, match="betas"):
        kernels.ParallelTempering(kernels.MALA(step_size=0.1), betas)


def test_what_cannot_be_tempered_is_refused():
    inner = kernels.ParallelTempering(kernels.MALA(step_size=0.1), BETAS)
    with pytest.raises(ArgumentError):
        kernels.ParallelTempering(inner, BETAS)

    class Field(gb.ScoreField):
        def score(self, x, *, create_graph=False):
            return -x

    with pytest.raises(CapabilityError):
        gb.sample(Field(domains.Real(1)), inner, torch.zeros(3, 1, dtype=D), steps=1, generator=gen())
    kernel = kernels.ParallelTempering(kernels.Gibbs(), BETAS)
    with pytest.raises(CapabilityError, match="Gibbs"):
        gb.sample(near(), kernel, torch.zeros(3, 1, dtype=D), steps=1, generator=gen())
