"""Energies, score fields, what they may know about themselves, and their algebra.

    p(x) = exp(-E(x)) / Z,   s(x) = ∇ₓ log p(x) = -∇ₓ E(x)

One object serves everything: it is trained by any objective, sampled by any kernel that fits its domain,
and given a likelihood by any estimator.

>>> import gibbsian as gb
>>> energy = gb.as_energy(lambda x: 0.5 * x.square().sum(-1), gb.domains.Real(2))
>>> energy(torch.ones(3, 2))
tensor([1., 1., 1.])
>>> hotter, both = energy / 2.0, energy + energy
>>> both.score(torch.ones(1, 2))
tensor([[-2., -2.]])
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from gibbsian.capabilities import Estimate, Jet, Normalized, PicturedModel, Sampleable, require
from gibbsian.domains import Bounded, Box, Discrete, Domain, Real
from gibbsian.drawing.html import card
from gibbsian.drawing.images import filters
from gibbsian.drawing.landscape import landscape, score_field
from gibbsian.drawing.style import axes
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, ShapeError, as_numbers
from gibbsian.placement import STUMBLES, explain_inference, explain_rows, placement
from gibbsian.random import check_draws
from gibbsian.recorded import Recorded

__all__ = [
    "Energy", "FunctionEnergy", "Mixture", "ScoreField", "Sum", "Tempered", "Unconstrained", "log_z_of", "mixture",
    "rows_for", "unconstrained",
]  # fmt: skip


@functools.cache
def _minus_one(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), -1.0, dtype=dtype, device=device)


def _card(model: "Energy | ScoreField") -> str:
    """What a notebook shows of a model."""
    size = sum(p.numel() for p in model.parameters())
    free = sum(p.numel() for p in model.parameters() if p.requires_grad)
    knows = [word for kind, word in ((Normalized, "log Z"), (Sampleable, "how to draw")) if isinstance(model, kind)]
    rows = [
        ("lives on", str(model.domain)),
        ("parameters", f"{size:,}" + (f", {free:,} trained" if free != size else "")),
    ]
    rows += [("knows", ", ".join(knows))] if knows else []
    dtype, device = placement(model)
    return card(type(model).__name__, [*rows, ("numbers", f"{str(dtype).removeprefix('torch.')} on {device}")])


class ScoreField(Recorded, ABC):
    """A model that has a score s(x) ≈ ∇ₓ log p(x), but no energy (a score network)."""

    domain: Domain

    def __init__(self, domain: Domain) -> None:
        super().__init__()
        self.domain = domain

    @abstractmethod
    def score(self, x: Tensor, *, create_graph: bool = False) -> Tensor:
        """s(x), the shape of x; detached unless `create_graph`."""

    def _repr_html_(self) -> str:
        return _card(self)

    def plot(self, ax: Any = None, extent: Any = (-4.0, 4.0), **options: Any) -> Any:
        """Arrows along the score over a plane, on matplotlib's axes or new ones: `plots.score_field`, with its options."""
        return score_field(self, axes(ax, (5.0, 4.4)), extent, **options)


