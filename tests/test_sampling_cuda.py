"""Compiled chains on a GPU: steps compiled, chunks of them captured, and the numbers of eager chains."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import gibbsian as gb
from gibbsian import domains, energies, kernels, models
from gibbsian.errors import CompileWarning
from gibbsian.fast.graphs import CapturedChunk

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore:compiling took:gibbsian.errors.CompileWarning"),
]

F64 = torch.float64
STEPS = 230  # two captured chunks of a hundred, and a rest that is compiled alone


def gen(seed=0):
    return torch.Generator("cuda").manual_seed(seed)


class Bowl(nn.Module):
    """A trainable quadratic bowl with a kink of tanh."""

    def __init__(self):
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor([1.0, 2.0, 0.5], dtype=F64, device="cuda"))

    def forward(self, x):
        return 0.5 * (self.stiffness * x**2).sum(-1) + torch.tanh(x).sum(-1)


def start(domain, chains=7):
    return domain.sample(chains, generator=gen(), dtype=F64)


def run(energy, kernel, x0, compile, steps=STEPS, seed=1, **how):
    return gb.sample(energy, kernel, x0, steps=steps, generator=gen(seed), compile=compile, progress=False, **how)


def assert_same_chains(eager, compiled):
    """Up to the last digits, which fused kernels round otherwise; no decision may come out another way."""
    assert compiled.compiled
    assert not compiled.compile_note
    torch.testing.assert_close(compiled.samples, eager.samples, rtol=0, atol=1e-9)
    torch.testing.assert_close(compiled.last, eager.last, rtol=0, atol=1e-9)
    torch.testing.assert_close(compiled.acceptance, eager.acceptance, equal_nan=True, rtol=0, atol=1e-9)
    assert torch.equal(compiled.divergences, eager.divergences)


@pytest.fixture
def captures(monkeypatch):
    """How many chunks were captured so far."""
    made, plain = [], CapturedChunk._capture

    def counted(self, *arguments):
        made.append(self)
        return plain(self, *arguments)

    monkeypatch.setattr(CapturedChunk, "_capture", counted)
    return made


KERNELS = {
    "RandomWalk": (kernels.RandomWalk(0.8), domains.Real(3)),
    "MALA": (kernels.MALA(0.9), domains.NonNegative(3)),
    "HMC": (kernels.HMC(0.5, 3, jitter=0.3), domains.Real(3)),
    "Langevin": (kernels.Langevin(0.4), domains.Box(3, low=-1.0, high=1.5)),
    "UnderdampedLangevin": (kernels.UnderdampedLangevin(0.4), domains.Real(3)),
    "MCLMC": (kernels.MCLMC(0.4, 2.0), domains.Real(3)),
    "MAMS": (kernels.MAMS(0.6, 2), domains.Box(3, low=-1.0, high=1.5)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_captured_chains_are_eager_chains(name, captures):
    kernel, domain = KERNELS[name]
    energy = gb.as_energy(Bowl(), domain)
    x0 = start(domain)
    assert_same_chains(run(energy, kernel, x0, False), run(energy, kernel, x0, True))
    assert len(captures) == 1
    assert set(energy.state_dict()) == {"function.stiffness"}


@pytest.mark.parametrize("name", KERNELS)
def test_other_step_sizes_and_parameters_take_effect_in_the_same_graph(name, captures):
    kernel, domain = KERNELS[name]
    net = Bowl()
    energy, x0 = gb.as_energy(net, domain), start(domain)
    before = run(energy, kernel, x0, True)
    size = 0.3 * torch.linspace(0.5, 1.5, STEPS, dtype=F64, device="cuda")
    other = replace(kernel, scale=size) if name == "RandomWalk" else replace(kernel, step_size=size)
    with torch.no_grad():
        net.stiffness.mul_(1.7)
    torch.compiler.set_stance("fail_on_recompile")
    try:
        after = run(energy, other, x0, True)
    finally:
        torch.compiler.set_stance("default")
    assert len(captures) == 1
    assert_same_chains(run(energy, other, x0, False), after)
    assert not torch.allclose(after.samples, before.samples)


@pytest.mark.parametrize("kernel", [kernels.ChEES(0.5, 20.0), kernels.NUTS(0.5)], ids=["ChEES", "NUTS"])
def test_captured_machines_are_eager_ones(kernel):
    """Trajectories of all lengths, of a second kernel too, for which nothing is compiled anew."""
    net = Bowl()
    energy, x0 = gb.as_energy(net, domains.Real(3)), start(domains.Real(3))
    few = 20  # trajectories are chaotic after that
    assert_same_chains(run(energy, kernel, x0, False, few), run(energy, kernel, x0, True, few))
    with torch.no_grad():
        net.stiffness.mul_(1.7)
    other = replace(kernel, step_size=0.3)
    torch.compiler.set_stance("fail_on_recompile")
    try:
        compiled = run(energy, other, x0, True, few)
    finally:
        torch.compiler.set_stance("default")
    assert_same_chains(run(energy, other, x0, False, few), compiled)


def test_another_mass_is_captured_anew_but_not_compiled(captures):
    energy, x0 = gb.as_energy(Bowl(), domains.Real(3)), start(domains.Real(3))
    mass = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=F64, device="cuda")
    kernel = kernels.HMC(0.5, 3, mass=mass)
    assert_same_chains(run(energy, kernel, x0, False), run(energy, kernel, x0, True))
    heavier = replace(kernel, mass=3 * mass)
    torch.compiler.set_stance("fail_on_recompile")
    try:
        compiled = run(energy, heavier, x0, True)
    finally:
        torch.compiler.set_stance("default")
    assert_same_chains(run(energy, heavier, x0, False), compiled)
    assert len(captures) == 2


def test_parameters_that_moved_elsewhere_are_followed():
    """A graph holds addresses; those of a model whose parameters were replaced are not read any more."""
    net = Bowl()
    step = 0.5  # the drift contracts at three times the stiffness too; one that expands would magnify the last digits
    energy, kernel, x0 = gb.as_energy(net, domains.Real(3)), kernels.MALA(step), start(domains.Real(3))
    run(energy, kernel, x0, True)
    old = net.stiffness.data  # held, so that the new ones cannot come to lie in its place
    net.stiffness.data = 3 * old
    assert_same_chains(run(energy, kernel, x0, False), run(energy, kernel, x0, True))


@pytest.mark.parametrize("clamped", [False, True])
def test_captured_gibbs_sweeps_are_eager_ones_to_the_bit(clamped, captures):
    rbm = models.RBM(12, 8).double().cuda()
    with torch.no_grad():
        rbm.weight.copy_(torch.randn(12, 8, generator=gen(3), dtype=F64, device="cuda"))
    x0 = start(rbm.domain, 50)
    clamp = torch.arange(12, device="cuda") < 4 if clamped else None
    eager, compiled = (run(rbm, kernels.Gibbs(), x0, compile, clamp=clamp) for compile in (False, True))
    assert compiled.compiled
    assert torch.equal(eager.samples, compiled.samples)
    with torch.no_grad():
        rbm.visible_bias.add_(1.0)
    again = run(rbm, kernels.Gibbs(), x0, True, clamp=clamp)
    assert torch.equal(run(rbm, kernels.Gibbs(), x0, False, clamp=clamp).samples, again.samples)
    assert not torch.equal(again.samples, compiled.samples)
    assert len(captures) == 1
    if clamped:
        assert torch.equal(again.samples[..., :4], x0[:, :4].expand(STEPS, -1, -1))


@pytest.mark.parametrize("kernel", [kernels.MALA(0.9), kernels.Langevin(0.4)], ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("per_chain", [False, True])
def test_clamped_entries_are_held(kernel, per_chain):
    energy, x0 = gb.as_energy(Bowl(), domains.Real(3)), start(domains.Real(3))
    clamp = torch.tensor([False, True, False], device="cuda")
    if per_chain:
        clamp = torch.rand(7, 3, generator=gen(5), device="cuda") < 0.4
        clamp[:, 0] = False
    compiled = run(energy, kernel, x0, True, clamp=clamp)
    assert_same_chains(run(energy, kernel, x0, False, clamp=clamp), compiled)
    held = clamp.expand(7, 3)
    assert torch.equal(compiled.samples[:, held], x0[held].expand(STEPS, -1))


def test_streamed_statistics_and_thinned_draws_are_those_of_eager_chains():
    energy, kernel, x0 = gb.as_energy(Bowl(), domains.Real(3)), kernels.HMC(0.5, 3), start(domains.Real(3))
    eager, compiled = (run(energy, kernel, x0, c, keep=False, burn_in=37, thin=3) for c in (False, True))
    assert compiled.samples is None
    assert compiled.compiled
    torch.testing.assert_close(compiled.last, eager.last, rtol=0, atol=1e-9)
    for name, value in eager.summary().items():  # two draws that all but agree may change ranks: a jump of 1/draws
        rtol = 1e-7 if name in ("mean", "sd", "mcse") else 1e-2
        torch.testing.assert_close(compiled.summary()[name], value, rtol=rtol, atol=1e-9)
    assert_same_chains(*(run(energy, kernel, x0, c, burn_in=37, thin=3) for c in (False, True)))


def test_a_trace_keeps_its_numbers_when_the_graph_runs_again(captures):
    energy, kernel, x0 = gb.as_energy(Bowl(), domains.Real(3)), kernels.MALA(0.9), start(domains.Real(3))
    first = run(energy, kernel, x0, True, steps=200)
    kept = [t.clone() for t in (first.samples, first.last, first.state.energy, first.state.score)]
    second = run(energy, kernel, first, True, steps=200, seed=2)
    assert len(captures) == 1
    for now, then in zip((first.samples, first.last, first.state.energy, first.state.score), kept, strict=True):
        assert torch.equal(now, then)
    assert second.steps == 400
    assert_same_chains(run(energy, kernel, first, False, steps=200, seed=2), second)


def test_replicas_are_captured_with_their_swaps():
    target = energies.GaussianMixture(torch.tensor([[-2.0], [2.0]]), torch.full((2, 1, 1), 0.25)).double().cuda()
    kernel = kernels.ParallelTempering(kernels.HMC(0.3, 3), [1.0, 0.5, 0.2])
    eager, compiled = (run(target, kernel, start(domains.Real(1)), compile) for compile in (False, True))
    assert_same_chains(eager, compiled)
    torch.testing.assert_close(compiled.state.swaps, eager.state.swaps)


def test_an_energy_that_cannot_be_compiled_runs_eagerly_and_says_why():
    def branching(x: Tensor) -> Tensor:
        return x.square().sum(-1) if float(x.detach().sum()) > 0 else 2 * x.square().sum(-1)

    energy, x0 = gb.as_energy(branching, domains.Real(2)), start(domains.Real(2))
    with pytest.warns(CompileWarning, match="sampling eagerly, because FunctionEnergy cannot be compiled: .+"):
        trace = run(energy, kernels.Langevin(0.1), x0, True)
    assert not trace.compiled
    assert "cannot be compiled" in trace.compile_note
    assert torch.equal(trace.samples, run(energy, kernels.Langevin(0.1), x0, False).samples)


@pytest.mark.parametrize(
    "kernel", [kernels.MALA(0.5), kernels.ChEES(0.5, 4.0), kernels.NUTS(0.5)], ids=lambda k: type(k).__name__
)
def test_an_energy_that_cannot_be_compiled_but_captured_is_captured_as_it_is(kernel):
    @torch.compiler.disable
    def hidden(x: Tensor) -> Tensor:
        return 0.5 * x.square().sum(-1)

    energy, x0 = gb.as_energy(hidden, domains.Real(3)), start(domains.Real(3))
    steps = 20 if isinstance(kernel, kernels.NUTS | kernels.ChEES) else STEPS
    eager, captured = (run(energy, kernel, x0, c, steps) for c in (False, True))
    assert captured.compiled
    assert "captured but not all of them compiled" in captured.compile_note
    torch.testing.assert_close(captured.samples, eager.samples, rtol=0, atol=1e-9)


def test_an_energy_that_waits_for_the_device_cannot_be_captured_and_says_so():
    """It compiles, as an operator that nobody looks into, but a graph cannot hold the wait inside it."""

    @torch.library.custom_op("gibbsian_tests::waiting", mutates_args=())
    def waiting(x: Tensor) -> Tensor:
        return x.square().sum(-1) * (1.0 if float(x.sum()) > -1e9 else 2.0)

    @waiting.register_fake
    def _(x: Tensor) -> Tensor:
        return x.new_empty(x.shape[:-1])

    energy, x0 = gb.as_energy(waiting, domains.Real(2)), start(domains.Real(2))
    with pytest.warns(CompileWarning, match="sampling eagerly, because .+ cannot be compiled: .+"):
        trace = run(energy, kernels.RandomWalk(0.5), x0, True)
    assert not trace.compiled
    assert torch.equal(trace.samples, run(energy, kernels.RandomWalk(0.5), x0, False).samples)
    with warnings.catch_warnings():  # the reason is known by now, and the device is well
        warnings.simplefilter("error", CompileWarning)
        again = run(energy, kernels.RandomWalk(0.5), x0, True)
    assert "cannot be compiled" in again.compile_note
    fine = gb.as_energy(Bowl(), domains.Real(3))
    assert run(fine, kernels.RandomWalk(0.5), start(domains.Real(3)), True).compiled


def test_hopfield_networks_recall_in_random_order():
    network = models.Hopfield(6)
    network.store(torch.tensor([[1.0, 1, 1, -1, -1, -1]]))
    network = network.cuda()
    cue = torch.tensor([[1.0, 1, 1, -1, -1, 1]], device="cuda")
    assert network.recall(cue, generator=gen()).x.tolist() == [[1, 1, 1, -1, -1, -1]]
