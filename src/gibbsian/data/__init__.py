"""Data: transforms to what energies take."""

from gibbsian.data.transforms import binarise

__all__ = ["binarise"]
