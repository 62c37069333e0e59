"""gibbsian.fit: closed forms, every kind of data, optimizers and schedules, bad input, interruption."""

import json
import math
import signal
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import gibbsian as gb
from gibbsian import domains, energies, errors, kernels, models, objectives
from gibbsian.fast.graphs import tensors_of
from gibbsian.objectives.base import Loss, Objective, labels, observed
from gibbsian.training import Checkpoints, EarlyStopping, Engine, Guard, Logging, checkpoint
from gibbsian.training.feeds.choose import make_feed
from gibbsian.training.loop import Plan, timed
from gibbsian.training.optimize import CapturableSGD, Ema, build_optimizer, rate_at

CPU = torch.device("cpu")


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Likelihood(Objective):
    """Exact likelihood of an energy that knows log Z: the oracle objective of these tests."""

    def __call__(self, energy: Any, batch: Any, state: Any, generator: torch.Generator) -> Loss:
        value = energy(observed(batch)).mean() + energy.log_z()
        return Loss(value, state, {"energy_data": value.detach()})


@dataclass(frozen=True)
class ByClass(Objective):
    """Likelihood of the rows whose label is 1: only right if labels travel with their rows."""

    def __call__(self, energy: Any, batch: Any, state: Any, generator: torch.Generator) -> Loss:
        mask = (labels(batch, "ByClass") == 1).to(observed(batch))
        value = (energy(observed(batch)) * mask).sum() / mask.sum() + energy.log_z()
        return Loss(value, state, {})


class Critic(NamedTuple):
    module: nn.Module


@dataclass(frozen=True)
class TwoPlayers(Objective):
    """The energy minimizes (m - w)² over its mean, the critic minimizes (w - 3m)²: a fixed first step."""

    def init(self, energy: Any, batch: Any, generator: torch.Generator) -> Critic:
        critic = nn.Linear(1, 1, bias=False).double()
        nn.init.constant_(critic.weight, 2.0)
        return Critic(critic)

    def __call__(self, energy: Any, batch: Any, state: Any, generator: torch.Generator) -> Loss:
        m, w = energy.mean.sum(), state.module.weight.sum()
        return Loss((m - w) ** 2, state, {}, (w - 3 * m) ** 2)


def gaussian(d: int = 2) -> energies.Gaussian:
    return energies.Gaussian(torch.zeros(d).double(), torch.eye(d).double(), trainable=True)


def cloud(n: int = 64, d: int = 2, seed: int = 0) -> Tensor:
    return 0.5 + 1.5 * torch.randn(n, d, generator=gen(seed), dtype=torch.float64)


def weights(energy: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in energy.parameters()])


# --- what training reaches ------------------------------------------------------------------------


def test_full_batches_reach_the_maximum_likelihood_estimate():
    data = cloud()
    energy = gaussian()
    run = gb.fit(energy, Likelihood(), data, steps=1500, batch_size=64, lr=0.05, schedule="cosine")
    assert run.energy is energy
    assert run.step == 1500
    centered = data - data.mean(0)
    assert torch.allclose(energy.mean.detach(), data.mean(0), atol=1e-6)
    assert torch.allclose(energy.covariance.detach(), centered.T @ centered / len(data), atol=1e-5)
    assert run.history[-1]["loss"] < run.history[0]["loss"]


def test_same_seed_same_bytes_and_no_global_randomness():
    data = cloud()
    before = torch.get_rng_state()
    runs = [gb.fit(gaussian(), Likelihood(), data, steps=30, batch_size=10, seed=s) for s in (3, 3, 4)]
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(weights(runs[0].energy), weights(runs[1].energy))
    assert not torch.equal(weights(runs[0].energy), weights(runs[2].energy))


def test_gradient_descent_with_a_momentum_schedule_is_what_it_says():
    """Against a hand-written heavy ball on the closed-form gradient of the mean."""
    data = cloud(8, 1)
    energy = gaussian(1)
    for name in ("log_diagonal", "off_diagonal"):
        getattr(energy, name).requires_grad_(False)
    momentum = torch.tensor([0.5, 0.7, 0.9])
    gb.fit(energy, Likelihood(), data, steps=5, batch_size=8, lr=0.1,
           optimizer={"name": "sgd", "momentum": momentum})  # fmt: skip
    m, velocity = 0.0, None
    for step in range(5):
        gradient = m - float(data.mean())
        mu = float(momentum[min(step, 2)])
        velocity = gradient if velocity is None else mu * velocity + gradient
        m -= 0.1 * velocity
    assert math.isclose(float(energy.mean.detach()), m, rel_tol=1e-12)


