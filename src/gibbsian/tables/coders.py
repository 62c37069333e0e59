"""Coders of single columns: between cells and numbers that are nearly normal, bins and codes."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gibbsian.errors import DataError, GibbsianWarning
from gibbsian.tables.cells import Cells, key_of
from gibbsian.tables.columns import Column
from gibbsian.tables.transform import NearNormal

_DECAY = 0.5  # of the probability of whole numbers beyond those seen, a step
_TRUTH = {"true": "True", "false": "False", "1": "True", "0": "False", "yes": "True", "no": "False"}


class TableWarning(GibbsianWarning):
    """Something in a table was taken in a way that one should know of."""


def refuse_impossible(column: Column, x: np.ndarray, bad: np.ndarray, why: str, unit: np.ndarray, strict: bool) -> None:
    """Values that cannot be: refused, or given the probability 0 with a warning."""
    if not bad.any():
        return
    row = int(np.argmax(bad))
    if strict:
        raise DataError(f"column {column.name!r}: {x[row]:g} {why}; give another value, or edit the schema")
    what = f"row {row + 1}, column {column.name!r}: {x[row]:g} {why}"
    warnings.warn(f"{what} ({int(bad.sum())} such cells); the probability is 0", TableWarning, stacklevel=2)
    unit[bad] = -np.inf


def impossible(column: Column, x: np.ndarray, seen: np.ndarray) -> dict[str, np.ndarray]:
    """Which values cannot be, by the reason."""
    found = {}
    if column.lower is not None:
        found[f"lies below {column.lower:g}, where nothing can"] = seen & (
            x < column.lower - 1e-9 * (column.step or 1.0)
        )
    if column.kind == "integer":
        found["is no whole number"] = seen & (x != np.round(x))
    return found


class Part:
    """What a coder makes of a column: arrays over the rows."""

    def __init__(self, n: int) -> None:
        self.z, self.below, self.above = np.full(n, np.nan), np.zeros(n), np.zeros(n)
        self.code, self.unit = np.full(n, -1, dtype=np.int64), np.zeros(n)


@dataclass(frozen=True)
class Names:
    """A column of categories or truth values: one code a name, the last for pooled and unseen ones."""

    column: Column

    has_z = False

    @property
    def states(self) -> int:
        return len(self.column.categories) + 1

    def _keys(self, values: Sequence[Any]) -> list[str]:
        keys = [key_of(value) for value in values]
        if self.column.categories and all(isinstance(name, int | float) for name in self.column.categories):
            keys = [number_key(key) for key in keys]
        if self.column.kind == "boolean":
            keys = [_TRUTH.get(key.lower(), key) if key not in ("True", "False") else key for key in keys]
        return keys

    def encode(self, cells: Cells, strict: bool) -> Part:
        part, seen = Part(len(cells.values)), ~cells.missing
        where = {key: i for i, key in enumerate(self._keys(self.column.categories))}
        pooled = set(self._keys(self.column.pooled))
        names, inverse = np.unique(np.array(self._keys(cells.values[seen].tolist()), dtype=object), return_inverse=True)
        unknown = [name for name in names if name not in where and name not in pooled]
        if unknown:
            first = inverse == list(names).index(unknown[0])
            self._tell(unknown, int(np.flatnonzero(seen)[first][0]) + 1, strict)
        codes = np.array([where.get(name, self.states - 1) for name in names], dtype=np.int64)
        if len(names):
            part.code[seen] = codes[inverse]
        part.unit[part.code == self.states - 1] = -math.log(len(self.column.pooled) + 1)
        return part

    def _tell(self, unknown: list[str], row: int, strict: bool) -> None:
        """Refuse names that were never seen, or warn of them."""
        name = self.column.name
        known = ", ".join(map(str, self.column.categories[:8])) + (", ..." if self.states > 9 else "")
        if strict:
            raise DataError(f"column {name!r} knows no {unknown[0]!r}; give one of {known}")
        shown = ", ".join(map(repr, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
        warnings.warn(
            f"row {row}, column {name!r}: {shown} {'was' if len(unknown) == 1 else 'were'} never seen in training (known: {known}); "
            "taken as a name of its own kind, with the little probability left for such",
            TableWarning,
            stacklevel=2,
        )

    def decode(self, z: np.ndarray, code: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        names = np.empty(self.states, dtype=object)
        names[:-1] = self.column.categories
        values = names[np.clip(code, 0, None)]
        others = np.flatnonzero(code == self.states - 1)
        if len(self.column.pooled):
            values[others] = [self.column.pooled[i] for i in rng.integers(len(self.column.pooled), size=len(others))]
        return values

    @property
    def drawable(self) -> int:
        """How many of the first states may be drawn: the last stands for nothing where no name is pooled."""
        return self.states if self.column.pooled else self.states - 1


@dataclass(frozen=True)
class FewValues:
    """A column of few numbers: one code a value, the last for those beyond, which are ever less likely."""

    column: Column

    has_z = False

    @property
    def states(self) -> int:
        return len(self.column.values) + 1

    @property
    def drawable(self) -> int:
        return self.states

    def _room(self) -> float:
        """How many steps there are below the least value."""
        low, step, lower = self.column.values[0], self.column.step or 1.0, self.column.lower
        return math.inf if lower is None else max(math.floor((low - lower) / step + 1e-9), 0)

    def encode(self, cells: Cells, strict: bool) -> Part:
        part, seen = Part(len(cells.values)), ~cells.missing
        low, step = self.column.values[0], self.column.step or 1.0
        x = np.where(seen, np.nan_to_num(cells.values.astype(np.float64)), low)
        index = np.round((x - low) / step).astype(np.int64)
        last = self.states - 2
        beyond = np.maximum(-index, index - last)
        part.code[seen] = np.where(beyond > 0, last + 1, index)[seen]
        part.unit[seen] = -math.log(step)
        tail = seen & (beyond > 0)
        if tail.any():
            room = self._room()
            side = np.where(index > last, 0.5 if room else 1.0, 0.5)
            within = np.where(index > last, 1.0, 1 - _DECAY**room if room else 1.0)
            part.unit[tail] += (np.log(side * (1 - _DECAY) / within) + (beyond - 1) * math.log(_DECAY))[tail]
        for why, bad in impossible(self.column, x, seen).items():
            refuse_impossible(self.column, x, bad, why, part.unit, strict)
        return part

    def decode(self, z: np.ndarray, code: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        values = np.array([*self.column.values, np.nan])[np.clip(code, 0, None)]
        tail = np.flatnonzero(code == self.states - 1)
        room, step = self._room(), self.column.step or 1.0
        far = rng.geometric(1 - _DECAY, size=len(tail))
        down = (rng.random(len(tail)) < 0.5) if room else np.zeros(len(tail), bool)
        if math.isfinite(room) and room:
            u = rng.random(len(tail)) * (1 - _DECAY**room)
            far = np.where(down, np.ceil(np.log1p(-u) / math.log(_DECAY)).clip(1, room), far)
        values[tail] = np.where(down, self.column.values[0] - far * step, self.column.values[-1] + far * step)
        return values


@dataclass(frozen=True)
class Numbers:
    """A column of many numbers: z = T(x), and a code where single values carry mass of their own (last: none of them)."""

    column: Column
    transform: NearNormal

    has_z = True

    @classmethod
    def fit(cls, column: Column, x: np.ndarray, knots: int | None = None) -> "Numbers":
        """The map of a column to nearly normal numbers, of so many knots; values on a grid are spread over their bins first."""
        step, lower = column.step, column.lower
        plain = cls(column, NearNormal(np.zeros(1), np.zeros(1), np.ones(1), 0.0, 1.0))
        x = x[plain.atom_of(x) < 0]
        if step is None:
            return cls(column, NearNormal.fit(x, lower, knots))
        y, counts = np.unique(plain.collapsed(x), return_counts=True)
        spread = np.concatenate([[0.0], *(v + step * ((np.arange(c) + 0.5) / c - 0.5) for v, c in zip(y, counts, strict=True))])[1:]  # fmt: skip
        return cls(column, NearNormal.fit(spread, None if lower is None else lower - step / 2, knots))

    @property
    def states(self) -> int:
        """1 + the atoms, or 0 where there are none and no code is needed."""
        return len(self.column.atoms) + 1 if self.column.atoms else 0

    @property
    def drawable(self) -> int:
        return self.states

    def atom_of(self, x: np.ndarray) -> np.ndarray:
        """Which atom a value is, -1 for none."""
        found = np.full(len(x), -1, dtype=np.int64)
        half = 0.0 if self.column.step is None else 0.5 * self.column.step
        for i, atom in enumerate(self.column.atoms):
            found[np.abs(x - atom) <= max(half * (1 - 1e-9), 1e-12 * abs(atom))] = i
        return found

    def _origin(self) -> float:
        return self.column.low or 0.0

    def collapsed(self, x: np.ndarray) -> np.ndarray:
        """Values on the grid, as if the bins of the atoms were not there."""
        step = self.column.step or 1.0
        index = np.round((x - self._origin()) / step)
        atoms = np.round((np.array(self.column.atoms) - self._origin()) / step)
        return self._origin() + step * (index - (atoms[None, :] < index[:, None]).sum(1))

    def _expanded(self, index: np.ndarray) -> np.ndarray:
        """The grid's numbers, with the bins of the atoms put back."""
        step = self.column.step or 1.0
        for atom in np.sort(np.round((np.array(self.column.atoms) - self._origin()) / step)):
            index = index + (index >= atom)
        return index

    def encode(self, cells: Cells, strict: bool) -> Part:
        part, seen = Part(len(cells.values)), ~cells.missing
        column, step = self.column, self.column.step
        x = np.where(seen, cells.values.astype(np.float64), self._origin())
        atom = np.where(seen, self.atom_of(x), -1)
        free = seen & (atom < 0)
        if column.atoms:
            part.code[seen] = np.where(atom >= 0, atom, len(column.atoms))[seen]
        if step is None:
            part.z[free], part.unit[free] = self.transform(x[free]), self.transform.log_slope(x[free])
        else:
            part.z[free], part.below[free], part.above[free] = self.bins(self.collapsed(x[free]))
            part.unit[seen] = -math.log(step)
        for why, bad in impossible(column, x, seen).items():
            refuse_impossible(column, x, bad, why, part.unit, strict)
        return part

    def bins(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """z of values on the grid, and how far their bins reach."""
        half, bound = 0.5 * (self.column.step or 1.0), self.transform.bound
        z = self.transform(y)
        low = self.transform(y - half)
        if bound is not None:
            low = np.where(y - half <= bound + 1e-9 * half, -np.inf, low)
        return z, z - low, self.transform(y + half) - z

    def _index(self, z: np.ndarray) -> np.ndarray:
        """Numbers on the grid, bins of atoms left out, of z."""
        index = np.round((self.transform.inverse(z) - self._origin()) / (self.column.step or 1.0))
        if self.transform.bound is not None:
            lowest = (self.transform.bound - self._origin()) / (self.column.step or 1.0)
            index = np.maximum(index, np.ceil(lowest + 1e-9))
        return index

    def settled(self, z: np.ndarray) -> np.ndarray:
        """z in the middle of the bins that z lies in."""
        return self.transform(self._origin() + (self.column.step or 1.0) * self._index(z))

    def decode(self, z: np.ndarray, code: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        is_atom = (code >= 0) & (code < len(self.column.atoms))
        z, step = np.where(is_atom | np.isnan(z), 0.0, z), self.column.step
        if step is None:
            x = self.transform.inverse(z)
        else:
            x = self._origin() + step * self._expanded(self._index(z))
            digits = 12 - math.ceil(math.log10(max(abs(self.column.high or 1.0), step)))
            grid = np.array([step, self._origin()]) * 10.0**digits
            if (
                grid[0] > 0.5 and np.abs(grid - grid.round()).max() < 1e-3
            ):  # neither one of hours nor finer than the digits
                x = np.round(x, digits)
        if self.column.atoms:
            x = np.where(is_atom, np.array([*self.column.atoms, 0.0])[np.where(is_atom, code, -1)], x)
        return x


def number_key(key: str) -> str:
    """The key of a number that may have been written in another way; anything else stays what it is.

    >>> number_key("1.0"), number_key("2.50"), number_key("many")
    ('1', '2.5', 'many')
    """
    for number in (int, float):  # of which floats cannot tell long keys apart
        try:
            return key_of(number(key))
        except (ValueError, OverflowError):
            continue
    return key


Coder = Names | FewValues | Numbers
