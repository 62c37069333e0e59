"""The command line: quick to answer, clear when something is wrong, and whole from recipe to report."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from gibbsian.app import catalog
from gibbsian.app.cli import main

TINY = """
about: a tiny test
data:
  name: digits
  steps:
    - flatten
    - rescale: {old: [0, 16]}
    - binarize
    - split: {validation: 50, test: 100}
model: {RBM: {visible: 64, hidden: 6}}
objective: {ContrastiveDivergence: {kernel: Gibbs}}
initialize: true
fit: {steps: 30, batch_size: 50, lr: 0.01, logging: {every: 5, validate_every: 10}, ema: 0.9}
sample: {steps: 20, show: 16}
evaluate: {chains: 20, betas: 50}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the tiny recipe, with its report."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.yaml").write_text(TINY)
    assert main(["train", str(folder / "tiny.yaml"), "--run", str(folder / "run"), "--quiet"]) == 0
    return folder / "run"


def test_help_answers_at_once_and_imports_nothing_heavy():
    code = "import sys, gibbsian.app.cli as c; r = c.main(['--help']); print([m for m in ('torch', 'numpy', 'rich', 'jsonargparse') if m in sys.modules], r)"
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        times.append(time.perf_counter() - begun)
    assert out.rstrip().endswith("[] 0")
    assert min(times) < 0.5
    for command in ("train", "resume", "sample", "evaluate", "report", "list", "doctor"):
        assert command in out


@pytest.mark.parametrize("command", ["train", "resume", "sample", "evaluate", "report", "list", "doctor"])
def test_every_command_has_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_list_names_every_class_with_a_line(capsys):
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == set(catalog.KINDS)
    for kind, entries in found.items():
        assert entries, kind
        for entry in entries:
            assert len(entry["about"]) > 10, entry
    names = {entry["name"] for entries in found.values() for entry in entries}
    assert {"RBM", "MALA", "NoiseContrastive", "ais", "digits", "moons", "digits-rbm", "binarize", "Gaussian"} <= names
    assert main(["list", "kernels"]) == 0
    assert "NUTS" in capsys.readouterr().out
    assert main(["list", "MALA"]) == 0
    assert "step_size" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (["trian", "digits-rbm"], 2, "did you mean `gibbsian train`"),
    (["train", "digits-rmb"], 2, "did you mean 'digits-rbm'"),
    (["train", "none.yaml"], 2, "no file none.yaml"),
    (["train", "digits-rbm", "--model.hiden", "3"], 2, "did you mean 'hidden'"),
    (["train", "digits-rbm", "--objective", "Centerd"], 2, "did you mean 'Centered'"),
    (["train", "digits-rbm", "--fit.epochs", "many"], 2, "'many' was given where int"),
    (["train", "digits-rbm", "--fti.epochs", "3"], 2, "no flag --fti.epochs"),
    (["train", "digits-rbm", "--model.hidden", "-3"], 2, "at least one unit"),
    (["train", "digits-rbm", "--data.name", "digist"], 2, "did you mean 'digits'"),
    (["list", "kernel"], 2, "did you mean 'kernels'"),
    (["list", "MALAA"], 2, "did you mean 'MALA'"),
    (["sample", "nowhere"], 1, "no run folder nowhere"),
    (["resume", "nowhere"], 1, "no run folder nowhere"),
    (["report", "nowhere"], 1, "no run folder nowhere"),
    (["sample", "nowhere", "--color", "red"], 2, "--color is not understood"),
])  # fmt: skip
def test_mistakes_get_one_clear_sentence(arguments, code, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == "" or arguments[0] == "train"
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.iterdir())  # nothing is left behind


