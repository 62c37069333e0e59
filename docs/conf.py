"""How the site is built: `make docs` writes it to docs/_build/html. Nothing of a page comes from the network."""

import os
import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "_ext"), str(ROOT / "src")]

import gibbsian  # noqa: E402

project = "gibbsian"
author = "the authors of gibbsian"
copyright = author
version = release = gibbsian.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design", "katex"]
exclude_patterns = ["_build", "_ext", "_static", "_extra", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]
nitpicky = False

# Text: equations between dollars, definition lists, figures with captions; headings down to the third level have addresses.
myst_enable_extensions = [
    "amsmath",
    "attrs_block",
    "attrs_inline",
    "colon_fence",
    "deflist",
    "dollarmath",
    "substitution",
]
myst_heading_anchors = 4
myst_links_external_new_tab = False
myst_update_mathjax = False

# Chapters run when the site is built; what has not changed is taken from the cache beside the site.
nb_execution_mode = os.environ.get("GIBBSIAN_DOCS_RUN", "cache")
nb_execution_timeout = 240
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_image_options = {"align": "center"}
nb_execution_excludepatterns: list[str] = []

html_theme = "pydata_sphinx_theme"
html_title = "gibbsian"
html_math_renderer = "katex"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_extra"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}


def copy_lab() -> None:
    """The lab as the package ships it, under lab/ of the site."""
    target = HERE / "_extra" / "lab"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "src/gibbsian/app/lab/page", target)


def setup(app: Sphinx) -> None:
    """What must lie there before the pages are read."""
    copy_lab()
