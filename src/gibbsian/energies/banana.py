"""The banana: a Gaussian bent along a parabola."""

import math

import torch
from torch import Tensor

from gibbsian.domains import Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError
from gibbsian.random import normals_like


class Banana(Energy):
    """A Gaussian bent along a parabola: curved ridges, exact draws.

        E(x) = x₀²/2s² + ½(x₁ - b(x₀² - s²))² + ½Σ_{i>1} xᵢ²,   log Z = (d/2) log 2π + log s

    The bend x₁ → x₁ + b(x₀² - s²) preserves volume, so everything about it is known: the mean is 0, the
    variances are s², 1 + 2b²s⁴ and 1. A test for kernels whose step must fit a ridge that turns.

    Reference: Haario, Saksman & Tamminen 1999.

    Args:
        dim: d, at least 2.
        curvature: b.
        scale: s, the standard deviation along the ridge.

    >>> Banana()(torch.zeros(1, 2))
    tensor([2.])
    """

    curvature: Tensor
    scale: Tensor

    def __init__(self, dim: int = 2, *, curvature: float = 0.5, scale: float = 2.0) -> None:
        if dim < 2:
            raise ArgumentError(f"Banana(dim={dim}): a banana bends in a plane, so dim must be 2 or more")
        if not 0 < scale < math.inf or not math.isfinite(curvature):
            raise ArgumentError(
                f"Banana(curvature={curvature}, scale={scale}): the scale must be positive, both finite"
            )
        super().__init__(Real(dim))
        self.register_buffer("curvature", torch.tensor(float(curvature)))
        self.register_buffer("scale", torch.tensor(float(scale)))

    def _bend(self, first: Tensor) -> Tensor:
        return self.curvature * (first.square() - self.scale.square())

    def forward(self, x: Tensor) -> Tensor:
        across = x[:, 1] - self._bend(x[:, 0])
        return 0.5 * ((x[:, 0] / self.scale).square() + across.square() + x[:, 2:].square().sum(1))

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            first, rest = x[:, 0], x[:, 2:]
            across = x[:, 1] - self._bend(first)
            energy = 0.5 * ((first / self.scale).square() + across.square() + rest.square().sum(1))
            along = first * (2 * self.curvature * across - 1 / self.scale.square())
            return energy, torch.cat([torch.stack([along, -across], 1), -rest], 1)

    def log_z(self) -> Tensor:
        """(d/2) log 2π + log s."""
        return 0.5 * self.domain.numel * math.log(2 * math.pi) + self.scale.log()

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: a bent Gaussian."""
        z = normals_like(self.scale, n, self.domain.numel, generator=generator)
        z[:, 0] *= self.scale
        z[:, 1] += self._bend(z[:, 0])
        return z
