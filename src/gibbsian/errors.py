"""Everything that gibbsian raises or warns with.

Each error says what was given, what was expected and what to do instead. All of them derive from
`GibbsianError` and from the built-in exception that fits, so `except ValueError` works too.
"""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "AdaptationWarning",
    "ArgumentError",
    "CapabilityError",
    "CheckpointError",
    "CompileWarning",
    "DataError",
    "DivergenceError",
    "DivergenceWarning",
    "DomainError",
    "EstimateWarning",
    "GibbsianError",
    "GibbsianWarning",
    "InfeasibleError",
    "PrecisionError",
    "ProcessError",
    "RandomnessError",
    "ShapeError",
    "TrainingWarning",
    "suggest",
]


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
