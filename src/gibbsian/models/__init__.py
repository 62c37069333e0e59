"""Models with hidden structure: Boltzmann machines and their relatives, hybrids, score networks."""

from gibbsian.models.boltzmann import BoltzmannMachine
from gibbsian.models.classification import ClassificationRBM
from gibbsian.models.dbm import DBM
from gibbsian.models.dbm_classifier import DBMClassifier
from gibbsian.models.dbn import DBN
from gibbsian.models.gated import GatedRBM
from gibbsian.models.hopfield import Hopfield
from gibbsian.models.ising import Ising
from gibbsian.models.joint import JointEnergy
from gibbsian.models.noise_conditional import NoiseConditionalEnergy, NoiseConditionalScore
from gibbsian.models.rbm import RBM
from gibbsian.models.rbm_path import RBMPath
from gibbsian.models.score_networks import LevelEnergy, ScoreMLP, ScoreUNet
from gibbsian.models.spike_slab import SpikeSlabPath, SpikeSlabRBM
from gibbsian.models.subspace import SubspaceRBM
from gibbsian.models.temporal import TemporalRBM

__all__ = [
    "DBM",
    "DBN",
    "RBM",
    "BoltzmannMachine",
    "ClassificationRBM",
    "DBMClassifier",
    "GatedRBM",
    "Hopfield",
    "Ising",
    "JointEnergy",
    "LevelEnergy",
    "NoiseConditionalEnergy",
    "NoiseConditionalScore",
    "RBMPath",
    "ScoreMLP",
    "ScoreUNet",
    "SpikeSlabPath",
    "SpikeSlabRBM",
    "SubspaceRBM",
    "TemporalRBM",
]
