"""Equations by a copy of KaTeX that lies beside the pages: read without a network, loaded only where there are equations."""

from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Leave TeX in a span; the page's script draws it."""
    self.body.append(f'<span class="math inline">{escape(node.astext())}</span>')
    raise nodes.SkipNode


def visit_math_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Leave TeX in a block, with its number and a link to it."""
    self.body.append(self.starttag(node, "div", CLASS="math-block"))
    self.body.append(f'<div class="math display">{escape(node.astext())}</div>')
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, "Permalink to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def load_where_needed(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Ask for the scripts on pages with equations."""
    if tree is not None and any(isinstance(node, nodes.math | nodes.math_block) for node in tree.findall()):
        app.add_css_file("katex/katex.min.css")
        app.add_js_file("katex/katex.min.js", loading_method="defer")
        app.add_js_file("equations.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer `katex`."""
    app.add_html_math_renderer("katex", inline_renderers=(visit_math, None), block_renderers=(visit_math_block, None))
    app.connect("html-page-context", load_where_needed)
    return {"version": Path(__file__).stem, "parallel_read_safe": True, "parallel_write_safe": True}
