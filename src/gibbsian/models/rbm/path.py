"""Restricted Boltzmann machines at other temperatures, and the path from independent units to a machine.

    E_β(v, h) = (1-β) [E_A(v) + E_0(h)] + β E(v, h)

E_A is a layer of visible units fitted to data and E_0 the simplest hidden layer (uniform for discrete units,
unit scale for real ones), so the base is normalized exactly and every member has exact block conditionals.
"""

from typing import Protocol

import torch
from torch import Tensor

from gibbsian.domains import Domain
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError
from gibbsian.random import normals, require_generator, uniforms
from gibbsian.units import Natural, Unit

__all__ = ["RBMPath", "TemperedRBM"]

Base = tuple[Natural, Natural]  # of the visible and of the hidden layer


class TwoLayers(Protocol):
    """What is annealed: an RBM, or a machine that is one given its input."""

    domain: Domain

    @property
    def visible(self) -> Unit: ...

    @property
    def hidden(self) -> Unit: ...

    @property
    def visible_bias(self) -> Tensor: ...

    def check_proper(self) -> None: ...

    def own_energy(self, v: Tensor) -> Tensor: ...

    def hidden_natural(self, v: Tensor) -> Natural: ...

    def visible_natural(self, h: Tensor) -> Natural: ...

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]: ...


def _mixed(natural: Natural, base: Natural | None, beta: Tensor) -> Natural:
    """β natural + (1-β) base."""
    natural = natural.scaled(beta)
    return natural if base is None else natural.plus(base.scaled(1 - beta))


def _natural_energy(natural: Natural, v: Tensor) -> Tensor:
    """½λ·v² - η·v, `(batch,)`; η one for all rows or one a row."""
    v = v.flatten(1)
    energy = -(v @ natural.linear if natural.linear.dim() == 1 else (v * natural.linear).sum(1))
    return energy if natural.precision is None else energy + 0.5 * (v.square() @ natural.precision)


def _free_energy(rbm: TwoLayers, base: Base | None, beta: Tensor, v: Tensor, hidden: Natural) -> Tensor:
    """The free energy at β, from the natural parameters of h given v at β = 1."""
    energy = beta * rbm.own_energy(v) - rbm.hidden.log_partition(_mixed(hidden, base[1] if base else None, beta))
    return energy if base is None else energy + (1 - beta) * _natural_energy(base[0], v)


def _sweep(
    rbm: TwoLayers,
    base: Base | None,
    beta: Tensor,
    v: Tensor,
    hidden: Natural,
    noise: tuple[Tensor, ...],
    clamp: Tensor | None,
) -> Tensor:
    """h ~ p_β(h | v), v ~ p_β(v | h)."""
    h = rbm.hidden.sample(_mixed(hidden, base[1] if base else None, beta), noise[0])
    visible = _mixed(rbm.visible_natural(h), base[0] if base else None, beta)
    return rbm.visible.resample(visible, noise[1], v, clamp)


class TemperedRBM(Energy):
    """A machine whose joint energy is βE(v, h), or (1-β) base + βE(v, h); β a number or one per row.

    `forward(v)` is its own free energy: the hidden units are summed out at this temperature.
    """

    beta: Tensor

    def __init__(self, rbm: TwoLayers, beta: Tensor, base: Base | None = None) -> None:
        super().__init__(rbm.domain)
        if beta.dim() > 1:
            raise ArgumentError(f"beta has shape {tuple(beta.shape)}, expected a number or one per row")
        self.rbm = rbm
        self.register_buffer("beta", beta.to(rbm.visible_bias), persistent=False)
        parts = [None] * 4 if base is None else [part for natural in base for part in natural]
        for i, part in enumerate(parts):  # buffers, so that they move along with the machine
            self.register_buffer(f"base_{i}", part, persistent=False)

    @property
    def base(self) -> Base | None:
        """The natural parameters of the base's visible and hidden layers, or None without a base."""
        parts: list[Tensor] = [getattr(self, f"base_{i}") for i in range(4)]
        return None if parts[0] is None else (Natural(parts[0], parts[1]), Natural(parts[2], parts[3]))

    def forward(self, x: Tensor) -> Tensor:
        self.rbm.check_proper()
        return _free_energy(self.rbm, self.base, self.beta, x, self.rbm.hidden_natural(x))

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The same as the machine's."""
        return self.rbm.gibbs_noise(x, steps, generator)

    def gibbs_sweep(self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None) -> Tensor:
        """h ~ p_β(h | v), then v ~ p_β(v | h) where not `clamp`."""
        with torch.no_grad():
            return _sweep(self.rbm, self.base, self.beta, x, self.rbm.hidden_natural(x), noise, clamp)


class RBMPath:
    """The path of `RBM.path`: `at(beta)` is an energy with exact block Gibbs sweeps, and `log_z0()` normalizes
    `at(0)`.

    For Bernoulli units: log p*_β(v) = ((1-β)b^A + βb)·v + Σⱼ softplus(β(cⱼ + (vW)ⱼ)) and
    log Z₀ = Σ softplus(b^A) + M log 2, M the number of hidden units.

    Reference: Salakhutdinov & Murray 2008.

    >>> from gibbsian.models import RBM
    >>> path = RBM(4, 3).path(torch.zeros(4))
    >>> path.log_z0()  # 7 log 2
    tensor(4.8520)
    >>> path.at(0.5)(torch.zeros(1, 4)).shape
    torch.Size([1])
    """

    def __init__(self, rbm: TwoLayers, base: Natural) -> None:
        self.rbm = rbm
        fixed = Natural(base.linear.detach(), None if base.precision is None else base.precision.detach())
        self.base = (fixed, rbm.hidden.base(rbm.visible_bias.detach()))

    @property
    def domain(self) -> Domain:
        """That of the visible units."""
        return self.rbm.domain

    def at(self, beta: float | Tensor) -> TemperedRBM:
        """The member at β, a number or one per row; β = 1 is the machine itself."""
        return TemperedRBM(self.rbm, torch.as_tensor(beta), self.base)

    def log_z0(self) -> Tensor:
        """log Z of the base, exactly: the cumulants of both layers. For counts, of the declared length."""
        with torch.no_grad():
            return self.rbm.visible.log_partition(self.base[0]) + self.rbm.hidden.log_partition(self.base[1])

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws of the base, `(n, *event)`."""
        bias, visible = self.rbm.visible_bias, self.rbm.visible
        require_generator(generator, bias.device)
        draw = uniforms if visible.noise == "uniform" else normals
        noise = draw(1, n * visible.noise_size(), generator, dtype=bias.dtype, device=bias.device)
        with torch.no_grad():
            return visible.sample(self.base[0], noise.reshape(n, -1))

    def noise(self, v: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The random numbers of `steps` calls of `anneal`, with that leading axis."""
        return self.rbm.gibbs_noise(v, steps, generator)

    def anneal(
        self, v: Tensor, beta: Tensor, next_beta: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Weight from β to the next β, then one sweep there: (v', log p*_next(v) - log p*_β(v)).

        The same as `at(beta)(v) - at(next_beta)(v)` and a sweep of `at(next_beta)`, with two products instead
        of four.
        """
        with torch.no_grad():
            hidden = self.rbm.hidden_natural(v)
            before = _free_energy(self.rbm, self.base, beta, v, hidden)
            after = _free_energy(self.rbm, self.base, next_beta, v, hidden)
            return _sweep(self.rbm, self.base, next_beta, v, hidden, noise, clamp), before - after
