"""Rows that stay on disk and are sliced and looked at like an array."""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from gibbsian.errors import DataError


class RowsOnDisk(ABC):
    """Rows from `begin` to `end` of something on disk, each of the shape `event`."""

    begin: int
    end: int
    event: tuple[int, ...]
    dtype: np.dtype

    @abstractmethod
    def read(self, start: int, stop: int) -> np.ndarray:
        """The rows from `start` to `stop`."""

    @abstractmethod
    def take(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of these numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and the shape of one."""
        return (len(self), *self.event)

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self.shape)

    @property
    def row_bytes(self) -> float:
        """Bytes of a row in memory."""
        return float(np.prod(self.event, initial=1.0)) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows in memory."""
        return int(self.row_bytes) * len(self)

    def __len__(self) -> int:
        return self.end - self.begin

    def __getitem__(self, index: Any) -> Any:
        """Rows of a slice without steps stay on disk; those of row numbers are read."""
        if not isinstance(index, slice):
            return self.take(np.asarray(index, dtype=np.int64))
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise DataError("rows on disk are sliced without steps; give row numbers instead")
        return self._view(self.begin + start, self.begin + max(start, stop))

    def _view(self, begin: int, end: int) -> Self:
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view.begin, view.end = begin, end
        return view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        rows = self.read(0, len(self))
        return rows if dtype is None else rows.astype(dtype)
