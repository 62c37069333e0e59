"""What trainers expect: loggers, early stopping, torch's schedulers, validation numbers in reach, and being asked on resume."""

import csv
import json
import math
import time
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler

import gibbsian as gb
from gibbsian.app.recipe import parse_recipe
from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.training import Checkpoints, EarlyStopping, Logger, Logging, loggers
from gibbsian.training.rates import NAMES, TorchRates

HOW = {"batch_size": 20, "progress": False, "lr": 0.1}
EVERY = Logging(every=5, validate_every=10)


def cloud(n=60):
    return 2 + torch.randn(n, 2, generator=torch.Generator().manual_seed(0))


def gaussian():
    return gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)


def objective():
    return gb.objectives.ImplicitScoreMatching()


def fit(folder=None, steps=40, **more):
    return gb.fit(gaussian(), objective(), cloud(), run_dir=folder, steps=steps, **HOW | {"logging": EVERY} | more)


# --- loggers --------------------------------------------------------------------------------------


class Kept(Logger):
    """A logger of one's own."""

    def __init__(self):
        self.calls = []

    def open(self, folder, about, step):
        self.calls.append(("open", about["energy"], step))

    def write(self, record):
        self.calls.append(("write", record))

    def close(self):
        self.calls.append(("close",))


def test_a_logger_of_ones_own_gets_every_record():
    kept = Kept()
    run = fit(loggers=[kept], validation=cloud())
    assert kept.calls[0] == ("open", "Gaussian", 0)
    assert kept.calls[-1] == ("close",)
    assert [call[1] for call in kept.calls if call[0] == "write"] == run.history


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", [loggers.CSV, loggers.JSONLines])
@pytest.mark.parametrize("text", ["a,b\n1,2\n", '{"a": 1}\n', "[1]\n", "export PATH\n"])
def test_a_file_that_is_no_log_is_spared(kind, text, tmp_path):
    """A recipe from elsewhere may name any file, and one of yours may name the wrong one."""
    path = tmp_path / "mine"
    path.write_text(text)
    with pytest.raises(gb.errors.ArgumentError, match="holds something else"):
        loggers.check_loggers([kind(str(path))], None)
    assert path.read_text() == text


def test_files_hold_the_history_also_after_a_resume_from_before_its_end(tmp_path):
    def both():
        return [loggers.CSV(), loggers.JSONLines(str(tmp_path / "elsewhere.jsonl"))]

    fit(tmp_path / "r", steps=30, loggers=both(), validation=cloud(), checkpoints=Checkpoints(every=12, keep_last=9))
    for later in (24, 30):  # as if it had been killed between: the run goes on from step 12
        (tmp_path / "r" / "checkpoints" / f"step-{later:012d}" / "state.json").write_text("cut off")
    with pytest.warns(gb.errors.TrainingWarning, match="going on from step 12"):
        run = gb.resume(tmp_path / "r", cloud(), 40, loggers=both(), validation=cloud(), progress=False)
    lines = [json.loads(line) for line in (tmp_path / "elsewhere.jsonl").read_text().splitlines()]
    assert lines == run.history
    table = rows(tmp_path / "r" / "log.csv")
    assert [int(row["step"]) for row in table] == [record["step"] for record in run.history]
    for row, record in zip(table, run.history, strict=True):
        assert {k: v for k, v in row.items() if v} == {k: str(v) for k, v in record.items()}
    assert "validation_loss" in table[0]


def test_loggers_that_cannot_work_are_refused_before_the_first_step(tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match="run_dir"):
        fit(loggers=[loggers.CSV()])
    with pytest.raises(ArgumentError, match="loggers holds a str"):
        fit(loggers=["csv"])
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(CapabilityError, match=r"gibbsian\[wandb\]"):
        fit(tmp_path / "r", loggers=[loggers.WandB()])
    assert not (tmp_path / "r").exists()


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = fit(tmp_path / "r", loggers=[loggers.TensorBoard()])
    read = EventAccumulator(str(tmp_path / "r" / "tensorboard"))
    read.Reload()
    written = {r["step"]: r["loss"] for r in run.history if "loss" in r}
    assert {e.step: pytest.approx(e.value, rel=1e-6) for e in read.Scalars("loss")} == written


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    given = {"loggers": [loggers.WandB(project="tests", mode="offline", options={"settings": {"console": "off"}})]}
    fit(tmp_path / "r", steps=10, **given)
    known = (tmp_path / "r" / "wandb-id").read_text()
    (written,) = (tmp_path / "r" / "wandb").glob("offline-run-*/*.wandb")
    for _ in range(100):  # a process of its own writes it
        if b"gradient_norm" in written.read_bytes():
            break
        time.sleep(0.1)
    assert b"gradient_norm" in written.read_bytes()
    gb.resume(tmp_path / "r", cloud(), 20, progress=False, **given)
    files = (tmp_path / "r" / "wandb").glob("offline-run-*/*.wandb")
    assert {file.stem for file in files} == {f"run-{known}"}  # it goes on under its name


