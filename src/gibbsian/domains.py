"""What x is: its shape, its support, the measure it is summed or integrated against.

A domain is declared once with the energy and checked where a kernel, an objective or an estimator meets
it, never inside a hot step. All of them take an int (a vector) or a shape.

>>> Binary(3).states().shape
torch.Size([8, 3])
>>> Box(2, low=-1.0, high=1.0).contains(torch.zeros(4, 2)).all()
tensor(True)
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, DomainError, ShapeError, as_numbers, check_count, check_tensor
from gibbsian.random import check_draws

__all__ = [
    "Binary", "Box", "Categorical", "Counts", "Domain", "Joined", "JoinedStates", "NonNegative", "Real", "Spin",
]  # fmt: skip

Bound = float | tuple[float, ...]


def _as_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
    if not sizes:
        raise ArgumentError("a domain needs at least one axis, got shape ()")
    return tuple(check_count("a domain, made from a whole number or a tuple of them", "shape", s) for s in sizes)


def _axes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _size(shape: tuple[int, ...]) -> str:
    return str(shape[0]) if len(shape) == 1 else str(shape)


@dataclass(frozen=True)
class Domain(ABC):
    """The space of one event x; a batch has shape `(batch, *shape)`."""

    shape: tuple[int, ...]
    discrete: ClassVar[bool] = False
    hint: ClassVar[str] = ""

    def __init__(self, shape: int | tuple[int, ...]) -> None:
        object.__setattr__(self, "shape", _as_shape(shape))

    @property
    def numel(self) -> int:
        """Numbers in one event."""
        return math.prod(self.shape)

    @abstractmethod
    def contains(self, x: Tensor) -> Tensor:
        """Element-wise: does this entry lie in the support? Same shape as x."""

    @abstractmethod
    def sample(self, n: int, *, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
        """Reference draws `(n, *shape)`: uniform where that is a law, else a unit-scale one."""

    def within_walls(self, x: Tensor) -> Tensor:
        """x, with entries beyond a wall put on it; as it is where there are no walls."""
        return x

    def check_clamp(self, clamp: Tensor) -> None:
        """Raise where a mask, of the event shape or with leading axes, holds a part of what only moves as a whole."""
        return

    def check_shape(self, x: Tensor, name: str = "x") -> None:
        """Raise unless x is a non-empty batch of events of this domain."""
        check_tensor(x, name, f"(batch, {_axes(self.shape)})")
        if x.dim() == 0 or tuple(x.shape[1:]) != self.shape:
            extra = " (add a batch axis: x[None])" if tuple(x.shape) == self.shape else ""
            raise ShapeError(
                f"{name} has shape {tuple(x.shape)}, expected (batch, {_axes(self.shape)}) for {self}{extra}"
            )
        if len(x) == 0:
            raise ShapeError(f"{name} is an empty batch of shape {tuple(x.shape)}; give at least one row")
        if not x.is_floating_point():
            raise DomainError(f"{name} has dtype {x.dtype}, expected a floating dtype; call {name}.float() first")

    def holds(self, x: Tensor) -> bool:
        """Whether all entries lie inside the support."""
        return bool(self.contains(x).all())

    def check(self, x: Tensor, name: str = "x") -> None:
        """Raise unless x is a non-empty batch of finite events inside the support."""
        self.check_shape(x, name)
        if self.holds(x):
            return
        inside = self.contains(x)
        position = tuple((~inside).nonzero()[0].tolist())
        value = float(x[position])
        count = int((~inside).sum())
        what, hint = f"lies outside {self}", self.hint
        if not math.isfinite(value):
            what, hint = "is not finite", "remove or replace such rows"
        raise DomainError(
            f"{name}[{', '.join(map(str, position))}] = {value:g} {what} ({count} of {x.numel()} entries); {hint}"
        )

    def __str__(self) -> str:
        return f"{type(self).__name__}({_size(self.shape)})"


@dataclass(frozen=True, init=False)
class Real(Domain):
    """All of R^d, Lebesgue measure. Reference draws are standard normal."""

    hint: ClassVar[str] = "every finite number is allowed"

    def contains(self, x: Tensor) -> Tensor:
        return torch.isfinite(x)

    def sample(self, n: int, *, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
        n = check_draws(n, generator)
        return torch.randn(n, *self.shape, generator=generator, dtype=dtype, device=generator.device)


class Bounded(Domain):
    """Continuous with walls: kernels reflect at them exactly."""

    @abstractmethod
    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper walls as tensors that broadcast against x; the upper may be infinite."""

    def within_walls(self, x: Tensor) -> Tensor:
        return torch.clamp(x, *self.bounds(x))


