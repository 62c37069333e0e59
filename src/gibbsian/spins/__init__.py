"""Spins: closed forms of the Ising model."""

from gibbsian.spins.onsager import CRITICAL, finite_energy, finite_log_z, infinite_energy, magnetization

__all__ = ["CRITICAL", "finite_energy", "finite_log_z", "infinite_energy", "magnetization"]
