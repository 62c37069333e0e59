"""Run folders: no pickle, atomic, checked, and resumed to the bit."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gibbsian as gb
from gibbsian import domains, energies, errors, kernels, models, objectives, units
from gibbsian.training import Checkpoints, Guard, Logging, checkpoint
from gibbsian.training.feeds.choose import make_feed
from gibbsian.training.feeds.fingerprint import same_fingerprint
from gibbsian.training.serialize import describe, rebuild
from gibbsian.training.trust import trust

trust(__name__)  # classes of this file are saved and rebuilt
PICKLES = {".pt", ".pth", ".pkl", ".ckpt", ".bin"}


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bits(n: int = 60, d: int = 6) -> Tensor:
    return (torch.rand(n, d, generator=gen()) < 0.3).double()


def reals(n: int = 60, d: int = 2) -> Tensor:
    return torch.randn(n, d, generator=gen(), dtype=torch.float64)


def mlp() -> gb.Energy:
    with gb.random.isolated(gen(5)):
        net = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 1), nn.Flatten(0))
    return gb.as_energy(net, domains.Real(2)).double()


def gaussian(d: int = 2) -> energies.Gaussian:
    return energies.Gaussian(torch.zeros(d).double(), torch.eye(d).double(), trainable=True)


def weights(energy: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in energy.parameters()])


# --- objects as text ------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Tensor
    right: Any


def there_and_back(value: Any, **how: Any) -> Any:
    tensors: dict[str, Tensor] = {}
    plain = json.loads(json.dumps(describe(value, tensors, **how), allow_nan=False))
    return rebuild(plain, tensors)


def test_trees_of_plain_values_come_back_as_they_were():
    tree = {
        "numbers": [1, 2.5, True, None, "text", float("-inf")],
        "tuple": (1, (2, [3])),
        "odd keys": {0: "a", "$x": "b"},
        "empty": {},
        "pair": Pair(torch.ones(2, dtype=torch.float64), {"inner": ()}),
        "dtype": torch.bfloat16,
        "function": torch.nn.functional.silu,
        "class": torch.nn.SiLU,
    }
    back = there_and_back(tree)
    assert isinstance(back["pair"], Pair)
    assert torch.equal(back["pair"].left, tree["pair"].left)
    for both in (tree, back):
        both["pair"] = both["pair"].right
    assert back == tree
    assert type(back["tuple"]) is tuple
    assert there_and_back(float("nan")) != there_and_back(float("nan"))


@pytest.mark.parametrize(
    "value",
    [
        domains.Real((2, 3)),
        domains.Box(2, low=-1.0, high=(1.0, 2.0)),
        domains.NonNegative(4),
        domains.Binary(3),
        domains.Spin(3),
        domains.Categorical((2, 2), classes=3),
        kernels.HMC(step_size=0.1, leapfrog_steps=3),
        kernels.Langevin(step_size=0.1),
        objectives.PersistentContrastiveDivergence(kernels.Gibbs(), steps=3, chains=7),
        objectives.MultiScaleDenoising(gb.schedules.geometric(1.0, 0.1, 3)),
        objectives.Weighted([objectives.DenoisingScoreMatching(0.1), objectives.WeightDecay()], [1.0, 0.5]),
        objectives.NoiseContrastive("mixture", ratio=3),
        Guard(every=3),
    ],
    ids=lambda v: type(v).__name__,
)
def test_domains_kernels_and_objectives_come_back_equal(value):
    assert there_and_back(value) == value


def energies_to_save() -> dict[str, gb.Energy]:
    g = gaussian()
    wide = energies.Gaussian(torch.zeros(2).double(), 4 * torch.eye(2).double())
    square = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Tanh(), nn.LayerNorm(3), nn.Linear(3, 1), nn.Flatten(0))
    return {
        "gaussian": g,
        "sum": g + wide,
        "temperature": wide / 2.0,
        "mixture": gb.mixture([wide, energies.Gaussian(torch.ones(2).double(), torch.eye(2).double())], [0.3, 0.7]),
        "layers": gb.as_energy(square.double(), domains.Real(2)),
        "mlp": mlp(),
    }


@pytest.mark.parametrize("name", list(energies_to_save()))
def test_energies_are_rebuilt_from_their_arguments(name):
    energy, x = energies_to_save()[name], reals(5)
    again = there_and_back(energy)
    assert type(again) is type(energy)
    assert torch.equal(again(x), energy(x))
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in energy.parameters()]
    assert {p.dtype for p in again.parameters()} <= {torch.float64}


def test_machines_of_every_unit_are_rebuilt():
    for visible in (units.Bernoulli(4), units.Spin(4), units.Gaussian(4), units.Softmax(2, 2)):
        rbm = models.RBM(visible, 3, generator=gen(7)).double()
        x = rbm.domain.sample(5, generator=gen(), dtype=torch.float64)
        assert torch.equal(there_and_back(rbm)(x), rbm(x))


def test_a_module_used_twice_is_rebuilt_once():
    part = gaussian()
    again = there_and_back(part + part)
    assert again.parts[0] is again.parts[1]


class Keeps(nn.Module):
    """A plain module that stores its arguments under their names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.layer = nn.Linear(2, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().sum(1)


class Forgets(Keeps):
    def __init__(self, wide: int) -> None:
        super().__init__(wide)


def top_level_energy(x: Tensor) -> Tensor:
    return x.square().sum(1)


def test_plain_modules_and_functions_are_rebuilt_where_that_is_possible():
    x = reals(3).float()
    keeps = gb.as_energy(Keeps(3), domains.Real(2))
    assert torch.equal(there_and_back(keeps)(x), keeps(x))
    assert torch.equal(there_and_back(gb.as_energy(top_level_energy, domains.Real(2)))(x), top_level_energy(x))
    with pytest.raises(errors.CapabilityError, match="'wide'"):
        describe(gb.as_energy(Forgets(3), domains.Real(2)), {})


@pytest.mark.parametrize(
    "plain",
    [
        {"$module": "subprocess:Popen", "args": [["true"]], "kwargs": {}},
        {"$named": "os:stat_result", "items": []},
        {"$dataclass": "pathlib:Path", "fields": {}},
        {"$name": "os:system"},
        {"$name": "no_such_module:thing"},
        {"$name": "gibbsian.energy:no_such_thing"},
        {"$unheard": 1},
        {"$tensor": "missing"},
        {"$module": "torch.nn.modules.linear:Linear", "args": [1, 2, 3, 4, 5, 6], "kwargs": {}},
    ],
)
def test_foreign_descriptions_are_refused(plain):
    with pytest.raises(errors.CheckpointError):
        rebuild(plain, {})


def test_what_cannot_be_saved_is_refused_at_once(tmp_path):
    local = gb.as_energy(lambda x: x.square().sum(1), domains.Real(2))
    noise = objectives.NoiseContrastive("gaussian")
    with pytest.raises(errors.CapabilityError, match="lambda"):
        gb.fit(local, noise, reals(), steps=3, run_dir=tmp_path / "a")
    with pytest.raises(errors.CapabilityError, match="lambda"):
        gb.fit(gaussian(), noise, reals(), steps=3, run_dir=tmp_path / "a", schedule=lambda step: 0.1)
    assert list(tmp_path.iterdir()) == []
    gb.fit(local, noise, reals(), steps=3)  # without a folder it trains


# --- going on exactly -----------------------------------------------------------------------------


def binarize(batch: Tensor, generator: torch.Generator) -> Tensor:
    return (torch.rand(batch.shape, generator=generator, dtype=batch.dtype) < 0.5 * batch + 0.2).to(batch)


def rbm() -> models.RBM:
    return models.RBM(6, 4, generator=gen(3)).double()


def corrected() -> gb.Energy:
    base, classifier = (gb.nets.MLP(2, (6,), outputs=3, generator=gen(k)) for k in (1, 2))
    return models.JointEnergy(gb.nets.Corrected(base, classifier), domains.Real(2)).double()


PCD = objectives.PersistentContrastiveDivergence
BOUND = PCD(
    kernels.ShortRunLangevin(0.5, 0.01, last=0.1, cycle=3), 3, classes=3, buffer=90, reinit=0.2, reinit_far=0.5,
    start={"gaussian": 0.7, "reference": 0.3}, fast_weights=0.01,
)  # fmt: skip
RUNS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "persistent chains": (rbm, PCD(kernels.Gibbs(), chains=8), bits(), {}),
    "replay buffer": (
        mlp,
        PCD(kernels.Langevin(0.2), steps=3, chains=6, buffer=30, reinit=0.2),
        reals(),
        {"clip": 0.5, "ema": 0.9},
    ),
    "fast weights": (rbm, PCD(kernels.Gibbs(), chains=8, fast_weights=0.1, start="data"), bits(), {}),
    "momentum and cosine": (
        rbm,
        objectives.ContrastiveDivergence(kernels.Gibbs()),
        bits(),
        {"optimizer": {"name": "sgd", "momentum": torch.linspace(0.5, 0.9, 12)}, "schedule": "cosine"},
    ),
    "learned log Z": (mlp, objectives.NoiseContrastive("gaussian"), reals(), {}),
    "a flow along": (gaussian, objectives.Adversarial("flow"), reals(), {"optimizer": "rmsprop", "lr": 1e-3}),
    "a sum": (
        rbm,
        objectives.Weighted([PCD(kernels.Gibbs(), chains=4), objectives.WeightDecay(0.01)]),
        bits(),
        {"guard": False},
    ),
    "parts of a network": (
        corrected,
        objectives.Weighted(
            [
                objectives.CrossEntropy(),
                objectives.Sparing(objectives.FirstRows(objectives.Blurred(BOUND, 0.1), 4), ["classifier"]),
            ]
        ),
        (reals(), torch.arange(60) % 3),
        {"ema": 0.9},
    ),
    "two phases, stopped where they meet": (
        mlp,
        objectives.EnergyMatching(steps=3, step_size=0.1, flow_steps=0.55, jump_every=2, noise="gaussian"),
        reals(),
        {},
    ),
    "a generator and its score": (mlp, objectives.Adversarial("implicit"), reals(), {}),
    "a transform": (rbm, objectives.ContrastiveDivergence(kernels.Gibbs()), bits(), {"transform": binarize}),
    "a loader": (mlp, objectives.DenoisingScoreMatching(0.3), DataLoader(TensorDataset(reals()), 9, shuffle=True), {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_ten_steps_stop_resume_and_ten_steps_are_twenty(name, tmp_path):
    make, objective, data, how = RUNS[name]
    how = {"batch_size": 9, "lr": 0.03, "seed": 7, "logging": Logging(every=5), **how}
    straight = gb.fit(make(), objective, data, steps=20, **how)

    def stop(run: gb.training.Run) -> bool:
        return run.step == 11  # inside the second epoch of seven batches

    gb.fit(make(), objective, data, steps=20, run_dir=tmp_path / "r", hooks=[stop], **how)
    before = torch.get_rng_state()
    resumed = gb.resume(tmp_path / "r", data, transform=how.get("transform"), hooks=())
    assert torch.equal(before, torch.get_rng_state())
    assert resumed.step == 20
    assert torch.equal(weights(straight.energy), weights(resumed.energy))
    a, b = checkpoint.freeze(straight.state), checkpoint.freeze(resumed.state)
    tensors: list[dict[str, Tensor]] = [{}, {}]
    assert describe(a, tensors[0]) == describe(b, tensors[1])
    assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0])
    if straight.ema is not None:
        assert torch.equal(weights(straight.ema), weights(resumed.ema))
        assert torch.equal(weights(gb.load(tmp_path / "r", ema=True)), weights(straight.ema))
    assert [r["step"] for r in resumed.history] == [5, 10, 15, 20]
    assert [r["loss"] for r in resumed.history] == [r["loss"] for r in straight.history]  # means since the last record
    assert not [f for f in tmp_path.rglob("*") if f.suffix in PICKLES]
    assert torch.equal(weights(gb.load(tmp_path / "r")), weights(straight.energy))


def test_the_total_may_be_raised_and_frozen_parameters_stay_frozen(tmp_path):
    def start() -> energies.Gaussian:
        energy = gaussian()
        energy.off_diagonal.requires_grad_(False)
        return energy

    objective = objectives.ImplicitScoreMatching()
    straight = gb.fit(start(), objective, reals(), steps=20, batch_size=9)
    gb.fit(start(), objective, reals(), steps=9, batch_size=9, run_dir=tmp_path / "r")
    resumed = gb.resume(tmp_path / "r", reals(), steps=20)
    assert torch.equal(weights(straight.energy), weights(resumed.energy))
    assert not resumed.energy.off_diagonal.requires_grad
    assert gb.resume(tmp_path / "r", reals(), steps=20).step == 20  # nothing left to do
    assert gb.resume(tmp_path / "r", reals(), epochs=3).step == 21
    with pytest.warns(errors.TrainingWarning, match="60 rows"):
        gb.resume(tmp_path / "r", reals(30), steps=22)


def test_other_data_with_as_many_rows_are_noticed_and_the_same_data_are_not(tmp_path):
    labels = torch.arange(60) % 3
    trained(tmp_path / "a", 2)
    for data in (reals(), reals().numpy(), TensorDataset(reals()), reals() * (1 + 1e-7)):  # the same, up to rounding
        gb.resume(tmp_path / "a", data, steps=3)
    one = reals()
    one[17] += 1.0
    for data in (reals() + 0.1, reals().flip(0), one):
        with pytest.warns(errors.TrainingWarning, match="other values"):
            gb.resume(tmp_path / "a", data, steps=3)
    saved = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float64, (60, 2))
    saved[:] = reals().numpy()
    gb.resume(tmp_path / "a", np.load(tmp_path / "x.npy", mmap_mode="r"), steps=3)
    saved[:] = 0
    with pytest.warns(errors.TrainingWarning, match="other values"):
        gb.resume(tmp_path / "a", np.load(tmp_path / "x.npy", mmap_mode="r"), steps=3)

    def prints(*parts: Tensor) -> list[float]:
        feed = make_feed(parts, 9, seed=0, device=torch.device("cpu"), check=lambda batch: None)
        return feed.fingerprint()

    assert same_fingerprint(prints(reals(), labels), prints(reals(), labels))
    assert not same_fingerprint(prints(reals(), labels), prints(reals(), labels.flip(0)))