def adam_by_hand(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def test_names_dictionaries_and_factories_of_optimizers_agree():
    data = cloud(16)
    runs = [
        gb.fit(gaussian(), Likelihood(), data, steps=9, batch_size=16, optimizer=choice)
        for choice in (None, "adam", {"name": "Adam"}, adam_by_hand)
    ]
    for run in runs[1:]:
        assert torch.allclose(weights(run.energy), weights(runs[0].energy), rtol=1e-12, atol=0)
    with pytest.raises(errors.ArgumentError, match="unknown"):
        gb.fit(gaussian(), Likelihood(), data, steps=1, optimizer="adamant")
    with pytest.raises(errors.ArgumentError, match="refuses"):
        gb.fit(gaussian(), Likelihood(), data, steps=1, optimizer={"name": "sgd", "beta": 1})


def test_gains_can_be_spared_by_weight_decay():
    """Without a gradient AdamW moves by its decay alone: w ← (1 - lr·λ)w of arrays, gains and scales as they are."""
    parameters = [nn.Parameter(torch.ones(shape)) for shape in ((2, 3), (3,), ())]
    choice = {"name": "adamw", "weight_decay": 0.5, "spare_gains": True}
    optimizer, _ = build_optimizer(choice, parameters, lr=0.1)
    for p in parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert [round(float(p.detach().mean()), 6) for p in parameters] == [0.95, 1.0, 1.0]
    run = gb.fit(gaussian(), Likelihood(), cloud(16), steps=2, batch_size=16, optimizer=choice, lr=(1e-3, 1e-3))
    assert run.step == 2


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.5, "weight_decay": 0.1}])
def test_gradient_descent_for_graphs_is_that_of_torch(options):
    ours, theirs = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    mine = CapturableSGD([ours], lr=torch.tensor(0.1), fused=False, **options)
    usual = torch.optim.SGD([theirs], lr=0.1, **options)
    for _ in range(4):
        for p, optimizer in ((ours, mine), (theirs, usual)):
            optimizer.zero_grad()
            (p**2).sum().backward()
            optimizer.step()
    assert torch.allclose(ours, theirs)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (None, [0.1] * 4),
        ("linear", [0.1, 0.075, 0.05, 0.025]),
        ("cosine", [0.05 * (1 + math.cos(math.pi * t / 4)) for t in range(4)]),
        (torch.tensor([0.5, 0.25]), [0.5, 0.25, 0.25, 0.25]),
        (lambda step: 1.0 / (1 + step), [1.0, 0.5, 1 / 3, 0.25]),
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule, expected):
    run = gb.fit(gaussian(), Likelihood(), cloud(8), steps=4, lr=0.1, schedule=schedule, logging=Logging(every=1))
    assert [record["lr"] for record in run.history] == pytest.approx(expected)


def test_warm_up_is_linear_and_then_constant():
    rate = rate_at("warm-up", 2.0, 100)
    assert [rate(s) for s in range(7)] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0, 2.0, 2.0])
    with pytest.raises(errors.ArgumentError, match="unknown"):
        rate_at("cosinus", 1.0, 10)
    with pytest.raises(errors.ArgumentError, match="positive"):
        rate_at(None, -1.0, 10)


def test_gradients_are_clipped_to_their_norm():
    energy = gaussian()
    run = gb.fit(energy, Likelihood(), cloud() + 100, steps=1, batch_size=64, lr=1.0, optimizer="sgd", clip=0.25)
    moved = weights(energy) - weights(gaussian())
    assert float(moved.norm()) == pytest.approx(0.25, rel=1e-5)
    assert run.history[-1]["gradient_norm"] > 50  # the norm before clipping


def test_averages_follow_parameters_and_copy_buffers():
    class WithBuffer(energies.Gaussian):
        def __init__(self) -> None:
            super().__init__(torch.zeros(1).double(), torch.eye(1).double(), trainable=True)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return super().forward(x)

    energy = WithBuffer()
    seen: list[float] = []
    run = gb.fit(energy, Likelihood(), cloud(8, 1), steps=6, batch_size=8, lr=0.1, ema=0.5,
                 hooks=[lambda r: seen.append(float(r.energy.mean.detach()))])  # fmt: skip
    average = 0.0
    for step, value in enumerate(seen, 1):
        decay = min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * value
    assert float(run.ema.mean) == pytest.approx(average, rel=1e-12)
    assert float(run.ema.count) == float(energy.count) == 6
    assert not any(p.requires_grad for p in run.ema.parameters())
    with pytest.raises(errors.ArgumentError, match="decay"):
        Ema(energy, 1.0)


def test_two_players_get_the_gradient_of_their_own_loss():
    energy = gaussian(1)
    for name in ("log_diagonal", "off_diagonal"):
        getattr(energy, name).requires_grad_(False)
    run = gb.fit(energy, TwoPlayers(), cloud(4, 1), steps=1, lr=0.1, optimizer="sgd")
    # at m = 0, w = 2: d(m-w)²/dm = -4 moves m to 0.4; d(w-3m)²/dw = 4 moves w to 1.6
    assert float(energy.mean.detach()) == pytest.approx(0.4)
    assert float(run.state.module.weight.detach()) == pytest.approx(1.6)


def test_a_learned_log_z_comes_back_and_is_refused_where_there_is_none():
    data = torch.randn(500, 1, generator=gen(), dtype=torch.float64)
    energy = gb.as_energy(lambda x: 0.5 * x.square().sum(-1), domains.Real(1))
    noise = energies.Gaussian(torch.zeros(1).double(), 2 * torch.eye(1).double())
    run = gb.fit(energy, objectives.NoiseContrastive(noise, ratio=4), data, steps=300, batch_size=500, lr=0.02)
    assert abs(float(run.log_z) - 0.5 * math.log(2 * math.pi)) < 0.1
    with pytest.raises(errors.CapabilityError, match="learns no log Z"):
        _ = gb.fit(gaussian(), Likelihood(), cloud(), steps=1).log_z


def test_half_precision_products_keep_parameters_in_full_precision():
    net = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 1), nn.Flatten(0))
    energy = gb.as_energy(net, domains.Real(2))
    before = torch.get_float32_matmul_precision()
    data = cloud().float()
    for precision in ("bf16", "tf32"):
        run = gb.fit(energy, objectives.DenoisingScoreMatching(0.5), data, steps=5, engine=Engine(precision=precision))
        assert math.isfinite(run.history[-1]["loss"])
    assert {p.dtype for p in energy.parameters()} == {torch.float32}
    assert torch.get_float32_matmul_precision() == before
    with pytest.raises(errors.ArgumentError, match="fp16"):
        gb.fit(energy, objectives.DenoisingScoreMatching(0.5), data, steps=1, engine=Engine(precision="fp16"))


