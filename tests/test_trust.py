"""Nothing that a recipe or a run folder names is imported unless its module was named by the user."""

import json
import subprocess
import sys

import pytest
import torch

import gibbsian as gb
from gibbsian.app.cli import main
from gibbsian.app.recipe import parse_recipe, split_comparison
from gibbsian.app.runs import recipe_of
from gibbsian.errors import ArgumentError, CheckpointError
from gibbsian.training import checkpoint
from gibbsian.training.serialize import describe, rebuild
from gibbsian.training.trust import definition, exported, is_trusted, trust

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


def edit(path, old, new):
    """Change the text of a run folder as somebody would who knows about checksums."""
    text = json.loads(path.read_text().replace(old, new))
    path.write_text(json.dumps(text | {"checksum": checkpoint.checksum(text)}))


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
    assert not is_trusted("half_done")


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
    edit(config, "gibbsian.energies.gaussian:Gaussian", "foreign_folder:Bowl")
    with pytest.raises(CheckpointError, match=r"foreign_folder:Bowl.*trust"):
        gb.load(tmp_path / "run")
    assert not imported(path)


# --- what is defined where ------------------------------------------------------------------------------


def test_only_what_is_defined_in_a_listed_module_may_be_named():
    assert definition("gibbsian.models.rbm.machine", "RBM") is gb.models.RBM
    assert definition("torch.nn.modules.linear", "Linear") is torch.nn.Linear
    assert definition("torch.optim.sgd", "SGD") is torch.optim.SGD
    assert definition("torch._C._nn", "gelu") is torch.nn.functional.gelu
    for module_name, name in (
        ("subprocess", "getoutput"),  # imported by the program, named by nobody
        ("gibbsian.training.keep", "os.system"),
        ("gibbsian.energies.distribution", "torch.hub.load"),
        ("gibbsian.energies.distribution", "as_energy.__globals__"),
        ("gibbsian.training.trust", "trust"),
        ("gibbsian.models", "RBM"),  # defined elsewhere
        ("torch.serialization", "load"),
        ("torch.nn.functional", "importlib"),
        ("torch._jit_internal", "boolean_dispatch"),
        ("torch.utils.cpp_extension", "load"),
        ("zuko.lazy", "UnconditionalDistribution"),
        ("builtins", "eval"),
        ("builtins", "object"),
        ("__main__", "main"),
        ("", "RBM"),
        ("gibbsian.models.no_such", "RBM"),
        ("gibbsian.domains", "Real.__init__"),
    ):
        with pytest.raises(ArgumentError):
            definition(module_name, name)
    assert exported("gibbsian.models.RBM") is gb.models.RBM
    assert exported("gibbsian.training.Guard") is gb.training.Guard
    for path in ("gibbsian.training.fit.Path", "gibbsian.energies.distribution.sys", "torch.load", "os.system"):
        with pytest.raises(ArgumentError):
            exported(path)


def test_a_trusted_module_lends_its_trust_to_nothing_that_it_imports(tmp_path):
    path = tmp_path / "lender.py"
    path.write_text("from subprocess import getoutput\nimport os\ndef mine(x):\n    return x.sum(1)\n")
    trust(str(path))
    assert definition("lender", "mine") is exported("lender.mine")
    for name in ("getoutput", "os.system", "mine.__call__"):
        with pytest.raises(ArgumentError):
            definition("lender", name)
    with pytest.raises(ArgumentError, match="subprocess"):
        exported("lender.getoutput")


def hostile(touched) -> dict[str, dict]:
    """Descriptions that ran a command, or could have."""
    command = f"touch {touched}"
    run = {
        "$module": "zuko.lazy:UnconditionalDistribution",
        "args": [{"$name": "subprocess:getoutput"}, command],
        "kwargs": {},
    }
    real = {"$dataclass": "gibbsian.domains:Real", "fields": {"shape": {"$tuple": [1]}}}
    family = "gibbsian.energies.exponential:ExponentialFamily"
    return {
        "a module that calls": {"$module": family, "args": [run, real], "kwargs": {}},
        "a function of the program": {"$module": family, "args": [{"$name": "subprocess:getoutput"}, real], "kwargs": {}},
        "by way of the library": {"$module": family, "args": [{"$name": "gibbsian.training.keep:os.system"}, real], "kwargs": {}},
        "a class": {"$module": "subprocess:Popen", "args": [["touch", str(touched)]], "kwargs": {}},
        "no type of numbers": {"$dtype": "load"},
    }  # fmt: skip


