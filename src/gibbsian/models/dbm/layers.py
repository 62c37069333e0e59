"""Layers of units, each coupled to the next one: what a deep Boltzmann machine is made of.

E(h⁰, h¹, ..., h^L) = Σₗ Eₗ(hˡ) - Σₗ φ(h^{l-1})ᵀ Wˡ φ(hˡ),   h⁰ = v
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Path
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError
from gibbsian.units import Natural, Unit, layer_noise


class LayeredMachine(Energy):
    """Conditionals, partial sums and half-sweeps of layers in a row; see `DBM` for the attributes."""

    layers: Sequence[Unit]
    weights: nn.ParameterList
    biases: nn.ParameterList

    @abstractmethod
    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> Path:
        """The annealing path of the machine."""

    def natural(self, layer: int, seen: Sequence[Tensor | None]) -> Natural:
        """Natural parameters of a layer given the statistics φ of its neighbors; other entries are not looked at."""
        unit, bias = self.layers[layer], self.biases[layer]
        linear = type(unit).natural is Unit.natural  # bias + input: the bias goes into the product
        field = bias if linear else None
        for other in (layer - 1, layer + 1):
            if 0 <= other < len(self.layers):
                x = seen[other]
                if x is None:
                    raise ArgumentError(f"layer {layer} has no conditional while layer {other} is unknown")
                weight = self.weights[other] if other < layer else self.weights[layer].T
                field = x @ weight if field is None else torch.addmm(field, x, weight)
        return Natural(field) if linear and field is not None else unit.natural(bias, field)

    def statistics(self, values: Sequence[Tensor | None]) -> list[Tensor | None]:
        """φ of the values of each layer."""
        return [None if x is None else unit.statistic(x) for unit, x in zip(self.layers, values, strict=True)]

    def mass(self, values: Sequence[Tensor | None], beta: Tensor | None = None) -> Tensor:
        """log Σ exp(-βE) over the layers that are None, with these values of the others, `(batch,)`.

        No two neighbors may be None; β is a number or one per row.
        """
        seen = self.statistics(values)
        terms = []
        for i, (unit, x) in enumerate(zip(self.layers, values, strict=True)):
            if x is None:
                natural = self.natural(i, seen)
                terms.append(unit.log_partition(natural if beta is None else natural.scaled(beta)))
                own = -unit.constant(self.biases[i])
            else:
                own = -unit.energy(x, self.biases[i])
                if i + 1 < len(seen) and seen[i + 1] is not None:
                    own = own + (seen[i] @ self.weights[i] * seen[i + 1]).sum(1)
            terms.append(own if beta is None else beta * own)
        return sum(terms[1:], terms[0])

    def resample(
        self,
        values: Sequence[Tensor | None],
        parity: int,
        noise: dict[int, Tensor],
        *,
        clamp: dict[int, Tensor] | None = None,
        beta: Tensor | None = None,
        visible: bool = True,
    ) -> list[Tensor | None]:
        """Half a sweep: the layers of a parity drawn given the others, where not clamped; v is left out on request."""
        seen, out = self.statistics(values), list(values)
        for i in range(parity if visible or parity else 2, len(self.layers), 2):
            natural = self.natural(i, seen)
            natural = natural if beta is None else natural.scaled(beta)
            old = values[i]
            if old is None:
                out[i] = self.layers[i].sample(natural, noise[i])
            else:
                out[i] = self.layers[i].resample(natural, noise[i], old, None if clamp is None else clamp.get(i))
        return out

    def linear_biases(self) -> bool:
        """Whether all biases enter the energy linearly, as those of Bernoulli, Spin and Softmax units do."""
        return all(unit.linear for unit in self.layers)

    def layer_parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        """Weights and biases, from below."""
        return list(self.weights), list(self.biases)

    def numbers(self, v: Tensor, generator: torch.Generator) -> dict[int, Tensor]:
        """The random numbers for one draw of every layer."""
        return {i: part[0] for i, part in enumerate(layer_noise(list(self.layers), v, 1, generator, self.layers[0]))}
