"""Cluster updates: equal neighbors are bound together at random and move as one.

    p(x, bonds) ∝ Π_e [e^{K_e}·1[bound, xᵢ = xⱼ](1 - e^{-K_e}) + 1[free]] e^{Σᵢ hᵢ(xᵢ)}        (Edwards & Sokal 1988)

whose sum over the bonds is the machine: given x, equal neighbors are bound with probability 1 - e^{-K}; given the bonds, every
cluster has one value a, with probability ∝ exp Σ_{i in cluster} hᵢ(a).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import Bonds, ClusterModel, require
from gibbsian.domains import Binary, Categorical, Domain, Spin
from gibbsian.errors import CapabilityError
from gibbsian.graphs import joined
from gibbsian.kernels.base import Info, Kernel
from gibbsian.kernels.gibbs import movable, site_count
from gibbsian.random import uniforms
from gibbsian.units import pick


class ClusterState(NamedTuple):
    """Positions, and the pairs that may be bound."""

    x: Tensor
    bonds: Bonds
    clamp: Tensor | None = None


class ClusterInputs(NamedTuple):
    """One uniform for every pair and one for every unit, as many as there can be clusters."""

    bond: Tensor
    value: Tensor


def values_of(domain: Domain, x: Tensor) -> Tensor:
    """The value of every unit, from 0 on: `(chains, sites)`."""
    return x.flatten(1, -2).argmax(-1) if isinstance(domain, Categorical) else (x.flatten(1) > 0).long()


def events_of(domain: Domain, values: Tensor, x: Tensor) -> Tensor:
    """Events like x from values of their units."""
    if isinstance(domain, Categorical):
        return torch.nn.functional.one_hot(values, domain.classes).to(x.dtype).reshape(x.shape)
    low = -1 if isinstance(domain, Spin) else 0
    return (values * (1 - low) + low).to(x.dtype).reshape(x.shape)


class Clusters(Kernel):
    """What both share: machines of pairs that like to be equal, in a field or not."""

    domains: ClassVar[tuple[type[Domain], ...]] = (Binary, Spin, Categorical)
    unroll: ClassVar[int] = 1

    def check(self, energy: Any) -> None:
        super().check(energy)
        name = type(self).__name__
        advice = "such as models.Ising, or on_graph of it and of models.Potts; use kernels.Gibbs"
        bonds = require(energy, ClusterModel, name, advice).cluster_bonds()
        if bool((bonds.strength < 0).any()):
            e = int((bonds.strength < 0).nonzero()[0])
            i, j = bonds.edges[:, e].tolist()
            raise CapabilityError(
                f"{name} is for attractive machines, but the coupling between sites {i} and {j} is negative; use "
                "kernels.Gibbs, or flip every other site of an antiferromagnet without frustration"
            )

    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> ClusterState:
        return ClusterState(x, energy.cluster_bonds(), clamp)


@dataclass(frozen=True)
class SwendsenWang(Clusters):
    """Swendsen-Wang: all clusters at once, each with a new value of its own.

    For attractive Ising and Potts models, in any field; near the critical point it decorrelates in a few steps where
    single-site moves need thousands. Strong fields that disagree with the couplings make it no better than those. Clamped
    units keep their values, and so do clusters that hold one. Always accepts.

    Reference: Swendsen & Wang 1987; Edwards & Sokal 1988.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> lattice = gb.models.Ising((16, 16), coupling=0.44)
    >>> x = lattice.domain.sample(4, generator=g)
    >>> gb.sample(lattice, SwendsenWang(), x, steps=10, generator=g).samples.shape
    torch.Size([10, 4, 16, 16])
    """

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> ClusterInputs:
        pairs, sites = energy.cluster_bonds().edges.shape[1], site_count(energy.domain)
        u = uniforms(steps, len(x) * (pairs + sites), generator, dtype=x.dtype, device=x.device)
        bond, value = u.split([len(x) * pairs, len(x) * sites], 1)
        return ClusterInputs(bond.unflatten(1, (len(x), pairs)), value)

    def step(self, energy: Any, state: ClusterState, inputs: ClusterInputs) -> tuple[ClusterState, Info]:
        x, (edges, strength, field), clamp = state
        domain, values = energy.domain, values_of(energy.domain, x)
        chains, n = values.shape
        equal = values.index_select(1, edges[0]) == values.index_select(1, edges[1])
        row, pair = (equal & (inputs.bond < -torch.expm1(-strength))).nonzero(as_tuple=True)
        ends = edges.index_select(1, pair) + n * row
        cluster = joined(ends[0], ends[1], chains * n)
        kinds = domain.classes if isinstance(domain, Categorical) else 2
        if field is None:
            new = (inputs.value * kinds).long().clamp_(max=kinds - 1)
        else:
            total = field.new_zeros(chains * n, kinds).index_add_(0, cluster, field.repeat(chains, 1))
            new = pick(torch.softmax(total, 1), inputs.value)
        new = new.index_select(0, cluster).reshape(chains, n)
        free = movable(domain, x, clamp)
        if free is not None:
            held = torch.zeros(chains * n, dtype=torch.bool, device=x.device)
            held[cluster[~free.flatten()]] = True
            new = torch.where(held[cluster].reshape(chains, n), values, new)
        fine = torch.ones(chains, dtype=x.dtype, device=x.device)
        return state._replace(x=events_of(domain, new, x)), Info(fine, torch.zeros_like(fine, dtype=torch.bool))


class WolffState(NamedTuple):
    """Positions, and for every unit its neighbors: where they begin in the list, who they are, and K of each."""

    x: Tensor
    start: Tensor
    near: Tensor
    probability: Tensor
    field: Tensor | None
    clamp: Tensor | None = None


class WolffInputs(NamedTuple):
    """Each step's own generator: how much it draws depends on the clusters."""

    generator: Any


