"""Imports follow the one-way order of docs/architecture.md, and `import clipsilon` loads nothing slow."""

import ast
import re
import subprocess
import sys
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from clipsilon._core import sources
from clipsilon._core.kernel_sources import reached

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "clipsilon"

# A file or folder of src/clipsilon may import from itself and from those before it.
ORDER = [
    *("version", "_core", "datasets"),
    *("problems", "rules", "engine", "analysis", "privacy", "theory", "tables"),
    *("local", "live", "estimators", "torch"),
    *("report", "reproduce", "cli"),
]
# The order within these folders.
INNER_ORDER = {
    "_core": [
        *(
            "kernel_sources",
            "sources",
            "extras",
            "storage",
            "database",
            "sqlite",
            "postgres",
            "databases",
            "http_server",
            "web",
            "other_names",
        ),
        *(
            "checks",
            "grouping",
            "inner_compiler",
            "options",
            "parts",
            "kernel_cache",
            "apart",
            "products",
            "exponential",
            "vectors",
            "words",
            "limbs",
        ),
        *("bell_curve", "normal_tables", "exact_normal", "exact_laplace", "exact_coins", "rows", "row_sums"),
    ],
    "problems": ["responses", "losses", "regions", "constants", "problem"],
    "rules": [
        *("schedules", "sampling", "clipping", "feedback", "correlation", "noise", "preconditioning", "outputs"),
        *("rule", "presets"),
    ],
    "analysis": ["zeros", "attracting", "fixed_points", "anticipation", "dynamics", "metrics", "bias"],
}
PLACE = {name: place for place, name in enumerate(ORDER)}
ATTACKS = {
    "privacy.auditing.attacks",
    "privacy.auditing.audit",
    "privacy.auditing.one_run_audit",
}  # they analyse runs
TRACES = {"engine", "engine.trace", "engine.runner"}


def modules():
    """Return the path of each module by its name below `clipsilon`; "" is the package itself."""
    found = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in found.items()}


MODULES = modules()


def is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def statements(node):
    """Return all statements below a node except those under TYPE_CHECKING."""
    below = [child for child in ast.iter_child_nodes(node) if not is_for_types(child)]
    return chain(below, *(statements(child) for child in below))


@cache
def parsed(source):
    return ast.parse(source)


@cache
def imports(source):
    """Return all import statements of a source, anywhere in the file."""
    return [node for node in statements(parsed(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(source):
    """Yield the modules of the package that a source imports."""
    for node in imports(source):
        if isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix("clipsilon").lstrip(".") for alias in node.names if "clipsilon" in alias.name
            )
        elif (node.module or "").split(".")[0] == "clipsilon":
            module = node.module.removeprefix("clipsilon").lstrip(".")
            names = [f"{module}.{alias.name}".lstrip(".") for alias in node.names]
            yield from (name if name in MODULES else module for name in names)


def top(module):
    return module.split(".")[0]


def test_every_file_has_its_place():
    assert {top(module) for module in MODULES if module} == set(ORDER)


def against_the_flow(module):
    names = imported(MODULES[module].read_text("utf-8"))
    return sorted(name for name in names if not name or PLACE[top(name)] > PLACE[top(module)])


def test_imports_follow_the_flow():
    found = {module: against_the_flow(module) for module in MODULES if module}
    assert not {module: names for module, names in found.items() if names}


@pytest.mark.parametrize("folder", INNER_ORDER)
def test_imports_within_a_folder_follow_its_order(folder):
    order = INNER_ORDER[folder]
    inside = {m: m.split(".")[1] for m in MODULES if m.startswith(f"{folder}.")}
    assert set(inside.values()) == set(order)
    back = {
        m: sorted(
            n
            for n in imported(MODULES[m].read_text("utf-8"))
            if n.startswith(f"{folder}.") and order.index(n.split(".")[1]) > order.index(place)
        )
        for m, place in inside.items()
    }
    assert not {m: names for m, names in back.items() if names}


def test_the_top_level_shows_the_architecture():
    assert len(ORDER) <= 1 + 16  # `version` apart


def test_what_states_a_property_reads_no_trace():
    places = ("privacy", "theory", "analysis", "problems.constants")
    stating = [m for m in MODULES if m.startswith(places) and not m.startswith("theory.tuning") and m not in ATTACKS]
    reading = [m for m in stating if TRACES & set(imported(MODULES[m].read_text("utf-8")))]
    assert not reading


def test_no_import_is_relative():
    """`imported` would miss it."""
    nodes = [(m, node) for m, path in MODULES.items() for node in ast.walk(parsed(path.read_text("utf-8")))]
    assert not [m for m, node in nodes if isinstance(node, ast.ImportFrom) and node.level]


def test_imports_are_found():
    source = "import clipsilon._core.rows\nfrom clipsilon._core import checks\nif TYPE_CHECKING:\n    from clipsilon import cli\n"
    within = "def f():\n    from clipsilon.engine.means import mean_loss\n    from clipsilon import __version__\n"
    assert sorted(imported(source + within)) == ["", "_core.checks", "_core.rows", "engine.means"]


def test_all_that_is_compiled_is_in_the_kernels_digest():
    """A kernel stored under a digest that leaves out its source would be stale after an edit."""
    compiled = re.compile(r"^(from|import) (numba|llvmlite)|import .*\b(kernel|implements|operation)\b", re.MULTILINE)
    found = {
        path.relative_to(PACKAGE).as_posix() for path in MODULES.values() if compiled.search(path.read_text("utf-8"))
    }
    digested = {file for file, _ in reached(sources._FILES, "clipsilon")}
    assert found - digested == {"__init__.py", "engine/machines.py", "engine/sweep.py"}  # these two ask for versions


def test_the_engine_knows_no_algorithm_by_name():
    names = {"SGD", "PCSGD", "DPSGD", "DiceSGD", "AdamDiceSGD", "AutoDiceSGD", "LDPSGD", "LDPASGD", "DPGD"}
    trees = [ast.parse(path.read_text("utf-8")) for path in (PACKAGE / "engine").glob("*.py")]
    assert not [node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names]


def test_importing_loads_nothing_heavy():
    """scikit-learn, Matplotlib, PyTorch and Dask take seconds to import, and most uses need none of them."""
    heavy = ("sklearn", "matplotlib", "torch", "dask", "pandas", "rich", "dp_accounting", "starlette")
    code = f"import sys, clipsilon; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
