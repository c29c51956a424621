"""What is public is documented: every name has a docstring and a place on an API page, and every page is in a toctree."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import clipsilon as cs

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OPTIONAL = ["torch"] if find_spec("torch") and find_spec("opacus") else []
if OPTIONAL and find_spec("accelerate") and find_spec("lightning"):
    OPTIONAL += ["torch.trainers.huggingface", "torch.trainers.lightning"]
LEFT_OUT = {"torch", "trainers"} if not OPTIONAL else {"trainers"} if len(OPTIONAL) == 1 else set()
PAGES = [page for page in sorted((DOCS / "api").glob("*.md")) if page.stem not in LEFT_OUT]
# Modules that are public without `import clipsilon` loading them, or without being listed there.
BESIDE = ["_core.parts", "estimators", "report.charts", "reproduce", *OPTIONAL]
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LISTED = re.compile(r"^   ~(clipsilon\.[\w.]+)$|^\.\. py:data:: (clipsilon\.[\w.]+)$", re.MULTILINE)
WHOLE = re.compile(r"^\.\. documented:: (clipsilon[\w.]*)$", re.MULTILINE)
DIRECTIVE = re.compile(r"^\.\. auto\w+:: (clipsilon[\w.]*)", re.MULTILINE)


def submodules(module):
    return [value for value in (getattr(module, name) for name in module.__all__) if isinstance(value, ModuleType)]


def modules():
    below = [*submodules(cs), *(import_module(f"clipsilon.{name}") for name in BESIDE)]
    return [cs, *below, *submodules(cs.theory)]


def public():
    """Every public name, with what it names."""
    named = {f"{module.__name__}.{name}": getattr(module, name) for module in modules() for name in module.__all__}
    return {name: value for name, value in named.items() if not isinstance(value, ModuleType)}


def resolved(name):
    """What a dotted name leads to; attributes of packages come before modules of the same name."""
    value = import_module("clipsilon")
    path = "clipsilon"
    for part in name.split(".")[1:]:
        path += f".{part}"
        value = getattr(value, part) if hasattr(value, part) else import_module(path)
    return value


def listed(page):
    """The names on a page: those in its lists, and what is public of the modules that it documents as a whole."""
    text = page.read_text("utf-8")
    names = [first or second for first, second in LISTED.findall(text)]
    return names + [f"{module}.{name}" for module in WHOLE.findall(text) for name in import_module(module).__all__]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_a_public_module_says_what_is_public(module):
    assert len(set(module.__all__)) == len(module.__all__)
    assert not [name for name in module.__all__ if not hasattr(module, name)]
    classes = {
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert classes <= set(module.__all__)


@pytest.mark.parametrize("name", [name for name, value in public().items() if callable(value)])
def test_a_public_name_has_a_docstring_that_begins_with_a_sentence(name):
    value = public()[name]
    text = value.__doc__ or ""
    assert not text.startswith(f"{name.rsplit('.', 1)[1]}(")  # a NamedTuple's own
    assert re.match(r".{8,}?[.:](\s|$)", text.split("\n\n")[0], re.DOTALL), text


def test_dir_lists_what_is_imported_when_it_is_used():
    assert {"estimators", "live", "torch", "private_scores", "Problem", *cs.__all__} <= set(dir(cs))
    assert set(cs.tables.__all__) <= set(dir(cs.tables))
    assert {"estimate", "explore", "EstimatedResponse", "Slow"} <= set(dir(cs.responses))


def test_every_public_name_is_on_an_api_page():
    shown = {id(resolved(name)) for page in PAGES for name in listed(page)}
    assert not [name for name, value in public().items() if id(value) not in shown]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_on_an_api_page_exists_once(page):
    names = listed(page)
    assert len(set(names)) == len(names)
    for name in [*names, *DIRECTIVE.findall(page.read_text("utf-8"))]:
        resolved(name)


def entries(page):
    """The pages in the toctrees of a page."""
    blocks = TOCTREE.findall(page.read_text("utf-8"))
    lines = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    return [(page.parent / f"{line}.md").relative_to(DOCS).as_posix() for line in lines]


def test_every_page_is_in_one_toctree():
    pages = [
        page
        for page in DOCS.rglob("*.md")
        if page.relative_to(DOCS).parts[0] not in {"_build", "gallery", "gallery_pages"}
    ]
    linked = [entry for page in pages for entry in entries(page)]
    drawn = "gallery_pages/index.md"  # made when the site is built
    assert sorted(linked) == sorted(
        [drawn, *(page.relative_to(DOCS).as_posix() for page in pages if page != DOCS / "index.md")]
    )


class Sources(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        loaded = ["src", "srcset", "poster", "data", *(["href"] if tag in {"link", "image", "use"} else [])]
        self.found += [given[name] for name in loaded if given.get(name)]


def foreign(text):
    """The addresses on other hosts that a page loads."""
    parser = Sources()
    parser.feed(text)
    styles = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")\s;]+)", text)
    return [address for address in [*parser.found, *styles] if re.search(r"(?:^|[\s,])(?:[a-z]+:)?//", address)]


def test_foreign_sources_are_found():
    page = """<script src="https://a.org/b.js"></script><link href="//c.org/d.css"><img src="e.png"><a href="https://f.org">
    <img srcset="g.png 1x, https://h.org/i.png 2x"><style>@import "https://j.org"; b {background: url(https://k.org)}</style>
    <img src="data:image/svg+xml;base64,AA//AA">"""
    assert foreign(page) == [
        "https://a.org/b.js",
        "//c.org/d.css",
        "g.png 1x, https://h.org/i.png 2x",
        "https://j.org",
        "https://k.org",
    ]


@pytest.mark.verify
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    for package in ("furo", "myst_parser", "sphinx", "sphinx_copybutton", "sphinx_gallery"):
        pytest.importorskip(package)
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("_build", "gallery_pages"))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", "site"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = [file for file in (tmp_path / "site").rglob("*") if file.suffix in {".css", ".html"}]
    assert len(files) > len(PAGES)
    assert not {file.name: found for file in files if (found := foreign(file.read_text("utf-8")))}
    notation = (tmp_path / "site" / "notation.html").read_text("utf-8")
    assert "θ<sub>PS</sub>" in notation
    assert "residual_cap" in notation
