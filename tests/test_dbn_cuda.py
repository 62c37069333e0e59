"""Deep belief networks on a GPU: captured training is training, and everything else follows the device."""

import pytest
import torch

import gibbsian as gb
from gibbsian import kernels, objectives, partition
from gibbsian.models import DBN
from gibbsian.training import Engine, Logging

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def two_kinds(n=2000):
    g = torch.Generator("cuda").manual_seed(0)
    p = torch.tensor([[0.9] * 8 + [0.1] * 8, [0.1] * 8 + [0.9] * 8], device="cuda")
    y = torch.randint(2, (n,), generator=g, device="cuda")
    return p[y], y


@pytest.mark.parametrize("captured", [False, True])
def test_greedy_and_up_down_training(captured):
    """A warning that steps are not captured would be an error here."""
    gray, y = two_kinds()
    dbn = DBN(16, 12, 10, 20, labels=2).cuda()
    common = {"batch_size": 50, "optimizer": {"name": "sgd", "momentum": 0.9}, "engine": Engine(compile=captured)}
    common |= {"logging": Logging(every=100), "guard": gb.training.Guard(every=100)}
    cd = objectives.Binarized(objectives.ContrastiveDivergence(kernels.Gibbs()))
    gb.pretrain(dbn, cd, (gray, y), steps=400, lr=0.05, **common)
    run = gb.fit(dbn, objectives.Binarized(objectives.UpDown(steps=3)), (gray, y), steps=400, lr=0.01, **common)
    assert run.step == 400
    g = torch.Generator("cuda").manual_seed(1)
    x = objectives.Binarized(cd).drawn(dbn, gray, g)
    assert float((dbn.classify(x) == y).double().mean()) > 0.95
    assert float((dbn.classify(x, passes=3, generator=g) == y).double().mean()) > 0.95
    log_z = partition.ais(dbn, x, chains=100, betas=200, generator=g)
    assert abs(float(log_z.value.cpu() - partition.exact(dbn).value.cpu())) < 0.5
    bound = dbn.log_mass_bound(x, samples=5, generator=g)
    assert bound.device.type == "cuda"
    v = dbn.generate(50, steps=50, label=1, generator=g)
    assert float(v[:, 8:].mean()) > 0.6


def test_captured_persistent_training_of_both_stages():
    gray, _ = two_kinds()
    dbn = DBN(16, 8, 20).cuda()
    pcd = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=50, start="data")
    objective = objectives.Binarized(objectives.Centered(pcd))
    gb.pretrain(dbn, objective, gray, steps=600, lr=0.05, batch_size=50, optimizer="sgd", engine=Engine(compile=True),
                logging=Logging(every=100))  # fmt: skip
    g = torch.Generator("cuda").manual_seed(1)
    x = objective.drawn(dbn, gray, g)
    log_z = partition.exact(dbn).value
    value = float((dbn.log_mass_bound(x, samples=5, generator=g) - log_z.to(x.device)).mean())
    assert -8.5 < value < -5.7  # the entropy of the data is 5.9 nats, of independent coins 11