def test_recipes_name_loggers_schedulers_and_early_stopping():
    text = """
data: {name: moons}
model: {MLPEnergy: {domain: 2}}
objective: {SlicedScoreMatching: }
fit:
  steps: 5
  loggers: [CSV, {WandB: {project: mine, mode: offline}}]
  schedule: {StepLR: {step_size: 2, gamma: 0.1}}
  early_stopping: {patience: 3}
  loading: {workers: 0, buffer: 100}
"""
    recipe = parse_recipe(text)
    assert recipe.fit["loggers"] == [loggers.CSV(), loggers.WandB("mine", mode="offline")]
    assert recipe.fit["early_stopping"] == EarlyStopping(3)
    assert recipe.fit["loading"].buffer == 100
    assert parse_recipe(recipe.text).fit == recipe.fit
    run = gb.fit(
        recipe.model,
        recipe.objective,
        cloud(),
        **HOW | {"steps": 5, "schedule": recipe.fit["schedule"]},
        logging=Logging(every=1),
    )
    assert [r["lr"] for r in run.history] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])


# --- schedulers of torch --------------------------------------------------------------------------


def by_hand(make, steps, lr=1e-3, **momentum):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=lr, **momentum)
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


CHOICES = {
    "dictionary": ({"name": "MultiStepLR", "milestones": [3, 7], "gamma": 0.5}, partial(lr_scheduler.MultiStepLR, milestones=[3, 7], gamma=0.5)),
    "partial": (partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=4), partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=4)),
    "one cycle": ({"name": "OneCycleLR", "max_lr": 4e-3, "total_steps": 20}, partial(lr_scheduler.OneCycleLR, max_lr=4e-3, total_steps=20)),
    "sequence": (
        {"name": "SequentialLR", "schedulers": [{"name": "ConstantLR", "factor": 0.1, "total_iters": 4}, {"name": "ExponentialLR", "gamma": 0.9}], "milestones": [5]},
        lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o, 0.1, 4), lr_scheduler.ExponentialLR(o, 0.9)], [5]),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")
@pytest.mark.parametrize("name", CHOICES)
def test_rates_are_those_of_torch_also_when_a_run_is_resumed(name, tmp_path):
    choice, make = CHOICES[name]
    want = by_hand(make, 20, momentum=0.9)
    more = {"schedule": choice, "optimizer": {"name": "sgd", "momentum": 0.9}, "lr": 1e-3, "logging": Logging(every=1)}
    run = fit(tmp_path / "r" if name != "partial" else None, steps=9 if name != "partial" else 20, **more)
    if name != "partial":
        run = gb.resume(tmp_path / "r", cloud(), 20, progress=False)
    assert [r["lr"] for r in run.history if "lr" in r] == pytest.approx(want, rel=1e-12)


def test_momentum_that_a_scheduler_cycles_reaches_the_optimizer():
    seen = []

    def make(parameters):
        optimizer = torch.optim.Adam(parameters, lr=0.1)
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["betas"][0]))
        return optimizer

    fit(steps=20, optimizer=make, schedule={"name": "OneCycleLR", "max_lr": 0.4, "total_steps": 20}, guard=False)
    assert seen[0] == pytest.approx(0.95)
    assert min(seen) == pytest.approx(0.85, abs=0.01)


def test_a_plateau_lowers_the_rate_and_its_state_is_kept(tmp_path):
    numbers = [5.0, 4.0, 4.5, 4.6, 4.7, 3.0, 3.1, 3.2, 3.3, 3.4]

    def judging():
        return iter(numbers).__next__

    schedule = {"name": "ReduceLROnPlateau", "factor": 0.5, "patience": 1}
    more = {"schedule": schedule, "logging": Logging(every=1, validate_every=2)}
    values = judging()
    whole = fit(steps=20, validation=lambda energy: values(), **more)
    values = judging()
    fit(tmp_path / "r", steps=7, validation=lambda energy: values(), **more)  # the last step is judged too
    rates = {r["step"]: r["lr"] for r in whole.history if "lr" in r}
    assert (rates[8], rates[9]) == (0.1, 0.05)  # the second in a row that is no better ends step 8
    values = iter(numbers[3:]).__next__
    run = gb.resume(tmp_path / "r", cloud(), 20, validation=lambda energy: values(), progress=False)
    again = {r["step"]: r["lr"] for r in run.history if "lr" in r}
    assert again[8] == 0.05  # step 7 was judged as well
    with pytest.raises(ArgumentError, match="ReduceLROnPlateau needs validation"):
        fit(schedule=schedule)


