"""The report of a table: what was learned, how samples compare with the data, and which rows are strange."""

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import gibbsian
from gibbsian.app import tables
from gibbsian.app.files import read_json, write_whole
from gibbsian.app.report import figures
from gibbsian.app.report.verdict import Finding, verdict
from gibbsian.app.report.words import duration, render, rounded, shortened, thousands
from gibbsian.drawing.style import color, legend, tidy
from gibbsian.metrics.ood import auroc
from gibbsian.random import stream
from gibbsian.tables.cells import Cells
from gibbsian.tables.em import Whole, features
from gibbsian.tables.frames import as_frame, as_table
from gibbsian.tables.rows import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DRAWN = 1000  # rows that are drawn for comparison
_SEARCHED = 5000  # rows that are searched for strange ones
_STRANGE = 8
_BARS = 12  # names of a column that are shown


def write_table_report(folder: Path, run: tables.TableRun, table: Any, labels: Any) -> tuple[Path, dict[str, Any]]:
    """Write `report.html` into the run folder of a table; what needs the training table is found while it is at hand."""
    model = run.model
    noted = folder / "evaluation.json"
    if table is not None:
        found = {"family": model.family, "scores": model.scores, "rows": run.notes["rows"], **_strange(run, table), **_roc(run, table, labels)}  # fmt: skip
        tables.noted(folder, **found)
    else:
        found = (
            read_json(noted)
            if noted.exists()
            else {"family": model.family, "scores": model.scores, "rows": run.notes["rows"]}
        )
    drawn = model.rows(model.sample(_DRAWN, generator=stream(model.seed, "report")))
    rng = np.random.default_rng(0)
    data, samples = (model.codec.decode(rows, rng, "pandas") for rows in (run.kept, drawn))
    roc, roc_data = _roc_picture(found)
    context = {
        "title": folder.name,
        "cards": _cards(run, found),
        "facts": _facts(run),
        "schema": [(c.name, c.kind, f"{100 * c.missing:.1f} %", c.describe()) for c in model.schema],
        "scores": sorted(((name, f"{score:.3f}") for name, score in found["scores"].items()), key=lambda pair: -float(pair[1])),
        "marginals": _marginals(run, data.columns, samples.columns),
        "pairs": _pairs(run, drawn),
        "histogram": _energies(run, drawn),
        "gaps": _gaps(run),
        "strange": found.get("strange", []),
        "roc": roc,
        "roc_data": roc_data,
        "verdict": table_verdict(found),
        "auroc": found.get("auroc"),
        "recipe": (folder / "table.yaml").read_text(encoding="utf-8"),
        "version": gibbsian.__version__,
        "made": time.strftime("%d %B %Y, %H:%M"),
    }  # fmt: skip
    target = folder / "report.html"
    write_whole(target, render("table.html.j2", context))
    return target, {key: value for key, value in found.items() if key not in {"roc"}}


def _cards(run: tables.TableRun, found: dict[str, Any]) -> list[dict[str, Any]]:
    shown = [
        (f"{found['scores'][found['family']]:.2f}", "nats a held-out row"),
        (found["family"], "the family that was chosen"),
        (thousands(found["rows"]), "rows"),
        (str(len(run.model.schema)), "columns"),
        (duration(run.notes["seconds"]), "in all"),
    ]
    if "auroc" in found:
        shown.insert(1, (f"{found['auroc']:.3f}", "AUROC of labeled rows"))
    return [{"hero": i == 0, "value": value, "label": label} for i, (value, label) in enumerate(shown)]


def _facts(run: tables.TableRun) -> list[tuple[str, str]]:
    model = run.model
    kinds = [column.kind for column in model.schema]
    many = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    calibrated = f"{len(model.calibration)} rows that the judge did not learn from"
    return [
        ("columns", many),
        ("likelihood", "of the observed part of a row: probabilities for names, truth values and whole numbers, densities in the table's units for reals"),
        ("missing cells", "marginalized, nothing was filled in beforehand"),
        ("p-values", f"calibrated by {calibrated}"),
        ("started", time.strftime("%d %B %Y, %H:%M", time.localtime(run.notes["began"]))),
    ]  # fmt: skip


# --- data against samples -------------------------------------------------------------------------


def _marginals(run: tables.TableRun, data: tuple[Cells, ...], samples: tuple[Cells, ...]) -> list[str]:
    """Every column, data and samples on each other: histograms of numbers, shares of names."""
    out: list[str] = []
    for i, (own, other) in enumerate(zip(data, samples, strict=True)):
        if run.model.codec.coders[i] is not None:
            draw = partial(_numbers if own.form in {"number", "date"} else _names, own, other, first=not out)
            out.append(figures.svg(draw, size=(2.6, 1.9), name=f"marginal{i}"))
    return out


