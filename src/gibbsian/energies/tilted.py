"""A base density tilted by an energy: p(x) ∝ q(x) exp(-f(x)), in data space or in the space q is made from; and energies
of codes, p(z) ∝ N(z; 0, I) exp(-f(z)), from which a decoder makes x."""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gibbsian.domains import Binary, Domain, Real
from gibbsian.energies.distribution import is_flow
from gibbsian.energy import Energy, rows_for
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, ShapeError
from gibbsian.placement import placement
from gibbsian.random import require_generator

_LOG_2PI = math.log(2 * math.pi)


@runtime_checkable
class Density(Protocol):
    """A module that knows its log-density."""

    def log_prob(self, x: Tensor) -> Tensor:
        """log q(x), `(batch,)`."""


@runtime_checkable
class Pushing(Protocol):
    """A module that makes x out of standard normal z."""

    def push(self, z: Tensor) -> Tensor:
        """x = T(z)."""


class TiltedEnergy(Energy):
    """A base density q corrected by an energy f:

        E(x) = -log q(x) + f(x),   p(x) ∝ q(x) exp(-f(x))

    q carries what is known already (a flow, a Gaussian, another model), f learns what that misses, by any objective;
    noise-contrastive estimation with q as the noise learns -f as the log-ratio of data to q. Sample it in data space,
    or, where q is made from simple noise, x = T(z), in the space of z, where q is round and chains mix: `latent()`.
    log Z = log Z_q + log E_q[exp(-f)], for example by `partition.ais(tilted, base=q)`.

    Reference: Arbel, Zhou & Gretton 2021; Nijkamp et al. 2022 (sampling in the space of a flow).

    Args:
        base: an `Energy`, a zuko flow, or any module with `log_prob(x)`.
        tilt: f, an `Energy` or a callable from `(batch, *event)` to `(batch,)`.
        domain: where x lives; needed where the base is not an energy.
        train_base: let the base learn as well; otherwise its parameters are frozen.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> base = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    >>> tilted = TiltedEnergy(base, gb.energies.MLPEnergy(2))
    >>> z = torch.randn(100, 2, generator=g)
    >>> trace = gb.sample(tilted.latent(), gb.kernels.HMC(0.3), z, steps=20, keep=False, generator=g)
    >>> tilted.latent().push(trace.last).shape
    torch.Size([100, 2])
    """

    def __init__(
        self, base: Any, tilt: Callable[[Tensor], Tensor], domain: Domain | None = None, *, train_base: bool = False
    ) -> None:
        super().__init__(_base_domain(base, domain))
        if not callable(tilt):
            raise ArgumentError(f"tilt is a {type(tilt).__name__}, expected an energy or a callable of a batch")
        if isinstance(tilt, Energy) and tilt.domain != self.domain:
            raise DomainError(f"the base lives on {self.domain} and the tilt on {tilt.domain}; they must agree")
        self.base, self.tilt, self.train_base = base, tilt, train_base
        if isinstance(base, nn.Module) and not train_base:
            base.requires_grad_(False)

    def base_energy(self, x: Tensor) -> Tensor:
        """-log q(x), but for a constant where the base is an energy."""
        if isinstance(self.base, Energy):
            return self.base(x)
        if is_flow(self.base):
            return -self.base().log_prob(x.flatten(1))
        return -self.base.log_prob(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_energy(x) + self.tilt(x)

    def push(self, z: Tensor) -> Tensor:
        """x = T(z), T the map that makes q out of standard normal z: Gaussians, zuko flows, modules with `push(z)`."""
        base = self.base
        if is_flow(base):
            return base().transform.inv(z).reshape(-1, *self.domain.shape)
        if isinstance(base, Pushing) and not isinstance(base, TiltedEnergy | PushedEnergy):  # whose draws are weighted
            return base.push(z)
        raise CapabilityError(
            f"{type(base).__name__} does not say how it is made from noise; give it push(z), or sample the tilted energy "
            "itself in data space"
        )

    def latent(self) -> "PushedEnergy":
        """The law of z with x = T(z): E(z) = ½‖z‖² + f(T(z)) + const. Map its samples with `push`."""
        dtype, device = placement(self, torch.get_default_dtype())
        zero = torch.zeros(1, self.domain.numel, dtype=dtype, device=device)
        self.push(zero)  # refuses at once what has no such map
        if is_flow(self.base):
            found, expected = float(self.base().base.log_prob(zero)[0]), -float(standard_energy(zero)[0])
            if abs(found - expected) > 1e-3:
                raise CapabilityError("the flow does not start from N(0, I), as latent() needs; sample in data space")
        return PushedEnergy(self.push, self.tilt, self.domain.numel, owner=self)

    def extra_repr(self) -> str:
        return f"train_base={self.train_base}"


def _base_domain(base: Any, given: Domain | None) -> Domain:
    """Where a base with a density lives: as it says itself, or as it is given."""
    if isinstance(base, Energy):
        if given is not None and given != base.domain:
            raise DomainError(f"the base lives on {base.domain}, but domain={given} was given")
        return base.domain
    if not (is_flow(base) or isinstance(base, Density)):
        raise CapabilityError(
            f"a tilted energy needs a base with a density: an energy, a zuko flow, or a module with log_prob(x); got "
            f"a {type(base).__name__}"
        )
    if given is None:
        raise ArgumentError("say where x lives: TiltedEnergy(base, tilt, domain=domains.Real(2))")
    return given


def standard_energy(z: Tensor) -> Tensor:
    """-log N(z; 0, I), `(batch,)`."""
    z = z.flatten(1)
    return 0.5 * (z.square().sum(1) + z.shape[1] * _LOG_2PI)


class _Coded(Energy):
    """An energy of codes z, around N(0, I) and made of functions."""

    def __init__(self, latent: int, **parts: Callable[[Tensor], Tensor]) -> None:
        for name, part in parts.items():
            if not callable(part):
                raise ArgumentError(f"{name} is a {type(part).__name__}, expected a module or a callable of a batch")
        super().__init__(Real(latent))

    def start(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n draws of N(0, I), where chains begin."""
        dtype, device = placement(self, torch.get_default_dtype())
        require_generator(generator, device)
        return torch.randn(n, self.domain.numel, generator=generator, dtype=dtype, device=device)


class PushedEnergy(_Coded):
    """A standard normal z, seen through a map and tilted there: E(z) = -log N(z; 0, I) + f(G(z)).

    G(z) has the law of G(N(0, I)) times exp(-f), whether or not G is invertible: log Z = log E_z[exp(-f(G(z)))].
    `from_discriminator` takes f = -d, d the logit of a generator's discriminator: where that is optimal,
    d = log p_data - log p_G, this is the law of the data as far as the generator reaches it.

    Reference: Che et al. 2020 (discriminator-driven latent sampling).

    Args:
        push: G, a module or callable from `(batch, latent)` to `(batch, *event)`.
        tilt: f, a module or callable from events to `(batch,)` or `(batch, 1)`.
        latent: numbers in z.
        sign: -1 takes -f, for logits.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> generator, discriminator = gb.energies.MLP(3, outputs=2), gb.energies.MLP(2)
    >>> corrected = PushedEnergy.from_discriminator(generator, discriminator, latent=3)
    >>> trace = gb.sample(corrected, gb.kernels.MALA(0.3), corrected.start(64, generator=g), steps=10, generator=g)
    >>> corrected.push(trace.last).shape
    torch.Size([64, 2])
    """

    def __init__(
        self,
        push: Callable[[Tensor], Tensor],
        tilt: Callable[[Tensor], Tensor],
        latent: int,
        *,
        sign: float = 1.0,
        owner: nn.Module | None = None,
    ) -> None:
        super().__init__(latent, push=push, tilt=tilt)
        self._push, self.tilt, self.sign = push, tilt, float(sign)
        self.owner = owner  # whose parameters `push` uses, where it is a method

    @classmethod
    def from_discriminator(
        cls, generator: Callable[[Tensor], Tensor], discriminator: Callable[[Tensor], Tensor], latent: int
    ) -> "PushedEnergy":
        """E(z) = -log N(z; 0, I) - d(G(z)), d the discriminator's logit (before the logistic function)."""
        return cls(generator, discriminator, latent, sign=-1.0)

    def push(self, z: Tensor) -> Tensor:
        """G(z)."""
        return self._push(z)

    def forward(self, x: Tensor) -> Tensor:
        f = self.tilt(self._push(x))
        if f.dim() == 2 and f.shape[1] == 1:
            f = f.squeeze(1)
        if f.shape != x.shape[:1]:
            raise ShapeError(f"the tilt gave {tuple(f.shape)} for {len(x)} rows, expected one number a row")
        return standard_energy(x) + self.sign * f


class LatentEnergy(_Coded):
    """A latent-variable model whose prior is an energy; as an energy it is that prior's.

        p(z) ∝ N(z; 0, I) exp(-f(z)),   p(x | z) = N(x; g(z), σ²I), or Bernoulli with logits g(z)
        p(x) = ∫ p(x | z) p(z) dz,      E(z | x) = -log p(x | z) + E(z)

    The decoder makes the shape of images, the energy says which codes occur, in few dimensions, where chains are short
    and mix. `given(x)` is the posterior of z, for inference and reconstruction. Train both together with
    `objectives.LatentLikelihood`; for a decoder that is fixed (a trained generator) use `PushedEnergy`.

    Reference: Pang et al. 2020.

    Args:
        decoder: g, from `(batch, latent)` to `(batch, *event)`.
        tilt: f, from `(batch, latent)` to `(batch,)` or `(batch, 1)`.
        latent: numbers in z.
        domain: where x lives: `Real` for Gaussian noise, `Binary` for Bernoulli pixels.
        sigma: σ of the Gaussian noise.

    >>> import gibbsian as gb
    >>> model = LatentEnergy(gb.energies.MLP(2, outputs=5), gb.energies.MLP(2), latent=2, domain=gb.domains.Real(5))
    >>> model(torch.zeros(3, 2)).shape, model.given(torch.zeros(3, 5))(torch.zeros(3, 2)).shape
    (torch.Size([3]), torch.Size([3]))
    """

    def __init__(
        self,
        decoder: Callable[[Tensor], Tensor],
        tilt: Callable[[Tensor], Tensor],
        latent: int,
        domain: Domain,
        *,
        sigma: float = 0.3,
    ) -> None:
        super().__init__(latent, decoder=decoder, tilt=tilt)
        if not isinstance(domain, Real | Binary):
            raise ArgumentError(
                f"x lives on {domain}; a decoder makes domains.Real by Gaussian noise, or domains.Binary"
            )
        if not 0 < sigma < math.inf:
            raise ArgumentError(f"LatentEnergy(sigma={sigma}): the noise of x must be positive and finite")
        self.decoder, self.tilt, self.observed, self.sigma = decoder, tilt, domain, float(sigma)

    def forward(self, x: Tensor) -> Tensor:
        """-log N(z; 0, I) + f(z)."""
        f = self.tilt(x)
        return standard_energy(x) + (f.squeeze(1) if f.dim() == 2 else f)

    def decode(self, z: Tensor) -> Tensor:
        """E[x | z]."""
        g = self.decoder(z)
        return torch.sigmoid(g) if isinstance(self.observed, Binary) else g

    def log_prob_given(self, z: Tensor, x: Tensor) -> Tensor:
        """log p(x | z), `(batch,)`."""
        g = self.decoder(z)
        if g.shape != x.shape:
            raise ShapeError(f"the decoder gave {tuple(g.shape)} for x of shape {tuple(x.shape)}; they must agree")
        if isinstance(self.observed, Binary):
            return -F.binary_cross_entropy_with_logits(g, x, reduction="none").flatten(1).sum(1)
        squares = ((x - g) / self.sigma).flatten(1).square().sum(1)
        return -0.5 * squares - x[0].numel() * (math.log(self.sigma) + 0.5 * math.log(2 * math.pi))

    def given(self, x: Tensor) -> "PosteriorEnergy":
        """The posterior of z, one x for each row of z: E(z | x) = E(z) - log p(x | z)."""
        return PosteriorEnergy(self, x)

    def extra_repr(self) -> str:
        return f"latent={self.domain.numel}, observed={self.observed}, sigma={self.sigma:g}"


class PosteriorEnergy(Energy):
    """-log p(x | z) + E(z) as an energy of z: the unnormalized posterior, log Z = log p(x) + log Z of the prior."""

    x: Tensor

    def __init__(self, model: LatentEnergy, x: Tensor) -> None:
        super().__init__(model.domain)
        model.observed.check(x, "x")
        self.model = model
        self.register_buffer("x", x, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) - self.model.log_prob_given(x, rows_for(self.x, len(x), "observations"))
