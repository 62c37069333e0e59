"""Layer-wise training: `pretrain` trains a deep model one machine at a time, each on what those below make of the data.

Batches are encoded inside the step of the optimizer: the data set is held once, and every epoch sees new draws of the layers
below, which is what the variational bound asks for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from gibbsian.domains import Domain
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, check_count
from gibbsian.objectives.base import Batch, Loss, Objective, Step, WrappedObjective
from gibbsian.objectives.redrawn import Binarized
from gibbsian.random import stream
from gibbsian.training.feeds.choose import make_feed
from gibbsian.training.fit import fit, go_on
from gibbsian.training.run import Run


@runtime_checkable
class Layered(Protocol):
    """A model that is trained one machine at a time; stages are counted from 0."""

    domain: Domain

    def stages(self) -> int:
        """How many machines there are to train."""

    def check_stage(self, stage: int, batch: Batch) -> None:
        """Refuse a batch of data (x, or (x, y)) that this stage cannot use."""

    def encode(self, stage: int, batch: Batch, generator: torch.Generator | None) -> Batch:
        """What the machine of this stage sees of a batch of data: drawn through the stages below from the generator, or
        their means where that is None; without a graph."""

    def begin_stage(self, stage: int, batch: Batch) -> Energy:
        """The machine of this stage, an `Energy` such as an RBM, set to where it starts; `batch` are encoded rows, for
        biases. Its parameters may be the model's own or new ones."""

    def end_stage(self, stage: int, machine: Any) -> None:
        """Take over what the machine has learned."""


@dataclass(frozen=True)
class Encoded(WrappedObjective):
    """An objective on what the layers of a model below a stage make of a batch, drawn states or means, for `fit`."""

    model: Any
    stage: int
    draw: bool = True

    def check(self, energy: Any, batch: Batch) -> None:
        self.model.check_stage(self.stage, batch)

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> Any:
        self.check(energy, batch)
        with torch.no_grad():  # drawn, not averaged: gray values would be refused
            encoded = self.model.encode(self.stage, batch, generator)
        return self.objective.init(energy, encoded, generator)

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        with torch.no_grad():
            encoded = self.model.encode(self.stage, batch, generator if self.draw else None)
        return self.objective.loss(energy, encoded, state, generator, step)


def pretrain(
    model: Any,
    objective: Objective | Sequence[Objective],
    data: Any,
    *,
    draw: bool = True,
    run_dir: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: torch.device | str | None = None,
    **options: Any,
) -> list[Run]:
    """Train a deep model greedily, layer by layer, in place.

    Every layer is a machine of its own while it is trained, by any objective that suits it, on the states of the
    layers below given the data. The order of arguments and the options are those of `gibbsian.fit`; an option given
    as a list has one value for every stage.

    Args:
        model: `models.DBN` or `models.DBM`, or anything with the methods of `Layered`.
        objective: one for all stages, or a list with one for each; `objectives.Binarized` for gray data.
        data: as in `fit`; pairs (x, y) where the top layer has labels.
        draw: give the next machine states drawn layer by layer (what the variational bound is about), or means,
            which are less noisy.
        run_dir: a folder for the stages' run folders "stage-1", "stage-2", ...; as `RUN/pretraining` it may be there before
            `gibbsian.fit` makes RUN.
        resume: go on in such a folder where training was interrupted, to the bit on the CPU: stages that are there keep the
            settings that they began with. The model must be as it was before the first stage.
        seed: everything random follows from it; every stage has its own.
        device: where to train; by default where the model is.
        options: those of `fit`: `steps` or `epochs`, `batch_size`, `lr`, `optimizer`, `schedule`, `engine`, ...

    Returns:
        The runs of the stages; `run.energy` is the machine of a stage.

    Reference: Hinton, Osindero & Teh 2006; Bengio, Lamblin, Popovici & Larochelle 2007.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> data = torch.bernoulli(torch.full((200, 6), 0.3), generator=g)
    >>> dbn = gb.models.DBN(6, 4, 6)
    >>> cd = gb.objectives.ContrastiveDivergence(gb.kernels.Gibbs())
    >>> runs = gb.pretrain(dbn, cd, data, steps=[20, 10], lr=0.1, optimizer="sgd")
    >>> [run.step for run in runs]
    [20, 10]
    """
    if not isinstance(model, Layered):
        raise CapabilityError(
            f"{type(model).__name__} is not trained layer by layer; use gibbsian.fit, or give a model with the methods "
            "of gibbsian.training.pretrain.Layered, such as models.DBN"
        )
    seed = check_count("pretrain", "seed", seed, -math.inf)
    if resume and run_dir is None:
        raise ArgumentError("pretrain(resume=True) goes on in a folder: say run_dir")
    given = {"objective": list(objective) if isinstance(objective, Sequence) else objective, **options}
    stages = _by_stage(given, model.stages())
    if device is not None:
        model.to(device)  # type: ignore[attr-defined]
    where = next(model.parameters()).device  # type: ignore[attr-defined]
    runs = []
    for stage, how in enumerate(stages):
        how["run_dir"] = None if run_dir is None else Path(run_dir) / f"stage-{stage + 1}"
        how |= {"seed": stream(seed, f"stage/{stage}").initial_seed(), "device": where}
        wrapped = _encoded(how.pop("objective"), model, stage, draw)
        machine = _begun(model, stage, wrapped, data, how)
        runs.append(_trained(machine, wrapped, data, how, resume=resume))
        model.end_stage(stage, machine)
    return runs


