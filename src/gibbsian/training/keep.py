"""Keeping a run: what is collected, saved, resumed, and rolled back to; and the folder of a run.

run/config.json        the energy by its constructor, the objective and the settings
run/environment.json   versions and devices
run/metrics.jsonl      one record a line
run/checkpoints/       see gibbsian.training.checkpoint
run/pretraining/       the runs of the layers of a deep model, which come before its own
"""

import json
import logging
import os
import platform
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

import gibbsian
from gibbsian.distributed.world import World
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, CheckpointError, DivergenceError, TrainingWarning
from gibbsian.objectives.base import Objective
from gibbsian.random import stream
from gibbsian.training import checkpoint
from gibbsian.training.feeds.base import Feed
from gibbsian.training.feeds.fingerprint import same_fingerprint
from gibbsian.training.job import Job
from gibbsian.training.run import Settings

logger = logging.getLogger("gibbsian")


_PARTS: dict[str, Any] = {  # of a checkpoint, and what each is
    "step": int,
    "device": str,
    "position": tuple,
    "energy": dict,
    "frozen": list,
    "ema": dict | None,
    "optimizer": dict,
    "monitor": dict | None,
    "best": tuple | None,
    "lines": int,
    "ranks": Sequence,
}


_CONFIG: dict[str, Any] = {
    "energy": Energy | ScoreField,
    "objective": Objective,
    "settings": Settings,
    "rows": int | None,
    "fingerprint": list | None,  # folders of before have none
    "given": list,
}


APART = ("settings", "rows", "fingerprint", "given")  # what is known of a run besides its energy and its objective
PRETRAINING = "pretraining"


def check_parts(tree: dict[str, Any], *, whole: bool = False) -> dict[str, Any]:
    """The parts of a checkpoint, if each is what it should be, and none is missing where it is `whole`."""
    return _checked(tree, _PARTS, _PARTS if whole else tree)


def best_step(tree: dict[str, Any]) -> int | None:
    """The step of the checkpoint that was found best, where one was."""
    best = check_parts(tree)["best"]
    return None if best is None else int(best[0])


