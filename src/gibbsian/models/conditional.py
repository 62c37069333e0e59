"""Machines of two layers whose law depends on an input that is always given.

    E(v, h | x) = E_v(v; b(x)) + E_h(h; c(x)) - φ(v)ᵀ W(x) φ(h),    p(v | x) = exp(-F(v | x)) / Z(x)

A machine is a family: `given(x)` is the energy of v for one input, or for one input a row. There is one
partition function per input, and nothing is said about the law of x itself.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Contrast, Filters
from gibbsian.derivatives.known import with_gradients
from gibbsian.domains import Discrete
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, DataError, DomainError, ShapeError, check_tensor
from gibbsian.fast.coins import coins
from gibbsian.fast.logistic import mean_and_softplus
from gibbsian.models.rbm.layers import TwoLayers, finite_layers
from gibbsian.models.rbm.path import RBMPath, visible_base
from gibbsian.placement import check_together
from gibbsian.random import require_generator
from gibbsian.units import Bernoulli, Gaussian, Natural, Unit, layer_noise

_MOST_STATES = 1 << 12  # of the hidden layer, where laws are summed for every input

Terms = tuple[Tensor, ...]  # b(x), c(x), and where W depends on x what it is made of: (size,) or (rows, size)


class Phase(NamedTuple):
    """Data or samples: v, its statistic φ(v), what the weights made of that on the way up, means of h and the sum of softplus of its logits."""

    v: Tensor
    statistic: Tensor
    upward: tuple[Tensor, ...]
    mean: Tensor
    softplus: Tensor | float


def difference(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """(right[0]ᵀ right[1] - left[0]ᵀ left[1]) / n: the gradient of weights between two layers, into one place."""
    n = len(left[0])
    out = torch.addmm(left[0].new_empty(()), left[0].T, left[1], beta=0, alpha=-1 / n)
    return out.addmm_(right[0].T, right[1], alpha=1 / n)


class ConditionalMachine(Energy):
    """A family of machines over v, one for each input. Subclasses say how the input enters, with `terms`, `up`
    and `down`; `visible_bias`, `hidden_bias` are theirs as well."""

    weight: nn.Parameter
    visible_bias: nn.Parameter
    hidden_bias: nn.Parameter

    def __init__(self, visible: int | Unit, hidden: int | Unit) -> None:
        visible, hidden = finite_layers(self, visible, hidden)
        super().__init__(visible.domain)
        self.visible, self.hidden = visible, hidden

    # --- what subclasses say ------------------------------------------------------------------------

    @abstractmethod
    def check_condition(self, condition: Tensor) -> Tensor:
        """The input as `(rows, ...)`; one alone becomes one row. Refuses what does not fit."""

    @abstractmethod
    def terms(self, condition: Tensor) -> Terms:
        """b(x), c(x) and what W(x) needs, each `(size,)` where it does not depend on x, else `(rows, size)`."""

    @abstractmethod
    def up(self, statistic: Tensor, terms: Terms) -> Tensor:
        """φ(v) W(x)."""

    @abstractmethod
    def down(self, statistic: Tensor, terms: Terms) -> Tensor:
        """φ(h) W(x)ᵀ."""

    @abstractmethod
    def logits(self, statistic: Tensor, terms: Terms) -> tuple[Tensor, tuple[Tensor, ...]]:
        """c(x) + up(φ(v)), and what was made on the way that gradients need."""

    @abstractmethod
    def contrast_gradients(
        self, condition: Tensor, terms: Terms, data: Phase, samples: Phase, to_visible: Tensor, to_hidden: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Every parameter with the gradient of F(data).mean() - F(samples).mean() in it; `to_visible` and
        `to_hidden` are those in b(x) and c(x), `(rows, size)`."""

    def split(self, batch: "Tensor | Sequence[Tensor]") -> tuple[Tensor, Tensor]:
        """A batch as (input, observed); here it is that pair itself."""
        if isinstance(batch, Tensor) or len(batch) != 2:
            raise DataError(
                f"{type(self).__name__} learns from pairs (input, output): give data as a tuple of two tensors, or "
                "torch.utils.data.TensorDataset(x, y)"
            )
        x, y = batch
        if len(x) != len(y):
            raise ShapeError(f"{len(x)} inputs met {len(y)} outputs; give one input for every output")
        return x, y

    # --- the family ---------------------------------------------------------------------------------

    def given(self, condition: Tensor) -> "ConditionedMachine":
        """The machine of v for one input, or for several, one for each row of v."""
        return ConditionedMachine(self, condition)

    def forward(self, x: Tensor) -> Tensor:
        raise CapabilityError(
            f"{type(self).__name__} has an energy only given its input: call model.given(input)(v), and train it with "
            "objectives.Conditional(objective)"
        )

    def filters(self) -> Filters:
        """What each hidden unit looks for."""
        return Filters(self.weight)

    def initialize_visible_bias(self, data: Tensor) -> None:
        """Set the visible bias so that the machine without weights has the means of the observed data."""
        self.domain.check(data, "data")
        with torch.no_grad():
            self.visible_bias.copy_(self.visible.fit_bias(data.to(self.visible_bias)))

    def _check_floating(self, condition: Tensor, width: int, what: str) -> None:
        check_tensor(condition, what, "(rows, ...)")
        check_together(condition, self.visible_bias, what, "the visible bias", "machine")
        if condition.shape[-1:] != (width,):
            raise ShapeError(f"{what} has shape {tuple(condition.shape)}, expected {width} numbers a row")


