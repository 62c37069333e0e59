"""Chapters and how-to pages as notebooks to download: what MyST writes in directives is put into plain Markdown."""

import re
from pathlib import Path
from typing import Any

import jupytext
from sphinx.application import Sphinx

FOLDERS = ("course", "howto")
DIRECTIVE = re.compile(r"^(`{3,}|:{3,})\{([\w-]+)\}[ \t]*(.*?)\n(.*?)^\1[ \t]*$", re.M | re.S)
OPTION = re.compile(r"^:[\w-]+:.*\n", re.M)
FRAME = re.compile(r"<iframe[^>]*src=\"([^\"]*)\"[^>]*title=\"([^\"]*)\"[^>]*></iframe>")


def plain(text: str) -> str:
    """Markdown that any notebook shows: directives as bold titles, frames as links, links to pages of the site by their text."""

    def rewritten(found: re.Match[str]) -> str:
        kind, title, body = found[2], found[3], OPTION.sub("", found[4]).strip()
        if kind == "math":
            return f"$$\n{body}\n$$"
        if kind in {"figure", "image"}:
            return f"*{body}*" if body else ""
        if kind in {"toctree", "raw", "bibliography"}:
            return ""
        return f"**{title or kind.capitalize()}**\n\n{body}"

    for _ in range(3):  # directives in directives
        text = DIRECTIVE.sub(rewritten, text)
    text = FRAME.sub(
        lambda f: f"*{f[2]}: open `gibbsian lab '{f[1].partition('#')[2].replace('&embed=1', '')}'`.*", text
    )
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


def write(app: Sphinx) -> None:
    """Notebooks beside the pages, under notebooks/ of the site."""
    docs = Path(app.srcdir)
    for page in notebooks_of(docs):
        target = docs / "_extra" / "notebooks" / f"{page.stem}.ipynb"
        if target.exists() and target.stat().st_mtime > page.stat().st_mtime:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        book = jupytext.read(page, fmt="md:myst")
        for number, cell in enumerate(book.cells):
            cell["id"] = f"cell-{number}"
            if cell.cell_type == "markdown":
                cell.source = plain(cell.source)
        jupytext.write(book, target, fmt="ipynb")


def notebooks_of(docs: Path) -> list[Path]:
    """Pages that are notebooks: those with a kernel."""
    return [
        page
        for folder in FOLDERS
        for page in sorted((docs / folder).glob("*.md"))
        if "kernelspec:" in page.read_text()[:600]
    ]


def link(app: Sphinx, name: str, source: list[str]) -> None:
    """A line under the title that leads to the notebook."""
    folder, _, stem = name.rpartition("/")
    if folder in FOLDERS and "kernelspec:" in source[0][:600]:
        line = f'<p class="download"><a href="../notebooks/{stem}.ipynb" download>Download as a notebook</a></p>'
        source[0] = re.sub(r"^(# .*)$", rf"\1\n\n{line}", source[0], count=1, flags=re.M)


def setup(app: Sphinx) -> dict[str, Any]:
    """Write them first, and link to them."""
    app.connect("builder-inited", write)
    app.connect("source-read", link)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
