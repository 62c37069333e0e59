"""Learning principles: losses whose gradient is the learning rule, on any energy that fits."""

from gibbsian.objectives.base import Loss, Objective

__all__ = ["Loss", "Objective"]