def _checked(tree: dict[str, Any], kinds: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    for name in names:
        if not isinstance(tree[name], kinds.get(name, object)):
            raise CheckpointError(f"the run folder holds a {type(tree[name]).__name__} for {name!r}; it is damaged")
    return tree


def collect(job: Job) -> dict[str, Any]:
    """Everything that the next step depends on; under `own` what each process has to itself."""
    run, feed = job.run, job.feed
    return {
        "step": run.step,
        "device": job.device.type,
        "position": (feed.epoch, feed.index),
        "reading": feed.state(),
        "energy": dict(run.energy.state_dict()),
        "frozen": [name for name, p in run.energy.named_parameters() if not p.requires_grad],
        "ema": dict(job.ema.energy.state_dict()) if job.ema else None,
        "optimizer": job.updates.optimizer.state_dict(),
        "monitor": job.monitor.state() if job.monitor else None,
        "best": job.best,
        "stopping": job.watch.state() if job.watch else None,
        "rates": job.updates.torch_rates.state() if job.updates.torch_rates else None,
        "lines": len(run.history),
        "log": job.log.sha256.hexdigest(),
        "own": {
            "state": run.state,
            "chains": job.generator.get_state(),
            "transform": feed.noise.get_state(),
            "losses": (job.loss_sum, job.summed),  # since the last record
        },
    }


def restore(job: Job, tree: dict[str, Any]) -> None:
    """Go back (or forward) to what was collected and frozen."""
    run, own = job.run, tree["own"]
    run.step = tree["step"]
    checkpoint.load_module(run.energy, tree["energy"], tree["frozen"])
    if job.ema is not None:
        checkpoint.load_module(job.ema.energy, tree["ema"])
    job.updates.load(checkpoint.freeze(tree["optimizer"]))
    job.updates.drop_gradients()
    if job.updates.torch_rates is not None:
        job.updates.torch_rates.load(tree.get("rates"))
    if job.watch is not None and tree.get("stopping") is not None:
        job.watch.load(tree["stopping"])
    run.state = checkpoint.thaw(own["state"], run.state, job.device)
    total, job.summed = own.get("losses", (0.0, 0))  # folders of before have none
    job.loss_sum.fill_(total)
    if tree["device"] == job.device.type:
        job.generator.set_state(own["chains"].cpu())
        job.feed.noise.set_state(own["transform"].cpu())
    epoch, index = tree["position"]
    job.feed.seek(epoch, index, salt=job.monitor.tries if job.monitor else 0, state=tree.get("reading"))


def resume(job: Job, tree: dict[str, Any]) -> None:
    """Go on from a checkpoint, which holds what every process had to itself."""
    if job.world.mean({"step": float(tree["step"])}, job.device)["step"] != tree["step"]:
        raise CheckpointError(
            f"the processes see different checkpoints, this one that of step {tree['step']}; "
            "put the run folder on a disk that all of them share"
        )
    if tree["device"] != job.device.type:
        text = f"the run was saved on {tree['device']} and goes on on {job.device.type}"
        warnings.warn(f"{text}: its random numbers begin anew", TrainingWarning, stacklevel=3)
        job.generator = stream(job.settings.seed, f"chains/{job.world.rank}/from/{tree['step']}", job.device)
    if job.monitor is not None and tree["monitor"] is not None:
        job.monitor.load(tree["monitor"])
        job.run.objective = job.monitor.softened(job.original_objective)
    best = tree["best"]
    job.best = None if best is None else (int(best[0]), float(best[1]))
    mine = tree["mine"]
    own = mine[0] if len(tree["ranks"]) == job.world.size else _redealt(job, tree, mine)
    restore(job, {**tree, "own": own})
    job.saved_at = job.run.step


def mine(tree: dict[str, Any], world: World) -> list[Any]:
    """What of a checkpoint this process goes on from: its own part, or all of them where they must be dealt anew."""
    ranks = tree["ranks"]
    return [ranks[world.rank]] if len(ranks) == world.size else list(ranks)


def _redealt(job: Job, tree: dict[str, Any], before: list[Any]) -> dict[str, Any]:
    """What this process has to itself, out of what another number of processes had: their chains are dealt anew, and random
    numbers come from new streams."""
    world, step, salt = job.world, tree["step"], f"of/{job.world.size}/from/{tree['step']}"
    epoch, index = tree["position"]
    tree["position"] = epoch, job.feed.redealt(index, len(before))
    tree["device"] = job.device.type
    logger.info("saved by %d processes at step %d, resumed by %d", len(before), step, world.size)
    seed = job.settings.seed
    return {
        "state": job.original_objective.redealt([own["state"] for own in before], world.rank, world.size),
        "chains": stream(seed, f"chains/{world.rank}/{salt}", job.device).get_state(),
        "transform": stream(seed, f"transform/{world.rank}/{salt}", job.device).get_state(),
    }


def snapshot(job: Job) -> None:
    """Keep this state in memory to roll back to, if it is time and its weights are finite."""
    if job.monitor is None or not job.monitor.wants_snapshot(job.run.step):
        return
    if job.finite():
        job.monitor.keep(job.run.step, checkpoint.freeze(collect(job)))
    elif not job.monitor.snapshots:
        raise DivergenceError(
            f"the weights are not finite at step {job.run.step}, where training is to begin; "
            "initialize the energy anew, or load an older checkpoint"
        )


def roll_back(job: Job, reason: str | None) -> None:
    """Let the guard go back to a good state, with new streams and gentler settings, or give up."""
    run, monitor, failed = job.run, job.monitor, job.run.step + 1
    if monitor is None:
        raise DivergenceError(f"step {failed}: {reason}; the guard is off, so the run stops here")
    reason = str(reason).split("; ")[0]  # what to do about it is for those who have no guard
    if monitor.tries >= monitor.guard.tries:
        raise DivergenceError(
            f"step {failed}: {reason}; given up after {monitor.tries} rollbacks "
            f"({'; '.join(monitor.trail)}); start with a much lower learning rate, more sampler steps, "
            "or a smaller step size"
        )
    snapshot = monitor.roll_back(failed, reason, job.original_objective)
    restore(job, snapshot)
    run.objective = monitor.softened(job.original_objective)
    job.generator = job.stream("chains", monitor.tries)
    job.loss_sum.zero_()
    job.summed, job.saved_at = 0, None
    if (
        job.best is not None and job.best[0] > run.step
    ):  # what was best came to nothing: the best before it, if it is still there
        best = snapshot["best"]
        gone = best is not None and run.folder is not None and best[0] not in checkpoint.steps_saved(run.folder)
        job.best = None if gone else best
    job.event("rollback", monitor.trail[-1], attempt=monitor.tries, failed=failed)
    if job.world.first:
        logger.warning("rolled back: %s", monitor.trail[-1])
        if run.folder is not None:  # checkpoints of what came to nothing
            checkpoint.prune(run.folder, [s for s in checkpoint.steps_saved(run.folder) if s <= run.step])


def _write(job: Job, folder: Path) -> None:
    """Write a checkpoint: what all share by rank 0, what every process has to itself by that process."""
    tree, world, step = collect(job), job.world, job.run.step
    own = checkpoint.freeze(tree.pop("own"))
    tree["ranks"] = [own] if world.alone else [checkpoint.rank_file(rank) for rank in range(world.size)]
    job.saved_at = step
    if world.alone:
        checkpoint.save_checkpoint(folder, step, tree)
        return
    place = Path(world.same(str(checkpoint.open_checkpoint(folder, step)) if world.first else ""))
    if not place.is_dir():
        raise CheckpointError(
            f"process {world.rank} does not see {place}, which process 0 has made; put the run folder on a disk that all share"
        )
    checkpoint.write_tree(place, checkpoint.rank_file(world.rank), own)
    world.wait(job.device)
    if world.first:
        checkpoint.close_checkpoint(folder, step, tree)


def save(job: Job) -> None:
    """Write a checkpoint with the states of all processes, and remove old ones.

    Weights that are not finite are never saved: the guard finds them at its next look.
    """
    run = job.run
    if run.folder is None or job.saved_at == run.step or not job.finite():
        return
    _write(job, run.folder)
    if job.world.first:
        past = [step for step in checkpoint.steps_saved(run.folder) if step <= run.step]
        best = [job.best[0]] if job.best else []
        checkpoint.prune(run.folder, {*past[-job.settings.checkpoints.keep_last :], *best})
    job.world.wait(job.device)


# --- the folder ------------------------------------------------------------------------------------


@runtime_checkable
class Furnishing(Protocol):
    """A hook that has files of its own to put into a new run folder."""

    def begin(self, folder: Path) -> None:
        """Write them; `folder` is where the run folder is made, before it appears under its name."""


def create_folder(job: Job, hooks: Iterable[Any] = ()) -> None:
    """Write configuration, environment, first checkpoint and what hooks begin with into a new run folder, where one is
    wanted.

    The folder appears whole or not at all; one where layers were pretrained becomes a run by its config.json, which comes last.
    """
    if job.run.folder is None:
        return
    folder = job.run.folder
    temporary = Path(job.world.same(str(room_for(folder)) if job.world.first else ""))
    try:
        if job.world.first:
            _furnish(job, temporary, [hook for hook in hooks if isinstance(hook, Furnishing)])
        _write(job, temporary)
        if job.world.first:
            _put(temporary, folder)
    finally:
        if job.world.first:
            shutil.rmtree(temporary, ignore_errors=True)
    job.world.wait(job.device)


def room_for(folder: Path) -> Path:
    """A hidden folder beside the one that is to appear."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not only_pretrained(folder):
        raise CheckpointError(
            f"{folder} already holds files; go on with gibbsian.resume({str(folder)!r}, data), "
            "or choose another run_dir"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    return temporary


def only_pretrained(folder: Path) -> bool:
    """Have the layers of a model been trained in this folder, as far as they went, and not yet the whole?"""
    return (folder / PRETRAINING).is_dir() and not (folder / "config.json").exists()


def _put(made: Path, folder: Path) -> None:
    """Move what was made to its place. A kill on the way leaves a folder that is begun anew."""
    if not only_pretrained(folder):
        made.rename(folder)
        return
    for entry in sorted(made.iterdir(), key=lambda one: one.name == "config.json"):
        place = folder / entry.name
        if place.is_dir():
            shutil.rmtree(place)
        entry.replace(place)


def _furnish(job: Job, folder: Path, hooks: list[Furnishing]) -> None:
    """Configuration, environment, and what hooks begin with."""
    config = {"energy": job.run.energy, "objective": job.original_objective, "settings": job.settings}
    config |= {"rows": job.feed.rows, "fingerprint": job.feed.fingerprint(), "given": job.given}
    checkpoint.write_tree(folder, "config", config, weightless={"energy"})
    (folder / "environment.json").write_text(json.dumps(_environment(job.device), indent=1))
    for hook in hooks:
        hook.begin(folder)


def _environment(device: torch.device) -> dict[str, Any]:
    return {
        "gibbsian": gibbsian.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


@contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Inside, nobody else trains in this folder; the lock ends with the process, however that ends."""
    if folder is None:
        yield
        return
    from fcntl import LOCK_EX, LOCK_NB, flock  # here, since not every system has it

    with (folder / ".lock").open("a") as file:  # which empties nothing, where a folder from elsewhere has a link there
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"another training is at work in {folder}; wait until it has ended, or end it, and then resume"
            ) from error
        except OSError:
            logger.warning("%s is on a disk without locks: see to it that nobody else trains there", folder)
        yield