def _numbers(own: Cells, other: Cells, ax: "Axes", *, first: bool) -> None:
    sides = [cells.values[~cells.missing].astype(float) for cells in (own, other)]
    low, high = np.quantile(np.concatenate(sides), [0.005, 0.995])
    values = np.unique(np.concatenate(sides))
    edges = np.linspace(low, max(high, low + 1e-9), 36)
    if len(values) <= 20:  # one bar a value
        half = np.diff(values).min() / 2 if len(values) > 1 else 0.5
        edges = np.arange(values[0] - half, values[-1] + 2 * half, 2 * half)
    look: dict[str, Any] = {"density": True, "linewidth": 1.6}
    ax.hist(sides[0], edges.tolist(), color=color(0), label="data", histtype="stepfilled", alpha=0.35, **look)
    ax.hist(sides[1], edges.tolist(), color=color(1), label="samples", histtype="step", **look)
    ax.set(xlabel=own.name if own.form == "number" else f"{own.name} (days since 1970)", yticks=[])
    figures.few_ticks(ax)
    if first:
        legend(ax, fontsize=8)
    tidy(ax, grid=None)


def _names(own: Cells, other: Cells, ax: "Axes", *, first: bool) -> None:
    sides = [np.array([str(v) for v in cells.values[~cells.missing]]) for cells in (own, other)]
    names, counts = np.unique(sides[0], return_counts=True)
    names = names[np.argsort(-counts)][:_BARS]
    at = np.arange(len(names))
    shares = [[float((side == name).mean()) for name in names] for side in sides]
    ax.barh(at, shares[0], 0.8, color=color(0), alpha=0.35, label="data")
    ax.barh(at, shares[1], 0.8, facecolor="none", edgecolor=color(1), linewidth=1.6, label="samples")
    ax.set(xlabel=own.name, xticks=[], yticks=at)
    ax.set_yticklabels([shortened(name, 16) for name in names], fontsize=8 if len(names) < 7 else 6)
    ax.invert_yaxis()
    if first:
        legend(ax, fontsize=8)
    tidy(ax, grid=None)


def associations(run: tables.TableRun, rows: Rows, whole: Whole) -> np.ndarray:
    """How strongly every two columns depend on each other, 0 to 1: their first canonical correlation, `(columns, columns)`."""
    codec = run.model.codec
    x = features(rows, whole)
    x = x - x.mean(0)
    starts = np.cumsum([codec.m, *codec.states])
    blocks = []
    for z, code in zip(codec.z_slot, codec.code_slot, strict=True):
        parts = ([x[:, z : z + 1]] if z >= 0 else []) + ([x[:, starts[code] : starts[code + 1]]] if code >= 0 else [])
        block = np.concatenate(parts, 1) if parts else np.zeros((len(x), 0))
        u, s, _ = np.linalg.svd(block, full_matrices=False)
        blocks.append(u[:, s > 1e-6 * max(s.max(initial=0.0), 1e-12)])
    d = len(blocks)
    out = np.eye(d)
    for i in range(d):
        for j in range(i):
            both = blocks[i].T @ blocks[j]
            out[i, j] = out[j, i] = min(1.0, float(np.linalg.norm(both, 2))) if both.size else 0.0
    return out


def _pairs(run: tables.TableRun, drawn: Rows) -> list[str]:
    drawn = drawn.take(slice(0, run.kept.n))  # few rows look more dependent than many
    whole = Whole.of(run.kept, tuple(run.model.codec.states))
    data, samples = (associations(run, rows, whole) for rows in (run.kept, drawn))
    names = run.model.schema.names
    if len(names) < 2:
        return []

    def against(ax: "Axes") -> None:
        below = np.tril_indices(len(names), -1)
        ax.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="dashed")
        ax.plot(data[below], samples[below], ".", markersize=5, color=color(0), alpha=0.6)
        ax.set(xlabel="data", ylabel="samples", title="dependence of pairs")
        tidy(ax, grid="both")

    def matrix(values: np.ndarray, title: str, ax: "Axes") -> None:
        ax.imshow(values, vmin=0, vmax=1, cmap="magma", interpolation="nearest")
        ax.set(title=title, xticks=range(len(names)), yticks=range(len(names)))
        ax.set_xticklabels([shortened(name, 14) for name in names], rotation=90, fontsize=6)
        ax.set_yticklabels([shortened(name, 14) for name in names], fontsize=6)

    pictures = [figures.svg(against, size=(3.4, 3.2), name="pairs")]
    for values, title in ((data, "data"), (samples, "samples")):
        pictures.append(figures.svg(partial(matrix, values, title), size=(3.4, 3.2), name=f"pairs-{title}"))
    return pictures


