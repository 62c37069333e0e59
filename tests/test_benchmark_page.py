"""benchmarks/README.md is what the program writes from the saved results, and holds no figure of anybody's hand."""

import importlib.util
import json
import re
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
spec = importlib.util.spec_from_file_location("write_readme", BENCHMARKS / "write_readme.py")
assert spec is not None
assert spec.loader is not None
write_readme = importlib.util.module_from_spec(spec)
sys.modules["write_readme"] = write_readme
spec.loader.exec_module(write_readme)


def test_the_page_is_what_the_program_writes():
    assert (BENCHMARKS / "README.md").read_text() == write_readme.Page().text(), "run `make bench-readme`"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sections").mkdir()
    (tmp_path / "results").mkdir()
    rows = {"base": {"us": 20.0, "ratio": 1.0, "quartiles": [1.0, 1.0]}}
    rows["ours"] = {"us": 10.04, "ratio": 0.502, "quartiles": [0.48, 0.5251]}
    runs = [
        {"title": "work", "base": "base", "rows": rows},
        {"title": "more", "base": "base", "rows": {"peer": rows["ours"]}},
    ]
    (tmp_path / "results" / "runs.json").write_text(json.dumps(runs))
    return tmp_path


def test_a_section_shows_what_was_saved(folder):
    (folder / "sections" / "1-runs.md").write_text(
        '## Runs\n\n{{ compare("runs") }}\n\n{{ results("runs")[0].rows.ours | ratio }}\n'
    )
    assert write_readme.Page(folder).text() == (
        "## Runs\n\n| work | ours | peer |\n| --- | --- | --- |\n| work | 0.50 [0.48, 0.53] | – |\n"
        "| more | – | 0.50 [0.48, 0.53] |\n\n0.50 [0.48, 0.53]\n"
    )


@pytest.mark.parametrize("typed", ["the ratio is 1.15", "about .5 of it", "fell by -0.3"])
def test_typed_figures_are_refused(folder, typed):
    (folder / "sections" / "1-runs.md").write_text('{{ compare("runs", what="us") }}\n' + typed)
    with pytest.raises(ValueError, match=r"1-runs.md has figures typed by hand"):
        write_readme.Page(folder).text()


def test_names_and_settings_are_no_typed_figures():
    assert not write_readme.typed_figures(
        "torch on 784×500, batch 100 of `start={.5}`, {{ x | fix(2) }} {{ 0.3 }}, 3 sweeps."
    )


def test_results_that_nobody_shows_are_refused(folder):
    (folder / "sections" / "1-runs.md").write_text("nothing")
    with pytest.raises(ValueError, match="no section shows: runs"):
        write_readme.Page(folder).text()


def test_misspelt_contenders_and_keys_are_refused(folder):
    section = folder / "sections" / "1-runs.md"
    section.write_text('{{ compare("runs", columns=["our"]) }}')
    with pytest.raises(ValueError, match="has a contender our"):
        write_readme.Page(folder).text()
    section.write_text('{{ results("runs")[0].row }}')
    with pytest.raises(Exception, match="no attribute 'row'"):
        write_readme.Page(folder).text()


def test_records_as_tables():
    records = [
        {"law": "a", "by": "x", "mmd": 1.0},
        {"law": "a", "by": "x", "mmd": 2.0},
        {"law": "b", "by": "y", "mmd": 3.0},
    ]
    assert write_readme.pivot(records, "law", "by", "mmd:.1f") == (
        "| law | x | y |\n| --- | --- | --- |\n| a | 1.5 | – |\n| b | – | 3.0 |"
    )
    assert write_readme.table({"m": {"z": {"value": 0.25}}}, {"": "name", "Z": "z/value:.2f", "no": "w"}) == (
        "|  | Z | no |\n| --- | --- | --- |\n| m | 0.25 | – |"
    )


def slug(heading: str) -> str:
    """The address of a heading, as code hosts and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_pages_that_cite_a_measurement_name_a_section_that_is_there():
    there = {slug(heading) for heading in re.findall(r"^#+ (.*)$", (BENCHMARKS / "README.md").read_text(), re.M)}
    cited = 0
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for anchor in re.findall(r"benchmarks(?:/README)?\.md#([\w-]+)", page.read_text()):
            assert anchor in there, f"{page.name}: {anchor}"
            cited += 1
    assert cited > 20


def results(name: str):
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())


def by(rows, key: str, value: str, **only) -> dict[str, float]:
    """Means of one value of records over groups by a key; `only` names what else the records must have."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if all(row[name] == wanted for name, wanted in only.items()):
            groups.setdefault(row[key], []).append(row[value])
    return {name: statistics.mean(values) for name, values in groups.items()}


def ratios(name: str, contender: str, part: str = "") -> dict[str, float]:
    runs = [run for run in results(name) if part in run.get("title", "")]
    return {run["title"]: run["rows"][contender]["ratio"] for run in runs if contender in run.get("rows", {})}


def nearly(x: float, whole: float, within: float = 0.2) -> bool:
    return abs(x / whole - 1) <= within


