"""Digests of the package's sources, read before any of them is used.

This module is imported first, so that a file that is edited while the process runs cannot be mistaken for the
code that was loaded.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from clipsilon._core.kernel_sources import digest_of

_PACKAGE = Path(__file__).resolve().parents[1]
_EXCLUDED = ("reproduce/", "report/", "torch/", "cli/")  # no run depends on these
_COMPILER = "_core/inner_compiler.py"  # its classes are not compiled, but make compiled code
_FOLLOWED = ("clipsilon.reproduce", "clipsilon.torch")  # packages within which `digest_with` follows imports

_FILES = {path.relative_to(_PACKAGE).as_posix(): path.read_bytes() for path in sorted(_PACKAGE.rglob("*.py"))}


def _digest(names: list[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0" + _FILES[name] + b"\0")
    return digest.hexdigest()


SOURCE_DIGEST = _digest([name for name in _FILES if not name.startswith(_EXCLUDED)])
"""Changes with the code that computes runs, privacy and theory, but not with figures and commands."""


@cache
def kernel_digest() -> str:
    """Return a digest that changes with everything that Numba compiles and with how, but not with other code."""
    return hashlib.sha256((digest_of(_FILES, "clipsilon") + _digest([_COMPILER])).encode()).hexdigest()


def digest_with(module: str) -> str:
    """Return a digest of all that a module's results depend on.

    It covers `SOURCE_DIGEST` and, for a module of `reproduce` or `torch`, the module and all it imports from there.
    """
    return hashlib.sha256((SOURCE_DIGEST + _digest(sorted(_with_imports(module, set())))).encode()).hexdigest()


def imported_names(file: str) -> dict[str, str]:
    """Return the names that a file imports from this package, with the module that each is imported from."""
    found = {}
    for node in ast.walk(ast.parse(_FILES[file])):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clipsilon"):
            found.update({alias.asname or alias.name: str(node.module) for alias in node.names})
    return found


def is_module(name: str) -> bool:
    """Return whether a name is that of a module or package in this package."""
    return _file(name) is not None


def _with_imports(module: str, seen: set[str]) -> set[str]:
    file = _file(module)
    if module.startswith(_FOLLOWED) and file is not None and file not in seen:
        seen.add(file)
        for imported in _imports(_FILES[file]):
            _with_imports(imported, seen)
    return seen


def _file(module: str) -> str | None:
    """Return the file of a module or package, or None if it is not in this package."""
    name = module.removeprefix("clipsilon.").replace(".", "/")
    return next((file for file in (f"{name}.py", f"{name}/__init__.py") if file in _FILES), None)


def _imports(source: bytes) -> Iterator[str]:
    """Yield the names in a file's import statements that may be modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
