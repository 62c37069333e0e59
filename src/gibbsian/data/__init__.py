"""Data: toy laws, named sets, readers for files, and the recorded steps from raw data to what energies take."""

from gibbsian.data.labeled import WithLabeled
from gibbsian.data.named import NAMED, load, path_of
from gibbsian.data.parquet import Parquet
from gibbsian.data.prepare import STEPS, Pipeline, Prepared, make_steps, prepare
from gibbsian.data.readers import read
from gibbsian.data.sets import DataSet, Rows
from gibbsian.data.steps import binarize, dequantize
from gibbsian.data.toy import TOYS, toy

__all__ = [
    "NAMED",
    "STEPS",
    "TOYS",
    "DataSet",
    "Parquet",
    "Pipeline",
    "Prepared",
    "Rows",
    "WithLabeled",
    "binarize",
    "dequantize",
    "load",
    "make_steps",
    "path_of",
    "prepare",
    "read",
    "toy",
]
