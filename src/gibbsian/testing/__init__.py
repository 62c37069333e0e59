"""Checks that you can run on your own energies, kernels and objectives.

They raise `AssertionError` with a reason, so they fit into any test suite.
"""

from gibbsian.testing.energy import check_energy
from gibbsian.testing.invariance import InvarianceReport, check_invariance
from gibbsian.testing.kernel import check_kernel
from gibbsian.testing.objective import check_objective

__all__ = ["InvarianceReport", "check_energy", "check_invariance", "check_kernel", "check_objective"]
