"""Messages about packages that are not installed: the command that they name works."""

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

import clipsilon as cs
from command_line import run

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


@pytest.fixture
def without_starlette(monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    for package, name in (("clipsilon._core", "web"), ("clipsilon.live", "service")):
        monkeypatch.delitem(sys.modules, f"{package}.{name}", raising=False)
        monkeypatch.delattr(importlib.import_module(package), name, raising=False)  # `from … import` looks there first


@pytest.mark.usefixtures("without_starlette")
def test_a_service_without_its_extra_names_it():
    with pytest.raises(ImportError, match=r"^clipsilon\.live\.service needs .*pip install 'clipsilon\[serve\]'\.$"):
        importlib.import_module("clipsilon.live.service")


@pytest.mark.usefixtures("without_starlette")
def test_a_command_without_its_extra_names_it(tmp_path):
    about = "--dimension 1 --loss logistic --epsilon 1 --delta 1e-6 --horizon 100"
    done = run("live", tmp_path / "stream.db", *about.split())
    message = "Error: live needs starlette and uvicorn: run pip install 'clipsilon[serve]'.\n"
    assert (done.exit_code, done.output, [*tmp_path.iterdir()]) == (1, message, [])


POSTGRES = "postgresql://localhost/people"
LOGISTIC = cs.losses.Logistic()


@pytest.mark.parametrize(
    "call",
    [
        lambda: cs.live.Stream(POSTGRES, dimension=1, loss=LOGISTIC, epsilon=1.0, delta=1e-6, horizon=100),
        lambda: cs.local.Server(POSTGRES, start=[0.0], step=cs.schedules.Constant(1.0)),
    ],
)
def test_a_postgresql_database_without_its_extra_names_it(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ValueError, match=r"^PostgreSQL needs psycopg: run pip install 'clipsilon\[postgres\]'\.$"):
        call()


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
