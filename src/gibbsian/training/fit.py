"""Training any energy by any objective: `fit`, `resume` and `load`."""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from gibbsian.distributed.world import join
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, CapabilityError, CheckpointError, TrainingWarning
from gibbsian.objectives.base import Objective
from gibbsian.placement import device_named
from gibbsian.training import checkpoint, keep
from gibbsian.training.captured import steps_of
from gibbsian.training.feeds.base import Loading
from gibbsian.training.guard import Guard
from gibbsian.training.job import Job
from gibbsian.training.log import read_log
from gibbsian.training.loggers import Logger, TensorBoard, check_loggers
from gibbsian.training.loop import Hook, timed, train
from gibbsian.training.rates import is_plateau
from gibbsian.training.run import Checkpoints, Engine, Logging, Run, Settings
from gibbsian.training.stopping import EarlyStopping
from gibbsian.training.trust import trust as trust_modules


def fit(
    energy: Any,
    objective: Objective,
    data: Any,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int = 128,
    lr: float | tuple[float, float] = 1e-3,
    optimizer: Any = None,
    schedule: Any = None,
    seed: int = 0,
    run_dir: str | Path | None = None,
    ema: float | None = None,
    clip: float | None = None,
    device: torch.device | str | None = None,
    transform: Callable[[Any, torch.Generator], Any] | None = None,
    validation: Any = None,
    hooks: Iterable[Hook] = (),
    loggers: Sequence[Logger] = (),
    early_stopping: EarlyStopping | None = None,
    guard: bool | Guard = True,
    checkpoints: Checkpoints = Checkpoints(),
    logging: Logging = Logging(),
    engine: Engine = Engine(),
    loading: Loading = Loading(),
    progress: bool | None = None,
) -> Run:
    """Train an energy by an objective on data, in place.

    Args:
        energy: an `Energy` or `ScoreField`; `run.energy` is the same object.
        objective: one of `gibbsian.objectives`, or yours.
        data: a tensor, a numpy array or memmap (read row by row), `data.Parquet`, a tuple (inputs, labels) or a dictionary of
            them, a Dataset or IterableDataset of torch or of Hugging Face, a DataLoader (its own batches; its
            generator is seeded from `seed`) or an iterable of batches.
        steps, epochs: how long; one of them.
        batch_size: rows a step, over all processes together.
        lr: the learning rate; a pair is that of the energy and that of what the objective learns itself (a flow, a
            generator, NCE's log Z).
        optimizer: None (Adam), a name such as "sgd", a dictionary of a name and options such as
            `{"name": "sgd", "momentum": 0.9}`, where a 1-D tensor or a callable of the step is a schedule, a class of
            `torch.optim`, or a callable params -> Optimizer, which sets its own learning rate. In `{"name": "adamw",
            "weight_decay": 0.05, "spare_gains": True}` only arrays decay, and not gains, biases and scales, which a
            network without norms needs at their size.
        schedule: "cosine", "linear", "warm-up", "warm-up cosine", "warm-up linear", the rates themselves (a 1-D tensor, one
            a step, or a callable of the step), or any scheduler of `torch.optim.lr_scheduler`, which goes on a step an
            update: `{"name": "StepLR", "step_size": 1000}`, or a `functools.partial` of its class.
            `ReduceLROnPlateau` looks at the first number of the validation.
        seed: everything random follows from it, by named streams.
        run_dir: a new folder for configuration, metrics and checkpoints; see `resume` and `load`.
        ema: decay of the averaged copy `run.ema`, such as 0.999.
        clip: largest gradient norm.
        device: where to train; by default where the energy is.
        transform: `transform(batch, generator)`, applied to every batch on the device: dequantize, binarize.
        validation: held-out data, on which the objective's loss is logged; or a callable of the energy that
            returns a number or a dictionary of numbers. The average is judged where there is one.
        hooks: called with the `Run` after every step, as a pair (n, hook) after every n-th, as a pair of a list of steps
            and a hook after those; one that returns True ends the training. One with a method `begin(folder)` may put
            files into the new run folder before the first step. Captured steps go on at once up to the next call.
        loggers: where records go besides the history: `training.loggers.CSV()`, `JSONLines()`, `TensorBoard()`, `WandB()`,
            or your own `Logger`.
        early_stopping: `training.EarlyStopping(patience=10)`: end where the validation becomes no better.
        guard: watch for divergence and roll back, as a `Guard` says; False stops with an error instead.
        checkpoints: `training.Checkpoints(every=1000, keep_last=2, keep_best=False)`, those of the run folder.
        logging: `training.Logging(every=50, validate_every=500, tensorboard=False)`.
        engine: `training.Engine(precision="bf16", compile=True)`: half-precision products, steps as CUDA graphs.
        loading: `training.Loading(workers=4, buffer=65536, columns="image")`: how data that is not in memory is read.
        progress: show a bar; by default on a terminal.

    Ctrl-C (and SIGTERM) finishes the step, saves a checkpoint, says where it is, and raises. SIGTERM gives the step five
    seconds: one that takes longer is lost, and the last checkpoint stays.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> data = 3 + torch.randn(500, 1, generator=g)
    >>> energy = gb.energies.Gaussian(torch.zeros(1), torch.eye(1), trainable=True)
    >>> noise = gb.energies.Gaussian(torch.zeros(1), 16 * torch.eye(1))
    >>> run = gb.fit(energy, gb.objectives.NoiseContrastive(noise, ratio=4), data, steps=300, lr=0.05)
    >>> abs(float(energy.mean.detach() - data.mean())) < 0.2
    True
    """
    _check_parts(energy, objective)
    calls = timed(hooks)
    if (steps is None) == (epochs is None):
        raise ArgumentError("say how long to train: steps=1000 or epochs=10, one of the two")
    settings = Settings(
        steps=1 if steps is None else steps,
        batch_size=batch_size,
        lr=lr,
        optimizer=optimizer,
        schedule=schedule,
        seed=seed,
        ema=ema,
        clip=clip,
        guard=(Guard() if guard else None) if isinstance(guard, bool) else guard,
        checkpoints=checkpoints,
        logging=logging,
        engine=engine,
        loading=loading,
        early_stopping=early_stopping,
    )
    if validation is None:
        _check_unjudged(settings)
    folder = None if run_dir is None else Path(run_dir)
    check_loggers([*loggers, TensorBoard()] if logging.tensorboard else loggers, folder)
    now = {"transform": transform is not None, "validation": validation is not None, "hooks": calls, "loggers": loggers}
    given = [name for name, there in now.items() if there]
    options: dict[str, Any] = {"epochs": epochs, "device": device, "run_dir": folder, "transform": transform}
    job = Job(energy, objective, data, settings, **options, given=given)
    stepper = steps_of(job)
    keep.create_folder(job, [call.hook for call in calls])
    with keep.locked(folder if job.world.first else None):
        return train(job, stepper, validation, calls, progress, loggers)


