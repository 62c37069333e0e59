"""Code that pages print is run as printed: the walk of the first pages from one's own files to trained models, and what tables show."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch

import gibbsian as gb
from gibbsian.recorded import Recorded

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of every block of code, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```", (DOCS / page).read_text(), re.S | re.M)


def command(line: str) -> str:
    """What a line of a shell printed, with this gibbsian and this Python."""
    words = shlex.split(line, comments=True)
    assert words[0] == "gibbsian", line
    done = subprocess.run(
        [sys.executable, "-m", "gibbsian", *words[1:]], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, f"{line}\n{done.stderr[-2000:]}"
    return done.stdout


def test_a_newcomer_gets_from_the_first_page_to_models_of_a_table_and_of_pictures(tmp_path, monkeypatch, capsys):
    """Every block of `start/five-minutes.md`, in order, in an empty folder: nothing else is needed."""
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    said = []
    for language, text in blocks("start/five-minutes.md"):
        if language == "python":
            exec(compile(text, "five-minutes.md", "exec"), scope)
        elif language == "yaml":
            name = re.match(r"# (\S+\.yaml)\n", text)
            assert name, "a recipe begins with its file name"
            Path(name[1]).write_text(text)
        else:
            said += [command(line) for line in text.splitlines()]
    assert "nats a held-out row" in said[0]
    scores = pd.read_csv("scores.csv")
    assert len(scores) == 178
    assert (pd.read_csv("runs/wines/samples.csv")["target"] == "Barolo").sum() == 5
    likelihood = float(re.search(r"test log-likelihood\s+(-[\d.]+) nats", said[3])[1])
    baseline = float(re.search(r"independent units\s+(-[\d.]+)", said[3])[1])
    assert likelihood > baseline + 4  # pixels know of each other
    assert Path("drawn.png").stat().st_size > 500
    assert torch.equal(scope["trace"].last[:, :32], scope["pixels"][:8, :32])
    assert not torch.equal(scope["trace"].last[:, 32:], scope["pixels"][:8, 32:])
    assert "LogLikelihood(" in capsys.readouterr().out


def test_the_page_of_tables_runs(tmp_path, monkeypatch, recwarn):
    """The Python block of `tables.md`, on a made table with the columns that it names."""
    monkeypatch.chdir(tmp_path)
    g = np.random.default_rng(0)
    age = g.normal(55, 9, 150).round()
    frame = pd.DataFrame(
        {
            "age": age,
            "sex": g.choice(["male", "female"], 150),
            "chol": (200 + 1.5 * age + g.normal(0, 20, 150)).round(1),
        }
    )
    frame.loc[::17, "chol"] = np.nan
    frame.to_csv("heart.csv", index=False, na_rep="?")
    (code,) = [text for language, text in blocks("tables.md") if language == "python"]
    exec(compile(code, "tables.md", "exec"), {})


@pytest.mark.parametrize(
    "page",
    sorted(
        p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md") if not {"_build", "_extra", "gallery"} & set(p.parts)
    ),
)
def test_blocks_of_python_are_run_somewhere(page):
    """A page either is a notebook, run when the site is built, or has its plain blocks run here or by test_readme (index.md)."""
    run_here = {"start/five-minutes.md", "tables.md", "index.md", "data.md", "distributed.md", "zoo.md"}
    plain = [text for language, text in blocks(page) if language == "python"]
    assert not plain or page in run_here or page.startswith("_"), (
        f"{page}: blocks of Python that nothing runs; make them {{code-cell}}s"
    )


@pytest.mark.parametrize("page", ["distributed.md", "zoo.md"])
def test_pages_run_as_they_are_printed(page, capsys):
    scope: dict = {}
    for language, code in blocks(page):
        if language == "python":
            exec(compile(code, page, "exec"), scope)
    assert capsys.readouterr().out


def test_the_page_of_data_runs(tmp_path, monkeypatch):
    """On small files of the names that it reads, and a small stream in place of the one from elsewhere."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    g = np.random.default_rng(0)
    bits = g.integers(0, 2, (60, 16), dtype=np.uint8)
    np.save("pixels.npy", 255 * bits)
    (tmp_path / "folder").mkdir()
    columns = {f"bit{i}": bits[:, i].astype(np.float32) for i in range(16)}
    pd.DataFrame(columns).to_parquet("folder/part.parquet")
    images = datasets.Dataset.from_dict({"image": (255 * bits).reshape(-1, 4, 4).tolist()}).with_format("torch")
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: images.to_iterable_dataset())
    cd = gb.objectives.ContrastiveDivergence(gb.kernels.Gibbs())
    scope = {"energy": gb.models.RBM(16, 4), "objective": cd}
    for language, code in blocks("data.md"):
        if language == "python":
            exec(compile(code.replace("100_000", "3").replace("10_000", "3"), "data.md", "exec"), scope)
    assert scope["run"].step == 3


@pytest.mark.parametrize(
    ("line", "shown", "elements"),
    [
        ("x ← x + (αᵢ/2) s(x, σᵢ) + √αᵢ z", "x←x+(αi/2)s(x,σi)+αiz", {"msub": 3, "msqrt": 1}),
        ("log Z = Σ_{i>0} ½xᵢ² - h¹ᵀW²h²", "logZ=∑i>0½xi2−h1⊤W2h2", {"munder": 1, "msubsup": 1, "msup": 3}),
        (
            "w = Π_k p*_{β_k}(x_{k-1}),   x_k ~ T_{β_k}(· | x)",
            "w=∏kpβk*(xk−1),xk∼Tβk(⋅|x)",
            {"msubsup": 1, "mspace": 2},
        ),
        ("E_data[∇E] - E_q[∇E],   q the law of x'", "Edata[∇E]−Eq[∇E],qthelawofx′", {"mtext": 3, "msub": 2}),
    ],
)
def test_equations_of_docstrings_are_set(line, shown, elements, monkeypatch):
    """Nothing of a line is lost, and what is raised, lowered or under a root is."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    from typeset import typeset

    found = ElementTree.fromstring(typeset([f"    {line}"]))
    assert "".join(found.itertext()).replace(" ", "") == shown
    for name, count in elements.items():
        assert len(list(found.iter(name))) >= count, name
    assert typeset(["    the energy of a row: what is merely easy to predict"]) is None


def test_classes_show_the_arguments_that_they_take():
    """Models and energies remember what they were made with; that must not hide it from `help`."""
    for room in (gb.models, gb.energies, gb.units, gb.nets):
        for name in room.__all__:
            if isinstance(thing := getattr(room, name), type) and issubclass(thing, Recorded):
                kinds = [p.kind for p in inspect.signature(thing).parameters.values()]
                assert kinds != [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD], name
