"""The training loop, from the first step to the last.

batch → objective.loss(energy, batch, state, generator, step) → gradients → optimizer → average → log → checkpoint
"""

import _thread
import bisect
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.distributed import DistError

from gibbsian.distributed.world import lost
from gibbsian.errors import ArgumentError, ProcessError
from gibbsian.objectives.base import Step
from gibbsian.progress import progress_bar
from gibbsian.random import stream
from gibbsian.training import keep
from gibbsian.training.checkpoint import freeze
from gibbsian.training.feeds.base import rows_of
from gibbsian.training.job import Job
from gibbsian.training.log import Log
from gibbsian.training.loggers import Logger, TensorBoard, describe_run
from gibbsian.training.recompute import recomputed
from gibbsian.training.run import Run
from gibbsian.training.steps import Steps

Hook = Callable[[Run], Any] | tuple[int | Iterable[int], Callable[[Run], Any]]


class Timed(NamedTuple):
    """A hook, and after which steps it is called: every n-th, or those of a list."""

    when: int | tuple[int, ...]
    hook: Callable[[Run], Any]

    def left(self, done: int) -> float:
        """How many steps there are from `done` to the next call."""
        if isinstance(self.when, int):
            return self.when - done % self.when
        next_one = bisect.bisect_right(self.when, done)
        return self.when[next_one] - done if next_one < len(self.when) else math.inf


def timed(hooks: Iterable[Hook]) -> list[Timed]:
    """Hooks as `gibbsian.fit` takes them, with their times.

    >>> timed([print, (10, print), ({4, 2}, print)])[2].when
    (2, 4)
    """
    return [_timed(hook) for hook in hooks]


def _timed(hook: Any) -> Timed:
    when, call = hook if isinstance(hook, tuple) and len(hook) == 2 else (1, hook)
    steps = (when,) if isinstance(when, int) else tuple(when) if isinstance(when, Iterable) else (None,)
    if not callable(call) or not all(isinstance(step, int) and step > 0 for step in steps):
        raise ArgumentError(
            "hooks: expected a function, a pair (n, function) with n from 1 on, or a pair of the steps themselves and a "
            f"function, got {hook!r}"
        )
    return Timed(when if isinstance(when, int) else tuple(sorted(set(steps))), call)


def train(
    job: Job, steps: Steps, held_out: Any, hooks: Sequence[Timed], progress: bool | None, loggers: Sequence[Logger] = ()
) -> Run:
    """Run a job to its last step."""
    run, settings = job.run, job.settings
    plan, stopping = Plan(job, held_out, hooks), job.patience_is_over
    with _opened(job, progress, loggers) as show, _signals(job) as signals, _engine(job):
        keep.snapshot(job)
        while run.step < settings.steps and not stopping:
            due = plan.next(steps)
            loss, rows, problem = steps.differentiate(due.at_once, watched=due.watched)  # batch → loss → gradients
            stops, diverged = job.exchange.finish(rows, (bool(signals.caught), problem is not None))
            stopping = stops > 0
            if diverged > 0 and problem is None:
                problem = "another process diverged"
            numbers: dict[str, float] = {}
            if problem is None:
                norm = job.clip_gradients(measure=due.read)
                numbers, problem = job.read(loss, norm) if due.read else ({}, None)
            if problem is None:
                steps.update(loss)  # optimizer → average
                if due.last and not job.finite():  # nobody would look at them any more
                    problem = "the last update left weights that are not finite"
            if problem is not None:
                keep.roll_back(job, problem)
                steps.reset()
                continue
            if due.look:
                job.warn(numbers)
                keep.snapshot(job)
            if due.log:
                job.log_step(numbers, show.rates(run.step))
            if due.validate:
                plan.judged = plan.validate()
            signals.forgive()
            if due.save:
                keep.save(job)
            show(run.step, numbers, plan.judged)
            with signals.between_steps():
                stopping = plan.call_hooks() or stopping or job.patience_is_over
            stopping = stopping or signals.interrupted
        keep.save(job)
        if signals.caught:
            _stop(job, signals.caught[0], f"stopped at step {run.step}")
    return run


class Due(NamedTuple):
    """The next steps, taken at once, and what is done after the last of them."""

    at_once: int
    watched: bool  # is anything done with its metrics?
    look: bool  # by the guard
    log: bool
    validate: bool
    save: bool
    last: bool

    @property
    def read(self) -> bool:
        """Are its numbers wanted? Only then the host waits for the device."""
        return self.look or self.log


