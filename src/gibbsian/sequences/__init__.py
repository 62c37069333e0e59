"""Families of sequences: alignments, Potts machines learned from them, contacts and the effects of mutations."""

from gibbsian.sequences.alphabet import Alphabet
from gibbsian.sequences.contacts import Contacts, contacts, precision
from gibbsian.sequences.family import Family, similarity_weights
from gibbsian.sequences.inference import fit_potts
from gibbsian.sequences.mutations import mutation_score, mutation_table
from gibbsian.sequences.reading import read

__all__ = [
    "Alphabet", "Contacts", "Family", "contacts", "fit_potts", "mutation_score", "mutation_table", "precision", "read",
    "similarity_weights",
]  # fmt: skip
