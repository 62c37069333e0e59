"""Partition functions: exact, estimated and bounded, each with what is known about its error."""

from gibbsian.partition.annealed import ais
from gibbsian.partition.base import LogZ
from gibbsian.partition.bethe import bethe
from gibbsian.partition.exact import exact, exact_log_z
from gibbsian.partition.mean_field import mean_field
from gibbsian.partition.quadrature import quadrature
from gibbsian.partition.tree_reweighted import tree_reweighted

__all__ = ["LogZ", "ais", "bethe", "exact", "exact_log_z", "mean_field", "quadrature", "tree_reweighted"]