def test_captured_steps_are_for_cuda_and_the_user_is_told():
    plain = gb.fit(gaussian(), Likelihood(), cloud(), steps=5)
    with pytest.warns(errors.CompileWarning, match="captured on CUDA"):
        eager = gb.fit(gaussian(), Likelihood(), cloud(), steps=5, engine=Engine(compile=True))
    assert torch.equal(weights(plain.energy), weights(eager.energy))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_steps_train_what_eager_ones_do(tmp_path):
    """Persistent chains, a batch of another size at the end of every epoch, and a rate that changes."""
    data = (torch.rand(203, 6, generator=gen()) < 0.3).double()
    pcd = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=20)
    how: dict[str, Any] = {"batch_size": 20, "lr": 0.02, "schedule": "cosine", "device": "cuda"}
    for objective in (pcd, objectives.ContrastiveDivergence(kernels.Gibbs(), steps=2)):
        eager, captured, again = (
            gb.fit(models.RBM(6, 3).double(), objective, data, steps=60, engine=Engine(compile=c), **how)
            for c in (False, True, True)
        )
        # the captured rate is a float32 on the device
        assert torch.allclose(weights(eager.energy), weights(captured.energy), atol=1e-5)
        assert torch.equal(weights(captured.energy), weights(again.energy))
    how["schedule"] = None
    gb.fit(models.RBM(6, 3).double(), pcd, data, steps=31, engine=Engine(compile=True), run_dir=tmp_path / "r", **how)
    resumed = gb.resume(tmp_path / "r", data, steps=60, device="cuda")
    straight = gb.fit(models.RBM(6, 3).double(), pcd, data, steps=60, engine=Engine(compile=True), **how)
    assert torch.allclose(weights(resumed.energy), weights(straight.energy), atol=1e-5)


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """One entry for every call of a method from here on."""
    calls: list[str] = []
    real = getattr(owner, name)

    def counted(self, *arguments):
        calls.append(name)
        return real(self, *arguments)

    monkeypatch.setattr(owner, name, counted)
    return calls


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimizer", ["sgd", {"name": "sgd", "momentum": 0.5}, "adam"])
def test_many_steps_in_one_graph_train_what_single_ones_do(optimizer, monkeypatch):
    """Blocks over epochs, with a transform that draws, an average, clipping, chains and a rate that changes."""
    from gibbsian.training import captured as module

    data = torch.rand(200, 6, generator=gen(), device="cpu").double().cuda()
    pcd = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=20)
    runs = {}
    for name, longest, at_once in (("blocks", 50, 2**25), ("blocks, one batch at a time", 50, 0), ("single", 1, 0)):
        monkeypatch.setattr(module, "_BLOCK", longest)
        monkeypatch.setattr(module, "_AT_ONCE", at_once)
        blocks = count_calls(monkeypatch, module.CapturedSteps, "_replay_block")
        moves = count_calls(monkeypatch, module.CapturedSteps, "move")
        runs[name] = gb.fit(
            models.RBM(6, 3).double().cuda(),
            pcd,
            data,
            steps=203,
            batch_size=20,
            lr=0.02,
            schedule="cosine",
            optimizer=optimizer,
            ema=0.9,
            clip=1.0,
            transform=lambda x, g: (torch.rand(x.shape, generator=g, device=x.device) < x).double(),
            engine=Engine(compile=True),
        )
        monkeypatch.undo()
        assert bool(blocks) == (longest > 1)
        assert (len(moves) < 100) == (longest > 1)  # most of the 203 steps are part of a block
    a, b = runs["blocks"], runs["single"]
    assert torch.equal(weights(a.energy), weights(runs["blocks, one batch at a time"].energy))
    assert a.step == b.step == 203
    assert torch.allclose(weights(a.energy), weights(b.energy), atol=1e-6)
    assert torch.allclose(weights(a.ema), weights(b.ema), atol=1e-6)
    losses = [[r["loss"] for r in run.history if "loss" in r] for run in (a, b)]
    assert len(losses[0]) == len(losses[1]) == 5
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.parametrize("kind", ["one", "pair", "named"])
def test_examples_of_a_block_are_those_of_its_steps(kind, monkeypatch):
    """Fetched at once where they are few, in the shape of the batches; else one by one."""
    from gibbsian.training import captured as module

    x, y = torch.arange(120.0).view(40, 3), torch.arange(40)
    data = {"one": x, "pair": (x, y), "named": {"x": x, "y": y}}[kind]
    how = {"device": torch.device("cpu"), "check": lambda x: None, "transform": None, "rank": 0, "world": 1}
    feed = make_feed(data, 5, seed=3, **how)
    inputs = module._Inputs(feed, 4, 1)
    inputs.rows.copy_(feed.peek(4).view(4, 5))
    found = inputs.batches()
    assert found is not None
    for batch, rows in zip(found, inputs.rows, strict=True):
        wanted = feed.take(rows)
        assert type(batch) is type(wanted)
        for a, b in zip(tensors_of(batch), tensors_of(wanted), strict=True):
            assert torch.equal(a, b)
    monkeypatch.setattr(module, "_AT_ONCE", 4 * 5 * 3 * 4 - 1)
    assert inputs.batches() is None


def test_rows_ahead_are_those_that_come():
    def feed(rows):
        return make_feed(
            torch.arange(rows)[:, None].float(), 10, seed=3, device=torch.device("cpu"), check=lambda x: None,
            transform=None, rank=0, world=1,
        )  # fmt: skip

    one, two = feed(40), feed(40)
    for _ in range(3):
        one.next(), two.next()
    ahead = one.peek(6)  # over the end of the epoch
    one.skip(6)
    assert torch.equal(ahead, torch.cat([two.next()[:, 0].long() for _ in range(6)]))
    assert (one.epoch, one.index) == (two.epoch, two.index)
    assert torch.equal(one.next(), two.next())
    assert [len(feed(45).peek(batches)) for batches in (4, 5)] == [40, 45]  # the fifth batch holds five rows


