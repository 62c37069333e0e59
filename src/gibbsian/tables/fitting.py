"""Learning a table: the schema, the law of its rows, what calibrates it."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gibbsian.errors import ArgumentError, DataError, check_choice
from gibbsian.random import stream
from gibbsian.tables.codec import Codec
from gibbsian.tables.coders import TableWarning
from gibbsian.tables.em import Whole, climb, fit_mixture
from gibbsian.tables.families import FAMILIES, Options, choose
from gibbsian.tables.frames import Frame, as_frame
from gibbsian.tables.gaps import Gaps, fit_gaps
from gibbsian.tables.laws import Law, MixtureLaw
from gibbsian.tables.model import TableModel, judged
from gibbsian.tables.rows import Rows
from gibbsian.tables.schema import Schema

_FEW = 20  # rows below which none are held out
_SHARE, _MOST = 0.15, 2000  # of the rows that choose, and of those that calibrate
_KNOTS = (None, 5, 2)  # of the maps of numbers that are compared: as many as the rows allow, few, straight lines
_SMALL = (1, 4, 8)  # components of the mixtures that compare them
_COMPARED = 1500  # rows, at most, that they are compared on
_GAPS = 200  # rows that say what is usual in a column
_WORTH = 0.02  # nats a row by which a stiffer map must be better


def fit_table(
    table: Any, *, types: Mapping[str, str] | None = None, schema: Schema | None = None, family: str | Sequence[str] = "auto",
    options: Options | None = None, watch: Callable[[str], None] | None = None,
) -> TableModel:  # fmt: skip
    """Learn a schema and a law of rows from a table.

    Args:
        table: a frame of pandas or polars, an Arrow table, or an array.
        types: what some columns are, by name; see `Schema`.
        schema: what all columns are, instead.
        family: one of `FAMILIES`, several to choose from, or "auto" for all.
        options: of the families.
        watch: told in words what has been done.

    >>> x = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = fit_table(x, family="mixture")
    >>> model.log_prob(x).value.shape, model.schema["x0"].kind
    (torch.Size([60]), 'numeric')
    """
    options = options or Options()
    names = list(FAMILIES) if family == "auto" else [family] if isinstance(family, str) else list(family)
    for name in names:
        check_choice("fit_table", "family", name, FAMILIES)
    frame = as_frame(table)
    if len(frame) < 2:
        many = "no rows" if not len(frame) else "one row (n_samples=1)"
        raise DataError(f"the table has {many}; a law needs at least 2")
    schema = Schema.learn(frame, types) if schema is None else schema
    if schema.names != frame.names:
        raise ArgumentError(
            f"the schema is of the columns {', '.join(schema.names)}, the table has {', '.join(frame.names)}"
        )
    _tell(schema, frame, types)
    train, held, calibrate = _split(len(frame), stream(options.seed, "split"))
    codec = _codec(schema, frame, train, held, options.seed)
    rows = codec.encode(frame)
    if watch is not None:
        watch(f"{rows.n} rows, {len(schema)} columns")
    chosen = choose(names, codec, rows.take(train), rows.take(held), options, watch)
    law = chosen.again(rows, Whole.of(rows, tuple(codec.states)))
    some = rows.take(calibrate)
    per_gap = _per_gap(chosen.law, codec, some.take(slice(0, _GAPS)))
    calibration = np.sort(judged(chosen.law, codec, per_gap, some))
    gaps = _gaps(codec, rows, options)
    return TableModel(
        codec, law, chosen.law, calibration, per_gap, chosen.family, chosen.scores, options.seed, frame.make, gaps
    )


def _gaps(codec: Codec, rows: Rows, options: Options) -> Gaps | None:
    if options.gaps == "ignorable":
        return None
    return fit_gaps(lambda some: _simple(codec, some, options.seed), codec, rows, seed=options.seed)


def _simple(codec: Codec, rows: Rows, seed: int) -> Law:
    """A law that is learned quickly."""
    whole = Whole.of(rows, tuple(codec.states))
    return MixtureLaw(fit_mixture(rows, whole, min(_SMALL[-1], max(rows.n // 20, 1)), seed=seed, steps=20), codec)


def _per_gap(law: Law, codec: Codec, rows: Rows) -> np.ndarray:
    """Mean log p(xᵢ | x₋ᵢ) of every column's cells, 0 where none is there."""
    out = np.zeros(len(codec.schema))
    for i, coder in enumerate(codec.coders):
        found = law.log_given(rows, i) if coder is not None else torch.zeros(0)
        finite = found[torch.isfinite(found)]
        out[i] = float(finite.mean()) if len(finite) else 0.0
    return out


def learn_from_all(model: TableModel, pieces: Iterable[Any], some: Any) -> tuple[TableModel, int]:
    """A mixture that was fitted to some rows of a table, moved by one round of expectation-maximization over all of them, which come
    piece by piece; and how many there were. Laws of other families stay as they are, and 0 is returned.

    Args:
        model: fitted to `some`.
        pieces: tables; one is in memory at a time.
        some: a sample of the rows, for the priors.
    """
    if not isinstance(model.law, MixtureLaw) or model.family != "mixture":
        return model, 0
    whole = Whole.of(model.rows(some), tuple(model.codec.states))
    mixture, n = climb(model.law.mixture, (model.rows(piece) for piece in pieces), whole)
    return replace(model, law=MixtureLaw(mixture, model.codec)), n


def _codec(schema: Schema, frame: Frame, train: torch.Tensor, held: torch.Tensor, seed: int) -> Codec:
    """Coders whose maps follow every column closely, or stiffer ones, by the likelihood of held-out rows under small mixtures.

    Close maps make skewed and heavy-tailed columns normal; they also bend clusters that were normal, where columns have several
    heights.
    """
    first = Codec.fit(schema, frame, _KNOTS[0])
    if len(frame) < _FEW or first.m < 2:
        return first
    tried = [first, *(Codec.fit(schema, frame, knots) for knots in _KNOTS[1:])]
    some, judges = (frame.take(part[:_COMPARED].numpy()) for part in (train, held))
    best, best_score = first, -math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # said where all rows are coded
        for codec in tried:
            rows, new = codec.encode(some), codec.encode(judges)
            whole = Whole.of(rows, tuple(codec.states))
            laws = [fit_mixture(rows, whole, k, seed=seed, steps=20) for k in _SMALL if k <= max(rows.n // 20, 1)]
            score = max(float(law.log_prob(new).clamp(min=-1e6).mean()) for law in laws)
            if score > best_score + _WORTH:
                best, best_score = codec, score
    return best


def _split(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that teach, those that choose, those that calibrate; all the same where there are few."""
    order = torch.randperm(n, generator=generator)
    if n < _FEW:
        return order, order, order
    some = min(_MOST, max(3, round(_SHARE * n)))
    return order[2 * some :], order[:some], order[some : 2 * some]


def _tell(schema: Schema, frame: Frame, types: Mapping[str, str] | None) -> None:
    """Warn of columns that are not modelled although nobody said so."""
    for column, cells in zip(schema, frame.columns, strict=True):
        if column.kind == "ignored" and (types or {}).get(column.name) != "ignored":
            several = len(set(cells.values[~cells.missing].tolist()))
            why = {"empty": "is empty", "number": "holds whole numbers of more than 2⁵³, like a key"}.get(
                cells.form, f"holds {several} different words, like a name or a key"
            )
            warnings.warn(f"column {column.name!r} {why}: it is carried along and not modelled (say types={{{column.name!r}: 'ignored'}}, or 'category')", TableWarning, stacklevel=3)  # fmt: skip
