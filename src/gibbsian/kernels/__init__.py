"""Markov kernels: one transition each, vectorized over chains."""

from gibbsian.kernels.annealed import AnnealedLangevin
from gibbsian.kernels.base import ChainState, Info, Kernel
from gibbsian.kernels.chees import ChEES
from gibbsian.kernels.cluster import SwendsenWang, Wolff
from gibbsian.kernels.discrete import DiscreteLangevin, GibbsWithGradients
from gibbsian.kernels.flow import GradientFlow
from gibbsian.kernels.gibbs import Gibbs, SiteGibbs
from gibbsian.kernels.hmc import HMC, MALA
from gibbsian.kernels.langevin import Langevin, ShortRunLangevin
from gibbsian.kernels.metropolis import Independence, Metropolis, RandomWalk
from gibbsian.kernels.microcanonical import MAMS, MCLMC
from gibbsian.kernels.nuts import NUTS
from gibbsian.kernels.sgld import SGHMC, SGLD
from gibbsian.kernels.tempering import ParallelTempering
from gibbsian.kernels.underdamped import UnderdampedLangevin

__all__ = [
    "HMC",
    "MALA",
    "MAMS",
    "MCLMC",
    "NUTS",
    "SGHMC",
    "SGLD",
    "AnnealedLangevin",
    "ChEES",
    "ChainState",
    "DiscreteLangevin",
    "Gibbs",
    "GibbsWithGradients",
    "GradientFlow",
    "Independence",
    "Info",
    "Kernel",
    "Langevin",
    "Metropolis",
    "ParallelTempering",
    "RandomWalk",
    "ShortRunLangevin",
    "SiteGibbs",
    "SwendsenWang",
    "UnderdampedLangevin",
    "Wolff",
]
