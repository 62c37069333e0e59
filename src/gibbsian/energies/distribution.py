"""Energies from functions, networks and distributions, and distributions from energies.

p(x) = exp(-E(x)) / Z   ⇔   E(x) = -log p(x), log Z = 0
"""

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, distributions, nn
from torch.distributions import Distribution, Transform, constraints

from gibbsian.capabilities import Sampleable, require
from gibbsian.domains import Binary, Box, Categorical, Discrete, Domain, NonNegative, Real
from gibbsian.energy import Energy, FunctionEnergy, log_z_of, mixture
from gibbsian.errors import ArgumentError, DomainError, ShapeError
from gibbsian.random import check_draws, isolated, require_generator, stream


def as_energy(source: Callable[[Tensor], Tensor] | Distribution, domain: Domain | None = None) -> Energy:
    """Use any callable or `nn.Module` that maps `(batch, *event)` to `(batch,)` as an energy over `domain`, or a
    distribution as the energy -log p(x).

    A module's parameters are the energy's parameters, so it can be trained. A distribution of torch or zuko, or a zuko
    flow, knows its domain from its support; its log Z is 0 and it draws exactly, from the generator it is given.

    >>> import gibbsian as gb
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.SiLU(), torch.nn.Linear(8, 1), torch.nn.Flatten(0))
    >>> gb.as_energy(net, gb.domains.Real(2))(torch.zeros(5, 2)).shape
    torch.Size([5])
    >>> gamma = gb.as_energy(torch.distributions.Gamma(2.0, 1.0))
    >>> gamma.domain, gamma.log_z(), gamma(torch.ones(1, 1))
    (NonNegative(shape=(1,)), tensor(0.), tensor([1.]))
    """
    if isinstance(source, EnergyDistribution):
        known = source.known_log_z
        return source.energy if known is None else mixture([source.energy], [1.0], [known])  # type: ignore[list-item]
    if isinstance(source, Distribution) or is_flow(source):
        return DistributionEnergy(source, domain)
    if not callable(source):
        raise ArgumentError(
            f"as_energy takes a callable that maps a batch to energies, or a distribution, got {type(source).__name__}"
        )
    if domain is None:
        raise ArgumentError("a function does not say where x lives: as_energy(function, domains.Real(2))")
    return FunctionEnergy(source, domain)


def is_flow(source: Any) -> bool:
    """A flow of zuko: a module which is a distribution when it is called without arguments."""
    zuko = sys.modules.get("zuko.lazy")  # whoever has a flow has imported it
    return zuko is not None and isinstance(source, zuko.LazyDistribution)