def _energies(run: tables.TableRun, drawn: Rows) -> str:
    """Energies under the judge, of rows that it did not learn from, of samples, and of rows whose columns are shuffled on their own."""
    model, generator = run.model, stream(0, "shuffled")
    kept = run.kept
    shuffled = kept
    for i in range(len(model.schema)):
        order = torch.randperm(kept.n, generator=generator)
        parts = [part.clone() for part in shuffled]
        for part, slot in zip(parts, [model.codec.z_slot[i]] * 3 + [model.codec.code_slot[i], i], strict=True):
            if slot >= 0:
                part[:, slot] = part[order, slot]
        shuffled = Rows(*parts)
    others = {"samples": drawn, "columns shuffled": shuffled}
    values = {"data": -torch.from_numpy(model.calibration)}
    values |= {name: -torch.from_numpy(model.judged(rows)) for name, rows in others.items()}
    finite = {name: v[torch.isfinite(v)] for name, v in values.items()}
    return figures.energies(finite, {name: finite[name] for name in ("data", "samples")})


def _gaps(run: tables.TableRun) -> str | None:
    columns = [column for column in run.model.schema if column.missing > 0]
    if not columns:
        return None

    def draw(ax: "Axes") -> None:
        at = np.arange(len(columns))
        ax.barh(at, [100 * column.missing for column in columns], color=color(0), alpha=0.6)
        ax.set(xlabel="% missing", yticks=at)
        ax.set_yticklabels([shortened(column.name, 28) for column in columns])
        ax.invert_yaxis()
        tidy(ax, grid="x")

    return figures.svg(draw, size=(6.4, 0.6 + 0.28 * len(columns)), name="gaps")


# --- strange rows ---------------------------------------------------------------------------------


def _strange(run: tables.TableRun, table: Any) -> dict[str, Any]:
    """The least likely rows, with the cells that make them so: surprise beyond what is usual in their column."""
    model = run.model
    frame = as_frame(table).take(slice(0, _SEARCHED))
    score = model.log_prob(frame).value.numpy()
    least = np.argsort(score)[:_STRANGE]
    some = frame.take(least)
    beyond = model.surprise(some) - run.usual
    p, plain = model.p_values(some), as_table(some)
    rows = []
    for k, i in enumerate(least):
        order = [j for j in np.argsort(-np.where(np.isnan(beyond[k]), -np.inf, beyond[k])) if beyond[k, j] > 1][:4]
        cells = [f"{model.schema.names[j]} = {_cell(plain.iloc[k, j])} (+{beyond[k, j]:.1f} nats)" for j in order]
        rows.append({"row": int(frame.index[i]) + 1, "log_likelihood": round(float(score[i]), 2), "p_value": round(float(p[k]), 4), "cells": cells})  # fmt: skip
    return {"strange": rows}


def _cell(value: Any) -> str:
    return rounded(value) if isinstance(value, float) else str(value)


def _roc(run: tables.TableRun, table: Any, labels: Any) -> dict[str, Any]:
    """How well energies tell rows of the rarer label from others, where labels have two values."""
    if labels is None or labels.dropna().nunique() != 2:
        return {}
    known = labels.notna().to_numpy()[:_SEARCHED]
    values = labels.to_numpy()[:_SEARCHED][known]
    rare = min(set(values.tolist()), key=lambda value: (values == value).sum())
    energy = -run.model.log_prob(as_frame(table).take(slice(0, _SEARCHED)).take(known)).value
    energy = torch.where(torch.isfinite(energy), energy, torch.full_like(energy, 1e6))
    odd = torch.from_numpy(values == rare)
    if not bool(odd.any()) or bool(odd.all()):
        return {}
    return {"auroc": float(auroc(energy[~odd], energy[odd])), "unusual": str(rare), "roc": [energy[~odd].tolist(), energy[odd].tolist()]}  # fmt: skip


def table_verdict(found: dict[str, Any]) -> list[Finding]:
    """What came out of a table, in words."""
    scores, family = found["scores"], found["family"]
    others = {name: score for name, score in scores.items() if name != family}
    said = []
    if others:
        second = max(others, key=lambda name: others[name])
        ahead = scores[family] - others[second]
        words = f"by {ahead:.2f} nats a held-out row" if ahead > 0.005 else "and is as good as any on held-out rows"
        said.append(Finding("good", f"{family} was chosen before {second}, {words}"))
    if "auroc" in found:
        said += verdict({"outside": {f"rows labeled {found.get('unusual', '')}": {"auroc": found["auroc"]}}})
    return said


def _roc_picture(found: dict[str, Any]) -> tuple[str | None, dict[str, Any] | None]:
    if "roc" not in found:
        return None, None
    normal, odd = (torch.tensor(side) for side in found["roc"])
    return figures.roc({"energy": (normal, odd)})