class Energy(Recorded, ABC):
    """An unnormalized negative log-density over a domain: `forward(x)` maps `(batch, *event)` to `(batch,)`.

    Subclasses set the domain through `super().__init__(domain)` and write `forward`. Those that know their
    gradient in closed form override `energy_and_score`; those that know more about themselves have the
    methods of `gibbsian.capabilities`.

    Temperatures: `energy / T`, `beta * energy` and `energy.tempered(beta)` are one law, βE(x) of the observed x;
    `energy.annealed(beta)` is another for machines with hidden units.
    """

    domain: Domain

    def __init__(self, domain: Domain) -> None:
        super().__init__()
        if not isinstance(domain, Domain):
            raise ArgumentError(
                f"domain is a {type(domain).__name__}, expected one of gibbsian.domains, such as domains.Real(2)"
            )
        self.domain = domain

    def hold(self, trainable: bool, **values: Tensor) -> None:
        """Keep tensors under these names, as parameters to be trained or as buffers."""
        for name, value in values.items():
            if trainable:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The energy of each row of x, shape `(batch,)`."""

    def _repr_html_(self) -> str:
        return _card(self)

    def plot(self, ax: Any = None, extent: Any = (-4.0, 4.0), **options: Any) -> Any:
        """The energy as a picture, on matplotlib's axes `ax` or new ones, which are returned.

        Over one or two coordinates its landscape (`plots.landscape`, with its options: `show="density"`, a `plane` and a
        point `at` that it goes through where there are more); of machines with weights that can be looked at their
        filters (`plots.filters`, `shape=(28, 28)`).

        >>> import matplotlib.figure, gibbsian as gb
        >>> ax = gb.energies.Ring().plot(matplotlib.figure.Figure().subplots(), extent=(-3, 3))
        """
        if isinstance(self.domain, Discrete) or (self.domain.numel > 2 and "at" not in options):
            if isinstance(self, PicturedModel):
                return filters(self, axes(ax, (5.0, 5.0)), **options)
            raise CapabilityError(
                f"{type(self).__name__} lives on {self.domain}, of which there is no picture; give at=, a point that a plane "
                "of continuous coordinates goes through, or draw its samples with gibbsian.plots"
            )
        return landscape(self, axes(ax, (5.0, 4.2)), extent, **options)

    def __call__(self, x: Tensor) -> Tensor:
        hooked = self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
        try:  # costs nothing where nothing is raised
            energy = super().__call__(x) if hooked else self.forward(x)  # the module machinery costs 7 µs a call
        except STUMBLES as error:
            explain_rows(self, x, error)
            raise
        if not isinstance(energy, Tensor) or energy.shape != x.shape[:1]:
            explain_rows(self, x)
            got = tuple(energy.shape) if isinstance(energy, Tensor) else type(energy).__name__
            raise ShapeError(
                f"the energy of a batch of shape {tuple(x.shape)} came out as {got}, expected ({len(x)},): "
                "one number a row; sum over the event axes, for example with .flatten(1).sum(1)"
            )
        return energy

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E(x) and s(x) = -∇E(x), both detached: one forward and one backward pass."""
        return with_score(self, x, self)

    def score(self, x: Tensor, *, create_graph: bool = False) -> Tensor:
        """s(x) = -∇E(x); with `create_graph` it can be differentiated again (in x and the parameters)."""
        try:
            if not create_graph:
                return self.energy_and_score(x)[1]
            with torch.enable_grad():
                x = x if x.requires_grad else x.detach().requires_grad_(True)
                (gradient,) = torch.autograd.grad(self(x).sum(), x, create_graph=True)
        except STUMBLES as error:
            explain_rows(self, x, error)
            raise
        return -gradient

    def log_prob(self, x: Tensor, log_z: "Estimate | Tensor | float | None" = None) -> Tensor:
        """log p(x) = -E(x) - log Z of every row, differentiable.

        Args:
            x: `(batch, *event)`.
            log_z: an estimate of `gibbsian.partition`, a tensor or a number; the model's own `log_z()` where left out.
        """
        if not isinstance(x, Tensor) or x.shape[1:] != self.domain.shape:
            explain_rows(self, x)
        if log_z is None:
            log_z = log_z_of(self, "log_prob")
        elif isinstance(log_z, Estimate):
            log_z.check(self)
            log_z = log_z.value
        return -self(x) - log_z

    def tempered(self, beta: Tensor | float) -> "Energy":
        """The law at inverse temperature β, a number or one per row: βE(x), as `beta * energy` and `energy / T` are."""
        return Tempered(self, as_numbers("tempered", "beta", beta))

    def annealed(self, beta: Tensor | float) -> "Energy":
        """The law at inverse temperature β at which the model's own moves stay exact, β a number or one per row.

        βE(x) for a plain energy; machines with hidden units scale their joint energy, -log Σ_h exp(-βE(x, h)), so that
        their block conditionals remain those of the law, which is another one at every β but 1. Tempering and annealing
        (`kernels.ParallelTempering`, `partition.ais`) use this one.
        """
        return self.tempered(beta)

    def __add__(self, other: "Energy") -> "Energy":
        """Product of densities: E₁ + E₂. Adding 0 changes nothing, so that `sum([a, b, c])` works."""
        return Sum([self, other]) if isinstance(other, Energy) else self._plus(other)

    __radd__ = __add__

    def __sub__(self, other: "Energy") -> "Energy":
        """E₁ - E₂: away from the second. Z must stay finite, which nobody checks for you."""
        return Sum([self, other], [1.0, -1.0]) if isinstance(other, Energy) else self._plus(other)

    def __rsub__(self, other: "Energy") -> "Energy":
        return -self._plus(other)

    def _plus(self, other: Any) -> "Energy":
        if type(other) in (int, float) and other == 0:
            return self
        raise CapabilityError(
            f"an energy and a {type(other).__name__} do not add up: energies are added to energies (wrap functions with "
            "gibbsian.as_energy), and a constant would change log Z alone"
        )

    def __mul__(self, factor: float) -> "Energy":
        """Inverse temperature: factor · E."""
        return Sum([self], [_finite_number(factor, "a factor")])

    __rmul__ = __mul__

    def __truediv__(self, temperature: float) -> "Energy":
        """Temperature: E / T."""
        t = _finite_number(temperature, "a temperature")
        if not t > 0:
            raise ArgumentError(f"a temperature must be positive, got {temperature}")
        return Sum([self], [1.0 / t])

    def __neg__(self) -> "Energy":
        return Sum([self], [-1.0])


