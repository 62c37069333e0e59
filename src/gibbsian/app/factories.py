"""Classes whose constructor takes any number of layers, as functions that take them as a list: for recipes.

`gibbsian.app.factories.DBM(layers=[784, 500, 1000])` is `gibbsian.models.DBM(784, 500, 1000)`; every class of the catalog
with such a constructor is here by its name.
"""

import inspect
from collections.abc import Callable
from typing import Any

from gibbsian.app import catalog
from gibbsian.errors import ArgumentError


def _star(cls: type) -> inspect.Parameter | None:
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    return next((p for p in parameters if p.kind is p.VAR_POSITIONAL), None)


def takes_a_list(cls: type) -> bool:
    """Does its constructor take any number of positional arguments, and say of which type?

    >>> import gibbsian as gb
    >>> takes_a_list(gb.models.DBM), takes_a_list(gb.models.RBM)
    (True, False)
    """
    star = _star(cls)
    return star is not None and star.annotation not in (inspect.Parameter.empty, Any)


def __getattr__(name: str) -> Callable[..., Any]:
    try:
        cls = catalog.find_class(name)
    except ArgumentError as error:
        raise AttributeError(str(error)) from error
    star = _star(cls)
    if star is None:
        raise AttributeError(f"{name} takes no list of layers; use it directly")
    own = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
    parameters = [
        p.replace(kind=p.KEYWORD_ONLY, annotation=list[p.annotation] if p.name == star.name else p.annotation)  # type: ignore[name-defined]
        for p in own
        if p.name != "generator"
    ]

    def build(**options: Any) -> Any:
        layers = options.pop(star.name)
        return cls(*layers, **options)

    build.__signature__ = inspect.Signature(parameters, return_annotation=cls)  # type: ignore[attr-defined]
    build.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": cls}
    build.__name__ = build.__qualname__ = name
    build.__module__, build.__doc__ = __name__, cls.__doc__
    globals()[name] = build
    return build
