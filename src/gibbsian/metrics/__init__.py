"""How good samples and models are."""

from gibbsian.metrics.stein import kernel_stein_discrepancy
from gibbsian.metrics.two_sample import (
    TwoSampleTest,
    energy_distance,
    median_distance,
    mmd,
    sliced_wasserstein,
    two_sample_test,
)

__all__ = [
    "TwoSampleTest",
    "energy_distance",
    "kernel_stein_discrepancy",
    "median_distance",
    "mmd",
    "sliced_wasserstein",
    "two_sample_test",
]
