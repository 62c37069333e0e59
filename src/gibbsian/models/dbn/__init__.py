"""Deep belief networks."""

from gibbsian.models.dbn.machine import DBN

__all__ = ["DBN"]
