"""Building blocks of Hamiltonian kernels: mass matrices, leapfrog steps, walls.

H(x, v) = E(x) + ½ vᵀM⁻¹v,   v the momentum,   ẋ = M⁻¹v,   v̇ = -∇E = s(x)
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Bounded, Box
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError, as_numbers
from gibbsian.kernels.base import masked


class Metric(NamedTuple):
    """A mass matrix M: `inverse` is M⁻¹ and `root` a factor R with R Rᵀ = M, so that R z is a momentum; both None for
    the identity, of event shape, or dense (numel × numel), with a leading axis where clamps differ between chains."""

    inverse: Tensor | None
    root: Tensor | None
    dense: bool = False

    @staticmethod
    def of(mass: Tensor | float | None) -> "Metric":
        """From a number, a diagonal (event shape, or flat) or a matrix over flattened events, for which every square
        tensor is taken: give the diagonal of square images flat."""
        if mass is None:
            return Metric(None, None)
        m = as_numbers("kernel", "mass", mass)
        if not m.is_floating_point():
            m = m.to(torch.get_default_dtype())
        if m.dim() == 2 and m.shape[0] == m.shape[1] and m.shape[0] > 1:
            if not torch.allclose(m, m.T):
                raise ArgumentError("a dense mass matrix must be symmetric; symmetrize it with (M + M.T) / 2")
            root, info = torch.linalg.cholesky_ex(m)
            if int(info) != 0:
                raise ArgumentError("a dense mass matrix must be positive definite; add a multiple of the identity")
            return Metric(torch.cholesky_inverse(root), root, True)
        if not bool((m > 0).all()) or not bool(torch.isfinite(m).all()):
            raise ArgumentError(f"masses must be positive and finite, the smallest given is {float(m.min()):g}")
        return Metric(1 / m, m.sqrt())

    def check(self, x: Tensor) -> None:
        """Refuse a mass whose shape does not fit the events of x."""
        if self.inverse is None:
            return
        want = (x[0].numel(),) * 2 if self.dense else tuple(x.shape[1:])
        got = tuple(self.inverse.shape)
        if self.dense and got[-2:] != want:
            raise ShapeError(f"the dense mass is {got}, expected {want} for events of shape {tuple(x.shape[1:])}")
        if not self.dense and got not in {(), want, (x[0].numel(),)}:
            raise ShapeError(f"the diagonal mass has shape {got}, expected a number or the event shape {want}")

    def to(self, x: Tensor) -> "Metric":
        """On the device, in the precision and (if diagonal) in the event shape of x."""
        if self.inverse is None or self.root is None:
            return self
        inverse, root = self.inverse.to(x), self.root.to(x)
        if not self.dense and inverse.dim():
            inverse, root = inverse.reshape(x.shape[1:]), root.reshape(x.shape[1:])
        return Metric(inverse, root, self.dense)

    @property
    def half(self) -> Tensor | None:
        """R⁻¹, which takes momenta to unit variance."""
        if self.root is None or not self.dense:
            return None if self.root is None else 1 / self.root
        eye = torch.eye(self.root.shape[-1], dtype=self.root.dtype, device=self.root.device)
        return torch.linalg.solve_triangular(self.root, eye.expand_as(self.root), upper=False)

    def momentum(self, z: Tensor) -> Tensor:
        """v = R z ~ N(0, M)."""
        return self._times(self.root, z)

    def velocity(self, v: Tensor) -> Tensor:
        """M⁻¹ v."""
        return self._times(self.inverse, v)

    def _times(self, factor: Tensor | None, v: Tensor) -> Tensor:
        if factor is None:
            return v
        if not self.dense:
            return factor * v
        flat = v.flatten(1)
        if factor.dim() == 2:
            return (flat @ factor.T).reshape(v.shape)
        rows = flat.reshape(-1, len(factor), flat.shape[1])  # several replicas of the chains may share their matrices
        return torch.einsum("cij,rcj->rci", factor, rows).reshape(v.shape)

    def white_velocity(self, u: Tensor) -> Tensor:
        """R⁻ᵀ u, the velocity in x of one in the coordinates y = Rᵀx, in which the mass is one."""
        return self.velocity(self.momentum(u))

    def white_force(self, s: Tensor) -> Tensor:
        """R⁻¹ s, the score in y of one in x."""
        if self.root is None:
            return s
        return self._times(self.root.mT if self.dense else self.root, self.velocity(s))

    def kinetic(self, v: Tensor) -> Tensor:
        """½ vᵀM⁻¹v per chain."""
        return 0.5 * (v * self.velocity(v)).flatten(1).sum(1)

    def kinetic_drop(self, before: Tensor, after: Tensor) -> Tensor:
        """½ vᵀM⁻¹v of the first momentum less that of the second, per chain."""
        squares = before * self.velocity(before)
        return 0.5 * torch.addcmul(squares, after, self.velocity(after), value=-1.0).flatten(1).sum(1)

    def squared(self, x: Tensor) -> Tensor:
        """xᵀMx per chain: of a displacement, how far it is in units in which M says that all are alike."""
        if self.root is None or not self.dense:
            return (x if self.root is None else self.root * x).square().flatten(1).sum(1)
        return self._times(self.root.mT, x).square().flatten(1).sum(1)

    def restrict(self, clamp: Tensor) -> "Metric":
        """The metric of the coordinates that are not held: of a dense one the block of M⁻¹ that belongs to them, the
        others decoupled. A diagonal one needs nothing: masked momenta stay masked."""
        if not self.dense or self.inverse is None:
            return self
        f = (~clamp).to(self.inverse).reshape(-1, self.inverse.shape[-1]).squeeze(0)
        both = f[..., :, None] * f[..., None, :]
        inverse = self.inverse * both + torch.diag_embed(1 - f)
        mass = torch.cholesky_inverse(torch.linalg.cholesky(inverse))
        return Metric(inverse, torch.linalg.cholesky(mass), True)


class Point(NamedTuple):
    """A point of phase space with the energy and score there."""

    x: Tensor
    v: Tensor
    energy: Tensor
    score: Tensor


def reflect(x: Tensor, v: Tensor, domain: Bounded) -> tuple[Tensor, Tensor]:
    """Fold positions that left the domain back in as a billiard does, turning v round at each wall: any number of
    bounces at once, as a triangle wave. The map preserves volume and is its own inverse after a flip of v, so
    Metropolis corrections that ignore it stay exact."""
    low, high = domain.bounds(x)
    if not isinstance(domain, Box):  # one wall, below
        beyond = x < low
        return torch.where(beyond, 2 * low - x, x), torch.where(beyond, -v, v)
    width = high - low
    t = torch.remainder(x - low, 2 * width)
    falling = t > width
    folded = low + torch.where(falling, 2 * width - t, t)
    inside = (x >= low) & (x <= high)  # left as they are, to the bit
    return torch.where(inside, x, folded), torch.where(inside | ~falling, v, -v)


def stop(x: Tensor, domain: Bounded) -> Tensor:
    """Positions that left the domain, put on the wall."""
    return torch.lerp(domain.within_walls(x), x, 0.0)  # what is not finite must not become a number


def bounce(x: Tensor, domain: Bounded) -> Tensor:
    """Positions that left the domain, reflected at the wall; what passes the opposite one too ends up on it. A quarter
    of the operations of `reflect`, which counts bounces: for kernels that are no exact samplers anyway."""
    low, high = domain.bounds(x)
    inside = torch.clamp(x, low, high)
    folded = torch.clamp(torch.lerp(x, inside, 2.0), low, high)  # 2·inside - x
    return torch.lerp(folded, x, 0.0)  # what is not finite must not become a number


def drift(energy: Energy, x: Tensor, v: Tensor, step_size: Tensor, metric: Metric) -> tuple[Tensor, Tensor]:
    """Positions moved along their velocities, reflected at walls."""
    x = torch.addcmul(x, step_size, metric.velocity(v))
    return reflect(x, v, energy.domain) if isinstance(energy.domain, Bounded) else (x, v)


def leapfrog(
    energy: Energy, p: Point, step_size: Tensor, metric: Metric, clamp: Tensor | None, steps: int = 1
) -> Point:
    """`steps` leapfrog steps: half a kick, then drifts and kicks in turn, the last kick a half. One gradient each."""
    x, v, e, s = p
    v = torch.addcmul(v, step_size, s, value=0.5)
    for i in range(steps):
        x, v = drift(energy, x, v, step_size, metric)
        e, s = energy.energy_and_score(x)
        s = masked(s, clamp)
        v = torch.addcmul(v, step_size, s, value=1.0 if i + 1 < steps else 0.5)
    return Point(x, v, e, s)
