"""How good samples and models are."""

from gibbsian.metrics.amari import amari_distance
from gibbsian.metrics.benchmark import Benchmark, Interval, benchmark, mean_interval, sampling_trial, training_trial
from gibbsian.metrics.calibration import Reliability, expected_calibration_error, fit_temperature, reliability_curve
from gibbsian.metrics.images import FeatureDistance, FeatureMoments, feature_moments, fid, frechet_distance, kid
from gibbsian.metrics.inception import Inception
from gibbsian.metrics.ood import RocCurve, aupr, auroc, fpr95, ood_scores, roc_curve
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
    "Benchmark",
    "FeatureDistance",
    "FeatureMoments",
    "Inception",
    "Interval",
    "Reliability",
    "RocCurve",
    "TwoSampleTest",
    "amari_distance",
    "aupr",
    "auroc",
    "benchmark",
    "energy_distance",
    "expected_calibration_error",
    "feature_moments",
    "fid",
    "fit_temperature",
    "fpr95",
    "frechet_distance",
    "kernel_stein_discrepancy",
    "kid",
    "mean_interval",
    "median_distance",
    "mmd",
    "ood_scores",
    "reliability_curve",
    "roc_curve",
    "sampling_trial",
    "sliced_wasserstein",
    "training_trial",
    "two_sample_test",
]
