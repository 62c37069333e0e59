"""Everything that gibbsian raises or warns with.

Each error says what was given, what was expected and what to do instead. All of them derive from
`GibbsianError` and from the built-in exception that fits, so `except ValueError` works too.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fractions import Fraction
from numbers import Real
from typing import Any

__all__ = [
    "AdaptationWarning", "ArgumentError", "CapabilityError", "CheckpointError", "CompileWarning", "ConvergenceWarning",
    "DataError", "DivergenceError", "DivergenceWarning", "DomainError", "EstimateWarning", "GibbsianError",
    "GibbsianWarning", "InfeasibleError", "PrecisionError", "PrecisionWarning", "ProcessError", "RandomnessError",
    "ShapeError", "TrainingWarning", "as_numbers", "as_written", "check_choice", "check_count", "check_number",
    "check_tensor", "hold_counts", "suggest",
]  # fmt: skip


def suggest(name: str, known: Iterable[object]) -> str:
    """`did you mean 'x'? `, or nothing, for a message that refuses an unknown name.

    >>> suggest("binarise", ["flatten", "binarize"]), suggest("xyz", ["flatten"])
    ("did you mean 'binarize'? ", '')
    >>> suggest("target", ["age", "fare"])  # some letters of a word are not the word
    ''
    """
    lower, asked = {str(k).lower(): str(k) for k in known}, str(name).lower()
    close = get_close_matches(asked, lower, cutoff=0.65)
    near = [k for k in close if abs(len(k) - len(asked)) <= max(2, 0.4 * len(asked))]
    return f"did you mean {lower[near[0]]!r}? " if near else ""


class GibbsianError(Exception):
    """Base of every error raised by gibbsian."""


class ArgumentError(GibbsianError, ValueError):
    """An argument has a value that makes no sense (a negative step size, an empty list)."""


class PrecisionError(ArgumentError):
    """Tensors that meet have different precisions, or are on different devices."""


class ShapeError(GibbsianError, ValueError):
    """A tensor has the wrong shape."""


class DomainError(GibbsianError, ValueError):
    """Values lie outside a domain, or two domains do not fit together."""


class DataError(GibbsianError, ValueError):
    """Data cannot be read or used: missing, corrupt, empty, or of the wrong kind."""


class RandomnessError(GibbsianError, ValueError):
    """A generator is missing or lives on another device."""


class CapabilityError(GibbsianError, TypeError):
    """The model cannot do what was asked of it (no known log Z, no exact conditionals, no energy)."""


class InfeasibleError(GibbsianError, ValueError):
    """No law keeps the constraints (moments outside what is possible, or on its boundary)."""


class DivergenceError(GibbsianError, RuntimeError):
    """Energies, gradients or chains became non-finite or exploded."""


class CheckpointError(GibbsianError, RuntimeError):
    """A run folder or checkpoint is missing, corrupt or does not fit."""


class ProcessError(GibbsianError, RuntimeError):
    """Another process of a distributed job was lost, or the processes do not fit together."""


def _called(owner: object) -> str:
    """What is refused: a function by its name, an object by its class."""
    return owner if isinstance(owner, str) else type(owner).__name__


def check_count(owner: object, name: str, value: Any, least: float = 1, most: float = math.inf) -> int:
    """A whole number in [least, most] as an int: Python's own, or a whole scalar of numpy or torch.

    Truth values, floats (10.0 too), strings and None are refused, since they are mistakes more often than counts.

    >>> check_count("sample", "steps", 100)
    100
    >>> check_count("sample", "steps", 100.0)
    Traceback (most recent call last):
        ...
    gibbsian.errors.ArgumentError: sample(steps=100.0): steps must be a whole number from 1 on; give steps=100
    """
    count = _whole(value)
    if count is None or not least <= count <= most:
        bound = f" from {least} to {most}" if most < math.inf else f" from {least} on" if least > -math.inf else ""
        meant = isinstance(value, float) and value.is_integer() and least <= value <= most
        raise ArgumentError(
            f"{_called(owner)}({name}={value!r}): {name} must be a whole number{bound}"
            + (f"; give {name}={int(value)}" if meant else "")
        )
    return count


def _whole(value: Any) -> int | None:
    if type(value) is int:
        return value
    import torch

    if isinstance(value, bool) or (isinstance(value, torch.Tensor) and (value.dim() or value.dtype == torch.bool)):
        return None
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # no whole number, or a tensor without values
        return None


def hold_counts(owner: object, *names: str, least: float = 1) -> None:
    """Refuse fields of a frozen dataclass that are not whole numbers from `least` on, and keep the others as ints."""
    for name in names:
        object.__setattr__(owner, name, check_count(owner, name, getattr(owner, name), least))


def check_number(
    owner: object,
    name: str,
    value: Any,
    low: float = 0.0,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Refuse an option that is not a finite number in [low, high]; with `open_low`, `open_high` the ends are out too."""
    fine = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or value > high or value < low or (open_low and value == low) or (open_high and value == high):
        first, last = "(" if open_low else "[", ")" if open_high or high == math.inf else "]"
        raise ArgumentError(
            f"{_called(owner)}({name}={value!r}): {name} must be a finite number in {first}{low:g}, {high:g}{last}"
        )


