"""Networks as compiled programs inside training steps: the same numbers, and the network itself where that cannot be."""

from contextlib import nullcontext

import pytest
import torch
from objective_oracles import F64, gen
from torch._dynamo.backends.debugging import aot_eager

import gibbsian as gb
from gibbsian import domains, energies, kernels, models, nets, objectives
from gibbsian.energies.bases import Factorized
from gibbsian.fast import compiled, networks
from gibbsian.fast.compiled import Forgiving, weak_cache
from gibbsian.fast.networks import compiled_networks, networks_of
from gibbsian.nets import conv
from gibbsian.nets.layers import standardized_once
from gibbsian.objectives import chains
from gibbsian.objectives.base import Step
from gibbsian.sampling.chunks import one_step
from gibbsian.training.optimize import Updates
from gibbsian.training.run import Settings


@pytest.fixture
def programs(monkeypatch):
    """All of the compiler but its machine code, which takes most of the time, for networks that nobody has seen."""
    monkeypatch.setattr(compiled, "_backend", aot_eager)
    monkeypatch.setattr(networks, "_program", networks.weak_cache(lambda net: networks.Network()))


def joint():
    net = nets.ResidualNet((1, 6, 6), (4, 6), 1, outputs=3, standardize=True, generator=gen(1))
    for block in (block for stage in net.stages for block in stage):
        block.scale.data.fill_(0.3)
    return models.JointEnergy(net, domains.Box((1, 6, 6), -3.0, 3.0)).to(F64)


def corrected():
    base, classifier = (nets.ResidualNet((1, 6, 6), (4, 6), 1, outputs=3, generator=gen(k)) for k in (1, 5))
    return models.JointEnergy(nets.Corrected(base, classifier, 0.1), domains.Box((1, 6, 6), -3.0, 3.0)).to(F64)


def spared(chains):
    """The chains train the base alone, cross-entropy both networks."""
    density = objectives.Sparing(objectives.FirstRows(objectives.Blurred(chains, 0.1), 6), ["classifier"])
    return objectives.Weighted([objectives.CrossEntropy(), density], [1.0, 0.5])


def rows():
    return torch.randn(12, 1, 6, 6, generator=gen(2), dtype=F64).clamp(-3, 3), torch.arange(12) % 3


def whole(chains):
    """Chains and cross-entropy train one network."""
    return objectives.Weighted([objectives.CrossEntropy(), objectives.Blurred(chains, 0.1)], [1.0, 0.5])


def gradients(energy, *, fuse, of=whole):
    """Those of a joint likelihood, chains and all, in two steps of training."""
    objective = of(
        objectives.PersistentContrastiveDivergence(kernels.ShortRunLangevin(0.5, 0.01), steps=3, chains=6, penalty=0.01)
    )
    state, found, seen = objective.init(energy, rows(), gen(3)), [], []
    for seed in range(2):
        if fuse:
            with compiled_networks(energy) as seen, standardized_once(energy):
                loss = objective.loss(energy, rows(), state, gen(seed), Step())
        else:
            with standardized_once(energy):
                loss = objective.loss(energy, rows(), state, gen(seed), Step())
        loss.value.backward()
        state = loss.state
        found += [p.grad.clone() for p in energy.parameters()]
        energy.zero_grad()
    return found, seen


def test_compiled_networks_give_the_gradients_of_plain_ones(programs):
    (plain, _), (made, seen) = (gradients(joint(), fuse=fuse) for fuse in (False, True))
    assert [one.failures for one in seen] == [set()]
    assert len(seen[0].programs) == 3  # moved images, chains on their way, chains where they ended
    for one, other in zip(made, plain, strict=True):
        torch.testing.assert_close(one, other)
        assert float(one.abs().sum()) > 0


def test_compiled_networks_of_which_a_part_is_spared_give_the_gradients_of_plain_ones(programs):
    """Programs know which weights are trained in a pass: those with a gradient for the classifier are not used where it is spared."""
    (plain, _), (made, seen) = (gradients(corrected(), fuse=fuse, of=spared) for fuse in (False, True))
    assert [one.failures for one in seen] == [set()]
    for one, other in zip(made, plain, strict=True):
        torch.testing.assert_close(one, other)
        assert float(one.abs().sum()) > 0


