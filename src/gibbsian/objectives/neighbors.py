"""Pseudo-likelihood, ratio matching and minimum probability flow: energies of states that differ in one unit."""

import functools
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from gibbsian.capabilities import FieldModel, GapModel, NeighborModel
from gibbsian.derivatives.known import with_gradients
from gibbsian.domains import Binary, Categorical, Discrete, Domain, Spin
from gibbsian.errors import ArgumentError, DomainError, hold_counts
from gibbsian.fast.logistic import mean_and_softplus
from gibbsian.objectives.base import Batch, Loss, Step, SteppedObjective, accumulated, finish, observed
from gibbsian.random import require_generator

BLOCK = 1 << 24  # numbers in one block of neighbors: 64 MiB in single precision


def unit_count(domain: Domain) -> int:
    """Units of a discrete domain: bits, spins or one-hot groups."""
    return domain.units if isinstance(domain, Categorical) else domain.numel


def neighbors(domain: Domain, x: Tensor, units: Tensor) -> Tensor:
    """Copies of x with one bit flipped or unit set to another class; `units` `(count, batch)` says which of which row.

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


@functools.cache
def _knows(kind: type) -> tuple[bool, bool, bool]:
    """Whether a class of energies has the methods of `FieldModel`, `GapModel` and `NeighborModel`: asked at every step, and slow to
    find out."""
    return issubclass(kind, FieldModel), issubclass(kind, GapModel), issubclass(kind, NeighborModel)


@dataclass(frozen=True)
class NeighborObjective(SteppedObjective):
    """Σ over units of a function of the gaps E(x) - E(x') to the neighbors x' that differ in that unit."""

    needs_energy: ClassVar[bool] = True
    function: ClassVar[str] = ""  # of the gaps, by the name that machines know it; none where they do not

    sites: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        for name in ("sites", "chunk"):
            if getattr(self, name) is not None:
                hold_counts(self, name)

    @abstractmethod
    def term(self, gaps: Tensor) -> Tensor:
        """The contribution of each unit, `(count, batch)`, from gaps `(count, others, batch)`."""

    @abstractmethod
    def closed(self, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """The contribution of each unit, `(batch, units)`, and its derivative in every gap. Gaps are `(batch, units)`, or
        `(batch, units, classes)` with 0 at the present class."""

    def whole(self, gaps: Tensor) -> tuple[Tensor | float, Tensor]:
        """The sum of all contributions, and the derivatives; the gaps may be written over."""
        terms, slope = self.closed(gaps)
        return terms.sum(), slope

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        if not isinstance(energy.domain, Binary | Spin | Categorical):
            raise DomainError(
                f"{type(self).__name__} compares states that differ in one discrete unit, but this energy "
                f"lives on {energy.domain}; for continuous data use a score-matching objective"
            )
        units = unit_count(energy.domain)
        if self.sites is not None and self.sites > units:
            raise ArgumentError(f"{type(self).__name__}(sites={self.sites}): {energy.domain} has {units} units")

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        x = observed(batch)
        units = self._drawn(x, unit_count(energy.domain), generator)
        found = self._known(energy, x, units) if self.chunk is None else None
        return (
            self._in_general(energy, x, units, state)
            if found is None
            else self._finished(energy, x, *found, state, step)
        )

    def _known(self, energy: Any, x: Tensor, units: Tensor | None) -> tuple[Tensor, dict[Tensor, Tensor]] | None:
        """Value and gradients by what the machine knows of neighbors; None where it knows nothing."""
        fields_known, gaps_known, sums_known = _knows(type(energy))  # type: ignore[arg-type]
        if sums_known and self.function and units is None:
            found: tuple[Tensor, dict[Tensor, Tensor]] | None = energy.neighbor_sums(x, self.function)
            if found is not None:
                return found
        with torch.no_grad():
            fields = energy.conditional_fields(x) if fields_known else None
            if fields is not None:
                return self._in_closed_form(energy, x, fields, units)
            gaps = energy.neighbor_gaps(x, units) if gaps_known else None
            return None if gaps is None else self._by_gaps(energy, x, gaps, units)

    def _drawn(self, x: Tensor, total: int, generator: torch.Generator) -> Tensor | None:
        """Units drawn for every row, `(sites, batch)`; None for all of them."""
        if self.sites is None:
            return None
        require_generator(generator, x.device)
        return torch.rand(len(x), total, generator=generator, device=x.device).argsort(1)[:, : self.sites].T

    def _scale(self, x: Tensor, domain: Discrete) -> float:
        """Of the sum over rows and units, so that drawn units stand for all."""
        return (1 if self.sites is None else unit_count(domain) / self.sites) / len(x)

    def _in_general(self, energy: Any, x: Tensor, units: Tensor | None, state: Any) -> Loss:
        """By the energies of all neighbors, some units at a time."""
        domain: Discrete = energy.domain
        total, scale = unit_count(domain), self._scale(x, domain)
        chosen = torch.arange(total, device=x.device)[:, None].expand(total, len(x)) if units is None else units
        others = domain.classes - 1 if isinstance(domain, Categorical) else 1
        size = self.chunk or max(1, BLOCK // (x.numel() * others))
        at_data: list[Tensor] = []

        def part(first: int) -> Tensor:
            near = neighbors(domain, x, chosen[first : first + size])
            energies = energy(torch.cat([x, near.flatten(0, 2)]))
            own = energies[: len(x)]
            at_data.append(own.detach())
            return self.term(own - energies[len(x) :].reshape(near.shape[:3])).sum() * scale

        value, gradients = accumulated([partial(part, i) for i in range(0, len(chosen), size)], energy)
        return finish(self, value, state, {"energy_data": at_data[0].mean()}, gradients=gradients)

    def _by_gaps(
        self, energy: Any, x: Tensor, gaps: Tensor, units: Tensor | None
    ) -> tuple[Tensor, dict[Tensor, Tensor]]:
        """From the gaps of all units, or of the drawn ones, whose gradients the machine knows."""
        scale = self._scale(x, energy.domain)
        total, weight = self.whole(gaps)
        return _number(total, gaps) * scale, energy.gap_gradients(x, weight.mul_(scale), units)

    def _in_closed_form(
        self, energy: Any, x: Tensor, fields: Tensor, units: Tensor | None
    ) -> tuple[Tensor, dict[Tensor, Tensor]]:
        """All gaps from the fields u = -∂E/∂x, and the derivative in u, from which the machine knows its gradients."""
        domain: Discrete = energy.domain
        scale = self._scale(x, domain)
        if isinstance(domain, Categorical):
            own, fields, factor = x.flatten(1, -2), fields.flatten(1, -2), 1.0
            gaps = fields - (own * fields).sum(-1, keepdim=True)
        else:  # x' - x = factor · own
            own, factor = (x.flatten(1), -2.0) if isinstance(domain, Spin) else ((1 - 2 * x).flatten(1), 1.0)
            gaps = own * fields.flatten(1)
            gaps = gaps if factor == 1 else gaps.mul_(factor)
        if units is None:
            total, weight = self.whole(gaps)
        else:
            terms, weight = self.closed(gaps)
            chosen = torch.zeros_like(terms).scatter_(1, units.T, 1.0)
            total, weight = (terms * chosen).sum(), weight * chosen.reshape(*chosen.shape, *[1] * (weight.dim() - 2))
        if isinstance(domain, Categorical):
            weight = torch.addcmul(weight, own, weight.sum(-1, keepdim=True), value=-1)
        else:
            weight.mul_(own)
        gradients = energy.field_gradients(x, weight.mul_(factor * scale).reshape(x.shape))
        return _number(total, fields) * scale, gradients

    def _finished(
        self, energy: Any, x: Tensor, value: Tensor, gradients: dict[Tensor, Tensor], state: Any, step: Step
    ) -> Loss:
        metrics = {}
        if step.watched:
            with torch.no_grad():
                metrics["energy_data"] = energy(x).mean()
        value, known = with_gradients(value, list(gradients), list(gradients.values()))
        return finish(self, value, state, metrics, gradients=known)


def _number(total: Tensor | float, like: Tensor) -> Tensor:
    return total if isinstance(total, Tensor) else like.new_tensor(total)


@dataclass(frozen=True)
class PseudoLikelihood(NeighborObjective):
    """-E Σᵢ log p(xᵢ | x₋ᵢ); for two-valued units -Σᵢ log σ(E(x̄ᵢ) - E(x)), x̄ᵢ with unit i flipped.

    Consistent without a partition function or a sampler, for one energy evaluation a unit. Categorical units
    sum over all their values. Less efficient than likelihood where units depend strongly on each other.

    Reference: Besag 1975; Hyvärinen 2006 for Boltzmann machines.

    Args:
        sites: units drawn at random for each row, the sum scaled up; by default all of them.
        chunk: units changed at a time, which bounds the memory; by default as many as fit in 2²⁴ numbers. In
            more than one piece the gradient reaches the parameters that the energy has registered.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.as_energy(lambda x: 0 * x.sum(-1), gb.domains.Binary(3))
    >>> PseudoLikelihood()(energy, torch.ones(5, 3), (), g).value  # 3 log 2
    tensor(2.0794)
    """

    function: ClassVar[str] = "pseudo-likelihood"

    def term(self, gaps: Tensor) -> Tensor:
        return torch.logsumexp(torch.cat([torch.zeros_like(gaps[:, :1]), gaps], 1), 1)

    def closed(self, gaps: Tensor) -> tuple[Tensor, Tensor]:
        if gaps.dim() == 2:
            return F.softplus(gaps), torch.sigmoid(gaps)
        return torch.logsumexp(gaps, -1), torch.softmax(gaps, -1)

    def whole(self, gaps: Tensor) -> tuple[Tensor | float, Tensor]:
        if gaps.dim() == 2:
            slope, total = mean_and_softplus(gaps)
            return total, slope
        top = gaps.amax(-1, keepdim=True)
        e = gaps.sub_(top).exp_()  # one pass of exponentials for both
        z = e.sum(-1, keepdim=True)
        return z.log().add_(top).sum(), e.div_(z)


@dataclass(frozen=True)
class RatioMatching(NeighborObjective):
    """E Σᵢ σ(E(x) - E(x̄ᵢ))², x̄ᵢ with bit i flipped: match the ratios p(x)/p(x̄ᵢ) through g(u) = 1/(1 + u).

    Consistent for two-valued units, with bounded terms, so one strange datum cannot dominate, unlike
    `MinimumProbabilityFlow`. One energy evaluation a unit.

    Reference: Hyvärinen 2007.

    Args:
        sites, chunk: as in `PseudoLikelihood`.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.as_energy(lambda x: 0 * x.sum(-1), gb.domains.Binary(3))
    >>> RatioMatching()(energy, torch.ones(5, 3), (), g).value  # 3 · ¼
    tensor(0.7500)
    """

    function: ClassVar[str] = "ratio matching"

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        if isinstance(energy.domain, Categorical):
            raise DomainError(
                f"RatioMatching is for two-valued units, but this energy lives on {energy.domain}; use "
                "PseudoLikelihood or MinimumProbabilityFlow"
            )

    def term(self, gaps: Tensor) -> Tensor:
        return torch.sigmoid(gaps).square().sum(1)

    def closed(self, gaps: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.sigmoid(gaps)
        square = p * p
        return square, torch.addcmul(square, square, p, value=-1).mul_(2)


@dataclass(frozen=True)
class MinimumProbabilityFlow(NeighborObjective):
    """E Σ_{x'} exp(½(E(x) - E(x'))) over all states x' that differ from x in one unit.

    The rate at which probability would flow out of the data under dynamics that leave the model invariant.
    Neighbors that are data themselves count too: leaving them out, as the derivation for distinct data
    points does, is inconsistent when the data are dense. The exponential makes it sensitive to outliers.

    Reference: Sohl-Dickstein, Battaglino & DeWeese 2011.

    Args:
        sites, chunk: as in `PseudoLikelihood`.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.as_energy(lambda x: 0 * x.sum(-1), gb.domains.Binary(3))
    >>> MinimumProbabilityFlow()(energy, torch.ones(5, 3), (), g).value
    tensor(3.)
    """

    function: ClassVar[str] = "probability flow"

    def term(self, gaps: Tensor) -> Tensor:
        return (0.5 * gaps).exp().sum(1)

    def closed(self, gaps: Tensor) -> tuple[Tensor, Tensor]:
        flow = (0.5 * gaps).exp()
        return flow if gaps.dim() == 2 else flow.sum(-1) - 1, 0.5 * flow