def _bound(value: object, shape: tuple[int, ...], name: str) -> Bound:
    t = as_numbers("Box", name, value, torch.float64)
    if not bool(torch.isfinite(t).all()):
        raise ArgumentError(f"{name} of a box must be finite, got {value}; use Real or NonNegative for open sides")
    if t.dim() == 0:
        return float(t)
    if tuple(t.shape) != shape:
        raise ShapeError(f"{name} of a box has shape {tuple(t.shape)}, expected a number or the event shape {shape}")
    ends: tuple[float, ...] = tuple(t.flatten().tolist())
    return ends[0] if len(set(ends)) == 1 else ends  # one box is one domain, however its bounds were written


@dataclass(frozen=True, init=False)
class Box(Bounded):
    """A product of intervals [low, high], Lebesgue measure; bounds are numbers or tensors of the event shape."""

    low: Bound
    high: Bound
    hint: ClassVar[str] = "rescale the data into the box, or declare a larger one"

    def __init__(self, shape: int | tuple[int, ...], low: object = 0.0, high: object = 1.0) -> None:
        super().__init__(shape)
        object.__setattr__(self, "low", _bound(low, self.shape, "low"))
        object.__setattr__(self, "high", _bound(high, self.shape, "high"))
        lo, hi = self.bounds(torch.zeros(1, dtype=torch.float64))
        if not bool((lo < hi).all()):
            raise ArgumentError(f"a box needs low < high everywhere, got low={self.low}, high={self.high}")

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = (
            torch.full((), bound, dtype=x.dtype, device=x.device)  # on the device, so that a CUDA graph can hold it
            if isinstance(bound, float)
            else torch.as_tensor(bound, dtype=x.dtype, device=x.device).reshape(self.shape)
            for bound in (self.low, self.high)
        )
        return low, high

    @property
    def log_volume(self) -> float:
        """log of the Lebesgue volume."""
        low, high = self.bounds(torch.zeros(1, dtype=torch.float64))
        return float((high - low).expand(self.shape).log().sum())

    def contains(self, x: Tensor) -> Tensor:
        low, high = self.bounds(x)
        return (x >= low) & (x <= high)

    def sample(self, n: int, *, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
        n = check_draws(n, generator)
        u = torch.rand(n, *self.shape, generator=generator, dtype=dtype, device=generator.device)
        low, high = self.bounds(u)
        return torch.minimum(low + (high - low) * u, high)  # rounding may pass the wall

    def __str__(self) -> str:
        low, high = (b if isinstance(b, float) else "..." for b in (self.low, self.high))
        return f"Box({_size(self.shape)}, low={low}, high={high})"


@dataclass(frozen=True, init=False)
class NonNegative(Bounded):
    """[0, ∞)^d, Lebesgue measure. Reference draws are exponential with rate 1."""

    hint: ClassVar[str] = "shift the data, take its exponential, or declare Real"

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros((), dtype=x.dtype, device=x.device), torch.full((), math.inf, dtype=x.dtype, device=x.device)

    def contains(self, x: Tensor) -> Tensor:
        return (x >= 0) & torch.isfinite(x)

    def sample(self, n: int, *, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
        n = check_draws(n, generator)
        x = torch.empty(n, *self.shape, dtype=dtype, device=generator.device)
        return x.exponential_(generator=generator)


class Discrete(Domain):
    """Finitely many states, counting measure: enumerable in a stream when small."""

    discrete: ClassVar[bool] = True

    @property
    @abstractmethod
    def log_size(self) -> float:
        """log of the number of states."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of states, exactly."""

    @abstractmethod
    def decode(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """The states at these positions of the enumeration, `(len(index), *shape)`."""

    def chunks(
        self, rows: int = 1 << 16, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
    ) -> Iterator[Tensor]:
        """All states in blocks of at most `rows`, never all at once."""
        if self.size > 1 << 40:
            raise DomainError(f"{self} has 2^{self.log_size / math.log(2):.0f} states, too many to enumerate")
        for start in range(0, self.size, rows):
            index = torch.arange(start, min(start + rows, self.size), device=device)
            yield self.decode(index, dtype or torch.get_default_dtype())

    def states(self, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Tensor:
        """All states at once `(size, *shape)`, the last unit changing fastest; at most 2^20 of them."""
        if self.size > 1 << 20:
            raise DomainError(
                f"{self} has 2^{self.log_size / math.log(2):.0f} states, too many for one tensor; stream them with chunks()"
            )
        return torch.cat(list(self.chunks(1 << 20, dtype=dtype, device=device)))


class _TwoValued(Discrete):
    """Units with two values."""

    low: ClassVar[float]

    @property
    def size(self) -> int:
        return 1 << self.numel

    @property
    def log_size(self) -> float:
        return self.numel * math.log(2)

    def decode(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        shifts = torch.arange(self.numel - 1, -1, -1, device=index.device)
        bits = ((index[:, None] >> shifts) & 1).to(dtype)
        return (self.low + (1 - self.low) * bits).reshape(-1, *self.shape)

    def contains(self, x: Tensor) -> Tensor:
        return (x == self.low) | (x == 1)

    def holds(self, x: Tensor) -> bool:
        # (x - low)(x - 1) is 0 nowhere else, also rounded; a seventh of the time that comparisons take on a CPU
        product = torch.addcmul(x, x, x, value=-1) if self.low == 0 else x.square().sub_(1)
        return float(product.abs_().max()) == 0

    def sample(self, n: int, *, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
        n = check_draws(n, generator)
        bits = torch.randint(
            2, (n, *self.shape), generator=generator, dtype=dtype or torch.get_default_dtype(), device=generator.device
        )
        return self.low + (1 - self.low) * bits


@dataclass(frozen=True, init=False)
class Binary(_TwoValued):
    """{0, 1}^n, counting measure."""

    low: ClassVar[float] = 0.0
    hint: ClassVar[str] = (
        "binarize first: binarize='sample' (x > u, stochastic) or binarize='threshold' (x > 0.5) "
        "through gibbsian.data.binarize"
    )


@dataclass(frozen=True, init=False)
class Spin(_TwoValued):
    """{-1, +1}^n, counting measure."""

    low: ClassVar[float] = -1.0
    hint: ClassVar[str] = "map {0, 1} to {-1, +1} with 2 * x - 1, after binarizing gray values"


@dataclass(frozen=True, init=False)
class Categorical(Discrete):
    """Units with `classes` values each, one-hot: an event has shape `(*shape, classes)`.

    >>> domain = Categorical(2, classes=3)
    >>> domain.one_hot(torch.tensor([[0, 2]]))
    tensor([[[1., 0., 0.],
             [0., 0., 1.]]])
    """

    classes: int
    hint: ClassVar[str] = "encode integer labels with domain.one_hot(labels)"

    def __init__(self, shape: int | tuple[int, ...], classes: int) -> None:
        classes = check_count(self, "classes", classes, 2)
        super().__init__((*_as_shape(shape), classes))
        object.__setattr__(self, "classes", classes)

    @property
    def units(self) -> int:
        """Number of categorical units."""
        return self.numel // self.classes

    @property
    def size(self) -> int:
        return int(self.classes**self.units)

    @property
    def log_size(self) -> float:
        return self.units * math.log(self.classes)

    def one_hot(self, labels: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """Integer labels `(batch, *units)` as one-hot events."""
        try:
            return torch.nn.functional.one_hot(labels.long(), self.classes).to(dtype or torch.get_default_dtype())
        except (AttributeError, RuntimeError):
            check_tensor(labels, "labels", "(batch, *units)")
            lowest, highest = int(labels.min()), int(labels.max())
            if lowest < 0 or highest >= self.classes:
                what = f"labels run from {lowest} to {highest}, expected 0 to {self.classes - 1}"
                raise DomainError(f"{what} for {self}") from None
            raise

    def check_clamp(self, clamp: Tensor) -> None:
        torn = clamp.any(-1) & ~clamp.all(-1)
        if bool(torn.any()):
            raise ArgumentError(
                f"clamp holds some entries of a one-hot unit of {self} and leaves others free ({int(torn.sum())} units), but "
                f"the entries of a unit change together; hold whole units, by one bool for each: shape {self.shape[:-1]}"
            )

    def labels(self, x: Tensor) -> Tensor:
        """One-hot events as integer labels."""
        return x.argmax(-1)

    def decode(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        powers = self.classes ** torch.arange(self.units - 1, -1, -1, device=index.device)
        labels = (index[:, None] // powers) % self.classes
        return self.one_hot(labels.reshape(-1, *self.shape[:-1]), dtype=dtype)

    def contains(self, x: Tensor) -> Tensor:
        one_hot = (((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1)).unsqueeze(-1)
        return one_hot.expand_as(x)

    def sample(self, n: int, *, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
        n = check_draws(n, generator)
        labels = torch.randint(self.classes, (n, *self.shape[:-1]), generator=generator, device=generator.device)
        return self.one_hot(labels, dtype=dtype)

    def __str__(self) -> str:
        return f"Categorical({_size(self.shape[:-1])}, classes={self.classes})"


@dataclass(frozen=True, init=False)
class Joined(Domain):
    """Several domains side by side, their events flattened into one vector; enumerable as `JoinedStates`.

    >>> Joined(Categorical(1, classes=2), Real(1)).contains(torch.tensor([[0.0, 1.0, 0.3], [1.0, 1.0, 0.3]]))
    tensor([[ True,  True,  True],
            [False, False,  True]])
    """

    parts: tuple[Domain, ...]
    hint: ClassVar[str] = "every part has the values of its own domain"

    def __init__(self, *parts: Domain) -> None:
        if not parts:
            raise ArgumentError("Joined() needs at least one domain")
        super().__init__(sum(part.numel for part in parts))
        object.__setattr__(self, "parts", parts)

    def split(self, x: Tensor) -> list[Tensor]:
        """The events of the parts, each in its own shape."""
        pieces = x.split([part.numel for part in self.parts], -1)
        return [piece.unflatten(-1, part.shape) for piece, part in zip(pieces, self.parts, strict=True)]

    def within_walls(self, x: Tensor) -> Tensor:
        pairs = zip(self.split(x), self.parts, strict=True)
        return torch.cat([part.within_walls(piece).flatten(1) for piece, part in pairs], -1)

    def check_clamp(self, clamp: Tensor) -> None:
        for part, piece in zip(self.parts, self.split(clamp), strict=True):
            part.check_clamp(piece)

    def contains(self, x: Tensor) -> Tensor:
        pairs = zip(self.split(x), self.parts, strict=True)
        return torch.cat([part.contains(piece).flatten(1) for piece, part in pairs], -1)

    def sample(self, n: int, *, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
        return torch.cat([part.sample(n, generator=generator, dtype=dtype).flatten(1) for part in self.parts], 1)

    def __str__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.parts))})"


def partly_discrete(domain: Domain) -> bool:
    """Is there any entry that real noise must not be added to?

    >>> [partly_discrete(Joined(part, Real(1))) for part in (Real(2), Binary(2))]
    [False, True]
    """
    return domain.discrete or (isinstance(domain, Joined) and any(map(partly_discrete, domain.parts)))


@dataclass(frozen=True, init=False)
class JoinedStates(Joined, Discrete):
    """Discrete domains side by side: their states are all pairs of states.

    >>> JoinedStates(Categorical(1, classes=2), Binary(1)).states()
    tensor([[1., 0., 0.],
            [1., 0., 1.],
            [0., 1., 0.],
            [0., 1., 1.]])
    """

    parts: tuple[Discrete, ...]

    @property
    def size(self) -> int:
        return math.prod(part.size for part in self.parts)

    @property
    def log_size(self) -> float:
        return sum(part.log_size for part in self.parts)

    def decode(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        pieces: list[Tensor] = []
        for part in reversed(self.parts):
            pieces.append(part.decode(index % part.size, dtype).flatten(1))
            index = index // part.size
        return torch.cat(pieces[::-1], 1)


@dataclass(frozen=True, init=False)
class Counts(Domain):
    """Word counts of documents: whole numbers from 0 on, which add up to `total` where that is given.

    The measure counts the orders of the words: Σ over n of N!/Πn_k! exp(-E(n)), so that an energy of counts is
    the energy of one ordered document.

    >>> Counts(2, total=2).states()
    tensor([[2., 0.],
            [1., 1.],
            [0., 2.]])
    """

    total: int | None
    discrete: ClassVar[bool] = True
    hint: ClassVar[str] = "counts are whole numbers from 0 on, and every row adds up to the total where one is declared"

    def __init__(self, words: int, total: int | None = None) -> None:
        super().__init__(words)
        if total is not None:
            total = check_count(self, "total", total)
        object.__setattr__(self, "total", total)

    def contains(self, x: Tensor) -> Tensor:
        whole = (x >= 0) & (x == x.floor()) & torch.isfinite(x)
        return whole if self.total is None else whole & (x.sum(-1, keepdim=True) == self.total)

    def _length(self) -> int:
        if self.total is None:
            raise ArgumentError(f"{self} holds documents of any length; declare one with Counts(words, total=N)")
        return self.total

    def log_orders(self, x: Tensor) -> Tensor:
        """log(N!/Πn_k!), the number of orders of the words of each row."""
        return torch.lgamma(x.sum(-1) + 1) - torch.lgamma(x + 1).sum(-1)

    def states(self, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Tensor:
        """All counts that add up to `total`; at most 2^20 of them."""
        total, words = self._length(), self.numel
        if math.comb(total + words - 1, words - 1) > 1 << 20:
            raise DomainError(f"{self} has {math.comb(total + words - 1, words - 1)} states, too many for one tensor")
        end = total + words - 1
        bars = itertools.combinations(range(end), words - 1)
        rows = [tuple(b - a - 1 for a, b in itertools.pairwise((-1, *cut, end))) for cut in bars]
        return torch.tensor(sorted(rows, reverse=True), dtype=dtype or torch.get_default_dtype(), device=device)

    def sample(self, n: int, *, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
        n = check_draws(n, generator)
        words = torch.randint(self.numel, (n, self._length()), generator=generator, device=generator.device)
        counts = torch.zeros(n, self.numel, dtype=dtype or torch.get_default_dtype(), device=generator.device)
        return counts.scatter_add_(1, words, torch.ones_like(words, dtype=counts.dtype))

    def __str__(self) -> str:
        return f"Counts({self.numel}, total={self.total})"
