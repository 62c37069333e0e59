"""Models with hidden structure: Boltzmann machines and their relatives, hybrids, score networks."""

from gibbsian.models.boltzmann import BoltzmannMachine
from gibbsian.models.classification import ClassificationRBM
from gibbsian.models.dbm.classifier import DBMClassifier
from gibbsian.models.dbm.machine import DBM
from gibbsian.models.dbn.machine import DBN
from gibbsian.models.gated import GatedRBM
from gibbsian.models.graph import BoltzmannGraph
from gibbsian.models.hopfield import Hopfield
from gibbsian.models.ising import Ising
from gibbsian.models.joint import JointEnergy
from gibbsian.models.noise_conditional import NoiseConditionalEnergy, NoiseConditionalScore
from gibbsian.models.potts import Potts
from gibbsian.models.potts_graph import PottsGraph
from gibbsian.models.rbm.machine import RBM
from gibbsian.models.rbm.path import RBMPath
from gibbsian.models.spike_slab import SpikeSlabPath, SpikeSlabRBM
from gibbsian.models.subspace import SubspaceRBM
from gibbsian.models.temporal import TemporalRBM
from gibbsian.nets.score import LevelEnergy, ScoreMLP, ScoreUNet

__all__ = [
    "DBM",
    "DBN",
    "RBM",
    "BoltzmannGraph",
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
    "Potts",
    "PottsGraph",
    "RBMPath",
    "ScoreMLP",
    "ScoreUNet",
    "SpikeSlabPath",
    "SpikeSlabRBM",
    "SubspaceRBM",
    "TemporalRBM",
]
