"""Restricted Boltzmann machines at other temperatures, and the path from independent units to a machine.

    E_β(v, h) = (1-β) [E_A(v) + E_0(h)] + β E(v, h)

E_A is a layer of visible units fitted to data and E_0 the simplest hidden layer (uniform for discrete units, unit
scale for real ones), so that the base is normalised exactly and every member has exact block conditionals.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError
from gibbsian.random import normals, require_generator, uniforms
from gibbsian.units import Natural

if TYPE_CHECKING:
    from gibbsian.models.rbm import RBM

__all__ = ["RBMPath", "TemperedRBM"]


class TemperedRBM(Energy):
    """A machine whose joint energy is βE(v, h), or (1-β) base + βE(v, h); β a number or one per row.

    `forward(v)` is its own free energy: the hidden units are summed out at this temperature.
    """

    beta: Tensor

    def __init__(self, rbm: "RBM", beta: Tensor, base: tuple[Natural, Natural] | None = None) -> None:
        super().__init__(rbm.domain)
        if beta.dim() > 1:
            raise ArgumentError(f"beta has shape {tuple(beta.shape)}, expected a number or one per row")
        self.rbm = rbm
        self.base = base
        self.register_buffer("beta", beta.to(rbm.weight), persistent=False)

    def _mixed(self, natural: Natural, layer: int) -> Natural:
        natural = natural.scaled(self.beta)
        return natural if self.base is None else natural.plus(self.base[layer].scaled(1 - self.beta))

    def forward(self, x: Tensor) -> Tensor:
        self.rbm.check_proper()
        visible, hidden = self.rbm.visible, self.rbm.hidden
        cumulant = hidden.log_partition(self._mixed(self.rbm.hidden_natural(x), 1))
        energy = self.beta * (
            visible.energy(x, self.rbm.visible_bias) + hidden.constant(self.rbm.hidden_bias)
        )
        if self.base is not None:
            energy = energy + (1 - self.beta) * natural_energy(self.base[0], x)
        return energy - cumulant

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The same as the machine's."""
        return self.rbm.gibbs_noise(x, steps, generator)

    def gibbs_sweep(self, x: Tensor, noise: tuple[Tensor, ...], free: Tensor | None = None) -> Tensor:
        """h ~ p_β(h | v), then v ~ p_β(v | h) where `free`."""
        with torch.no_grad():
            h = self.rbm.hidden.sample(self._mixed(self.rbm.hidden_natural(x), 1), noise[0])
            return self.rbm.visible.resample(self._mixed(self.rbm.visible_natural(h), 0), noise[1], x, free)


def natural_energy(natural: Natural, v: Tensor) -> Tensor:
    """½λ·v² - η·v, `(batch,)`."""
    v = v.flatten(1)
    linear = -(v * natural.linear).sum(1)
    return linear if natural.precision is None else linear + 0.5 * (v.square() * natural.precision).sum(1)


class RBMPath:
    """The path of `RBM.path`: `at(beta)` is an energy with exact block Gibbs sweeps, `at(0)` is normalised by `log_z0()`.

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

    def __init__(self, rbm: "RBM", base: Natural) -> None:
        self.rbm = rbm
        fixed = Natural(base.linear.detach(), None if base.precision is None else base.precision.detach())
        self.base = (fixed, rbm.hidden.base(rbm.weight.detach()))

    @property
    def domain(self) -> object:
        """That of the visible units."""
        return self.rbm.domain

    def at(self, beta: float | Tensor) -> TemperedRBM:
        """The member at inverse temperature β, a number or one per row; β = 1 is the machine itself."""
        return TemperedRBM(self.rbm, torch.as_tensor(beta), self.base)

    def log_z0(self) -> Tensor:
        """log Z of the base, exactly: Σ over both layers of their cumulants. For counts of the declared length."""
        with torch.no_grad():
            return self.rbm.visible.log_partition(self.base[0]) + self.rbm.hidden.log_partition(self.base[1])

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws of the base, `(n, *event)`."""
        weight, visible = self.rbm.weight, self.rbm.visible
        require_generator(generator, weight.device)
        draw = uniforms if visible.noise == "uniform" else normals
        noise = draw(1, n * visible.noise_size(), generator, dtype=weight.dtype, device=weight.device)
        with torch.no_grad():
            return visible.sample(self.base[0], noise.reshape(n, -1))