def kernel_claims():
    few = {title: r for title, r in ratios("nuts", "gibbsian compiled", " 4 chains").items() if "funnel" not in title}
    fixed, warmed = ([r for title, r in few.items() if part in title] for part in ("fixed", "warm-up"))
    yield (
        "a third to two thirds of BlackJAX's processor time for an effective draw on three laws",
        len(fixed) == 3 and nearly(min(fixed), 1 / 3) and nearly(max(fixed), 2 / 3),
    )
    yield "nearly all of it at worst where the warm-up counts", 0.9 < max(warmed) <= 1
    compiled = ratios("samplers", "gibbsian compiled")
    hmc = next(ratio for title, ratio in compiled.items() if title.startswith("HMC"))
    yield (
        "less than half of plain PyTorch's time, a seventh for HMC",
        max(compiled.values()) < 0.5 and nearly(hmc, 1 / 7),
    )
    calls = results("first_calls")["rows"]
    warm, cold = ([call[key] for call in calls] for key in ("warm_cpu_s", "cold_cpu_s"))
    yield "less than a second of the processor,", max(warm) < 1
    yield "two to six where nothing is cached", min(cold) >= 1.5 and max(cold) < 6.5
    new = [call["new_s"] for call in calls]
    yield "six to nine on a new machine", min(new) >= 5.5 and max(new) < 9
    many = by(results("many_chains"), "kernel", "per_second", case="100-D Gaussian, 100 chains")
    yield "six times the effective draws a second of NUTS", nearly(many["ChEES"] / many["NUTS"], 6)
    yield "level with HMC tuned by hand", nearly(many["ChEES"] / many["HMC tuned by hand"], 1)
    for target, said, times in (
        ("DW-4", "five times the effective draws a gradient of HMC", 5),
        ("LJ-13", "a fifth", 1 / 5),
    ):
        gradients = {r["kernel"]: r["ess"] / r["gradients"] for r in results("particles") if r["target"] == target}
        yield f"{said} on {target}", nearly(gradients["tempering of HMC"] / gradients["HMC, 10 steps"], times)
    lattice = {r["kernel"]: r for r in results("lattice")["decorrelation"]}
    single, fastest = lattice.pop("Gibbs"), max(r["autocorrelation_steps"] for r in lattice.values())
    slowest = max(r["ms_a_draw"] for r in lattice.values())
    yield "a ninetieth of the steps of single sites", single["autocorrelation_steps"] / fastest > 85
    yield "a third of their time or less", slowest < 0.35 * single["ms_a_draw"]


def objective_claims():
    low, _, high = results("mnist_rbm")["test_log_likelihood"]
    yield "level with the published CD-25 on MNIST", low < -86.34 < high
    joint = [results(name) for name in ("jem_fashion", "jem_fashion_light", "jem_mnist")]
    better = all(r["joint"]["ece"] < r["cross_entropy_alone"]["ece"] for r in joint)
    yield "better calibrated than cross-entropy alone", better
    garments, _, digits = (r["auroc"]["joint"] for r in joint)
    yield "the energy of digits finds garments", digits["energy"] > 0.95
    found = garments["energy"] < 0.5 and garments["score_norm"] > 0.8
    yield "that of garments does not find digits, but the norm of its score does", found
    color = results("cifar_jem")
    yield (
        "no better calibrated on CIFAR-10",
        all(
            color["joint"][how]["ece"] >= color["cross_entropy_alone"][how]["ece"]
            for how in ("as it is", "at the temperature")
        ),
    )
    ising = {r["name"]: r for r in results("inverse_ising")["results"]}
    plain, chains = ising["fit_ising, pseudo-likelihood"], ising["fit_ising, boltzmann, errors"]
    within = plain["rms_error"] < 1.08 * chains["rms_error"] and plain["seconds"] < chains["seconds"] / 50
    yield "within a few per cent of Boltzmann learning at a fiftieth of the time", within
    (five,) = ratios("objectives", "5 projections", "five projections against one").values()
    yield "1.8 times the cost for five projections", nearly(five, 1.8, 0.05)
    toys = results("toy_objectives")
    best = {
        law: max((r for r in toys if r["law"] == law), key=lambda r: r["log_likelihood"])
        for law in by(toys, "law", "mmd")
    }
    behind = [top["log_likelihood"] - r["log_likelihood"] for law, top in best.items()
              for r in toys if (r["law"], r["principle"]) == (law, "NCE")]  # fmt: skip
    yield "the best log-likelihoods of nine principles", max(behind) < 0.005 and len(by(toys, "principle", "mmd")) == 9
    drawn = {name: max(r["mmd_own_draws"] / r["mmd_held_out_mean"] for r in toys if r["principle"] == name)
             for name in ("recovery", "matching")}  # fmt: skip
    yield (
        "draws of recovery within 1.4, of matching within 1.2 times",
        drawn["recovery"] < 1.4 and drawn["matching"] < 1.2,
    )
    shares = {x["options"]["data"]: [p["fid"] / x["score_network"]["fid"]
                                     for p in (*x["energy_matching"]["curve"], x["energy_matching"]["by_time"][-1])]
              for x in results("energy_matching")}  # fmt: skip
    about = max(shares["mnist"]) < 0.55 and sum(shares["mnist"]) / 6 < 0.5 and max(shares["fashion"]) < 0.13
    yield "about half of a score network's distance to digits and an eighth to garments", about
    (kernel,) = ([p["kid"] / x["score_network"]["kid"] for p in x["energy_matching"]["curve"]]
                 for x in results("energy_matching") if x["options"]["data"] == "mnist")  # fmt: skip
    yield "by the kernel distance level on digits", min(kernel) < 1 < max(kernel)
    steps = results("score_scaling")[0]["rows"]
    times = {name: [r["ms_a_step"] for r in steps if r["objective"] == name] for name in ("denoising", "implicit")}
    perceptron = [r["ms_a_step"] for r in steps if (r["network"], r["objective"]) == ("perceptron", "denoising")]
    constant = max(perceptron) < 1.2 * min(perceptron) and times["implicit"][-1] > 1.2 * times["implicit"][0]
    yield "constant cost in the dimension; implicit matching grows", constant
    found = by([r for r in results("discrepancy") if "divergence" in r], "principle", "divergence")
    chains_win = found["PCD-1"] < min(value for name, value in found.items() if name.startswith("discrepancy"))
    yield "chains do better where they mix", chains_win