def _check_unjudged(settings: Settings) -> None:
    """Refuse what needs a validation, where there is none."""
    if settings.checkpoints.keep_best:
        raise ArgumentError("Checkpoints(keep_best=True) needs validation, to tell which checkpoint is best")
    if settings.early_stopping is not None or is_plateau(settings.schedule):
        what = "EarlyStopping" if settings.early_stopping is not None else "ReduceLROnPlateau"
        raise ArgumentError(f"{what} needs validation, to tell whether the run still becomes better")


def _check_parts(energy: Any, objective: Any) -> None:
    if not isinstance(energy, Energy | ScoreField):
        raise CapabilityError(
            f"{type(energy).__name__} is not an energy; wrap it with gibbsian.as_energy(function, domain)"
        )
    if not isinstance(objective, Objective):
        raise ArgumentError(
            f"objective is a {type(objective).__name__}; give one of gibbsian.objectives, such as "
            "objectives.ContrastiveDivergence(kernels.Gibbs())"
        )


def resume(
    run_dir: str | Path,
    data: Any,
    steps: int | None = None,
    *,
    epochs: int | None = None,
    schedule: Any = None,
    device: torch.device | str | None = None,
    transform: Callable[[Any, torch.Generator], Any] | Literal[False] | None = None,
    validation: Any = None,
    hooks: Iterable[Hook] | None = None,
    loggers: Sequence[Logger] | None = None,
    progress: bool | None = None,
    trust: str | Iterable[str] = (),
) -> Run:
    """Go on with a run from its newest whole checkpoint, to the bit on the CPU, as if it had not stopped.

    Args:
        run_dir: the folder that `fit` wrote.
        data: the data that it was trained on; other values than those are noticed where data lie in memory or on disk.
        steps, epochs: the total, what was done before counted in; by default what `fit` was asked for.
        schedule: other rates than those of `fit`, which the folder keeps: by the number of the step, what was done before counted in.
        device, progress: as in `fit`.
        transform, validation, hooks, loggers: as in `fit`. A folder does not keep them: where there were some, they are asked
            for, and `transform=False`, `validation=False`, `hooks=()` and `loggers=()` go on without.
        trust: as in `load`.
    """
    trust_modules(trust)
    if steps is not None and epochs is not None:
        raise ArgumentError("say how long to train: steps=1000 or epochs=10, one of the two")
    given: dict[str, Any] = {"transform": transform, "validation": validation, "hooks": hooks, "loggers": loggers}
    changes = {"steps": steps, "schedule": schedule}
    return go_on(Path(run_dir), data, changes=changes, epochs=epochs, device=device, progress=progress, **given)


