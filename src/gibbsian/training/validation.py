"""Judging an energy on held-out data while it is trained."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gibbsian.errors import ArgumentError
from gibbsian.random import stream
from gibbsian.training import keep
from gibbsian.training.checkpoint import freeze
from gibbsian.training.feed import rows_of
from gibbsian.training.job import Job


class Validation:
    """A given function of the energy, or the objective's loss on held-out data, logged; and which was best.

    The energy is judged in evaluation mode, its average where there is one. The loss on held-out data uses a
    stream of its own, the same every time, and copies of the chains: training is not disturbed.
    """

    def __init__(self, job: Job, held_out: Any) -> None:
        self.job = job
        self.judge: Callable[[Any], Any] = self.mean_loss
        if callable(held_out) and not isinstance(held_out, Tensor):
            self.judge = held_out
        else:
            self.feed = job.make_feed(held_out)

    def mean_loss(self, energy: Any) -> dict[str, float]:
        """The mean of the objective's loss over the held-out rows."""
        job = self.job
        generator = stream(job.settings.seed, "validation", job.device)
        total, rows = 0.0, 0
        for batch in self.feed.sweep():
            loss = job.run.objective(energy, batch, freeze(job.run.state, modules=False), generator)
            total, rows = total + float(loss.value.detach()) * rows_of(batch), rows + rows_of(batch)
        return {"loss": total / rows}

    def __call__(self) -> None:
        """Judge, log, and keep the checkpoint of the best."""
        job, run = self.job, self.job.run
        energy, was_training = run.ema or run.energy, run.energy.training
        energy.eval()
        try:
            found = self.judge(energy)
        finally:
            run.energy.train(was_training)
        named = found if isinstance(found, dict) else {"score": found}
        if not named:
            raise ArgumentError("validation returned no numbers; return one, or a dictionary of them")
        values = {f"validation_{name}": float(value) for name, value in named.items()}
        values = job.world.mean(values, job.device)
        job.log.write({"step": run.step, **values})
        first = values[f"validation_{next(iter(named))}"]
        if job.settings.checkpoints.keep_best and (job.best is None or first < job.best[1]):
            job.best = (run.step, first)
            keep.save(job)