class DistributionEnergy(Energy):
    """A distribution as an energy: E(x) = -log p(x), log Z = 0, with exact draws.

    Entries of a batched distribution are independent: `Normal(zeros(3), ones(3))` is a law on R³. Laws over labels
    (`Categorical`, `OneHotCategorical`) are over one-hot events, as everywhere. Outside the support the energy is +∞.
    A distribution stays on its device and in its precision; a zuko flow is a module, moves and trains. Run folders hold
    neither, since both do not say how they were made.

    Args:
        source: a distribution of torch or zuko, or a zuko flow without context.
        domain: from the support and shape of the distribution where it is left out; it may shape events anew.

    >>> g = torch.Generator().manual_seed(0)
    >>> energy = DistributionEnergy(torch.distributions.Uniform(torch.zeros(2), torch.tensor([1.0, 4.0])))
    >>> energy(torch.full((1, 2), 0.5)), energy.sample(3, generator=g).shape  # log 4
    (tensor([1.3863]), torch.Size([3, 2]))
    """

    anchor: Tensor

    def __init__(self, source: Any, domain: Domain | None = None) -> None:
        law = source() if isinstance(source, nn.Module) else source
        super().__init__(_domain_of(law, domain))
        self.source = source
        like = next(_tensors(law), torch.zeros(()))
        some = self.domain.sample(1, generator=stream(0, "anchor"), dtype=like.dtype)
        self.register_buffer("anchor", some.to(like.device), persistent=False)

    @property
    def distribution(self) -> Distribution:
        """The law, as it is now."""
        return self.source() if isinstance(self.source, nn.Module) else self.source

    def forward(self, x: Tensor) -> Tensor:
        law, inside = self.distribution, self.domain.contains(x)
        x = torch.where(inside, x, self.anchor.to(x))  # distributions refuse what lies outside their support
        if isinstance(self.domain, Categorical):  # linear in x, so that it has a gradient
            log_p = x.flatten(1) @ _unwrapped(law).logits.flatten().to(x)
        else:
            log_p = law.log_prob(x.reshape(-1, *law.batch_shape, *law.event_shape)).reshape(len(x), -1).sum(1)
        return torch.where(inside.flatten(1).all(1), -log_p, math.inf)

    def log_z(self) -> Tensor:
        """0: a distribution is normalized."""
        return self.anchor.new_zeros(())

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, *event)`; the global random state that distributions draw from stays as it is."""
        n = check_draws(n, generator, self.anchor.device)
        law = self.distribution
        with isolated(generator), torch.no_grad():
            x = law.sample(torch.Size((n,)))
        if isinstance(_unwrapped(law), distributions.Categorical):
            x = nn.functional.one_hot(x, self.domain.shape[-1]).to(self.anchor)
        return x.reshape(n, *self.domain.shape)


def _unwrapped(law: Any) -> Any:
    return _unwrapped(law.base_dist) if isinstance(law, distributions.Independent) else law


def _tensors(law: Any) -> Iterator[Tensor]:
    """Floating tensors that a distribution holds, its own and those of the distributions it is made of."""
    for value in vars(law).values():
        if isinstance(value, Tensor) and value.is_floating_point():
            yield value
        elif isinstance(value, Distribution):
            yield from _tensors(value)


# --- supports and domains -------------------------------------------------------------------------


def _support(law: Any) -> Any:
    try:
        support = law.support
    except NotImplementedError:  # a flow: x is what its transform takes
        transform = getattr(law, "transform", None)
        support = transform.domain if isinstance(transform, Transform) else None
    while isinstance(support, constraints.independent | constraints.MixtureSameFamilyConstraint):
        support = support.base_constraint
    return support


def _domain_of(law: Distribution, given: Domain | None) -> Domain:
    """The domain that is the support of a law; the one that is given must be the same up to the shape of events."""
    found = _from_support(law, given)
    if found is None and given is None:
        raise DomainError(
            f"no domain is known for {type(law).__name__}, whose support is {_support(law)}; give it with domain="
        )
    if found is not None and given is not None and found != given:
        raise DomainError(f"{type(law).__name__} lives on {found}, but domain={given} was given; leave it out")
    return found or given  # type: ignore[return-value]


def _from_support(law: Distribution, given: Domain | None) -> Domain | None:
    """The domain of a law, its events in the shape that is given where they have as many numbers."""
    plain, shape = _unwrapped(law), (*law.batch_shape, *law.event_shape)
    if isinstance(plain, distributions.Categorical | distributions.OneHotCategorical):
        return Categorical(tuple(plain.logits.shape[:-1]) or 1, plain.logits.shape[-1])
    shape = given.shape if given is not None and given.numel == math.prod(shape) else shape or (1,)
    if isinstance(plain, distributions.VonMises):
        return Box(shape, -math.pi, math.pi)  # its support says R, but it is a law of angles
    return _from_constraint(_support(law), law.batch_shape, shape)


def _from_constraint(support: Any, batch_shape: torch.Size, shape: tuple[int, ...]) -> Domain | None:
    for kind, domain in ((constraints.real, Real), (constraints.boolean, Binary)):
        if isinstance(support, type(kind)):
            return domain(shape)
    if isinstance(support, constraints.interval | constraints.half_open_interval):
        ends = (torch.as_tensor(end) for end in (support.lower_bound, support.upper_bound))
        return Box(shape, *(end.expand(batch_shape).reshape(shape) if end.dim() else end for end in ends))
    if isinstance(support, constraints.greater_than | constraints.greater_than_eq):
        return NonNegative(shape) if bool((torch.as_tensor(support.lower_bound) == 0).all()) else None
    return None


class InDomain(constraints.Constraint):
    """The support that is a domain which torch has no constraint for."""

    def __init__(self, domain: Domain) -> None:
        self.domain, self.is_discrete, self.event_dim = domain, domain.discrete, len(domain.shape)
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        return self.domain.contains(value).flatten(-self.event_dim).all(-1)


def _constraint(domain: Domain) -> constraints.Constraint:
    """The support that is a domain."""
    whole = len(domain.shape)
    if isinstance(domain, Real):
        return constraints.independent(constraints.real, whole)
    if isinstance(domain, NonNegative):
        return constraints.independent(constraints.nonnegative, whole)
    if isinstance(domain, Binary):
        return constraints.independent(constraints.boolean, whole)
    if isinstance(domain, Box):
        low, high = domain.bounds(torch.zeros(()))
        return constraints.independent(constraints.interval(low, high), whole)
    if isinstance(domain, Categorical):
        return constraints.independent(constraints.one_hot, whole - 1)
    return InDomain(domain)


# --- the other way --------------------------------------------------------------------------------


def as_distribution(
    energy: Energy, log_z: Tensor | float | None = None, *, generator: torch.Generator | None = None
) -> "EnergyDistribution":
    """An energy whose log Z is known as a `torch.distributions.Distribution`: log p(x) = -E(x) - log Z.

    For code that speaks of distributions: priors, losses, other libraries. The other way is `as_energy`.

    Args:
        energy: with `log_z()`, or give it.
        log_z: log Z, for example the value of an estimate by `gibbsian.partition`.
        generator: `sample` draws from it, where the energy draws exactly: never from the global random state.

    >>> import gibbsian as gb
    >>> law = as_distribution(gb.energies.Banana(), generator=torch.Generator().manual_seed(0))
    >>> law.log_prob(torch.zeros(3, 2)).shape, law.sample((4, 5)).shape, law.event_shape
    (torch.Size([3]), torch.Size([4, 5, 2]), torch.Size([2]))
    """
    return EnergyDistribution(energy, log_z, generator=generator)


class EnergyDistribution(Distribution):
    """exp(-E(x))/Z as a distribution over events of the energy's domain; made by `as_distribution`."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(
        self,
        energy: Energy,
        log_z: Tensor | float | None = None,
        *,
        generator: torch.Generator | None = None,
        validate_args: bool = True,  # whatever another library has made of torch's own default
    ) -> None:
        if not isinstance(energy, Energy):
            raise ArgumentError(f"as_distribution takes an energy, got a {type(energy).__name__}")
        if log_z is None:
            log_z_of(energy, "a distribution")  # raises where it is not known
        self.energy, self.known_log_z, self.generator = energy, log_z, generator
        super().__init__(event_shape=torch.Size(energy.domain.shape), validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return _constraint(self.energy.domain)

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        return isinstance(self.energy.domain, Discrete)

    def log_prob(self, value: Tensor) -> Tensor:
        """-E(x) - log Z for x `(*any, *event)`, `(*any,)`."""
        event = len(self.event_shape)
        if value.dim() < event or value.shape[value.dim() - event :] != self.event_shape:
            raise ShapeError(
                f"x has shape {tuple(value.shape)}, expected (..., {', '.join(map(str, self.event_shape))})"
            )
        if self._validate_args:
            self._validate_sample(value)
        log_z = log_z_of(self.energy, "a distribution") if self.known_log_z is None else self.known_log_z
        energy = self.energy(value.reshape(-1, *self.event_shape))
        return (-energy - log_z).to(value.dtype).reshape(value.shape[: value.dim() - event])

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Exact draws `(*sample_shape, *event)` from the generator that was given."""
        model = require(self.energy, Sampleable, "sample()", "use gibbsian.sample")
        shape = torch.Size(sample_shape)
        draws = model.sample(shape.numel(), generator=require_generator(self.generator))
        return draws.reshape(*shape, *self.event_shape)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All states of a discrete domain `(states, *event)`; at most 2^20 of them."""
        if not isinstance(self.energy.domain, Discrete):
            raise DomainError(f"{self.energy.domain} has no states to enumerate")
        return self.energy.domain.states()

    def __repr__(self) -> str:
        return f"EnergyDistribution({self.energy})"
