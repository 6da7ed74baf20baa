"""Sphinx configuration: ``python -m sphinx -W --keep-going -b html docs docs/_build/html``."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import npformer

HERE = Path(__file__).parent
MATHJAX = "3.2.2"

project = "npformer"
author = "npformer contributors"
project_copyright = "2026, npformer contributors"
release = version = npformer.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "**/.ipynb_checkpoints", "examples/*"]
default_role = "autolink"  # a link where the name is documented, plain text elsewhere
nitpicky = False

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings give shapes, which say more
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = "npformer"
html_static_path = ["_static", "_build/mathjax"]
html_css_files = ["npformer.css"]
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {page: [] for page in ("index", "notation", "names", "errata")}
mathjax_path = "tex-svg.js"


def fetch_mathjax() -> None:
    """Put MathJax beside the pages, from its npm package, so that no page needs a network."""
    folder = HERE / "_build" / "mathjax"
    script = folder / mathjax_path
    if script.exists():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("the pages take MathJax from its npm package, but npm is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    packed = subprocess.run(
        [npm, "pack", "--silent", f"mathjax@{MATHJAX}"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()[-1]
    with tarfile.open(folder / packed) as archive:
        member = archive.extractfile(f"package/es5/{mathjax_path}")
        assert member is not None
        script.write_bytes(member.read())
    (folder / packed).unlink()


fetch_mathjax()
