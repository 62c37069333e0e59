"""The live parts of a training run: what one step needs, and what is saved, restored and rolled back."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.derivatives.known import trainable
from gibbsian.distributed.gradients import GradientExchange
from gibbsian.distributed.world import join
from gibbsian.errors import ArgumentError, TrainingWarning, check_count
from gibbsian.objectives.base import Loss, Objective, observed, state_modules
from gibbsian.placement import check_placement
from gibbsian.random import stream
from gibbsian.training.feeds.base import Feed
from gibbsian.training.feeds.choose import make_feed
from gibbsian.training.guard import Monitor
from gibbsian.training.log import Log
from gibbsian.training.optimize import Ema, Updates
from gibbsian.training.run import Run, Settings
from gibbsian.training.stopping import Watch


class Job:
    """A run in progress: energy, objective, data, optimizer, average, guard and log."""

    def __init__(
        self,
        energy: Any,
        objective: Objective,
        data: Any,
        settings: Settings,
        *,
        epochs: int | None,
        device: torch.device | str | None,
        run_dir: Path | None,
        transform: Any,
        given: Sequence[str] = (),
    ) -> None:
        self.given = list(given)
        self.world, where = join(device)
        self.device = where or _device_of(energy, data)
        self.original_objective, self.settings, self.transform = objective, settings, transform
        _place(energy, self.device, fused=settings.engine.fuse)
        self.run = run = Run(energy, objective, (), run_dir, [])
        self.feed = self.make_feed(data)
        if epochs is not None:
            settings = self.settings = dataclasses.replace(settings, steps=_steps_in(epochs, self.feed))
        objective = self.original_objective = run.objective = objective.planned(settings.steps)
        run.state = objective.init(energy, self.feed.first(), self.stream("init"))
        modules = [energy, *state_modules(run.state)]
        self.world.copy_from_first(modules)
        self.parameters = list(dict.fromkeys(p for module in modules for p in trainable(module)))
        self.split = len(trainable(energy))  # the energy's parameters come first
        if not self.parameters:
            raise ArgumentError(
                f"{type(energy).__name__} has no trainable parameters and {type(objective).__name__} learns "
                "nothing by itself; give an energy with some, for example gibbsian.as_energy(module, domain)"
            )
        self.exchange = GradientExchange(self.world, self.parameters)
        self.updates = Updates(settings, self.parameters, self.split)
        self.generator = self.stream("chains")
        self.ema = None if settings.ema is None else Ema(energy, settings.ema)
        run.ema = self.ema.energy if self.ema else None
        self.monitor = Monitor(settings.guard) if settings.guard else None
        self.log = Log(None, run.history)
        self.loss_sum, self.summed = torch.zeros((), dtype=torch.float64, device=self.device), 0
        self.turns = frozenset(objective.turns())
        self.watch = Watch(settings.early_stopping) if settings.early_stopping else None
        self.best: tuple[int, float] | None = None
        self.saved_at: int | None = None

    def make_feed(self, data: Any) -> Feed:
        """Batches of `data` for this process, checked by the objective."""
        energy, objective = self.run.energy, self.original_objective

        def check(batch: Any) -> None:
            objective.check(energy, batch)
            check_placement(observed(batch), energy, "data")

        return make_feed(
            data,
            self.settings.batch_size,
            seed=self.settings.seed,
            device=self.device,
            check=check,
            transform=self.transform,
            rank=self.world.rank,
            world=self.world.size,
            loading=self.settings.loading,
            dictionaries=objective.takes_dictionaries,
        )

    def stream(self, name: str, tries: int = 0) -> torch.Generator:
        """A random stream of this process; another one after each rollback."""
        rank = self.world.rank
        full = f"{name}/{rank}/{tries}" if rank or tries else name
        return stream(self.settings.seed, full, self.device)

    # --- one step -----------------------------------------------------------------------------------

    @property
    def softness(self) -> float:
        """What rollbacks have multiplied the learning rate by."""
        return self.monitor.guard.factors(self.monitor.tries)[0] if self.monitor else 1.0

    def rate(self, step: int) -> float:
        """The learning rate of the step after `step`, lower after rollbacks."""
        return self.updates.rate(step) * self.softness

    @property
    def patience_is_over(self) -> bool:
        """Has early stopping seen enough?"""
        return self.watch is not None and self.watch.over

    def steps_to_turn(self) -> float:
        """How many steps the loss stays the same one."""
        return min((turn - self.run.step for turn in self.turns if turn > self.run.step), default=math.inf)

    def clip_gradients(self, *, measure: bool) -> Tensor | None:
        """Clip the gradients where that is asked for; their norm before that, where it is needed."""
        if self.settings.clip is not None:
            return torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        if not measure:
            return None
        return torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def read(self, loss: Loss, norm: Tensor | None) -> tuple[dict[str, float], str | None]:
        """Loss, gradient norm and metrics as numbers, means over processes, and why they mean that the run has diverged;
        waits once for the device."""
        tensors = {"loss": loss.value, **loss.metrics}
        if norm is not None:
            tensors["gradient_norm"] = norm
        values = torch.stack([t.detach().double().mean() for t in tensors.values()]).tolist()
        numbers = self.world.mean(dict(zip(tensors, values, strict=True)), self.device)
        if self.monitor is not None:
            return numbers, self.monitor.look(numbers, self.run.step)
        return numbers, None if math.isfinite(numbers["loss"]) else f"the loss is {numbers['loss']}"

    def finite(self) -> bool:
        """Are all weights finite?"""
        return bool(torch.isfinite(torch.nn.utils.get_total_norm(self.parameters)))

    def log_step(self, numbers: dict[str, float], rates: dict[str, float]) -> None:
        """Write the numbers of this step into the log; `loss` becomes the mean of the losses since the last time."""
        mean = self.world.mean({"loss": float(self.loss_sum) / max(1, self.summed)}, self.device)
        self.loss_sum.zero_()
        self.summed = 0
        numbers |= mean
        step = self.run.step
        self.log.write({"step": step, "epoch": self.feed.epoch, "lr": self.rate(step - 1), **numbers, **rates})

    def warn(self, numbers: dict[str, float]) -> None:
        """Tell the user about early signs of trouble, each once."""
        for text in self.monitor.warnings(numbers, self.run.objective) if self.monitor else []:
            self.event("warning", text)
            if self.world.first:
                warnings.warn(f"step {self.run.step}: {text}", TrainingWarning, stacklevel=4)

    def event(self, name: str, message: str, **more: Any) -> None:
        """Put something that happened into the log."""
        self.log.write({"event": name, "step": self.run.step, **more, "message": message})


def _place(energy: nn.Module, device: torch.device, *, fused: bool) -> None:
    """Move an energy to where it is trained, its weights laid out as compiled convolutions want them."""
    energy.to(device)
    if fused and device.type == "cuda":
        energy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _device_of(energy: nn.Module, data: Any) -> torch.device:
    """Where the energy lives; one without tensors lives where the data does."""
    for tensor in (*energy.parameters(), *energy.buffers()):
        return tensor.device
    first = data[0] if isinstance(data, tuple) and data else data
    return first.device if isinstance(first, Tensor) else torch.device("cpu")


def _steps_in(epochs: int, feed: Feed) -> int:
    epochs = check_count("fit", "epochs", epochs)
    if not feed.per_epoch:
        raise ArgumentError("this data does not say how many batches it has; give steps instead of epochs")
    return epochs * feed.per_epoch
