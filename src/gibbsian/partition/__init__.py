"""Partition functions: exact, estimated and bounded, each with what is known about its error."""

from gibbsian.partition.base import LogZ
from gibbsian.partition.exact import exact, exact_log_z

__all__ = ["LogZ", "exact", "exact_log_z"]