def test_two_trainings_in_one_folder_at_once_are_refused(tmp_path):
    trained(tmp_path / "a", 3)
    refused = []

    def again(run: gb.training.Run) -> None:
        with pytest.raises(errors.CheckpointError, match="another training is at work") as caught:
            gb.resume(tmp_path / "a", reals(), steps=9)
        refused.append(str(caught.value))
        assert torch.isfinite(weights(gb.load(tmp_path / "a"))).all()  # reading is free

    resumed = gb.resume(tmp_path / "a", reals(), steps=6, hooks=[again])
    assert len(refused) == 3
    straight = trained(tmp_path / "b", 6, hooks=[(6, lambda run: again_in(tmp_path / "b"))])
    assert torch.equal(weights(resumed.energy), weights(straight.energy))
    with pytest.raises(RuntimeError, match="broken"):
        gb.resume(tmp_path / "a", reals(), steps=7, hooks=[broken])
    assert gb.resume(tmp_path / "a", reals(), steps=7).step == 7  # the lock ended with the run


def again_in(folder: Path) -> None:
    with pytest.raises(errors.CheckpointError, match="another training is at work"):
        gb.resume(folder, reals())


def broken(run: gb.training.Run) -> None:
    raise RuntimeError("broken")


# --- damage ---------------------------------------------------------------------------------------


