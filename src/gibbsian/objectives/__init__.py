"""Learning principles: losses whose gradient is the learning rule, on any energy that fits."""

from gibbsian.objectives.adversarial import Adversarial, FlowSampler, ImplicitSampler
from gibbsian.objectives.base import Loss, Objective
from gibbsian.objectives.classification import ClassificationLikelihood, CrossEntropy, DropoutCrossEntropy
from gibbsian.objectives.conditional import Conditional
from gibbsian.objectives.contrastive import ContrastiveDivergence, ExactLikelihood, MonteCarloLikelihood
from gibbsian.objectives.discrepancy import EnergyDiscrepancy
from gibbsian.objectives.first_rows import FirstRows
from gibbsian.objectives.left_out import LeaveOneOut
from gibbsian.objectives.matching import EnergyMatching
from gibbsian.objectives.neighbors import MinimumProbabilityFlow, PseudoLikelihood, RatioMatching
from gibbsian.objectives.noise import FlowNoise, GaussianNoise, MarginalNoise, MixtureNoise, UniformNoise
from gibbsian.objectives.noise_contrastive import EnergyMargin, NoiseContrastive, RankingContrastive
from gibbsian.objectives.persistent import PersistentContrastiveDivergence
from gibbsian.objectives.perturb_and_map import PerturbAndMAP
from gibbsian.objectives.perturbations import Around, Flips, Heat, Masked, Neighbors
from gibbsian.objectives.recovery import RecoveryLikelihood
from gibbsian.objectives.redrawn import Binarized, Blurred, Shifted
from gibbsian.objectives.regularizers import BlockSparsity, Centered, Sparsity, WeightDecay
from gibbsian.objectives.score import (
    DenoisingScoreMatching,
    ExplicitScoreMatching,
    ImplicitScoreMatching,
    MultiScaleDenoising,
    NonNegativeScoreMatching,
    SlicedScoreMatching,
)
from gibbsian.objectives.sparing import Sparing
from gibbsian.objectives.variational import LatentLikelihood, UpDown, VariationalLikelihood
from gibbsian.objectives.weighted import Weighted

__all__ = [
    "Adversarial",
    "Around",
    "Binarized",
    "BlockSparsity",
    "Blurred",
    "Centered",
    "ClassificationLikelihood",
    "Conditional",
    "ContrastiveDivergence",
    "CrossEntropy",
    "DenoisingScoreMatching",
    "DropoutCrossEntropy",
    "EnergyDiscrepancy",
    "EnergyMargin",
    "EnergyMatching",
    "ExactLikelihood",
    "ExplicitScoreMatching",
    "FirstRows",
    "Flips",
    "FlowNoise",
    "FlowSampler",
    "GaussianNoise",
    "Heat",
    "ImplicitSampler",
    "ImplicitScoreMatching",
    "LatentLikelihood",
    "LeaveOneOut",
    "Loss",
    "MarginalNoise",
    "Masked",
    "MinimumProbabilityFlow",
    "MixtureNoise",
    "MonteCarloLikelihood",
    "MultiScaleDenoising",
    "Neighbors",
    "NoiseContrastive",
    "NonNegativeScoreMatching",
    "Objective",
    "PersistentContrastiveDivergence",
    "PerturbAndMAP",
    "PseudoLikelihood",
    "RankingContrastive",
    "RatioMatching",
    "RecoveryLikelihood",
    "Shifted",
    "SlicedScoreMatching",
    "Sparing",
    "Sparsity",
    "UniformNoise",
    "UpDown",
    "VariationalLikelihood",
    "WeightDecay",
    "Weighted",
]