def test_a_pair_of_rates_is_one_for_the_energy_and_one_for_what_the_objective_learns():
    noise = energies.Gaussian(torch.zeros(2), 4 * torch.eye(2)).double()
    nce = objectives.NoiseContrastive(noise, ratio=2)
    slow = gb.fit(gaussian(), nce, cloud(), steps=20, lr=(1e-6, 0.1), optimizer="sgd")
    fast = gb.fit(gaussian(), nce, cloud(), steps=20, lr=(0.1, 1e-6), optimizer="sgd")
    start = weights(gaussian())
    assert (weights(slow.energy) - start).abs().max() < 1e-3 < (weights(fast.energy) - start).abs().max()
    c = [float(nce.log_z(run.state)) for run in (slow, fast)]
    begin = float(nce.log_z(gb.fit(gaussian(), nce, cloud(), steps=1, lr=1e-9).state))
    assert abs(c[0] - begin) > 1e-3 > abs(c[1] - begin)
    with pytest.raises(errors.ArgumentError, match="pair"):
        gb.fit(gaussian(), nce, cloud(), steps=2, lr=(0.1, -1.0))


# --- data -----------------------------------------------------------------------------------------


class Squares(Dataset):
    """A map-style dataset whose code uses the global generator, as augmentations do."""

    def __init__(self, data: Tensor, jitter: float = 0.0) -> None:
        self.data, self.jitter = data, jitter

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> Tensor:
        return self.data[i] + self.jitter * torch.rand((), dtype=self.data.dtype)


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        return iter(cloud(20))


def test_every_kind_of_data_gives_the_same_training(tmp_path):
    data = cloud(50)
    path = tmp_path / "data.bin"
    np.memmap(path, dtype=np.float64, mode="w+", shape=(50, 2))[:] = data.numpy()
    kinds = [
        data,
        data.numpy(),
        np.memmap(path, dtype=np.float64, mode="r", shape=(50, 2)),
        TensorDataset(data),
        Squares(data),
        (data,),
    ]
    runs = [gb.fit(gaussian(), Likelihood(), kind, steps=25, batch_size=8, seed=5) for kind in kinds]
    for run in runs[1:]:
        assert torch.allclose(weights(run.energy), weights(runs[0].energy), rtol=1e-12, atol=1e-14)


def test_every_row_is_seen_once_an_epoch_in_a_new_order():
    data = torch.arange(23.0)[:, None]
    feed = make_feed(data, 5, seed=0, device=CPU, check=lambda batch: None)
    epochs = [torch.cat([feed.next() for _ in range(5)])[:, 0] for _ in range(2)]
    for epoch in epochs:
        assert torch.equal(epoch.sort().values, data[:, 0])
    assert not torch.equal(epochs[0], epochs[1])
    shards = [make_feed(data, 6, seed=0, device=CPU, check=lambda b: None, rank=r, world=2) for r in (0, 1)]
    rows = torch.cat([feed.next()[:, 0] for feed in shards for _ in range(feed.per_epoch)])
    assert torch.equal(rows.sort().values, data[:, 0])


def test_arrays_on_disk_are_never_read_as_a_whole(tmp_path):
    read: list[int] = []

    class Spy(np.memmap):
        def __getitem__(self, index: Any) -> Any:
            read.append(len(index) if isinstance(index, np.ndarray) else -1)
            return super().__getitem__(index)

    array = Spy(tmp_path / "data.bin", dtype=np.float32, mode="w+", shape=(40_000, 1))
    energy = energies.Gaussian(torch.zeros(1), torch.eye(1), trainable=True)
    read.clear()
    gb.fit(energy, Likelihood(), array, steps=10, batch_size=32)
    assert sorted(read)[:-1] == [32] * 10
    assert max(read) < 20_000


def test_labels_travel_with_their_rows():
    x = cloud(40)
    y = (torch.arange(40) % 2).long()
    x[y == 1] += 4
    for data in [(x, y), TensorDataset(x, y), (x.numpy(), y.numpy()), DataLoader(TensorDataset(x, y), 40)]:
        energy = gaussian()
        gb.fit(energy, ByClass(), data, steps=400, batch_size=40, lr=0.1, schedule="cosine")
        assert torch.allclose(energy.mean.detach(), x[y == 1].mean(0), atol=0.2)  # the others lie 4 below
    with pytest.raises(errors.DataError, match="39 rows"):
        gb.fit(gaussian(), ByClass(), (x, y[:39]), steps=1)


def test_loaders_keep_their_batches_and_are_reproducible_with_their_own_randomness():
    data = Squares(cloud(30), jitter=0.1)
    before = torch.get_rng_state()
    runs = [
        gb.fit(gaussian(), Likelihood(), DataLoader(data, 7, shuffle=True, **how), steps=12, seed=2)
        for how in ({}, {}, {"generator": gen(1)}, {"generator": gen(9)}, {"num_workers": 1})
    ]
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(weights(runs[0].energy), weights(runs[1].energy))
    assert torch.equal(weights(runs[2].energy), weights(runs[3].energy))
    assert runs[0].history[-1]["epoch"] == 2  # five batches an epoch
    stream = gb.fit(gaussian(), Likelihood(), Endless(), steps=7, batch_size=8)
    assert stream.step == 7
    with pytest.raises(errors.ArgumentError, match="steps instead of epochs"):
        gb.fit(gaussian(), Likelihood(), Endless(), epochs=2)


def test_epochs_count_whole_passes():
    assert gb.fit(gaussian(), Likelihood(), cloud(50), epochs=3, batch_size=8).step == 21


