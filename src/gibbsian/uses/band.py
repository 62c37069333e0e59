"""Ways of lowest energy between two states: the nudged elastic band.

A chain of images between two ends falls down the energy sideways, while springs along it keep the images apart.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Bounded, Domain, Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, DivergenceError, DomainError, check_count, check_number
from gibbsian.placement import check_rows
from gibbsian.progress import progress_bar
from gibbsian.uses.minimize import report_unrest


class Band(NamedTuple):
    """A way between two states.

    Attributes:
        x: states along it, the ends included `(images, *event)`.
        energy: their energies `(images,)`.
        saddle: the highest state between the ends; a stationary point where the band climbed to it.
        barrier: its energy above that of the first end.
        converged: whether the band came to rest.
    """

    x: Tensor
    energy: Tensor
    saddle: Tensor
    barrier: Tensor
    converged: bool


def elastic_band(
    energy: Energy,
    start: Tensor,
    end: Tensor,
    *,
    images: int = 15,
    steps: int = 2000,
    spring: float = 1.0,
    climb: bool = True,
    tolerance: float = 1e-3,
    via: Tensor | None = None,
    progress: bool | None = False,
) -> Band:
    """The way of lowest energy between two states, and the pass that it leads over: images or minima morph into each other.

        Fᵢ = s(xᵢ) - (s(xᵢ)·τ)τ + k(‖xᵢ₊₁ - xᵢ‖ - ‖xᵢ - xᵢ₋₁‖)τ

    τ is the tangent, towards the higher neighbor. With `climb` the highest image, where it lies above both ends, feels no springs and goes
    up along the band instead, to the saddle. The band moves by FIRE. What it finds depends on where it begins, the straight line (or through `via`): another way may be lower.

    Reference: Henkelman & Jónsson 2000; Henkelman, Uberuaga & Jónsson 2000 (climbing); Bitzek et al. 2006 (FIRE).

    Args:
        energy: over continuous events.
        start, end: two events, best at minima (`gibbsian.minimize`); they stay.
        images: states between the ends.
        steps: moves of the band, at most; a `ConvergenceWarning` tells of bands that had not come to rest.
        spring: k, in units of the mean slope along the first band.
        climb: let the highest image climb to the saddle.
        tolerance: largest force at rest, as a share of the largest on the first band.
        via: events `(points, *event)` through which the first band leads.
        progress: show a bar.

    >>> import gibbsian as gb
    >>> well = gb.energies.DoubleWell(2, barrier=3.0, distance=1.0)
    >>> ends = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    >>> elastic_band(well, *ends, via=torch.tensor([[0.0, 1.0]])).barrier.round(decimals=3)
    tensor(3.)
    """
    ends = _checked(energy, start, end, via)
    images, steps = check_count("elastic_band", "images", images), check_count("elastic_band", "steps", steps)
    for name, value in (("spring", spring), ("tolerance", tolerance)):
        check_number("elastic_band", name, value, open_low=True)
    x = _evenly(ends, images + 2)
    e, s = _look(energy, x)
    scale = s.norm(dim=1).mean() + torch.finfo(x.dtype).tiny
    stiff = spring * scale / ((x[1:] - x[:-1]).norm(dim=1).mean() + torch.finfo(x.dtype).tiny)
    band = _Fire(x, length=float((x[1:] - x[:-1]).norm(dim=1).mean()), force=float(scale))
    limit, settled = None, False
    with progress_bar(steps, "elastic band", progress) as tick:
        for step in range(steps):
            force = _forces(band.x, e, s, stiff, climb=climb and step >= steps // 10)
            force = _held(force, band.x[1:-1], energy.domain)
            largest = float(force.norm(dim=1).max())
            limit = tolerance * max(largest, float(scale)) if limit is None else limit
            settled = largest <= limit and (not climb or step > steps // 10)
            if settled:
                break
            band.move(force, walls=lambda u: energy.domain.within_walls(u.view(-1, *energy.domain.shape)).flatten(1))
            e, s = _look(energy, band.x)
            tick(1)
    report_unrest(torch.tensor([settled]), steps, stacklevel=3)
    states = band.x.view(-1, *energy.domain.shape)
    top = int(e[1:-1].argmax()) + 1
    return Band(states, e, states[top], e[top] - e[0], settled)


def _checked(energy: Energy, start: Tensor, end: Tensor, via: Tensor | None) -> Tensor:
    """The corners of the first band, flattened."""
    if not isinstance(energy, Energy):
        raise ArgumentError(f"energy is a {type(energy).__name__}, expected an energy")
    if not isinstance(energy.domain, Real | Bounded):
        raise DomainError(f"an elastic band bends through continuous events, but x lives on {energy.domain}")
    middle = [] if via is None else [via]
    for name, event in (("start", start), ("end", end)):
        if not isinstance(event, Tensor) or tuple(event.shape) != tuple(energy.domain.shape):
            shape = tuple(event.shape) if isinstance(event, Tensor) else type(event).__name__
            raise ArgumentError(f"{name} is {shape}, expected one event of shape {tuple(energy.domain.shape)}")
    if via is not None:
        energy.domain.check_shape(via, "via")
    rows = torch.cat([start[None], *middle, end[None]])
    check_rows(energy, rows, "the corners of the band")
    if torch.equal(start, end):
        raise ArgumentError("start and end are the same event; there is no way to look for")
    return rows.detach().flatten(1)


def _evenly(corners: Tensor, count: int) -> Tensor:
    """Points at equal distances along the line through the corners."""
    along = torch.cat([corners.new_zeros(1), (corners[1:] - corners[:-1]).norm(dim=1).cumsum(0)])
    at = torch.linspace(0, 1, count, dtype=corners.dtype, device=corners.device) * along[-1]
    right = torch.searchsorted(along, at).clamp(1, len(corners) - 1)
    length = along[right] - along[right - 1]  # 0 where a corner is named twice
    share = (at - along[right - 1]) / length.clamp(min=torch.finfo(corners.dtype).tiny)
    return torch.lerp(corners[right - 1], corners[right], share[:, None])


def _look(energy: Energy, x: Tensor) -> tuple[Tensor, Tensor]:
    """Energies and scores of the images."""
    e, s = energy.energy_and_score(x.view(-1, *energy.domain.shape))
    if not bool(torch.isfinite(e).all()):
        raise DivergenceError("the band came to states whose energy is not finite; use a smaller spring or more images")
    return e.detach(), s.detach().flatten(1)


def _tangents(x: Tensor, e: Tensor) -> Tensor:
    """Towards the higher neighbor; at tops and bottoms of the band a mean, weighted by how much the neighbors differ."""
    ahead, behind = x[2:] - x[1:-1], x[1:-1] - x[:-2]
    up, down = (e[2:] - e[1:-1])[:, None], (e[:-2] - e[1:-1])[:, None]
    most, least = torch.maximum(up.abs(), down.abs()), torch.minimum(up.abs(), down.abs())
    higher = up > down  # the one ahead is the higher of the two
    mean = torch.where(higher, ahead * most + behind * least, ahead * least + behind * most)
    tangent = torch.where((up > 0) & (down < 0), ahead, torch.where((up < 0) & (down > 0), behind, mean))
    return tangent / tangent.norm(dim=1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def _forces(x: Tensor, e: Tensor, s: Tensor, spring: Tensor, *, climb: bool) -> Tensor:
    """On the images between the ends."""
    tangent, slope = _tangents(x, e), s[1:-1]
    along = (slope * tangent).sum(1, keepdim=True) * tangent
    stretch = (x[2:] - x[1:-1]).norm(dim=1) - (x[1:-1] - x[:-2]).norm(dim=1)
    force = slope - along + spring * stretch[:, None] * tangent
    top = int(e[1:-1].argmax())
    if climb and e[top + 1] > e[[0, -1]].max():  # else there is no pass between the ends
        force[top] = slope[top] - 2 * along[top]
    return force


def _held(force: Tensor, x: Tensor, domain: Domain) -> Tensor:
    """Without what presses images against walls."""
    if not isinstance(domain, Bounded):
        return force
    low, high = (wall.expand(domain.shape).flatten() for wall in domain.bounds(x))
    return force.masked_fill((x <= low) & (force < 0) | (x >= high) & (force > 0), 0.0)


class _Fire:
    """Moves that gain speed downhill, and stop at once where they lead uphill."""

    def __init__(self, x: Tensor, length: float, force: float) -> None:
        self.x, self.v = x.clone(), torch.zeros_like(x[1:-1])
        self.dt = 0.1 * (length / max(force, torch.finfo(x.dtype).tiny)) ** 0.5
        self.longest, self.reach = 10 * self.dt, 0.5 * length
        self.mix, self.good = 0.1, 0

    def move(self, force: Tensor, walls: Callable[[Tensor], Tensor]) -> None:
        """One step of all images between the ends."""
        if float((force * self.v).sum()) > 0:
            self.good += 1
            self.v = (1 - self.mix) * self.v + self.mix * force * (self.v.norm() / force.norm())
            if self.good > 5:
                self.dt, self.mix = min(1.1 * self.dt, self.longest), 0.99 * self.mix
        else:
            self.v, self.dt, self.mix, self.good = torch.zeros_like(self.v), 0.5 * self.dt, 0.1, 0
        self.v = self.v + self.dt * force
        step = self.dt * self.v
        step = step * (self.reach / step.norm(dim=1, keepdim=True).clamp(min=self.reach))  # no image jumps over another
        self.x[1:-1] = walls(self.x[1:-1] + step)
