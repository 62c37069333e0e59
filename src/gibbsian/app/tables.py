"""Runs of tables: a file becomes a run folder that stands alone, from which rows are scored, filled in and drawn.

run/table.yaml                  how the table was read and fitted: `gibbsian train run/table.yaml` does the same again
run/table.{json,safetensors}    the model: schema, coders, law, what calibrates it, some rows for comparison
run/schema.json                 the schema, to be read or edited (`schema:` in table.yaml)
run/evaluation.json             what the report tells, for programs
run/report.html                 see `gibbsian.app.report.table`
"""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from gibbsian.app.files import write_whole
from gibbsian.app.notation import read_yaml
from gibbsian.errors import ArgumentError, CheckpointError, DataError, check_count, suggest
from gibbsian.random import stream
from gibbsian.tables.families import Options
from gibbsian.tables.fitting import fit_table, learn_from_all
from gibbsian.tables.frames import Frame, as_frame
from gibbsian.tables.keeping import model_of, tree_of
from gibbsian.tables.model import TableModel
from gibbsian.tables.reading import Source, in_pieces, read_table
from gibbsian.tables.rows import Rows
from gibbsian.tables.schema import Schema
from gibbsian.training import checkpoint

_KEPT = 1000  # rows that are kept for comparison with new ones
_TUPLES = {"columns", "drop", "missing", "hidden"}
_NAMES = _TUPLES - {"hidden"}
_WORDS: dict[str, Any] = {"path": str, "encoding": str} | dict.fromkeys(("label", "schema", "decimal"), str | None)
_OWN = {"label", "family", "rows", "schema"}  # keys of a table besides those of reading and of families


@dataclass(frozen=True)
class TableRecipe:
    """How a table is read and fitted, as `table.yaml` says it.

    Attributes:
        source: the file.
        label: a column that tells which rows are unusual; it is kept out of the law and used in the report.
        family: "auto", a family, or several.
        components, hidden, units, steps, seed: see `tables.Options`.
        rows: how many are learned from, at most: a random sample of larger tables.
        schema: a file with an edited schema.
    """

    source: Source
    label: str | None = None
    family: Any = "auto"
    options: Options = field(default_factory=Options)
    rows: int = 200_000
    schema: str | None = None

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "TableRecipe":
        """From the plain keys of YAML or of flags."""
        reading, fitting = ({f.name for f in dataclasses.fields(kind)} for kind in (Source, Options))
        known = sorted(reading | fitting | _OWN)
        for key in plain:
            if key not in known:
                raise ArgumentError(f"a table has no key {key!r}; {suggest(key, known)}there are {', '.join(known)}")
        if "path" not in plain:
            raise ArgumentError("say which file holds the table: table: {path: rows.csv}")
        check_count("a table", "rows", plain.get("rows", cls.rows))
        held: dict[str, Any] = {}
        for key, value in plain.items():
            _check_key(key, value)
            held[key] = tuple(value) if key in _TUPLES else value
        parts = [{key: held[key] for key in held if key in keys} for keys in (reading, fitting, _OWN)]
        return cls(Source(**parts[0]), options=Options(**parts[1]), **parts[2])

    def text(self) -> str:
        """As YAML."""
        plain: dict[str, Any] = {k: v for k, v in dataclasses.asdict(self.source).items() if v}
        plain |= dataclasses.asdict(self.options)
        plain |= {"label": self.label, "family": self.family, "rows": self.rows, "schema": self.schema}
        listed = {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items() if v is not None}
        return yaml.safe_dump({"table": listed}, sort_keys=False, allow_unicode=True)


def _check_key(key: str, value: Any) -> None:
    """Refuse what YAML may say of a key and no table is read by."""
    if key in _TUPLES and not isinstance(value, list | tuple):
        raise ArgumentError(f"{key}: {value!r} was given where a list is expected, such as {key}: [{value}]")
    if key in _NAMES and not all(isinstance(one, str | int | float) for one in value):
        raise ArgumentError(f"{key}: {value!r} holds more than names; give a list of them, such as {key}: [a, b]")
    if key == "types" and not _is_named_words(value):
        raise ArgumentError(
            f"types: {value!r} was given where columns with their kinds are expected, such as {{age: numeric}}"
        )
    if key in _WORDS and not isinstance(value, _WORDS[key]):
        raise ArgumentError(f"{key}: {value!r} was given where one word is expected")


def _is_named_words(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(kind, str) for kind in value.values())


@dataclass(frozen=True, eq=False)
class TableRun:
    """A fitted table with what its run folder keeps beside the model.

    Attributes:
        model: the law and all that it answers.
        kept: some rows that the judge did not learn from, for comparison with new ones.
        usual: mean surprise of every column over those rows: what to subtract before cells are compared.
        notes: numbers of rows, times.
    """

    model: TableModel
    kept: Rows
    usual: np.ndarray
    notes: dict[str, Any]


