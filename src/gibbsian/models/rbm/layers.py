"""A visible layer coupled to a hidden one: what RBMs, and machines that are RBMs given their input, have in common."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gibbsian.domains import Domain
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError
from gibbsian.models.annealing import Machine
from gibbsian.placement import explained
from gibbsian.units import Count, Natural, Unit, as_unit, layer_noise


def copied(visible: int | Unit, hidden: int | Unit) -> tuple[Unit, Unit]:
    """Both layers of a machine, as units of its own."""
    return copy.deepcopy(as_unit(visible, "visible")), copy.deepcopy(as_unit(hidden, "hidden"))


def finite_layers(owner: object, visible: int | Unit, hidden: int | Unit) -> tuple[Unit, Unit]:
    """Both layers of a machine whose hidden units have finitely many values."""
    visible, hidden = copied(visible, hidden)
    if isinstance(visible, Count) or isinstance(hidden, Count) or hidden.real:
        raise ArgumentError(
            f"{type(owner).__name__} takes hidden units of a finite kind (Bernoulli, Spin, Softmax) and visible units "
            f"other than counts, got {type(visible).__name__} and {type(hidden).__name__}"
        )
    return visible, hidden


class TwoLayers(Machine):
    """Conditionals and sweeps of two layers. Subclasses say what the natural parameters of each are given the other,
    and may take what stands behind the random numbers of `gibbs_noise` as further arguments."""

    visible: Unit
    hidden: Unit
    visible_bias: Tensor
    hidden_natural: Callable[..., Natural]  # of h given v
    visible_natural: Callable[..., Natural]  # of v given h
    own_energy: Callable[..., Tensor]  # F(v) without the cumulant of the hidden layer

    def check_proper(self) -> None:
        """Raise where the law has no normalizer; with finite hidden units there always is one."""

    @explained
    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """The free energy of the machine with joint energy βE; β a number or one per row."""
        self.check_proper()
        own, hidden = self.own_energy(x), self.hidden_natural(x)
        if beta is not None:
            own, hidden = beta * own, hidden.scaled(beta)
        return own - self.hidden.log_partition(hidden)

    @abstractmethod
    def hidden_energy(self, h: Tensor) -> Tensor:
        """The energy of the hidden layer alone, -log Σ_v exp(-E(v, h)): log Z is the log-sum of its negative."""

    def hidden_unit(self) -> Unit:
        """The hidden units."""
        return self.hidden

    @explained
    def hidden_mean(self, v: Tensor) -> Tensor:
        """E[h | v]; for Bernoulli units the activation probabilities."""
        return self.hidden.mean(self.hidden_natural(v))

    def visible_mean(self, h: Tensor, *, total: Tensor | None = None) -> Tensor:
        """E[v | h]; for counts of a document of `total` words."""
        return self.visible.mean(self.visible_natural(h), total)

    @explained
    def sample_hidden(self, v: Tensor, *, generator: torch.Generator) -> Tensor:
        """h ~ p(h | v)."""
        with torch.no_grad():
            (noise,) = layer_noise([self.hidden], v, 1, generator)
            return self.hidden.sample(self.hidden_natural(v), noise[0])

    def sample_visible(self, h: Tensor, *, generator: torch.Generator, total: Tensor | None = None) -> Tensor:
        """v ~ p(v | h); for counts documents of `total` words (a number, or one per row)."""
        with torch.no_grad():
            natural = self.visible_natural(h)
            if total is None:
                (noise,) = layer_noise([self.visible], h, 1, generator)
                return self.visible.sample(natural, noise[0])
            words = torch.as_tensor(total, dtype=h.dtype, device=h.device).expand(len(h))
            (noise,) = layer_noise([self.visible], words[:, None], 1, generator, self.visible)
            return self.visible.sample(natural, noise[0], words)

    @explained
    def reconstruct(self, v: Tensor) -> Tensor:
        """E[v | E[h | v]]: one mean-field pass up and down."""
        return self.visible_mean(self.hidden_mean(v), total=self.visible.total_of(v))

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The random numbers of `steps` sweeps: for the hidden layer, and for the visible."""
        self.check_proper()
        return layer_noise([self.hidden, self.visible], x, steps, generator, self.visible)

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """h ~ p(h | v), then v ~ p(v | h) where not `clamp`; at joint energy βE where β is given."""
        up, down, *given = noise
        with torch.no_grad():
            hidden = self.hidden_natural(x, *given)
            h = self.hidden.sample(hidden if beta is None else hidden.scaled(beta), up)
            visible = self.visible_natural(h, *given)
            return self.visible.resample(visible if beta is None else visible.scaled(beta), down, x, clamp)

    def marginals(self) -> Sequence[Energy]:
        """The visible layer, and the hidden one."""
        return [self, HiddenMarginal(self)]


class HiddenMarginal(Energy):
    """The hidden layer of a machine that has `hidden_energy`; `total` is the length of documents for counts."""

    def __init__(self, machine: Any, total: int | None = None, domain: Domain | None = None) -> None:
        super().__init__(machine.hidden.domain if domain is None else domain)
        self.machine = machine
        self.total = None if total is None else torch.tensor(float(total))

    def forward(self, x: Tensor) -> Tensor:
        return self.machine.hidden_energy(x) if self.total is None else self.machine.hidden_energy(x, total=self.total)
