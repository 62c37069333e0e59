"""Half of the layers of a deep Boltzmann machine as a law of its own, the other half summed out.

E(v, h², ...) = -log Σ_{h¹, h³, ...} exp(-E(v, h¹, h², ...)),   and the other way round
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gibbsian.capabilities import Path
from gibbsian.domains import Binary, Categorical, Domain, Spin
from gibbsian.errors import ArgumentError
from gibbsian.models.annealing import Machine
from gibbsian.models.dbm.layers import LayeredMachine
from gibbsian.units import Bernoulli, Joined, Softmax, Unit, layer_noise
from gibbsian.units import Spin as SpinUnit


def stacked(units: Sequence[Unit]) -> Domain:
    """The domain of several layers in one event."""
    n = sum(unit.n for unit in units)
    if len(units) == 1:
        return units[0].domain
    kinds = {(type(unit), unit.classes if isinstance(unit, Softmax) else 2) for unit in units}
    kind, classes = kinds.pop() if len(kinds) == 1 else (Joined, 0)
    if issubclass(kind, Bernoulli):
        return Binary(n)
    if issubclass(kind, SpinUnit):
        return Spin(n)
    return Categorical(n, classes) if issubclass(kind, Softmax) else Joined(*units).domain


class LayerMarginal(Machine):
    """The even layers (parity 0: v, h², ...) or the odd ones (parity 1: h¹, h³, ...) of a `DBM`.

    Events are the layers one after the other, the lowest first; `split` and `join` go between them and layers. Exact
    block Gibbs sweeps (the other half, then this one) with any entries clamped, tempering of the joint energy, and the
    annealing path of the machine, whose log Z is the same. The marginal of v under parity 0 is the law of the machine.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> even = gb.models.DBM(4, 3, 2).marginal(0)
    >>> x = even.domain.sample(5, generator=g)
    >>> trace = gb.sample(even, gb.kernels.Gibbs(), x, steps=10, generator=g)
    >>> v, h2 = even.split(trace.last)
    >>> v.shape, h2.shape
    (torch.Size([5, 4]), torch.Size([5, 2]))
    """

    def __init__(self, dbm: LayeredMachine, parity: int) -> None:
        if parity not in (0, 1):
            raise ArgumentError(
                f"marginal({parity!r}): 0 for the even layers v, h², ..., 1 for the odd ones h¹, h³, ..."
            )
        super().__init__(stacked(list(dbm.layers)[parity::2]))
        self.dbm, self.parity = dbm, parity
        self.own = list(range(parity, len(dbm.layers), 2))
        self.others = list(range(1 - parity, len(dbm.layers), 2))

    def split(self, x: Tensor) -> list[Tensor]:
        """The layers of events."""
        units = [self.dbm.layers[i] for i in self.own]
        if len(units) == 1:
            return [x]
        pieces = x.flatten(1).split([unit.size for unit in units], 1)
        return [piece.reshape(len(x), *unit.domain.shape) for piece, unit in zip(pieces, units, strict=True)]

    def join(self, layers: Sequence[Tensor]) -> Tensor:
        """Events from their layers."""
        if len(layers) == 1:
            return layers[0]
        return torch.cat([layer.flatten(1) for layer in layers], 1).reshape(-1, *self.domain.shape)

    def values_of(self, x: Tensor) -> list[Tensor | None]:
        """The layers of the machine: those of events, and None for the others."""
        values: list[Tensor | None] = [None] * len(self.dbm.layers)
        for i, layer in zip(self.own, self.split(x), strict=True):
            values[i] = layer
        return values

    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """The energy of these layers in the machine with joint energy βE; β a number or one per row."""
        return -self.dbm.mass(self.values_of(x), beta)

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random numbers for the other layers, and for these."""
        return layer_noise([self.dbm.layers[i] for i in (*self.others, *self.own)], x, steps, generator)

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """The other half given this one, then this one given the other where not `clamp`."""
        with torch.no_grad():
            numbers = dict(zip((*self.others, *self.own), noise, strict=True))
            mask = None
            if clamp is not None:
                mask = dict(zip(self.own, self.split(clamp.expand(x.shape)), strict=True))
            values = self.dbm.resample(self.values_of(x), 1 - self.parity, numbers, beta=beta)
            values = self.dbm.resample(values, self.parity, numbers, clamp=mask, beta=beta)
            return self.join([values[i] for i in self.own])  # type: ignore[misc]

    def hidden_of(self, x: Tensor, *, generator: torch.Generator) -> list[Tensor]:
        """All layers of the machine: these, and the others drawn given them."""
        noise = tuple(part[0] for part in self.gibbs_noise(x, 1, generator))
        numbers = dict(zip((*self.others, *self.own), noise, strict=True))
        with torch.no_grad():
            return self.dbm.resample(self.values_of(x), 1 - self.parity, numbers)  # type: ignore[return-value]

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> Path:
        """The annealing path of the machine, from states of the odd layers; only parity 1 lies on it."""
        if self.parity == 0 or data is not None:
            raise ArgumentError(
                "the path anneals the odd layers: use dbm.path(data=...), or marginal(1) with base= the visible bias of the "
                "base, such as dbm.layers[0].fit_bias(data)"
            )
        return self.dbm.path(base_bias)
