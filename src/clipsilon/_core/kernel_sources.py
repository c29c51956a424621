"""Which lines of the package compiled code can depend on, so that kernels are kept until one of them changes.

Numba compiles the functions that are marked for it, and what these name: other functions, classes, constants, of any
file. So does this module, on the syntax trees: it begins with every definition that contains a mark, and follows names
through imports. Annotations, docstrings and comments do not count. A class counts as it is written, and the names
in its fields and facts are followed, but not those in its methods and checks, which compiled code does not know.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping

_MARKS = ("fallback", "implements", "intrinsic", "kernel", "njit", "operation", "overload", "register_jitable")
_ANY_MARK = re.compile(rf"@[\w.]*\b({'|'.join(_MARKS)})\b".encode())

Definition = tuple[str, int]  # a file, and the number of a statement in it


def digest_of(files: Mapping[str, bytes], package: str) -> str:
    """Return a digest of all definitions that compiled code can depend on.

    Parameters
    ----------
    files : mapping
        The sources, by their paths within the package.
    package : str
        The name by which files import from each other.

    Returns
    -------
    str
        The digest, in hexadecimal.
    """
    digest = hashlib.sha256()
    for text in sorted(reached(files, package).values()):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def reached(files: Mapping[str, bytes], package: str) -> dict[Definition, str]:
    """Return the text of each definition that compiled code can depend on, without what does not count."""
    modules = _Modules(files, package)
    begin = [name for name, source in files.items() if _ANY_MARK.search(source)]
    waiting = [place for name in begin for place in modules[name].marked()]
    found: dict[Definition, str] = {}
    while waiting:
        name, number = place = waiting.pop()
        if place in found:
            continue
        statement = modules[name].statements[number]
        found[place] = f"{name}\0{ast.dump(statement)}"
        waiting += [definition for used in _used(_compiled(statement)) for definition in modules[name].find(used)]
    return found


class _Modules(dict[str, "_Module"]):
    """The files by their paths, parsed when they are needed."""

    def __init__(self, files: Mapping[str, bytes], package: str):
        super().__init__()
        self._files, self._package = files, package

    def __missing__(self, name: str) -> _Module:
        self[name] = _Module(name, self._files[name], self)
        return self[name]

    def file_of(self, module: str) -> str | None:
        """Return the file of a module or package, or None if it is not in this package."""
        name = module.removeprefix(f"{self._package}.").replace(".", "/")
        return next((file for file in (f"{name}.py", f"{name}/__init__.py") if file in self._files), None)


class _Module:
    """A file: its statements, and what its names stand for."""

    def __init__(self, name: str, source: bytes, modules: _Modules):
        self._name, self._modules = name, modules
        self.statements = [_bare(statement) for statement in ast.parse(source).body]
        self._bound: dict[str, list[int]] = {}
        self._imported: dict[str, tuple[str, str]] = {}
        for number, statement in enumerate(self.statements):
            for node in ast.walk(statement) if isinstance(statement, ast.If | ast.Try | ast.With) else [statement]:
                self._bind(node, number)

    def _bind(self, node: ast.AST, number: int) -> None:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self._imported[alias.asname or alias.name] = (str(node.module), alias.name)
        for name in _defined(node):
            self._bound.setdefault(name, []).append(number)

    def marked(self) -> Iterator[Definition]:
        """Yield the definitions that contain a function for Numba, and statements that define nothing."""
        for number, statement in enumerate(self.statements):
            if _is_marked(statement) or isinstance(statement, ast.Expr | ast.For):
                yield self._name, number

    def find(self, name: str) -> list[Definition]:
        """Return the definitions that a name, or a name within a module, stands for in this file."""
        head, _, rest = name.partition(".")
        if head in self._bound:
            return [(self._name, number) for number in self._bound[head]]
        if head not in self._imported:
            return []
        origin, original = self._imported[head]
        if (inner := self._modules.file_of(f"{origin}.{original}")) is not None:
            module = self._modules[inner]
            return module.find(rest) if rest else [(inner, number) for number in range(len(module.statements))]
        source = self._modules.file_of(origin)
        return [] if source is None else self._modules[source].find(original)


def _bare(statement: ast.stmt) -> ast.stmt:
    """Remove docstrings, and the annotations of functions."""
    for node in ast.walk(statement):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return statement


def _is_marked(statement: ast.stmt) -> bool:
    functions = (node for node in ast.walk(statement) if isinstance(node, ast.FunctionDef))
    decorators = (mark.func if isinstance(mark, ast.Call) else mark for f in functions for mark in f.decorator_list)
    return any(ast.unparse(mark).split(".")[-1] in _MARKS for mark in decorators)


def _compiled(statement: ast.stmt) -> ast.stmt:
    """Return a class without its methods and the checks of its arguments, and any other statement as it is."""
    if not isinstance(statement, ast.ClassDef):
        return statement
    body = [inner for inner in statement.body if not isinstance(inner, ast.FunctionDef)]
    facts = [mark for mark in statement.decorator_list if not ast.unparse(mark).startswith("checked(")]
    return ast.ClassDef(statement.name, statement.bases, statement.keywords, body, facts)


def _defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


def _used(statement: ast.stmt) -> set[str]:
    """Return the names in a statement, and those with a dot after them."""
    nodes = list(ast.walk(statement))
    dotted = {f"{n.value.id}.{n.attr}" for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    return dotted | {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in inner}
