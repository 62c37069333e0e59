"""This process among its peers, started by `torchrun`, by a batch system, or alone.

Only collectives of `torch.distributed` are used: gloo between CPUs, NCCL between GPUs. An error of the connection means that
another process was lost, and becomes one sentence.
"""

import atexit
import gc
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gibbsian.errors import ProcessError

Task = TypeVar("Task")
_PATIENCE = 1800.0  # seconds that a process waits for the others


@dataclass(frozen=True)
class World:
    """This process among its peers; alone, everything here is the identity.

    >>> World().gather("mine")
    ['mine']
    """

    rank: int = 0
    size: int = 1

    @property
    def alone(self) -> bool:
        """Is this the only process?"""
        return self.size == 1

    @property
    def first(self) -> bool:
        """Is this the process that writes?"""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, in place."""
        if not self.alone:
            with peers():
                dist.all_reduce(tensor)
        return tensor

    def mean(self, values: dict[str, float], device: torch.device) -> dict[str, float]:
        """The mean of each number over the processes; a NaN anywhere stays one."""
        if self.alone or not values:
            return values
        flat = torch.tensor([values[key] for key in sorted(values)], dtype=torch.float64, device=device)
        return dict(zip(sorted(values), (self.sum(flat) / self.size).tolist(), strict=True))

    def least(self, value: int, device: torch.device | str | None = None) -> int:
        """The smallest number that any process has."""
        if self.alone:
            return value
        box = torch.tensor([value], device=device)
        with peers():
            dist.all_reduce(box, dist.ReduceOp.MIN)
        return int(box)

    def wait(self, device: torch.device) -> None:
        """Go on only when every process has come to this line."""
        self.mean({"here": 0.0}, device)

    def gather(self, value: Any) -> list[Any]:
        """On rank 0 the values of all processes by rank, elsewhere an empty list."""
        if self.alone:
            return [value]
        everything: list[Any] | None = [None] * self.size if self.first else None
        with peers():
            dist.gather_object(value, everything)
        return everything or []

    def gather_rows(self, rows: Tensor) -> Tensor:
        """All processes' rows `(n, ...)`, by rank, on every process."""
        if self.alone:
            return rows
        rows = rows.detach().contiguous()
        lengths = torch.zeros(self.size, dtype=torch.long, device=rows.device)
        lengths[self.rank] = len(rows)
        counts = self.sum(lengths).tolist()
        whole = rows.new_empty(sum(counts), *rows.shape[1:])
        for source, part in enumerate(whole.split(counts)):
            if source == self.rank:
                part.copy_(rows)
            self.copy_from(part, source)
        return whole

    def collect(self, tasks: Sequence[Task], work: Callable[[Task], Tensor]) -> Tensor:
        """The rows `(n, ...)` of `work(task)` for all tasks, in their order, on every process, each of which does its share; all
        do everything where there are fewer tasks than processes.

        >>> World().collect([2, 3], lambda n: torch.arange(n))
        tensor([0, 1, 0, 1, 2])
        """
        shared, n = len(tasks) >= self.size, len(tasks)
        own = tasks[n * self.rank // self.size : n * (self.rank + 1) // self.size] if shared else tasks
        rows = torch.cat([work(task) for task in own])
        return self.gather_rows(rows) if shared else rows

    def copy_from(self, tensor: Tensor, source: int) -> Tensor:
        """The tensor of another process in the place of this one's, which is like it."""
        if not self.alone:
            with peers():
                dist.broadcast(tensor, source)
        return tensor

    def copy_from_first(self, modules: Iterable[nn.Module]) -> None:
        """Give every process the weights and buffers of rank 0."""
        if self.alone:
            return
        for module in modules:
            for tensor in [*module.parameters(), *module.buffers()]:
                self.copy_from(tensor.data, 0)

    def same(self, value: Any) -> Any:
        """The value of rank 0, a plain one, on every process."""
        if self.alone:
            return value
        box = [value]
        with peers():
            dist.broadcast_object_list(box)
        return box[0]

    def exchange(self, parts: list[Tensor]) -> list[Tensor]:
        """One part for every process; what every process has for this one. Parts differ in their second axis alone: those
        of one process have as many rows there, those for one process as many entries in the others."""
        if self.alone:
            return parts
        mine = parts[self.rank]
        counts = self.gather_rows(torch.tensor([mine.shape[1]], device=mine.device)).tolist()
        shapes = [(mine.shape[0], count, *mine.shape[2:]) for count in counts]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        received = mine.new_empty(sum(sizes))
        sent = torch.cat([part.reshape(-1) for part in parts])
        with peers():
            dist.all_to_all_single(received, sent, sizes, [part.numel() for part in parts])
        return [part.reshape(shape) for part, shape in zip(received.split(sizes), shapes, strict=True)]


@contextmanager
def peers() -> Iterator[None]:
    """Inside, an error of the connection means that another process was lost."""
    try:
        yield
    except RuntimeError as error:
        raise lost(error) from error


def lost(error: RuntimeError) -> ProcessError:
    """What an error of the connection means, in one sentence: gloo's, NCCL's, or that of the place where processes meet.

    >>> print(lost(RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:9")))
    another process of this job was lost (Connection closed by peer [127.0.0.1]:9); see its own message
    """
    whole = " ".join(str(error).split())
    reason = re.sub(r"\[/[^]]*\]|\[rank\d+\]:|This is typically.*|Exception raised from.*", "", whole)
    reason = re.sub(r"NCCL error in: \S+,|in: \S+\.(cpp|hpp|cu):\d+,|Last error:$", "", reason).strip(" .")[:200]
    late = "imed out" in whole or "imeout" in whole
    what = "did not answer in time" if late else "was lost"
    return ProcessError(f"another process of this job {what} ({reason}); see its own message")


def join(device: torch.device | str | None = None) -> tuple[World, torch.device | None]:
    """The processes that were started together, by `torchrun` or as the tasks of a Slurm step, and the device of this one.

    A plain "cuda" becomes the GPU of the local rank. Where there are more processes than GPUs they share them, and talk by gloo.
    The environment variable GIBBSIAN_TIMEOUT says after how many seconds of waiting for another process to give up (1800).
    """
    if not dist.is_available():
        return World(), None if device is None else torch.device(device)
    if not dist.is_initialized():
        os.environ.update(slurm_step(os.environ))
    where = None if device is None else _placed(torch.device(device))
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
            return World(), where
        _connect(os.environ)
    return World(dist.get_rank(), dist.get_world_size()), where


def _placed(device: torch.device) -> torch.device:
    """The GPU of this process, where it is not said which."""
    if device.type != "cuda" or device.index is not None:
        return device
    local = int(os.environ.get("LOCAL_RANK", torch.cuda.current_device()))
    device = torch.device("cuda", local % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _connect(environment: Mapping[str, str]) -> None:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    local = int(environment.get("LOCAL_WORLD_SIZE", environment["WORLD_SIZE"]))
    backend = "gloo" if not gpus else "cpu:gloo,cuda:nccl" if local <= gpus else "cpu:gloo,cuda:gloo"
    patience = timedelta(seconds=float(environment.get("GIBBSIAN_TIMEOUT", _PATIENCE)))
    with peers():
        dist.init_process_group(backend, timeout=patience)
    atexit.register(_leave)


def slurm_step(environment: Mapping[str, str]) -> dict[str, str]:
    """What `torchrun` would have said to a task of a Slurm step (`srun`) with several tasks; nothing elsewhere.

    The tasks meet at the first node of the step, at a port that follows from the number of the job, unless MASTER_ADDR and
    MASTER_PORT say where.

    >>> step = {"SLURM_STEP_NODELIST": "gpu[07-09],cpu1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
    >>> found = slurm_step(step | {"SLURM_JOB_ID": "4711", "SLURM_STEP_TASKS_PER_NODE": "2(x4)"})
    >>> found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"], found["MASTER_ADDR"]
    ('3', '8', '1', '2', 'gpu07')
    """
    nodes, tasks = environment.get("SLURM_STEP_NODELIST"), environment.get("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" in environment or nodes is None or int(tasks) == 1:
        return {}
    first = re.sub(r"\[(\w+).*", r"\1", nodes.split(",")[0] if "[" not in nodes.split(",")[0] else nodes)
    port = 20000 + int(environment.get("SLURM_JOB_ID", "0")) % 20000
    each = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", tasks))
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": each[0] if each else tasks,
        "MASTER_ADDR": environment.get("MASTER_ADDR", first),
        "MASTER_PORT": environment.get("MASTER_PORT", str(port)),
    }


def _leave() -> None:
    """Close the connections while nothing refers to them: a group that outlives the interpreter, held by some
    forgotten frame, still has running threads and aborts the process."""
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
        gc.collect()
