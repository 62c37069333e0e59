"""Steps from raw data to what energies take, in an order that is written down: a run can redo them exactly.

A step learns what it needs (means, scales, shapes) from the training part only, and can mostly be undone on samples.
Steps that draw afresh for every batch (`anew`), and all steps on arrays that stay on disk, run batch by batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gibbsian.data.sets import DataSet, Rows
from gibbsian.data.transforms import binarize, dequantize
from gibbsian.errors import ArgumentError, DataError
from gibbsian.random import stream

__all__ = ["STEPS", "Prepared", "Step", "make_steps", "prepare"]

Fitted = dict[str, Tensor]
_LOOK = 65536  # rows of an array on disk from which means and scales are taken


@dataclass(frozen=True)
class Step:
    """One step; subclasses override what they do to a batch, or to the whole set."""

    whole = False  # changes which rows there are, so it cannot run batch by batch
    augments = False  # for training batches only: held-out rows and samples are left alone
    anew = False  # draws afresh for every batch
    moves = False  # puts entries elsewhere and leaves them as they are
    mixes = False  # makes every entry from all of them

    def fit(self, train: Rows) -> Fitted:
        """What is learned from the training part."""
        return {}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        """The step on rows."""
        return x

    def undo(self, x: Tensor, fitted: Fitted) -> Tensor:
        """Back from rows to what they were, as far as that can be."""
        return x

    def on(self, data: DataSet, fitted: Fitted, generator: torch.Generator) -> DataSet:
        """The step on every part."""
        parts = {name: Rows(self.apply(rows.tensor, fitted, generator), rows.y) for name, rows in data.parts.items()}
        return data.replace(**parts)

    @property
    def late(self) -> bool:
        """Must it run batch by batch?"""
        return self.augments or self.anew


@dataclass(frozen=True)
class Split(Step):
    """Hold rows out: shares below 1, or numbers of rows; parts that are there already stay."""

    validation: float = 0.0
    test: float = 0.0
    whole = True

    def on(self, data: DataSet, fitted: Fitted, generator: torch.Generator) -> DataSet:
        n = len(data.train)
        sizes = {}
        for part in ("test", "validation"):
            size = getattr(self, part)
            if not (size >= 0 and math.isfinite(size)):
                raise ArgumentError(f"split: {part}={size} must be a share below 1 or a number of rows")
            sizes[part] = int(size) if size >= 1 else round(n * size)
        if sum(sizes.values()) >= n:
            raise ArgumentError(f"split: {sizes} rows are to be held out of {n}; leave some to train on")
        in_memory = isinstance(data.train.x, Tensor)
        order: Any = torch.randperm(n, generator=generator) if in_memory else None
        parts, end = {}, n
        for part, size in sizes.items():
            if size:
                where = slice(end - size, end)
                parts[part] = data.train[order[where] if in_memory else where]
                end -= size
        return data.replace(train=data.train[order[:end] if in_memory else slice(0, end)], **parts)


@dataclass(frozen=True)
class Take(Step):
    """Only some rows of the training part, at random."""

    n: int
    whole = True

    def on(self, data: DataSet, fitted: Fitted, generator: torch.Generator) -> DataSet:
        if not self.n >= 1:
            raise ArgumentError(f"take: n={self.n} must be a whole number from 1 on")
        order = torch.randperm(len(data.train), generator=generator)[: self.n]
        return data.replace(train=data.train[order if isinstance(data.train.x, Tensor) else slice(0, self.n)])


@dataclass(frozen=True)
class Only(Step):
    """Train on rows with these labels only (what is normal, in anomaly detection); held-out parts keep all."""

    labels: Sequence[int]
    whole = True

    def on(self, data: DataSet, fitted: Fitted, generator: torch.Generator) -> DataSet:
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
class Columns(Step):
    """Only some columns, by number; `varying` drops those that never change, `correlation` those that repeat an
    earlier one up to that correlation."""

    keep: Sequence[int] | None = None
    varying: bool = False
    correlation: float | None = None

    moves = True

    def fit(self, train: Rows) -> Fitted:
        x = train.tensor[:_LOOK].double()
        if x.dim() != 2:
            raise DataError(f"columns: rows have shape {tuple(x.shape[1:])}; flatten first")
        kept = list(range(x.shape[1])) if self.keep is None else list(self.keep)
        if kept and (max(kept) >= x.shape[1] or min(kept) < 0):
            raise ArgumentError(f"columns: keep={kept} of {x.shape[1]} columns; they count from 0")
        if self.varying:
            kept = [i for i in kept if bool((x[:, i] != x[0, i]).any())]
        if self.correlation is not None:
            r = torch.corrcoef(x[:, kept].T).abs()
            chosen: list[int] = []
            for i in range(len(kept)):
                if all(float(r[i, j]) <= self.correlation for j in chosen):
                    chosen.append(i)
            kept = [kept[i] for i in chosen]
        return {"kept": torch.tensor(kept)}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return x[:, fitted["kept"].to(x.device)]


@dataclass(frozen=True)
class Flatten(Step):
    """Each example as one row of numbers."""

    moves = True

    def fit(self, train: Rows) -> Fitted:
        return {"shape": torch.tensor(train.x.shape[1:])}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return x.flatten(1)

    def undo(self, x: Tensor, fitted: Fitted) -> Tensor:
        return x.reshape(len(x), *fitted["shape"].tolist())


@dataclass(frozen=True)
class Reshape(Step):
    """Each example in another shape, such as [1, 28, 28] for a network that wants a channel axis."""

    shape: Sequence[int]

    moves = True

    def fit(self, train: Rows) -> Fitted:
        old = tuple(train.x.shape[1:])
        if math.prod(old) != math.prod(self.shape):
            raise ArgumentError(f"reshape: examples of shape {old} cannot take the shape {tuple(self.shape)}")
        return {"shape": torch.tensor(old)}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return x.reshape(len(x), *self.shape)

    def undo(self, x: Tensor, fitted: Fitted) -> Tensor:
        return x.reshape(len(x), *fitted["shape"].tolist())


@dataclass(frozen=True)
class Rescale(Step):
    """From one range to another; the old one is 0 to 255 for bytes and that of the training part otherwise."""

    old: Sequence[float] | None = None
    new: Sequence[float] = (0.0, 1.0)

    def fit(self, train: Rows) -> Fitted:
        if self.old is not None:
            low, high = (torch.tensor(float(v)) for v in self.old)
        elif train.x.dtype in (torch.uint8, np.uint8):
            low, high = torch.tensor(0.0), torch.tensor(255.0)
        else:
            x = Rows(train.x[:_LOOK]).tensor.float()
            low, high = x.min(), x.max()
        if not bool(high > low) or len(self.new) != 2 or not self.new[1] > self.new[0]:
            raise ArgumentError(f"rescale: from [{float(low):g}, {float(high):g}] to {list(self.new)}; both must grow")
        return {"low": low, "high": high}

    def _range(self, fitted: Fitted, x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = fitted["low"].to(x.device), fitted["high"].to(x.device)
        return low, (high - low) / (self.new[1] - self.new[0])

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        low, width = self._range(fitted, x)
        return (x.float() - low) / width + self.new[0]

    def undo(self, x: Tensor, fitted: Fitted) -> Tensor:
        low, width = self._range(fitted, x)
        return (x - self.new[0]) * width + low


@dataclass(frozen=True)
class Standardize(Step):
    """Mean 0 and deviation 1 of every column of the training part; columns that never change are refused."""

    def fit(self, train: Rows) -> Fitted:
        x = Rows(train.x[:_LOOK]).tensor.double()
        sd, mean = torch.std_mean(x, 0)
        if not bool((sd > 0).all()):
            raise DataError(
                f"standardize: {int((sd <= 0).sum())} of {sd.numel()} columns never change; drop them with columns, or "
                "use rescale"
            )
        return {"mean": mean.float(), "sd": sd.float()}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return (x.float() - fitted["mean"].to(x.device)) / fitted["sd"].to(x.device)

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

    def fit(self, train: Rows) -> Fitted:
        x = Rows(train.x[:_LOOK]).tensor.double()
        if self.kind not in {"pca", "zca"} or x.dim() != 2:
            raise ArgumentError(
                f"whiten: kind={self.kind!r} on rows of shape {tuple(x.shape[1:])}; 'pca' or 'zca' on vectors"
            )
        mean = x.mean(0)
        value, vector = torch.linalg.eigh(torch.cov(x.T))
        value, vector = value.flip(0), vector.flip(1)
        count = self.keep or len(value)
        scale = (value + self.epsilon * value.max())[:count].sqrt()
        vector = vector[:, :count]
        out, back = vector / scale, (vector * scale).T
        if self.kind == "zca":
            out, back = out @ vector.T, vector @ back
        return {"mean": mean.float(), "matrix": out.float().contiguous(), "inverse": back.float().contiguous()}

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        return (x.float() - fitted["mean"].to(x.device)) @ fitted["matrix"].to(x.device)

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
            binarize(Rows(train.x[:_LOOK]).tensor.float(), "threshold")
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
class Patches(Step):
    """Square patches at random places of gray images `(images, height, width)`; each less its mean where `center`."""

    size: int = 8
    count: int = 20000
    center: bool = True
    whole = True

    def on(self, data: DataSet, fitted: Fitted, generator: torch.Generator) -> DataSet:
        images = data.train.tensor.float()
        if images.dim() != 3 or not 1 <= self.size <= min(images.shape[1:]):
            raise ArgumentError(
                f"patches: size={self.size} from images of shape {tuple(images.shape[1:])}; give (height, width)"
            )
        high, wide = (n - self.size + 1 for n in images.shape[1:])
        which = torch.randint(len(images), (self.count,), generator=generator)
        top = torch.randint(high, (self.count,), generator=generator)
        left = torch.randint(wide, (self.count,), generator=generator)
        span = torch.arange(self.size)
        x = images[which[:, None, None], (top[:, None] + span)[:, :, None], (left[:, None] + span)[:, None, :]]
        x = x - x.mean((1, 2), keepdim=True) if self.center else x
        return DataSet(data.name, Rows(x))


@dataclass(frozen=True)
class Noise(Step):
    """Gaussian noise on every training batch, kept inside [low, high] where they are given: smoother densities."""

    sd: float
    low: float | None = None
    high: float | None = None
    augments = True

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        moved = x + self.sd * noise
        return moved if self.low is None and self.high is None else moved.clamp(self.low, self.high)


@dataclass(frozen=True)
class Shift(Step):
    """Images of every training batch moved by up to `pixels`, and mirrored half of the time where `flip`."""

    pixels: int = 1
    flip: bool = False
    augments = True

    def apply(self, x: Tensor, fitted: Fitted, generator: torch.Generator) -> Tensor:
        n, height, width = len(x), x.shape[-2], x.shape[-1]
        planes = x.reshape(n, -1, height, width)
        if self.flip:
            mirror = torch.rand(n, 1, 1, 1, generator=generator, device=x.device) < 0.5
            planes = torch.where(mirror, planes.flip(3), planes)
        moves = torch.randint(2 * self.pixels + 1, (2, n, 1), generator=generator, device=x.device) - self.pixels
        rows = (torch.arange(height, device=x.device) + moves[0]).clamp(0, height - 1)
        columns = (torch.arange(width, device=x.device) + moves[1]).clamp(0, width - 1)
        index = torch.arange(n, device=x.device)[:, None, None]
        return planes.transpose(0, 1)[:, index, rows[:, :, None], columns[:, None, :]].transpose(0, 1).reshape(x.shape)


STEPS: dict[str, type[Step]] = {
    cls.__name__.lower(): cls
    for cls in (
        Split, Take, Only, Columns, Flatten, Reshape, Rescale, Standardize, Whiten, Binarize, Dequantize, Patches, Noise, Shift,
    )
}  # fmt: skip


def make_steps(plain: Sequence[Any]) -> list[Step]:
    """Steps from a list as YAML has it: names, or names with their options.

    >>> make_steps(["flatten", {"binarize": {"how": "threshold"}}])
    [Flatten(), Binarize(how='threshold', threshold=0.5, anew=False)]
    """
    made = []
    for item in plain:
        name, options = (item, {}) if isinstance(item, str) else next(iter(item.items()), ("", {}))
        if not isinstance(name, str) or (isinstance(item, dict) and len(item) != 1):
            raise ArgumentError(f"a step of the data is a name, or one name with its options; got {item!r}")
        if name not in STEPS:
            near = get_close_matches(name, STEPS, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ArgumentError(f"there is no data step {name!r}; {hint}The steps are {', '.join(STEPS)}")
        cls, options = STEPS[name], options or {}
        known = [f.name for f in fields(cls)]
        wrong = [key for key in options if key not in known] if isinstance(options, dict) else [str(options)]
        if wrong:
            near = get_close_matches(wrong[0], known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ArgumentError(
                f"data step {name!r} has no option {wrong[0]!r}; {hint}It takes {', '.join(known) or 'none'}"
            )
        try:
            made.append(cls(**options))
        except TypeError as error:
            missing = [f.name for f in fields(cls) if f.name not in options]
            raise ArgumentError(f"data step {name!r} needs {', '.join(missing)}") from error
    return made


@dataclass(frozen=True)
class Prepared:
    """Data after its steps, and what is needed to repeat or undo them.

    Attributes:
        data: the set; where steps run batch by batch, as it is before those.
        steps, fitted: the steps, and what each learned from the training part.
        late: how many of the last steps run batch by batch.
        seed: of the random ones.
    """

    data: DataSet
    steps: list[Step]
    fitted: list[Fitted]
    late: int
    seed: int

    @property
    def batch_steps(self) -> list[tuple[Step, Fitted]]:
        first = len(self.steps) - self.late
        return list(zip(self.steps[first:], self.fitted[first:], strict=True))

    def transform(self, batch: Any, generator: torch.Generator) -> Any:
        """The late steps on a batch, as `gibbsian.fit(transform=...)` wants it."""
        x, *rest = batch if isinstance(batch, tuple) else (batch,)
        x = self._late(x, generator, augment=True)
        return (x, *rest) if rest else x

    def _late(self, x: Tensor, generator: torch.Generator, *, augment: bool) -> Tensor:
        for step, fitted in self.batch_steps:
            if augment or not step.augments:
                x = step.apply(x, fitted, generator)
        return x

    def finished(self, part: str, rows: int | None = None) -> Rows:
        """A part (or its first rows) with every step done; the late ones with draws that are always the same."""
        chosen = self.data.parts[part]
        chosen = chosen if rows is None else chosen[:rows]
        x = self._late(chosen.tensor, stream(self.seed, f"finished/{part}"), augment=False)
        return Rows(x, chosen.y)

    def other(self, data: DataSet, part: str = "test") -> Tensor:
        """Rows of another set through the same steps with what was learned here (for out-of-distribution scores)."""
        rows = data.parts.get(part) or data.train
        x = rows.tensor
        for i, (step, fitted) in enumerate(zip(self.steps, self.fitted, strict=True)):
            if not step.whole and not step.augments:
                x = step.apply(x, fitted, stream(self.seed, f"other/{i}"))
        return x

    def partial(self, x: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of which only some entries are known, after the steps, and which entries are known then."""
        mask = known.double()
        for i, (step, fitted) in enumerate(zip(self.steps, self.fitted, strict=True)):
            if step.whole or step.augments:
                continue
            if step.mixes:
                name = type(step).__name__.lower()
                raise DataError(f"{name} mixes all entries, so single ones cannot be held; train without it")
            x = step.apply(x, fitted, stream(0, f"clamp/{i}"))
            if step.moves:
                mask = step.apply(mask, fitted, stream(0, f"clamp/{i}"))
        return x, mask.bool()

    def undo(self, x: Tensor) -> Tensor:
        """Samples back in the units and shape of the data."""
        for step, fitted in zip(reversed(self.steps), reversed(self.fitted), strict=True):
            x = step.undo(x, fitted)
        return x


