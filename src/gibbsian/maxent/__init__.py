"""Maximum entropy: the exponential family whose expectations are given."""

from gibbsian.maxent.solve import MaximumEntropy, maximum_entropy

__all__ = ["MaximumEntropy", "maximum_entropy"]
