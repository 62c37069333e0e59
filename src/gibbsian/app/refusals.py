"""What the parser of recipes says is wrong, as one sentence, with the nearest name where one is unknown."""

import inspect
import re
from typing import get_args, get_type_hints

from gibbsian.app import catalog
from gibbsian.errors import ArgumentError, suggest


def explain(text: str, flags: list[str]) -> str:
    """The parser's report as one sentence; `flags` are all that there are."""
    keys = re.findall(r'Parser key "([\w.]+)"', text)
    where = f"{'.'.join(dict.fromkeys(keys))}: " if keys else ""
    paths = re.findall(r"class_path '([\w.]+)'", text)
    path = paths[-1] if paths else ""
    found = _unknown_flag(text, flags) or _wrong_argument(text, where, path) or _wrong_value(text, where)
    reasons = _reasons(text)
    return found or where + " ".join((reasons[0] if reasons else text).split())


def _unknown_flag(text: str, flags: list[str]) -> str | None:
    found = re.search(r"unrecognized arguments: --(\S+)", text)
    if found is None:
        odd = re.search(r"unrecognized arguments: (\S+)", text)
        more = "a recipe is changed by flags such as --fit.lr 0.1, and one is trained at a time"
        return f"{odd[1]} is not understood; {more}" if odd else None
    near = suggest(found[1], flags) or suggest(found[1].split(".")[0], flags)
    return f"there is no flag --{found[1]}; {near}See `gibbsian train --help`"


def _wrong_argument(text: str, where: str, path: str) -> str | None:
    """An argument that a class does not have, or one that it needs."""
    owner = path.rpartition(".")[2]
    if owner and (found := re.search(r"(?:Option|Key) '([\w.]+)' is not (?:accepted|expected)", text)):
        takes = _arguments(path)
        near = suggest(found[1], takes)
        return f"{where}{owner} has no argument {found[1]!r}; {near}It takes {', '.join(takes) or 'none'}"
    if found := re.search(r"Parameter '(\w+)' from '[\w.]*?(\w+)\.__init__' does not specify a type", text):
        return f"{where}a recipe needs to know the types of arguments, and that of {found[1]!r} of {found[2]} is not said; annotate it"
    if found := re.search(r"arguments are required: ([\w, .]+)|Key [\"']?([\w.]+)[\"']? is required", text):
        return f"{where}{owner} needs {found[1] or found[2]}" if owner else f"{found[1] or found[2]} must be given"
    return None


def _wrong_value(text: str, where: str) -> str | None:
    """A name that is no class, or a value of another type."""
    values = re.findall(r"(?:Given|Got) value: (.+)", text)
    wanted = re.findall(r"Expected an? (<class '[\w.]+'>|List|list|sequence|dict)", text)
    if values and re.search(r"Not a valid subclass of \w+\. Got value: [^\w'\"{]", text):  # a list, or nothing at all
        example = f"as in {where}{{Name: {{argument: value}}}}"
        return f"{where}{values[0].strip()} was given where a class with its arguments is expected, {example}"
    unknown = re.search(r"Expected a dot import path string: (\S+)|Import path ([\w.]+) does not", text)
    if unknown and not wanted:
        name = unknown[1] or unknown[2]
        near = suggest(name.rpartition(".")[2], sorted(catalog.class_names()))
        own = "or name the module of a class of your own with --trust"
        return f"{where}there is no {name!r} that fits here; {near}See `gibbsian list`, {own}"
    if values and wanted and not _reasons(text):
        kinds = dict.fromkeys(w.removeprefix("<class '").removesuffix("'>") for w in wanted)
        named = " or ".join(kinds).replace("NoneType", "nothing")
        return f"{where}{values[0].strip()!r} was given where {named} is expected"
    return None


def _reasons(text: str) -> list[str]:
    return re.findall(r"- (?!Import path|Expected|Problem)(.+)", text)


def _arguments(path: str) -> list[str]:
    try:
        cls = catalog.find_class(path)
    except ArgumentError:
        return []
    taken: list[str] = []
    for name, parameter in inspect.signature(cls).parameters.items():
        gathered = get_args(parameter.annotation) if parameter.kind is parameter.VAR_KEYWORD else ()  # Unpack[Options]
        taken += get_type_hints(gathered[0]) if gathered else [name]
    return [name for name in taken if name != "generator"]
