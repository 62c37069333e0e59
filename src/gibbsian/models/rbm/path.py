"""The path from independent units to a restricted Boltzmann machine.

    E_β(v, h) = (1-β) [E_A(v) + E_0(h)] + β E(v, h)

E_A is a layer of visible units fitted to data and E_0 the simplest hidden layer (uniform for discrete units,
unit scale for real ones), so the base is normalized exactly and every member has exact block conditionals.
"""

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Path
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.models.annealing import AnnealedMachine
from gibbsian.models.rbm.layers import TwoLayers
from gibbsian.random import normals, require_generator, uniforms
from gibbsian.units import Natural, Unit


def visible_base(visible: Unit, like: Tensor, bias: Tensor | None, data: Tensor | None) -> Natural | None:
    """The natural parameters of independent visible units with this bias, or fitted to data; None without either."""
    if bias is not None and data is not None:
        raise ArgumentError("give base_bias or data, not both: data fits the base bias itself")
    if data is not None:
        visible.domain.check(data, "data")
        return visible.fit(data.to(like))
    if bias is not None and bias.shape != (visible.size,):
        raise ShapeError(f"base_bias has shape {tuple(bias.shape)}, expected ({visible.size},)")
    return None if bias is None else visible.natural(bias.to(like))


def _natural_energy(natural: Natural, v: Tensor) -> Tensor:
    """½λ·v² - η·v, `(batch,)`; η one for all rows or one a row."""
    v = v.flatten(1)
    energy = -(v @ natural.linear if natural.linear.dim() == 1 else (v * natural.linear).sum(1))
    return energy if natural.precision is None else energy + 0.5 * (v.square() @ natural.precision)


class Bridge(nn.Module):
    """The machine with joint energy (1-β) [E_A(v) + E_0(h)] + βE(v, h), β a number or one per row."""

    def __init__(self, rbm: TwoLayers, base: tuple[Natural, Natural]) -> None:
        super().__init__()
        self.rbm, self.domain = rbm, rbm.domain
        for i, part in enumerate(part for natural in base for part in natural):
            part = None if part is None else part.detach()
            self.register_buffer(f"base_{i}", part, persistent=False)  # so that it moves along with the machine

    @property
    def base(self) -> tuple[Natural, Natural]:
        """The natural parameters of the base's visible and hidden layers."""
        parts: list[Tensor] = [getattr(self, f"base_{i}") for i in range(4)]
        return Natural(parts[0], parts[1]), Natural(parts[2], parts[3])

    def free_energy(self, x: Tensor, beta: Tensor, hidden: Natural | None = None) -> Tensor:
        """The free energy at β; `hidden` are the natural parameters of h given x at β = 1, where they are known."""
        visible, own = self.base
        if hidden is None:
            self.rbm.check_proper()
            hidden = self.rbm.hidden_natural(x)
        energy = beta * self.rbm.own_energy(x) - self.rbm.hidden.log_partition(hidden.mixed(own, beta))
        return energy + (1 - beta) * _natural_energy(visible, x)

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return self.rbm.gibbs_noise(x, steps, generator)

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None, beta: Tensor, hidden: Natural | None = None
    ) -> Tensor:
        """h ~ p_β(h | v), then v ~ p_β(v | h) where not `clamp`."""
        with torch.no_grad():
            visible, own = self.base
            hidden = self.rbm.hidden_natural(x) if hidden is None else hidden
            h = self.rbm.hidden.sample(hidden.mixed(own, beta), noise[0])
            return self.rbm.visible.resample(self.rbm.visible_natural(h).mixed(visible, beta), noise[1], x, clamp)


class RBMPath(Path):
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
        self.rbm, self.domain = rbm, rbm.domain
        self.bridge = Bridge(rbm, (base, rbm.hidden.base(rbm.visible_bias.detach())))

    @property
    def base(self) -> tuple[Natural, Natural]:
        """The natural parameters of the base's visible and hidden layers."""
        return self.bridge.base

    def at(self, beta: float | Tensor) -> AnnealedMachine:
        """The member at β, a number or one per row; β = 1 is the machine itself."""
        return AnnealedMachine(self.bridge, beta)

    def log_z0(self) -> Tensor:
        """log Z of the base, exactly: the cumulants of both layers. For counts, of the declared length."""
        with torch.no_grad():
            return self.rbm.visible.log_partition(self.base[0]) + self.rbm.hidden.log_partition(self.base[1])

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        bias, visible = self.rbm.visible_bias, self.rbm.visible
        require_generator(generator, bias.device)
        draw = uniforms if visible.noise == "uniform" else normals
        noise = draw(1, n * visible.noise_size(), generator, dtype=bias.dtype, device=bias.device)
        with torch.no_grad():
            return visible.sample(self.base[0], noise.reshape(n, -1))

    def noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return self.rbm.gibbs_noise(x, steps, generator)

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """`at(beta)(x) - at(next_beta)(x)` and a sweep of `at(next_beta)`, with two products instead of four."""
        with torch.no_grad():
            hidden = self.rbm.hidden_natural(x)
            before, after = (self.bridge.free_energy(x, b, hidden) for b in (beta, next_beta))
            return self.bridge.gibbs_sweep(x, noise, None, next_beta, hidden), before - after
