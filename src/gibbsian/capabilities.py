"""What a model may know about itself, besides its energy: one small protocol for each thing.

Whoever needs one asks for it (`isinstance(model, Sampleable)`, or `require`), and never for a class by name. A model
has a capability by having its methods; nothing has to be registered or inherited. What is no method is a plain value:
from Python 3.12 on `isinstance` does not see the tensors and modules of a module.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from gibbsian.errors import CapabilityError

__all__ = [
    "ActiveModel", "Annealable", "Bonds", "BoundedModel", "ClampedModel", "Classifier", "ClusterModel", "ConditionallySampleable",
    "ConditionedModel", "Contrast", "ContrastiveModel", "CountedClasses", "DocumentModel", "DrawableModel",
    "DroppableModel", "Estimate", "Family", "FieldModel", "Filters", "GapModel", "GibbsModel", "HiddenModel", "InitializableModel", "Jet",
    "JointModel", "LabeledModel", "LatentModel", "LayerContrast", "LayeredModel", "Multiple", "NeighborModel", "NoiseLevels",
    "Normalized", "Pairwise", "PairwiseModel", "PairwiseTables", "Path", "PicturedModel", "ReconstructingModel", "Sampleable", "Scaled",
    "SiteModel", "SplittingModel", "SubsampledModel", "SummableModel", "TabledModel", "TaylorModule", "VariationalModel", "WakeSleep",
    "WakeSleepModel", "WindowModel",
    "require",
]  # fmt: skip


# --- what a law knows --------------------------------------------------------------------------------


@runtime_checkable
class Normalized(Protocol):
    """Knows its partition function."""

    def log_z(self) -> Tensor:
        """log Z = log ∫ exp(-E)."""


@runtime_checkable
class Sampleable(Protocol):
    """Draws exactly from its own law."""

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact independent draws `(n, *event)`."""


@runtime_checkable
class ConditionallySampleable(Protocol):
    """Draws exactly from its own law with some entries held."""

    def sample_conditional(self, x: Tensor, clamp: Tensor, *, generator: torch.Generator) -> Tensor:
        """x with the entries of each row that `clamp` does not hold drawn given those that it does."""


@runtime_checkable
class DrawableModel(Protocol):
    """Knows how its own chains are best run."""

    def draw(
        self,
        n: int,
        *,
        steps: int = 1000,
        start: Tensor | None = None,
        clamp: Tensor | None = None,
        label: int | Tensor | None = None,
        generator: torch.Generator,
    ) -> Tensor | None:
        """n draws `(n, *event)` after `steps` sweeps of a chain each, from `start`, entries of it where `clamp` is True
        held, of a class where the model knows classes. Refuses with a `CapabilityError` what it cannot do; None where
        chains of a kernel serve as well."""


@runtime_checkable
class Multiple(Protocol):
    """A multiple of one energy in every row, so that what is known at one factor is known at all."""

    def multipliers(self) -> Tensor:
        """β, a number or one per row."""


@runtime_checkable
class Scaled(Protocol):
    """Knows its scale, so that chains can be started with steps that fit."""

    def masses(self) -> Tensor:
        """One over the variances `(numel,)`, or the precision `(numel, numel)`: what Hamiltonian moves take as masses."""


# --- one law of many ---------------------------------------------------------------------------------


@runtime_checkable
class Family(Protocol):
    """A family of energies or score fields: `given(index)` picks one (a class, a noise level, an input)."""

    def given(self, index: Any) -> Any:
        """The member at `index`."""


@runtime_checkable
class NoiseLevels(Family, Protocol):
    """A family of models of blurred data, one for each noise level: `given(sigma)`."""

    def noise_levels(self) -> Tensor:
        """The ladder of σ, falling."""


@runtime_checkable
class Classifier(Protocol):
    """Knows p(y | x)."""

    def class_log_prob(self, x: Tensor) -> Tensor:
        """log p(y | x), `(batch, classes)`."""


