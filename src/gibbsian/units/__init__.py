"""Units: what one layer of a machine is made of. A unit supplies energy, cumulant, mean and sampling, and any
RBM or deep machine gains it.

A layer of independent units with natural parameters (η, λ) has the law

    p(v) ∝ exp(η·φ(v) - ½ λ·v²)

where λ only occurs for real-valued units. A neighboring layer acts through its input I = W φ(h), which adds to
η; an inverse temperature multiplies both; an annealing path mixes them. Samples are functions of given noise,
so that all randomness is drawn in one place.

>>> import torch
>>> unit = Bernoulli(2)
>>> natural = unit.natural(torch.zeros(2), torch.tensor([[0.0, 100.0]]))
>>> unit.mean(natural)
tensor([[0.5000, 1.0000]])
>>> unit.sample(natural, torch.tensor([[0.7, 0.7]]))
tensor([[0., 1.]])
"""

from gibbsian.units.base import Natural, Unit, layer_noise, pick
from gibbsian.units.binary import Bernoulli, Spin, as_unit
from gibbsian.units.categorical import Count, Softmax
from gibbsian.units.joined import Joined
from gibbsian.units.real import Gaussian, Rectified

__all__ = [
    "Bernoulli",
    "Count",
    "Gaussian",
    "Joined",
    "Natural",
    "Rectified",
    "Softmax",
    "Spin",
    "Unit",
    "as_unit",
    "layer_noise",
    "pick",
]
