"""A second device on any machine: tensors that hold the host's numbers, say that they lie elsewhere, and refuse to meet those of the host.

As on a GPU, single numbers may come from the host, and places in an index; all else is an error, and so is a generator of the other
side. What is written in Python sees nothing but a device; what is for CUDA alone, captures and compiled kernels, is not tried.

Importing this module registers the device for good, and `installed` changes what makes generators and tensors from lists: it is for a
process of its own, `python second_device_cases.py`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("elsewhere")
DEVICE = torch.device("elsewhere", 0)
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
MARK = 1 << 60  # in the seeds of generators there: what is dispatched is handed another object for the same generator


class MixedError(RuntimeError):
    """Tensors of both sides met."""


class Elsewhere(Tensor):
    """A tensor of the second device."""

    raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: Tensor) -> "Elsewhere":
        dense = raw.layout == torch.strided  # sparse ones have no strides
        how = {"strides": raw.stride(), "storage_offset": raw.storage_offset()} if dense else {}
        return Tensor._make_wrapper_subclass(cls, raw.size(), dtype=raw.dtype, device=DEVICE, **how)

    def __init__(self, raw: Tensor) -> None:
        self.raw = raw

    def tolist(self) -> Any:
        return self.raw.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.raw!r} elsewhere"

    def __format__(self, spec: str) -> str:
        return format(self.raw, spec)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """Inside, the second device is there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Generator(torch.Generator):
    """Generators of both sides; all draw on the host."""

    def __new__(cls, device: Any = "cpu") -> "Generator":
        own = super().__new__(cls, "cpu" if _there(device) else device)
        own.there = _there(device)
        return own.manual_seed(0)

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:
        return DEVICE if self.there else torch.device("cpu")

    def manual_seed(self, seed: int) -> "Generator":
        super().manual_seed((seed | MARK) if self.there else (seed & ~MARK))
        return self


def _there(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _raw(part: Any) -> Any:
    return part.raw if isinstance(part, Elsewhere) else part


def _wrapped(part: Any) -> Any:
    return Elsewhere(part) if isinstance(part, Tensor) and not isinstance(part, Elsewhere) else part


def _goes_there(func: Any, args: Any, kwargs: Any, leaves: list[Any]) -> bool:
    """Does the result lie there? Refused where both sides meet."""
    there = [leaf for leaf in leaves if isinstance(leaf, Elsewhere)]
    here = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, Elsewhere) and leaf.dim()]
    if func is aten.copy_.default or func in INDEXES:
        result = isinstance(args[0], Elsewhere)
    else:
        result = _there(kwargs["device"]) if kwargs.get("device") is not None else bool(there)
    if there and (here if func not in COPIES | INDEXES else func in INDEXES and not result):
        raise MixedError(f"{func}: {[tuple(t.shape) for t in here]} of the host met {[tuple(t.shape) for t in there]}")
    if any(bool(leaf.initial_seed() & MARK) != result for leaf in leaves if isinstance(leaf, torch._C.Generator)):
        raise MixedError(f"{func}: the generator is of the other side")
    return result


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    leaves = tree_leaves((args, kwargs))
    result = _goes_there(func, args, kwargs, leaves)
    raw = {
        name: _raw(part) if not isinstance(part, tuple | list) else tree_map(_raw, part)
        for name, part in kwargs.items()
    }
    if raw.get("device") is not None:
        raw |= {"device": torch.device("cpu")} if _there(raw["device"]) else {}
    out = func(*tree_map(_raw, args), **raw)
    if not result or func is aten._local_scalar_dense.default:
        return out
    views = func is not aten._to_copy.default and any(isinstance(leaf, Elsewhere) for leaf in leaves)
    return (
        return_and_correct_aliasing(func, args, kwargs, tree_map(_wrapped, out)) if views else tree_map(_wrapped, out)
    )


def _made(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor` and its kin, which make on the host what torch cannot make there."""

    def made(*args: Any, device: Any = None, **how: Any) -> Tensor:
        if args and isinstance(args[0], Elsewhere):  # as new_tensor of one, or as_tensor
            device = DEVICE if device is None else device
            args = (args[0].raw, *args[1:])
        return make(*args, **how).to(DEVICE) if _there(device) else make(*args, device=device, **how)

    return made


def _autocast(kind: str, **how: Any) -> Any:
    return nullcontext() if kind == DEVICE.type else _cast(kind, **how)


_cast, _casts = torch.autocast, torch.is_autocast_enabled
_library = torch.library.Library("aten", "IMPL")
_library.impl("empty_strided", lambda size, stride, dtype=None, **_: Elsewhere(torch.empty_strided(size, stride, dtype=dtype)), "PrivateUse1")  # fmt: skip
_library.impl(
    "_copy_from", lambda source, target, *_: _raw(target).copy_(_raw(source)) is None or target, "PrivateUse1"
)


def installed() -> None:
    """Let torch make tensors and generators there; there is no half precision."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    patch.object(torch, "Generator", Generator).start()
    patch.object(torch, "tensor", _made(torch.tensor)).start()
    patch.object(torch, "as_tensor", _made(torch.as_tensor)).start()
    patch.object(Tensor, "new_tensor", _made(Tensor.new_tensor)).start()
    patch.object(torch, "autocast", _autocast).start()
    patch.object(torch, "is_autocast_enabled", lambda *kind: kind != (DEVICE.type,) and _casts(*kind)).start()
    patch.object(torch, "get_autocast_dtype", lambda kind: torch.bfloat16).start()


def gen(seed: int = 0) -> Generator:
    return Generator(DEVICE).manual_seed(seed)