def _encoded(objective: Objective, model: Any, stage: int, draw: bool) -> Objective:
    """An objective on what the layers below make of the data; gray values are drawn first, then encoded."""
    if isinstance(objective, Binarized):
        return Binarized(Encoded(objective.objective, model, stage, draw))
    return Encoded(objective, model, stage, draw)


def _begun(model: Any, stage: int, objective: Objective, data: Any, how: dict[str, Any]) -> Energy:
    """The machine of a stage where it starts, by the first rows."""
    check = partial(objective.check, None)  # of the data: the machine is still to be made
    size = check_count("pretrain", "batch_size", how.get("batch_size", 128))
    reading = {"seed": how["seed"], "device": how["device"], "transform": how.get("transform")}
    batch = make_feed(data, size, check=check, **reading).first()
    generator = stream(how["seed"], "first", how["device"])
    if isinstance(objective, Binarized):
        batch = objective.drawn(model, batch, generator)
    with torch.no_grad():
        batch = model.encode(stage, batch, generator)
    return model.begin_stage(stage, batch)


def _trained(machine: Energy, objective: Objective, data: Any, how: dict[str, Any], *, resume: bool) -> Run:
    """The run of a stage: a new one, or the one that is there."""
    folder = how["run_dir"]
    if not (resume and folder is not None and folder.exists()):
        return fit(machine, objective, data, **how)
    again = {name: how[name] for name in _ASKED_FOR if name in how}
    parts = {"energy": machine, "objective": objective}
    return go_on(folder, data, parts=parts, device=how["device"], **again)


_ASKED_FOR = ("transform", "validation", "hooks", "loggers", "progress")  # what a folder does not keep


def _by_stage(given: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The options of every stage: a list has one value for each."""
    for name, value in given.items():
        if isinstance(value, list) and len(value) != count:
            raise ArgumentError(f"{name} has {len(value)} values, expected one, or one for each of {count} stages")
    stages = [{n: v[i] if isinstance(v, list) else v for n, v in given.items()} for i in range(count)]
    for i, chosen in enumerate(stages, start=1):
        if not isinstance(chosen["objective"], Objective):
            kind = type(chosen["objective"]).__name__
            raise ArgumentError(f"the objective of stage {i} is a {kind}; see gibbsian.objectives")
    return stages
