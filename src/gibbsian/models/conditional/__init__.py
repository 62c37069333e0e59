"""Machines of two layers whose law depends on an input."""

from gibbsian.models.conditional.machine import ConditionalMachine, ConditionedMachine

__all__ = ["ConditionalMachine", "ConditionedMachine"]
