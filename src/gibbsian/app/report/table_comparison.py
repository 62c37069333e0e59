"""The page of several tables side by side: held-out likelihoods, and the columns of the data against those of all laws."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gibbsian.app import tables
from gibbsian.app.files import read_json
from gibbsian.app.report import figures
from gibbsian.app.report.comparison import Compared, best_of, differences, in_rows, write_side_by_side
from gibbsian.app.report.table import table_verdict
from gibbsian.app.report.words import duration, shortened, thousands
from gibbsian.drawing.style import color, legend, tidy
from gibbsian.partition.likelihood import likelihood_of
from gibbsian.random import stream
from gibbsian.tables.frames import Cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DRAWN = 1000  # rows of each law
_COLUMNS, _BARS, _BINS = 12, 8, 24


def write_table_comparison(target: Path, folders: Mapping[str, Path], arguments: list[str], *, title: str) -> Compared:
    """Write a page over runs of tables, by their names."""
    runs = {name: tables.load(folder) for name, folder in folders.items()}
    same = _same_table(list(folders.values()), list(runs.values()))
    found = {name: _judged(folders[name], run) for name, run in runs.items()}
    said = best_of(found, same=same)
    intervals = [
        (name, *(one["likelihood"][key] for key in ("value", "lower", "upper"))) for name, one in found.items()
    ]
    cells = {name: _cells(one, runs[name].notes["seconds"]) for name, one in found.items()}
    context = {
        "about": "",
        "verdict": said,
        "likelihoods": figures.intervals(intervals) if same else None,
        **in_rows(target.parent, folders, cells),
        "findings": [(name, table_verdict(one)) for name, one in found.items()],
        "curves": [],
        "pictures": _columns(runs) if same else [],
        "names": list(runs),
        "settings": differences([folder / "table.yaml" for folder in folders.values()]),
    }
    return Compared(write_side_by_side(target, context, arguments, title=title), found, said)


def _same_table(folders: list[Path], runs: list[tables.TableRun]) -> bool:
    """Do all runs have the same columns, with the same names, ranges and gaps, and as many rows?"""
    schemas = {(folder / "schema.json").read_text(encoding="utf-8") for folder in folders}
    return len(schemas) == 1 and len({run.notes["rows"] for run in runs}) == 1


def _judged(folder: Path, run: tables.TableRun) -> dict[str, Any]:
    """What its report says, and the likelihood of rows that neither taught nor chose the law, by three standard errors."""
    noted = folder / "evaluation.json"
    known = {"family": run.model.family, "scores": run.model.scores, "rows": run.notes["rows"]}
    known |= read_json(noted) if noted.exists() else {}
    scores = torch.as_tensor(run.model.calibration)
    ll = likelihood_of(scores, None, "held-out rows")
    interval = {"value": float(ll.value), "lower": float(ll.lower), "upper": float(ll.upper), "rows": len(scores)}
    return {key: value for key, value in known.items() if key != "roc"} | {"likelihood": interval}


def _cells(found: dict[str, Any], seconds: float) -> dict[str, str]:
    ll = found["likelihood"]
    return {
        "family": found["family"],
        "held-out log-likelihood": f"{ll['value']:.2f} [{ll['lower']:.2f}, {ll['upper']:.2f}]",
        "AUROC of labels": f"{found['auroc']:.3f}" if "auroc" in found else "",
        "rows": thousands(found["rows"]),
        "time": duration(seconds),
    }


# --- columns --------------------------------------------------------------------------------------


def _columns(runs: Mapping[str, tables.TableRun]) -> list[dict[str, str]]:
    """A picture of each of the first columns: the data filled, the laws as lines."""
    first = next(iter(runs.values()))
    rng = np.random.default_rng(0)
    data = first.model.codec.decode(first.kept, rng, "pandas").columns
    drawn = {}
    for name, run in runs.items():
        rows = run.model.rows(run.model.sample(_DRAWN, generator=stream(run.model.seed, "report")))
        drawn[name] = run.model.codec.decode(rows, rng, "pandas").columns
    out: list[dict[str, str]] = []
    for i, own in enumerate(data):
        if first.model.codec.coders[i] is None or len(out) == _COLUMNS:
            continue
        draw = partial(_draw, own, {name: cells[i] for name, cells in drawn.items()}, first=not out)
        out.append({"name": own.name, "svg": figures.svg(draw, size=(3.2, 2.2), name=f"column{i}")})
    return out


def _draw(own: Cells, others: Mapping[str, Cells], ax: "Axes", *, first: bool) -> None:
    sides = {"data": own, **others}
    heights, edges, names = _shares(list(sides.values()), numeric=own.form in {"number", "date"})
    for i, (name, share) in enumerate(zip(sides, heights, strict=True)):
        look: dict[str, Any] = {"color": color(i), "label": name}
        if i == 0:
            ax.stairs(share, edges, fill=True, alpha=0.35, **look)
        else:
            ax.stairs(share, edges, linewidth=1.6, **look)
    ax.set(yticks=[], ylim=(0, 1.05 * max(max(share) for share in heights)))
    if names:
        ax.set_xticks(range(len(names)), [shortened(name, 10) for name in names], rotation=30, fontsize=7)
    else:
        figures.few_ticks(ax)
    if first:
        legend(ax, fontsize=7)
    tidy(ax, grid=None)


def _shares(sides: list[Cells], *, numeric: bool) -> tuple[list[np.ndarray], np.ndarray, list[str]]:
    """Shares of every side over common bins, or over the commonest names of the first; the bins' edges, and the names.

    >>> made = lambda *values: Cells("x", "text", np.array(values, dtype=object), np.zeros(len(values), dtype=bool))
    >>> shares, edges, names = _shares([made("a", "a", "b"), made("b", "c", "c")], numeric=False)
    >>> names, [[round(float(one), 2) for one in side] for side in shares]
    (['a', 'b'], [[0.67, 0.33], [0.0, 0.33]])
    """
    present = [cells.values[~cells.missing] for cells in sides]
    if numeric:
        return _of_numbers([side.astype(float) for side in present])
    words = [np.array([str(value) for value in side]) for side in present]
    found, counts = np.unique(words[0], return_counts=True)
    names = [str(name) for name in found[np.argsort(-counts, kind="stable")][:_BARS]]
    shares = [np.array([np.mean(side == name) if len(side) else 0.0 for name in names]) for side in words]
    return shares, np.arange(len(names) + 1) - 0.5, names


def _of_numbers(sides: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray, list[str]]:
    both = np.concatenate(sides)
    low, high = np.quantile(both, [0.005, 0.995])
    values = np.unique(both)
    edges = np.linspace(low, max(high, low + 1e-9), _BINS + 1)
    if 1 < len(values) <= 20:  # one bar a value
        half = np.diff(values).min() / 2
        edges = np.arange(values[0] - half, values[-1] + 2 * half, 2 * half)
    return [np.histogram(side, edges)[0] / max(1, len(side)) for side in sides], edges, []
