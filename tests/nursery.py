"""Ranks as forks of one interpreter: `python nursery.py MODULE FOLDER` imports the checks of a module once, and every rank of
every job is a fork of it, which costs milliseconds where a new interpreter costs seconds.

The module has `JOBS`, triples of a name, a function of `(world, folder)` and a number of processes. What rank r returns is
saved as `FOLDER/NAME-PROCESSES-r.pt`, what it died of as `.txt`.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.utils.distributed import get_free_port

from gibbsian.distributed import join

PATIENCE = 240  # seconds for one job


def rank_of(function: Callable[..., Any], name: str, folder: Path, rank: int, size: int, port: int) -> int:
    """The whole life of one rank."""
    signal.alarm(PATIENCE)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
    patience = "2" if name == "late" else str(PATIENCE)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": str(size), "GIBBSIAN_TIMEOUT": patience}
    path = folder / f"{name}-{size}-{rank}"
    try:
        torch.save(function(join()[0], folder), path.with_suffix(".pt"))
    except BaseException:
        path.with_suffix(".txt").write_text(traceback.format_exc())
        return 1
    return 0


def run_job(function: Callable[..., Any], name: str, folder: Path, size: int) -> list[int]:
    """Fork the ranks of one job; their exit codes."""
    port, children = get_free_port(), []
    for rank in range(size):
        child = os.fork()
        if not child:
            code = 1
            try:
                code = rank_of(function, name, folder, rank, size, port)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return [os.waitpid(child, 0)[1] for child in children]


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(sys.argv[2])
    for job, function, size in import_module(sys.argv[1]).JOBS:
        run_job(function, job, where, size)
