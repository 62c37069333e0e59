"""Write benchmarks/README.md from the sections and the saved results: `make bench-readme`.

A section is a Jinja template, `sections/NN-name.md`; they stand on the page in the order of their names. No measured
figure is typed: a section asks for them,

    results("rbm")                      what benchmarks/results/rbm.json holds; saved("rbm") whether it is there
    compare("rbm")                      a table of runs of `timing.interleave`: a row a title, a column a contender
    table(rows, {"machine": "machine", "covered": "covered:.2f"})    any list of records, or mapping of them
    pivot(rows, "law", "principle", "mmd:.2f")                       one column of records as a grid, means where several
    published("rbm-cd25")               a figure of somebody else's, with its source, from published.json

A cell is `key` or `key:format`; `a/b` is b inside a. In prose: `{{ x | fix(2) }}`, `{{ x | percent(1) }}`,
`{{ triple | within(2) }}` for lower, value and upper, `{{ row | ratio }}` for a median with its quartiles. A decimal
number outside of braces is refused, and so is a file of results that no section shows.
"""

import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

HERE = Path(__file__).resolve().parent
NONE = "–"


class Page:
    """The page of one folder with `sections/`, `results/` and `published.json`."""

    def __init__(self, folder: Path = HERE) -> None:
        self.folder, self.shown = folder, set[str]()
        self.jinja = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
        self.jinja.globals |= {
            "results": self.results,
            "saved": self.saved,
            "compare": self.compare,
            "table": table,
            "pivot": pivot,
            "published": self.published,
        }
        self.jinja.filters |= {
            "fix": fix,
            "percent": percent,
            "within": within,
            "ratio": ratio,
            "mean": statistics.mean,
            "stderr": stderr,
        }

    def text(self) -> str:
        """The whole page; refuses typed figures and results that are shown nowhere."""
        paths = sorted((self.folder / "sections").glob("*.md"))
        page = "\n".join(
            text for path in paths if (text := self.section(path)).strip()
        )  # without those that wait for results
        unseen = {path.stem for path in (self.folder / "results").glob("*.json")} - self.shown
        if unseen:
            raise ValueError(f"results that no section shows: {', '.join(sorted(unseen))}; add them to sections/*.md")
        return page

    def section(self, path: Path) -> str:
        source = path.read_text()
        typed = typed_figures(source)
        if typed:
            raise ValueError(f"{path.name} has figures typed by hand, {', '.join(typed)}: take them from results/")
        try:
            lines = self.jinja.from_string(source).render().strip().splitlines()
            return "\n".join(line.rstrip() for line in lines) + "\n"
        except Exception as error:
            error.add_note(f"in benchmarks/sections/{path.name}")
            raise

    def results(self, name: str) -> Any:
        self.shown.add(name)
        return json.loads((self.folder / "results" / f"{name}.json").read_text())

    def saved(self, name: str) -> bool:
        return (self.folder / "results" / f"{name}.json").exists()

    def published(self, name: str) -> str:
        found = json.loads((self.folder / "published.json").read_text())[name]
        return f"{found['value']} ({found['source']})"

    def compare(
        self,
        name: str,
        *,
        columns: Iterable[str] | Mapping[str, str] | None = None,
        only: str = "",
        what: str = "ratio",
        label: str = "work",
    ) -> str:
        """A table of interleaved runs: ratios to their base, or `what="us"` for microseconds a step.

        `columns` chooses, orders and (as a mapping) renames contenders; `only` is a part of the titles that are shown.
        """
        runs = [run for run in self.results(name) if "rows" in run and only in run["title"]]
        if not runs:
            raise ValueError(f"no run in {name}.json has a title with {only!r}")
        if columns is None:  # the base is 1 by definition
            columns = dict.fromkeys(c for run in runs for c in run["rows"] if what != "ratio" or c != run["base"])
        titles = dict(columns) if isinstance(columns, Mapping) else {c: c for c in columns}
        unknown = set(titles) - {c for run in runs for c in run["rows"]}
        if unknown:
            raise ValueError(f"no run in {name}.json has a contender {', '.join(sorted(unknown))}")

        def cell(row: dict) -> str:
            return ratio(row) if what == "ratio" else number(row[what])

        lines = [[run["title"], *(cell(r) if (r := run["rows"].get(c)) else NONE for c in titles)] for run in runs]
        return grid([label, *(v or k for k, v in titles.items())], lines)


def table(rows: Iterable[Mapping] | Mapping[str, Mapping], columns: Mapping[str, str]) -> str:
    """Records as a table; a mapping of records has its keys under `name`."""
    if isinstance(rows, Mapping):
        rows = [{"name": name, **row} for name, row in rows.items()]
    return grid(list(columns), [[cell(row, how) for how in columns.values()] for row in rows])


def pivot(rows: Iterable[Mapping], index: str, column: str, value: str, columns: Iterable[str] = ()) -> str:
    """The records as a grid of one of their values; records that fall into one cell are averaged."""
    rows = list(rows)
    key, _, form = value.partition(":")
    across = list(columns) or list(dict.fromkeys(row[column] for row in rows))
    found: dict = {}
    for row in rows:
        found.setdefault(row[index], {}).setdefault(row[column], []).append(row[key])
    lines = [
        [str(name), *(format(statistics.mean(cells[c]), form) if c in cells else NONE for c in across)]
        for name, cells in found.items()
    ]
    return grid([index, *map(str, across)], lines)


def grid(head: list[str], lines: list[list[str]]) -> str:
    """A table of markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def cell(row: Mapping, how: str) -> str:
    key, _, form = how.partition(":")
    value: Any = row
    for part in key.split("/"):
        value = value.get(part) if isinstance(value, Mapping) else None
    return NONE if value is None else format(value, form)


def number(x: float) -> str:
    """Three digits that count, none after the point of large numbers."""
    return (
        f"{x:.0f}" if abs(x) >= 100 else f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}" if abs(x) >= 0.095 else f"{x:.2g}"
    )


def fix(x: float, digits: int = 2) -> str:
    return f"{x:.{digits}f}"


def stderr(values: Iterable[float]) -> float:
    """The standard error of the mean of some values, 0 for one."""
    found = list(values)
    return statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0


def percent(x: float, digits: int = 1) -> str:
    return f"{100 * x:.{digits}f} %"


def within(triple: list[float], digits: int = 2) -> str:
    """Lower, value, upper as `value [lower, upper]`."""
    low, value, high = (f"{x:.{digits}f}" for x in triple)
    return f"{value} [{low}, {high}]"


def ratio(row: Mapping) -> str:
    """The median over rounds, with its quartiles where they were saved."""
    if "quartiles" not in row:
        return number(row["ratio"])
    return f"{number(row['ratio'])} [{', '.join(map(number, row['quartiles']))}]"


def typed_figures(source: str) -> list[str]:
    """Decimal numbers of a section's own text, outside of braces and of names in backticks."""
    text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|`[^`\n]*`", "", source, flags=re.DOTALL)
    return re.findall(r"(?<![\w.])[-+]?\d*\.\d+", text)


if __name__ == "__main__":
    path = HERE / "README.md"
    text = Page().text()
    if "--check" in sys.argv and path.read_text() != text:
        sys.exit("benchmarks/README.md is not what the saved results say: run `make bench-readme`")
    path.write_text(text)
