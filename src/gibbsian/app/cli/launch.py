"""One flag for several processes: `--processes N` starts the same command N times under torch's launcher, `torchrun`.

Under `torchrun`, or as tasks of a Slurm step, the command joins the others. Process 0 speaks for all; what the others say
is kept until the end, and the sentence of one that failed by itself is passed on.
"""

import argparse
import json
import logging
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from gibbsian.distributed.world import World, join, slurm_step
from gibbsian.errors import ArgumentError, ProcessError

_LOST = "gibbsian: another process of this job"  # what a process says that failed for another's sake


def launch(options: argparse.Namespace) -> int:
    """Run the command of these options in as many processes as it says; its exit code."""
    count = options.processes
    if torch.cuda.is_available() and count > torch.cuda.device_count():
        print(f"gibbsian: {count} processes share {torch.cuda.device_count()} GPUs", file=sys.stderr)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    logging.disable(logging.ERROR)  # what goes wrong is said in our own words, and the processes speak for themselves
    with tempfile.TemporaryDirectory(prefix="gibbsian-") as logs:
        how = ["--standalone", f"--nproc-per-node={count}", f"--log-dir={logs}"]
        if count > 1:
            how.append("--redirects=" + ",".join(f"{rank}:3" for rank in range(1, count)))
        plan = torchrun.parse_args([*how, "-m", "gibbsian"])
        plan.training_script_args = _without_flag(options.arguments)  # not parsed: it would take --run for --run-path
        try:
            torchrun.run(plan)
        except ChildFailedError as error:
            return _failed(error.failures, Path(logs))
        except SignalException as stopped:
            return 128 + int(stopped.sigval)
        finally:
            logging.disable(logging.NOTSET)
    return 0


def _without_flag(arguments: list[str]) -> list[str]:
    """The command without `--processes`.

    >>> _without_flag(["train", "digits-rbm", "--processes", "8", "--quiet"]), _without_flag(["sample", "--processes=2"])
    (['train', 'digits-rbm', '--quiet'], ['sample'])
    """
    kept, skip = [], False
    for one in arguments:
        if not skip and one != "--processes" and not one.startswith("--processes="):
            kept.append(one)
        skip = one == "--processes"
    return kept


def _failed(failures: dict[int, ProcessFailure], logs: Path) -> int:
    """Pass on what the process that failed by itself has said, unless it has been heard already; its exit code."""
    said = {rank: _words(rank, logs) for rank in (0, *failures)}
    rank, first = min(failures.items(), key=lambda item: (said[item[0]].startswith(_LOST), item[1].timestamp))
    if first.exitcode < 0:
        print(f"gibbsian: process {rank} {_ended(signal.Signals(-first.exitcode))}", file=sys.stderr)
        return 128 - first.exitcode
    if rank and said[rank] != said[0]:  # process 0 has spoken aloud
        print(said[rank] or f"gibbsian: process {rank} failed without a word", file=sys.stderr)
    return first.exitcode


def _ended(by: signal.Signals) -> str:
    if by == signal.SIGABRT:  # so does NCCL's watchdog, which can say nothing to Python
        return "aborted (SIGABRT), as those do that wait on NCCL for a process that was lost or does not answer"
    return f"was ended from outside ({by.name})"


def _words(rank: int, logs: Path) -> str:
    """What a process said last: the sentence that it left for us, else what stands in its log, a traceback as a whole."""
    for path in logs.rglob(f"{rank}/error.json"):
        with suppress(ValueError):  # ended while it wrote
            return f"gibbsian: {json.loads(path.read_text())['message']['message'].partition(': ')[2]}"
    text = "\n".join(path.read_text(errors="replace") for path in logs.rglob(f"{rank}/stderr.log"))
    lines = [line for line in text.splitlines() if line.startswith("gibbsian: ")]
    broken = text.rfind("Traceback (most recent call last)")
    return text[broken:].rstrip() if broken >= 0 else lines[-1] if lines else ""


def world_of(options: argparse.Namespace) -> World | None:
    """The processes that this command is one of, on the device that is this one's; None for a plain command."""
    if "RANK" not in os.environ and not slurm_step(os.environ):
        return None
    world, _ = join("cuda" if torch.cuda.is_available() else None)
    if options.processes not in {None, world.size}:
        raise ProcessError(
            f"--processes {options.processes}: this command is already one of {world.size} processes; leave it out"
        )
    if not world.first:
        options.quiet, options.json = True, False
    return world


def refuse_processes(options: argparse.Namespace, what: str) -> None:
    """Refuse several processes where they would all do the same."""
    if options.processes is not None or "RANK" in os.environ:
        raise ArgumentError(f"{what} runs in one process; leave --processes out")
