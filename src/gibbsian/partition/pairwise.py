"""The pairwise form of machines with two-valued units, on which the variational estimators work."""

from gibbsian.capabilities import Pairwise, PairwiseModel, require
from gibbsian.energy import Energy


def pairwise(energy: Energy) -> Pairwise:
    """All units of a machine, hidden ones too, as {0, 1} units with the same log Z.

    >>> import gibbsian as gb
    >>> pairwise(gb.models.RBM(3, 2)).weight.shape
    torch.Size([6])
    """
    advice = (
        "this estimator takes machines of two-valued units with pairwise weights, such as a BoltzmannMachine, an Ising "
        "model, or an RBM with Bernoulli or Spin units. Use partition.ais or partition.exact"
    )
    return require(energy, PairwiseModel, "a pairwise form", advice).pairwise()
