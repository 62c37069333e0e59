"""The command line: quick to answer, clear when something is wrong, and whole from recipe to report."""

import html
import inspect
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from gibbsian.app import catalog, runs
from gibbsian.app.cli import main
from gibbsian.app.cli.flags import COMMANDS
from gibbsian.app.draws import snapshots_of
from gibbsian.app.recipe import DataSpec

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


def test_training_prepares_its_data_once_and_reads_its_recipe_once(tmp_path, monkeypatch):
    calls: list[str] = []

    def counted(name, function):
        def wrapped(*args, **options):
            calls.append(name)
            return function(*args, **options)

        return wrapped

    monkeypatch.setattr(DataSpec, "prepare", counted("prepare", DataSpec.prepare))
    monkeypatch.setattr(runs, "parse_recipe", counted("parse", runs.parse_recipe))
    (tmp_path / "tiny.yaml").write_text(TINY)
    assert main(["train", str(tmp_path / "tiny.yaml"), "--run", str(tmp_path / "run"), "--quiet"]) == 0
    assert calls == ["prepare"]  # the recipe was parsed by the command itself
    before = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert main(["report", str(tmp_path / "run"), "--fresh", "--quiet"]) == 0
    after = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    for found in (before, after):
        found.pop("seconds")
    assert before == after