def test_a_transform_draws_from_its_own_stream():
    gray = torch.rand(60, 4, generator=gen(), dtype=torch.float64)

    def binarize(batch: Tensor, generator: torch.Generator) -> Tensor:
        return (torch.rand(batch.shape, generator=generator, dtype=batch.dtype) < batch).to(batch)

    rbm = models.RBM(4, 2).double()
    run = gb.fit(rbm, objectives.ExactLikelihood(), gray, steps=5, transform=binarize)
    assert run.step == 5
    with pytest.raises(errors.DataError, match="binarize"):
        gb.fit(rbm, objectives.ExactLikelihood(), gray, steps=5)


def changing(batches: list[Any]) -> Any:
    class Batches:
        def __iter__(self) -> Any:
            return iter(batches)

        def __len__(self) -> int:
            return len(batches)

    return Batches()


GOOD = cloud(4)
BAD = {
    "nan": (lambda: torch.where(torch.arange(60.0)[:, None] == 41, math.nan, cloud(60)), r"\[41, 0\] = nan"),
    "infinite": (lambda: cloud(6) / 0, "not finite"),
    "wrong shape": (lambda: cloud(6, 3), "shape"),
    "empty": (lambda: cloud(6)[:0], "no rows"),
    "empty loader": (lambda: changing([]), "empty"),
    "integers": (lambda: cloud(6).long(), "dtype"),
    "another precision": (lambda: cloud(6).float(), "float32"),
    "no data": (lambda: "data.csv", "str"),
    "strings": (lambda: np.array(["a", "b"]), "astype"),
    "shape changes": (lambda: changing([GOOD, GOOD, cloud(4, 3)]), "batch 2 of epoch 0"),
    "nan later": (lambda: changing([GOOD, GOOD * math.nan]), "batch 1 of epoch 0"),
    "labels appear": (lambda: changing([GOOD, (GOOD, torch.zeros(4))]), "batch 1 of epoch 0"),
    "empty batch": (lambda: changing([GOOD, GOOD[:0]]), "batch 1 of epoch 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_stops_with_its_place_and_reason_and_nothing_saved_is_lost(name, tmp_path):
    make, message = BAD[name]
    folder = tmp_path / "run"
    with pytest.raises(errors.DataError, match=message):
        gb.fit(gaussian(), Likelihood(), make(), steps=9, run_dir=folder, checkpoints=Checkpoints(every=1))
    if folder.exists():
        assert torch.isfinite(gb.load(folder)(GOOD)).all()
        assert "epoch 0" in message


def test_metrics_are_asked_for_when_somebody_looks():
    asked = []

    @dataclass(frozen=True)
    class Asking(Likelihood):
        def loss(self, energy, batch, state, generator, step):
            asked.append(step.watched)
            return self(energy, batch, state, generator)

    how = {"batch_size": 20, "steps": 40, "logging": Logging(every=20), "hooks": [(15, lambda run: False)]}
    gb.fit(gaussian(), Asking(), cloud(), guard=False, **how)
    assert [step for step, asked_for in enumerate(asked, 1) if asked_for] == [15, 20, 30, 40]
    asked.clear()
    gb.fit(gaussian(), Asking(), cloud(), guard=gb.training.Guard(every=8), **how)
    assert [step for step, asked_for in enumerate(asked, 1) if asked_for] == [1, 8, 15, 16, 20, 24, 30, 32, 40]


def test_tensorboard_shows_the_history_also_after_a_resume(tmp_path, monkeypatch):
    """A stand-in for its writer that forgets what TensorBoard forgets: events from `purge_step` on."""
    events: dict[str, dict[int, float]] = {}

    class Writer:
        def __init__(self, folder, purge_step):
            assert folder == tmp_path / "run" / "tensorboard"
            for values in events.values():
                for step in [step for step in values if step >= purge_step]:
                    del values[step]

        def add_scalar(self, name, value, step):
            events.setdefault(name, {})[step] = value

        def close(self):
            pass

    from gibbsian.training import loggers

    monkeypatch.setattr(loggers, "summary_writer", lambda: Writer)
    how = {"batch_size": 20, "logging": Logging(every=10, tensorboard=True), "run_dir": tmp_path / "run"}
    gb.fit(gaussian(), Likelihood(), cloud(), steps=40, **how)
    run = gb.resume(tmp_path / "run", cloud(), steps=70, trust=__name__)
    assert events["loss"] == {r["step"]: r["loss"] for r in run.history if "loss" in r}
    assert list(events["loss"]) == [10, 20, 30, 40, 50, 60, 70]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "one of the two"),
        ({"steps": 3, "epochs": 1}, "one of the two"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 2.5}, "steps=2.5"),
        ({"epochs": 0}, "epochs=0"),
        ({"steps": 3, "batch_size": 0}, "batch_size=0"),
        ({"steps": 3, "clip": -1.0}, "clip"),
        ({"steps": 3, "lr": math.nan}, "lr=nan"),
        ({"steps": 3, "guard": 5}, "guard"),
        ({"steps": 3, "checkpoints": Checkpoints(keep_best=True)}, "validation"),
        ({"steps": 3, "logging": Logging(tensorboard=True)}, "run_dir"),
        ({"steps": 3, "engine": {"compile": True}}, r"engine is a dict; give a gibbsian.training.Engine\(...\)"),
        ({"steps": 3, "checkpoints": 100}, r"training.Checkpoints\(...\)"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(how, message):
    with pytest.raises(errors.ArgumentError, match=message):
        gb.fit(gaussian(), Likelihood(), cloud(), **how)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (Checkpoints, {"every": 0}),
        (Checkpoints, {"keep_last": 1.5}),
        (Logging, {"every": True}),
        (Logging, {"validate_every": -1}),
    ],
)
def test_groups_of_settings_refuse_what_makes_no_sense(kind, how):
    with pytest.raises(errors.ArgumentError, match=rf"{kind.__name__}\({next(iter(how))}="):
        kind(**how)


