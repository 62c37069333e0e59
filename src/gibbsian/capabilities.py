"""What a model may know about itself, besides its energy: one small protocol for each thing.

Whoever needs one asks for it (`isinstance(model, Sampleable)`, or `require`), and never for a class by name. A model
has a capability by having its methods; nothing has to be registered or inherited.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from gibbsian.errors import CapabilityError

__all__ = [
    "Annealable",
    "BoundedModel",
    "Classifier",
    "ContrastiveModel",
    "Family",
    "GibbsModel",
    "Moves",
    "NoiseLevels",
    "Normalized",
    "Pairwise",
    "PairwiseModel",
    "Path",
    "Sampleable",
    "SiteModel",
    "SummableModel",
    "require",
]


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
class GibbsModel(Protocol):
    """Knows exact block conditionals and can sweep over all of them."""

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any:
        """The random numbers of `steps` sweeps, a tuple of tensors with leading axis `steps`."""

    def gibbs_sweep(self, x: Tensor, noise: Any, free: Tensor | None) -> Tensor:
        """Resample every block once in turn; entries where `free` is False keep their value."""


@runtime_checkable
class SiteModel(Protocol):
    """Knows the exact conditional of any one two-valued unit cheaply."""

    def site_logits(self, x: Tensor, site: int | Tensor) -> Tensor:
        """log p(xᵢ = 1 | rest) - log p(xᵢ = other | rest), `(chains,)`, at one flat site, or at one per row."""


@runtime_checkable
class ContrastiveModel(Protocol):
    """Shares products between its Gibbs sweeps and its energy gradient: the fast path of contrastive divergence."""

    def contrast(
        self, batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """E(batch).mean() - E(samples).mean(), differentiable in the parameters, and the samples: `steps` Gibbs
        sweeps from `chains`, or from the batch itself where that is None."""


@runtime_checkable
class BoundedModel(Protocol):
    """Bounds the sum over its hidden variables where it cannot do it."""

    def sums_exactly(self) -> bool:
        """Whether `forward` is within reach."""

    def log_mass_bound(self, x: Tensor) -> Tensor:
        """A lower bound on log Σ_h exp(-E(x, h)), `(batch,)`."""


@runtime_checkable
class Family(Protocol):
    """A family of energies or score fields: `given(index)` picks one (a class, a noise level, an input)."""

    def given(self, index: Any) -> Any:
        """The member at `index`."""


@runtime_checkable
class Classifier(Protocol):
    """Knows p(y | x)."""

    def class_log_prob(self, x: Tensor) -> Tensor:
        """log p(y | x), `(batch, classes)`."""


@runtime_checkable
class NoiseLevels(Protocol):
    """A family of models of blurred data, one for each noise level."""

    sigmas: Tensor  # falling

    def given(self, index: Any) -> Any:
        """The member at a noise level σ."""


@runtime_checkable
class SummableModel(Protocol):
    """A machine whose log Z is a sum over another, smaller set of variables as well."""

    def sides(self) -> Sequence[Any]:
        """Energies with the same log Z as this one, each over other variables: one layer with the others summed out."""


class Moves(Protocol):
    """What the runner of annealing needs of a path."""

    def noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any:
        """The random numbers of `steps` calls of `anneal`, a tuple of tensors with that leading axis."""

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Weight, then move: (x' after a transition that leaves p_next invariant, log p*_next(x) - log p*_β(x))."""


class Path(Moves, Protocol):
    """A path of laws from a base whose log Z is known, at β = 0, to a model, at β = 1."""

    def log_z0(self) -> Tensor:
        """log Z of the base."""

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws of the base."""


@runtime_checkable
class Annealable(Protocol):
    """Knows its own path to a base, along which its moves are exact."""

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> Path:
        """The path from a base with this bias, or fitted to data."""


class Pairwise(NamedTuple):
    """A graph of {0, 1} units in float64, log p*(x) = constant + b·x + Σ_edges w_ij x_i x_j: `bias` (n,), `edges` (2, m)
    with the smaller unit first, `weight` (m,)."""

    bias: Tensor
    edges: Tensor
    weight: Tensor
    constant: Tensor


@runtime_checkable
class PairwiseModel(Protocol):
    """A machine of two-valued units, hidden ones among them, with pairwise weights."""

    def pairwise(self) -> Pairwise:
        """All its units as {0, 1} units, with the same log Z."""


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
    names = [n for base in capability.__mro__ for n in (*vars(base).get("__annotations__", {}), *vars(base))]
    own = dict.fromkeys(n for n in names if not n.startswith("_"))
    calls = []
    for name in own:
        code = getattr(getattr(capability, name, None), "__code__", None)
        taken = (
            "" if code is None else f"({', '.join(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])})"
        )
        calls.append(name + taken)
    return " and ".join(calls)
