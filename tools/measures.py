"""Measure the source tree: its size, its interface and its documentation. `make measures` prints the table.

The source is parsed, never imported, so an old checkout can be measured as well: python tools/measures.py PATH.
"""

import argparse
import ast
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NOT_COUNTED = {"__init__.py", "version.py", "py.typed", "__pycache__"}  # at the top level of the package
GENERATED_DOCS = {"_build", "gallery_pages"}
PROOFS = "proofs.md"
SHORTEST_DUPLICATE = 6  # lines
FEW_PARAMETERS = 2  # a docstring can explain these in a sentence
SECTION = re.compile(r"^\s*(Parameters|Attributes|Other Parameters)\n\s*-{3,}\s*$", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Public(NamedTuple):
    """A public function, method or constructor."""

    name: str
    parameters: list[ast.arg]
    docstring: str


def find_package(root: Path) -> Path:
    """Return the folder of the one package under `root/src`."""
    found = [path.parent for path in sorted((root / "src").glob("*/__init__.py"))]
    if len(found) != 1:
        raise SystemExit(f"{root / 'src'} must hold one package, got {len(found)}")
    return found[0]


def parse(package: Path) -> dict[str, tuple[str, ast.Module]]:
    """Return the text and the syntax tree of each module by its path below the package."""
    texts = {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}
    return {name: (text, ast.parse(text)) for name, text in texts.items()}


def docstring_lines(node: ast.AST) -> range:
    """Return the lines that the docstring of a module, class or function takes, an empty range without one."""
    body = getattr(node, "body", None)
    if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
        return range(0)
    value = body[0].value
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
        return range(0)
    return range(value.lineno, (value.end_lineno or value.lineno) + 1)


def is_public(name: str) -> bool:
    """Return whether no part of a dotted name or path begins with an underscore (`__init__.py` apart)."""
    parts = re.split(r"[./]", name.removesuffix("__init__.py").removesuffix(".py"))
    return not any(part.startswith("_") for part in parts)


def decorators(node: Function | ast.ClassDef) -> set[str]:
    """Return the last word of each decorator's name: `option` for `@click.option("--seed")`."""
    calls = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return {ast.unparse(call).split(".")[-1] for call in calls}


def parameters(function: Function, method: bool = False) -> list[ast.arg]:
    """Return all parameters of a function, without `self` and `cls`."""
    args = function.args
    found = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, [args.vararg, args.kwarg])]
    return found[1:] if method and "staticmethod" not in decorators(function) else found


def fields(node: ast.ClassDef) -> list[ast.arg]:
    """Return the fields of a named tuple or dataclass as the parameters of its constructor."""
    if not {"NamedTuple", "dataclass"} & ({ast.unparse(base) for base in node.bases} | decorators(node)):
        return []
    assigned = [item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
    return [ast.arg(ast.unparse(item.target), item.annotation) for item in assigned]


def public_class(module: str, node: ast.ClassDef) -> Iterator[Public]:
    """Yield the constructor of a class, if it takes arguments, and its public methods."""
    own = ast.get_docstring(node) or ""
    constructor = fields(node)
    for item in node.body:
        if not isinstance(item, Function):
            continue
        if item.name == "__init__":
            constructor, own = parameters(item, method=True), f"{own}\n{ast.get_docstring(item) or ''}".strip()
        elif is_public(item.name) and not decorators(item) & {"overload", "setter"}:
            text = ast.get_docstring(item) or ""
            yield Public(f"{module}:{node.name}.{item.name}", parameters(item, method=True), text)
    yield Public(f"{module}:{node.name}", constructor, own)


def public_functions(modules: dict[str, tuple[str, ast.Module]]) -> Iterator[Public]:
    """Yield what users can call: public functions, methods and constructors in public modules.

    Commands are left out: their options carry their own help, and their docstring is shown to users of the shell.
    """
    for module in filter(is_public, modules):
        for node in modules[module][1].body:
            if not isinstance(node, Function | ast.ClassDef) or not is_public(node.name):
                continue
            if isinstance(node, ast.ClassDef):
                yield from public_class(module, node)
            elif not decorators(node) & {"command", "group", "overload"}:
                yield Public(f"{module}:{node.name}", parameters(node), ast.get_docstring(node) or "")


def is_any(annotation: ast.expr) -> bool:
    """Return whether an annotation is `Any`, alone or in a union, so that every value passes."""
    if isinstance(annotation, ast.BinOp):
        return is_any(annotation.left) or is_any(annotation.right)
    return ast.unparse(annotation).strip("'\"").split(".")[-1] == "Any"


def function_sizes(modules: dict[str, tuple[str, ast.Module]]) -> tuple[list[int], list[int]]:
    """Return the lines, without docstrings, and the number of arguments of every function, nested ones included."""
    lines, arguments = [], []
    for _, tree in modules.values():
        nodes = list(ast.walk(tree))
        methods = {item for node in nodes if isinstance(node, ast.ClassDef) for item in node.body}
        for node in nodes:
            if isinstance(node, Function):
                lines.append((node.end_lineno or node.lineno) - node.lineno + 1 - len(docstring_lines(node)))
                arguments.append(len(parameters(node, method=node in methods)))
    return lines, arguments


def code_lines(text: str, tree: ast.Module) -> list[tuple[int, str]]:
    """Return number and content of the lines of code, without imports, docstrings, comments and lone brackets."""
    left_out: set[int] = set()
    for node in ast.walk(tree):
        left_out.update(docstring_lines(node))
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if number not in left_out]
    return [(number, line) for number, line in lines if re.search(r"\w", line) and not line.startswith("#")]


