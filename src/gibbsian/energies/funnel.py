"""Neal's funnel: a scale that is itself random."""

import math

import torch
from torch import Tensor

from gibbsian.domains import Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError
from gibbsian.random import normals_like


class Funnel(Energy):
    """Neal's funnel: v = x₀ ~ N(0, s²), and xᵢ | v ~ N(0, eᵛ) for the others.

        E(x) = v²/2s² + ½e⁻ᵛ Σ_{i>0} xᵢ² + ((d-1)/2)v,   log Z = (d/2) log 2π + log s

    No single step size fits both its neck and its mouth: a test for adaptation and divergence reports.

    Reference: Neal 2003.

    Args:
        dim: d, at least 2.
        scale: s.

    >>> Funnel()(torch.zeros(1, 2))
    tensor([0.])
    """

    scale: Tensor

    def __init__(self, dim: int = 2, *, scale: float = 3.0) -> None:
        if dim < 2:
            raise ArgumentError(f"Funnel(dim={dim}): a scale and at least one scaled entry, so dim must be 2 or more")
        if not 0 < scale < math.inf:
            raise ArgumentError(f"Funnel(scale={scale}): the scale must be positive and finite")
        super().__init__(Real(dim))
        self.register_buffer("scale", torch.tensor(float(scale)))

    def forward(self, x: Tensor) -> Tensor:
        return self._both(x)[0]

    def _both(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v, rest = x[:, 0], x[:, 1:]
        shrink = torch.exp(-v)
        pull = 0.5 * shrink * rest.square().sum(1)
        energy = 0.5 * (v / self.scale).square() + pull + 0.5 * rest.shape[1] * v
        return energy, pull, shrink

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            energy, pull, shrink = self._both(x)
            first = pull - x[:, 0] / self.scale.square() - 0.5 * (x.shape[1] - 1)
            return energy, torch.cat([first[:, None], -shrink[:, None] * x[:, 1:]], 1)

    def log_z(self) -> Tensor:
        """(d/2) log 2π + log s."""
        return 0.5 * self.domain.numel * math.log(2 * math.pi) + self.scale.log()

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: first the scale, then the rest."""
        z = normals_like(self.scale, n, self.domain.numel, generator=generator)
        z[:, 0] *= self.scale
        z[:, 1:] *= torch.exp(z[:, :1] / 2)
        return z
