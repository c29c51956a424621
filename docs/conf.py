"""Configure the documentation site, which `make docs` builds and which loads nothing from other hosts."""

import re
import sys
from importlib import metadata
from pathlib import Path

from sphinx.ext import autosummary

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "clipsilon"
author = "The clipsilon developers"
project_copyright = author
release = metadata.version("clipsilon")

extensions = [
    "documented",
    "indices",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery", "gallery_pages/sg_execution_times.rst"]
suppress_warnings = ["config.cache"]  # the gallery's settings hold functions

# Pages are Markdown that code hosts display as well.
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

highlight_language = "text"  # blocks that name no language are output

# Docstrings: sections as in NumPy's, and `names` in single quotes are code.
default_role = "code"
napoleon_google_docstring = False
napoleon_custom_sections = [
    ("Parameters", "params_style"),  # several names in a line
    ("Attributes", "params_style"),
    "Formal guarantee",
]
autosummary_generate = False
autosummary.WELL_KNOWN_ABBREVIATIONS += ("App.", "eq.")  # where a sentence goes on
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Array": "Array", "Indices": "Indices"}
autoclass_content = "class"
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

# References into clipsilon must resolve. Those into other packages are not checked: their inventories would have to be
# fetched.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!clipsilon\.).*"), (r"ref\.|std:.*", r".*")]
nitpick_ignore = [
    ("py:class", f"clipsilon.{internal}")
    for internal in (
        *("engine.crowd.Conduct", "engine.progress.Progress", "_core.parts.Class"),
        *("local.server.Accepted", "local.server.Checked", "local.server.Submission", "local.simulation.Budgets"),
        *("privacy.accounting.profiles.Profile", "tables.kinds.ColumnKind", "torch.optimizer.PrivateOptimizer"),
    )
]

html_theme = "furo"
html_title = "clipsilon"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["clipsilon.css"]
pygments_style = "friendly"
pygments_dark_style = "monokai"

# Formulas are drawn by one script that contains all its glyphs: browsers refuse separate fonts on file:// pages.
_SCRIPT = "tex-svg.js"
_carried = metadata.files("sphinx-mathjax-offline") or []
html_static_path += [str(path.locate()) for path in _carried if path.name == _SCRIPT]
mathjax_path = _SCRIPT

copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "gallery_pages",
    "filename_pattern": r"plot_",
    "ignore_pattern": r"^(?!plot_)",
    "within_subsection_order": "FileNameSortKey",
    "run_stale_examples": True,  # a script that has not changed may run on sources that have
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 60,
    "write_computation_times": False,
    "copyfile_regex": r"",
}


def _skip_bare_field(app, what, name, member, skip, options):
    """Skip undocumented fields of NamedTuples: the signature lists them."""
    bare = (getattr(member, "__doc__", None) or "").startswith("Alias for field number")
    return True if bare and type(member).__name__ == "_tuplegetter" else None


def _escape_bars(app, what, name, obj, options, lines):
    """Escape the bars of |x| in docstrings, where reStructuredText would look for a substitution."""
    prose = True
    for k, line in enumerate(lines):
        prose = not line.startswith(">>>") and (prose or not line)
        if prose and not line.startswith("    "):
            lines[k] = re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or r"\|", line)


def _adapt_links(app, docname, source):
    """Point links to files outside this folder to the pages that include them, and show titles for file names."""
    for file, page in {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}.items():
        source[0] = re.sub(rf"(\]\((?:\.\./)*)\.\./{file}", rf"\g<1>{page}", source[0])
    source[0] = re.sub(r"\[[\w-]+\.md\]\(", "[](", source[0])


def setup(app):
    """Connect the functions above; called by Sphinx."""
    app.connect("autodoc-process-docstring", _escape_bars, priority=900)
    app.connect("source-read", _adapt_links)
    app.connect("autodoc-skip-member", _skip_bare_field)
