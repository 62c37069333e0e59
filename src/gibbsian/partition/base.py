"""The estimate of a log partition function, with what is known about its error, and what estimators ask of models."""

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from gibbsian.capabilities import ConditionedModel, Pairwise, PairwiseModel, PairwiseTables, TabledModel, require
from gibbsian.drawing.html import card, number
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, DivergenceError, ShapeError
from gibbsian.fast import graphs
from gibbsian.placement import STUMBLES, placement


class Parameters:
    """The parameters and buffers that a model had, as digests of their values in single precision.

    >>> import copy
    >>> layer = torch.nn.Linear(1, 1)
    >>> known = Parameters(layer)
    >>> with torch.no_grad():
    ...     _ = layer.weight.add_(1.0)
    >>> known.changed(layer), Parameters(layer).changed(copy.deepcopy(layer))
    (True, False)
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        tensors = [] if model is None else [*model.parameters(), *model.buffers()]
        self.digests = frozenset(_digest(t) for t in tensors if t.numel())

    def changed(self, model: nn.Module) -> bool:
        """Whether the model has other values: one that holds more than those remembered, or fewer, has not."""
        now = Parameters(model).digests
        return bool(now and self.digests) and not (now <= self.digests or self.digests <= now)


def _digest(t: Tensor) -> bytes:
    t = t.detach().float() if t.is_floating_point() else t.detach()
    return hashlib.blake2b(t.cpu().contiguous().numpy().tobytes(), digest_size=16).digest()


@dataclass(frozen=True)
class LogZ:
    """log Z with its uncertainty.

    Attributes:
        value: the estimate, a detached tensor.
        stderr: its standard error; 0 for exact sums, NaN where none is known.
        lower, upper: bounds where the method gives them (±∞ on the open side), three standard errors for
            stochastic estimates, the value itself for exact ones.
        method: which estimator.
        diagnostics: what a person wants to see (effective sample size, convergence, weights, ...).
        parameters: those of the model that it was found for.
    """

    value: Tensor
    stderr: Tensor
    lower: Tensor
    upper: Tensor
    method: str
    diagnostics: dict[str, Any] = field(default_factory=dict)
    parameters: Parameters = field(default_factory=Parameters, compare=False)

    def of(self, model: nn.Module) -> Self:
        """The same, remembered to belong to the model with the parameters that it has now."""
        return replace(self, parameters=Parameters(model))

    def check(self, model: nn.Module) -> None:
        """Raise where the parameters of the model are not those that this was found for."""
        if self.parameters.changed(model):
            raise ArgumentError(
                f"this log Z ({self.method}) belongs to another model, or to earlier parameters of "
                f"{type(model).__name__}, which has been trained or changed since; estimate it again"
            )

    def _repr_html_(self) -> str:
        sides = [number(float(end)) if math.isfinite(float(end)) else "open" for end in (self.lower, self.upper)]
        rows = [("value", number(float(self.value))), ("interval", f"[{sides[0]}, {sides[1]}]")]
        rows += [("standard error", f"{float(self.stderr):.2g}")] if float(self.stderr) > 0 else []
        plain = {k: v for k, v in self.diagnostics.items() if isinstance(v, int | float | str)}
        shown = [(key.replace("_", " "), number(v) if isinstance(v, float) else str(v)) for key, v in plain.items()]
        return card("log Z", [*rows, ("method", self.method), *shown])

    def __repr__(self) -> str:
        interval = f"[{float(self.lower):.4f}, {float(self.upper):.4f}]"
        return f"LogZ({float(self.value):.4f} {interval}, stderr {float(self.stderr):.2g}, {self.method})"


def exactly(value: Tensor, method: str, **diagnostics: Any) -> LogZ:
    """A log Z without error: every bound is the value itself."""
    value = value.detach()
    return LogZ(value, torch.zeros_like(value), value, value, method, diagnostics)


def bounded(
    value: Tensor, method: str, diagnostics: dict[str, Any], lower: Tensor | None = None, upper: Tensor | None = None
) -> LogZ:
    """A log Z whose error nobody knows; a side without a bound is open."""
    inf = torch.full_like(value, math.inf)
    lower, upper = -inf if lower is None else lower, inf if upper is None else upper
    return LogZ(value, torch.full_like(value, math.nan), lower, upper, method, diagnostics)


def require_energy(energy: Any) -> Energy:
    """Refuse what is not an energy."""
    if not isinstance(energy, Energy):
        raise CapabilityError(
            f"{type(energy).__name__} is not an energy, so it has no partition function; wrap functions with "
            "gibbsian.as_energy(function, domain)"
        )
    return energy


def require_one_law(energy: Any) -> None:
    """Refuse what is not an energy, and one whose rows have laws of their own (inputs, labels, temperatures): there is no log Z
    for all of them, and a sum over states would go through them in turn.

    >>> import gibbsian as gb
    >>> require_one_law(gb.models.RBM(3, 2).tempered(torch.tensor([0.5, 1.0])))
    Traceback (most recent call last):
        ...
    gibbsian.errors.ShapeError: 2 temperatures met 1 rows; give one, or one for each row
    """
    if isinstance(require_energy(energy), ConditionedModel) and len(energy.inputs()) > 1:
        raise CapabilityError(
            f"there are {len(energy.inputs())} inputs and one log Z for each: use partition.exact_each or ais_each, "
            "or given() with one input"
        )
    dtype, device = placement(energy)
    try:
        with torch.no_grad():
            energy(energy.domain.sample(1, generator=torch.Generator(device).manual_seed(0), dtype=dtype))
    except ShapeError:  # one row is too few for several laws
        raise
    except STUMBLES:  # hidden units beyond summing, documents of any length: said where it matters
        return


def pairwise(energy: Energy) -> Pairwise:
    """All units of a machine, hidden ones too, as {0, 1} units with the same log Z.

    >>> import gibbsian as gb
    >>> pairwise(gb.models.RBM(3, 2)).weight.shape
    torch.Size([6])
    """
    advice = (
        "this estimator takes machines of discrete units with pairwise weights, such as a BoltzmannMachine, an Ising "
        "model, or an RBM with Bernoulli or Spin units. Use partition.ais or partition.exact"
    )
    return require(energy, PairwiseModel, "a pairwise form", advice).pairwise()


def tables(energy: Energy) -> PairwiseTables:
    """All units of a machine, hidden ones too, with tables for every unit and pair and the same log Z.

    >>> import gibbsian as gb
    >>> tables(gb.models.Potts(3, states=4)).weight.shape
    torch.Size([3, 3, 3])
    """
    return energy.pairwise_tables() if isinstance(energy, TabledModel) else pairwise(energy).tables()


def refuse_nan(value: Tensor, what: str) -> None:
    """Raise where a sum or mean of exponentials came out as NaN or +∞: an energy was NaN or -∞."""
    if graphs.capturing(value):
        return
    if not bool((value < math.inf).all()):  # False for NaN
        raise DivergenceError(
            f"{what} is {float(value.flatten()[0]):g}: some energies are NaN or -∞, so this is not a finite "
            "measure; check the parameters of the energy"
        )
