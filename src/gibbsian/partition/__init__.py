"""Partition functions: exact, estimated and bounded, each with what is known about its error."""

from gibbsian.partition.annealed import ais
from gibbsian.partition.base import LogZ
from gibbsian.partition.bounds import bounds
from gibbsian.partition.conditional import ais_each, clamped_ais
from gibbsian.partition.exact import LogZEach, exact, exact_each, exact_log_z
from gibbsian.partition.likelihood import (
    LogLikelihood,
    clamped_log_likelihood,
    conditional_log_likelihood,
    log_likelihood,
)
from gibbsian.partition.mean_field import mean_field
from gibbsian.partition.messages import bethe
from gibbsian.partition.perturb import perturb_and_map
from gibbsian.partition.probability_flow import FlowLikelihood, flow_log_likelihood
from gibbsian.partition.quadrature import quadrature
from gibbsian.partition.reverse import raise_bound, reverse_ais
from gibbsian.partition.smc import smc
from gibbsian.partition.tree_reweighted import tree_reweighted

__all__ = [
    "FlowLikelihood",
    "LogLikelihood",
    "LogZ",
    "LogZEach",
    "ais",
    "ais_each",
    "bethe",
    "bounds",
    "clamped_ais",
    "clamped_log_likelihood",
    "conditional_log_likelihood",
    "exact",
    "exact_each",
    "exact_log_z",
    "flow_log_likelihood",
    "log_likelihood",
    "mean_field",
    "perturb_and_map",
    "quadrature",
    "raise_bound",
    "reverse_ais",
    "smc",
    "tree_reweighted",
]
