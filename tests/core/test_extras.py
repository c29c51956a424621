"""Messages about packages that are not installed: the command that they name works."""

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

import clipsilon as cs

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])


def calls():
    """Return the file and the last argument of each call of `needs_package`."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "needs_package":
                yield path.name, node.args[-1]


def test_every_message_names_an_extra_that_exists():
    named = {(file, ast.literal_eval(node)) for file, node in calls() if isinstance(node, ast.Constant)}
    extras = {(file, extra) for file, text in named for extra in re.findall(r"^clipsilon\[(.+)\]$", text)}
    assert {"torch", "serve", "parquet"} <= {extra for _, extra in extras} <= EXTRAS
    assert {text for _, text in named} - {f"clipsilon[{extra}]" for _, extra in extras} == {"pandas"}


def test_every_extra_of_an_experiment_exists():
    from clipsilon.reproduce.runner import catalogue

    assert {"torch", "language", "serve"} == {each.extra for each in catalogue() if each.extra} <= EXTRAS


@pytest.mark.parametrize("name", ["live"])
def test_a_service_without_its_extra_names_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.delitem(sys.modules, f"clipsilon.{name}.service", raising=False)
    with pytest.raises(ImportError, match=rf"^clipsilon\.{name}\.service needs .*pip install 'clipsilon\[serve\]'\.$"):
        importlib.import_module(f"clipsilon.{name}.service")


def test_no_other_spelling():
    texts = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]
    assert not [text for text in texts if "install clipsilon with" in text]
    assert sum(text.count("pip install '") for text in texts) == 2  # in the function and in its example


def test_a_data_frame_needs_pandas(monkeypatch):
    problem = cs.Problem([0.0, 1.0], loss=cs.losses.Quadratic())
    trace = cs.run(problem, cs.SGD(cs.schedules.Constant(0.1)), steps=1, seed=0)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^to_frame needs pandas: run pip install 'pandas'\.$"):
        trace.to_frame()