def trained(folder: Path, steps: int = 6, **how: Any) -> gb.training.Run:
    objective = objectives.DenoisingScoreMatching(0.3)
    return gb.fit(gaussian(), objective, reals(), steps=steps, batch_size=20, run_dir=folder, **how)


def newest(folder: Path) -> Path:
    return sorted((folder / "checkpoints").iterdir())[-1]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def edit(path: Path, old: str, new: str) -> None:
    """Change a text, and its checksum with it."""
    text = json.loads(path.read_text().replace(old, new))
    path.write_text(json.dumps(text | {"checksum": checkpoint.checksum(text)}))


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


DAMAGE = {
    "tensors truncated": lambda c: truncate(c / "state.safetensors"),
    "a bit flipped": lambda c: flip_a_bit(c / "state.safetensors"),
    "tensors gone": lambda c: (c / "state.safetensors").unlink(),
    "text truncated": lambda c: truncate(c / "state.json"),
    "text empty": lambda c: (c / "state.json").write_text(""),
    "text foreign": lambda c: (c / "state.json").write_text('{"weights": [1, 2]}'),
    "another format": lambda c: (c / "state.json").write_text(
        (c / "state.json").read_text().replace('"format": 1', '"format": 99')
    ),
    "a digit changed": lambda c: (c / "state.json").write_text(
        (c / "state.json").read_text().replace('"lines": ', '"lines": 1')
    ),
    "weights of another kind": lambda c: edit(c / "state.json", '"$tensor": "energy.mean"', '"$float": "1.0"'),
    "a folder that is a file": lambda c: [_remove(c), c.write_text("nothing")],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(name, tmp_path):
    straight = trained(tmp_path / "a", 9)
    trained(tmp_path / "b", checkpoints=Checkpoints(every=3))
    DAMAGE[name](newest(tmp_path / "b"))
    with pytest.warns(errors.TrainingWarning, match="going on from step 3"):
        resumed = gb.resume(tmp_path / "b", reals(), steps=9)
    assert torch.equal(weights(straight.energy), weights(resumed.energy))
    for saved in (tmp_path / "b" / "checkpoints").iterdir():
        DAMAGE[name](saved)
    with pytest.raises(errors.CheckpointError, match="every checkpoint") as caught:
        gb.load(tmp_path / "b")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"), [('"device": "cpu"', '"device": []'), ('"lines":', '"liness":'), ('"$tuple"', '"$tupel"')]
)
def test_a_checkpoint_with_parts_of_another_kind_is_damaged(old, new, tmp_path):
    trained(tmp_path / "b", checkpoints=Checkpoints(every=3))
    edit(newest(tmp_path / "b") / "state.json", old, new)
    with pytest.warns(errors.TrainingWarning, match="going on from step 3"):
        assert gb.resume(tmp_path / "b", reals(), steps=7).step == 7


