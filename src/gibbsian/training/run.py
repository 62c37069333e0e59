"""What a training run is given, grouped as `gibbsian.fit` takes it, and what it returns."""

import math
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gibbsian.drawing.history import history
from gibbsian.drawing.html import card, number
from gibbsian.drawing.style import axes
from gibbsian.errors import ArgumentError, CapabilityError, check_number, hold_counts
from gibbsian.objectives.base import Objective
from gibbsian.placement import placement
from gibbsian.random import check_draws
from gibbsian.training.feeds.base import Loading
from gibbsian.training.guard import Guard
from gibbsian.training.stopping import EarlyStopping

PRECISIONS = (None, "bf16", "tf32")


def _check_rates(lr: Any) -> None:
    rates = lr if isinstance(lr, tuple) else (lr,)
    if len(rates) > 2 or not all(isinstance(rate, Real) and 0 < float(rate) < math.inf for rate in rates):
        raise ArgumentError(
            f"lr={lr}: the learning rate must be positive and finite, such as 1e-3, or a pair of such: "
            "that of the energy and that of what the objective learns itself"
        )


@dataclass(frozen=True)
class Checkpoints:
    """How often a run folder gets a checkpoint, and which ones stay.

    Args:
        every: steps between two checkpoints.
        keep_last: how many of the newest are kept.
        keep_best: also keep the one with the best validation number: the lowest of the first one, or of what early stopping is told to
            look at.
    """

    every: int = 1000
    keep_last: int = 2
    keep_best: bool = False

    def __post_init__(self) -> None:
        hold_counts(self, "every", "keep_last")


@dataclass(frozen=True)
class Logging:
    """How often numbers go into `run.history` and `metrics.jsonl`.

    Args:
        every: steps between two records of the training itself.
        validate_every: steps between two validations.
        tensorboard: also write scalars for TensorBoard into the run folder, as `loggers.TensorBoard()` does.
    """

    every: int = 50
    validate_every: int = 500
    tensorboard: bool = False

    def __post_init__(self) -> None:
        hold_counts(self, "every", "validate_every")


@dataclass(frozen=True)
class Engine:
    """How steps are computed.

    Args:
        precision: "bf16" for half-precision products, "tf32" on CUDA; None for that of the parameters.
        compile: capture steps as CUDA graphs, where launches are what costs; needs batches of one size (others go
            the eager way) and an objective that never waits for the device. With the data on the device, all
            steps up to the next one that is logged, checked or hooked are one graph.
        accumulate: cut every batch into so many parts, whose gradients are added up before the update: a batch that does not
            fit into memory at once. Chains that go on from step to step move once for every part.
        recompute: keep only the inputs of the blocks of networks for the backward pass, and compute the rest again there:
            less memory for a third more work (Chen et al. 2016).
        fuse: captured steps compile networks, and steps of persistent chains as a whole: what stands between two convolutions becomes
            one kernel, and weights of convolutions lie with channels last. A minute or two at first, then about half of the time for
            convolutional networks. Principles that need
            gradients of gradients go without, and say so.
    """

    precision: str | None = None
    compile: bool = False
    accumulate: int = 1
    recompute: bool = False
    fuse: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ArgumentError(
                f"Engine(precision={self.precision!r}): expected None, 'bf16' (half-precision products) or 'tf32' "
                "(CUDA); 'fp16' is not offered, its range is too small for energies"
            )
        hold_counts(self, "accumulate")
        if self.compile and (self.accumulate > 1 or self.recompute):
            raise ArgumentError(
                "Engine(compile=True) captures whole steps; leave accumulate and recompute out, or compile=False"
            )
        if self.fuse and not self.compile:
            raise ArgumentError(
                "Engine(fuse=True) compiles the networks of steps that are captured; use compile=True with it"
            )


_GROUPS = {"checkpoints": Checkpoints, "logging": Logging, "engine": Engine, "loading": Loading}


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
    guard: Guard | None
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    logging: Logging = field(default_factory=Logging)
    engine: Engine = field(default_factory=Engine)
    loading: Loading = field(default_factory=Loading)
    early_stopping: EarlyStopping | None = None

    def __post_init__(self) -> None:
        hold_counts(self, "steps", "batch_size")
        hold_counts(self, "seed", least=-math.inf)
        for name, kind in _GROUPS.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ArgumentError(
                    f"{name} is a {type(value).__name__}; give a gibbsian.training.{kind.__name__}(...)"
                )
        _check_rates(self.lr)
        if self.clip is not None:
            check_number(self, "clip", self.clip, open_low=True)
        if self.early_stopping is not None and not isinstance(self.early_stopping, EarlyStopping):
            kind = type(self.early_stopping).__name__
            raise ArgumentError(f"early_stopping is a {kind}; give a gibbsian.training.EarlyStopping(...)")
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
        metrics: the last step's loss and metrics, tensors still on the device, and the numbers of the last validation.
        validation: those numbers alone.
    """

    energy: Any
    objective: Objective
    state: Any
    folder: Path | None
    history: list[dict[str, Any]]
    step: int = 0
    ema: Any = None
    metrics: dict[str, Tensor] = field(default_factory=dict)
    validation: dict[str, Tensor] = field(default_factory=dict)

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

    def draw(self, n: int, *, generator: torch.Generator, **options: Any) -> Tensor:
        """n draws `(n, *event)` of the trained energy, averaged where there is an average, in the way that its principle has
        for it: down the gradient flow that energy matching learned, level by level for recovery likelihood.

        Others refuse, and `gibbsian.draw(run.energy, n, generator=...)` draws of any model by what suits it.

        Args:
            n: how many.
            generator: the source of randomness.
            options: those of the objective's `generate`.
        """
        energy = self.energy if self.ema is None else self.ema
        n = check_draws(n, generator, placement(energy)[1])
        return self.objective.generate(energy, n, self.state, generator, **options)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the guard saw and did."""
        return [record for record in self.history if "event" in record]

    def plot(self, ax: Any = None, name: str | None = None) -> Any:
        """A number of the history along the steps, on matplotlib's axes `ax` or new ones: see `plots.history`."""
        return history(self.history, axes(ax), name=name)

    def _repr_html_(self) -> str:
        rows = [("energy", type(self.energy).__name__), ("objective", type(self.objective).__name__)]
        rows += [("updates", f"{self.step:,}")] + ([("folder", str(self.folder))] if self.folder else [])
        last: dict[str, float] = {}
        for record in self.history:
            if "event" not in record:
                last |= record
        skipped = {"step", "seconds", "lr"} if self.objective.descends() else {"step", "seconds", "lr", "loss", "gap"}
        rows += [(key.replace("_", " "), number(last[key])) for key in last if key not in skipped][:8]
        events = f"the guard stepped in {len(self.events)} times: see run.events" if self.events else ""
        return card("Run", rows, note=events)

    def __repr__(self) -> str:
        where = f" in {self.folder}" if self.folder else ""
        what = f"{type(self.energy).__name__}, {type(self.objective).__name__}"
        return f"Run({what}, {self.step} steps{where}, {len(self.events)} events)"
