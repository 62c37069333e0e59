"""Several processes: the same script under `torchrun` or `accelerate launch`.

Every process sees its share of each batch and has chains of its own; gradients are averaged over all rows
with one sum over the processes a step, which also carries the signals to stop or to roll back, so that all
processes take the same decisions. Only rank 0 writes.
"""

import atexit
import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gibbsian.errors import ProcessError


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

    def share_gradients(self, parameters: Sequence[nn.Parameter], rows: int, signals: Sequence[float]) -> list[float]:
        """Replace each gradient by its mean over all rows of all processes; returns the signals' sums."""
        if self.alone:
            return list(signals)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        like = gradients[0]
        tail = torch.tensor([rows, *signals], dtype=like.dtype, device=like.device)
        flat = torch.cat([*(g.flatten().to(like.dtype) * rows for g in gradients), tail])
        with _peers():
            dist.all_reduce(flat)
        total = flat[-len(tail) :].tolist()
        start = 0
        for parameter, gradient in zip(parameters, gradients, strict=True):
            mean = flat[start : start + gradient.numel()].view_as(gradient) / total[0]
            start += gradient.numel()
            if parameter.grad is not None:
                parameter.grad.copy_(mean)
        return total[1:]

    def mean(self, values: dict[str, float], device: torch.device) -> dict[str, float]:
        """The mean of each number over the processes; a NaN anywhere stays one."""
        if self.alone or not values:
            return values
        flat = torch.tensor([values[key] for key in sorted(values)], dtype=torch.float64, device=device)
        with _peers():
            dist.all_reduce(flat)
        return dict(zip(sorted(values), (flat / self.size).tolist(), strict=True))

    def wait(self, device: torch.device) -> None:
        """Go on only when every process has come to this line."""
        self.mean({"here": 0.0}, device)

    def gather(self, value: Any) -> list[Any]:
        """On rank 0 the values of all processes by rank, elsewhere an empty list."""
        if self.alone:
            return [value]
        everything: list[Any] | None = [None] * self.size if self.first else None
        with _peers():
            dist.gather_object(value, everything)
        return everything or []

    def gather_rows(self, rows: Tensor) -> Tensor:
        """All processes' rows `(n, ...)`, by rank, on every process: samples or weights to evaluate."""
        if self.alone:
            return rows
        everything: list[Any] = [None] * self.size
        with _peers():
            dist.all_gather_object(everything, rows.detach().cpu())
        return torch.cat(everything).to(rows.device)

    def copy_from_first(self, modules: Iterable[nn.Module]) -> None:
        """Give every process the weights and buffers of rank 0."""
        if self.alone:
            return
        with _peers():
            for module in modules:
                for tensor in [*module.parameters(), *module.buffers()]:
                    dist.broadcast(tensor.data, 0)


@contextmanager
def _peers() -> Iterator[None]:
    """Inside, an error of the connection means that another process was lost."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessError(
            f"another process of this job was lost ({' '.join(str(error).split())[:200]}); see its own message"
        ) from error


def join(device: torch.device | str | None = None) -> tuple[World, torch.device | None]:
    """The processes started by `torchrun` or `accelerate launch`, and the device of this one.

    A plain "cuda" becomes the GPU of the local rank.
    """
    where = None if device is None else torch.device(device)
    if not dist.is_available():
        return World(), where
    if where is not None and where.type == "cuda" and where.index is None:
        where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", torch.cuda.current_device())))
        torch.cuda.set_device(where)
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
            return World(), where
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        atexit.register(_leave)
    return World(dist.get_rank(), dist.get_world_size()), where


def _leave() -> None:
    """Close the connections while nothing refers to them: a group that outlives the interpreter, held by some
    forgotten frame, still has running threads and aborts the process."""
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
        gc.collect()
