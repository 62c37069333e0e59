"""The training loop, from the first step to the last.

batch → objective(energy, batch, state, generator) → backward → optimizer → average → log → checkpoint
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from gibbsian.errors import ProcessError
from gibbsian.objectives.base import Loss
from gibbsian.progress import progress_bar
from gibbsian.training import keep
from gibbsian.training.feed import rows_of
from gibbsian.training.folder import where
from gibbsian.training.job import Job
from gibbsian.training.log import Log
from gibbsian.training.run import Run
from gibbsian.training.validation import Validation

__all__ = ["Hook", "train"]

Hook = Callable[[Run], Any] | tuple[int, Callable[[Run], Any]]


def train(job: Job, held_out: Any, hooks: Sequence[Hook], progress: bool | None) -> Run:
    """Run a job to its last step."""
    run, settings, watch, world = job.run, job.settings, job.watch, job.world
    validation = None if held_out is None else Validation(job, held_out)
    called = [hook if isinstance(hook, tuple) else (1, hook) for hook in hooks]
    periods = [settings.log_every, settings.checkpoint_every, *(every for every, _ in called)]
    if validation is not None:
        periods.append(settings.validate_every)
    if watch is not None:
        periods.append(watch.guard.snapshot_every)
    with _opened(job, progress) as show, _signals() as caught, _products(settings.precision):
        keep.snapshot(job)
        stopping = False
        while run.step < settings.steps and not stopping:
            quiet = _quiet(job, periods)
            ahead = job.reach(quiet)
            step = run.step + ahead
            looking = watch is not None and (step == 1 or ahead > 1 or step % watch.guard.every == 0)
            logging = step % settings.log_every == 0 or step == settings.steps
            loss: Loss | None
            problem: str | None = None
            if ahead > 1:
                loss, rows = job.differentiate_ahead(ahead), settings.batch_size
            else:
                batch = job.feed.next()
                loss, problem = job.differentiate(batch, watched=looking or quiet == 1)
                rows = rows_of(batch)
            signals = (bool(caught), problem is not None)
            stop, diverged = world.share_gradients(job.parameters, rows, signals)
            stopping = stop > 0
            if diverged > 0 and problem is None:
                problem = "another process diverged"

            numbers: dict[str, float] = {}
            if loss is not None and problem is None:
                norm = job.clip_gradients(measure=looking or logging)
                if looking or logging:  # the only times that the host waits for the device
                    numbers = job.numbers(loss, norm)
                    problem = job.trouble(numbers)
            if loss is None or problem is not None:
                keep.roll_back(job, problem)
                continue

            job.finish_step(loss)
            if step == settings.steps and not job.finite():
                keep.roll_back(job, "the last update left weights that are not finite")
                continue
            if looking:
                job.warn(numbers)
                keep.snapshot(job)
            if logging:
                numbers["loss"] = job.mean_loss()
                job.log.write(
                    {"step": step, "epoch": job.feed.epoch, "lr": job.rate(step - 1), **numbers, **show.rates(step)}
                )
            if validation is not None and (step % settings.validate_every == 0 or step == settings.steps):
                validation()
            if step % settings.checkpoint_every == 0:
                keep.save(job)
            show(step, numbers)
            for every, hook in called:
                if step % every == 0:
                    stopping = bool(hook(run)) or stopping
        keep.save(job)
        if caught:
            _stop(job, caught[0])
    return run


def _quiet(job: Job, periods: Sequence[int]) -> int:
    """How many steps until the next one that something is done after."""
    step = job.run.step
    return min(job.settings.steps - step, *(period - step % period for period in periods))


class _Show:
    """The progress bar, moved a few times a second, and the speed of the run."""

    def __init__(self, advance: Callable[..., None], step: int) -> None:
        self.advance, self.start, self.at = advance, step, step
        self.began = self.moved = time.perf_counter()
        self.shown: dict[str, float] = {}
        advance(step)

    def rates(self, step: int) -> dict[str, float]:
        """Seconds since the start, and steps a second."""
        seconds = time.perf_counter() - self.began
        return {"seconds": seconds, "steps_per_second": (step - self.start) / seconds}

    def __call__(self, step: int, numbers: dict[str, float]) -> None:
        if numbers:
            self.shown = {"loss": numbers["loss"], "steps/s": self.rates(step)["steps_per_second"]}
        now = time.perf_counter()
        if now - self.moved > 0.2:
            self.advance(step - self.at, **self.shown)
            self.at, self.moved = step, now


@contextmanager
def _opened(job: Job, progress: bool | None) -> Iterator[_Show]:
    """The log, the bar and training mode, closed again whatever happens."""
    run, settings = job.run, job.settings
    was_training = run.energy.training
    folder = run.folder if job.world.first else None
    job.log = Log(folder, run.history, tensorboard=settings.tensorboard, step=run.step)
    run.energy.train()
    try:
        with progress_bar(settings.steps, "training", progress if job.world.first else False) as advance:
            yield _Show(advance, run.step)
    except ProcessError as error:
        raise ProcessError(f"{error}; {where(run.folder)}") from error
    finally:
        run.energy.train(was_training)
        job.log.close()


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM, so that the step in progress is finished; a second one interrupts it."""
    caught: list[int] = []

    def note(number: int, frame: Any) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) == usual:  # somebody else's handler is left alone
                before[number] = signal.signal(number, note)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(job: Job, number: int) -> NoReturn:
    message = f"stopped at step {job.run.step}; {where(job.run.folder)}"
    if job.world.first:
        print(message, file=sys.stderr)
    if number == signal.SIGTERM:
        raise SystemExit(128 + number)
    raise KeyboardInterrupt(message)


@contextmanager
def _products(precision: str | None) -> Iterator[None]:
    """Matrix products in tf32 where that is asked for; the global setting is put back."""
    before = torch.get_float32_matmul_precision()
    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if precision == "tf32":
            torch.set_float32_matmul_precision(before)