class Plan:
    """What is done after which step."""

    def __init__(self, job: Job, held_out: Any, hooks: Sequence[Timed]) -> None:
        self.job, self.hooks = job, hooks
        self.validates = held_out is not None
        self.validate = Validation(job, held_out) if self.validates else dict
        self.judged: dict[str, float] = {}  # by the last validation
        self.guard = None if job.monitor is None else job.monitor.guard
        settings = job.settings
        self.periods = [settings.logging.every, settings.checkpoints.every]
        self.periods += [hook.when for hook in hooks if isinstance(hook.when, int)]
        if self.validates:
            self.periods.append(settings.logging.validate_every)
        if self.guard is not None:
            self.periods.append(self.guard.snapshot_every)

    def next(self, steps: Steps) -> Due:
        """How many steps are taken now, and what comes after them."""
        done, settings = self.job.run.step, self.job.settings
        regular = min(period - done % period for period in self.periods)
        free = int(
            min(settings.steps - done, regular, self.job.steps_to_turn(), *(hook.left(done) for hook in self.hooks))
        )
        at_once = steps.at_once(free, min(settings.steps, *self.periods))
        step = done + at_once
        look = self.guard is not None and (step == 1 or at_once > 1 or step % self.guard.every == 0)
        last = step == settings.steps
        return Due(
            at_once,
            watched=look or free == 1,
            look=look,
            log=last or step % settings.logging.every == 0,
            validate=self.validates and (last or step % settings.logging.validate_every == 0),
            save=step % settings.checkpoints.every == 0,
            last=last,
        )

    def call_hooks(self) -> bool:
        """Call the hooks of this step; does any of them end the training?"""
        run = self.job.run
        answers = [timed.hook(run) for timed in self.hooks if timed.left(run.step - 1) == 1]
        return any(answers)


class Validation:
    """A given function of the energy, or the objective's loss on held-out data, logged; and which was best.

    The energy is judged in evaluation mode, its average where there is one. The loss on held-out data and a transform of
    them use streams of their own, the same every time, and copies of the chains: training is not disturbed, and what
    differs between two validations is the energy.
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
        self.feed.noise = stream(job.settings.seed, f"validation/transform/{job.world.rank}", job.device)
        total, rows = 0.0, 0
        for batch in self.feed.sweep():
            state = freeze(job.run.state, modules=False)
            loss = job.run.objective.loss(energy, batch, state, generator, Step(done=job.run.step))
            total, rows = total + float(loss.value.detach()) * rows_of(batch), rows + rows_of(batch)
        return {"loss": total / rows}

    def __call__(self) -> dict[str, float]:
        """Judge, log, and keep the checkpoint of the best; returns the number that matters most, by its name."""
        job, run = self.job, self.job.run
        energy, was_training = run.energy if run.ema is None else run.ema, run.energy.training
        energy.eval()
        try:
            found = self.judge(energy)
        finally:
            run.energy.train(was_training)
        named = found if isinstance(found, dict) else {"score": found}
        if not named:
            raise ArgumentError("validation returned no numbers; return one, or a dictionary of them")
        values = {f"validation_{name}": _as_number(name, value) for name, value in named.items()}
        main = next(iter(named))
        values = job.world.mean(values, job.device)
        first = values[f"validation_{main}"]
        self.take({f"validation_{main}": first, **values}, first)
        return {_SHORT.get(main, main): first}

    def take(self, values: dict[str, float], first: float) -> None:
        """Hand on what was found; the first number matters most."""
        job, run = self.job, self.job.run
        job.log.write({"step": run.step, **values})
        run.validation = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
        run.metrics = run.metrics | run.validation
        job.updates.observe(first)
        if job.watch is not None and job.watch.look(values):
            job.event("early stopping", job.watch.why())
        value = first if job.watch is None else job.watch.value(values)
        better = not math.isnan(value) and (job.best is None or value < job.best[1])
        if job.settings.checkpoints.keep_best and better:
            job.best = (run.step, value)
            keep.save(job)


def _as_number(name: str, value: Any) -> float:
    """What a validation found, refused where it is no number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            f"validation returned {value!r} as {name!r}; return one number, or a dictionary of them"
        ) from None


_SHORT = {"energy_gap": "gap"}  # names beside the bar


