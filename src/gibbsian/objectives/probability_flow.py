"""Minimum probability flow."""

from dataclasses import dataclass

from torch import Tensor

from gibbsian.objectives.neighbors import NeighborObjective


@dataclass(frozen=True)
class MinimumProbabilityFlow(NeighborObjective):
    """E Σ_{x'} exp(½(E(x) - E(x'))) over all states x' that differ from x in one unit.

    The rate at which probability would flow out of the data under dynamics that leave the model invariant.
    Neighbors that are data themselves count too: leaving them out, as the derivation for distinct data
    points does, is inconsistent when the data are dense. The exponential makes it sensitive to outliers.

    Reference: Sohl-Dickstein, Battaglino & DeWeese 2011.

    Args:
        sites: units drawn at random for each row, the sum scaled up; by default all of them.
        chunk: units changed at a time; see `PseudoLikelihood`.

    >>> import torch
    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.as_energy(lambda x: 0 * x.sum(-1), gb.domains.Binary(3))
    >>> MinimumProbabilityFlow()(energy, torch.ones(5, 3), (), g).value
    tensor(3.)
    """

    def term(self, gaps: Tensor) -> Tensor:
        return (0.5 * gaps).exp().sum(1)
