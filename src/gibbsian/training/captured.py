"""Training steps as CUDA graphs: small models spend nearly all their time on launches, and a graph is one launch.

Forward and backward pass (with every sampler step inside the objective) are one graph, the update another; between
them the host can look, clip and share gradients as in the eager loop. Where nobody looks for a while, a block puts many
whole steps in front of the forward pass, in the same graph: row numbers and rates go in, and the host is needed once.
"""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gibbsian.errors import CompileWarning
from gibbsian.fast import graphs
from gibbsian.fast.networks import Network, compiled_networks
from gibbsian.objectives.base import Loss, Step
from gibbsian.training.feeds.base import rows_of
from gibbsian.training.feeds.rows import TensorRows
from gibbsian.training.job import Job
from gibbsian.training.steps import Outcome, Steps, cut

_WARM = 3  # eager steps first: they allocate the optimizer's state and what libraries set up lazily
_BLOCK = 50  # steps in one graph, at most
_LONG = 60.0  # milliseconds that a block may take: longer ones gain nothing, and their graphs grow
_AT_ONCE = 2**25  # bytes of examples that a block fetches by one kernel; they stay in the cache of a GPU


def steps_of(job: Job) -> Steps:
    """The steps of a job: captured where that is asked for and possible."""
    return CapturedSteps(job) if job.settings.engine.compile else Steps(job)


@dataclass
class _Captured:
    """The graphs of a step: up to its gradients, which stay where they are, and from there to the next step."""

    forward: torch.cuda.CUDAGraph
    move: torch.cuda.CUDAGraph | None
    gradients: Sequence[tuple[Tensor, Tensor | None]]
    loss: Loss


class _Inputs:
    """What goes into the graph of a block: row numbers, learning rates, weights of the average."""

    def __init__(self, feed: TensorRows, length: int, groups: int) -> None:
        self.feed, self.length = feed, length
        self.rows = torch.zeros(length, feed.size, dtype=torch.long, device=feed.device)
        self.numbers = torch.zeros(length, groups + 1, 4, device=feed.device)[..., 0]  # aligned, as kernels want them
        self.rates, self.ema_weights = self.numbers[:, :groups], self.numbers[:, groups]

    def fill(self, job: Job) -> None:
        """Write down what the coming steps need, and move the data's position past them."""
        self.rows.copy_(self.feed.peek(self.length).view_as(self.rows))
        self.feed.skip(self.length)
        steps = range(job.run.step, job.run.step + self.length)
        weight = (lambda k: 0.0) if job.ema is None else job.ema.weight
        numbers = torch.tensor([[*job.updates.rates(job.rate(k)), weight(k + 1)] for k in steps], pin_memory=True)
        self.numbers.copy_(numbers, non_blocking=True)  # nobody waits for the device here

    def batches(self) -> list[Any] | None:
        """The examples of all steps, fetched at once; None where they are too many for that."""
        rows = self.rows.flatten()
        size = sum(t[0].numel() * t.element_size() for t in self.feed.source) * len(rows)
        return cut(self.feed.take(rows), self.length) if size <= _AT_ONCE else None


