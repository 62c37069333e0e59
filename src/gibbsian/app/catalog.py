"""What there is, by name, with one line each: what `gibbsian list` shows and what a recipe may name.

Everything is found from the `__all__` of the packages, so a new class appears here by itself. Recipes and data are
known without importing torch.
"""

import importlib
import inspect
import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any

from gibbsian.errors import ArgumentError, suggest

KINDS = {
    "recipes": "ready-made trainings: gibbsian train NAME",
    "zoo": "trained models: gibbsian.zoo.load(NAME), gibbsian sample zoo:NAME",
    "data": "named data sets, toy laws and the steps that prepare them",
    "energies": "energies of observed variables",
    "models": "Boltzmann machines and hybrid models",
    "nets": "networks, of which energies, classifiers and score models are made",
    "units": "units of which machines are made",
    "domains": "where a variable lives",
    "kernels": "samplers: one Markov transition each",
    "objectives": "principles of learning",
    "estimators": "partition functions, exact, estimated or bounded",
}
_CLASSES = ("models", "energies", "nets", "units", "domains", "kernels", "objectives")


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
        raise ArgumentError(f"there is no recipe {name!r}; {suggest(name, known)}see `gibbsian list recipes`")
    return (resources.files("gibbsian.app") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def classes(kind: str) -> dict[str, Any]:
    """The classes of a package by name, without abstract bases and plain records; of "estimators" the functions."""
    module = importlib.import_module(_home(kind))
    found = {name: getattr(module, name) for name in sorted(module.__all__)}
    if kind == "estimators":
        return {name: thing for name, thing in found.items() if inspect.isfunction(thing)}
    return {
        name: thing
        for name, thing in found.items()
        if isinstance(thing, type) and not issubclass(thing, tuple | dict) and not inspect.isabstract(thing)
    }


def _home(kind: str) -> str:
    return f"gibbsian.{'partition' if kind == 'estimators' else kind}"


def class_names() -> list[str]:
    """The names of all classes that a recipe may name."""
    return [name for kind in _CLASSES for name in classes(kind)]


def entries(kind: str) -> list[Entry]:
    """Everything of a kind.

    >>> [entry.name for entry in entries("domains")][:3]
    ['Binary', 'Box', 'Categorical']
    """
    if kind not in KINDS:
        raise ArgumentError(f"there is no kind {kind!r}; {suggest(kind, KINDS)}The kinds are {', '.join(KINDS)}")
    if kind == "recipes":
        abouts = {name: re.search(r"^about:(.*)", recipe_text(name), re.M) for name in recipe_names()}
        return [Entry(n, a[1].strip().strip("\"'") if a else "", f"gibbsian train {n}") for n, a in abouts.items()]
    if kind == "data":
        return _data()
    if kind == "zoo":
        return _zoo()
    return [Entry(n, _first_line(c), f"{_home(kind)}.{n}") for n, c in classes(kind).items()]


def _zoo() -> list[Entry]:
    """From the cards alone: nothing is loaded."""
    folder = resources.files("gibbsian") / "zoo" / "members"
    cards = [
        json.loads((one / "card.json").read_text(encoding="utf-8"))
        for one in folder.iterdir()
        if (one / "card.json").is_file()
    ]
    return sorted(
        (Entry(c["name"], f"{c['about']}{_first_figure(c)}", f"zoo:{c['name']}") for c in cards), key=lambda e: e.name
    )


def _first_figure(card: dict[str, Any]) -> str:
    for name, figure in card["figures"].items():
        high = "open" if figure["high"] is None else f"{figure['high']:.4g}"  # above, where it is a lower bound
        return f"; {name} {figure['value']:.4g} in [{figure['low']:.4g}, {high}]"
    return ""


def _data() -> list[Entry]:
    from gibbsian.data import NAMED, STEPS, TOYS

    named = [Entry(name, entry.about, "set") for name, entry in NAMED.items()]
    toys = [Entry(name, _first_line(law), "toy law") for name, law in TOYS.items()]
    return named + toys + [Entry(name, _first_line(step), "step") for name, step in STEPS.items()]


def find_class(name: str) -> type:
    """A class of the library by its name, or by `gibbsian....Name`, or one of a trusted module by its dotted name.

    Models and energies come before units.

    >>> find_class("RBM").__module__
    'gibbsian.models.rbm.machine'
    """
    home, _, short = name.rpartition(".")
    for kind in _CLASSES:
        found = classes(kind)
        if short in found and home in {"", f"gibbsian.{kind}", found[short].__module__}:
            return found[short]
    own = _of_trusted(home, short)
    if own is not None:
        return own
    raise ArgumentError(f"there is no class {name!r}; {suggest(short, class_names())}See `gibbsian list`")


def _of_trusted(home: str, name: str) -> type | None:
    from gibbsian.training.trust import exported, is_trusted  # here, because torch comes with it

    found = exported(f"{home}.{name}") if home and is_trusted(home) else None
    return found if isinstance(found, type) else None


def describe(name: str) -> str:
    """The signature and the documentation of a class, an estimator, a data set or a recipe, by name; of zoo:NAME the card."""
    if name in recipe_names():
        return recipe_text(name)
    if name.startswith("zoo:"):
        from gibbsian.zoo import card  # here, because torch comes with it

        return str(card(name[4:]))
    for entry in entries("data"):
        if entry.name == name:
            return f"{entry.name} ({entry.home}): {entry.about}"
    for kind in ("estimators", *_CLASSES):
        thing = classes(kind).get(name)
        if thing is not None:
            home = _home(kind) if kind == "estimators" else thing.__module__
            return f"{home}.{name}{inspect.signature(thing)}\n\n{inspect.getdoc(thing)}"
    every = [*KINDS, *(entry.name for kind in KINDS for entry in entries(kind))]
    raise ArgumentError(f"there is nothing called {name!r}; {suggest(name, every)}See `gibbsian list`")


def told(name: str, for_programs: bool) -> str | dict[str, Any]:
    """The same; for programs all that is on the card of zoo:NAME, in fields."""
    if not (for_programs and name.startswith("zoo:")):
        return describe(name)
    from gibbsian.zoo import card  # here, because torch comes with it

    return card(name[4:]).document()
