"""The chapters of the course run as printed, have the parts that they promise, and their numbers are those of theory.

A chapter is a text notebook `docs/course/NN-name.md`. Its numbers stand in `course_numbers_first.py` (chapters 1 to 9) or
`course_numbers_second.py` (from 10 on): for each chapter a dictionary from names of the chapter, or expressions in them, to
(value expected from theory or enumeration, tolerance, why that tolerance).
"""

import re
from pathlib import Path

import matplotlib as mpl
import pytest

mpl.use("Agg")
import course_numbers_first
import course_numbers_second
import matplotlib.pyplot as plt
import yaml
from matplotlib.axes import Axes

ROOT = Path(__file__).parent.parent
CHAPTERS = sorted((ROOT / "docs/course").glob("[0-9]*.md"))
LAB = ROOT / "src/gibbsian/app/lab/page/sections"
NUMBERS = course_numbers_first.NUMBERS | course_numbers_second.NUMBERS

CELL = re.compile(r"^```\{code-cell\} python\n(.*?)^```$", re.M | re.S)
OPTIONS = re.compile(r"\A(?::\w[\w-]*:.*\n)+")
FRAME = re.compile(
    r"^```\{raw\} html\n<iframe class=\"lab\" src=\"\.\./lab/index\.html#(\w+)\?([^\"]*)\" title=\"[^\"]+\"", re.M
)

chapters = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)


def section(text: str, title: str) -> str:
    """The text under a heading of the second level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"no section '## {title}'"
    return found[1]


def run(chapter: Path) -> dict:
    """All code cells in one namespace, with the lines of the chapter in tracebacks."""
    text, names = chapter.read_text(), {"__name__": "chapter"}
    for cell in CELL.finditer(text):
        options = OPTIONS.match(cell[1])
        code = cell[1][options.end() if options else 0 :]
        line = text[: cell.end()].count("\n") - code.count("\n")
        exec(compile("\n" * line + code, str(chapter), "exec"), names)
    return names


def labelled(ax: Axes, which: str) -> bool:
    """Whether an axis has a label, or shares that of another panel."""
    shared = getattr(ax, f"get_shared_{which}_axes")().get_siblings(ax)
    return any(getattr(other, f"get_{which}label")() for other in shared)


@chapters
def test_chapter_has_its_parts(chapter):
    text = chapter.read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert front["jupytext"]["text_representation"]["format_name"] == "myst"
    assert front["kernelspec"]["name"] == "python3"
    assert text.count("```{code-cell}") == len(CELL.findall(text))
    assert len(re.findall(r"^# ", CELL.sub("", text), re.M)) == 1
    exercises = re.split(r"^### Exercise ", section(text, "Exercises"), flags=re.M)[1:]
    assert 3 <= len(exercises) <= 5
    for exercise in exercises:
        assert "<summary>Solution</summary>" in exercise, exercise[:80]
    solutions = CELL.findall(section(text, "Exercises"))
    assert len(solutions) >= 3
    assert all(":tags: [hide-cell]" in cell for cell in solutions)
    assert len(re.findall(r"^- .*\b(1[789]|20)\d\d\b", section(text, "References"), re.M)) >= 3
    assert re.search(r"^:::\{admonition\} For teachers: 90 minutes$", text, re.M)
    assert "Teach" not in section(text, "References")


@chapters
def test_chapter_opens_the_lab_where_it_says(chapter):
    frames = FRAME.findall(section(chapter.read_text(), "Try it"))
    assert frames
    for name, query in frames:
        known = set(re.findall(r"\{ id: \"(\w+)\"", (LAB / f"{name}.js").read_text())) | {"seed", "play"}
        asked = dict(part.split("=") for part in query.split("&"))
        assert asked.pop("embed") == "1"
        assert set(asked) <= known, f"the lab's {name} has no {set(asked) - known}"


@chapters
def test_chapter_runs_and_its_numbers_are_right(chapter):
    try:
        names = run(chapter)
        figures = [plt.figure(number) for number in plt.get_fignums()]
        assert figures
        for figure in figures:
            drawn = [ax for ax in figure.axes if ax.axison and ax.get_label() != "<colorbar>"]
            assert figure.get_suptitle() or all(ax.get_title() for ax in figure.axes if ax.get_label() != "<colorbar>")
            assert all(labelled(ax, "x") and labelled(ax, "y") for ax in drawn)
    finally:
        plt.close("all")
    assert len(NUMBERS[chapter.stem]) >= 4
    for name, (expected, tolerance, _reason) in NUMBERS[chapter.stem].items():
        got = float(eval(name, names))
        assert abs(got - expected) <= tolerance, f"{name} is {got}, expected {expected} ± {tolerance}"


def test_slips_are_as_large_as_they_say():
    page = ROOT / "docs/course/slips.md"
    names = run(page)
    assert len(re.findall(r"^### \d+\. ", page.read_text(), re.M)) >= 15
    for name, (expected, tolerance, _reason) in course_numbers_second.SLIPS.items():
        got = float(eval(name, names))
        assert abs(got - expected) <= tolerance, f"{name} is {got}, expected {expected} ± {tolerance}"


def test_every_number_belongs_to_a_chapter():
    assert set(NUMBERS) == {chapter.stem for chapter in CHAPTERS}
    for numbers in NUMBERS.values():
        for _expected, tolerance, reason in numbers.values():
            assert tolerance >= 0
            assert len(reason) > 3
