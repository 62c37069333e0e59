"""gibbsian: energy-based models in PyTorch.

Define an energy, train it by any principle, sample it, and know its likelihood. Names are imported on first
use, so that `import gibbsian` costs nothing by itself.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Energy": "energy",
    "ScoreField": "energy",
    "as_energy": "energy",
    "mixture": "energy",
    "unconstrained": "energy",
    "sample": "sampling",
    "Trace": "sampling",
    "warm_up": "kernels.adaptation",
    "fit": "training.fit",
    "pretrain": "training.pretrain",
    "resume": "training.fit",
    "load": "training.fit",
    "log_likelihood": "partition.likelihood",
    "maximum_entropy": "partition.maxent",
    "minimise": "modes",
    "denoise": "restoration",
    "inpaint": "restoration",
    "predict": "prediction",
    "predict_interval": "prediction",
}
_MODULES = [
    "data", "domains", "energies", "errors", "hybrid", "kernels", "metrics", "models", "objectives", "partition",
    "plots", "random", "schedules", "sklearn", "testing", "training", "units",
]  # fmt: skip

__all__ = [*_HOME, *_MODULES]

if TYPE_CHECKING:
    from gibbsian import (
        data,
        domains,
        energies,
        errors,
        hybrid,
        kernels,
        metrics,
        models,
        objectives,
        partition,
        plots,
        random,
        schedules,
        sklearn,
        testing,
        training,
        units,
    )
    from gibbsian.energy import Energy, ScoreField, as_energy, mixture, unconstrained
    from gibbsian.kernels.adaptation import warm_up
    from gibbsian.modes import minimise
    from gibbsian.partition.likelihood import log_likelihood
    from gibbsian.partition.maxent import maximum_entropy
    from gibbsian.prediction import predict, predict_interval
    from gibbsian.restoration import denoise, inpaint
    from gibbsian.sampling import Trace, sample
    from gibbsian.training.fit import fit, load, resume
    from gibbsian.training.pretrain import pretrain


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"gibbsian.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"gibbsian.{name}")
    else:
        raise AttributeError(f"module 'gibbsian' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
