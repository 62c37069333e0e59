"""All pages that gibbsian makes, opened in a browser on a desktop, on a phone and in the dark: `make crawl`.

    python tests/crawl.py FOLDER [WORD ...]

Trains recipes of every kind for a moment, follows one of them in the live view while it trains, writes all reports, and goes through the
lab; says what is wrong with any page (`Browser.faults`) and leaves a picture of each look in the folder. What was trained is used again.
Recipes whose data must be fetched take part where `GIBBSIAN_DATA` says that they are at hand.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory

import torch
from chromium import LOOKS, browsing

from gibbsian import sequences
from gibbsian.app.cli import main
from gibbsian.app.lab.serve import page, serving
from gibbsian.app.live.serve import viewing
from gibbsian.random import stream

FEW = ["--evaluate.chains", "50", "--evaluate.betas", "100"]
RECIPES = {
    "digits-rbm": ["--fit.epochs", "20", *FEW],
    "digits-classifier": ["--fit.epochs", "6", *FEW],
    "moons-energy": ["--fit.steps", "300", "--data.n", "6000"],
    "moons-matching": ["--fit.steps", "100", "--data.n", "6000"],
    "moons-recovery": ["--fit.steps", "100", "--data.n", "6000"],
    "spirals-score": ["--fit.steps", "300", "--data.n", "6000"],
}
FETCHED = {
    "wine-density": ["--fit.steps", "100", *FEW],
    "anomaly-tabular": ["--fit.steps", "20"],
    "patches-ica": ["--fit.steps", "100"],
    "neural-words": ["--fit.steps", "50", *FEW],
}
SHOWN = "new Promise((done) => { const all = (c) => [c.samples, c.model].every((l) => l.node.hidden || l.found); const look = () => window.live?.cards.length && live.cards.every(all) && document.querySelector('.curves canvas') ? setTimeout(done, 200) : setTimeout(look, 50); look(); })"
BEGUN = "new Promise((done) => { const look = () => document.querySelector('.curves canvas') ? setTimeout(done, 1000) : setTimeout(look, 50); look(); })"
MOVED = "new Promise((done) => { const look = () => { const b = window.lab?.bench(); b && b.steps >= 40 && b.frames.length > 2 ? done() : setTimeout(look, 20); }; look(); })"


def make(target: Path, *command: str) -> Path:
    """Run a command that makes a folder, once; returns its report, which is written anew."""
    if not target.exists():
        print("gibbsian", *command, flush=True)
        assert main([*command, "--run", str(target), "--quiet"]) == 0
    elif command[0] == "train":
        assert main(["report", str(target), "--quiet"]) == 0
    return target / "report.html"


def recipe(folder: Path, name: str, *more: str) -> Path:
    """The report of a recipe, trained for a moment."""
    target = folder / "-".join([name, *more[1:]])
    return make(target, "train", name, *(RECIPES | FETCHED)[name], "--sample.steps", "100", *more)


def table(folder: Path, family: str) -> Path:
    """The report of a table."""
    rows = folder / "people.csv"
    rows.write_text(people(400))
    return make(folder / f"table-{family}", "train", str(rows), "--label", "odd", "--family", family)


def family(folder: Path) -> Path:
    """The page of aligned sequences."""
    found, touching = sequences.demo_family(300, generator=stream(0, "family"))
    found.write(folder / "family.fasta")
    n = len(touching)
    rows = [f"{i},{j},{5 if touching[i, j] else 20}" for i in range(n) for j in range(i + 1, n)]
    (folder / "distances.csv").write_text("\n".join(["i,j,heavy", *rows]))
    given = ["--alphabet", "rna", "--method", "mean-field", "--distances", str(folder / "distances.csv")]
    return make(folder / "family", "sequences", str(folder / "family.fasta"), *given)


def compared(folder: Path, name: str, *reports: Path) -> Path:
    """The page of several runs."""
    target = folder / f"{name}.html"
    assert main(["report", *(str(one.parent) for one in reports), "--out", str(target), "--quiet"]) == 0
    return target


def reports(folder: Path) -> Iterator[tuple[str, Callable[[], Path]]]:
    """The reports of recipes, of tables, of sequences, and of several runs: their names, and what makes them."""
    for name in RECIPES | (FETCHED if os.environ.get("GIBBSIAN_DATA") else {}):
        yield name, partial(recipe, folder, name)
    machines = partial(recipe, folder, "digits-rbm")
    yield "machines", lambda: compared(folder, "machines", machines(), machines("--model.hidden", "200"))
    planes = ("moons-energy", "moons-matching", "moons-recovery")
    yield "planes", lambda: compared(folder, "planes", *(recipe(folder, name) for name in planes))
    yield "table", partial(table, folder, "auto")
    yield "tables", lambda: compared(folder, "tables", table(folder, "auto"), table(folder, "parzen"))
    yield "family", partial(family, folder)


def people(n: int) -> str:
    """A made table with numbers, words and gaps."""
    g = stream(0, "people")
    age = 20 + 60 * torch.rand(n, generator=g)
    income = 1000 * torch.exp(1.0 + 0.02 * age + 0.3 * torch.randn(n, generator=g))
    town = torch.randint(4, (n,), generator=g)
    rows = ["age,income,town,children,odd"]
    for i in range(n):
        gap = "" if i % 11 == 0 else f"{float(income[i]):.2f}"
        rows.append(
            f"{float(age[i]):.1f},{gap},{('Rome', 'Ulaanbaatar', 'Llanfairpwllgwyngyll', 'Oslo')[int(town[i])]},{i % 4},{i % 10 == 0}"
        )
    return "\n".join(rows)


@contextmanager
def report(make_it: Callable[[], Path]) -> Iterator[tuple[str, str]]:
    """The address of a report, and what to wait for."""
    yield make_it().as_uri(), "0"


@contextmanager
def live(folder: Path, *names: str) -> Iterator[tuple[str, str]]:
    """The address of the live view, and what to wait for."""
    with viewing([recipe(folder, name).parent for name in names], nice=0) as server:
        yield server.address, SHOWN


@contextmanager
def training(folder: Path) -> Iterator[tuple[str, str]]:
    """The live view of a run that is trained meanwhile."""
    command = [
        sys.executable,
        "-m",
        "gibbsian",
        "train",
        "digits-rbm",
        "--live",
        "--no-browser",
        "--json",
        "--no-report",
    ]
    with (
        TemporaryDirectory(dir=folder) as place,
        Popen([*command, "--fit.epochs", "1000", "--run", f"{place}/digits"], stderr=PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        yield json.loads(process.stderr.readline())["address"], BEGUN
        process.terminate()
        process.communicate()


@contextmanager
def lab(section: str) -> Iterator[tuple[str, str]]:
    """The address of an experiment of the lab, and what to wait for."""
    with serving(page()) as address:
        yield f"{address}#{section}", MOVED


def pages(folder: Path) -> Iterator[tuple[str, AbstractContextManager[tuple[str, str]]]]:
    """Names of all pages, each with its address and what to wait for."""
    for name, make_it in reports(folder):
        yield f"report-{name}", report(make_it)
    yield "live-one", live(folder, "digits-rbm")
    yield "live-several", live(folder, "digits-rbm", "moons-energy", "spirals-score")
    yield "live-training", training(folder)
    for section in ("landscape", "machine", "wells", "lattice", "noise", "annealing", "digits"):
        yield f"lab-{section}", lab(section)


def crawl(folder: Path, wanted: list[str]) -> int:
    """Open all pages in all looks, or those with one of the words in their names; returns how many faults there are."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with browsing() as browser:
        for name, opened in pages(folder):
            if wanted and not any(one in name for one in wanted):
                continue
            with opened as (address, ready):
                for look, how in LOOKS.items():
                    browser.open(address, **how)
                    browser.run(ready)
                    browser.picture(folder / f"{name}-{look}.png", whole=True)
                    for fault in browser.faults():
                        print(f"{name}, {look}: {fault}", flush=True)
                        count += 1
    print(f"{count} faults; pictures are in {folder}")
    return count


if __name__ == "__main__":
    sys.exit(crawl(Path(sys.argv[1]), sys.argv[2:]) > 0)