def test_what_cannot_be_trained_is_refused():
    fixed = energies.Gaussian(torch.zeros(2).double(), torch.eye(2).double())
    with pytest.raises(errors.ArgumentError, match="no trainable parameters"):
        gb.fit(fixed, Likelihood(), cloud(), steps=1)
    with pytest.raises(errors.CapabilityError, match="as_energy"):
        gb.fit(nn.Linear(2, 1), Likelihood(), cloud(), steps=1)
    with pytest.raises(errors.ArgumentError, match="objective is a str"):
        gb.fit(gaussian(), "cd", cloud(), steps=1)


# --- watching a run -------------------------------------------------------------------------------


def test_metrics_are_logged_in_memory_and_on_disk(tmp_path):
    run = gb.fit(
        gaussian(), Likelihood(), cloud(), steps=25, batch_size=16, logging=Logging(every=10), run_dir=tmp_path / "r"
    )
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert lines == run.history
    assert [line["step"] for line in lines] == [10, 20, 25]
    assert {"loss", "lr", "epoch", "gradient_norm", "energy_data", "steps_per_second"} <= set(lines[0])
    environment = json.loads((tmp_path / "r" / "environment.json").read_text())
    assert environment["torch"] == torch.__version__


def test_the_logged_loss_is_the_mean_since_the_last_record():
    each: list[float] = []
    run = gb.fit(gaussian(), Likelihood(), cloud(), steps=8, batch_size=16, logging=Logging(every=4),
                 hooks=[lambda r: each.append(float(r.metrics["loss"]))])  # fmt: skip
    assert run.history[0]["loss"] == pytest.approx(sum(each[:4]) / 4)
    assert run.history[1]["loss"] == pytest.approx(sum(each[4:]) / 4)


def test_validation_is_the_loss_on_held_out_data_and_leaves_training_alone():
    train, held_out = cloud(), cloud(30, seed=1)
    plain = gb.fit(gaussian(), Likelihood(), train, steps=10, batch_size=8)
    energy = gaussian()
    modes: list[bool] = []
    run = gb.fit(
        energy,
        Likelihood(),
        train,
        steps=10,
        batch_size=8,
        validation=held_out,
        logging=Logging(validate_every=5),
        hooks=[lambda r: modes.append(r.energy.training)],
    )
    assert all(modes)
    found = [r["validation_loss"] for r in run.history if "validation_loss" in r]
    expected = float((energy(held_out).mean() + energy.log_z()).detach())
    assert len(found) == 2
    assert found[-1] == pytest.approx(expected, rel=1e-12)
    assert torch.equal(weights(plain.energy), weights(energy))
    assert energy.training


def shaken(batch: Tensor, generator: torch.Generator) -> Tensor:
    return batch + torch.randn(batch.shape, generator=generator, dtype=batch.dtype)


@pytest.mark.parametrize("loader", [False, True])
def test_validation_under_a_transform_draws_the_same_numbers_every_time(loader, tmp_path):
    """With weights that stand still (next to no rate) every validation is the same number, after a resume too."""
    held_out: Any = DataLoader(TensorDataset(cloud(30, seed=1)), 7, shuffle=True) if loader else cloud(30, seed=1)
    how: dict[str, Any] = {"validation": held_out, "transform": shaken}
    options: dict[str, Any] = {"batch_size": 8, "lr": 1e-30, "logging": Logging(validate_every=2), **how}
    straight = gb.fit(gaussian(), Likelihood(), cloud(), steps=8, **options)
    gb.fit(gaussian(), Likelihood(), cloud(), steps=4, run_dir=tmp_path / "r", **options)
    resumed = gb.resume(tmp_path / "r", cloud(), steps=8, trust=__name__, **how)
    found = [r["validation_loss"] for run in (straight, resumed) for r in run.history if "validation_loss" in r]
    assert len(found) == 8
    assert len(set(found)) == 1
    without = gb.fit(gaussian(), Likelihood(), cloud(), steps=8, **{**options, "validation": None})
    assert torch.equal(weights(straight.energy), weights(without.energy))


def test_validation_judges_the_averaged_weights_where_there_are_any():
    held_out, energy = cloud(30, seed=1), gaussian()
    run = gb.fit(energy, Likelihood(), cloud() + 3, steps=20, batch_size=8, lr=0.1, ema=0.9, validation=held_out)
    (found,) = [r["validation_loss"] for r in run.history if "validation_loss" in r]
    averaged, last = (float((e(held_out).mean() + e.log_z()).detach()) for e in (run.ema, run.energy))
    assert abs(averaged - last) > 1e-4 * abs(last)
    assert found == pytest.approx(averaged, rel=1e-12)
    seen: list[Any] = []
    run = gb.fit(
        gaussian(), Likelihood(), cloud(), steps=2, ema=0.9, validation=lambda e: seen.append((e, e.training)) or 0.0
    )
    assert seen == [(run.ema, False)]


def test_a_total_that_is_behind_already_is_spoken_of(tmp_path):
    gb.fit(gaussian(), Likelihood(), cloud(), steps=4, run_dir=tmp_path / "r")
    with pytest.warns(errors.TrainingWarning, match="has 4 steps and a total of 3 was asked for: nothing is trained"):
        assert gb.resume(tmp_path / "r", cloud(), steps=3, trust=__name__).step == 4


def test_the_first_of_equal_bests_is_kept(tmp_path):
    scores = {2: 1.0, 4: 0.5, 6: 0.5, 8: 0.7, 10: 0.5}
    steps: list[int] = []
    gb.fit(gaussian(), Likelihood(), cloud(), steps=10, batch_size=8, run_dir=tmp_path / "r", hooks=[lambda r: steps.append(r.step)],
           validation=lambda e: scores[len(steps) + 1], logging=Logging(validate_every=2), checkpoints=Checkpoints(keep_best=True, keep_last=1))  # fmt: skip
    assert checkpoint.steps_saved(tmp_path / "r") == [4, 10]
    assert checkpoint.read_latest(tmp_path / "r", keys=("best",))["best"] == (4, 0.5)
    assert torch.equal(weights(gb.load(tmp_path / "r", "best")), weights(gb.load(tmp_path / "r", 4)))


