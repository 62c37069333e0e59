"""Where a model's numbers are: their precision and their device, and what to say where two do not fit.

Nothing is cast and nothing is moved silently: whoever lets a tensor meet a model calls `check_placement` first.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from gibbsian.errors import ArgumentError, GibbsianError, PrecisionError

__all__ = [
    "STUMBLES", "check_placement", "check_rows", "check_together", "explain_inference", "explain_rows", "explained", "placement",
]  # fmt: skip

# what torch raises where a tensor is not what an operation expects
STUMBLES = (RuntimeError, TypeError, ValueError, IndexError, AttributeError)

Method = TypeVar("Method", bound=Callable[..., Any])


def placement(model: nn.Module, default: torch.dtype = torch.float64) -> tuple[torch.dtype, torch.device]:
    """Precision and device of a model, the default on the CPU where it has no tensors.

    Its parameters decide, else its buffers; the narrowest floating ones where they differ.

    >>> placement(nn.Linear(2, 2))
    (torch.float32, device(type='cpu'))
    """
    for tensors in (list(model.parameters()), list(model.buffers())):
        floating = [t for t in tensors if t.is_floating_point()]
        if floating:
            narrowest = min(floating, key=lambda t: torch.finfo(t.dtype).bits)
            return narrowest.dtype, narrowest.device
    return default, torch.device("cpu")


def check_together(x: Tensor, other: Tensor, name: str, what: str, model: str = "energy") -> None:
    """Raise unless x and a floating tensor of a model, called `what`, have one precision and one kind of device.

    >>> check_together(torch.zeros(1), torch.zeros(1).double(), "x0", "the energy's weight")
    Traceback (most recent call last):
        ...
    gibbsian.errors.PrecisionError: x0 is torch.float32 on cpu, but the energy's weight is torch.float64 on cpu; bring \
them together: x0.to('cpu', torch.float64) or energy.to('cpu', torch.float32)
    """
    if other.is_floating_point() and (x.dtype != other.dtype or x.device.type != other.device.type):
        raise PrecisionError(
            f"{name} is {x.dtype} on {x.device.type}, but {what} is {other.dtype} on {other.device.type}; bring them "
            f"together: {name}.to({other.device.type!r}, {other.dtype}) or {model}.to({x.device.type!r}, {x.dtype})"
        )


def check_placement(x: Tensor, model: nn.Module, name: str = "x", *, buffers: bool = False) -> None:
    """Raise unless x has the precision and the kind of device of all parameters of a model; of its buffers too where
    that is asked for (energies without parameters may follow the precision of x).
    """
    for key, tensor in (*model.named_parameters(), *(model.named_buffers() if buffers else ())):
        check_together(x, tensor, name, f"the energy's {key}")


def check_rows(model: Any, x: Tensor, name: str = "x") -> None:
    """Raise unless x is a batch of the domain of a model, in its precision and on its device.

    The one validator of rows: whatever takes data and a model calls it before the first step.

    >>> import gibbsian as gb
    >>> check_rows(gb.models.RBM(3, 2), torch.ones(4, 3).double(), "data")
    Traceback (most recent call last):
        ...
    gibbsian.errors.PrecisionError: data is torch.float64 on cpu, but the energy's weight is torch.float32 on cpu; bring \
them together: data.to('cpu', torch.float32) or energy.to('cpu', torch.float64)
    """
    model.domain.check(x, name)
    check_placement(x, model, name)


def explain_rows(model: Any, x: Any, error: Exception | None = None) -> None:
    """Say so where rows are what a model stumbled over: of another shape, kind, precision or device than its own."""
    if not isinstance(error, GibbsianError):
        model.domain.check_shape(x)
        check_placement(x, model, buffers=True)
        if isinstance(error, RuntimeError) and any(said in str(error) for said in ("require grad", "nference tensor")):
            explain_inference(x)


def explain_inference(x: Tensor) -> None:
    """Say so where gradients cannot be had because of `torch.inference_mode()`."""
    if torch.is_inference_mode_enabled() or x.is_inference():
        raise ArgumentError(
            "gradients were asked for under torch.inference_mode(), or of a tensor that was made under it, for which torch "
            "keeps none; use torch.no_grad() instead, or x.clone() outside of it"
        )


def explained(method: Method) -> Method:
    """A method of a model whose first argument is rows of its domain: it looks at them once it has stumbled, since
    looking before would cost time in every step."""

    @functools.wraps(method)
    def tried(self: Any, *rows: Any, **options: Any) -> Any:
        try:
            return method(self, *rows, **options)
        except STUMBLES as error:
            explain_rows(self, rows[0] if rows else next(iter(options.values()), None), error)
            raise

    return cast(Method, tried)


def device_named(name: Any, called: str, advice: str) -> torch.device:
    """The device of a name that somebody gave, refused with advice where this machine has none such.

    >>> device_named("cpu", "--device", "say cpu")
    device(type='cpu')
    """
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # none such, or torch is built without it
        raise ArgumentError(f"{called} {name} cannot be used on this machine; {advice}") from error
