"""Energies over observed variables."""

from gibbsian.energies.banana import Banana
from gibbsian.energies.double_well import DoubleWell
from gibbsian.energies.funnel import Funnel
from gibbsian.energies.gaussian import Gaussian
from gibbsian.energies.gaussian_mixture import Bimodal, GaussianMixture
from gibbsian.energies.grid import Grid
from gibbsian.energies.ring import Ring
from gibbsian.energies.student import StudentT

__all__ = [
    "Banana",
    "Bimodal",
    "DoubleWell",
    "Funnel",
    "Gaussian",
    "GaussianMixture",
    "Grid",
    "Ring",
    "StudentT",
]