def with_score(function: Callable[[Tensor], Tensor], x: Tensor, owner: object) -> tuple[Tensor, Tensor]:
    """f(x), `(batch,)`, and -∇f(x) of a function that treats rows apart, both detached; the owner is named where there is none."""
    if torch.compiler.is_compiling():  # functorch traces everywhere; in eager mode it is slower

        def total(y: Tensor) -> "tuple[Tensor, Tensor]":  # quoted: torch 2.6 cannot trace the type itself
            energy = function(y)
            return energy.sum(), energy

        gradient, energy = torch.func.grad(total, has_aux=True)(x)
        return energy.detach(), -gradient
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(True)  # as torch.enable_grad() does, at a tenth of its price in a hot loop
    try:
        x = x.detach().requires_grad_(True)
        energy = function(x)
        if not energy.requires_grad:
            explain_inference(x)
            raise CapabilityError(
                f"the energy of {type(owner).__name__} does not depend on x through differentiable operations, so it "
                "has no score; use a kernel without gradients, such as RandomWalk or Metropolis"
            )
        # an expanded scalar as cotangent is cheaper than summing first, and gives the sign of the score
        (score,) = torch.autograd.grad(energy, x, _minus_one(energy.dtype, energy.device).expand_as(energy))
    finally:
        torch._C._set_grad_enabled(before)
    return energy.detach(), score


def log_z_of(energy: nn.Module, purpose: str) -> Tensor:
    """log Z of a model that knows it, or an error that says what to do."""
    if isinstance(energy, Normalized):
        return energy.log_z()
    raise CapabilityError(
        f"{purpose} needs log Z, which {type(energy).__name__} does not know; estimate it with gibbsian.partition "
        "and pass it as log_z="
    )


# --- construction and algebra ---------------------------------------------------------------------


def _finite_number(value: Any, what: str) -> float:
    """A plain finite number; energies and trainable tensors are refused, since they would lose their meaning."""
    if isinstance(value, Energy):
        raise ArgumentError("energies are multiplied by numbers; for a product of densities add them: a + b")
    if isinstance(value, Tensor) and (value.requires_grad or value.dim()):
        raise ArgumentError(
            f"{what} of an energy is one plain number, got a tensor of shape {tuple(value.shape)}"
            f"{' that requires a gradient' if value.requires_grad else ''}; use energy.tempered(beta) for tensors"
        )
    if not isinstance(value, int | float | Tensor) or not math.isfinite(value):
        raise ArgumentError(f"{what} of an energy must be a finite number, got {value!r}")
    return float(value)


class FunctionEnergy(Energy):
    """Any callable or module as an energy."""

    def __init__(self, function: Callable[[Tensor], Tensor], domain: Domain) -> None:
        super().__init__(domain)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def taylor_parts(self) -> tuple[Any, ...]:
        return (self.function,)

    def taylor(self, jet: Jet, propagate: Callable[[Any, Jet], Jet]) -> Jet:
        return propagate(self.function, jet)


