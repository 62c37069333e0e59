"""How a report says numbers and objects, and how its templates are filled."""

import dataclasses
from collections.abc import Mapping
from typing import Any


def render(template: str, context: dict[str, Any]) -> str:
    """A template of the package, filled in; a name that it needs and is not there is an error."""
    import jinja2

    loader = jinja2.PackageLoader("gibbsian.app", "report")
    pages = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return pages.get_template(template).render(context)


def brief(thing: Any) -> str:
    """A dataclass with the arguments that are not its defaults; anything else as Python writes it."""
    if isinstance(thing, tuple | list):
        return "[" + ", ".join(brief(part) for part in thing) + "]"
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        return f"{thing:.4g}" if isinstance(thing, float) else repr(thing)
    shown = [f"{f.name} {_said(v)}" for f, v in _fields(thing) if _telling(f, v)]
    return type(thing).__name__ + (f" ({', '.join(shown)})" if shown else "")


def method(given: Any, usual: str) -> str:
    """A method of torch as recipes name it: by a word, or by a mapping with its options.

    >>> method({"name": "adamw", "weight_decay": 0.1}, "adam"), method("sgd", "adam"), method(None, "adam")
    ('adamw (weight_decay 0.1)', 'sgd', 'adam')
    """
    if not isinstance(given, Mapping):
        return str(given or usual)
    options = ", ".join(f"{name} {_said(value)}" for name, value in given.items() if name != "name")
    return str(given.get("name", usual)) + (f" ({options})" if options else "")


def _fields(thing: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    return [(field, getattr(thing, field.name)) for field in dataclasses.fields(thing)]


def _said(value: Any) -> str:
    return value if isinstance(value, str) else brief(value)


def _telling(field: dataclasses.Field[Any], value: Any) -> bool:
    """Is it somebody's choice: no tensor, nothing that is worked out of others, and not what it would be anyway?"""
    if not field.init or "tensor(" in repr(value):
        return False
    made = field.default_factory
    return bool(value != (field.default if made is dataclasses.MISSING else made()))


def thousands(n: int) -> str:
    """A count in groups of three.

    >>> thousands(15000), thousands(840)
    ('15\u202f000', '840')
    """
    return f"{n:,}".replace(",", "\u202f")


def shortened(name: str, most: int) -> str:
    """A name of at most so many letters, with a sign where some are left out.

    >>> shortened("Ulaanbaatar", 8), shortened("Rome", 8)
    ('Ulaanba…', 'Rome')
    """
    return name if len(name) <= most else name[: most - 1] + "…"


def rounded(value: float) -> str:
    """A measured number to four digits, whole numbers as they are.

    >>> rounded(0.30000000000000004), rounded(12.0), rounded(123456.789)
    ('0.3', '12', '123457')
    """
    return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 1e4 else f"{value:.4g}"


def end(value: float | None, digits: int) -> str:
    """The end of an interval."""
    return "open" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def count(n: int) -> str:
    for size, name in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if n >= size:
            return f"{n / (1e3 if name == ' k' else size):.3g}{name}"
    return str(n)
