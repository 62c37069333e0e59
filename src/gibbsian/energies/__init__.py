"""Energies over observed variables."""

from gibbsian.energies.gaussian import Gaussian

__all__ = ["Gaussian"]
