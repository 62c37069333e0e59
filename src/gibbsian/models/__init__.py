"""Models with hidden structure: Boltzmann machines and their relatives, hybrids, score networks."""

from gibbsian.models.boltzmann import BoltzmannMachine
from gibbsian.models.rbm import RBM
from gibbsian.models.rbm_path import RBMPath

__all__ = ["RBM", "BoltzmannMachine", "RBMPath"]
