"""llms.txt: one plain page that says what every page of the site holds, for programs that read it."""

import re
from pathlib import Path
from textwrap import shorten
from typing import Any

from sphinx.application import Sphinx


def write(app: Sphinx, error: Exception | None) -> None:
    """A line for each page: its title, its address, and its first paragraph."""
    if error or app.builder.name != "html":
        return
    lines = [
        "# gibbsian",
        "",
        "> Energy-based models in PyTorch: define an energy, train it by any principle, sample it, and know its likelihood.",
        "",
    ]
    titles = {page: title.astext() for page, title in app.env.titles.items()}
    sections = {
        "start": "Start",
        "howto": "How-to",
        "course": "Course",
        "gallery": "Examples",
        "api": "Reference",
        "more": "More",
        "": "Pages",
    }
    for folder, section in sections.items():
        pages = sorted(
            page
            for page in titles
            if ("/" in page and page.split("/")[0] == folder) or (not folder and "/" not in page)
        )
        lines += [f"## {section}", "", *(f"- [{titles[page]}]({page}.html): {first(app, page)}" for page in pages), ""]
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines))


def first(app: Sphinx, page: str) -> str:
    """The first paragraph of a page."""
    for node in app.env.get_doctree(page).findall():
        if node.tagname == "paragraph" and node.parent.tagname in {"section", "document"}:
            return shorten(re.sub(r"<[^>]+>", "", node.astext()), 300, placeholder=" …")
    return ""


def setup(app: Sphinx) -> dict[str, Any]:
    """When the pages are written."""
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
