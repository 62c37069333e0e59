"""Chains in lockstep: what a device is told beforehand gives the draws of iteration after iteration. Captured graphs are played
by functions here; `test_sampling_cuda.py` holds the graphs themselves."""

import os
from unittest import mock

import pytest
import torch

import gibbsian as gb
from gibbsian import energies, kernels
from gibbsian.fast import compiled
from gibbsian.fast.graphs import Pool
from gibbsian.kernels.base import MoveInputs
from gibbsian.sampling import engines

F64 = torch.float64


class Played:
    """A graph: what was captured is done again at every replay."""

    def __init__(self, function):
        self.function, self.replay = function, function


@pytest.fixture
def played(monkeypatch):
    made = []

    def capture(function, pool):
        made.append(function)
        return Played(function), None

    monkeypatch.setattr(engines, "capture", capture)
    monkeypatch.setattr(engines, "on_side_stream", lambda function, times: [function() for _ in range(times)])
    return made


def broken(function):
    """A compiler that fails for landings."""

    def fails(*arguments):
        raise RuntimeError("PassManager::run failed")

    return fails if function is engines.land else function


def test_what_cannot_be_compiled_is_captured_as_it_is(played):
    g = torch.Generator().manual_seed(0)
    energy, kernel = energies.Gaussian(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64)), kernels.ChEES(0.4, 3.0)
    state = kernel.init(energy, torch.randn(6, 3, generator=g, dtype=F64), None)
    inputs = kernel.draw(energy, state.x, 5, g)
    engine = engines.CapturedFlights(broken, 9, Pool())
    places = engine(energy, kernel, state, inputs)[1]
    torch.testing.assert_close(places, kernel.run(energy, state, inputs)[1], rtol=0, atol=1e-9)
    assert "not all of them compiled" in engine.obstacle
    with pytest.raises(RuntimeError, match="PassManager"):  # what PyTorch itself cannot do is no matter of compilers
        engines.CapturedFlights(lambda function: broken(engines.land), 9, Pool())(_Broken(), kernel, state, inputs)


def test_a_compiler_that_fails_says_why_in_one_line_and_nothing_else(capfd):
    """On a device, compiled once more with loops where Triton fails, and then left to PyTorch; what it prints is dropped."""
    tried = []

    def fails(graph, inputs, patches, table):
        tried.append(patches)
        os.write(2, b"module {\n" * 100)
        raise RuntimeError("An exception occurred in a subprocess:\n\nTraceback (most recent call last):\n  pm.run(mod)\nRuntimeError: PassManager::run failed\n")  # fmt: skip

    def once(graph, inputs, patches, table):
        return graph if patches.get("triton.persistent_reductions") is False else fails(graph, inputs, patches, table)

    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    backend, on_device = compiled._backend, torch.zeros(2, device="meta")
    with mock.patch.object(compiled, "_compile", fails):
        form = compiled.Forgiving(lambda x: x + 1, lambda function: lambda x: backend(graph, [on_device])(x))
        assert form(1) == 2
    assert form.failure == "RuntimeError: PassManager::run failed"
    assert [patches.get("triton.persistent_reductions") for patches in tried] == [None, False]
    with mock.patch.object(compiled, "_compile", once):
        assert compiled.Forgiving(lambda x: x, lambda function: lambda x: backend(graph, [on_device])(x))(1) == 2
    assert capfd.readouterr().err == ""
    with compiled.without_flood():
        os.write(2, b"a warning")
    assert capfd.readouterr().err == "a warning"


class _Broken(energies.Gaussian):
    def __init__(self):
        super().__init__(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64))

    def energy_and_score(self, x):
        raise RuntimeError("PassManager::run failed")


@pytest.mark.parametrize("clamped", [False, True])
def test_turns_and_moves_are_the_iterations(played, clamped):
    """Trajectories of up to 70 leapfrog steps, more than the longest graph; then others of the same kind, and fewer than
    there is room for, of one step each."""
    g = torch.Generator().manual_seed(0)
    energy = energies.Gaussian(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64) + 0.5)
    clamp = torch.tensor([False, True, False]) if clamped else None
    engine = engines.CapturedFlights(lambda function: function, 9, Pool())
    for step_size, length, steps in ((0.25, 20.0, 9), (0.4, 20.0, 9), (0.9, 0.9, 5)):
        kernel = kernels.ChEES(step_size, length, mass=torch.eye(3, dtype=F64) + 0.2)
        kernel = kernel if clamp is None else kernel.clamped(clamp)
        state = kernel.init(energy, torch.randn(6, 3, generator=g, dtype=F64), clamp)
        inputs = kernel.draw(energy, state.x, steps, g)
        plain_state, plain_places, plain_info = kernel.run(energy, state, inputs)
        made_state, places, acceptance, diverged, stats = engine(energy, kernel, state, inputs)
        torch.testing.assert_close(places, plain_places, rtol=0, atol=1e-9)
        torch.testing.assert_close(made_state[:3], plain_state[:3], rtol=0, atol=1e-9)
        torch.testing.assert_close(acceptance, plain_info.acceptance, rtol=0, atol=1e-9)
        assert torch.equal(diverged, plain_info.diverged)
        assert torch.equal(stats["n_steps"], plain_info.leapfrogs)
    assert {leg.moves for leg in engine.graphs} >= {1, 64}
    assert len(played) == len(engine.graphs)  # each captured once
    assert float(acceptance.min()) < 0.9 < float(acceptance.max())


def test_legs_hold_every_move():
    engine = engines.CapturedFlights(lambda function: function, 3, Pool())
    for count in (1, 2, 64, 65, 130):
        legs = engine.legs(count)
        assert sum(leg.moves for leg in legs) == count
        assert all(leg.moves for leg in legs)
        assert [leg.first for leg in legs] == [True] + [False] * (len(legs) - 1)
        assert [leg.last for leg in legs] == [False] * (len(legs) - 1) + [True]
    assert gb.kernels.ChEES(0.1).reaches == (0,)


HELD = torch.tensor([False, True, False])


@pytest.mark.parametrize(
    ("domain", "mass", "clamp"),
    [
        (gb.domains.Real(3), None, None),
        (gb.domains.Box(3, low=-1.0, high=1.0), torch.tensor([0.5, 1.0, 2.0], dtype=F64), None),
        (gb.domains.Real(3), torch.eye(3, dtype=F64) + 0.2, HELD),
    ],
)
@pytest.mark.parametrize("leapfrogs", [3, 6])
def test_parts_of_a_trajectory_are_its_step(domain, mass, clamp, leapfrogs):
    g = torch.Generator().manual_seed(0)
    energy = gb.as_energy(lambda x: x.square().sum(-1) + torch.tanh(x).sum(-1), domain)
    kernel = kernels.HMC(0.6, leapfrogs, mass=mass)
    kernel = kernel if clamp is None else kernel.clamped(clamp)
    state = kernel.init(energy, domain.sample(20, generator=g, dtype=F64), clamp)
    z, threshold, size = (part[0] for part in kernel.draw(energy, state.x, 1, g))
    inputs = MoveInputs(z, threshold, size)
    whole = engines.step_and_tell
    parts = engines.in_parts(lambda function, *numbers: function, kernel.ready(state))
    (a, (_, told)), (b, (_, also)) = (step(energy, kernel, state, inputs) for step in (whole, parts))
    torch.testing.assert_close(a[:3], b[:3], rtol=0, atol=1e-12)
    torch.testing.assert_close(told.log_ratio, also.log_ratio, rtol=0, atol=1e-12)
    assert 0 < float(told.acceptance.mean()) < 1
