"""Check the gallery: every script runs, is short, and makes one picture with labelled axes."""

import ast
import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "docs" / "gallery").glob("plot_*.py"))
IMAGE = re.compile(r"\]\(([^)\s]*images/plot_[^)\s]*)\)")


def name(script):
    return script.stem


def shown():
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [page.parent / link for page in pages for link in IMAGE.findall(page.read_text("utf-8"))]


@pytest.fixture
def figures(monkeypatch, tmp_path):
    """Return the figures that a script leaves open, without a window."""
    plt.close("all")  # what others left open
    before = plt.get_backend()
    plt.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    yield lambda: [plt.figure(number) for number in plt.get_fignums()]
    plt.close("all")
    plt.switch_backend(before)


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_scripts_make_one_picture(script, figures):
    runpy.run_path(str(script))
    (figure,) = figures()
    figure.canvas.draw()
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    assert all(x for x, _ in labels)
    assert labels[0][1]  # axes beside it may share it


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_scripts_are_short_and_have_a_title(script):
    text = script.read_text("utf-8")
    assert len(text.splitlines()) <= 60
    title, line, empty, *prose = ast.get_docstring(ast.parse(text)).splitlines()
    assert title
    assert line == "=" * len(title)
    assert not empty
    assert prose


def test_pictures_on_pages_come_from_scripts():
    pictures = shown()
    assert pictures  # or the pattern no longer finds them
    assert {picture.stem for picture in pictures} <= {script.stem for script in SCRIPTS}
    kept = (ROOT / "docs" / "images").glob("plot_*.png")
    assert {picture.resolve() for picture in pictures} == set(kept)
