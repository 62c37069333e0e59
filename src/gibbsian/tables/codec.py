"""Between tables and rows of numbers and codes: every column has a coder that was fitted to the data."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from gibbsian.tables.cells import Cells
from gibbsian.tables.coders import Coder, FewValues, Names, Numbers
from gibbsian.tables.columns import check_form
from gibbsian.tables.frames import Frame
from gibbsian.tables.rows import Rows
from gibbsian.tables.schema import Schema


class Codec:
    """Coders of all columns; `encode` and `decode` tables.

    Attributes:
        schema: what the columns are.
        coders: one a column, None for those that are ignored.
        z_slot, code_slot: where the numbers and codes of a column stand in `Rows`, -1 for nowhere.
        states: how many codes each slot has.
        drawable: how many of them may be drawn.
    """

    def __init__(self, schema: Schema, coders: Sequence[Coder | None]) -> None:
        self.schema, self.coders = schema, list(coders)
        self.z_slot, self.code_slot, self.states, self.drawable = [], [], list[int](), list[int]()
        m = 0
        for coder in self.coders:
            has_z, states = (False, 0) if coder is None else (coder.has_z, coder.states)
            self.z_slot.append(m if has_z else -1)
            self.code_slot.append(len(self.states) if states else -1)
            m += has_z
            if coder is not None and states:
                self.states.append(states)
                self.drawable.append(coder.drawable)
        self.m, self.q = m, len(self.states)

    @classmethod
    def fit(cls, schema: Schema, frame: Frame, knots: int | None = None) -> "Codec":
        """Coders for the columns of a table; maps of numbers have so many knots, by default more for more rows."""
        coders: list[Coder | None] = []
        for column, cells in zip(schema, frame.columns, strict=True):
            if column.kind == "ignored":
                coders.append(None)
            elif not column.numbers:
                coders.append(Names(column))
            elif column.values:
                coders.append(FewValues(column))
            else:
                coders.append(Numbers.fit(column, cells.values[~cells.missing].astype(np.float64), knots))
        return cls(schema, coders)

    def encode(self, frame: Frame, *, strict: bool = False) -> Rows:
        """A table as rows; with `strict`, what was never seen is refused."""
        n = len(frame)
        z, below, above = (np.zeros((n, self.m)) for _ in range(3))
        code, unit = np.full((n, self.q), -1, dtype=np.int64), np.zeros((n, len(self.schema)))
        for i, (coder, cells) in enumerate(zip(self.coders, frame.columns, strict=True)):
            if coder is None:
                continue
            check_form(coder.column, cells)
            if cells.form == "empty":
                cells = cells._replace(values=np.full(n, np.nan))
            part = coder.encode(cells, strict)
            unit[:, i] = part.unit
            if self.z_slot[i] >= 0:
                z[:, self.z_slot[i]], below[:, self.z_slot[i]], above[:, self.z_slot[i]] = (
                    part.z,
                    part.below,
                    part.above,
                )
            if self.code_slot[i] >= 0:
                code[:, self.code_slot[i]] = part.code
        return Rows(*(torch.from_numpy(part) for part in (z, below, above, code, unit)))

    def decode_column(self, i: int, rows: Rows, rng: np.random.Generator) -> Cells:
        """The cells of a column."""
        coder, column = self.coders[i], self.schema.columns[i]
        z = rows.z[:, self.z_slot[i]].numpy() if self.z_slot[i] >= 0 else np.zeros(rows.n)
        code = rows.code[:, self.code_slot[i]].numpy() if self.code_slot[i] >= 0 else np.full(rows.n, -1)
        missing = self.missing(rows)[:, i].numpy()
        if coder is None:
            return Cells(column.name, "empty", np.full(rows.n, None, dtype=object), missing, column.dtype)
        return self.cells(i, coder.decode(z, code, rng), missing)

    def cells(self, i: int, values: np.ndarray, missing: np.ndarray) -> Cells:
        """Values of a column, in its type."""
        column = self.schema.columns[i]
        form = "date" if column.kind == "date" else "number" if column.numbers else "text"
        if column.kind == "boolean" and column.categories == (False, True):
            form, values = "truth", values.astype(bool)
        return Cells(column.name, form, values, missing, column.dtype, column.declared)

    def decode(self, rows: Rows, rng: np.random.Generator, make: str = "array") -> Frame:
        """Rows as a table."""
        return Frame(tuple(self.decode_column(i, rows, rng) for i in range(len(self.schema))), make)

    def missing(self, rows: Rows) -> torch.Tensor:
        """Which cells are missing, `(n, columns)`."""
        gone = torch.ones(rows.n, len(self.schema), dtype=torch.bool)
        for i in range(len(self.schema)):
            if self.code_slot[i] >= 0:
                gone[:, i] = rows.code[:, self.code_slot[i]] < 0
            elif self.z_slot[i] >= 0:
                gone[:, i] = rows.z[:, self.z_slot[i]].isnan()
        return gone

    def gaps(self, rows: Rows, besides: int = -1) -> torch.Tensor:
        """Which rows lack a cell that is modelled, one column perhaps left out, `(n,)`."""
        modelled = [coder is not None and i != besides for i, coder in enumerate(self.coders)]
        return self.missing(rows)[:, modelled].any(1)

    def without(self, rows: Rows, i: int) -> Rows:
        """The same rows with the cells of column i missing."""
        z, code, unit = rows.z.clone(), rows.code.clone(), rows.unit.clone()
        unit[:, i] = 0
        if self.z_slot[i] >= 0:
            z[:, self.z_slot[i]] = math.nan
        if self.code_slot[i] >= 0:
            code[:, self.code_slot[i]] = -1
        return rows._replace(z=z, code=code, unit=unit)

    def settled(self, rows: Rows) -> Rows:
        """Drawn rows, whose z may lie anywhere, as cells have them: in the middle of bins, and none where an atom is."""
        z = rows.z.clone()
        for coder, slot, code in zip(self.coders, self.z_slot, self.code_slot, strict=True):
            if not isinstance(coder, Numbers):
                continue
            there = ~z[:, slot].isnan()
            if code >= 0:
                there &= rows.code[:, code] == coder.states - 1
                z[~there, slot] = math.nan
            if coder.column.step is not None:
                z[there, slot] = torch.from_numpy(coder.settled(z[there, slot].numpy()))
        return rows._replace(z=z)
