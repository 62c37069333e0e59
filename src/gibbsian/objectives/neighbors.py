"""What pseudo-likelihood, ratio matching and minimum probability flow share: energies of one-unit changes.

For binary units a neighbor of x has one bit flipped; for categorical ones, one unit set to another class.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gibbsian.domains import Binary, Categorical, Discrete, Domain, Spin
from gibbsian.errors import ArgumentError, DomainError, check_count
from gibbsian.objectives.base import Batch, Loss, Objective, observed
from gibbsian.objectives.common import accumulated, finish, need_energy
from gibbsian.random import require_generator

BLOCK = 1 << 24  # numbers in one block of neighbors: 64 MiB in single precision


def unit_count(domain: Domain) -> int:
    """Units of a discrete domain: bits, spins or one-hot groups."""
    return domain.units if isinstance(domain, Categorical) else domain.numel


def neighbors(domain: Domain, x: Tensor, units: Tensor) -> Tensor:
    """Copies of x with one unit changed: `units` is `(count, batch)`, which unit of which row changes.

    Shape `(count, others, batch, *event)`, `others` running over the other values of the unit.
    """
    n, count = len(x), len(units)
    if isinstance(domain, Categorical):
        k = domain.classes
        groups = x.reshape(n, -1, k)
        index = units[:, None, :, None, None].expand(count, k - 1, n, 1, k)
        own = groups.gather(1, units.T[:, :, None].expand(n, count, k)).transpose(0, 1)  # (count, batch, k)
        changed = torch.stack([own.roll(shift, -1) for shift in range(1, k)], 1)
        out = groups.expand(count, k - 1, *groups.shape).clone()
        return out.scatter_(3, index, changed.unsqueeze(3)).reshape(count, k - 1, *x.shape)
    low = domain.low  # type: ignore[attr-defined]
    flat = x.flatten(1)
    flipped = (1 + low) - flat.gather(1, units.T).T  # (count, batch)
    out = flat.expand(count, *flat.shape).clone()
    return out.scatter_(2, units[:, :, None], flipped[:, :, None]).reshape(count, 1, *x.shape)


@dataclass(frozen=True)
class NeighborObjective(Objective):
    """Σ over units of a function of the gaps E(x) - E(x') to the neighbors x' that differ in that unit."""

    sites: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        for name in ("sites", "chunk"):
            if getattr(self, name) is not None:
                check_count(self, name, getattr(self, name))

    @abstractmethod
    def term(self, gaps: Tensor) -> Tensor:
        """The contribution of each unit, `(count, batch)`, from gaps `(count, others, batch)`."""

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        need_energy(self, energy)
        if not isinstance(energy.domain, Binary | Spin | Categorical):
            raise DomainError(
                f"{type(self).__name__} compares states that differ in one discrete unit, but this energy "
                f"lives on {energy.domain}; for continuous data use a score-matching objective"
            )
        units = unit_count(energy.domain)
        if self.sites is not None and self.sites > units:
            raise ArgumentError(f"{type(self).__name__}(sites={self.sites}): {energy.domain} has {units} units")

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        x = observed(batch)
        domain: Discrete = energy.domain
        total = unit_count(domain)
        if self.sites is None:
            units = torch.arange(total, device=x.device)[:, None].expand(total, len(x))
        else:
            require_generator(generator, x.device)
            order = torch.rand(len(x), total, generator=generator, device=x.device).argsort(1)
            units = order[:, : self.sites].T
        scale = total / len(units) / len(x)
        others = domain.classes - 1 if isinstance(domain, Categorical) else 1
        size = self.chunk or max(1, BLOCK // (x.numel() * others))
        at_data: list[Tensor] = []

        def part(first: int) -> Tensor:
            near = neighbors(domain, x, units[first : first + size])
            energies = energy(torch.cat([x, near.flatten(0, 2)]))
            own = energies[: len(x)]
            at_data.append(own.detach())
            return self.term(own - energies[len(x) :].reshape(near.shape[:3])).sum() * scale

        value, gradients = accumulated([partial(part, i) for i in range(0, len(units), size)], energy)
        return finish(self, value, state, {"energy_data": at_data[0].mean()}, gradients=gradients)
