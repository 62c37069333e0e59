"""Families of sequences: alignments, Potts machines learned from them, contacts, the effects of mutations, new sequences."""

from gibbsian.sequences.alphabet import Alphabet
from gibbsian.sequences.checks import Checks, compare, nearest_identity
from gibbsian.sequences.contacts import Contacts, contacts, precision
from gibbsian.sequences.demo import demo_family
from gibbsian.sequences.family import Family, similarity_weights
from gibbsian.sequences.inference import fit_potts
from gibbsian.sequences.mutations import mutation_score, mutation_scores, mutation_table
from gibbsian.sequences.rbm import fit_rbm, hidden_weights
from gibbsian.sequences.reading import read
from gibbsian.sequences.sampling import Entropy, entropy, sample_sequences

__all__ = [
    "Alphabet", "Checks", "Contacts", "Entropy", "Family", "compare", "contacts", "demo_family", "entropy", "fit_potts", "fit_rbm", "hidden_weights", "mutation_score",
    "mutation_scores", "mutation_table", "nearest_identity", "precision", "read", "sample_sequences", "similarity_weights",
]  # fmt: skip
