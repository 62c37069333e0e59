"""One directed layer of a deep belief network, with the recognition law that runs against it.

generation   p(x | h) ∝ exp(-E_x(x; g) + φ(x)ᵀ G φ(h)),     recognition   q(h | x) ∝ exp(-E_h(h; r) + φ(x)ᵀ R φ(h))
"""

import copy

import torch
from torch import Tensor, nn

from gibbsian.fast.coins import coins
from gibbsian.fast.logistic import Logistic
from gibbsian.models.rbm.machine import RBM
from gibbsian.random import require_generator
from gibbsian.recorded import Recorded
from gibbsian.units import Bernoulli, Natural, Unit, layer_noise


def layer_log_prob(unit: Unit, x: Tensor, bias: Tensor, input: Tensor) -> Tensor:
    """log p(x) of a layer with a bias (one for counts) and an input from its neighbor, `(batch,)`."""
    total = unit.total_of(x)
    cumulant = unit.log_partition(unit.natural(bias, input), total) - unit.constant(bias)
    return (input * unit.statistic(x)).sum(1) - unit.energy(x, bias) - cumulant


def _input(lower: Unit, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Bias and input of the layer above x; for counts the bias grows with the length of the document."""
    total = lower.total_of(x)
    return bias if total is None else total[:, None] * bias, lower.statistic(x) @ weight


def _coins(p: Tensor, generator: torch.Generator) -> Tensor:
    require_generator(generator, p.device)
    return coins(p.numel(), generator, dtype=p.dtype, device=p.device).flip(p)


def draw(unit: Unit, natural: Natural, generator: torch.Generator, total: Tensor | None = None) -> Tensor:
    """States of a layer, `(batch, *event)`."""
    if type(unit) is Bernoulli:
        return _coins(unit.mean(natural), generator)
    like = natural.linear if total is None else total[:, None]
    (noise,) = layer_noise([unit], like, 1, generator, None if total is None else unit)
    return unit.sample(natural, noise[0], total)


class Directed(Recorded):
    """A layer x below a layer h: generation and recognition with weights of their own, N(0, 0.01²) at first and the same.

    Attributes:
        weight, bias: G `(lower.size, upper.size)` and g, of generation.
        recognition_weight, recognition_bias: R, of the same shape, and r.
    """

    def __init__(self, lower: Unit, upper: Unit, *, generator: torch.Generator) -> None:
        super().__init__()
        self.lower, self.upper = copy.deepcopy(lower), copy.deepcopy(upper)
        weight = 0.01 * torch.randn(lower.size, upper.size, generator=generator, device=generator.device)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(weight.new_zeros(lower.size))
        self.recognition_weight = nn.Parameter(weight.clone())
        self.recognition_bias = nn.Parameter(weight.new_zeros(upper.size))

    def up_input(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Bias and input of h given x."""
        return _input(self.lower, x, self.recognition_weight, self.recognition_bias)

    def down_input(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Bias and input of x given h."""
        return self.bias, self.upper.statistic(h) @ self.weight.T

    def up_mean(self, x: Tensor) -> Tensor:
        """E_q[h | x]."""
        return self.upper.mean(self.upper.natural(*self.up_input(x)))

    def up(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """h ~ q(h | x)."""
        with torch.no_grad():
            if type(self.lower) is type(self.upper) is Bernoulli:
                return _coins(Logistic.of(self.recognition_bias, self.recognition_weight).mean(x), generator)
            return draw(self.upper, self.upper.natural(*self.up_input(x)), generator)

    def down_mean(self, h: Tensor, total: Tensor | None = None) -> Tensor:
        """E[x | h]."""
        return self.lower.mean(self.lower.natural(*self.down_input(h)), total)

    def down(self, h: Tensor, generator: torch.Generator, total: Tensor | None = None) -> Tensor:
        """x ~ p(x | h)."""
        with torch.no_grad():
            return draw(self.lower, self.lower.natural(*self.down_input(h)), generator, total)

    def log_q(self, h: Tensor, x: Tensor) -> Tensor:
        """log q(h | x), `(batch,)`."""
        return layer_log_prob(self.upper, h, *self.up_input(x))

    def log_p(self, x: Tensor, h: Tensor) -> Tensor:
        """log p(x | h), `(batch,)`."""
        return layer_log_prob(self.lower, x, *self.down_input(h))

    def log_p_table(self, x: Tensor, h: Tensor) -> Tensor:
        """log p(x | h) for all pairs, `(rows of x, rows of h)`."""
        bias, input = self.down_input(h)
        natural, total = self.lower.natural(bias, input), self.lower.total_of(x)
        if total is None:
            cumulant = self.lower.log_partition(natural)
        else:  # counts: words are drawn one by one
            cumulant = total[:, None] * self.lower.log_partition(natural, torch.ones_like(total[:1]))
        own = self.lower.energy(x, bias) - self.lower.constant(bias)
        return self.lower.statistic(x) @ input.T - own[:, None] - cumulant


def can_tie(below: Unit, above: Unit) -> bool:
    """Does the hidden layer of a machine repeat the kind of the layer two below it, with room for its units?"""
    room = above.size == below.size or (above.size > below.size and isinstance(above, Bernoulli))
    return type(above) is type(below) and room and not below.real


def tie(machine: RBM, below: Directed) -> None:
    """Turn the RBM below over: W = W_belowᵀ, b = c_below, c = b_below.

    Further hidden units keep small weights, with their mean input at first, ½Σw, taken out of the visible bias, so
    that the law changes to second order only. Label weights start at 0, where labels change nothing.
    """
    n, skip = below.lower.size, machine.visible.size - below.upper.size
    machine.weight[:skip] = 0
    machine.weight[skip:, :n] = below.weight.T
    machine.hidden_bias.zero_()
    machine.hidden_bias[:n] = below.bias
    machine.visible_bias.zero_()
    machine.visible_bias[skip:] = below.recognition_bias
    machine.visible_bias.sub_(0.5 * machine.weight[:, n:].sum(1))


class Upward(Recorded):
    """The mean of a layer given the one below, as a layer of a feed-forward network: weights `(lower.size, upper.size)`."""

    def __init__(self, lower: Unit, upper: Unit) -> None:
        super().__init__()
        self.lower, self.upper = copy.deepcopy(lower), copy.deepcopy(upper)
        self.weight = nn.Parameter(torch.zeros(lower.size, upper.size))
        self.bias = nn.Parameter(torch.zeros(upper.size))

    def forward(self, x: Tensor) -> Tensor:
        return self.upper.mean(self.upper.natural(*_input(self.lower, x, self.weight, self.bias)))
