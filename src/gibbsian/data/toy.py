"""Two-dimensional toy laws, drawn exactly: what an energy in the plane is tried on first.

All of them are centered near the origin with a spread of about 2, so that one setting of a sampler serves them all.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, check_count, suggest
from gibbsian.random import require_generator


class _Draw:
    """Uniforms, normals and choices for `n` points from one generator."""

    def __init__(self, n: int, generator: torch.Generator, dtype: torch.dtype) -> None:
        self.n, self.generator, self.dtype = n, generator, dtype

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(self.n, *shape, generator=self.generator, dtype=self.dtype, device=self.generator.device)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self.n, *shape, generator=self.generator, dtype=self.dtype, device=self.generator.device)

    def choice(self, k: int) -> Tensor:
        return torch.randint(k, (self.n,), generator=self.generator, device=self.generator.device).to(self.dtype)


def _polar(radius: Tensor, angle: Tensor) -> Tensor:
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def moons(draw: _Draw) -> Tensor:
    """Two interleaved half circles of radius 2, noise 0.15."""
    upper = draw.choice(2)
    angle = math.pi * draw.uniform()
    sign = 2 * upper - 1
    x = torch.stack([2 * angle.cos() - sign, sign * (2 * angle.sin() - 0.5)], 1)
    return x + 0.15 * draw.normal(2)


def rings(draw: _Draw) -> Tensor:
    """Four concentric rings of radii 0.75, 1.5, 2.25, 3, equally likely, noise 0.08."""
    radius = 0.75 * (draw.choice(4) + 1)
    return _polar(radius, 2 * math.pi * draw.uniform()) + 0.08 * draw.normal(2)


def circles(draw: _Draw) -> Tensor:
    """Two concentric circles of radii 1.25 and 2.5, noise 0.1."""
    radius = 1.25 * (draw.choice(2) + 1)
    return _polar(radius, 2 * math.pi * draw.uniform()) + 0.1 * draw.normal(2)


def eight_gaussians(draw: _Draw) -> Tensor:
    """Eight Gaussians of deviation 0.2 on a circle of radius 2.5."""
    return _polar(torch.full_like(draw.choice(1), 2.5), math.pi / 4 * draw.choice(8)) + 0.2 * draw.normal(2)


def checkerboard(draw: _Draw) -> Tensor:
    """The eight black squares of a 4 × 4 board on [-4, 4]²: a density with jumps."""
    column, row = draw.choice(4), 2 * draw.choice(2)
    return torch.stack([column, row + column % 2], 1) * 2 - 4 + 2 * draw.uniform(2)


def pinwheel(draw: _Draw) -> Tensor:
    """Five blades bent by their distance from the center."""
    along, across = 0.6 * draw.normal() + 2, 0.2 * draw.normal()
    angle = 2 * math.pi / 5 * draw.choice(5) + 0.4 * along
    return torch.stack([along * angle.cos() - across * angle.sin(), along * angle.sin() + across * angle.cos()], 1)


def two_spirals(draw: _Draw) -> Tensor:
    """Two spirals that wind into each other, noise 0.1."""
    t = draw.uniform().sqrt()
    sign = 2 * draw.choice(2) - 1
    return sign[:, None] * _polar(3.5 * t, 3 * math.pi * t) + 0.1 * draw.normal(2)


def swiss_roll(draw: _Draw) -> Tensor:
    """One rolled-up sheet seen from the side, noise 0.1."""
    t = 0.3 + 0.7 * draw.uniform()
    return _polar(3.5 * t, 4.5 * math.pi * t) + 0.1 * draw.normal(2)


def cross(draw: _Draw) -> Tensor:
    """Two crossed bars of unequal weight, 0.7 and 0.3: modes joined by a bridge."""
    across = draw.uniform() < 0.3
    bar = torch.stack([6 * draw.uniform() - 3, 0.2 * draw.normal()], 1)
    return torch.where(across[:, None], bar.flip(1), bar)


_LAWS = (moons, rings, circles, eight_gaussians, checkerboard, pinwheel, two_spirals, swiss_roll, cross)
TOYS: dict[str, Callable[[_Draw], Tensor]] = {law.__name__: law for law in _LAWS}


def toy(name: str, n: int, *, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
    """`n` independent draws `(n, 2)` from a toy law in the plane.

    Args:
        name: moons, rings, circles, eight_gaussians, checkerboard, pinwheel, two_spirals, swiss_roll or cross.
        n: how many.
        generator: required; the points are made where it lives.
        dtype: of the points; torch's default one when left out.

    >>> toy("moons", 1000, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([1000, 2])
    """
    require_generator(generator)
    key = str(name).replace("-", "_").replace(" ", "_").lower()
    if key not in TOYS:
        raise ArgumentError(f"there is no toy set {name!r}; {suggest(key, TOYS)}There are {', '.join(TOYS)}")
    n = check_count("toy", "n", n)
    return TOYS[key](_Draw(n, generator, dtype or torch.get_default_dtype()))