def duplicates(modules: dict[str, tuple[str, ast.Module]]) -> list[tuple[str, str]]:
    """Return each pair of places from which on at least `SHORTEST_DUPLICATE` lines of code are the same."""
    lines = {name: code_lines(text, tree) for name, (text, tree) in modules.items()}
    places = defaultdict(list)
    for name, found in lines.items():
        for start in range(len(found) - SHORTEST_DUPLICATE + 1):
            places[tuple(line for _, line in found[start : start + SHORTEST_DUPLICATE])].append((name, start))
    pairs = {pair for same in places.values() for pair in combinations(same, 2)}
    first = [(a, b) for a, b in sorted(pairs) if ((a[0], a[1] - 1), (b[0], b[1] - 1)) not in pairs]
    apart = [(a, b) for a, b in first if a[0] != b[0] or b[1] - a[1] >= SHORTEST_DUPLICATE]
    return [(f"{a}:{lines[a][i][0]}", f"{b}:{lines[b][j][0]}") for (a, i), (b, j) in apart]


def pages(root: Path) -> list[Path]:
    """Return the pages that people write: the documentation, the readme and the guide for contributors."""
    written = [p for p in (root / "docs").rglob("*.md") if not GENERATED_DOCS & set(p.relative_to(root).parts)]
    return [*written, *(p for p in (root / "README.md", root / "CONTRIBUTING.md") if p.exists())]


def words(page: Path) -> int:
    """Return the number of words on a page, as `wc -w` counts them."""
    return len(page.read_text("utf-8").split())


def percentile_95(values: list[int]) -> int:
    """Return the smallest value that at least 95 % of the values do not exceed."""
    return sorted(values)[-(-95 * len(values) // 100) - 1]


def spread(name: str, values: list[int]) -> dict[str, float]:
    """Return median, 95th percentile and maximum of a measure."""
    figures = {"median": statistics.median(values), "p95": percentile_95(values), "max": max(values)}
    return {f"{name}, {figure}": value for figure, value in figures.items()}


def measure(root: Path) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Measure the tree of a checkout.

    Returns the figures by name, and for the figures that count faults the places where these are.
    """
    package = find_package(root)
    modules = parse(package)
    public = list(public_functions(modules))
    lines, arguments = function_sizes(modules)
    annotated = [(f"{p.name}({a.arg})", a.annotation) for p in public for a in p.parameters if a.annotation]
    open_to_any = [name for name, annotation in annotated if is_any(annotation)]
    faults = {
        "parameters of public functions that are Any": open_to_any,
        "public functions without parameter section": [
            p.name for p in public if len(p.parameters) > FEW_PARAMETERS and not SECTION.search(p.docstring)
        ],
        "public functions without docstring": [p.name for p in public if not p.docstring],
        "duplicates": [f"{one} = {other}" for one, other in duplicates(modules)],
    }
    figures = {
        "entries at the top level": len({p.name for p in package.iterdir()} - NOT_COUNTED),
        "files": len(modules),
        **spread("lines per file", [text.count("\n") for text, _ in modules.values()]),
        "functions": len(lines),
        **spread("lines per function", lines),
        **spread("arguments per function", arguments),
        "public functions": len(public),
        "share of Any among parameters, %": round(100 * len(open_to_any) / max(len(annotated), 1), 1),
        **{name: len(places) for name, places in faults.items()},
        "words of documentation without proofs": sum(words(page) for page in pages(root) if page.name != PROOFS),
        "words of proofs": sum(words(page) for page in pages(root) if page.name == PROOFS),
    }
    return figures, faults


def main() -> None:
    """Print the table, or the figures as JSON."""
    parser = argparse.ArgumentParser(description="Measure the source tree.")
    parser.add_argument("root", type=Path, nargs="?", default=ROOT, help="the checkout to measure; default: this one")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--list", action="store_true", help="name the places of what is counted as a fault")
    options = parser.parse_args()
    figures, faults = measure(options.root)
    if options.json:
        print(json.dumps({**figures, **({"places": faults} if options.list else {})}, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:<50}{value:>10,}")
    for name, places in faults.items() if options.list else ():
        print(f"\n{name}:", *places, sep="\n  ")


if __name__ == "__main__":
    main()