def test_in_half_precision_programs_have_weights_that_were_cast_once(programs):
    """As all recipes that fuse train: chains meet weights in half precision, and gradients those in single."""
    found = []
    for fuse in (False, True):
        energy = joint().float()
        chains = objectives.PersistentContrastiveDivergence(kernels.ShortRunLangevin(0.5, 0.01), steps=3, chains=6)
        batch = rows()[0].float()
        state = chains.init(energy, batch, gen(3))
        with compiled_networks(energy) if fuse else nullcontext(()) as seen, standardized_once(energy):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = chains.loss(energy, batch, state, gen(4), Step())
            loss.value.backward()
        found.append(torch.cat([p.grad.flatten() for p in energy.parameters() if p.grad is not None]))
    assert [one.failures for one in seen] == [set()]
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 0.05


class Bent(torch.autograd.Function):
    """The values as they are, and slopes times a number."""

    @staticmethod
    def forward(ctx, y, factor):
        ctx.factor = factor
        return y.clone()

    @staticmethod
    def backward(ctx, outer):
        return ctx.factor * outer, None


def test_a_program_that_is_wrong_is_not_used(programs, monkeypatch):
    """In values, or in slopes alone: the compiler has been seen to get either wrong."""
    for wrong in (lambda y: 1.1 * y, lambda y: Bent.apply(y, 1.1)):
        monkeypatch.setattr(networks, "compiled", lambda call, wrong=wrong: lambda *given: wrong(call(*given)))
        (plain, _), (made, seen) = (gradients(joint(), fuse=fuse) for fuse in (False, True))
        assert any("away from PyTorch's" in failure for failure in seen[0].failures)
        for one, other in zip(made, plain, strict=True):
            torch.testing.assert_close(one, other)


def wrong_slopes(branch):
    """A compiler that bends what flows back through a part of a network, and leaves values as they are."""

    def compiler(call):
        def run(net, *given):
            handle = branch(net).register_forward_hook(lambda part, inner, outer: Bent.apply(outer, -3.0))
            try:
                return call(net, *given)
            finally:
                handle.remove()

        return run

    return compiler


@pytest.mark.parametrize("case", ["an offset", "a branch that begins at zero"])
def test_slopes_are_compared_where_little_of_them_shows(case, programs, monkeypatch):
    """Values of a thousand hide slopes, and so does a scale of zero."""
    if case == "an offset":
        net, x = torch.nn.Sequential(torch.nn.Linear(3, 1)).to(F64), torch.randn(5, 3, dtype=F64, generator=gen())
        net[0].bias.data.fill_(1000.0)
        monkeypatch.setattr(networks, "compiled", wrong_slopes(lambda net: net[0]))
    else:
        net = nets.ResidualNet((1, 6, 6), (4,), 1, standardize=True, generator=gen(1)).to(F64)
        monkeypatch.setattr(networks, "compiled", wrong_slopes(lambda net: net.stages[0][0].second))
        x = rows()[0]
    energy = energies.NeuralEnergy(net, domains.Real(tuple(x.shape[1:])))
    truth = energy.score(x)
    with compiled_networks(energy) as seen:
        torch.testing.assert_close(energy.score(x), truth)
    assert any("away from" in failure for failure in seen[0].failures)


class Tuples(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x, scale=1.0):
        return scale * self.layer(x), x


class Odd(gb.Energy):
    """Calls its networks in ways that programs are not made for, and one of them twice."""

    def __init__(self):
        super().__init__(domains.Real(2))
        self.pair, self.plain = Tuples().to(F64), torch.nn.Linear(2, 1).to(F64)
        self.inner = energies.NeuralEnergy(self.plain, domains.Real(2))

    def forward(self, x):
        first, again = self.pair(x), self.pair(x, scale=2.0)
        return (first[0] + again[0] + self.plain(x))[:, 0] + self.inner(x)


def test_networks_that_are_called_in_odd_ways_are_called_as_they_are(programs):
    energy, x = Odd(), torch.randn(5, 2, dtype=F64, generator=gen())
    truth = energy(x)
    with compiled_networks(energy) as seen, compiled_networks(energy) as inner:  # nobody is harmed by asking twice
        torch.testing.assert_close(energy(x), truth)
    assert (len(seen), len(inner)) == (2, 0)
    assert set.union(*(one.failures for one in seen)) == {"its output is no tensor"}
    energy.plain.compile(backend="eager")
    own = energy.plain._compiled_call_impl
    with compiled_networks(energy) as seen:
        torch.testing.assert_close(energy(x), truth)
    assert len(seen) == 1
    assert energy.plain._compiled_call_impl is own  # what a user compiled stays


