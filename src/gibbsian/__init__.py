"""gibbsian: energy-based models in PyTorch.

Define an energy, train it by any principle, sample it, and know its likelihood. Names are imported on first
use, so that `import gibbsian` costs nothing by itself.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_NAMES = {
    "energy": ("Energy", "ScoreField", "mixture", "unconstrained"),
    "energies.distribution": ("as_distribution", "as_energy"),
    "sampling.recommend": ("recommend",),
    "sampling.sample": ("sample",),
    "sampling.trace": ("Trace",),
    "sampling.warm_up": ("warm_up",),
    "training.fit": ("fit", "resume", "load"),
    "training.pretrain": ("pretrain",),
    "partition.likelihood": ("log_likelihood",),
    "maxent.solve": ("maximum_entropy",),
    "uses.band": ("elastic_band",),
    "uses.minimize": ("minimize",),
    "uses.draw": ("draw",),
    "metrics.evaluate": ("evaluate",),
    "uses.restore": ("denoise", "inpaint"),
    "uses.predict": ("predict", "predict_interval"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = {
    name: name
    for name in (
        "capabilities", "data", "derivatives", "distributed", "domains", "energies", "errors", "kernels", "maxent", "metrics", "models",
        "nets", "objectives", "partition", "plots", "random", "sampling", "schedules", "sequences", "sklearn", "spins", "tables",
        "testing", "training", "units", "zoo",
    )
} | {"hybrid": "uses.hybrid"}  # fmt: skip

__all__ = [*_HOME, *_MODULES]

if TYPE_CHECKING:
    from gibbsian import (
        capabilities,
        data,
        derivatives,
        distributed,
        domains,
        energies,
        errors,
        kernels,
        maxent,
        metrics,
        models,
        nets,
        objectives,
        partition,
        plots,
        random,
        sampling,
        schedules,
        sequences,
        sklearn,
        spins,
        tables,
        testing,
        training,
        units,
        zoo,
    )
    from gibbsian.energies.distribution import as_distribution, as_energy
    from gibbsian.energy import Energy, ScoreField, mixture, unconstrained
    from gibbsian.maxent.solve import maximum_entropy
    from gibbsian.metrics.evaluate import evaluate
    from gibbsian.partition.likelihood import log_likelihood
    from gibbsian.sampling.recommend import recommend
    from gibbsian.sampling.sample import sample
    from gibbsian.sampling.trace import Trace
    from gibbsian.sampling.warm_up import warm_up
    from gibbsian.training.fit import fit, load, resume
    from gibbsian.training.pretrain import pretrain
    from gibbsian.uses import hybrid
    from gibbsian.uses.band import elastic_band
    from gibbsian.uses.draw import draw
    from gibbsian.uses.minimize import minimize
    from gibbsian.uses.predict import predict, predict_interval
    from gibbsian.uses.restore import denoise, inpaint


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"gibbsian.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"gibbsian.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'gibbsian' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
