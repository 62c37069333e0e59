"""Nothing that a recipe or a run folder names is imported unless its module was named by the user."""

import subprocess
import sys

import pytest
import torch

import gibbsian as gb
from gibbsian.app.cli import main
from gibbsian.app.recipe import parse_recipe
from gibbsian.errors import ArgumentError, CheckpointError
from gibbsian.training.trust import known_module, trust

OWN = """
from pathlib import Path

import torch

import gibbsian as gb

Path(__file__).with_suffix(".imported").touch()


class {name}(gb.Energy):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(gb.domains.Real(2))
        self.scale = torch.nn.Parameter(torch.tensor(scale))

    def forward(self, x):
        return 0.5 * self.scale * x.square().sum(1)


class Slope(gb.ScoreField):
    def __init__(self) -> None:
        super().__init__(gb.domains.Real(2))
        self.a = torch.nn.Parameter(torch.ones(()))

    def score(self, x, *, create_graph=False):
        return -self.a * x
"""
RECIPE = """
data: {{name: moons, n: 60}}
model: {{{model}: {{}}}}
objective: {{SlicedScoreMatching: {{}}}}
fit: {{steps: 2, batch_size: 20}}
"""


def module(folder, name, cls="Bowl"):
    (folder / f"{name}.py").write_text(OWN.format(name=cls))
    return folder / f"{name}.py"


def imported(path):
    return path.with_suffix(".imported").exists()


@pytest.mark.parametrize("where", ["model", "flag", "nested flag", "config", "string"])
def test_a_foreign_class_is_refused_before_anything_of_it_is_imported(where, tmp_path, monkeypatch):
    path = module(tmp_path, f"foreign_{where.replace(' ', '_')}")
    name = f"{path.stem}.Bowl"
    monkeypatch.syspath_prepend(str(tmp_path))
    plain, flags = RECIPE.format(model="MLPEnergy").replace("{}}", "{domain: 2}}", 1), []
    if where == "model":
        plain = RECIPE.format(model=name)
    elif where == "string":
        plain = plain.replace("{MLPEnergy: {domain: 2}}", name)
    elif where == "config":
        (tmp_path / "more.yaml").write_text(f"model: {name}")
        flags = ["--config", str(tmp_path / "more.yaml")]
    else:
        flags = [f"--model={name}"] if where == "flag" else ["--objective", f"{{Weighted: {{objectives: [{name}]}}}}"]
    with pytest.raises(ArgumentError, match=f"--trust {path.stem}"):
        parse_recipe(plain, flags)
    assert not imported(path)
    trust(path.stem)
    assert imported(path)
    if where in {"model", "string"}:
        assert type(parse_recipe(plain).model).__name__ == "Bowl"


def test_every_command_takes_the_file_of_a_class(tmp_path, capsys, monkeypatch):
    path = module(tmp_path, "own_bowl", "OwnBowl")
    for i, name in enumerate(("own_bowl.OwnBowl", "OwnBowl", "own_bowl.Slope")):
        (tmp_path / f"{i}.yaml").write_text(RECIPE.format(model=name))
    run = tmp_path / "run"
    trusted = ["--trust", str(path), "-q"]
    assert main(["train", str(tmp_path / "0.yaml"), "--run", str(run), "--no-report", *trusted]) == 0
    assert main(["train", str(tmp_path / "1.yaml"), "--run", str(tmp_path / "bare"), "--no-report", *trusted]) == 0
    assert main(["train", str(tmp_path / "2.yaml"), "--run", str(tmp_path / "score"), "--no-report", *trusted]) == 0
    assert main(["resume", str(run), "--steps", "3", "--no-report", *trusted]) == 0
    assert main(["sample", str(run), "-n", "3", "--steps", "5", *trusted]) == 0
    assert main(["evaluate", str(run), *trusted]) == 0
    assert main(["report", str(run), *trusted]) == 0
    assert (run / "report.html").exists()
    # in a new process, where nobody has imported it
    for command in (["sample", str(run)], ["report", str(run)]):
        done = subprocess.run([sys.executable, "-m", "gibbsian", *command], capture_output=True, text=True)
        assert done.returncode == 2
        assert "--trust own_bowl" in done.stderr
        assert done.stderr.count("\n") == 1
    code = f"import gibbsian as gb\ntry:\n    gb.load({str(run)!r})\nexcept gb.errors.CheckpointError as e:\n    print(e)\n"
    code += f"print(float(gb.load({str(run)!r}, trust={str(path)!r}).scale))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    refused, value = done.stdout.strip().splitlines()
    assert 'trust="own_bowl"' in refused
    assert float(value) == float(gb.load(run, trust=[str(path)]).scale.detach())


def test_what_cannot_be_trusted_says_why(tmp_path):
    with pytest.raises(ArgumentError, match="no such file"):
        trust(str(tmp_path / "none.py"))
    with pytest.raises(ArgumentError, match=r"no/where\.py"):
        trust("no.where")
    with pytest.raises(ArgumentError, match="expected the name of a module"):
        trust("a-b")
    (tmp_path / "a-b.py").touch()
    with pytest.raises(ArgumentError, match="cannot be called 'a-b'"):
        trust(str(tmp_path / "a-b.py"))
    (tmp_path / "json.py").touch()
    with pytest.raises(ArgumentError, match="another module is called 'json'"):
        trust([str(tmp_path / "json.py")])
    (tmp_path / "half_done.py").write_text("import nothing_of_that_name")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        trust(str(tmp_path / "half_done.py"))
    assert known_module("half_done") is None


def test_a_folder_that_names_a_foreign_module_runs_none_of_it(tmp_path, monkeypatch):
    path = module(tmp_path, "foreign_folder")
    monkeypatch.syspath_prepend(str(tmp_path))
    gb.fit(
        gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True),
        gb.objectives.SlicedScoreMatching(),
        torch.zeros(20, 2),
        steps=1,
        run_dir=tmp_path / "run",
        progress=False,
    )
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace("gibbsian.energies.gaussian:Gaussian", "foreign_folder:Bowl"))
    with pytest.raises(CheckpointError, match=r"foreign_folder:Bowl.*trust"):
        gb.load(tmp_path / "run")
    assert not imported(path)