def prepare(data: DataSet, steps: Sequence[Any], *, seed: int = 0, fitted: list[Fitted] | None = None) -> Prepared:
    """Data through a list of steps; what they learn comes from the training part, or from an earlier `fitted`.

    >>> import gibbsian as gb
    >>> x = torch.arange(12.0).reshape(6, 2)
    >>> done = prepare(gb.data.DataSet("a", gb.data.Rows(x)), [{"split": {"test": 2}}, "standardize"])
    >>> done.data, torch.allclose(done.undo(done.finished("test").x).sum() + done.undo(done.data.train.x).sum(), x.sum())
    (DataSet(a: train 4, test 2 × (2,)), True)
    """
    made = [step for item in steps for step in ([item] if isinstance(item, Step) else make_steps([item]))]
    learned: list[Fitted] = []
    late = 0
    for i, step in enumerate(made):
        on_disk = not isinstance(data.train.x, Tensor) and not step.whole
        if late and step.whole:
            raise ArgumentError(
                f"data step {type(step).__name__.lower()!r} must come before steps that run batch by batch"
            )
        if late or step.late or on_disk:
            before = Prepared(data, made[:i], learned, late, seed)
            known = step.fit(before.finished("train", _LOOK)) if fitted is None else fitted[i]
            late += 1
        else:
            known = step.fit(data.train) if fitted is None else fitted[i]
            data = step.on(data, known, stream(seed, f"step/{i}"))
        learned.append(known)
    return Prepared(data, made, learned, late, seed)
