"""Plain networks, of which energies, classifiers and score models are made."""

from gibbsian.nets.conv import ConvNet, ResidualNet, WideResidualNet
from gibbsian.nets.corrected import Corrected
from gibbsian.nets.layers import LayerNorm, LayerOptions, Layers
from gibbsian.nets.mlp import MLP, GraphNet, PairMLP
from gibbsian.nets.score import LevelEnergy, ScoreMLP, ScoreUNet
from gibbsian.nets.sequence import AttentionNet, RecurrentNet
from gibbsian.nets.unet import UNet

__all__ = [
    "MLP", "AttentionNet", "ConvNet", "Corrected", "GraphNet", "LayerNorm", "LayerOptions", "Layers", "LevelEnergy", "PairMLP",
    "RecurrentNet", "ResidualNet", "ScoreMLP", "ScoreUNet", "UNet", "WideResidualNet",
]  # fmt: skip
