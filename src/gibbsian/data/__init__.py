"""Data: toy sets, and transforms to what energies take."""

from gibbsian.data.toy import TOYS, toy
from gibbsian.data.transforms import binarise

__all__ = ["TOYS", "binarise", "toy"]
