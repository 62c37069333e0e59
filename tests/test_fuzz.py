"""Run folders and recipes, damaged by chance and by intent: only errors of gibbsian's, nothing executed, nothing lost."""

import json
import shutil
import sys
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import gibbsian as gb
from gibbsian.app import catalog
from gibbsian.app.recipe import parse_recipe
from gibbsian.training import Checkpoints, Logging, checkpoint

CASES = settings(
    report_multiple_bugs=False,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def data() -> Tensor:
    return (torch.rand(20, 4, generator=torch.Generator().manual_seed(0)) < 0.4).float()


def weights(model: torch.nn.Module) -> bytes:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().tobytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, dict[int, bytes]]:
    """A small run folder with three checkpoints, and the weights in each."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    pcd = gb.objectives.PersistentContrastiveDivergence(gb.kernels.Gibbs(), chains=3)
    gb.fit(gb.models.RBM(4, 2), gb.objectives.Centered(pcd), data(), steps=4, batch_size=10, run_dir=folder, ema=0.5,
           validation=data(), checkpoints=Checkpoints(every=2, keep_last=3, keep_best=True),
           logging=Logging(every=1, validate_every=2), progress=False)  # fmt: skip
    return folder, {step: weights(gb.load(folder, step)) for step in checkpoint.steps_saved(folder)}


@pytest.fixture
def copy(run, tmp_path):
    """A fresh copy of the run folder, each time that it is called."""

    def fresh() -> Path:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(run[0], tmp_path / "run")
        return tmp_path / "run"

    return fresh


def attempt(act: Any) -> Any:
    """What `act` returns, or the error of gibbsian's that it ends with, which is one sentence; any other error is a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gb.errors.GibbsianWarning)
        try:
            return act()
        except gb.errors.GibbsianError as error:
            found = error
    assert "\n" not in str(found)
    return found


# --- damage by chance -----------------------------------------------------------------------------


def files(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return sorted(str(path.relative_to(folder)) for path in found)


KINDS = ("flip", "cut", "put", "drop", "empty", "remove", "swap", "folder")


def hit(folder: Path, name: str, kind: str, place: float, byte: int, other: str) -> None:
    """Damage a file."""
    path, content = folder / name, bytearray((folder / name).read_bytes())
    at = int(place * (len(content) - 1)) if content else 0
    if kind == "flip" and content:
        content[at] ^= 1 << byte % 8
    elif kind == "cut":
        del content[at:]
    elif kind == "put":
        content[at:at] = bytes([byte]) * (1 + byte % 9)
    elif kind == "drop":
        del content[at : at + 1 + byte % 9]
    elif kind == "swap":
        content = bytearray((folder / other).read_bytes())
    path.unlink()
    if kind == "folder" and path.suffix in {".json", ".safetensors"}:
        path.mkdir()
    elif kind != "remove":
        path.write_bytes(b"" if kind == "empty" else bytes(content))


@settings(CASES, max_examples=60)
@given(draw=st.data())
def test_damage_is_noticed_and_the_older_checkpoint_taken(draw, run, copy):
    """What loads has the weights of a checkpoint; only a damaged configuration keeps a run from being loaded and resumed."""
    folder, (_, known) = copy(), run
    names = files(folder)
    name, kind = draw.draw(st.sampled_from(names)), draw.draw(st.sampled_from(KINDS))
    hit(
        folder,
        name,
        kind,
        draw.draw(st.floats(0, 1)),
        draw.draw(st.integers(0, 255)),
        draw.draw(st.sampled_from(names)),
    )
    loaded = attempt(lambda: gb.load(folder))
    resumed = attempt(lambda: gb.resume(folder, data(), steps=5, validation=data(), progress=False))
    refused = isinstance(resumed, gb.errors.GibbsianError)
    if name.startswith("config"):
        assert isinstance(loaded, gb.errors.GibbsianError) or weights(loaded) == known[4]
    else:
        assert weights(loaded) in known.values()
        assert not refused
    if refused:  # and has touched nothing: with the configuration all is there again
        remove(folder / name)
        shutil.copy(run[0] / name, folder / name)
    expected = known[4] if refused else weights(resumed.energy)
    assert weights(gb.load(folder)) == expected


def remove(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


# --- damage by intent -----------------------------------------------------------------------------


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places in a tree of JSON or YAML."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inside for found in nodes(item, (*path, key)))]


def replaced(tree: Any, path: tuple[Any, ...], change: Any) -> Any:
    if not path:
        return change(tree)
    tree[path[0]] = replaced(tree[path[0]], path[1:], change)
    return tree


NAMES = [
    "subprocess:getoutput", "os:system", "gibbsian.training.keep:os.system", "builtins:eval", "antigravity:fly", "zuko.lazy:UnconditionalDistribution",
    "torch.hub:load", "torch.serialization:load", "gibbsian.models.rbm.machine:RBM", "gibbsian.energies.exponential:ExponentialFamily",
    "torch.nn.modules.linear:Linear", "gibbsian.domains:Binary", "gibbsian.training.guard:Guard", "gibbsian.objectives.persistent:Chains", "", ":", "a:b:c",
]  # fmt: skip
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), st.sampled_from([-1, 1e308, 0.5, "", "\x00", "nan", "cpu", "é"]),
    st.sampled_from(NAMES), st.just([]), st.just({}), st.lists(st.integers(0, 3), max_size=3),
)  # fmt: skip
TAGS = (
    "$module",
    "$dataclass",
    "$named",
    "$name",
    "$tuple",
    "$dict",
    "$float",
    "$tensor",
    "$dtype",
    "$device",
    "$again",
    "$array",
    "$odd",
)


