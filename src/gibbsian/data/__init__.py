"""Data: toy laws, named sets, readers for files, and the recorded steps from raw data to what energies take."""

from gibbsian.data.labeled import WithLabeled
from gibbsian.data.named import NAMED, load
from gibbsian.data.prepare import STEPS, Prepared, prepare
from gibbsian.data.readers import read
from gibbsian.data.sets import DataSet, Rows
from gibbsian.data.steps import binarize, dequantize
from gibbsian.data.toy import TOYS, toy

__all__ = [
    "NAMED",
    "STEPS",
    "TOYS",
    "DataSet",
    "Prepared",
    "Rows",
    "WithLabeled",
    "binarize",
    "dequantize",
    "load",
    "prepare",
    "read",
    "toy",
]
