"""The live parts of a training run: what one step needs, and what is saved, restored and rolled back."""

import dataclasses
import math
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.errors import ArgumentError, DivergenceError, TrainingWarning
from gibbsian.objectives.base import Loss, Objective, Step, observed, state_modules
from gibbsian.placement import check_placement
from gibbsian.random import stream
from gibbsian.training.captured import CapturedStep
from gibbsian.training.distributed import join
from gibbsian.training.ema import Ema
from gibbsian.training.feed import Feed
from gibbsian.training.guard import Watch
from gibbsian.training.loader import make_feed
from gibbsian.training.log import Log
from gibbsian.training.optimize import Updates
from gibbsian.training.run import Run, Settings

__all__ = ["Job"]


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
    ) -> None:
        self.world, where = join(device)
        self.device = where or _device_of(energy, data)
        self.given, self.settings, self.transform = objective, settings, transform
        energy.to(self.device)
        self.run = run = Run(energy, objective, (), run_dir, [])
        self.feed = self.make_feed(data)
        if epochs is not None:
            settings = self.settings = dataclasses.replace(settings, steps=_steps_in(epochs, self.feed))
        run.state = objective.init(energy, self.feed.first(), self.stream("init"))
        modules = [energy, *state_modules(run.state)]
        self.world.copy_from_first(modules)
        trainable = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
        self.parameters = list(trainable.values())
        own = {id(p) for p in energy.parameters()}
        self.split = sum(key in own for key in trainable)  # the energy's parameters come first
        if not self.parameters:
            raise ArgumentError(
                f"{type(energy).__name__} has no trainable parameters and {type(objective).__name__} learns "
                "nothing by itself; give an energy with some, for example gibbsian.as_energy(module, domain)"
            )
        self.updates = Updates(settings, self.parameters, self.split)
        self.generator = self.stream("chains")
        self.ema = None if settings.ema is None else Ema(energy, settings.ema)
        run.ema = self.ema.energy if self.ema else None
        self.watch = Watch(settings.guard) if settings.guard else None
        self.captured = CapturedStep(self) if settings.compile else None
        self.log = Log(None, run.history)
        self.loss_sum, self.summed = torch.zeros((), dtype=torch.float64, device=self.device), 0
        self.best: tuple[int, float] | None = None
        self.saved_at: int | None = None

    def make_feed(self, data: Any) -> Feed:
        """Batches of `data` for this process, checked by the objective."""
        energy, objective = self.run.energy, self.given

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
        )

    def stream(self, name: str, tries: int = 0) -> torch.Generator:
        """A random stream of this process; another one after each rollback."""
        rank = self.world.rank
        full = f"{name}/{rank}/{tries}" if rank or tries else name
        return stream(self.settings.seed, full, self.device)

    # --- one step -----------------------------------------------------------------------------------

    @property
    def _softness(self) -> float:
        return self.watch.guard.factors(self.watch.tries)[0] if self.watch else 1.0

    def rate(self, step: int) -> float:
        """The learning rate of the step after `step`, lower after rollbacks."""
        return self.updates.rate(step) * self._softness

    def reach(self, quiet: int) -> int:
        """How many of the next steps, of which nobody looks at any but the last, can be taken at once."""
        return 1 if self.captured is None else self.captured.reach(quiet)

    def precision(self, *, cache: bool = True) -> AbstractContextManager[Any]:
        """The context of the forward pass."""
        if self.settings.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=cache)
        return nullcontext()

    def differentiate_ahead(self, steps: int) -> Loss:
        """The loss of the last of several captured steps, with its gradients in place; the others are done."""
        assert self.captured is not None
        loss = self.captured.differentiate_ahead()
        self.run.step += steps - 1
        self.summed += steps - 1
        return loss

    def differentiate(self, batch: Any, *, watched: bool) -> tuple[Loss | None, str | None]:
        """The loss on a batch, with its gradients in place; or what diverged."""
        run = self.run
        self.updates.set_rate(run.step, self._softness)
        captured = self.captured.differentiate(batch) if self.captured else None
        if captured is not None:
            return captured, None
        try:
            with self.precision():
                loss = run.objective.loss(run.energy, batch, run.state, self.generator, Step(watched))
            self.backward(loss)
        except (DivergenceError, torch.linalg.LinAlgError) as error:
            return None, str(error)
        return loss._replace(value=loss.value.detach(), other=None, gradients=None), None  # lets go of the graph

    def backward(self, loss: Loss) -> None:
        """Gradients of the loss; of two losses where there are two players."""
        if not loss.value.requires_grad:
            raise ArgumentError(
                f"the loss of {type(self.run.objective).__name__} depends on no trainable parameter of "
                f"{type(self.run.energy).__name__}; check requires_grad, and that forward uses its parameters"
            )
        if loss.gradients is not None:
            for parameter in self.parameters:
                parameter.grad = loss.gradients.get(parameter)
            return
        if loss.other is None:
            # only what is trained: score matching would otherwise differentiate in the data as well
            loss.value.backward(inputs=self.parameters)
            return
        own, theirs = self.parameters[: self.split], self.parameters[self.split :]
        gradients = [
            *torch.autograd.grad(loss.value, own, retain_graph=True, allow_unused=True),
            *torch.autograd.grad(loss.other, theirs, allow_unused=True),
        ]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def clip_gradients(self, *, measure: bool) -> Tensor | None:
        """Clip the gradients where that is asked for; their norm before that, where it is needed."""
        if self.settings.clip is not None:
            return torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        if not measure:
            return None
        return torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def numbers(self, loss: Loss, norm: Tensor | None) -> dict[str, float]:
        """Loss, gradient norm and metrics as numbers, means over processes; waits once for the device."""
        tensors = {"loss": loss.value, **loss.metrics}
        if norm is not None:
            tensors["gradient_norm"] = norm
        values = torch.stack([t.detach().double().mean() for t in tensors.values()]).tolist()
        return self.world.mean(dict(zip(tensors, values, strict=True)), self.device)

    def trouble(self, numbers: dict[str, float]) -> str | None:
        """Why these numbers mean that the run has diverged, or None."""
        if self.watch is not None:
            return self.watch.look(numbers, self.run.step)
        return None if math.isfinite(numbers["loss"]) else f"the loss is {numbers['loss']}"

    def finish_step(self, loss: Loss) -> None:
        """Move the parameters and the average, keep the objective's state, count the step."""
        run = self.run
        run.step += 1
        if self.captured is not None and self.captured.made(loss):
            run.state = self.captured.update(loss)
        else:
            self.updates.optimizer.step()
            self.updates.drop_gradients()
            run.state = loss.state
        run.metrics = {"loss": loss.value.detach(), **loss.metrics}
        self.loss_sum += run.metrics["loss"]
        self.summed += 1
        if self.ema is not None:
            self.ema.update(run.energy, run.step)

    def finite(self) -> bool:
        """Are all weights finite?"""
        return bool(torch.isfinite(torch.nn.utils.get_total_norm(self.parameters)))

    def mean_loss(self) -> float:
        """The mean of the losses since this was last asked."""
        mean = self.world.mean({"loss": float(self.loss_sum) / max(1, self.summed)}, self.device)
        self.loss_sum.zero_()
        self.summed = 0
        return mean["loss"]

    def warn(self, numbers: dict[str, float]) -> None:
        """Tell the user about early signs of trouble, each once."""
        for text in self.watch.warnings(numbers, self.run.objective) if self.watch else []:
            self.event("warning", text)
            if self.world.first:
                warnings.warn(f"step {self.run.step}: {text}", TrainingWarning, stacklevel=4)

    def event(self, name: str, message: str, **more: Any) -> None:
        """Put something that happened into the log."""
        self.log.write({"event": name, "step": self.run.step, **more, "message": message})


def _device_of(energy: nn.Module, data: Any) -> torch.device:
    """Where the energy lives; one without tensors lives where the data does."""
    for tensor in (*energy.parameters(), *energy.buffers()):
        return tensor.device
    first = data[0] if isinstance(data, tuple) and data else data
    return first.device if isinstance(first, Tensor) else torch.device("cpu")


def _steps_in(epochs: int, feed: Feed) -> int:
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ArgumentError(f"epochs={epochs!r}: must be a whole number from 1 on")
    if not feed.per_epoch:
        raise ArgumentError("this data does not say how many batches it has; give steps instead of epochs")
    return epochs * feed.per_epoch
