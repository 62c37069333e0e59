"""Chains in lockstep: what a device is told beforehand gives the draws of iteration after iteration. Captured graphs are played
by functions here; `test_sampling_cuda.py` holds the graphs themselves."""

import pytest
import torch

import gibbsian as gb
from gibbsian import energies, kernels
from gibbsian.fast.graphs import Pool
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
    """A compiler that fails for turns."""

    def fails(*arguments):
        raise RuntimeError("PassManager::run failed")

    return fails if function is engines.turn else function


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
        engines.CapturedFlights(lambda function: broken(engines.turn), 9, Pool())(_Broken(), kernel, state, inputs)


class _Broken(energies.Gaussian):
    def __init__(self):
        super().__init__(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64))

    def energy_and_score(self, x):
        raise RuntimeError("PassManager::run failed")


@pytest.mark.parametrize("clamped", [False, True])
def test_turns_and_moves_are_the_iterations(played, clamped):
    """Trajectories of 1 to 70 leapfrog steps, more than the longest graph; then others of the same kind, and fewer than
    there is room for."""
    g = torch.Generator().manual_seed(0)
    energy = energies.Gaussian(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64) + 0.5)
    clamp = torch.tensor([False, True, False]) if clamped else None
    engine = engines.CapturedFlights(lambda function: function, 9, Pool())
    for step_size, steps in ((0.25, 9), (0.4, 9), (0.9, 5)):
        kernel = kernels.ChEES(step_size, 20.0, mass=torch.eye(3, dtype=F64) + 0.2)
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
    assert sorted(engine.graphs) == [0, 1, 2, 4, 8, 16, 32, 64]
    assert len(played) == 8  # each captured once
    assert float(acceptance.min()) < 0.9 < float(acceptance.max())


def test_the_plan_holds_every_move():
    engine = engines.CapturedFlights(lambda function: function, 3, Pool())
    for counts in ([1], [2, 1, 70], [130, 65, 64]):
        plan = engine._plan(counts)
        assert plan.count(0) == len(counts)
        assert sum(size or 1 for size in plan) == sum(counts) + 1  # the last turn begins what nobody asks for
    assert gb.kernels.ChEES(0.1).reaches == (0,)
