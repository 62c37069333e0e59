"""What the columns of a table are: learned from the data, printed, edited.

    kind        values                      measure of the likelihood
    numeric     reals                       Lebesgue, in the units of the column
    integer     whole numbers               counting: the mass of a bin
    date        times                       Lebesgue, in days
    boolean     true and false              counting
    category    names                       counting
    ignored     anything                    none: the column is carried along, not modelled

A column of numbers may have a `step`, the grid that all its values lie on (0.1, 1, 50); then the mass of a bin of one
step, divided by the step, is the density (of reals) or the probability (of whole numbers), the same wherever in the bin a value
lies, so that rounded data cannot make a density infinite. It may have `atoms`, single values that carry mass of their own
(the zeros of an income), and a `lower` end below which nothing lies. All of them can be edited.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from gibbsian.errors import ArgumentError, DataError, check_choice, suggest
from gibbsian.tables.columns import KINDS, Column, learn_column
from gibbsian.tables.frames import Frame


class Schema:
    """The columns of a table.

    Args:
        columns: in order.

    >>> import numpy as np
    >>> from gibbsian.tables.frames import as_frame
    >>> schema = Schema.learn(as_frame(np.array([[1.5, 0], [2.25, 1], [2.5, 1]])))
    >>> print(schema)
    column  kind     missing  values
    x0      numeric      0 %  1.5 to 2.5, in steps of 0.25, never below 0
    x1      integer      0 %  0 to 1, in steps of 1, never below 0
    >>> schema.edit("x0", lower=None)["x0"].lower is None
    True
    """

    def __init__(self, columns: tuple[Column, ...] | list[Column]) -> None:
        self.columns = tuple(columns)
        if not any(column.kind != "ignored" for column in self.columns):
            raise DataError("no column is left to learn from: all are empty, or ignored; give one that is not")

    @classmethod
    def learn(cls, frame: Frame, types: Mapping[str, str] | None = None) -> "Schema":
        """The schema of a table; `types` says what some columns are."""
        types = dict(types or {})
        for name, kind in types.items():
            if name not in frame.names:
                raise ArgumentError(f"types names a column {name!r}, which is not there; {suggest(name, frame.names)}there are {', '.join(frame.names)}")  # fmt: skip
            check_choice("types", name, kind, KINDS)
        if not len(frame):
            raise DataError("the table has no rows; give at least one")
        return cls([learn_column(cells, types.get(cells.name)) for cells in frame.columns])

    def __getitem__(self, name: str) -> Column:
        return self.columns[self.index(name)]

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.columns == other.columns

    def __hash__(self) -> int:
        return hash(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def index(self, name: str) -> int:
        """Where a column stands."""
        if name not in self.names:
            raise ArgumentError(
                f"there is no column {name!r}; {suggest(name, self.names)}there are {', '.join(self.names)}"
            )
        return self.names.index(name)

    def edit(self, column: str, **changes: Any) -> "Schema":
        """Another one, with some fields of a column changed."""
        i = self.index(column)
        unknown = [key for key in changes if key not in Column.__dataclass_fields__]
        if unknown:
            known = Column.__dataclass_fields__
            raise ArgumentError(
                f"a column has no {unknown[0]!r}; {suggest(unknown[0], known)}it has {', '.join(known)}"
            )
        new = replace(self.columns[i], **changes)
        return Schema((*self.columns[:i], new, *self.columns[i + 1 :]))

    def to_json(self) -> str:
        """As text, for a file that can be edited."""
        plain = [{k: v for k, v in asdict(c).items() if v not in (None, (), "object")} for c in self.columns]
        return json.dumps(plain, indent=1, ensure_ascii=False, default=str)

    @classmethod
    def from_json(cls, text: str) -> "Schema":
        """What `to_json` wrote."""
        try:
            plain = json.loads(text)
            return cls([Column(**column) for column in plain])
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"this is no schema ({error}); write one with schema.to_json()") from error

    def __str__(self) -> str:
        rows = [(c.name, c.kind, f"{100 * c.missing:.0f} %", c.describe()) for c in self.columns]
        head = ("column", "kind", "missing", "values")
        wide = [max(len(row[i]) for row in [head, *rows]) for i in range(3)]
        lines = [f"{a:<{wide[0]}}  {b:<{wide[1]}}  {c:>{wide[2]}}  {d}" for a, b, c, d in [head, *rows]]
        return "\n".join(line.rstrip() for line in lines)

    def __repr__(self) -> str:
        return f"Schema({', '.join(f'{c.name}: {c.kind}' for c in self.columns)})"