@pytest.mark.parametrize("name", hostile(""))
def test_no_description_in_a_folder_runs_anything(name, tmp_path):
    energy = gb.energies.Gaussian(torch.zeros(1), torch.eye(1), trainable=True)
    gb.fit(
        energy,
        gb.objectives.SlicedScoreMatching(),
        torch.zeros(20, 1),
        steps=1,
        run_dir=tmp_path / "run",
        progress=False,
    )
    config = tmp_path / "run" / "config.json"
    text = json.loads(config.read_text())
    text["tree"]["energy"] = hostile(tmp_path / "touched")[name]
    config.write_text(json.dumps(text | {"checksum": checkpoint.checksum(text)}))
    with pytest.raises(CheckpointError):
        gb.load(tmp_path / "run")
    assert not (tmp_path / "touched").exists()


def test_what_is_rebuilt_is_checked_as_when_it_was_made():
    """A folder cannot bring settings that their class refuses, nor attributes that it has not."""
    plain = describe(gb.training.Guard(every=3), {})
    plain["fields"] |= {"__class__": 1, "unheard": 2}
    assert rebuild(plain, {}) == gb.training.Guard(every=3)
    plain["fields"]["every"] = -1
    with pytest.raises(gb.errors.GibbsianError, match="every"):
        rebuild(plain, {})
    del plain["fields"]["every"]
    assert rebuild(plain, {}) == gb.training.Guard()
    kernel = gb.kernels.HMC(0.1, mass=torch.tensor([1.0, 4.0]))
    plain = describe(kernel, tensors := {})
    plain["fields"]["metric"] = None
    assert torch.equal(rebuild(plain, tensors).metric.inverse, kernel.metric.inverse)


# --- recipes --------------------------------------------------------------------------------------------

PLAIN = RECIPE.format(model="MLPEnergy").replace("{}}", "{domain: 2}}", 1)
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)


def test_functions_of_the_program_are_no_arguments_of_a_recipe(tmp_path):
    target = "{ExplicitScoreMatching: {target: subprocess.getoutput}}"
    with pytest.raises(ArgumentError, match="--trust subprocess"):
        parse_recipe(PLAIN.replace("{SlicedScoreMatching: {}}", target))
    for flags in (
        ["--objective", target],
        ["--fit.optimizer", "subprocess.getoutput"],
        ["--config", f"objective: {target}"],
    ):
        with pytest.raises(ArgumentError, match="--trust subprocess"):
            parse_recipe(PLAIN, flags)


def test_a_section_is_not_read_from_another_file(tmp_path):
    other = tmp_path / "other"
    other.write_text("steps: 3\noptimizer: {class_path: antigravity.fly}")
    for text, flags in (
        (PLAIN.replace("{steps: 2, batch_size: 20}", str(other)), []),
        (PLAIN, ["--fit", str(other)]),
        (PLAIN, ["--config", f"fit: {other}"]),
    ):
        with pytest.raises(ArgumentError, match="fit is"):
            parse_recipe(text, flags)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [BOMB, BOMB.replace("[", "{? ").replace("]", "}"), "a: &a [*a]", "[" * 3000, "at: 2001-99-99", "n: " + "9" * 9999],
)
def test_yaml_that_is_small_and_stands_for_much_is_refused(text):
    with pytest.raises(ArgumentError):
        parse_recipe(PLAIN + text)
    with pytest.raises(ArgumentError):
        split_comparison(text + "\ncompare: 3")
    with pytest.raises(ArgumentError):
        parse_recipe(PLAIN, ["--config", text])


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", f"{BOMB}\ninitialise: true".encode(), b"\ninitialise: [", b"fit: 3\ninitialise: 1"]
)
def test_the_recipe_of_a_folder_is_read_as_carefully(content, tmp_path):
    (tmp_path / "recipe.yaml").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"recipe\.yaml is damaged"):
        recipe_of(tmp_path)


def test_aliases_may_be_used():
    shared = PLAIN.replace("fit: {", "fit: &how {") + "pretrain: {options: *how}\n"
    assert parse_recipe(shared).pretrain.options == {"steps": 2, "batch_size": 20}
