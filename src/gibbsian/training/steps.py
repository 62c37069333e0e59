"""One training step after the other: batch → objective.loss → gradients, and then optimizer → average."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, DivergenceError
from gibbsian.nets.layers import standardized_once
from gibbsian.objectives.base import Loss, Step
from gibbsian.training.feeds.base import rows_of
from gibbsian.training.job import Job


class Outcome(NamedTuple):
    """A loss whose gradients are in place, the rows that it is a mean over, and what diverged on the way."""

    loss: Loss
    rows: int
    problem: str | None = None


class Steps:
    """The steps of a job, as plain PyTorch takes them."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def reset(self) -> None:
        """Parameters, optimizer or objective were replaced, or the objective has come to one of its turns."""

    def at_once(self, free: int, usual: int) -> int:
        """How many of the next `free` steps, where only the last may be looked at, `differentiate` takes at once; as a rule
        `usual` are free."""
        return 1

    def differentiate(self, count: int, *, watched: bool) -> Outcome:
        """The loss of the next step with its gradients in place; of the last of `count` steps, the others done."""
        job = self.job
        batch = job.feed.next()
        job.updates.set_rate(job.run.step, job.softness)
        return self.eager(batch, watched=watched)

    def update(self, loss: Loss) -> None:
        """Move the parameters and the average, keep the objective's state, count the step."""
        job, run = self.job, self.job.run
        run.step += 1
        run.state = self.move(loss)
        run.metrics = {"loss": loss.value.detach(), **loss.metrics, **run.validation}
        job.loss_sum += run.metrics["loss"]
        job.summed += 1
        if job.ema is not None:
            job.ema.update(run.energy, run.step)
        if run.step in job.turns:
            job.updates.drop_gradients()  # those of a graph would be added to
            self.reset()

    # --- the two halves of a step -----------------------------------------------------------------

    def eager(self, batch: Any, *, watched: bool) -> Outcome:
        """One step up to its gradients."""
        run, rows, count = self.job.run, rows_of(batch), self.job.settings.engine.accumulate
        step = Step(watched, done=run.step)
        try:
            if count > 1 and rows > 1:
                loss = self._added_up(batch, rows, count, step)
            else:
                with self.job.exchange.overlapping(rows):
                    loss = self.forward(batch, run.state, step)
        except (DivergenceError, torch.linalg.LinAlgError) as error:
            return Outcome(Loss(torch.tensor(math.nan), run.state, {}), rows, str(error))
        return Outcome(loss._replace(value=loss.value.detach(), other=None, gradients=None), rows)  # frees the graph

    def _added_up(self, batch: Any, rows: int, count: int, step: Step) -> Loss:
        """The loss of a batch that is gone through in parts: mean gradients, values and metrics, the last part's state."""
        job, state = self.job, self.job.run.state
        total: dict[Any, Tensor] = {}
        value, metrics = torch.zeros((), dtype=torch.float64, device=job.device), dict[str, Tensor]()
        for part in cut(batch, count):
            share = rows_of(part) / rows
            job.updates.drop_gradients()
            loss = self.forward(part, state, step)
            state = loss.state
            for parameter in job.parameters:
                if parameter.grad is not None:
                    more = share * parameter.grad
                    total[parameter] = total[parameter].add_(more) if parameter in total else more
            value = value + share * loss.value.detach()
            for name, metric in loss.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + share * metric
        for parameter in job.parameters:
            parameter.grad = total.get(parameter)
        return Loss(value.to(loss.value.dtype), state, metrics)

    def forward(self, batch: Any, state: Any, step: Step) -> Loss:
        """The loss, with its gradients in place."""
        job, run = self.job, self.job.run
        with self._precision(cache=not step.fused), standardized_once(run.energy):
            loss = run.objective.loss(run.energy, batch, state, job.generator, step)
        if not loss.value.requires_grad:
            raise ArgumentError(
                f"the loss of {type(run.objective).__name__} depends on no trainable parameter of "
                f"{type(run.energy).__name__}; check requires_grad, and that forward uses its parameters"
            )
        if loss.gradients is not None:
            for parameter in job.parameters:
                parameter.grad = loss.gradients.get(parameter)
        elif loss.other is None:
            # only what is trained: score matching would otherwise differentiate in the data as well
            loss.value.backward(inputs=job.parameters)
        else:
            own, theirs = job.parameters[: job.split], job.parameters[job.split :]
            gradients = [
                *torch.autograd.grad(loss.value, own, retain_graph=True, allow_unused=True),
                *torch.autograd.grad(loss.other, theirs, allow_unused=True),
            ]
            for parameter, gradient in zip(job.parameters, gradients, strict=True):
                parameter.grad = gradient
        return loss

    def move(self, loss: Loss) -> Any:
        """Move the parameters; the objective's state after the step."""
        self.job.updates.optimizer.step()
        self.job.updates.drop_gradients()
        return loss.state

    def _precision(self, *, cache: bool) -> AbstractContextManager[Any]:
        if self.job.settings.engine.precision == "bf16":
            return torch.autocast(self.job.device.type, dtype=torch.bfloat16, cache_enabled=cache)
        return nullcontext()


def cut(batch: Any, count: int) -> list[Any]:
    """A batch in so many parts of nearly as many rows; in single rows where it has fewer.

    >>> [rows_of(part) for part in cut((torch.zeros(5, 2), torch.zeros(5)), 2)]
    [3, 2]
    """
    rows = rows_of(batch)
    if isinstance(batch, Tensor):
        return [part for part in batch.tensor_split(count) if len(part)]
    if isinstance(batch, dict):
        parts = {key: cut(part, count) for key, part in batch.items()}
        return [{key: parts[key][i] for key in parts} for i in range(min(count, rows))]
    return list(zip(*(cut(part, count) for part in batch), strict=True))