def test_every_kind_of_input_has_a_program_of_its_own_and_buffers_stay(programs):
    """Sizes without end, precision, layout, and a power iteration that moves at every call."""
    net = nets.ResidualNet((1, 6, 6), (4,), 1, spectral_norm=True, generator=gen(1)).to(F64)
    twin = nets.ResidualNet((1, 6, 6), (4,), 1, spectral_norm=True, generator=gen(1)).to(F64)
    other = energies.NeuralEnergy(twin, domains.Real((1, 6, 6)))
    energy, x = energies.NeuralEnergy(net, domains.Real((1, 6, 6))), rows()[0]
    with compiled_networks(energy) as seen:
        for n in range(2, 12):  # the compiler itself gives up after eight
            torch.testing.assert_close(energy(x[:n]), other(x[:n]))
    assert len(seen[0].programs) == 10
    assert not seen[0].failures
    for one, buffer in zip(net.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, buffer)


def test_parts_of_larger_programs_are_not_programs_of_their_own(programs):
    """Compiled steps of chains and scores that are differentiated once more have the network in them."""
    energy, (x, _) = joint(), rows()
    with compiled_networks(energy) as seen:
        slopes = torch.func.grad(lambda y: energy(y).sum())(x)
        whole = compiled.compiled(lambda y: energy(y).sum())(x)
    assert not seen[0].programs
    torch.testing.assert_close(slopes, -energy.score(x))
    torch.testing.assert_close(whole, energy(x).sum())


def test_networks_are_the_outermost_parts_that_are_no_energies():
    domain = domains.Binary((1, 8, 8))
    tilted = energies.TiltedEnergy(Factorized(domain, torch.zeros(1, 8, 8)), energies.ResidualEnergy(domain, (4,)))
    assert [type(net) for net in networks_of(tilted)] == [nets.ResidualNet]
    assert [type(net) for net in networks_of(tilted + 2 * tilted)] == [nets.ResidualNet]
    assert networks_of(gb.energies.Gaussian(torch.zeros(2), torch.eye(2))) == []
    with pytest.raises(ZeroDivisionError), compiled_networks(tilted):
        raise ZeroDivisionError
    assert networks_of(tilted)[0]._compiled_call_impl is None  # whatever happens