@pytest.mark.parametrize("keep_last", [1, 9])
def test_a_best_that_was_rolled_back_is_best_no_more(keep_last, tmp_path):
    """Best at 4, better at 12, and from 13 back to 10: the best is then 4, where that is still there, or the next that is found."""
    steps: list[int] = []

    def poison(run: gb.training.Run) -> None:
        steps.append(run.step)
        if run.step == 12 and steps.count(12) == 1:
            with torch.no_grad():
                next(run.energy.parameters()).fill_(math.nan)

    def score(energy: Any) -> float:
        step, again = steps[-1] + 1, 12 in steps
        return {4: 0.5, 12: 0.7 if again else 0.1}.get(step, 1.0 if step < 16 else 0.8)

    run = gb.fit(gaussian(), Likelihood(), cloud(), steps=16, batch_size=8, run_dir=tmp_path / "r", hooks=[poison], validation=score,
                 logging=Logging(validate_every=2), guard=Guard(every=1, snapshot_every=10),
                 checkpoints=Checkpoints(every=2, keep_best=True, keep_last=keep_last))  # fmt: skip
    assert [(e["failed"], e["step"]) for e in run.events] == [(13, 10)]
    best = (4, 0.5) if keep_last == 9 else (12, 0.7)
    assert checkpoint.read_latest(tmp_path / "r", keys=("best",))["best"] == best
    assert torch.isfinite(weights(gb.load(tmp_path / "r", "best"))).all()


@pytest.mark.parametrize(
    ("numbers", "rule", "best"),
    [
        ([math.nan, 3.0, 2.0, 5.0], None, 6),
        ([0.1, 0.9, 0.7, 0.5], EarlyStopping(patience=9, number="accuracy", largest=True), 4),
    ],
    ids=["not a number at first", "the largest is best"],
)
def test_what_is_best_is_neither_no_number_nor_the_other_end_of_early_stopping(numbers, rule, best, tmp_path):
    found = iter(numbers)
    gb.fit(gaussian(), Likelihood(), cloud(), steps=8, batch_size=8, run_dir=tmp_path / "run", early_stopping=rule, logging=Logging(validate_every=2),
           validation=lambda e: {"accuracy": next(found)}, checkpoints=Checkpoints(keep_best=True, keep_last=1))  # fmt: skip
    assert checkpoint.steps_saved(tmp_path / "run") == [best, 8]


@pytest.mark.parametrize("answer", [None, "good", torch.zeros(2)])
def test_a_validation_that_returns_no_number_is_refused(answer):
    with pytest.raises(errors.ArgumentError, match=r"validation returned .* as 'score'; return one number"):
        gb.fit(gaussian(), Likelihood(), cloud(), steps=1, validation=lambda e: answer)


def test_the_best_checkpoint_is_kept(tmp_path):
    """The mean overshoots the target of 0.3: the best step lies in the middle."""
    folder = tmp_path / "run"
    run = gb.fit(gaussian(1), Likelihood(), cloud(8, 1) + 5, steps=40, batch_size=8, lr=0.03, run_dir=folder,
                 validation=lambda e: {"distance": abs(float(e.mean.detach()) - 0.3)}, logging=Logging(validate_every=2),
                 checkpoints=Checkpoints(keep_best=True, keep_last=1))  # fmt: skip
    distance = {r["step"]: r["validation_distance"] for r in run.history if "validation_distance" in r}
    best = min(distance, key=distance.__getitem__)
    assert 2 < best < 38
    assert abs(float(gb.load(folder, "best").mean.detach()) - 0.3) == pytest.approx(distance[best])
    assert len(list((folder / "checkpoints").iterdir())) == 2
    with pytest.raises(errors.CheckpointError, match="only of"):
        gb.load(folder, 7)


def test_hooks_may_be_called_every_so_often():
    seen: list[int] = []
    gb.fit(gaussian(), Likelihood(), cloud(), steps=10, hooks=[(4, lambda run: seen.append(run.step))])
    assert seen == [4, 8]
    with pytest.raises(errors.ArgumentError, match="pair"):
        gb.fit(gaussian(), Likelihood(), cloud(), steps=10, hooks=[(0, seen.append)])


def test_hooks_may_be_called_after_given_steps():
    seen: list[int] = []
    gb.fit(gaussian(), Likelihood(), cloud(), steps=10, hooks=[((7, 2, 7, 50), lambda run: seen.append(run.step))])
    assert seen == [2, 7]
    for when in ((0, 3), (2.5,), "ab", None):
        with pytest.raises(errors.ArgumentError, match="steps themselves"):
            gb.fit(gaussian(), Likelihood(), cloud(), steps=10, hooks=[(when, seen.append)])


def test_steps_taken_at_once_end_where_somebody_is_to_be_called():
    """A stepper that takes all that is free stops after exactly those steps where something is due."""
    free: list[tuple[int, int]] = []

    class Greedy:
        def at_once(self, left: int, usual: int) -> int:
            free.append((left, usual))
            return left

    settings = types.SimpleNamespace(steps=60, logging=Logging(every=20), checkpoints=Checkpoints(every=50))
    run = types.SimpleNamespace(step=0)
    seen: list[int] = []
    hooks = timed([((1, 6, 33), lambda run: seen.append(run.step)), (30, lambda run: seen.append(run.step))])
    job = types.SimpleNamespace(monitor=None, settings=settings, run=run, steps_to_turn=lambda: math.inf)
    plan = Plan(job, None, hooks)  # type: ignore[arg-type]
    stops = []
    while run.step < 60:
        run.step += plan.next(Greedy()).at_once  # type: ignore[arg-type]
        plan.call_hooks()
        stops.append(run.step)
    assert stops == [1, 6, 20, 30, 33, 40, 50, 60]
    assert seen == [1, 6, 30, 33, 60]
    assert {usual for _, usual in free} == {20}  # irregular calls do not shorten what is captured