@runtime_checkable
class CountedClasses(Protocol):
    """Knows how many classes its labels run through."""

    classes: int


@runtime_checkable
class JointModel(Classifier, Family, Protocol):
    """Knows p(y | x), and with `given(y)` the law of x under a class."""


@runtime_checkable
class ConditionedModel(Protocol):
    """A law under several inputs at once, row i of x under input i and further rows through the inputs again: one log Z
    for every input."""

    def inputs(self) -> Tensor:
        """All of them, `(inputs, ...)`."""

    def repeated(self, times: int) -> Self:
        """The law for `times` rows of every input: rows 0, n, 2n, ... belong to the first of n inputs."""


@runtime_checkable
class DocumentModel(Protocol):
    """A law of word counts, whose log Z may depend on the length of the document."""

    def of_length(self, total: int) -> Any:
        """An energy whose log Z normalizes documents of `total` words; the model itself where one log Z serves all."""


# --- moves of chains ---------------------------------------------------------------------------------


@runtime_checkable
class GibbsModel(Protocol):
    """Knows exact block conditionals and can sweep over all of them."""

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any:
        """The random numbers of `steps` sweeps, a tuple of tensors with leading axis `steps`."""

    def gibbs_sweep(self, x: Tensor, noise: Any, clamp: Tensor | None) -> Tensor:
        """Resample every block once in turn; entries where `clamp` is True keep their value."""


@runtime_checkable
class SiteModel(Protocol):
    """Knows the exact conditional of any one unit cheaply."""

    def site_logits(self, x: Tensor, site: int | Tensor) -> Tensor:
        """log p(xᵢ = 1 | rest) - log p(xᵢ = other | rest), `(chains,)`, at one flat site, or at one per row; of
        categorical units log p(xᵢ = a | rest) up to a constant, `(chains, classes)`."""


@runtime_checkable
class SubsampledModel(Protocol):
    """An energy that is a sum over rows of data, whose score can be estimated from some of them."""

    def data_rows(self) -> int:
        """How many there are."""

    def score_estimate(self, x: Tensor, index: Tensor) -> Tensor:
        """s(x) as rows `index` `(chains, n)` tell it, for every chain its own: without bias when they are drawn at random."""


# --- derivatives -------------------------------------------------------------------------------------


class Jet(NamedTuple):
    """A value `(batch, ...)`, its first derivatives `(count, batch or 1, ...)` along `count` directions, and its second
    derivatives summed over the directions `(batch, ...)`; None where they are zero.
    """

    value: Tensor
    first: Tensor
    second: Tensor | None

    def flatten(self, start: int) -> "Jet":
        """The axes of the value from `start` on as one."""
        second = None if self.second is None else self.second.flatten(start)
        return Jet(self.value.flatten(start), self.first.flatten(start + 1), second)

    def squeeze(self, axis: int) -> "Jet":
        """Without an axis of the value that has one entry."""
        second = None if self.second is None else self.second.squeeze(axis)
        return Jet(self.value.squeeze(axis), self.first.squeeze(axis + 1), second)


@runtime_checkable
class TaylorModule(Protocol):
    """A module through which Taylor coefficients can be propagated: second derivatives at a fraction of their price."""

    def taylor_parts(self) -> Sequence[Any]:
        """The modules inside, all of which must have a rule too."""

    def taylor(self, jet: Jet, propagate: Callable[[Any, Jet], Jet]) -> Jet:
        """The jet of `forward` at that of its input; `propagate(part, jet)` leads through a part."""


# --- partition functions -----------------------------------------------------------------------------


@runtime_checkable
class Estimate(Protocol):
    """An estimate of log Z."""

    value: Tensor

    def check(self, model: Any) -> None:
        """Raise where the model's parameters have changed since the estimate was made for it."""


