"""The double well: two equal modes with a barrier of known height between them."""

import math

import torch
from scipy.special import ive
from torch import Tensor

from gibbsian.domains import Real
from gibbsian.energies.rejection import rejection_sample
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError
from gibbsian.random import normals_like


class DoubleWell(Energy):
    """Two wells at x₀ = ±a with a barrier of height h between them, Gaussian in the other coordinates.

        E(x) = h((x₀/a)² - 1)² + ½Σ_{i>0} xᵢ²
        log Z = log[(πa/2)(I_{-1/4}(h/2) + I_{1/4}(h/2))] - h/2 + ((d-1)/2) log 2π

    A test for mixing between modes: a local kernel crosses at a rate of about e⁻ʰ.

    Args:
        dim: d.
        barrier: h.
        distance: a, from the barrier to each well.

    >>> DoubleWell()(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    tensor([2., 0.])
    """

    barrier: Tensor
    distance: Tensor

    def __init__(self, dim: int = 2, *, barrier: float = 2.0, distance: float = 1.0) -> None:
        if not 0 < barrier < math.inf or not 0 < distance < math.inf:
            raise ArgumentError(f"DoubleWell(barrier={barrier}, distance={distance}): both must be positive and finite")
        super().__init__(Real(dim))
        self.register_buffer("barrier", torch.tensor(float(barrier)))
        self.register_buffer("distance", torch.tensor(float(distance)))

    def forward(self, x: Tensor) -> Tensor:
        height = (x[:, 0] / self.distance).square() - 1
        return self.barrier * height.square() + 0.5 * x[:, 1:].square().sum(1)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            u, rest = x[:, 0] / self.distance, x[:, 1:]
            height = u.square() - 1
            energy = self.barrier * height.square() + 0.5 * rest.square().sum(1)
            slope = -4 * self.barrier / self.distance * u * height
            return energy, torch.cat([slope[:, None], -rest], 1)

    def log_z(self) -> Tensor:
        """∫exp(-h(u² - 1)²)du = (π/2)e^{-h/2}(I_{-1/4}(h/2) + I_{1/4}(h/2)), I modified Bessel functions."""
        h, a = float(self.barrier), float(self.distance)
        well = math.log(0.5 * math.pi * a * (ive(-0.25, h / 2) + ive(0.25, h / 2)))
        return self.barrier.new_tensor(well + 0.5 * (self.domain.numel - 1) * math.log(2 * math.pi))

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`, by rejection with about half accepted.

        For u > 0, exp(-h(u-1)²(u+1)²) ≤ exp(-h(u-1)²), a Gaussian; the sign is a fair coin.
        """
        h = self.barrier

        def propose(m: int) -> Tensor:
            return 1 + normals_like(h, m, generator=generator) / (2 * h).sqrt()

        def log_accept(u: Tensor) -> Tensor:
            return torch.where(u > 0, -h * (u - 1).square() * u * (u + 2), -torch.inf)

        u = rejection_sample(n, propose, log_accept, generator)
        sign = 2 * torch.randint(2, (n,), generator=generator, device=h.device).to(h) - 1
        rest = normals_like(h, n, self.domain.numel - 1, generator=generator)
        return torch.cat([(self.distance * sign * u)[:, None], rest], 1)