def test_hooks_see_the_run_and_may_end_it():
    steps: list[int] = []

    def stop(run: gb.training.Run) -> bool:
        steps.append(run.step)
        return run.step == 4

    assert gb.fit(gaussian(), Likelihood(), cloud(), steps=100, hooks=[stop]).step == 4
    assert steps == [1, 2, 3, 4]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_a_checkpoint_and_goes_on_exactly(number, tmp_path, capsys):
    def interrupt(run: gb.training.Run) -> None:
        if run.step == 7:
            signal.raise_signal(number)

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    expected = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(expected):
        gb.fit(gaussian(), Likelihood(), cloud(), steps=20, batch_size=8, run_dir=tmp_path / "r", hooks=[interrupt])
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    message = capsys.readouterr().err
    assert "stopped at step 7;" in message  # the hook is interrupted, the step before it was whole
    assert "gibbsian.resume" in message
    resumed = gb.resume(tmp_path / "r", cloud(), hooks=(), trust=__name__)
    straight = gb.fit(gaussian(), Likelihood(), cloud(), steps=20, batch_size=8)
    assert resumed.step == 20
    assert torch.equal(weights(resumed.energy), weights(straight.energy))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_wait_for_a_slow_hook(number, tmp_path):
    went_on: list[int] = []

    def slow(run: gb.training.Run) -> None:
        if run.step == 3:
            signal.raise_signal(number)
            went_on.append(run.step)

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        gb.fit(gaussian(), Likelihood(), cloud(), steps=9, run_dir=tmp_path / "r", hooks=[slow])
    assert not went_on
    assert checkpoint.steps_saved(tmp_path / "r")[-1] == 3


def test_sigterm_gives_a_step_some_time_and_then_loses_it(tmp_path, monkeypatch, capsys):
    """The objective's third step would last for ten seconds; the last checkpoint is the one to go on from."""
    monkeypatch.setattr("gibbsian.training.loop._GRACE", 0.05)
    plain, calls = Likelihood.__call__, list[int]()

    def slow(self, *arguments):
        calls.append(len(calls) + 1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGTERM)
            for _ in range(1000):
                time.sleep(0.01)
        return plain(self, *arguments)

    keeps = Checkpoints(every=1)
    monkeypatch.setattr(Likelihood, "__call__", slow)
    with pytest.raises(SystemExit) as stop:
        gb.fit(gaussian(), Likelihood(), cloud(), steps=9, batch_size=8, run_dir=tmp_path / "r", checkpoints=keeps)
    monkeypatch.setattr(Likelihood, "__call__", plain)
    assert stop.value.code == 128 + signal.SIGTERM
    assert "stopped inside step 3, which is lost; the last checkpoint is of step 2" in capsys.readouterr().err
    resumed = gb.resume(tmp_path / "r", cloud())
    straight = gb.fit(gaussian(), Likelihood(), cloud(), steps=9, batch_size=8)
    assert torch.equal(weights(resumed.energy), weights(straight.energy))


def test_a_hook_may_put_files_into_the_folder_before_the_first_step(tmp_path):
    class Furnished:
        def begin(self, folder: Path) -> None:
            assert not (tmp_path / "r").exists()  # the folder appears whole
            (folder / "mine.txt").write_text("mine")

        def __call__(self, run: gb.training.Run) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gb.fit(gaussian(), Likelihood(), cloud(), steps=9, run_dir=tmp_path / "r", hooks=[Furnished()])
    assert (tmp_path / "r" / "mine.txt").read_text() == "mine"


def test_tensorboard_gets_the_scalars_or_the_user_is_told_to_install_it(tmp_path, monkeypatch):
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: Path, purge_step: int) -> None:
            self.folder = folder

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    gb.fit(
        gaussian(), Likelihood(), cloud(), steps=2, logging=Logging(every=1, tensorboard=True), run_dir=tmp_path / "r"
    )
    assert ("loss", 1) in {(name, step) for name, _, step in written}
    assert written[-1][0] == "closed"
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(errors.CapabilityError, match="pip install tensorboard"):
        gb.fit(gaussian(), Likelihood(), cloud(), steps=2, logging=Logging(tensorboard=True), run_dir=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_progress_is_drawn_where_it_is_asked_for(capsys):
    gb.fit(gaussian(), Likelihood(), cloud(), steps=3, progress=True)
    assert "training" in capsys.readouterr().err
    gb.fit(gaussian(), Likelihood(), cloud(), steps=3)
    assert capsys.readouterr().err == ""


def test_any_energy_and_objective_train_by_the_same_call():
    data = cloud(50)
    mlp = gb.as_energy(nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 1), nn.Flatten(0)), domains.Real(2))
    for objective in (
        objectives.ContrastiveDivergence(kernels.Langevin(0.1), steps=2),
        objectives.PersistentContrastiveDivergence(kernels.MALA(0.1), steps=2, chains=10, buffer=40, reinit=0.1),
        objectives.DenoisingScoreMatching(0.3),
        objectives.SlicedScoreMatching(),
        objectives.NoiseContrastive("gaussian"),
        objectives.Adversarial("flow"),
        objectives.Weighted([objectives.DenoisingScoreMatching(0.3), objectives.WeightDecay(1e-3)]),
    ):
        before = weights(mlp)
        gb.fit(mlp.double(), objective, data, steps=3, batch_size=20)
        assert torch.isfinite(weights(mlp)).all()
        assert not torch.equal(before, weights(mlp).to(before))
