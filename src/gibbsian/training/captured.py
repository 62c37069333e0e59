"""Training steps as CUDA graphs: small models spend nearly all their time on launches, and a graph is one launch.

Forward and backward pass (with every sampler step inside the objective) are one graph, the update another; between
them the host can look, clip and share gradients as in the eager loop. A graph holds addresses, so batch and
objective state live in fixed tensors, and random numbers go on through the registered generator.
"""

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gibbsian.errors import CompileWarning
from gibbsian.objectives.base import Loss

if TYPE_CHECKING:
    from gibbsian.training.job import Job

__all__ = ["CapturedStep"]

_WARM = 3  # eager steps first: they allocate the optimiser's state and what libraries set up lazily


def _tensors(leaves: list[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


class CapturedStep:
    """The graphs of a job's step; batches of another shape and steps before the capture go the eager way."""

    def __init__(self, job: "Job") -> None:
        self.job = job
        self.reset()
        self.refused = job.device.type != "cuda"
        if self.refused:
            self._warn(f"the energy is on {job.device.type}, and steps are captured on CUDA")

    def reset(self) -> None:
        """Forget the graphs: parameters, optimiser or objective were replaced."""
        self.steps = 0
        self.loss: Loss | None = None

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
        if self.held and self.job.run.state is not self.state:  # an eager step came between
            torch._foreach_copy_(self.held, _tensors(pytree.tree_leaves(self.job.run.state)))
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        self.forward.replay()
        return self.loss

    def update(self) -> Any:
        """Move the parameters; the objective's state after the step."""
        if self.move is not None:
            self.move.replay()
        if not self.with_optimiser:
            self.job.updates.optimiser.step()
        return self.state

    def _capture(self, batch: Any) -> bool:
        job, run = self.job, self.job.run
        leaves, form = pytree.tree_flatten(batch)
        fixed = [t.clone() if isinstance(t, Tensor) else t for t in leaves]
        self.batch = _tensors(fixed)
        held_batch = pytree.tree_unflatten(fixed, form)
        leaves, form = pytree.tree_flatten(run.state)
        fixed = [t.clone() if isinstance(t, Tensor) else t for t in leaves]
        self.held = _tensors(fixed)
        self.state = pytree.tree_unflatten(fixed, form)
        before = job.generator.get_state()

        def step() -> Loss:
            job.updates.drop_gradients()
            with job.precision(cache=False):
                loss = run.objective(run.energy, held_batch, self.state, job.generator)
            job.backward(loss)
            return loss

        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step()
            torch.cuda.current_stream().wait_stream(side)
            job.generator.set_state(before)
            self.forward = torch.cuda.CUDAGraph()
            self.forward.register_generator_state(job.generator)
            with torch.cuda.graph(self.forward):
                loss = step()
            after, other_form = pytree.tree_flatten(loss.state)
            moved = [(a, b) for a, b in zip(self.held, _tensors(after), strict=False) if a is not b]
            same = [a for a in fixed if not isinstance(a, Tensor)] == [b for b in after if not isinstance(b, Tensor)]
            if form != other_form or not same or any(a.shape != b.shape for a, b in moved):
                return self._refuse("the objective's state changes its form from step to step")
            self.with_optimiser = bool(job.updates.optimiser.defaults.get("capturable"))
            self.move = torch.cuda.CUDAGraph() if moved or self.with_optimiser else None
            if self.move is not None:
                with torch.cuda.graph(self.move, pool=self.forward.pool()):
                    if self.with_optimiser:
                        job.updates.optimiser.step()
                    if moved:
                        torch._foreach_copy_([a for a, _ in moved], [b for _, b in moved])
        except RuntimeError as error:
            while isinstance(error.__context__, RuntimeError):  # the first cause says most
                error = error.__context__
            job.generator = torch.Generator(job.device)  # a failed capture leaves the old one registered
            job.generator.set_state(before)
            return self._refuse(" ".join(str(error).split())[:200])
        self.gradients = [(p, p.grad) for p in job.parameters]
        self.loss = Loss(loss.value.detach(), self.state, {k: v.detach() for k, v in loss.metrics.items()})
        return True

    def _refuse(self, reason: str) -> bool:
        self.refused = True
        self.job.updates.drop_gradients()
        self._warn(reason)
        return False

    def _warn(self, reason: str) -> None:
        warnings.warn(f"training eagerly, because {reason}", CompileWarning, stacklevel=2)