def go_on(
    folder: Path,
    data: Any,
    *,
    parts: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
    epochs: int | None = None,
    device: torch.device | str | None = None,
    transform: Any = None,
    validation: Any = None,
    hooks: Iterable[Hook] | None = None,
    loggers: Sequence[Logger] | None = None,
    progress: bool | None = None,
) -> Run:
    """`resume`, with `changes` of the settings; `parts`, an energy and an objective, stand for those that the folder describes, and
    the energy takes the weights of the checkpoint."""
    calls = timed(hooks or ())
    keep.check_folder(folder)
    check_loggers(loggers or (), folder)
    with keep.locked(folder if join(device)[0].first else None):
        config = keep.read_config(folder) if parts is None else keep.read_config(folder, keep.APART) | parts
        keep.check_given(config, folder, transform=transform, validation=validation, hooks=hooks, loggers=loggers)
        config["settings"] = _changed(config["settings"], **changes or {})
        job = _reopened(folder, config, data, epochs, device, transform or None)
        if job.run.step > job.settings.steps:
            total = f"the run has {job.run.step} steps and a total of {job.settings.steps} was asked for"
            warnings.warn(
                f"{total}: nothing is trained; say how many there are to be in all", TrainingWarning, stacklevel=2
            )
        held_out = None if validation is False else validation
        return train(job, steps_of(job), held_out, calls, progress, loggers or ())


def _changed(settings: Settings, **changes: Any) -> Settings:
    """The settings with those of the changes that are given."""
    return dataclasses.replace(settings, **{name: value for name, value in changes.items() if value is not None})


def _reopened(folder: Path, config: dict[str, Any], data: Any, epochs: int | None, device: Any, transform: Any) -> Job:
    """The job of a run folder where its newest whole checkpoint left it."""
    energy, objective, settings = config["energy"], config["objective"], config["settings"]

    world, _ = join(device)

    def into_energy(tree: dict[str, Any]) -> dict[str, Any]:
        keep.check_parts(tree, whole=True)
        checkpoint.load_module(energy, tree["energy"], tree["frozen"])
        return tree | {"mine": keep.mine(tree, world)}

    tree = checkpoint.read_latest(folder, use=into_energy)
    oldest = world.least(tree["step"], device)  # that any process has found whole
    if tree["step"] != oldest:
        tree = checkpoint.read_latest(folder, oldest, use=into_energy)
    job = Job(energy, objective, data, settings, epochs=epochs, device=device, run_dir=folder, transform=transform)
    with checkpoint.damage(folder):
        difference = keep.check_data(config, job.feed)
        keep.resume(job, tree)
    if difference is not None:
        warnings.warn(difference, TrainingWarning, stacklevel=3)
    job.run.history.extend(read_log(folder, tree["lines"], tree.get("log")))
    judged = ({k: v for k, v in record.items() if k.startswith("validation_")} for record in reversed(job.run.history))
    last = next(filter(None, judged), {})
    job.run.validation = {name: torch.tensor(value, dtype=torch.float64) for name, value in last.items()}
    return job


def load(
    run_dir: str | Path,
    which: str | int = "last",
    *,
    ema: bool = False,
    device: torch.device | str = "cpu",
    trust: str | Iterable[str] = (),
) -> Any:
    """The trained energy of a run folder, in evaluation mode.

    Args:
        run_dir: the folder that `fit` wrote.
        which: "last", "best" (with `Checkpoints(keep_best=True)`) or a step that has a checkpoint.
        ema: the averaged weights instead of the last ones.
        device: where to put it.
        trust: modules of your own whose classes and functions the folder names, by name or as .py files; importing them
            runs their code. "__main__" is the script that runs. Nothing else is imported, built or called but what this
            library and `torch.nn` define.
    """
    trust_modules(trust)
    device = device_named(device, "device", "say cpu, cuda or cuda:1, whichever `gibbsian doctor` finds")
    folder = Path(run_dir)
    energy = keep.read_config(folder, ("energy",))["energy"]
    step = which if isinstance(which, int) else None
    if which == "best":
        step = checkpoint.read_latest(folder, keys=("best",), use=keep.best_step)
        if step is None:
            raise CheckpointError(
                f"{folder} has no best checkpoint; train with checkpoints=Checkpoints(keep_best=True)"
            )
    elif which != "last" and step is None:
        raise ArgumentError(f"which={which!r}: expected 'last', 'best' or a step")

    def into_energy(tree: dict[str, Any]) -> bool:
        keep.check_parts(tree)
        weights = tree["ema" if ema else "energy"]
        if weights is not None:
            checkpoint.load_module(energy, weights, tree["frozen"])
        return weights is not None

    if not checkpoint.read_latest(folder, step, ("energy", "frozen", "ema"), into_energy):
        raise CheckpointError(f"{folder} has no averaged weights; it was trained without ema")
    return energy.to(device).eval()
