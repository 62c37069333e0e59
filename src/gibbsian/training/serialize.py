"""Objects as JSON and safetensors, and back, with no pickle.

    describe(object) -> plain JSON, with tensors put aside by name;   rebuild(plain, tensors) -> object

Written down are numbers, strings, None, tensors, tuples, named tuples, lists, dictionaries, dataclasses
(objectives, kernels, domains) and modules by their constructor's arguments. Rebuilding finds the class by
its dotted name and constructs it: only modules, dataclasses and named tuples are constructed, functions
are referred to by name, and foreign modules are not imported (see `trust`), so that a foreign folder can name nothing
that does harm by being built.
"""

import inspect
import math
from collections.abc import Collection
from dataclasses import is_dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gibbsian.errors import CapabilityError, CheckpointError
from gibbsian.random import isolated, stream
from gibbsian.recorded import Recorded
from gibbsian.training.renames import current_fields, current_name, renamed_keys
from gibbsian.training.trust import known_module
from gibbsian.trees import is_named

__all__ = ["describe", "load_module", "rebuild"]


def _dotted(thing: Any) -> str:
    """`module:qualified.name` of a class or function that can be imported again."""
    name = f"{thing.__module__}:{thing.__qualname__}"
    if "<" in name:
        raise CapabilityError(
            f"{thing.__qualname__} is a lambda or defined inside a function, so a run folder cannot refer "
            "to it by name; define it at the top level of a module, or train without run_dir"
        )
    try:
        found = _import(name)
    except CheckpointError:
        found = None
    if found is not thing:
        raise CapabilityError(
            f"{name} cannot be imported under that name, so a run folder cannot refer to it; "
            "define it at the top level of a module, or train without run_dir"
        )
    return name


def _import(name: str) -> Any:
    module, _, path = current_name(name).partition(":")
    try:
        thing: Any = known_module(module)
        if thing is None:
            raise CheckpointError(
                f"the run folder names {name}, and {module} is not imported without being named, since that runs its "
                f'code; if you trust it, say trust="{module}" (its name, or its file), or --trust on the command line'
            )
        for part in path.split("."):
            thing = getattr(thing, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise CheckpointError(
            f"the run folder names {name}, which cannot be imported here ({error}); it was moved or renamed since, or "
            "lives in the script that trained"
        ) from error
    return thing


def _import_class(name: str) -> type:
    thing = _import(name)
    named_tuple = isinstance(thing, type) and is_named(thing)
    if not isinstance(thing, type) or not (named_tuple or is_dataclass(thing) or issubclass(thing, nn.Module)):
        raise CheckpointError(
            f"the run folder asks to construct {name}, which is neither a module, a dataclass nor a named "
            "tuple; it was not written by gibbsian, or was tampered with"
        )
    return thing


def _layer_arguments(module: nn.Module) -> dict[str, Any]:
    """Constructor arguments of a plain layer, which keeps each under its own name, as torch.nn's do."""
    arguments: dict[str, Any] = {}
    if type(module).__init__ is nn.Module.__init__:
        return arguments
    for name, parameter in inspect.signature(type(module).__init__).parameters.items():
        if name in {"self", "device", "dtype"}:
            continue
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD} or not hasattr(module, name):
            raise CapabilityError(
                f"{type(module).__name__} does not keep its constructor's argument {name!r}, so a run folder "
                f"cannot rebuild it; store self.{name}, make it a gibbsian.Energy, or train without run_dir"
            )
        value = getattr(module, name)
        if name == "bias" and not isinstance(value, bool):
            value = value is not None  # the layer keeps the parameter under the name of the switch
        arguments[name] = value
    return arguments


