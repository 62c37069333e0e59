"""Units of several kinds in one layer, such as a label beside binary features."""

import torch
from torch import Tensor, nn

from gibbsian.domains import Discrete, JoinedStates
from gibbsian.domains import Joined as JoinedDomain
from gibbsian.errors import ArgumentError
from gibbsian.units.base import Natural, Unit
from gibbsian.units.categorical import Count


class Joined(Unit):
    """Layers side by side as one: an event is the flat vector of their events, in order.

        log Σ = Σ_parts log Σ_part,   φ(v) = [φ₁(v₁), φ₂(v₂), ...]

    With `Joined(Softmax(1, classes=10), Bernoulli(500))` as visible units an RBM models features together with their
    label: the top of a deep belief network.

    Args:
        parts: layers of any kind but counts, whose length is not fixed.

    >>> from gibbsian.units import Bernoulli, Softmax
    >>> unit = Joined(Softmax(1, classes=2), Bernoulli(2))
    >>> unit.mean(unit.natural(torch.zeros(4), torch.tensor([[0.0, 0.0, 1.0, -1.0]])))
    tensor([[0.5000, 0.5000, 0.7311, 0.2689]])
    >>> unit.domain
    JoinedStates(shape=(4,), parts=(Categorical(shape=(1, 2), classes=2), Binary(shape=(2,))))
    """

    parts: nn.ModuleList

    def __init__(self, *parts: Unit) -> None:
        if not parts or not all(isinstance(part, Unit) and not isinstance(part, Count) for part in parts):
            names = ", ".join(type(part).__name__ for part in parts)
            raise ArgumentError(f"Joined({names}): expected one or more of gibbsian.units, other than Count")
        super().__init__(sum(part.n for part in parts))
        self.parts = nn.ModuleList(parts)
        # one kind of random numbers a layer: normals become uniforms where a part wants those
        self.noise = parts[0].noise if len({part.noise for part in parts}) == 1 else "normal"  # type: ignore[misc]
        self.real = any(part.real for part in parts)  # type: ignore[misc]

    @property
    def layers(self) -> list[Unit]:
        """The parts."""
        return list(self.parts)  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.layers)

    @property
    def domain(self) -> JoinedDomain:
        domains = [part.domain for part in self.layers]
        return (JoinedStates if all(isinstance(domain, Discrete) for domain in domains) else JoinedDomain)(*domains)

    @property
    def linear(self) -> bool:
        return all(part.linear for part in self.layers)

    def split(self, v: Tensor) -> list[Tensor]:
        """The events of the parts."""
        return self.domain.split(v)

    def _cut(self, values: Tensor) -> list[Tensor]:
        return list(values.split([part.size for part in self.layers], -1))

    def _naturals(self, natural: Natural) -> list[Natural]:
        linear = self._cut(natural.linear)
        if natural.precision is None:
            return [Natural(part) for part in linear]
        precision = self._cut(natural.precision)
        return [
            Natural(eta, lam if part.real else None)
            for part, eta, lam in zip(self.layers, linear, precision, strict=True)
        ]

    def _united(self, naturals: list[Natural]) -> Natural:
        linear = torch.cat([natural.linear for natural in naturals], -1)
        if not self.real:
            return Natural(linear)
        precision = [
            natural.linear.new_zeros(part.size) if natural.precision is None else natural.precision
            for part, natural in zip(self.layers, naturals, strict=True)
        ]
        return Natural(linear, torch.cat(precision, -1))

    def statistic(self, v: Tensor) -> Tensor:
        return torch.cat([part.statistic(x) for part, x in zip(self.layers, self.split(v), strict=True)], 1)

    def energy(self, v: Tensor, bias: Tensor) -> Tensor:
        each = zip(self.layers, self.split(v), self._cut(bias), strict=True)
        return torch.stack([part.energy(x, b) for part, x, b in each]).sum(0)

    def natural(self, bias: Tensor, input: Tensor | None = None) -> Natural:
        inputs = [None] * len(self.parts) if input is None else self._cut(input)
        each = zip(self.layers, self._cut(bias), inputs, strict=True)
        return self._united([part.natural(b, i) for part, b, i in each])

    def constant(self, bias: Tensor) -> Tensor:
        return torch.stack([part.constant(b) for part, b in zip(self.layers, self._cut(bias), strict=True)]).sum(0)

    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        each = zip(self.layers, self._naturals(natural), strict=True)
        return torch.stack([part.log_partition(own) for part, own in each]).sum(0)

    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        each = zip(self.layers, self._naturals(natural), strict=True)
        return torch.cat([part.mean(own).flatten(-len(part.domain.shape)) for part, own in each], -1)

    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        drawn = []
        numbers = noise.split([part.noise_size() for part in self.layers], -1)
        for part, own, z in zip(self.layers, self._naturals(natural), numbers, strict=True):
            if part.noise != self.noise:  # Φ(z) is uniform; below 1, as `torch.rand` is
                z = torch.special.ndtr(z).clamp_(max=1 - torch.finfo(z.dtype).eps / 2)
            drawn.append(part.sample(own, z).flatten(1))
        return torch.cat(drawn, 1)

    def base(self, like: Tensor) -> Natural:
        return self._united([part.base(like) for part in self.layers])

    def fit_bias(self, data: Tensor) -> Tensor:
        return torch.cat([part.fit_bias(x) for part, x in zip(self.layers, self.split(data), strict=True)])

    def fit(self, data: Tensor) -> Natural:
        return self._united([part.fit(x) for part, x in zip(self.layers, self.split(data), strict=True)])

    def extra_repr(self) -> str:
        return ""
