"""What there is, by name, with one line each: what `gibbsian list` shows and what a recipe may name.

Everything is found from the `__all__` of the packages, so a new class appears here by itself. Recipes and data are
known without importing torch.
"""

import importlib
import inspect
from dataclasses import dataclass
from importlib import resources
from typing import Any

from gibbsian.errors import ArgumentError, suggest

KINDS = {
    "recipes": "ready-made trainings: gibbsian train NAME",
    "data": "named data sets, toy laws and the steps that prepare them",
    "energies": "energies of observed variables",
    "models": "Boltzmann machines and hybrid models",
    "units": "units of which machines are made",
    "domains": "where a variable lives",
    "kernels": "samplers: one Markov transition each",
    "objectives": "principles of learning",
    "estimators": "partition functions, exact, estimated or bounded",
}
_CLASSES = ("models", "energies", "units", "domains", "kernels", "objectives")


@dataclass(frozen=True)
class Entry:
    """A name, what it is in one line, and where it lives."""

    name: str
    about: str
    home: str


def _first_line(thing: Any) -> str:
    text = (inspect.getdoc(thing) or "").strip().split("\n\n")[0]
    return " ".join(text.split()).rstrip(",:")


def recipe_names() -> list[str]:
    """The recipes in the package."""
    folder = resources.files("gibbsian.app") / "recipes"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """The YAML of a recipe."""
    known = recipe_names()
    if name not in known:
        raise ArgumentError(f"there is no recipe {name!r}; {suggest(name, known)}See `gibbsian list recipes`")
    return (resources.files("gibbsian.app") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def _about(text: str) -> str:
    """The `about:` line of a recipe."""
    for line in text.splitlines():
        if line.startswith("about:"):
            return line.removeprefix("about:").strip().strip("\"'")
    return ""


def classes(kind: str) -> dict[str, type]:
    """The classes of a package by name, without abstract bases and plain records."""
    module = importlib.import_module(f"gibbsian.{kind}")
    found = {name: getattr(module, name) for name in module.__all__}
    return {
        name: thing
        for name, thing in found.items()
        if isinstance(thing, type) and not issubclass(thing, tuple) and not inspect.isabstract(thing)
    }


def entries(kind: str) -> list[Entry]:
    """Everything of a kind.

    >>> [entry.name for entry in entries("domains")][:3]
    ['Binary', 'Box', 'Categorical']
    """
    if kind not in KINDS:
        raise ArgumentError(f"there is no kind {kind!r}; {suggest(kind, KINDS)}The kinds are {', '.join(KINDS)}")
    own = {"recipes": _recipes, "data": _data, "estimators": _estimators}
    if kind in own:
        return own[kind]()
    return [Entry(n, _first_line(c), f"gibbsian.{kind}.{n}") for n, c in sorted(classes(kind).items())]


def _recipes() -> list[Entry]:
    return [Entry(name, _about(recipe_text(name)), "gibbsian train " + name) for name in recipe_names()]


def _data() -> list[Entry]:
    from gibbsian.data import NAMED, STEPS, TOYS

    named = [Entry(name, entry.about, "set") for name, entry in NAMED.items()]
    toys = [Entry(name, _first_line(function), "toy law") for name, function in TOYS.items()]
    return named + toys + [Entry(name, _first_line(step), "step") for name, step in STEPS.items()]


def _estimators() -> list[Entry]:
    module = importlib.import_module("gibbsian.partition")
    functions = {n: getattr(module, n) for n in module.__all__ if inspect.isfunction(getattr(module, n))}
    return [Entry(n, _first_line(f), f"gibbsian.partition.{n}") for n, f in sorted(functions.items())]


def find_class(name: str) -> type:
    """A class of the library by its name, or by `gibbsian....Name`, or one of a trusted module by its dotted name.

    Models and energies come before units.

    >>> find_class("RBM").__module__
    'gibbsian.models.rbm.machine'
    """
    home, _, short = name.rpartition(".")
    known = {kind: classes(kind) for kind in _CLASSES}
    for kind, found in known.items():
        if short in found and home in {"", f"gibbsian.{kind}", found[short].__module__}:
            return found[short]
    own = _of_trusted(home, short)
    if own is not None:
        return own
    every = [n for found in known.values() for n in found]
    raise ArgumentError(f"there is no class {name!r}; {suggest(short, every)}See `gibbsian list`")


def _of_trusted(home: str, name: str) -> type | None:
    from gibbsian.training.trust import known_module  # here, because torch comes with it

    module = None if home.partition(".")[0] in {"", "gibbsian"} else known_module(home)
    found = None if module is None else vars(module).get(name)
    return found if isinstance(found, type) else None


def describe(name: str) -> str:
    """The signature and the documentation of a class, an estimator, a data set or a recipe, by name."""
    if name in recipe_names():
        return recipe_text(name)
    for kind in ("data", "estimators"):
        for entry in entries(kind):
            if entry.name == name:
                if kind == "data":
                    return f"{entry.name} ({entry.home}): {entry.about}"
                function = getattr(importlib.import_module("gibbsian.partition"), name)
                return f"gibbsian.partition.{name}{inspect.signature(function)}\n\n{inspect.getdoc(function)}"
    if not any(name in classes(kind) for kind in _CLASSES):
        every = [*KINDS, *recipe_names(), *(e.name for kind in KINDS for e in entries(kind))]
        raise ArgumentError(f"there is nothing called {name!r}; {suggest(name, every)}See `gibbsian list`")
    cls = find_class(name)
    return f"{cls.__module__}.{name}{inspect.signature(cls)}\n\n{inspect.getdoc(cls)}"
