"""`gibbsian train rows.csv`, `score`, `impute`, and `sample` and `report` of tables: rows in, rows out."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gibbsian.app import tables
from gibbsian.app.cli.show import Output
from gibbsian.app.files import free_folder
from gibbsian.app.notation import read_yaml
from gibbsian.app.report.table import table_verdict, write_table_report
from gibbsian.errors import ArgumentError, DataError, suggest
from gibbsian.random import stream
from gibbsian.tables.drift import drift
from gibbsian.tables.frames import as_table
from gibbsian.tables.reading import Source, in_pieces, is_table
from gibbsian.tables.rows import Rows

_WORDS = {"label", "decimal", "encoding", "schema", "path", "family"}  # flags that are words, whatever they look like
_HIDDEN = 20_000  # new rows, at most, that a test of drift holds at once


def table_keys(given: str, rest: list[str]) -> dict[str, Any] | None:
    """The keys of a table's recipe, from a table or a YAML file that has them and from flags; None for other recipes."""
    path = Path(given).expanduser()
    keys: dict[str, Any] | None = None
    if is_table(path):
        keys = {"path": given}
    elif path.suffix in {".yaml", ".yml"} and path.is_file():
        keys = tables.recipe_of(path.read_text(encoding="utf-8", errors="replace"), path.name)
    return None if keys is None else keys | _flags(rest)