class _Show:
    """The progress bar, moved a few times a second, and the speed of the run.

    Beside it stands what says how the run is doing: the first number of the last validation, else the loss where it falls
    as the objective learns (`Objective.descends`).
    """

    def __init__(self, advance: Callable[..., None], step: int, descends: bool) -> None:
        self.descends = descends
        self.advance, self.start, self.at = advance, step, step
        self.began = self.moved = time.perf_counter()
        self.shown: dict[str, float] = {}
        advance(step)

    def rates(self, step: int) -> dict[str, float]:
        """Seconds since the start, and steps a second."""
        seconds = time.perf_counter() - self.began
        return {"seconds": seconds, "steps_per_second": (step - self.start) / seconds}

    def __call__(self, step: int, numbers: dict[str, float], judged: dict[str, float]) -> None:
        if numbers:
            loss = {"loss": numbers["loss"]} if self.descends else {}
            self.shown = (judged or loss) | {"steps/s": self.rates(step)["steps_per_second"]}
        now = time.perf_counter()
        if now - self.moved > 0.2:
            self.advance(step - self.at, **self.shown)
            self.at, self.moved = step, now


@contextmanager
def _opened(job: Job, progress: bool | None, loggers: Sequence[Logger]) -> Iterator[_Show]:
    """The log, the bar and training mode, closed again whatever happens."""
    run, settings = job.run, job.settings
    was_training = run.energy.training
    folder = run.folder if job.world.first else None
    loggers = [*loggers, TensorBoard()] if settings.logging.tensorboard and not _has_board(loggers) else loggers
    loggers = loggers if job.world.first else ()
    for logger in loggers:
        logger.open(folder, describe_run(run.energy, run.objective, settings), run.step)
    job.log = Log(folder, run.history, loggers)
    run.energy.train()
    try:
        with progress_bar(settings.steps, "training", progress if job.world.first else False) as advance:
            yield _Show(advance, run.step, run.objective.descends())
    except (ProcessError, DistError) as error:  # NCCL's come late: wherever its results are looked at
        said = error if isinstance(error, ProcessError) else lost(error)
        raise ProcessError(f"{said}; {keep.where(run.folder)}") from error
    finally:
        run.energy.train(was_training)
        job.feed.close()
        job.exchange.close()
        job.log.close()


def _has_board(loggers: Sequence[Logger]) -> bool:
    return any(isinstance(logger, TensorBoard) for logger in loggers)


_GRACE = 5.0  # seconds; who sends SIGTERM kills 10 (docker) to 90 (systemd) later


class _Interrupted(BaseException):
    """A signal came while a hook was at work."""


class _Signals:
    """Ctrl-C and SIGTERM, so that what is saved is the state after a whole step.

    One that comes inside a step waits for its end. A second one does not, nor does SIGTERM after a time of grace: the step is
    then lost, and the last checkpoint stays. Hooks are interrupted at once, since the step before them is whole.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.caught: list[int] = []
        self.interrupted = False
        self.idle = False
        self.timer: threading.Timer | None = None

    def note(self, number: int, frame: Any) -> None:
        """The handler of both signals."""
        first = not self.caught
        self.caught.append(number)
        if self.idle:
            self.idle = False
            raise _Interrupted
        if not first:
            _stop(self.job, number, f"stopped inside step {self.job.run.step + 1}, which is lost")
        if number == signal.SIGTERM:
            self.timer = threading.Timer(_GRACE, _thread.interrupt_main, (number,))  # the same signal once more
            self.timer.daemon = True
            self.timer.start()

    def forgive(self) -> None:
        """The step is whole: give the time that it takes to save it."""
        if self.timer is not None:
            self.timer.cancel()

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """A signal ends what is done here at once; processes that wait for one another are left to finish it."""
        self.idle = self.job.world.size == 1
        try:
            yield
        except _Interrupted:
            self.interrupted = True
        finally:
            self.idle = False


@contextmanager
def _signals(job: Job) -> Iterator[_Signals]:
    """Handlers for the time of a run; somebody else's are left alone."""
    signals, before = _Signals(job), {}
    if threading.current_thread() is threading.main_thread():
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) == usual:
                before[number] = signal.signal(number, signals.note)
    try:
        yield signals
    finally:
        signals.forgive()
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(job: Job, number: int, what: str) -> NoReturn:
    message = f"{what}; {keep.where(job.run.folder)}"
    if job.world.first:
        print(message, file=sys.stderr)
    if number == signal.SIGTERM:
        raise SystemExit(128 + number)
    raise KeyboardInterrupt(message)


@contextmanager
def _engine(job: Job) -> Iterator[None]:
    """Matrix products in tf32 and activations computed again, where that is asked for; what is global is put back."""
    engine, before = job.settings.engine, torch.get_float32_matmul_precision()
    if engine.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        with recomputed(job.run.energy) if engine.recompute else nullcontext():
            yield
    finally:
        if engine.precision == "tf32":
            torch.set_float32_matmul_precision(before)
