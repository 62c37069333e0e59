"""Estimators for scikit-learn: transformers, densities, classifiers and outlier detectors, all energies inside.

They go into pipelines and grid searches, take data frames and give them back (`set_output`), and pass
scikit-learn's `check_estimator`, but for the two checks that a random score fails (`BernoulliRBM` without `exact_score`). Every fitted one hands out its model, for the rest of gibbsian.
"""

from gibbsian.sklearn.bernoulli_rbm import BernoulliRBM
from gibbsian.sklearn.classifiers import DBNClassifier, JointEnergyClassifier
from gibbsian.sklearn.density import EnergyDensity
from gibbsian.sklearn.gaussian_rbm import GaussianRBM
from gibbsian.sklearn.outliers import EnergyOutlierDetector
from gibbsian.sklearn.table import TableEnergy

__all__ = [
    "BernoulliRBM",
    "DBNClassifier",
    "EnergyDensity",
    "EnergyOutlierDetector",
    "GaussianRBM",
    "JointEnergyClassifier",
    "TableEnergy",
]