def _flags(rest: list[str]) -> dict[str, Any]:
    """`--types age=numeric,sex=category --drop id` as keys."""
    words = [part for word in rest for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if len(words) % 2 or not all(name.startswith("--") for name in words[::2]):
        odd = next((name for name in words[::2] if not name.startswith("--")), words[-1])
        raise ArgumentError(f"{odd} is not understood; flags of a table are such as --types age=numeric,sex=category --drop id --family mixture")  # fmt: skip
    found: dict[str, Any] = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        key = name[2:]
        found[key] = [*found.get(key, []), value] if key == "missing" else _value(key, value)
    return found


def _value(key: str, text: str) -> Any:
    """What a flag says."""
    try:
        return _plain(key, text)
    except yaml.YAMLError as error:
        raise ArgumentError(
            f"--{key} {text[:40]} is not understood ({' '.join(str(error).split())[:80]}); give a number or a word"
        ) from error


def _plain(key: str, text: str) -> Any:
    if key == "types":
        return pairs(text, "--types")
    if key in {"columns", "drop"} or (key == "family" and "," in text):
        return [part.strip() for part in text.split(",")]
    if key == "hidden":
        return [read_yaml(part) for part in text.strip("[]() ").split(",") if part.strip()]
    return text if key in _WORDS else read_yaml(text)


def pairs(text: str, flag: str) -> dict[str, str]:
    """`a=1,b=2` as a dictionary; commas within values stand behind a backslash.

    >>> pairs("age=30,sex=female", "--given")
    {'age': '30', 'sex': 'female'}
    """
    out = {}
    for part in text.replace("\\,", "\0").split(","):
        name, mark, value = part.replace("\0", ",").partition("=")
        if not mark or not name.strip():
            raise ArgumentError(
                f"{flag} {text}: expected name=value, several with commas between, such as age=30,sex=female"
            )
        if name.strip() in out:
            raise ArgumentError(f"{flag} {text}: {name.strip()} is said twice; leave one of them out")
        out[name.strip()] = value.strip()
    return out


def train_table(out: Output, options: argparse.Namespace, keys: dict[str, Any]) -> int:
    """A table from file to report."""
    recipe = tables.TableRecipe.of(keys)
    name = Path(recipe.source.path).name.split(".")[0]
    folder = options.folder = Path(options.run) if options.run else free_folder(name)
    out.say(f"[bold]{name}[/bold]  run folder: {folder}")
    run, table, labels = tables.train(recipe, folder, watch=out.say)
    out.say(str(run.model.schema))
    seconds = run.notes["seconds"]
    out.say(f"chose {run.model.family} in {seconds:.1f} s")
    found: dict[str, Any] = {
        "run": str(folder),
        "family": run.model.family,
        "scores": run.model.scores,
        "rows": run.notes["rows"],
    }
    if not options.no_report:
        path, more = write_table_report(folder, run, table, labels)
        found |= {"report": str(path), **more}
        out.findings(table_verdict(more))
        out.say(f"report: {path}")
    out.next(
        [
            f"gibbsian {use}"
            for use in (f"score {folder} rows.csv", f"impute {folder} rows.csv", f"sample {folder} -n 100")
        ]
    )
    out.document(found)
    return 0


def report_table(out: Output, folder: Path) -> int:
    """The report of a run once more: with the training file where it still is, else with the rows that were kept."""
    run = tables.load(folder)
    path, found = write_table_report(folder, run, None, None)
    out.findings(table_verdict(found))
    out.say(f"report: {path}")
    out.document({"run": str(folder), "report": str(path), **found})
    return 0


# --- rows through a run ---------------------------------------------------------------------------


def _source(options: argparse.Namespace, path: str) -> Source:
    return Source(path, drop=tuple((options.drop or "").split(",")) if options.drop else (), missing=tuple(options.missing or ()), decimal=options.decimal, encoding=options.encoding)  # fmt: skip


def _pieces(run: tables.TableRun, source: Source) -> Iterator[Any]:
    """New rows in the columns of a run."""
    schema, kinds = run.model.schema, {c.name: c.kind for c in run.model.schema if c.kind != "ignored"}
    for piece in in_pieces(source, kinds, schema.names):
        if not len(piece):
            raise DataError(f"{source.path} holds a header and no rows; give a table with some")
        yield piece


def run_score(options: argparse.Namespace, rest: list[str]) -> int:
    """Log-likelihood and p-value of new rows, piece by piece; with --against a test whether they still follow the law."""
    out = Output(options)
    folder, rows = _places(options)
    run = tables.load(folder)
    target = _csv_file(options.out) if options.out else None
    shown: list[tuple[str, str, str, str]] = []
    scores, kept, n, flagged, total = list[np.ndarray](), list[Rows](), 0, 0, 0.0
    with _growing([] if target is None else [target]) as files:
        for piece in _pieces(run, _source(options, rows)):
            encoded = run.model.rows(piece)
            made, score = _scored(run, encoded, options.alpha, options.explain)
            made.index = range(n + 1, n + 1 + len(made))
            for file in files:
                made.to_csv(file, index_label="row", mode="a", header=not n)
            shown += [_line(i, row) for i, row in made.nsmallest(5, "log_likelihood").iterrows()]
            n, flagged, total = (
                n + len(made),
                flagged + int(made["outlier"].sum()),
                total + float(made["log_likelihood"].sum()),
            )
            if options.against:
                scores.append(score)
                kept = [Rows.cat([*kept, encoded]).take(slice(0, _HIDDEN))]
    found: dict[str, Any] = {
        "run": str(folder),
        "rows": n,
        "mean_log_likelihood": total / max(n, 1),
        "outliers": flagged,
    }
    out.say(f"{n} rows: {found['mean_log_likelihood']:.3f} nats a row, {flagged} outliers at level {options.alpha:g}")
    shown.sort(key=lambda line: float(line[1]))
    out.table(shown[:5], title="strangest rows", header=("row", "log-likelihood", "p-value", "strangest cell"))
    if options.against:
        found["drift"] = _drift(out, run, kept[0], np.concatenate(scores))
    if target is not None:
        out.say(f"scores: {target}")
        found["scores"] = str(target)
    out.document(found)
    return 0


def _places(options: argparse.Namespace) -> tuple[Path, str]:
    """Which run, and which rows: `score RUN rows.csv`, or `score rows.csv --against RUN`."""
    given = list(options.places)
    if options.against and len(given) == 1:
        return Path(options.against), given[0]
    if len(given) != 2:
        raise ArgumentError("say a run and a table of rows: gibbsian score RUN rows.csv")
    if options.against and Path(options.against).resolve() != Path(given[0]).resolve():
        raise ArgumentError("--against names another run than the one that scores; leave the first out: gibbsian score rows.csv --against RUN")  # fmt: skip
    return Path(given[0]), given[1]


def _scored(run: tables.TableRun, rows: Rows, alpha: float, explain: bool) -> tuple[Any, np.ndarray]:
    """What is said of rows, and the scores behind their p-values."""
    import pandas as pd

    model = run.model
    score = model.judged(rows)
    made = pd.DataFrame({"log_likelihood": model.log_prob(rows).value.numpy(), "p_value": model.p_value_of(score)})
    made["outlier"] = made["p_value"] <= alpha
    if explain:
        surprise = model.surprise(rows)
        beyond = np.where(np.isnan(surprise), -np.inf, surprise - run.usual)
        made["strangest"] = np.array(model.schema.names, dtype=object)[beyond.argmax(1)]
        for i, name in enumerate(model.schema.names):
            made[f"surprise {name}"] = surprise[:, i]
    return made, score


def _line(i: Any, row: Any) -> tuple[str, str, str, str]:
    return str(i), f"{row['log_likelihood']:.2f}", f"{row['p_value']:.3f}", str(row.get("strangest", "(say --explain)"))


def _drift(out: Output, run: tables.TableRun, rows: Rows, scores: np.ndarray) -> dict[str, Any]:
    found = drift(run.model, run.kept, rows, scores, seed=run.model.seed)
    verdict = (
        "the rows do not follow the training law any more"
        if found.p_value <= 0.05
        else "no sign that the law has changed"
    )
    out.say(
        f"drift: {verdict} (p = {found.p_value:.3g}; log-likelihoods {found.likelihood:.3g}, rows {found.rows:.3g})"
    )
    moved = {name: p for name, p in found.columns.items() if p <= 0.05}
    if moved:
        out.table(
            [(name, f"{p:.2g}") for name, p in moved.items()], title="columns that moved", header=("column", "p-value")
        )
    return {"p_value": found.p_value, "likelihood": found.likelihood, "rows": found.rows, "columns": found.columns}


def run_impute(options: argparse.Namespace, rest: list[str]) -> int:
    """Gaps of new rows filled in: by means and most probable values, or by draws."""
    out = Output(options)
    run = tables.load(Path(options.run))
    path = Path(options.rows)
    target = _csv_file(options.out or f"{path.name.split('.')[0]}-filled.csv")
    files = (
        [target]
        if options.draws is None
        else [target.with_name(f"{target.stem}-{i + 1}.csv") for i in range(options.draws)]
    )
    generator, n, filled = stream(options.seed, "impute"), 0, 0
    with _growing(files) as growing:
        for piece in _pieces(run, _source(options, str(path))):
            for file in growing:
                made = run.model.impute(piece) if options.draws is None else run.model.draw(piece, generator=generator)
                _written(run, as_table(made)).to_csv(file, index=False, mode="a", header=not n)
            n, filled = n + len(piece), filled + int(piece.isna().to_numpy().sum())
    where = str(files[0]) if len(files) == 1 else f"{files[0]} to {files[-1].name}"
    out.say(f"{filled} gaps in {n} rows filled in: {where}")
    out.document({"run": options.run, "rows": n, "filled": filled, "files": list(map(str, files))})
    return 0


def _csv_file(given: str | Path) -> Path:
    target = Path(given)
    if target.suffix != ".csv":
        raise ArgumentError(f"--out {target}: rows of a table go into a file that ends in .csv")
    return target


@contextmanager
def _growing(targets: list[Path]) -> Iterator[list[Path]]:
    """Hidden files that take the places of the targets once all rows are in them: a target may be the file that the rows come from."""
    growing = [target.with_name(f".{target.name}.new") for target in targets]
    for target, new in zip(targets, growing, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)  # in a folder from elsewhere it may be a link to a file of yours
        new.write_text("", encoding="utf-8")
    try:
        yield growing
        for target, new in zip(targets, growing, strict=True):
            new.replace(target)
    finally:
        for new in growing:
            new.unlink(missing_ok=True)


def _written(run: tables.TableRun, table: Any) -> Any:
    """A table for a file: whole numbers without a point, whatever their gaps were stored as in training."""
    whole = [c.name for c in run.model.schema if c.kind == "integer" and (table[c.name].dropna() % 1 == 0).all()]
    return table.astype(dict.fromkeys(whole, "Int64"))


def sample_table(out: Output, options: argparse.Namespace) -> int:
    """Rows drawn from the law of a table, some cells given."""
    folder = Path(options.run)
    for name in ("label", "clamp", "steps"):
        if getattr(options, name) is not None:
            raise ArgumentError(
                f"--{'class' if name == 'label' else name} is not for tables; hold cells with --given age=30,sex=female"
            )
    run = tables.load(folder)
    target = _csv_file(options.out or folder / "samples.csv")
    given = pairs(options.given, "--given") if options.given else {}
    drawn = _written(run, as_table(run.model.sample(options.n, given, generator=stream(options.seed, "sample"))))
    with _growing([target]) as files:
        drawn.to_csv(files[0], index=False)
    out.say(f"{options.n} rows: {target}")
    out.say(drawn.head(5).to_string(index=False))
    out.document({"run": str(folder), "samples": str(target), "rows": options.n, "given": given})
    return 0


def refuse_table(folder: Path, command: str) -> None:
    """Say what a run of a table can be asked, where a command is for other runs."""
    if tables.is_run(folder):
        near = suggest(command, ("score", "impute", "sample", "report"))
        raise ArgumentError(
            f"{folder} is the run of a table: gibbsian {command} is not for it; {near}use score, impute, sample or report"
        )