class CapturedSteps(Steps):
    """The steps of a job as graphs; batches of another shape and steps before the capture go the eager way."""

    batch: Any  # fixed copies, which the graphs read and write
    state: Any

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.networks = job.settings.engine.fuse
        self.programs: Sequence[Network] = ()
        self.reset()
        feed = job.feed
        self.feed = feed if isinstance(feed, TensorRows) else None  # blocks take their rows by number
        self.refused = job.device.type != "cuda"
        if self.refused:
            self._refuse(f"the energy is on {job.device.type}, and steps are captured on CUDA")
        elif self.feed is not None and not self.feed.verified:
            self.feed.verify()  # a look at every transformed batch would make the host wait for the device

    def reset(self) -> None:
        """Forget the graphs."""
        self.warm = 0
        self.single: _Captured | None = None
        self.block: tuple[_Captured, _Inputs] | None = None
        self.replayed: _Captured | None = None  # whose gradients are in place
        self.longest = _BLOCK
        self.pool = graphs.Pool()  # single steps and blocks need memory by turns

    def differentiate(self, count: int, *, watched: bool) -> Outcome:
        if count > 1 and self.block is not None:
            return self._replay_block(*self.block)
        job = self.job
        batch = job.feed.next()
        job.updates.set_rate(job.run.step, job.softness)
        self.replayed = None
        if self.single is None and not self.refused:
            self.warm += 1
            if self.warm > _WARM:
                self.single = self._capture(batch)
        if self.single is None:
            return self.eager(batch, watched=watched)
        if [t.shape for t in graphs.tensors_of(batch)] != [t.shape for t in graphs.tensors_of(self.batch)]:
            job.updates.drop_gradients()  # those of the graph would be added to
            return self.eager(batch, watched=watched)
        torch._foreach_copy_(graphs.tensors_of(self.batch), graphs.tensors_of(batch))
        return Outcome(self._replay(self.single), rows_of(batch))

    def move(self, loss: Loss) -> Any:
        if self.replayed is None:
            return super().move(loss)
        if self.replayed.move is not None:
            self.replayed.move.replay()
        if not self.job.updates.capturable:
            self.job.updates.optimizer.step()
        return self.state

    def _replay(self, captured: _Captured) -> Loss:
        """Put the run's state and the graph's gradients where the graph expects them, and go."""
        if self.job.run.state is not self.state:  # an eager step came between
            graphs.carry_over(self.state, self.job.run.state)
        for parameter, gradient in captured.gradients:
            parameter.grad = gradient
        captured.forward.replay()
        self.replayed = captured
        return captured.loss

    # --- many steps at once ---------------------------------------------------------------------------

    def at_once(self, free: int, usual: int) -> int:
        feed = self.feed
        if self.single is None or feed is None or feed.home.type != "cuda" or self.longest == 1 or free == 1:
            return 1
        if self.block is None:
            self.block = self._capture_block(self.single, feed, usual)
        if self.block is None:
            return 1
        length = self.block[1].length
        return length if length <= free and len(feed.peek(length)) == length * feed.size else 1

    def _replay_block(self, captured: _Captured, inputs: _Inputs) -> Outcome:
        """All steps of a block but the last update."""
        job = self.job
        inputs.fill(job)
        loss = self._replay(captured)
        job.run.step += inputs.length - 1
        job.summed += inputs.length - 1
        return Outcome(loss, inputs.feed.size)

    def _length(self, single: _Captured, usual: int) -> int:
        """As long as pays and divides what is free as a rule, so that no step is left over."""
        saved = self.job.generator.get_state()
        took = graphs.milliseconds(single.forward.replay)  # its gradients and new chains are not used
        self.job.generator.set_state(saved)
        most = min(usual, _BLOCK, int(_LONG / max(took, 1e-3)))
        whole = [n for n in range(1, most + 1) if usual % n == 0]
        return max(whole[-1] if whole and 2 * whole[-1] > most else most, 1)

    def _capture_block(self, single: _Captured, feed: TensorRows, usual: int) -> tuple[_Captured, _Inputs] | None:
        """The graph of many steps; None, and single ones from now on, where that does not pay or cannot be."""
        job = self.job
        length = self._length(single, usual) if job.updates.capturable and job.world.size == 1 else 1
        if length == 1:
            self.longest = 1
            return None
        inputs = _Inputs(feed, length, len(job.updates.base_rates))
        if job.ema is not None:
            job.ema.follow(job.run.energy, inputs.ema_weights[0])  # by nothing: what is to be captured must be compiled
        generators = (job.generator, feed.noise)
        before = [g.get_state() for g in generators]
        try:
            return self._captured(lambda: self._steps(inputs), generators, inputs.rates[-1]), inputs
        except RuntimeError as error:
            self._recover(before)
            self.reset()  # the graphs of single steps hold the old generators
            self.warm, self.longest = _WARM, 1
            why = graphs.first_cause(error)
            warnings.warn(f"one step at a time is captured, because {why}", CompileWarning, stacklevel=3)
            return None

    def _steps(self, inputs: _Inputs) -> Loss:
        """Whole steps, but for the last update."""
        job, feed, state, last = self.job, inputs.feed, self.state, inputs.length - 1
        batches, values = inputs.batches(), []
        for k in range(inputs.length):
            batch = feed.take(inputs.rows[k]) if batches is None else batches[k]
            loss = self._step(feed.prepare(batch), state, watched=k == last)
            state = loss.state
            if k < last:
                job.clip_gradients(measure=False)
                with job.updates.reading(inputs.rates[k]):
                    job.updates.optimizer.step()
                values.append(loss.value.detach())
                if job.ema is not None:
                    job.ema.follow(job.run.energy, inputs.ema_weights[k])
        job.loss_sum += torch.stack(values).sum(dtype=job.loss_sum.dtype)
        return loss

    # --- capture --------------------------------------------------------------------------------------

    def _step(self, batch: Any, state: Any, *, watched: bool = True) -> Loss:
        """A step up to its gradients, in new memory."""
        self.job.updates.drop_gradients()
        chains = self.job.settings.engine.fuse
        with compiled_networks(self.job.run.energy) if self.networks else nullcontext(()) as self.programs:
            return self.forward(batch, state, Step(watched, fused=True, done=self.job.run.step, chains=chains))

    def _capture(self, batch: Any) -> _Captured | None:
        """The graphs of single steps on batches like this one."""
        job = self.job
        self.batch, self.state = graphs.fixed_copy(batch), graphs.fixed_copy(job.run.state)
        before = [job.generator.get_state(), job.feed.noise.get_state()]

        def step() -> Loss:
            return self._step(self.batch, self.state)

        try:
            graphs.on_side_stream(step)
            self._tell({reason for program in self.programs for reason in program.failures})
            job.generator.set_state(before[0])
            return self._captured(step, [job.generator])
        except RuntimeError as error:
            self._recover(before)
            if self.networks:  # gradients of gradients, for one, cannot be compiled
                self.networks = False
                self._tell({graphs.first_cause(error)})
                return self._capture(batch)
            self._refuse(graphs.first_cause(error))
            return None

    def _captured(self, step: Any, generators: Sequence[torch.Generator], rates: Tensor | None = None) -> _Captured:
        """The graphs of steps whose last update reads its rates from there."""
        job, updates = self.job, self.job.updates
        forward, loss = graphs.capture(step, generators=generators, pool=self.pool)
        gradients = [(p, p.grad) for p in job.parameters]
        moved = graphs.moves(self.state, loss.state)

        def move() -> None:
            if updates.capturable:
                with nullcontext() if rates is None else updates.reading(rates):
                    updates.optimizer.step()
            graphs.carry_over(self.state, loss.state)

        graph = graphs.capture(move, pool=self.pool)[0] if moved or updates.capturable else None
        metrics = {name: metric.detach() for name, metric in loss.metrics.items()}
        return _Captured(forward, graph, gradients, Loss(loss.value.detach(), self.state, metrics))

    def _recover(self, before: Sequence[Tensor]) -> None:
        job = self.job
        job.generator, job.feed.noise = graphs.renewed(before, job.device)
        job.updates.drop_gradients()

    def _tell(self, reasons: set[str]) -> None:
        if reasons:
            warnings.warn(
                f"networks are not compiled, because {'; '.join(sorted(reasons))}", CompileWarning, stacklevel=4
            )

    def _refuse(self, why: str) -> None:
        self.refused = True
        warnings.warn(f"training eagerly, because {why}", CompileWarning, stacklevel=3)