def trained(energy, objective, data, **engine):
    engine = gb.training.Engine(compile=bool(engine), **engine)
    return gb.fit(energy.cuda(), objective, data, steps=40, batch_size=12, engine=engine, progress=False).energy


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["joint", "spared", "matching", "sliced", "denoising"])
def test_fused_steps_are_the_eager_ones(name, recwarn):
    """The machine code and the graph of it too; principles that differentiate twice say that they go without, and of those whose
    networks are gone through by Taylor's rules nothing could be compiled."""
    chains = objectives.PersistentContrastiveDivergence(kernels.ShortRunLangevin(0.5, 0.01), steps=3, chains=6)
    objective = {
        "joint": whole(chains),
        "spared": spared(chains),
        "matching": objectives.EnergyMatching(flow_steps=20, steps=3, pairing="sinkhorn"),
        "sliced": objectives.SlicedScoreMatching(),
        "denoising": objectives.DenoisingScoreMatching(0.3),
    }[name]
    plane = lambda: energies.MLPEnergy(2, (16, 16), confine=0.1).to(F64)  # noqa: E731
    make = {"joint": joint, "spared": corrected}.get(name, plane)
    data = (
        tuple(t.repeat(4, *[1] * (t.dim() - 1)).cuda() for t in rows())
        if name in ("joint", "spared")
        else torch.randn(48, 2, generator=gen(4), dtype=F64).cuda()
    )
    eager, fused = trained(make(), objective, data), trained(make(), objective, data, fuse=True)
    said = [str(w.message) for w in recwarn if issubclass(w.category, gb.errors.CompileWarning)]
    assert len(said) == (name == "denoising"), said
    assert all("networks are not compiled" in text for text in said)
    for one, other in zip(fused.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("channels", "side", "size", "stride"), [(1, 28, 3, 1), (3, 9, 3, 1), (1, 28, 5, 2), (2, 7, 3, 2)]
)
def test_a_convolution_as_a_product_is_the_convolution(channels, side, size, stride):
    x = torch.randn(3, channels, side, side + 1, generator=gen(0), dtype=F64, requires_grad=True)
    w = torch.randn(4, channels, size, size, generator=gen(1), dtype=F64, requires_grad=True)
    b = torch.randn(4, generator=gen(2), dtype=F64, requires_grad=True)
    usual = torch.nn.functional.conv2d(x, w, b, stride, size // 2)
    made = conv.conv_by_product(x, w, b, stride, size // 2)
    assert made.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(made, usual)
    for one, other in zip(*(torch.autograd.grad(y.sin().sum(), (x, w, b)) for y in (made, usual)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["residual", "strided", "standardized", "plain"])
def test_networks_whose_first_layer_is_a_product_are_the_same(kind, programs, monkeypatch):
    make = {
        "residual": lambda: nets.ResidualNet((1, 8, 8), (4, 6), 1, outputs=3, pool=False, generator=gen(1)),
        "strided": lambda: nets.ResidualNet((1, 8, 8), (4, 6), 1, outputs=3, stride=2, generator=gen(1)),
        "standardized": lambda: nets.ResidualNet((3, 8, 8), (4, 6), 1, outputs=3, standardize=True, generator=gen(1)),
        "plain": lambda: nets.ConvNet((1, 8, 8), (4, 6), 5, outputs=3, generator=gen(1)),
    }[kind]
    net = make().to(F64)
    x = torch.randn(5, 3 if kind == "standardized" else 1, 8, 8, generator=gen(2), dtype=F64, requires_grad=True)
    called, plain = [], conv.conv_by_product
    monkeypatch.setattr(conv, "conv_by_product", lambda *a: called.append(1) or plain(*a))
    before = net(x)
    assert not called  # on the CPU
    monkeypatch.setattr(conv, "_patchwise", lambda layer, x: layer.weight[0].numel() <= conv._FEW)
    after = net(x)
    assert called
    torch.testing.assert_close(after, before)
    g, h = (torch.autograd.grad(y.sin().sum(), [x, *net.parameters()]) for y in (before, after))
    torch.testing.assert_close(h, g)


def test_moments_of_an_optimizer_are_laid_out_as_parameters_are():
    settings = Settings(10, 4, 0.01, None, None, seed=0, ema=None, clip=None, guard=None)

    def updates(layout):
        energy = joint().to(memory_format=layout)
        parameters = list(energy.parameters())
        return energy, Updates(settings, parameters, len(parameters))

    energy, one = updates(torch.contiguous_format)
    energy(rows()[0]).sum().backward()
    one.optimizer.step()
    _, other = updates(torch.channels_last)
    other.load(one.optimizer.state_dict())
    pairs = list(zip(one.optimizer.state.items(), other.optimizer.state.items(), strict=True))
    assert any(p.stride() != q.stride() for (p, _), (q, _) in pairs)
    for (_, before), (q, after) in pairs:
        for name in ("exp_avg", "exp_avg_sq"):
            assert after[name].stride() == q.stride()
            torch.testing.assert_close(after[name], before[name])


@pytest.mark.parametrize("bound", [False, True])
def test_energies_of_data_and_chains_in_one_pass_are_those_of_two(bound, programs, monkeypatch):
    monkeypatch.setattr(chains, "fused_step", weak_cache(lambda energy, *key: Forgiving(one_step, compiled.compiled)))
    how = {"classes": 3, "buffer": 36} if bound else {"chains": 7}
    pcd = objectives.PersistentContrastiveDivergence(
        kernels.ShortRunLangevin(0.5, 0.01), steps=2, penalty=0.01, reinit_far=0.5, **how
    )
    found, passes = [], []
    for fused in (False, True):
        energy = joint()
        count = energy.net.register_forward_hook(
            lambda net, args, out, fused=fused: passes.append((fused, len(args[0])))
        )
        loss = pcd.loss(energy, rows(), pcd.init(energy, rows(), gen(3)), gen(4), Step(chains=fused))
        loss.value.backward()
        count.remove()
        found.append([loss.value.detach(), loss.state.x, *(p.grad for p in energy.parameters())])
    torch.testing.assert_close(found[1], found[0])
    assert (True, 12 + (12 if bound else 7)) in passes
    assert (False, 12 + (12 if bound else 7)) not in passes


def test_only_plain_convolutions_are_products():
    of = lambda *args, **how: torch.nn.Conv2d(2, 4, *args, **how)  # noqa: E731
    assert all(map(conv._plain, [of(3, padding=1), of(5, stride=2, padding=2), of(1)]))
    others = [of((3, 1)), of(3, stride=(1, 2)), of(3, padding=(1, 0)), of(3, padding="same"), of(3, dilation=2)]
    others += [of(3, groups=2), of(3, padding=1, padding_mode="circular"), of(3)]
    others[-1].register_forward_hook(lambda *_: None)
    assert not any(map(conv._plain, others))
    made = torch.compile(lambda x: x + conv._plain(others[0]) + 2 * conv._plain(of3), fullgraph=True, backend="eager")
    of3 = of(3, padding=1)
    assert float(made(torch.zeros(()))) == 2
