"""Gibbs sampling: by blocks and colors where a model knows its conditionals, by sites for any discrete energy.

xᵢ ~ p(xᵢ | rest) ∝ exp(-E(x))
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import GibbsModel, SiteModel
from gibbsian.domains import Binary, Categorical, Discrete, Domain, Spin
from gibbsian.errors import CapabilityError, check_choice
from gibbsian.kernels.base import Info, Kernel
from gibbsian.kernels.langevin import Bare, Positions
from gibbsian.random import uniforms
from gibbsian.units import pick


@dataclass(frozen=True)
class Gibbs(Bare):
    """Gibbs sampling with the model's own exact conditionals: every block is resampled once a step.

    Two alternating blocks for an RBM, even and odd layers for a deep machine, colors for a lattice, one site
    after the other for a general Boltzmann machine. Always accepts. Entries that are clamped keep their value
    and everything else is drawn from its conditional: this completes partial examples. For energies without
    known conditionals use `SiteGibbs`, `GibbsWithGradients` or `DiscreteLangevin`.

    Reference: Geman & Geman 1984.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> trace = gb.sample(gb.models.RBM(6, 3), Gibbs(), torch.zeros(8, 6), steps=20, generator=g)
    >>> trace.samples.shape
    torch.Size([20, 8, 6])
    """

    domains: ClassVar[tuple[type[Domain], ...]] = (Domain,)

    def check(self, energy: Any) -> None:
        super().check(energy)
        if not isinstance(energy, GibbsModel):
            discrete = isinstance(energy.domain, Discrete)
            other = "kernels.SiteGibbs for any discrete energy" if discrete else "kernels.MALA, HMC or NUTS"
            raise CapabilityError(
                f"Gibbs needs exact conditionals, which {type(energy).__name__} does not know; use {other}"
            )

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> Any:
        return energy.gibbs_noise(x, steps, generator)

    def step(self, energy: Any, state: Positions, inputs: Any) -> tuple[Positions, Info]:
        x = energy.gibbs_sweep(state.x, inputs, state.clamp)
        finite = torch.isfinite(x.flatten(1).sum(1))  # one pass: a sum is finite where all are
        return Positions(x, state.clamp), Info(torch.ones_like(finite, dtype=x.dtype), ~finite)


class SiteState(NamedTuple):
    """Positions, and their energies unless the model gives conditionals without them."""

    x: Tensor
    energy: Tensor | None
    clamp: Tensor | None = None


class SiteInputs(NamedTuple):
    """One uniform a site for the new value, and for a random scan one a site for which site comes next."""

    value: Tensor
    which: Tensor


def site_count(domain: Domain) -> int:
    """Units that are updated one at a time."""
    return domain.units if isinstance(domain, Categorical) else domain.numel


def site_view(x: Tensor, domain: Domain) -> Tensor:
    """x as `(chains, sites)`, or `(chains, sites, classes)` for categorical units."""
    return x.flatten(1, -2) if isinstance(domain, Categorical) else x.flatten(1)


def movable(domain: Domain, x: Tensor, clamp: Tensor | None) -> Tensor | None:
    """Which sites `(chains, sites)` the clamp leaves free; None for all."""
    if clamp is None:
        return None
    free = site_view((~clamp).expand(x.shape), domain)
    return free[..., 0] if isinstance(domain, Categorical) else free


def flipped(domain: Domain, x: Tensor) -> Tensor:
    """Two-valued units at their other value."""
    return -x if isinstance(domain, Spin) else 1 - x


class _Update(NamedTuple):
    """Of every chain the site that is updated, its place, a uniform for its value, and whether it may move."""

    site: int | Tensor
    at: Any
    u: Tensor
    may: Tensor | None


@dataclass(frozen=True)
class SiteGibbs(Kernel):
    """Gibbs sampling one site after the other, for any energy over {0, 1}, ±1 or categorical units.

    A step is one sweep: as many single-site updates as there are sites. Conditionals come from the model
    where it knows them (`SiteModel`), otherwise from energy differences, one batch of energies per site and
    alternative value; the energy need not be differentiable. Sweeps in a fixed order mix faster than random
    ones but are not reversible. With many sites and a differentiable energy prefer `GibbsWithGradients`.

    Reference: Geman & Geman 1984.

    Args:
        scan: "systematic", every site in order, or "random", sites drawn with replacement, another for each chain.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> parity = gb.as_energy(lambda x: 2 * (x.sum(-1) % 2), gb.domains.Binary(4))
    >>> trace = gb.sample(parity, SiteGibbs(), torch.zeros(500, 4), steps=30, burn_in=20, generator=g)
    >>> bool((trace.samples.sum(-1) % 2).mean() < 0.2)  # odd states have probability 0.12
    True
    """

    scan: str = "systematic"
    domains: ClassVar[tuple[type[Domain], ...]] = (Binary, Spin, Categorical)
    unroll: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_choice(self, "scan", self.scan, ("systematic", "random"))

    def init(self, energy: Any, x: Tensor, clamp: Tensor | None = None) -> SiteState:
        if isinstance(energy, SiteModel):
            return SiteState(x, None, clamp)
        with torch.no_grad():
            return SiteState(x, energy(x), clamp)

    def energies(self, state: SiteState) -> Tensor | None:
        return state.energy

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> SiteInputs:
        width, sites = (2 if self.scan == "random" else 1), site_count(energy.domain)
        u = uniforms(steps, width * len(x) * sites, generator, dtype=x.dtype, device=x.device)
        u = u.reshape(steps, width, len(x), sites)
        return SiteInputs(u[:, 0], u[:, -1])

    def step(self, energy: Any, state: SiteState, inputs: SiteInputs) -> tuple[SiteState, Info]:
        x, e, clamp = state
        domain, rows = energy.domain, torch.arange(len(x), device=x.device)
        update = _categorical_update if isinstance(domain, Categorical) else _two_valued_update
        units = site_view(x, domain).clone(memory_format=torch.contiguous_format)
        free = movable(domain, x, clamp)
        lost = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        count = inputs.value.shape[1]
        for k in range(count):
            site: int | Tensor = k
            at: Any = (slice(None), k)
            if self.scan == "random":
                site = (inputs.which[:, k] * count).long().clamp_(max=count - 1)
                at = (rows, site)
            here = _Update(site, at, inputs.value[:, k], None if free is None else free[at])
            e, bad = update(energy, units, e, here, x.shape)
            lost |= bad
        return SiteState(units.reshape(x.shape), e, clamp), Info(torch.ones_like(rows, dtype=x.dtype), lost)


def _two_valued_update(
    energy: Any, units: Tensor, e: Tensor | None, here: _Update, shape: torch.Size
) -> tuple[Tensor | None, Tensor]:
    """Resample one site of every chain in place: (energies after it, chains where the conditional is undefined)."""
    site, at, u, may = here
    old = units[at].clone()
    other = flipped(energy.domain, old)
    e_other: Any = None
    if e is None:
        p_one = torch.sigmoid(energy.site_logits(units.reshape(shape), site))
        bad = torch.isnan(p_one)
    else:
        units[at] = other
        e_other = energy(units.reshape(shape))
        p_one = torch.sigmoid(torch.where(old == 1, e_other - e, e - e_other))
        bad = torch.isnan(p_one) | (e_other == -torch.inf)
    stay = bad if may is None else bad | ~may
    flips = ((u < p_one) != (old == 1)) & ~stay
    units[at] = torch.where(flips, other, old)
    return None if e is None else torch.where(flips, e_other, e), bad


def _categorical_update(
    energy: Any, units: Tensor, e: Tensor | None, here: _Update, shape: torch.Size
) -> tuple[Tensor | None, Tensor]:
    """The same for one categorical site: the model's conditional, or the energies of all its classes in one batch."""
    site, at, u, may = here
    old, classes = units[at].clone(), units.shape[-1]
    options = torch.eye(classes, dtype=units.dtype, device=units.device)
    if e is None:
        energies = -energy.site_logits(units.reshape(shape), site)
    else:
        candidates = units.repeat(classes, 1, 1, 1)
        candidates[(slice(None), *at)] = options[:, None].expand(-1, len(units), -1)
        energies = energy(candidates.reshape(-1, *shape[1:])).reshape(classes, -1).T
    p = torch.softmax(-energies, 1)
    bad = torch.isnan(p).any(1)
    stay = bad if may is None else bad | ~may
    index = pick(torch.where(bad[:, None], torch.ones_like(p), p), u)
    units[at] = torch.where(stay[:, None], old, options[index])
    chosen = energies.gather(1, index[:, None]).squeeze(1)
    return None if e is None else torch.where(stay, e, chosen), bad
