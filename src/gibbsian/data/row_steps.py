"""Steps that choose which rows there are: they run on the whole set, before all that runs batch by batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gibbsian.data.sets import ENDLESS, DataSet, Rows
from gibbsian.data.steps import Fitted, Step
from gibbsian.errors import ArgumentError, DataError


@dataclass(frozen=True)
class Split(Step):
    """Hold rows out: shares below 1, or numbers of rows; parts that are there already stay."""

    validation: float = 0.0
    test: float = 0.0
    changes_rows = True

    def _sizes(self, n: int) -> dict[str, int]:
        sizes = {}
        for part, size in (("test", self.test), ("validation", self.validation)):
            if not (size >= 0 and math.isfinite(size)):
                raise ArgumentError(f"split: {part}={size} must be a share below 1 or a number of rows")
            if 0 < size < 1 and n >= ENDLESS:
                raise ArgumentError(f"split: {part}={size} of a stream without an end; say a number of rows")
            sizes[part] = int(size) if size >= 1 else round(n * size)
        if sum(sizes.values()) >= n:
            raise ArgumentError(f"split: {sizes} rows are to be held out of {n}; leave some to train on")
        return sizes

    def apply_to_set(self, data: DataSet, fitted: Fitted, generator: torch.Generator) -> DataSet:
        sizes = {part: size for part, size in self._sizes(len(data.train)).items() if size}
        train, parts = data.train.held_out(sizes, generator)
        return data.replace(train=train, **parts)


@dataclass(frozen=True)
class Take(Step):
    """Only some rows of the training part, at random."""

    n: int
    changes_rows = True

    def apply_to_set(self, data: DataSet, fitted: Fitted, generator: torch.Generator) -> DataSet:
        if not self.n >= 1:
            raise ArgumentError(f"take: n={self.n} must be a whole number from 1 on")
        if data.train.on_disk:
            return data.replace(train=data.train[: self.n])
        return data.replace(train=data.train[torch.randperm(len(data.train), generator=generator)[: self.n]])


@dataclass(frozen=True)
class Only(Step):
    """Train on rows with these labels only (what is normal, in anomaly detection); held-out parts keep all."""

    labels: Sequence[int]
    changes_rows = True

    def apply_to_set(self, data: DataSet, fitted: Fitted, generator: torch.Generator) -> DataSet:
        if data.train.y is None:
            raise DataError("only: the data has no labels to choose rows by")
        parts = {}
        for name in ("train", "validation"):
            rows = data.parts.get(name)
            if rows is not None and rows.y is not None:
                keep = torch.isin(rows.y, torch.tensor(list(self.labels))).nonzero().flatten()
                if not len(keep):
                    raise DataError(f"only: no row of the {name} part has a label among {list(self.labels)}")
                parts[name] = rows[keep]
        return data.replace(**parts)


@dataclass(frozen=True)
class Patches(Step):
    """Square patches at random places of gray images `(images, height, width)`; each less its mean where `center`."""

    size: int = 8
    count: int = 20000
    center: bool = True
    changes_rows = True

    def apply_to_set(self, data: DataSet, fitted: Fitted, generator: torch.Generator) -> DataSet:
        images = data.train.tensor.float()
        if images.dim() != 3 or not 1 <= self.size <= min(images.shape[1:]):
            shape = tuple(images.shape[1:])
            raise ArgumentError(f"patches: size={self.size} from images of shape {shape}; give (height, width)")
        high, wide = (n - self.size + 1 for n in images.shape[1:])
        which = torch.randint(len(images), (self.count,), generator=generator)
        top = torch.randint(high, (self.count,), generator=generator)
        left = torch.randint(wide, (self.count,), generator=generator)
        span = torch.arange(self.size)
        x = images[which[:, None, None], (top[:, None] + span)[:, :, None], (left[:, None] + span)[:, None, :]]
        x = x - x.mean((1, 2), keepdim=True) if self.center else x
        return DataSet(data.name, Rows(x))


ROW_STEPS = (Split, Take, Only, Patches)
