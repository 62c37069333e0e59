"""Steps from raw data to what energies take, row by row; those that choose rows stand in `row_steps`.

A step learns what it needs (means, scales, shapes) from the training part only, and can mostly be undone on samples.
Steps that draw afresh for every batch (`anew`), and all steps on arrays that stay on disk, run batch by batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gibbsian.data.sets import DataSet, Rows
from gibbsian.errors import ArgumentError, DataError, check_count, check_number, check_tensor
from gibbsian.objectives.redrawn import shifted
from gibbsian.random import require_generator

Fitted = dict[str, Tensor]
LOOK = 65536  # rows of an array on disk from which means and scales are taken


def binarize(x: Tensor, how: str, *, generator: torch.Generator | None = None, threshold: float = 0.5) -> Tensor:
    """Gray values in [0, 1] as {0, 1}.

    Args:
        x: any shape, values in [0, 1].
        how: "sample", each value is the probability of a 1 (the usual benchmark: draw anew for every epoch, or once
            for a fixed set), or "threshold", 1 where the value is above `threshold`.
        generator: for "sample"; required there.

    >>> binarize(torch.tensor([0.1, 0.9]), how="threshold")
    tensor([0., 1.])
    >>> g = torch.Generator().manual_seed(0)
    >>> binarize(torch.full((10000,), 0.3), how="sample", generator=g).mean().round(decimals=1)
    tensor(0.3000)
    """
    if how not in {"sample", "threshold"}:
        raise ArgumentError(f"binarize(how={how!r}): expected 'sample' or 'threshold'")
    check_tensor(x, "x")
    check_number("binarize", "threshold", threshold, -math.inf)
    if not x.is_floating_point():
        raise DataError(f"binarize takes floating numbers in [0, 1], got {x.dtype}; for bytes pass x / 255")
    outside = ~((x >= 0) & (x <= 1))
    if bool(outside.any()):
        position = tuple(outside.nonzero()[0].tolist())
        first = f"x{list(position)} = {float(x[position]):g} lies outside [0, 1]"
        many = f"{int(outside.sum())} of {x.numel()} values do"
        raise DataError(f"{first} ({many}); rescale first, for bytes pass x / 255")
    if how == "threshold":
        return (x > threshold).to(x.dtype)
    require_generator(generator, x.device)
    u = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    return (u < x).to(x.dtype)


def dequantize(x: Tensor, levels: int = 256, *, generator: torch.Generator) -> Tensor:
    """Whole numbers 0 … levels - 1 as real ones in [0, 1): (x + u)/levels with u uniform.

    A density p of the result bounds the likelihood of the whole numbers from below:
    log P(x) ≥ E_u log p((x + u)/levels) - d log levels (Theis et al. 2016).

    >>> g = torch.Generator().manual_seed(0)
    >>> y = dequantize(torch.tensor([0, 255], dtype=torch.uint8), generator=g)
    >>> (y * 256).floor()
    tensor([  0., 255.])
    """
    check_tensor(x, "x")
    require_generator(generator, x.device)
    levels = check_count("dequantize", "levels", levels, 2)
    if x.is_complex():
        raise DataError(f"dequantize takes whole numbers from 0 to {levels - 1}, got {x.dtype}")
    values = x.float()
    if bool(((values < 0) | (values > levels - 1) | (values != values.floor())).any()):
        raise DataError(f"dequantize takes whole numbers from 0 to {levels - 1}; the data has others, rescale it later")
    u = torch.rand(values.shape, generator=generator, device=x.device)
    return torch.minimum(values + u, torch.nextafter(values + 1, values)) / levels  # rounding must not reach the next


@dataclass(frozen=True)
class Step:
    """One step; subclasses override what they do to rows, or to the whole set."""

    changes_rows = False  # which rows there are, so that it cannot run batch by batch
    augments = False  # for training batches only: held-out rows and samples are left alone
    anew = False  # draws afresh for every batch
    moves = False  # puts entries elsewhere and leaves them as they are
    mixes = False  # makes every entry from all of them
    can_wait = False  # draws nothing and changes nothing but rows, so that it may be done when rows are asked for

    @property
    def late(self) -> bool:
        """Must it run batch by batch?"""
        return self.augments or self.anew

    def fit(self, train: Rows) -> Fitted:
        """What is learned from the training part."""
        return {}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        """The step on rows."""
        return x

    def undo(self, x: Tensor, fitted: Fitted) -> Tensor:
        """Back from rows to what they were, as far as that can be."""
        return x

    def apply_to_set(self, data: DataSet, fitted: Fitted, generator: torch.Generator) -> DataSet:
        """The step on every part."""
        parts = {name: Rows(self.apply(rows.tensor, fitted, generator), rows.y) for name, rows in data.parts.items()}
        return data.replace(**parts)


def _at_hand(train: Rows) -> Tensor:
    """The rows that a step learns from: all that are in memory, else the first."""
    return (train[:LOOK] if train.on_disk else train).tensor


def _looked_at(train: Rows, step: str) -> Tensor:
    """The rows from which means and scales are taken."""
    x = _at_hand(train).double()
    odd = int((~torch.isfinite(x)).sum())
    if odd:
        raise DataError(f"{step}: {odd} of {x.numel()} entries are not finite; leave out such rows, or fill them in")
    return x


def _held(x: Tensor) -> Tensor:
    """Rows in a precision that holds their numbers: before something is subtracted from seconds since 1970, single is too coarse."""
    return x.float() if x.dtype == torch.float32 or x.dtype.itemsize < 4 else x.double()


@dataclass(frozen=True)
class Columns(Step):
    """Only some columns, by number; `varying` drops those that never change, `correlation` those that repeat an
    earlier one up to that correlation."""

    keep: Sequence[int] | None = None
    varying: bool = False
    correlation: float | None = None
    moves = True

    def fit(self, train: Rows) -> Fitted:
        x = _at_hand(train).double()
        if x.dim() != 2:
            raise DataError(f"columns: rows have shape {tuple(x.shape[1:])}; flatten first")
        kept = list(range(x.shape[1])) if self.keep is None else list(self.keep)
        if any(not 0 <= i < x.shape[1] for i in kept):
            raise ArgumentError(f"columns: keep={kept} of {x.shape[1]} columns; they count from 0")
        if self.varying:
            kept = [i for i in kept if bool((x[:, i] != x[0, i]).any())]
        if self.correlation is not None:
            kept = _uncorrelated(x, kept, self.correlation)
        if not kept:
            raise ArgumentError(f"{self} leaves none of {x.shape[1]} columns")
        return {"kept": torch.tensor(kept)}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return x[:, fitted["kept"].to(x.device)]

    def apply_to_set(self, data: DataSet, fitted: Fitted, generator: torch.Generator) -> DataSet:
        names = tuple(data.columns[i] for i in fitted["kept"].tolist()) if data.columns else ()
        return super().apply_to_set(data, fitted, generator).replace(columns=names)


def _uncorrelated(x: Tensor, columns: list[int], most: float) -> list[int]:
    """Those columns that correlate with no earlier one by more than `most`."""
    r = torch.corrcoef(x[:, columns].T).abs().nan_to_num()  # a column that never changes repeats none
    chosen: list[int] = []
    for i in range(len(columns)):
        if all(float(r[i, j]) <= most for j in chosen):
            chosen.append(i)
    return [columns[i] for i in chosen]


@dataclass(frozen=True)
class Flatten(Step):
    """Each example as one row of numbers."""

    moves = True
    can_wait = True

    def fit(self, train: Rows) -> Fitted:
        return {"shape": torch.tensor(train.x.shape[1:])}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return x.flatten(1)

    def undo(self, x: Tensor, fitted: Fitted) -> Tensor:
        return x.reshape(len(x), *fitted["shape"].tolist())


@dataclass(frozen=True)
class Reshape(Flatten):
    """Each example in another shape, such as [1, 28, 28] for a network that wants a channel axis."""

    shape: Sequence[int]

    def fit(self, train: Rows) -> Fitted:
        old = tuple(train.x.shape[1:])
        if math.prod(old) != math.prod(self.shape):
            raise ArgumentError(f"reshape: examples of shape {old} cannot take the shape {tuple(self.shape)}")
        return super().fit(train)

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return x.reshape(len(x), *self.shape)


@dataclass(frozen=True)
class Rescale(Step):
    """From one range to another; the old one is 0 to 255 for bytes and that of the training part otherwise."""

    old: Sequence[float] | None = None
    new: Sequence[float] = (0.0, 1.0)
    can_wait = True

    def fit(self, train: Rows) -> Fitted:
        kind = _held(_at_hand(train)[:1]).dtype
        if self.old is not None:
            low, high = (torch.tensor(float(v), dtype=kind) for v in self.old)
        elif train.x.dtype in (torch.uint8, np.uint8):
            low, high = torch.tensor(0.0), torch.tensor(255.0)
        else:
            x = _looked_at(train, "rescale").to(kind)
            low, high = x.min(), x.max()
        if not bool(high > low) or len(self.new) != 2 or not self.new[1] > self.new[0]:
            raise ArgumentError(f"rescale: from [{float(low):g}, {float(high):g}] to {list(self.new)}; both must grow")
        return {"low": low, "high": high}

    def _range(self, fitted: Fitted, x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = fitted["low"].to(x.device), fitted["high"].to(x.device)
        return low, (high - low) / (self.new[1] - self.new[0])

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        low, width = self._range(fitted, x)
        return ((_held(x) - low) / width + self.new[0]).float()

    def undo(self, x: Tensor, fitted: Fitted) -> Tensor:
        low, width = self._range(fitted, x)
        return (x.to(torch.promote_types(x.dtype, low.dtype)) - self.new[0]) * width + low


@dataclass(frozen=True)
class Standardize(Step):
    """Mean 0 and deviation 1 of every column of the training part; columns that never change are refused."""

    can_wait = True

    def fit(self, train: Rows) -> Fitted:
        x = _looked_at(train, "standardize")
        sd, mean = torch.std_mean(x, 0)
        if not bool((sd > 0).all()):
            still = f"{int((sd <= 0).sum())} of {sd.numel()} columns never change"
            raise DataError(f"standardize: {still}; drop them with columns, or use rescale")
        kind = _held(_at_hand(train)[:1]).dtype
        return {"mean": mean.to(kind), "sd": sd.to(kind)}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return ((_held(x) - fitted["mean"].to(x.device)) / fitted["sd"].to(x.device)).float()

    def undo(self, x: Tensor, fitted: Fitted) -> Tensor:
        return x * fitted["sd"].to(x.device) + fitted["mean"].to(x.device)


@dataclass(frozen=True)
class Whiten(Step):
    """Uncorrelated columns of variance 1: y = (x - μ)W with W from the eigenvectors of the covariance.

    `kind` "pca" orders them by variance, and `keep` may drop the last; "zca" stays as near to x as can be.
    """

    kind: str = "zca"
    keep: int | None = None
    epsilon: float = 1e-5
    mixes = True
    can_wait = True

    def fit(self, train: Rows) -> Fitted:
        x = _looked_at(train, "whiten")
        if self.kind not in {"pca", "zca"} or x.dim() != 2:
            shape = tuple(x.shape[1:])
            raise ArgumentError(f"whiten: kind={self.kind!r} on rows of shape {shape}; 'pca' or 'zca' on vectors")
        value, vector = torch.linalg.eigh(torch.atleast_2d(torch.cov(x.T)))
        value, vector = value.flip(0), vector.flip(1)
        count = self.keep or len(value)
        scale = (value + self.epsilon * value.max())[:count].sqrt()
        vector = vector[:, :count]
        out, back = vector / scale, (vector * scale).T
        if self.kind == "zca":
            out, back = out @ vector.T, vector @ back
        mean = x.mean(0).to(_held(_at_hand(train)[:1]).dtype)
        return {"mean": mean, "matrix": out.float().contiguous(), "inverse": back.float().contiguous()}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return (_held(x) - fitted["mean"].to(x.device)).float() @ fitted["matrix"].to(x.device)

    def undo(self, x: Tensor, fitted: Fitted) -> Tensor:
        return x @ fitted["inverse"].to(x.device) + fitted["mean"].to(x.device)


@dataclass(frozen=True)
class Binarize(Step):
    """{0, 1} from gray values in [0, 1], by a threshold or by a draw, once or anew for every batch."""

    how: str = "threshold"
    threshold: float = 0.5
    anew: bool = False

    def fit(self, train: Rows) -> Fitted:
        if self.anew:  # the values are looked at here, once; every batch would wait for the device
            binarize(_at_hand(train).float(), "threshold")
        return {}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        if self.anew and self.how == "sample":
            return (torch.rand(x.shape, generator=generator, device=x.device) < x).float()
        return binarize(x.float(), self.how, threshold=self.threshold, generator=generator)


@dataclass(frozen=True)
class Dequantize(Step):
    """Whole numbers 0 … levels - 1 as real ones in [0, 1): (x + u)/levels, u uniform, once or anew for every batch."""

    levels: int = 256
    anew: bool = False

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return dequantize(x, self.levels, generator=generator)

    def undo(self, x: Tensor, fitted: Fitted) -> Tensor:
        return (x * self.levels).floor().clamp(0, self.levels - 1)


@dataclass(frozen=True)
class Noise(Step):
    """Gaussian noise on every training batch, kept inside [low, high] where they are given: smoother densities."""

    sd: float
    low: float | None = None
    high: float | None = None
    augments = True

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        moved = x + self.sd * torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return moved if self.low is None and self.high is None else moved.clamp(self.low, self.high)


@dataclass(frozen=True)
class Shift(Step):
    """Images of every training batch moved by up to `pixels`, and mirrored half of the time where `flip`."""

    pixels: int = 1
    flip: bool = False
    augments = True

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return shifted(x, self.pixels, generator, flip=self.flip)


VALUE_STEPS = (Columns, Flatten, Reshape, Rescale, Standardize, Whiten, Binarize, Dequantize, Noise, Shift)