def built(command: str) -> st.SearchStrategy[Any]:
    """Descriptions of objects, with names that do harm where they are called."""
    names = st.sampled_from([*NAMES, command])
    parts = st.lists(st.one_of(ODD, st.just(command), names.map(lambda n: {"$name": n})), max_size=3)
    return st.one_of(
        ODD,
        st.builds(lambda n, a: {"$module": n, "args": a, "kwargs": {}}, names, parts),
        st.builds(lambda n, a: {"$named": n, "items": a}, names, parts),
        st.builds(lambda n, a: {"$dataclass": n, "fields": {"shape": a, "__class__": a}}, names, parts),
        st.builds(lambda t, a: {t: a}, st.sampled_from(TAGS), st.one_of(names, ODD, parts)),
    )


@settings(CASES, max_examples=150)
@given(draw=st.data())
def test_a_folder_that_knows_about_checksums_runs_nothing_and_breaks_nothing(draw, copy, tmp_path):
    folder, touched = copy(), tmp_path / "touched"
    name = draw.draw(st.sampled_from(["config.json", "checkpoints/step-000000000004/state.json"]))
    text = json.loads((folder / name).read_text())
    new = draw.draw(built(f"touch {touched}"))
    for _ in range(draw.draw(st.integers(1, 2))):
        text["tree"] = replaced(
            text["tree"], draw.draw(st.sampled_from(nodes(text["tree"]))), lambda old: deepcopy(new)
        )
    (folder / name).write_text(json.dumps(text | {"checksum": checkpoint.checksum(text)}))
    attempt(lambda: gb.load(folder))
    attempt(lambda: gb.load(folder, "best", ema=True))
    attempt(lambda: gb.resume(folder, data(), steps=1, progress=False))  # it is read, and nothing is left to do
    assert not touched.exists()
    assert "antigravity" not in sys.modules


# --- recipes --------------------------------------------------------------------------------------

RECIPES = st.sampled_from(catalog.recipe_names()).map(catalog.recipe_text)
DOTTED = st.sampled_from([name.replace(":", ".") for name in NAMES])
ARGUMENTS = st.dictionaries(st.sampled_from(["args", "f", "domain", "target"]), st.one_of(ODD, DOTTED), max_size=2)
PUT = [
    "", "&a ", "*a", "[", "{", "}", ": ", "- ", "\t", "\n", "!!python/name:os.system ", "!!int ", "? ", "%", "\x00", "9" * 5000, "2001-99-99",
]  # fmt: skip


@settings(CASES, max_examples=60)
@given(draw=st.data())
def test_odd_recipes_end_in_one_sentence(draw):
    tree = yaml.safe_load(draw.draw(RECIPES))
    new = draw.draw(st.one_of(ODD, DOTTED, st.builds(lambda name, given: {name: given}, DOTTED, ARGUMENTS)))
    for _ in range(draw.draw(st.integers(1, 2))):
        tree = replaced(tree, draw.draw(st.sampled_from(nodes(tree)[1:])), lambda old: deepcopy(new))
    attempt(lambda: parse_recipe(yaml.safe_dump(tree)))
    assert "antigravity" not in sys.modules


@settings(CASES, max_examples=40)
@given(draw=st.data())
def test_damaged_recipes_end_in_one_sentence(draw):
    text, put = draw.draw(RECIPES), draw.draw(st.sampled_from(PUT))
    at, gone = int(draw.draw(st.floats(0, 1)) * len(text)), draw.draw(st.integers(0, 5))
    attempt(lambda: parse_recipe(text[:at] + put + text[at + gone :]))
