"""What a training run returns."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from gibbsian.errors import CapabilityError
from gibbsian.objectives.base import Objective


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
