"""What a CUDA graph cannot hold, found on any device: operations whose result the host has to see before it goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gibbsian.fast import graphs
from gibbsian.random import QuickSeed

aten = torch.ops.aten
LOOKS = {
    aten._local_scalar_dense,  # item(), float(), bool(), int() of a tensor
    aten.equal,
    aten.nonzero,  # as many rows as there are ones
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.repeat_interleave,  # of a tensor of repetitions
}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class WaitError(RuntimeError):
    """The host looked at a tensor."""


class _Fetches(TorchFunctionMode):
    """Methods that read the memory of a CPU directly; and the one check that torch itself makes on a CPU only."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.cpu):
            raise WaitError(f"{func.__name__} of {tuple(args[0].shape)}")
        if func is F.one_hot:
            labels, classes = args
            return (labels[..., None] == torch.arange(classes)).long()
        return func(*args, **(kwargs or {}))


class _Looks(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        if packet in LOOKS or (packet in INDEXED and _by_mask(args[1])):
            raise WaitError(f"{func} of {[tuple(a.shape) for a in args if isinstance(a, Tensor)]}")
        return func(*args, **(kwargs or {}))


def _by_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _seeded(generator: torch.Generator) -> QuickSeed:
    """A seed for numbers that are drawn by the host; on a GPU there are none."""
    with _disable_current_modes():
        return _of(generator)


_of = QuickSeed.of


@contextmanager
def never_waits() -> Iterator[None]:
    """As if a CUDA graph were being captured: an operation for which the host waits for the device is an error."""
    captured, seeds = patch.object(graphs, "capturing", lambda value: True), patch.object(QuickSeed, "of", _seeded)
    with captured, seeds, _Looks(), _Fetches():
        yield
