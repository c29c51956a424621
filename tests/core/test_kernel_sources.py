"""The digest of kernels changes with all that they can depend on, and with nothing else."""

import ast
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numba.core import event

import clipsilon as cs
from clipsilon._core import sources
from clipsilon._core.kernel_sources import digest_of, reached
from clipsilon.engine.means import mean_gradient

FILES = {
    "loop.py": """
from package import constants
from package.parts import Part, respond
from package.inner import helper as help_along

LIMIT: int = 3

@kernel
def advance(part: Part, x: Unknown) -> int:
    '''Advance.'''
    return respond(part, x) + help_along(x) + LIMIT  # a comment

def report(x):
    return words(x)

def words(x):
    return constants.TITLE
""",
    "inner/__init__.py": "from package.inner.deep import helper\n",
    "inner/deep.py": """
if fast:
    STEP = 2
else:
    STEP = 1

def helper(x):
    return x * STEP + table()[0]

def table():
    from_elsewhere = make(7)
    return from_elsewhere

def make(number):
    return [number]
""",
    "constants.py": "SHIFT = 1\nSHAPE = 7\nTITLE = 'a'\n",
    "parts.py": """
from package import constants
from package.checks import positive

@traits(shape=constants.SHAPE)
@checked(size=positive)
class Part(NamedTuple):
    size: float

@operation
def respond(part, x): ...

@implements(respond, Part)
def _(part, x):
    return part.size * x + constants.SHIFT

implements(respond, Other)(lambda part, x: 5)
""",
    "checks.py": "def positive(value):\n    return value > 0\n",
}


def digest(**changed):
    return digest_of({name: text.encode() for name, text in {**FILES, **changed}.items()}, "package")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("loop.py", "respond(part, x) +", "respond(part, x) -"),
        ("loop.py", "LIMIT: int = 3", "LIMIT: int = 4"),
        ("loop.py", "@kernel", "@kernel(fast=True)"),
        ("inner/__init__.py", "deep import helper", "deep import table as helper"),
        ("inner/deep.py", "STEP = 1", "STEP = 3"),
        ("inner/deep.py", "make(7)", "make(8)"),
        ("inner/deep.py", "return [number]", "return [-number]"),
        ("constants.py", "SHIFT = 1", "SHIFT = 2"),
        ("constants.py", "SHAPE = 7", "SHAPE = 8"),
        ("parts.py", "part.size * x", "part.size / x"),
        ("parts.py", "size: float", "size: int"),
        ("parts.py", "x: 5", "x: 6"),
    ],
)
def test_an_edit_of_what_is_compiled_changes_the_digest(file, old, new):
    assert FILES[file].count(old) == 1
    assert digest(**{file: FILES[file].replace(old, new)}) != digest()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("loop.py", "words(x)\n", "words(-x)\n"),
        ("loop.py", "Unknown", "Known"),
        ("loop.py", "Advance.", "Go on."),
        ("loop.py", "a comment", "another"),
        ("constants.py", "'a'", "'b'"),
        ("checks.py", "> 0", ">= 0"),
    ],
)
def test_an_edit_of_anything_else_does_not(file, old, new):
    assert old in FILES[file]
    assert digest(**{file: FILES[file].replace(old, new)}) == digest()


class Mine(NamedTuple):
    """A part that is not of the package, so that its kernels are compiled each time."""


@cs.implements(cs.losses.value, Mine)
def _(loss, theta, features, label):
    return 0.0


@cs.implements(cs.losses.gradient, Mine)
def _(loss, theta, features, label, out):
    out[0] = 1.0


def statement_at(file, line):
    """Return the number of the statement that a line of a file belongs to."""
    for number, node in enumerate(ast.parse(sources._FILES[file]).body):
        first = min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))])
        if first <= line <= node.end_lineno:
            return number
    raise AssertionError(f"no statement at line {line} of {file}")


def test_every_function_that_a_kernel_compiles_is_in_the_digest():
    package, compiled = Path(cs.__file__).parent, set()

    class Listener(event.Listener):
        def on_start(self, happening):
            code = happening.data["dispatcher"].py_func.__code__
            if Path(code.co_filename).is_relative_to(package):
                file = Path(code.co_filename).relative_to(package).as_posix()
                compiled.add((file, statement_at(file, code.co_firstlineno)))

        def on_end(self, happening): ...

    with event.install_listener("numba:compile", Listener()):
        problem = cs.Problem(np.ones((2, 1)), np.zeros(2), loss=Mine(), response=cs.responses.LocationShift(0.1))
        assert mean_gradient(problem, np.zeros(1), np.zeros(1), 1)[0] == 1.0
    assert compiled  # what earlier tests have compiled is not compiled again
    assert compiled <= set(reached(sources._FILES, "clipsilon"))


def test_an_edit_of_how_it_is_compiled_changes_the_digest(monkeypatch):
    compute = sources.kernel_digest.__wrapped__
    before = compute()
    monkeypatch.setitem(sources._FILES, "_core/inner_compiler.py", sources._FILES["_core/inner_compiler.py"] + b"\n")
    assert compute() != before
