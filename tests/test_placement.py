"""Tensors of one precision and device meet models of the same, or the refusal says how to bring them together."""

import pytest
import torch

import gibbsian as gb
from gibbsian.errors import DataError, PrecisionError
from gibbsian.models import RBM, Hopfield

G = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    "meet",
    [
        lambda x: gb.sample(RBM(3, 2), gb.kernels.Gibbs(), x, 5, generator=G),
        lambda x: gb.minimize(RBM(3, 2), x0=x),
        lambda x: gb.fit(RBM(3, 2), gb.objectives.PseudoLikelihood(), x, steps=1),
        lambda x: Hopfield(3).recall(2 * x - 1),
    ],
    ids=["sample", "minimize", "fit", "recall"],
)
def test_another_precision_is_refused_with_both_ways_out(meet):
    with pytest.raises(
        (PrecisionError, DataError), match=r"\.to\('cpu', torch.float32\) or \w+\.to\('cpu', torch.float64\)"
    ):
        meet(torch.ones(4, 3).double())
