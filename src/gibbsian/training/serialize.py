"""Objects as JSON and safetensors, and back, with no pickle.

    describe(object) -> plain JSON, with tensors put aside by name;   rebuild(plain, tensors) -> object

Written down are numbers, strings, None, tensors, tuples, named tuples, lists, dictionaries, dataclasses
(objectives, kernels, domains) and modules by their constructor's arguments. Rebuilding finds the class by
its dotted name and constructs it: only modules, dataclasses and named tuples are constructed, functions
are referred to by name, and what may be named at all is decided by `trust`, so that a foreign folder can name nothing
that does harm by being built. What is constructed is checked as at its first making: `__init__` and `__post_init__` run.
"""

import inspect
import math
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, is_dataclass
from dataclasses import fields as fields_of
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from gibbsian.errors import ArgumentError, CapabilityError, CheckpointError
from gibbsian.random import isolated, stream
from gibbsian.recorded import Recorded
from gibbsian.training.renames import current_fields, current_name, renamed_keys
from gibbsian.training.trust import definition
from gibbsian.trees import is_named


def _dotted(thing: Any) -> str:
    """`module:qualified.name` of a class or function that can be imported again."""
    name = f"{thing.__module__}:{thing.__qualname__}"
    if "<" in name:
        raise CapabilityError(
            f"{thing.__qualname__} is a lambda or defined inside a function, so a run folder cannot refer "
            "to it by name; define it at the top level of a module, or train without run_dir"
        )
    found: Any = sys.modules.get(thing.__module__)
    for part in thing.__qualname__.split("."):
        found = None if found is None else vars(found).get(part)
    if found is not thing:
        raise CapabilityError(
            f"{name} cannot be imported under that name, so a run folder cannot refer to it; "
            "define it at the top level of a module, or train without run_dir"
        )
    return name


def _import(name: str) -> Any:
    module, _, path = current_name(name).partition(":")
    try:
        return definition(module, path)
    except ArgumentError as error:
        raise CheckpointError(f"the run folder names {name}, and {error}") from error


def _import_class(name: str) -> Any:
    thing = _import(name)
    if not isinstance(thing, type) or not (is_named(thing) or is_dataclass(thing) or issubclass(thing, nn.Module)):
        raise CheckpointError(
            f"the run folder asks to construct {name}, which is neither a module, a dataclass nor a named "
            "tuple; it was not written by gibbsian, or was tampered with"
        )
    return thing


def describe(value: Any, tensors: dict[str, Tensor], path: str = "tree", *, states: bool = True) -> Any:
    """Plain JSON for `value`; its tensors are put into `tensors` under names that begin with `path`.

    `states=False` leaves the weights of modules out, where they are saved elsewhere.

    >>> tensors = {}
    >>> plain = describe({"sizes": (2, 3), "weight": torch.ones(2)}, tensors)
    >>> list(tensors), rebuild(plain, tensors)
    (['tree.weight'], {'sizes': (2, 3), 'weight': tensor([1., 1.])})
    """
    return _Writer(tensors, states)(value, path)