def check_choice(owner: object, name: str, value: Any, allowed: Sequence[str]) -> None:
    """Refuse an option outside a list of words."""
    if value not in allowed:
        words = ", ".join(map(repr, allowed))
        raise ArgumentError(f"{_called(owner)}({name}={value!r}): {name} must be one of {words}")


def check_tensor(x: Any, name: str, form: str = "(batch, *event)", *, whole: bool = False) -> None:
    """Refuse what is no tensor of numbers at hand: arrays and lists, sparse tensors, tensors without values."""
    import torch

    if not isinstance(x, torch.Tensor):
        dtype = "" if whole else ", dtype=torch.get_default_dtype()"  # labels made real would be refused next
        raise ShapeError(
            f"{name} is a {type(x).__name__}, expected a torch.Tensor of shape {form}; convert arrays and lists with "
            f"torch.as_tensor({name}{dtype})"
        )
    if x.layout != torch.strided:
        raise ShapeError(f"{name} is sparse ({x.layout}), expected a dense tensor; call {name}.to_dense() first")
    if x.is_meta:
        raise ShapeError(f"{name} is on the meta device and has no values; give a tensor that has")
    if x.is_complex():
        raise DataError(f"{name} holds complex numbers ({x.dtype}); give real ones, such as torch.view_as_real({name})")


def as_numbers(owner: object, name: str, value: Any, dtype: Any = None) -> Any:
    """An option that is one number or several (a list, an array, a tensor) as a dense tensor; others are refused."""
    import torch

    if isinstance(value, torch.Tensor):
        check_tensor(value, name, "numbers")
    try:
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            f"{_called(owner)}({name}={value!r}): {name} must be a number, or a tensor of them"
        ) from None


def as_written(share: float) -> Fraction:
    """A share of something that is counted, as somebody wrote it: in floats 100 · 0.55 lies above 55, and 100 · 0.29 below 29.

    >>> int(as_written(0.29) * 100), int(0.29 * 100)
    (29, 28)
    """
    return Fraction(repr(float(share)))


class GibbsianWarning(UserWarning):
    """Base of every warning given by gibbsian."""


class DivergenceWarning(GibbsianWarning):
    """Some chains diverged; the others are unaffected."""


class AdaptationWarning(GibbsianWarning):
    """A warm-up ended far from its target."""


class ConvergenceWarning(GibbsianWarning):
    """A search ended before it had come to rest."""


class PrecisionWarning(GibbsianWarning):
    """Numbers are rounded too coarsely for what is made of them."""


class EstimateWarning(GibbsianWarning):
    """An estimate is less trustworthy than its error bar says."""


class DataWarning(GibbsianWarning):
    """Data could be read, but hold something that is likely not meant."""


class CompileWarning(GibbsianWarning):
    """Compilation was asked for and is not used, with the reason."""


class TrainingWarning(GibbsianWarning):
    """A training run shows early signs of trouble, or goes on from an older checkpoint."""
