"""The annealing path of deep Boltzmann machines: every other layer summed out, the rest moved by exact block Gibbs.

    log p*_β(h¹, h³, ...) = -β Σ_odd E(h) + Σ_even log Σ exp((1-β) base + β natural(h_odd))

For Bernoulli units and two hidden layers
    log p*_β(h¹) = βc¹·h¹ + Σζ((1-β)b^A + β(b + W¹h¹)) + Σζ(β(c² + h¹W²)),   log Z₀ = Σζ(b^A) + (n₁ + n₂) log 2.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gibbsian.capabilities import Path
from gibbsian.models.dbm.infer import InferredMachine
from gibbsian.models.dbm.marginal import LayerMarginal
from gibbsian.models.rbm.path import visible_base
from gibbsian.units import Bernoulli, Natural, layer_noise


class DBMPath(Path):
    """The path of `DBM.path`: states are the odd layers h¹, h³, ..., as in `DBM.marginal(1)`.

    The base has independent visible units fitted to data, and uniform hidden ones. Half of the units never have to be
    sampled for a weight, and a move costs two half-sweeps.

    Reference: Salakhutdinov & Hinton 2009, section 3.2; Salakhutdinov 2008.

    >>> import gibbsian as gb
    >>> path = gb.models.DBM(4, 3, 2).path(torch.zeros(4))
    >>> path.log_z0()  # 9 log 2
    tensor(6.2383)
    """

    def __init__(self, dbm: InferredMachine, base_bias: Tensor | None, data: Tensor | None) -> None:
        base = visible_base(dbm.layers[0], dbm.biases[0].detach(), base_bias, data)
        base = dbm.layers[0].base(dbm.biases[0]) if base is None else base
        self.dbm, self.odd = dbm, LayerMarginal(dbm, 1)
        fixed = Natural(base.linear.detach(), None if base.precision is None else base.precision.detach())
        like = dbm.weights[0].detach()
        self.bases = [fixed, *(unit.base(like) for unit in list(dbm.layers)[1:])]

    def log_z0(self) -> Tensor:
        """log Z of the base: the cumulants of all layers."""
        with torch.no_grad():
            parts = [unit.log_partition(base) for unit, base in zip(self.dbm.layers, self.bases, strict=True)]
            return torch.stack(parts).sum()

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws of the odd layers of the base: uniform."""
        weight = self.dbm.weights[0]
        noise = layer_noise([self.dbm.layers[i] for i in self.odd.own], weight.new_empty(n, 1), 1, generator)
        layers = [
            self.dbm.layers[i].sample(self.bases[i], part[0]) for i, part in zip(self.odd.own, noise, strict=True)
        ]
        return self.odd.join(layers)

    def complete(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The odd layers given visible states: exact draws for few hidden units, else by clamped sweeps."""
        if x.shape[1:] == self.odd.domain.shape != self.dbm.domain.shape:
            return x.clone()
        hidden = self.dbm.draw_hidden(x, generator=generator)
        return self.odd.join([hidden[i - 1] for i in self.odd.own])

    def noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return self.odd.gibbs_noise(x, steps, generator)

    def log_density(self, x: Tensor, beta: Tensor) -> Tensor:
        """log p*_β of states of the odd layers, `(batch,)`."""
        dbm, values = self.dbm, self.odd.values_of(x)
        seen = dbm.statistics(values)
        total = x.new_zeros(len(x))
        for i, unit in enumerate(dbm.layers):
            layer = values[i]
            if layer is not None:
                total = total - beta * unit.energy(layer, dbm.biases[i])
            else:
                total = total + unit.log_partition(dbm.natural(i, seen).mixed(self.bases[i], beta))
                total = total - beta * unit.constant(dbm.biases[i])
        return total

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Weight from β to the next β, then the even layers and the odd ones drawn there: (x', log weight)."""
        dbm, odd = self.dbm, self.odd
        with torch.no_grad():
            before, after = (torch.as_tensor(b) for b in (beta, next_beta))  # numbers on the host go along for free
            values = odd.values_of(x)
            seen = dbm.statistics(values)
            numbers = dict(zip((*odd.others, *odd.own), noise, strict=True))
            increment = torch.zeros(len(x), dtype=torch.float64, device=x.device)
            own = x.new_zeros(len(x))
            for i in odd.own:
                own = own - dbm.layers[i].energy(values[i], dbm.biases[i])  # type: ignore[arg-type]
            for i in odd.others:
                unit, natural = dbm.layers[i], dbm.natural(i, seen)
                own = own - unit.constant(dbm.biases[i])
                low, high = (natural.mixed(self.bases[i], b) for b in (before, after))
                if isinstance(unit, Bernoulli):  # units first: sums of all of them would cancel in single precision
                    increment += (softplus(high.linear) - softplus(low.linear)).sum(1)
                else:
                    increment += unit.log_partition(high).double() - unit.log_partition(low).double()
                values[i] = unit.sample(high, numbers[i])
            increment += (after - before) * own.double()
            for i in odd.own:
                values[i] = None
            drawn = dbm.resample(values, 1, numbers, beta=after)  # their base is uniform: β natural
            return odd.join([drawn[i] for i in odd.own]), increment  # type: ignore[misc]