def rebuild(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """The object that `describe` wrote down."""
    try:
        with isolated(stream(0, "rebuild")):  # layers draw initial weights from the global state
            return _Reader(tensors)(plain)
    except (KeyError, IndexError) as error:
        raise CheckpointError(f"the run folder's description is incomplete (missing {error}); it is damaged") from error


class _Writer:
    """Describes values of every kind, those inside others as well."""

    def __init__(self, tensors: dict[str, Tensor], states: bool) -> None:
        self.tensors, self.states = tensors, states
        self.modules: dict[int, int] = {}  # one that is used twice is rebuilt once

    def __call__(self, value: Any, path: str) -> Any:
        value = _unwrapped(value)
        if _is_plain(value):
            return value
        if isinstance(value, list):
            return self.each(value, path)
        if isinstance(value, dict) and all(isinstance(key, str) and not key.startswith("$") for key in value):
            return self.named(value, path)
        kind = next((kind for kind in _KINDS if kind.holds(value)), None)
        if kind is None:
            raise CapabilityError(
                f"a {type(value).__name__} ({path}) cannot be written into a run folder without pickle; "
                "use numbers, tensors, modules and dataclasses, or train without run_dir"
            )
        return kind.describe(self, value, path)

    def put(self, tensor: Tensor, path: str) -> str:
        """Put a tensor aside; the name that it is found under."""
        self.tensors[path] = tensor
        return path

    def each(self, values: Any, path: str) -> list[Any]:
        return [self(value, f"{path}.{i}") for i, value in enumerate(values)]

    def named(self, values: dict[str, Any], path: str) -> dict[str, Any]:
        return {name: self(value, f"{path}.{name}") for name, value in values.items()}


def _unwrapped(value: Any) -> Any:
    """A number of numpy as one of Python."""
    if isinstance(value, np.floating):
        return float(value)
    return value.item() if isinstance(value, np.integer | np.bool_) else value


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


class _Reader:
    """Rebuilds values of every kind from their descriptions."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.modules: list[nn.Module] = []

    def __call__(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [self(item) for item in plain]
        if not isinstance(plain, dict):
            return plain
        tag = next(iter(plain), "")
        if not tag.startswith("$"):
            return {name: self(item) for name, item in plain.items()}
        if tag not in _BY_TAG:
            raise CheckpointError(f"the run folder holds an unknown entry {tag!r}; it was written by another version")
        return _BY_TAG[tag](self, plain[tag], plain)


# --- modules and dataclasses ----------------------------------------------------------------------


def _describe_module(writer: _Writer, module: nn.Module, path: str) -> dict[str, Any]:
    if id(module) in writer.modules:
        return {"$again": writer.modules[id(module)]}
    args, kwargs = _arguments(module)
    plain: dict[str, Any] = {"$module": _dotted(type(module))}
    plain["args"], plain["kwargs"] = writer.each(args, path), writer.named(kwargs, path)
    if writer.states:
        plain["state"] = writer(dict(module.state_dict()), f"{path}.state")
        plain["frozen"] = [name for name, p in module.named_parameters() if not p.requires_grad]
    writer.modules[id(module)] = len(writer.modules)
    return plain


def _rebuild_module(reader: _Reader, name: str, plain: dict[str, Any]) -> nn.Module:
    cls = _import_class(name)
    known = inspect.signature(cls.__init__).parameters
    args, kwargs = reader(plain["args"]), reader(renamed_keys(plain["kwargs"], known))
    try:
        module = cls(*args, **kwargs)
    except TypeError as error:
        raise CheckpointError(f"{cls.__name__} no longer takes the arguments it was saved with ({error})") from error
    if "state" in plain:
        load_module(module, reader(plain["state"]), plain["frozen"])
    reader.modules.append(module)
    return module


def _arguments(module: nn.Module) -> tuple[Sequence[Any], dict[str, Any]]:
    """What a module was constructed with."""
    if isinstance(module, Recorded):
        return module.constructor_arguments
    if type(module) is nn.Sequential:
        return tuple(module), {}
    if type(module) is nn.ModuleList:
        return (list(module),), {}
    return (), {} if type(module).__init__ is nn.Module.__init__ else _layer_arguments(module)


def _layer_arguments(module: nn.Module) -> dict[str, Any]:
    """Constructor arguments of a plain layer, which keeps each under its own name, as torch.nn's do."""
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(module).__init__).parameters.items():
        if name in {"self", "device", "dtype"}:
            continue
        value = getattr(module, name, inspect.Parameter.empty)
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD} or value is inspect.Parameter.empty:
            raise CapabilityError(
                f"{type(module).__name__} does not keep its constructor's argument {name!r}, so a run folder "
                f"cannot rebuild it; store self.{name}, make it a gibbsian.Energy, or train without run_dir"
            )
        if name == "bias" and not isinstance(value, bool):
            value = value is not None  # the layer keeps the parameter under the name of the switch
        arguments[name] = value
    return arguments


