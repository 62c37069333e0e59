"""Deep Boltzmann machines."""

from gibbsian.models.dbm.machine import DBM

__all__ = ["DBM"]