def test_a_folder_from_before_checksums_loads_with_one_warning_and_its_damage_is_one_sentence(tmp_path):
    trained(tmp_path / "a", 4)
    for file in (tmp_path / "a").rglob("*.json"):
        text = json.loads(file.read_text())
        text.pop("checksum", None)
        file.write_text(json.dumps(text))
    with pytest.warns(errors.TrainingWarning) as caught:
        gb.load(tmp_path / "a")
    assert len(caught) == 1
    assert "before run folders had checksums" in str(caught[0].message)
    with pytest.warns(errors.TrainingWarning) as caught:
        gb.resume(tmp_path / "a", reals(), steps=5)
    assert len(caught) == 1
    state = newest(tmp_path / "a") / "state.json"
    edit(state, '"step": 5', '"step": "5"')
    with pytest.warns(errors.TrainingWarning) as caught:
        gb.resume(tmp_path / "a", reals(), steps=6)
    assert "going on from step 4" in str(caught[-1].message)
    state = newest(tmp_path / "a") / "state.json"
    state.write_text(state.read_text().replace('"checksum"', '"checksun"'))
    with pytest.raises(errors.CheckpointError, match="damaged"):  # no file of old: an entry has another name
        checkpoint.read_tree(state.parent, "state")


def test_a_damaged_log_loses_the_damaged_line_only(tmp_path):
    trained(tmp_path / "a", 6, logging=Logging(every=1))
    path = tmp_path / "a" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_bytes("\n".join([*lines[:2], lines[2][:9], *lines[3:]]).encode() + b"\n")
    with pytest.warns(errors.TrainingWarning, match=r"metrics\.jsonl is damaged: 1 of its lines"):
        run = gb.resume(tmp_path / "a", reals(), steps=7)
    assert [record["step"] for record in run.history] == [1, 2, 4, 5, 6, 7]
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 4, 5, 6, 7]
    path.write_bytes(path.read_bytes().replace(b'"epoch": 0', b'"epoch": 1', 1))
    with pytest.warns(errors.TrainingWarning, match="not those that were written"):
        gb.resume(tmp_path / "a", reals(), steps=8)
    path.write_bytes(path.read_bytes() + b'{"step": 9, "lo')  # cut off by a crash, after the checkpoint
    assert gb.resume(tmp_path / "a", reals(), steps=9).step == 9


