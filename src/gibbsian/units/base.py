"""What a layer of units is, and the random numbers that it is sampled from."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Domain
from gibbsian.errors import check_count
from gibbsian.random import normals, quick_uniforms, require_generator, uniforms
from gibbsian.recorded import Recorded


class Natural(NamedTuple):
    """Natural parameters of a layer: `linear` η and, for real-valued units, `precision` λ. They broadcast to
    `(batch, size)`."""

    linear: Tensor
    precision: Tensor | None = None

    def scaled(self, factor: Tensor) -> "Natural":
        """Both times a number, or one number a row: an inverse temperature."""
        factor = factor.reshape(-1, 1) if factor.dim() else factor
        return Natural(factor * self.linear, None if self.precision is None else factor * self.precision)

    def plus(self, other: "Natural") -> "Natural":
        """The product of two laws."""
        if self.precision is None or other.precision is None:
            return Natural(self.linear + other.linear)
        return Natural(self.linear + other.linear, self.precision + other.precision)

    def mixed(self, base: "Natural", beta: Tensor) -> "Natural":
        """β self + (1-β) base: a member of an annealing path."""
        return self.scaled(beta).plus(base.scaled(1 - beta))


class Unit(Recorded, ABC):
    """One layer of n independent units.

    Attributes:
        n: number of units.
        size: numbers per event, the rows of a weight matrix (n, or n·classes).
        noise: the kind of random numbers that `sample` wants, "uniform" or "normal".
        real: whether the values are unbounded, so that coupling two such layers may have no normalizer.
    """

    noise: ClassVar[str] = "uniform"
    real: ClassVar[bool] = False

    def __init__(self, n: int) -> None:
        super().__init__()
        check_count(self, "n", n)
        self.n = n

    @property
    def size(self) -> int:
        return self.n

    @property
    def linear(self) -> bool:
        """Whether the bias enters the energy linearly, beside bounded statistics."""
        return type(self).natural is Unit.natural and not self.real

    @property
    @abstractmethod
    def domain(self) -> Domain:
        """Where an event of this layer lives."""

    def statistic(self, v: Tensor) -> Tensor:
        """φ(v), `(batch, size)`: what couples to other layers."""
        return v.flatten(1)

    def energy(self, v: Tensor, bias: Tensor) -> Tensor:
        """The layer's own energy, `(batch,)`."""
        return -(v.flatten(1) * bias).sum(1)

    def natural(self, bias: Tensor, input: Tensor | None = None) -> Natural:
        """Natural parameters of exp(-energy(v, bias) + input·φ(v))."""
        return Natural(bias if input is None else bias + input)

    def constant(self, bias: Tensor) -> Tensor:
        """energy(v, bias) minus its natural form: 0 where the energy is linear."""
        return bias.new_zeros(())

    @abstractmethod
    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        """log Σ_v exp(η·φ(v) - ½λ·v²), summed over the layer: `(batch,)`. Its derivative in η is the mean."""

    @abstractmethod
    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        """E[v], shaped like events."""

    @abstractmethod
    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        """v as a function of `noise_size` random numbers a row."""

    def resample(self, natural: Natural, noise: Tensor, v: Tensor, clamp: Tensor | None) -> Tensor:
        """A new v where `clamp` does not hold it, given what it holds."""
        new = self.sample(natural, noise, self.total_of(v))
        return new if clamp is None else torch.where(clamp, v, new)

    def noise_size(self, v: Tensor | None = None) -> int:
        """Random numbers per row that `sample` wants."""
        return self.n

    def total_of(self, v: Tensor) -> Tensor | None:
        """What is conserved while v is resampled: the length of a document for counts, else nothing."""
        return None

    def base(self, like: Tensor) -> Natural:
        """The natural parameters of the simplest law of this unit: uniform, or of unit scale."""
        zero = torch.zeros(self.size, dtype=like.dtype, device=like.device)
        return Natural(zero, zero + 1 if self.real else None)

    @abstractmethod
    def fit_bias(self, data: Tensor) -> Tensor:
        """The bias with which independent units have the means of `data`, `(size,)`."""

    def fit(self, data: Tensor) -> Natural:
        """The natural parameters of independent units fitted to `data`."""
        return self.natural(self.fit_bias(data))

    def extra_repr(self) -> str:
        return str(self.n)


def layer_noise(
    layers: Sequence[Unit],
    x: Tensor,
    steps: int,
    generator: torch.Generator,
    visible: Unit | None = None,
    *,
    quick: bool = False,
) -> tuple[Tensor, ...]:
    """The random numbers of `steps` rounds of sampling each of `layers`: tensors `(steps, chains, numbers)`.

    x gives the number of chains and, for the layer `visible`, the document lengths. On the CPU any cut along
    `steps` gives the same numbers; with `quick`, for training, uniforms cost a third (`random.quick_uniforms`) and
    depend on the cut.
    """
    require_generator(generator, x.device)
    sizes = [len(x) * layer.noise_size(x if layer is visible else None) for layer in layers]

    kinds, how = [layer.noise for layer in layers], {"dtype": x.dtype, "device": x.device}
    if set(kinds) == {"uniform"}:
        parts = _numbers("uniform", steps, sum(sizes), generator, quick, how).split(sizes, dim=1)
    else:  # two kinds of numbers: drawn in turn, or the cut would matter
        each = list(zip(kinds, sizes, strict=True))
        rounds = [[_numbers(kind, 1, size, generator, quick, how) for kind, size in each] for _ in range(steps)]
        parts = tuple(torch.cat(part) if steps > 1 else part[0] for part in zip(*rounds, strict=True))
    return tuple(part.unflatten(1, (len(x), -1)) for part in parts)


def _numbers(kind: str, steps: int, count: int, generator: torch.Generator, quick: bool, how: Any) -> Tensor:
    """Numbers of a kind, `(steps, count)`."""
    if kind == "normal":
        return normals(steps, count, generator, **how)
    if quick:
        return quick_uniforms(steps * count, generator, **how).view(steps, count)
    return uniforms(steps, count, generator, **how)


def pick(probabilities: Tensor, u: Tensor) -> Tensor:
    """Indices drawn from unnormalized probabilities along the last axis by inversion of uniforms u."""
    cumulative = probabilities.cumsum(-1)
    whole = cumulative[..., -1:]
    below = torch.nextafter(whole, torch.zeros_like(whole))  # so that rounding cannot pick past the last mass
    level = torch.minimum(u.unsqueeze(-1) * whole, below)
    return (cumulative <= level).sum(-1)
