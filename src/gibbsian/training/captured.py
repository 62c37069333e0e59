"""Training steps as CUDA graphs: small models spend nearly all their time on launches, and a graph is one launch.

Forward and backward pass (with every sampler step inside the objective) are one graph, the update another; between
them the host can look, clip and share gradients as in the eager loop. Where nobody looks for a while, a leap puts many
whole steps in front of the forward pass, in the same graph: row numbers and rates go in, and the host is needed once.
A graph holds addresses, so batch and objective state live in fixed tensors, and random numbers go on through the
registered generators.
"""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gibbsian.errors import CompileWarning
from gibbsian.objectives.base import Loss, Step
from gibbsian.training.rows import TensorRows

if TYPE_CHECKING:
    from gibbsian.training.job import Job

__all__ = ["CapturedStep"]

_WARM = 3  # eager steps first: they allocate the optimizer's state and what libraries set up lazily
_LEAP = 50  # steps in one graph, at most
_LONG = 10.0  # milliseconds that a leap may take: longer ones gain nothing, and their graphs grow


def _tensors(leaves: list[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


class _Changes(Exception):
    """What would have to be captured is not the same at every step."""


def _reason(error: BaseException) -> str:
    while isinstance(error.__context__, RuntimeError):  # the first cause says most
        error = error.__context__
    return " ".join(str(error).split())[:200]


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Capture what is done inside. Graphs of earlier runs, freed by the garbage collector meanwhile, would break it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        if enabled:
            gc.enable()


class _Leap:
    """The graph of many steps, and what goes into it: row numbers, learning rates, weights of the average."""

    forward: torch.cuda.CUDAGraph
    move: torch.cuda.CUDAGraph | None
    gradients: list[tuple[Tensor, Tensor | None]]
    loss: Loss

    def __init__(self, job: "Job", length: int, batch: int) -> None:
        self.length = length
        self.rows = torch.zeros(length, batch, dtype=torch.long, device=job.device)
        self.numbers = torch.zeros(2, length, device=job.device)
        self.rates, self.ema_weights = self.numbers

    def fill(self, job: "Job") -> None:
        """Read off what the coming steps need, and move the data's position past them."""
        feed, step = job.feed, job.run.step
        assert isinstance(feed, TensorRows)
        rows = feed.ahead(self.length)
        assert rows is not None
        self.rows.copy_(rows)
        feed.skip(self.length)
        steps = range(step, step + self.length)
        weights = [0.0] * self.length if job.ema is None else [job.ema.weight(k + 1) for k in steps]
        numbers = torch.tensor([[job.rate(k) for k in steps], weights], pin_memory=True)
        self.numbers.copy_(numbers, non_blocking=True)  # nobody waits for the device here


class CapturedStep:
    """The graphs of a job's step; batches of another shape and steps before the capture go the eager way."""

    def __init__(self, job: "Job") -> None:
        self.job = job
        self.reset()
        self.refused = job.device.type != "cuda"
        if self.refused:
            self._warn(f"the energy is on {job.device.type}, and steps are captured on CUDA")
        elif isinstance(job.feed, TensorRows) and not job.feed.verified:
            job.feed.verify()  # a look at every transformed batch would make the host wait for the device

    def reset(self) -> None:
        """Forget the graphs: parameters, optimizer or objective were replaced."""
        self.steps = 0
        self.loss: Loss | None = None
        self.leap: _Leap | None = None
        self.longest = _LEAP

    def differentiate(self, batch: Any) -> Loss | None:
        """The loss on a batch with its gradients in place, or None where the step must be eager."""
        if self.refused:
            return None
        if self.loss is None:
            self.steps += 1
            if self.steps <= _WARM or not self._capture(batch):
                return None
        leaves = _tensors(pytree.tree_leaves(batch))
        if [t.shape for t in leaves] != [t.shape for t in self.batch]:
            self.job.updates.drop_gradients()  # those of the graph would be added to
            return None
        torch._foreach_copy_(self.batch, leaves)
        self._enter(self.gradients)
        self.forward.replay()
        return self.loss

    def made(self, loss: Loss) -> bool:
        """Does this loss come from a graph?"""
        return loss is self.loss or (self.leap is not None and loss is self.leap.loss)

    def update(self, loss: Loss) -> Any:
        """Move the parameters; the objective's state after the step."""
        move = self.move if loss is self.loss or self.leap is None else self.leap.move
        if move is not None:
            move.replay()
        if not self.job.updates.capturable:
            self.job.updates.optimizer.step()
        return self.state

    # --- many steps at once ---------------------------------------------------------------------------

    def reach(self, quiet: int) -> int:
        """How many of the next `quiet` steps can go in one graph: one, or the length of a leap."""
        job, feed = self.job, self.job.feed
        if self.refused or self.loss is None or self.longest == 1 or quiet == 1:
            return 1
        if not (isinstance(feed, TensorRows) and feed.home.type == "cuda"):
            return 1
        if self.leap is None:
            length = self._length(quiet) if job.updates.capturable and job.world.size == 1 else 1
            if length == 1:
                self.longest = 1
            if length == 1 or not self._capture_leap(length):
                return 1
        assert self.leap is not None  # for the type checker
        return self.leap.length if self.leap.length <= quiet and feed.ahead(self.leap.length) is not None else 1

    def differentiate_ahead(self) -> Loss:
        """All steps of a leap but the last update: the loss of its last step, with its gradients in place."""
        assert self.leap is not None
        leap, job = self.leap, self.job
        leap.fill(job)
        self._enter(leap.gradients)
        leap.forward.replay()
        return leap.loss

    def _length(self, quiet: int) -> int:
        """As long as pays and divides what is quiet, so that no step is left over."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        saved = self.job.generator.get_state()
        begin.record()
        self.forward.replay()  # its gradients and new chains are not used
        end.record()
        torch.cuda.synchronize()
        self.job.generator.set_state(saved)
        most = min(quiet, _LEAP, int(_LONG / max(begin.elapsed_time(end), 1e-3)))
        whole = [n for n in range(1, most + 1) if quiet % n == 0]
        return max(whole[-1] if whole and 2 * whole[-1] > most else most, 1)

    def _capture_leap(self, length: int) -> bool:
        job, run, feed = self.job, self.job.run, self.job.feed
        assert isinstance(feed, TensorRows)
        leap = _Leap(job, length, feed.size)
        generators = (job.generator, feed.noise)
        before = [g.get_state() for g in generators]
        try:
            leap.forward = torch.cuda.CUDAGraph()
            for g in generators:
                leap.forward.register_generator_state(g)
            with _capturing(leap.forward):
                state = self.state
                for k in range(length):
                    job.updates.copy_rates(leap.rates[k])
                    loss = self._step(feed.prepare(feed.take(leap.rows[k])), state, watched=k == length - 1)
                    state = loss.state
                    if k < length - 1:
                        job.clip_gradients(measure=False)
                        job.updates.optimizer.step()
                        job.loss_sum += loss.value.detach()
                        if job.ema is not None:
                            job.ema.follow(run.energy, leap.ema_weights[k])
            leap.gradients = [(p, p.grad) for p in job.parameters]
            leap.move = self._capture_move(loss, leap.forward)
        except (RuntimeError, _Changes) as error:
            self._recover(before)
            self.reset()  # the graphs of single steps hold the old generators
            self.steps, self.longest = _WARM, 1
            warnings.warn(f"one step at a time is captured, because {_reason(error)}", CompileWarning, stacklevel=3)
            return False
        leap.loss = self._outputs(loss)
        self.leap = leap
        return True

    # --- capture --------------------------------------------------------------------------------------

    def _enter(self, gradients: list[tuple[Tensor, Tensor | None]]) -> None:
        """Put the run's state and the graph's gradients where the graph expects them."""
        if self.held and self.job.run.state is not self.state:  # an eager step came between
            torch._foreach_copy_(self.held, _tensors(pytree.tree_leaves(self.job.run.state)))
        for parameter, gradient in gradients:
            parameter.grad = gradient

    def _step(self, batch: Any, state: Any, *, watched: bool = True) -> Loss:
        """Forward and backward pass."""
        job, run = self.job, self.job.run
        job.updates.drop_gradients()
        with job.precision(cache=False):
            loss = run.objective.loss(run.energy, batch, state, job.generator, Step(watched, fused=True))
        job.backward(loss)
        return loss

    def _capture(self, batch: Any) -> bool:
        job, run = self.job, self.job.run
        leaves, form = pytree.tree_flatten(batch)
        fixed = [t.clone() if isinstance(t, Tensor) else t for t in leaves]
        self.batch = _tensors(fixed)
        held_batch = pytree.tree_unflatten(fixed, form)
        self.leaves, self.form = pytree.tree_flatten(run.state)
        self.leaves = [t.clone() if isinstance(t, Tensor) else t for t in self.leaves]
        self.held = _tensors(self.leaves)
        self.state = pytree.tree_unflatten(self.leaves, self.form)
        before = [job.generator.get_state(), job.feed.noise.get_state()]
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._step(held_batch, self.state)
            torch.cuda.current_stream().wait_stream(side)
            job.generator.set_state(before[0])
            self.forward = torch.cuda.CUDAGraph()
            self.forward.register_generator_state(job.generator)
            with _capturing(self.forward):
                loss = self._step(held_batch, self.state)
            self.gradients = [(p, p.grad) for p in job.parameters]
            self.move = self._capture_move(loss, self.forward)
        except (RuntimeError, _Changes) as error:
            self._recover(before)
            return self._refuse(_reason(error))
        self.loss = self._outputs(loss)
        return True

    def _capture_move(self, loss: Loss, forward: torch.cuda.CUDAGraph) -> torch.cuda.CUDAGraph | None:
        """A graph of what comes after the gradients: the update, and the objective's new state in its place."""
        after, form = pytree.tree_flatten(loss.state)
        moved = [(a, b) for a, b in zip(self.held, _tensors(after), strict=False) if a is not b]
        same = [a for a in self.leaves if not isinstance(a, Tensor)] == [b for b in after if not isinstance(b, Tensor)]
        if form != self.form or not same or any(a.shape != b.shape for a, b in moved):
            raise _Changes("the objective's state changes its form from step to step")
        updates = self.job.updates
        if not moved and not updates.capturable:
            return None
        move = torch.cuda.CUDAGraph()
        with _capturing(move, forward.pool()):
            if updates.capturable:
                updates.optimizer.step()
            if moved:
                torch._foreach_copy_([a for a, _ in moved], [b for _, b in moved])
        return move

    def _outputs(self, loss: Loss) -> Loss:
        return Loss(loss.value.detach(), self.state, {k: v.detach() for k, v in loss.metrics.items()})

    def _recover(self, before: list[Tensor]) -> None:
        """A failed capture leaves the generators registered: make them anew."""
        job = self.job
        job.generator, job.feed.noise = (torch.Generator(job.device) for _ in before)
        job.generator.set_state(before[0])
        job.feed.noise.set_state(before[1])
        job.updates.drop_gradients()

    def _refuse(self, reason: str) -> bool:
        self.refused = True
        self._warn(reason)
        return False

    def _warn(self, reason: str) -> None:
        warnings.warn(f"training eagerly, because {reason}", CompileWarning, stacklevel=2)
