"""Mean gradients over all rows of all processes, added up while the backward pass is still at work."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gibbsian.distributed.world import World, peers

_BUCKET = 1 << 20  # numbers that are sent together


class _Sent(NamedTuple):
    """A bucket on its way."""

    parameters: list[nn.Parameter]
    flat: Tensor
    work: Any


class GradientExchange:
    """g ← Σ_ranks rows·g / Σ_ranks rows, for every parameter, on every process.

    Parameters are put into buckets, those of the last layers first, whose gradients autograd finishes first. A bucket is sent as
    soon as its gradients are there, and travels while the others are still computed (inside `overlapping`); the last one goes
    with the numbers of rows and the signals, so that a small model needs one sum a step. The order of buckets is the same on
    all processes, whatever each of them meets: a process without gradients sends zeros.
    """

    def __init__(self, world: World, parameters: Sequence[nn.Parameter], bucket: int = _BUCKET) -> None:
        self.world = world
        self.buckets = _buckets(parameters, bucket)
        self.home = {p: k for k, together in enumerate(self.buckets) for p in together}
        self.waiting = [len(bucket) for bucket in self.buckets]
        self.sent: list[_Sent] = []
        self.rows = 0  # of this process's batch, while gradients may be sent
        self.hooks: list[Any] = []
        self.bytes = 0  # that this process has given to be added up so far
        if not world.alone and len(self.buckets) > 1:
            self.hooks = [parameter.register_post_accumulate_grad_hook(self._note) for parameter in parameters]

    def close(self) -> None:
        """Leave the parameters as they were found."""
        for hook in self.hooks:
            hook.remove()

    @contextmanager
    def overlapping(self, rows: int) -> Iterator[None]:
        """Inside, gradients that a backward pass has finished are final."""
        self.rows = rows
        try:
            yield
        finally:
            self.rows = 0

    def _note(self, parameter: Tensor) -> None:
        if not self.rows:
            return
        self.waiting[self.home[parameter]] -= 1  # type: ignore[index]
        while len(self.sent) < len(self.buckets) - 1 and self.waiting[len(self.sent)] <= 0:
            self._send(self.rows, [])

    def _send(self, rows: int, tail: list[float]) -> None:
        bucket = self.buckets[len(self.sent)]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        more = [torch.tensor(tail, dtype=bucket[0].dtype, device=bucket[0].device)] if tail else []
        flat = torch.cat([*(g.flatten() * rows for g in gradients), *more])
        self.bytes += flat.nbytes
        with peers():
            self.sent.append(_Sent(bucket, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self, rows: int, signals: Sequence[float]) -> list[float]:
        """Put the mean over all rows of all processes in the place of every gradient; returns the signals' sums."""
        if self.world.alone:
            return list(signals)
        while len(self.sent) < len(self.buckets):
            last = len(self.sent) == len(self.buckets) - 1
            self._send(rows, [rows, *signals] if last else [])
        with peers():
            for sent in self.sent:
                sent.work.wait()
        total = self.sent[-1].flat[-1 - len(signals) :].tolist()
        for parameters, flat, _ in self.sent:
            start = 0
            for parameter in parameters:
                if parameter.grad is not None:
                    mean = flat[start : start + parameter.numel()].view_as(parameter) / total[0]
                    parameter.grad.copy_(mean)
                start += parameter.numel()
        self.sent, self.waiting = [], [len(bucket) for bucket in self.buckets]
        return total[1:]


def _buckets(parameters: Sequence[nn.Parameter], size: int) -> list[list[nn.Parameter]]:
    """Parameters of one precision, the last ones first, up to `size` numbers together."""
    buckets: list[list[nn.Parameter]] = [[]]
    for parameter in reversed(parameters):
        full = sum(p.numel() for p in buckets[-1]) + parameter.numel() > size
        if buckets[-1] and (full or buckets[-1][0].dtype != parameter.dtype):
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets
