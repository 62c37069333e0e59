"""Units: what one layer of a machine is made of. A unit supplies energy, cumulant, mean and sampling, and any
RBM or deep machine gains it.

A layer of independent units with natural parameters (η, λ) has the law

    p(v) ∝ exp(η·φ(v) - ½ λ·v²)

where λ only occurs for real-valued units. A neighbouring layer acts through its input I = W φ(h), which adds to
η; an inverse temperature multiplies both; an annealing path mixes them. Samples are functions of given noise,
so that all randomness is drawn in one place.

>>> unit = Bernoulli(2)
>>> natural = unit.natural(torch.zeros(2), torch.tensor([[0.0, 100.0]]))
>>> unit.mean(natural)
tensor([[0.5000, 1.0000]])
>>> unit.sample(natural, torch.tensor([[0.7, 0.7]]))
tensor([[0., 1.]])
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gibbsian import domains
from gibbsian.domains import Domain
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.random import normals, require_generator, uniforms
from gibbsian.recorded import Recorded

__all__ = ["Bernoulli", "Count", "Gaussian", "Natural", "Rectified", "Softmax", "Spin", "Unit", "layer_noise"]

_LOG_2PI = math.log(2 * math.pi)


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


class Unit(Recorded, ABC):
    """One layer of n independent units.

    Attributes:
        n: number of units.
        size: numbers per event, the rows of a weight matrix (n, or n·classes).
        noise: the kind of random numbers that `sample` wants, "uniform" or "normal".
        real: whether the values are unbounded, so that coupling two such layers may have no normaliser.
    """

    noise: ClassVar[str] = "uniform"
    real: ClassVar[bool] = False

    def __init__(self, n: int) -> None:
        super().__init__()
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ArgumentError(f"{type(self).__name__}({n!r}): a layer needs a whole number of units from 1 on")
        self.n = n

    @property
    def size(self) -> int:
        return self.n

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

    def resample(self, natural: Natural, noise: Tensor, v: Tensor, free: Tensor | None) -> Tensor:
        """A new v where `free` is not 0, given the clamped rest."""
        new = self.sample(natural, noise, self.total_of(v))
        return new if free is None else torch.where(free != 0, new, v)

    def noise_size(self, v: Tensor | None = None) -> int:
        """Random numbers per row that `sample` wants."""
        return self.n

    def total_of(self, v: Tensor) -> Tensor | None:
        """What is conserved while v is resampled: the length of a document for counts, else nothing."""
        return None

    def base(self, like: Tensor) -> Natural:
        """The natural parameters of the simplest law of this unit: uniform, or of unit scale."""
        return Natural(torch.zeros(self.size, dtype=like.dtype, device=like.device))

    @abstractmethod
    def fit_bias(self, data: Tensor) -> Tensor:
        """The bias with which independent units have the means of `data`, `(size,)`."""

    def fit(self, data: Tensor) -> Natural:
        """The natural parameters of independent units fitted to `data`."""
        return self.natural(self.fit_bias(data))

    def extra_repr(self) -> str:
        return str(self.n)


def layer_noise(
    layers: Sequence[Unit], x: Tensor, steps: int, generator: torch.Generator, visible: Unit | None = None
) -> tuple[Tensor, ...]:
    """The random numbers of `steps` rounds of sampling each of `layers`: tensors `(steps, chains, numbers)`.

    x gives the number of chains and, for the layer `visible`, the document lengths. On the CPU any cut along
    `steps` gives the same numbers.
    """
    require_generator(generator, x.device)
    sizes = [len(x) * layer.noise_size(x if layer is visible else None) for layer in layers]
    if all(layer.noise == "uniform" for layer in layers):
        block = uniforms(steps, sum(sizes), generator, dtype=x.dtype, device=x.device)
        return tuple(part.unflatten(1, (len(x), -1)) for part in block.split(sizes, dim=1))
    rounds = []
    for _ in range(steps):  # two kinds of numbers: drawn in turn, or the cut would matter
        rounds.append([
            (uniforms if layer.noise == "uniform" else normals)(1, size, generator, dtype=x.dtype, device=x.device)
            for layer, size in zip(layers, sizes, strict=True)
        ])  # fmt: skip
    return tuple(torch.cat(part).unflatten(1, (len(x), -1)) for part in zip(*rounds, strict=True))


def _below(u: Tensor, p: Tensor) -> Tensor:
    """1 where u < p, as floating numbers; written in place, seven times cheaper than (u < p).float()."""
    if torch.compiler.is_compiling():
        return (u < p).to(p.dtype)
    return torch.lt(u, p, out=torch.empty_like(p))


def pick(probabilities: Tensor, u: Tensor) -> Tensor:
    """Indices drawn from unnormalised probabilities along the last axis by inversion of uniforms u."""
    cumulative = probabilities.cumsum(-1)
    whole = cumulative[..., -1:]
    below = torch.nextafter(whole, torch.zeros_like(whole))  # so that rounding cannot pick past the last mass
    level = torch.minimum(u.unsqueeze(-1) * whole, below)
    return (cumulative <= level).sum(-1)


def smoothed_mean(data: Tensor) -> Tensor:
    """Mean of {0, 1} data with one imaginary observation of each value, so that its logit is finite."""
    return (data.sum(0) + 1) / (len(data) + 2)


class Bernoulli(Unit):
    """{0, 1} units: p(v = 1) = σ(η).

    >>> Bernoulli(3).domain
    Binary(shape=(3,))
    """

    @property
    def domain(self) -> Domain:
        return domains.Binary(self.n)

    def energy(self, v: Tensor, bias: Tensor) -> Tensor:
        return -(v @ bias)

    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        return F.softplus(natural.linear).sum(-1)

    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        return torch.sigmoid(natural.linear)

    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        return _below(noise, torch.sigmoid(natural.linear.detach()).expand_as(noise))

    def fit_bias(self, data: Tensor) -> Tensor:
        return torch.logit(smoothed_mean(data))


class Spin(Unit):
    """±1 units: p(v = 1) = σ(2η), mean tanh η.

    >>> Spin(3).domain
    Spin(shape=(3,))
    """

    @property
    def domain(self) -> Domain:
        return domains.Spin(self.n)

    def energy(self, v: Tensor, bias: Tensor) -> Tensor:
        return -(v @ bias)

    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        return torch.logaddexp(natural.linear, -natural.linear).sum(-1)

    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        return torch.tanh(natural.linear)

    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        p = torch.sigmoid(2 * natural.linear.detach()).expand_as(noise)
        return 2 * _below(noise, p) - 1

    def fit_bias(self, data: Tensor) -> Tensor:
        return 0.5 * torch.logit(smoothed_mean((data + 1) / 2))


class Gaussian(Unit):
    """Real units with energy (v - b)²/2σ² and statistic φ(v) = v/σ: given input I, v ~ N(b + σI, σ²).

    Args:
        n: number of units.
        sigma: standard deviation to start from, a number or one per unit; kept as a logarithm, so it stays positive.
        learned: whether σ is trained.

    >>> unit = Gaussian(2, sigma=0.5)
    >>> unit.mean(unit.natural(torch.ones(2), torch.tensor([[0.0, 2.0]]))).detach()
    tensor([[1., 2.]])
    """

    noise: ClassVar[str] = "normal"
    real: ClassVar[bool] = True
    log_sigma: Tensor

    def __init__(self, n: int, sigma: float | Tensor = 1.0, *, learned: bool = True) -> None:
        super().__init__(n)
        value = torch.as_tensor(sigma, dtype=torch.get_default_dtype())
        if value.dim() and value.shape != (n,):
            raise ShapeError(f"sigma has shape {tuple(value.shape)}, expected a number or one per unit: ({n},)")
        if not bool((torch.isfinite(value) & (value > 0)).all()):
            raise ArgumentError(f"Gaussian(sigma={sigma}): a standard deviation must be positive and finite")
        log_sigma = value.log().expand(n).clone()
        if learned:
            self.log_sigma = nn.Parameter(log_sigma)
        else:
            self.register_buffer("log_sigma", log_sigma)

    @property
    def sigma(self) -> Tensor:
        """σ of every unit."""
        return self.log_sigma.exp()

    @property
    def domain(self) -> Domain:
        return domains.Real(self.n)

    def statistic(self, v: Tensor) -> Tensor:
        return v * torch.exp(-self.log_sigma)

    def energy(self, v: Tensor, bias: Tensor) -> Tensor:
        return 0.5 * ((v - bias) * torch.exp(-self.log_sigma)).square().sum(1)

    def natural(self, bias: Tensor, input: Tensor | None = None) -> Natural:
        inverse = torch.exp(-self.log_sigma)
        linear = bias * inverse.square()
        return Natural(linear if input is None else linear + input * inverse, inverse.square())

    def constant(self, bias: Tensor) -> Tensor:
        return 0.5 * (bias * torch.exp(-self.log_sigma)).square().sum(-1)

    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        return 0.5 * (linear.square() / precision + _LOG_2PI - precision.log()).sum(-1)

    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        return linear / precision

    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        return (linear / precision + noise * precision.rsqrt()).detach()

    def base(self, like: Tensor) -> Natural:
        zero = torch.zeros(self.n, dtype=like.dtype, device=like.device)
        return Natural(zero, zero + 1)

    def fit_bias(self, data: Tensor) -> Tensor:
        return data.mean(0)

    def fit(self, data: Tensor) -> Natural:
        spread = data.var(0, correction=0)
        if len(data) < 2 or not bool((spread > 0).all()):
            raise ArgumentError("a Gaussian base needs data that varies in every entry; drop constant columns first")
        return Natural(data.mean(0) / spread, 1 / spread)

    def extra_repr(self) -> str:
        return f"{self.n}, learned={isinstance(self.log_sigma, nn.Parameter)}"


class Rectified(Unit):
    """Non-negative units with energy ½v² - b·v on v ≥ 0: a Gaussian truncated to the half line.

    Its conditionals are exact, N(η/λ, 1/λ) truncated at 0, and its cumulant is η²/2λ + log Φ(η/√λ) + ½ log(2π/λ).
    This is not the noisy rectifier max(0, x + noise) of Nair & Hinton (2010), which has no joint density and so
    no likelihood.

    >>> unit = Rectified(1)
    >>> unit.mean(unit.natural(torch.zeros(1)))  # half-normal: √(2/π)
    tensor([0.7979])
    """

    real: ClassVar[bool] = True

    @property
    def domain(self) -> Domain:
        return domains.NonNegative(self.n)

    def energy(self, v: Tensor, bias: Tensor) -> Tensor:
        return (v * (0.5 * v - bias)).sum(1)

    def natural(self, bias: Tensor, input: Tensor | None = None) -> Natural:
        return Natural(bias if input is None else bias + input, torch.ones_like(bias))

    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        z = linear * precision.rsqrt()
        gaussian = 0.5 * (z.square() + _LOG_2PI - precision.log())
        return (gaussian + torch.special.log_ndtr(z)).sum(-1)

    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        scale = precision.rsqrt()
        return scale * _truncated_mean(linear * scale)

    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        linear, precision = _both(natural)
        scale = precision.rsqrt()
        z = (linear * scale).detach().expand_as(noise)
        return (scale * _truncated_normal(z, noise)).detach()

    def base(self, like: Tensor) -> Natural:
        zero = torch.zeros(self.n, dtype=like.dtype, device=like.device)
        return Natural(zero, zero + 1)

    def fit_bias(self, data: Tensor) -> Tensor:
        """Matches the mean at λ = 1 by bisection: the mean grows with the bias."""
        goal = data.mean(0)
        if not bool((goal > 0).all()):
            raise ArgumentError("a rectified base needs data with a positive mean in every entry; drop columns of zeros")
        low, high = -1 / goal - 10, goal + 10
        for _ in range(80):
            middle = (low + high) / 2
            too_low = _truncated_mean(middle) < goal
            low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
        return (low + high) / 2


def _both(natural: Natural) -> tuple[Tensor, Tensor]:
    if natural.precision is None:
        raise ArgumentError("real-valued units need a precision in their natural parameters; use unit.natural(...)")
    return natural.linear, natural.precision


def _truncated_mean(z: Tensor) -> Tensor:
    """E[x] for x ~ N(z, 1) given x ≥ 0: z + φ(z)/Φ(z), by its asymptotic series where that cancels."""
    far = z < -30
    a = torch.where(far, -z, torch.full_like(z, 30.0))
    series = (1 - (2 - (10 - (74 - 706 / a**2) / a**2) / a**2) / a**2) / a
    near = torch.where(far, torch.zeros_like(z), z)
    direct = near + math.sqrt(2 / math.pi) / torch.special.erfcx(-near / math.sqrt(2))
    return torch.where(far, series, direct)


def _truncated_normal(z: Tensor, u: Tensor) -> Tensor:
    """x ~ N(z, 1) given x ≥ 0, by inversion of a uniform u in [0, 1).

    With t = x - z the condition is Q(t) = (1 - u) Q(-z), Q the upper tail. Far in the tail, where Q underflows,
    Newton's method on log Q, which is concave, decreases to the root from the first step on.
    """
    keep = 1 - u  # in (0, 1]: never 0
    near = torch.clamp(z, min=-4.0)
    direct = -torch.special.ndtri(keep * torch.special.ndtr(near)) + near
    start = torch.clamp(-z, min=4.0)
    level = keep.log() + torch.special.log_ndtr(-start)
    t = start
    for _ in range(6):
        hazard = math.sqrt(2 / math.pi) / torch.special.erfcx(t / math.sqrt(2))
        t = t + (torch.special.log_ndtr(-t) - level) / hazard
    return torch.where(z < -4, t - start, direct).clamp_(min=0)


class Softmax(Unit):
    """Categorical units, one-hot: p(vᵢ = k) = softmax_k(ηᵢₖ). Events are `(n, classes)`; η has n·classes entries.

    >>> Softmax(2, classes=3).domain
    Categorical(shape=(2, 3), classes=3)
    """

    def __init__(self, n: int, classes: int) -> None:
        super().__init__(n)
        if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
            raise ArgumentError(f"Softmax(classes={classes!r}): a categorical unit needs at least two classes")
        self.classes = classes

    @property
    def size(self) -> int:
        return self.n * self.classes

    @property
    def domain(self) -> Domain:
        return domains.Categorical(self.n, self.classes)

    def _groups(self, natural: Natural) -> Tensor:
        return natural.linear.unflatten(-1, (self.n, self.classes))

    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        return torch.logsumexp(self._groups(natural), -1).sum(-1)

    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        return torch.softmax(self._groups(natural), -1)

    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        p = torch.softmax(self._groups(natural).detach(), -1).expand(*noise.shape, self.classes)
        return F.one_hot(pick(p, noise), self.classes).to(p.dtype)

    def fit_bias(self, data: Tensor) -> Tensor:
        return ((data.sum(0) + 1) / (len(data) + self.classes)).log().flatten()

    def extra_repr(self) -> str:
        return f"{self.n}, classes={self.classes}"


class Count(Unit):
    """Word counts of a document (replicated softmax): N words drawn from one softmax, N given.

    The energy is that of the words in their order, so it holds no multinomial coefficient, and there is one
    partition function per N: `log p(n) = log(N!/Πn_k!) - F(n) - log Z_N`. The bias of a hidden layer above is
    multiplied by N. As visible units only.

    Args:
        n: size of the vocabulary.
        total: N where all documents have one length; None for documents of any length.

    Reference: Salakhutdinov & Hinton 2009, Replicated softmax.

    >>> unit = Count(3, total=4)
    >>> unit.domain.contains(torch.tensor([[1.0, 3.0, 0.0]])).all()
    tensor(True)
    """

    def __init__(self, n: int, total: int | None = None) -> None:
        super().__init__(n)
        if total is not None and (isinstance(total, bool) or not isinstance(total, int) or total < 1):
            raise ArgumentError(f"Count(total={total!r}): the number of words must be a whole number from 1 on")
        self.total = total

    @property
    def domain(self) -> Domain:
        return domains.Counts(self.n, self.total)

    def total_of(self, v: Tensor) -> Tensor:
        return v.sum(-1)

    def noise_size(self, v: Tensor | None = None) -> int:
        if v is not None:
            return int(v.sum(-1).max())
        if self.total is None:
            raise ArgumentError("documents of any length: say how many words with total=, or make the unit Count(n, total=N)")
        return self.total

    def _total(self, like: Tensor, total: Tensor | None) -> Tensor:
        if total is None:
            return torch.as_tensor(float(self.noise_size()), dtype=like.dtype, device=like.device)
        return torch.as_tensor(total, dtype=like.dtype, device=like.device)

    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        return self._total(natural.linear, total) * torch.logsumexp(natural.linear, -1)

    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        words = self._total(natural.linear, total)
        return (words[:, None] if words.dim() else words) * torch.softmax(natural.linear, -1)

    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        """N words by inversion of N uniforms, then counted; rows with fewer words leave the rest unused."""
        p = torch.softmax(natural.linear.detach(), -1).expand(len(noise), self.n)
        words = self._total(p, total).expand(len(noise))
        cumulative = p.cumsum(-1)
        whole = cumulative[:, -1:]
        level = torch.minimum(noise * whole, torch.nextafter(whole, torch.zeros_like(whole)))
        index = torch.searchsorted(cumulative, level.contiguous(), right=True)
        used = (torch.arange(noise.shape[1], device=p.device) < words[:, None]).to(p.dtype)
        return torch.zeros_like(p).scatter_add_(1, index, used)

    def resample(self, natural: Natural, noise: Tensor, v: Tensor, free: Tensor | None) -> Tensor:
        if free is None:
            return self.sample(natural, noise, self.total_of(v))
        open_words = (free != 0).expand_as(v)
        linear = natural.linear.expand_as(v).masked_fill(~open_words, -torch.inf)
        linear = torch.where(open_words.any(1, keepdim=True), linear, torch.zeros_like(linear))
        new = self.sample(Natural(linear), noise, (v * open_words).sum(1))
        return torch.where(open_words, new, v)

    def fit_bias(self, data: Tensor) -> Tensor:
        return ((data.sum(0) + 1) / (data.sum() + self.n)).log()

    def extra_repr(self) -> str:
        return f"{self.n}, total={self.total}"


def as_unit(unit: "int | Unit", name: str) -> Unit:
    """A layer: an int means Bernoulli units."""
    if isinstance(unit, Unit):
        return unit
    if isinstance(unit, bool) or not isinstance(unit, int):
        raise ArgumentError(
            f"{name} is a {type(unit).__name__}, expected a number of Bernoulli units or one of gibbsian.units, "
            "such as units.Gaussian(10)"
        )
    if unit < 1:
        raise ArgumentError(f"{name}={unit}: a layer needs at least one unit")
    return Bernoulli(unit)