class ConditionedMachine(TwoLayers):
    """The machine of v under given inputs; `forward(v)` is F(v | x) = E_v(v; b(x)) - log Σ_h exp(...).

    With several inputs row i of v belongs to input i; as many rows again (the neighbors of a state, the
    replicas of tempered chains) go through the inputs once more.
    """

    condition: Tensor

    def __init__(self, machine: ConditionalMachine, condition: Tensor) -> None:
        super().__init__(machine.domain)
        condition = machine.check_condition(condition)
        if not len(condition):
            raise ShapeError(f"the inputs have shape {tuple(condition.shape)}; give at least one")
        self.machine = machine
        self.register_buffer("condition", condition, persistent=False)

    @property
    def visible(self) -> Unit:  # type: ignore[override]
        return self.machine.visible

    @property
    def hidden(self) -> Unit:  # type: ignore[override]
        return self.machine.hidden

    @property
    def visible_bias(self) -> Tensor:  # type: ignore[override]
        """b(x), `(size,)` or one a row."""
        return self.terms(len(self.condition))[0]

    def inputs(self) -> Tensor:
        """Those it is under, `(inputs, ...)`."""
        return self.condition

    def repeated(self, times: int) -> Self:
        """The machine for `times` rows of every input: rows 0, n, 2n, ... belong to the first of n inputs."""
        return type(self)(self.machine, self.condition.repeat(times, *[1] * (self.condition.dim() - 1)))

    def terms(self, rows: int) -> Terms:
        """What the inputs contribute, for that many rows of v."""
        terms, n = self.machine.terms(self.condition), len(self.condition)
        if n == 1:
            return tuple(part[0] if part.dim() == 2 else part for part in terms)
        if rows == n:
            return terms
        if rows % n:
            raise ShapeError(f"{n} inputs met {rows} rows; give one input, or one for each row")
        return tuple(part.repeat(rows // n, 1) if part.dim() == 2 else part for part in terms)

    # --- energies -----------------------------------------------------------------------------------

    def hidden_natural(self, v: Tensor, *terms: Tensor) -> Natural:
        """Natural parameters of h given v and x."""
        terms = terms or self.terms(len(v))
        return self.hidden.natural(terms[1], self.machine.up(self.visible.statistic(v), terms))

    def visible_natural(self, h: Tensor, *terms: Tensor) -> Natural:
        """Natural parameters of v given h and x."""
        terms = terms or self.terms(len(h))
        return self.visible.natural(terms[0], self.machine.down(self.hidden.statistic(h), terms))

    def own_energy(self, v: Tensor) -> Tensor:
        """F(v | x) without the cumulant of the hidden layer."""
        return self.visible.energy(v, self.terms(len(v))[0])

    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """F(x) of the machine with joint energy βE(v, h | x); β a number or one per row."""
        terms = self.terms(len(x))
        hidden, own = self.hidden_natural(x, *terms), self.visible.energy(x, terms[0])
        if beta is not None:
            own, hidden = beta * own, hidden.scaled(beta)
        return own - self.hidden.log_partition(hidden)

    def joint(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h | x), `(batch,)`."""
        terms = self.terms(len(v))
        coupling = (self.machine.up(self.visible.statistic(v), terms) * self.hidden.statistic(h)).sum(1)
        return self.visible.energy(v, terms[0]) + self.hidden.energy(h, terms[1]) - coupling

    def hidden_energy(self, h: Tensor) -> Tensor:
        """-log Σ_v exp(-E(v, h | x)): log Z(x) is the log-sum of its negative over h."""
        terms = self.terms(len(h))
        cumulant = self.visible.log_partition(self.visible_natural(h, *terms)) - self.visible.constant(terms[0])
        return self.hidden.energy(h, terms[1]) - cumulant

    # --- exact answers with few hidden units --------------------------------------------------------

    def hidden_law(self) -> tuple[Tensor, Tensor]:
        """Every state of the hidden layer `(states, *event)`, and p(h | x) of each for every input `(states, inputs)`."""
        domain = self.hidden.domain
        if not isinstance(domain, Discrete) or domain.log_size > math.log(_MOST_STATES):
            raise DomainError(
                f"the law of {self.hidden.n} hidden units is a sum over {domain}, more than {_MOST_STATES} states; use "
                "Gibbs sweeps"
            )
        with torch.no_grad():
            n, h = len(self.condition), domain.states(dtype=self.condition.dtype, device=self.condition.device)
            rows = h.repeat_interleave(n, 0)  # inputs run fastest
            return h, torch.softmax(-self.hidden_energy(rows).reshape(len(h), n), 0)

    def exact_mean(self) -> Tensor:
        """E[v | x] for every input, all hidden states summed: `(inputs, *event)`."""
        h, p = self.hidden_law()
        with torch.no_grad():
            means = self.visible_mean(h.repeat_interleave(p.shape[1], 0)).unflatten(0, p.shape)
            return torch.einsum("sn...,sn->n...", means, p)

    def exact_sample(self, *, generator: torch.Generator) -> Tensor:
        """One independent draw of v for every input: h from its law, then v given h."""
        require_generator(generator, self.condition.device)
        h, p = self.hidden_law()
        index = torch.multinomial(p.T, 1, generator=generator).squeeze(1)
        return self.sample_visible(h[index], generator=generator)

    # --- Gibbs sampling -----------------------------------------------------------------------------

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The random numbers of `steps` sweeps, and the inputs' contribution, which all of them share."""
        noise = super().gibbs_noise(x, steps, generator)
        with torch.no_grad():
            return (*noise, *(part.expand(steps, *part.shape) for part in self.terms(len(x))))

    def mean_field(self, iterations: int = 30) -> tuple[Tensor, Tensor]:
        """Means of v and h that agree with each other given x: E[v | h̄, x] and E[h | v̄, x] in turn, from h̄ without v.

        A cheap, biased answer: it follows one mode. `(rows, *event)` of both layers, one row for every input.
        """
        with torch.no_grad():
            n = len(self.condition)
            terms = self.terms(n)
            h = self.hidden.mean(self.hidden.natural(terms[1].expand(n, -1)))
            for _ in range(iterations):
                v = self.visible.mean(self.visible_natural(h, *terms))
                h = self.hidden.mean(self.hidden_natural(v, *terms))
            return v, h

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> RBMPath:
        """The annealing path from independent units to this machine, as `RBM.path`; with neither bias nor data the base is
        the mean-field solution of every input."""
        base = visible_base(self.visible, self.condition, base_bias, data)
        if base is None:
            base = self.visible_natural(self.mean_field()[1])
            base = base if len(self.condition) > 1 else base._replace(linear=base.linear[0])
        return RBMPath(self, base)

    # --- learning -----------------------------------------------------------------------------------

    def contrast(
        self, batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator, *, fused: bool = False
    ) -> Contrast:
        """F(batch | x).mean() - F(samples | x).mean() and the samples, every product done once.

        With Bernoulli hidden units, Bernoulli or Gaussian visible ones and one input a row the gradients
        are known.
        """
        require_generator(generator, batch.device)
        if steps < 1:
            raise ArgumentError(f"contrast(steps={steps}): at least one sweep is needed")
        if chains is not None and len(chains) != len(batch):
            raise ShapeError(f"{len(chains)} chains met {len(batch)} rows; chains share the inputs of the batch")
        known = isinstance(self.hidden, Bernoulli) and isinstance(self.visible, Bernoulli | Gaussian)
        if known and len(self.condition) == len(batch) and not self.condition.requires_grad:
            return self._closed_contrast(batch, chains, steps, generator)
        terms = self.terms(len(batch))
        fixed = tuple(part.detach() for part in terms)
        hidden = self.hidden_natural(batch, *terms)
        low = (self.visible.energy(batch, terms[0]) - self.hidden.log_partition(hidden)).mean()
        v = batch
        if chains is not None:
            v = chains
            with torch.no_grad():
                hidden = self.hidden_natural(v, *fixed)
        for step in range(steps):
            with torch.no_grad():
                up, down = (part[0] for part in layer_noise([self.hidden, self.visible], v, 1, generator, quick=True))
                v = self.visible.sample(self.visible_natural(self.hidden.sample(hidden, up), *fixed), down)
                if step + 1 < steps:
                    hidden = self.hidden_natural(v, *fixed)
        hidden = self.hidden_natural(v, *terms)
        high = (self.visible.energy(v, terms[0]) - self.hidden.log_partition(hidden)).mean()
        return Contrast(low - high, v)

    def _closed_contrast(
        self, batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator
    ) -> Contrast:
        """The same with hardly more than its products: the sweeps hold every number that value and gradient need.

        With a = c(x) + up(φ(v)), p = σ(a): F(v | x) = E_v(v; b(x)) - Σⱼ softplus(aⱼ), ∂F/∂a = -p, ∂F/∂b = -v or
        -(v - b)/σ².
        """
        n, machine, visible = len(batch), self.machine, self.visible
        with torch.no_grad():
            terms = self.terms(n)

            def phase(v: Tensor) -> Phase:
                statistic = visible.statistic(v)
                logits, upward = machine.logits(statistic, terms)
                return Phase(v, statistic, upward, *mean_and_softplus(logits))

            data = phase(batch)
            samples = data if chains is None else phase(chains)
            for _ in range(steps):
                samples = phase(self._sweep(samples.mean, terms, generator))

            to_hidden = (samples.mean - data.mean).div_(n)
            to_visible = (samples.v - batch).div_(n)
            if isinstance(visible, Gaussian):
                own = (visible.energy(batch, terms[0]) - visible.energy(samples.v, terms[0])).mean()
                to_visible.mul_(torch.exp(-2 * visible.log_sigma))
            else:
                own = (to_visible * terms[0]).sum()
            value = own - (data.softplus - samples.softplus) / n
            pairs = machine.contrast_gradients(self.condition, terms, data, samples, to_visible, to_hidden)
            if isinstance(visible, Gaussian) and visible.log_sigma.requires_grad:
                slopes = (self._sigma_slope(visible, one, terms) for one in (data, samples))
                pairs.append((visible.log_sigma, next(slopes) - next(slopes)))
        value, known = with_gradients(value, [p for p, _ in pairs], [g for _, g in pairs])
        return Contrast(value, samples.v, known)

    def _sweep(self, mean: Tensor, terms: Terms, generator: torch.Generator) -> Tensor:
        """h ~ p(h | v, x) of these means, then v ~ p(v | h, x), which is Gaussian or made of coins."""
        visible, n = self.visible, len(mean)
        real = isinstance(visible, Gaussian)
        count = n * (self.hidden.size + (0 if real else visible.size))
        coin = coins(count, generator, dtype=mean.dtype, device=mean.device)
        natural = self.visible_natural(coin.flip(mean), *terms)
        if real:
            return visible.sample(natural, layer_noise([visible], mean, 1, generator)[0][0])
        return coin.flip(visible.mean(natural), over=True)

    def _sigma_slope(self, visible: Gaussian, phase: Phase, terms: Terms) -> Tensor:
        """∂F/∂log σ = -((v - b)/σ)² + φ(v)·down(p), the mean over rows."""
        z = (phase.v - terms[0]) * torch.exp(-visible.log_sigma)
        return torch.addcmul(z.square().neg_(), phase.statistic, self.machine.down(phase.mean, terms)).mean(0)

    def extra_repr(self) -> str:
        return f"inputs={len(self.condition)}"