def _common_domain(parts: Sequence[Energy], what: str) -> Domain:
    if not parts:
        raise ArgumentError(f"a {what} of energies needs at least one part")
    for part in parts:
        if not isinstance(part, Energy):
            raise ArgumentError(
                f"a {what} of energies got a {type(part).__name__}; wrap functions with gibbsian.as_energy first"
            )
        if part.domain != parts[0].domain:
            raise DomainError(
                f"the parts of a {what} live on {parts[0].domain} and {part.domain}; they must share one domain"
            )
    return parts[0].domain


class Sum(Energy):
    """Σ cᵢ Eᵢ(x): product of densities, temperature and negation in one."""

    coefficients: Tensor
    parts: nn.ModuleList

    def __init__(self, parts: Sequence[Energy], coefficients: Sequence[float] | None = None) -> None:
        super().__init__(_common_domain(parts, "sum"))
        self.parts = nn.ModuleList()
        weights: list[float] = []
        for part, c in zip(parts, [1.0] * len(parts) if coefficients is None else coefficients, strict=True):
            inner = part if isinstance(part, Sum) else None
            self.parts.extend([part] if inner is None else inner.parts)
            weights += [c] if inner is None else [c * w for w in inner.coefficients.tolist()]
        self.register_buffer("coefficients", torch.tensor(weights, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        c = self.coefficients.to(x.dtype)
        total = c[0] * self.parts[0](x)
        for i in range(1, len(self.parts)):
            total = total + c[i] * self.parts[i](x)
        return total

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        c = self.coefficients.to(x.dtype)
        both = [part.energy_and_score(x) for part in self.parts]  # type: ignore[operator]
        energy = sum(c[i] * e for i, (e, _) in enumerate(both))
        return energy, sum(c[i] * s for i, (_, s) in enumerate(both))


def rows_for(given: Tensor, n: int, what: str) -> Tensor:
    """What is given, for every row of a batch of n: one for all, one for each, or gone through again and again."""
    if len(given) == n:
        return given
    if len(given) == 1:
        return given.expand(n, *given.shape[1:])
    if n % len(given):
        raise ShapeError(f"{len(given)} {what} met {n} rows; give one, or one for each row")
    return given.repeat(n // len(given), *[1] * (given.dim() - 1))


class Tempered(Energy):
    """βE(x), β a number or one per row of the batch; further rows go through them again."""

    beta: Tensor

    def __init__(self, base: Energy, beta: Tensor) -> None:
        super().__init__(base.domain)
        self.base = base
        self.register_buffer("beta", torch.as_tensor(beta), persistent=False)

    def _beta(self, x: Tensor) -> Tensor:
        beta = self.beta.to(x.dtype)
        return rows_for(beta, len(x), "temperatures") if beta.dim() else beta

    def forward(self, x: Tensor) -> Tensor:
        return self._beta(x) * self.base(x)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        energy, score = self.base.energy_and_score(x)
        beta = self._beta(x)
        return beta * energy, beta.reshape(-1, *[1] * (x.dim() - 1)) * score

    def multipliers(self) -> Tensor:
        """β."""
        return self.beta


class Mixture(Energy):
    """E(x) = -log Σ wᵢ exp(-Eᵢ(x)) / Zᵢ: normalized, so log Z = 0."""

    weights: Tensor
    known_log_z: Tensor | None

    def __init__(self, parts: Sequence[Energy], weights: Tensor, log_z: Tensor | None = None) -> None:
        super().__init__(_common_domain(parts, "mixture"))
        self.parts = nn.ModuleList(parts)
        self.register_buffer("weights", weights)
        self.register_buffer("known_log_z", log_z)

    def forward(self, x: Tensor) -> Tensor:
        log_z = self.known_log_z
        if log_z is None:  # asked of the parts each time, since training changes them
            log_z = torch.stack([part.log_z().to(self.weights) for part in self.parts])  # type: ignore[operator]
        log_p = torch.stack([-part(x) for part in self.parts], 1) + (self.weights.log() - log_z).to(x.dtype)
        return -torch.logsumexp(log_p, 1)

    def log_z(self) -> Tensor:
        """0: the parts are normalized by their own log Z."""
        return self.weights.new_zeros(())

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Exact draws where every part can draw exactly."""
        parts = [
            require(part, Sampleable, "an exact draw", "use gibbsian.sample on the mixture") for part in self.parts
        ]
        n = check_draws(n, generator, self.weights.device)
        which = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        draws = torch.stack([part.sample(n, generator=generator) for part in parts])
        return draws[which, torch.arange(n, device=which.device)]


def mixture(parts: Sequence[Energy], weights: Sequence[float], log_z: Sequence[float] | None = None) -> Mixture:
    """A mixture whose weights are probabilities: each part knows its `log_z()`, or it is given.

    >>> import gibbsian as gb
    >>> narrow = gb.energies.Gaussian(torch.zeros(1), torch.eye(1))
    >>> wide = gb.energies.Gaussian(torch.zeros(1), 9 * torch.eye(1))
    >>> gb.mixture([narrow, wide], weights=[0.25, 0.75]).log_z()
    tensor(0., dtype=torch.float64)
    """
    w = torch.as_tensor(weights, dtype=torch.float64)
    if w.shape != (len(parts),) or not bool((w > 0).all()):
        raise ArgumentError(f"a mixture of {len(parts)} parts needs that many positive weights, got {list(weights)}")
    if abs(float(w.sum()) - 1) > 1e-6:
        raise ArgumentError(f"mixture weights are probabilities and must add up to 1, got a sum of {float(w.sum()):g}")
    _common_domain(parts, "mixture")
    if log_z is None:
        for part in parts:
            log_z_of(part, "a mixture")  # raises where it is not known
        return Mixture(parts, w)
    known = torch.stack([torch.as_tensor(z).detach().double() for z in log_z])
    if known.shape != w.shape or not bool(torch.isfinite(known).all()):
        raise ArgumentError(f"a mixture of {len(parts)} parts needs that many finite log_z, got {list(log_z)}")
    return Mixture(parts, w, known)


class Unconstrained(Energy):
    """A bounded energy pulled back to all of R^d: x = T(u), E(u) = E(T(u)) - log|det ∂T/∂u|.

    T is the logistic map for a box and softplus for the non-negative domain. Both directions are exact, so
    any kernel for real states samples the bounded law: map its draws back with `constrain`.
    """

    def __init__(self, base: Energy) -> None:
        if not isinstance(base.domain, Bounded):
            raise DomainError(f"only bounded domains need a transformation, this energy lives on {base.domain}")
        super().__init__(Real(base.domain.shape))
        self.base = base

    def constrain(self, u: Tensor) -> Tensor:
        """x = T(u), with any leading axes."""
        low, high = self.base.domain.bounds(u)  # type: ignore[attr-defined]
        return low + (high - low) * torch.sigmoid(u) if isinstance(self.base.domain, Box) else softplus(u)

    def unconstrain(self, x: Tensor) -> Tensor:
        """u = T⁻¹(x) for x strictly inside the domain."""
        low, high = self.base.domain.bounds(x)  # type: ignore[attr-defined]
        if isinstance(self.base.domain, Box):
            return torch.logit((x - low) / (high - low))
        return x + torch.log(-torch.expm1(-x))

    def forward(self, u: Tensor) -> Tensor:
        low, high = self.base.domain.bounds(u)  # type: ignore[attr-defined]
        if isinstance(self.base.domain, Box):
            log_slope = (high - low).log() - softplus(u) - softplus(-u)
        else:
            log_slope = -softplus(-u)
        return self.base(self.constrain(u)) - log_slope.flatten(1).sum(1)

    def log_z(self) -> Tensor:
        """The same as the bounded energy's: the map preserves mass."""
        return log_z_of(self.base, "the unconstrained energy")


def unconstrained(energy: Energy) -> Unconstrained:
    """The energy of a bounded law on unbounded coordinates, for kernels that should not meet walls.

    >>> import gibbsian as gb
    >>> flat = gb.as_energy(lambda x: 0 * x.sum(-1), gb.domains.Box(1))
    >>> free = gb.unconstrained(flat)
    >>> free.constrain(torch.zeros(1, 1))
    tensor([[0.5000]])
    """
    return Unconstrained(energy)