def test_schedules_that_cannot_be_are_refused():
    with pytest.raises(ArgumentError, match="did you mean"):
        fit(schedule={"name": "StepL"})
    with pytest.raises(ArgumentError, match="cannot be made"):
        fit(schedule={"name": "StepLR"})
    with pytest.raises(ArgumentError, match="ends before the run does"):
        fit(steps=12, schedule={"name": "OneCycleLR", "max_lr": 1.0, "total_steps": 8})
    assert "StepLR" in NAMES
    assert TorchRates("ReduceLROnPlateau", 0.1, {})(10**9) == 0.1  # nothing is counted up to there


# --- early stopping and validation ----------------------------------------------------------------


def test_training_ends_where_the_validation_becomes_no_better_also_across_a_resume(tmp_path):
    numbers = [5.0, 5.5, 4.0, 3.9, 3.95, 3.99, 1.0]  # one that is worse alone, and two in a row

    def judge(start=0):
        values = iter(numbers[start:])
        return lambda energy: {"score": next(values)}

    rule = EarlyStopping(patience=2, number="score")
    run = fit(steps=100, early_stopping=rule, validation=judge())
    assert run.step == 60
    assert run.events[-1]["event"] == "early stopping"
    assert "3.9" in run.events[-1]["message"]
    fit(tmp_path / "r", steps=50, early_stopping=rule, validation=judge())
    run = gb.resume(tmp_path / "r", cloud(), 100, validation=judge(5), progress=False)
    assert run.step == 60
    assert gb.resume(tmp_path / "r", cloud(), 100, validation=judge(), progress=False).step == 60  # it has ended
    assert fit(steps=60, early_stopping=EarlyStopping(2, least=2.0), validation=judge()).step == 30
    assert fit(steps=60, early_stopping=EarlyStopping(3, largest=True), validation=judge()).step == 50
    with pytest.raises(ArgumentError, match="gives validation_score"):
        fit(early_stopping=EarlyStopping(number="accuracy"), validation=judge())
    with pytest.raises(ArgumentError, match="EarlyStopping needs validation"):
        fit(early_stopping=rule)
    with pytest.raises(ArgumentError, match="early_stopping is a int"):
        fit(early_stopping=3, validation=cloud())


def test_numbers_of_the_validation_are_in_reach_of_hooks(tmp_path):
    seen = {}
    run = fit(
        tmp_path / "r", steps=25, validation=cloud(), hooks=[lambda run: seen.update({run.step: dict(run.metrics)})]
    )
    logged = {r["step"]: r["validation_loss"] for r in run.history if "validation_loss" in r}
    assert "validation_loss" not in seen[9]
    assert float(seen[10]["validation_loss"]) == float(seen[19]["validation_loss"]) == logged[10]
    assert float(run.metrics["validation_loss"]) == logged[25]
    assert math.isfinite(float(seen[3]["loss"]))
    again = gb.resume(
        tmp_path / "r",
        cloud(),
        27,
        validation=cloud(),
        hooks=[lambda run: seen.update(again=dict(run.metrics))],
        progress=False,
    )
    assert again.step == 27
    assert "validation_loss" in seen["again"]


def test_resume_asks_for_what_there_was_before(tmp_path):
    def plain(batch, generator):
        return batch

    fit(tmp_path / "r", steps=3, transform=plain, validation=cloud(), hooks=[lambda run: None])
    with pytest.raises(
        ArgumentError, match=r"trained with transform and validation and hooks.*give transform=\.\.\."
    ) as error:
        gb.resume(tmp_path / "r", cloud(), 6)
    assert "transform=False, validation=False, hooks=()" in str(error.value)
    with pytest.raises(ArgumentError, match="trained with hooks"):
        gb.resume(tmp_path / "r", cloud(), 6, transform=plain, validation=cloud())
    assert (
        gb.resume(tmp_path / "r", cloud(), 6, transform=plain, validation=cloud(), hooks=[print], progress=False).step
        == 6
    )
    assert gb.resume(tmp_path / "r", cloud(), 7, transform=False, validation=False, hooks=(), progress=False).step == 7
