"""Coins: the native form gives what its plain twin gives, and machines learn the same with both."""

import numpy as np
import pytest
import torch

import gibbsian as gb
from gibbsian.fast.coins import Coins, NativeCoins, coins
from gibbsian.fast.native import library

CPU = {"dtype": torch.float32, "device": torch.device("cpu")}
native = pytest.mark.skipif(type(coins(1, torch.Generator(), **CPU)) is Coins, reason="there is no C compiler")


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@native
@pytest.mark.parametrize("sizes", [(500, 784), (1,) * 9, (7, 3, 1, 2, 1021, 1020, 5, 4096, 1), (1019, 1), (4,)])
def test_native_coins_are_those_of_the_plain_twin(sizes):
    """To the bit, wherever the numbers of one draw are cut, and the generator is left in the same state."""
    for seed in range(3):
        one, other = gen(seed), gen(seed)
        plain, fast = Coins(sum(sizes), one, **CPU), NativeCoins(other)
        g = gen(99)
        for n in sizes:
            p = torch.rand(n, generator=g)
            assert torch.equal(plain.flip(p), fast.flip(p.clone(), over=True))
        assert torch.equal(one.get_state(), other.get_state())


@native
@pytest.mark.parametrize("value", [0, 1, 2**32 - 1, 2**32, 12345678901234567, 2**54 - 1])
def test_native_seeds_are_numpys(value):
    fast = NativeCoins(gen())
    fast.functions.seed(value, fast.state)
    assert list(fast.state)[:4] == np.random.SFC64(value).state["state"]["state"].tolist()


@native
def test_coins_are_certain_at_0_and_1_and_fair_between():
    n, g = 1 << 20, gen()
    assert not coins(n, g, **CPU).flip(torch.zeros(n)).any()
    assert coins(n, g, **CPU).flip(torch.ones(n)).all()
    for p in (2**-20, 0.3, 0.999):
        share = float(coins(n, g, **CPU).flip(torch.full((n,), p)).mean())
        assert abs(share - p) < 5 * (p * (1 - p) / n) ** 0.5 + 1e-7  # false alarm: 6e-7, but for the shared last bits


@native
@pytest.mark.parametrize(("rows", "chains"), [(30, None), (40, None), (50, 25), (300, None), (130, 250)])
def test_machines_learn_the_same_without_a_compiler(rows, chains, monkeypatch):
    """Few rows and many, with and without chains: the same samples to the bit (but for a coin whose number is its probability to
    the last place, of chance 1e-3 here), value and gradients to rounding, and the generator left alike."""
    x = (torch.rand(rows, 50, generator=gen()) < 0.4).float()
    start = None if chains is None else (torch.rand(chains, 50, generator=gen(1)) < 0.4).float()
    rbm = gb.models.RBM(50, 21)
    with torch.no_grad():
        rbm.weight.mul_(50)
        rbm.visible_bias.normal_(generator=gen(2))
        rbm.hidden_bias.normal_(generator=gen(3))
    found = []
    for form in (None, lambda *given: False):
        if form is not None:
            monkeypatch.setattr("gibbsian.models.rbm.native.serves", form)
            plain = lambda *a, seen=False, **how: Coins(*a, **how)  # noqa: E731
            monkeypatch.setattr("gibbsian.models.rbm.machine.coins", plain)
        g = gen(4)
        value, samples, gradients = rbm.contrast(x, start, 3, g)
        found.append((g.get_state(), samples, value.detach(), *gradients.values()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    for one, other in zip(found[0][2:], found[1][2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


@native
def test_what_is_no_number_stays_none():
    rbm = gb.models.RBM(50, 21)
    with torch.no_grad():
        rbm.weight[3, 4] = torch.nan
    value, _, gradients = rbm.contrast(torch.ones(100, 50), None, 1, gen())
    assert torch.isnan(value)
    assert torch.isnan(gradients[rbm.weight]).any()


@native
def test_rows_that_do_not_fit_are_never_read_by_their_address():
    rbm, x = gb.models.RBM(50, 21), torch.ones(100, 50)
    for batch, chains in ((x[:, :40], None), (x, x[:, :40]), (x, x.double()), (x[0], None)):
        with pytest.raises((RuntimeError, IndexError, ValueError)):
            rbm.contrast(batch, chains, 1, gen())


def test_sources_that_do_not_compile_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library("this is no C") is None
    monkeypatch.setenv("CC", "no-such-compiler")
    assert library("int f(void) { return 1; }") is None
    assert not list(tmp_path.rglob("*.so"))


def test_the_environment_can_do_without(monkeypatch):
    monkeypatch.setenv("GIBBSIAN_NATIVE", "0")
    assert library("int of_no_use(void) { return 2; }") is None
