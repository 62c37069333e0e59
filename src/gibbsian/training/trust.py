"""What a run folder or a recipe may name: classes and functions of this library, of torch.nn and torch.optim, and of modules that
the user trusts.

A module runs its code when it is imported, a class when it is constructed, a function when it is called, and a folder or a recipe may
come from anywhere. So a name counts only where its module is listed, and only for what is *defined* there: `gibbsian.random:os.system`
begins like the library and is none of it. That is decided before anything is imported.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from gibbsian.errors import ArgumentError

_ROOMS = ("domains", "energies", "energy", "kernels", "models", "nets", "objectives", "schedules", "units")
_RECORDS = {  # what a run keeps of its training, or of a table
    "gibbsian.tables.coders": {"FewValues", "Names", "Numbers"},
    "gibbsian.tables.columns": {"Column"},
    "gibbsian.tables.mixture": {"Mixture"},
    "gibbsian.tables.rows": {"Rows"},
    "gibbsian.tables.tilted": {"Net", "Tilted"},
    "gibbsian.tables.transform": {"NearNormal"},
    "gibbsian.training.checkpoint": {"Weights"},
    "gibbsian.training.feeds.base": {"Loading"},
    "gibbsian.training.guard": {"Guard"},
    "gibbsian.training.loggers": {"CSV", "JSONLines", "TensorBoard", "WandB"},
    "gibbsian.training.pretrain": {"Encoded"},
    "gibbsian.training.run": {"Checkpoints", "Engine", "Logging", "Settings"},
    "gibbsian.training.stopping": {"EarlyStopping"},
}
_OF_TORCH = (torch.nn, torch.nn.functional, torch.optim)
_EXPORTING = {"gibbsian", "gibbsian.training", *(module.__name__ for module in _OF_TORCH)}
_TRUSTED = "__trusted_by_gibbsian__"  # stands in a module that the user has named


def trust(modules: str | Iterable[str]) -> list[ModuleType]:
    """Import modules, so that run folders and recipes may name the classes and functions that are defined in them.

    Args:
        modules: dotted names such as `mine.machines`, or files such as `mine/machines.py`, which are then called by
            their name without ending: `machines`. A package stands for its modules too, `__main__` for the script that runs.

    >>> [module.__name__ for module in trust(["json"])]
    ['json']
    """
    found = [_imported(given) for given in ([modules] if isinstance(modules, str) else modules)]
    for module in found:
        vars(module)[_TRUSTED] = True
    return found


def _imported(given: str) -> ModuleType:
    if given.endswith(".py"):
        return _of_file(Path(given).expanduser().resolve())
    if not all(part.isidentifier() for part in given.split(".")):
        raise ArgumentError(f"trust {given!r}: expected the name of a module, or a file that ends in .py")
    try:
        return importlib.import_module(given)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{given}.".startswith(f"{error.name}."):
            raise  # one that it imports itself
        file = given.replace(".", "/") + ".py"
        raise ArgumentError(f"trust {given!r}: there is no such module; give its file, such as {file}") from error


def _of_file(path: Path) -> ModuleType:
    name = path.stem
    if not path.is_file():
        raise ArgumentError(f"trust {path}: there is no such file")
    if not name.isidentifier():
        raise ArgumentError(f"trust {path}: a module cannot be called {name!r}; rename the file")
    if name in sys.modules:
        found = sys.modules[name]
        if found.__spec__ is None or found.__spec__.origin is None or Path(found.__spec__.origin).resolve() != path:
            raise ArgumentError(f"trust {path}: another module is called {name!r} here; rename the file")
        return found
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"trust {path}: this is no file of Python")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # half a module is none
        raise
    return module


def is_trusted(module: str) -> bool:
    """Has the user named this module, or the package that it is in?"""
    parts = module.split(".")
    above = (sys.modules.get(".".join(parts[: i + 1])) for i in range(len(parts)))
    return any(found is not None and _TRUSTED in vars(found) for found in above)


def definition(module: str, name: str) -> Any:
    """The class or function that is called `name` where it is defined, in `module`; `ArgumentError` where it may not be named.

    >>> definition("gibbsian.domains", "Real").__name__, definition("torch.nn.modules.activation", "SiLU").__name__
    ('Real', 'SiLU')
    >>> definition("subprocess", "getoutput")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gibbsian.errors.ArgumentError: subprocess is not used without being named, since that runs its code; ...
    """
    if not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
        raise ArgumentError(f"{module}:{name} is no name of a class or function")
    if module.partition(".")[0] == "torch" and not is_trusted(module):
        found = _of_torch(module, name)
    elif _is_own(module, name) or is_trusted(module):
        found = _of_module(module, name)
    else:
        raise ArgumentError(
            f"{module} is not used without being named, since that runs its code; if you trust it, say "
            f'trust="{module}" (its name, or its file), or --trust {module} on the command line'
        )
    if found is None:
        raise ArgumentError(f"{module} defines no class or function {name!r} that may be named")
    return found


def exported(path: str) -> Any:
    """The class or function `module.name` of a recipe: as `definition`, but `module` may have it from where it is defined.

    >>> exported("gibbsian.models.RBM").__module__, exported("torch.nn.SiLU").__module__
    ('gibbsian.models.rbm.machine', 'torch.nn.modules.activation')
    """
    module, _, name = path.rpartition(".")
    if not (module in _EXPORTING or _is_own(module, name) or is_trusted(module)):
        return definition(module, name)  # of torch, or the reason why not
    found: Any = getattr(_module(module), name, None)
    if not _can_be_named(found):
        raise ArgumentError(f"there is no class or function {path}")
    return definition(found.__module__, found.__qualname__)


def _is_own(module: str, name: str) -> bool:
    package, _, rest = module.partition(".")
    return package == "gibbsian" and (rest.partition(".")[0] in _ROOMS or name in _RECORDS.get(module, ()))


def _of_torch(module: str, name: str) -> Any:
    """What stands in torch.nn, torch.nn.functional or torch.optim."""
    for home in _OF_TORCH:
        found = vars(home).get(name)
        inside = module == "torch._C._nn" or f"{module}.".startswith(f"{home.__name__}.")
        if inside and _is_defined(found, module, name):
            return found
    return None


def _of_module(module: str, name: str) -> Any:
    found: Any = _module(module)
    for part in name.split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    return found if _is_defined(found, module, name) else None


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ArgumentError(f"{name} cannot be imported here ({error}); it was moved or renamed since") from error


def _can_be_named(thing: Any) -> bool:
    return isinstance(thing, type | FunctionType | BuiltinFunctionType)


def _is_defined(thing: Any, module: str, name: str) -> bool:
    return _can_be_named(thing) and (thing.__module__, thing.__qualname__) == (module, name)
