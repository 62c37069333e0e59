"""Clusters of particles: energies of distances alone, the targets that trained samplers are tried on."""

from abc import abstractmethod

import torch
from torch import Tensor

from gibbsian.domains import Real
from gibbsian.energy import Energy
from gibbsian.errors import check_count, check_number


class _Particles(Energy):
    """E(x) = Σ_{i<j} φ(‖xᵢ - xⱼ‖) + ½k Σ‖xᵢ - x̄‖² + ½n‖x̄‖² of n particles.

    Distances do not see where the cluster is, so its center would wander for ever; the last term makes it a standard normal
    x̄√n, independent of all else. `centered(x)` takes it off: the law of what is left is the one that papers write down.
    """

    pairs: Tensor

    def __init__(self, particles: int, dim: int, trap: float) -> None:
        particles, dim = check_count(self, "particles", particles, 2), check_count(self, "dim", dim)
        super().__init__(Real((particles, dim)))
        self.trap = trap
        i, j = torch.triu_indices(particles, particles, 1)
        pairs = torch.zeros(len(i), particles)
        pairs[torch.arange(len(i)), i] = 1
        pairs[torch.arange(len(i)), j] = -1
        self.register_buffer("pairs", pairs, persistent=False)

    @abstractmethod
    def pair(self, square: Tensor) -> tuple[Tensor, Tensor]:
        """φ and φ'(r)/r from r², of the same shape."""

    def centered(self, x: Tensor) -> Tensor:
        """Configurations `(batch, n, dim)` with their center of mass at nought."""
        return x - x.mean(1, keepdim=True)

    def distances(self, x: Tensor) -> Tensor:
        """All ‖xᵢ - xⱼ‖, i < j, `(batch, n(n-1)/2)`."""
        return (self.pairs @ x).norm(dim=2)

    def internal(self, x: Tensor) -> Tensor:
        """The energy without that of the center: what papers call the energy of a configuration, `(batch,)`."""
        return self.pair((self.pairs @ x).square().sum(2))[0].sum(1) + self._held(self.centered(x), self.trap)

    @staticmethod
    def _held(x: Tensor, strength: float) -> Tensor:
        return 0.5 * strength * x.square().sum((1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.internal(x) + 0.5 * x.shape[1] * x.mean(1).square().sum(1)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            apart, mean = self.pairs @ x, x.mean(1, keepdim=True)
            value, slope = self.pair(apart.square().sum(2))
            rest = x - mean
            center = 0.5 * x.shape[1] * mean.square().sum((1, 2))
            energy = value.sum(1) + self._held(rest, self.trap) + center
            return energy, -(self.pairs.T @ (slope[:, :, None] * apart)) - self.trap * rest - mean


class DoubleWellParticles(_Particles):
    """Particles whose distances have two wells, E = Σ_{i<j} a(r - d₀)⁴ - b(r - d₀)²; with four in the plane DW-4.

    A pair is at rest at r = d₀ ± √(b/2a), with energy -b²/4a. Not all distances can be so at once: the law has modes by
    which of them are long, which local kernels exchange slowly. See `centered` for the center of mass.

    Reference: Köhler, Klein & Noé 2020.

    Args:
        particles: n.
        dim: of the space that they live in.
        quartic, quadratic, distance: a, b and d₀.

    >>> import gibbsian as gb
    >>> energy = DoubleWellParticles()
    >>> square = torch.tensor([[[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]]])
    >>> energy.distances(square)
    tensor([[4.0000, 5.6569, 4.0000, 4.0000, 5.6569, 4.0000]])
    """

    def __init__(
        self, particles: int = 4, dim: int = 2, *, quartic: float = 0.9, quadratic: float = 4.0, distance: float = 4.0
    ) -> None:
        super().__init__(particles, dim, 0.0)
        check_number(self, "quartic", quartic, open_low=True)
        check_number(self, "quadratic", quadratic)
        check_number(self, "distance", distance)
        self.quartic, self.quadratic, self.distance = float(quartic), float(quadratic), float(distance)

    def pair(self, square: Tensor) -> tuple[Tensor, Tensor]:
        r = square.sqrt()
        y = r - self.distance
        y2 = y.square()
        slope = y * (4 * self.quartic * y2 - 2 * self.quadratic) / r
        return y2 * (self.quartic * y2 - self.quadratic), slope


class LennardJones(_Particles):
    """Particles that repel each other when near and attract each other when not, held together by a spring to their center:

        E = c Σ_{i<j} [r⁻¹² - 2r⁻⁶] + ½k Σ‖xᵢ - x̄‖²,

    in units in which a pair is at rest at r = 1, with energy -c. Thirteen in space are LJ-13, fifty-five LJ-55. Papers differ
    in c: 2 (every pair counted twice; the default, and that of the published samples of LJ-13) or 1. Singular at r = 0: start
    chains from configurations without near pairs, such as a lattice. See `centered` for the center of mass.

    Reference: Köhler, Klein & Noé 2020; Akhound-Sadegh et al. 2024.

    Args:
        particles: n.
        dim: of the space that they live in.
        strength: c.
        trap: k.

    >>> pair = LennardJones(2, 3, strength=1.0, trap=0.0)
    >>> pair.internal(torch.tensor([[[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]]))
    tensor([-1.])
    """

    def __init__(self, particles: int = 13, dim: int = 3, *, strength: float = 2.0, trap: float = 1.0) -> None:
        check_number(self, "trap", trap)
        super().__init__(particles, dim, float(trap))
        check_number(self, "strength", strength, open_low=True)
        self.strength = float(strength)

    def pair(self, square: Tensor) -> tuple[Tensor, Tensor]:
        inverse = square.reciprocal()
        sixth = inverse.square() * inverse
        value = self.strength * sixth * (sixth - 2)
        return value, 12 * self.strength * sixth * (1 - sixth) * inverse
