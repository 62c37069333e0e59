"""The lab as one HTML file that opens from the disk: style, scripts and models put inside.

Modules of the page import by name from each other (`import { a, b as c } from "./x.js"`) and export declarations
(`export function`, `export class`, `export const`). Each becomes a function that is called once and returns its exports, after
those that it imports; so the file needs no module loader, which browsers refuse on the disk.
"""

import json
import re
from pathlib import Path

from gibbsian.app.lab.serve import page

_IMPORT = re.compile(r'^import\s*\{([^}]*)\}\s*from\s*"([^"]+)";\s*$', re.MULTILINE)
_EXPORT = re.compile(r"^export\s+((?:async\s+)?function\*?|class|const)\s+(\w+)", re.MULTILINE)
_OTHER = re.compile(r"^\s*(import\b(?!\.meta|\()|export\b).*$", re.MULTILINE)


def bundle(folder: Path | None = None) -> str:
    """The page as one document.

    >>> text = bundle()
    >>> "style.css" in text, "</html>" in text, "main.js" in text
    (False, True, False)
    """
    folder = folder or page()
    html = (folder / "index.html").read_text(encoding="utf-8")
    style = (folder / "style.css").read_text(encoding="utf-8")
    models = {path.name: json.loads(path.read_text("utf-8")) for path in sorted((folder / "models").glob("*.json"))}
    data = json.dumps(models, separators=(",", ":")).replace("<", "\\u003c")
    scripts = f'<script type="application/json" id="models">{data}</script>\n<script>\n"use strict";\n{_script(folder)}</script>'
    html = _once(html, r'<link rel="stylesheet" href="style.css"\s*/?>', f"<style>\n{style}</style>")
    return _once(html, r'<script type="module" src="main.js"></script>', scripts)


def _once(text: str, pattern: str, new: str) -> str:
    found = re.findall(pattern, text)
    if len(found) != 1:
        raise ValueError(f"index.html has {len(found)} places like {pattern}, expected one")
    return re.sub(pattern, lambda _: new, text)


def _script(folder: Path) -> str:
    """All modules that main.js leads to, each after those that it imports."""
    done: dict[Path, str] = {}

    def visit(path: Path, trail: tuple[Path, ...]) -> None:
        if path in trail:
            raise ValueError(f"{path.name} imports itself by way of {', '.join(p.name for p in trail)}")
        if path in done:
            return
        source = path.read_text(encoding="utf-8")
        for _, where in _IMPORT.findall(source):
            visit((path.parent / where).resolve(), (*trail, path))
        done[path] = _wrapped(path, source, folder)

    visit((folder / "main.js").resolve(), ())
    return "\n".join(done.values()).replace("</script", "<\\/script")


def _wrapped(path: Path, source: str, folder: Path) -> str:
    """A module as a constant that holds its exports."""

    def name(of: Path) -> str:
        return "$" + re.sub(r"\W", "_", str(of.relative_to(folder.resolve()).with_suffix("")))

    def taken(match: re.Match[str]) -> str:
        names = re.sub(r"\s+as\s+", ": ", match[1].strip().rstrip(","))
        return f"const {{ {names} }} = {name((path.parent / match[2]).resolve())};"

    body = _EXPORT.sub(r"\1 \2", _IMPORT.sub(taken, source))
    other = _OTHER.search(body)
    if other:
        raise ValueError(
            f"{path.name}: {other[0].strip()!r} is a form of import or export that is not put into one file"
        )
    exports = ", ".join(found for _, found in _EXPORT.findall(source))
    return f"const {name(path)} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"
