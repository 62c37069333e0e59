"""Energies over observed variables."""

from gibbsian.energies.analytic import Banana, DoubleWell, Funnel, Ring
from gibbsian.energies.conditional import ConditionalEnergy, GivenEnergy
from gibbsian.energies.data_posterior import DataPosterior
from gibbsian.energies.distribution import DistributionEnergy, as_distribution, as_energy
from gibbsian.energies.experts import ProductOfExperts, StudentExperts
from gibbsian.energies.exponential import ExponentialFamily, Monomials
from gibbsian.energies.field_of_experts import FieldOfExperts
from gibbsian.energies.gaussian import Bimodal, Gaussian, GaussianMixture, StudentT
from gibbsian.energies.graph import GraphEnergy, Graphs
from gibbsian.energies.grid import Grid
from gibbsian.energies.ica import ICA
from gibbsian.energies.neural import (
    AttentionEnergy,
    ConvEnergy,
    MLPEnergy,
    NeuralEnergy,
    RecurrentEnergy,
    ResidualEnergy,
)
from gibbsian.energies.observed import Observed
from gibbsian.energies.particles import DoubleWellParticles, LennardJones
from gibbsian.energies.parzen import MarginalParzen, Parzen
from gibbsian.energies.random_fields import ChainField, LabelField
from gibbsian.energies.reconstruction import ReconstructionEnergy
from gibbsian.energies.splines import ColumnSplines
from gibbsian.energies.tilted import LatentEnergy, PosteriorEnergy, PushedEnergy, TiltedEnergy
from gibbsian.energies.windows import WindowProduct
from gibbsian.nets import (
    MLP,
    AttentionNet,
    ConvNet,
    Corrected,
    GraphNet,
    LayerNorm,
    PairMLP,
    RecurrentNet,
    ResidualNet,
    WideResidualNet,
)

__all__ = [
    "ICA", "MLP", "AttentionEnergy", "AttentionNet", "Banana", "Bimodal", "ChainField", "ColumnSplines", "ConditionalEnergy",
    "ConvEnergy", "ConvNet", "Corrected", "DataPosterior", "DistributionEnergy", "DoubleWell", "DoubleWellParticles", "ExponentialFamily", "FieldOfExperts", "Funnel",
    "Gaussian", "GaussianMixture", "GivenEnergy", "GraphEnergy", "GraphNet", "Graphs", "Grid", "LabelField",
    "LatentEnergy", "LayerNorm", "LennardJones", "MLPEnergy", "MarginalParzen", "Monomials", "NeuralEnergy", "Observed", "PairMLP",
    "Parzen", "PosteriorEnergy", "ProductOfExperts", "PushedEnergy", "ReconstructionEnergy", "RecurrentEnergy", "RecurrentNet",
    "ResidualEnergy", "ResidualNet", "Ring", "StudentExperts", "StudentT", "TiltedEnergy", "WideResidualNet", "WindowProduct",
    "as_distribution", "as_energy",
]  # fmt: skip
