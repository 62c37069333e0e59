"""Compiled steps kept on disk: what another process plays is what PyTorch makes, or is not played."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import gibbsian as gb
from gibbsian import domains, kernels
from gibbsian.fast.traced import NamelessError, traced
from gibbsian.sampling import compiled as compiled_module
from gibbsian.sampling import engines

D = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:compiling took:gibbsian.errors.CompileWarning")


class Well(nn.Module):
    """A bowl and a product; a parameter, a number that Python holds, and a tensor made anew at every call."""

    def __init__(self):
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor([1.0, 2.0, 0.5], dtype=D))
        self.mix = nn.Parameter(torch.randn(3, 8, generator=torch.Generator().manual_seed(3), dtype=D))
        self.tilt = 0.5

    def forward(self, x):
        pull = torch.tensor([0.1, 0.2, 0.3], dtype=D)
        return 0.5 * (self.stiffness * x**2).sum(-1) + self.tilt * torch.tanh(x @ self.mix).sum(-1) + (pull * x).sum(-1)


def run(net, kernel, compile, steps=30):
    energy = net if isinstance(net, gb.Energy) else gb.as_energy(net, domains.Real(3))
    x0 = torch.linspace(-1, 1, 12, dtype=D).reshape(4, 3)
    g = torch.Generator().manual_seed(0)
    return gb.sample(energy, kernel, x0, steps=steps, generator=g, compile=compile, progress=False)


def assert_same(net, kernel, trace):
    assert trace.compiled
    assert not trace.compile_note
    torch.testing.assert_close(trace.samples, run(net, kernel, False).samples, rtol=0, atol=1e-9)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gibbsian" / "tapes"


@pytest.fixture
def no_compiler(monkeypatch):
    """From when it is called on, whoever asks for a compiled function fails the test."""

    def forbid():
        def compiled(function):
            raise AssertionError("it compiles")

        monkeypatch.setattr(compiled_module, "compiled", compiled)

    return forbid


def test_what_one_process_compiled_another_plays(folder, no_compiler, monkeypatch):
    kernel = kernels.MALA(0.6)
    first = run(Well(), kernel, True)
    assert_same(Well(), kernel, first)
    assert len(list(folder.iterdir())) == 1
    with monkeypatch.context() as watched:
        watched.setattr(compiled_module, "compiled", lambda function: pytest.fail("it compiles"))
        again = run(Well(), kernel, True)
        assert torch.equal(again.samples, first.samples)
        # values that tensors hold are read where they are now, in place, moved elsewhere, and of another kernel
        net = Well()
        energy = gb.as_energy(net, domains.Real(3))
        run(energy, kernel, True)
        with torch.no_grad():
            net.stiffness.mul_(1.7)
        assert_same(energy, kernel, run(energy, kernel, True))
        net.stiffness.data = net.stiffness.data * 0.4
        assert_same(energy, kernel, run(energy, kernel, True))
        assert_same(energy, kernels.MALA(0.3), run(energy, kernels.MALA(0.3), True))
    # who looks for long is better off with the compiler, which is loaded then
    impatient = gb.as_energy(Well(), domains.Real(3))
    run(impatient, kernel, True)
    monkeypatch.setattr(engines, "_PATIENCE", 0.0)
    asked = []
    with monkeypatch.context() as watched:
        plain = compiled_module.compiled
        watched.setattr(compiled_module, "compiled", lambda function: asked.append(function) or plain(function))
        assert torch.equal(run(impatient, kernel, True).samples, first.samples)
    assert len(asked) == 1
    monkeypatch.setattr(engines, "_PATIENCE", 100.0)
    # a number that Python holds is another step: compiled anew, for the same energy too
    net.tilt = 0.9
    assert_same(energy, kernel, run(energy, kernel, True))
    assert len(list(folder.iterdir())) == 2


def test_a_tape_that_gives_other_numbers_is_not_played(folder):
    kernel = kernels.MALA(0.6)
    run(Well(), kernel, True)
    (made,) = folder.iterdir()
    record = json.loads((made / "tape.json").read_text())
    for spoil in (lambda r: r["deeds"].pop(), lambda r: r["outputs"].reverse(), lambda r: r.update(version=0)):
        other = json.loads(json.dumps(record))
        spoil(other)
        (made / "tape.json").write_text(json.dumps(other))
        assert_same(Well(), kernel, run(Well(), kernel, True))
    (made / record["kernels"][0]).unlink()
    assert_same(Well(), kernel, run(Well(), kernel, True))


@pytest.mark.parametrize(
    ("kernel", "graphs"),
    [
        (kernels.HMC(0.4, 4), 2),  # a move and the end
        (kernels.HMC(0.4, 4, mass=torch.eye(3, dtype=D) + 0.2), 3),
        (kernels.NUTS(0.5, max_depth=2), 1),
        (kernels.NUTS(0.05, max_depth=7), 1),  # for shallow and for deep trees
    ],
    ids=["HMC", "massive HMC", "NUTS", "deep NUTS"],
)
def test_kernels_are_played(kernel, graphs, folder, no_compiler):
    before = counters["stats"]["unique_graphs"]
    trace = run(Well(), kernel, True)
    assert_same(Well(), kernel, trace)
    assert counters["stats"]["unique_graphs"] == before + graphs
    no_compiler()
    assert_same(Well(), kernel, run(Well(), kernel, True))


def test_steps_that_are_not_always_the_same_have_no_name():
    x = torch.linspace(0.1, 1, 6).reshape(2, 3)

    def name(function):
        return traced(lambda state, inputs: ((function(state[0]),), ()), (), (x,), (), ())

    assert name(torch.sin).digest == name(torch.sin).digest
    assert len({name(f).digest for f in (torch.sin, torch.cos, lambda y: y * 2.0, lambda y: y * 3.0)}) == 4
    constants = [torch.full((3,), v) for v in (1.0, 1.0)]
    seen = [name(lambda y, c=c: y + c) for c in constants]
    assert seen[0].digest == seen[1].digest  # values of tensors are read when it is played
    assert [s.externals[0].data_ptr() for s in seen] == [c.data_ptr() for c in constants]
    written = [name(lambda y, v=v: y + torch.tensor([v, 1.0, 2.0])) for v in (0.5, 0.6)]
    assert written[0].digest != written[1].digest
    assert not written[0].externals
    for odd in (
        lambda y: y + torch.rand(3),
        lambda y: y * 2 if y.sum() > 0 else y,
        lambda y: y + torch.from_numpy(np.sin(y.numpy())),
        lambda y: y[y > 0.3].sum() + y,
    ):
        with pytest.raises(NamelessError):
            name(odd)


def test_other_threads_other_name():
    x = torch.ones(3)

    def name():
        return traced(lambda state, inputs: ((state[0].sin(),), ()), (), (x,), (), ()).digest

    before, threads = name(), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert name() != before
    finally:
        torch.set_num_threads(threads)
