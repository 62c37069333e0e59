"""Energy discrepancy, energy matching and recovery likelihood on a GPU: captured steps, and the numbers of eager ones."""

import warnings

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, energies, models, objectives, schedules
from gibbsian.errors import CompileWarning
from gibbsian.training import Engine

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

F64 = torch.float64


def gen(seed=0, device="cuda"):
    return torch.Generator(device).manual_seed(seed)


def plane():
    return energies.MLPEnergy(2, (16, 16), confine=0.1).double()


def family():
    net = models.LevelEnergy(gb.nets.MLP(3, (16, 16)))
    return models.NoiseConditionalEnergy(net, domains.Real(2), schedules.recovery_ladder(spread=1.7)).double()


def moons(device):
    return gb.data.toy("moons", 512, generator=gen(0, device), dtype=F64)


def bits(device):
    return (torch.rand(512, 9, generator=gen(0, device), dtype=F64, device=device) < 0.3).to(F64)


def symbols(device):
    return domains.Categorical(4, classes=5).sample(512, generator=gen(0, device), dtype=F64)


def rbm():
    return models.RBM(9, 6).double()


def potts():
    return models.Potts(4, 5).double()


CASES = {
    "discrepancy": (plane, objectives.EnergyDiscrepancy(0.5, 4), moons),
    "discrepancy of bits": (rbm, objectives.EnergyDiscrepancy(0.1, 4), bits),
    "discrepancy by neighbors": (rbm, objectives.EnergyDiscrepancy(negatives=4, perturbation=objectives.Neighbors()), bits),
    "discrepancy by a mask": (potts, objectives.EnergyDiscrepancy(negatives=4, perturbation=objectives.Masked()), symbols),
    "discrepancy, ordinal": (potts, objectives.EnergyDiscrepancy(2.0, 4, perturbation="ordinal"), symbols),
    "matching, flow": (plane, objectives.EnergyMatching(flow_steps=1000, pairing="sinkhorn"), moons),
    "matching, contrast": (plane, objectives.EnergyMatching(flow_steps=0, steps=10, pairing="sinkhorn"), moons),
    "matching, both": (plane, objectives.EnergyMatching(flow_steps=31, steps=10, pairing="sinkhorn"), moons),
    "matching, jumps": (plane, objectives.EnergyMatching(flow_steps=0, steps=10, jump_every=5, pairing="sinkhorn"), moons),
    "recovery": (family, objectives.RecoveryLikelihood(5), moons),
    "recovery, adjusted": (family, objectives.RecoveryLikelihood(5, adjusted=True), moons),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_captured_steps_are_the_eager_ones(name):
    make, objective, data = CASES[name]
    runs = []
    for compile in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("error", CompileWarning)
            how = {"steps": 60, "batch_size": 64, "progress": False, "engine": Engine(compile=compile)}
            runs.append(gb.fit(make().cuda(), objective, data("cuda"), **how))
    for eager, captured in zip(*(run.energy.parameters() for run in runs), strict=True):
        torch.testing.assert_close(captured, eager, rtol=0, atol=1e-7)


def test_exact_pairs_are_found_by_the_host_and_said():
    with pytest.warns(CompileWarning, match="eagerly"):
        gb.fit(
            plane().cuda(),
            objectives.EnergyMatching(flow_steps=1000),
            moons("cuda"),
            steps=8,
            batch_size=64,
            engine=Engine(compile=True),
        )


def test_runs_draw_where_they_live():
    run = gb.fit(plane().cuda(), objectives.EnergyMatching(flow_steps=1000), moons("cuda"), steps=2, batch_size=64)
    assert run.draw(9, generator=gen(), time=0.1).is_cuda
    run = gb.fit(family().cuda(), objectives.RecoveryLikelihood(2), moons("cuda"), steps=2, batch_size=64)
    assert run.draw(9, generator=gen()).is_cuda