def check_data(config: dict[str, Any], feed: Feed) -> str | None:
    """How the data differ from those that a run was trained on, in words."""
    if config["rows"] != feed.rows:
        return f"the run was trained on {config['rows']} rows and goes on with {feed.rows}: the order of the examples changes"
    before, now = config["fingerprint"], feed.fingerprint()
    if before is not None and now is not None and not same_fingerprint(before, now):
        return "the data have as many rows as those that the run was trained on, and other values: give the same data"
    return None


def check_given(config: dict[str, Any], folder: Path, **now: Any) -> None:
    """Ask for what a run was given before and its folder cannot keep, where it is None now."""
    missing = [name for name in config["given"] if name in now and now[name] is None]
    if missing:
        again = ", ".join(f"{name}=..." for name in missing)
        without = ", ".join(f"{name}={'()' if name in ('hooks', 'loggers') else 'False'}" for name in missing)
        raise ArgumentError(
            f"{folder} was trained with {' and '.join(missing)}, which a folder cannot keep: give {again} again, or {without} to go "
            "on without"
        )


def check_folder(folder: Path) -> None:
    """Refuse what is no run folder."""
    if only_pretrained(folder):
        raise CheckpointError(
            f"{folder} holds layers that were pretrained, and no training of the whole yet; go on with `gibbsian resume {folder}` "
            f"where `gibbsian train` began it, else with gibbsian.pretrain(..., run_dir={str(folder / PRETRAINING)!r}, resume=True)"
        )
    if not (folder / "config.json").exists():
        raise CheckpointError(
            f"{folder} is not a run folder: it has no config.json; give the run_dir of a gibbsian.fit"
        )


def read_config(folder: Path, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The configuration of a run, or its parts under `keys`."""
    check_folder(folder)
    config = checkpoint.read_tree(folder, "config", keys, note_age=True)
    if keys is None:
        config.setdefault("fingerprint", None)
        config.setdefault("given", [])
    with checkpoint.damage(folder / "config.json"):
        return _checked(config, _CONFIG, keys or _CONFIG)


def where(folder: Path | None) -> str:
    """Where the last checkpoint is and how to go on from it."""
    if folder is None:
        return "nothing was saved, since there is no run_dir; the energy holds the weights reached so far"
    saved = checkpoint.steps_saved(folder)
    last = f"the last checkpoint is of step {saved[-1]}" if saved else "there is no checkpoint"
    return f"{last} in {folder}; go on with gibbsian.resume({str(folder)!r}, data)"