def is_run(folder: Path) -> bool:
    """Whether a folder holds the run of a table."""
    return (folder / "table.yaml").exists()


def train(recipe: TableRecipe, folder: Path, watch: Callable[[str], None] | None = None) -> tuple[TableRun, Any, Any]:
    """Read, fit, and write a run folder; returns the run, the frame and its labels."""
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{folder} already holds files; say another --run")
    begun = time.perf_counter()
    source = dataclasses.replace(recipe.source, path=str(Path(recipe.source.path).expanduser().resolve()))
    recipe = dataclasses.replace(recipe, source=source)
    table = read_table(source, most=recipe.rows, seed=recipe.options.seed)
    labels = None
    if recipe.label is not None:
        if recipe.label not in table.columns:
            raise ArgumentError(f"there is no column {recipe.label!r} for the labels; {suggest(recipe.label, table.columns)}there are {', '.join(map(str, table.columns))}")  # fmt: skip
        labels, table = table[recipe.label], table.drop(columns=recipe.label)
    types = {name: kind for name, kind in source.types.items() if name in table.columns}
    schema = None
    if recipe.schema is not None:
        try:
            schema = Schema.from_json(Path(recipe.schema).expanduser().read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"the schema {recipe.schema} cannot be read ({error.strerror})") from error
    model = fit_table(table, types=types, schema=schema, family=recipe.family, options=recipe.options, watch=watch)
    frame, used = as_frame(table), len(table)
    if table.attrs.get("rows", used) > used:
        model, all_of_them = learn_from_all(model, _every(source, recipe.label, model), table)
        used = all_of_them or used
        if watch is not None:
            watch(f"learned from {used} rows, {len(table)} of them at once" if all_of_them else f"learned from {used} rows of {table.attrs['rows']}")  # fmt: skip
    run = TableRun(model, *compared(model, frame), {"rows": used, "seconds": time.perf_counter() - begun, "began": time.time()})  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    save(run, folder)
    write_whole(folder / "schema.json", model.schema.to_json())
    write_whole(folder / "table.yaml", recipe.text())
    return run, table, labels


def _every(source: Source, label: str | None, model: TableModel) -> Iterator[Any]:
    """All rows of the file, piece by piece, in the columns of the model."""
    kept = tuple(name for name in source.columns if name != label)
    own = source if label is None else dataclasses.replace(source, columns=kept, drop=(*source.drop, label))
    kinds = {column.name: column.kind for column in model.schema if column.kind != "ignored"}
    return in_pieces(own, kinds, model.schema.names)


def compared(model: TableModel, frame: Frame) -> tuple[Rows, np.ndarray]:
    """Rows for comparison, and how surprising cells of each column usually are."""
    order = torch.randperm(len(frame), generator=stream(model.seed, "kept"))[:_KEPT].numpy()
    some = frame.take(order)
    surprise = model.surprise(some.take(slice(0, 300)))
    finite = np.where(np.isfinite(surprise), surprise, np.nan)
    count = np.maximum((~np.isnan(finite)).sum(0), 1)
    return model.codec.encode(some), np.nansum(finite, 0) / count


# --- the folder -----------------------------------------------------------------------------------


def save(run: TableRun, folder: Path) -> None:
    """Write the model into a folder."""
    tree = tree_of(run.model) | {"kept": run.kept, "usual": run.usual, "notes": run.notes}
    checkpoint.write_tree(folder, "table", tree)


def load(folder: Path) -> TableRun:
    """The run of a folder; its training file is not needed."""
    if not is_run(folder):
        what = "there is no run folder" if not folder.exists() else "no run of a table is in"
        raise CheckpointError(f"{what} {folder}; `gibbsian train rows.csv` makes one")
    tree = checkpoint.read_tree(folder, "table")
    return TableRun(model_of(tree), tree["kept"], tree["usual"], tree["notes"])


def recipe_of(text: str, name: str) -> dict[str, Any] | None:
    """The keys under `table:` of a YAML text, or None where it has none."""
    try:
        plain = read_yaml(text)
    except yaml.YAMLError:
        return None  # said elsewhere
    if not isinstance(plain, dict) or "table" not in plain:
        return None
    if not isinstance(plain["table"], dict) or len(plain) > 1:
        raise ArgumentError(f"{name}: a recipe of a table has the one key table:, with path: and others below it")
    return plain["table"]


def noted(folder: Path, **found: Any) -> None:
    """Write down what was found."""
    write_whole(folder / "evaluation.json", json.dumps(found, indent=1))