def test_a_damaged_checkpoint_does_not_outlive_the_run_that_passed_it_over(tmp_path):
    trained(tmp_path / "a", checkpoints=Checkpoints(every=3))
    truncate(newest(tmp_path / "a") / "state.json")
    with pytest.warns(errors.TrainingWarning, match="going on from step 3"):
        gb.resume(tmp_path / "a", reals(), steps=5)
    assert checkpoint.steps_saved(tmp_path / "a") == [3, 5]


def test_missing_and_foreign_folders_are_named(tmp_path):
    with pytest.raises(errors.CheckpointError, match="not a run folder"):
        gb.resume(tmp_path / "nothing", reals())
    trained(tmp_path / "a")
    with pytest.raises(errors.CheckpointError, match="already holds files"):
        trained(tmp_path / "a")
    with pytest.raises(errors.CheckpointError, match="no best checkpoint"):
        gb.load(tmp_path / "a", "best")
    with pytest.raises(errors.CheckpointError, match="no averaged weights"):
        gb.load(tmp_path / "a", ema=True)
    with pytest.raises(errors.ArgumentError, match="expected 'last'"):
        gb.load(tmp_path / "a", "first")
    config = tmp_path / "a" / "config.json"
    edit(config, "energies.gaussian:Gaussian", "energies.gaussian:Gone")
    with pytest.raises(errors.CheckpointError, match="Gone"):
        gb.load(tmp_path / "a")
    edit(config, "energies.gaussian:Gone", "energies.banana:Banana")
    with pytest.raises(errors.CheckpointError, match="Banana"):
        gb.load(tmp_path / "a")
    for saved in (tmp_path / "a" / "checkpoints").iterdir():
        for file in saved.iterdir():
            file.unlink()
        saved.rmdir()
    trained(tmp_path / "empty folders are fine" / "b")