@runtime_checkable
class SummableModel(Protocol):
    """Can sum out some of its variables in closed form, so that log Z is a sum over the others."""

    def marginals(self) -> Sequence[Any]:
        """Energies with the log Z of this model, each over some of its variables with all others summed out; the model
        itself among them where it is one to be summed."""


@runtime_checkable
class BoundedModel(Protocol):
    """Bounds the sum over its hidden variables where it cannot do it."""

    def sums_exactly(self) -> bool:
        """Whether `forward` is within reach."""

    def log_mass_bound(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """A lower bound on log Σ_h exp(-E(x, h)), `(batch,)`; the generator is for bounds that draw."""


class Path(ABC):
    """A path of laws p_β from a base whose log Z is known, at β = 0, to a model, at β = 1, with a move at every β.

    Its states may hold more, or other variables than the model's events: hidden units that are annealed too.
    """

    on_device: ClassVar[bool] = False  # `anneal` never looks at values, so that a GPU can run many without the host

    @abstractmethod
    def log_z0(self) -> Tensor:
        """log Z of the base."""

    @abstractmethod
    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws of the base."""

    @abstractmethod
    def noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any:
        """The random numbers of `steps` calls of `anneal`, a tuple of tensors with that leading axis."""

    @abstractmethod
    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Weight, then move: (x' after a transition that leaves p_next invariant, log p*_next(x) - log p*_β(x))."""

    def complete(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """States of the path from events of the model: hidden variables that the path anneals are drawn given them."""
        return x.clone()

    def tune(self, betas: Tensor, generator: torch.Generator) -> None:  # noqa: B027
        """Fit the moves to a ladder, with chains of their own; nothing where moves have nothing to fit."""


@runtime_checkable
class Annealable(Protocol):
    """Knows its own path to a base, along which its moves are exact."""

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> Path | None:
        """The path from independent units with this bias, or fitted to data; None where it has none for its units."""


@runtime_checkable
class ClampedModel(Protocol):
    """Can be annealed over its hidden units alone, where these are too many to be summed."""

    def sums_exactly(self) -> bool:
        """Whether `forward` is within reach."""

    def hidden_path(self, x: Tensor) -> Path:
        """The path from uniform hidden units to p(h | x) with the rows of x held; `sample(n)` takes the first n rows."""


# --- machines of pairs -------------------------------------------------------------------------------


class Pairwise(NamedTuple):
    """A graph of {0, 1} units in float64, log p*(x) = constant + b·x + Σ_edges w_ij x_i x_j: `bias` (n,), `edges` (2, m)
    with the smaller unit first, `weight` (m,)."""

    bias: Tensor
    edges: Tensor
    weight: Tensor
    constant: Tensor

    @property
    def units(self) -> int:
        """n."""
        return len(self.bias)

    def log_density(self, x: Tensor) -> Tensor:
        """log p*(x) of {0, 1} states `(batch, n)`."""
        return self.constant + x @ self.bias + (x[:, self.edges[0]] * x[:, self.edges[1]]) @ self.weight

    def tables(self) -> "PairwiseTables":
        """The same as tables of one value besides 0."""
        return PairwiseTables(self.bias[:, None], self.edges, self.weight[:, None, None], self.constant)


@runtime_checkable
class PairwiseModel(Protocol):
    """A machine of two-valued units, hidden ones among them, with pairwise weights."""

    def pairwise(self) -> Pairwise:
        """All its units as {0, 1} units, with the same log Z."""


class PairwiseTables(NamedTuple):
    """A graph of units with values 0, 1, …, k in float64, log p*(x) = constant + Σ bᵢ(xᵢ) + Σ_edges w_ij(x_i, x_j), where b and w
    are 0 at the value 0 and so have no entry for it: `bias` (n, k), `edges` (2, m) with the smaller unit first, `weight`
    (m, k, k) with the value of the smaller unit first."""

    bias: Tensor
    edges: Tensor
    weight: Tensor
    constant: Tensor

    @property
    def units(self) -> int:
        """n."""
        return len(self.bias)

    def log_density(self, x: Tensor) -> Tensor:
        """log p*(x) of states `(batch, n, k)`: one-hot without the entry of the value 0; its mean where units are
        independent and x are probabilities."""
        i, j = self.edges
        pairs = self.pull(x[:, i], self.weight) * x[:, j]
        return self.constant + (x * self.bias).flatten(1).sum(1) + pairs.flatten(1).sum(1)

    def pull(self, x: Tensor, weight: Tensor) -> Tensor:
        """Σ_a x(a) w(a, b) of every edge: `(batch, edges, k)` from states of the units that the edges begin at."""
        return x * weight[:, 0] if weight.shape[-1] == 1 else torch.einsum("rea,eab->reb", x, weight)

    def directed(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Every edge in both directions: source, target, weight (source first), and the position of the opposite one."""
        (i, j), m = self.edges, len(self.weight)
        opposite = torch.arange(2 * m, device=i.device).roll(m)
        return torch.cat([i, j]), torch.cat([j, i]), torch.cat([self.weight, self.weight.mT]), opposite


@runtime_checkable
class TabledModel(Protocol):
    """A machine of units with several values each, coupled in pairs."""

    def pairwise_tables(self) -> PairwiseTables:
        """All its units as tables of values, with the same log Z."""


class Bonds(NamedTuple):
    """Pairs of units that like to be equal, log p*(x) = Σ_edges K_e·1[xᵢ = xⱼ] + Σᵢ hᵢ(xᵢ) + constant: `edges` (2, m) in any order, K =
    `strength` (m,), `field` (n, values), or None where there is none. Values of two-valued units are low and high."""

    edges: Tensor
    strength: Tensor
    field: Tensor | None


@runtime_checkable
class ClusterModel(Protocol):
    """A machine whose pairs care only whether they are equal, so that clusters of equal units can move together."""

    def cluster_bonds(self) -> Bonds:
        """All pairs, and what is left for single units."""


# --- learning ----------------------------------------------------------------------------------------


@runtime_checkable
class FieldModel(Protocol):
    """Has an energy that is linear in every unit given the others, so that all conditionals come from one product."""

    def conditional_fields(self, x: Tensor) -> Tensor | None:
        """u = -∂E/∂x, of the shape of x; None where this machine cannot."""

    def field_gradients(self, x: Tensor, weight: Tensor) -> dict[Tensor, Tensor]:
        """The gradients of Σ weight·u in the parameters, which belong to nobody else."""


@runtime_checkable
class GapModel(Protocol):
    """Compares two-valued states with those that differ from them in one unit without forming these."""

    def neighbor_gaps(self, x: Tensor, units: Tensor | None = None) -> Tensor | None:
        """E(x) - E(x̄ᵢ), `(batch, units)`, for all units i or for those that `units` `(count, batch)` names for every row; None
        where this machine cannot."""

    def gap_gradients(self, x: Tensor, weight: Tensor, units: Tensor | None = None) -> dict[Tensor, Tensor]:
        """The gradients of Σ weight·gap in the parameters, which belong to nobody else."""


@runtime_checkable
class NeighborModel(Protocol):
    """Compares states with all that differ from them in one unit in a pass of its own."""

    def neighbor_sums(self, x: Tensor, function: str) -> tuple[Tensor, dict[Tensor, Tensor]] | None:
        """The mean over rows of Σᵢ f(E(x) - E(x̄ᵢ)), x̄ᵢ with unit i flipped, and its gradients in the parameters; f is softplus
        ("pseudo-likelihood"), σ² ("ratio matching") or exp(·/2) ("probability flow"). None where this machine cannot."""


class Contrast(NamedTuple):
    """E(batch).mean() - E(samples).mean(), differentiable in the parameters, and the samples.

    `gradients` maps every parameter that is trained to its gradient, where those are known already; they belong to
    nobody else. None means that `value` is to be differentiated.
    """

    value: Tensor
    samples: Tensor
    gradients: dict[Tensor, Tensor] | None = None


@runtime_checkable
class ContrastiveModel(Protocol):
    """Shares products between its Gibbs sweeps and its energy gradient: the fast path of contrastive divergence."""

    def contrast(
        self, batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator, *, fused: bool = False
    ) -> Contrast:
        """The contrast of a batch and of `steps` Gibbs sweeps from `chains`, or from the batch itself where that is
        None; with `fused` by compiled kernels where the machine has them."""


@runtime_checkable
class LabeledModel(Classifier, GibbsModel, Protocol):
    """A law of inputs with their labels, the classifier exact and the rest by Gibbs sweeps."""

    def pair_energy(self, x: Tensor, y: Tensor) -> Tensor:
        """E(x, y), `(batch,)`."""

    def pair_sweep(self, x: Tensor, y: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """One sweep over inputs and labels, with the numbers of `gibbs_noise`."""


@runtime_checkable
class LatentModel(Family, Protocol):
    """An energy of latent variables z with a decoder: `given(x)` is the energy of their posterior."""

    observed: Any  # the domain of x

    def start(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n latents to begin chains at."""

    def log_prob_given(self, z: Tensor, x: Tensor) -> Tensor:
        """log p(x | z), `(batch,)`."""


@runtime_checkable
class SplittingModel(Protocol):
    """Knows which part of a batch is the input and which is observed."""

    def split(self, batch: Any) -> tuple[Tensor, Tensor]:
        """(input, observed)."""


@runtime_checkable
class InitializableModel(Protocol):
    """Can begin with the means of the data."""

    def initialize_visible_bias(self, data: Tensor) -> None:
        """Set the bias so that the model without weights has the means of the data."""


@runtime_checkable
class WindowModel(Protocol):
    """Is made of windows on rows of data."""

    def stand_on(self, rows: Tensor, generator: torch.Generator) -> None:
        """Put the windows on rows."""

    def standing(self) -> int:
        """How many rows have a window."""

    def left_out(self, index: Tensor) -> Tensor:
        """E of some of those rows, each under the windows of all others, `(rows,)`."""


@runtime_checkable
class DroppableModel(Protocol):
    """A classifier whose units can be left out."""

    def dropping(self, drop: Any) -> Classifier:
        """The classifier with `drop(values, inputs)` between its layers, `inputs` telling data from hidden units."""


# --- machines of layers ------------------------------------------------------------------------------


@runtime_checkable
class ActiveModel(Protocol):
    """Has hidden units whose activity can be looked at."""

    def hidden_mean(self, x: Tensor) -> Tensor:
        """E[h | x], `(batch, *event)`."""


@runtime_checkable
class HiddenModel(ActiveModel, Protocol):
    """Has a hidden layer whose means given x are closed forms."""

    def hidden_unit(self) -> Any:
        """The units of that layer, one of `gibbsian.units`."""


@runtime_checkable
class LayeredModel(Protocol):
    """A machine of layers coupled to their neighbors: its gradient can be centered."""

    def linear_biases(self) -> bool:
        """Whether biases enter the energy linearly, with bounded statistics."""

    def layer_parameters(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The weights between neighbors and the biases of all layers, from the visible one up."""

    def layer_means(self, x: Tensor, steps: int = 10) -> Sequence[Tensor]:
        """E[φ] of every layer given the rows of x, `(batch, size)` each; where mean field is needed by `steps` of it."""


class LayerContrast(NamedTuple):
    """-bound on log p(data) less the same of the chains, and what an update of a machine of layers needs beside it.

    Attributes:
        value: differentiable where gradients are None, else a number.
        weights, biases: gradients in the parameters of `layer_parameters`, owned by nobody else; or None.
        means: E[φ] of every layer given the data, `(batch, size)`.
        chains: the layers of the chains after the sweeps.
        residual: by how much the last mean-field step changed a mean at most.
    """

    value: Tensor
    weights: list[Tensor] | None
    biases: list[Tensor] | None
    means: list[Tensor]
    chains: list[Tensor]
    residual: Tensor


@runtime_checkable
class VariationalModel(LayeredModel, Protocol):
    """A machine of layers that learns from mean-field posteriors of the data and chains of all its layers."""

    def start_layers(self, v: Tensor, generator: torch.Generator, *, encode: bool) -> list[Tensor]:
        """All layers of chains whose visible one is v: hidden ones drawn upwards given it, or from their domains."""

    def layer_contrast(
        self,
        batch: Tensor,
        chains: Sequence[Tensor],
        mean_field_steps: int,
        steps: int,
        generator: torch.Generator,
        *,
        fused: bool = False,
    ) -> LayerContrast:
        """The contrast after mean-field inference for the data and `steps` sweeps of the chains; with `fused` by
        compiled kernels where the machine has them."""


class WakeSleep(NamedTuple):
    """The terms of a step of the contrastive wake-sleep algorithm and their sum, averages over the batch; the sum is
    differentiable, and `gradients` are as in `Contrast`."""

    value: Tensor
    wake: Tensor
    gap: Tensor
    sleep: Tensor
    gradients: dict[Tensor, Tensor] | None


@runtime_checkable
class WakeSleepModel(Protocol):
    """A network that generates downwards and recognizes upwards, with weights for each."""

    classes: int | None

    def check_labels(self, y: Tensor) -> None:
        """Refuse labels that the network has no classes for."""

    def wake_sleep(
        self, x: Tensor, y: Tensor | None, steps: int, generator: torch.Generator, *, fused: bool = False
    ) -> WakeSleep:
        """Up, `steps` sweeps at the top, and down: -log p of the states on the way up, the contrast at the top, -log q
        of those on the way down; labels y where the network has classes."""


# --- looking at a model ------------------------------------------------------------------------------


@runtime_checkable
class ReconstructingModel(Protocol):
    """Says what it makes of an x."""

    def reconstruct(self, x: Tensor) -> Tensor:
        """x as its hidden units see it, of the same shape."""


class Filters(NamedTuple):
    """Weights to be looked at as pictures: `weight` `(numel, count)`, columns in the space of x, or where they are slid
    over images `(count, height, width)`."""

    weight: Tensor
    title: str = "Filters"
    about: str = "What each hidden unit looks for, strongest first: red adds, blue takes away."
    slid: bool = False


@runtime_checkable
class PicturedModel(Protocol):
    """Has weights that can be looked at as pictures."""

    def filters(self) -> Filters:
        """The weights that are nearest to x."""


# --- asking ------------------------------------------------------------------------------------------


C = TypeVar("C")


def require(model: Any, capability: type[C], purpose: str, advice: str = "") -> C:
    """The model, once it is known to have a capability; else a refusal that names the methods that would supply it.

    >>> import gibbsian as gb
    >>> require(gb.energies.Banana(), Classifier, "accuracy")
    Traceback (most recent call last):
        ...
    gibbsian.errors.CapabilityError: accuracy needs a model with class_log_prob(x), which Banana has not
    """
    if isinstance(model, capability):
        return model
    raise CapabilityError(
        f"{purpose} needs a model with {_methods(capability)}, which {type(model).__name__} has not"
        + (f"; {advice}" if advice else "")
    )


def _methods(capability: type) -> str:
    calls: dict[str, str] = {}
    for base in capability.__mro__:
        for name in (*vars(base).get("__annotations__", {}), *vars(base)):
            if not name.startswith("_"):
                member = vars(base).get(name)
                takes = list(inspect.signature(member).parameters)[1:] if inspect.isfunction(member) else None
                calls.setdefault(name, name if takes is None else f"{name}({', '.join(takes)})")
    return " and ".join(calls.values())