@dataclass(frozen=True)
class Wolff(Clusters):
    """Wolff: one cluster, grown from a random unit, takes another value.

    Large clusters are moved more often than by `SwendsenWang`, so at and below the critical temperature its steps are worth a
    little more; but a cluster grows one generation after the other, in many small operations, so that in time `SwendsenWang` is
    usually ahead unless clusters are few and the graph is huge. In a field the move is accepted with min(1, exp Δh).
    Clusters that reach a clamped unit do not move.

    Reference: Wolff 1989.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> lattice = gb.models.Ising((16, 16), coupling=0.44)
    >>> x = lattice.domain.sample(4, generator=g)
    >>> gb.sample(lattice, Wolff(), x, steps=10, generator=g).samples.shape
    torch.Size([10, 4, 16, 16])
    """

    draws_in_steps: ClassVar[str] = "Wolff draws as its cluster grows; SwendsenWang knows its numbers before"

    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> WolffState:  # type: ignore[override]
        (i, j), strength, field = energy.cluster_bonds()
        n = site_count(energy.domain)
        here, there = torch.cat([i, j]), torch.cat([j, i])
        order = here.argsort(stable=True)
        start = torch.zeros(n + 1, dtype=torch.long, device=x.device)
        start[1:] = torch.bincount(here, minlength=n).cumsum(0)
        return WolffState(x, start, there[order], -torch.expm1(-strength).repeat(2)[order], field, clamp)

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> Any:
        seeds = torch.randint(1 << 62, (steps,), generator=generator, device=x.device).tolist()
        return WolffInputs([torch.Generator(x.device).manual_seed(seed) for seed in seeds])

    def step(self, energy: Any, state: WolffState, inputs: WolffInputs) -> tuple[WolffState, Info]:
        generator = inputs.generator
        x, domain = state.x, energy.domain
        values = values_of(domain, x)
        chains, n = values.shape

        def uniform(count: int) -> Tensor:
            return torch.rand(count, generator=generator, dtype=x.dtype, device=x.device)

        seed = (uniform(chains) * n).long().clamp_(max=n - 1)
        kinds = domain.classes if isinstance(domain, Categorical) else 2
        shift = 1 + (uniform(chains) * (kinds - 1)).long().clamp_(max=kinds - 2)
        inside = _grown(state, values, seed, uniform)
        new = torch.where(inside, (values + shift[:, None]) % kinds, values)
        ratio = torch.zeros(chains, dtype=x.dtype, device=x.device)
        if state.field is not None:
            sites = torch.arange(n, device=x.device)
            ratio = (state.field[sites, new] - state.field[sites, values]).sum(1)
        free = movable(domain, x, state.clamp)
        if free is not None:
            ratio = ratio.masked_fill((inside & ~free).any(1), -torch.inf)
        accepted = uniform(chains).log() < ratio
        values = torch.where(accepted[:, None], new, values)
        info = Info(ratio.clamp(max=0).exp(), torch.isnan(ratio))
        return state._replace(x=events_of(domain, values, x)), info


def _grown(state: WolffState, values: Tensor, seed: Tensor, uniform: Any) -> Tensor:
    """The units in the cluster around one unit of every chain: neighbors of equal value join with probability 1 - e^{-K}, once for
    every pair."""
    chains, n = values.shape
    flat, inside = values.flatten(), torch.zeros(chains * n, dtype=torch.bool, device=values.device)
    frontier = seed + n * torch.arange(chains, device=values.device)
    degree = state.start.diff()
    while len(frontier):
        inside[frontier] = True
        unit = frontier % n
        count = degree[unit]
        which = torch.repeat_interleave(torch.arange(len(unit), device=values.device), count)
        within = torch.arange(len(which), device=values.device) - (count.cumsum(0) - count)[which]
        entry = state.start[unit][which] + within
        other = state.near[entry] + (frontier - unit)[which]
        joins = (flat[other] == flat[frontier][which]) & ~inside[other]
        other, entry = other[joins], entry[joins]
        frontier = torch.unique(other[uniform(len(other)) < state.probability[entry]])
    return inside.reshape(chains, n)