def table_claims():
    tables = results("tables")
    for hidden in by(tables["imputation"], "hidden", "error"):
        errors = by(tables["imputation"], "imputer", "error", hidden=hidden)
        yield "less error in hidden numbers than three imputers", min(errors, key=errors.__getitem__) == "gibbsian"
    told = by(tables["synthesis"], "synthesizer", "told apart")
    yield "drawn rows harder to tell from real ones", min(told, key=told.__getitem__) == "gibbsian"
    ranks: dict[str, list[int]] = {}
    records = results("anomalies")["records"]
    for table in by(records, "table", "auroc"):
        order = by(records, "detector", "auroc", table=table)
        for rank, name in enumerate(sorted(order, key=order.__getitem__, reverse=True)):
            ranks.setdefault(name, []).append(rank)
    yield "best mean rank on ten sets of anomalies", min(ranks, key=lambda name: sum(ranks[name])) == "energy"


@pytest.mark.parametrize("claims", [kernel_claims, objective_claims, table_claims])
def test_the_decision_tables_say_what_was_measured(claims):
    page = (ROOT / "docs" / "choose.md").read_text()
    for said, holds in claims():
        assert said in page, f"choose.md no longer says {said!r}: mend its claim here too"
        assert holds, f"choose.md says {said!r}, the results no longer do"


FRONT = {
    "RBM 784×500": "An RBM on MNIST",
    "the same RBM": "An RBM on MNIST",
    "DBM 784": "Deep Boltzmann machines",
    "the same, fine-tuned": "Deep Boltzmann machines",
    "DBN 784-500-2000": "Deep belief networks",
    "DBN 784-500-500-2000": "Deep belief networks",
    "joint energy on Fashion-MNIST": "Joint energies",
    "joint energy on MNIST": "Joint energies",
    "joint energy on CIFAR-10": "A joint energy of CIFAR-10",
    "garments of given classes": "Recipes of image energies",
    "digits and garments": "Energy matching against a score network",
    "MNIST digits": "A noise-conditional score network",
    "ten tables": "Anomalies in tables",
    "ten mixed": "Independent components",
}
FIGURE = re.compile(r"-?\d*\.\d+|(?<![\w.])\d+(?= %)")


def decimals(figure: str) -> int:
    return len(figure.partition(".")[2])


@pytest.mark.parametrize("row", FRONT)
def test_the_front_page_repeats_figures_of_the_benchmarks(row):
    """Every figure of a row, those of peers too, stands in its section, rounded as far."""
    (line,) = re.findall(rf"^\| {re.escape(row)}.*", (ROOT / "README.md").read_text(), re.M)
    page = (BENCHMARKS / "README.md").read_text()
    found = re.search(rf"^## {re.escape(FRONT[row])}.*?(?=^## |\Z)", page, re.M | re.S)
    assert found
    measured = [(float(m), decimals(m)) for m in FIGURE.findall(found[0])]
    measured += [(100 * m, k - 2) for m, k in measured if 0 < m < 1 and k > 2]  # the front page says shares in %
    for figure in FIGURE.findall(line):
        k = decimals(figure)
        half = 0.5001 * 10.0**-k  # what was rounded at a half may have gone either way
        assert any(there >= k and abs(m - float(figure)) <= half for m, there in measured), f"{figure} of {row!r}"


def test_the_best_peer_of_the_front_page_is_the_best_that_was_measured():
    means = by(results("anomalies")["records"], "detector", "auroc")
    best = max(value for name, value in means.items() if not name.startswith("energy"))
    (line,) = re.findall(r"^\| ten tables.*", (ROOT / "README.md").read_text(), re.M)
    assert f"| {best:.3f}".replace("0.", ".") in line
