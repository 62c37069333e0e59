"""A data set as rows with or without labels, in up to three parts."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gibbsian.errors import DataError

PARTS = ("train", "validation", "test")
ENDLESS = 1 << 62  # rows of a stream that does not say how many it has


@dataclass(frozen=True)
class Rows:
    """Examples `(rows, *event)`, a tensor or a memory-mapped array, and their labels `(rows,)` where there are any."""

    x: Any
    y: Tensor | None = None

    def __post_init__(self) -> None:
        if not len(self.x):
            raise DataError("a part of the data holds no rows; give at least one example")
        if self.y is not None and len(self.y) != len(self.x):
            raise DataError(f"{len(self.x)} rows came with {len(self.y)} labels; they must agree")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Any) -> "Rows":
        """Some rows; slices of an array on disk stay there."""
        if isinstance(index, Tensor) and self.on_disk:
            return Rows(np.asarray(self.x[index.numpy()]), None if self.y is None else self.y[index])
        return Rows(self.x[index], None if self.y is None else self.y[index])

    @property
    def on_disk(self) -> bool:
        """Are the examples a memory-mapped array?"""
        return not isinstance(self.x, Tensor)

    @property
    def labeled(self) -> bool:
        """Are there labels?"""
        return self.y is not None

    def held_out(self, sizes: dict[str, int], generator: torch.Generator) -> "tuple[Rows, dict[str, Rows]]":
        """What is left after parts of these sizes are held out, and those: the last rows of arrays on disk, others at random."""
        order = None if self.on_disk else torch.randperm(len(self), generator=generator)
        parts, end = {}, len(self)
        for part, size in sizes.items():
            cut = slice(end - size, end)
            parts[part] = self[cut if order is None else order[cut]]
            end -= size
        return self[slice(0, end) if order is None else order[:end]], parts

    def batches(self, labels: bool) -> Any:
        """What `gibbsian.fit` takes: examples, or pairs of them and labels."""
        return (self.x, self.y) if labels else self.x

    def arranged(self, batch: Any) -> Any:
        """A batch of these rows as examples, or a pair of them and labels."""
        return batch

    @property
    def streamed(self) -> bool:
        """Do rows come one after the other only?"""
        return False

    @property
    def tensor(self) -> Tensor:
        """The examples in memory."""
        return self.x if isinstance(self.x, Tensor) else torch.from_numpy(np.array(self.x))


@dataclass(frozen=True)
class DataSet:
    """Training data, with what is held out.

    Attributes:
        name: what it is called.
        train, validation, test: the parts; the last two may be missing.
        classes: names of the labels, where they are known.
        columns: names of the features, where they are known.
    """

    name: str
    train: Rows
    validation: Rows | None = None
    test: Rows | None = None
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, Rows]:
        """The parts that are there, by name."""
        found = {name: getattr(self, name) for name in PARTS}
        return {name: rows for name, rows in found.items() if rows is not None}

    def replace(self, **changes: Any) -> "DataSet":
        """A copy with other parts."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {_count(rows)}" for name, rows in self.parts.items())
        labels = ", labeled" if self.train.labeled else ""
        return f"DataSet({self.name}: {parts} × {tuple(self.train.x.shape[1:])}{labels})"


def _count(rows: Rows) -> str:
    return str(len(rows)) if len(rows) < ENDLESS else "a stream"
