"""How the site is built: `make docs` writes it to docs/_build/html. Nothing of a page comes from the network."""

import os
import re
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

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "katex",
    "reference",
    "gallery",
    "notebooks",
    "llms",
    "light",
]
exclude_patterns = ["_build", "_ext", "_static", "_extra", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]
nitpicky = False

# an attribute of several classes, named alone; styles that were made lighter by the build before
suppress_warnings = ["ref.python", "misc.copy_overwrite"]

# GIBBSIAN_DOCS_PAGES names a few pages, as the test suite builds them; links to the others then lead nowhere.
if few := os.environ.get("GIBBSIAN_DOCS_PAGES", "").split():
    include_patterns = ["index.md", "*/index.md", *(f"{page}.*" for page in few)]
    suppress_warnings += ["toc.excluded", "toc.not_readable", "toc.not_included", "myst.xref_missing"]

# The reference: signatures with short names, one argument a line where they are long.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries = False

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
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_markdown_format = "myst"
nb_render_image_options = {"align": "center"}
nb_execution_in_temp = True

# kernels say at their start that sockets of this machine are not encrypted; errors are enough
settings = HERE / "_build" / "ipython" / "profile_default" / "ipython_kernel_config.py"
settings.parent.mkdir(parents=True, exist_ok=True)
settings.write_text('c.IPKernelApp.log_level = "ERROR"\n')
os.environ.setdefault("IPYTHONDIR", str(settings.parents[1]))

html_theme = "pydata_sphinx_theme"
html_title = "gibbsian"
html_math_renderer = "katex"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_extra"]
html_sidebars = {page: [] for page in ("index", "choose", "benchmarks", "gallery/index", "genindex", "search")}
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "search_as_you_type": False,
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_favicon = "_static/favicon.svg"
html_logo = "_static/favicon.svg"
html_context = {"default_mode": "auto"}


def copy_lab() -> None:
    """The lab as the package ships it, under lab/ of the site."""
    target = HERE / "_extra" / "lab"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "src/gibbsian/app/lab/page", target)


def fill_lists(app: Sphinx, name: str, source: list[str]) -> None:
    """Lists of pages that others write: `(rest)` stands for those that no list names yet, `(chapters)` for the course."""
    listed = "".join(page.read_text() for page in [HERE / "index.md", *HERE.glob("[a-z]*/index.md")])
    if "(rest)" in source[0]:
        folder = name.rpartition("/")[0]
        there = (
            sorted(p.stem for p in (HERE / "api").glob("*.rst"))
            if folder == "api"
            else sorted(p.stem for p in HERE.glob("*.md"))
        )
        rest = [page for page in there if page != "index" and not re.search(rf"^(\.\./)?{page}$", listed, re.M)]
        source[0] = source[0].replace("(rest)", "\n".join(page if folder == "api" else f"../{page}" for page in rest))
    if "(chapters)" in source[0]:
        chapters = sorted(p.stem for p in (HERE / "course").glob("*.md") if p.stem[0].isdigit())
        source[0] = source[0].replace("(chapters)", "\n".join(chapters))


def setup(app: Sphinx) -> None:
    """What must lie there before the pages are read."""
    copy_lab()
    app.connect("source-read", fill_lists)
