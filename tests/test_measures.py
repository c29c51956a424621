"""The figures of `make measures`: right on a small tree, and within limits on this one."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tools" / "measures.py"

# No figure of this tree may exceed these.
LIMITS = {
    "entries at the top level": 16,
    "lines per function, max": 60,
    "share of Any among parameters, %": 5,
    "public functions without parameter section": 0,
    "public functions without docstring": 0,
}

REPEATED = "".join(f"    total = total + values[{i}] * {i}\n" for i in range(6))
FILES = {
    "README.md": "Three short words.\n",
    "docs/page.md": "# A title\n\nand `code`\n",
    "docs/proofs.md": "Trivial.\n",
    "docs/_build/page.md": "not counted\n",
    "src/pack/__init__.py": "",
    "src/pack/version.py": "",
    "src/pack/py.typed": "",
    "src/pack/_hidden.py": "def f(a: Any, b: Any, c: Any): ...\n",
    "src/pack/work/__init__.py": "",
    "src/pack/work/public.py": f'''"""A module."""

from typing import Any, NamedTuple

import click


def bare(a: int, b: Any | None, c: "Any", *, d: dict[str, Any]):
    """Do it.

    In two paragraphs.
    """
    def nested(x, y, z): ...
    return nested


def documented(a, b, *rest, **others):
    """Do it.

    Parameters
    ----------
    a, b : int
        Numbers.
    """


def silent(a, b): ...


def _(a, b, c): ...


@click.command()
def command(a: Any, b: Any, c: Any): ...


class Point(NamedTuple):
    """A point."""

    x: float
    y: float
    z: float

    def move(self, by: float, along: Any) -> "Point":
        """Move it."""

    def __add__(self, other: Any): ...


class Machine:
    """A machine.

    Parameters
    ----------
    a, b, c : int
        Numbers.
    """

    def __init__(self, a: int, b: int, c: int): ...

    @staticmethod
    def build(a: int, b: int, c: int):
        """Build one."""


class _Private:
    def method(self, a: Any, b: Any, c: Any): ...


def sum_one(values):
    """Sum."""
    total = 0
{REPEATED}    return total
''',
    "src/pack/_sums.py": f"def sum_two(values):\n    total = 1\n{REPEATED}",
}


@pytest.fixture(scope="module")
def measures():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield importlib.import_module("measures")


@pytest.fixture
def tree(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path


def test_figures_of_a_small_tree(measures, tree):
    figures, places = measures.measure(tree)
    assert places == {
        "parameters of public functions that are Any": [
            "work/public.py:bare(b)",
            "work/public.py:bare(c)",
            "work/public.py:Point.move(along)",
        ],
        "public functions without parameter section": [
            "work/public.py:bare",
            "work/public.py:Point",
            "work/public.py:Machine.build",
        ],
        "public functions without docstring": ["work/public.py:silent"],
        "duplicates": ["_sums.py:3 = work/public.py:73"],
    }
    assert {name: len(found) for name, found in places.items()}.items() <= figures.items()
    expected = {
        "entries at the top level": 3,
        "files": 6,
        "lines per file, max": 79,
        "functions": 14,
        "lines per function, median": 1,
        "lines per function, max": 9,
        "arguments per function, p95": 4,
        "arguments per function, max": 4,
        "public functions": 8,
        "share of Any among parameters, %": round(300 / 15, 1),
        "words of documentation without proofs": 3 + 5,
        "words of proofs": 1,
    }
    assert {name: figures[name] for name in expected} == expected


def test_a_duplicate_is_counted_once_and_not_where_it_overlaps_itself(measures, tree):
    (tree / "src/pack/more.py").write_text("x = 1\n" * 11, "utf-8")
    assert not [pair for pair in measures.measure(tree)[1]["duplicates"] if "more.py" in pair]
    (tree / "src/pack/more.py").write_text(
        f"def f(values, total):\n{REPEATED}    other = 1\n    return total\n", "utf-8"
    )
    assert measures.measure(tree)[1]["duplicates"] == [
        "_sums.py:3 = more.py:2",
        "_sums.py:3 = work/public.py:73",
        "more.py:2 = work/public.py:73",
    ]


def test_percentile(measures):
    assert measures.percentile_95(list(range(1, 21))) == 19
    assert measures.percentile_95(list(range(1, 22))) == 20
    assert measures.percentile_95([7]) == 7


def test_the_command_prints_a_table_or_json(tree):
    def printed(*options):
        command = [sys.executable, str(SCRIPT), str(tree), *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    figures = json.loads(printed("--json"))
    assert [f"{name:<50}{value:>10,}" for name, value in figures.items()] == printed().splitlines()
    assert "\n  work/public.py:silent\n" in printed("--list")
    assert json.loads(printed("--json", "--list"))["places"]["public functions without docstring"]


def test_two_packages_are_refused(measures, tree):
    (tree / "src/other").mkdir()
    (tree / "src/other/__init__.py").touch()
    with pytest.raises(SystemExit, match="must hold one package, got 2"):
        measures.measure(tree)


def test_this_tree_keeps_its_limits(measures):
    figures, places = measures.measure(ROOT)
    exceeded = {name: figures[name] for name, limit in LIMITS.items() if figures[name] > limit}
    assert not exceeded, {name: places.get(name) for name in exceeded}
