"""Everything that gibbsian raises or warns with.

Each error says what was given, what was expected and what to do instead. All of them derive from
`GibbsianError` and from the built-in exception that fits, so `except ValueError` works too.
"""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

__all__ = [
    "AdaptationWarning", "ArgumentError", "CapabilityError", "CheckpointError", "CompileWarning", "DataError",
    "DivergenceError", "DivergenceWarning", "DomainError", "EstimateWarning", "GibbsianError", "GibbsianWarning",
    "InfeasibleError", "PrecisionError", "ProcessError", "RandomnessError", "ShapeError", "TrainingWarning",
    "check_choice", "check_count", "check_number", "suggest",
]  # fmt: skip


def suggest(name: str, known: Iterable[object]) -> str:
    """`did you mean 'x'? `, or nothing, for a message that refuses an unknown name.

    >>> suggest("binarise", ["flatten", "binarize"]), suggest("xyz", ["flatten"])
    ("did you mean 'binarize'? ", '')
    """
    lower = {str(k).lower(): str(k) for k in known}
    near = get_close_matches(str(name).lower(), lower, 1)
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


def check_count(owner: object, name: str, value: Any, least: int = 1) -> None:
    """Refuse an option that is not a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError(f"{type(owner).__name__}({name}={value!r}): {name} must be a whole number from {least} on")


def check_number(
    owner: object, name: str, value: Any, low: float = 0.0, high: float = math.inf, *, open_low: bool = False
) -> None:
    """Refuse an option that is not a finite number in [low, high], or (low, high] with `open_low`."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or value > high or value < low or (open_low and value == low):
        bound = f"in {'(' if open_low else '['}{low:g}, {high:g}{')' if high == math.inf else ']'}"
        raise ArgumentError(f"{type(owner).__name__}({name}={value!r}): {name} must be a finite number {bound}")


def check_choice(owner: object, name: str, value: Any, allowed: Sequence[str]) -> None:
    """Refuse an option outside a list of words."""
    if value not in allowed:
        words = ", ".join(map(repr, allowed))
        raise ArgumentError(f"{type(owner).__name__}({name}={value!r}): {name} must be one of {words}")


class GibbsianWarning(UserWarning):
    """Base of every warning given by gibbsian."""


class DivergenceWarning(GibbsianWarning):
    """Some chains diverged; the others are unaffected."""


class AdaptationWarning(GibbsianWarning):
    """A warm-up ended far from its target."""


class EstimateWarning(GibbsianWarning):
    """An estimate is less trustworthy than its error bar says."""


class CompileWarning(GibbsianWarning):
    """Compilation was asked for and is not used, with the reason."""


class TrainingWarning(GibbsianWarning):
    """A training run shows early signs of trouble, or goes on from an older checkpoint."""
