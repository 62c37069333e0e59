"""How recipes are written: YAML, with `Name: {arguments}` for classes and names of schedules for numbers that change."""

import re
from collections.abc import Callable
from typing import Any

import torch
import yaml
from jsonargparse import get_loader

from gibbsian import nets, schedules
from gibbsian.app import catalog, factories
from gibbsian.errors import ArgumentError

_LONGEST = 1_000_000  # characters of a recipe with its aliases written out
_SCHEDULES = ("geometric", "linear", "cosine", "polynomial", "sigmoid")


def _expand(value: Any, names: set[str]) -> Any:
    """`Name: {arguments}` as class path and arguments."""
    if isinstance(value, list):
        return [_expand(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    value = {key: _expand(item, names) for key, item in _spelled_out(value, names).items()}
    name = value.get("class_path")
    if isinstance(name, str) and name in names and factories.takes_a_list(catalog.find_class(name)):
        value["class_path"] = f"{factories.__name__}.{name}"
    elif name in nets.__all__:  # other libraries have networks of these names too
        value["class_path"] = f"{nets.__name__}.{name}"
    return value


def _spelled_out(value: dict[Any, Any], names: set[str]) -> dict[Any, Any]:
    if len(value) != 1:
        return value
    ((name, body),) = value.items()
    named = isinstance(name, str) and (name in names or name[:1].isupper() or "." in name)
    return {"class_path": name, "init_args": body or {}} if named and isinstance(body, dict | None) else value


def read_yaml(text: str) -> Any:
    """What a text of YAML says; `yaml.YAMLError` for all that is none, and for aliases that stand for more than a recipe can hold.

    >>> read_yaml("lr: 1e-3")
    {'lr': 0.001}
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None and _length(node, {}) > _LONGEST:
            raise yaml.YAMLError(f"it is too long: more than {_LONGEST} characters, aliases written out")
        return get_loader("yaml")(text)
    except (
        ValueError,
        ArithmeticError,
        RecursionError,
    ) as error:  # dates and numbers that are none; brackets without end
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from error


def _length(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Characters of a node, those that its aliases stand for counted each time."""
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise yaml.YAMLError("an alias stands for something that holds itself")
        return found
    known[id(node)] = None
    if isinstance(node, yaml.ScalarNode):
        length = 1 + len(node.value)
    else:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        length = 1 + sum(_length(part, known) for part in parts)
    known[id(node)] = length
    return length


def load(text: str) -> Any:
    """A recipe, or a part of one, with its classes spelled out."""
    return _expand(read_yaml(text), set(catalog.class_names()))


def tensor_of(value: Any) -> torch.Tensor:
    """A tensor from a list, or from a schedule such as `geometric(10, 0.01, 50)`."""
    if isinstance(value, str):
        found = re.fullmatch(r"(\w+)\((.*)\)", value.strip())
        if found is None or found[1] not in _SCHEDULES:
            raise ValueError(f"{value!r} is neither a list of numbers nor a schedule ({', '.join(_SCHEDULES)})")
        arguments = [read_yaml(part) for part in found[2].split(",")]
        return getattr(schedules, found[1])(*arguments)
    return torch.tensor(value, dtype=torch.get_default_dtype())


def dump(data: Any) -> str:
    """A recipe as YAML, its keys in their order."""
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def from_yaml(text: str, name: str, read: Callable[[str], Any]) -> Any:
    """What a text says that `read` reads; where it is no YAML the place, in one sentence."""
    try:
        return read(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            mark = error.problem_mark
            problem = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or problem}"
        raise ArgumentError(f"{name} is not valid YAML: {problem}") from error


def read_recipe(text: str, name: str, read: Callable[[str], Any] = read_yaml) -> dict[str, Any]:
    """The mapping that a recipe is, as its YAML says it, in one sentence where it is none."""
    loaded = from_yaml(text, name, read)
    if not isinstance(loaded, dict):
        raise ArgumentError(f"{name} holds no recipe; begin with data:, model:, objective: and fit:")
    return loaded
