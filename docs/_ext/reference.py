"""The reference, written from docstrings: a page a room, with every public name.

Docstrings are plain text with Google's sections: equations stand indented, code between single backticks. Here they become
reStructuredText: equations are set as such, names of the library links, and everything else what it was.
"""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from typeset import typeset

import gibbsian

SECTIONS = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Examples?|Notes?|References?|Warnings?):\s*$")
CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
SPECIAL = re.compile(r"(?<!\\)([*|\\])|(?<=\w)_(?=[\W]|$)")
LETTER = re.compile(
    r"^(\s+\w+: )([A-Za-z])\.(?=\s|$)"
)  # an argument that is a letter of the equation, and no item of a list
ABOUT = {
    "gibbsian": "What is used most, at the top of the package: `import gibbsian as gb`.",
    "sampling": "What `sample` and `warm_up` are made of: traces, statistics, checks.",
    "derivatives": "Scores, traces of Hessians and Taylor series that objectives are made of.",
}


def rooms() -> dict[str, ModuleType]:
    """Public modules by the name of their page."""
    names = [name for name in gibbsian.__all__ if inspect.ismodule(getattr(gibbsian, name))]
    return {"gibbsian": gibbsian} | {name: getattr(gibbsian, name) for name in sorted(names)}


def public(module: ModuleType) -> list[str]:
    """Full names of what a room offers: its `__all__`, or what the files of a room without one define."""
    listed = getattr(module, "__all__", [])
    if listed:
        return [f"{module.__name__}.{name}" for name in listed if not inspect.ismodule(getattr(module, name))]
    files = [
        importlib.import_module(f"{module.__name__}.{found.name}") for found in pkgutil.iter_modules(module.__path__)
    ]
    return [
        f"{file.__name__}.{name}"
        for file in files
        for name, value in vars(file).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", "") == file.__name__
    ]


def find(name: str) -> Any:
    """The object of a full name."""
    home, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(home), attribute)


def homes() -> dict[int, str]:
    """Where an object that several rooms offer is told in full: the room whose files define it, else the first."""
    found: dict[int, str] = {}
    for module in rooms().values():
        for name in public(module):
            value = find(name)
            at_home = str(getattr(value, "__module__", "")).startswith(module.__name__ + ".") and module is not gibbsian
            if id(value) not in found or at_home:
                found[id(value)] = name
    return found


def index() -> dict[str, str]:
    """Full names by every way in which docstrings call them: `RBM`, `models.RBM`, `gb.models.RBM`."""
    found: dict[str, str] = {}
    home = homes()
    for room, module in reversed(rooms().items()):
        for name in public(module):
            short = name.rpartition(".")[2]
            for way in (short, f"{room}.{short}", f"gb.{room}.{short}", name, name.replace("gibbsian.", "gb.", 1)):
                found[way] = home[id(find(name))]
    return found


def directive(name: str) -> str:
    """How a name is documented."""
    value = find(name)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, Exception) else "autoclass"
        options = "   :members:\n   :exclude-members: extra_repr\n   :show-inheritance:\n"
    else:
        kind = "autofunction" if inspect.isroutine(value) else "autodata"
        options = "" if inspect.isroutine(value) else "   :no-value:\n"
    return f".. {kind}:: {name}\n{options}"


def page(room: str, module: ModuleType) -> str:
    """A room: what it is, a table of its names, and each of them in full."""
    title = "gibbsian" if module is gibbsian else module.__name__.removeprefix("gibbsian.").replace("uses.", "")
    names, home = public(module), homes()
    about = ABOUT.get(room) or re.sub(r"\.\s*$", ".", (inspect.getdoc(module) or "").split("\n>>>")[0])
    lines = [f".. _api-{room}:", "", title, "=" * len(title), "", *translated(about.splitlines()), ""]
    lines += [".. list-table::", "   :class: names", "   :widths: 30 70", ""]
    for name in sorted(names, key=lambda name: name.rpartition(".")[2].lower()):
        value = find(name)
        told = inspect.isclass(value) or inspect.isroutine(value)
        text = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ") if told else about_value(value)
        lines.append(f"   * - :py:obj:`{name.rpartition('.')[2]} <{home[id(value)]}>`")
        lines.append(f"     - {translated([re.sub(r'[,:;]$', '.', text)])[0] if told else text}")
    for name in (name for name in names if home[id(find(name))] == name):
        short = name.rpartition(".")[2]
        lines += ["", short, "-" * len(short), "", directive(name)]
    return "\n".join(lines) + "\n"


