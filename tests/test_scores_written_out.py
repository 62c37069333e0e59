"""Scores as programs: the same numbers as autograd takes them, and the same gradients in the parameters."""

import warnings

import pytest
import torch
from objective_oracles import F64, gen
from torch import nn
from torch.nn import functional as F

import gibbsian as gb
from gibbsian import domains, energies, nets
from gibbsian.fast import scores
from gibbsian.fast.scores import compiled_score, named_tensors, written_out
from gibbsian.nets.layers import standardized_once
from gibbsian.objectives import EnergyMatching
from gibbsian.objectives.base import Step


class Square(nn.Module):
    """½‖x - U(x)‖²."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return 0.5 * (x - self.net(x, torch.ones_like(x[:, 0, 0, 0]))).square().flatten(1).sum(1)


class Strided(nn.Module):
    """Convolutions of odd strides, paddings, dilations and groups, and one that is transposed."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, (3, 2), stride=(2, 3), padding=(1, 0))
        self.second = nn.Conv2d(4, 6, 2, dilation=2, groups=2, stride=2)
        self.third = nn.ConvTranspose2d(6, 2, 3, stride=2)

    def forward(self, x):
        return F.softplus(self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))).flatten(1).sum(1)


def energy_of(name, shape=(1, 11, 10)):
    net = {
        "perceptron": lambda: nn.Sequential(nets.MLP(3, (8, 8)), nn.Flatten(0)),
        "strided": Strided,
        "u-net": lambda: Square(nets.ScoreUNet(shape, (8, 8), 1)),
        "standardized": lambda: nn.Sequential(
            nets.ResidualNet(shape, (4, 8), 1, pool=False, standardize=True), nn.Flatten(0)
        ),
    }[name]()
    energy = gb.as_energy(net, domains.Real(3 if name == "perceptron" else shape)).to(F64)
    with torch.no_grad():
        for i, p in enumerate(energy.parameters()):
            p += 0.2 * torch.randn(p.shape, generator=gen(i), dtype=F64)
    return energy


def gradients(energy, s, target):
    loss = (s - target).square().mean()
    return [float(loss.detach()), *torch.autograd.grad(loss, list(energy.parameters()), allow_unused=True)]


def agree(one, other):
    for a, b in zip(one, other, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        elif a is None or b is None:  # nothing, or a zero that was computed
            assert all(t is None or not t.any() for t in (a, b))
        else:
            assert a == pytest.approx(b, rel=1e-12)


@pytest.mark.parametrize("name", ["perceptron", "strided", "u-net", "standardized"])
def test_written_out_it_is_the_score_and_has_its_gradients(name):
    energy = energy_of(name)
    x, target = (torch.randn(3, *energy.domain.shape, generator=gen(i), dtype=F64) for i in range(2))
    program = written_out(energy, x)
    again = torch.randn(x.shape, generator=gen(2), dtype=F64)  # other numbers than it was written with
    with torch.no_grad():
        for p in energy.parameters():
            p.mul_(1.1)
    found = program(tuple(named_tensors(energy).values()), again)
    agree(gradients(energy, found, target), gradients(energy, energy.score(again, create_graph=True), target))


def test_no_reverse_pass_of_a_convolution_is_left():
    x = torch.randn(3, 1, 11, 10, dtype=F64)
    names = [str(node.target) for node in written_out(energy_of("u-net"), x).graph.nodes]
    assert "aten.convolution_backward.default" not in names
    assert names.count("aten.convolution.default") % 2 == 0  # each, and its transpose


def test_a_compiled_update_is_the_plain_one():
    net = nn.Sequential(nets.ResidualNet((1, 4, 4), (4,), 1, pool=False, standardize=True), nn.Flatten(0))
    energy = gb.as_energy(net, domains.Real((1, 4, 4))).to(F64)
    objective, x = EnergyMatching(flow_steps=10, pairing="sinkhorn"), torch.randn(3, 1, 4, 4, dtype=F64)
    state = objective.init(energy, x, gen())
    found = []
    for fused in (False, True):
        with standardized_once(energy):  # as training does
            loss = objective.loss(energy, x, state, gen(), Step(fused=fused)).value
            found.append(
                [float(loss.detach()), *torch.autograd.grad(loss, list(energy.parameters()), allow_unused=True)]
            )
    agree(*found)
    objective = EnergyMatching(flow_steps=0, steps=3)
    ends = [objective.loss(energy, x, state, gen(), Step(fused=fused)).metrics for fused in (False, True)]
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():  # chains, too
        torch.testing.assert_close(value, ends[1][name], rtol=1e-9, atol=1e-12)
    draws = [objective.generate(energy, 3, state, gen(), time=0.05, compile=compile) for compile in (False, True)]
    torch.testing.assert_close(*draws, rtol=1e-9, atol=1e-12)
    with torch.no_grad():  # what was compiled reads parameters where they live
        for p in energy.parameters():
            p.mul_(1.2)
    target = torch.zeros_like(x)
    agree(
        gradients(energy, compiled_score(energy, x), target),
        gradients(energy, energy.score(x, create_graph=True), target),
    )


def test_what_the_compiler_gets_wrong_is_not_used(monkeypatch):
    energy, x = energy_of("perceptron"), torch.randn(4, 3, generator=gen(), dtype=F64)
    monkeypatch.setattr(scores, "compiled", lambda function: lambda tensors, y: 1.001 * function(tensors, y))
    with pytest.warns(gb.errors.CompileWarning, match=r"0\.0009. away"):
        found = compiled_score(energy, x)
    torch.testing.assert_close(found, energy.score(x, create_graph=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled_score(energy, x)  # nothing is tried again


def test_what_autograd_cannot_go_through_is_left_to_the_energy():
    """Circular padding writes into a tensor, and written out that is an operation without a derivative."""
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.SiLU(), nn.Conv2d(2, 1, 4), nn.Flatten(0)
    )
    energy = gb.as_energy(net, domains.Real((1, 4, 4))).to(F64)
    x, target = (torch.randn(3, 1, 4, 4, generator=gen(i), dtype=F64) for i in range(2))
    with pytest.warns(gb.errors.CompileWarning, match="derivative"):
        found = compiled_score(energy, x)
    agree(gradients(energy, found, target), gradients(energy, energy.score(x, create_graph=True), target))
    with torch.no_grad():
        assert not compiled_score(energy, x).requires_grad


def test_a_wide_network_is_compared_where_half_precision_still_tells():
    """What is compared must differ by mistakes and not by rounding: that of half precision stays far below what is allowed."""
    energy = energies.ReconstructionEnergy(nets.UNet((1, 8, 8), (96, 192), 2), domains.Real((1, 8, 8)))
    x = torch.randn(2, 1, 8, 8, generator=gen())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = written_out(energy, x)
    tensors = tuple(map(scores.moved, named_tensors(energy).values()))
    assert all(bool((a != b).any()) for a, b in zip(tensors, named_tensors(energy).values(), strict=True))
    found = [scores._score_and_slopes(program, tensors, x) for program in (half, written_out(energy, x))]
    assert scores._share(*found) < 0.05
