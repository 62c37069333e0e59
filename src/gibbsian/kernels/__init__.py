"""Markov kernels: one transition each, vectorised over chains."""

from gibbsian.kernels.base import ChainState, Info, Kernel
from gibbsian.kernels.hmc import HMC, MALA
from gibbsian.kernels.langevin import Langevin, ShortRunLangevin
from gibbsian.kernels.metropolis import Independence, Metropolis, RandomWalk

__all__ = [
    "HMC",
    "MALA",
    "ChainState",
    "Independence",
    "Info",
    "Kernel",
    "Langevin",
    "Metropolis",
    "RandomWalk",
    "ShortRunLangevin",
]
