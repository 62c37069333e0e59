"""Rows of a table as a law of tables takes them."""

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Cells as numbers z, nearly normal, and codes; what is not there is marked.

    Attributes:
        z: `(n, m)`, NaN where a cell is missing, or is an atom.
        below, above: `(n, m)`, how far the bin of a cell reaches to either side of z; 0 for cells of reals without a grid.
        code: `(n, q)`, -1 where missing.
        unit: `(n, columns)`, what turns a law of z and codes into one in the units of the table: log dz/dx, -log of the step,
            -log of the number of pooled names; -inf for what cannot be.
    """

    z: Tensor
    below: Tensor
    above: Tensor
    code: Tensor
    unit: Tensor

    def take(self, index: Tensor | slice) -> "Rows":
        """Some of the rows."""
        return Rows(*(part[index] for part in self))

    def repeat(self, times: int) -> "Rows":
        """Every row several times, one after the other."""
        return Rows(*(part.repeat_interleave(times, 0) for part in self))

    @property
    def n(self) -> int:
        return len(self.unit)

    @staticmethod
    def cat(parts: list["Rows"]) -> "Rows":
        """One below the other."""
        return Rows(*(torch.cat(part) for part in zip(*parts, strict=True)))