def test_a_failed_write_leaves_the_checkpoint_before_it(tmp_path, monkeypatch):
    trained(tmp_path / "a", 4)
    rename = Path.rename

    def no_space(self: Path, target: Any) -> Any:
        if "step-" in str(target):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", no_space)
    with pytest.raises(OSError, match="No space"):
        gb.resume(tmp_path / "a", reals(), steps=8)
    monkeypatch.undo()
    assert checkpoint.steps_saved(tmp_path / "a") == [0, 4]
    resumed = gb.resume(tmp_path / "a", reals(), steps=8)
    assert torch.equal(weights(resumed.energy), weights(trained(tmp_path / "b", 8).energy))
    assert not list((tmp_path / "a" / "checkpoints").glob(".*"))


def test_old_checkpoints_are_removed(tmp_path):
    trained(tmp_path / "a", 20, checkpoints=Checkpoints(every=3, keep_last=3))
    assert checkpoint.steps_saved(tmp_path / "a") == [15, 18, 20]
    assert torch.isfinite(weights(gb.load(tmp_path / "a", 15))).all()


KILLED = """
import os, random, signal, sys, time
import torch
import gibbsian as gb
from gibbsian import kernels, models, objectives

torch.set_num_threads(1)
folder, kills, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
data = (torch.rand(50, 6, generator=torch.Generator().manual_seed(0)) < 0.3).float()
objective = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=8)

def work():
    if os.path.exists(folder):
        return gb.resume(folder, data)
    how = dict(steps=steps, batch_size=9, run_dir=folder,
               checkpoints=gb.training.Checkpoints(every=1), logging=gb.training.Logging(every=1))
    return gb.fit(models.RBM(6, 4), objective, data, **how)

def reached():
    names = os.listdir(folder + "/checkpoints") if os.path.exists(folder) else []
    return max((int(name[5:]) for name in names if name.startswith("step-")), default=-1)

gb.fit(models.RBM(6, 4), objective, data, steps=1)  # what torch imports lazily is there before the forks
chance = random.Random(0)
for kill in range(kills):  # each child works until it is killed, wherever it is
    before, child = reached(), os.fork()
    if child == 0:
        work()
        os._exit(0)
    late = time.monotonic() + 20
    while kill > 4 and reached() == before and time.monotonic() < late:
        time.sleep(0.001)  # so that the run gets on, however slow the machine is
    time.sleep(chance.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(f"child {kill} ended by itself with status {status}")
print("reached", reached())
work()
"""


def test_a_run_killed_fifty_times_resumes_and_equals_the_uninterrupted_one(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    folder, steps = tmp_path / "run", 1000  # more than fifty children can do, on any machine
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(script), str(folder), "50", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 40  # the kills hit a run that was getting on
    data = (torch.rand(50, 6, generator=gen()) < 0.3).float()
    objective = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=8)
    straight = gb.fit(models.RBM(6, 4), objective, data, steps=steps, batch_size=9)
    assert torch.equal(weights(straight.energy), weights(gb.load(folder)))
    lines = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(range(1, steps + 1))


def test_a_resumed_run_takes_other_rates_and_its_folder_keeps_the_first_ones(tmp_path):
    make, objective, data, _ = RUNS["a transform"]
    how = {"transform": binarize, "batch_size": 9, "seed": 7}
    gb.fit(make(), objective, data, steps=10, lr=0.03, schedule=torch.full((10,), 0.03), run_dir=tmp_path / "r", **how)
    before = weights(gb.load(tmp_path / "r"))
    rates = torch.tensor([0.03] * 10 + [0.0] * 5)
    run = gb.resume(tmp_path / "r", data, steps=15, schedule=rates, transform=binarize)
    assert run.step == 15
    assert torch.equal(weights(run.energy), before)
    assert not torch.equal(weights(gb.resume(tmp_path / "r", data, steps=16, transform=binarize).energy), before)
