"""Compiled chains: the same numbers as eager ones, no recompilation, and reasons where compiling is not possible."""

import gc
import warnings
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import gibbsian as gb
from gibbsian import domains, energies, kernels
from gibbsian.errors import CompileWarning
from gibbsian.fast.compiled import compiled, without_collector
from gibbsian.schedules import linear

pytestmark = pytest.mark.filterwarnings("ignore:compiling took:gibbsian.errors.CompileWarning")


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Bowl(nn.Module):
    """A trainable quadratic bowl with a kink of tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor([1.0, 2.0, 0.5]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * (self.stiffness * x**2).sum(-1) + torch.tanh(x).sum(-1)


CASES = [
    (kernels.RandomWalk(0.8), domains.Real(3)),
    (kernels.Langevin(0.4), domains.Box(3, low=-1.0, high=1.5)),
    (kernels.MALA(0.9, mass=torch.tensor([1.0, 2.0, 0.5])), domains.NonNegative(3)),
    (
        kernels.HMC(0.5, 3, jitter=0.3, mass=torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])),
        domains.Real(3),
    ),
]


@pytest.mark.parametrize(("kernel", "domain"), CASES, ids=lambda v: type(v).__name__)
def test_compiled_and_eager_chains_agree_and_nothing_recompiles(kernel, domain):
    net = Bowl().double()
    energy = gb.as_energy(net, domain)
    x0 = domain.sample(7, generator=gen(), dtype=torch.float64)
    steps = 7

    def run(kernel, compile):
        return gb.sample(energy, kernel, x0, steps=steps, generator=gen(1), compile=compile)

    eager, compiled = run(kernel, False), run(kernel, True)
    assert compiled.compiled
    assert not compiled.compile_note
    assert torch.allclose(eager.samples, compiled.samples, atol=1e-10)
    assert torch.equal(eager.divergences, compiled.divergences)
    assert torch.allclose(eager.acceptance, compiled.acceptance, equal_nan=True)

    schedule = linear(0.2, 0.9, steps).double()
    if isinstance(kernel, kernels.RandomWalk):
        other = replace(kernel, scale=schedule)
    elif isinstance(kernel, kernels.HMC):
        other = replace(kernel, step_size=schedule, mass=1.5 * kernel.mass)
    else:
        other = replace(kernel, step_size=schedule)
    with torch.no_grad():
        net.stiffness.mul_(1.7)
    torch.compiler.set_stance("fail_on_recompile")
    try:
        again = run(other, True)
    finally:
        torch.compiler.set_stance("default")
    assert torch.allclose(run(other, False).samples, again.samples, atol=1e-10)
    assert not torch.allclose(again.samples, compiled.samples)
    assert set(energy.state_dict()) == {"function.stiffness"}


def test_scores_of_odd_images_are_those_of_eager_ones():
    """Gradients of means that end beyond an image are wrong as the compiler takes them; so no network has such means."""
    shape = (1, 5, 4)
    energy = energies.ResidualEnergy(shape, widths=(2, 2), blocks=1).double()
    x = torch.randn(2, *shape, generator=gen(), dtype=torch.float64)
    assert torch.allclose(compiled(lambda x: energy.score(x))(x), energy.score(x), rtol=1e-8, atol=1e-10)
    net = gb.nets.UNet(shape, (2, 2), 1).double()  # takes long to compile
    pools = [n for n in make_fx(net)(x).graph.nodes if "avg_pool2d" in str(n.target)]
    assert pools
    assert not any(True in n.args for n in pools)


def test_trees_of_compiled_chains_are_those_of_eager_ones(monkeypatch):
    """Depths beyond the first compiled form go on in the second; step sizes and masses change, nothing recompiles."""
    monkeypatch.setattr(kernels.NUTS, "reaches", property(lambda self: (1, 2)))
    monkeypatch.setattr(gb.sampling.chains, "chunk_size", lambda kernel, x, compile=False: 16)
    energy = gb.as_energy(Bowl().double(), domains.Box(3, low=-1.0, high=5.0))
    x0 = torch.rand(7, 3, generator=gen(), dtype=torch.float64)
    clamp = torch.rand(7, 3, generator=gen(2)) < 0.3
    kernel = kernels.NUTS(0.4, max_depth=3, mass=torch.tensor([1.0, 2.0, 0.5]))

    def run(kernel, compile):
        return gb.sample(energy, kernel, x0, steps=20, clamp=clamp, generator=gen(1), compile=compile)

    eager, compiled = run(kernel, False), run(kernel, True)
    assert compiled.compiled
    assert not compiled.compile_note
    assert int(eager.stats["tree_depth"].max()) == 3
    other = replace(kernel, step_size=0.3, mass=torch.tensor([2.0, 2.0, 0.7]))
    torch.compiler.set_stance("fail_on_recompile")
    try:
        again = run(other, True)
    finally:
        torch.compiler.set_stance("default")
    for a, b in ((eager, compiled), (run(other, False), again)):
        torch.testing.assert_close(a.samples, b.samples, atol=1e-8, rtol=0)
        assert torch.equal(a.divergences, b.divergences)
        for name in a.stats:
            torch.testing.assert_close(a.stats[name], b.stats[name], atol=1e-8, rtol=0)


def test_clamped_chains_compile():
    energy = gb.as_energy(Bowl(), domains.Real(3))
    clamp = torch.tensor([False, True, False])
    x0 = torch.ones(5, 3)
    kernel = kernels.MALA(0.9)
    a, b = (gb.sample(energy, kernel, x0, steps=20, clamp=clamp, generator=gen(), compile=c) for c in (False, True))
    assert torch.allclose(a.samples, b.samples, atol=1e-5)
    assert torch.equal(b.samples[..., 1], torch.ones(20, 5))


def test_an_energy_that_cannot_be_compiled_runs_eagerly_and_says_why():
    def branching(x):
        return x.square().sum(-1) if float(x.detach().sum()) > 0 else 2 * x.square().sum(-1)

    energy = gb.as_energy(branching, domains.Real(2))
    with pytest.warns(CompileWarning, match="sampling eagerly, because FunctionEnergy cannot be compiled: .+"):
        trace = gb.sample(energy, kernels.Langevin(0.1), torch.ones(3, 2), steps=30, generator=gen(), compile=True)
    assert not trace.compiled
    assert "cannot be compiled" in trace.compile_note
    eager = gb.sample(energy, kernels.Langevin(0.1), torch.ones(3, 2), steps=30, generator=gen())
    assert torch.equal(trace.samples, eager.samples)


@pytest.mark.parametrize(
    "kernel",
    [kernels.ParallelTempering(kernels.NUTS(0.5), [1.0, 0.5]), kernels.Metropolis(lambda x, g: x, symmetric=True)],
)
def test_kernels_that_cannot_be_compiled_say_so(kernel):
    energy = energies.Gaussian(torch.zeros(2), torch.eye(2))
    with pytest.warns(CompileWarning, match="sampling eagerly, because"):
        trace = gb.sample(energy, kernel, torch.zeros(3, 2), steps=3, generator=gen(), compile=True)
    assert not trace.compiled
    assert trace.compile_note


@pytest.mark.filterwarnings("default::gibbsian.errors.CompileWarning")
def test_a_compilation_that_did_not_pay_is_told_once():
    energy = gb.as_energy(lambda x: x.pow(4).sum(-1), domains.Real(1))
    run = lambda: gb.sample(energy, kernels.Langevin(0.1), torch.zeros(2, 1), steps=10, generator=gen(), compile=True)  # noqa: E731
    with pytest.warns(CompileWarning, match=r"compiling took .* s and 10 steps saved"):
        run()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        run()


def test_compiled_chunks_are_forgotten_with_their_energy():
    energy = gb.as_energy(Bowl(), domains.Real(3))
    trace = gb.sample(energy, kernels.MALA(0.9), torch.zeros(4, 3), steps=4, generator=gen(), compile=True)
    assert trace.compiled
    alive = weakref.ref(energy)
    del energy
    gc.collect()
    assert alive() is None


def test_compiled_runs_resume_bit_for_bit():
    energy = gb.as_energy(Bowl(), domains.Real(3))
    kernel, g = kernels.MALA(0.9), gen()
    first = gb.sample(energy, kernel, torch.zeros(4, 3), steps=20, generator=g, compile=True)
    second = gb.sample(energy, kernel, first, steps=20, generator=g, compile=True)
    whole = gb.sample(energy, kernel, torch.zeros(4, 3), steps=40, generator=gen(), compile=True)
    assert torch.equal(torch.cat([first.samples, second.samples]), whole.samples)


def test_a_compiled_short_run_follows_its_clip():
    """The largest slope goes in with every chunk, as the step size does: one graph serves them all."""
    energy, start = energies.Banana().double(), torch.full((4, 2), 3.0, dtype=torch.float64)
    for clip in (0.5, 0.1):
        kernel = kernels.ShortRunLangevin(0.1, 0.01, clip)
        runs = []
        for compile in (True, False):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CompileWarning)
                g = torch.Generator().manual_seed(0)
                runs.append(gb.sample(energy, kernel, start, steps=20, compile=compile, generator=g).samples)
        torch.testing.assert_close(*runs)


def test_the_compiler_prepares_for_attention_only_where_there_may_be_some(monkeypatch, tmp_path):
    from torch._inductor.fx_passes import joint_graph

    asked = []
    monkeypatch.setattr(joint_graph, "lazy_init", lambda *given: asked.append(given))
    with torch.compiler.config.patch(cache_key_tag=str(tmp_path)):  # nothing is found again
        compiled(lambda x: x.exp() - 1)(torch.rand(3, 4))
        assert not asked
        compiled(lambda x: torch.softmax(x, 1) - 1)(torch.rand(3, 4))
        assert asked


def test_the_collector_is_left_as_it_was():
    for enabled in (False, True):
        (gc.enable if enabled else gc.disable)()
        try:
            with without_collector():
                assert not gc.isenabled()
            assert gc.isenabled() == enabled
        finally:
            gc.enable()