def test_importing_the_library_imports_no_part_of_scipy():
    code = "import sys, gibbsian.objectives, gibbsian.models, gibbsian.partition; print([m for m in sys.modules if m.startswith('scipy.') and m.split('.')[1] in ('stats', 'optimize', 'sparse', 'special')])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_help_answers_at_once_and_imports_nothing_heavy():
    code = "import sys, gibbsian.app.cli as c; r = c.main(['--help']); print([m for m in ('torch', 'numpy', 'rich', 'jsonargparse') if m in sys.modules], r)"
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        times.append(time.perf_counter() - begun)
    assert out.rstrip().endswith("[] 0")
    assert min(times) < 0.5
    for command in COMMANDS:
        assert command in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_something_that_runs_it(command, capsys):
    assert main([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out
    module = import_module(f"gibbsian.app.cli.{COMMANDS[command].module or command}")
    assert list(inspect.signature(getattr(module, f"run_{command}")).parameters) == ["options", "rest"]


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
    assert "UNet" in {entry["name"] for entry in found["nets"]}
    assert main(["list", "kernels"]) == 0
    assert "NUTS" in capsys.readouterr().out
    assert main(["list", "MALA"]) == 0
    assert "step_size" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (["trian", "digits-rbm"], 2, "did you mean `gibbsian train`"),
    (["train", "digits-rmb"], 2, "did you mean 'digits-rbm'"),
    (["train", "none.yaml"], 2, "no file none.yaml"),
    (["train", "digits-rbm", "--model.hiden", "3"], 2, "did you mean 'hidden'"),
    (["train", "mnist-ncsn", "--model.net.width", "3"], 2, "did you mean 'widths'"),
    (["train", "digits-rbm", "--objective", "Centerd"], 2, "did you mean 'Centered'"),
    (["train", "digits-rbm", "--fit.epochs", "many"], 2, "'many' was given where int"),
    (["train", "digits-rbm", "--fti.epochs", "3"], 2, "no flag --fti.epochs"),
    (["train", "digits-rbm", "--model.hidden", "-3"], 2, "hidden must be a whole number from 1 on, that of Bernoulli units"),
    (["train", "digits-rbm", "--data.name", "digist"], 2, "did you mean 'digits'"),
    (["list", "kernel"], 2, "did you mean 'kernels'"),
    (["list", "MALAA"], 2, "did you mean 'MALA'"),
    (["train"], 2, "arguments are required: RECIPE; see gibbsian train --help"),
    (["train", "digits-rbm", "extra"], 2, "extra is not understood"),
    (["train", "digits-rbm", "--model.hidden"], 2, "--model.hidden needs a value"),
    (["train", "digits-rbm", "--fit.device", "gpu"], 2, "fit.device: gpu cannot be used on this machine; say auto"),
    (["train", "digits-rbm", "--fit.device", "cuda:99"], 2, "fit.device: cuda:99 cannot be used on this machine"),
    (["train", "digits-rbm", "--fit.steps", "-5"], 2, "steps must be a whole number from 1 on"),
    (["train", "."], 2, "is a folder, not a recipe; to learn its images write a recipe with `data: {name: .}`"),
    (["sample", "."], 1, "is no run but an empty folder"),
    (["sample", "nowhere", "-n", "0"], 2, "-n: 0 is no whole number from 1 on"),
    (["sample", "nowhere", "--steps", "0"], 2, "--steps: 0 is no whole number"),
    (["evaluate", "nowhere", "--betas", "x"], 2, "--betas: x is no whole number"),
    (["resume", "nowhere", "--epochs", "-1"], 2, "--epochs: -1 is no whole number"),
    (["--verison"], 2, "--verison is not understood by `gibbsian`; see gibbsian --help"),
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


def test_a_table_named_without_its_ending_is_found(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("a,b\n1,2\n")
    assert main(["train", "rows"]) == 2
    assert "there is no recipe 'rows'; did you mean the file rows.csv, which lies here?" in capsys.readouterr().err


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
    (TINY[: TINY.index("fit:")] + "fit:\n", "fit.steps or fit.epochs"),
    (TINY.replace("{RBM: {visible: 64, hidden: 6}}", "[RBM]"), "['RBM'] was given where a class with its arguments is"),
    (TINY.replace("visible: 64", "visible: 65").replace("initialize: true", ""), "give the model the size of the rows"),
    (TINY.replace("visible: 64", "visible: 65"), "expected (batch, 65) for Binary(65); give the model the size of the rows"),
    (TINY.replace("betas: 50", "betas: 0"), "betas must be a whole number from 1 on"),
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


TABLE = """
data: {name: rows.csv, steps: [{split: {test: 20}}, standardize]}
model: {Gaussian: {mean: [0, 0, 0], covariance: [[1, 0, 0], [0, 1, 0], [0, 0, 1]], trainable: true}}
objective: ImplicitScoreMatching
fit: {steps: 3, batch_size: 32}
sample: {steps: 5}
evaluate: {likelihood: none}
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A run on a table with named columns, in a folder with the recipe and the table."""
    folder = tmp_path_factory.mktemp("table")
    x = np.random.default_rng(0).normal(size=(100, 3))
    np.savetxt(folder / "rows.csv", x, delimiter=",", header="a,b,c", comments="")
    (folder / "table.yaml").write_text(TABLE)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert main(["train", "table.yaml", "--run", "run", "--no-report", "-q"]) == 0
    return folder


@pytest.mark.parametrize(("text", "kept"), [
    ("a,b,c\n1.5,,\n,2.5,nan\n", {(0, 0): 1.5, (1, 1): 2.5}),
    ("c;b;a\n1.5;;\n;2.5;\n", {(0, 2): 1.5, (1, 1): 2.5}),  # columns are known by their names
    ("1.5,,\n,,\n", {(0, 0): 1.5}),  # a row of which nothing is known is a row
    ("NaN,2.5,1\n3,4,5\n", {(0, 1): 2.5, (1, 0): 3.0}),
])  # fmt: skip
def test_partial_rows_of_a_text_file_are_held(text, kept, table, tmp_path):
    (tmp_path / "cue.csv").write_text(text)
    arguments = ["-n", "1", "--clamp", str(tmp_path / "cue.csv"), "--out", str(tmp_path / "o.npy"), "-q"]
    assert main(["sample", str(table / "run"), *arguments]) == 0
    x = np.load(tmp_path / "o.npy")
    assert x.shape == (2, 3)
    for place, value in kept.items():
        assert x[place] == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize(("text", "says"), [
    ("a,b,c\n1.5,,\n,2.5,hello\n", "cue.csv, row 3: 'hello' is no number; leave a cell empty"),
    ("a,b,d\n1.5,,\n", "expected those of the data: a, b, c"),
    ("1,\n2,\n3,\n", "has shape (3, 2); expected rows of 3 numbers"),
    ("1,2,\n3,4\n", "row 2: 2 cells where 3"),
    ("1,2,inf\n3,4,\n", "infinite"),
    ("a,b,c\n", "no rows"),
])  # fmt: skip
def test_partial_rows_that_are_none_are_refused(text, says, table, tmp_path, capsys):
    (tmp_path / "cue.csv").write_text(text)
    assert main(["sample", str(table / "run"), "--clamp", str(tmp_path / "cue.csv"), "-q"]) == 1
    assert says in capsys.readouterr().err


def test_later_commands_find_the_training_file_from_anywhere(table, tmp_path, monkeypatch, capsys):
    import shutil

    there, run = tmp_path / "there", str(tmp_path / "moved")
    shutil.copytree(table, there, ignore=shutil.ignore_patterns("run"))
    monkeypatch.chdir(there)
    assert main(["train", "table.yaml", "--run", run, "--no-report", "-q"]) == 0
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("a,b,c\n1,2,3\n")  # another file of the same name is not taken for it
    for command in (["report", run, "-q"], ["resume", run, "--steps", "4", "-q"]):
        assert main(command) == 0, command
    Path("rows.csv").unlink()
    (there / "rows.csv").rename(there / "renamed.csv")
    assert main(["sample", run, "-n", "2", "-q"]) == 0  # needs no data
    capsys.readouterr()
    assert main(["evaluate", run, "-q"]) == 1
    printed = capsys.readouterr().err
    assert f"{run} was trained on {there / 'rows.csv'}, which is not there any more" in printed
    recipe = Path(run, "recipe.yaml")
    recipe.write_text(recipe.read_text().replace("name: rows.csv", f"name: {there / 'renamed.csv'}"))  # as it advises
    assert main(["evaluate", run, "-q"]) == 0


@pytest.mark.parametrize(("other", "code", "says"), [
    ("moons", 1, "--outside moons: moons has rows of shape (2,), the training data of (3,)"),
    ("digits", 1, "--outside digits: digits has rows of shape (8, 8)"),
    ("nosuch", 2, "--outside nosuch: there is no data set 'nosuch'"),
    ("none.csv", 1, "--outside none.csv: there is no file"),
])  # fmt: skip
def test_other_sets_that_cannot_be_had_are_errors(other, code, says, table, capsys):
    assert main(["evaluate", str(table / "run"), "--outside", other, "--json"]) == code
    printed = capsys.readouterr()
    assert says in printed.err
    assert not printed.out


def test_a_likelihood_that_was_asked_for_and_cannot_be_had_is_an_error(run, tmp_path, capsys):
    import shutil

    shutil.copytree(run, tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), "--likelihood", "quadrature", "-q"]) == 1
    assert "--likelihood quadrature: quadrature: " in capsys.readouterr().err


def test_other_sets_of_the_recipe_are_noted_where_they_are_missing(table, tmp_path, capsys):
    import shutil

    shutil.copytree(table / "run", tmp_path / "run")
    recipe = (tmp_path / "run" / "recipe.yaml").read_text()
    (tmp_path / "run" / "recipe.yaml").write_text(recipe.replace("outside: []", "outside: [moons, noise]"))
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["outside"]
    assert "rows of shape (2,)" in found["moons"]["missing"]
    assert found["noise"]["auroc"] > 0.5  # uniform in the range of the data, which a Gaussian is not


@pytest.mark.parametrize(("flags", "expected"), [
    (["--fit.epochs", "2"], {"steps": None, "epochs": 2}),
    (["--fit.epochs=2"], {"steps": None, "epochs": 2}),
    (["--fit", "{epochs: 2}"], {"steps": None, "epochs": 2}),
    (["--config", "more.yaml"], {"steps": None, "epochs": 2}),
    (["--fit.lr", "0.1"], {"steps": 30, "epochs": None}),
])  # fmt: skip
def test_the_length_that_a_flag_says_wins(flags, expected, tmp_path, monkeypatch):
    from gibbsian.app.recipe import parse_recipe

    monkeypatch.chdir(tmp_path)
    Path("more.yaml").write_text("fit: {epochs: 2}")
    recipe = parse_recipe(TINY, flags)
    assert {key: recipe.fit[key] for key in expected} == expected
    again = parse_recipe(recipe.text)  # as the run folder keeps it
    assert {key: again.fit[key] for key in expected} == expected


def test_a_member_of_a_comparison_may_say_its_own_length():
    from gibbsian.app.recipe import parse_recipe, split_comparison

    members = split_comparison(TINY + "compare: {long: {fit: {epochs: 7}}, short: {fit: {lr: 0.1}}}")
    recipes = {name: parse_recipe(text) for name, text in members.items()}
    assert (recipes["long"].fit["steps"], recipes["long"].fit["epochs"]) == (None, 7)
    assert (recipes["short"].fit["steps"], recipes["short"].fit["epochs"]) == (30, None)


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


@pytest.mark.parametrize(("kernel", "goes_on"), [("ShortRunLangevin", False), ("Langevin", True)])
def test_snapshots_of_chains_that_go_a_way_begin_at_its_beginning(tmp_path, kernel, goes_on):
    """Chains that hardly move stay where they began: those that settle in a law go on where they were."""
    text = f"""
data: {{name: moons, n: 300}}
model: {{MLPEnergy: {{domain: 2, hidden: [4]}}}}
objective: {{DenoisingScoreMatching: {{sigma: 0.1}}}}
fit: {{steps: 4, batch_size: 50}}
sample: {{kernel: {{{kernel}: {{step_size: 1.0e-6}}}}, steps: 2, start: reference}}
evaluate: {{likelihood: none}}
"""
    if not goes_on:
        text = text.replace("step_size: 1.0e-6", "step_size: 1.0e-6, noise: 0.0")
    (tmp_path / "still.yaml").write_text(text)
    assert main(["train", str(tmp_path / "still.yaml"), "--run", str(tmp_path / "run"), "--no-report", "-q"]) == 0
    first, *_, last = snapshots_of(tmp_path / "run").values()
    assert torch.allclose(first, last, atol=1e-3) == goes_on


def test_no_link_in_a_folder_from_elsewhere_is_written_through(run, tmp_path):
    """Hidden files that are made on the way may be links already: to a file of whoever samples, reports or goes on."""
    folder, mine = tmp_path / "run", tmp_path / "mine"
    shutil.copytree(run, folder)
    mine.write_text("mine")
    (folder / ".lock").unlink()
    for name in (
        ".lock",
        "metrics.new",
        ".samples.npz.new",
        ".command.json.new",
        ".evaluation.json.new",
        ".report.html.new",
    ):
        (folder / name).symlink_to(mine)
    assert main(["sample", str(folder), "-n", "2", "--steps", "2", "-q"]) == 0
    assert main(["resume", str(folder), "--steps", "31", "-q"]) == 0
    assert mine.read_text() == "mine"
    assert np.load(folder / "samples.npz")["x"].shape == (2, 8, 8)


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


def test_the_report_of_a_run_that_went_on_says_how_far_and_by_which_commands(tmp_path):
    """The command of its beginning alone would give a shorter run, which the report said to be the same."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    folder = tmp_path / "half"
    assert (
        main(["train", str(tmp_path / "tiny.yaml"), "--run", str(folder), "--fit.steps", "4", "--no-report", "-q"]) == 0
    )
    for steps in ("4", "6", "6", "9"):
        assert main(["resume", str(folder), "--steps", steps, "--no-report", "-q"]) == 0
    assert main(["report", str(folder), "-q"]) == 0
    page = html.unescape((folder / "report.html").read_text())
    commands = page.split("<pre>gibbsian train ")[1].split("</pre>")[0].splitlines()[1:]
    assert commands == [shlex.join(["gibbsian", "resume", str(folder), "--steps", steps]) for steps in ("6", "9")]
    assert re.search(r"4 steps of \d+ rows, then 9 steps in all; ", page)


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


@pytest.mark.parametrize("name", [".step-000000000002.safetensors.new", ".command.json.new", "samples.npz"])
def test_a_disk_that_fills_up_later_is_one_sentence_and_spoils_nothing(name, table, monkeypatch, capsys, tmp_path):
    """Whatever is being written: pictures of the training, the note of the command, samples."""
    import errno

    plain, written = Path.write_bytes, list[str]()

    def full(self, content):
        written.append(self.name)
        if name in self.name and (written.count(self.name) == 2 or "command" not in name):
            plain(self, content[:10])  # as much as there was room for
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return plain(self, content)

    run = tmp_path / "run"
    monkeypatch.setattr(Path, "write_bytes", full)
    arguments = ["train", str(table / "table.yaml"), "--run", str(run), "--no-report", "-q"]
    if name == "samples.npz":
        run, arguments = table / "run", ["sample", str(table / "run"), "-q"]
    else:
        arguments += ["--data.name", str(table / "rows.csv")]
    assert main(arguments) == 1
    printed = capsys.readouterr().err
    assert "the disk is full" in printed
    assert ("gibbsian resume" if arguments[0] == "train" else "gibbsian sample") in printed
    assert not [file for file in run.rglob("*") if file.name.endswith(".new")]
    monkeypatch.setattr(Path, "write_bytes", plain)
    assert main(["resume", str(run), "-q"]) == 0


def test_files_beside_the_checkpoints_may_be_damaged(run, tmp_path, capsys):
    import shutil

    broken = tmp_path / "run"
    shutil.copytree(run, broken)
    picture = next((broken / "snapshots").iterdir())
    picture.write_bytes(picture.read_bytes()[:20])
    assert main(["report", str(broken), "-q"]) == 0
    assert f"{picture} is damaged and left out" in capsys.readouterr().err
    for name in ("evaluation.json", "environment.json", "command.json"):
        (broken / name).write_text("{")
        assert main(["report", str(broken), "-q"]) == 1
        assert f"{broken / name} is damaged" in capsys.readouterr().err
        shutil.copy(run / name, broken / name)


def test_any_terminal_can_be_printed_to(run, monkeypatch):
    """The help, and an evaluation: both have letters that ASCII has not."""
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["--help"]) == 0
    assert main(["evaluate", str(run)]) == 0
    terminal.flush()
    printed = terminal.buffer.getvalue().decode("ascii")
    assert "0 done - 1 could not be done" in printed
    assert "+- 0  (exact sum)" in printed


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
