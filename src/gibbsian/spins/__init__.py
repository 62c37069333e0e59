"""Spins: machines of pairs from samples, words of spins, and closed forms of the Ising model."""

from gibbsian.spins.inverse import InverseIsing, fit_ising
from gibbsian.spins.onsager import CRITICAL, finite_energy, finite_log_z, infinite_energy, magnetization
from gibbsian.spins.words import WordChecks, check_words

__all__ = [
    "CRITICAL",
    "InverseIsing",
    "WordChecks",
    "check_words",
    "finite_energy",
    "finite_log_z",
    "fit_ising",
    "infinite_energy",
    "magnetization",
]
