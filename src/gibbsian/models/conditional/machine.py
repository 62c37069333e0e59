"""Machines of two layers whose law depends on an input that is always given.

    E(v, h | x) = E_v(v; b(x)) + E_h(h; c(x)) - φ(v)ᵀ W(x) φ(h),    p(v | x) = exp(-F(v | x)) / Z(x)

A machine is a family: `given(x)` is the energy of v for one input, or for one input a row. There is one
partition function per input, and nothing is said about the law of x itself.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Contrast, Filters
from gibbsian.domains import Discrete
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, DataError, DomainError, ShapeError
from gibbsian.models.annealing import AnnealedMachine
from gibbsian.models.conditional.contrast import Phase, Terms, closed_contrast, has_closed_contrast
from gibbsian.models.rbm.hidden import HiddenMarginal
from gibbsian.models.rbm.path import RBMPath, visible_base
from gibbsian.placement import check_together
from gibbsian.random import require_generator
from gibbsian.units import Count, Natural, Unit, as_unit, layer_noise

_MOST_STATES = 1 << 12  # of the hidden layer, where laws are summed for every input


class ConditionalMachine(Energy):
    """A family of machines over v, one for each input. Subclasses say how the input enters, with `terms`, `up`
    and `down`; `visible_bias`, `hidden_bias` are theirs as well."""

    weight: nn.Parameter
    visible_bias: nn.Parameter
    hidden_bias: nn.Parameter

    def __init__(self, visible: int | Unit, hidden: int | Unit) -> None:
        visible, hidden = copy.deepcopy(as_unit(visible, "visible")), copy.deepcopy(as_unit(hidden, "hidden"))
        if isinstance(visible, Count) or isinstance(hidden, Count) or hidden.real:
            raise ArgumentError(
                f"{type(self).__name__} takes hidden units of a finite kind (Bernoulli, Spin, Softmax) and visible "
                f"units other than counts, got {type(visible).__name__} and {type(hidden).__name__}"
            )
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
        if not isinstance(condition, Tensor):
            raise ArgumentError(f"{what} is a {type(condition).__name__}, expected a tensor")
        check_together(condition, self.visible_bias, what, "the visible bias", "machine")
        if condition.shape[-1] != width:
            raise ShapeError(f"{what} has shape {tuple(condition.shape)}, expected {width} numbers a row")


class ConditionedMachine(Energy):
    """The machine of v under given inputs; `forward(v)` is F(v | x) = E_v(v; b(x)) - log Σ_h exp(...).

    With several inputs row i of v belongs to input i; as many rows again (the neighbors of a state, the
    replicas of tempered chains) go through the inputs once more.
    """

    condition: Tensor

    def __init__(self, machine: ConditionalMachine, condition: Tensor) -> None:
        super().__init__(machine.domain)
        self.machine = machine
        self.register_buffer("condition", machine.check_condition(condition), persistent=False)

    @property
    def visible(self) -> Unit:
        """The visible units."""
        return self.machine.visible

    @property
    def hidden(self) -> Unit:
        """The hidden units."""
        return self.machine.hidden

    @property
    def visible_bias(self) -> Tensor:
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

    def check_proper(self) -> None:
        """Finite hidden units: there always is a normalizer."""

    def hidden_natural(self, v: Tensor, terms: Terms | None = None) -> Natural:
        """Natural parameters of h given v and x."""
        terms = self.terms(len(v)) if terms is None else terms
        return self.hidden.natural(terms[1], self.machine.up(self.visible.statistic(v), terms))

    def visible_natural(self, h: Tensor, terms: Terms | None = None) -> Natural:
        """Natural parameters of v given h and x."""
        terms = self.terms(len(h)) if terms is None else terms
        return self.visible.natural(terms[0], self.machine.down(self.hidden.statistic(h), terms))

    def own_energy(self, v: Tensor) -> Tensor:
        """F(v | x) without the cumulant of the hidden layer."""
        return self.visible.energy(v, self.terms(len(v))[0])

    def _free_energy(self, v: Tensor, hidden: Natural, terms: Terms) -> Tensor:
        return self.visible.energy(v, terms[0]) - self.hidden.log_partition(hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.free_energy(x)

    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """F(x) of the machine with joint energy βE(v, h | x); β a number or one per row."""
        terms = self.terms(len(x))
        hidden = self.hidden_natural(x, terms)
        if beta is None:
            return self._free_energy(x, hidden, terms)
        return beta * self.visible.energy(x, terms[0]) - self.hidden.log_partition(hidden.scaled(beta))

    def joint(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h | x), `(batch,)`."""
        terms = self.terms(len(v))
        coupling = (self.machine.up(self.visible.statistic(v), terms) * self.hidden.statistic(h)).sum(1)
        return self.visible.energy(v, terms[0]) + self.hidden.energy(h, terms[1]) - coupling

    def hidden_energy(self, h: Tensor) -> Tensor:
        """-log Σ_v exp(-E(v, h | x)): log Z(x) is the log-sum of its negative over h."""
        terms = self.terms(len(h))
        cumulant = self.visible.log_partition(self.visible_natural(h, terms)) - self.visible.constant(terms[0])
        return self.hidden.energy(h, terms[1]) - cumulant

    # --- conditionals -------------------------------------------------------------------------------

    def hidden_unit(self) -> Unit:
        """The hidden units."""
        return self.hidden

    def hidden_mean(self, v: Tensor) -> Tensor:
        """E[h | v, x]."""
        return self.hidden.mean(self.hidden_natural(v))

    def visible_mean(self, h: Tensor) -> Tensor:
        """E[v | h, x]."""
        return self.visible.mean(self.visible_natural(h))

    def sample_hidden(self, v: Tensor, *, generator: torch.Generator) -> Tensor:
        """h ~ p(h | v, x)."""
        with torch.no_grad():
            (noise,) = layer_noise([self.hidden], v, 1, generator)
            return self.hidden.sample(self.hidden_natural(v), noise[0])

    def sample_visible(self, h: Tensor, *, generator: torch.Generator) -> Tensor:
        """v ~ p(v | h, x)."""
        with torch.no_grad():
            (noise,) = layer_noise([self.visible], h, 1, generator)
            return self.visible.sample(self.visible_natural(h), noise[0])

    def reconstruct(self, v: Tensor) -> Tensor:
        """E[v | E[h | v, x], x]: one mean-field pass up and down."""
        return self.visible_mean(self.hidden_mean(v))

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
        noise = layer_noise([self.hidden, self.visible], x, steps, generator, self.visible)
        with torch.no_grad():
            return (*noise, *(part.expand(steps, *part.shape) for part in self.terms(len(x))))

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """h ~ p(h | v, x), then v ~ p(v | h, x) where not `clamp`; at joint energy βE where β is given."""
        with torch.no_grad():
            hidden = self.hidden_natural(x, noise[2:])
            h = self.hidden.sample(hidden if beta is None else hidden.scaled(beta), noise[0])
            visible = self.visible_natural(h, noise[2:])
            return self.visible.resample(visible if beta is None else visible.scaled(beta), noise[1], x, clamp)

    def annealed(self, beta: Tensor | float) -> Energy:
        """The machine with joint energy βE(v, h | x), β a number or one per row."""
        return AnnealedMachine(self, beta)

    def marginals(self) -> Sequence[Energy]:
        """The visible layer, and the hidden one."""
        return [self, HiddenMarginal(self)]

    def mean_field(self, iterations: int = 30) -> tuple[Tensor, Tensor]:
        """Means of v and h that agree with each other given x: E[v | h̄, x] and E[h | v̄, x] in turn, from h̄ without v.

        A cheap, biased answer: it follows one mode. `(rows, *event)` of both layers, one row for every input.
        """
        with torch.no_grad():
            n = len(self.condition)
            terms = self.terms(n)
            h = self.hidden.mean(self.hidden.natural(terms[1].expand(n, -1)))
            for _ in range(iterations):
                v = self.visible.mean(self.visible_natural(h, terms))
                h = self.hidden.mean(self.hidden_natural(v, terms))
            return v, h

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> RBMPath:
        """The annealing path from independent units to this machine, as `RBM.path`.

        Args:
            base_bias: the visible bias of the base.
            data: fit the base to it instead. Left out both, the base is the mean-field solution of every input.
        """
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
        if has_closed_contrast(self, self.condition, len(batch)):
            return closed_contrast(self.machine, self, self.condition, batch, chains, steps, generator)
        terms = self.terms(len(batch))
        fixed = tuple(part.detach() for part in terms)
        hidden = self.hidden_natural(batch, terms)
        low = self._free_energy(batch, hidden, terms).mean()
        v = batch
        if chains is not None:
            v = chains
            with torch.no_grad():
                hidden = self.hidden_natural(v, fixed)
        for step in range(steps):
            with torch.no_grad():
                up, down = (part[0] for part in layer_noise([self.hidden, self.visible], v, 1, generator, quick=True))
                v = self.visible.sample(self.visible_natural(self.hidden.sample(hidden, up), fixed), down)
                if step + 1 < steps:
                    hidden = self.hidden_natural(v, fixed)
        high = self._free_energy(v, self.hidden_natural(v, terms), terms).mean()
        return Contrast(low - high, v)

    def extra_repr(self) -> str:
        return f"inputs={len(self.condition)}"