def about_value(value: Any) -> str:
    """What a constant is: the keys of a table, or the value itself."""
    return f"A table with {', '.join(f'``{key}``' for key in value)}." if isinstance(value, dict) else f"``{value!r}``"


def escaped(text: str, links: dict[str, str]) -> str:
    """Running text in which only backticks mean something: known names become links, other code stays code."""
    pieces = CODE.split(text)
    for number, piece in enumerate(pieces):
        if number % 2:
            piece = piece.strip()
            known = links.get(piece.removesuffix("()"))
            pieces[number] = f":py:obj:`{piece} <{known}>`" if known else f"``{piece}``"
            after = pieces[number + 1]
            if after[:1].isalnum():
                pieces[number + 1] = "\\ " + after
            if pieces[number - 1][-1:].isalnum():
                pieces[number - 1] += "\\ "
        else:
            pieces[number] = SPECIAL.sub(lambda found: "\\" + found.group(0), piece)
    return "".join(pieces)


def translated(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText that Napoleon reads on."""
    links, out, section, equation = LINKS, [], False, False
    paragraph: list[str] = []

    def close() -> None:
        out.extend(escaped("\n".join(paragraph), links).split("\n") if paragraph else [])
        paragraph.clear()

    for number, line in enumerate(lines):
        blank_before = number == 0 or not lines[number - 1].strip()
        if line.startswith(">>>") or (out and out[-1].startswith((">>>", "...")) and line.strip() and not paragraph):
            close()
            out.append(line)  # an example and what it prints
            section = False
            continue
        if out and not paragraph and line.strip() and _in_example(out):
            out.append(line)
            continue
        if SECTIONS.match(line):
            section = True
        elif line.strip() and not line.startswith(" "):
            section = False
        if line.startswith("    ") and not section and (blank_before or equation):
            if not equation:
                close()
                out.extend([".. code-block:: text", "   :class: equation", ""])
            equation = True
            out.append(line)
            continue
        if line.strip():
            equation = False
            paragraph.append(line)
        elif equation:
            out.append("")
        else:
            close()
            out.append("")
    close()
    return with_equations(out)


BLOCK = [".. code-block:: text", "   :class: equation", ""]


def with_equations(lines: list[str]) -> list[str]:
    """Blocks of equations as elements of the page, where they can be set, and what is only a letter as one."""
    out: list[str] = []
    while lines:
        end = len(BLOCK)
        if lines[:end] == BLOCK:
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            element = typeset(lines[len(BLOCK) : end])
            out += [".. raw:: html", "", f"   {element}", ""] if element else lines[:end]
        else:
            end = 1
            out.append(LETTER.sub(r"\1*\2*.", lines[0]))
        lines = lines[end:]
    return out


def _in_example(out: list[str]) -> bool:
    """Whether the block that is being written began with a prompt."""
    for line in reversed(out):
        if not line.strip():
            return False
        if line.startswith(">>>"):
            return True
    return False


LINKS: dict[str, str] = {}


def process(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Translate docstrings of this library before Napoleon sees them."""
    if what == "data":
        lines[:] = [about_value(value), ""]
    elif name.startswith("gibbsian"):
        lines[:] = translated(lines)
        if what in {"attribute", "property"}:  # or Napoleon takes what stands before a colon for a type
            lines.insert(0, "")


def write_pages(app: Sphinx) -> None:
    """Write api/*.rst where they changed."""
    LINKS.update(index())
    folder = Path(app.srcdir) / "api"
    folder.mkdir(exist_ok=True)
    pages = {f"{room}.rst": page(room, module) for room, module in rooms().items()}
    for old in folder.glob("*.rst"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect both."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", process, priority=100)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
