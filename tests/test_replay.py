"""Compiled steps replayed in a C loop: the same numbers as ordinary calls, and a reason where that cannot be done."""

import pytest
import torch
from torch._dynamo.utils import counters

from gibbsian.fast import recorded
from gibbsian.fast.compiled import compiled
from gibbsian.fast.recorded import Recorder, ReplayError
from gibbsian.fast.replay import replay
from gibbsian.sampling import engines

D = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:compiling took:gibbsian.errors.CompileWarning")


def turning(weight, bias, kept, state, inputs):
    """A state of three tensors, one of which stays and two of which exchange parts, and outputs of both kinds; products in
    rows and in columns; something written into."""
    x, y, fixed = state
    z, size = inputs
    new = torch.tanh(torch.addmm(bias, x, weight) + x @ weight.T) + size * z + fixed
    kept.add_(new.sum())
    return (new, 0.5 * y + x[:, :1], fixed), (new[1:], (new * new).sum())


def ordinary(step, things, state, inputs, steps):
    outputs = []
    for t in range(steps):
        state, given = step(*things, state, tuple(part[t] for part in inputs))
        outputs.append(given)
    return state, tuple(torch.stack(part) for part in zip(*outputs, strict=True))


def arguments(steps, seed=0):
    g = torch.Generator().manual_seed(seed)
    weight, bias = torch.randn(8, 8, generator=g, dtype=D) / 4, torch.randn(8, generator=g, dtype=D)
    state = tuple(torch.randn(4, n, generator=g, dtype=D) for n in (8, 1, 8))
    inputs = torch.randn(steps, 4, 8, generator=g, dtype=D), torch.rand(steps, generator=g, dtype=D)
    return (weight, bias, torch.zeros(2, dtype=D)), state, inputs


def test_replays_are_ordinary_calls():
    step, recorder = compiled(turning), Recorder()
    for steps in (1, 2, 7, 8):  # the state ends in either set of tensors; everything lies elsewhere each time
        things, state, inputs = arguments(steps, seed=steps)
        copies = [t.clone() for t in state]
        end, outputs, done = replay(recorder, step, things, state, inputs, steps)
        assert done == steps
        assert all(map(torch.equal, state, copies))
        other = (*things[:2], torch.zeros(2, dtype=D))
        want, told = ordinary(turning, other, state, inputs, steps)
        torch.testing.assert_close(end, want, atol=1e-12, rtol=0)
        torch.testing.assert_close(outputs, told, atol=1e-12, rtol=0)
        torch.testing.assert_close(things[2], other[2], atol=1e-10, rtol=0)


def test_parameters_are_read_where_they_are_now():
    step, recorder = compiled(turning), Recorder()
    things, state, inputs = arguments(5)
    replay(recorder, step, things, state, inputs, 5)
    moved = (things[0] * 2, things[1].clone(), torch.zeros(2, dtype=D))
    end, _, _ = replay(recorder, step, moved, state, inputs, 5)
    want, _ = ordinary(turning, moved, state, inputs, 5)
    torch.testing.assert_close(end, want, atol=1e-12, rtol=0)


def gathering(count, state, inputs):
    (x,) = state
    return (0.5 * x + x[:, :count].sum(1, keepdim=True) / count,), ()


def test_whole_numbers_that_are_left_open_compile_nothing_anew():
    step, recorder, g = compiled(gathering, "count"), Recorder(), torch.Generator().manual_seed(0)
    seen = counters["stats"]["unique_graphs"]
    for count in (4, 7, 5):
        state = (torch.rand(3, 9, generator=g, dtype=D),)
        end, _, done = replay(recorder, step, (count,), state, (torch.zeros(6),), 6)
        want, _ = ordinary(gathering, (count,), state, (torch.zeros(6),), 6)
        assert done == 6
        torch.testing.assert_close(end, want, atol=1e-12, rtol=0)
    assert counters["stats"]["unique_graphs"] == seen + 1


def counting(limit, state, inputs):
    x, count = state
    return (x * 1.5, count + 1), ()


@pytest.mark.parametrize("limit", [0, 3, 6])
def test_a_flag_ends_the_loop(limit):
    step = compiled(counting)
    start = (torch.ones(3), torch.zeros((), dtype=torch.long))
    (x, count), _, done = replay(Recorder(), step, (limit,), start, (), 1 << 40, limit=limit)
    assert (done, int(count)) == (limit + 1, limit + 1)
    torch.testing.assert_close(x, torch.full((3,), 1.5 ** (limit + 1)))


def exchanging(state, inputs):
    x, y, z = state
    return (y, x, z * 2), ()


def sorting(state, inputs):
    return (torch.sort(state[0] * 1.5).values,), ()


def test_what_cannot_be_replayed_says_why():
    with pytest.raises(ReplayError, match=r"it calls aten\.sort"):
        replay(Recorder(), compiled(sorting), (), (torch.rand(50),), (), 5)
    with pytest.raises(ReplayError, match="exchanges"):
        replay(Recorder(), compiled(exchanging), (), tuple(torch.rand(3, 4)), (), 5)


def test_a_replay_that_gives_other_numbers_is_not_used(monkeypatch):
    import gibbsian as gb

    energy = gb.as_energy(lambda x: x.pow(4).sum(-1), gb.domains.Real(2))

    def run(compile):
        g = torch.Generator().manual_seed(0)
        return gb.sample(
            energy, gb.kernels.MALA(0.5), torch.zeros(4, 2, dtype=D), steps=30, generator=g, compile=compile
        )

    def wrong(*arguments, **options):
        state, outputs, done = replay(*arguments, **options)
        return state._replace(x=state.x + 1e-3), outputs, done

    monkeypatch.setattr(engines, "replay", wrong)
    trace = run(True)
    assert trace.compiled
    assert "other numbers" in trace.compile_note
    torch.testing.assert_close(trace.samples, run(False).samples, atol=1e-10, rtol=0)


def test_products_find_a_blas():
    for dtype in (torch.float32, torch.float64):
        assert recorded.gemm_address(dtype) > 0
