"""Tensors of one precision and device meet models of the same, or the refusal says how to bring them together."""

import pytest
import torch

import gibbsian as gb
from gibbsian.errors import DataError, GibbsianError, PrecisionError
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


@pytest.mark.parametrize(
    "model", [RBM(3, 2), gb.energies.MLPEnergy(3, (4,)), RBM(3, 2) + RBM(3, 2)], ids=["RBM", "MLP", "sum"]
)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda x: x.double(), r"x\.to\('cpu', torch.float32\)"),
        (lambda x: x[0], r"add a batch axis: x\[None\]"),
        (lambda x: x[:, :2], r"expected \(batch, 3\)"),
        (lambda x: x.numpy(), "torch.as_tensor"),
        (lambda x: x.tolist(), "torch.as_tensor"),
        (lambda x: None, "expected a torch.Tensor"),
    ],
    ids=["double", "vector", "narrow", "numpy", "list", "none"],
)
def test_a_model_says_what_is_wrong_with_rows_that_it_stumbles_over(model, spoil, said):
    with pytest.raises(GibbsianError, match=said):
        model(spoil(torch.ones(4, 3)))


def test_errors_of_ones_own_function_come_through_as_they_are():
    def stumble(x):
        raise RuntimeError("my own")

    with pytest.raises(RuntimeError, match="my own"):
        gb.as_energy(stumble, gb.domains.Real(3))(torch.ones(4, 3))


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_score_without_gradients_says_that_inference_mode_took_them(create_graph):
    net = gb.energies.MLPEnergy(3, (4,))
    with torch.inference_mode():
        x = torch.ones(2, 3)
        with pytest.raises(GibbsianError, match=r"torch\.no_grad"):
            net.score(x, create_graph=create_graph)
    with pytest.raises(GibbsianError, match=r"torch\.no_grad"):
        net.score(x, create_graph=create_graph)
