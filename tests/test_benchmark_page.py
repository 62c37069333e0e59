"""benchmarks/README.md is what the program writes from the saved results, and holds no figure of anybody's hand."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
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