@pytest.mark.parametrize(("text", "says"), [
    ("data: {name: digits\nmodel: x", "not valid YAML: line 2"),
    ("- a\n- b", "holds no recipe"),
    (TINY.replace("model:", "modle:"), "did you mean 'model'"),
    (TINY.replace("lr:", "lrr:"), "did you mean 'lr'"),
    (TINY.replace("RBM:", "RMB:"), "did you mean 'RBM'"),
    (TINY.replace("kernel: Gibbs", "kernel: MALA"), "MALA needs step_size"),
    (TINY.replace("- binarize", "- binarise"), "did you mean 'binarize'"),
    (TINY.replace("steps: 30, ", ""), "fit.steps or fit.epochs"),
    (TINY.replace("objective: {", "other: {"), "unknown key 'other'"),
    (TINY.replace("    - binarize\n", ""), "binarize"),  # gray values into Bernoulli units
])  # fmt: skip
def test_mistakes_in_a_recipe_get_one_clear_sentence(text, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(text)
    assert main(["train", "r.yaml", "--quiet"]) in {1, 2}
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1


def test_print_config_is_a_recipe_that_does_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    assert main(["train", "tiny.yaml", "--model.hidden", "9", "--print_config"]) == 0
    printed = capsys.readouterr().out
    assert "hidden: 9" in printed
    Path("whole.yaml").write_text(printed)
    assert main(["train", "whole.yaml", "--print_config"]) == 0
    assert capsys.readouterr().out == printed


def test_a_run_holds_all_that_is_needed_later(run, capsys):
    for name in ("recipe.yaml", "data.json", "command.json", "evaluation.json", "report.html", "metrics.jsonl"):
        assert (run / name).exists(), name
    found = json.loads((run / "evaluation.json").read_text())
    assert found["likelihood"]["lower"] < found["likelihood"]["value"] < found["likelihood"]["upper"]
    assert found["part"] == "test"
    assert found["rows"] == 100
    assert len(list((run / "snapshots").iterdir())) >= 4
    assert main(["evaluate", str(run), "--json", "--betas", "100"]) == 0
    again = json.loads(capsys.readouterr().out)
    # six hidden units: the sum is exact, whatever the temperatures
    assert again["log_z"]["method"] == "exact sum"
    assert again["likelihood"]["value"] == pytest.approx(found["likelihood"]["value"], abs=1e-9)


def test_samples_come_back_in_the_units_of_the_data(run, tmp_path, capsys):
    for kind in ("npz", "npy", "csv", "png"):
        assert (
            main(["sample", str(run), "-n", "5", "--steps", "7", "--out", str(tmp_path / f"s.{kind}"), "--json"]) == 0
        )
        assert json.loads(capsys.readouterr().out)["shape"] == [5, 8, 8]
    x = np.load(tmp_path / "s.npz")["x"]
    assert set(np.unique(x)) <= {0.0, 16.0}
    assert np.array_equal(x, np.load(tmp_path / "s.npy"))
    assert np.loadtxt(tmp_path / "s.csv", delimiter=",").shape == (5, 64)


def test_later_commands_use_what_the_steps_learned_then(run, tmp_path, monkeypatch):
    from gibbsian.data.steps import Rescale

    def again(self, train):
        raise AssertionError("learned anew")

    monkeypatch.setattr(Rescale, "fit", again)
    assert main(["sample", str(run), "-n", "2", "--steps", "3", "--out", str(tmp_path / "s.npy"), "-q"]) == 0


def test_clamped_entries_stay_and_the_rest_is_drawn(run, tmp_path, capsys):
    cue = np.full((2, 8, 8), np.nan)
    cue[0, :4], cue[1, :4] = 16.0, 0.0
    np.save(tmp_path / "cue.npy", cue)
    assert (
        main(["sample", str(run), "-n", "3", "--clamp", str(tmp_path / "cue.npy"), "--out", str(tmp_path / "o.npy")])
        == 0
    )
    x = np.load(tmp_path / "o.npy")
    assert x.shape == (6, 8, 8)
    assert (x[:3, :4] == 16).all()
    assert (x[3:, :4] == 0).all()
    assert len(np.unique(x[:, 4:].reshape(6, -1), axis=0)) > 1
    capsys.readouterr()
    np.save(tmp_path / "whole.npy", np.zeros((2, 8, 8)))
    assert main(["sample", str(run), "--clamp", str(tmp_path / "whole.npy")]) == 1
    assert "leave those to be drawn as NaN" in capsys.readouterr().err


def test_a_machine_whose_hidden_units_cannot_be_summed_goes_all_the_way(tmp_path, capsys):
    text = TINY.replace("RBM: {visible: 64, hidden: 6}", "BoltzmannMachine: {n: 64, hidden: 17}")
    text = text.replace("initialize: true\n", "").replace("steps: 30,", "steps: 3,").replace("test: 100", "test: 5")
    (tmp_path / "deep.yaml").write_text(text)
    assert main(["train", str(tmp_path / "deep.yaml"), "--run", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["likelihood"]["method"].startswith("clamped AIS")
    assert found["likelihood"]["lower"] < found["likelihood"]["value"]
    assert len(list((tmp_path / "run" / "snapshots").iterdir())) == 3
    assert "its own way" in (tmp_path / "run" / "report.html").read_text()


def test_resume_gives_what_one_go_gives(run, tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    half = tmp_path / "half"
    arguments = ["train", str(tmp_path / "tiny.yaml"), "--run", str(half), "--no-report", "--quiet"]
    assert main([*arguments, "--fit.steps", "13"]) == 0
    assert main(["resume", str(half), "--steps", "30", "--no-report", "--quiet"]) == 0
    import gibbsian as gb

    for p, q in zip(gb.load(half).parameters(), gb.load(run).parameters(), strict=True):
        assert torch.equal(p, q)
    assert (half / "snapshots").exists()


def test_a_run_that_ends_before_its_first_step_can_be_resumed(run, tmp_path, capsys, monkeypatch):
    from gibbsian.training.steps import Steps

    def ended(self, count, *, watched):
        raise KeyboardInterrupt

    (tmp_path / "tiny.yaml").write_text(TINY)
    early = tmp_path / "early run"
    with monkeypatch.context() as patched:
        patched.setattr(Steps, "differentiate", ended)
        assert main(["train", str(tmp_path / "tiny.yaml"), "--run", str(early), "-q"]) == 130
    assert capsys.readouterr().err == f"gibbsian: interrupted; go on with: gibbsian resume '{early}'\n"
    assert main(["resume", str(early), "--no-report", "-q"]) == 0
    import gibbsian as gb

    for p, q in zip(gb.load(early).parameters(), gb.load(run).parameters(), strict=True):
        assert torch.equal(p, q)
    assert json.loads((early / "command.json").read_text())["arguments"][0] == "train"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit(143)])
def test_nobody_is_sent_to_a_folder_that_is_not_there(stop, tmp_path, capsys, monkeypatch):
    from gibbsian.app.recipe import DataSpec

    def stopped(self, fitted=None):
        raise stop

    monkeypatch.setattr(DataSpec, "prepare", stopped)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits-rbm", "-q"]) == (130 if stop is KeyboardInterrupt else 143)
    printed = capsys.readouterr().err
    assert "resume" not in printed
    assert "nothing was saved yet, give the same command again: gibbsian train digits-rbm -q" in printed
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_is_one_sentence(run, tmp_path, capsys):
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    for file in broken.glob("checkpoints/*/state.safetensors"):
        file.write_bytes(file.read_bytes()[:-5] + b"wrong")
    assert main(["sample", str(broken), "-q"]) == 1
    printed = capsys.readouterr().err
    assert "damaged" in printed
    assert "Traceback" not in printed
    (broken / "recipe.yaml").write_text("data: {name: [")
    assert main(["sample", str(broken), "-q"]) == 2
    assert "not valid YAML" in capsys.readouterr().err


def test_a_full_disk_is_one_sentence(monkeypatch, capsys, tmp_path):
    import errno

    from gibbsian.training import checkpoint

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device", "state.safetensors")

    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr(checkpoint, "_flush", full)
    assert main(["train", str(tmp_path / "tiny.yaml"), "--run", str(tmp_path / "run"), "-q"]) == 1
    assert "the disk is full" in capsys.readouterr().err


def test_a_folder_that_holds_files_is_left_alone(tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious.txt").write_text("mine")
    assert main(["train", str(tmp_path / "tiny.yaml"), "--run", str(tmp_path / "run"), "-q"]) == 1
    assert "already holds files" in capsys.readouterr().err
    assert (tmp_path / "run" / "precious.txt").read_text() == "mine"


def test_interrupting_keeps_a_checkpoint(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY.replace("steps: 30", "steps: 1000000"))
    arguments = [
        sys.executable,
        "-m",
        "gibbsian",
        "train",
        str(tmp_path / "tiny.yaml"),
        "--run",
        str(tmp_path / "run"),
        "-q",
    ]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    until = time.time() + 60
    while not (tmp_path / "run" / "snapshots").exists() and time.time() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert f"gibbsian resume {tmp_path / 'run'}" in errors
    assert "Traceback" not in errors
    from gibbsian.training.checkpoint import steps_saved

    reached = steps_saved(tmp_path / "run")[-1]
    assert reached > 0
    assert main(["resume", str(tmp_path / "run"), "--steps", str(reached + 3), "--no-report", "-q"]) == 0


def test_doctor_finds_everything_in_order(capsys):
    assert main(["doctor", "--fast", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["good"]
    assert len(found["checks"]) >= 8


def test_doctor_sees_a_wrong_sampler(monkeypatch, capsys):
    from gibbsian.models import RBM

    monkeypatch.setattr(RBM, "gibbs_sweep", lambda self, x, noise, clamp=None: torch.ones_like(x))
    assert main(["doctor", "--fast", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert next(c["check"] for c in found["checks"] if not c["good"]) == "Gibbs on a Boltzmann machine"
