"""The settings of a training run, and what it returns."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.objectives.base import Objective
from gibbsian.training.guard import Guard

__all__ = ["Run", "Settings"]

PRECISIONS = (None, "bf16", "tf32")


@dataclass(frozen=True)
class Settings:
    """What of a run is written into its folder and comes back on resume; see `gibbsian.fit`."""

    steps: int
    batch_size: int
    lr: float | tuple[float, float]
    optimizer: Any
    schedule: Any
    seed: int
    ema: float | None
    clip: float | None
    precision: str | None
    validate_every: int
    checkpoint_every: int
    keep_last: int
    keep_best: bool
    log_every: int
    guard: Guard | None
    tensorboard: bool
    compile: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "validate_every", "checkpoint_every", "keep_last", "log_every"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ArgumentError(f"{name}={value!r}: must be a whole number from 1 on")
        if self.precision not in PRECISIONS:
            raise ArgumentError(
                f"precision={self.precision!r}: expected None, 'bf16' (half-precision products) or 'tf32' "
                "(CUDA); 'fp16' is not offered, its range is too small for energies"
            )
        rates = self.lr if isinstance(self.lr, tuple) else (self.lr,)
        if len(rates) > 2 or not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise ArgumentError(
                f"lr={self.lr}: the learning rate must be positive and finite, such as 1e-3, or a pair of such: "
                "that of the energy and that of what the objective learns itself"
            )
        if self.clip is not None and not self.clip > 0:
            raise ArgumentError(f"clip={self.clip}: the largest gradient norm must be positive, or None")
        if self.guard is not None and not isinstance(self.guard, Guard):
            raise ArgumentError(f"guard is a {type(self.guard).__name__}; give True, False or a Guard(...)")


@dataclass
class Run:
    """A training run: what `fit` returns, and what hooks see while it goes on.

    Attributes:
        energy: the trained energy, the object that was given.
        objective: the objective, as it is now (the guard may have softened it).
        state: the objective's state: chains, buffers, what it learns itself.
        folder: the run folder, or None.
        history: records as in `metrics.jsonl`, numbers and events.
        step: updates done.
        ema: the energy with averaged weights, or None.
        metrics: the last step's loss and metrics, tensors still on the device.
    """

    energy: Any
    objective: Objective
    state: Any
    folder: Path | None
    history: list[dict[str, Any]]
    step: int = 0
    ema: Any = None
    metrics: dict[str, Tensor] = field(default_factory=dict)

    @property
    def log_z(self) -> Tensor:
        """The log Z that the objective learned along with the energy."""
        value = self.objective.log_z(self.state)
        if value is None:
            raise CapabilityError(
                f"{type(self.objective).__name__} learns no log Z; estimate it with gibbsian.partition"
            )
        return value.detach()

    @property
    def chains(self) -> Tensor:
        """The persistent chains `(slots, *event)`, such as a replay buffer, that the objective keeps in its state."""
        found = self.objective.chains_of(self.state)
        if found is None:
            raise CapabilityError(
                f"{type(self.objective).__name__} keeps no chains; train with "
                "objectives.PersistentContrastiveDivergence, alone or as a part of objectives.Weighted"
            )
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the guard saw and did."""
        return [record for record in self.history if "event" in record]

    def __repr__(self) -> str:
        where = f" in {self.folder}" if self.folder else ""
        what = f"{type(self.energy).__name__}, {type(self.objective).__name__}"
        return f"Run({what}, {self.step} steps{where}, {len(self.events)} events)"