class _Describer:
    def __init__(self, tensors: dict[str, Tensor], states: bool) -> None:
        self.tensors, self.states = tensors, states
        self.seen: dict[int, int] = {}  # a module used twice is rebuilt once

    def each(self, values: Any, path: str) -> list[Any]:
        return [self(value, f"{path}.{i}") for i, value in enumerate(values)]

    def named(self, values: dict[str, Any], path: str) -> dict[str, Any]:
        return {name: self(value, f"{path}.{name}") for name, value in values.items()}

    def __call__(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float | np.floating):
            return float(value) if math.isfinite(value) else {"$float": str(float(value))}
        if isinstance(value, np.integer | np.bool_):
            return value.item()
        if isinstance(value, Tensor):
            self.tensors[path] = value.detach()
            return {"$tensor": path}
        if isinstance(value, np.ndarray):
            self.tensors[path] = torch.from_numpy(np.array(value))
            return {"$array": path}
        if isinstance(value, torch.dtype | torch.device):
            return {f"${type(value).__name__}": str(value).removeprefix("torch.")}
        if is_named(type(value)):
            return {"$named": _dotted(type(value)), "items": self.each(value, path)}
        if isinstance(value, tuple):
            return {"$tuple": self.each(value, path)}
        if isinstance(value, list):
            return self.each(value, path)
        if isinstance(value, dict) and all(isinstance(k, str) and not k.startswith("$") for k in value):
            return self.named(value, path)
        if isinstance(value, dict):
            return {"$dict": [[self(key, path), self(item, f"{path}.{key}")] for key, item in value.items()]}
        if isinstance(value, nn.Module):
            return self.module(value, path)
        if is_dataclass(value) and not isinstance(value, type):
            # what the instance holds rather than what its constructor takes: exact for computed fields too
            return {"$dataclass": _dotted(type(value)), "fields": self.named(vars(value), path)}
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            return {"$name": _dotted(value)}
        raise CapabilityError(
            f"a {type(value).__name__} ({path}) cannot be written into a run folder without pickle; "
            "use numbers, tensors, modules and dataclasses, or train without run_dir"
        )

    def module(self, module: nn.Module, path: str) -> dict[str, Any]:
        if id(module) in self.seen:
            return {"$again": self.seen[id(module)]}
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if isinstance(module, Recorded):
            args, kwargs = module.constructor_arguments
        elif type(module) is nn.Sequential:
            args = tuple(module)
        elif type(module) is nn.ModuleList:
            args = (list(module),)
        else:
            kwargs = _layer_arguments(module)
        plain: dict[str, Any] = {"$module": _dotted(type(module))}
        plain["args"], plain["kwargs"] = self.each(args, path), self.named(kwargs, path)
        if self.states:
            plain["state"] = self(dict(module.state_dict()), f"{path}.state")
            plain["frozen"] = [name for name, p in module.named_parameters() if not p.requires_grad]
        self.seen[id(module)] = len(self.seen)
        return plain


def describe(value: Any, tensors: dict[str, Tensor], path: str = "tree", *, states: bool = True) -> Any:
    """Plain JSON for `value`; its tensors are put into `tensors` under names that begin with `path`.

    `states=False` leaves the weights of modules out, where they are saved elsewhere.

    >>> tensors = {}
    >>> plain = describe({"sizes": (2, 3), "weight": torch.ones(2)}, tensors)
    >>> list(tensors), rebuild(plain, tensors)
    (['tree.weight'], {'sizes': (2, 3), 'weight': tensor([1., 1.])})
    """
    return _Describer(tensors, states)(value, path)


class _Rebuilder:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors, self.modules = tensors, []  # type: dict[str, Tensor], list[nn.Module]

    def __call__(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [self(item) for item in plain]
        if not isinstance(plain, dict):
            return plain
        kind = next(iter(plain), "")
        if not kind.startswith("$"):
            return {name: self(item) for name, item in plain.items()}
        body = plain[kind]
        if kind == "$tensor":
            return self.tensors[body]
        if kind == "$array":
            return self.tensors[body].numpy()
        if kind == "$float":
            return float(body)
        if kind == "$dtype":
            return getattr(torch, body)
        if kind == "$device":
            return torch.device(body)
        if kind == "$tuple":
            return tuple(self(item) for item in body)
        if kind == "$dict":
            return {self(key): self(item) for key, item in body}
        if kind == "$named":
            return _import_class(body)(*(self(item) for item in plain["items"]))
        if kind == "$dataclass":
            cls: Any = _import_class(body)
            made: Any = object.__new__(cls)
            for name, item in current_fields(body, plain["fields"], cls.__dataclass_fields__).items():
                object.__setattr__(made, name, self(item))
            return made
        if kind == "$again":
            return self.modules[body]
        if kind == "$module":
            return self.module(plain)
        if kind == "$name":
            thing = _import(body)
            if not (isinstance(thing, type | FunctionType) or getattr(thing, "__module__", "").startswith("torch")):
                raise CheckpointError(f"the run folder refers to {body}, which is not a Python function or class")
            return thing
        raise CheckpointError(f"the run folder holds an unknown entry {kind!r}; it was written by another version")

    def module(self, plain: dict[str, Any]) -> nn.Module:
        cls = _import_class(plain["$module"])
        known = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
        args, kwargs = self(plain["args"]), self(renamed_keys(plain["kwargs"], known))
        try:
            module = cls(*args, **kwargs)
        except TypeError as error:
            raise CheckpointError(
                f"{cls.__name__} no longer takes the arguments it was saved with ({error})"
            ) from error
        if "state" in plain:
            load_module(module, self(plain["state"]), plain["frozen"])
        self.modules.append(module)
        return module


def rebuild(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """The object that `describe` wrote down."""
    try:
        with isolated(stream(0, "rebuild")):  # layers draw initial weights from the global state
            return _Rebuilder(tensors)(plain)
    except (KeyError, IndexError) as error:
        raise CheckpointError(f"the run folder's description is incomplete (missing {error}); it is damaged") from error


def load_module(module: nn.Module, state: dict[str, Tensor], frozen: Collection[str] | None = None) -> None:
    """Copy saved weights into a module, in the precision they were saved in; tied parameters stay tied."""
    state = renamed_keys(state, module.state_dict())
    for name, target in [*module.named_parameters(), *module.named_buffers()]:
        if name in state and target.dtype != state[name].dtype:
            target.data = target.data.to(state[name].dtype)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"the saved weights do not fit {type(module).__name__}: {reason}") from error
    if frozen is not None:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name not in frozen)