def _rebuild_dataclass(reader: _Reader, name: str, plain: dict[str, Any]) -> Any:
    """An instance with the fields that were written down, those that are new since at their defaults; its `__post_init__` checks
    and completes it."""
    cls = _import_class(name)
    given = {
        field: reader(item) for field, item in current_fields(name, plain["fields"], cls.__dataclass_fields__).items()
    }
    made: Any = object.__new__(cls)  # a constructor of its own may take other arguments than the fields
    for field in fields_of(cls):
        if field.name in given:
            object.__setattr__(made, field.name, given[field.name])
        elif field.default_factory is not MISSING:
            object.__setattr__(made, field.name, field.default_factory())
        elif field.default is MISSING and field.init:
            raise CheckpointError(f"the run folder says nothing of {cls.__name__}'s {field.name}; it is damaged")
    if isinstance(made, _Completed):
        made.__post_init__()
    return made


@runtime_checkable
class _Completed(Protocol):
    """A dataclass that checks and completes its fields."""

    def __post_init__(self) -> None: ...


def _dtype(name: str) -> torch.dtype:
    found = vars(torch).get(name)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"the run folder names a type of numbers {name!r}, which torch has not; it is damaged")
    return found


# --- the kinds ------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """A kind of value that JSON does not have: how it is described, and how it is rebuilt from what follows its tag."""

    tag: str
    holds: Callable[[Any], bool]
    describe: Callable[[_Writer, Any, str], Any]
    rebuild: Callable[[_Reader, Any, dict[str, Any]], Any]


def _kind(tag: str, types: Any, body: Callable[..., Any], rebuild: Callable[..., Any]) -> _Kind:
    """A kind that is described by one thing after its tag."""
    return _Kind(
        tag,
        lambda v: isinstance(v, types),
        lambda w, v, path: {tag: body(w, v, path)},
        lambda r, found, plain: rebuild(r, found),
    )


_FUNCTIONS = (type, FunctionType, BuiltinFunctionType)
_KINDS = (  # the first that holds a value describes it
    _kind("$float", float, lambda w, v, path: str(float(v)), lambda r, text: float(text)),
    _kind("$tensor", Tensor, lambda w, v, path: w.put(v.detach(), path), lambda r, path: r.tensors[path]),
    _kind(
        "$array",
        np.ndarray,
        lambda w, v, path: w.put(torch.from_numpy(np.array(v)), path),
        lambda r, path: r.tensors[path].numpy(),
    ),
    _kind("$dtype", torch.dtype, lambda w, v, path: str(v)[len("torch.") :], lambda r, name: _dtype(name)),
    _kind("$device", torch.device, lambda w, v, path: str(v), lambda r, name: torch.device(name)),
    _Kind(
        "$named",
        lambda v: is_named(type(v)),
        lambda w, v, path: {"$named": _dotted(type(v)), "items": w.each(v, path)},
        lambda r, name, plain: _import_class(name)(*r(plain["items"])),
    ),
    _kind("$tuple", tuple, lambda w, v, path: w.each(v, path), lambda r, items: tuple(r(items))),
    _kind(
        "$dict",
        dict,
        lambda w, v, path: [[w(key, path), w(item, f"{path}.{key}")] for key, item in v.items()],
        lambda r, pairs: {r(key): r(item) for key, item in pairs},
    ),
    _Kind("$module", lambda v: isinstance(v, nn.Module), _describe_module, _rebuild_module),
    _Kind(
        "$dataclass",
        lambda v: is_dataclass(v) and not isinstance(v, type),
        lambda w, v, path: {"$dataclass": _dotted(type(v)), "fields": w.named(vars(v), path)},
        _rebuild_dataclass,
    ),
    _kind("$name", _FUNCTIONS, lambda w, v, path: _dotted(v), lambda r, name: _import(name)),
)
_BY_TAG = {kind.tag: kind.rebuild for kind in _KINDS} | {"$again": lambda r, index, plain: r.modules[index]}


def load_module(module: nn.Module, state: dict[str, Tensor], frozen: Collection[str] | None = None) -> None:
    """Copy saved weights into a module, in the precision they were saved in; tied parameters stay tied.

    Half precision is a way to store weights and none to compute with: such come into the precision of the module.
    """
    state = renamed_keys(state, module.state_dict())
    for name, target in [*module.named_parameters(), *module.named_buffers()]:
        if name in state and target.dtype != state[name].dtype != torch.float16:
            target.data = target.data.to(state[name].dtype)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"the saved weights do not fit {type(module).__name__}: {reason}") from error
    if frozen is not None:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name not in frozen)
