"""Streams of Hugging Face's `datasets` as training rows: they come one after the other, and only the first are ever at hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gibbsian.data.sets import ENDLESS, Rows
from gibbsian.errors import DataError
from gibbsian.training.feeds.streams import tensors_in

_AT_ONCE = 1024


class Columns:
    """Columns of an iterable table (`datasets.IterableDataset`) as rows: one column of arrays, or several of numbers.

    Attributes:
        source: what gives the batches of `fit`, dictionaries of these columns.
        names, label: of the inputs, and of the labels where there are any.
        rows: how many, where that is known.
    """

    def __init__(self, source: Any, names: Sequence[str], label: str | None, rows: int | None) -> None:
        self.source = source.select_columns([*names, *([] if label is None else [label])])
        self.names, self.label, self.rows = tuple(names), label, rows
        self.known: Rows | None = None
        first = self.head(1).x
        self.event, self.dtype = tuple(first.shape[1:]), first.dtype

    def __len__(self) -> int:
        return ENDLESS if self.rows is None else self.rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and the shape of one."""
        return (len(self), *self.event)

    def arranged(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """Inputs and labels of a batch as the table gives it."""
        missing = [name for name in self.names if name not in batch]
        if missing:
            raise DataError(f"column {missing[0]!r} holds no numbers of one shape; say which columns do")
        columns = [batch[name].float() if batch[name].is_floating_point() else batch[name] for name in self.names]
        x = columns[0] if len(columns) == 1 else torch.stack([column.float() for column in columns], 1)
        y = batch.get(self.label or "")
        return x[:, None] if x.dim() == 1 else x, None if y is None else y.long()

    def head(self, rows: int) -> Rows:
        """The first rows, read once."""
        rows = min(rows, len(self))
        if self.known is None or len(self.known) < rows:
            found, count = [], 0
            for batch in tensors_in(self.source.with_format("torch"), min(rows, _AT_ONCE)):
                found.append(self.arranged(batch))
                count += len(found[-1][0])
                if count >= rows:
                    break
            if not found:
                raise DataError("the stream gives no rows; see to its name and its filters")
            x, y = (None if part[0] is None else torch.cat(part) for part in zip(*found, strict=True))
            self.known = Rows(x, y)
        return Rows(self.known.x[:rows], None if self.known.y is None else self.known.y[:rows])

    def after(self, rows: int) -> "Columns":
        """The stream without its first rows."""
        left = None if self.rows is None else self.rows - rows
        return Columns(self.source.skip(rows), self.names, self.label, left)


@dataclass(frozen=True)
class Streamed(Rows):
    """Rows of a stream: the first can be had, all only one after the other."""

    x: Columns
    y: None = None

    def __getitem__(self, index: Any) -> Rows:
        if (
            not isinstance(index, slice)
            or index.start not in (None, 0)
            or index.step not in (None, 1)
            or index.stop is None
        ):
            raise DataError("of a stream only the first rows can be had; take some with the step take: {n: 10000}")
        return self.x.head(index.stop)

    def held_out(self, sizes: dict[str, int], generator: torch.Generator) -> tuple[Rows, dict[str, Rows]]:
        """The first rows of a stream are held out, and it goes on after them."""
        whole, parts, begin = self.x.head(sum(sizes.values())), {}, 0
        for name, size in sizes.items():
            parts[name] = whole[begin : begin + size]
            begin += size
        return Streamed(self.x.after(begin)), parts

    @property
    def labeled(self) -> bool:
        return self.x.label is not None

    @property
    def streamed(self) -> bool:
        return True

    @property
    def tensor(self) -> Tensor:
        raise DataError("a stream is not read as a whole; take some rows with the step take: {n: 10000}")

    def batches(self, labels: bool) -> Any:
        """What `gibbsian.fit` takes: dictionaries of columns, which `arranged` makes rows of."""
        return self.x.source if labels or self.x.label is None else self.x.source.remove_columns([self.x.label])

    def arranged(self, batch: Any) -> Any:
        """A batch of the stream as rows, or pairs of rows and labels; one of held-out rows is that already."""
        if not isinstance(batch, dict):
            return batch
        x, y = self.x.arranged(batch)
        return x if y is None else (x, y)
