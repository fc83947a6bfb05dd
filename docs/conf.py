"""The documentation site: `make docs` builds it into build/docs, and every warning is an error."""

import os
import re
import sys
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import fltrust

project = "fltrust"
version = release = fltrust.__version__
author = copyright = "the fltrust authors"
extensions = [
    *("myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"),
    *("docstrings", "registry_pages", "reference_pages", "measured"),
]
exclude_patterns = ["_ext"]
default_role = "code"  # `name` in a docstring
highlight_language = "none"

myst_heading_anchors = 3

autodoc_typehints = "none"  # docstrings name the types
autodoc_member_order = "bysource"
napoleon_numpy_docstring, napoleon_google_docstring = True, False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "fltrust"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
html_show_search_summary = False  # a page opened from disk may not read the others
copybutton_exclude = ".linenos, .gp, .go"

_ADDRESS = r"""["']?((?:https?:)?//[^"'> ]+)"""
_LOADED = re.compile(rf"<(?:script|img|iframe|source)[^>]*\ssrc={_ADDRESS}|<link[^>]*rel=[\"']?stylesheet[^>]*href={_ADDRESS}")


def nothing_comes_from_the_network(application: Sphinx, problem: Exception | None) -> None:
    """The site must work from a disk, without a network."""
    if problem is None and application.builder.name == "html":
        for page in Path(application.outdir).rglob("*.html"):
            if found := _LOADED.search(page.read_text()):
                raise ExtensionError(f"{page} loads {found[1] or found[2]} from the network")


def setup(application: Sphinx) -> None:
    application.connect("build-finished", nothing_comes_from_the_network)
