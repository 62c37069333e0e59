"""Restricted Boltzmann machines."""

from gibbsian.models.rbm.machine import RBM

__all__ = ["RBM"]
