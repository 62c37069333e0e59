"""The ring: mass on a sphere, with an exact radial law."""

import math

import torch
from torch import Tensor

from gibbsian.domains import Real
from gibbsian.energies.rejection import rejection_sample
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError
from gibbsian.random import normals_like


class Ring(Energy):
    """Mass around a circle (in d dimensions, a sphere) of radius R.

        E(x) = (‖x‖ - R)²/2w²,   Z = S_d ∫₀^∞ r^{d-1} exp(-(r - R)²/2w²) dr

    with S_d the surface of the unit sphere. A test for kernels that must go round: the mean is inside the
    hole, where there is no mass.

    Args:
        dim: d.
        radius: R.
        width: w.

    >>> Ring()(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
    tensor([ 0.0000, 22.2222])
    """

    radius: Tensor
    width: Tensor

    def __init__(self, dim: int = 2, *, radius: float = 2.0, width: float = 0.3) -> None:
        if not 0 < radius < math.inf or not 0 < width < math.inf:
            raise ArgumentError(f"Ring(radius={radius}, width={width}): both must be positive and finite")
        super().__init__(Real(dim))
        self.register_buffer("radius", torch.tensor(float(radius)))
        self.register_buffer("width", torch.tensor(float(width)))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * ((torch.linalg.vector_norm(x, dim=1) - self.radius) / self.width).square()

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            r = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            away = (r - self.radius) / self.width
            unit = x / torch.where(r > 0, r, 1.0)  # at the center no direction is better than another
            return 0.5 * away[:, 0].square(), -away / self.width * unit

    def log_z(self) -> Tensor:
        """By the recursion I_{k+1} = R·I_k + k·w²·I_{k-1} of I_k = ∫₀^∞ rᵏ exp(-(r - R)²/2w²) dr."""
        d, t = self.domain.numel, float(self.radius) / float(self.width)
        lower = math.sqrt(2 * math.pi) * 0.5 * math.erfc(-t / math.sqrt(2))  # I_0 in units of the width
        upper = t * lower + math.exp(-t * t / 2)
        log_scale = 0.0
        for k in range(1, d):
            lower, upper = upper, t * upper + k * lower
            log_scale += math.log(upper)
            lower, upper = lower / upper, 1.0
        surface = math.log(2) + 0.5 * d * math.log(math.pi) - math.lgamma(d / 2)
        return self.radius.new_tensor(surface + math.log(lower) + log_scale + d * math.log(float(self.width)))

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: a uniform direction, and a radius by rejection.

        -log of the radial density is 1/w²-strongly convex, so a Gaussian of width w at its mode covers it.
        """
        R, w, d = self.radius, self.width, self.domain.numel
        mode = 0.5 * (R + (R.square() + 4 * (d - 1) * w.square()).sqrt())

        def log_density(r: Tensor) -> Tensor:
            return (d - 1) * r.log() - 0.5 * ((r - R) / w).square()

        def log_accept(r: Tensor) -> Tensor:
            gap = log_density(r.clamp(min=torch.finfo(r.dtype).tiny)) - log_density(mode)
            return torch.where(r > 0, gap + 0.5 * ((r - mode) / w).square(), -torch.inf)

        def propose(m: int) -> Tensor:
            return mode + w * normals_like(R, m, generator=generator)

        r = rejection_sample(n, propose, log_accept, generator)
        z = normals_like(R, n, d, generator=generator)
        return r[:, None] * z / torch.linalg.vector_norm(z, dim=1, keepdim=True)
