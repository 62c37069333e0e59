"""Data through a list of steps, in an order that is written down: a run can redo them exactly, and undo most."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from gibbsian.data.row_steps import ROW_STEPS
from gibbsian.data.sets import DataSet, Rows
from gibbsian.data.steps import LOOK, VALUE_STEPS, Fitted, Step
from gibbsian.errors import ArgumentError, DataError, suggest
from gibbsian.random import stream

STEPS: dict[str, type[Step]] = {cls.__name__.lower(): cls for cls in (*ROW_STEPS, *VALUE_STEPS)}


def make_steps(plain: Sequence[Any]) -> list[Step]:
    """Steps from a list as YAML has it: names, or names with their options; steps stay as they are.

    >>> make_steps(["flatten", {"binarize": {"how": "threshold"}}])
    [Flatten(), Binarize(how='threshold', threshold=0.5, anew=False)]
    """
    return [item if isinstance(item, Step) else _make_step(*_name_and_options(item)) for item in plain]


def _name_and_options(item: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(item, str):
        return item, {}
    if isinstance(item, dict) and len(item) == 1:
        name, options = next(iter(item.items()))
        if isinstance(name, str) and isinstance(options, dict | None):
            return name, options or {}
    raise ArgumentError(f"a step of the data is a name, or one name with its options; got {item!r}")


def _make_step(name: str, options: dict[str, Any]) -> Step:
    if name not in STEPS:
        raise ArgumentError(f"there is no data step {name!r}; {suggest(name, STEPS)}The steps are {', '.join(STEPS)}")
    takes = [f.name for f in fields(STEPS[name])]
    unknown = [key for key in options if key not in takes]
    if unknown:
        others = f"{suggest(unknown[0], takes)}It takes {', '.join(takes) or 'none'}"
        raise ArgumentError(f"data step {name!r} has no option {unknown[0]!r}; {others}")
    try:
        return STEPS[name](**options)
    except TypeError as error:
        missing = [key for key in takes if key not in options]
        raise ArgumentError(f"data step {name!r} needs {', '.join(missing)}") from error


@dataclass(frozen=True)
class Pipeline:
    """The steps of some data, ready to be repeated on other rows or undone, without the data itself.

    Attributes:
        steps, fitted: the steps, and what each learned from the training part.
        seed: of the random ones.
        shape: of one raw row.
        classes, columns: names of labels and raw features, where they are known.
    """

    steps: list[Step]
    fitted: list[Fitted]
    seed: int
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    columns: tuple[str, ...]

    def clamped(self, x: Tensor, clamp: Tensor) -> tuple[Tensor, Tensor]:
        """Raw rows and a mark on the entries that are to be held, both through the steps (for samples that fill the rest)."""
        for i, step, fitted in self._of_rows():
            if step.mixes:
                name = type(step).__name__.lower()
                raise DataError(f"{name} mixes all entries, so single ones cannot be held; train without it")
            x = step.apply(x, fitted, stream(0, f"clamp/{i}"))
            clamp = step.apply(clamp, fitted, stream(0, f"clamp/{i}")) if step.moves else clamp
        return x, clamp

    def _of_rows(self) -> list[tuple[int, Step, Fitted]]:
        """The steps that make up one row, by number: not those that choose rows, nor those for training batches only."""
        every = zip(range(len(self.steps)), self.steps, self.fitted, strict=True)
        return [one for one in every if not one[1].changes_rows and not one[1].augments]

    def undo(self, x: Tensor) -> Tensor:
        """Samples back in the units and shape of the data."""
        for step, fitted in zip(reversed(self.steps), reversed(self.fitted), strict=True):
            x = step.undo(x, fitted)
        return x


@dataclass(frozen=True)
class Prepared(Pipeline):
    """Data after its steps, and what is needed to repeat or undo them.

    Attributes:
        data: the set; where steps run batch by batch, as it is before those.
        late: how many of the last steps run batch by batch.
    """

    data: DataSet
    late: int

    @property
    def batch_steps(self) -> list[tuple[Step, Fitted]]:
        """The late steps, and what they learned."""
        first = len(self.steps) - self.late
        return list(zip(self.steps[first:], self.fitted[first:], strict=True))

    def transform(self, batch: Any, generator: torch.Generator) -> Any:
        """The late steps on a batch, as `gibbsian.fit(transform=...)` wants it; columns of a stream become rows first."""
        batch = self.data.train.arranged(batch)
        x, *rest = batch if isinstance(batch, tuple) else (batch,)
        x = self._late(x, generator, augment=True)
        return (x, *rest) if rest else x

    def _late(self, x: Tensor, generator: torch.Generator, *, augment: bool) -> Tensor:
        for step, fitted in self.batch_steps:
            if augment or not step.augments:
                x = step.apply(x, fitted, generator)
        return x

    @property
    def redraws(self) -> bool:
        """Are there steps that draw rows anew, so that a held-out row has many forms?"""
        return any(step.anew for step, _ in self.batch_steps)

    def finished(self, part: str, rows: int | None = None, *, draw: int = 0) -> Rows:
        """A part (or its first rows) with every step done; the late ones with draws that are always the same, others for every number
        of a `draw`."""
        chosen = self.data.parts[part][:rows]
        numbers = stream(self.seed, f"finished/{part}/{draw}" if draw else f"finished/{part}")
        return Rows(self._late(chosen.tensor, numbers, augment=False), chosen.y)

    def other(self, data: DataSet, part: str = "test") -> Tensor:
        """Rows of another set through the same steps with what was learned here (for out-of-distribution scores)."""
        x = (data.parts.get(part) or data.train).tensor
        raw, wanted = tuple(x.shape[1:]), tuple(self.finished("train", 1).x.shape[1:])
        refused = f"{data.name} has rows of shape {raw}, the training data of {self.shape}, and the steps do not make them alike"
        try:
            for i, step, fitted in self._of_rows():
                x = step.apply(x, fitted, stream(self.seed, f"other/{i}"))
        except (RuntimeError, IndexError) as error:  # what torch says of shapes that do not fit
            raise DataError(f"{refused}; give a set with rows like those") from error
        if tuple(x.shape[1:]) != wanted:
            raise DataError(f"{refused} ({tuple(x.shape[1:])} instead of {wanted}); give a set with rows like those")
        return x


def prepare(
    data: DataSet, steps: Sequence[Any], *, seed: int = 0, fitted: list[Fitted] | None = None, whole: bool = True
) -> Prepared:
    """Data through a list of steps; what they learn comes from the training part, or from an earlier `fitted`.

    With `whole=False`, and what they learned given, the last steps are done only where rows are asked for
    (`Prepared.finished`), with the same result, as far back as they draw nothing.

    >>> import gibbsian as gb
    >>> x = torch.arange(12.0).reshape(6, 2)
    >>> done = prepare(gb.data.DataSet("a", gb.data.Rows(x)), [{"split": {"test": 2}}, "standardize"])
    >>> done.data, torch.allclose(done.undo(done.finished("test").x).sum() + done.undo(done.data.train.x).sum(), x.sum())
    (DataSet(a: train 4, test 2 × (2,)), True)
    """
    made, learned, late = make_steps(steps), list[Fitted](), 0
    shape, names = tuple(data.train.x.shape[1:]), (data.classes, data.columns)
    put_off = _first_put_off(made) if fitted is not None and not whole else len(made)
    for i, step in enumerate(made):
        if late and step.changes_rows:
            name = type(step).__name__.lower()
            raise ArgumentError(f"data step {name!r} must come before steps that run batch by batch")
        by_batch = late > 0 or i >= put_off or step.late or (data.train.on_disk and not step.changes_rows)
        if fitted is not None:
            learned.append(fitted[i])
        else:
            so_far = Prepared(made[:i], learned, seed, shape, *names, data, late)
            learned.append(step.fit(so_far.finished("train", LOOK) if by_batch else data.train))
        if by_batch:
            late += 1
        else:
            before = data
            data = step.apply_to_set(data, learned[i], stream(seed, f"step/{i}"))
            if (
                step.changes_rows and data.train.x.shape[1:] != before.train.x.shape[1:]
            ):  # patches are rows of their own
                shape = tuple(data.train.x.shape[1:])
    return Prepared(made, learned, seed, shape, *names, data, late)


def _first_put_off(steps: list[Step]) -> int:
    """The first step from which on all may wait until rows are asked for."""
    waiting = [step.late or step.can_wait for step in steps]
    return next((i + 1 for i in reversed(range(len(steps))) if not waiting[i]), 0)
