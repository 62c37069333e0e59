"""Whose classes a run folder or a recipe may name: the library's, the program's own, and those of modules that are trusted.

A module runs its code when it is imported, and a folder or a recipe may come from anywhere. So nothing that one of
them names is imported, but for this library and what it is made of, unless the user has named its module.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from gibbsian.errors import ArgumentError

_OWN = {"gibbsian", "torch", "zuko"}


def trust(modules: str | Iterable[str]) -> list[ModuleType]:
    """Import modules, so that run folders and recipes may name what is in them.

    Args:
        modules: dotted names such as `mine.machines`, or files such as `mine/machines.py`, which are then called by
            their name without ending: `machines`.

    >>> [module.__name__ for module in trust(["json"])]
    ['json']
    """
    return [_imported(given) for given in ([modules] if isinstance(modules, str) else modules)]


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


def known_module(name: str) -> ModuleType | None:
    """A module of the library, or one that the program has imported already; None for a foreign one.

    >>> known_module("gibbsian.domains").__name__, known_module("antigravity")
    ('gibbsian.domains', None)
    """
    if name.partition(".")[0] in _OWN:
        return importlib.import_module(name)
    return sys.modules.get(name)
