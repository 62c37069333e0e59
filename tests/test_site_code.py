"""Code that pages print is run as printed: the walk of the first pages from one's own files to trained models, and what tables show."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import gibbsian as gb

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
    """A page either is a notebook, run when the site is built, or has its plain blocks run here or by test_readme."""
    run_here = {"start/five-minutes.md", "tables.md", "index.md", "data.md", "distributed.md", "zoo.md"}
    plain = [text for language, text in blocks(page) if language == "python"]
    assert not plain or page in run_here or page.startswith("_"), (
        f"{page}: blocks of Python that nothing runs; make them {{code-cell}}s"
    )


def test_the_first_page_runs(capsys):
    (code,) = [text for language, text in blocks("index.md") if language == "python"]
    exec(compile(code.replace("steps=1500", "steps=50"), "index.md", "exec"), {})
    assert "LogLikelihood(" in capsys.readouterr().out


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
